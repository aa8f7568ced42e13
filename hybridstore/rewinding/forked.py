"""Forked: what a fork has of its origin, whatever that is: a state, a topology, or a Spark query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from changelog.files import Files

from ..reading.places import Place
from ..reading.view import View


class ForkedDirectory(NamedTuple):
    """What a fork has of one state directory or shard: its folder below the state, the version, the files that are
    named a second time, and the segment that is copied up to a byte ("": none).
    """

    source: Path
    folder: str
    view: View
    version: int
    shared: list[str]
    segment: str
    end: int


class Taken(NamedTuple):
    """How many files a fork shares with its origin, how many are copies, and the bytes of the copies."""

    shared: int = 0
    copied: int = 0
    size: int = 0

    def copy(self, size: int) -> Taken:
        """Return the same with one more copy."""
        return Taken(self.shared, self.copied + 1, self.size + size)


# Gives a file a second name, or copies it where the file system cannot.
Share = Callable[[Path, Path, Taken], Taken]


class Origin(Protocol):
    """What is forked: `places` are its shards, `where` the folder that they are below."""

    where: Path
    places: list[Place]

    @property
    def files(self) -> Files:
        """Files of the mode of the origin's: who may read the state may read the fork."""

    def parts(self, at: str | None) -> list[ForkedDirectory]:
        """Return what a fork has of each shard at a version or a time. Raises RestoreError."""

    def add(self, building: Path, share: Share, taken: Taken) -> Taken:
        """Add to a fork in the making what it needs besides. Raises OSError."""
