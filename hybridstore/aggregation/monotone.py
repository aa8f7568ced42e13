"""The monotone list: for an aggregate that is one of the values (the greatest, the least).

    values      3 9 4 7 7 2 5        a value that a newer one beats can never be the result again
    candidates    9     7   5        what is left falls from old to new, and the first is the result

No adds at all: each value is put on the list once and taken off once. Candidates are kept by time, so a result needs no look
at the log, and the log drops what has expired only once in 64 records, or when it is read.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import reduce
from typing import Any

from .aggregator import Aggregator
from .value_log import Block
from .window_state import Strategy, WindowState

_FEW = 4  # below so many records a key has no candidates


class MonotoneState(WindowState):
    """One key's candidates; `chosen_times` is None after a restore, until the first value."""

    __slots__ = ("chosen", "chosen_times", "due", "first", "strategy")

    def __init__(self, strategy: Monotone) -> None:
        super().__init__()
        self.strategy = strategy
        self.chosen: Any = None
        self.chosen_times: list[int] | None = None
        # the candidates before it have expired
        self.first = 0
        # what is older has expired, though it may still be in the log: that is looked after once in 64 records
        self.due = -1

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self.chosen = self.chosen_times = None
        self.first = 0

    def clear(self) -> None:
        super().clear()
        self.chosen = self.chosen_times = None
        self.first = 0

    def insert(self, ts: int, value: Any) -> int:
        times = self.chosen_times
        if times is not None and ts >= self.newest and value == value:  # NaN is none
            better = self.strategy.better
            chosen = self.chosen
            first = self.first
            while len(chosen) > first and better(value, chosen[-1]):
                chosen.pop()
                times.pop()
            chosen.append(value)
            times.append(ts)
        return super().insert(ts, value)

    def displaced(self, position: int, ts: int, value: Any) -> None:
        """A value out of order: beaten by a newer candidate it is none, else it beats older ones."""
        times = self.chosen_times
        if times is None or value != value:
            return
        better = self.strategy.better
        chosen = self.chosen
        at = bisect_right(times, ts, self.first)
        if at < len(times) and better(chosen[at], value):
            return
        lowest = at
        while lowest > self.first and better(value, chosen[lowest - 1]):
            lowest -= 1
        chosen[lowest:at] = [value]
        times[lowest:at] = [ts]

    def expire(self, lo: int) -> int:
        lo = max(lo, self.due)
        gone = super().expire(lo)
        times = self.chosen_times
        if gone and times is not None:
            first = bisect_left(times, lo, self.first)
            if first >= 32 or first == len(times):
                del times[:first], self.chosen[:first]
                first = 0
            self.first = first
        return gone

    def _blocks(self) -> Iterator[Block]:
        self.expire(self.due)
        return super()._blocks()

    def __len__(self) -> int:
        self.expire(self.due)
        return super().__len__()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        end = self.end
        times = self.chosen_times
        if ts < self.newest or not times:
            return self._update(ts, value, lo)
        if not end & 63:
            # what falls due once in 64 records: it may leave no candidates
            self.expire(lo)
            if not times:
                return self._update(ts, value, lo)
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        self.due = lo
        strategy = self.strategy
        chosen = self.chosen
        first = self.first
        last = chosen[-1]
        greatest = strategy.greatest
        # an operator in place instead of a call of `better`
        if (value >= last) if greatest else (value <= last):
            at = len(chosen) - 2
            if at >= first:
                last = chosen[at]
                if (value >= last) if greatest else (value <= last):
                    better = strategy.better
                    at -= 1
                    while at >= first and better(value, chosen[at]):
                        at -= 1
                    del chosen[at + 2 :], times[at + 2 :]
            chosen[-1] = value
            times[-1] = ts
        elif value == value:  # NaN is none
            chosen.append(value)
            times.append(ts)
        elif times[-1] < lo:
            # the last candidate leaves, and no other has come
            self.expire(lo)
            return self.value()
        if times[first] < lo:
            # ends at the latest at this record
            while times[first] < lo:
                first += 1
            self.first = first
        return chosen[first] if strategy.result is None else strategy.result(chosen[first])

    def _update(self, ts: int, value: Any, lo: int) -> Any:
        self.insert(ts, value)
        self.expire(lo)
        return self.value()

    def value(self) -> Any:
        if self.chosen_times is None:
            if self.end - self.start < _FEW:
                # two lists a key would weigh more than its few records
                strategy = self.strategy
                few = reduce(strategy.add, self.slice(self.start, self.end), strategy.init())
                return few if strategy.result is None else strategy.result(few)
            self._choose()
        chosen = self.chosen
        best = chosen[self.first] if self.first < len(chosen) else self.strategy.init()
        return best if self.strategy.result is None else self.strategy.result(best)

    def _choose(self) -> None:
        """Find the candidates among all live values."""
        better = self.strategy.better
        chosen: list[Any] = []
        times: list[int] = []
        for ts, value in self:
            if value == value:
                while chosen and better(value, chosen[-1]):
                    chosen.pop()
                    times.pop()
                chosen.append(value)
                times.append(ts)
        self.chosen = chosen
        self.chosen_times = times
        self.first = 0

    def aggregates_held(self) -> int:
        return 0 if self.chosen_times is None else len(self.chosen) - self.first


class Monotone(Strategy[MonotoneState]):
    """No adds; one comparison or two a record. Needs an aggregator that selects one of the values, as `Min` and `Max`.

    Raises ValueError for other aggregators.
    """

    name = "monotone"

    __slots__ = ("better", "greatest")

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator)
        if aggregator.better is None:
            raise ValueError(
                f"strategy monotone: aggregator {aggregator.name}: does not select one of its values (it is for Min and Max)"
            )
        if aggregator.better not in (operator.ge, operator.le):
            raise ValueError(
                f"strategy monotone: aggregator {aggregator.name}: better: expected operator.ge or operator.le, by which "
                "of equal values the newest is kept"
            )
        self.better = aggregator.better
        self.greatest = aggregator.better is operator.ge

    def new(self) -> MonotoneState:
        return MonotoneState(self)
