"""A full disk, a failed sync, a failed checkpoint, a fork: the cause is named, nothing committed is lost, reopening
goes on.
"""

import errno
import os
import re
import resource
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import AppendFile, Files
from changelog.storage import LocalStorage
from hybridstore.state.opening import Tuning
from tests.tools.checkpoints import versions
from tests.tools.faults import FullDisk, QuickFiles
from tests.tools.hooks import crash, force_cold

NEVER = hs.CheckpointPolicy(every_commits=None)


def fill(state: hs.State) -> int:
    """Commit rows until something fails, and return the last acknowledged version; the error is raised through."""
    kv = state.key_value("kv")
    number = state.version
    while True:
        number += 1
        for i in range(5):
            kv[f"{number}-{i}"] = "x" * 50
        kv["last"] = number
        state.commit()


@pytest.mark.parametrize("room", [*range(0, 400, 13), 1000, 5000, 20_000])
def test_a_full_disk_poisons_the_store_with_the_cause_and_loses_no_commit(tmp_path: Path, room: int) -> None:
    state = hs.open(tmp_path / "state", _files=FullDisk(room), _tuning=Tuning(segment_bytes=3000, frame_records=2))
    with pytest.raises(hs.StatePoisonedError, match=r"No space left on device \(reopen the store") as caught:
        fill(state)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    acknowledged = state.version
    for refused in (state.commit, state.rollback):
        with pytest.raises(hs.StatePoisonedError, match="No space left"):
            refused()
    state.close()
    with hs.open(tmp_path / "state") as state:
        assert state.version == acknowledged
        assert state.key_value("kv").get("last") == (acknowledged or None)
        state.key_value("kv")["more"] = 1
        state.commit()
    with hs.open(tmp_path / "state") as state:
        assert state.key_value("kv")["more"] == 1


def test_a_checkpoint_for_which_a_disk_has_no_room_leaves_its_room_to_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.pack.PACK_BYTES", 3000)  # many packs
    create, names = LocalStorage.create, list[str]()

    def full(storage: LocalStorage, name: str, data: bytes) -> bool:
        if name.startswith("packs/"):
            names.append(name)
            if len(names) == 4:
                raise OSError(errno.ENOSPC, "No space left on device")
        return create(storage, name, data)

    monkeypatch.setattr(LocalStorage, "create", full)
    with hs.open(tmp_path, checkpoints=NEVER, _tuning=Tuning(block_records=4)) as state:
        state.key_value("kv").put_many((i, "x" * 50) for i in range(400))
        state.commit()
        with pytest.raises(hs.errors.CheckpointError, match="No space left"):
            state.checkpoint(wait=True)
        assert (len(names), list((tmp_path / "packs").iterdir())) == (4, [])
        state.checkpoint(wait=True)
        assert len(list((tmp_path / "packs").iterdir())) == len(names) - 4 > 4
    with hs.open(tmp_path) as state:
        assert len(state.key_value("kv")) == 400


class BrokenSync(QuickFiles):
    """A disk whose sync fails once, after `good` that did not."""

    def __init__(self, good: int) -> None:
        self.good = good

    def create(self, path: Path) -> AppendFile:
        return _BrokenFile(path, self)


class _BrokenFile(AppendFile):
    __slots__ = ("_disk",)

    def __init__(self, path: Path, disk: BrokenSync) -> None:
        super().__init__(path, create=True)
        self._disk = disk

    def sync(self) -> None:
        self._disk.good -= 1
        if self._disk.good == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("good", range(6))
def test_a_failed_sync_is_never_tried_again(tmp_path: Path, good: int) -> None:
    state = hs.open(tmp_path / "state", _files=BrokenSync(good))
    with pytest.raises(hs.StatePoisonedError, match="Input/output error"):
        fill(state)
    acknowledged = state.version
    with pytest.raises(hs.StatePoisonedError, match="Input/output error"):
        state.commit()
    state.close()
    with hs.open(tmp_path / "state") as state:
        # What was written may have reached the disk although the sync failed.
        assert state.version in (acknowledged, acknowledged + 1)


def some(path: Path, files: Files | None = None) -> hs.State:
    state = hs.open(path, checkpoints=NEVER, _tuning=Tuning(block_records=16), _files=files or Files())
    kv = state.key_value("kv")
    for i in range(2000):
        kv[i] = "x" * 50
    state.commit()
    return state


class FailingCheckpoints(QuickFiles):
    """Files whose `fail` step raises while it is set."""

    def __init__(self) -> None:
        self.fail = ""

    def _step(self, name: str) -> None:
        if self.fail == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def create(self, path: Path) -> AppendFile:
        self._step("create in " + path.parent.name)
        return super().create(path)

    def link(self, temporary: Path, final: Path) -> None:
        self._step("link " + final.suffix)
        super().link(temporary, final)


@pytest.mark.parametrize("kind", ["window", "session"])
def test_deleted_records_stay_deleted_when_a_checkpoint_fails_and_their_bucket_is_made_anew(
    tmp_path: Path, kind: str
) -> None:
    def opened(files: Files | None = None) -> tuple[hs.State, Any, dict[str, int]]:
        state = hs.open(tmp_path / "s", checkpoints=NEVER, _files=files or Files())
        at = {"ts": 5} if kind == "window" else {"start": 5, "end": 5}
        return state, getattr(state, kind)("s", retention=1000), at

    state, store, at = opened()
    store.put("a", 1, **at)
    state.commit()
    state.checkpoint(wait=True)
    store.delete("a", *at.values())
    state.commit()
    state.close()
    files = FailingCheckpoints()
    state, store, at = opened(files)
    assert list(store.all()) == []  # the block was loaded, and its only record is deleted in the changelog
    files.fail = "link .lmdb"
    state.checkpoint()
    store.put("b", 2, **at)
    state.commit()
    state._checkpoints.finish(wait=True)
    assert state.metrics().failed_checkpoints == 1
    files.fail = ""
    store.delete("b", *at.values())
    state.commit()
    state.checkpoint(wait=True)
    state.close()
    state, store, _ = opened()
    assert list(store.all()) == []
    state.close()


@pytest.mark.parametrize("step", ["create in packs", "link .pack", "create in checkpoints", "link .lmdb"])
@pytest.mark.parametrize("wait", [False, True], ids=["background", "waiting"])
def test_a_failed_checkpoint_fails_no_commit_is_logged_counted_and_made_up_for(
    tmp_path: Path, step: str, wait: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingCheckpoints()
    state = some(tmp_path / "state", files)
    kv = state.key_value("kv")
    state.checkpoint(wait=True)
    kv[1] = "changed"
    del kv[2]
    state.commit()
    files.fail = step
    complaint = r"the checkpoint of version 2 failed: .*Input/output error.* \(no commit is lost: "
    if wait:
        with pytest.raises(hs.errors.CheckpointError, match=complaint):
            state.checkpoint(wait=True)
    else:
        state.checkpoint()
        assert state._checkpoints.attempt is not None
        state._checkpoints.attempt.join()
        kv[3] = "also changed"
        assert state.commit() == 3
    assert len(caplog.messages) == 1
    assert re.search(complaint, caplog.messages[0])
    metrics = state.metrics()
    assert (metrics.failed_checkpoints, metrics.checkpoints_written, metrics.checkpoint_version) == (1, 1, 1)
    assert metrics.records_since_checkpoint > 0
    assert versions(tmp_path / "state") == [1]
    files.fail = ""
    state.checkpoint(wait=True)
    rows = list(kv.all())
    metrics = state.metrics()
    assert (metrics.checkpoint_version, metrics.records_since_checkpoint) == (state.version, 0)
    crash(state)
    with hs.open(tmp_path / "state") as state:
        assert state.restore_report.checkpoint_version == state.version
        assert list(state.key_value("kv").all()) == rows
        assert state.key_value("kv")[1] == "changed"
    assert not list((tmp_path / "state" / "checkpoints").glob(".*"))


def test_a_checkpoint_that_has_no_room_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    state = some(tmp_path / "state")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(hs.errors.CheckpointError, match="File too large"):
            state.checkpoint(wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file for name in ("checkpoints", "packs") for file in (tmp_path / "state" / name).glob("*")] == []
    state.checkpoint(wait=True)
    assert state.metrics().checkpoint_version == 1
    state.close()


def test_a_failure_to_prune_is_logged_and_counted_but_the_checkpoint_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = some(tmp_path / "state")

    def refuse(self: Files, path: Path) -> None:
        if path.suffix == ".lmdb":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        path.unlink(missing_ok=True)

    monkeypatch.setattr(Files, "remove", refuse)
    for number in range(2):
        state.key_value("kv")[0] = number
        state.commit()
        state.checkpoint(wait=True)
    state.key_value("kv")[0] = 2
    state.commit()
    state.checkpoint(wait=True)
    assert [re.search("Operation not permitted", message) is not None for message in caplog.messages] == [True]
    metrics = state.metrics()
    assert (metrics.checkpoint_version, metrics.failed_clearings, metrics.failed_checkpoints) == (4, 1, 0)
    monkeypatch.undo()
    state.key_value("kv")[0] = 3
    state.commit()
    state.checkpoint(wait=True)
    assert versions(tmp_path / "state") == [4, 5]
    state.close()


def in_child(check: Callable[[], None]) -> None:
    """Run `check` in a forked child and fail if it does."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:  # reported through the exit code: this process must not return into pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_refuses_the_state_and_leaves_it_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = some(path)
    state.checkpoint(wait=True)
    force_cold(state)
    kv = state.key_value("kv")
    window = state.window("win", retention=1000)
    window.put("a", 1, 1)
    parent = os.getpid()

    def check() -> None:
        complaint = f"opened by process {parent}, used in its child {os.getpid()}"
        calls: list[Callable[[], Any]] = [
            state.commit, state.rollback, state.checkpoint, lambda: kv.get(1),
            lambda: kv.put(1, "x"), lambda: list(kv.all()),
            lambda: list(window.all()), lambda: window.put("b", 1, 2), lambda: state.key_value("kv"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(hs.HybridStoreError, match=complaint):
                call()
        state.close()
        with pytest.raises(hs.StateLockedError, match=f"in use by process {parent}"):
            hs.open(path)

    in_child(check)
    assert state.commit() == 2
    assert window.get("a", 1) == 1
    assert len(kv) == 2000
    state.close()

    def take_over() -> None:
        with hs.open(path) as mine:
            assert mine.key_value("kv")[1] == "x" * 50
            mine.set("child", 1)
            mine.commit()

    # `kv` still holds blocks of the closed state, mapped in both processes.
    in_child(take_over)
    with hs.open(path) as state:
        assert state.settings["child"] == 1


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for name, clock in (("retrying", [1e9] * 8), ("jumping", [2e9, -5.0, 0.0, 9e9, 1.0, 3e9, 2.0, 7e8])):
        path = tmp_path / name
        for number, now in enumerate(clock):
            monkeypatch.setattr("time.time", lambda now=now: now)
            with hs.open(path) as state:
                rows = state.window("rows", retention=100)
                for i in range(20):
                    rows.put("k", number, number * 40 + i)
                state.commit()
                if number in (1, 4):  # at -5.0, too
                    state.checkpoint(wait=True)
        with hs.open(path) as state:
            assert state.restore_report.checkpoint_version == 5
            assert not hs.inspect(path).faults
            digests.append((state.digest, list(state.window("rows", retention=100).all())))
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("removed", "message"),
    [("state", "LOCK: is gone, not the file"), ("segment", r"0001.log: removed while it was written \(restore")],
)
def test_a_state_that_is_removed_under_its_writer_takes_no_further_commit(
    tmp_path: Path, removed: str, message: str
) -> None:
    path = tmp_path / "state"
    state = hs.open(path)
    state.key_value("names")["k"] = 1
    state.commit()
    if removed == "state":
        shutil.rmtree(path)
    else:
        next((path / "changelog").iterdir()).unlink()
    state.key_value("names")["k"] = 2
    with pytest.raises(hs.StatePoisonedError, match=message):
        state.commit()
    assert state.version == 1
    state.close()
