"""Pack: an immutable file of blocks and directory pages, back to back, with a footer that says what is where.

    header   24 bytes: magic, version, minimum reader, flags, the random number in the pack's name
    content  blocks and pages, each with its own crc32
    footer   sealed columns: store, number (0: a page of the directory), offset, size
    trailer  16 bytes: where the footer begins, and the magic again

A reader of a checkpoint needs no footer: the directory says where a block is. With the footer a pack can be checked and
read without an index. Bytes: docs/format.md, "Pack".
"""

from __future__ import annotations

import errno
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from changelog.cached_storage import CachedStorage
from changelog.codec import pack, unpack
from changelog.errors import UnsupportedVersionError
from changelog.storage import Storage

from .block import is_sound, seal
from .errors import CorruptCheckpointError
from .layout import PackName, parse_pack_name
from .mapping import keep_room, map_file

MAGIC: Final = b"\x89HSPCK\r\n"
_NONCE_BYTES: Final = 8
FORMAT_VERSION: Final = 1
HEADER: Final = struct.Struct("<8sHHI8s")
TRAILER: Final = struct.Struct("<Q8s")
# The number that a footer gives a page of the directory; blocks count from 1.
PAGE: Final = 0
# A pack is written when it has this many bytes, or about an eighth of the bytes written before: this bounds the memory
# of a writer, and a large state still has few packs. Where memory is limited, packs are as much smaller.
PACK_BYTES: Final = 64 << 20
_PACK_SHARE: Final = 8
# So many open tables are kept for readers to come without a limit of memory: of large blocks, as bases are, some 2 kB
# each, and of small ones, as layers are, some 0.7 kB each. They are counted apart: the layers of each checkpoint are
# new, and would take the room of the bases, whose checksums take longest, and which know what layers over them have.
MOST_LARGE: Final = 4096
MOST_SMALL: Final = 1024
_LARGE_TABLE: Final = 32 << 10
# Once so many are kept, each pack forgets one of so many.
_FORGOTTEN_SHARE: Final = 8
# The errors of mounted object stores for a map of one of their files.
_CANNOT_MAP: Final = frozenset((errno.ENODEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP))
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class PackRecord(NamedTuple):
    """A pack that a checkpoint names: its number in that checkpoint's directory, its name, its size in bytes."""

    number: int
    name: str
    size: int


class FooterLine(NamedTuple):
    """One line of a footer: a block or a page."""

    store: int
    number: int
    offset: int
    size: int


class PackWriter:
    """Collects blocks and pages and creates packs of them. `packs` lists the durable packs."""

    def __init__(self, storage: Storage, version: int, first: int, pack_bytes: int | None = None) -> None:
        self.packs: list[PackRecord] = []
        self.bytes = self.page_bytes = 0  # of blocks and pages, and of pages alone, in all packs
        self._storage = storage
        self._version = version
        self._number = first
        self._pack_bytes = pack_bytes or PACK_BYTES
        self._begin()

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Context manager around all that is added: where the disk has no room for it, the packs are deleted, which no
        checkpoint names. They would take the room that commits have.
        """
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                with suppress(OSError):
                    self._storage.delete([record.name for record in self.packs])
            raise

    def _begin(self) -> None:
        self._nonce = os.urandom(_NONCE_BYTES)
        # one copy of the bytes: `getvalue` gives the buffer itself
        self._content = BytesIO()
        self._size = self._content.write(HEADER.pack(MAGIC, FORMAT_VERSION, FORMAT_VERSION, 0, self._nonce))
        self._lines: list[FooterLine] = []

    def add(self, store: int, number: int, data: bytes | memoryview) -> tuple[int, int]:
        """Add a block, or a page with the number PAGE, and return (number of its pack, offset). O(1), or O(pack) when
        the pack is full and therefore created.
        """
        share = self.bytes * self._pack_bytes // (_PACK_SHARE * PACK_BYTES)
        if self._size + len(data) > max(self._pack_bytes, share):
            self.finish()
        offset = self._size
        self._size += self._content.write(data)
        self._lines.append(FooterLine(store, number, offset, len(data)))
        self.bytes += len(data)
        self.page_bytes += len(data) if number == PAGE else 0
        return self._number, offset

    def finish(self) -> None:
        """Create a pack of the blocks and pages added since the last pack, if any. Raises OSError. O(pack)."""
        if not self._lines:
            return
        self._content.write(seal(pack(list(map(list, zip(*self._lines, strict=True))))))
        self._content.write(TRAILER.pack(self._size, MAGIC))
        data = self._content.getvalue()
        name = str(PackName(self._version, time.time_ns() // 1_000_000, self._nonce.hex()))
        # The name is random and used once: if it is taken, an earlier try has created this pack and its answer was
        # lost.
        self._storage.create(name, data)
        self.packs.append(PackRecord(self._number, name, len(data)))
        self._number += 1
        self._begin()


class PackBytes(Protocol):
    """An open pack."""

    @property
    def far(self) -> bool:
        """True while a read is a request to another machine."""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return bytes of the pack, fewer where it ends before. Raises OSError."""


class KeptTables:
    """How many open tables of small or of large blocks the packs of this process keep, and at most."""

    def __init__(self, most: int, *, large: bool) -> None:
        self.tables = 0
        self.most = most
        self._large = large

    def keep(self, tables: dict[tuple[int, int], Any], place: tuple[int, int], table: Any) -> None:
        """Keep the table of a place in `tables`, those of a pack. O(1) on average."""
        if self.tables >= self.most:
            self._forget()
        if self.tables < self.most and tables.setdefault(place, table) is table:
            self.tables += 1

    def _forget(self) -> None:
        """Let each pack forget a part of its tables, the newest: a checkpoint reads its blocks one after the other, so
        those that were read first are needed first. Packs that are open, but in no checkpoint any more, are soon
        without any. Another thread may do the same. O(tables).
        """
        for opened in filter(None, (reference() for reference in _maps.valuerefs())):
            tables = opened.tables[self._large]
            places = list(tables)
            for place in places[len(places) * (_FORGOTTEN_SHARE - 1) // _FORGOTTEN_SHARE :]:
                if tables.pop(place, None) is not None:
                    self.tables -= 1


SMALL: Final = KeptTables(MOST_SMALL, large=False)
LARGE: Final = KeptTables(MOST_LARGE, large=True)


class MappedPack:
    """A pack that is mapped into memory, `mapped`. Views of it stay readable when the file was removed, as long as they
    live. `tables`: the open tables of its small blocks and those of its large ones, by place.
    """

    __slots__ = ("__weakref__", "_file", "_view", "mapped", "tables")
    far: Final = False

    def __init__(self, fd: int, size: int) -> None:
        self.tables: tuple[dict[tuple[int, int], Any], ...] = {}, {}
        status = os.fstat(fd)
        self._file = status.st_dev, status.st_ino
        self.mapped = map_file(fd, size)
        self._view = memoryview(self.mapped)

    def is_at(self, path: str, size: int) -> bool:
        """Return whether a path has this file, of no fewer bytes. O(1)."""
        try:
            status = os.stat(path)
        except OSError:
            return False  # who opens it says what is wrong
        return (status.st_dev, status.st_ino) == self._file and status.st_size >= size

    def table(self, offset: int, size: int) -> Any:
        """Return the table that is kept of the block there, or None. O(1)."""
        return self.tables[size >= _LARGE_TABLE].get((offset, size))

    def keep(self, offset: int, size: int, table: Any) -> None:
        """Keep the open table of the block there for all readers, as long as not too many are kept. O(1) on average."""
        large = size >= _LARGE_TABLE
        (LARGE if large else SMALL).keep(self.tables[large], (offset, size), table)

    def __del__(self) -> None:
        # a thread that dies at the first line of `__init__` leaves a pack without tables
        for kept, tables in zip((SMALL, LARGE), getattr(self, "tables", ()), strict=False):
            kept.tables -= len(tables)

    def read(self, offset: int, size: int) -> memoryview:
        """Return a view of the map. O(1)."""
        return self._view[offset : offset + size]


_stored: weakref.WeakSet[StoredPack] = weakref.WeakSet()


def names_in_use(storage: Storage) -> set[str]:
    """Return the names of the packs in `storage` that this process reads by ranges. O(open packs)."""
    return {pack._name for pack in list(_stored) if pack._storage.url == storage.url}


class StoredPack:
    """A pack on storage that has no local files: read range by range, or mapped once it is in a cache.

    The first request is the first read. While this object lives, `collect_packs` of this process keeps the pack: a map
    stays readable when its file is removed, a range does not.
    """

    __slots__ = ("__weakref__", "_mapped", "_name", "_storage", "size")

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self.size = size
        self._storage = storage
        self._name = name
        self._mapped: MappedPack | None = None
        _stored.add(self)
        if isinstance(storage, CachedStorage):
            self._map_copy(storage, storage.path(name))

    @property
    def far(self) -> bool:
        return self._mapped is None

    @property
    def limit(self) -> int:
        """The most bytes of packs that the cache of this host may have; 0 without a cache."""
        return self._storage.cache.limit if isinstance(self._storage, CachedStorage) else 0

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Read a range. Raises OSError. O(size), O(1) when it is mapped."""
        mapped = self._mapped
        return self.read_ranges([(offset, size)])[0] if mapped is None else mapped.read(offset, size)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Read many ranges (start, length) from the storage, side by side. Raises OSError. O(bytes)."""
        return self._storage.get_ranges(self._name, ranges)

    def bring(self, go_on: Callable[[], bool] | None = None) -> bool:
        """Fetch the whole pack into the cache, if the state has a cache, and map it; True when it is mapped.

        `go_on` is called between parts, for a background thread; with `go_on`, a pack that another process fetches is
        skipped. Raises OSError. O(bytes).
        """
        if self._mapped is None and isinstance(self._storage, CachedStorage):
            self._map_copy(self._storage, self._storage.fetch(self._name, self.size, go_on))
        return self._mapped is not None

    def _map_copy(self, storage: CachedStorage, path: Path | None) -> None:
        try:
            if path is not None:
                mapped = _map(path, self.size)
                check_header(mapped, self._name, path)
                self._mapped = mapped
        except FileNotFoundError:
            return  # removed since, to free space
        except CorruptCheckpointError:
            storage.drop(self._name)

    def read_afresh(self, offset: int, size: int) -> bytes | None:
        """Drop the damaged copy in the cache, and read a range of the pack itself; None without a copy. Raises
        OSError. O(size).
        """
        if self._mapped is None or not isinstance(self._storage, CachedStorage):
            return None
        self._mapped = None
        self._storage.drop(self._name)
        return self.read_ranges([(offset, size)])[0]


class OpenedPack:
    """A pack as an open local file that is read and not mapped: for untrusted files, and for mounts that cannot map
    files.
    """

    __slots__ = ("_fd",)
    far: Final = False

    def __init__(self, path: Path) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        keep_room(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """Read a range; fewer bytes where the file ends before. Raises OSError. O(size)."""
        return os.pread(self._fd, size, offset)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open pack cannot be copied or pickled")  # a copy would close this descriptor

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


# Readers share the maps of packs. By process, device and inode, because a restored file may take over a name.
_maps: weakref.WeakValueDictionary[tuple[int, int, int], MappedPack] = weakref.WeakValueDictionary()
# By process and path, those whose header fits their name: each checkpoint opens nearly all packs of the one before.
_named: weakref.WeakValueDictionary[tuple[int, str], MappedPack] = weakref.WeakValueDictionary()


def open_pack(storage: Storage, record: PackRecord) -> PackBytes:
    """Open a pack that a checkpoint names: mapped, where it is a local file; elsewhere without a request. O(1).

    Raises CorruptCheckpointError when a local file is missing, is another pack, or is shorter than it was written (a
    map of it would end the process). Such a copy in a cache is dropped.
    """
    if isinstance(storage, CachedStorage):
        return StoredPack(storage, record.name, record.size)
    named = os.getpid(), f"{storage.url}/{record.name}"
    if (known := _named.get(named)) is not None and known.is_at(named[1], record.size):
        return known
    path: Path | None = None
    try:
        path = storage.path(record.name)
        if path is not None:
            mapped = _map(path, record.size)
            check_header(mapped, record.name, path)
            _named[named] = mapped
            return mapped
    except FileNotFoundError:
        raise CorruptCheckpointError(f"{storage.url}/{record.name}: the pack is missing") from None
    except OSError as error:
        if path is None or error.errno not in _CANNOT_MAP:
            raise
        opened = OpenedPack(path)
        check_header(opened, record.name, path)
        return opened
    return StoredPack(storage, record.name, record.size)


def check_header(opened: PackBytes, name: str, where: object) -> None:
    """Raise CorruptCheckpointError unless a pack says that it is the one of this name. O(1)."""
    named, raw = parse_pack_name(name), bytes(opened.read(0, HEADER.size))
    if named is None or raw[:8] != MAGIC or raw[-_NONCE_BYTES:] != bytes.fromhex(named.nonce):
        raise CorruptCheckpointError(
            f"{where}: found the header {raw.hex()}, expected that of a pack with the number of its name (the file is "
            "another pack, or damaged: restore it from a copy)"
        )


def check_size(storage: Storage, record: PackRecord) -> None:
    """Raise CorruptCheckpointError when a pack is missing or shorter than it was written. O(1)."""
    try:
        size = storage.size(record.name)
    except FileNotFoundError:
        raise CorruptCheckpointError(f"{storage.url}/{record.name}: the pack is missing") from None
    if size < record.size:
        raise _short(f"{storage.url}/{record.name}", size, record.size)


def _short(where: object, size: int, expected: int) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{where}: found {size} bytes, expected {expected} (the file was cut short)")


def _map(path: Path, size: int) -> MappedPack:
    if (mapped := _mapped(path, os.stat(path), size)) is not None:
        return mapped
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        mapped = _mapped(path, status, size)
        if mapped is None:
            mapped = _maps[os.getpid(), status.st_dev, status.st_ino] = MappedPack(fd, size)
        return mapped
    finally:
        os.close(fd)


def _mapped(path: Path, status: os.stat_result, size: int) -> MappedPack | None:
    """Return the map of a pack that another reader has, or None. Raises CorruptCheckpointError for a short file."""
    if status.st_size < size:
        raise _short(path, status.st_size, size)
    return _maps.get((os.getpid(), status.st_dev, status.st_ino))


def read_footer(opened: PackBytes, size: int, where: str) -> list[FooterLine]:
    """Return the lines of a pack's footer.

    Raises CorruptCheckpointError, naming `where`, or UnsupportedVersionError. O(blocks of the pack).
    """
    header, trailer = opened.read(0, HEADER.size), opened.read(max(0, size - TRAILER.size), TRAILER.size)
    if len(header) < HEADER.size or len(trailer) < TRAILER.size or size < HEADER.size + TRAILER.size:
        raise CorruptCheckpointError(
            f"{where}: cut short: found {size} bytes, expected {HEADER.size + TRAILER.size} or more"
        )
    magic, version, min_reader, flags, _ = HEADER.unpack(header)
    start, end_magic = TRAILER.unpack(trailer)
    if magic != MAGIC or end_magic != MAGIC:
        raise CorruptCheckpointError(f"{where}: not a pack: found {bytes(magic)!r}, expected {MAGIC!r}")
    if min_reader > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{where}: pack format {version} needs a reader of version {min_reader}, this one reads {FORMAT_VERSION} "
            "(upgrade hybridstore)"
        )
    try:
        if flags or not HEADER.size <= start <= size - TRAILER.size:
            raise ValueError(f"flags {flags:#x}, footer at byte {start}")
        raw = opened.read(start, size - TRAILER.size - start)
        if not is_sound(raw):
            raise ValueError("footer checksum mismatch")
        return _lines(unpack(memoryview(raw)[4:]), start)
    except (ValueError, TypeError) as error:
        raise CorruptCheckpointError(f"{where}: footer: {error}") from error


def _lines(columns: Any, end: int) -> list[FooterLine]:
    lines = list(map(FooterLine._make, zip(*columns, strict=True)))
    at = HEADER.size
    for line in lines:
        if any(type(number) is not int or number < 0 for number in line) or line.offset != at:
            raise ValueError(f"a line that does not follow byte {at}: {tuple(line)}")
        at += line.size
    if at != end:
        raise ValueError(f"content ends at byte {at}, the footer begins at {end}")
    return lines
