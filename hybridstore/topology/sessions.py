"""Session windows: sessions of a key that grow and merge while their records are at most `gap` apart, in a session store.

A record at `ts` joins every session with end >= ts - gap and start <= ts + gap (both inclusive). The sessions it replaces
are forwarded as removed before the merged one. A merged session that ends before stream time - grace - gap is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..aggregation import Combined, SessionWindows
from ..clock import session_closed_through
from ..store_group import StoreGroup
from .results import Result


class SessionWindowed:
    """The state of one shard's sessions. A stored value is [largest record time, aggregate]."""

    def __init__(self, windows: SessionWindows, aggregates: Combined, group: StoreGroup, name: str, emit: str) -> None:
        self._gap, self._grace = windows.gap_ms, windows.grace_ms
        self._aggregates = aggregates
        self._emit = emit
        # A session that can still grow ends at or after stream time - grace - 2 gap.
        store: Any = group.open(name, "session", {"retention_ms": 2 * windows.gap_ms + windows.grace_ms + 1})
        self._store = store
        self.stream_time: int = store.stream_time
        self._closed_through = session_closed_through(self.stream_time, windows.gap_ms, windows.grace_ms)
        self._final: list[Result] = []
        self.dropped = 0
        self._changed: dict[tuple[Any, int, int], Result] = {}

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: int | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. O(log sessions + merged) per record."""
        results: list[Result] = []
        gap, aggregates, store = self._gap, self._aggregates, self._store
        now = self.stream_time if clock is None else max(self.stream_time, clock)
        final = self._emit == "close"
        if final:
            self._close(now)
        for key, value, ts in zip(keys, values, times, strict=True):
            if ts > now and clock is None:
                now = ts
                if final:
                    # before the store learns of the new time, or what closes now would have expired unseen
                    self._close(now)
            found = list(store.find_sessions(key, max(0, ts - gap), ts + gap))
            start = min([ts, *(s for (_, s, _), _ in found)])
            end = max([ts, *(e for (_, _, e), _ in found)])
            if end <= session_closed_through(now, gap, self._grace):
                self.dropped += 1
                continue
            newest, aggregate = ts, None
            for _, (stored_ts, stored) in found:
                own = stored if aggregates.copy is None else aggregates.copy(stored)
                aggregate = own if aggregate is None else self._merge(aggregate, own)
                newest = max(newest, stored_ts)
            aggregate = aggregates.add(aggregates.init() if aggregate is None else aggregate, value)
            for (_, s, e), (stored_ts, _) in found:
                if (s, e) != (start, end):
                    store.remove(key, s, e)
                    results.append(Result(key, s, e, None, stored_ts))
            store.put(key, start, end, [newest, aggregate])
            results.append(Result(key, start, end, aggregates.finish(aggregate), newest))
        self.stream_time = now
        if self._emit == "record":
            return results
        if final:
            return []
        for result in results:
            self._changed.pop((result.key, result.start, result.end), None)
            self._changed[result.key, result.start, result.end] = result
        return []

    def _merge(self, older: Any, newer: Any) -> Any:
        if self._aggregates.merge is None:
            raise TypeError(
                "session windows merge: the aggregators need a merge function (declare merge=..., or use built-in ones)"
            )
        return self._aggregates.merge(older, newer)

    def finish(self) -> list[Result]:
        """End the commit and return what is due at its end: the last state of changed sessions, or those that closed."""
        results: list[Result] = []
        if self._emit == "commit":
            results = list(self._changed.values())
        elif self._emit == "close":
            self._close(self.stream_time)
            results, self._final = self._final, []
        self._changed = {}
        if self.stream_time >= 0:
            self._store.advance(self.stream_time)
        return results

    def _close(self, now: int) -> None:
        """Collect the sessions that close by the time `now`, by end."""
        closed = session_closed_through(now, self._gap, self._grace)
        if closed > self._closed_through and closed >= 0:
            rows = self._store.find_sessions_by_end(max(self._closed_through + 1, 0), closed)
            self._final += [self._result(*row) for row in rows]
            self._closed_through = closed

    def _result(self, session: tuple[Any, int, int], stored: tuple[int, Any]) -> Result:
        key, start, end = session
        return Result(key, start, end, self._aggregates.finish(stored[1]), stored[0])

    def find(self, key: Any, earliest_end: int | None, latest_start: int | None) -> list[Result]:
        """Return a key's stored sessions."""
        return [self._result(*row) for row in self._store.find_sessions(key, earliest_end, latest_start)]

    def live(self) -> list[Result]:
        """Return the sessions stored now."""
        return [self._result(*row) for row in self._store.all()]
