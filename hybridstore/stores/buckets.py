"""Buckets: the nested maps behind every store: bucket -> key -> entry, with parts that are still in the checkpoint.

A window or session store has one bucket per span of time, a key-value store a single one. An entry ("run") is whatever the
store keeps per key. A bucket knows three things beside its `runs`:

    cold    blocks not loaded yet, by key range; `runs` then holds only what was written since (an overlay)
    dirty   keys changed since the last checkpoint; None while no checkpoint holds the bucket (then all are)
    epoch   the snapshot epoch it was made in: an older bucket is copied before it is changed, while a snapshot lives
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from recovery.block import BlockEntry, Columns

# Stands for a deleted record in an overlay, until its cold block is loaded.
TOMBSTONE: Final = type("Tombstone", (), {"__repr__": lambda self: "TOMBSTONE", "__slots__": ()})()


# Shared by all buckets without tombstones: never added to.
_NO_KEYS: Final[set[Any]] = set()


class ColdBlock:
    """A block that is still only in the checkpoint."""

    __slots__ = ("entry", "load")

    def __init__(self, entry: BlockEntry, load: Callable[[int], Columns]) -> None:
        self.entry = entry
        self.load = load


class Bucket:
    """One bucket. `install` (given by the store) puts the columns of a loaded block under what `runs` holds already."""

    __slots__ = ("cold", "dirty", "epoch", "owned", "records", "runs", "tombstoned")

    def __init__(self, epoch: int) -> None:
        self.runs: dict[Any, Any] = {}
        self.cold: list[ColdBlock] = []
        self.dirty: set[Any] | None = None
        self.records = 0
        self.epoch = epoch
        # None: all runs are this bucket's own. A set: only the runs of these keys are, others are shared with a snapshot.
        self.owned: set[Any] | None = None
        # Keys whose run has tombstones over a cold block; the block may not even hold them.
        self.tombstoned: set[Any] = _NO_KEYS

    def clone(self, epoch: int) -> Self:
        """Return a copy that may be changed while snapshots keep this one. O(keys), runs are shared until written."""
        copy = type(self)(epoch)
        copy.runs = self.runs.copy()
        copy.cold = self.cold[:]
        copy.dirty = self.dirty if self.dirty is None else self.dirty.copy()
        copy.records = self.records
        copy.owned = set()
        copy.tombstoned = self.tombstoned.copy() if self.tombstoned else _NO_KEYS
        return copy

    def bury(self, key: Any) -> None:
        """Remember that the run of `key` has a tombstone."""
        if self.tombstoned is _NO_KEYS:
            self.tombstoned = set()
        self.tombstoned.add(key)

    def uncovered(self) -> list[Any]:
        """Forget and return the keys with tombstones that no cold block covers any more. O(keys with tombstones)."""
        found = [key for key in self.tombstoned if self.covering(key) < 0]
        self.tombstoned.difference_update(found)
        return found

    def covering(self, key: Any) -> int:
        """Return the index in `cold` of the block whose key range holds `key`, or -1. O(log blocks)."""
        i = bisect_right(self.cold, key, key=_first_key) - 1
        return i if i >= 0 and key <= self.cold[i].entry.last else -1


def _first_key(block: ColdBlock) -> Any:
    return block.entry.first


class _Rows(list[Any]):
    """What an open iterator has still to give: a list that can be found again while it is iterated over."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, to be kept in a set


class OpenIterators:
    """The rows that iterators of a store still hold, so that they end, with no check per row, when the state is closed."""

    __slots__ = ("_rows", "_shut")

    def __init__(self) -> None:
        self._rows: weakref.WeakSet[_Rows] = weakref.WeakSet()
        self._shut: Exception | None = None

    def rows(self, items: Iterable[Any] = ()) -> list[Any]:
        """Return a list of `items` to iterate over; `shut` will empty it. Raises what the store was shut with. O(items)."""
        if self._shut is not None:
            raise self._shut
        rows = _Rows(items)
        self._rows.add(rows)
        return rows

    def shut(self, error: Exception) -> None:
        """End every open iterator; opening one raises `error` from now on. O(open iterators)."""
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
    """Keep a reference to it for as long as the snapshot is read."""

    __slots__ = ("_snapshots",)

    def __init__(self, snapshots: Snapshots) -> None:
        # counted before it is kept: an interrupt in between costs copies, and not a snapshot
        snapshots.live += 1
        self._snapshots = snapshots

    def __del__(self) -> None:
        if hasattr(self, "_snapshots"):
            self._snapshots.live -= 1
