"""`hybridstore bench restore`: it measures a state as it is, changes nothing, and prints no figure for a wrong
answer.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.inspection import bench
from hybridstore.state.opening import Tuning
from recovery.block import BlockEntry, Columns
from recovery.checkpoint import CheckpointReader


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with hs.open(path, _tuning=Tuning(block_records=4)) as state:
        names = state.key_value("names")
        names.put_many([(f"k{i:02}", i) for i in range(30)])
        state.window("clicks", retention="1 hour").put("k1", 1, 1000)
        state.suppression("alerts", max_records=8, time_limit=40).put("k", 1, 5)
        state.commit()
        state.checkpoint(wait=True)
        names.put("k01", "later")
        state.commit()
    return path


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert run(["bench", "restore", *map(str, arguments), "-o", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_state_is_measured_and_left_as_it_is(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(state)
    phases = {row["phase"]: row for row in rows(capsys, state, "--runs", 2)}
    assert list(phases) == list(bench.PHASES)
    for row in phases.values():
        assert 0 <= row["lowest_ms"] <= row["median_ms"] <= row["highest_ms"]
    assert phases["open"]["lowest_ms"] > 0
    assert files(state) == before


def test_a_state_with_a_writer_is_measured(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.open(state) as writer:
        assert len(rows(capsys, state, "--runs", 1)) == len(bench.PHASES)
        writer.key_value("names").put("k02", "goes on")
        writer.commit()


def test_a_state_is_made_measured_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert len(rows(capsys, "--records", 3000, "--runs", 1)) == len(bench.PHASES)
    assert list(tmp_path.iterdir()) == []


def test_the_first_block_is_a_block_and_no_rows_of_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.make(tmp_path / "state", 10_000)
    loaded: list[int] = []
    block = CheckpointReader.block

    def counted(reader: CheckpointReader, store: int, entry: BlockEntry) -> Columns:
        loaded.append(store)
        return block(reader, store, entry)

    monkeypatch.setattr(CheckpointReader, "block", counted)
    # a clock of blocks
    monkeypatch.setattr(bench, "perf_counter", lambda: float(len(loaded)))
    phases = bench.restart([str(tmp_path / "state")])
    assert phases["tail records"] == 5000
    assert (phases["open"], phases["rows put in place"], phases["first block"]) == (0, 0, 1)
    assert phases["all blocks"] == len(loaded) > 1


def test_the_answer_is_a_table_for_people(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "restore", str(state), "--runs", "1", "-o", "table"]) == 0
    out = capsys.readouterr().out
    assert "to the first read" in out
    assert "all blocks" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_topology_of_several_shards_is_measured_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    path = tmp_path / "state"
    list(topology.run([{"k": f"k{i}", "t": i} for i in range(300)], path, shards=3))
    with topology.open(path, shards=3) as engine:
        records = [sum(store.num_records for store in state.stores.values()) for state in engine.states]
    assert all(records)
    (runs,) = bench.measure(str(path), 1)
    assert (runs["shards"], runs["records"]) == (3, sum(records))
    before = files(path)
    assert run(["bench", "restore", str(path), "--runs", "2", "-o", "table"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["shards", "3"] in lines
    assert files(path) == before


def test_runs_that_restore_different_states_give_no_figure(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        returncode = 0
        count = 0

        @property
        def stdout(self) -> str:
            Answer.count += 1
            return json.dumps({"version": 2, "digest": "", "records": Answer.count})

    monkeypatch.setattr("subprocess.run", lambda *_, **__: Answer())
    assert run(["bench", "restore", str(state), "--runs", "2"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "two restarts differ: records 1 and 2" in captured.err


def test_what_cannot_be_restored_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "restore", str(tmp_path / "none"), "--runs", "1"]) == 3
    assert "found no state in it, expected a state directory" in capsys.readouterr().err
    assert run(["bench", "restore", "--runs", "0"]) == 2
    assert "expected a whole number of at least 1" in capsys.readouterr().err
