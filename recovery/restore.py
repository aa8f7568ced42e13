"""Restore: a plain state, opened by the ladder, with a report of everything that was done, skipped or cut.

    tail       versions after the checkpoint, each checked against the digest chain before any of it is applied
    end        a torn end of the newest segment is cut and reported; damage before committed data is an error

Nothing on disk is changed here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from changelog.errors import CorruptFrameError
from changelog.files import Files
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST
from changelog.reader import LoggedVersion, Tail
from changelog.segment import Position

from .apply import Host, apply_version
from .checkpoint import CheckpointReader
from .errors import ChangelogGapError, RestoreError
from .ladder import Apply, Climbed, DirectoryLine, Enough, PlainLine, climb, never
from .layout import list_checkpoints
from .line import NEXT, Walk

Progress = Callable[[str, int, int], None]


@dataclass(slots=True, repr=False)
class RestoreReport:
    """The report of a restore. Sizes in bytes, times in ms; `path` is the state directory.

    `version` and `digest` are those of the version reached; `checkpoint_version` is None when only the changelog was
    replayed; `tail_counts` has the replayed records by mutation code; `cut` is the torn end that was left out (None:
    no torn end); `skipped` lists checkpoints that were not used, and why.

    >>> state = hs.open("state")
    >>> print(state.restore_report.summary())
    state: created
    """

    path: str
    version: int = 0
    digest: bytes = EMPTY_DIGEST
    identity: Identity | None = None
    created: bool = False
    checkpoint_version: int | None = None
    checkpoint_records: int = 0
    checkpoint_bytes: int = 0
    tail_versions: int = 0
    tail_bytes: int = 0
    tail_counts: Counter[int] = field(default_factory=Counter)
    cut: Tail | None = None
    skipped: list[str] = field(default_factory=list)
    clean: bool = False
    attach_ms: float = 0.0
    tail_ms: float = 0.0
    duration_ms: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.summary()}>"

    @property
    def belongs_to(self) -> Identity:
        """The identity of the state, once it is known."""
        assert self.identity is not None
        return self.identity

    @property
    def tail_records(self) -> int:
        """Replayed records; each record of a batch counts."""
        return self.tail_counts.total()

    def summary(self) -> str:
        """Return one line for people."""
        if self.created:
            return f"{self.path}: created"
        base = (
            "no checkpoint"
            if self.checkpoint_version is None
            else f"checkpoint {self.checkpoint_version} ({self.checkpoint_records:,} records)"
        )
        text = (
            f"{self.path}: version {self.version} restored in {self.duration_ms:.1f} ms: {base} attached in "
            f"{self.attach_ms:.1f} ms, {self.tail_versions:,} versions ({self.tail_records:,} records) "
            f"replayed in {self.tail_ms:.1f} ms"
        )
        if self.cut is not None:
            text += f"; cut {self.cut.size} bytes at {self.cut.path}:{self.cut.offset} ({self.cut.reason})"
        for line in self.skipped:
            text += f"; skipped {line}"
        return text


class Resume(NamedTuple):
    """Where a writer continues: a position and its segment's raw header, or None to begin a new segment; files to
    remove first.

    `reached` is the end of the newest version in the changelog, whatever the writer does: a checkpoint refers to it.
    """

    position: Position | None
    header: bytes
    stale: list[Path]
    reached: Position | None


class Reached(NamedTuple):
    """The result of a restore: the report, where a writer continues, and the checkpoint in use; `whole` is False where
    a piece of the tail was enough: a writer cannot continue there.
    """

    report: RestoreReport
    resume: Resume
    checkpoint: CheckpointReader | None
    whole: bool = True


class _Recorder:
    """Writes the report of a climb, which begins again with each checkpoint, and shows how many bytes were replayed."""

    def __init__(self, line: PlainLine, progress: Progress | None) -> None:
        self.report = RestoreReport(line.storage.url)
        self._line = line
        self._progress = progress
        self._begun = self._attached = time.perf_counter()
        self._before: dict[int, int] = {}
        self._total = 0

    def began(self, reader: CheckpointReader | None) -> None:
        """The stores are those of a checkpoint, or empty."""
        self.report = report = RestoreReport(self.report.path)
        self._before = {}
        if reader is not None:
            meta = reader.meta
            report.version, report.digest, report.identity = meta.version, meta.digest, meta.identity
            report.checkpoint_version = meta.version
            report.checkpoint_records = meta.records
            report.checkpoint_bytes = reader.size
        self._attached = time.perf_counter()
        report.attach_ms = (self._attached - self._begun) * 1000

    def applied(self, version: LoggedVersion) -> None:
        """A version was applied."""
        report, commit = self.report, version.commit
        for code, number in commit.records.items():
            report.tail_counts[code] += number
        report.tail_bytes += version.size
        report.tail_versions += 1
        report.version, report.digest = commit.version, commit.digest
        if self._progress is not None and self._line.walk is not None:
            self._show(self._progress, self._line.walk, version.position)

    def _show(self, progress: Progress, walk: Walk, position: Position) -> None:
        if not self._before:
            segments, start = walk.segments, walk.start
            self._total = -start.offset if start is not None and start.segment == segments[0].first else 0
            for segment in segments:
                self._before[segment.first] = self._total
                self._total += len(segment.content() or b"") if segment.data else segment.path.stat().st_size
        progress("changelog", self._before[position.segment] + position.offset, self._total)

    def ended(self, climbed: Climbed) -> RestoreReport:
        """Return the report."""
        report, walk, now = self.report, self._line.walk, time.perf_counter()
        report.tail_ms, report.duration_ms = (now - self._attached) * 1000, (now - self._begun) * 1000
        report.skipped = [str(error) for _, error in climbed.skipped]
        if walk is not None:
            report.identity = walk.identity or report.identity
            report.cut = walk.cut
            report.clean = walk.ended is not None and not walk.stale
        return report


def restore(
    path: Path,
    host: Host,
    *,
    at: int | None = None,
    progress: Progress | None = None,
    files: Files | None = None,
    apply: Apply = apply_version,
    identity: Identity | None = None,
    enough: Enough = never,
) -> Reached:
    """Fill `host` with the newest version of the state directory `path`, or with version `at`.

    `files` and `enough` as in `DirectoryLine`. `apply` applies each version. `identity` is what is known of the state
    at this place; files of another one are refused.

    Raises RestoreError and its kin (ChangelogGapError, DigestMismatchError), CorruptFrameError, ForeignFileError or
    UnsupportedVersionError when committed data would be lost or the files are not this state's; nothing on disk is
    changed. O(pages + tail).
    """
    line = DirectoryLine(path, at=at, identity=identity, files=files, enough=enough)
    return restore_line(line, host, progress=progress, apply=apply)


def restore_line(
    line: PlainLine, host: Host, *, progress: Progress | None = None, apply: Apply = apply_version
) -> Reached:
    """Do what `restore` does, for any line of a plain state."""
    recorder = _Recorder(line, progress)
    climbed = climb(line, host, apply=apply, began=recorder.began, applied=recorder.applied)
    report, path = recorder.ended(climbed), line.storage.url
    failures = "; ".join(report.skipped)
    if climbed.fault is not None:
        error = climbed.fault.raised()
        # Behind an older checkpoint, or none, a gap only means that the log was pruned: the cause is the newer
        # checkpoint.
        if failures and isinstance(error, (ChangelogGapError, CorruptFrameError)):
            raise RestoreError(f"{path}: no way to restore: {failures}; {error}") from error
        # Below the oldest checkpoint a gap only means that the log was pruned.
        gap = isinstance(error, ChangelogGapError) and climbed.reader is None
        if line.at is None or not gap or not list_checkpoints(line.storage):
            raise error
    whole = line.reached is None
    if whole and report.version < max((name.version for name, _ in climbed.skipped), default=0):
        raise RestoreError(
            f"{path}: no way to restore: {failures}; without it only version {report.version} is reached ({NEXT})"
        )
    if line.at is not None and report.version != line.at:
        oldest = 0 if report.version else min((name.version for name in list_checkpoints(line.storage)), default=0)
        there = f"the oldest is {oldest}" if oldest else f"the nearest below it is {report.version}"
        raise RestoreError(f"{path}: version {line.at} is not retained: {there}")
    return Reached(report, _resume(line), climbed.reader, whole)


def _resume(line: PlainLine) -> Resume:
    """Return where a writer continues behind the last version of a line."""
    walk = line.walk
    if walk is None or line.reached is not None:
        return Resume(None, b"", [], line.reached or line.start)
    if walk.reader is None or walk.position is None:
        return Resume(None, b"", walk.stale, None)
    # A segment that has only an end mark is continued: a new segment would get the same name.
    if walk.ended is not None and walk.position.offset > len(walk.reader.raw_header):
        return Resume(None, b"", walk.stale, walk.position)
    return Resume(walk.position, walk.reader.raw_header, walk.stale, walk.position)
