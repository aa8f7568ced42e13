"""`hybridstore rewind`: a state goes back to an older version, its job goes on from there, and whenever the command is
killed, the state opens at a version between both.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from hybridstore.cli import run
from hybridstore.rewinding import command as rewinding
from hybridstore.state.opening import Tuning
from tests.tools.checkpoints import flip
from tests.tools.hooks import check_stores, crash
from tests.tools.shard_tools import OFTEN, build, content, expected, restarted, write
from tests.tools.sizes import SMALL_PARTS

SMALL = Tuning(segment_bytes=2000, block_records=8, parts=SMALL_PARTS)
KEPT = hs.CheckpointPolicy(every_commits=None, keep=2)


def rewind(path: Path, version: int, *more: str) -> int:
    return run(["rewind", str(path), "--to", str(version), *more])


def rows(state: hs.State) -> dict[str, Any]:
    return dict(state.key_value("rows").all())


def build_state(path: Path, versions: int = 12, checkpoints: tuple[int, ...] = (4, 8)) -> list[dict[str, Any]]:
    """Return what each version has."""
    seen: list[dict[str, Any]] = [{}]
    with hs.open(path, checkpoints=KEPT, _tuning=SMALL) as state:
        for version in range(1, versions + 1):
            state.key_value("rows").put_many({f"{version % 3}-{i}": f"{version} {'x' * 50}" for i in range(10)})
            assert state.commit() == version
            seen.append(rows(state))
            if version in checkpoints:
                state.checkpoint(wait=True)
    return seen


@pytest.mark.parametrize("version", [4, 5, 8, 9, 11, 12])
def test_the_job_goes_on_from_the_older_version(tmp_path: Path, version: int) -> None:
    seen = build_state(tmp_path / "s")
    files = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert rewind(tmp_path / "s", version) == 0
    assert files == {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert rewind(tmp_path / "s", version, "--write") == 0
    assert run(["inspect", "verify", str(tmp_path / "s")]) == 0
    with hs.open(tmp_path / "s", checkpoints=KEPT, _tuning=SMALL) as state:
        assert state.version == version
        assert rows(state) == seen[version]
        check_stores(state)
        for more in range(3):
            state.key_value("rows").put("more", more)
            state.commit()
            state.checkpoint(wait=True)
        after = rows(state)
    with hs.open(tmp_path / "s") as state:
        assert (state.version, rows(state)) == (version + 3, after)
    assert run(["inspect", "verify", str(tmp_path / "s"), "--full"]) == 0


@pytest.mark.parametrize("version", [0, 1, 3, 13])
def test_a_version_that_is_not_retained_is_refused(
    tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    build_state(tmp_path / "s")
    files = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.name != "LOCK"
             and path.is_file()}  # fmt: skip
    assert rewind(tmp_path / "s", version, "--write") == 1
    assert f"version {version} is not retained" in capsys.readouterr().err
    assert files == {path: path.read_bytes() for path in files}
    with hs.open(tmp_path / "s") as state:
        assert state.version == 12


def test_a_state_in_use_and_a_state_on_an_object_store_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_state(tmp_path / "s")
    with hs.open(tmp_path / "s"):
        assert rewind(tmp_path / "s", 9, "--write") == 3
        assert f"cannot write: {tmp_path / 's'}: in use by process" in capsys.readouterr().err
    assert rewind(Path("s3://bucket/state"), 9) == 1
    assert "later versions stop earlier owners" in capsys.readouterr().err


class Killed(BaseException):
    """The process is killed here."""


def test_whenever_it_is_killed_the_state_opens_between_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in itertools.count():
        path = tmp_path / str(last)
        seen = build_state(path)
        steps = itertools.count()

        def step(real: Any, path_or_files: Any, *args: Any, last: int = last, steps: Any = steps) -> Any:
            if next(steps) == last:
                raise Killed
            return real(path_or_files, *args)

        with monkeypatch.context() as patch:
            for name in ("remove", "append", "sync_directory"):
                real = getattr(Files, name)
                patch.setattr(Files, name, lambda files, *args, real=real: step(real, files, *args))
            try:
                assert rewind(path, 5, "--write") == 0
                done = True
            except Killed:
                done = False
        state = hs.open(path, _tuning=SMALL, checkpoints=KEPT)
        assert 5 <= state.version <= 12
        assert rows(state) == seen[state.version]
        crash(state)
        assert rewind(path, 5, "--write") == 0
        with hs.open(path) as state:
            assert (state.version, rows(state)) == (5, seen[5])
        if done:
            assert last > 5
            return


def test_a_topology_of_several_shards_goes_back_to_one_commit(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(1000)]
    whole = [dict(row) for row in topology.run(source, tmp_path / "whole", shards=3, commit_rows=50)]
    path = tmp_path / "s"
    assert [dict(row) for row in topology.run(source, path, shards=3, commit_rows=50)] == whole
    with hs.open(path / "0", at="newest") as state:
        newest = state.version
    assert rewind(path, newest - 7, "--write") == 0
    again = [dict(row) for row in topology.run(source, path, shards=3, commit_rows=50, replay_last=False)]
    assert again == whole[len(whole) - len(again) :]
    assert 300 <= len(again) <= 400
    with topology.open(path, shards=3) as engine, topology.open(tmp_path / "whole", shards=3) as other:
        assert [rows_of(state) for state in engine.states] == [rows_of(state) for state in other.states]


def rows_of(state: hs.State) -> dict[str, list[Any]]:
    return {name: sorted(map(repr, store.all())) for name, store in state.stores.items()}


def test_shards_that_know_no_common_commit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    with topology.open(tmp_path / "s", shards=2) as engine:
        for number in range(20):
            engine.process({"k": f"{number}", "ts": number})
            engine.commit()
    assert rewind(tmp_path / "s", 3) == 1
    assert "says nothing of a run" in capsys.readouterr().err


def test_the_logs_of_a_query_are_moved_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "query"
    build(root, 6, policy=OFTEN)
    for log in ("offsets", "commits"):
        (root / log).mkdir()
        for batch in range(6):
            (root / log / f"{batch}").write_text(f"v1\n{json.dumps({log: batch})}")
            (root / log / f".{batch}.crc").write_bytes(b"crc")
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert rewind(root, 4) == 0
    assert names == sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert rewind(root, 7) == 1
    assert "known: 1 to 5" in capsys.readouterr().err
    assert rewind(root, 4, "--write") == 0
    for log in ("offsets", "commits"):
        assert sorted(path.name for path in (root / log).iterdir() if path.suffix != ".crc") == ["0", "1", "2", "3"]
        assert sorted(path.name for path in (root / "rewound" / "0" / log).iterdir()) == ["4", "5"]
    # The next start does batch 4 again: what the batches before left behind version 4 is void.
    task = restarted(root, 4)
    assert content(task.get_read_store(4)) == expected(4)
    write(task, 4, again=1)
    assert content(task.get_read_store(5)) == {**expected(4), "again": 1}


def test_steps_of_a_query_leave_a_query_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is killed, no batch has a commit without offsets, and no commit is above one that is missing."""
    for last in range(20):
        root = tmp_path / str(last)
        build(root, 6, policy=OFTEN)
        for log in ("offsets", "commits"):
            (root / log).mkdir()
            for batch in range(6):
                (root / log / f"{batch}").write_text(f"v1\n{log} {batch}")
        moved = itertools.count()
        real = rewinding._move_aside

        def move(storage: Any, name: str, last: int = last, moved: Any = moved, real: Any = real) -> None:
            if next(moved) == last:
                raise Killed
            real(storage, name)

        with monkeypatch.context() as patch:
            patch.setattr(rewinding, "_move_aside", move)
            try:
                done = rewind(root, 3, "--write") == 0
            except Killed:
                done = False
        offsets, commits = ({int(path.name) for path in (root / log).iterdir()} for log in ("offsets", "commits"))
        assert commits == set(range(max(commits) + 1))
        assert offsets == set(range(max(offsets) + 1))
        assert commits <= offsets
        if done:
            assert last == 6
            return
        assert rewind(root, 3, "--write") == 0
        assert sorted(path.name for path in (root / "offsets").iterdir()) == ["0", "1", "2"]
    raise AssertionError("it never came to its end")


def sharded(path: Path) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]]]:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(1000)]
    return topology, source, [dict(row) for row in topology.run(source, path, shards=3, commit_rows=50)]


@pytest.mark.parametrize("back", [0, 6])
def test_a_topology_of_several_shards_is_compacted(tmp_path: Path, back: int) -> None:
    topology, source, whole = sharded(tmp_path / "s")
    with hs.open(tmp_path / "s" / "0", at="newest") as state:
        newest = state.version
    where = ["inspect", "compact", str(tmp_path / "s"), "--to", str(tmp_path / "c")]
    where += ["--at", str(newest - back)] if back else []
    assert run(where) == 0
    assert not (tmp_path / "c").exists()
    assert run([*where, "--write"]) == 0
    again = [dict(row) for row in topology.run(source, tmp_path / "c", shards=3, commit_rows=50, replay_last=False)]
    assert again == whole[len(whole) - len(again) :]
    assert (len(again) > 0) == (back > 0)
    with topology.open(tmp_path / "c", shards=3) as engine, topology.open(tmp_path / "s", shards=3) as other:
        assert [rows_of(state) for state in engine.states] == [rows_of(state) for state in other.states]


def test_a_topology_with_a_damaged_shard_is_repaired_at_one_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology, source, whole = sharded(tmp_path / "s")
    log = max((tmp_path / "s" / "1" / "changelog").iterdir())
    flip(log, log.stat().st_size // 2)
    with pytest.raises(hs.HybridStoreError):
        topology.open(tmp_path / "s", shards=3)
    assert run(["inspect", "repair", str(tmp_path / "s"), "--to", str(tmp_path / "r"), "--write"]) == 1
    assert "are lost: another shard cannot reach" in capsys.readouterr().err
    again = [dict(row) for row in topology.run(source, tmp_path / "r", shards=3, commit_rows=50, replay_last=False)]
    assert 0 < len(again) < len(whole)
    assert again == whole[len(whole) - len(again) :]
