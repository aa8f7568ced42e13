"""Restore: newest sound checkpoint, then the changelog behind it, through the same `apply` as the live path.

    ladder     newest checkpoint + tail; if that is damaged, the previous one + a longer tail; then the changelog alone
    tail       versions after the checkpoint, each checked against the digest chain before any of it is applied
    end        a torn end of the newest segment is cut and reported; damage before committed data is an error

The report says everything that was done, skipped or cut. Nothing on disk is changed here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from changelog.errors import CorruptFrameError, HybridStoreError, UnsupportedVersionError
from changelog.files import REAL_FILES, Files
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST
from changelog.reader import Tail, Version
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage

from .apply import Host, Table, apply_version
from .attach import attach
from .checkpoint import CheckpointReader
from .errors import ChangelogGapError, CheckpointError, RestoreError
from .layout import CHANGELOG, CheckpointName, list_checkpoints
from .line import NEXT, Fault, Step, Walk, foreign, log_walk

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class RestoreReport:
    """The report of a restore. Sizes in bytes, times in seconds; `path` is the state directory.

    `version` and `digest` are those of the version reached; `checkpoint_version` is None when only the changelog was
    replayed; `tail_counts` has the replayed records by mutation code; `cut` is the torn end that was left out (None:
    there was none); `skipped` lists checkpoints that were not used, and why.

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
    attach_seconds: float = 0.0
    tail_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def belongs_to(self) -> Identity:
        """The identity of the state, once there is one."""
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
            f"{self.path}: version {self.version} restored in {self.seconds * 1000:.1f} ms: {base} attached in "
            f"{self.attach_seconds * 1000:.1f} ms, {self.tail_versions:,} versions ({self.tail_records:,} records) "
            f"replayed in {self.tail_seconds * 1000:.1f} ms"
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
    """The result of a restore: the report, where a writer continues, and the checkpoint in use."""

    report: RestoreReport
    resume: Resume
    checkpoint: CheckpointReader | None


Apply = Callable[[Version, Host, Table], None]
# A walk along the changelog behind a step: the step, its place if a checkpoint names one, the state's identity if it is
# known, and the last version to read (None: the newest).
Changelog = Callable[[Step, Position | None, Identity | None, int | None], Walk]


class _Rung:
    """One rung of the ladder: a checkpoint, or none, and the tail behind it."""

    def __init__(
        self,
        storage: Storage,
        changelog: Changelog,
        marks: bool,
        host: Host,
        report: RestoreReport,
        at: int | None,
        apply: Apply,
        identity: Identity | None,
    ) -> None:
        self._storage = storage
        self._changelog = changelog
        self._marks = marks
        self._host = host
        self._report = report
        self._at = at
        self._apply = apply
        self._identity = identity

    def attach(self, name: CheckpointName) -> CheckpointReader:
        report = self._report
        reader = CheckpointReader(self._storage, name, marks=self._marks)
        meta = reader.meta
        if meta.version != name.version:
            raise CheckpointError(f"{reader.where}: holds version {meta.version}, its name says {name.version}")
        if self._identity is not None and not self._identity.fits(meta.identity):
            raise foreign(reader.where, meta.identity, self._identity)
        attach(reader, self._host)
        report.version, report.digest, report.identity = meta.version, meta.digest, meta.identity
        report.checkpoint_version = meta.version
        report.checkpoint_records = meta.records
        report.checkpoint_bytes = reader.size
        return reader

    def replay(self, start: Position | None, progress: Progress | None) -> Resume:
        """Apply the versions behind the checkpoint, up to the requested one, and return where a writer continues."""
        report, at = self._report, self._at
        if start is not None and report.version == at:
            return Resume(None, b"", [], start)
        identity = report.identity or self._identity
        walk = self._changelog(Step(report.version, report.digest), start, identity, at)
        if at is None or report.version < at:
            self._fold(walk, progress)
        report.identity = walk.identity or report.identity
        report.cut = walk.cut
        if walk.reader is None or walk.position is None:
            return Resume(None, b"", walk.stale, None)
        ended = walk.ended is not None
        report.clean = ended and not walk.stale
        # The segment has only an end mark: a new segment would get the same name, so the writer continues in this
        # segment.
        if ended and walk.position.offset > len(walk.reader.raw_header):
            return Resume(None, b"", walk.stale, walk.position)
        return Resume(walk.position, walk.reader.raw_header, walk.stale, walk.position)

    def _fold(self, walk: Walk, progress: Progress | None) -> None:
        report, apply, host, table = self._report, self._apply, self._host, Table()
        counts = report.tail_counts
        shown = None if progress is None else _Shown(walk, progress)
        for item in walk:
            if isinstance(item, Fault):
                raise item.raised()
            apply(item, host, table)
            commit = item.commit
            for code, number in commit.records.items():
                counts[code] += number
            report.tail_bytes += item.size
            report.tail_versions += 1
            report.version, report.digest = commit.version, commit.digest
            if shown is not None:
                shown.at(item.position)
            if commit.version == self._at:
                return


class _Shown:
    """Reports how many bytes of the log were replayed."""

    def __init__(self, walk: Walk, progress: Progress) -> None:
        self._walk = walk
        self._progress = progress
        self._before: dict[int, int] = {}
        self._total = 0

    def at(self, position: Position) -> None:
        if not self._before:
            segments, start = self._walk.segments, self._walk.start
            self._total = -start.offset if start is not None and start.segment == segments[0].first else 0
            for segment in segments:
                self._before[segment.first] = self._total
                self._total += len(segment.content() or b"") if segment.data else segment.path.stat().st_size
        self._progress("changelog", self._before[position.segment] + position.offset, self._total)


def restore(
    path: Path,
    host: Host,
    *,
    at: int | None = None,
    progress: Progress | None = None,
    files: Files | None = None,
    apply: Apply = apply_version,
    identity: Identity | None = None,
) -> Reached:
    """Fill `host` with the newest version of the state directory `path`, or with version `at`.

    With `files`, a block that proves damaged when it is touched later marks its checkpoint, so that the next restore
    falls back to the checkpoint before; without `files` (for readers that may not write) the block only raises. `apply`
    applies each version. `identity` is what is known of the state at this place; files of another one are refused.

    Raises RestoreError and its kin (ChangelogGapError, DigestMismatchError), CorruptFrameError, ForeignFileError or
    UnsupportedVersionError when committed data would be lost or the files are not this state's; nothing on disk is
    changed. O(pages + tail).
    """

    def changelog(at: Step, start: Position | None, identity: Identity | None, _: int | None) -> Walk:
        return log_walk(path / CHANGELOG, at, start=start, identity=identity)

    storage = LocalStorage(path, files=files or REAL_FILES)
    marks = files is not None
    return restore_from(storage, changelog, host, at=at, progress=progress, marks=marks, apply=apply, identity=identity)


def restore_from(
    storage: Storage,
    changelog: Changelog,
    host: Host,
    *,
    at: int | None = None,
    progress: Progress | None = None,
    marks: bool = False,
    apply: Apply = apply_version,
    identity: Identity | None = None,
) -> Reached:
    """Do what `restore` does, with checkpoints of any storage and any changelog. `marks`: damage leaves a marker."""
    path = storage.url
    started = time.perf_counter()
    checkpoints = [name for name in list_checkpoints(storage) if at is None or name.version <= at]
    skipped: list[str] = []
    failures: list[HybridStoreError] = []
    passed_over = 0  # the newest version among the checkpoints that cannot be used
    for name in [*reversed(checkpoints), None]:
        report = RestoreReport(path, skipped=skipped)
        rung = _Rung(storage, changelog, marks, host, report, at, apply, identity)
        reader: CheckpointReader | None = None
        start: Position | None = None
        try:
            if name is not None:
                reader = rung.attach(name)
                start = reader.meta.position
            else:
                host.reset()
            report.attach_seconds = time.perf_counter() - started
            replaying = time.perf_counter()
            resume = rung.replay(start, progress)
            report.tail_seconds = time.perf_counter() - replaying
        except UnsupportedVersionError:
            raise
        except CheckpointError as error:
            if reader is not None:
                reader.close()
            # A damaged checkpoint is not needed: the checkpoint before it and a longer tail hold the same state.
            skipped.append(str(error))
            failures.append(error)
            passed_over = max(passed_over, 0 if name is None else name.version)
            continue
        except (ChangelogGapError, CorruptFrameError) as error:
            # Behind an older checkpoint, or none, a gap only means that the log was pruned: the cause is the newer
            # checkpoint.
            if failures:
                raise RestoreError(f"{path}: no way to restore: {'; '.join(map(str, [*failures, error]))}") from error
            raise
        if failures and report.version < passed_over:
            raise RestoreError(
                f"{path}: no way to restore: {'; '.join(map(str, failures))}; without it only version "
                f"{report.version} is reached ({NEXT})"
            )
        if at is not None and report.version != at:
            raise RestoreError(f"{path}: version {at} is not retained: the nearest below it is {report.version}")
        report.seconds = time.perf_counter() - started
        return Reached(report, resume, reader)
    raise AssertionError("unreachable")  # pragma: no cover
