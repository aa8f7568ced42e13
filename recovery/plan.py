"""Plan: what a restore of a state directory would do, found out without doing it: no store is built, nothing is changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from changelog.codec import unpack
from changelog.errors import HybridStoreError, UnsupportedVersionError
from changelog.mutation import DEFINE, SYSTEM, mutations
from changelog.reader import SegmentReader, Tail
from changelog.segment import Position, list_segments, segment_name

from .checkpoint import CheckpointReader, checkpoint_name, list_checkpoints
from .errors import ChangelogGapError
from .layout import CHANGELOG, CHECKPOINTS


@dataclass(slots=True)
class RestorePlan:
    """What a restore would do. Sizes in bytes, times in seconds; `path` is the state directory.

    `checkpoint_version` is None when the changelog alone would be replayed; `tail_counts` has the records behind the
    checkpoint by mutation code, `kinds` the kinds of the stores by number; `cut` is the torn end that would be left
    out; `skipped` lists checkpoints that would not be used, and why; `problem` says why the restore would be refused
    (None: it would not be). `seconds` is the estimate up to the first read, given by whoever knows the speed of this
    machine.
    """

    path: str
    version: int = 0
    checkpoint_version: int | None = None
    checkpoint_records: int = 0
    checkpoint_bytes: int = 0
    tail_versions: int = 0
    tail_bytes: int = 0
    tail_counts: Counter[int] = field(default_factory=Counter)
    kinds: dict[int, str] = field(default_factory=dict)
    cut: Tail | None = None
    skipped: list[str] = field(default_factory=list)
    problem: str | None = None
    seconds: float = 0.0

    @property
    def tail_records(self) -> int:
        """Records that would be replayed: those in batches are counted one by one."""
        return self.tail_counts.total()

    def summary(self) -> str:
        """Return one line for people."""
        base = (
            "no checkpoint"
            if self.checkpoint_version is None
            else f"checkpoint {self.checkpoint_version} ({self.checkpoint_records:,} records, {self.checkpoint_bytes:,} bytes)"
        )
        text = (
            f"{self.path}: version {self.version} would be restored in about {self.seconds * 1000:.0f} ms: {base}, "
            f"then {self.tail_versions:,} versions ({self.tail_records:,} records, {self.tail_bytes:,} bytes)"
        )
        if self.cut is not None:
            text += f"; would cut {self.cut.size} bytes at {self.cut.path}:{self.cut.offset} ({self.cut.reason})"
        for line in self.skipped:
            text += f"; would skip {line}"
        return text if self.problem is None else f"{self.path}: would be refused: {self.problem}"


def plan(path: Path) -> RestorePlan:
    """Return what a restore of `path` would do, also when it would be refused. Frames are checked, mutations not read,
    but for those of a version that defines stores. O(tail)."""
    made = RestorePlan(str(path))
    start: Position | None = None
    for version in reversed(list_checkpoints(path / CHECKPOINTS)):
        try:
            reader = CheckpointReader(path / CHECKPOINTS / checkpoint_name(version))
        except UnsupportedVersionError as error:
            made.problem = str(error)
            return made
        except HybridStoreError as error:
            made.skipped.append(str(error))
            continue
        meta = reader.meta
        made.version = made.checkpoint_version = meta.version
        made.checkpoint_records = meta.records
        made.checkpoint_bytes = reader.size
        made.kinds = {record.number: record.kind for record in meta.stores}
        start = meta.position
        reader.close()
        break
    try:
        _tail(path / CHANGELOG, start, made)
    except HybridStoreError as error:
        made.problem = "; ".join([*made.skipped, str(error)])
    return made


def _tail(directory: Path, start: Position | None, made: RestorePlan) -> None:
    segments = [first for first in list_segments(directory) if start is None or first >= start.segment]
    if start is not None and segments[:1] != [start.segment]:
        raise ChangelogGapError(
            f"{directory}: segment {segment_name(start.segment)} is missing, though a checkpoint refers to it"
        )
    for first in segments:
        reader = SegmentReader(directory / segment_name(first), last=first == segments[-1])
        made.cut = reader.tail
        if reader.torn_header:
            return
        inside = start if start is not None and first == start.segment else None
        if inside is None and reader.header.parent_version != made.version:
            raise ChangelogGapError(
                f"{reader.path}: continues version {reader.header.parent_version}, but version {made.version} was reached before it"
            )
        for version in reader.versions(inside):
            made.version = version.commit.version
            made.tail_versions += 1
            made.tail_counts.update(version.commit.records)
            if DEFINE in version.commit.records:
                made.kinds |= _defined(version.bodies)
            made.tail_bytes += sum(map(len, version.bodies))
        made.cut = reader.tail


def _defined(bodies: list[bytes]) -> dict[int, str]:
    """Return the kinds of the stores that a version defines, by number."""
    return {
        args[0]: args[2]
        for body in bodies
        for store, op, args in mutations(unpack(body))
        if (store, op) == (SYSTEM, DEFINE)
    }
