"""Segments: the files of the changelog.

Their names, and the header that every one starts with (docs/format.md, "Segment").

A segment is named after the first version it holds, `00000000000000000042.log`, so that names sort as versions do. Its
header ties it to one state and shard (`identity`) and to one line of versions (`parent_version`, `parent_digest`).
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from .errors import CorruptFrameError, ForeignFileError, UnsupportedVersionError
from .identity import IDENTITY_BYTES, Identity

MAGIC: Final = b"\x89HSLOG\r\n"
FORMAT_VERSION: Final = 1
MIN_READER_VERSION: Final = 1
_HEADER: Final = struct.Struct(f"<8sHHI{IDENTITY_BYTES}sQQ16s")
HEADER_BYTES: Final = _HEADER.size + 4
SUFFIX: Final = ".log"
_NAME: Final = re.compile(r"(\d{20})\.log")


class SegmentHeader(NamedTuple):
    """The fields of a segment's header."""

    identity: Identity
    first_version: int
    parent_version: int
    parent_digest: bytes

    def encode(self) -> bytes:
        """Return the header's bytes."""
        raw = _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            MIN_READER_VERSION,
            0,
            self.identity.encode(),
            self.first_version,
            self.parent_version,
            self.parent_digest,
        )
        return raw + zlib.crc32(raw).to_bytes(4, "little")


class Position(NamedTuple):
    """A place in the changelog: just after a frame, `offset` bytes into the segment that starts at `segment`."""

    segment: int
    offset: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.segment:020d}:{self.offset:012d}"


def segment_name(first_version: int) -> str:
    """Return the file name of the segment that starts at this version."""
    return f"{first_version:020d}{SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """Return the first version that a file name names, or None when it is not a segment's name."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def list_segments(directory: Path) -> list[int]:
    """Return the first versions of the segments in a directory, in order; an absent directory has none."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(first for name in names if (first := parse_segment_name(name)) is not None)


def seed_of(header: bytes) -> int:
    """Return the seed of the checksums of all frames in the segment with this header: the header's own checksum.

    Not a crc over the whole header: a crc over data that ends with its own crc is the same number for all data.
    """
    return int.from_bytes(header[_HEADER.size : HEADER_BYTES], "little")


def decode_header(raw: bytes, path: object) -> SegmentHeader:
    """Read a segment's header.

    Raises ForeignFileError (not a segment), UnsupportedVersionError (a newer format), CorruptFrameError (damaged).
    """
    if raw[:8] != MAGIC[: len(raw[:8])] or len(raw) < 8:
        raise ForeignFileError(
            f"{path}: not a changelog segment: found {raw[:8]!r}, expected {MAGIC!r} (restore it from a backup)"
        )
    if len(raw) >= 12:
        version, min_reader = struct.unpack_from("<HH", raw, 8)
        if min_reader > FORMAT_VERSION and zlib.crc32(raw[: _HEADER.size]) == int.from_bytes(
            raw[_HEADER.size : HEADER_BYTES], "little"
        ):
            raise UnsupportedVersionError(
                f"{path}: segment format {version} needs a reader of version {min_reader}, this one reads "
                f"{FORMAT_VERSION} (upgrade hybridstore)"
            )
    if len(raw) < HEADER_BYTES:
        raise CorruptFrameError(
            path,
            0,
            f"segment header cut short: found {len(raw)} bytes, expected {HEADER_BYTES} (restore this file from a "
            "copy)",
        )
    stored = int.from_bytes(raw[_HEADER.size : HEADER_BYTES], "little")
    computed = zlib.crc32(raw[: _HEADER.size])
    if stored != computed:
        raise CorruptFrameError(
            path,
            0,
            f"segment header checksum mismatch: stored {stored:08x}, computed {computed:08x} (restore this file from a "
            "copy)",
        )
    _, _, _, flags, identity, first, parent, digest = _HEADER.unpack(raw[: _HEADER.size])
    if flags:
        raise UnsupportedVersionError(
            f"{path}: segment header flags: found {flags:#x}, expected 0 (upgrade hybridstore)"
        )
    return SegmentHeader(Identity.decode(identity), first, parent, digest)
