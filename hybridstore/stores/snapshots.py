"""Snapshots: an iterator reads a store as it was when the iterator was opened.

    fetch_range() ─▶ token (the epoch goes up) ─▶ a bucket of an older epoch is copied before it is changed
    close()       ─▶ `OpenIterators.shut` empties the rows that iterators have still to give

The surprise: opening a snapshot copies nothing, and without writes during the reading nothing is ever copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class _Rows(list[Any]):
    """The remaining rows of an open iterator: a list that the store can reach while the iterator reads it."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, to be kept in a set


class OpenIterators:
    """The remaining rows of all open iterators of a store, so that closing the state ends the iterators without a check
    per row.
    """

    __slots__ = ("_rows", "_shut")

    def __init__(self) -> None:
        self._rows: weakref.WeakSet[_Rows] = weakref.WeakSet()
        self._shut: Exception | None = None

    def rows(self, items: Iterable[Any] = ()) -> list[Any]:
        """Return a list of `items` to iterate over; `shut` will empty it. Raises what the store was shut with.
        O(items).
        """
        if self._shut is not None:
            raise self._shut
        rows = _Rows(items)
        self._rows.add(rows)
        return rows

    def shut(self, error: Exception) -> None:
        """End every open iterator; opening an iterator raises `error` from now on. O(open iterators)."""
        self._shut = error
        for rows in list(self._rows):
            rows.clear()


class Snapshots:
    """Counts open snapshots and gives each an epoch. A snapshot lives as long as its token does."""

    __slots__ = ("epoch", "live")

    def __init__(self) -> None:
        self.epoch = 0
        self.live = 0

    def open(self) -> SnapshotToken:
        """Begin a snapshot: every bucket made before it is copied before it is changed. O(1)."""
        self.epoch += 1
        return SnapshotToken(self)


class SnapshotToken:
    """Keep a reference to the token for as long as the snapshot is read."""

    __slots__ = ("_snapshots",)

    def __init__(self, snapshots: Snapshots) -> None:
        # counted before the token is kept: an interrupt in between costs copies, but cannot lose a snapshot
        snapshots.live += 1
        self._snapshots = snapshots

    def __del__(self) -> None:
        if hasattr(self, "_snapshots"):
            self._snapshots.live -= 1
