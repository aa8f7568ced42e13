"""Page sums: checksums of the pages that LMDB itself follows, verified before a checkpoint file is mapped.

A damaged branch or leaf page makes LMDB abort the whole process, so a checkpoint `<version>.lmdb` has a companion
`<version>.sum` with the checksum of every page that holds structure: the two meta pages and the branch and leaf pages of both trees.
Blocks live in overflow pages, which LMDB only hands out; each carries a checksum of its own. Layout: docs/format.md, "Page sums".
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from changelog.errors import UnsupportedVersionError

from .errors import CorruptCheckpointError

MAGIC: Final = b"\x89HSSUM\r\n"
FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sHHIQI")  # magic, version, min reader, page size, file size, pages
_LINE: Final = struct.Struct("<QI")
_LMDB_MAGIC: Final = 0xBEEFC0DE
_BRANCH, _LEAF = 0x01, 0x02
_BIG = 0x01


def sums_path(checkpoint: Path) -> Path:
    """Return the path of the companion of a checkpoint file."""
    return checkpoint.with_suffix(".sum")


def _tree(file: BinaryIO, page_size: int, root: int, pages: dict[int, bytes]) -> None:
    stack = [root]
    while stack:
        number = stack.pop()
        if number == 2**64 - 1 or number in pages:
            continue
        file.seek(number * page_size)
        page = file.read(page_size)
        flags, lower = struct.unpack_from("<HH", page, 10)
        pages[number] = page
        if not flags & _BRANCH:
            continue
        for slot in range((lower - 16) // 2):
            at = struct.unpack_from("<H", page, 16 + 2 * slot)[0]
            low, high, more = struct.unpack_from("<HHH", page, at)
            stack.append(low | high << 16 | more << 32)


def compute(path: Path) -> bytes:
    """Return the content of the companion file for a closed LMDB file. O(structural pages)."""
    with path.open("rb") as file:
        head = file.read(168)
        magic, _, _, _, page_size = struct.unpack_from("<IIQQI", head, 16)
        if magic != _LMDB_MAGIC:
            raise CorruptCheckpointError(f"{path}: not an LMDB file")
        pages: dict[int, bytes] = {}
        for number in (0, 1):
            file.seek(number * page_size)
            pages[number] = file.read(page_size)
        newest = max((pages[0], pages[1]), key=lambda page: struct.unpack_from("<Q", page, 16 + 24 + 96 + 8)[0])
        for database in range(2):
            root = struct.unpack_from("<Q", newest, 16 + 24 + 48 * database + 40)[0]
            _tree(file, page_size, root, pages)
    raw = _HEAD.pack(MAGIC, FORMAT_VERSION, 1, page_size, path.stat().st_size, len(pages))
    raw += b"".join(_LINE.pack(number, zlib.crc32(pages[number])) for number in sorted(pages))
    return raw + zlib.crc32(raw).to_bytes(4, "little")


def verify(path: Path) -> None:
    """Raise CorruptCheckpointError unless the checkpoint's size and structural pages are those that were written. O(structural pages)."""
    companion = sums_path(path)
    try:
        raw = companion.read_bytes()
    except FileNotFoundError:
        raise CorruptCheckpointError(f"{companion}: missing, so {path.name} cannot be trusted") from None
    if len(raw) < _HEAD.size + 4 or zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise CorruptCheckpointError(f"{companion}: checksum mismatch")
    magic, _, min_reader, page_size, size, count = _HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise CorruptCheckpointError(f"{companion}: not a page sum file: found {magic!r}, expected {MAGIC!r}")
    if min_reader > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{companion}: needs a reader of version {min_reader}, this one reads {FORMAT_VERSION} (upgrade hybridstore)"
        )
    found = path.stat().st_size
    if found != size:
        raise CorruptCheckpointError(
            f"{path}: file size: found {found} bytes, expected {size} (the file was cut short or extended)"
        )
    with path.open("rb") as file:
        for number, expected in _LINE.iter_unpack(raw[_HEAD.size : _HEAD.size + count * _LINE.size]):
            file.seek(number * page_size)
            if zlib.crc32(file.read(page_size)) != expected:
                raise CorruptCheckpointError(f"{path} at byte {number * page_size}: page checksum mismatch")
