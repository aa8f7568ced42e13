"""Reader: the read-only view of one state at one version, built without the lock and without the job's code.

A checkpoint is opened through `pages`, the changelog behind it is applied to stores of our own, and what that changed is taken as
captures, the form in which recovery takes changes for the next checkpoint. From then on the view is kind-independent: blocks of the
checkpoint, read one at a time, and the changes over them.

Unlike a restore it never refuses: damage is listed in `faults`, and the view then shows the newest version before it. Files that
appear or vanish because a writer is at work lead to another try.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from changelog.errors import HybridStoreError, UnsupportedVersionError
from changelog.frame import Commit
from changelog.journal import EMPTY_DIGEST, chain
from changelog.reader import SegmentReader, Tail, Version
from changelog.segment import Position, list_segments, segment_name
from recovery import steady
from recovery.apply import apply_version
from recovery.attach import attach
from recovery.block import BlockEntry
from recovery.checkpoint import CheckpointMeta, checkpoint_name, damage_path, list_checkpoints
from recovery.errors import CheckpointError, RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS
from recovery.pages import PageCheckpoint
from recovery.steady import signature_of

from ...shard_head import HEAD_NAME, Head, read_head
from ...state.group import StoreGroup
from ...state.policy import Logged
from ...stores.kinds import Store
from .places import Place
from .store_view import StoreView

# What is replayed before memory is let go of where a scratch folder is given.
ROUND_BYTES: Final = 4 << 20
T = TypeVar("T")


class View(NamedTuple):
    """One state at one version; a shard's `seen` is the version reached, above `version` when batches brought it nothing.

    `tail` is what lies behind the checkpoint; `faults` is empty when everything was read; `notes` are harmless; times
    in ms, sizes in bytes.
    """

    place: Place
    store_id: bytes
    version: int
    seen: int
    digest: bytes
    wall_ms: int | None
    settings: dict[str, Any]
    stores: dict[str, StoreView]
    checkpoint: CheckpointMeta | None
    checkpoint_bytes: int
    pages: PageCheckpoint | None
    tail: Logged
    cut: Tail | None
    ended: Commit | None
    notes: list[str]
    faults: list[str]

    def store(self, name: str) -> StoreView:
        """Return a store by name. Raises KeyError naming those there are."""
        try:
            return self.stores[name]
        except KeyError:
            raise KeyError(
                f"{self.place.path}: no store {name!r} in version {self.version} (there are: {', '.join(self.stores) or 'none'})"
            ) from None


def signature(place: Place) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files of a place: equal signatures mean that no writer was at work between."""
    if place.form != "directory":
        paths = [place.path]
    else:
        paths = [path for name in (CHANGELOG, CHECKPOINTS) for path in (place.path / name).glob("*")]
    return signature_of(paths)


def steadily(place: Place, look: Callable[[], T], failed: Callable[[T], bool]) -> T:
    """Return `look()`, trying again while it fails or raises and files change under it. The last failure stands."""
    return steady.steadily(place.path, look, failed=failed, sign=lambda: signature(place))


def open_view(place: Place, at: int | None = None, *, below: int | None = None, scratch: Path | None = None) -> View:
    """Return the view of a place at its newest version, or at version `at`. With `below`, only checkpoints before that version are used.

    With `scratch`, an empty folder that outlives the view, what is replayed goes there in rounds: memory then follows a round, the
    largest version and a bucket, and not the state.

    Raises RestoreError when `at` is not retained, HybridStoreError or OSError when nothing can be read. O(blocks + tail).
    """

    def look() -> View:
        try:
            return _Open(place, at, below, scratch).view()
        except (HybridStoreError, OSError):
            raise
        except Exception as error:  # a file that someone made up may raise anything
            raise RestoreError(f"{place.path}: holds what no release writes: {_said(error)}") from error

    return steadily(place, look, lambda view: bool(view.faults))


class Link(NamedTuple):
    """One segment of the line of versions that leads to the wanted one."""

    first: int
    reader: SegmentReader


class Line(NamedTuple):
    """The segments that lead to a version, oldest first; what is wrong with the others; and a torn start of a new one."""

    links: list[Link]
    faults: list[str]
    torn: Tail | None

    def digests(self) -> dict[int, bytes]:
        """Return the digest of every version that a segment of the line continues."""
        return {link.reader.header.parent_version: link.reader.header.parent_digest for link in self.links}


def line(directory: Path, newest: int | None, base: int, *, shard: bool = False) -> Line:
    """Return the segments that lead from version `base` to `newest` (None: the last there is). O(segments).

    Each segment names the version that it continues, so segments of an abandoned line are passed over. In a `shard`
    every segment was published whole, so that none may end torn.
    """
    names = [first for first in list_segments(directory) if newest is None or first <= newest]
    links: list[Link] = []
    faults: list[str] = []
    torn: Tail | None = None
    wanted: int | None = newest if shard else None
    last = names[-1] if names else 0
    while names:
        first = names.pop()
        if wanted is not None and first > wanted:
            continue
        try:
            reader = SegmentReader(directory / segment_name(first), last=first == last and newest is None and not shard)
        except UnsupportedVersionError:
            raise
        except HybridStoreError as error:
            faults.append(str(error))
            # What follows a segment that cannot be read is out of reach.
            links.clear()
            continue
        if reader.torn_header:
            torn = reader.tail
            continue
        links.append(Link(first, reader))
        wanted = reader.header.parent_version
        if wanted <= base or first <= base:
            break
    links.reverse()
    return Line(links, faults, torn)


class _Open:
    """One attempt at a view."""

    def __init__(self, place: Place, at: int | None, below: int | None, scratch: Path | None) -> None:
        self.scratch = scratch
        self.round = 0  # bytes replayed since the last round
        self.place = place
        self.at = at
        self.below = below
        self.exact = True
        self.seen = 0
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.group = StoreGroup(_nowhere)
        self.version = 0
        self.digest = EMPTY_DIGEST
        self.store_id = bytes(16)
        self.wall_ms: int | None = None
        self.tail = Logged()
        self.cut: Tail | None = None
        self.ended: Commit | None = None
        self.checkpoint: PageCheckpoint | None = None
        self.directories: dict[int, list[BlockEntry]] = {}

    def view(self) -> View:
        if self.place.form == "checkpoint":
            self._attach(self.place.path)
        elif self.place.form == "segment":
            self._segment_alone()
        else:
            self._directory()
        if self.at is not None and (self.version != self.at if self.exact else self.faults):
            raise RestoreError(
                f"{self.place.path}: version {self.at} is not retained"
                + (f": {self.faults[0]}" if self.faults else f": the nearest below it is {self.version}")
            )
        self.group.reached(self.version, self.digest)
        stores = {name: self._store(live) for name, live in self.group.stores.items()}
        meta = None if self.checkpoint is None else self.checkpoint.meta
        return View(
            self.place,
            self.store_id,
            self.version,
            max(self.version, self.seen),
            self.digest,
            self.wall_ms if self.wall_ms is not None or meta is None else meta.wall_ms,
            dict(self.group.settings),
            stores,
            meta,
            0 if self.checkpoint is None else self.checkpoint.size,
            self.checkpoint,
            self.tail,
            self.cut,
            self.ended,
            self.notes,
            self.faults,
        )

    def _store(self, live: Store) -> StoreView:
        checkpoint, number = self.checkpoint, live.number
        records = () if checkpoint is None else checkpoint.meta.stores
        record = next((record for record in records if record.number == number), None)
        entries = self.directories[number] if record is not None else []
        return StoreView(live, checkpoint, record, entries, self.faults, self.tail.records)

    def _reset(self) -> None:
        self.group = StoreGroup(_nowhere)
        self.group.reset()
        self.version, self.digest = 0, EMPTY_DIGEST
        self.store_id = bytes(16)
        self.wall_ms = None
        self.tail = Logged()
        self.cut = self.ended = self.checkpoint = None

    def _attach(self, path: Path) -> None:
        self._reset()
        reader = PageCheckpoint(path)
        meta = reader.meta
        self.directories = attach(reader, self.group)
        self.version, self.digest, self.store_id = meta.version, meta.digest, meta.store_id
        self.checkpoint = reader

    def _directory(self) -> None:
        head = read_head(self.place.path / HEAD_NAME)
        if head is not None and self.at is not None:
            if self.at > head.seen:
                raise RestoreError(f"{self.place.path}: version {self.at} is not there: the newest is {head.seen}")
            # Batches without rows of this shard write nothing: any version up to the one seen is the step below it.
            self.exact = False
        if head is not None:
            self.seen = head.seen if self.at is None else self.at
        folder = self.place.path / CHECKPOINTS
        known: dict[int, bytes] | None = None
        if head is not None:
            known = {head.tip.version: head.tip.digest}
            known |= line(self.place.path / CHANGELOG, head.tip.version, 0, shard=True).digests()
        versions = [version for version in list_checkpoints(folder) if self.at is None or version <= self.at]
        for version in reversed(versions):
            if (known is not None and version not in known) or (self.below is not None and version >= self.below):
                continue
            try:
                path = folder / checkpoint_name(version)
                if damage_path(path).exists():
                    raise CheckpointError(f"{path}: its owner found a damaged block in it")
                self._attach(path)
                if self.version != version:
                    raise CheckpointError(f"{path}: holds version {self.version}, its name says {version}")
                if known is not None and known[version] != self.digest:
                    raise CheckpointError(f"{path}: belongs to another line of versions")
            except UnsupportedVersionError:
                raise
            except (
                OSError,
                HybridStoreError,
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
                RecursionError,
            ) as e:
                self.notes.append(f"checkpoint {version} passed over: {_said(e)}")
                continue
            break
        else:
            self._reset()
        self._replay(head)

    def _replay(self, head: Head | None) -> None:
        start = None if self.checkpoint is None else self.checkpoint.meta.position
        if head is not None and head.tip.version <= self.version:
            return
        newest = self.at if head is None else head.tip.version
        found = line(self.place.path / CHANGELOG, newest, self.version, shard=head is not None)
        self.faults += found.faults
        self.cut = found.torn
        for link in found.links:
            header = link.reader.header
            inside = start if start is not None and link.first == start.segment else None
            if inside is None and header.parent_version > self.version:
                self.faults.append(
                    f"{link.reader.path}: versions {self.version + 1} to {header.parent_version} are missing before it"
                )
                return
            if not any(self.store_id):
                self.store_id = header.store_id
            if header.store_id != self.store_id:
                self.faults.append(
                    f"{link.reader.path}: belongs to store {header.store_id.hex()}, this state is {self.store_id.hex()}"
                )
                return
            if not self._segment(link.reader, inside):
                return
        if head is not None and self.version != head.tip.version:
            self.faults.append(f"{self.place.path}: the head names version {head.tip.version}, its segment is missing")

    def _segment(self, reader: SegmentReader, start: Position | None) -> bool:
        """Apply a segment's versions up to the wanted one; False when nothing after it can be used."""
        table: dict[int, Any] = {}
        try:
            for version in reader.versions(start):
                commit = version.commit
                if self.at is not None and commit.version > self.at:
                    return False
                if commit.version <= self.version:
                    continue
                if chain(self.digest, version.bodies) != commit.digest:
                    self.faults.append(
                        f"{reader.path}: version {commit.version} does not continue version {self.version}: its digest differs"
                    )
                    return False
                if not self._apply(version, table, reader.path):
                    return False
                self.version, self.digest, self.wall_ms = commit.version, commit.digest, commit.wall_ms
                size = sum(map(len, version.bodies))
                self.tail = self.tail.plus(Logged.of(1, size, commit.records, self.group.kinds))
                self.round += size
                if self.scratch is not None and self.round > ROUND_BYTES:
                    self._spill(self.scratch)
        except HybridStoreError as error:
            self.faults.append(str(error))
            return False
        self.ended = reader.ended
        if reader.tail is not None:
            self.cut = reader.tail
        return True

    def _spill(self, scratch: Path) -> None:
        """Write what there is now into a checkpoint of our own, and go on over that."""
        from recovery.write import write_checkpoint  # only here: what reads needs nothing that writes

        self.round = 0
        self.group.reached(self.version, self.digest)
        previous = self.checkpoint
        write_checkpoint(
            scratch,
            store_id=self.store_id,
            version=self.version,
            digest=self.digest,
            position=Position(0, 0, 0),
            settings=dict(self.group.settings),
            captures=self.group.capture(),
            previous=previous,
        )
        self.checkpoint = reader = PageCheckpoint(scratch / checkpoint_name(self.version))
        for record in reader.meta.stores:
            entries = self.directories[record.number] = reader.directory(record.number)
            self.group.stores[record.name].chill(reader.loader(record.number), entries)
        if previous is not None and previous.path.parent == scratch:
            previous.path.unlink()

    def _apply(self, version: Version, table: dict[int, Any], path: Path) -> bool:
        try:
            apply_version(version, self.group, table)
            self.group.settle()  # what cannot be applied is to be found here
            return True
        except (
            HybridStoreError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as e:
            good, faults = (
                self.version,
                [*self.faults, f"{path}: version {version.commit.version} cannot be applied: {_said(e)}"],
            )
        # Half of that version is in the stores now: build the one before it anew.
        again = _Open(self.place, good, self.below, self.scratch)
        if good:
            again._directory()
        self.__dict__.update(again.__dict__ | {"faults": faults, "at": self.at, "exact": self.exact, "seen": self.seen})
        return False

    def _segment_alone(self) -> None:
        reader = SegmentReader(self.place.path, last=True)
        if reader.torn_header:
            self.cut = reader.tail
            return
        self.store_id = reader.header.store_id
        if reader.header.parent_version:
            raise RestoreError(
                f"{self.place.path}: a segment that continues version {reader.header.parent_version} holds no state by itself "
                "(give the state directory, or use `log`)"
            )
        self._segment(reader, None)


def _nowhere(body: bytes) -> None:
    """A view logs nothing."""


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, HybridStoreError) else f"{type(error).__name__}: {error}"
