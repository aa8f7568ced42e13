"""Snapshots: an iterator reads a store as it was when the iterator was opened.

    scan()        ─▶ token (a new epoch)    ─▶ a bucket of an older epoch is copied before it is changed
    close()       ─▶ `OpenIterators.refuse_calls`: the next row of an iterator with more rows is the store's error

The surprise: opening a snapshot copies nothing, and without writes during the reading nothing is ever copied. A store
that is not cut by time has no such buckets: its iterator has the rows in memory. Where memory is short, all iterators
read blocks as they come to them (`piecewise`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import length_hint
from typing import Any


class _Pieces:
    """The rows of an open iterator, a piece at a time, and the error of a store that was shut before all were read."""

    __slots__ = ("__weakref__", "_error", "_piece", "_pieces", "_remaining")

    def __init__(self, pieces: Iterator[list[Any]]) -> None:
        self._error: Exception | None = None
        self._piece: list[Any] = []
        self._remaining: Iterator[Any] = iter(self._piece)
        self._pieces = pieces

    def __iter__(self) -> Iterator[Iterator[Any]]:
        return self

    def __next__(self) -> Iterator[Any]:
        if self._error is not None:
            raise self._error
        self._piece.clear()  # its rows would be in memory beside those of the next
        self._piece = next(self._pieces)
        self._remaining = iter(self._piece)
        return self._remaining

    def refuse_calls(self, error: Exception) -> None:
        """Free the rows that were not read."""
        if length_hint(self._remaining) or length_hint(self._pieces, 1):
            self._error = error
        self._piece.clear()
        self._pieces = iter(())


class OpenIterators:
    """All open iterators of a store, so that shutting the store ends the iterators without a check per row."""

    __slots__ = ("_open", "_shut")

    def __init__(self) -> None:
        self._open: weakref.WeakSet[_Pieces] = weakref.WeakSet()
        self._shut: Exception | None = None

    def over(self, items: Iterable[Any], *, reverse: bool = False) -> Iterator[Any]:
        """Return an iterator over `items`, which are read now (a list is the iterator's from now on); after
        `refuse_calls` it raises the error in place of a row. Raises that error if the store refuses calls already.
        O(items).
        """
        rows = items if type(items) is list else list(items)
        if reverse:
            rows.reverse()
        return self.piecewise(iter([rows] if rows else []))

    def piecewise(self, pieces: Iterator[list[Any]]) -> Iterator[Any]:
        """Return an iterator over the rows of `pieces`, of which each is read when the iterator comes to it; else as
        `over`. O(1).
        """
        if self._shut is not None:
            raise self._shut
        rows = _Pieces(pieces)
        self._open.add(rows)
        return chain.from_iterable(rows)

    def refuse_calls(self, error: Exception) -> None:
        """End every open iterator with `error`; opening an iterator raises `error` from now on. O(open iterators)."""
        self._shut = error
        for rows in list(self._open):
            rows.refuse_calls(error)


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
