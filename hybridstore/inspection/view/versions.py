"""Versions: the commits that a place holds, and which one `--at` means.

Only commit frames are read: frames of mutations are passed over by their headers, unchecked, because a large changelog would
take seconds to list. What is in them is checked when it is applied, and by `verify`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from changelog.errors import HybridStoreError, UnsupportedVersionError
from changelog.frame import COMMIT, HEADER, HEADER_BYTES, KINDS, MAGIC, MUTATIONS, decode_commit, problem
from changelog.reader import SegmentReader
from changelog.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from changelog.segment import Position, list_segments, segment_name
from recovery.checkpoint import list_checkpoints
from recovery.layout import CHANGELOG, CHECKPOINTS

from ...shard_head import HEAD_NAME, read_head
from ..options import UsageError, parse_time
from .places import Place
from .reader import line, open_view, steadily


class Commit(NamedTuple):
    """One version in the changelog: when it was committed (ms), its segment, packed bytes, digest, stream times by
    store number, records by mutation code."""

    version: int
    wall_ms: int
    segment: int
    size: int
    digest: bytes
    times: dict[int, int]
    records: dict[int, int]


class Reach(NamedTuple):
    """Which versions can be opened: commits in order, checkpoint versions, the oldest version within reach, and what hinders."""

    commits: list[Commit]
    checkpoints: list[int]
    oldest: int
    faults: list[str]


def reach(place: Place) -> Reach:
    """Return the versions of a place. Raises OSError or HybridStoreError when nothing can be read. O(bytes of the changelog)."""
    return steadily(place, lambda: _reach(place), lambda found: bool(found.faults))


def _reach(place: Place) -> Reach:
    if place.form == "checkpoint":
        view = open_view(place)
        return Reach([], [view.version], view.version, [])
    commits: list[Commit] = []
    faults: list[str] = []
    if place.form == "segment":
        readers = [SegmentReader(place.path, last=True)]
    else:
        head = read_head(place.path / HEAD_NAME)
        log_line = line(place.path / CHANGELOG, None if head is None else head.tip.version, -1, shard=head is not None)
        faults = log_line.faults
        readers = [link.reader for link in log_line.links]
    parent = -1
    for reader in readers:
        if reader.torn_header:
            continue
        if not commits:
            parent = reader.header.parent_version
        try:
            commits += commits_of(reader)
        except UnsupportedVersionError:
            raise
        except HybridStoreError as error:
            faults.append(str(error))
    checkpoints = list_checkpoints(place.path / CHECKPOINTS) if place.form == "directory" else []
    # Below the oldest checkpoint the log counts only if it goes back to the beginning.
    oldest = 1 if parent == 0 and commits else min(checkpoints, default=parent + 1)
    return Reach(commits, checkpoints, oldest, faults)


def commits_of(reader: SegmentReader) -> Iterator[Commit]:
    """Yield the commits of a segment, reading little else. Sets `tail` and `ended` of the reader, and raises, as its `versions` do.

    O(frames); damage inside of a frame of mutations goes unnoticed.
    """
    segment = reader.header.first_version
    start = Position(segment, SEGMENT_HEADER_BYTES, 0)
    offset, sequence, size = start.offset, 0, 0
    fd = os.open(reader.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = os.fstat(fd).st_size
        while len(header := os.pread(fd, HEADER_BYTES, offset)) == HEADER_BYTES:
            magic, kind, _, length, number, _ = HEADER.unpack(header)
            after = offset + HEADER_BYTES + length
            if magic != MAGIC or kind not in KINDS or number != sequence or after > end or not length:
                break
            if kind == MUTATIONS:
                size += length
            elif kind == COMMIT:
                body = os.pread(fd, length, offset + HEADER_BYTES)
                if problem(header, body, sequence, reader.seed) is not None:
                    break
                try:
                    commit = decode_commit(body)
                except ValueError:
                    break
                yield Commit(commit.version, commit.wall_ms, segment, size, commit.digest, commit.times, commit.records)
                start, size = Position(segment, after, sequence + 1), 0
            else:
                break
            offset, sequence = after, sequence + 1
    finally:
        os.close(fd)
    # What is left is the end of the segment, whatever it is: the reader knows what it means.
    for version in reader.versions(start):
        commit = version.commit
        bytes_ = sum(map(len, version.bodies))
        yield Commit(commit.version, commit.wall_ms, segment, bytes_, commit.digest, commit.times, commit.records)


def choose(place: Place, at: str | None) -> int | None:
    """Return the version that `--at` means for a place; None for the newest. Raises UsageError."""
    if at is None:
        return None
    if at.isdecimal():
        return int(at)
    moment = parse_time(at)
    found = reach(place)
    before = [commit.version for commit in found.commits if commit.wall_ms <= moment]
    if before:
        return max(before)
    for version in reversed(found.checkpoints):
        view = open_view(place, version)
        if view.wall_ms is not None and view.wall_ms <= moment:
            return version
    raise UsageError(f"{place.path}: nothing that is retained was committed by {at}")


def segments(place: Place) -> Iterator[tuple[SegmentReader, int]]:
    """Yield (reader, bytes) of every segment, oldest first. Raises as `SegmentReader`; segments that vanish are passed over."""
    if place.form == "segment":
        yield SegmentReader(place.path, last=True), place.path.stat().st_size
        return
    folder = place.path / CHANGELOG
    names = list_segments(folder)
    for first in names:
        path = folder / segment_name(first)
        try:
            yield SegmentReader(path, last=first == names[-1] or bool(place.label)), path.stat().st_size
        except FileNotFoundError:
            continue
