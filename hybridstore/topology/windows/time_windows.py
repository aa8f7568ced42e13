"""Tumbling and hopping windows, kept whole, and the window that never closes: key and window start -> aggregate, in a
window store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import repeat
from typing import Any

from ...aggregation import Forever, HoppingWindows, TumblingWindows
from ...clock import INT64_MAX, Watermark, closed_through, expired_through
from ...state.group import StoreGroup
from ...stores.window import WindowStore
from ..batch import Records
from ..plan import Plan
from ..results import Result
from .windowed import BY_START_AND_KEY, WINDOWS, Windowed, window_store


class TimeWindowed(Windowed[WindowStore]):
    """The state of one shard's tumbling or hopping windows."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        assert isinstance(plan.windows, TumblingWindows | HoppingWindows | Forever)
        self.windows = plan.windows
        store = window_store(group, WINDOWS, plan.kept_ms, size_ms=plan.windows.longest_ms, clocked=clocked)
        super().__init__(plan, store, store.stream_time, clocked=clocked)
        # (start, key) -> [largest record time, aggregate], changed in this commit
        self.open: dict[tuple[int, Any], list[Any]] = {}

    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """See `Windowed.add`. O(records x windows)."""
        windows, open_, size = self.windows, self.open, self.windows.size_ms
        if self._gathers(records, now):
            return self._gathered(records, now, clock)
        closing, floor = self.closing_ms, self.floor
        regular = isinstance(windows, Forever) or windows.regular
        tumbling = regular and not isinstance(windows, HoppingWindows)
        add, finish, each = self.aggregates.add, self.aggregates.finish, self.emit == "record"
        closed = self.closed(now)
        self.store.touch(records.keys)
        for key, value, ts in self.rows(records):
            if ts > now and clock is None:
                now = ts
                closed = max(closed_through(now, closing), floor)
            starts = (ts - ts % size,) if tumbling else windows.windows_for(ts)
            for start in starts:
                end = start + size if regular else windows.end_of(start)
                if end <= closed:
                    self.dropped += 1
                    if start == starts[-1]:
                        self.too_late()
                    continue
                slot = open_.get((start, key))
                if slot is None:
                    slot = open_[(start, key)] = self._load(key, start)
                slot[1] = add(slot[1], value)
                if ts > slot[0]:
                    slot[0] = ts
                if each:
                    results.append(Result(key, start, end, finish(slot[1]), slot[0]))
        return now

    def _gathers(self, records: Records, now: int) -> bool:
        """Whether the values of each window can be gathered and added at once: each record has one window, none of
        which has closed, and nobody asks for the result or the error of a record.
        """
        windows = self.windows
        if self.emit == "record" or self.failed is not None or isinstance(windows, HoppingWindows):
            return False
        if isinstance(windows, Forever):
            return True
        # in a commit records are in order of time: one is late only if it was late before the commit began
        first = min(records.times, default=INT64_MAX)
        return windows.regular and first - first % windows.size_ms + windows.size_ms > self.closed(now)

    def _gathered(self, records: Records, now: int, clock: Watermark | None) -> int:
        """Add records by window: see `add`. O(records), at C speed but for the aggregates."""
        keys, values, times = records.keys, records.values, records.times
        if not keys:
            return now
        size = self.windows.size_ms
        starts = repeat(0) if isinstance(self.windows, Forever) else [ts - ts % size for ts in times]
        windows = list(zip(starts, keys, strict=False))
        gathered: defaultdict[tuple[int, Any], list[Any]] = defaultdict(list)
        for window, value in zip(
            windows, zip(times, values, strict=True) if self.aggregates.timed else values, strict=True
        ):
            gathered[window].append(value)
        newest = dict(zip(windows, times, strict=True))
        open_, fold = self.open, self.aggregates.fold
        self.store.touch(keys)
        self._load_all([window for window in gathered if window not in open_])
        for window, given in gathered.items():
            slot = open_[window]
            slot[1] = fold(slot[1], given)
            slot[0] = max(slot[0], newest[window])
        return now if clock is not None else max(now, times[-1])

    def _load_all(self, windows: list[tuple[int, Any]]) -> None:
        """Load windows (start, key) that are not in memory. O(windows)."""
        of_start: defaultdict[int, list[Any]] = defaultdict(list)
        for start, key in windows:
            of_start[start].append(key)
        for start, keys in of_start.items():
            for key, stored in zip(keys, self.store.get_many(keys, start), strict=True):
                self.open[start, key] = self._slot(stored)

    def _load(self, key: Any, start: int) -> list[Any]:
        return self._slot(self.store.get(key, start))

    def _slot(self, stored: Any) -> list[Any]:
        """Return (largest record time, aggregate) of a stored value that may be changed; new ones without a value."""
        return [-1, self.aggregates.init()] if stored is None else list(self.form.changeable(stored))

    def changed(self) -> list[Result]:
        self.open = dict(sorted(self.open.items()))
        return [self._result(window, slot) for window, slot in self.open.items()]

    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """See `Windowed.ended`: by start and then key. O(those windows)."""
        # windows on a grid of their own are read by their starts, and chosen by their ends
        windows, regular, open_ = self.windows, self.windows.regular, self.open
        low = max(0, after - windows.longest_ms + 1)
        high = None if through is None else through - (windows.size_ms if regular else 1)
        if high is not None and high < low:
            return
        stored = (
            self._result((start, key), self.form.shared(value))
            for (key, start), value in self.store.scan(time_from=low, time_to=high)
            if (start, key) not in open_
        )
        changed = sorted(window for window in open_ if window[0] >= low and (high is None or window[0] <= high))
        results = merge(stored, (self._result(window, open_[window]) for window in changed), key=BY_START_AND_KEY)
        last = INT64_MAX if through is None else through
        yield from results if regular else (result for result in results if after < result.end <= last)

    def _result(self, window: tuple[int, Any], slot: Sequence[Any]) -> Result:
        start, key = window
        return Result(key, start, self.windows.end_of(start), self.aggregates.finish(slot[1]), slot[0])

    def write(self) -> None:
        """See `Windowed.write`: by start and then key."""
        expired = expired_through(self.stream_time, self.retention_ms)
        value = self.form.value
        rows = [(key, value(*slot), start) for (start, key), slot in sorted(self.open.items()) if start > expired]
        self.store.put_many(rows)
