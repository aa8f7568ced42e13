"""Session windows: sessions of a key that grow and merge while their records are at most `gap` apart, in a session store.

A record at `ts` joins every session with end >= ts - gap and start <= ts + gap (both inclusive). The sessions it replaces
are forwarded as removed before the merged one. A merged session that ends before stream time - grace - gap is dropped.

The sessions of the keys that a commit touches are worked on in memory, and what differs is written when it ends: a session that
grew by a thousand records is one removal and one put. The surprise: where final results are asked for, a session that has
closed is not merged any more, even if a late record would join it to one that is open; otherwise it would be final twice.

Where a watermark is the time, all of it is as in Spark's `session_window`: a record at ts is late when ts + gap + grace
is not behind the watermark, whatever session it would join; a session closes at the same moment as a record at its end
gets late; and what has closed is never merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...aggregation import Combined, SessionWindows
from ...clock import BY_ADVANCE, Watermark, expired_through, session_closed_through, session_passed_through
from ...state.group import StoreGroup
from ..results import Result
from .stored import Stored


class _Session:
    """A session of the commit in progress; `owned` when its aggregate may be changed, `changed` when it is to be written."""

    __slots__ = ("aggregate", "changed", "end", "newest", "owned", "start")

    def __init__(self, start: int, end: int, newest: int, aggregate: Any, *, fresh: bool) -> None:
        self.start = start
        self.end = end
        self.newest = newest
        self.aggregate = aggregate
        self.owned = self.changed = fresh


class _KeySessions:
    """The sessions of a key by end, and those that the store holds: (start, end) -> newest record time."""

    __slots__ = ("sessions", "stored")

    def __init__(self, sessions: list[_Session]) -> None:
        self.sessions = sessions
        self.stored = {(session.start, session.end): session.newest for session in sessions}


class SessionWindowed:
    """The state of one shard's sessions."""

    def __init__(
        self,
        windows: SessionWindows,
        aggregates: Combined,
        group: StoreGroup,
        name: str,
        emit: str,
        *,
        retention_ms: int,
        timed: bool,
        final: bool,
        clocked: bool = False,
    ) -> None:
        self._gap, self._grace = windows.gap_ms, windows.grace_ms
        self._retention = retention_ms
        self._aggregates = aggregates
        self._emit = emit
        self._final = final or clocked
        self._closed_through = session_passed_through if clocked else session_closed_through
        self._form = Stored(aggregates, timed)
        store: Any = group.open(name, "session", {"retention_ms": retention_ms, **(BY_ADVANCE if clocked else {})})
        self._store = store
        self.stream_time: int = store.stream_time
        self._committed = self.stream_time
        self.dropped = 0
        self._open: dict[Any, _KeySessions] = {}

    @staticmethod
    def needed_ms(windows: SessionWindows) -> int:
        """Return the retention that is needed: a session that can still grow ends at or after stream time - grace - 2 gap."""
        return 2 * windows.gap_ms + windows.grace_ms + 1

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. O(merged) per record, and the sessions of a key once a commit."""
        results: list[Result] = []
        gap, grace, final, each = self._gap, self._grace, self._final, self._emit == "record"
        aggregates, open_ = self._aggregates, self._open
        add, finish = aggregates.add, aggregates.finish
        now = self.stream_time if clock is None else max(self.stream_time, clock.late_ms)
        closed = self._closed_through(now, gap, grace)
        self._store.touch(keys)
        for key, value, ts in zip(keys, values, times, strict=True):
            gone = expired_through(now, self._retention)
            if ts > now and clock is None:
                now = ts
                closed = self._closed_through(now, gap, grace)
            elif clock is not None and ts <= closed:
                self.dropped += 1
                continue
            own = open_.get(key)
            if own is None:
                own = open_[key] = self._load(key)
            sessions = own.sessions
            # those that the record joins are neighbours: [first, last)
            last = len(sessions)
            while last and sessions[last - 1].start > ts + gap:
                last -= 1
            first = last
            bound = max(ts - gap, gone + 1, closed + 1 if final else 0)
            while first and sessions[first - 1].end >= bound:
                first -= 1
            start = ts if first == last else min(ts, sessions[first].start)
            end = ts if first == last else max(ts, sessions[last - 1].end)
            if end <= closed:
                self.dropped += 1
                continue
            if first == last:
                session = _Session(ts, ts, ts, add(aggregates.init(), value), fresh=True)
                sessions.insert(first, session)
            else:
                session = sessions[first]
                if each and start < end:
                    # every session that it joins counts as replaced, also where the bounds stay: as Kafka forwards it
                    results += [Result(key, old.start, old.end, None, old.newest) for old in sessions[first:last]]
                self._own(session)
                for other in sessions[first + 1 : last]:
                    session.aggregate = self._merge(session.aggregate, other)
                    session.newest = max(session.newest, other.newest)
                del sessions[first + 1 : last]
                session.aggregate = add(session.aggregate, value)
                session.start, session.end = start, end
                session.newest = max(session.newest, ts)
                session.changed = True
            if each:
                results.append(Result(key, start, end, finish(session.aggregate), session.newest))
        self.stream_time = now if clock is None else max(now, clock.now_ms)
        return results

    def _load(self, key: Any) -> _KeySessions:
        shared = self._form.shared
        return _KeySessions(
            [
                _Session(start, end, *shared(value), fresh=False)
                for (_, start, end), value in self._store.find_sessions(key)
            ]
        )

    def _own(self, session: _Session) -> None:
        if not session.owned:
            copy = self._aggregates.copy
            session.aggregate = session.aggregate if copy is None else copy(session.aggregate)
            session.owned = True

    def _merge(self, older: Any, newer: _Session) -> Any:
        if self._aggregates.merge is None:
            raise TypeError(
                "session windows merge: the aggregators need a merge function (declare merge=..., or use built-in ones)"
            )
        self._own(newer)
        return self._aggregates.merge(older, newer.aggregate)

    def finish(self) -> list[Result]:
        """End the commit: return what is due at its end, and write what differs from the store. O(keys touched + closed)."""
        results = self._changes() if self._emit == "commit" else self._closed() if self._emit == "close" else []
        gone = expired_through(self.stream_time, self._retention)
        store, value = self._store, self._form.value
        put: list[tuple[Any, int, int, Any]] = []
        for key, own in self._open.items():
            now = {(session.start, session.end) for session in own.sessions}
            for start, end in own.stored:
                if (start, end) not in now:
                    store.remove(key, start, end)
            put += [
                (key, session.start, session.end, value(session.newest, session.aggregate))
                for session in own.sessions
                if session.changed and session.end > gone
            ]
        store.put_many(put)
        self._open = {}
        self._committed = self.stream_time
        if self.stream_time >= 0:
            store.advance(self.stream_time)
        return results

    def _changes(self) -> list[Result]:
        """Return, key by key, the sessions that the commit removed and then those that it changed."""
        results: list[Result] = []
        finish = self._aggregates.finish
        for key, own in self._open.items():
            now = {(session.start, session.end) for session in own.sessions}
            results += [Result(key, *span, None, newest) for span, newest in own.stored.items() if span not in now]
            results += [
                Result(key, session.start, session.end, finish(session.aggregate), session.newest)
                for session in own.sessions
                if session.changed
            ]
        return results

    def _closed(self) -> list[Result]:
        """Return the sessions that closed in this commit, by end, then key, then start descending."""
        before = self._closed_through(self._committed, self._gap, self._grace)
        closed = self._closed_through(self.stream_time, self._gap, self._grace)
        if closed <= before or closed < 0:
            return []
        return self._results(max(before + 1, 0), closed)

    def _results(self, low: int | None, high: int | None) -> list[Result]:
        """Return the sessions that end in a range of times (None: open), as they are now, by end, then key, then start descending."""
        finish, shared = self._aggregates.finish, self._form.shared
        found: list[Result] = []
        for (key, start, end), value in self._store.find_sessions_by_end(low, high):
            if key not in self._open:
                newest, aggregate = shared(value)
                found.append(Result(key, start, end, finish(aggregate), newest))
        for key, own in self._open.items():
            found += [
                Result(key, session.start, session.end, finish(session.aggregate), session.newest)
                for session in own.sessions
                if (low is None or session.end >= low) and (high is None or session.end <= high)
            ]
        return sorted(found, key=lambda result: (result.end, result.key, -result.start))

    def find(self, key: Any, earliest_end: int | None, latest_start: int | None) -> list[Result]:
        """Return a key's sessions with end >= earliest_end and start <= latest_start, by end."""
        own = self._open.get(key) or self._load(key)
        finish = self._aggregates.finish
        return [
            Result(key, session.start, session.end, finish(session.aggregate), session.newest)
            for session in own.sessions
            if (earliest_end is None or session.end >= earliest_end)
            and (latest_start is None or session.start <= latest_start)
        ]

    def live(self) -> list[Result]:
        """Return the sessions as they are now, by end, then key, then start descending. O(sessions)."""
        return self._results(None, None)
