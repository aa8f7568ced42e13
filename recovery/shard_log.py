"""Shard log: the log objects of one shard, one for each version and attempt.

    header (parent)  frames of mutations ...  one commit frame

The layout of an object is that of a segment with one version and without an end mark. A note, which a task without rows
creates, has neither parent, nor mutations, nor a digest. docs/format.md, "Log objects", is the page of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from changelog.errors import ForeignFileError, HybridStoreError
from changelog.frame import COMMIT, MUTATIONS, CommitFrame, encode, encode_commit
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST
from changelog.reader import LoggedVersion
from changelog.rounds import side_by_side
from changelog.segment import HEADER_BYTES, SegmentHeader, decode_header, seed_of
from changelog.storage import Storage, named_path

from .layout import LOG, LogName, log_before, parse_log_name
from .line import EMPTY, Fault, Segment, SegmentShape, Step, Walk
from .rule import NOTE, CountingObjects, Runs

# Further fields of a shard's commit (`CommitFrame.extra`).
METRICS: Final = "metrics"
SINCE: Final = "since"


def encode_object(identity: Identity, parent: Step, commit: CommitFrame, bodies: Iterable[bytes]) -> bytes:
    """Return the bytes of a log object. O(bytes)."""
    header = SegmentHeader(identity, commit.version, parent.version, parent.digest).encode()
    seed = seed_of(header)
    chunks = [header, *(encode(MUTATIONS, number, body, seed) for number, body in enumerate(bodies))]
    chunks.append(encode(COMMIT, len(chunks) - 1, encode_commit(commit), seed))
    return b"".join(chunks)


def encode_note(identity: Identity, version: int, wall_ms: int, metrics: dict[str, Any]) -> bytes:
    """Return the bytes of a note."""
    return encode_object(identity, EMPTY, CommitFrame(version, EMPTY_DIGEST, {}, wall_ms, {}, {METRICS: metrics}), ())


class ShardLog:
    """The log objects of a shard, in the storage of its folder; `identity` is what is known of the shard that
    they must belong to (None: nothing).

    `known` has the objects read so far by `contents`, by name; no other object is kept.
    """

    def __init__(
        self, storage: Storage, identity: Identity | None = None, known: Mapping[LogName, bytes] = MappingProxyType({})
    ) -> None:
        self.storage = storage
        self.identity = identity
        self._known = known

    def where(self, name: LogName) -> str:
        """Return the name of an object for messages."""
        return f"{self.storage.url}/{name}"

    def names(self, after: int = 0) -> list[LogName]:
        """Return the names of the objects of versions above `after`, in order. O(names)."""
        names = self.storage.list(f"{LOG}/", after=log_before(after + 1))
        return [parsed for name in names if (parsed := parse_log_name(name)) is not None]

    def contents(self, names: Sequence[LogName]) -> dict[LogName, bytes]:
        """Return the content of objects, read side by side; absent objects are left out. O(bytes)."""

        def read(name: LogName) -> bytes | None:
            with suppress(FileNotFoundError):
                return self.storage.get(str(name))
            return None

        contents = zip(names, side_by_side(read, names), strict=True)
        return {name: content for name, content in contents if content is not None}

    def standing(self, runs: Runs, after: int = 0) -> CountingObjects:
        """Return the objects of versions above `after` that count. O(names)."""
        return CountingObjects(self.names(after), runs)

    def parent(self, name: LogName) -> Step:
        """Return the step before an object, as its header says. O(1).

        Raises FileNotFoundError, ForeignFileError (also for another version's content), CorruptFrameError.
        """
        known = self._known.get(name)
        raw = known[:HEADER_BYTES] if known else self.storage.get_ranges(str(name), [(0, HEADER_BYTES)])[0]
        where, header = self.where(name), decode_header(bytes(raw), self.where(name))
        if self.identity is not None and not self.identity.fits(header.identity):
            raise ForeignFileError(
                f"{where}: belongs to {header.identity}, this shard is {self.identity}: it was written by another "
                "query, operator or shard (use a new checkpoint location, or put back the object from a copy)"
            )
        if header.first_version != name.version or header.parent_version >= name.version:
            raise ForeignFileError(
                f"{where}: holds version {header.first_version} after version {header.parent_version}, its name says "
                f"version {name.version} (restore it from a copy)"
            )
        return Step(header.parent_version, header.parent_digest)

    def versions(self, names: Iterable[LogName], at: Step | None) -> Iterator[LoggedVersion]:
        """Yield the content of objects that continue each other, the first of them `at` (None: whatever it continues).

        Raises the first fault: FileNotFoundError or a HybridStoreError, also for content that does not match its name.
        O(bytes).
        """
        for name in names:
            walk = Walk([self._segment(name)], at, shape=SegmentShape.SHARD, identity=self.identity)
            for item in walk:
                if isinstance(item, Fault):
                    raise item.raised()
                yield item
            at = walk.step

    def _segment(self, name: LogName, step: Step | None = None) -> Segment:
        return Segment(named_path(self.where(name)), name.version, step, self._content(name))

    def _content(self, name: LogName) -> bytes:
        known = self._known.get(name)
        return self.storage.get(str(name)) if known is None else known

    def commit_of(self, name: LogName) -> CommitFrame:
        """Return the commit of an object, or of a note. Raises as `versions`. O(bytes)."""
        if name.attempt != NOTE:
            return next(self.versions([name], None)).commit
        item = next(
            iter(Walk([self._segment(name)], None, shape=SegmentShape.SHARD, identity=self.identity, skim=True))
        )
        if isinstance(item, Fault):
            raise item.raised()
        return item.commit

    def segments(self, standing: CountingObjects, needed: int, floor: int = 0) -> list[Segment]:
        """Return the objects of the newest version's line, oldest first, down to the oldest above `floor`.

        An object above version `needed` that is missing, or whose header cannot be read, is among them, so that a walk
        reports the fault. Objects below it are assumed to be of the line. O(objects).
        """
        segments: list[Segment] = []
        step: Step | None = None
        name = standing.greatest()
        while name is not None and name.version > floor:
            try:
                parent = self.parent(name)
                segments.append(self._listed(name, step))
            except (HybridStoreError, OSError):
                if name.version > needed:
                    segments.append(self._listed(name, step))
                step, name = None, standing.below(name.version)
                continue
            before = standing.parent(parent)
            if before is None and parent.version > needed:
                lost = f"{self.storage.url}/{LOG}/{parent.version:020d}-...-{parent.digest[:4].hex()}"
                segments.append(Segment(named_path(lost), parent.version, parent))
                step, name = None, standing.below(parent.version)
            else:
                step, name = parent, before
        segments.reverse()
        return segments

    def _listed(self, name: LogName, step: Step | None) -> Segment:
        """The place of an object, and its content only where its file has more in it."""
        path = named_path(self.where(name))
        if step is None:
            with suppress(HybridStoreError, OSError):
                step = Step(name.version, self.commit_of(name).digest)
        return Segment(path, name.version, step, None if path.exists() else self._content(name))
