"""Table joins: a stream's rows with the row of a table that has their key: the newest row, or the one of their time.

table row  ─▶ newest row by key (and older versions, each until its end)
stream row ─▶ asked at once                                            grace None
           └▶ waits until no older version can arrive, then is asked   grace
"""

from __future__ import annotations

from typing import Any, Final

from ...clock import NO_TIME, Watermark
from ...state.group import StoreGroup
from ...stores.key_value import KeyValueStore
from ...stores.versioned import VersionedStore
from ...stores.window import WindowStore
from ..batch import Records
from ..null_keys import stored_key
from .due import Due
from .former import FormerTimes, forget_former, former_times
from .pairs import Pairs
from .shapes import Shape
from .spec import LEFT, RIGHT, Join

_NO_ROW: Final = (None, None)


class TableJoin:
    """The join of a stream with a table on one shard.

    newest    key -> [time, row] of the table
    versions  the table with its history, on top of `newest`; None: the table has no history
    waiting   stream rows that wait for the table; None: rows are joined at once
    """

    def __init__(
        self,
        join: Join,
        newest: KeyValueStore,
        versions: VersionedStore | None,
        waiting: WindowStore | None,
        shapes: tuple[Shape, Shape],
        group: StoreGroup,
        *,
        null_is_key: bool = False,
    ) -> None:
        self._join = join
        self._newest = newest
        self._versions = versions
        self._waiting = waiting
        self._shapes = shapes
        self._group = group
        self._null_is_key = null_is_key
        self._former = FormerTimes([])
        self._due: Due | None = None
        if waiting is not None:
            self._index(waiting)

    def _index(self, waiting: WindowStore) -> None:
        assert self._join.grace_ms is not None
        former, behind = former_times(self._group.settings), self._join.grace_ms + 1
        self._former = former
        self._time = self.stream_time
        handled = (lambda key: former.of(key) - behind) if former else None
        self._due = Due(waiting, waiting.stream_time - behind, handled)

    @property
    def stream_time(self) -> int:
        """T (ms), where rows wait: the newest time of both sides."""
        assert self._waiting is not None
        return max(self._waiting.stream_time, self._former.latest)

    def late_through(self, clock: Watermark | None, side: int) -> int:
        """Return the newest time (ms) at which a row of a side is late in the next commit."""
        if self._waiting is not None:
            assert self._join.grace_ms is not None
            if clock is not None:
                return clock.late_ms - self._join.grace_ms
            return self.stream_time - self._join.grace_ms - 1
        if side == RIGHT and self._versions is not None:
            return self._versions.stream_time - self._versions.history_ms - 1
        return NO_TIME

    def process(self, records: Records, clock: Watermark | None, now: int) -> list[Pairs]:
        """Join records in canonical order, none of them late, and return the results. T moves to `now` (ms), where
        rows wait or a watermark is the time. O(records + results).
        """
        waiting = self._waiting
        if waiting is not None and self._time != self.stream_time:
            self._index(waiting)  # a version was rolled back
        encoded = self._shapes[LEFT].encoded, self._shapes[RIGHT].encoded
        delete, on = self._join.right_side.delete, self._join.on
        pairs = Pairs()
        for key, (side, row), ts in records.rows():
            if side == RIGHT:
                deleted = delete is not None and bool(row.get(delete))
                self._put(key, None if deleted else encoded[RIGHT](row), ts, clock)
                continue
            value = encoded[LEFT](row)
            if waiting is None:
                asked = key if on is None else stored_key(row[on]) if self._null_is_key else row[on]
                self._join_row(pairs, key, value, ts, asked)
            else:
                waiting.put(key, value, ts)
                assert self._due is not None
                self._due.add([key], [ts], [value])
        results = [pairs] if pairs else []
        return results + self.advance(now) if waiting is not None or clock is not None else results

    def _put(self, key: Any, value: Any, ts: int, clock: Watermark | None) -> None:
        """Store a row of the table, or delete its key (None)."""
        if self._versions is not None:
            self._versions.put(key, value, ts)
            if self._waiting is None and clock is None:
                self._versions.advance(ts)
        elif value is None:
            self._newest.delete(key)
        else:
            self._newest.put(key, [ts, value])

    def _join_row(self, pairs: Pairs, key: Any, value: Any, ts: int, asked: Any) -> None:
        """Add the result of a stream row: none, or one."""
        match_ts, match = self._row(asked, ts)
        if match_ts is not None or self._join.how != "inner":
            pairs.add(key, ts, value, match_ts, match)

    def _row(self, key: Any, ts: int) -> tuple[int | None, Any]:
        """Return time and value of the table's row of a key for a stream row of time `ts`; None: no row."""
        if key is None or key != key:  # nan is no key, as null
            return _NO_ROW
        if self._join.as_of:
            assert self._versions is not None
            version = self._versions.get(key, as_of=ts)
            return _NO_ROW if version is None else (version.ts, version.value)
        newest = self._newest.get(key)
        return _NO_ROW if newest is None else (newest[0], newest[1])

    def advance(self, ts: int) -> list[Pairs]:
        """Move T to `ts` (ms), if that is later, and return the results of the rows that no longer wait then."""
        if self._versions is not None and self._waiting is None:
            self._versions.advance(ts)
        if self._waiting is None:
            return []
        now = max(ts, self._time)
        pairs = self._released(now)
        self._waiting.advance(now)
        if self._former:
            forget_former(self._group)
            self._former = FormerTimes([])
        self._time = now
        if self._versions is not None:
            self._versions.advance(now)
        return [pairs] if pairs else []

    def _released(self, now: int) -> Pairs:
        """Return the results of waiting rows behind T - grace, by time, key and arrival, with T = `now`."""
        assert self._due is not None
        assert self._join.grace_ms is not None
        pairs = Pairs()
        for ts, key, value in self._due.take(now - self._join.grace_ms - 1):
            self._join_row(pairs, key, value, ts, key)
        return pairs

    @property
    def holds_back(self) -> bool:
        """Whether stream rows wait for the table."""
        return self._waiting is not None and len(self._waiting) > 0

    def flush(self) -> list[Pairs]:
        """Let time pass every waiting row, and return their results."""
        waiting = self._waiting
        if waiting is None:
            return []
        assert self._join.grace_ms is not None
        newest = next(waiting.all(reverse=True), None)
        return [] if newest is None else self.advance(newest[0][1] + self._join.grace_ms + 1)
