"""Page sums: checksums of what LMDB itself follows in a checkpoint file, verified before the file is mapped.

A damaged branch or leaf page makes LMDB abort the whole process, so a checkpoint `<version>.lmdb` has a companion
`<version>.sum` with the checksums of

    pages   every page that holds structure: two meta pages, branch and leaf pages of both trees, the list of free pages
    heads   the 16-byte header of each block's first page, which LMDB reads only when a copy of the file is changed

Blocks live in overflow pages, which LMDB only hands out; each carries a checksum of its own. Layout: docs/format.md, "Page sums".
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from changelog.errors import UnsupportedVersionError

from .errors import CorruptCheckpointError

MAGIC: Final = b"\x89HSSUM\r\n"
FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sHHIQII")  # magic, version, min reader, page size, file size, pages, heads
_LINE: Final = struct.Struct("<QI")
PAGE_HEADER_BYTES: Final = 16
_LMDB_MAGIC: Final = 0xBEEFC0DE
_META = 16  # where the meta record begins in a meta page
_TREES = _META + 24  # 48 bytes of each of the two trees: the free pages, then ours
_BRANCH, _LEAF = 0x01, 0x02
_BIG = 0x01
_NO_PAGE = 2**64 - 1


def sums_path(checkpoint: Path) -> Path:
    """Return the path of the companion of a checkpoint file."""
    return checkpoint.with_suffix(".sum")


class _Walk:
    """Collects the structural pages, the block headers and the extents of an LMDB file."""

    def __init__(self, path: Path, fd: int, page_size: int) -> None:
        self.path = path
        self.fd = fd
        self.page_size = page_size
        self.pages: dict[int, bytes] = {}
        self.heads: dict[int, bytes] = {}
        self.extents: list[tuple[int, int]] = []

    def read(self, number: int) -> bytes:
        return os.pread(self.fd, self.page_size, number * self.page_size)

    def structure(self, number: int) -> bytes:
        page = self.pages[number] = self.read(number)
        self.extents.append((number, number + 1))
        return page

    def tree(self, root: int, *, free: bool) -> None:
        stack = [] if root == _NO_PAGE else [root]
        while stack:
            number = stack.pop()
            if number in self.pages:
                raise CorruptCheckpointError(f"{self.path} at byte {number * self.page_size}: page in use twice")
            page = self.structure(number)
            flags, lower = struct.unpack_from("<HH", page, 10)
            for (at,) in struct.iter_unpack("<H", page[PAGE_HEADER_BYTES:lower]):
                low, high, node_flags, key_size = struct.unpack_from("<HHHH", page, at)
                if flags & _BRANCH:
                    stack.append(low | high << 16 | node_flags << 32)
                    continue
                if node_flags & _BIG:
                    (first,) = struct.unpack_from("<Q", page, at + 8 + key_size)
                    self._overflow(first, low | high << 16, free)

    def _overflow(self, first: int, size: int, free: bool) -> None:
        count = (PAGE_HEADER_BYTES + size - 1) // self.page_size + 1
        if free:
            for number in range(first, first + count):
                self.structure(number)
        else:
            self.heads[first] = self.read_head(first)
            self.extents.append((first, first + count))

    def read_head(self, number: int) -> bytes:
        return os.pread(self.fd, PAGE_HEADER_BYTES, number * self.page_size)


def _walk(path: Path) -> tuple[_Walk, int]:
    """Return what an LMDB file holds, and its size. Raises CorruptCheckpointError when its pages make no sense."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        head = os.pread(fd, 168, 0)
        magic, _, _, _, page_size = struct.unpack_from("<IIQQI", head, _META)
        if magic != _LMDB_MAGIC:
            raise CorruptCheckpointError(f"{path}: not an LMDB file")
        walk = _Walk(path, fd, page_size)
        newest = max(
            (walk.structure(0), walk.structure(1)), key=lambda page: struct.unpack_from("<Q", page, _TREES + 104)[0]
        )
        for tree in range(2):
            walk.tree(struct.unpack_from("<Q", newest, _TREES + 48 * tree + 40)[0], free=tree == 0)
    except (struct.error, OverflowError) as error:
        raise CorruptCheckpointError(f"{path}: LMDB pages cannot be read: {error}") from error
    finally:
        os.close(fd)
    return walk, size


def compute(path: Path) -> bytes:
    """Return the content of the companion file for a closed LMDB file.

    Raises CorruptCheckpointError unless every page has one use at most and lies in the file. O(structural pages + blocks).
    """
    walk, size = _walk(path)
    page_size = walk.page_size
    walk.extents.sort()
    for (_, end), (start, _) in pairwise([*walk.extents, (size // page_size, 0)]):
        if end > start:
            raise CorruptCheckpointError(f"{path} at byte {start * page_size}: page in use twice, or outside the file")
    raw = _HEAD.pack(MAGIC, FORMAT_VERSION, 1, page_size, size, len(walk.pages), len(walk.heads))
    for sums in (walk.pages, walk.heads):
        raw += b"".join(_LINE.pack(number, zlib.crc32(sums[number])) for number in sorted(sums))
    return raw + zlib.crc32(raw).to_bytes(4, "little")


def _read(companion: Path, name: str) -> tuple[int, int, list[tuple[int, int]], list[tuple[int, int]]]:
    """Return page size, file size, and (page number, checksum) of pages and of heads."""
    try:
        raw = companion.read_bytes()
    except FileNotFoundError:
        raise CorruptCheckpointError(f"{companion}: missing, so {name} cannot be trusted") from None
    if raw[: len(MAGIC)] != MAGIC:
        raise CorruptCheckpointError(f"{companion}: not a page sum file: found {raw[:8]!r}, expected {MAGIC!r}")
    if len(raw) < _HEAD.size + 4 or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise CorruptCheckpointError(f"{companion}: checksum mismatch")
    _, version, min_reader, page_size, size, pages, heads = _HEAD.unpack_from(raw)
    if min_reader > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{companion}: page sum format {version} needs a reader of version {min_reader}, this one reads {FORMAT_VERSION} (upgrade hybridstore)"
        )
    lines = list(_LINE.iter_unpack(raw[_HEAD.size : -4]))
    if len(lines) != pages + heads:
        raise CorruptCheckpointError(f"{companion}: found {len(lines)} lines, expected {pages + heads}")
    return page_size, size, lines[:pages], lines[pages:]


def faults(path: Path, *, companion: Path | None = None, heads: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (offset, what is wrong) for every page that is not as it was written, and go on after each.

    `companion` is the sum file (default: the one of this name); `heads` also checks the block headers, which matter before
    a copy of the file is changed. Raises CorruptCheckpointError or UnsupportedVersionError for a companion that cannot be
    used. O(structural pages), with `heads` O(blocks).
    """
    page_size, size, pages, block_heads = _read(companion or sums_path(path), path.name)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd).st_size
        if found != size:
            yield (
                min(found, size),
                f"file size: found {found} bytes, expected {size} (the file was cut short or extended)",
            )
        for lines, length in ((pages, page_size), (block_heads if heads else [], PAGE_HEADER_BYTES)):
            for number, expected in lines:
                if zlib.crc32(os.pread(fd, length, number * page_size)) != expected:
                    yield number * page_size, "page checksum mismatch"
    finally:
        os.close(fd)


def verify(path: Path, *, companion: Path | None = None, heads: bool = False) -> None:
    """Raise CorruptCheckpointError unless the checkpoint's size and structural pages are those that were written; see `faults`."""
    for offset, reason in faults(path, companion=companion, heads=heads):
        raise CorruptCheckpointError(f"{path} at byte {offset}: {reason}")
