"""Window reads: the queries of a window store.

Every read is cut at the retention boundary: an expired record whose bucket is still in memory is not seen. An open
iterator sees the store as it was when it was opened.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, compress, count, repeat
from operator import itemgetter
from typing import Any, Final, Generic

from changelog.turn import in_place, read
from recovery.table_range import between

from ..clock import check_time
from .bucket_rows import BucketRows
from .buckets import TOMBSTONE, StoreBucket
from .cold_blocks import SPARING, ColdBlock, chosen
from .columns import column_list
from .edge import K, V
from .keys import check_prefix
from .pieces import by_place
from .snapshots import SnapshotToken
from .window_runs import index_of, parts_of, rows_between

_BY_TIME_AND_KEY: Final = itemgetter(0, 1)


def _value_at(run: Any, ts: int) -> Any:
    """Return the value of a run at a time, None without one. O(log rows)."""
    i = index_of(run, ts)
    return None if i < 0 else parts_of(run)[1][i]


class WindowReads(BucketRows, Generic[K, V]):
    """The reading half of a window store."""

    retain_duplicates: bool

    @in_place
    def get(self, key: K, ts: int) -> V | None:
        """Return the value of `key` at `ts`, or None; with `retain_duplicates` the list of values there (empty if
        none), for type checkers of a store of Any.

        O(log n).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put("ann", "/", ts=500)
        >>> pages.get("ann", 500), pages.get("ann", 501)
        ('/', None)
        """
        turn = self._turn
        before = turn.take(self, reads=True) if turn.busy is not None or not turn.lock._is_owned() else None
        try:
            turn.busy = self
            self._keys.admit(key, pin=False)
            check_time(ts, f"store {self.name!r}: ts")
            run = self._run(ts // self._width, key) if ts > self._expired else None
            if run is None:
                return [] if self.retain_duplicates else None  # type: ignore[return-value]  # see the docstring
            times, values = (run[::2], run[1::2]) if type(run) is tuple else run
            i = bisect_left(times, ts)
            if self.retain_duplicates:
                return list(values[i : bisect_right(times, ts)])  # type: ignore[return-value]  # see the docstring
            return values[i] if i < len(times) and times[i] == ts else None
        finally:
            turn.busy = before

    @read
    def get_many(self, keys: Sequence[K], ts: int) -> list[V | None]:
        """Return the result of `get(key, ts)` for each of many keys, and faster. O(keys).

        >>> counts = hs.open("state").window("counts", retention="1 hour")
        >>> counts.put_many([("ann", 3, 0), ("bob", 5, 0)])
        >>> counts.get_many(["bob", "eve", "ann"], ts=0)
        [5, None, 3]
        """
        key_list = column_list(keys)
        check_time(ts, f"store {self.name!r}: ts")
        if self._tail:
            self._ask(key_list)
        bucket = self._buckets.get(ts // self._width) if ts > self._expired else None
        if bucket is not None and bucket.cold:
            self.prefetch(key_list, ts, ts)
        if self.retain_duplicates or (bucket is not None and bucket.cold):
            return [self.get(key, ts) for key in key_list]
        for key in key_list[:1]:
            self._keys.admit(key, pin=False)
        if bucket is None:
            return [None] * len(key_list)
        if SPARING.on:
            self.lookups.asked += len(key_list)
        return [
            None
            if run is None
            else (run[1] if run[0] == ts else None)
            if type(run) is tuple and len(run) == 2
            else _value_at(run, ts)
            for run in map(bucket.runs.get, key_list)
        ]

    @read
    def fetch(
        self, key: K, time_from: int | None = None, time_to: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[int, V]]:
        """Iterate over `(ts, value)` of one key with time_from <= ts <= time_to (None: open), by time.

        O(b log n + rows).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("ann", "/", 0), ("ann", "/help", 500), ("ann", "/", 900)])
        >>> list(pages.fetch("ann", time_from=500))
        [(500, '/help'), (900, '/')]
        >>> next(pages.fetch("ann", reverse=True))  # the newest
        (900, '/')
        """
        self._keys.admit(key, pin=False)
        low, high = self._bounds(time_from, time_to)
        rows: list[tuple[int, Any]] = []
        for number in self._numbers(low, high):
            run = self._run(number, key)
            if run is None:
                continue
            if type(run) is tuple:
                if len(run) == 2:
                    if low <= run[0] <= high:
                        rows.append(run)
                    continue
                times, values = run[::2], run[1::2]
            else:
                times, values = run
            if times[0] >= low and times[-1] <= high:
                rows += zip(times, values, strict=True)
            else:
                i, j = bisect_left(times, low), bisect_right(times, high)
                rows += zip(times[i:j], values[i:j], strict=True)
        return self._iterators.over(rows, reverse=reverse)

    @read
    def fetch_many(
        self, keys: Sequence[K], time_from: int | None = None, time_to: int | None = None
    ) -> dict[K, tuple[list[int], list[V]]]:
        """Return the times and values of many keys with time_from <= ts <= time_to (None: open), by time; keys without
        rows are left out. The same as a `fetch` for each, and faster. O(buckets * keys + rows).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("ann", "/", 0), ("ann", "/help", 500), ("bob", "/", 900)])
        >>> rows = pages.fetch_many(["ann", "bob", "cid"], time_to=100)
        >>> rows
        {'ann': ([0], ['/'])}
        """
        distinct = column_list(keys)
        with suppress(TypeError):  # such a key is refused below, by name
            distinct = list(dict.fromkeys(distinct))
        places, times, values = self.fetch_columns(distinct, time_from, time_to)
        if len(set(places)) == len(places):
            parts = zip(map(list, zip(times, strict=True)), map(list, zip(values, strict=True)), strict=True)
            return dict(zip(map(distinct.__getitem__, places), parts, strict=True))
        rows: dict[Any, tuple[list[int], list[Any]]] = {}
        for place, ts, value in zip(places, times, values, strict=True):
            of_times, of_values = rows.setdefault(distinct[place], ([], []))
            of_times.append(ts)
            of_values.append(value)
        return rows

    @read
    def fetch_columns(
        self, keys: Sequence[K], time_from: int | None = None, time_to: int | None = None, *, plain: bool = False
    ) -> tuple[list[int], list[int], list[V]]:
        """Return the rows of `fetch_many` by column: of each row the place of its key among `keys`, which differ, its
        time, and its value; of one key by time. `plain` says that all keys have one type and can be stored.
        O(buckets * keys + rows), and less where buckets have few keys.

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("ann", "/", 0), ("ann", "/help", 500), ("bob", "/", 900)])
        >>> pages.fetch_columns(["eve", "bob", "ann"], time_from=100)
        ([1, 2], [900, 500], ['/', '/help'])
        """
        key_list = column_list(keys)
        if self._keys.known and not plain:
            self._keys.admit_all(key_list)
        else:
            for key in key_list[:1] if plain else key_list:
                self._keys.admit(key, pin=False)
        low, high = self._bounds(time_from, time_to)
        if self._tail and key_list:
            self._ask(key_list)
        places: list[int] = []
        times: list[int] = []
        values: list[Any] = []
        place_of: dict[Any, int] = {}
        for number in self._numbers(low, high):
            if self._buckets[number].cold:
                for key in key_list:
                    self._run(number, key)
                if number not in self._buckets:
                    continue
            elif SPARING.on:
                self.lookups.asked += len(key_list)
            of_bucket = self._buckets[number].runs
            if of_bucket.keys().isdisjoint(key_list):  # at once where a key has rows, and the fastest where none has
                continue
            if 4 * len(of_bucket) < len(key_list):
                # few keys have rows here: those of the bucket are looked for, and not all that are asked for
                place_of = place_of or dict(zip(key_list, count(), strict=False))
                present = sorted(map(place_of.__getitem__, of_bucket.keys() & place_of.keys()))
                runs = [of_bucket[key_list[place]] for place in present]
            else:
                runs = list(map(of_bucket.get, key_list))
                # no run is empty, so a key without rows alone is false
                present = list(compress(range(len(runs)), runs))
                runs = list(filter(None, runs))
            if not runs:
                continue
            of_times: Sequence[int]
            of_values: Sequence[Any]
            if set(map(type, runs)) == {tuple} and set(map(len, runs)) == {2}:
                of_times, of_values = zip(*runs, strict=True)
            else:
                parts = [_rows_within(run, low, high) for run in runs]
                present = list(chain.from_iterable(map(repeat, present, [len(part[0]) for part in parts])))
                of_times, of_values = (list(chain.from_iterable(map(itemgetter(at), parts))) for at in (0, 1))
            if low > number * self._width or (number + 1) * self._width - 1 > high:
                within = [low <= ts <= high for ts in of_times]
                if False in within:
                    present, of_times, of_values = (
                        list(compress(column, within)) for column in (present, of_times, of_values)
                    )
            places += present
            times += of_times
            values += of_values
        return places, times, values

    def scan(
        self,
        key_from: K | None = None,
        key_to: K | None = None,
        *,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[tuple[K, int], V]]:
        """Iterate over `((key, ts), value)` with key_from <= key <= key_to and time_from <= ts <= time_to, all
        inclusive, None open. `prefix`, in place of both keys: the keys that start with it, as for a key-value store.

        By ts, then key, then arrival. A snapshot: later changes are not seen. Raises ValueError for a prefix beside a
        bound of keys, TypeError for a bound of another type than the keys. O(1) to open, O(rows log rows) to read.
        Under a limit of memory the iterator reads the blocks of a bucket and keeps none, so CorruptCheckpointError may
        come from the iterator. If the blocks overlap in time, their rows go through a file without a name in the folder
        of the state (without room there, blocks are read for each piece of the rows that has room in memory).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("ann", "/", 500), ("bob", "/", 0), ("cid", "/", 0)])
        >>> list(pages.scan("ann", "bob", time_to=500))
        [(('bob', 0), '/'), (('ann', 500), '/')]
        >>> list(pages.scan(time_from=0, time_to=499))
        [(('bob', 0), '/'), (('cid', 0), '/')]
        >>> list(pages.scan(prefix="a"))
        [(('ann', 500), '/')]
        """
        if prefix is not None:
            check_prefix(self.name, prefix, key_from, key_to)
            rows = self.scan(prefix, time_from=time_from, time_to=time_to, reverse=reverse)
            return (row for row in rows if row[0][0][: len(prefix)] == prefix)  # type: ignore[index]
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.admit(bound, pin=False)
        low, high = self._bounds(time_from, time_to)
        self.apply_waiting()
        numbers = self._numbers(low, high)
        buckets = self._iterators.over((self._buckets[n] for n in numbers), reverse=reverse)
        return self._scan(buckets, (key_from, key_to, low, high, reverse), self._open_snapshot())

    def all(self, *, reverse: bool = False) -> Iterator[tuple[tuple[K, int], V]]:
        """Iterate over all live rows; see `scan`.

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("bob", "/", 0), ("ann", "/help", 500)])
        >>> list(pages.all(reverse=True))
        [(('ann', 500), '/help'), (('bob', 0), '/')]
        """
        return self.scan(reverse=reverse)

    def cuts(self, time_from: int, time_to: int) -> list[K]:
        """Return keys, in order, between which the rows of a range of times (ms, both inclusive) that are in cold
        blocks have about the bytes of a piece of a scan; none where memory is not short. O(cold blocks).

        >>> hs.open("state").window("pages", retention="1 hour").cuts(0, 3_600_000)
        []
        """
        if not SPARING.on:
            return []
        ends: list[tuple[Any, int]] = []
        for number in self._numbers(max(0, time_from), time_to):
            cold = self._buckets[number].cold
            entries = [cold[i].entry for i in chosen(cold, lambda at: at.low <= time_to and at.high >= time_from)]
            ends += [(entry.last, entry.bytes) for entry in entries]
        keys: list[Any] = []
        size = 0
        for key, more in sorted(ends, key=itemgetter(0)):
            size += more
            if size > SPARING.piece:
                keys, size = keys if keys and keys[-1] == key else [*keys, key], 0
        return keys

    def _scan(
        self, buckets: Iterator[StoreBucket], bounds: tuple[Any, Any, int, int, bool], token: SnapshotToken
    ) -> Iterator[tuple[tuple[K, int], V]]:
        for bucket in buckets:
            self._turn.take(self, reads=True)
            for ts, key, value in self._iterators.piecewise(self._pieces(bucket, *bounds)):
                yield (key, ts), value
        del token

    def _pieces(
        self, bucket: StoreBucket, key_from: Any, key_to: Any, low: int, high: int, reverse: bool
    ) -> Iterator[list[Any]]:
        """Return the rows `(time, key, value)` of a bucket in a range of keys and times, in order, a piece at a
        time.
        """
        cold = self._unloaded(bucket, key_from, key_to, low, high)
        if cold is None:
            rows = sorted(rows_between(bucket.runs, key_from, key_to, low, high), key=_BY_TIME_AND_KEY)
            if reverse:
                rows.reverse()
            return iter([rows] if rows else [])

        of_keys = between(key_from, key_to)

        def stored(block: ColdBlock, low: int, high: int) -> list[Any]:
            keys, times, values = self._cold_rows(bucket, block, low, high)
            part = slice(*of_keys(keys))
            return list(zip(times[part], keys[part], values[part], strict=True))

        def in_memory(low: int, high: int) -> list[Any]:
            rows = rows_between(bucket.runs, key_from, key_to, low, high)
            return [row for row in rows if row[2] is not TOMBSTONE]

        return by_place(in_memory, cold, stored, _BY_TIME_AND_KEY, low, high, reverse=reverse, folder=self._folder)


def _rows_within(run: Any, low: int, high: int) -> tuple[Sequence[int], Sequence[Any]]:
    """Return times and values of a run from `low` to `high` (ms); of a short run all. O(log n + rows)."""
    if type(run) is tuple:
        return parts_of(run)
    times, values = run
    cut = slice(bisect_left(times, low), bisect_right(times, high))
    return times[cut], values[cut]
