"""Sliding windows as adopted by Kafka 2.7: windows [s, s + size], both ends inclusive, stored by their start in a
window store.

A record at `ts` has a window that ends at it and, once a later record is within `size`, one that begins right after it;
records earlier than `size` share the window [0, size]. A window changes while `end >= stream time - grace`.

The windows of the keys that a commit touches change in memory and are written at its end. The surprise: a new window
never needs the records themselves. The window that ends at `ts` starts from the aggregate of the newest window that
ended before, and the window that begins after `ts` from that of the newest window that begins by `ts`, because every
record in between would have made a window of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import merge
from typing import Any

from ...aggregation import SlidingWindows
from ...clock import Watermark, closed_through, expired_through
from ...state.group import StoreGroup
from ...stores.window import WindowStore
from ..batch import Records
from ..plan import Plan
from ..results import Result
from .stored import StoredForm
from .windowed import BY_START_AND_KEY, WINDOWS, OpenWindow, Windowed, window_store


class _KeyWindows:
    """The windows of a key that start at `low` or later: their starts, sorted, and start -> window."""

    __slots__ = ("low", "starts", "windows")

    def __init__(self) -> None:
        self.windows: dict[int, OpenWindow] = {}
        self.starts: list[int] = []
        self.low: int | None = None

    def make(self, start: int, window: OpenWindow) -> None:
        """Add a new window. O(log windows) and a move of the starts behind it."""
        self.windows[start] = window
        insort(self.starts, start)


class KafkaSlidingWindowed(Windowed[WindowStore]):
    """The state of one shard's sliding windows, in the flavour of Kafka."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        assert isinstance(plan.windows, SlidingWindows)
        store = window_store(group, WINDOWS, plan.kept_ms, clocked=clocked)
        self._group = group
        # The store's time is that of its newest window start, so that expiry does not depend on the ends of other keys'
        # windows; with a watermark it is the watermark.
        self._clocked = clocked
        self._setting = f"stream time of {WINDOWS}"
        stream_time = store.stream_time if clocked else group.settings.get(self._setting, -1)
        super().__init__(plan, store, stream_time, clocked=clocked)
        # newest is always needed: it is the time of the record before another one
        self.form = StoredForm(plan.combined, timed=True)
        self._size = plan.windows.size_ms
        self.reach_ms = 2 * self._size
        # Kafka emits no window as final beyond a declared retention
        self._limited = plan.retention_ms is not None
        self.open: dict[Any, _KeyWindows] = {}

    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """See `Windowed.add`. O(windows that hold it) per record.

        For a key that a commit touches, the windows from two sizes before its earliest record on are loaded, however
        long windows are kept.
        """
        size, closing, floor = self._size, self.closing_ms, self.floor
        each: list[Result] | None = results if self.emit == "record" else None
        closed = self.closed(now)
        self.store.touch(records.keys)
        for key, value, ts in self.rows(records):
            if ts > now and clock is None:
                now = ts
                closed = max(closed_through(now, closing), floor)
            if ts + size <= closed:
                self.dropped += 1
                self.too_late()
                continue
            of_key = self.open.get(key)
            if of_key is None:
                of_key = self.open[key] = _KeyWindows()
            # no window that begins earlier can hold the record
            if of_key.low is None or of_key.low > max(0, ts - 2 * size):
                self._load(of_key, key, max(0, ts - 2 * size))
            if not self._add(of_key, key, value, ts, closed, each):
                self.too_late()
        return now

    def _add(
        self, of_key: _KeyWindows, key: Any, value: Any, ts: int, closed: int, results: list[Result] | None
    ) -> bool:
        """Add a record to the windows that hold it, and make its new windows; return whether a window accepted it."""
        size, starts, windows = self._size, of_key.starts, of_key.windows
        first_start = max(0, ts - size)
        low, high = bisect_left(starts, first_start), bisect_right(starts, ts)
        holding = starts[low:high]
        begins = windows.get(first_start)
        # the content of the window after this record, before the record is added
        after = windows[holding[-1]] if holding else None
        right: OpenWindow | None = None
        if after is not None and after.newest > ts and ts + 1 not in windows:
            right = OpenWindow(after.newest, self._copied(after), fresh=True)
        # the record before this one, if both can share a window
        previous: int | None = None
        before: OpenWindow | None = None
        if begins is not None:
            previous = begins.newest if begins.newest < ts else None
        elif low and starts[low - 1] >= ts - 2 * size:
            before = windows[starts[low - 1]]
            previous = before.newest
        taken = False
        for start in holding:
            taken |= self._update(key, start, windows[start], value, ts, closed, results)
        if right is not None:
            of_key.make(ts + 1, right)
            if results is not None:
                results.append(self._result(key, ts + 1, right))
        if begins is None:
            joins = before is not None and before.newest >= first_start
            window = OpenWindow(
                before.newest if joins and before is not None else ts,
                self._copied(before) if joins and before is not None else self.aggregates.init(),
                fresh=True,
            )
            if self._update(key, first_start, window, value, ts, closed, results):
                of_key.make(first_start, window)
                taken = True
        if previous is not None and previous + 1 not in windows and previous + 1 + size >= ts:
            window = OpenWindow(ts, self.aggregates.init(), fresh=True)
            if self._update(key, previous + 1, window, value, ts, closed, results):
                of_key.make(previous + 1, window)
                taken = True
        return taken

    def _update(
        self, key: Any, start: int, window: OpenWindow, value: Any, ts: int, closed: int, results: list[Result] | None
    ) -> bool:
        """Add the record to a window; if the window has closed, count the record as dropped."""
        if start + self._size <= closed:
            self.dropped += 1
            return False
        window.make_changeable(self.aggregates.copy)
        window.aggregate = self.aggregates.add(window.aggregate, value)
        window.newest = max(window.newest, ts)
        window.changed = True
        if results is not None:
            results.append(self._result(key, start, window))
        return True

    def _copied(self, window: OpenWindow) -> Any:
        copy = self.aggregates.copy
        return window.aggregate if copy is None else copy(window.aggregate)

    def _result(self, key: Any, start: int, window: OpenWindow) -> Result:
        return Result(key, start, start + self._size, self.aggregates.finish(window.aggregate), window.newest)

    def _load(self, of_key: _KeyWindows, key: Any, low: int) -> None:
        """Load the windows of a key that start at `low` or later and have not been loaded yet. O(those)."""
        shared = self.form.shared
        through = None if of_key.low is None else of_key.low - 1
        older = {start: OpenWindow(*shared(value), fresh=False) for start, value in self.store.fetch(key, low, through)}
        of_key.windows.update(older)
        of_key.starts[:0] = older
        of_key.low = low

    def _is_open(self, key: Any, start: int) -> bool:
        """True if a stored window is in memory for changes."""
        of_key = self.open.get(key)
        return of_key is not None and of_key.low is not None and start >= of_key.low

    def _windows(self) -> Iterator[tuple[int, Any, OpenWindow]]:
        """Yield (start, key, window) of those in memory."""
        return ((start, key, window) for key, of_key in self.open.items() for start, window in of_key.windows.items())

    def _changes(self) -> list[tuple[int, Any, OpenWindow]]:
        return sorted((row for row in self._windows() if row[2].changed), key=lambda row: row[:2])

    def changed(self) -> list[Result]:
        return [self._result(key, start, window) for start, key, window in self._changes()]

    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """See `Windowed.ended`: by start and then key. O(those windows)."""
        low, high = max(0, after - self._size + 1), None if through is None else through - self._size
        if self._limited and high is not None:
            low = max(low, self._expired() + 1)
        if high is not None and high < low:
            return iter(())
        finish, shared = self.aggregates.finish, self.form.shared
        changed = [
            self._result(key, start, window)
            for start, key, window in self._windows()
            if start >= low and (high is None or start <= high)
        ]
        stored = (
            Result(key, start, start + self._size, finish(aggregate), newest)
            for (key, start), value in self.store.scan(time_from=low, time_to=high)
            if not self._is_open(key, start)
            for newest, aggregate in (shared(value),)
        )
        return merge(stored, sorted(changed, key=BY_START_AND_KEY), key=BY_START_AND_KEY)

    def _expired(self) -> int:
        """Return the largest start of a window that expires with the commit."""
        newest = self.store.stream_time
        if not self._clocked:
            newest = max((start for start, _, window in self._windows() if window.changed), default=newest)
            newest = max(newest, self.store.stream_time)
        return expired_through(newest, self.retention_ms)

    def write(self) -> None:
        """See `Windowed.write`: by start and then key."""
        expired, value = self._expired(), self.form.value
        self.store.put_many(
            [
                (key, value(window.newest, window.aggregate), start)
                for start, key, window in self._changes()
                if start > expired
            ]
        )

    def move(self) -> None:
        """See `Windowed.move`: with a watermark the store's time, else a setting beside it."""
        if self._clocked:
            self.store.advance(self.stream_time)
        elif self.stream_time > self.committed:
            self._group.set(self._setting, self.stream_time)
