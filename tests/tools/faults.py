"""Faults: a file layer that remembers what was synced, and the disks that a crash at any moment could leave behind.

`Recorder` stands where `changelog.files.Files` does. It passes everything on, and keeps a history: what was written,
cut, named, linked and synced, in order. `disks(history)` then rebuilds, for every moment of it, the directory trees
that a file system may hold after a power failure there:

    dropped   nothing that was not synced, names included
    kept      everything, synced or not (what a killed process leaves)
    torn      half of the last write, everything before it
    named     all names, but only synced contents: files are there, and empty or short
    zeroed    all names and lengths, but zeros where contents were not synced
    mixed     of what was not synced, some 512-byte sectors and not others; names up to a random one
"""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import mmap
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from changelog.files import AppendFile, Files
from tests.conftest import SEED, STRESS

SECTOR = 512
MODES = ("dropped", "kept", "torn", "named", "zeroed", "mixed", "mixed")


def kill_points(step: int) -> Iterator[int]:
    """The numbers of the writes at which a test kills, without end: the first four and then each `step`-th, from one on
    that the run's seed draws, so that runs together kill at each; in `make stress` each.
    """
    return itertools.count() if STRESS else itertools.chain(range(4), itertools.count(4 + SEED % step, step))


class Event(NamedTuple):
    """One step: what was done, to which file (a number that all its names share), with what, and the LOCK as it was
    then.
    """

    what: str
    file: int
    detail: Any
    lock: bytes


class QuickFiles(Files):
    """The real file system without waiting for the disk: for tests that do not pull the plug."""

    def create(self, path: Path) -> AppendFile:
        return _QuickFile(path, create=True)

    def append(self, path: Path) -> AppendFile:
        return _QuickFile(path, create=False)

    def sync_path(self, path: Path) -> None:
        """Let the kernel write when it likes."""


class _QuickFile(AppendFile):
    __slots__ = ()

    def sync(self) -> None:
        """Let the kernel write when it likes."""


class Recorder(QuickFiles):
    """Files that keep the history of a directory tree; see the module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history: list[Event] = []
        self._numbers: dict[Path, int] = {}
        self._count = 0

    def note(self, what: str, file: int = 0, detail: Any = None) -> None:
        lock = self.root / "LOCK"
        self.history.append(Event(what, file, detail, lock.read_bytes() if lock.exists() else b""))

    def _name(self, path: Path) -> int:
        self._count += 1
        self._numbers[path] = self._count
        self.note("name", self._count, path.relative_to(self.root))
        return self._count

    def wrote(self, number: int, data: bytes) -> None:
        self.note("write", number, bytes(data))

    def cut(self, number: int, size: int) -> None:
        self.note("cut", number, size)

    def create(self, path: Path) -> AppendFile:
        return _RecordedFile(path, self, self._name(path), create=True)

    def append(self, path: Path) -> AppendFile:
        return _RecordedFile(path, self, self._numbers[path], create=False)

    def link(self, temporary: Path, final: Path) -> None:
        super().link(temporary, final)
        number = self._numbers[final] = self._numbers[temporary]
        self.note("name", number, final.relative_to(self.root))

    def sync_path(self, path: Path) -> None:
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            self.note("sync names", 0, path.relative_to(self.root))
            return
        self.note("sync", self._numbers[path])

    def remove(self, path: Path) -> None:
        super().remove(path)
        if path in self._numbers:
            del self._numbers[path]
            self.note("unname", 0, path.relative_to(self.root))


class _RecordedFile(AppendFile):
    __slots__ = ("_number", "_recorder")

    def __init__(self, path: Path, recorder: Recorder, number: int, *, create: bool) -> None:
        super().__init__(path, create=create)
        self._recorder, self._number = recorder, number

    def write(self, data: bytes) -> None:
        super().write(data)
        self._recorder.wrote(self._number, data)

    def sync(self) -> None:
        self._recorder.note("sync", self._number)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._recorder.cut(self._number, size)


@dataclass
class _File:
    """A file of the simulated disk: its synced content, its content now, and the contents that some sector may
    still have.
    """

    synced: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    versions: list[bytes] = field(default_factory=list)


class Disk(NamedTuple):
    """A directory tree that a crash left: after how many events, in which way, how much was acknowledged by then,
    its files by relative path.
    """

    moment: int
    mode: str
    acknowledged: int
    files: dict[Path, bytes]

    def write(self, root: Path) -> None:
        """Lay the tree out under `root`, which is a new directory."""
        for folder in (root, root / "changelog", root / "checkpoints"):
            folder.mkdir()
        for path, content in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)


def disks(history: list[Event], seed: int) -> Iterator[Disk]:
    """Yield every tree that a crash after each event of a history could leave, in all modes; equal ones only once
    between two acknowledgements.
    """
    dice = random.Random(seed)
    files: dict[int, _File] = {}
    names: dict[Path, int] = {}
    durable: dict[Path, int] = {}
    pending: list[tuple[Path, dict[Path, int | None]]] = []
    seen: set[int] = set()
    acknowledged = 0
    for moment, event in enumerate(history, 1):
        if event.what == "acknowledged":
            acknowledged = event.detail
            seen.clear()
        file = files.setdefault(event.file, _File())
        if event.what == "name":
            pending.append((event.detail.parent, {event.detail: event.file}))
        elif event.what == "unname":
            pending.append((event.detail.parent, {event.detail: None}))
        elif event.what == "sync names":
            for _, change in (step for step in pending if step[0] == event.detail):
                _apply(durable, change)
            pending = [step for step in pending if step[0] != event.detail]
        elif event.what == "sync":
            file.synced, file.versions = bytes(file.now), []
        elif event.what in ("write", "cut"):
            file.versions.append(bytes(file.now))
            if event.what == "write":
                file.now += event.detail
            else:
                del file.now[event.detail :]
        if pending and event.what in ("name", "unname"):
            _apply(names, pending[-1][1])
        for mode in MODES:
            entries = durable if mode == "dropped" else names
            if mode == "mixed":
                entries = dict(durable)
                for _, change in pending[: dice.randint(0, len(pending))]:
                    _apply(entries, change)
            torn = event if mode == "torn" and event.what == "write" else None
            content = {path: _content(files[number], mode, torn, number, dice) for path, number in entries.items()}
            if event.lock:
                content[Path("LOCK")] = event.lock
            identity = hash(tuple(sorted(content.items())))
            if identity not in seen:
                seen.add(identity)
                yield Disk(moment, mode, acknowledged, content)


def _apply(names: dict[Path, int], change: dict[Path, int | None]) -> None:
    for path, number in change.items():
        if number is None:
            names.pop(path, None)
        else:
            names[path] = number


def _content(file: _File, mode: str, torn: Event | None, number: int, dice: random.Random) -> bytes:
    now, synced = bytes(file.now), file.synced
    if mode == "kept":
        return now
    if mode == "torn":
        return now if torn is None or torn.file != number else now[: len(now) - (len(torn.detail) + 1) // 2]
    if mode in ("dropped", "named"):
        return synced
    if mode == "zeroed":
        return synced[: len(now)] + bytes(max(0, len(now) - len(synced)))
    size = len(dice.choice([synced, *file.versions, now]))
    sectors = []
    for at in range(0, size, SECTOR):
        # Each sector has its newest content, or that of an earlier moment; where a file had none yet, zeros.
        source = dice.choice([synced, *file.versions, now, now])
        sectors.append(source[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0")[: size - at])
    return b"".join(sectors)


class Linkless(QuickFiles):
    """A file system that can neither link nor sync directories."""

    def __init__(self, number: int = errno.ENOSYS) -> None:
        super().__init__()
        self.number = number

    def link(self, temporary: Path, final: Path) -> None:
        raise OSError(self.number, os.strerror(self.number))

    def sync_directory(self, path: Path) -> None:
        Files.sync_directory(self, path)

    def sync_path(self, path: Path) -> None:
        if path.is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class FullDisk(QuickFiles):
    """Files on a disk with room for `room` more bytes: what does not fit is written in part, then ENOSPC."""

    def __init__(self, room: int) -> None:
        self.room = room

    def take(self, size: int) -> int:
        """Use up to `size` bytes of the room and return how many."""
        taken = min(size, self.room)
        self.room -= taken
        return taken

    def create(self, path: Path) -> AppendFile:
        return _FullFile(path, self, create=True)

    def append(self, path: Path) -> AppendFile:
        return _FullFile(path, self, create=False)


class _FullFile(AppendFile):
    __slots__ = ("_disk",)

    def __init__(self, path: Path, disk: FullDisk, *, create: bool) -> None:
        super().__init__(path, create=create)
        self._disk = disk

    def write(self, data: bytes) -> None:
        fits = self._disk.take(len(data))
        super().write(data[:fits])
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Let the kernel write when it likes."""


class FailingReads:
    """Lets the n-th look at a directory tree fail, inside a `with` block: each listing, opening, stat and read counts
    as one.

    `how` is an errno, or "short" for a read that gives half of what there is, as a kernel may. `count` is how many
    there were. What LMDB reads through its map cannot be made to fail, but its opening can.
    """

    def __init__(self, root: Path, nth: int, how: int | str) -> None:
        self._root = os.fspath(root)
        self._nth = nth
        self._how = how
        self._fds: set[int] = set()
        self.count = 0

    def look(self, path: Any) -> bool:
        """Count a look; raise if it is the one that fails, or return True if it is to be a short one."""
        if isinstance(path, int):
            if path not in self._fds:
                return False
        elif not os.fspath(path).startswith(self._root):
            return False
        self.count += 1
        if self.count != self._nth:
            return False
        if isinstance(self._how, int):
            raise OSError(self._how, os.strerror(self._how), path)
        return True

    def __enter__(self) -> FailingReads:
        self._patch = pytest.MonkeyPatch()
        real_os_open, real_pread, real_open = os.open, os.pread, io.open

        def os_open(path: Any, *args: Any, **kwargs: Any) -> int:
            self.look(path)
            fd = real_os_open(path, *args, **kwargs)
            if os.fspath(path).startswith(self._root):
                self._fds.add(fd)
            return fd

        def os_pread(fd: int, size: int, offset: int) -> bytes:
            return real_pread(fd, size // 2 if self.look(fd) else size, offset)

        def open_file(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            self.look(file)
            if mode != "rb" or not os.fspath(file).startswith(self._root):
                return real_open(file, mode, buffering, *args, **kwargs)
            return io.BufferedReader(_FailingFile(os.fspath(file), self), max(buffering, 8192))

        self._patch.setattr(os, "open", os_open)
        self._patch.setattr(os, "pread", os_pread)
        self._patch.setattr(io, "open", open_file)
        for name in ("listdir", "stat"):
            self._patch.setattr(os, name, self._looking(getattr(os, name)))
        return self

    def _looking(self, real: Any) -> Any:
        def look(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            self.look(path)
            return real(path, *args, **kwargs)

        return look

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


class _FailingFile(io.FileIO):
    def __init__(self, path: str, reads: FailingReads) -> None:
        super().__init__(path)
        self._path, self._reads = path, reads

    def readinto(self, buffer: Any) -> int | None:
        short = self._reads.look(self._path)
        return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 2)] if short else buffer)

    def readall(self) -> bytes:
        self._reads.look(self._path)
        return super().readall()


class Volume:
    """Lets the directory tree at `root` be on a mounted object store, inside a `with` block, whatever code asks the
    system: a Unity Catalog volume as users describe it (icechunk#2341, delta-rs#2540).

    `link` and `rename` answer ENOSYS, as `flock` and `truncate` do; a directory cannot be synced (EINVAL), a file that
    exists cannot be opened for writing (ESPIPE), nothing can be written to a file behind its first sync (EBADF), and
    no file can be mapped (ENODEV), not by LMDB either.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._synced: set[int] = set()

    def _is_inside(self, *paths: Any) -> bool:
        return any(os.fspath(path).startswith(self._root) for path in paths if not isinstance(path, int))

    def _path(self, fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def _refusing(self, real: Any, number: int) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            paths = [self._path(arg) if isinstance(arg, int) and arg > 2 else arg for arg in args[:2]]
            if self._is_inside(*paths):
                raise OSError(number, os.strerror(number), paths[0])
            return real(*args, **kwargs)

        return refuse

    def __enter__(self) -> Volume:
        self._patch = pytest.MonkeyPatch()
        for name in ("link", "rename", "replace", "truncate", "ftruncate"):
            self._patch.setattr(os, name, self._refusing(getattr(os, name), errno.ENOSYS))
        self._patch.setattr(fcntl, "flock", self._refusing(fcntl.flock, errno.ENOSYS))
        real_map = mmap.mmap

        def map_file(fd: int, *args: Any, **kwargs: Any) -> Any:
            if fd > 2 and self._is_inside(self._path(fd)):
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self._path(fd))
            return real_map(fd, *args, **kwargs)

        self._patch.setattr(mmap, "mmap", map_file)
        real_open, real_write, real_close = os.open, os.write, os.close

        def open_file(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
            if self._is_inside(path) and writing and os.path.exists(path) and not flags & os.O_EXCL:
                raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), path)
            fd = real_open(path, flags, *args, **kwargs)
            self._synced.discard(fd)
            return fd

        def write(fd: int, data: Any) -> int:
            if fd in self._synced:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path(fd))
            return real_write(fd, data)

        def close(fd: int) -> None:
            self._synced.discard(fd)
            real_close(fd)

        def sync(fd: int) -> None:
            path = self._path(fd)
            if self._is_inside(path):
                if os.path.isdir(path):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
                self._synced.add(fd)

        for name, function in (("open", open_file), ("write", write), ("close", close)):
            self._patch.setattr(os, name, function)
        for name in ("fsync", "fdatasync"):
            self._patch.setattr(os, name, sync)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
