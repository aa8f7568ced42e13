"""Interval joins: rows of two streams with one key whose times are near each other.

    left  row ─▶ store of left  ─┐   partners: left - before <= right <= left + after
    right row ─▶ store of right ─┘   due: no partner can arrive any more

Each row is logged once, on its side. The surprise: whether a row has had a partner is not stored but asked of the other
side when the row is due, so rows of the other side are kept long enough for that (`Join.retention_ms`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ...clock import NO_TIME, Watermark
from ...stores.window import WindowStore
from ..batch import Records
from .due import Due
from .shapes import Shape
from .spec import LEFT, RIGHT, Join


class Pair(NamedTuple):
    """One result: the key, and time and stored value of each side; time None: no row of that side."""

    key: Any
    left_ts: int | None
    left_value: Any
    right_ts: int | None
    right_value: Any


class _Near:
    """The rows of one key and side that a commit may meet, by time, then arrival."""

    __slots__ = ("times", "values")

    def __init__(self, times: list[int], values: list[Any]) -> None:
        self.times = times
        self.values = values

    def add(self, ts: int, value: Any) -> None:
        """Add the row that arrived last."""
        if not self.times or ts >= self.times[-1]:
            self.times.append(ts)
            self.values.append(value)
            return
        place = bisect_right(self.times, ts)
        self.times.insert(place, ts)
        self.values.insert(place, value)

    def between(self, low: int, high: int) -> range:
        """Return the places of the rows from `low` to `high` (ms, inclusive)."""
        return range(bisect_left(self.times, low), bisect_right(self.times, high))

    def take(self, low: int, high: int) -> list[tuple[int, Any]]:
        """Remove and return the rows from `low` to `high` (ms, inclusive)."""
        places = self.between(low, high)
        cut = slice(places.start, places.stop)
        rows = list(zip(self.times[cut], self.values[cut], strict=True))
        del self.times[cut], self.values[cut]
        return rows


class _Commit:
    """The rows of one commit: they meet those stored before and one another, and are stored together at the end."""

    def __init__(self, stores: tuple[WindowStore, WindowStore], records: Records, reach_ms: int) -> None:
        # of each key the first and the last time: of a hot key only the rows near these are read
        first: dict[Any, int] = dict(zip(reversed(records.keys), reversed(records.times), strict=True))
        last = dict(zip(records.keys, records.times, strict=True))
        spans = {key: (ts - reach_ms, last[key] + reach_ms) for key, ts in first.items()}
        self.near: tuple[dict[Any, _Near], dict[Any, _Near]] = (
            {key: _Near(*rows) for key, rows in stores[LEFT].fetch_many(spans).items()},
            {key: _Near(*rows) for key, rows in stores[RIGHT].fetch_many(spans).items()},
        )
        """The rows of each side, by key, that may meet rows of the commit: stored ones, and those added so far."""
        self.new: tuple[tuple[list[Any], ...], tuple[list[Any], ...]] = ([], [], []), ([], [], [])
        """The keys, values and times of the rows of each side, in the order of arrival."""

    def add(self, side: int, key: Any, value: Any, ts: int) -> None:
        """Add a row of the commit, behind all that arrived before."""
        keys, values, times = self.new[side]
        keys.append(key)
        values.append(value)
        times.append(ts)
        near = self.near[side].get(key)
        if near is None:
            self.near[side][key] = _Near([ts], [value])
        else:
            near.add(ts, value)


class IntervalJoin:
    """The join of two streams on one shard."""

    def __init__(self, join: Join, stores: tuple[WindowStore, WindowStore], shapes: tuple[Shape, Shape]) -> None:
        assert join.before_ms is not None
        assert join.after_ms is not None
        assert join.grace_ms is not None
        self._join = join
        self._stores = stores
        self._shapes = shapes
        # a row of a side meets rows of the other side from ts - reach[side][0] to ts + reach[side][1]
        self._reach = (join.before_ms, join.after_ms), (join.after_ms, join.before_ms)
        self._grace = join.grace_ms
        self._waits = [join.kept_whole(LEFT) or join.how == "anti", join.kept_whole(RIGHT)]
        self._due: list[Due | None] = [None, None]
        self._index()

    def _index(self) -> None:
        """Begin the indexes of due rows at the present time of the stores."""
        self._time = self._stores[LEFT].stream_time
        for side in (LEFT, RIGHT):
            if self._waits[side]:
                self._due[side] = Due(self._stores[side], self._time - self._join.due_ms(side) - 1)

    @property
    def stream_time(self) -> int:
        """T (ms): the newest time of both sides, or the watermark; -1 at first."""
        return self._stores[LEFT].stream_time

    def late_through(self, clock: Watermark | None) -> int:
        """Return the newest time (ms) at which a row of the next commit is late."""
        # by stream time a row is late behind T - grace, by a watermark also at it, as in Spark
        return self.stream_time - self._grace - 1 if clock is None else clock.late_ms - self._grace

    def process(self, records: Records, clock: Watermark | None, now: int) -> list[Pair]:
        """Join records in canonical order, none of them late, and return the results: rows that are due, then pairs.

        T moves to `now` (ms). O(records log rows + results).
        """
        if self._time != self.stream_time:
            self._index()  # a version was rolled back
        commit = _Commit(self._stores, records, max(self._reach[LEFT]))
        encoded = self._shapes[LEFT].encoded, self._shapes[RIGHT].encoded
        how = self._join.how
        pairs: list[Pair] = []
        if how == "semi":
            unmatched: dict[Any, _Near] = {}
            for key, (side, row), ts in records.rows():
                value = encoded[side](row)
                pairs += self._first_matches(commit, unmatched, key, side, value, ts)
                commit.add(side, key, value, ts)
        else:
            for key, (side, row), ts in records.rows():
                value = encoded[side](row)
                others = commit.near[1 - side].get(key)
                if others is not None and how != "anti":
                    before, after = self._reach[side]
                    for k in others.between(ts - before, ts + after):
                        if side == LEFT:
                            pairs.append(Pair(key, ts, value, others.times[k], others.values[k]))
                        else:
                            pairs.append(Pair(key, others.times[k], others.values[k], ts, value))
                commit.add(side, key, value, ts)
        self._store(commit)
        return self.advance(now) + pairs

    def _first_matches(
        self, commit: _Commit, unmatched: dict[Any, _Near], key: Any, side: int, value: Any, ts: int
    ) -> list[Pair]:
        """Return the left rows that have their first partner with this row, which is not added yet."""
        before, after = self._reach[side]
        waiting = unmatched.get(key)
        if waiting is None:
            waiting = unmatched[key] = self._without_partner(commit, key)
        if side == RIGHT:
            return [Pair(key, *row, None, None) for row in waiting.take(ts - before, ts + after)]
        partners = commit.near[RIGHT].get(key)
        if partners is not None and partners.between(ts - before, ts + after):
            return [Pair(key, ts, value, None, None)]
        waiting.add(ts, value)
        return []

    def _without_partner(self, commit: _Commit, key: Any) -> _Near:
        """Return the stored left rows of a key that have no partner yet."""
        before, after = self._reach[LEFT]
        near = commit.near[LEFT].get(key)
        if near is None:
            return _Near([], [])
        # partners of a row at the edge of what the commit may meet can be beyond that edge
        stored = list(self._stores[RIGHT].fetch(key, max(near.times[0] - before, 0), near.times[-1] + after))
        partners = _Near([ts for ts, _ in stored], [])
        alone = [place for place, ts in enumerate(near.times) if not partners.between(ts - before, ts + after)]
        return _Near([near.times[place] for place in alone], [near.values[place] for place in alone])

    def _store(self, commit: _Commit) -> None:
        for side in (LEFT, RIGHT):
            keys, values, times = commit.new[side]
            if keys:
                self._stores[side].put_columns(keys, values, times)
            due = self._due[side]
            if due is not None:
                for key, value, ts in zip(keys, values, times, strict=True):
                    due.add(ts, key, value)

    def _unmatched(self, now: int) -> list[Pair]:
        """Return the rows of sides that are kept whole whose last possible partner is behind T = `now`, and that never
        had one: by time, right before left, then key, then arrival.
        """
        rows: list[tuple[int, int, Any, Any]] = []
        for side, due in enumerate(self._due):
            if due is None:
                continue
            before, after = self._reach[side]
            other = self._stores[1 - side]
            for ts, key, value in due.take(now - self._join.due_ms(side) - 1):
                if next(other.fetch(key, max(ts - before, 0), ts + after), None) is None:
                    rows.append((ts, -side, key, value))
        rows.sort(key=_BY_PLACE)
        return [
            Pair(key, ts, value, None, None) if place == -LEFT else Pair(key, None, None, ts, value)
            for ts, place, key, value in rows
        ]

    def advance(self, ts: int) -> list[Pair]:
        """Move T to `ts` (ms), if that is later, and return the rows that are due then and never had a partner."""
        now = max(ts, self._time)
        due = self._unmatched(now)
        for store in self._stores:
            store.advance(now)
        self._time = now
        return due

    @property
    def holds_back(self) -> bool:
        """Whether rows wait that come out when no partner can arrive any more."""
        return any(waits and len(store) for waits, store in zip(self._waits, self._stores, strict=True))

    def flush(self) -> list[Pair]:
        """Let time pass the last possible partner of every row, and return the rows that never had one."""
        return self.advance(max((ts + self._join.due_ms(side) + 1 for side, ts in self._newest()), default=NO_TIME))

    def _newest(self) -> Iterable[tuple[int, int]]:
        for side, store in enumerate(self._stores):
            newest = next(store.all(reverse=True), None)
            if newest is not None and self._waits[side]:
                yield side, newest[0][1]


_BY_PLACE: Final = itemgetter(0, 1, 2)
