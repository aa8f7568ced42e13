"""Key ages: which records of a key-value store are in memory where memory is short (`ages`).

The surprise: an older dict may have a row that was replaced since, but never in front of the newer one, and no row of a
key that was deleted since.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable
from itertools import chain, repeat
from sys import getsizeof
from typing import Any, Final

from recovery.block import BlockEntry, Columns
from recovery.directory import Directory
from recovery.finder import Finder

from ..clock import INT64_MAX
from .ages import Ages
from .buckets import TOMBSTONE, Sealed
from .cold_blocks import PartBlock, TouchedBlock, only
from .cold_tail import Maps
from .expiries import Expiries
from .key_order import KeyOrder

# When the dict becomes an older one while it has changes, these move: as one in so many of its records they are few.
_FEW: Final = 8


class KeyAges(Ages):
    """One dict by key, and older ones behind it, with key ranges that are still in a checkpoint behind these."""

    ttl_ms: int | None
    _expired: int
    _heap: Expiries
    # the keys in order, from the first ordered scan on
    _order: KeyOrder | None

    @abstractmethod
    def _wait(self, places: Iterable[tuple[int, Any]], count: int) -> None:
        """Enter `count` rows into the heap of expiries."""

    @abstractmethod
    def _rebuild_heap(self) -> None:
        """Make the heap of expiries anew, of the rows in the dict."""

    @abstractmethod
    def _expire_rows(self) -> None:
        """Delete the rows in the dict that have expired."""

    @abstractmethod
    def _prune_tombstones(self) -> None:
        """Forget the tombstones over nothing."""

    @abstractmethod
    def _forget_expired(self) -> None:
        """Forget what has expired of the cold blocks, which are new."""

    @abstractmethod
    def apply_delete(self, key: Any) -> None:
        """Remove one row; over a cold block, leave a tombstone."""

    def clear_state(self) -> None:
        super().clear_state()
        # keys that were written over cold blocks before the last checkpoint
        self._over_cold: set[Any] = set()
        # cold block -> keys that were deleted over it; -1: over none
        self._buried: dict[int, list[Any]] = {}
        self._order = None

    # --- looking ----------------------------------------------------------------------------------------------

    def _recall(self, key: Any) -> Any:
        """Return the row of a key that is not in the dict from an older one, moved into the dict; TOMBSTONE if the key
        has no row, None if no older dict knows it. O(older dicts), with a ttl O(log n).
        """
        for older in self._older:
            row = older.get(key)
            if row is not None:
                if row is TOMBSTONE:
                    return row
                if self.ttl_ms is not None and row[1] <= self._expired:
                    if self._older.fresh:  # below it is an older row, which may expire later
                        self.apply_delete(key)
                    else:
                        self._forget(key)
                    return TOMBSTONE
                if self.ttl_ms is None and self._order is None:
                    self._runs[key] = row
                else:
                    self._install_row(key, row)
                del older[key]
                return row
        return None

    def _install_row(self, key: Any, row: Any) -> None:
        """Put the row of a key of which nothing is in the dict into it, unless it has expired. O(1), with a ttl O(log
        n).
        """
        with self._journal.sure:
            if self._order is not None:
                self._order.changed.add(key)
            if self.ttl_ms is not None:
                if row[1] <= self._expired:
                    return
                self._wait([(row[1], key)], 1)
            self._runs[key] = row

    def _touch(self, key: Any, *, absent: bool = False) -> None:
        if self._recall(key) is None:
            super()._touch(key, absent=absent)

    def prefetch(self, keys: Collection[Any], time_from: int = 0, time_to: int = INT64_MAX) -> None:
        if self.far:
            known = [self._runs, *self._older]
            super().prefetch([key for key in keys if not any(key in each for each in known)], time_from, time_to)

    @property
    def records_in_memory(self) -> int:
        return len(self._runs) + sum(map(len, self._older)) + len(self._tail)

    @property
    def _applied_records(self) -> int:
        fresh = sum(map(len, self._older[: self._older.fresh]))
        return max(0, len(self._runs) + fresh - self._older.twice) + self._block_records

    def _maps_bytes(self) -> int:
        return super()._maps_bytes() + getsizeof(self._over_cold)

    def maps(self) -> list[Maps]:
        return [*super().maps(), self._over_cold]

    # --- ages -------------------------------------------------------------------------------------------------

    def _set_beside(self) -> set[Any]:
        self._older.deleted = set()
        if self._older.parting and self._is_age:
            with self._journal.sure:
                self._older.insert(0, self._runs)
                self._older.fresh += 1
                self._runs = self._bucket.runs = {}
                if self._heap:
                    self._older.heaps += self._heap.lists
                    self._heap = Expiries()
                self._order = None
        elif self._bucket.cold and self._dirty:
            self._over_cold |= self._dirty
        return set()

    def unseal(self, sealed: Sealed) -> None:
        super().unseal(sealed)
        self._older.deleted = None
        self._gather()

    def _gather(self) -> None:
        """Put what the checkpoint in use does not have into one dict again. O(records put)."""
        fresh = self._older.fresh
        if fresh:
            merged: dict[Any, Any] = {}
            for each in (*reversed(self._older[:fresh]), self._runs):
                merged.update(each)
            for key in self._buried.get(-1, ()):
                if merged.get(key) is TOMBSTONE:  # known by `_dirty`
                    del merged[key]
            with self._journal.sure:  # until here nothing has changed
                self._buried.pop(-1, None)
                if self._bucket.cold:
                    self._over_cold.update(merged)
                self._runs = self._bucket.runs = merged
                del self._older[:fresh]
                self._older.fresh = 0
                self._older.heaps = []
                self._order = None
                if self.ttl_ms is not None:
                    self._rebuild_heap()
            if self.ttl_ms is not None:
                self._expire_rows()
                self._prune_tombstones()

    def _forget(self, key: Any) -> None:
        """Let no older dict have a row of a key, which is deleted. O(older dicts)."""
        for older in self._older:
            older.pop(key, None)

    def use_finder(self, finder: Finder | None, *, attached: bool) -> None:
        self._older.offered = finder
        if attached:
            self._older.finder = self._older.offered

    def _loaded(self, entry: BlockEntry) -> None:
        self._older.loaded, self._older.finder = True, None

    @property
    def before(self) -> list[dict[Any, Any]]:
        return [self._runs, *self._older]

    def recall(self, before: list[dict[Any, Any]]) -> None:
        self._older[:] = filter(None, before)

    @property
    def can_cool(self) -> bool:
        return self._dirty is not None and not self._tail

    def _cool(self, directory: Directory) -> list[Maps]:
        bucket, dirty = self._bucket, self._dirty
        assert dirty is not None
        others: list[Maps] = [*self._older.heaps, self._over_cold]
        self._older.heaps = []
        twice = self._older.twice + sum(block.touched for block in bucket.cold if isinstance(block, TouchedBlock))
        runs = self._runs
        buried = [key for key in chain.from_iterable(self._buried.values()) if runs.get(key) is TOMBSTONE]
        if self._older.fresh:
            self._older.fresh, deleted = 0, buried
        elif self._is_age and _FEW * len(dirty) <= len(runs):
            before = runs
            runs = dict(zip(dirty, map(before.pop, dirty, repeat(TOMBSTONE)), strict=True))
            self._runs = bucket.runs = runs
            deleted = [key for key, row in runs.items() if row is TOMBSTONE]
            self._older.insert(0, before)
            if self._heap:
                others += self._heap.lists
                self._rebuild_heap()
        else:
            # of thousands of changed keys most are there: a look at each took 30 ms
            known = dirty if self._older.deleted is None else self._older.deleted
            deleted = [key for key in known if runs.get(key, TOMBSTONE) is TOMBSTONE]
            for key in buried:  # the checkpoint does not have those that were deleted before
                runs.pop(key, None)
        self._older[:] = filter(None, self._older)
        self._over_cold, self._buried, self._order = set(), {}, None
        self._older.twice = min(len(runs), twice)
        self._become_cold(directory)
        self._older.loaded, self._older.finder = False, self._older.offered
        self._older.deleted = set()  # of the keys that were deleted since: each is entered again
        for key in deleted:
            runs.pop(key, None)
            self.apply_delete(key)
        if self.ttl_ms is not None:
            self._forget_expired()
        return others

    def _unknown(self, columns: Columns) -> Columns:
        """Return the rows of a block without those of keys that the dict, or one that waits for a checkpoint, knows as
        well or better. O(rows).
        """
        known = [self._runs, *self._older[: self._older.fresh]]
        return only(columns, [not any(key in each for each in known) for key in columns.keys])

    def _check(self) -> None:
        self._check_cold()
        self._check_tail()
        assert 0 <= self._older.fresh <= len(self._older), ("fresh", self._older.fresh)
        rows: dict[Any, Any] = {}
        for older in reversed(self._older):
            for key, row in older.items():
                # a deletion leaves no row behind it
                assert row is not TOMBSTONE or key not in rows, ("row behind a tombstone", key)
            rows.update(older)
        for block in self._bucket.cold:
            assert not isinstance(block, PartBlock) or type(block) is TouchedBlock, ("block with keys", block.entry)
