"""Interval joins: rows of two streams with one key whose times are near each other.

    left  row ─▶ store of left  ─┐   partners: left - before <= right <= left + after
    right row ─▶ store of right ─┘   due: no partner can arrive any more

Each row is logged once, on its side. The surprise: whether a row has had a partner is not stored but asked of the other
side when the row is due, so rows of the other side are kept long enough for that (`Join.retention_ms`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import compress
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ...clock import NO_TIME, Watermark
from ...stores.window import WindowStore
from ..batch import Records
from .due import Due
from .pairs import Pairs
from .shapes import Shape
from .spec import LEFT, RIGHT, Join


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


class Arrivals(NamedTuple):
    """The rows of a commit in canonical order, by column: values as they are stored, and the side of each row."""

    keys: list[Any]
    sides: list[int]
    times: list[int]
    values: list[Any]

    def of_side(self, side: int) -> tuple[list[Any], list[int], list[Any]]:
        """Return keys, times and values of the rows of a side, in order. O(rows)."""
        chosen = [at == side for at in self.sides]
        keys, times, values = (list(compress(column, chosen)) for column in (self.keys, self.times, self.values))
        return keys, times, values


# The rows of a key: the one row, as time and value, or several.
_Rows = tuple[int, Any] | _Near
# Of each side keys, times and values.
_Columns = tuple[tuple[list[Any], list[int], list[Any]], tuple[list[Any], list[int], list[Any]]]
_BOTH: Final = (LEFT, RIGHT)


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

    def process(self, records: Records, clock: Watermark | None, now: int) -> list[Pairs]:
        """Join records in canonical order, none of them late, and return the results: rows that are due, then pairs.

        T moves to `now` (ms). O(records log rows + results).
        """
        sides = [side for side, _ in records.values]
        stored = [
            iter(self._shapes[at].encoded_all([row for side, row in records.values if side == at])) for at in _BOTH
        ]
        return self.join(Arrivals(records.keys, sides, records.times, [next(stored[side]) for side in sides]), now)

    def join(self, rows: Arrivals, now: int) -> list[Pairs]:
        """Join rows in canonical order, none of them late; see `process`."""
        if self._time != self.stream_time:
            self._index()  # a version was rolled back
        of_sides = rows.of_side(LEFT), rows.of_side(RIGHT)
        how = self._join.how
        pairs = Pairs()
        if how == "semi":
            self._match_first(rows, self._near(of_sides), pairs)
        elif how != "anti":
            self._match(rows, self._near(of_sides), pairs)
        for side in _BOTH:
            keys, times, values = of_sides[side]
            if keys:
                self._stores[side].put_columns(keys, values, times)
            due = self._due[side]
            if due is not None:
                due.add(keys, times, values)
        return [part for part in (*self.advance(now), pairs) if part]

    def _near(self, of_sides: _Columns) -> tuple[dict[Any, _Rows], dict[Any, _Rows]]:
        """Return the stored rows of each side, by key, that rows of the other side may meet."""
        return self._stored(LEFT, of_sides[RIGHT]), self._stored(RIGHT, of_sides[LEFT])

    def _stored(self, side: int, others: tuple[list[Any], list[int], list[Any]]) -> dict[Any, _Rows]:
        # of each key the first and the last time: of a hot key only the rows near these are read
        keys, times, _ = others
        before, after = self._reach[1 - side]
        first = dict(zip(reversed(keys), reversed(times), strict=True))
        last = dict(zip(keys, times, strict=True))
        spans = {key: (ts - before, last[key] + after) for key, ts in first.items()}
        rows = self._stores[side].fetch_many(spans)
        return {key: (at[0], values[0]) if len(at) == 1 else _Near(at, values) for key, (at, values) in rows.items()}

    def _match(self, rows: Arrivals, near: tuple[dict[Any, _Rows], dict[Any, _Rows]], pairs: Pairs) -> None:
        """Add each pair of rows that are near each other, at the later of the two to arrive, partners by time."""
        add = pairs.add
        for key, side, row in zip(rows.keys, rows.sides, zip(rows.times, rows.values, strict=True), strict=True):
            others = near[1 - side].get(key)
            if others is not None:
                ts, value = row
                before, after = self._reach[side]
                if isinstance(others, tuple):
                    if ts - before <= others[0] <= ts + after:
                        if side == LEFT:
                            add(key, ts, value, *others)
                        else:
                            add(key, *others, ts, value)
                else:
                    times, values = others.times, others.values
                    for k in others.between(ts - before, ts + after):
                        if side == LEFT:
                            add(key, ts, value, times[k], values[k])
                        else:
                            add(key, times[k], values[k], ts, value)
            _arrive(near[side], key, row)

    def _match_first(self, rows: Arrivals, near: tuple[dict[Any, _Rows], dict[Any, _Rows]], pairs: Pairs) -> None:
        """Add the left rows that have their first partner with a row of the commit, where that row arrives."""
        before, after = self._reach[LEFT]
        unmatched: dict[Any, _Near] = {}
        for key, side, row in zip(rows.keys, rows.sides, zip(rows.times, rows.values, strict=True), strict=True):
            waiting = unmatched.get(key)
            if waiting is None:
                waiting = unmatched[key] = self._without_partner(key, near[LEFT].get(key))
            ts, value = row
            if side == RIGHT:
                for waited in waiting.take(ts - after, ts + before):
                    pairs.add(key, *waited, None, None)
                _arrive(near[RIGHT], key, row)
            elif _between(near[RIGHT].get(key), ts - before, ts + after):
                pairs.add(key, ts, value, None, None)
            else:
                waiting.add(ts, value)

    def _without_partner(self, key: Any, rows: _Rows | None) -> _Near:
        """Return those of the stored left rows of a key that have no partner yet."""
        if rows is None:
            return _Near([], [])
        near = _Near([rows[0]], [rows[1]]) if isinstance(rows, tuple) else rows
        before, after = self._reach[LEFT]
        # partners of a row at the edge of what the commit may meet can be beyond that edge
        stored = list(self._stores[RIGHT].fetch(key, max(near.times[0] - before, 0), near.times[-1] + after))
        partners = _Near([ts for ts, _ in stored], [])
        alone = [place for place, ts in enumerate(near.times) if not partners.between(ts - before, ts + after)]
        return _Near([near.times[place] for place in alone], [near.values[place] for place in alone])

    def _unmatched(self, now: int) -> Pairs:
        """Return the rows of sides that are kept whole whose last possible partner is behind T = `now`, and that never
        had one: by time, right before left, then key, then arrival. O(due rows log rows).
        """
        rows: list[tuple[int, int, Any, Any]] = []
        for side, due in enumerate(self._due):
            if due is None:
                continue
            before, after = self._reach[side]
            waiting = due.take(now - self._join.due_ms(side) - 1)
            keys, times = [key for _, key, _ in waiting], [ts for ts, _, _ in waiting]
            partners = self._stored(1 - side, (keys, times, []))
            rows += [
                (ts, -side, key, value)
                for ts, key, value in waiting
                if not _between(partners.get(key), ts - before, ts + after)
            ]
        rows.sort(key=_BY_PLACE)
        pairs = Pairs()
        for ts, place, key, value in rows:
            if place == -LEFT:
                pairs.add(key, ts, value, None, None)
            else:
                pairs.add(key, None, None, ts, value)
        return pairs

    def advance(self, ts: int) -> list[Pairs]:
        """Move T to `ts` (ms), if that is later, and return the rows that are due then and never had a partner."""
        now = max(ts, self._time)
        due = self._unmatched(now)
        for store in self._stores:
            store.advance(now)
        self._time = now
        return [due] if due else []

    @property
    def holds_back(self) -> bool:
        """Whether rows wait that come out when no partner can arrive any more."""
        return any(waits and len(store) for waits, store in zip(self._waits, self._stores, strict=True))

    def flush(self) -> list[Pairs]:
        """Let time pass the last possible partner of every row, and return the rows that never had one."""
        return self.advance(max((ts + self._join.due_ms(side) + 1 for side, ts in self._newest()), default=NO_TIME))

    def _newest(self) -> Iterable[tuple[int, int]]:
        for side, store in enumerate(self._stores):
            newest = next(store.all(reverse=True), None)
            if newest is not None and self._waits[side]:
                yield side, newest[0][1]


def _arrive(near: dict[Any, _Rows], key: Any, row: tuple[int, Any]) -> None:
    """Add a row of the commit behind all that arrived before."""
    rows = near.get(key)
    if rows is None:
        near[key] = row
    elif isinstance(rows, tuple):
        several = near[key] = _Near([rows[0]], [rows[1]])
        several.add(*row)
    else:
        rows.add(*row)


def _between(rows: _Rows | None, low: int, high: int) -> bool:
    """Whether a row has a time from `low` to `high` (ms, inclusive)."""
    if rows is None:
        return False
    return low <= rows[0] <= high if isinstance(rows, tuple) else bool(rows.between(low, high))


_BY_PLACE: Final = itemgetter(0, 1, 2)
