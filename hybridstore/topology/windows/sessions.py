"""Session windows: sessions of a key that grow and merge while their records are at most `gap` apart, in a session
store.

A record at `ts` joins every session with end >= ts - gap and start <= ts + gap (both inclusive). The replaced sessions
are emitted as removed before the merged one. A merged session that ends before stream time - grace - gap is dropped.

The sessions of the keys that a commit touches change in memory, and only the difference is written at its end: a
session that grew by a thousand records is one removal and one put. The surprise: with final results a closed session is
not merged any more, even if a late record would join it to an open one; otherwise the session would be final twice.

With a watermark as the time, sessions behave as in Spark's `session_window`: a record at ts is late when ts + gap +
grace is at or before the watermark, whatever session it would join; a session closes when a record at its end becomes
late; and a closed session is never merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Any

from ...aggregation import SessionWindows
from ...clock import BY_ADVANCE, Watermark, closed_through, expired_through
from ...state.group import StoreGroup
from ...stores.kinds import SESSION
from ...stores.session import SessionStore
from ..batch import Records
from ..plan import Plan
from ..results import Result
from .windowed import WINDOWS, OpenWindow, Windowed, at_least


class _Session(OpenWindow):
    """A session of the commit in progress."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int, newest: int, aggregate: Any, *, fresh: bool) -> None:
        super().__init__(newest, aggregate, fresh=fresh)
        self.start = start
        self.end = end


def _order(result: Result) -> tuple[int, Any, int]:
    return result.end, result.key, -result.start


class _KeySessions:
    """The sessions of a key by end, and those that the store holds: (start, end) -> newest record time."""

    __slots__ = ("sessions", "stored")

    def __init__(self, sessions: list[_Session]) -> None:
        self.sessions = sessions
        self.stored = {(session.start, session.end): session.newest for session in sessions}

    def replaced(self) -> dict[tuple[int, int], int]:
        """Return what the store holds and the commit replaced: (start, end) -> newest record time."""
        now = {(session.start, session.end) for session in self.sessions}
        return {span: newest for span, newest in self.stored.items() if span not in now}


class SessionWindowed(Windowed[SessionStore]):
    """The state of one shard's sessions."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        assert isinstance(plan.windows, SessionWindows)
        parameters = {"retention_ms": at_least(group, WINDOWS, plan.kept_ms), **(BY_ADVANCE if clocked else {})}
        store = SESSION.open(group, WINDOWS, parameters)
        super().__init__(plan, store, store.stream_time, clocked=clocked)
        self._gap = plan.windows.gap_ms
        self._final = plan.final or clocked
        self.open: dict[Any, _KeySessions] = {}

    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """See `Windowed.add`. O(merged) per record, and the sessions of a key once a commit."""
        gap, final, each = self._gap, self._final, self.emit == "record"
        closing, floor = self.closing_ms, self.floor
        aggregates, open_ = self.aggregates, self.open
        add, finish, copy = aggregates.add, aggregates.finish, aggregates.copy
        closed = self.closed(now)
        self.store.touch(records.keys)
        for key, value, ts in self.rows(records):
            expired = expired_through(now, self.retention_ms)
            if ts > now and clock is None:
                now = ts
                closed = max(closed_through(now, closing), floor)
            elif clock is not None and ts <= closed:
                self.dropped += 1
                self.too_late()
                continue
            of_key = open_.get(key)
            if of_key is None:
                of_key = open_[key] = self._load(key)
            sessions = of_key.sessions
            # the sessions that the record joins are neighbours: [first, last)
            last = len(sessions)
            while last and sessions[last - 1].start > ts + gap:
                last -= 1
            first = last
            bound = max(ts - gap, expired + 1, closed + 1 if final else 0)
            while first and sessions[first - 1].end >= bound:
                first -= 1
            start = ts if first == last else min(ts, sessions[first].start)
            end = ts if first == last else max(ts, sessions[last - 1].end)
            if end <= closed:
                self.dropped += 1
                self.too_late()
                continue
            if first == last:
                session = _Session(ts, ts, ts, add(aggregates.init(), value), fresh=True)
                sessions.insert(first, session)
            else:
                session = sessions[first]
                if each and start < end:
                    # every session that the record joins counts as replaced, also if its bounds stay, as in Kafka
                    results += [Result(key, old.start, old.end, None, old.newest) for old in sessions[first:last]]
                session.make_changeable(copy)
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
        return now

    def _load(self, key: Any) -> _KeySessions:
        shared, stored = self.form.shared, self.store.find_sessions(key)
        return _KeySessions([_Session(start, end, *shared(value), fresh=False) for (_, start, end), value in stored])

    def _merge(self, older: Any, newer: _Session) -> Any:
        assert self.aggregates.merge is not None
        newer.make_changeable(self.aggregates.copy)
        return self.aggregates.merge(older, newer.aggregate)

    def _result(self, key: Any, session: _Session) -> Result:
        return Result(key, session.start, session.end, self.aggregates.finish(session.aggregate), session.newest)

    def changed(self) -> list[Result]:
        """See `Windowed.changed`: key by key, the sessions that the commit replaced and then those that it changed."""
        results: list[Result] = []
        for key, of_key in self.open.items():
            results += [Result(key, *span, None, newest) for span, newest in of_key.replaced().items()]
            results += [self._result(key, session) for session in of_key.sessions if session.changed]
        return results

    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """See `Windowed.ended`: by end, then key, then start descending. O(those sessions)."""
        finish, shared, low = self.aggregates.finish, self.form.shared, max(0, after + 1)
        changed = [
            self._result(key, session)
            for key, of_key in self.open.items()
            for session in of_key.sessions
            if session.end >= low and (through is None or session.end <= through)
        ]
        stored = (
            Result(key, start, end, finish(aggregate), newest)
            for (key, start, end), value in self.store.find_sessions_by_end(low, through)
            if key not in self.open
            for newest, aggregate in (shared(value),)
        )
        return merge(stored, sorted(changed, key=_order), key=_order)

    def find(self, key: Any, earliest_end: int | None, latest_start: int | None) -> list[Result]:
        """Return a key's sessions with end >= earliest_end and start <= latest_start (None: open), by end."""
        return [
            self._result(key, session)
            for session in (self.open.get(key) or self._load(key)).sessions
            if (earliest_end is None or session.end >= earliest_end)
            and (latest_start is None or session.start <= latest_start)
        ]

    def write(self) -> None:
        """See `Windowed.write`: the difference from the store, so that a session that grew by a thousand records is one
        removal and one put.
        """
        expired, value = expired_through(self.stream_time, self.retention_ms), self.form.value
        put: list[tuple[Any, Any, int, int]] = []
        for key, of_key in self.open.items():
            for start, end in of_key.replaced():
                self.store.delete(key, start, end)
            put += [
                (key, value(session.newest, session.aggregate), session.start, session.end)
                for session in of_key.sessions
                if session.changed and session.end > expired
            ]
        self.store.put_many(put)
