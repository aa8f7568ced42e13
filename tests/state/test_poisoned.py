"""A store whose rollback, commit or checkpoint did not come to its end refuses everything, and the last commit is there
again.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.digest import PIECE_BYTES
from hybridstore.collector import ShortPauses
from hybridstore.state.opening import Tuning
from hybridstore.state.usable import MarkedStep
from tests.conftest import STRESS
from tests.tools.faults import FailingReads, QuickFiles
from tests.tools.hooks import crash, force_cold
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(block_records=8, segment_bytes=1500, frame_records=20, parts=SMALL_PARTS)
NEVER = hs.CheckpointPolicy(max_restore="1 hour")
COMMITTED = {f"k{i:03}": i for i in range(40)}


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path, checkpoints=NEVER, _tuning=TUNING, _files=QuickFiles(), **options)


def rows(path: Path) -> tuple[int, dict[Any, Any], list[Any]]:
    with opened(path) as state:
        return state.version, dict(state.key_value("kv").all()), list(state.window("win", retention=1000).all())


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A state with two checkpoints, cold blocks, and a log of several segments behind them."""
    path = tmp_path / "prepared"
    with opened(path) as state:
        kv, window = state.key_value("kv"), state.window("win", retention=1000)
        for i, (key, value) in enumerate(COMMITTED.items()):
            kv[key] = value
            window.put(key, value, i)
            if i % 8 == 7:
                state.commit()
            if i in (7, 23):
                state.checkpoint(wait=True)
    return path


def rollback(path: Path, reads: FailingReads) -> hs.State:
    state = opened(path)
    state.key_value("kv")["uncommitted"] = 1
    del state.key_value("kv")["k001"]
    return during(reads, state, state.rollback)


def checkpoint(path: Path, reads: FailingReads) -> hs.State:
    state = opened(path)
    return during(reads, state, lambda: state.checkpoint(wait=True))


def hydrate(path: Path, reads: FailingReads) -> hs.State:
    state = opened(path)

    def load() -> None:
        while state.hydrate(1):
            pass

    return during(reads, state, load)


def going_cold(path: Path, reads: FailingReads) -> hs.State:
    state = opened(path)
    return during(reads, state, lambda: force_cold(state))


def opening(path: Path, reads: FailingReads) -> hs.State:
    try:
        with reads:
            return opened(path)
    except hs.HybridStoreError:
        return opened(path)


def reading(path: Path, reads: FailingReads) -> hs.State:
    try:
        with reads:
            opened(path, at="newest").close()
    except hs.HybridStoreError:
        pass
    return opened(path)


def during(reads: FailingReads, state: hs.State, act: Callable[[], object]) -> hs.State:
    """Do it while reads fail; what comes out is one of our errors."""
    try:
        with reads:
            act()
    except hs.HybridStoreError:
        pass
    return state


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("how", [errno.EIO, "short", *([errno.EMFILE] if STRESS else [])])
@pytest.mark.parametrize("act", [rollback, checkpoint, hydrate, going_cold, opening, reading])
def test_whichever_read_fails_nothing_committed_goes_and_nothing_uncommitted_comes(
    prepared: Path, tmp_path: Path, act: Callable[[Path, FailingReads], hs.State], how: int | str
) -> None:
    for nth in count(1) if STRESS else count(1 + (how == "short"), 2):  # each read in one of the two ways
        path = tmp_path / str(nth)
        shutil.copytree(prepared, path)
        reads = FailingReads(path, nth, how)
        state = act(path, reads)
        expected = dict(COMMITTED)
        version = state.version
        try:
            state.key_value("kv")["later"] = 2
            state.commit()
            version, expected["later"] = state.version, 2
            state.checkpoint(wait=True)
        except hs.HybridStoreError:
            pass
        if "later" in expected:
            assert dict(state.key_value("kv").all()) == expected
        state.close()
        assert rows(path)[:2] == (version, expected), (nth, how)
        shutil.rmtree(path)
        if reads.count < nth:
            break
    # a rollback and an opening list two directories and read two files at least
    assert nth > (8 if act in (rollback, opening, reading) else 0)


def test_a_rollback_that_fails_poisons_the_store_with_its_cause(prepared: Path) -> None:
    state = opened(prepared)
    kv = state.key_value("kv")
    window = state.window("win", retention=1000)
    iterator = kv.all()
    message = r"a rollback was cut short by OSError: .*\(reopen the store"
    with FailingReads(prepared, 1, errno.EMFILE), pytest.raises(hs.StatePoisonedError, match=message) as caught:
        state.rollback()
    assert isinstance(caught.value.__cause__, OSError)
    calls: list[Callable[[], Any]] = [
        state.commit, state.rollback, state.checkpoint, state.hydrate, lambda: state.set("a", 1),
        lambda: kv.get("k001"),
        lambda: kv.put("a", 1), lambda: kv.delete("a"), lambda: list(kv.all()), lambda: len(kv),
        lambda: kv.get_many(["a"]),
        lambda: list(window.all()), lambda: window.put("a", 1, 1), lambda: len(window), lambda: window.advance(5000),
        lambda: state.key_value("kv"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(hs.StatePoisonedError, match="a rollback was cut short"):
            call()
    with pytest.raises(hs.StatePoisonedError, match="a rollback was cut short"):
        next(iterator)
    state.close()
    state.close()
    assert rows(prepared)[1] == COMMITTED


@pytest.mark.parametrize("what", ["capture", "seal", "unseal", "attach"])
def test_what_fails_while_memory_is_apart_poisons_the_store(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    state = opened(prepared)
    kv = state.key_value("kv")
    kv["k001"] = "changed"
    state.commit()
    expected = COMMITTED | {"k001": "changed"}

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    if what == "unseal":
        monkeypatch.setattr(os, "link", fail)
    # the second of the stores: the first has been taken apart by then
    monkeypatch.setattr(type(state.window("win", retention=1000)), what, fail)
    with pytest.raises(MemoryError):
        force_cold(state)
    monkeypatch.undo()
    with pytest.raises(hs.StatePoisonedError, match="was cut short by MemoryError"):
        state.commit()
    with pytest.raises(hs.StatePoisonedError, match="was cut short by MemoryError"):
        kv.get("k001")
    state.close()
    assert rows(prepared)[1] == expected


def test_a_step_that_goes_on_behind_a_failure_inside_of_it_does_not_mend_the_log(prepared: Path) -> None:
    state = opened(prepared)
    state.key_value("kv")["more"] = 1
    state.commit()
    before = {file: file.read_bytes() for file in (prepared / "changelog").iterdir()}
    with MarkedStep(state, "a step"):
        state._broke("a change", MemoryError())
    state.close()
    # a log that may still be written gets an end mark
    assert {file: file.read_bytes() for file in (prepared / "changelog").iterdir()} == before


class FailingHash:
    """blake2b that fails in the hashing thread."""

    def __init__(self, real: Any, *args: Any, **options: Any) -> None:
        self._hash = real(*args, **options)

    def update(self, data: bytes) -> None:
        if threading.current_thread().name == "hybridstore-digest":
            raise MemoryError
        self._hash.update(data)

    def digest(self) -> bytes:
        return bytes(self._hash.digest())


def commit_pieces(state: hs.State) -> int:
    """Commit a version of several pieces, each hashed apart."""
    kv = state.key_value("kv")
    for i in range(3 * PIECE_BYTES // 4000):
        kv[f"k{i}"] = "x" * 4000
    return state.commit()


def test_a_digest_that_was_not_computed_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import changelog.digest as module

    state = hs.open(tmp_path / "state")
    kv = state.key_value("kv")
    kv["a"] = 1
    state.commit()
    real = module.blake2b
    monkeypatch.setattr(module, "blake2b", lambda *args, **options: FailingHash(real, *args, **options))
    state.rollback()  # which begins a new digest
    with pytest.raises(hs.StatePoisonedError, match=r"the thread that hashes failed in the middle .*MemoryError"):
        commit_pieces(state)
    monkeypatch.undo()
    with pytest.raises(hs.StatePoisonedError):
        state.commit()
    state.close()
    # the thread is there for the next one
    with hs.open(tmp_path / "state") as state:
        kv = state.key_value("kv")
        assert (state.version, dict(kv.all())) == (1, {"a": 1})
        assert commit_pieces(state) == 2
    with hs.open(tmp_path / "state") as state:
        assert state.version == 2


def test_no_increment_is_lost_or_done_again_for_a_checkpoint_that_fails_behind_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.RETRY_SECONDS", 0.0)
    state = hs.open(tmp_path / "state", memory_limit=1, _files=QuickFiles())
    kv = state.key_value("kv")
    kv["count"] = 0
    state.commit()
    real = os.link

    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(os, "link", full)  # by which checkpoints are published
    for commit in range(1000):
        version = state.version
        kv["count"] = kv["count"] + 1
        assert state.commit() == version + 1
        if commit % 100 == 0:  # however late the writer's thread runs: ten checkpoints fail at the least
            with pytest.raises(hs.errors.CheckpointError, match="No space left on device"):
                state.checkpoint(wait=True)
    monkeypatch.setattr(os, "link", real)
    assert state.metrics().failed_checkpoints >= 10
    assert kv["count"] == 1000
    state.close()
    with hs.open(tmp_path / "state") as state:
        assert state.key_value("kv")["count"] == 1000


def test_a_checkpoint_that_gets_no_thread_fails_no_commit_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = hs.open(tmp_path / "state", checkpoints=hs.CheckpointPolicy(every_commits=1), _files=QuickFiles())
    kv = state.key_value("kv")

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    kv["a"] = 1
    assert state.commit() == 1
    kv["b"] = 2
    assert state.commit() == 2
    with pytest.raises(hs.errors.CheckpointError, match="can't start new thread"):
        state.checkpoint()
    assert state.metrics().failed_checkpoints == 2
    monkeypatch.undo()
    state.checkpoint(wait=True)
    assert state.metrics().checkpoint_version == 2
    crash(state)
    with hs.open(tmp_path / "state") as state:
        assert dict(state.key_value("kv").all()) == {"a": 1, "b": 2}


def test_a_lock_that_an_exception_left_taken_stops_no_close_in_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybridstore.collector.LOCK_SECONDS", 0.01)
    pauses = ShortPauses()
    before = list(gc.callbacks)
    pauses._lock.acquire()  # as by Ctrl-C between the lock and its release
    other = threading.Thread(target=lambda: (pauses.join(), pauses.leave()), daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
    assert gc.callbacks == before
