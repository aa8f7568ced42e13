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
from typing import Final, NamedTuple

from changelog.errors import (
    CorruptFrameError,
    ForeignFileError,
    HybridStoreError,
    UnsupportedVersionError,
)
from changelog.files import Files
from changelog.frame import Commit
from changelog.journal import EMPTY_DIGEST, chain
from changelog.reader import SegmentReader, Tail, Version
from changelog.segment import Position, list_segments, segment_name

from .apply import Host, Table, apply_version
from .attach import attach
from .checkpoint import CheckpointReader, checkpoint_name, list_checkpoints
from .errors import ChangelogGapError, CheckpointError, DigestMismatchError, RestoreError
from .layout import CHANGELOG, CHECKPOINTS

Progress = Callable[[str, int, int], None]

# What to do when committed data would be lost, or when files do not belong together.
_NEXT: Final = (
    "restore what is missing from a copy, or make a directory of what can be read with `hybridstore inspect repair`"
)
_MIXED: Final = "put back this state's own file from a copy"


@dataclass(slots=True)
class RestoreReport:
    """What a restore did. Sizes in bytes, times in seconds; `path` is the state directory.

    `version` and `digest` are what was reached; `checkpoint_version` is None when the changelog alone was replayed;
    `tail_counts` has the records that were replayed by mutation code; `cut` is the torn end that was left out (None:
    there was none); `skipped` lists checkpoints that were not used, and why.
    """

    path: str
    version: int = 0
    digest: bytes = EMPTY_DIGEST
    store_id: bytes = bytes(16)
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
    def tail_records(self) -> int:
        """Records that were replayed: those in batches are counted one by one."""
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
            f"{self.path}: version {self.version} restored in {self.seconds * 1000:.1f} ms: {base} attached in {self.attach_seconds * 1000:.1f} ms, "
            f"{self.tail_versions:,} versions ({self.tail_records:,} records) replayed in "
            f"{self.tail_seconds * 1000:.1f} ms"
        )
        if self.cut is not None:
            text += f"; cut {self.cut.size} bytes at {self.cut.path}:{self.cut.offset} ({self.cut.reason})"
        for line in self.skipped:
            text += f"; skipped {line}"
        return text


class Resume(NamedTuple):
    """Where a writer goes on: a position and its segment's raw header, or None to begin a new segment; files to remove first.

    `reached` is the end of the newest version in the changelog, whatever the writer does: a checkpoint refers to it.
    """

    position: Position | None
    header: bytes
    stale: list[Path]
    reached: Position | None


class Reached(NamedTuple):
    """The result of a restore: the report, where to go on, and the checkpoint in use."""

    report: RestoreReport
    resume: Resume
    checkpoint: CheckpointReader | None


class _Reach:
    """One rung of the ladder: a checkpoint, or none, and the tail behind it."""

    def __init__(
        self,
        path: Path,
        host: Host,
        report: RestoreReport,
        at: int | None,
        progress: Progress | None,
        files: Files | None,
    ) -> None:
        self._path = path
        self._files = files
        self._host = host
        self._report = report
        self._at = at
        self._progress = progress
        self._table: Table = {}

    def attach(self, version: int) -> CheckpointReader:
        report = self._report
        reader = CheckpointReader(self._path / CHECKPOINTS / checkpoint_name(version), files=self._files)
        meta = reader.meta
        if meta.version != version:
            raise CheckpointError(f"{reader.path}: holds version {meta.version}, its name says {version}")
        attach(reader, self._host)
        report.version, report.digest, report.store_id = meta.version, meta.digest, meta.store_id
        report.checkpoint_version = version
        report.checkpoint_records = meta.records
        report.checkpoint_bytes = reader.size
        return reader

    def replay(self, start: Position | None) -> Resume:
        report = self._report
        directory = self._path / CHANGELOG
        if start is not None and report.version == self._at:
            return Resume(None, b"", [], start)
        segments = list_segments(directory)
        if start is not None:
            segments = [first for first in segments if first >= start.segment]
            if not segments:
                raise ChangelogGapError(
                    f"{directory}: segment {segment_name(start.segment)} is missing, though checkpoint {report.version} refers to it "
                    f"({_NEXT}; at={report.version} opens the checkpoint)"
                )
        if not segments:
            return Resume(None, b"", [], None)
        sizes = {first: (directory / segment_name(first)).stat().st_size for first in segments}
        if start is not None and segments[0] == start.segment and sizes[start.segment] < start.offset:
            raise CorruptFrameError(
                directory / segment_name(start.segment),
                sizes[start.segment],
                f"the file was cut short: checkpoint {report.version} refers to byte {start.offset}, and what was committed after it may be lost "
                f"(restore this file from a copy, or open the state with at={report.version})",
            )
        skipped = start.offset if start is not None and segments[0] == start.segment else 0
        total, done = sum(sizes.values()) - skipped, -skipped
        resume = Resume(None, b"", [], None)
        for first in segments:
            if self._at is not None and report.version >= self._at:
                return resume
            reader = SegmentReader(directory / segment_name(first), last=first == segments[-1])
            if reader.torn_header:
                report.cut = reader.tail
                return resume._replace(stale=[reader.path])
            inside = start if start is not None and first == start.segment else None
            if inside is None:
                self._continues(reader)
            elif reader.header.store_id != report.store_id:
                raise ForeignFileError(
                    f"{reader.path}: belongs to store {reader.header.store_id.hex()}, the checkpoint to {report.store_id.hex()} ({_MIXED})"
                )
            position = inside or Position(first, len(reader.raw_header), 0)
            for version in reader.versions(inside):
                if self._at is not None and report.version >= self._at:
                    return resume
                self._apply(version, reader.path)
                position = version.position
                if self._progress is not None:
                    self._progress("changelog", done + position.offset, total)
            if reader.ended is not None:
                self._check_end(reader.ended, reader.path)
                report.clean = first == segments[-1]
                resume = Resume(None, b"", [], position)
                if position.offset == len(reader.raw_header):
                    # Nothing but the end mark: a new segment would have this one's name, so this one is gone on with.
                    resume = Resume(position, reader.raw_header, [], position)
            else:
                resume = Resume(position, reader.raw_header, [], position)
            if first == segments[-1]:
                report.cut = reader.tail
            done += sizes[first]
        return resume

    def _continues(self, reader: SegmentReader) -> None:
        report, header = self._report, reader.header
        if report.version == 0 and report.checkpoint_version is None and header.parent_version == 0:
            report.store_id = header.store_id
        elif header.store_id != report.store_id and any(report.store_id):
            raise ForeignFileError(
                f"{reader.path}: belongs to store {header.store_id.hex()}, this state is {report.store_id.hex()} ({_MIXED})"
            )
        if header.parent_version > report.version:
            first, last = report.version + 1, header.parent_version
            missing = f"version {first} is" if first == last else f"versions {first} to {last} are"
            reached = f"; at={report.version} opens what is before" if report.version else ""
            raise ChangelogGapError(f"{reader.path}: {missing} missing before it ({_NEXT}{reached})")
        if header.parent_version < report.version:
            raise ChangelogGapError(
                f"{reader.path}: continues version {header.parent_version}, but version {report.version} was reached before it ({_MIXED})"
            )
        if header.parent_digest != report.digest:
            raise DigestMismatchError(
                f"{reader.path}: continues version {header.parent_version} with digest {header.parent_digest.hex()}, "
                f"the version before it has digest {report.digest.hex()} (it belongs to another line of this store: {_MIXED})"
            )

    def _apply(self, version: Version, path: Path) -> None:
        report, commit = self._report, version.commit
        if commit.version != report.version + 1:
            raise ChangelogGapError(f"{path}: version {commit.version} follows version {report.version} ({_NEXT})")
        digest = chain(report.digest, version.bodies)
        if digest != commit.digest:
            raise DigestMismatchError(
                f"{path}: version {commit.version} has digest {commit.digest.hex()}, its mutations after version {report.version} give {digest.hex()} "
                f"(the changelog has a hole or belongs to another line: {_NEXT})"
            )
        apply_version(version, self._host, self._table)
        report.tail_counts.update(commit.records)
        report.tail_bytes += sum(map(len, version.bodies))
        report.tail_versions += 1
        report.version, report.digest = commit.version, commit.digest

    def _check_end(self, ended: Commit, path: Path) -> None:
        if (ended.version, ended.digest) != (self._report.version, self._report.digest):
            raise DigestMismatchError(
                f"{path}: was closed at version {ended.version} ({ended.digest.hex()}), but version {self._report.version} was reached ({_NEXT})"
            )


def restore(
    path: Path,
    host: Host,
    *,
    at: int | None = None,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Reached:
    """Fill `host` with the newest version under `path`, or with version `at`.

    With `files`, a block that proves to be damaged when it is touched later marks its checkpoint, so that the next restore
    falls back to the one before; without (for readers that may not write), it only raises.

    Raises RestoreError and its kin (ChangelogGapError, DigestMismatchError), CorruptFrameError, ForeignFileError or
    UnsupportedVersionError when committed data would be lost or is not ours; nothing on disk is changed. O(blocks + tail).
    """
    started = time.perf_counter()
    checkpoints = [version for version in list_checkpoints(path / CHECKPOINTS) if at is None or version <= at]
    skipped: list[str] = []
    failures: list[HybridStoreError] = []
    for version in [*reversed(checkpoints), None]:
        report = RestoreReport(str(path), skipped=skipped)
        rung = _Reach(path, host, report, at, progress, files)
        reader: CheckpointReader | None = None
        start: Position | None = None
        try:
            if version is not None:
                reader = rung.attach(version)
                start = reader.meta.position
            else:
                host.reset()
            report.attach_seconds = time.perf_counter() - started
            replaying = time.perf_counter()
            resume = rung.replay(start)
            report.tail_seconds = time.perf_counter() - replaying
        except UnsupportedVersionError:
            raise
        except CheckpointError as error:
            if reader is not None:
                reader.close()
            # A damaged checkpoint is disposable: the one before it and a longer tail hold the same state.
            skipped.append(str(error))
            failures.append(error)
            continue
        except (ChangelogGapError, CorruptFrameError) as error:
            # Behind an older checkpoint, or none, a gap only says that the log was pruned: the real failure is the newer checkpoint's.
            if failures:
                raise RestoreError(f"{path}: no way to restore: {'; '.join(map(str, [*failures, error]))}") from error
            raise
        if at is not None and report.version != at:
            raise RestoreError(f"{path}: version {at} is not retained: the nearest below it is {report.version}")
        report.seconds = time.perf_counter() - started
        return Reached(report, resume, reader)
    raise AssertionError("unreachable")  # pragma: no cover
