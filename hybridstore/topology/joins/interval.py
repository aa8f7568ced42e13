"""Interval joins: rows of two streams with one key whose times are near each other.

    left  row ─▶ store of left  ─┐   partners: left - before <= right <= left + after
    right row ─▶ store of right ─┘   due: no partner can arrive any more

Each row is logged once, on its side. The surprise: whether a row has had a partner is not stored but asked of the other
side when the row is due, so rows of the other side are kept long enough for that (`Join.retention_ms`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count, pairwise
from operator import itemgetter, ne, not_
from typing import Any, Final, NamedTuple

from ...clock import NO_TIME, Watermark
from ...state.group import StoreGroup
from ...stores.window import WindowStore
from ..batch import Records
from ..times import listed
from .due import Due
from .former import KEYLESS, FormerTimes, forget_former, former_times
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


class Arrived(NamedTuple):
    """The rows of one side of a commit, in order: values as they are stored; and the different keys. `plain`: all keys
    are text, or all are whole numbers of 64 bits, and the values consist of lists and atoms.
    """

    keys: list[Any]
    times: list[int]
    values: list[Any]
    distinct: list[Any]
    plain: bool = False


class Arrivals(NamedTuple):
    """The rows of a commit in canonical order: the side of each (a list or an array), and the rows of each side."""

    sides: Any
    of_sides: tuple[Arrived, Arrived]

    def rows(self) -> Iterator[tuple[int, Any, tuple[int, Any]]]:
        """Yield side, key, and time and value. O(rows)."""
        rows = [zip(side.keys, zip(side.times, side.values, strict=True), strict=True) for side in self.of_sides]
        for side in listed(self.sides):
            yield side, *next(rows[side])


# The rows of a key: the one row, as time and value, or several.
_Rows = tuple[int, Any] | _Near
_BOTH: Final = (LEFT, RIGHT)


class Fetched(NamedTuple):
    """Fetched rows of a side: of each the place of its key in `keys`, its time and its value; of one key by time."""

    keys: list[Any]
    places: list[int]
    times: list[int]
    values: list[Any]


# Returns the pairs of a commit with the stored rows of both sides, and how far partners are; None: not by column.
Match = Callable[[tuple[Fetched, Fetched], tuple[tuple[int, int], tuple[int, int]]], Pairs | None]


class IntervalJoin:
    """The join of two streams on one shard."""

    def __init__(
        self,
        join: Join,
        stores: tuple[WindowStore, WindowStore],
        keyless: tuple[WindowStore | None, WindowStore | None],
        shapes: tuple[Shape, Shape],
        group: StoreGroup,
    ) -> None:
        assert join.before_ms is not None
        assert join.after_ms is not None
        assert join.grace_ms is not None
        self._join = join
        self._stores = stores
        self._keyless = keyless
        self._shapes = shapes
        self._group = group
        # a row of a side meets rows of the other side from ts - reach[side][0] to ts + reach[side][1]
        self._reach = (join.before_ms, join.after_ms), (join.after_ms, join.before_ms)
        self._grace = join.grace_ms
        self._waits = [join.kept_whole(LEFT) or join.how == "anti", join.kept_whole(RIGHT)]
        self._due: list[Due | None] = [None, None]
        self._keyless_due: list[Due | None] = [None, None]
        self._index()

    def _index(self) -> None:
        """Begin the indexes of due rows at the present time of the stores."""
        self._former = former_times(self._group.settings)
        self._time = self.stream_time
        for side in (LEFT, RIGHT):
            if self._waits[side]:
                self._due[side] = self._due_of(self._stores[side], side, self._former.of)
            keyless = self._keyless[side]
            if keyless is not None:
                self._keyless_due[side] = self._due_of(keyless, side, lambda _: self._former.of(KEYLESS))

    def _due_of(self, store: WindowStore, side: int, former: Callable[[Any], int]) -> Due:
        behind = self._join.due_ms(side) + 1
        handled = (lambda key: former(key) - behind) if self._former else None
        return Due(store, store.stream_time - behind, handled)

    @property
    def stream_time(self) -> int:
        """T (ms): the newest time of both sides, or the watermark; -1 at first."""
        return max(self._stores[LEFT].stream_time, self._former.latest)

    def late_through(self, clock: Watermark | None) -> int:
        """Return the newest time (ms) at which a row of the next commit is late."""
        # by stream time a row is late behind T - grace, by a watermark also at it, as in Spark
        return self.stream_time - self._grace - 1 if clock is None else clock.late_ms - self._grace

    def process(self, records: Records, clock: Watermark | None, now: int) -> list[Pairs]:
        """Join records in canonical order, none of them late, and return the results: rows that are due, then pairs.

        T moves to `now` (ms). O(records log rows + results).
        """
        sides, given = list(map(itemgetter(0), records.values)), list(map(itemgetter(1), records.values))
        of_sides = []
        for chosen, shape in zip((list(map(not_, sides)), sides), self._shapes, strict=True):
            keys, rows, times = (list(compress(column, chosen)) for column in (records.keys, given, records.times))
            of_sides.append(Arrived(keys, times, shape.encoded_all(rows), list(dict.fromkeys(keys))))
        return self.join(Arrivals(sides, (of_sides[LEFT], of_sides[RIGHT])), now)

    def join(self, rows: Arrivals, now: int, match: Match | None = None) -> list[Pairs]:
        """Join rows in canonical order, none of them late; see `process`. `match` finds the pairs by column, if it can.

        T moves to `now` (ms). O(rows log rows + results).
        """
        if self._time != self.stream_time:
            self._index()  # a version was rolled back
        pairs = Pairs() if self._join.how == "anti" else self._pairs(rows, match)
        for side in _BOTH:
            keys, times, values, _, plain = rows.of_sides[side]
            if keys:
                put = self._stores[side].put_plain if plain else self._stores[side].put_columns
                put(keys, values, times)
            due = self._due[side]
            if due is not None:
                due.add(keys, times, values)
        return [part for part in (*self.advance(now), pairs) if part]

    def _pairs(self, rows: Arrivals, match: Match | None) -> Pairs:
        if not len(rows.sides):
            return Pairs()
        # the rows of each side that rows of the other side may meet
        first, second = rows.of_sides
        stored = (
            self._stored(LEFT, second.distinct, second.times, plain=second.plain),
            self._stored(RIGHT, first.distinct, first.times, plain=first.plain),
        )
        if match is not None and self._join.how != "semi":
            by_column = match(stored, self._reach)
            if by_column is not None:
                return by_column
        pairs, near = Pairs(), (_near(stored[LEFT]), _near(stored[RIGHT]))
        (self._match_first if self._join.how == "semi" else self._match)(rows, near, pairs)
        return pairs

    def _stored(self, side: int, keys: list[Any], times: list[int], *, plain: bool = False) -> Fetched:
        """Return the stored rows of a side that rows of the other side, with these different keys and with times in
        order, may meet.
        """
        if not keys:
            return Fetched([], [], [], [])
        before, after = self._reach[1 - side]
        # of a hot key only the rows near the commit are read
        within = max(times[0] - before, 0), times[-1] + after
        return Fetched(keys, *self._stores[side].fetch_columns(keys, *within, plain=plain))

    def _match(self, rows: Arrivals, near: tuple[dict[Any, _Rows], dict[Any, _Rows]], pairs: Pairs) -> None:
        """Add each pair of rows that are near each other, at the later of the two to arrive, partners by time."""
        add = pairs.add
        columns = [zip(of.keys, zip(of.times, of.values, strict=True), strict=True) for of in rows.of_sides]
        for side in listed(rows.sides):
            key, row = next(columns[side])
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
            if near[side].setdefault(key, row) is not row:
                _arrive(near[side], key, row)

    def _match_first(self, rows: Arrivals, near: tuple[dict[Any, _Rows], dict[Any, _Rows]], pairs: Pairs) -> None:
        """Add the left rows that have their first partner with a row of the commit, where that row arrives."""
        before, after = self._reach[LEFT]
        unmatched: dict[Any, _Near] = {}
        for side, key, row in rows.rows():
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

    def wait_without_key(self, side: int, key: Any, value: Any, ts: int) -> None:
        """Let a row without a key wait until no partner could arrive any more, as it does in Spark."""
        store, due = self._keyless[side], self._keyless_due[side]
        assert store is not None
        assert due is not None
        store.put(side, [key, value], ts)
        due.add([side], [ts], [[key, value]])

    def _without_key(self, now: int) -> Pairs:
        """Return the rows without a key whose time has passed, by side and time."""
        pairs = Pairs()
        for side, due in enumerate(self._keyless_due):
            for ts, _, (key, value) in [] if due is None else due.take(now - self._join.due_ms(side) - 1):
                if side == LEFT:
                    pairs.add(key, ts, value, None, None)
                else:
                    pairs.add(key, None, None, ts, value)
        return pairs

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
            keys, times = list(dict.fromkeys([key for _, key, _ in waiting])), [ts for ts, _, _ in waiting]
            partners = _near(self._stored(1 - side, keys, times))
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
        due = [self._without_key(now), self._unmatched(now)]
        for store in (*self._stores, *self._keyless):
            if store is not None:
                store.advance(now)
        if self._former:
            forget_former(self._group)
            self._former = FormerTimes([])
        self._time = now
        return [pairs for pairs in due if pairs]

    @property
    def holds_back(self) -> bool:
        """Whether rows wait that come out when no partner can arrive any more."""
        return any(len(store) for _, store in self._waiting())

    def flush(self) -> list[Pairs]:
        """Let time pass the last possible partner of every row, and return the rows that never had one."""
        return self.advance(max((ts + self._join.due_ms(side) + 1 for side, ts in self._newest()), default=NO_TIME))

    def _waiting(self) -> Iterator[tuple[int, WindowStore]]:
        """Yield the stores whose rows come out when their time has passed, each with its side."""
        for side in _BOTH:
            if self._waits[side]:
                yield side, self._stores[side]
            keyless = self._keyless[side]
            if keyless is not None:
                yield side, keyless

    def _newest(self) -> Iterable[tuple[int, int]]:
        for side, store in self._waiting():
            newest = next(store.all(reverse=True), None)
            if newest is not None:
                yield side, newest[0][1]


def _near(stored: Fetched) -> dict[Any, _Rows]:
    """Return stored rows by key. O(rows), at C speed where each key has one, or many that lie together."""
    keys, places, times, values = stored
    near: dict[Any, _Rows] = dict(zip(map(keys.__getitem__, places), zip(times, values, strict=True), strict=True))
    if len(near) == len(places):
        return near
    near = {}
    # rows of a key lie together bucket by bucket, and later buckets have later times
    edges = [0, *compress(count(1), map(ne, places, places[1:])), len(places)]
    for start, end in pairwise(edges):
        key = keys[places[start]]
        rows = near.get(key)
        if rows is None and end - start == 1:
            near[key] = times[start], values[start]
        elif rows is None:
            near[key] = _Near(times[start:end], values[start:end])
        else:
            if isinstance(rows, tuple):
                rows = near[key] = _Near([rows[0]], [rows[1]])
            rows.times += times[start:end]
            rows.values += values[start:end]
    return near


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
