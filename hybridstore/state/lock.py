"""Lock: which directory may become a state directory, its only writer, and whether data of the last writer is missing.

`LOCK` is locked with flock, which ends with its process, so a lock is never stale. Its content is a note in JSON,
with the crc32 on the second line: the holder and the newest segment, or, after a clean close, the last version and
digest. So a changelog that lacks its newest segment, or ends before the close, is recognised as incomplete. A damaged
note counts as none. Readers never take the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Collection, Set
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from changelog.files import ANY_FILE, FILE_MODE, REAL_FILES, FileNumber, Files, make_folders
from changelog.segment import segment_name
from changelog.storage import LocalStorage, Storage
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, ERASING, GENERATIONS, LOCK, PINS, SPARK_FOLDER
from recovery.restore import Reached

from ..errors import ForeignFileError, StateDirectoryError, StateLockedError
from .generations import levels_of_pin, unended_erase

# What a folder with one of these is: a state, a topology, or the place of the state of a Spark query.
_OF_STATES: Final = (LOCK, CHANGELOG, GENERATIONS, SPARK_FOLDER)
_ACCEPT: Final = "make a directory of what can be read with `hybridstore inspect repair`"


class LockHolder(NamedTuple):
    """Who holds the lock of a directory: the LOCK file, by device and inode, and the process and time in its note."""

    device: int
    inode: int
    pid: int
    since: str


def check_holder(directory: Path, holder: LockHolder) -> None:
    """Raise ForeignFileError unless a directory is held by `holder`, as far as its LOCK says; for a process that works
    for the holder and has no lock. O(1), some 20 microseconds.
    """
    path = directory / LOCK
    try:
        status = os.stat(path)
        there = (status.st_dev, status.st_ino) == (holder.device, holder.inode)
    except FileNotFoundError:
        there = False
    note = read_note(directory)  # empty while the holder writes another one
    if not there or "closed" in note or (note and (note.get("pid"), note.get("since")) != (holder.pid, holder.since)):
        raise ForeignFileError(
            f"{path}: found another holder than process {holder.pid}, for which this process works (nothing was "
            "written; the new owner makes its own checkpoints)"
        )


class DirectoryLock:
    """The lock on a state directory.

    A LOCK with a second name, in a copy that was made with hard links, becomes a file of its own: else the note of one
    directory would be that of the other, too. Raises StateLockedError, naming the holder, when another process has the
    lock.
    """

    def __init__(self, directory: Path, mode: int = FILE_MODE) -> None:
        self.path = directory / LOCK
        self._pid = os.getpid()
        # one for each opening, also where a state is reopened at once, or process ids begin at 1 again in a container
        self._since = datetime.now().isoformat(" ", "microseconds")
        self._lock(directory, mode)
        try:
            if REAL_FILES.part(self.path):
                self._drop()
                self._lock(directory, mode)
            self.check()  # another process may have done the same in between
        except BaseException:
            self.release()  # not only when the error, which knows this object, is forgotten
            raise
        note = read_note(directory)
        # The note of the last owner: a clean close, or the first version of the newest segment (0: unknown).
        self.closed: dict[str, Any] = note.get("closed", {})
        self.segment: int = note.get("segment", 0)
        if note and not self.closed:
            # The process beside a killed owner may be at work for a moment: from now on it changes nothing. What the
            # note says of the changelog stays until `hold`.
            with suppress(OSError):  # `hold` raises what is wrong
                self._write({**note, **self._owner()})

    def _lock(self, directory: Path, mode: int) -> None:
        self._file = ANY_FILE
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = FileNumber.of(self._fd)
        except BlockingIOError:
            holder = read_note(directory)
            links = os.fstat(self._fd).st_nlink
            self._drop()
            who = (
                f"process {holder['pid']} on {holder.get('host')} since {holder.get('since')}"
                if "pid" in holder
                else "another process"
            )
            here = holder.get("pid") == os.getpid() and holder.get("host") == os.uname().nodename
            where = "this one: close what opened it first" if here else "close it there"
            if links > 1:
                where += ", or, of a copy with hard links, make one without"
            raise StateLockedError(
                f"{directory}: in use by {who} ({where}; `hybridstore inspect` reads without the lock)"
            ) from None
        except OSError as error:
            self._drop()
            raise StateDirectoryError(
                f"{self.path}: cannot be locked: {error.strerror} (a state needs a file system with flock, as local "
                "ones and NFS 4 have)"
            ) from error

    @property
    def holder(self) -> LockHolder:
        """This process, as the note says once `hold` was called."""
        return LockHolder(*self._file, self._pid, self._since)

    def hold(self, segment: int = 0) -> None:
        """Write that this process holds the directory, and the newest segment (0: none that is durable); durable on
        return.

        The note of a clean close is overwritten. Called before the first write, and after each begin of a segment.
        """
        self._note({**self._owner(), "segment": segment})

    def _owner(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "host": os.uname().nodename, "since": self._since}

    def _note(self, note: dict[str, Any]) -> None:
        self._write(note)
        os.fdatasync(self._fd)

    def _write(self, note: dict[str, Any]) -> None:
        if not self._file.is_of(self._fd):
            raise self._unlocked()
        line = json.dumps(note).encode() + b"\n"
        data = line + b"%08x\n" % zlib.crc32(line)
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    @property
    def locked(self) -> bool:
        """True until the lock is released."""
        return self._fd >= 0

    def check(self) -> None:
        """Raise ForeignFileError unless the path still names the file that is locked here. O(1), two microseconds."""
        try:
            status = os.stat(self.path)
            what = "" if (status.st_dev, status.st_ino) == self._file and self._fd >= 0 else "another file"
        except FileNotFoundError:
            what = "gone"
        if what:
            elsewhere = "" if self.path.is_absolute() else "the program has changed its working directory, "
            raise ForeignFileError(
                f"{self.path}: is {what}, not the file that this writer has locked: {elsewhere}the directory was moved "
                "or replaced, or the file removed, so that another writer may be at work here (nothing was written; "
                "open the state where it is now)"
            )
        if not self._file.is_of(self._fd):
            raise self._unlocked()

    def _unlocked(self) -> ForeignFileError:
        return ForeignFileError(
            f"{self.path}: is not locked any more: its descriptor was closed by other code of this program, as daemons "
            "close all, so that another writer may be at work here (nothing was written; open the state again)"
        )

    def release(self, closed: dict[str, Any] | None = None) -> None:
        """Release the lock; `closed` is the note of a clean close."""
        if self._fd < 0:
            return
        try:
            if closed is not None:
                self._note({"closed": closed})
        finally:
            # Unlocked before the close: an interrupt in between must not leave a lock that no process can release. (A
            # forked child has its parent's lock.)
            if not self._file.is_of(self._fd):
                self._fd = -1  # the number is another file's
            else:
                if os.getpid() == self._pid:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._drop()

    def _drop(self) -> None:
        # the number is forgotten before the close: after an interrupt in between, a second close would close another
        # file
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __reduce__(self) -> NoReturn:
        # a copy would unlock and close what is locked here: `deepcopy` of a state drops its copies half-way
        raise TypeError(f"{self.path}: the lock of an open state cannot be copied or pickled")

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # the owner was interrupted before it could store or close the file
            self.release()


def read_note(directory: Path) -> dict[str, Any]:
    """Return the note in a directory's LOCK; an absent or unreadable one is empty."""
    try:
        line, _, crc = (directory / LOCK).read_bytes().partition(b"\n")
        if crc != b"%08x\n" % zlib.crc32(line + b"\n"):
            return {}
        note = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return {}
    if type(note) is not dict:
        return {}
    closed = note.get("closed", {})
    known = type(note.get("segment", 0)) is int and type(closed) is dict and type(closed.get("version", 0)) is int
    return note if known else {}


def is_state(path: Path, names: Set[str]) -> bool:
    """Return whether a folder with these names is a state directory; False for an empty one. Raises ForeignFileError
    for other content.
    """
    if not names or names & {CHANGELOG, CHECKPOINTS, LOCK}:
        return bool(names)
    shards = any(name.isdigit() for name in names)
    hint = (
        f" (these are shards of a topology: open it by its topology, or one shard, such as {path}/0)" if shards else ""
    )
    raise ForeignFileError(
        f"{path}: found {min(names)!r} in it, expected a state directory, or a new or empty one{hint}"
    )


def claim(path: Path, files: Files, *, read_only: bool, erasing: bool = False) -> DirectoryLock | None:
    """Make a state directory at `path`, unless it exists, and lock it; with `read_only` do neither and return None.

    Raises ForeignFileError when the path has other content, StateLockedError when another process has the
    lock, StateDirectoryError for a writer of a pin, or where an erase has begun, unless it is `erasing` that asks.
    """
    if not read_only and not erasing:
        refuse_pin(path)
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        raise ForeignFileError(f"{path}: found a file, expected a state directory") from None
    ours = is_state(path, names)
    if read_only:
        if not ours:
            raise ForeignFileError(
                f"{path}: found no state in it, expected a state directory (open it without `at` to begin one)"
            )
        return None
    if ERASING in names and not erasing:
        raise unended_erase(path)
    # LOCK is made last: without it, a process that made the folders may have ended before their names were durable.
    if LOCK not in names:
        make_folders(files, path)
    for name in (CHANGELOG, CHECKPOINTS):
        if name not in names:
            files.mkdir(path / name)
    if LOCK not in names:
        files.sync_directory(path)
    lock = DirectoryLock(path, files.mode)
    if LOCK not in names:
        try:
            files.sync_directory(path)
        except BaseException:
            lock.release()
            raise
    return lock


def refuse_pin(path: Path) -> None:
    """Raise StateDirectoryError for what is a pin, or belongs to a pin. O(1)."""
    if (pinned := pin_above(path)) is not None:
        raise _pinned(path, pinned.parent.parent, pinned.name)


def refuse_pinned(storage: Storage) -> None:
    """Raise as `refuse_pin`, also for a place on an object store, there as `levels_of_pin`."""
    if isinstance(storage, LocalStorage):
        refuse_pin(storage.root)
    elif (levels := levels_of_pin(storage)) is not None:
        state, _, name, *_ = storage.url.rsplit("/", levels + 1)
        raise _pinned(storage.url, state, name)


def _pinned(where: object, state: object, name: str) -> StateDirectoryError:
    return StateDirectoryError(
        f"{where}: belongs to the pin {name}, which is read and never written (begin another state there: hybridstore "
        f"fork {state}@{name} NEW)"
    )


def pin_above(path: Path) -> Path | None:
    """Return the directory of the pin that a state directory is or, as a shard, belongs to; None without one. O(1)."""
    path = path.absolute()
    if PINS not in path.parts[-4:-1]:
        return None
    for folder in (path, *path.parents[:2]):
        state = folder.parent.parent
        if folder.parent.name == PINS and any((state / name).exists() for name in _OF_STATES):
            return folder
    return None


def loss(path: Path, *, version: int, needed: int, stale: Collection[Path] = ()) -> tuple[Path, str] | None:
    """Return the part of the last owner's data that a restore to `version` lacks, as (file, words), or None.

    `needed` is the oldest segment that the restore reads, `stale` the empty segments. LOCK has the note of the last
    owner.
    """
    note = read_note(path)
    closed, last = note.get("closed", {}).get("version", 0), note.get("segment", 0)
    if closed > version:
        return path, (
            f"was closed at version {closed}, but the changelog ends at version {version} "
            f"(so says {path / LOCK}; restore the missing files from a copy, or {_ACCEPT})"
        )
    segment = path / CHANGELOG / segment_name(last)
    # Without syncs newer segments are not noted, so the noted segment may have been pruned behind a checkpoint.
    if not last or last < needed or (segment.exists() and segment not in stale):
        return None
    return segment, (
        f"{'cut short' if segment.exists() else 'missing'}, though the last owner wrote to it: committed data is lost "
        f"(so says {path / LOCK}; restore this file from a copy, or {_ACCEPT})"
    )


def check_for_loss(path: Path, reached: Reached) -> None:
    """Raise RestoreError when the last owner closed a later version than the restored one, or wrote to a missing
    segment.
    """
    needed = 0 if reached.checkpoint is None else reached.checkpoint.meta.position.segment
    lost = loss(path, version=reached.report.version, needed=needed, stale=reached.resume.stale)
    if lost is not None:
        raise RestoreError(f"{lost[0]}: {lost[1]}")
