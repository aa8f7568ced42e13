"""Segments: their names, and a header that ties a file to one store, one place and one format."""

import re
import struct
import zlib
from pathlib import Path

import pytest

from changelog.errors import CorruptFrameError, ForeignFileError, UnsupportedVersionError
from changelog.identity import Identity
from changelog.segment import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    Position,
    SegmentHeader,
    decode_header,
    list_segments,
    parse_segment_name,
    seed_of,
    segment_name,
)

HEADER = SegmentHeader(Identity(bytes(range(16))), 42, 41, bytes(range(16, 32)))


def with_checksum(raw: bytes) -> bytes:
    return raw + zlib.crc32(raw).to_bytes(4, "little")


@pytest.mark.parametrize("version", [0, 1, 42, 2**64 - 1])
def test_a_name_is_parsed_as_it_was_made(version: int) -> None:
    assert parse_segment_name(segment_name(version)) == version


@pytest.mark.parametrize(
    "name",
    ["", "1.log", "0000000000000000001.log", "000000000000000000001.log", "00000000000000000001.logs",
     "00000000000000000001.lmdb",
     "0000000000000000000x.log", "-0000000000000000001.log", ".00000000000000000001.log", "00000000000000000001.log\n"],
)  # fmt: skip
def test_near_misses_are_not_names(name: str) -> None:
    assert parse_segment_name(name) is None


def test_names_sort_as_versions_do() -> None:
    versions = [1, 9, 10, 99, 100, 2**40]
    assert sorted(map(segment_name, versions)) == [segment_name(version) for version in versions]


def test_other_files_are_not_listed(tmp_path: Path) -> None:
    for name in (segment_name(10), segment_name(9), "notes.txt", segment_name(3) + ".bak"):
        (tmp_path / name).touch()
    assert list_segments(tmp_path) == [9, 10]
    assert list_segments(tmp_path / "absent") == []


def test_a_header_comes_back() -> None:
    raw = HEADER.encode()
    assert len(raw) == HEADER_BYTES
    assert decode_header(raw, "x.log") == HEADER


def test_every_flipped_bit_of_a_header_is_an_error() -> None:
    for at in range(HEADER_BYTES):
        for bit in range(8):
            raw = bytearray(HEADER.encode())
            raw[at] ^= 1 << bit
            with pytest.raises((CorruptFrameError, ForeignFileError)):
                decode_header(bytes(raw), "x.log")


def test_a_short_header_says_how_short() -> None:
    with pytest.raises(CorruptFrameError, match="header cut short: found 40 bytes, expected 80"):
        decode_header(HEADER.encode()[:40], "x.log")


def test_foreign_magic_is_a_foreign_file() -> None:
    for raw in (b"PK\x03\x04" + bytes(64), MAGIC[:7], b""):
        with pytest.raises(
            ForeignFileError, match=rf"x\.log: not a changelog segment: found {re.escape(repr(raw[:8]))}"
        ):
            decode_header(raw, "x.log")


@pytest.mark.parametrize("longer", [0, 8])
def test_a_newer_format_is_named_whatever_it_holds(longer: int) -> None:
    raw = struct.pack("<8sHHI60s", MAGIC, 9, FORMAT_VERSION + 1, 1, bytes(60))
    with pytest.raises(
        UnsupportedVersionError, match=r"x\.log: segment format 9 needs a reader of version 2, this one reads 1"
    ):
        decode_header(with_checksum(raw) + bytes(longer), "x.log")


def test_a_newer_format_that_we_may_read_is_read() -> None:
    raw = bytearray(HEADER.encode()[:-4])
    raw[8] = 9
    assert decode_header(with_checksum(bytes(raw)), "x.log") == HEADER


def test_unknown_flags_are_refused() -> None:
    raw = bytearray(HEADER.encode()[:-4])
    raw[12] = 2
    with pytest.raises(UnsupportedVersionError, match="segment header flags: found 0x2, expected 0"):
        decode_header(with_checksum(bytes(raw)), "x.log")


def test_segments_differ_in_the_seed_of_their_frames() -> None:
    seeds = {seed_of(HEADER._replace(first_version=version).encode()) for version in range(100)}
    seeds |= {seed_of(HEADER._replace(identity=Identity(bytes([number] * 16))).encode()) for number in range(100)}
    assert len(seeds) == 200


def test_positions_sort_as_text() -> None:
    positions = [Position(1, 80, 0), Position(1, 1000, 3), Position(20, 80, 0)]
    assert sorted(map(str, positions)) == [str(position) for position in positions]
