"""Forked: what a fork has of its origin, whatever that is, a state, a topology, or a Spark query; and where it is made,
on a disk or on an object store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, Protocol

from changelog.files import REAL_FILES, Files
from changelog.storage import Storage
from recovery.errors import RestoreError
from recovery.layout import generation_name, list_generations
from recovery.retrying import Signature, signature

from ..inspection.options import choose
from ..inspection.shards import versions_at
from ..reading.places import Place
from ..reading.view import View, open_view
from ..topology.run_state import RUN


class ForkedPart(NamedTuple):
    """What a fork has of one state or shard: its folder below the state, the version, the files or objects that it
    shares, and the segment that is copied up to a byte ("": none).
    """

    source: Storage
    folder: str
    view: View
    version: int
    shared: list[str]
    segment: str = ""
    end: int = 0

    def name(self, name: str) -> str:
        """Return a name of this part as seen from the whole state."""
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of its packs and its index."""
        meta, pages = self.view.checkpoint, self.view.pages
        if meta is None or pages is None:
            return {}
        return {record.name: record.size for record in meta.packs} | {pages.name: pages.index_bytes}


class Taken(NamedTuple):
    """How many files a fork shares with its origin (on an object store: the store has copied them by itself), how many
    are copies, and the bytes of the copies.
    """

    shared: int = 0
    copied: int = 0
    size: int = 0

    def share(self) -> Taken:
        """Return the same with one more file that is shared."""
        return self._replace(shared=self.shared + 1)

    def copy(self, size: int) -> Taken:
        """Return the same with one more copy."""
        return Taken(self.shared, self.copied + 1, self.size + size)


class Site(Protocol):
    """Where a fork is made. It is a state from `end` on, as a whole; a kill before leaves none."""

    taken: Taken

    def begin(self, origin: Origin, noted: Path | str | None) -> None:
        """Begin, and note the fork at its origin (None: a pin, which is part of it). Raises OccupiedError, OSError."""

    def folder(self, name: str) -> None:
        """Make a folder, which may stay empty."""

    def share(self, source: Storage, name: str, to: str, size: int | None = None) -> None:
        """Take an object of `source` that never changes, of so many bytes (None: not known)."""

    def copy(self, source: Storage, name: str, to: str, end: int) -> None:
        """Take the first bytes of a file that may grow."""

    def create(self, name: str, data: bytes) -> None:
        """Create a small object."""

    def end(self, origin: Origin, parts: list[ForkedPart], noted: Path | str | None) -> None:
        """Let the fork be a state, durably, behind a check of it. Raises RestoreError, OSError."""

    def undo(self) -> None:
        """Remove what was made."""


class Origin(ABC):
    """What is forked: `places` are its shards, `where` the place that they are below."""

    where: Path | str
    places: list[Place]

    @property
    def files(self) -> Files:
        """Files of the mode of the origin's: who may read the state may read the fork."""
        return REAL_FILES

    def signature(self) -> list[Signature]:
        """Return a value that is equal at two times if nobody wrote to the origin in between; of an object store a
        reader has tried again itself, as long as names changed.
        """
        return [signature(place.path) for place in self.places if place.path is not None]

    @abstractmethod
    def parts(self, at: str | None) -> list[ForkedPart]:
        """Return what a fork has of each shard at a version or a time. Raises RestoreError."""

    @abstractmethod
    def add(self, site: Site, parts: list[ForkedPart]) -> None:
        """Add to a fork in the making what it needs besides. Raises OSError."""

    def check_no_erase(self, parts: list[ForkedPart]) -> None:  # noqa: B027  # a folder is locked
        """Raise RestoreError where something was erased since `parts`, or is being erased: for places without locks."""


def checkpoint_names(view: View) -> list[str]:
    """Return the packs and the index of the checkpoint that a view reads; none without one."""
    meta, pages = view.checkpoint, view.pages
    return [] if meta is None or pages is None else [*(record.name for record in meta.packs), pages.name]


def descriptions(storage: Storage, counting: int) -> list[str]:
    """Return the names of the descriptions of shards up to the one that made the forked shards count: a rescale may
    have made others count since. One list.
    """
    return [generation_name(number) for number in list_generations(storage) if number <= counting]


def views_at(places: list[Place], at: str | None, *, thorough: bool) -> list[tuple[Place, View]]:
    """Return the shards of a plain state or topology, and their versions that belong together, at a version of the
    first one, or at a time. Raises RestoreError for a version that is not retained, or that is damaged.
    """
    views = [_sound(places[0], choose(places[0], at), thorough)]
    if len(places) > 1 and (at is not None or RUN in views[0].settings):
        versions: list[int | None] = [*versions_at(places, views[0].version)]
    else:
        versions = [None] * len(places)
    views += [_sound(place, version, thorough) for place, version in zip(places[1:], versions[1:], strict=True)]
    return list(zip(places, views, strict=True))


def _sound(place: Place, version: int | None, thorough: bool) -> View:
    view = open_view(place, version, thorough=thorough)
    if view.faults:
        raise RestoreError(f"{place.where}: {view.faults[0]} (repair it first: hybridstore inspect repair)")
    if not view.version:
        raise RestoreError(f"{place.where}: has no version yet, expected one to begin with")
    return view
