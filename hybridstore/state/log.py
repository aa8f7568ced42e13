"""Log: what an open state asks of the changelog that it writes, wherever that is."""

from __future__ import annotations

from typing import Protocol

from changelog.segment import Position

from .group import StoreGroup
from .policy import Logged


class Log(Protocol):
    """The changelog in the hands of its one writer. `position` is the end of the newest version."""

    position: Position

    @property
    def bytes_written(self) -> int:
        """Bytes written since the state was opened."""

    @property
    def poisoned(self) -> bool:
        """True after a write that did not come to its end."""

    def poison(self, error: BaseException) -> None:
        """Refuse everything from now on, because of `error`."""

    def check(self) -> None:
        """Raise StorePoisonedError if an earlier write failed. O(1)."""

    def frame(self, body: bytes) -> None:
        """Append a part of the version in progress. O(bytes)."""

    def commit(self, group: StoreGroup) -> Logged:
        """Seal what is in the journal of `group` as its next version, make that durable, and return what was logged."""

    def rollback(self, group: StoreGroup) -> None:
        """Cut off what was appended of the version in progress, and empty the journal of `group`."""

    def part_here(self) -> None:
        """A checkpoint begins: what lies before it can be pruned once newer ones are kept, if a segment ends here."""

    def sync(self) -> None:
        """Make sure that all of it is durable."""

    def close(self, group: StoreGroup | None) -> None:
        """End it; with `group` this is a clean end. Closing twice is harmless."""
