"""Session reads: the queries of a session store.

The surprise: no search scans all ends. Each bucket and each long run knows its longest session, so that a session which
begins by a given time cannot end much later: bisection finds both ends of the range to look at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Generic

from changelog.turn import read
from recovery.table_range import between

from ..clock import INT64_MAX, check_time
from .bucket_rows import BucketRows
from .buckets import TOMBSTONE
from .cold_blocks import SPARING, ColdBlock
from .edge import K, V
from .keys import check_prefix
from .pieces import by_place
from .session_runs import SessionBucket, value_of
from .snapshots import SnapshotToken

Session = tuple[K, int, int]  # key, start, end
# The first and last key, the first and last end, the last start, and whether the last row comes first.
_Bounds = tuple[Any, Any, int, int, int, bool]
_Row = tuple[int, Any, int, Any]  # end, key, minus start, value: its order is the store's


class SessionReads(BucketRows, Generic[K, V]):
    """The reading half of a session store."""

    @read
    def get(self, key: K, start: int, end: int) -> V | None:
        """Return the value of one session, or None. O(log n).

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put("ann", 3, start=0, end=30_000)
        >>> visits.get("ann", 0, 30_000), visits.get("ann", 0, 29_999)
        (3, None)
        """
        self._keys.admit(key, pin=False)
        self._check_span(start, end)
        return self._find(key, start, end) if end > self._expired else None

    def _find(self, key: Any, start: int, end: int) -> Any:
        run = self._run(end // self._width, key)
        return None if run is None else value_of(run, start, end)

    def _check_span(self, start: int, end: int) -> None:
        check_time(start, f"store {self.name!r}: start")
        check_time(end, f"store {self.name!r}: end")
        if start > end:
            raise ValueError(f"store {self.name!r}: start: found {start}, expected at most the end, {end}")

    @read
    def find_sessions(
        self, key: K, earliest_end: int | None = None, latest_start: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Session[K], V]]:
        """Iterate over `((key, start, end), value)` of one key with end >= earliest_end and start <= latest_start
        (None: open).

        By end, then start descending. A snapshot. O(buckets + log n + result), as long as the key's sessions are of
        like length.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 1, 0, 10_000), ("ann", 2, 20_000, 30_000), ("ann", 3, 50_000, 60_000)])
        >>> list(visits.find_sessions("ann", earliest_end=15_000, latest_start=40_000))
        [(('ann', 20000, 30000), 2)]
        """
        self._keys.admit(key, pin=False)
        low, latest = self._bounds(earliest_end, latest_start)
        width, buckets = self._width, self._buckets
        rows: list[tuple[Session, Any]] = []
        numbers = self._numbers(low, INT64_MAX)
        if SPARING.on:
            self.lookups.asked += len(numbers)
        for number in numbers:
            bucket = buckets[number]
            if number * width - bucket.longest > latest:
                continue
            if bucket.cold and (i := bucket.covering(key)) >= 0:
                self._load_key(bucket, i, key)
            run = bucket.runs.get(key)
            if run is None:
                continue
            if type(run) is tuple:
                for end, start, value in zip(run[::3], run[1::3], run[2::3], strict=True):
                    if end >= low and start <= latest:
                        rows.append(((key, start, end), value))
                continue
            ends, starts, values, longest = run
            i = bisect_left(ends, low) if ends[0] < low else 0
            j = bisect_right(ends, latest + longest, i) if ends[-1] > latest + longest else len(ends)
            rows += [
                ((key, start, end), value)
                for end, start, value in zip(ends[i:j], starts[i:j], values[i:j], strict=True)
                if start <= latest
            ]
        return self._iterators.over(rows, reverse=reverse)

    @read
    def find_sessions_range(
        self,
        key_from: K | None = None,
        key_to: K | None = None,
        earliest_end: int | None = None,
        latest_start: int | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Session[K], V]]:
        """Iterate over `((key, start, end), value)` with key_from <= key <= key_to, and as `find_sessions`; bounds may
        be None.

        By end, then key, then start descending. A snapshot: later changes are not seen. O(1) to open; to read, O(log n)
        a bucket, plus the rows and their sorting; under a limit of memory as a `scan` of a window store.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000), ("cid", 1, 0, 10_000)])
        >>> list(visits.find_sessions_range("ann", "bob", earliest_end=20_000))
        [(('ann', 0, 30000), 3)]
        """
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.admit(bound, pin=False)
        low, latest = self._bounds(earliest_end, latest_start)
        self.apply_waiting()
        if key_from is not None and key_to is not None and key_from > key_to:  # type: ignore[operator]
            return iter(())
        width = self._width
        numbers = [n for n in self._numbers(low, INT64_MAX) if n * width - self._buckets[n].longest <= latest]
        return self._scan(numbers, (key_from, key_to, low, INT64_MAX, latest, reverse))

    @read
    def find_sessions_by_end(
        self, earliest_end: int | None = None, latest_end: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Session[K], V]]:
        """Iterate over `((key, start, end), value)` of all keys with earliest_end <= end <= latest_end (None: open).

        In the order and at the cost of `find_sessions_range`.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000)])
        >>> list(visits.find_sessions_by_end(latest_end=20_000))
        [(('bob', 0, 10000), 1)]
        """
        low, high = self._bounds(earliest_end, latest_end)
        self.apply_waiting()
        return self._scan(self._numbers(low, high), (None, None, low, high, INT64_MAX, reverse))

    def fetch(self, key: K, *, reverse: bool = False) -> Iterator[tuple[Session[K], V]]:
        """Iterate over all live sessions of one key; see `find_sessions`.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000)])
        >>> list(visits.fetch("ann"))
        [(('ann', 0, 30000), 3)]
        """
        return self.find_sessions(key, reverse=reverse)

    def scan(
        self,
        key_from: K | None = None,
        key_to: K | None = None,
        *,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Session[K], V]]:
        """Iterate over `((key, start, end), value)` of the live sessions with key_from <= key <= key_to and some time
        in time_from..time_to, all inclusive, None open. `prefix`, in place of both keys: the keys that start with it,
        as for a key-value store.

        In the order and at the cost of `find_sessions_range`. Raises ValueError for a prefix beside a bound of keys.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000), ("cid", 1, 0, 10_000)])
        >>> [key for (key, start, end), pages in visits.scan("ann", "bob")]
        ['bob', 'ann']
        >>> [key for (key, start, end), pages in visits.scan(time_from=20_000)]
        ['ann']
        >>> [key for (key, start, end), pages in visits.scan(prefix="b")]
        ['bob']
        """
        if prefix is not None:
            check_prefix(self.name, prefix, key_from, key_to)
            key_from = prefix
        rows = self.find_sessions_range(key_from, key_to, time_from, time_to, reverse=reverse)
        if time_from is not None and time_to is not None and time_from > time_to:
            return iter(())  # a session that has both times in it would be among the rows
        if prefix is None:
            return rows
        return (row for row in rows if row[0][0][: len(prefix)] == prefix)  # type: ignore[index]

    def all(self, *, reverse: bool = False) -> Iterator[tuple[Session[K], V]]:
        """Iterate over all live sessions; see `find_sessions_range`.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000)])
        >>> [key for (key, start, end), pages in visits.all()]  # by end
        ['bob', 'ann']
        """
        return self.find_sessions_range(reverse=reverse)

    def _scan(self, numbers: list[int], bounds: _Bounds) -> Iterator[tuple[Session[K], V]]:
        buckets = self._iterators.over(((n, self._buckets[n]) for n in numbers), reverse=bounds[-1])
        return self._read(buckets, bounds, self._open_snapshot())

    def _read(
        self, buckets: Iterator[tuple[int, SessionBucket]], bounds: _Bounds, token: SnapshotToken
    ) -> Iterator[tuple[Session[K], V]]:
        for number, bucket in buckets:
            self._turn.take(self, reads=True)
            for end, key, minus_start, value in self._iterators.piecewise(self._pieces(number, bucket, *bounds)):
                yield (key, -minus_start, end), value
        del token

    def _pieces(
        self,
        number: int,
        bucket: SessionBucket,
        key_from: Any,
        key_to: Any,
        low: int,
        high: int,
        latest: int,
        reverse: bool,
    ) -> Iterator[list[_Row]]:
        """Return the sessions of a bucket in a range of keys and times, in order, a piece at a time."""
        cold = self._unloaded(bucket, key_from, key_to, low, high)
        if cold is None:
            first, last = number * self._width, (number + 1) * self._width - 1
            if key_from is None and key_to is None and (high < last or low > first):
                rows = _rows_by_end(bucket, low, high, latest)
            else:
                rows = _rows(bucket, key_from, key_to, low, high, latest)
                rows.sort(key=_order)
            if reverse:
                rows.reverse()
            return iter([rows] if rows else [])

        of_keys = between(key_from, key_to)

        def stored(block: ColdBlock, low: int, high: int) -> list[_Row]:
            keys, ends, starts, values = self._cold_rows(bucket, block, low, high)
            part = slice(*of_keys(keys))
            rows = zip(ends[part], keys[part], starts[part], values[part], strict=True)
            return [(end, key, -start, value) for end, key, start, value in rows if start <= latest]

        def in_memory(low: int, high: int) -> list[_Row]:
            rows = _rows(bucket, key_from, key_to, low, high, latest)
            return [row for row in rows if row[3] is not TOMBSTONE]

        return by_place(in_memory, cold, stored, _order, low, high, reverse=reverse, folder=self._folder)


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:3]


def _rows(bucket: SessionBucket, key_from: Any, key_to: Any, low: int, high: int, latest: int) -> list[_Row]:
    """Return the sessions of a bucket in a range of keys and times, in no order."""
    rows: list[_Row] = []
    runs = bucket.runs
    chosen = runs if key_from is None and key_to is None else bucket.keys_between(key_from, key_to)
    for key in chosen:
        run = runs[key]
        if type(run) is tuple:
            for end, start, value in zip(run[::3], run[1::3], run[2::3], strict=True):
                if low <= end <= high and start <= latest:
                    rows.append((end, key, -start, value))
            continue
        ends, starts, values, longest = run
        i, j = bisect_left(ends, low), bisect_right(ends, min(high, latest + longest))
        rows += [
            (end, key, -start, value)
            for end, start, value in zip(ends[i:j], starts[i:j], values[i:j], strict=True)
            if start <= latest
        ]
    return rows


def _rows_by_end(bucket: SessionBucket, low: int, high: int, latest: int) -> list[_Row]:
    """Return the sessions of a bucket in a range of ends, in order: for a bucket that the range covers in part."""
    rows: list[_Row] = []
    runs = bucket.runs
    for end, key, minus_start in bucket.ends_between(low, high):
        if -minus_start <= latest:
            rows.append((end, key, minus_start, value_of(runs[key], -minus_start, end)))
    return rows
