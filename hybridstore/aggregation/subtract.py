"""Subtract: one add for each new record, one subtract for each expired record.

Needs `exact_subtract`, because otherwise the aggregate drifts. If `subtract` is exact for some types of values only
(ints and floats, for `Sum`), the first other value switches the key to the merge ladder, until the last such value has
expired.

The surprise: every state is also a merge ladder that is rarely used, so that switching needs no second object per key.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from . import exact
from .aggregator import Aggregator
from .combined import Combined
from .ladder import require_commutative
from .merge_ladder import MergeLadderState
from .standard import count_one, mean_add
from .value_log import BLOCK, TimeLog
from .window_state import Strategy

if TYPE_CHECKING:
    from .slid import Part

_UNKNOWN = object()


class SubtractState(MergeLadderState):
    """One aggregate, and the merge ladder for the time in which values cannot be subtracted."""

    __slots__ = ("inexact_until", "total")

    strategy: Subtract

    def __init__(self, strategy: Subtract) -> None:
        super().__init__(strategy)
        # the aggregate of the live records; unknown after a restore, and while some values do not subtract
        self.total: Any = _UNKNOWN
        # the time of the last value that cannot be subtracted exactly, or -1
        self.inexact_until = -1

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self.total = _UNKNOWN
        self.inexact_until = -1
        strategy = self.strategy
        if strategy.exact_types is None:
            return
        # nearly always all are of types that are exact, which is seen at C speed
        if not all(strategy.exact_kinds.issuperset(map(type, block)) for _, block in self._blocks()):
            for ts, value in self:
                if not strategy.exact_for(value):
                    self.inexact_until = ts

    def clear(self) -> None:
        super().clear()
        self.total = _UNKNOWN
        self.inexact_until = -1

    def insert(self, ts: int, value: Any) -> int:
        if self.strategy.exact_types is not None and not self.strategy.exact_for(value):
            self._turn_over(ts)
        elif self.total is not _UNKNOWN and ts >= self.newest:
            self.total = self.strategy.add(self.total, value)
        return super().insert(ts, value)

    def known(self) -> Any:
        """Return the aggregate of the live records, as `add` makes it; None while it cannot be subtracted from."""
        if self.total is _UNKNOWN:
            if self.inexact_until >= 0:
                return None
            if self.end == self.start:
                return self.strategy.init()
            self.value()
        return self.total

    def slide(self, times: array[int], values: list[Any], lo: int, total: Any) -> None:
        """Expire all before `lo` and append records in order, after which `total` is the aggregate; what is given may
        become part of the log. O(expired + appended), at C speed.
        """
        self.total = total  # it is without what expires
        if self.inexact_until >= 0:
            self.clear()  # all expires: with other values the total would not be known
            self.total = total
        if self.newest < lo and len(values) < BLOCK - 63:
            # the most frequent case of keys with few records, without a call
            self.times = self.old_times = times
            self.values = self.old_values = values
            self.middle = None
            self.head = 0
            self.start = self.end
            self.end += len(values)
            self.newest = times[-1]
            self.oldest = times[0]
            return
        if self.oldest < lo:
            TimeLog.expire(self, lo)
        self.extend(times, values)
        self.oldest = self.old_times[self.head]

    def _turn_over(self, ts: int) -> None:
        self.total = _UNKNOWN
        if ts > self.inexact_until:
            self.inexact_until = ts

    def displaced(self, position: int, ts: int, value: Any) -> None:
        if self.total is not _UNKNOWN:
            if self.strategy.commutative:
                self.total = self.strategy.add(self.total, value)
            else:
                # a left inverse removes the oldest value; a value inserted in between requires adding all values again
                self.total = _UNKNOWN
        else:
            super().displaced(position, ts, value)

    def expire(self, lo: int) -> int:
        if self.oldest >= lo:
            return 0
        if self.total is not _UNKNOWN and self.newest >= lo:
            times = self.old_times
            head = self.head
            if len(times) > head + 1 and times[head + 1] >= lo:
                if times[head] < lo:
                    self.total = self.strategy.subtract(self.total, self.old_values[head])
            else:
                subtract = self.strategy.subtract
                total = self.total
                for ts, value in self:
                    if ts >= lo:
                        break
                    total = subtract(total, value)
                self.total = total
        return super().expire(lo)

    def value(self) -> Any:
        if self.total is _UNKNOWN:
            if self.inexact_until >= 0:
                self._resume()
                if self.inexact_until >= 0:
                    return super().value()
            strategy = self.strategy
            if self.end == self.start:
                return strategy.finish(strategy.init())
            self.total = strategy.fold(strategy.init(), self.slice(self.start, self.end))
            # exact from here on: what `update` finds below its `lo` is a record
            self.oldest = self.old_times[self.head]
        return self.strategy.finish(self.total)

    def _resume(self) -> None:
        """Switch back to subtracting when all live values can be subtracted."""
        if self.end == self.start or self.old_times[self.head] > self.inexact_until:
            self.inexact_until = -1
            self.take_down()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        strategy = self.strategy
        total = self.total
        # a sum of ints takes two operators in place of two calls
        plain = strategy.plain and type(value) is int and type(total) is int
        if ts < self.newest or (
            not plain
            and (
                total is _UNKNOWN
                or (
                    value.__class__ not in strategy.exact_kinds
                    and strategy.exact_types is not None
                    and not strategy.exact_for(value)
                )
            )
        ):
            self.insert(ts, value)
            if self.oldest < lo:
                self.expire(lo)
            return self.value()
        # `TimeLog.push`, inlined, because the expired value is needed here
        end = self.end
        if not end & 63:
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        total = total + value if plain else strategy.add(total, value)
        if self.oldest < lo:
            head = self.head
            try:
                oldest = self.old_times[head + 1]
            except IndexError:
                oldest = -1
            if oldest >= lo:
                expired = self.old_values[head]
                total = total - expired if plain else strategy.subtract(total, expired)
                if head < 31:
                    self.head = head + 1
                else:
                    self.trim(32)
                self.start += 1
                self.oldest = oldest
            else:
                self.total = total
                self.expire(lo)
                total = self.total
        self.total = total
        if plain:
            return total
        if strategy.result is not None:
            return strategy.result(total)
        return total if strategy.copy is None else strategy.copy(total)

    def hold(self, ts: int, value: Any, lo: int) -> None:
        # new and expired values must be added and subtracted in any case
        self.update(ts, value, lo)


class NumbersState(SubtractState):
    """The same for a sum or a mean of one column, and a count, as topologies ask for: no call per value."""

    __slots__ = ()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        total = self.total
        if ts < self.newest or type(value) is not int:
            return super().update(ts, value, lo)
        strategy = self.strategy
        at = strategy.number_at
        if total is _UNKNOWN:
            if self.end > self.start or self.inexact_until >= 0:
                return super().update(ts, value, lo)
            # the first record, or the first after a pause
            self.total = total = strategy.init()
            self.oldest = ts
        if strategy.averages:
            sums, count = total[at]
        else:
            sums = total[at]
        if type(sums) is not int:
            return super().update(ts, value, lo)
        end = self.end
        if not end & 63:
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end + 1
        sums += value
        more = 1
        if self.oldest < lo and (times := self.old_times)[-1] >= lo:
            # the expired values are nearly always all in the oldest block
            values = self.old_values
            head = first = self.head
            while (oldest := times[head]) < lo and type(expired := values[head]) is int:
                sums -= expired
                head += 1
            more += first - head
            self.start += head - first
            self.oldest = oldest
            if head < 32:
                self.head = head
            else:
                self.trim(head)
        number: float
        if strategy.averages:
            count += more
            total[at] = (sums, count)
            number = sums / count
        else:
            number = total[at] = sums
        if len(total) > 1:
            rows = total[1 - at] = total[1 - at] + more
        if self.oldest < lo:
            self.expire(lo)
            return strategy.finish(self.total)
        if len(total) == 1:
            return (number,)
        return (rows, number) if at else (number, rows)


class CountState(SubtractState):
    """The same for a plain count: the value log knows their number, so nothing is added or subtracted."""

    __slots__ = ()

    def update(self, ts: int, value: Any, lo: int) -> Any:
        if ts < self.newest:
            self.insert_late(ts, value)
            if self.oldest < lo:
                self.expire(lo)
            return self.end - self.start
        end = self.end
        if not end & 63:
            self.roll()
        self.newest = ts
        self.times.append(ts)
        self.values.append(value)
        self.end = end = end + 1
        oldest = self.oldest
        if oldest < lo:
            head = self.head + 1
            # -1: unknown, so that the first value need not expire
            if oldest >= 0:
                try:
                    oldest = self.old_times[head]
                except IndexError:
                    oldest = -1
            if oldest < lo:
                self.expire(lo)
                return self.end - self.start
            if head < 32:
                self.head = head
            else:
                self.trim(32)
            start = self.start = self.start + 1
            self.oldest = oldest
            return end - start
        return end - self.start

    def value(self) -> Any:
        return self.end - self.start


def _kind(aggregator: Aggregator) -> str:
    """Return "sum" or "count" for such a built-in aggregator, which needs no call; else an empty text."""
    if aggregator.copy is not None:
        return ""
    if aggregator.add is exact.add and aggregator.subtract is exact.subtract and aggregator.result is exact.result:
        return "sum" if aggregator.exact_subtract is exact.KINDS else ""
    return "count" if aggregator.result is None and aggregator.add is count_one and aggregator.init() == 0 else ""


def _parts(aggregator: Aggregator) -> tuple[Part, ...] | None:
    """Return the kinds of the parts of an aggregator, or None if some are others than counts, sums and means."""
    if not isinstance(aggregator, Combined) or not aggregator.exact_subtract:
        return None
    kinds: list[Any] = ["mean" if part.add is mean_add else _kind(part) for part in aggregator.parts]
    return tuple(zip(kinds, aggregator.places, strict=True)) if all(kinds) else None


class Subtract(Strategy[SubtractState]):
    """One add and one subtract a record.

    `subtract` must be exact, at least for some types of values, and then a commutative `merge` is needed for the other
    types. An aggregator that is not commutative may have a left inverse (removing the oldest value of a list): each
    record out of order then costs N adds. Raises ValueError if the aggregator lacks a power.
    """

    name = "subtract"

    __slots__ = (
        "averages",
        "commutative",
        "exact_for",
        "exact_kinds",
        "exact_types",
        "fan",
        "number_at",
        "parts",
        "plain",
        "promote",
        "state",
    )

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(aggregator)
        if aggregator.subtract is None:
            raise ValueError(
                f"strategy subtract: aggregator {aggregator.name}: found no subtract, expected one (give subtract= and "
                "exact_subtract=True, or use another strategy)"
            )
        types = aggregator.exact_subtract
        if not types:
            raise ValueError(
                f"strategy subtract: aggregator {aggregator.name}: found exact_subtract=False, expected True "
                "(declare it if taking a value out leaves no trace of it, or use another strategy)"
            )
        self.subtract: Any = aggregator.subtract
        # None: subtracting leaves no trace of any value; else `exact_for` says of which values it leaves none
        self.exact_types = types if isinstance(types, tuple) else None
        self.exact_for = aggregator.exact_for
        parts = aggregator.parts if isinstance(aggregator, Combined) else (aggregator,)
        limits = [set(part.exact_subtract) for part in parts if isinstance(part.exact_subtract, tuple)]
        # the types of values that every part takes out without a trace
        self.exact_kinds = frozenset(set.intersection(*limits) if limits else ())
        self.commutative = aggregator.commutative
        self.fan = 32
        self.promote = 8
        kind = _kind(aggregator)
        self.plain = kind == "sum"
        self.state: type[SubtractState] = CountState if kind == "count" else SubtractState
        self.number_at, self.averages = 0, False
        if isinstance(aggregator, Combined) and len(aggregator.columns) == 1:
            kinds = ["mean" if part.add is mean_add else _kind(part) for part in aggregator.parts]
            if sorted(kinds) in (["sum"], ["count", "sum"], ["mean"], ["count", "mean"]):
                self.number_at = 1 - kinds.index("count") if "count" in kinds else 0
                self.averages = "mean" in kinds
                self.state = NumbersState
        self.parts: tuple[Part, ...] | None = _parts(aggregator)
        """What an aggregate is made of, if that is counts, sums and means alone: see `slid`."""
        if self.exact_types is not None:
            if aggregator.merge is None:
                raise ValueError(
                    f"strategy subtract: aggregator {aggregator.name}: found subtract exact for some types only and "
                    "no merge, expected a merge for the other types (give merge=, or use strategy='recompute')"
                )
            require_commutative(self.name, aggregator)
