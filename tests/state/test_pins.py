"""`hybridstore pin` and `unpin`: a named version stays, whatever happens to its state, and costs what it shows."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.cli import run
from hybridstore.errors import StateDirectoryError
from hybridstore.state.lock import pin_above
from hybridstore.state.registry import kept_from_erase
from recovery.errors import RestoreError
from tests.state.test_fork import Killed, contents, fork, kill_at
from tests.state.test_rewind import SMALL, build_state, rewind, rows


def pinned_rows(path: Path) -> tuple[int, dict[str, Any]]:
    with hs.open(path, at="newest") as state:
        return state.version, rows(state)


@pytest.mark.parametrize("version", [5, 8, 12])
def test_a_pin_stays_its_version_whatever_happens_to_the_state(tmp_path: Path, version: int) -> None:
    path = tmp_path / "s"
    seen = build_state(path)
    pin = hs.pin(path, "good", at=version)
    assert (pin.name, pin.path, pin.version, pin.fault) == ("good", path / "pins" / "good", version, "")
    assert rewind(path, 8, "--write") == 0
    with hs.open(path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1), _tuning=SMALL) as state:
        assert rows(state) == seen[8]
        for number in range(6):
            state.key_value("rows").put("more", number)
            state.commit()
            state.checkpoint(wait=True)
        after = rows(state)
        assert pinned_rows(pin.path) == (version, seen[version])  # while the job runs
    assert fork(path, tmp_path / "f") == 0
    assert not (tmp_path / "f" / "pins").exists()
    assert pinned_rows(pin.path) == (version, seen[version])
    assert run(["inspect", "verify", str(pin.path), "--full"]) == 0
    assert run(["inspect", "verify", str(path), "--full"]) == 0
    assert fork(f"{path}@good", tmp_path / "g") == 0
    assert hs.fork(path, tmp_path / "h", at="good") == tmp_path / "h"
    shutil.rmtree(pin.path)
    for each in (tmp_path / "g", tmp_path / "h"):
        with hs.open(each, _tuning=SMALL) as state:
            assert (state.version, rows(state)) == (version, seen[version])
            state.commit()
    with hs.open(path) as state:
        assert (state.version, rows(state)) == (14, after)


def test_a_pin_costs_the_files_that_nothing_else_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    build_state(path)
    first, second = hs.pin(path, "first", at=5), hs.pin(path, "second", at=5)
    (copied,) = [each for each in contents(first.path).values() if len(each) == first.size]
    assert first.size == second.size == len(copied)
    with hs.open(path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1), _tuning=SMALL) as state:
        for number in range(4):
            state.key_value("rows").put_many({key: number for key in rows(state)})
            state.commit()
            state.checkpoint(wait=True)
    # what the state has pruned is kept by both, so that neither alone frees it
    assert [each.size for each in hs.pins(path)] == [first.size, second.size]
    freed = hs.unpin(path, "first")
    assert freed == first.size
    (other,) = hs.pins(path)
    assert other.size == sum(len(each) for each in contents(other.path).values()) > 2 * first.size
    capsys.readouterr()
    assert run(["inspect", "stat", str(path), "-o", "jsonl"]) == 0
    (row,) = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["what"] == "pins"]
    assert (row["pin"], row["version"], row["bytes"]) == ("second", 5, other.size)


def test_a_pin_is_read_and_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    build_state(path)
    pin = hs.pin(path, "good")
    before = contents(pin.path)
    with pytest.raises(StateDirectoryError, match=r"belongs to the pin good, which is read and never written \(begin"):
        hs.open(pin.path)
    with pytest.raises(StateDirectoryError, match="belongs to the pin good"):
        run(["rewind", str(pin.path), "--to", "12", "--write", "--debug"])
    assert contents(pin.path) == before
    assert pin_above(path / "more" / "pins" / "other") is None
    # a state that is elsewhere in a folder of this name is none
    with hs.open(tmp_path / "pins" / "other") as state:
        state.key_value("rows").put("a", 1)
        assert state.commit() == 1
    assert "pins" not in capsys.readouterr().err


def test_a_topology_of_several_shards_is_pinned_at_one_commit(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"{number % 7}", "ts": number} for number in range(1000)]
    path = tmp_path / "s"
    whole = [dict(row) for row in topology.run(source, path, shards=3, commit_rows=50)]
    with hs.open(path / "0", at="newest") as state:
        newest = state.version
    pin = hs.pin(path, "good", at=newest - 7)
    assert pin.version == newest - 7
    with pytest.raises(StateDirectoryError, match="belongs to the pin good"):
        list(topology.run(source, pin.path, shards=3, commit_rows=50))
    with pytest.raises(StateDirectoryError, match="belongs to the pin good"):
        hs.open(pin.path / "1")
    hs.fork(path, tmp_path / "f", at="good")
    again = [dict(row) for row in topology.run(source, tmp_path / "f", shards=3, commit_rows=50, replay_last=False)]
    assert 0 < len(again) < len(whole)
    assert all(row in whole for row in again)


def test_whenever_it_is_killed_the_pin_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    seen = build_state(path)
    before = contents(path)

    def removed(away: Path) -> None:
        """A removal that is killed halfway."""
        next(each for each in away.rglob("*") if each.is_file()).unlink()
        raise Killed

    for last in itertools.count():
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, last)
            try:
                hs.pin(path, "good", at=9)
                done = True
            except Killed:
                done = False
        if not hs.pins(path):
            assert not done
            hs.pin(path, "good", at=9)
        assert pinned_rows(path / "pins" / "good") == (9, seen[9])
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", removed)
            with pytest.raises(Killed):
                hs.unpin(path, "good")
        assert hs.pins(path) == []
        shutil.rmtree(path / "pins")
        assert contents(path) == before
        if done:
            assert last > 10
            return


def test_what_cannot_be_pinned_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    build_state(path)
    hs.pin(path, "good")
    for words, message in (
        ([f"{path}@3", "old"], "version 3 is not retained"),
        ([f"{path}@99", "old"], "version 99 is not retained"),
        ([str(path), "good"], "found a pin good already"),
        ([str(path), "../good"], "found the name '../good', expected a letter"),
        ([str(path), "41"], "found the name '41', expected a letter"),
        ([f"{path}@8"], "found no NAME"),
    ):
        assert run(["pin", *words]) == 1, words
        assert message in capsys.readouterr().err
    assert run(["pin", str(tmp_path / "nothing"), "good"]) == 3
    with pytest.raises(RestoreError, match=r"found no pin 'other' \(known: good\)"):
        hs.unpin(path, "other")
    assert [each.name for each in hs.pins(path)] == ["good"]
    assert not [each for each in (path / "pins").iterdir() if each.name != "good"]


def test_an_erase_is_refused_while_a_pin_is_being_made(tmp_path: Path) -> None:
    path = tmp_path / "s"
    build_state(path)
    with (
        kept_from_erase(path),
        pytest.raises(RestoreError, match="s: a fork, a pin or another erase is at work"),
    ):
        hs.erase(path, "key 1")
