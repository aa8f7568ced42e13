"""The two designs of KIP-450, as references for tests and benchmarks: `simple` and `buckets`.

    simple     for every record the aggregate of the window that begins at it: N adds a record
    buckets    values in buckets of k records, and for each bucket the running aggregate of everything newer than it;
               a record is added to the running aggregates of all older buckets, and the result is the first bucket's
               running aggregate with the values of that bucket: N/k + k/2 adds a record

The surprise: buckets apply newer values before older ones even on a stream in order, so they need a commutative
aggregator, which the KIP does not mention. The simple design applies values in their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

from hybridstore.aggregation import STRATEGIES as OURS
from hybridstore.aggregation import Aggregator, Strategy, WindowState
from hybridstore.aggregation import choose as choose_ours
from hybridstore.aggregation.ladder import require_commutative


def bucket_size(records: int, *, add: float = 1.0, write: float = 0.0, read: float = 0.0) -> int:
    """Return the best size of a bucket for a window of so many records, from the costs of an add, a write and a read.

    The cost of a record is (N/k)(add + write) + (k/2)(add + read), least at k = sqrt(2 N (add + write) / (add + read)).
    A factor of 2 to either side costs 25 %.
    """
    return max(1, round(sqrt(2 * records * (add + write) / (add + read))))


def bucket_count(records: int, *, add: float = 1.0, write: float = 0.0, read: float = 0.0) -> int:
    """Return the KIP's M, the best number of buckets: sqrt(N/2 * (add + read) / (add + write))."""
    return ceil(records / bucket_size(records, add=add, write=write, read=read)) if records else 0


class SimpleState(WindowState):
    """One key's aggregates, one for each live record."""

    __slots__ = ("aggregates", "strategy")

    def __init__(self, strategy: Simple) -> None:
        super().__init__()
        self.strategy = strategy
        # one for each live position; None after a restore
        self.aggregates: list[Any] | None = None

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self.aggregates = None

    def clear(self) -> None:
        super().clear()
        self.aggregates = None

    def insert(self, ts: int, value: Any) -> int:
        late = ts < self.newest
        position = super().insert(ts, value)
        aggregates = self.aggregates
        if aggregates is not None:
            strategy = self.strategy
            add = strategy.add
            at = position - self.start
            # the window that begins at this record holds all newer ones, in event order
            newer = self.slice(position + 1, self.end) if late else ()
            for i in range(at):
                aggregates[i] = add(aggregates[i], value)
            aggregates.insert(at, strategy.fold(add(strategy.init(), value), newer))
        return position

    def expire(self, lo: int) -> int:
        expired = super().expire(lo)
        if expired and self.aggregates is not None:
            del self.aggregates[:expired]
        return expired

    def value(self) -> Any:
        strategy = self.strategy
        if self.aggregates is None:
            self._build()
        assert self.aggregates is not None
        return strategy.finish(self.aggregates[0] if self.aggregates else strategy.init())

    def _build(self) -> None:
        """Make every window's aggregate in event order: N (N + 1) / 2 adds."""
        strategy = self.strategy
        values = list(self.slice(self.start, self.end))
        self.aggregates = [strategy.fold(strategy.init(), values[i:]) for i in range(len(values))]

    def aggregates_held(self) -> int:
        return len(self.aggregates or ())


class Simple(Strategy[SimpleState]):
    """N adds and as many aggregates: KIP-450's first design. Right for any aggregator, in order of arrival.

    A rebuild from values uses their event order instead, and costs N (N + 1) / 2 adds once.
    """

    name = "simple"

    __slots__ = ()

    def new(self) -> SimpleState:
        return SimpleState(self)


class BucketsState(WindowState):
    """One key's buckets: `ends[i]` is the position behind bucket i, `running[i]` the aggregate of all behind it."""

    __slots__ = ("ends", "limit", "running", "strategy")

    def __init__(self, strategy: Buckets) -> None:
        super().__init__()
        self.strategy = strategy
        # ascending; the last bucket is open and has neither
        self.ends: list[int] | None = None
        self.running: list[Any] = []
        # where the open bucket closes
        self.limit = 0

    def load(self, times: Any, values: Any) -> None:
        super().load(times, values)
        self.ends = None

    def clear(self) -> None:
        super().clear()
        self.ends = None
        self.running = []

    def insert(self, ts: int, value: Any) -> int:
        if self.ends is not None and ts >= self.newest:
            if self.end >= self.limit and self.end > self.start:
                # the size of a bucket is chosen when the bucket is opened
                self.ends.append(self.end)
                self.running.append(self.strategy.init())
                self.limit = self.end + self.strategy.size_for(len(self) + 1)
            add = self.strategy.add
            self.running = [add(aggregate, value) for aggregate in self.running]
        return super().insert(ts, value)

    def displaced(self, position: int, ts: int, value: Any) -> None:
        ends = self.ends
        if ends is None:
            return
        add = self.strategy.add
        for i, end in enumerate(ends):
            if position < end:
                ends[i] = end + 1
            else:
                self.running[i] = add(self.running[i], value)
        self.limit += 1

    def expire(self, lo: int) -> int:
        expired = super().expire(lo)
        if expired and self.ends:
            empty = 0
            while empty < len(self.ends) and self.ends[empty] <= self.start:
                empty += 1
            if empty == len(self.ends) or empty:
                del self.ends[:empty], self.running[:empty]
        return expired

    def value(self) -> Any:
        strategy = self.strategy
        if self.ends is None:
            self._build()
        assert self.ends is not None
        if not self.ends:
            first, stop = strategy.init(), self.end
        else:
            first = self.running[0] if strategy.copy is None else strategy.copy(self.running[0])
            stop = self.ends[0]
        total = strategy.fold(first, self.slice(self.start, stop))
        return total if strategy.result is None else strategy.result(total)

    def _build(self) -> None:
        """Make buckets of the best size over all values, from the newest back: N adds together with the first
        result.
        """
        strategy = self.strategy
        size = strategy.size_for(len(self) + 1)
        ends: list[int] = []
        running: list[Any] = []
        at = self.end - size
        aggregate = strategy.init()
        behind = self.end
        while at > self.start:
            if running and strategy.copy is not None:
                aggregate = strategy.copy(aggregate)
            aggregate = strategy.fold(aggregate, self.slice(at, behind))
            ends.append(at)
            running.append(aggregate)
            behind = at
            at -= size
        self.ends = ends[::-1]
        self.running = running[::-1]
        self.limit = self.end

    def aggregates_held(self) -> int:
        return len(self.running)


class Buckets(Strategy[BucketsState]):
    """About sqrt(2 N) adds a record, at most 2 sqrt(N) in the worst: KIP-450's second design; needs `commutative`.

    `size` fixes the records of a bucket; None chooses by `bucket_size` from the costs of an add, a write of a running
    aggregate and a read of a value, each time that a bucket is opened. Raises ValueError if not commutative.
    """

    name = "buckets"

    __slots__ = ("costs", "size")

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        size: int | None = None,
        add: float = 1.0,
        write: float = 0.0,
        read: float = 0.0,
    ) -> None:
        super().__init__(aggregator)
        require_commutative(self.name, aggregator)
        if size is not None and size < 1:
            raise ValueError(f"buckets: size: found {size}, expected at least 1")
        self.size = size
        self.costs = {"add": add, "write": write, "read": read}

    def size_for(self, records: int) -> int:
        """Return the size (records) of a bucket that is opened now."""
        return self.size or bucket_size(records, **self.costs)

    def new(self) -> BucketsState:
        return BucketsState(self)


STRATEGIES: dict[str, Callable[[Aggregator], Strategy[Any]]] = {**OURS, "buckets": Buckets, "simple": Simple}
"""Every strategy by its name, and the references."""


def choose(aggregator: Aggregator, strategy: str | None = None) -> Strategy[Any]:
    """`hybridstore.aggregation.choose`, with the references."""
    if strategy in STRATEGIES and strategy not in OURS:
        return STRATEGIES[strategy](aggregator)
    return choose_ours(aggregator, strategy)
