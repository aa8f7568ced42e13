"""Snapshots: an iterator reads a store as it was when the iterator was opened.

    scan()        ─▶ token (a new epoch)    ─▶ a bucket of an older epoch is copied before it is changed
    close()       ─▶ `OpenIterators.refuse_calls`: the next row of an iterator with more rows is the store's error

The surprise: opening a snapshot copies nothing, and without writes during the reading nothing is ever copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import length_hint
from typing import Any, Never


class _Ending:
    """What an open iterator asks behind its last row: an error, if the store was shut before that row was read."""

    __slots__ = ("__weakref__", "_error", "_rows", "remaining")

    def __init__(self, rows: list[Any], reverse: bool) -> None:
        self._error: Exception | None = None
        self._rows = rows
        self.remaining: Iterator[Any] = reversed(rows) if reverse else iter(rows)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Never:
        raise StopIteration if self._error is None else self._error

    def refuse_calls(self, error: Exception) -> None:
        """Free the rows that were not read."""
        if length_hint(self.remaining):
            self._error = error
        self._rows.clear()


class OpenIterators:
    """All open iterators of a store, so that shutting the store ends the iterators without a check per row."""

    __slots__ = ("_endings", "_shut")

    def __init__(self) -> None:
        self._endings: weakref.WeakSet[_Ending] = weakref.WeakSet()
        self._shut: Exception | None = None

    def over(self, items: Iterable[Any], *, reverse: bool = False) -> Iterator[Any]:
        """Return an iterator over `items`, which are read now; after `refuse_calls` it raises the error in place of a
        row. Raises that error if the store refuses calls already. O(items).
        """
        if self._shut is not None:
            raise self._shut
        ending = _Ending(list(items), reverse)
        self._endings.add(ending)
        return chain(ending.remaining, ending)

    def refuse_calls(self, error: Exception) -> None:
        """End every open iterator with `error`; opening an iterator raises `error` from now on. O(open iterators)."""
        self._shut = error
        for ending in list(self._endings):
            ending.refuse_calls(error)


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
