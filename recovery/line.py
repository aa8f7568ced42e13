"""Line: the versions of one state, each named by its number and digest, each the child of the one before it.

    LOG     a plain store: segments of many versions, one after the other; the newest may end torn
    SHARD   a Spark shard: one whole segment per version; versions may be absent between segments

`Walk` is the only code that reads a line from version to version. Damaged content raises nothing: the walk yields a
`Fault` and continues behind the damage where possible. The caller decides: a restore raises the first fault, verify
lists all faults, an inspection shows the version before the first fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from changelog.errors import CorruptFrameError, ForeignFileError, HybridStoreError
from changelog.frame import CommitFrame
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST, chain
from changelog.reader import LoggedVersion, SegmentReader, Tail
from changelog.segment import HEADER_BYTES, Position, list_segments, segment_name

from .errors import ChangelogGapError, DigestMismatchError, RestoreError
from .layout import LOG, parse_log_name

# The next action when committed data would be lost, or when files do not belong together.
NEXT: Final = (
    "restore what is missing from a copy, or make a directory of what can be read with `hybridstore inspect repair`"
)
MIXED: Final = "put back this state's own file from a copy"
# The field of a commit by which an owner claimed the state: a version without mutations.
CLAIM: Final = "claim"

# Where the fields of a segment's header are (docs/format.md, "Segment").
_IDENTITY_AT: Final = 16
_PARENT_AT: Final = 52
_PARENT_DIGEST_AT: Final = 60


class Step(NamedTuple):
    """A version on a line: its number and its digest; (0, zeros) is the empty state."""

    version: int
    digest: bytes


EMPTY: Final = Step(0, EMPTY_DIGEST)


class SegmentShape(Enum):
    """How versions lie in segments; see the module."""

    LOG = "log"
    SHARD = "shard"


class Segment(NamedTuple):
    """One segment of a line: its file, the first version that its name says, and, in a shard, the step that it
    must hold.

    `data` is the content of a segment that is not a local file, or a function that returns the content when the walk
    arrives.
    """

    path: Path
    first: int
    step: Step | None = None
    data: bytes | Callable[[], bytes] | None = None

    def content(self) -> bytes | None:
        """Return the content, None for a local file. Raises OSError when the content has to be read."""
        return self.data() if callable(self.data) else self.data


class Fault(NamedTuple):
    """One fault: the file, the byte in the file if it is known, a description, and the error that a reader raised."""

    file: str
    offset: int | None
    what: str
    error: HybridStoreError | OSError | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.what}" if self.offset is None else f"{self.file} at byte {self.offset}: {self.what}"

    def raised(self) -> Exception:
        """Return the error to raise for this fault."""
        return self.error or RestoreError(str(self))

    @classmethod
    def of(cls, error: HybridStoreError | OSError, path: Path, offset: int | None = None) -> Fault:
        """Return the fault that an error about a file describes."""
        if isinstance(error, CorruptFrameError):
            return cls(error.path, error.offset, error.reason, error)
        text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error).removeprefix(f"{path}: ")
        return cls(str(path), offset, text, error)


def foreign(where: object, identity: Identity, expected: Identity) -> ForeignFileError:
    """Return the error for a file that belongs to another state, shard or query than its place."""
    return ForeignFileError(f"{where}: belongs to {identity}, its place to {expected} ({MIXED})")


def log_segments(changelog: Path, start: Position | None = None) -> list[Segment]:
    """Return the segments of a plain store, oldest first, from the one that `start` is in. O(files).

    If no segment is as new as `start`, the list has only the missing segment, so that a walk reports it as missing;
    but none if `start` is before all of its bytes, as where shards or an erase have begun a log on an object store.
    """
    firsts = list_segments(changelog)
    if start is not None:
        firsts = [first for first in firsts if first >= start.segment] or ([start.segment] if start.offset else [])
    return [Segment(changelog / segment_name(first), first) for first in firsts]


class Walk:
    """One pass along a line, oldest version first: iterate over it for `Version | Fault`, once.

    at         the step behind which the walk begins; None: the step that the first segment continues
    start      where in the log that step ends, if a checkpoint says so: the walk begins there
    identity   what all segments must say they belong to; None, or what is not known of it: what the first one says
    skim       read commits only: frames of mutations are passed over unchecked, versions have no bodies
    whole      segments are whole or absent, so that a torn end is damage

    A version is yielded only if it continues the version before it: number, digest, store and segment. Behind a fault
    the walk continues with the next complete version and accepts its parent.

    During the walk, `step` is the version reached (None: behind a fault, unknown), `position` its end, `reader` the
    segment's reader. At the end `cut` is the torn end of the newest segment, `ended` the end mark of the last, `stale`
    the segment that died at its birth, `sizes` the bytes of each segment that has a sound header, by its first version,
    `marked` those that end with a mark, `begins` the version that the first continues. O(bytes from `start` on); with
    `skim` O(frames).

    Where `at` is None, claims at the begin are no part of the line if versions behind them were pruned: an object store
    keeps each claim for ever (`recovery.object_log`). They are not yielded, and `begins` is behind them.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        at: Step | None,
        *,
        shape: SegmentShape = SegmentShape.LOG,
        start: Position | None = None,
        identity: Identity | None = None,
        skim: bool = False,
        whole: bool = False,
    ) -> None:
        self.segments = segments
        self.shape = shape
        self.start = start
        self._reached: Step | CommitFrame | None = at
        self.identity = identity
        self.position: Position | None = start
        self.reader: SegmentReader | None = None
        self.cut: Tail | None = None
        self.ended: CommitFrame | None = None
        self.stale: list[Path] = []
        self.sizes: dict[int, int] = {}
        self.marked: set[int] = set()
        self.begins: int | None = None
        self._skim = skim
        self.whole = whole
        # as long as nothing but claims was reached
        self._lone = at is None

    @property
    def step(self) -> Step | None:
        """The version reached."""
        reached = self._reached
        return None if reached is None else Step(reached.version, reached.digest)

    def __iter__(self) -> Iterator[LoggedVersion | Fault]:
        claims: list[LoggedVersion] = []
        for item in self._all():
            if self._lone:
                if isinstance(item, LoggedVersion):
                    if claims and item.commit.version > claims[-1].commit.version + 1:
                        claims = []
                    if CLAIM in item.commit.extra:
                        claims.append(item)
                        continue
                self._lone = False
                yield from claims
            yield item
        if self._lone:
            yield from claims

    def _all(self) -> Iterator[LoggedVersion | Fault]:
        for segment in self.segments:
            last = self.shape is SegmentShape.LOG and not self.whole and segment is self.segments[-1]
            try:
                reader = SegmentReader(segment.path, last=last, data=segment.content())
            except (HybridStoreError, OSError) as error:
                yield self._unreadable(segment, error)
                continue
            if reader.torn_header:
                self.cut = reader.tail
                self.stale = [segment.path]
                return
            self.reader, self.ended = reader, None
            self.sizes[segment.first] = reader.size
            if segment is self.segments[0]:
                self.begins = reader.header.parent_version
            start = self.start if self.start is not None and segment.first == self.start.segment else None
            if start is not None and reader.size < start.offset:
                yield self._cut_short(reader, start)
                continue
            yield from self._joins(reader, start)
            if self.shape is SegmentShape.SHARD:
                yield from self._one_version(reader, segment.step)
            else:
                yield from self._versions(reader, start)

    # --- one segment ----------------------------------------------------------------------------------------------

    def _unreadable(self, segment: Segment, error: HybridStoreError | OSError) -> Fault:
        reached, self._reached = self._reached, None
        if isinstance(error, FileNotFoundError):
            if self.shape is SegmentShape.SHARD:
                who = f"version {segment.first} belongs to the state (restore the file from a copy)"
            elif self.start is not None and reached is not None and segment.first == self.start.segment:
                who = f"checkpoint {reached.version} refers to it ({NEXT}; at={reached.version} opens the checkpoint)"
            else:
                return Fault.of(error, segment.path)  # the writer has pruned the segment meanwhile
            missing = ChangelogGapError(f"{segment.path}: missing, though {who}")
            missing.__cause__ = error
            return Fault.of(missing, segment.path)
        return Fault.of(error, segment.path, 0)

    def _cut_short(self, reader: SegmentReader, start: Position) -> Fault:
        version = 0 if self._reached is None else self._reached.version
        self._reached = None
        error = CorruptFrameError(
            reader.path,
            reader.size,
            f"the file was cut short: checkpoint {version} refers to byte {start.offset}, and what was committed "
            f"after it may be lost (restore this file from a copy, or open the state with at={version})",
        )
        return Fault.of(error, reader.path)

    def _joins(self, reader: SegmentReader, start: Position | None) -> Iterator[Fault]:
        """Check that a segment is of this store and continues the version reached, and make its parent the version
        reached.
        """
        header, path = reader.header, reader.path
        if self.identity is None or self.identity.fits(header.identity):
            self.identity = header.identity
        else:
            yield Fault.of(foreign(path, header.identity, self.identity), path, _IDENTITY_AT)
        if start is not None:
            return
        reached, parent = self.step, Step(header.parent_version, header.parent_digest)
        claimed = self._lone and isinstance(self._reached, CommitFrame)
        self._reached = parent
        self.position = Position(header.first_version, HEADER_BYTES, 0)
        if claimed and reached is not None and parent.version > reached.version:
            self.begins = parent.version
            return
        error: HybridStoreError
        if parent.version >= header.first_version:
            error = ForeignFileError(
                f"{path}: continues version {parent.version}, expected one below {header.first_version} ({MIXED})"
            )
            yield Fault.of(error, path, _PARENT_AT)
        if reached is None or reached == parent:
            return
        if parent.version > reached.version:
            first, last = reached.version + 1, parent.version
            missing = f"version {first} is" if first == last else f"versions {first} to {last} are"
            before = f"; at={reached.version} opens what is before" if reached.version else ""
            error = ChangelogGapError(f"{path}: {missing} missing before it ({NEXT}{before})")
            yield Fault.of(error, path, _PARENT_AT)
        elif parent.version < reached.version:
            error = ChangelogGapError(
                f"{path}: continues version {parent.version}, but version {reached.version} was reached before it "
                f"({MIXED})"
            )
            yield Fault.of(error, path, _PARENT_AT)
        else:
            error = DigestMismatchError(
                f"{path}: continues version {parent.version} with digest {parent.digest.hex()}, the version before it "
                f"has digest {reached.digest.hex()} (it belongs to another line of this store: {MIXED})"
            )
            yield Fault.of(error, path, _PARENT_DIGEST_AT)

    def _versions(self, reader: SegmentReader, start: Position | None) -> Iterator[LoggedVersion | Fault]:
        """Yield the versions and faults of a segment of a log. Behind damage the walk continues at the first commit."""
        position, whole = start, True
        while True:
            try:
                for version in reader.commits() if self._skim and position is None else reader.versions(position):
                    reached, commit = self._reached, version.commit
                    self._reached, self.position = commit, version.position
                    if not whole:
                        whole = True
                    elif reached is None or (
                        commit.version == reached.version + 1
                        and (self._skim or chain(reached.digest, version.bodies) == commit.digest)
                    ):
                        yield version
                    else:
                        yield self._differs(version, reached, reader)
            except (HybridStoreError, OSError) as damage:
                self._reached, whole, position = None, False, reader.resume
                reader.resume = None
                yield Fault.of(damage, reader.path)
                if position is None:
                    return
            else:
                break
        self.cut = reader.tail
        self.ended = ended = reader.ended
        if ended is not None:
            self.marked.add(reader.header.first_version)
        if ended is not None and self._reached is not None and (ended.version, ended.digest) != self.step:
            error = DigestMismatchError(
                f"{reader.path}: was closed at version {ended.version} ({ended.digest.hex()}), but version "
                f"{self._reached.version} was reached ({NEXT})"
            )
            yield Fault.of(error, reader.path, None if self.position is None else self.position.offset)

    @staticmethod
    def _differs(version: LoggedVersion, reached: Step | CommitFrame, reader: SegmentReader) -> Fault:
        """Return why a version does not continue the version before it."""
        path, commit = reader.path, version.commit
        error: HybridStoreError = ChangelogGapError(
            f"{path}: version {commit.version} follows version {reached.version} ({NEXT})"
        )
        if commit.version == reached.version + 1:
            given = chain(reached.digest, version.bodies).hex()
            error = DigestMismatchError(
                f"{path}: version {commit.version} has digest {commit.digest.hex()}, its mutations after version "
                f"{reached.version} give {given} (the changelog has a hole or belongs to another line: {NEXT})"
            )
        return Fault.of(error, path, version.start)

    def _one_version(self, reader: SegmentReader, wanted: Step | None) -> Iterator[LoggedVersion | Fault]:
        """Yield the version or the fault of a shard's segment, which must hold one commit, of the expected step, at its
        end.
        """
        path, parent = reader.path, self.step
        self._reached = None
        try:
            versions = list(reader.commits() if self._skim else reader.versions())
        except (HybridStoreError, OSError) as damage:
            yield Fault.of(damage, path)
            return
        if len(versions) != 1:
            error = CorruptFrameError(path, 0, f"found {len(versions)} commits, expected one (the file was cut short)")
            yield Fault.of(error, path)
            return
        (version,) = versions
        step = Step(version.commit.version, version.commit.digest)
        given = step.digest if self._skim or parent is None else chain(parent.digest, version.bodies)
        self._reached, self.position, self.ended = step, version.position, reader.ended
        named = parse_log_name(f"{LOG}/{path.name}")
        # the name of a note, attempt 0, has no digest
        if (
            named is not None
            and named.attempt
            and (named.version, named.digest8) != (step.version, step.digest[:4].hex())
        ):
            mixed = DigestMismatchError(
                f"{path}: holds version {step.version} with digest {step.digest.hex()} (the content is of another "
                "attempt: restore it from a copy)"
            )
            yield Fault.of(mixed, path)
            return
        if step == (wanted or step) and given == step.digest:
            yield version
            return
        expected = (
            f"{wanted.version} with digest {wanted.digest.hex()}" if wanted else f"its mutations give {given.hex()}"
        )
        mixed = DigestMismatchError(
            f"{path}: version {step.version} with digest {step.digest.hex()} after version "
            f"{reader.header.parent_version}; the state has version {expected} (the file belongs to another attempt "
            "or line: restore it from a copy)"
        )
        yield Fault.of(mixed, path)


def log_walk(
    changelog: Path, at: Step | None, *, start: Position | None = None, identity: Identity | None = None
) -> Walk:
    """Return a walk along the changelog of a plain store.

    `start` is the place of version `at`, if a checkpoint names one.
    """
    return Walk(log_segments(changelog, start), at, start=start, identity=identity)
