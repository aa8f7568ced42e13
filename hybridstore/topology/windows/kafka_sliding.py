"""Sliding windows as adopted by Kafka 2.7: windows [s, s + size], both ends inclusive, stored by their start in a window store.

A record at `ts` has a window that ends at it and, once a later record is within `size`, one that begins right after it; records
earlier than `size` share the window [0, size]. A window changes while `end >= stream time - grace`.

The windows of the keys that a commit touches are worked on in memory and written when it ends. The surprise: a new window never
needs the records themselves. The one that ends at `ts` holds what the newest window that ended before it held, and the one that
begins after `ts` holds what the newest window that begins by `ts` holds, because every record in between would have made a
window of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any

from ...aggregation import Combined, SlidingWindows
from ...clock import BY_ADVANCE, Watermark, expired_through, inclusive_window_closed_through
from ...state.group import StoreGroup
from ..results import Result
from .stored import Stored


class _Window:
    """A window of the commit in progress; `owned` when its aggregate may be changed, `changed` when it is to be written."""

    __slots__ = ("aggregate", "changed", "newest", "owned")

    def __init__(self, newest: int, aggregate: Any, *, fresh: bool) -> None:
        self.newest = newest
        self.aggregate = aggregate
        self.owned = self.changed = fresh


class _KeyWindows:
    """The windows of a key that start at `low` or later: their starts, sorted, and start -> window."""

    __slots__ = ("low", "starts", "windows")

    def __init__(self) -> None:
        self.windows: dict[int, _Window] = {}
        self.starts: list[int] = []
        self.low: int | None = None


class KafkaSlidingWindowed:
    """The state of one shard's sliding windows, in the flavour of Kafka."""

    def __init__(
        self,
        windows: SlidingWindows,
        aggregates: Combined,
        group: StoreGroup,
        name: str,
        emit: str,
        *,
        retention_ms: int | None,
        clocked: bool = False,
    ) -> None:
        self._size, self._grace = windows.size_ms, windows.grace_ms
        self._aggregates = aggregates
        self._emit = emit
        # newest is needed in any case: it says where the record before another one stood
        self._form = Stored(aggregates, timed=True)
        # Windows that begin up to 2 sizes before a record are looked at, which is accepted up to size + grace late.
        self._retention = 3 * self._size + self._grace + 1 if retention_ms is None else retention_ms
        self._limited = retention_ms is not None
        store: Any = group.open(
            name,
            "window",
            {
                "retention_ms": self._retention,
                "window_size_ms": None,
                "grace_ms": self._retention,
                "retain_duplicates": False,
                **(BY_ADVANCE if clocked else {}),
            },
        )
        self._store = store
        self._group = group
        # The store's own time is that of its newest window start, so that what expires does not depend on other keys'
        # ends; with a watermark it is that.
        self._clocked = clocked
        self._setting = f"stream time of {name}"
        self.stream_time: int = store.stream_time if clocked else group.settings.get(self._setting, -1)
        self._committed = self.stream_time
        self.dropped = 0
        self._open: dict[Any, _KeyWindows] = {}

    @staticmethod
    def needed_ms(windows: SlidingWindows) -> int:
        """Return the least retention that may be asked for, as in Kafka."""
        return max(1, 2 * windows.size_ms + windows.grace_ms)

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. O(windows that hold it) per record.

        Of a key that a commit touches the windows of two sizes before its earliest record are loaded, however long windows are kept.
        """
        results: list[Result] = []
        now = self.stream_time if clock is None else max(self.stream_time, clock.late_ms)
        self._store.touch(keys)
        for key, value, ts in zip(keys, values, times, strict=True):
            if ts > now and clock is None:
                now = ts
            closed = inclusive_window_closed_through(now, self._grace)
            if ts + self._size <= closed:
                self.dropped += 1
                continue
            own = self._open.get(key)
            if own is None:
                own = self._open[key] = _KeyWindows()
            # no window that begins earlier has to do with the record
            if own.low is None or own.low > max(0, ts - 2 * self._size):
                self._load(own, key, max(0, ts - 2 * self._size))
            self._add(own, key, value, ts, closed, results)
        self.stream_time = now if clock is None else max(now, clock.now_ms)
        return results if self._emit == "record" else []

    def _add(self, own: _KeyWindows, key: Any, value: Any, ts: int, closed: int, results: list[Result]) -> None:
        """Add a record to the windows that hold it, and make those that it calls for."""
        size, starts, windows = self._size, own.starts, own.windows
        left = max(0, ts - size)
        low, high = bisect_left(starts, left), bisect_right(starts, ts)
        holding = starts[low:high]
        begins = windows.get(left)
        # what the window after this record would hold, as it is before the record is added
        after = windows[holding[-1]] if holding else None
        right: _Window | None = None
        if after is not None and after.newest > ts and ts + 1 not in windows:
            right = _Window(after.newest, self._copied(after), fresh=True)
        # the record before this one, if it is near enough to share windows with it
        previous: int | None = None
        before: _Window | None = None
        if begins is not None:
            previous = begins.newest if begins.newest < ts else None
        elif low and starts[low - 1] >= ts - 2 * size:
            before = windows[starts[low - 1]]
            previous = before.newest
        for start in holding:
            self._update(key, start, windows[start], value, ts, closed, results)
        if right is not None:
            self._make(own, ts + 1, right)
            results.append(self._result(key, ts + 1, right))
        if begins is None:
            joins = before is not None and before.newest >= left
            window = _Window(
                before.newest if joins and before is not None else ts,
                self._copied(before) if joins and before is not None else self._aggregates.init(),
                fresh=True,
            )
            if self._update(key, left, window, value, ts, closed, results):
                self._make(own, left, window)
        if previous is not None and previous + 1 not in windows and previous + 1 + size >= ts:
            window = _Window(ts, self._aggregates.init(), fresh=True)
            if self._update(key, previous + 1, window, value, ts, closed, results):
                self._make(own, previous + 1, window)

    def _update(
        self, key: Any, start: int, window: _Window, value: Any, ts: int, closed: int, results: list[Result]
    ) -> bool:
        """Add the record to a window, unless that has closed: then it is counted as dropped."""
        if start + self._size <= closed:
            self.dropped += 1
            return False
        if not window.owned:
            window.aggregate = self._copied(window)
            window.owned = True
        window.aggregate = self._aggregates.add(window.aggregate, value)
        window.newest = max(window.newest, ts)
        window.changed = True
        results.append(self._result(key, start, window))
        return True

    @staticmethod
    def _make(own: _KeyWindows, start: int, window: _Window) -> None:
        own.windows[start] = window
        insort(own.starts, start)

    def _copied(self, window: _Window) -> Any:
        copy = self._aggregates.copy
        return window.aggregate if copy is None else copy(window.aggregate)

    def _result(self, key: Any, start: int, window: _Window) -> Result:
        return Result(key, start, start + self._size, self._aggregates.finish(window.aggregate), window.newest)

    def _load(self, own: _KeyWindows, key: Any, low: int) -> None:
        """Load the windows of a key that start at `low` or later and have not been loaded yet. O(those)."""
        shared = self._form.shared
        through = None if own.low is None else own.low - 1
        older = {start: _Window(*shared(value), fresh=False) for start, value in self._store.fetch(key, low, through)}
        own.windows.update(older)
        own.starts[:0] = older
        own.low = low

    def _is_open(self, key: Any, start: int) -> bool:
        """True if a stored window is being worked on in memory."""
        own = self._open.get(key)
        return own is not None and own.low is not None and start >= own.low

    def finish(self) -> list[Result]:
        """End the commit: return what is due at its end, and write what changed. O(changed + closed)."""
        changed = [
            (start, key, window)
            for key, key_windows in self._open.items()
            for start, window in key_windows.windows.items()
            if window.changed
        ]
        changed.sort(key=lambda row: row[:2])
        results: list[Result] = []
        if self._emit == "commit":
            results = [self._result(key, start, window) for start, key, window in changed]
        elif self._emit == "close" and not self._limited:
            results = self._closed()  # while the store still has what the writes below let expire
        if changed:
            newest = self._store.stream_time if self._clocked else max(changed[-1][0], self._store.stream_time)
            expired = expired_through(newest, self._retention)
            self._store.put_many(
                [
                    (key, self._form.value(window.newest, window.aggregate), start)
                    for start, key, window in changed
                    if start > expired
                ]
            )
        self._open = {}
        if self._emit == "close" and self._limited:
            results = self._closed()
        if self.stream_time > self._committed:
            if self._clocked:
                self._store.advance(self.stream_time)
            else:
                self._group.set(self._setting, self.stream_time)
            self._committed = self.stream_time
        return results

    def _closed(self) -> list[Result]:
        """Return the windows that closed in this commit, by start and then key."""
        before = inclusive_window_closed_through(self._committed, self._grace)
        closed = inclusive_window_closed_through(self.stream_time, self._grace)
        if closed <= before:
            return []
        return self._results(max(0, before - self._size + 1), closed - self._size)

    def _results(self, low: int, high: int | None) -> list[Result]:
        """Return the windows that start in a range of times, as they are now, by start and then key."""
        found: list[Result] = []
        if high is None or high >= low:
            for (key, start), value in self._store.fetch_all(low, high):
                if not self._is_open(key, start):
                    newest, aggregate = self._form.shared(value)
                    found.append(Result(key, start, start + self._size, self._aggregates.finish(aggregate), newest))
        for key, own in self._open.items():
            found += [
                self._result(key, start, window)
                for start, window in own.windows.items()
                if start >= low and (high is None or start <= high)
            ]
        return sorted(found, key=lambda result: (result.start, result.key))

    def live(self) -> list[Result]:
        """Return the windows as they are now, by start and then key. O(windows)."""
        return self._results(0, None)
