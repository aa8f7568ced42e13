"""The ladder: log2(N) adds a record for an aggregator that can only add.

    values   start [a b c d e f g h | i j k l | m n | o] .. hi .. end
    rungs                             [lo 3 ------------------------>      each the aggregate of everything from its
                                              [lo 2 ---------------->      lo to its hi; the arrivals since then are
                                                      [lo 1 -------->      added when it becomes the current one

The current rung is the one nearest to the window's start. A result is the current rung and the few values before it.
When the window's start passes the current rung, the next one takes its place, and the gap before it is divided again:
one rung at half of it, one at a quarter, and so on.

The surprise: newer values are added before older ones, also on a stream in order: commutative aggregators only.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from .aggregator import Aggregator
from .window_state import Strategy, WindowState

# the share of a newly divided window in its first rung: 1 - ln 2, at which the lower bound has its minimum
_NEW_SHARE = 0.307


class LadderState(WindowState):
    """One key's ladder. `lo` is -1 without a ladder: below `promote` records, and after a restore."""

    __slots__ = ("hi", "lo", "rungs", "running", "strategy")

    def __init__(self, strategy: Ladder) -> None:
        super().__init__()
        self.strategy = strategy
        # the current rung: `running` is the aggregate of positions lo..hi-1
        self.lo = -1
        self.hi = 0
        self.running: Any = None
        # the others as [lo, hi, aggregate], the next to be current last
        self.rungs: list[list[Any]] | None = None

    def displaced(self, position: int, ts: int, value: Any) -> None:
        lo = self.lo
        if lo < 0:
            return
        add = self.strategy.add
        if position <= lo:
            self.lo = lo + 1
            self.hi += 1
        elif position < self.hi:
            self.running = add(self.running, value)
            self.hi += 1
        for rung in self.rungs or ():
            lo, hi, aggregate = rung
            if position < hi:
                if position <= lo:
                    rung[0] = lo + 1
                else:
                    rung[2] = add(aggregate, value)
                rung[1] = hi + 1

    def update(self, ts: int, value: Any, lo: int) -> Any:
        if not self.push(ts, value, lo):
            return self.value()
        strategy = self.strategy
        start = self.start
        at = self.lo
        add = strategy.add
        if at < start:
            if (at < 0 and self.end - start < strategy.promote) or (at := self._climb()) < 0:
                return self._add_up()
            running = self.running
        elif self.hi == self.end - 1:
            running = self.running = add(self.running, value)
            self.hi += 1
        else:
            return self.value()
        if at > start:
            if strategy.copy is not None:
                running = strategy.copy(running)
            stop = self.head + at - start
            values = self.old_values
            gap = values[self.head : stop] if stop <= len(values) else self.slice(start, at)
            running = reduce(add, gap, running)
            return running if strategy.result is None else strategy.result(running)
        if strategy.result is not None:
            return strategy.result(running)
        return running if strategy.copy is None else strategy.copy(running)

    def hold(self, ts: int, value: Any, lo: int) -> None:
        self.push(ts, value, lo)

    def value(self) -> Any:
        strategy = self.strategy
        start = self.start
        end = self.end
        lo = self.lo
        if lo < start:
            if lo < 0 and end - start < strategy.promote:
                return self._add_up()
            lo = self._climb()
            if lo < 0:
                return self._add_up()
            running = self.running
        else:
            missing = end - self.hi
            if not missing:
                running = self.running
            elif missing == 1:
                running = self.running = strategy.add(self.running, self.values[-1])
                self.hi = end
            else:
                running = self.running = strategy.fold(self.running, self.slice(self.hi, end))
                self.hi = end
            if lo - start > strategy.widest:
                # many late records are before the current rung
                lo = self._divide(lo)
                running = self.running
        result = strategy.result
        if lo > start:
            if strategy.copy is not None:
                running = strategy.copy(running)
            head = self.head
            stop = head + lo - start
            values = self.old_values
            gap = values[head:stop] if stop <= len(values) else self.slice(start, lo)
            running = reduce(strategy.add, gap, running)
            return running if result is None else result(running)
        if result is not None:
            return result(running)
        return running if strategy.copy is None else strategy.copy(running)

    def _add_up(self) -> Any:
        strategy = self.strategy
        values = self.values[self.head :] if self.values is self.old_values else self.slice(self.start, self.end)
        add_many = strategy.add_many
        if add_many is None:
            total = reduce(strategy.add, values, strategy.init())
        else:
            total = add_many(strategy.init(), values)
        # no part of it is kept, so it need not be copied
        return total if strategy.result is None else strategy.result(total)

    def _climb(self) -> int:
        """Make the first rung at or behind the window's start the current one, or build a new ladder; return its lo."""
        strategy = self.strategy
        start = self.start
        end = self.end
        rungs = self.rungs
        if self.lo >= 0 and end - start <= strategy.demote:
            self._take_down()
            return -1
        while rungs:
            lo, hi, self.running = rungs.pop()
            if lo >= start:
                if hi < end:
                    self.running = strategy.fold(self.running, self.slice(hi, end))
                break
        else:
            return self._build()
        self.lo = lo
        self.hi = end
        return self._divide(lo) if lo - start > strategy.leaf else int(lo)

    def _take_down(self) -> None:
        self.lo = -1
        self.running = None
        self.rungs = None

    def _build(self) -> int:
        """Begin a ladder over the whole window, with as many adds as it has values."""
        strategy = self.strategy
        start = self.start
        self.hi = end = self.end
        self.rungs = []
        lo = end - int((end - start) * _NEW_SHARE)
        self.running = strategy.init() if lo == end else strategy.fold(strategy.init(), self.slice(lo, end))
        self.lo = lo
        return self._divide(lo) if lo - start > strategy.leaf else lo

    def _divide(self, lo: int) -> int:
        """Put rungs at half, a quarter, ... of the gap before the current rung, which is up to date; return the last
        lo.
        """
        strategy = self.strategy
        start = self.start
        head = self.head
        leaf = strategy.leaf
        hi = self.hi
        running = self.running
        if self.rungs is None:
            self.rungs = []
        rungs = self.rungs
        values = self.old_values
        gap = lo - start
        while gap > leaf:
            rungs.append([start + gap, hi, running])
            if strategy.copy is not None:
                running = strategy.copy(running)
            half = gap // 2
            stop = head + gap
            newer = values[head + half : stop] if stop <= len(values) else self.slice(start + half, start + gap)
            if gap > 64:
                running = strategy.fold(running, newer)
            else:
                running = reduce(strategy.add, newer, running)
            gap = half
        self.running = running
        self.lo = lo = start + gap
        return lo


class Ladder(Strategy[LadderState]):
    """log2(N) adds a record; needs `commutative` and nothing else.

    `leaf`: the widest gap that is not divided: 1 or 2 for fewest adds, 6 for less time where an add is cheap, and about
    one add more. `promote` and `demote`: a key has a ladder from this many records on, and until it has this few.
    Raises ValueError if one of them is too small, or the aggregator is not commutative.
    """

    name = "ladder"
    state = LadderState

    __slots__ = ("demote", "leaf", "promote", "widest")

    def __init__(self, aggregator: Aggregator, *, leaf: int = 6, promote: int | None = None) -> None:
        super().__init__(aggregator)
        require_commutative(self.name, aggregator)
        if leaf < 1:
            raise ValueError(f"ladder: leaf: found {leaf}, expected at least 1")
        self.leaf = leaf
        self.widest = 2 * leaf
        self.promote = 2 * leaf if promote is None else promote
        self.demote = self.promote // 2

    def describe(self) -> list[Any]:
        return [self.name, f"leaf={self.leaf}"]


def require_commutative(strategy: str, aggregator: Aggregator) -> None:
    """Raise ValueError unless the aggregator is declared commutative."""
    if not aggregator.commutative:
        raise ValueError(
            f"strategy {strategy}: aggregator {aggregator.name}: found commutative=False, expected True, since values "
            "are not added in event order (declare it if their order does not matter, else use strategy='recompute')"
        )
