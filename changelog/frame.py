"""Frames: the checksummed units of a segment. Bytes to frames and back; no files. Layout: docs/format.md, "Frame".

    magic "hF" | kind u8 | reserved u8 | length u32 | sequence u32 | crc u32 | body (length bytes)

All little-endian. The crc is seeded with the checksum of the segment's header, so that a frame of another segment never
passes. A length of 0 is refused, so that a run of zeros is no frame.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, NamedTuple

from .codec import pack, unpack

MAGIC: Final = b"hF"
HEADER: Final = struct.Struct("<2sBBIII")
HEADER_BYTES: Final = HEADER.size
MUTATIONS: Final = 1
COMMIT: Final = 2
END: Final = 3
KINDS: Final = frozenset({MUTATIONS, COMMIT, END})
# A longer body is refused, so that a damaged length cannot make the reader allocate memory for it.
MAX_BODY_BYTES: Final = 1 << 30
_PREFIX: Final = struct.Struct("<2sBBII")


class Frame(NamedTuple):
    """One sound frame: its kind, its number in the segment, where it starts and ends (bytes), and its body."""

    kind: int
    sequence: int
    offset: int
    end: int
    body: bytes


class CommitFrame(NamedTuple):
    """The content of a commit or end frame.

    `records` counts by mutation code what the version's mutations hold (`mutation.records_of`), nothing in an end mark;
    `times` is the stream time of each store (ms) by its number; `extra` holds fields that this release does not know.
    """

    version: int
    digest: bytes
    records: dict[int, int]
    wall_ms: int
    times: dict[int, int]
    extra: dict[str, Any]


def encode(kind: int, sequence: int, body: bytes, seed: int) -> bytes:
    """Return the bytes of one frame. Raises ValueError for a body that no reader would take. O(len(body))."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a frame: found a body of {len(body):,} bytes, expected at most {MAX_BODY_BYTES:,}")
    prefix = _PREFIX.pack(MAGIC, kind, 0, len(body), sequence)
    crc = zlib.crc32(body, zlib.crc32(prefix, seed))
    return prefix + crc.to_bytes(4, "little") + body


def encode_commit(commit: CommitFrame) -> bytes:
    """Return the body of a commit or end frame."""
    return pack(
        {
            "version": commit.version,
            "digest": commit.digest,
            "records": commit.records,
            "wall_ms": commit.wall_ms,
            "times": commit.times,
            **commit.extra,
        }
    )


def decode_commit(body: bytes) -> CommitFrame:
    """Read the body of a commit or end frame. Raises ValueError when a field is missing or of the wrong type."""
    fields = unpack(body)
    if type(fields) is not dict:
        raise ValueError("a commit is not a map")
    try:
        commit = CommitFrame(
            fields.pop("version"),
            fields.pop("digest"),
            fields.pop("records"),
            fields.pop("wall_ms"),
            fields.pop("times"),
            fields,
        )
    except KeyError as error:
        raise ValueError(f"a commit lacks its {error.args[0]}") from error
    if (
        type(commit.version) is not int
        or commit.version < 0
        or type(commit.digest) is not bytes
        or len(commit.digest) != 16
        or type(commit.records) is not dict
        or not all(type(code) is type(count) is int and count >= 0 for code, count in commit.records.items())
        or type(commit.wall_ms) is not int
        or type(commit.times) is not dict
    ):
        raise ValueError("a commit has a field of the wrong type")
    return commit


def problem(header: bytes, body: bytes, sequence: int | None, seed: int) -> str | None:
    """Return the fault of a frame as text, or None when the frame is sound. `sequence` None accepts any number."""
    if len(header) < HEADER_BYTES:
        return f"frame header cut short: found {len(header)} bytes, expected {HEADER_BYTES}"
    magic, kind, reserved, length, number, crc = HEADER.unpack(header)
    if magic != MAGIC:
        return f"frame magic: found {magic.hex()}, expected {MAGIC.hex()}"
    if kind not in KINDS or reserved != 0:
        return f"frame kind {kind} with reserved byte {reserved} is unknown"
    if length == 0 or length > MAX_BODY_BYTES:
        return f"frame length {length} is not possible"
    if sequence is not None and number != sequence:
        return f"frame sequence: found {number}, expected {sequence}"
    if len(body) < length:
        return f"frame body cut short: found {len(body)} bytes, expected {length}"
    computed = zlib.crc32(body, zlib.crc32(header[:-4], seed))
    if computed != crc:
        return f"checksum mismatch: stored {crc:08x}, computed {computed:08x}"
    return None
