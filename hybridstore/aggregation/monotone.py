"""The monotone list: for an aggregate that is one of the values (the greatest, the least).

    values      3 9 4 7 7 2 5        a value that a newer one beats can never be the result again
    candidates    9     7   5        what is left falls from old to new, and the first is the result

No adds at all: each value is put on the list once and taken off once. Candidates are kept by time, so expiry needs no look
at the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any

from .aggregator import Aggregator
from .window_state import Strategy, WindowState


class MonotoneState(WindowState):
    """One key's candidates; `times` of candidates is None after a restore, until the first value."""

    __slots__ = ("chosen", "chosen_times", "first", "strategy")

    def __init__(self, strategy: Monotone) -> None:
        super().__init__()
        self.strategy = strategy
        self.chosen: list[Any] = []
        self.chosen_times: array[int] | None = None
        # the candidates before it have expired
        self.first = 0

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self.chosen = []
        self.chosen_times = None
        self.first = 0

    def clear(self) -> None:
        super().clear()
        self.chosen = []
        self.chosen_times = None
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

    def displaced(self, position: int, value: Any) -> None:
        """A value out of order: beaten by a newer candidate it is none, else it beats older ones."""
        times = self.chosen_times
        if times is None or value != value:
            return
        better = self.strategy.better
        chosen = self.chosen
        # the value has already found its place in the log; there it has its time
        ts = self._time_at(position)
        at = bisect_right(times, ts, self.first)
        if at < len(times) and better(chosen[at], value):
            return
        lowest = at
        while lowest > self.first and better(value, chosen[lowest - 1]):
            lowest -= 1
        chosen[lowest:at] = [value]
        times[lowest:at] = array("q", [ts])

    def _time_at(self, position: int) -> int:
        offset = position - self.start + self.head
        if offset < len(self.old_times):
            return self.old_times[offset]
        offset = position - self.end + len(self.times)
        if offset >= 0:
            return self.times[offset]
        offset = position - self.start + self.head - len(self.old_times)
        for times, _ in self.middle or ():
            if offset < len(times):
                return times[offset]
            offset -= len(times)
        raise IndexError(position)

    def expire(self, lo: int) -> int:
        gone = super().expire(lo)
        times = self.chosen_times
        if gone and times is not None:
            first = bisect_left(times, lo, self.first)
            if first >= 32:
                del times[:first], self.chosen[:first]
                first = 0
            self.first = first
        return gone

    def value(self) -> Any:
        if self.chosen_times is None:
            self._choose()
        chosen = self.chosen
        best = chosen[self.first] if self.first < len(chosen) else self.strategy.init()
        return best if self.strategy.result is None else self.strategy.result(best)

    def _choose(self) -> None:
        """Find the candidates among all live values."""
        better = self.strategy.better
        chosen: list[Any] = []
        times: array[int] = array("q")
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
        return len(self.chosen) - self.first


class Monotone(Strategy[MonotoneState]):
    """No adds; one comparison or two a record. Needs an aggregator that selects one of the values, as `Min` and `Max`.

    Raises ValueError for other aggregators.
    """

    name = "monotone"

    __slots__ = ("better",)

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator)
        if aggregator.better is None:
            raise ValueError(
                f"strategy monotone: aggregator {aggregator.name}: does not select one of its values (it is for Min and Max)"
            )
        self.better = aggregator.better

    def new(self) -> MonotoneState:
        return MonotoneState(self)
