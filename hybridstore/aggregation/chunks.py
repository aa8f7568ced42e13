"""Chunks: an ordered `merge` under any disorder, in event order throughout.

    values   start [h h h h h | c c .. c | c c .. c | ... | t t t] end
             head: one chunk    full chunks of about 32,    tail: the open chunk, one aggregate that
             being expired, a   one aggregate each, under   arrivals are added to
             suffix aggregate   a binary tree of merges
             for every record

A result is `merge(merge(head suffix, root of the tree), tail)`. A record out of order changes one chunk: the head or
the tail is rebuilt at its next read, a full chunk at once, with one merge on each level above it.
"""

from __future__ import annotations

from typing import Any

from .aggregator import Aggregator
from .window_state import Strategy, WindowState

CHUNK = 32
"""Records of a chunk when it is closed."""

_OVERGROWN = 8 * CHUNK  # the size to which late records may grow a chunk before all values are divided again


class ChunksState(WindowState):
    """One key's chunks. `counts` is None without chunks: with few records, or after a restore.

    Positions: the head is start..head_stop-1, the tree head_stop..tail_lo-1, the tail tail_lo..hi-1.
    """

    __slots__ = (
        "capacity",
        "counts",
        "first",
        "head_stop",
        "hi",
        "last",
        "strategy",
        "suffixes",
        "sums",
        "tail",
        "tail_lo",
    )

    def __init__(self, strategy: Chunks) -> None:
        super().__init__()
        self.strategy = strategy
        # the tree as a heap: node i has children 2i and 2i+1, leaves from `capacity` on; first..last-1 are in use
        self.counts: list[int] | None = None
        self.sums: list[Any] = []
        self.capacity = 0
        self.first = 0
        self.last = 0
        # suffix aggregates of the head, the shortest first; None if they must be rebuilt
        self.suffixes: list[Any] | None = None
        self.tail: Any = None
        self.head_stop = 0
        self.tail_lo = 0
        # equal to tail_lo if the tail must be rebuilt
        self.hi = 0

    def clear(self) -> None:
        super().clear()
        self._take_down()

    def _take_down(self) -> None:
        self.counts = None
        self.sums = []
        self.suffixes = self.tail = None

    def displaced(self, position: int, ts: int, value: Any) -> None:
        counts = self.counts
        if counts is None or position >= self.hi:
            return
        if position >= self.tail_lo:
            self.hi = self.tail_lo
            return
        if position < self.head_stop:
            self.suffixes = None
            self.head_stop += 1
        else:
            leaf = 1
            begin = self.head_stop
            while leaf < self.capacity:
                leaf *= 2
                if position >= begin + counts[leaf]:
                    begin += counts[leaf]
                    leaf += 1
            size = counts[leaf] + 1
            if size > _OVERGROWN:
                self._take_down()
                return
            strategy = self.strategy
            self._set(leaf, size, strategy.fold(strategy.init(), self.slice(begin, begin + size)))
        self.tail_lo += 1
        self.hi += 1

    def _set(self, leaf: int, count: int, aggregate: Any) -> None:
        """Put a chunk, or none, at a leaf, and update the nodes above it."""
        counts = self.counts
        assert counts is not None
        sums = self.sums
        merge, copy = self.strategy.merge, self.strategy.copy
        counts[leaf] = count
        sums[leaf] = aggregate
        node = leaf // 2
        while node:
            first, second = 2 * node, 2 * node + 1
            counts[node] = counts[first] + counts[second]
            # nodes are never changed in place, so one object may stand at two places
            if not counts[second]:
                sums[node] = sums[first]
            elif not counts[first]:
                sums[node] = sums[second]
            else:
                sums[node] = merge(sums[first] if copy is None else copy(sums[first]), sums[second])
            node //= 2

    def _build(self) -> None:
        """Divide all live values into chunks."""
        strategy = self.strategy
        values = self.slice(self.start, self.end)
        # the first of several chunks is the head, which has no aggregate of its own
        at = CHUNK if len(values) > CHUNK else 0
        self.head_stop = self.start + at
        self.suffixes = None
        chunks = []
        while len(values) - at > CHUNK:
            chunks.append((CHUNK, strategy.fold(strategy.init(), values[at : at + CHUNK])))
            at += CHUNK
        self.tail_lo = self.hi = self.start + at
        self._plant(chunks)

    def _plant(self, chunks: list[tuple[int, Any]]) -> None:
        """Build a tree over chunks, with room for as many more."""
        capacity = 4
        while capacity < 2 * len(chunks):
            capacity *= 2
        self.capacity = capacity
        self.counts = counts = [0] * (2 * capacity)
        self.sums = sums = [None] * (2 * capacity)
        self.first = 0
        self.last = len(chunks)
        merge, copy = self.strategy.merge, self.strategy.copy
        for i, (count, aggregate) in enumerate(chunks, capacity):
            counts[i], sums[i] = count, aggregate
        for node in range(capacity - 1, 0, -1):
            first, second = 2 * node, 2 * node + 1
            if counts[first] or counts[second]:
                counts[node] = counts[first] + counts[second]
                if counts[first] and counts[second]:
                    sums[node] = merge(sums[first] if copy is None else copy(sums[first]), sums[second])
                else:
                    sums[node] = sums[first] if counts[first] else sums[second]

    def _advance(self) -> None:
        """Take chunks from the tree until the head holds the window's start."""
        start = self.start
        counts = self.counts
        assert counts is not None
        while self.head_stop <= start and self.first < self.last:
            leaf = self.capacity + self.first
            self.head_stop += counts[leaf]
            self._set(leaf, 0, None)
            self.first += 1
        self.suffixes = None
        if self.head_stop < start:
            # the tree is empty: the rest of the tail becomes the head
            self.head_stop = self.tail_lo = self.hi = self.end
            self.first = self.last = 0

    def _close(self) -> None:
        """Put the tail, which is full, into the tree."""
        if self.last == self.capacity:
            assert self.counts is not None
            leaves = range(self.capacity + self.first, self.capacity + self.last)
            self._plant([(self.counts[i], self.sums[i]) for i in leaves])
        self._set(self.capacity + self.last, self.hi - self.tail_lo, self.tail)
        self.last += 1
        self.tail_lo = self.hi

    def _make_suffixes(self) -> list[Any]:
        strategy = self.strategy
        init, add, merge = strategy.init, strategy.add, strategy.merge
        suffixes: list[Any] = []
        for value in reversed(self.slice(self.start, self.head_stop)):
            lone = add(init(), value)
            suffixes.append(merge(lone, suffixes[-1]) if suffixes else lone)
        # `merge` keeps no parts of its second argument, so no suffix holds parts of another
        self.suffixes = suffixes
        return suffixes

    def hold(self, ts: int, value: Any, lo: int) -> None:
        # chunks follow the window record by record: a late record finds its chunk only if every expired record was seen
        self.update(ts, value, lo)

    def value(self) -> Any:
        strategy = self.strategy
        end = self.end
        start = self.start
        if self.counts is None:
            if end - start < strategy.promote:
                total = strategy.fold(strategy.init(), self.slice(start, end))
                return total if strategy.result is None else strategy.result(total)
            self._build()
        hi = self.hi
        if hi < end:
            # the tail before an advance, so that no expired value is added
            if hi == self.tail_lo:
                if hi < start:
                    self.hi = hi = self.tail_lo = start
                self.tail = strategy.init()
            if end - hi == 1:
                self.tail = strategy.add(self.tail, self.values[-1])
            else:
                self.tail = strategy.fold(self.tail, self.slice(hi, end))
            self.hi = end
            if end - self.tail_lo >= CHUNK:
                self._close()
        if (start >= self.head_stop and self.first < self.last) or start > self.head_stop:
            if end - start < strategy.promote // 2:
                self._take_down()
                return self.value()
            self._advance()
        copy = strategy.copy
        total = None
        some = False
        if start < self.head_stop:
            suffixes = self.suffixes
            if suffixes is None:
                suffixes = self._make_suffixes()
            del suffixes[self.head_stop - start :]
            total = suffixes[-1] if copy is None else copy(suffixes[-1])
            some = True
        if self.counts is not None and self.counts[1]:  # in front of the tree the head has a value
            total = strategy.merge(total, self.sums[1])
        if self.hi > self.tail_lo:
            tail = self.tail
            total = strategy.merge(total, tail) if some else tail if copy is None else copy(tail)
            some = True
        if not some:
            total = strategy.init()
        return total if strategy.result is None else strategy.result(total)


class Chunks(Strategy[ChunksState]):
    """About 2 adds and 3 merges a record, in event order; needs `merge`. Raises ValueError without it."""

    name = "chunks"
    state = ChunksState

    __slots__ = ("promote",)

    merge: Any

    def __init__(self, aggregator: Aggregator, *, promote: int = 16) -> None:
        super().__init__(aggregator)
        if aggregator.merge is None:
            raise ValueError(
                f"strategy chunks: aggregator {aggregator.name}: found no merge, expected one (give merge=, or use "
                "strategy='recompute')"
            )
        self.promote = promote
