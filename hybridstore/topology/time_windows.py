"""Tumbling and hopping windows: key and window start -> aggregate, in a window store.

Aggregates of the commit in progress are worked on in a dict and put into the store when the commit ends: one changelog
record per key and window that changed, however many records it had. Nothing is lost by that, since what is not committed
would not survive anyway. The surprise: the store's stream time is brought up to date last, so that the windows which close in
this commit can still be read when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..aggregation import Combined, HoppingWindows, TumblingWindows
from ..clock import window_closed_through
from ..stores.window import WindowStore
from .results import Result


class TimeWindowed:
    """The state of one shard's tumbling or hopping windows."""

    def __init__(
        self, windows: TumblingWindows | HoppingWindows, aggregates: Combined, store: WindowStore, emit: str
    ) -> None:
        self._windows = windows
        self._aggregates = aggregates
        self._store = store
        self._emit = emit
        self.stream_time = store.stream_time
        self.dropped = 0
        # (key, start) -> [largest record time, aggregate], changed in this commit
        self._open: dict[tuple[Any, int], list[Any]] = {}

    @staticmethod
    def parameters(windows: TumblingWindows | HoppingWindows) -> dict[str, Any]:
        """Return the parameters of the window store that is needed: a window lives as long as it may change."""
        retention = windows.size_ms + windows.grace_ms
        return {
            "retention_ms": retention,
            "window_size_ms": windows.size_ms,
            "grace_ms": retention,
            "retain_duplicates": False,
        }

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: int | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. `clock` stands for stream time, if given. O(records x windows)."""
        results: list[Result] = []
        windows, open_ = self._windows, self._open
        size, grace = windows.size_ms, windows.grace_ms
        tumbling = type(windows) is TumblingWindows
        add, finish, each = self._aggregates.add, self._aggregates.finish, self._emit == "record"
        now = self.stream_time if clock is None else max(self.stream_time, clock)
        closed = window_closed_through(now, grace)
        for key, value, ts in zip(keys, values, times, strict=True):
            if ts > now and clock is None:
                now = ts
                closed = window_closed_through(now, grace)
            for start in (ts - ts % size,) if tumbling else windows.windows_for(ts):
                if start + size <= closed:
                    self.dropped += 1
                    continue
                slot = open_.get((key, start))
                if slot is None:
                    slot = open_[(key, start)] = self._load(key, start)
                slot[1] = add(slot[1], value)
                if ts > slot[0]:
                    slot[0] = ts
                if each:
                    results.append(Result(key, start, start + size, finish(slot[1]), slot[0]))
        self.stream_time = now
        return results

    def _load(self, key: Any, start: int) -> list[Any]:
        stored = self._store.get(key, start)
        if stored is None:
            return [-1, self._aggregates.init()]
        copy = self._aggregates.copy
        return [stored[0], stored[1] if copy is None else copy(stored[1])]

    def finish(self) -> list[Result]:
        """End the commit: return what is due at its end, and put what changed into the store. O(changed + closed)."""
        size = self._windows.size_ms
        finish = self._aggregates.finish
        results: list[Result] = []
        if self._emit == "commit":
            results = [
                Result(key, start, start + size, finish(slot[1]), slot[0]) for (key, start), slot in self._open.items()
            ]
        elif self._emit == "close":
            results = self._close()
        if self._open:
            self._store.put_columns(
                [key for key, _ in self._open], list(self._open.values()), [start for _, start in self._open]
            )
            self._open = {}
        self._store.advance(self.stream_time)
        return results

    def _close(self) -> list[Result]:
        """Return the final result of every window that closed in this commit, by start and then key."""
        size = self._windows.size_ms
        before = (
            window_closed_through(self._store.stream_time, self._windows.grace_ms)
            if self._store.stream_time >= 0
            else -1
        )
        closed = window_closed_through(self.stream_time, self._windows.grace_ms)
        if closed <= before:
            return []
        finish = self._aggregates.finish
        due = {(key, start): slot for (key, start), slot in self._open.items() if start + size <= closed}
        for (key, start), stored in self._store.fetch_all(before - size + 1, closed - size):
            due.setdefault((key, start), stored)
        for window in due:
            self._open.pop(window, None)
        return [
            Result(key, start, start + size, finish(due[key, start][1]), due[key, start][0])
            for start, key in sorted((s, k) for k, s in due)
        ]

    def live(self) -> list[Result]:
        """Return the windows stored now, by start and then key. O(windows)."""
        size, finish = self._windows.size_ms, self._aggregates.finish
        found = {(start, key): stored for (key, start), stored in self._store.all()}
        found.update({(start, key): slot for (key, start), slot in self._open.items()})
        return [
            Result(key, start, start + size, finish(found[start, key][1]), found[start, key][0])
            for start, key in sorted(found)
        ]
