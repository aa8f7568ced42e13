"""Expiries: when the rows of a store with a ttl expire, in heaps of a few thousand entries each.

An entry of a row that was replaced or deleted since is outdated, and is forgotten when its time has come, or when one
heap, the oldest, is made anew, because most entries are outdated. The surprise: one heap of all entries would be made
anew at once, which takes 40 ms of 100,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from .buckets import TOMBSTONE

# A heap has so many entries at most: to make one anew takes a millisecond or two.
_MOST: Final = 4096
# Where so many times the new entries are there, these are added one by one.
_FEW_ROUNDS: Final = 4

Entry = tuple[int, Any]


class Expiries:
    """Entries (time, key), the next ones to expire first; `count` of them."""

    __slots__ = ("_current", "_full", "_new", "_number", "_tops", "count")

    def __init__(self) -> None:
        self._current: list[Entry] = []
        # the heaps that are full, by number, the oldest first, and the first time of each, or an earlier one
        self._full: dict[int, list[Entry]] = {}
        self._tops: list[tuple[int, int]] = []
        self._number = self._new = 0
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, entry: object) -> bool:
        """Whether an entry is there. O(entries)."""
        return any(entry in heap for heap in self.lists)

    @property
    def lists(self) -> list[list[Entry]]:
        """The heaps, to be emptied in slices when they are not needed any more. O(heaps)."""
        return [self._current, *self._full.values()]

    def add(self, ts: int, key: Any) -> None:
        """Add an entry. O(1), since heaps are small."""
        heap = self._current
        heappush(heap, (ts, key))
        self.count += 1
        if len(heap) >= _MOST:
            self._close(heap)
            self._current = []

    def extend(self, entries: Iterable[Entry], count: int) -> None:
        """Add `count` entries. O(count)."""
        if len(self._current) >= _FEW_ROUNDS * count:
            for ts, key in entries:
                self.add(ts, key)
            return
        whole = [*self._current, *entries]
        self.count += count
        self._current = []
        for first in range(0, len(whole), _MOST):
            heap = whole[first : first + _MOST]
            heapify(heap)
            if len(heap) == _MOST:
                self._close(heap)
            else:
                self._current = heap

    def _close(self, heap: list[Entry]) -> None:
        self._number += 1
        self._full[self._number] = heap
        heappush(self._tops, (heap[0][0], self._number))

    def tidy(self, rows: dict[Any, Any], new: int) -> None:
        """Behind `new` entries: make heaps anew, without what `rows` say otherwise, as long as most entries are
        outdated. O(new) on average, and at most O(new + entries of a heap).
        """
        self._new += new
        while self.count > 2 * len(rows) + 64:
            if not self._full:
                heap, self._current = self._current, []
                self._replace(heap, rows)
                return
            if self._new < _MOST // 4:
                return
            self._new -= _MOST // 4
            self._replace(self._full.pop(next(iter(self._full))), rows)
        self._new = 0

    def _replace(self, heap: list[Entry], rows: dict[Any, Any]) -> None:
        """Add the entries of a heap that is no more again, once each, but for those that are outdated."""
        live: set[Entry] = set()
        for entry in heap:
            row = rows.get(entry[1])
            if row is not None and row is not TOMBSTONE and row[1] == entry[0]:
                live.add(entry)
        self.count -= len(heap)
        self.extend(live, len(live))

    def pop(self, through: int) -> Iterator[Entry]:
        """Remove and yield the entries with times up to `through`. O(entries yielded)."""
        yield from self._popped(self._current, through)
        tops = self._tops
        while tops and tops[0][0] <= through:
            number = heappop(tops)[1]
            heap = self._full.get(number)
            if heap is None:
                continue
            yield from self._popped(heap, through)
            if heap:
                heappush(tops, (heap[0][0], number))
            else:
                del self._full[number]

    def _popped(self, heap: list[Entry], through: int) -> Iterator[Entry]:
        while heap and heap[0][0] <= through:
            self.count -= 1
            yield heappop(heap)

    def due(self, through: int) -> bool:
        """Whether an entry may have a time up to `through`. O(1)."""
        heap, tops = self._current, self._tops
        return (bool(heap) and heap[0][0] <= through) or (bool(tops) and tops[0][0] <= through)
