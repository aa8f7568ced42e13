"""The monotone list: for an aggregate that is one of the values (the greatest, the least).

    values      3 9 4 7 7 2 5        a value that a newer one beats can never be the result again
    candidates    9     7   5        the others fall from old to new, and the first is the result

No adds at all. A record is compared with the best value and put in the log. Candidates are searched only when the best
value has expired, among the values since the last search, from the newest back; each value is put on the list at most
once and removed once. A key of few values has no list: `max` or `min` finds its best value. The log drops expired
values once in 64 records, or when it is read.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

from .aggregator import Aggregator
from .value_log import BLOCK, Block
from .window_state import Strategy, WindowState

_FEW = 48  # below so many records a key has no list
_UNKNOWN = float("-inf")


class MonotoneState(WindowState):
    """One key's candidates; `chosen_times` is None without a list."""

    __slots__ = ("best", "best_time", "chosen", "chosen_times", "due", "first", "known", "strategy")

    def __init__(self, strategy: Monotone) -> None:
        super().__init__()
        self.strategy = strategy
        # the best value and its time, which is -inf if the value must be searched
        self.best: Any = None
        self.best_time: float = _UNKNOWN
        # older values have expired, though they may still be in the log
        self.due = -1
        self.chosen: Any = None
        self.chosen_times: list[int] | None = None
        # the candidates before it have expired
        self.first = 0
        # the values from this position on, all in the newest block, are not among the candidates yet
        self.known = 0

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self._forget()

    def clear(self) -> None:
        super().clear()
        self._forget()

    def _forget(self) -> None:
        self.best_time = _UNKNOWN
        self.chosen = self.chosen_times = None
        self.first = 0

    def insert(self, ts: int, value: Any) -> int:
        if ts < self.newest:
            self._catch_up()
            self.best_time = _UNKNOWN
        elif self.best_time != _UNKNOWN and self.strategy.better(value, self.best):
            self.best = value
            self.best_time = ts
        return super().insert(ts, value)

    def displaced(self, position: int, ts: int, value: Any) -> None:
        """Handle a value out of order: if a newer candidate beats it, it is no candidate, else it beats older ones."""
        self.known = self.end
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

    def roll(self) -> None:
        if len(self.times) > BLOCK - 64:
            self._catch_up()
        super().roll()

    def expire(self, lo: int) -> int:
        self.due = lo = max(lo, self.due)
        return super().expire(lo)

    def _blocks(self) -> Iterator[Block]:
        self.expire(self.due)
        return super()._blocks()

    def __len__(self) -> int:
        self.expire(self.due)
        return super().__len__()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        end = self.end
        if ts < self.newest:
            self.insert(ts, value)
            self.expire(lo)
            return self.value()
        if not end & 63:
            self.expire(lo)
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        self.due = lo
        if self.best_time < lo:
            return self._find(lo)
        best = self.best
        # an operator in place instead of a call of `better`
        if (value >= best) if self.strategy.greatest else (value <= best):
            self.best = value
            self.best_time = ts
            return value
        return best

    def value(self) -> Any:
        return self._find(self.due) if self.best_time < self.due else self.best

    def _find(self, lo: int) -> Any:
        """Find the best of the live values, all from `lo` on, and return it."""
        strategy = self.strategy
        fresh = self.end - self.known
        times = self.chosen_times
        if (times is None or fresh > 4) and self.times is self.old_times:
            begin = bisect_left(self.times, lo)
            live = self.values[begin:]
            if 0 < len(live) < _FEW:
                best = strategy.best(live)
                if best == best:  # except if the first value is NaN
                    at = live.index(best)
                    # if each value is the best for one record only, a list is faster
                    if at or fresh != 1 or len(live) < 4:
                        self.chosen = self.chosen_times = None
                        self.known = self.end
                        self.best = best
                        self.best_time = self.times[begin + at]
                        return best
        if times is None:
            self.chosen, self.chosen_times = [], times = [], []
            self.first = 0
            for block_times, values in self._blocks():
                self._take(block_times, values, 0)
            self.known = self.end
        elif fresh == 1 and strategy.worse(self.values[-1], self.chosen[-1]):
            self.chosen.append(self.values[-1])
            times.append(self.newest)
            self.known = self.end
        else:
            self._catch_up()
        first = self.first
        while first < len(times) and times[first] < lo:
            first += 1
        if first == len(times):
            self._forget()
            self.best = strategy.init()
            return self.best
        self.best = best = self.chosen[first]
        self.best_time = times[first]
        if first >= 32:
            del times[:first], self.chosen[:first]
            first = 0
        self.first = first
        return best

    def _catch_up(self) -> None:
        """Search candidates among the values since the last search."""
        fresh = self.end - max(self.known, self.start)
        self.known = self.end
        if fresh and self.chosen_times is not None:
            self._take(self.times, self.values, len(self.values) - fresh)

    def _take(self, times: Any, values: Any, begin: int) -> None:
        """Put the candidates among the values from `begin` on, all newer than those on the list, on the list."""
        at = len(values) - 1
        while at >= begin and values[at] != values[at]:  # NaN is no candidate
            at -= 1
        if at < begin:
            return
        # from the newest back: only values that beat all newer ones
        best = values[at]
        positions = [at]
        if self.strategy.greatest:
            for i in range(at - 1, begin - 1, -1):
                if values[i] > best:
                    best = values[i]
                    positions.append(i)
        else:
            for i in range(at - 1, begin - 1, -1):
                if values[i] < best:
                    best = values[i]
                    positions.append(i)
        chosen = self.chosen
        chosen_times: Any = self.chosen_times
        better = self.strategy.better
        while len(chosen) > self.first and better(best, chosen[-1]):
            chosen.pop()
            chosen_times.pop()
        for i in reversed(positions):
            chosen.append(values[i])
            chosen_times.append(times[i])


class FinishedState(MonotoneState):
    """The same for an aggregator with a `result` function."""

    __slots__ = ()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        MonotoneState.update(self, ts, value, lo)
        return self.value()

    def value(self) -> Any:
        result: Any = self.strategy.result
        return result(super().value())


class Monotone(Strategy[MonotoneState]):
    """No adds; two comparisons a record or three.

    Needs an aggregator that selects one of the values, as `Min` and `Max`.

    When the best value expires for the first time, all values are searched; later at most one block of them per record.
    Raises ValueError for other aggregators.
    """

    name = "monotone"

    __slots__ = ("best", "better", "greatest", "state", "worse")

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator)
        if aggregator.better is None:
            raise ValueError(
                f"strategy monotone: aggregator {aggregator.name}: found an aggregate that is not one of the values, "
                "expected Min or Max (use another strategy)"
            )
        if aggregator.better not in (operator.ge, operator.le):
            raise ValueError(
                f"strategy monotone: aggregator {aggregator.name}: better: found {aggregator.better!r}, expected "
                "operator.ge or operator.le, by which the newest of equal values is kept"
            )
        self.state = MonotoneState if self.result is None else FinishedState
        self.better = aggregator.better
        self.greatest = aggregator.better is operator.ge
        self.best: Any = max if self.greatest else min
        self.worse: Any = operator.lt if self.greatest else operator.gt
