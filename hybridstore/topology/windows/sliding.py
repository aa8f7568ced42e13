"""Sliding windows, one per record (KIP-450 as in its text): the values of a key in a sliding store, the aggregate
rebuilt from them.

With a watermark as the time, a record ahead of the watermark waits in a separate store until the watermark has reached
its time. So records enter their windows in the order of their times, however they arrived, and a window never has a
record that is newer than its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, repeat
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any, Final

from ...aggregation import SlidingWindows, WindowState, choose
from ...clock import Watermark, slid_out_through
from ...state.group import StoreGroup
from ...stores.kinds import SLIDING
from ...stores.sliding import SlidingStore
from ..batch import Records, canonical_order
from ..plan import Plan
from ..results import Result, ResultColumns, Results
from .windowed import WINDOWS, Windowed, window_store

if TYPE_CHECKING:
    from ...aggregation.slid import Grouped

_BY_KEY: Final = itemgetter(0)


class _Made:
    """The aggregate of a window, computed before the window is emitted."""

    __slots__ = ("_aggregate",)

    def __init__(self, aggregate: Any) -> None:
        self._aggregate = aggregate

    def value(self) -> Any:
        return self._aggregate


class SlidingWindowed(Windowed[SlidingStore]):
    """The state of one shard's sliding windows. None of them closes: a window slides."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        assert isinstance(plan.windows, SlidingWindows)
        self.size_ms = size = plan.windows.size_ms
        store = SLIDING.open(group, WINDOWS, {"size_ms": size, "aggregator": plan.combined.describe()})
        store.bind(choose(plan.combined, plan.strategy))
        # Records that the watermark has reached may expire: the retention only determines the size of the buckets.
        pieces = max(1, size // 4)
        self._waiting = (
            window_store(group, f"{WINDOWS} ahead", pieces, duplicates=True, clocked=True) if clocked else None
        )
        super().__init__(plan, store, store.stream_time, clocked=clocked)
        self._several = len(plan.key) != 1 and plan.null_keys == "skip"
        # With emit="commit", key -> its state, stream time and record time as of its last record in this commit
        self.open: dict[Any, tuple[WindowState | _Made, int, int]] = {}

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`; it is clamped at 0."""
        return max(0, slid_out_through(end, self.size_ms) + 1)

    def aggregates_of(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[Any]:
        """Add records in order and return their aggregates, None for those that are late.

        O(cost of the strategy) per record.
        """
        aggregates = self.store.add_columns(keys, values, times)
        self._count_late(aggregates)
        return aggregates

    def columns_of(
        self, keys: list[Any], values: list[Any], times: list[int], grouped: Grouped | None = None
    ) -> tuple[list[Any], list[int]]:
        """Add records in order. Return a column for each part of their aggregates, and the places of records
        that are late, which have none; see `SlidingStore.add_for_columns`.
        """
        columns, late = self.store.add_for_columns(keys, values, times, grouped)
        self.dropped += len(late)
        if self.late is not None:
            self.late += late
        return columns, late

    def states_of(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[WindowState | None]:
        """Add records in order and aggregate nothing; return the states that can, None for records that are late.

        O(1) per record.
        """
        states = self.store.hold_columns(keys, values, times)
        self._count_late(states)
        return states

    def _count_late(self, aggregates: Sequence[Any]) -> None:
        """Count the records without an aggregate, which are late."""
        self.dropped += aggregates.count(None)
        if self.late is not None and None in aggregates:
            self.late += [place for place, aggregate in enumerate(aggregates) if aggregate is None]

    def process_batch(self, records: Records, clock: Watermark | None = None) -> Results:
        """See `Windowed.process_batch`: by column, if each record has a result without the record's time."""
        if self.emit != "record" or self._timed or clock is not None or self.open:
            return super().process_batch(records, clock)
        keys, values, times = records[:3]
        ends = list(accumulate(times, max, initial=self.store.stream_time))[1:]
        columns, late = self.columns_of(keys, values, times)
        if late:
            there = [True] * len(keys)
            for place in late:
                there[place] = False
            keys, ends = (list(compress(column, there)) for column in (keys, ends))
        self.stream_time = self.store.stream_time
        self.written()
        if not ends:
            return []
        unclamped = ends[0] >= self.size_ms  # times ascend
        starts = list(map(sub, ends, repeat(self.size_ms)) if unclamped else map(self.start_of, ends))
        # the key of a stream without key columns is empty text, of which no column is made
        parts = list(map(list, zip(*keys, strict=True))) if self._several else [keys]
        return ResultColumns(parts, starts, ends, columns)

    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """See `Windowed.add`. O(cost of the strategy) per record. A record is late by the time of the store alone."""
        if clock is not None:
            records = self._due(records, clock)
        keys, values, times = records[:3]
        now = self.store.stream_time
        if self.emit == "commit":
            for key, ts, state in zip(keys, times, self.states_of(keys, values, times), strict=True):
                if state is not None:
                    now = max(now, ts)
                    self.open[key] = (state, now, ts)
            return now
        if len(keys) == 1:
            # columns of one row cost twice what the row does
            window = self.store.add(keys[0], values[0], times[0])
            self._count_late([window])
            if window is not None:
                results.append(Result(*window, times[0]))
            return self.store.stream_time
        start = self.start_of(now)
        for key, ts, aggregate in zip(keys, times, self.aggregates_of(keys, values, times), strict=True):
            if aggregate is None:
                continue
            if ts > now:
                now = ts
                start = self.start_of(now)
            results.append(Result(key, start, now, aggregate, ts))
        return now

    def _due(self, records: Records, clock: Watermark) -> Records:
        """Store records ahead of the watermark; return the records that the watermark has reached, in order, without
        late ones.

        O(n log n).
        """
        waiting = self._waiting
        assert waiting is not None
        # the last watermark of this shard: records that it had reached do not wait any more
        passed = waiting.stream_time
        now = max(passed, clock.now_ms)
        through = slid_out_through(max(passed, clock.late_ms), self.size_ms)
        waited = list(waiting.scan(time_from=passed + 1, time_to=now)) if now > passed else []
        due = [(key, value, ts) for key, value, ts in records.rows() if through < ts <= now]
        self.dropped += sum(ts <= through for ts in records.times)
        if self.late is not None:
            self.late += [place for place, ts in enumerate(records.times) if ts <= through]
        # in a list, because for a store that keeps duplicates None is no value, but for an aggregator None is a value
        waiting.put_many([(key, [value], ts) for key, value, ts in records.rows() if ts > now])
        due += [(key, value, ts) for (key, ts), (value,) in waited]
        unordered = Records([row[0] for row in due], [row[1] for row in due], [row[2] for row in due])
        return unordered.taken(canonical_order(unordered.keys, unordered.values, unordered.times))

    def changed(self) -> list[Result]:
        """See `Windowed.changed`: the last result of each key, by key. Only those are aggregated."""
        return [
            Result(key, self.start_of(now), now, state.value(), ts)
            for key, (state, now, ts) in sorted(self.open.items(), key=_BY_KEY)
        ]

    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """See `Windowed.ended`: the current window of every key, which ends now, by key. O(keys)."""
        # reading a key expires values that later results need
        self.open = {key: (_Made(state.value()), now, ts) for key, (state, now, ts) in self.open.items()}
        now = self.stream_time
        start = self.start_of(now)
        return (Result(key, start, now, aggregate, now) for key, aggregate in self.store.aggregates())

    def write(self) -> None:
        """See `Windowed.write`: the store has the records already."""

    def move(self) -> None:
        """See `Windowed.move`: records alone move the store's time, but for a watermark."""
        if self._waiting is not None:
            self._waiting.advance(self.stream_time)
            self.store.advance(self.stream_time)
