"""Log: the interface between an open state and the changelog that it writes, on a disk or on an object store."""

from __future__ import annotations

from typing import Protocol

from changelog.health import Health
from changelog.segment import Position

from .group import StoreGroup
from .policy import Logged


class Log(Protocol):
    """The changelog, for its only writer. `position` is the end of the newest version; `health` tells whether an
    earlier write failed.
    """

    position: Position
    health: Health

    @property
    def bytes_written(self) -> int:
        """Bytes written since the state was opened."""

    def frame(self, body: bytes) -> None:
        """Append a part of the version in progress. O(bytes)."""

    def commit(self, group: StoreGroup) -> Logged:
        """Seal the journal of `group` as its next version, make the version durable, and return the counts of the
        logged records.
        """

    def rollback(self, group: StoreGroup) -> None:
        """Remove the frames of the version in progress, and empty the journal of `group`."""

    def part_here(self) -> None:
        """End the segment because a checkpoint begins, so that the segment can be pruned later."""

    def part_now(self, version: int) -> None:
        """Behind this version, the newest: no later version will be where it is, and `position` says where."""

    def check_owner(self) -> None:
        """Raise unless this process is the only writer. On an object store a request, which sees every owner that has
        claimed the state before.
        """

    def sync(self) -> None:
        """Return when the whole changelog is durable."""

    def close(self, group: StoreGroup | None) -> None:
        """Close the changelog; with `group` this is a clean end. Closing twice is harmless."""
