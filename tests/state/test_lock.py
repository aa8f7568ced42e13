"""Locks: one owner at a time, a note that a crash cannot falsify, and nothing left that a dead process could hold."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state.lock import DirectoryLock, read_note
from recovery.layout import LOCK


def test_a_second_owner_is_refused_also_in_the_same_process(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    first.hold()
    with pytest.raises(
        hs.StateLockedError,
        match=r"in use by process \d+ on \S+ since .* \(this one: close what opened it first; `hybridstore inspect` "
        r"reads",
    ):
        DirectoryLock(tmp_path)
    first.release()
    DirectoryLock(tmp_path).release()


def test_an_owner_that_left_no_note_is_still_an_owner(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    with pytest.raises(hs.StateLockedError, match="in use by another process"):
        DirectoryLock(tmp_path)
    first.release()


def test_a_failed_opening_gives_the_lock_back(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("kv")["a"] = 1
        state.commit()
    (segment,) = (tmp_path / "s" / "changelog").iterdir()
    raw = segment.read_bytes()
    segment.write_bytes(b"PK" + raw)
    with pytest.raises(hs.errors.ForeignFileError):
        hs.open(tmp_path / "s")
    segment.write_bytes(raw)
    with hs.open(tmp_path / "s") as state:
        assert state.version == 1


def test_the_note_of_a_clean_close_is_found_again(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.hold(4)
    assert read_note(tmp_path)["segment"] == 4
    lock.release({"version": 7, "digest": "00"})
    lock.release()
    lock = DirectoryLock(tmp_path)
    assert lock.closed == {"version": 7, "digest": "00"}
    assert lock.segment == 0
    lock.hold()
    assert read_note(tmp_path).get("closed") is None
    lock.release()
    lock = DirectoryLock(tmp_path)
    assert (lock.closed, lock.segment) == ({}, 0)
    lock.release()


def test_every_damaged_note_counts_as_none(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.release({"version": 7, "digest": "00"})
    raw = (tmp_path / LOCK).read_bytes()
    assert json.loads(raw.splitlines()[0]) == {"closed": {"version": 7, "digest": "00"}}
    for at in range(len(raw)):
        for damaged in (raw[:at], raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]):
            (tmp_path / LOCK).write_bytes(damaged)
            assert read_note(tmp_path) == {}
    (tmp_path / LOCK).write_bytes(raw + b"more")
    assert read_note(tmp_path) == {}


def test_readers_do_not_need_the_lock(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        state.key_value("kv")["b"] = 2
        with hs.open(tmp_path / "s", at="newest") as reader:
            assert dict(reader.key_value("kv").all()) == {"a": 1}
        assert state.commit() == 2


@pytest.mark.parametrize(
    "note", [[], {"closed": 5}, {"closed": {"version": "x"}}, {"segment": "1"}, {"pid": 1}, "x", {"closed": []}]
)
def test_a_note_of_another_form_counts_as_none(tmp_path: Path, note: object) -> None:
    line = json.dumps(note).encode() + b"\n"
    (tmp_path / "LOCK").write_bytes(line + b"%08x\n" % zlib.crc32(line))
    assert read_note(tmp_path) in ({}, {"pid": 1})
    owner = DirectoryLock(tmp_path)
    with pytest.raises(hs.StateLockedError, match=r"in use by (another process|process \d+ on \S+ since)"):
        DirectoryLock(tmp_path)
    owner.release()


def test_an_owner_on_an_object_store_whose_pack_another_one_has_pruned_is_told_who_has_the_state(
    place: Callable[[str], hs.Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.prune.names_in_use", lambda _: set())  # as where the owners are processes
    location = place("s")
    with hs.open(location) as state:
        state.key_value("kv").put_many({f"key {i:04d}": i for i in range(1000)})
        state.commit()
        state.checkpoint(wait=True)
    there = hs.Bucket(str(location), cache_bytes=0, **location.settings)
    before = hs.open(there, memory_limit=10_000_000)
    with hs.open(location, checkpoints=hs.CheckpointPolicy(keep=1)) as state:
        for i in range(3):
            state.key_value("kv").put_many({f"key {j:04d}": -i for j in range(1000)})
            state.commit()
            state.checkpoint(wait=True)
        expected = dict(state.key_value("kv"))
    with pytest.raises(
        hs.StateLockedError, match=rf"version 4 is that of process {os.getpid()} on .*this one commits nothing more"
    ):
        before.key_value("kv").get("key 0500")
    before.close()
    with hs.open(location) as state:
        assert state.restore_report.skipped == []
        assert dict(state.key_value("kv")) == expected


def test_a_rollback_of_an_owner_that_was_overtaken_says_who_has_the_state(place: Callable[[str], hs.Bucket]) -> None:
    location = place("s")
    before = hs.open(location)
    before.key_value("kv")["a"] = 1
    before.commit()
    with hs.open(location) as state:
        state.key_value("kv")["a"] = 2
        state.commit()
        before.key_value("kv")["a"] = 3
        with pytest.raises(
            hs.StatePoisonedError, match=r"a rollback was cut short by StateLockedError: version 3 is that of process"
        ):
            before.rollback()
        before.close()
        state.key_value("kv")["b"] = 4
        state.commit()
    with hs.open(location) as state:
        assert dict(state.key_value("kv")) == {"a": 2, "b": 4}


@pytest.mark.parametrize("first", ["state", "copy"])
def test_a_copy_with_hard_links_changes_nothing_of_the_state_nor_the_state_of_the_copy(
    tmp_path: Path, first: str
) -> None:
    path = tmp_path / "state"
    with hs.open(path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
    shutil.copytree(path, tmp_path / "copy", copy_function=os.link)
    with hs.open(tmp_path / first) as state:
        state.key_value("kv")["b"] = 2
        state.commit()
    other = tmp_path / ("copy" if first == "state" else "state")
    with hs.open(other) as state, hs.open(tmp_path / first):
        assert dict(state.key_value("kv")) == {"a": 1}


def test_a_copy_with_hard_links_of_a_state_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state"):
        shutil.copytree(tmp_path / "state", tmp_path / "copy", copy_function=os.link)
        with pytest.raises(hs.StateLockedError, match="of a copy with hard links, make one without"):
            hs.open(tmp_path / "copy")
    hs.open(tmp_path / "copy").close()
