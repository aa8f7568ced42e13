"""A writer whose directory is not its own any more, moved or without its LOCK, stops before it writes anything."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import AppendFile, Files
from hybridstore.state.lock import DirectoryLock
from hybridstore.state.opening import Tuning
from hybridstore.state.own_files import OwnFiles
from tests.tools.faults import QuickFiles

NEVER = hs.CheckpointPolicy(max_restore="1 hour")


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path, checkpoints=NEVER, _tuning=Tuning(segment_bytes=400), **options)


def begin(path: Path, name: str, commits: int, **options: Any) -> hs.State:
    state = opened(path, **options)
    kv = state.key_value("kv")
    for i in range(commits):
        kv[f"{name}{i}"] = i
        state.commit()
    return state


def look_again(state: hs.State) -> None:
    """Let the next frame ask for the directory, however quick this test is."""
    state._log._checked_at = 0.0


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("durability", ["commit", "os"])
@pytest.mark.parametrize("what", ["commit", "checkpoint", "rollback", "close", "frames"])
def test_a_writer_whose_directory_was_moved_harms_neither_state(tmp_path: Path, durability: Any, what: str) -> None:
    path, old = tmp_path / "state", tmp_path / "old"
    first = begin(path, "first", 3, durability=durability)
    path.rename(old)
    with begin(path, "second", 5):
        pass
    before = tree(path), tree(old)
    look_again(first)
    message = r"the directory was moved or replaced.*\(nothing was written"
    if what in ("commit", "rollback", "frames"):
        first.key_value("kv")["more"] = 1
    if what == "frames":
        with pytest.raises(hs.HybridStoreError, match=message):
            first.key_value("kv").put_many([(f"x{i}", "y" * 100) for i in range(2000)])
    else:
        with pytest.raises(hs.HybridStoreError, match=message):
            first.checkpoint(wait=True) if what == "checkpoint" else getattr(first, what)()
    if what not in ("checkpoint", "close"):
        with pytest.raises(hs.StatePoisonedError, match=message):
            first.commit()
    if what == "checkpoint":
        with pytest.raises(hs.HybridStoreError, match=message):
            first.close()
    first.close()
    assert (tree(path), tree(old)) == before
    for folder, name, commits in ((path, "second", 5), (old, "first", 3)):
        with opened(folder) as state:
            assert dict(state.key_value("kv").all()) == {f"{name}{i}": i for i in range(commits)}


def test_a_writer_whose_lock_was_removed_overwrites_nothing_of_the_next_one(tmp_path: Path) -> None:
    first = begin(tmp_path, "first", 1)
    (tmp_path / "LOCK").unlink()
    second = begin(tmp_path, "second", 5)
    look_again(first)
    first.key_value("kv")["more"] = 1
    with pytest.raises(hs.StatePoisonedError, match="not the file that this writer has locked"):
        first.commit()
    first.close()
    second.key_value("kv")["last"] = 1
    assert second.commit() == 7
    second.close()
    with opened(tmp_path) as state:
        assert state.version == 7
        assert len(state.key_value("kv")) == 7


def test_a_writer_that_changes_its_working_directory_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with opened(Path("s")) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        monkeypatch.chdir("elsewhere")
        look_again(state)
        state.key_value("kv")["a"] = 2
        with pytest.raises(hs.StatePoisonedError, match="the program has changed its working directory"):
            state.commit()
    assert not list((tmp_path / "elsewhere").iterdir())
    with opened(tmp_path / "s") as state:
        assert state.key_value("kv")["a"] == 1


class MovingFiles(QuickFiles):
    """Moves the state away, and begins another, just before a file would be published."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, path: Path) -> AppendFile:
        return Moving(path, self._path) if path.suffix == ".tmp" else super().create(path)


class Moving(AppendFile):
    """A file in the making whose state is moved away when it is whole."""

    __slots__ = ("_state",)

    def __init__(self, path: Path, state: Path) -> None:
        super().__init__(path, create=True)
        self._state = state

    def sync(self) -> None:
        self._state.rename(self._state.with_name("old"))
        begin(self._state, "second", 2).close()


def test_a_checkpoint_in_the_making_is_not_published_into_the_state_that_took_its_place(tmp_path: Path) -> None:
    path = tmp_path / "state"
    first = begin(path, "first", 2, _files=MovingFiles(path))
    with pytest.raises(hs.errors.CheckpointError, match="the directory was moved or replaced"):
        first.checkpoint(wait=True)
    with pytest.raises(hs.HybridStoreError, match="the directory was moved or replaced"):
        first.close()
    assert not [file for name in ("checkpoints", "packs") for file in (path / name).glob("*")]
    with opened(path) as state:
        assert (state.version, len(state.key_value("kv"))) == (2, 2)


def open_files() -> Iterator[str]:
    """Return the paths of this process's descriptors; what earlier tests abandoned may close its own meanwhile."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


def test_a_state_on_a_file_system_without_flock_is_refused_and_no_descriptor_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(3):
        with pytest.raises(
            hs.errors.StateDirectoryError, match=r"LOCK: cannot be locked: No locks available \(a state needs"
        ):
            hs.open(tmp_path / "state")
    assert not [file for file in open_files() if file.startswith(str(tmp_path))]


@pytest.mark.parametrize("link", ["nowhere", "state"])
def test_a_link_that_leads_nowhere_is_refused_with_the_cause(tmp_path: Path, link: str) -> None:
    (tmp_path / "state").symlink_to(tmp_path / link)
    with pytest.raises(hs.errors.StateDirectoryError, match=r"state: cannot be opened: .*\(fix the cause") as caught:
        hs.open(tmp_path / "state")
    assert isinstance(caught.value.__cause__, OSError)


class ReadOnlyFiles(Files):
    """A file system that became read-only: what is open goes on being written to nothing, and no name can be made."""

    read_only = False

    def create(self, path: Path) -> Any:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return super().create(path)


def test_a_directory_that_becomes_read_only_poisons_the_writer_at_the_next_segment(tmp_path: Path) -> None:
    files = ReadOnlyFiles()
    state = begin(tmp_path / "state", "k", 2, _files=files)
    files.read_only = True
    kv = state.key_value("kv")

    def count() -> None:
        while True:
            kv["n"] = state.version + 1
            state.commit()

    with pytest.raises(hs.StatePoisonedError, match="Read-only file system"):
        count()
    version = state.version
    state.close()
    with opened(tmp_path / "state") as state:
        assert state.version == version
        assert state.key_value("kv")["n"] == version > 2


@pytest.mark.parametrize(
    ("mode", "files", "folders"), [(None, 0o644, 0o755), (0o600, 0o600, 0o700), (0o640, 0o640, 0o750)]
)
def test_files_and_directories_have_the_mode_that_was_asked_for(
    tmp_path: Path, mode: int | None, files: int, folders: int
) -> None:
    before = os.umask(0)
    try:
        options: dict[str, Any] = {} if mode is None else {"file_mode": mode}
        path = tmp_path / "new" / "state"
        with begin(path, "k", 5, **options) as state:
            for i in range(3):
                state.key_value("kv").put_many([(f"{n}", f"{i}" * 100) for n in range(300 if i == 0 else 2)])
                state.commit()
                state.checkpoint(wait=True)
        modes = {file.stat().st_mode & 0o777 for file in path.rglob("*") if file.is_file()}
        assert modes == {files}
        assert {folder.stat().st_mode & 0o777 for folder in [path, *path.iterdir()] if folder.is_dir()} == {folders}
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o200, 0o444, 0o755, 1.5, True])
def test_a_mode_that_its_owner_could_not_use_is_refused(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(ValueError, match=r"file_mode: found .*expected rights"):
        hs.open(tmp_path / "state", file_mode=mode)


def test_the_files_of_an_owner_have_the_mode_of_those_that_it_was_given() -> None:
    assert OwnFiles(Files(0o600), lambda: None).mode == 0o600


def test_who_is_not_the_owner_removes_its_temporary_files_and_no_other(tmp_path: Path) -> None:
    def refuse() -> None:
        raise hs.errors.StateLockedError("not the owner any more")

    files = OwnFiles(Files(), refuse)
    log, temporary = tmp_path / "1.log", tmp_path / "1.log.tmp"
    for path in (log, temporary):
        path.touch()
    files.remove(temporary)
    with pytest.raises(hs.errors.StateLockedError):
        files.remove(log)
    assert sorted(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize("durability", ["commit", "os"])
@pytest.mark.parametrize("taken", ["both", "LOCK", "segment"])
@pytest.mark.parametrize("what", ["commit", "close"])
def test_what_the_program_has_closed_is_not_written_to_when_another_file_has_its_number(
    tmp_path: Path, durability: Any, taken: str, what: str
) -> None:
    path, other = tmp_path / "state", tmp_path / "other"
    state = begin(path, "first", 1, durability=durability)
    other.write_bytes(b"a file of somebody else")
    names = {"LOCK": path / "LOCK", "segment": path / "changelog" / "00000000000000000001.log"}
    files = [names[taken]] if taken in names else list(names.values())
    numbers = [int(fd) for fd in os.listdir("/proc/self/fd") if any(is_of(int(fd), file) for file in files)]
    assert len(numbers) == len(files)
    for number in numbers:  # as `os.closerange` and the next `open` do
        fd = os.open(other, os.O_RDWR)
        os.dup2(fd, number)
        os.close(fd)
    before = tree(path)
    look_again(state)
    state.key_value("kv")["more"] = 1
    with pytest.raises(hs.HybridStoreError, match="other code of this program"):
        getattr(state, what)()
    with suppress(hs.HybridStoreError):
        state.close()
    del state
    gc.collect()
    assert other.read_bytes() == b"a file of somebody else"
    assert tree(path) == before
    for number in numbers:
        assert is_of(number, other)
        os.close(number)
    with opened(path) as state:
        assert dict(state.key_value("kv").all()) == {"first0": 0}


def test_a_lock_whose_number_another_file_has_writes_no_note_there(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"a file of somebody else")
    lock = DirectoryLock(tmp_path)
    fd = os.open(other, os.O_RDWR)
    os.dup2(fd, lock._fd)
    os.close(fd)
    number = lock._fd
    with pytest.raises(hs.errors.ForeignFileError, match="is not locked any more"):
        lock.hold()
    lock.release()
    assert is_of(number, other)
    os.close(number)
    assert other.read_bytes() == b"a file of somebody else"


def is_of(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False
