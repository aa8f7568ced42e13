"""Tumbling and hopping windows: key and window start -> aggregate, in a window store.

Aggregates of the commit in progress are worked on in a dict and put into the store when the commit ends: one changelog
record per key and window that changed, however many records it had. Nothing is lost by that, since what is not committed
would not survive anyway. The surprise: the store's stream time is brought up to date last, so that the windows which close in
this commit can still be read when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...aggregation import Combined, HoppingWindows, TumblingWindows
from ...clock import BY_ADVANCE, Watermark, expired_through, window_closed_through
from ...state.group import StoreGroup
from ..results import Result
from .stored import Stored


class TimeWindowed:
    """The state of one shard's tumbling or hopping windows."""

    def __init__(
        self,
        windows: TumblingWindows | HoppingWindows,
        aggregates: Combined,
        group: StoreGroup,
        name: str,
        emit: str,
        *,
        retention_ms: int | None,
        timed: bool,
        clocked: bool = False,
    ) -> None:
        self.windows = windows
        self.aggregates = aggregates
        self.emit = emit
        self.form = Stored(aggregates, timed)
        # a window lives as long as it may change: start > stream time - size - grace
        self.retention_ms = windows.size_ms + windows.grace_ms if retention_ms is None else retention_ms
        store: Any = group.open(
            name,
            "window",
            {
                "retention_ms": self.retention_ms,
                "window_size_ms": windows.size_ms,
                "grace_ms": self.retention_ms,
                "retain_duplicates": False,
                **(BY_ADVANCE if clocked else {}),
            },
        )
        self.store = store
        self.stream_time: int = store.stream_time
        self.dropped = 0
        # (start, key) -> [largest record time, aggregate], changed in this commit
        self._open: dict[tuple[int, Any], list[Any]] = {}

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. `clock` stands for stream time, if given. O(records x windows)."""
        results: list[Result] = []
        windows, open_ = self.windows, self._open
        size, grace = windows.size_ms, windows.grace_ms
        tumbling = type(windows) is TumblingWindows
        add, finish, each = self.aggregates.add, self.aggregates.finish, self.emit == "record"
        now = self.stream_time if clock is None else max(self.stream_time, clock.late_ms)
        closed = window_closed_through(now, grace)
        self.store.touch(keys)
        for key, value, ts in zip(keys, values, times, strict=True):
            if ts > now and clock is None:
                now = ts
                closed = window_closed_through(now, grace)
            for start in (ts - ts % size,) if tumbling else windows.windows_for(ts):
                if start + size <= closed:
                    self.dropped += 1
                    continue
                slot = open_.get((start, key))
                if slot is None:
                    slot = open_[(start, key)] = self._load(key, start)
                slot[1] = add(slot[1], value)
                if ts > slot[0]:
                    slot[0] = ts
                if each:
                    results.append(Result(key, start, start + size, finish(slot[1]), slot[0]))
        self.stream_time = now if clock is None else max(now, clock.now_ms)
        return results

    def _load(self, key: Any, start: int) -> list[Any]:
        stored = self.store.get(key, start)
        return [-1, self.aggregates.init()] if stored is None else list(self.form.own(stored))

    def finish(self) -> list[Result]:
        """End the commit: return what is due at its end, by start and then key, and write what changed. O(changed + closed)."""
        open_ = dict(sorted(self._open.items())) if len(self._open) > 1 else self._open
        results: list[Result] = []
        if self.emit == "commit":
            results = [self._result(window, slot) for window, slot in open_.items()]
        elif self.emit == "close":
            results = self._closed(open_)
        gone = expired_through(self.stream_time, self.retention_ms)
        rows = [(key, self.form.value(*slot), start) for (start, key), slot in open_.items() if start > gone]
        self.store.put_many(rows)
        self._open = {}
        self.moved(self.stream_time)
        return results

    @property
    def busy(self) -> bool:
        """True while records of a commit are worked on in memory."""
        return bool(self._open)

    def closing(self, open_: dict[tuple[int, Any], Any], now: int) -> list[Result]:
        """Return the final results of the windows that close as stream time becomes `now`; `open_` stands before what is stored."""
        self.stream_time = now
        return self._closed(open_)

    def moved(self, now: int) -> None:
        """Move stream time to `now`: what expires by it is gone."""
        self.stream_time = now
        self.store.advance(now)

    def _result(self, window: tuple[int, Any], slot: Sequence[Any]) -> Result:
        start, key = window
        return Result(key, start, start + self.windows.size_ms, self.aggregates.finish(slot[1]), slot[0])

    def _closed(self, open_: dict[tuple[int, Any], Any]) -> list[Result]:
        """Return the final result of every window that closed in this commit, by start and then key."""
        size, grace = self.windows.size_ms, self.windows.grace_ms
        before = window_closed_through(self.store.stream_time, grace) if self.store.stream_time >= 0 else -1
        closed = window_closed_through(self.stream_time, grace)
        return [] if closed <= before else self._results(open_, max(0, before - size + 1), closed - size)

    def _results(self, open_: dict[tuple[int, Any], Any], low: int, high: int | None) -> list[Result]:
        """Return the windows that start in a range of times, as they are now, by start and then key."""
        if high is not None and high < low:
            return []
        found: dict[tuple[int, Any], Sequence[Any]] = {
            (start, key): self.form.shared(value) for (key, start), value in self.store.fetch_all(low, high)
        }
        found.update(
            (window, slot) for window, slot in open_.items() if window[0] >= low and (high is None or window[0] <= high)
        )
        return [self._result(window, found[window]) for window in sorted(found)]

    def live(self) -> list[Result]:
        """Return the windows as they are now, by start and then key. O(windows)."""
        return self._results(self._open, 0, None)
