"""Key-value store: key -> value, optionally with a time to live by event time.

    one dict (key -> value, or key -> (value, ts) with a ttl), with key ranges that are still in the checkpoint behind
    it

Reads are in `key_value_reads`. The surprise: with a ttl, expiry follows the timestamps of the puts (stream time), never
the wall clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from itertools import compress
from types import NoneType
from typing import Any

from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import DELETE, PUT, PUT_AT, PUT_COLUMNS, TIME
from changelog.turn import entry, in_place
from recovery.block import BlockEntry, BucketChange, Columns
from recovery.directory import PageEntry

from ..clock import NO_TIME, check_time, expired_through
from ..collector import collector_held
from .buckets import TOMBSTONE
from .cold_tail import ColdTail, Maps
from .columns import accepted, batches, column_list, columns_of, time_list
from .edge import K, V
from .expiries import Expiries
from .key_value_reads import KeyValueReads
from .sizes import HEAP_BYTES


class KeyValueStore(KeyValueReads[K, V], MutableMapping[K, V]):
    """A key-value store, also a mapping: `[]`, `in`, `del`, `len`, `keys`, `items` and the other methods of a dict.
    Made by `State.key_value`; see there for the parameters.

    Type checkers know the types of keys and values that are declared:
    `users: hs.KeyValueStore[str, int] = state.key_value("users")`.

    Time complexity: put, get and delete O(1); ordered scans O(result) plus sorting the keys that are new since the last
    one.

    >>> users = hs.open("state").key_value("users")
    >>> users["ann"], users["bob"] = 1, 2
    >>> del users["bob"]
    >>> dict(users), "bob" in users
    ({'ann': 1}, False)
    """

    kind = "key_value"
    applies_alone = True
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    ops = PUT, PUT_COLUMNS, DELETE

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self.ttl_ms: int | None = parameters["ttl_ms"]
        self._tail = ColdTail(2 if self.ttl_ms is None else 3)
        super().__init__(name, number, parameters, journal, {"expired": 0})
        self._code_put = number * 16 + (PUT if self.ttl_ms is None else PUT_AT)

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @in_place
    def put(self, key: K, value: V | None, ts: int | None = None) -> None:
        """Put `value` under `key`; None deletes.

        With a ttl, `ts` (ms) is required and the row lives while ts > stream_time - ttl.

        A record that has expired on arrival is dropped and counted. Raises TypeError or ValueError, with nothing
        changed, for a key, value or time that cannot be stored. O(1).

        >>> seen = hs.open("state").key_value("seen", ttl="1 minute")
        >>> seen.put("ann", 1, ts=60_000)
        >>> seen.put("bob", 1, ts=0)  # 0 <= 60,000 - ttl: dropped
        >>> list(seen), seen.dropped
        (['ann'], {'expired': 1})
        """
        turn = self._turn
        before = turn.take(self) if turn.busy is not None or not turn.lock._is_owned() else None
        try:
            turn.busy = self
            if self.ttl_ms is not None:
                self._put_at(key, value, ts)
                return
            if ts is not None:
                raise ValueError(f"store {self.name!r}: ts: found {ts!r}, but the store has no ttl (leave ts out)")
            if value is None:
                self._remove(key)
                return
            kind = type(value)
            small = (
                kind is float
                or ((kind is bytes or kind is str) and len(value) <= SMALL)  # type: ignore[arg-type]
                or is_small_atom(value)
            )
            if not small:
                self._check_value(key, value)
            if type(key) is not self._keys.fast or len(key) > SMALL:  # type: ignore[arg-type]
                small = self._keys.admit(key) and small
            try:
                if small:
                    self._log((self._code_put, key, value))
                    if len(self._items) >= self._limit:
                        self._journal.spill()
                else:
                    self._journal.record(self._code_put, key, value)
                self.apply_put(key, value)
            except BaseException as error:
                self._journal.cut_short(error)
                raise
        finally:
            turn.busy = before

    def _put_at(self, key: Any, value: Any, ts: int | None) -> None:
        if ts is None:
            raise ValueError(f"store {self.name!r}: ts: found None, expected a time in ms (the store has a ttl)")
        check_time(ts, f"store {self.name!r}: ts")
        small = is_small_atom(value)
        if not small:
            self._check_value(key, value)
        if type(key) is not self._keys.fast or len(key) > SMALL:
            if value is None:
                self._keys.check(key)
            else:
                small = self._keys.admit(key) and small
        if ts <= self._expired:
            self.dropped["expired"] += 1
            return
        try:
            if value is None:
                self._remove(key)
                if ts > self._stream_time and self._by_records:
                    self._journal.record(self.number * 16 + TIME, ts)
                    self.apply_time(ts)
                return
            if small:
                self._log((self._code_put, key, value, ts))
                if len(self._items) >= self._limit:
                    self._journal.spill()
            else:
                self._journal.record(self._code_put, key, value, ts)
            self.apply_put_at(key, value, ts)
        except BaseException as error:
            self._journal.cut_short(error)
            raise

    @entry
    def delete(self, key: K) -> V | None:
        """Delete a key and return its value, or None; deleting an absent key changes and logs nothing.

        O(1).

        >>> users = hs.open("state").key_value("users")
        >>> users["ann"] = 1
        >>> users.delete("ann"), users.delete("ann")
        (1, None)
        """
        old: V | None = self._remove(key)
        return old

    def _remove(self, key: Any) -> Any:
        old = self.get(key)
        if old is not None:
            try:
                self._journal.record(self.number * 16 + DELETE, key)
                self.apply_delete(key)
            except BaseException as error:
                self._journal.cut_short(error)
                raise
        return old

    def advance(self, ts: int) -> None:
        """Move stream time to `ts` (ms) without a record, in a store with a ttl; an earlier time or -1 changes nothing.

        Rows whose ttl is over expire. Raises ValueError for a store without a ttl, which has no time. O(expired log n).

        >>> seen = hs.open("state").key_value("seen", ttl="1 minute")
        >>> seen.put("ann", 1, ts=0)
        >>> seen.advance(60_000)
        >>> "ann" in seen
        False
        """
        if self.ttl_ms is None:
            raise ValueError(
                f"store {self.name!r}: advance: found no ttl, expected one, since a store without ttl has no time"
            )
        self.move_time(ts)

    def put_if_absent(self, key: K, value: V, ts: int | None = None) -> V | None:
        """Put `value` only if the key is absent; return the existing value, or None when `value` was put. O(1).

        >>> seen = hs.open("state").key_value("seen")
        >>> seen.put_if_absent("order-7", "first")
        >>> seen.put_if_absent("order-7", "again")
        'first'
        """
        old = self.get(key)
        if old is None:
            self.put(key, value, ts)
        return old

    def put_many(self, rows: Mapping[K, V | None] | Iterable[tuple[Any, ...]]) -> None:
        """Put many rows, in order: the same as a put for each, and faster. `rows` is a mapping, or has `(key, value)`,
        and with a ttl `(key, value, ts)`. All or nothing: with a bad row nothing is put. O(rows).

        >>> users = hs.open("state").key_value("users")
        >>> users.put_many({"ann": 1, "bob": object()})
        Traceback (most recent call last):
            ...
        TypeError: store 'users': value of key 'bob': found object, expected None, bool, ...
        >>> users.put_many([("ann", 1), ("bob", 2), ("ann", None)])
        >>> list(users.all())
        [('bob', 2)]
        """
        names = ("key", "value") if self.ttl_ms is None else ("key", "value", "ts")
        given = rows.items() if isinstance(rows, Mapping) else rows
        self.put_columns(*columns_of(given, names, f"store {self.name!r}"))

    @entry
    def put_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int] | None = None) -> None:
        """Put rows given by column: sequences, numpy arrays or Arrow arrays of equal length.

        All or nothing on bad arguments.

        Raises ValueError when the lengths differ, and as `put`. O(rows).

        >>> seen = hs.open("state").key_value("seen", ttl="1 minute")
        >>> seen.put_columns(["ann", "bob"], [1, 2], [0, 5_000])
        >>> seen.get_many(["bob", "ann"])
        [2, 1]
        """
        key_list, value_list = column_list(keys), column_list(values)
        ts_list = None if times is None else time_list(times, f"store {self.name!r}: times")
        if (ts_list is None) is not (self.ttl_ms is None):
            given = (
                "None, expected times in ms (the store has a ttl)"
                if times is None
                else "times, but the store has no ttl (leave times out)"
            )
            raise ValueError(f"store {self.name!r}: times: found {given}")
        self._check_lengths(keys=key_list, values=value_list, **({} if ts_list is None else {"times": ts_list}))
        kinds = self._check_values(key_list, value_list)
        if kinds <= {NoneType}:
            self._ask(key_list)
        else:
            self._keys.admit_all(key_list)
        if key_list:
            with collector_held():
                whole = (key_list, value_list) if ts_list is None else (key_list, value_list, ts_list)
                if NoneType in kinds or not self._put_together(*whole):
                    self._journal.check_columns(key_list, value_list)
                    for part in batches(*whole):
                        if None in part[1] or not self._put_together(*part):
                            for row in zip(*part, strict=True):
                                self.put(*row)

    def _put_together(self, keys: list[Any], values: list[Any], times: list[int] | None = None) -> bool:
        """Log and apply rows by column, none of them a deletion, without rows that have expired on arrival; False, with
        nothing done, if a row would expire during the batch.
        """
        if times is not None and self.ttl_ms is not None:
            newest = max(self._stream_time, *times) if self._by_records else self._stream_time
            low = expired_through(newest, self.ttl_ms)
            if min(times) <= low:
                alive = accepted(times, self._stream_time, self.ttl_ms, moves=self._by_records)
                kept = list(compress(times, alive))
                if kept and min(kept) <= low:
                    return False
                self.dropped["expired"] += len(times) - len(kept)
                if not kept:
                    return True
                keys, values, times = list(compress(keys, alive)), list(compress(values, alive)), kept
        with self._journal.whole:
            self._journal.record_columns(self.number * 16 + PUT_COLUMNS, keys, values, times)
            self.apply_columns(keys, values, times)
        return True

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if self.delete(key) is None:
            raise KeyError(key)

    @entry
    def clear(self) -> None:
        """Delete every key. O(rows).

        >>> users = hs.open("state").key_value("users")
        >>> users["ann"] = 1
        >>> users.clear()
        >>> len(users)
        0
        """
        for key, _ in list(self.scan()):
            self._remove(key)

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any) -> None:
        """Insert or overwrite one row."""
        # a tombstone over a cold block is in the dict, but not in the order
        if self._order is not None and self._runs.get(key, TOMBSTONE) is TOMBSTONE:
            self._order.changed.add(key)
        self._runs[key] = value
        if self._dirty is not None:
            self._dirty.add(key)

    def apply_put_at(self, key: Any, value: Any, ts: int) -> None:
        """Insert or overwrite one row of a store with a ttl."""
        if ts > self._stream_time and self._by_records:
            self.apply_time(ts)
        self.apply_put(key, (value, ts))
        heap, runs = self._heap, self._runs
        heap.add(ts, key)
        if heap.count > 2 * len(runs) + 64:  # as `tidy`, without a call
            heap.tidy(runs, 1)

    def apply_delete(self, key: Any) -> None:
        bucket, older = self._bucket, self._older
        if older:
            self._forget(key)
        if older.deleted is not None:
            older.deleted.add(key)
        i = bucket.covering(key) if bucket.cold else -1
        if i >= 0 or older.fresh:  # the next checkpoint may have the key
            self.apply_put(key, TOMBSTONE)
            if self._order is not None:
                self._order.changed.add(key)
            entry = bucket.cold[i].entry if i >= 0 else None
            assert not isinstance(entry, PageEntry)
            self._buried.setdefault(-1 if entry is None else entry.block, []).append(key)
            return
        if self._runs.pop(key, TOMBSTONE) is not TOMBSTONE and self._order is not None:
            self._order.changed.add(key)
        if self._dirty is not None:
            self._dirty.add(key)

    def apply_time(self, ts: int) -> None:
        """Move stream time and remove what expired. O(expired log n)."""
        if ts <= self._stream_time or self.ttl_ms is None:
            return
        self._stream_time = ts
        self._expired = expired_through(ts, self.ttl_ms)
        self._expire_rows()
        if self._expired >= self._cold_until and self._expire_cold(self._expired):
            self._prune_tombstones()
            self._cold_changed()

    def _expire_rows(self) -> None:
        if not self._heap.due(self._expired):
            return
        runs = self._runs
        for ts, key in self._heap.pop(self._expired):
            row = runs.get(key)
            if row is not None and row is not TOMBSTONE and row[1] == ts:
                self.apply_delete(key)

    def apply_columns(self, keys: list[Any], values: list[Any], times: list[int] | None) -> None:
        """Insert rows by column, in order."""
        rows: Iterable[Any] = values
        if times is not None and self.ttl_ms is not None:
            newest = max(self._stream_time, *times) if self._by_records else self._stream_time
            if min(times) <= expired_through(newest, self.ttl_ms):
                for key, value, ts in zip(keys, values, times, strict=True):
                    self.apply_put_at(key, value, ts)
                return
            self.apply_time(newest)
            rows = zip(values, times, strict=True)
        self._insert(keys, zip(keys, rows, strict=True))
        if times is not None:
            self._wait(zip(times, keys, strict=True), len(times))

    def apply_rows(self, keys: list[Any], values: list[Any], *times: list[int]) -> None:
        """Apply rows of the tail, in order: the last row of a key counts; if that row has expired since, the key has no
        row.
        """
        if not times and not self._tail.deletes:
            self._insert(keys, zip(keys, values, strict=True))
            return
        rows: dict[Any, Any] = dict(zip(keys, zip(values, *times, strict=True) if times else values, strict=True))
        if times:
            expired = self._expired
            absent = [key for key, (value, ts) in rows.items() if ts <= expired or value is TOMBSTONE]
        else:
            absent = [key for key, value in rows.items() if value is TOMBSTONE]
        for key in absent:
            del rows[key]
            self.apply_delete(key)
        self._insert(rows, rows.items())
        if times:
            self._wait([(row[1], key) for key, row in rows.items()], len(rows))

    def _insert(self, keys: Collection[Any], rows: Iterable[tuple[Any, Any]]) -> None:
        """Insert or overwrite the rows of these keys in the dict. O(rows)."""
        if self._order is not None:
            self._order.changed.update(key for key in keys if self._runs.get(key, TOMBSTONE) is TOMBSTONE)
        self._runs.update(rows)
        if self._dirty is not None:
            self._dirty.update(keys)

    def appliers(self) -> dict[int, Callable[..., None]]:
        if self.ttl_ms is None:
            return {PUT: self._tail.add, DELETE: self._wait_delete, PUT_COLUMNS: self._wait_columns}
        timed = {PUT_AT: self._tail.add, DELETE: self._wait_delete_at, TIME: self.apply_time}
        return {**timed, PUT_COLUMNS: self._wait_columns}

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        if self.ttl_ms is None:
            return {PUT: self._tail.extend, DELETE: self._wait_deletes}
        return {PUT_AT: self._tail.extend}

    def _wait_columns(self, keys: list[Any], values: list[Any], times: list[int] | None) -> None:
        self._tail.extend(*((keys, values) if times is None else (keys, values, times)))

    def _wait_delete_at(self, key: Any) -> None:
        self._wait_delete(key, NO_TIME)

    def _rebuild_heap(self) -> None:
        self._heap = Expiries()
        places = [(row[1], key) for key, row in self._runs.items() if row is not TOMBSTONE]
        self._heap.extend(places, len(places))

    def _wait(self, places: Iterable[tuple[int, Any]], count: int) -> None:
        self._heap.extend(places, count)
        self._heap.tidy(self._runs, count)

    def _prune_tombstones(self) -> None:
        """Forget tombstones over blocks that are no longer cold, unless they may be over rows that were put apart."""
        if self._older.fresh:
            return
        bucket = self._bucket
        for key in [key for key, row in self._runs.items() if row is TOMBSTONE and bucket.covering(key) < 0]:
            del self._runs[key]

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def clear_state(self) -> None:
        super().clear_state()
        self._firsts = []
        self._heap = Expiries()
        self._expired = NO_TIME

    def _install(self, columns: Columns) -> None:
        if self._older.fresh:
            columns = self._unknown(columns)
        keys, values = columns.keys, columns.values
        runs = self._runs
        places: list[tuple[int, Any]] = []
        if self.ttl_ms is not None:
            expired = self._expired
            rows = [
                (key, (value, ts)) for key, value, ts in zip(keys, values, columns.ints[0], strict=True) if ts > expired
            ]
            places = [(row[1], key) for key, row in rows if key not in runs]
            keys, values = [key for key, _ in rows], [row for _, row in rows]
        if self._order is not None:
            self._order.changed.update(keys)
        # Keys written since are in one of two small sets; looking up every key in the large dict takes longer.
        dirty, over_cold = self._dirty, self._over_cold
        over: list[tuple[Any, Any]] = []
        if dirty is None:
            over = [(key, runs[key]) for key in keys if key in runs]
        elif dirty or over_cold:
            written = dirty.intersection(keys) | over_cold.intersection(keys)
            over = [(key, runs[key]) for key in written if key in runs]
        runs.update(zip(keys, values, strict=True))
        for key, value in over:
            if value is TOMBSTONE:
                del runs[key]
            else:
                runs[key] = value
        if places:
            self._wait(places, len(places))

    def _forget_expired(self) -> None:
        if self._expire_cold(self._expired):
            self._prune_tombstones()
            self._cold_changed()

    def _loaded(self, entry: BlockEntry) -> None:
        # tombstones in this block's range are not needed any more, unless the next checkpoint may have the keys
        super()._loaded(entry)
        runs, buried = self._runs, self._buried.pop(entry.block, [])
        if self._older.fresh and buried:
            self._buried.setdefault(-1, []).extend(buried)
            return
        for key in buried:
            if runs.get(key) is TOMBSTONE:
                del runs[key]

    def _cold_changed(self) -> None:
        self._firsts = []
        if not self._bucket.cold:
            self._over_cold.clear()
            self._older.twice = 0

    def _change(self, dirty: set[Any] | None) -> BucketChange:
        self._gather()
        runs = self._runs
        removed: set[Any] = set()
        if dirty is None:
            keys = sorted(runs)
            rows = list(map(runs.__getitem__, keys))
        else:
            keys = sorted(dirty)
            # one look into the dict per key: this line takes most of the time
            rows = list(map(runs.get, keys))
            removed = {key for key, row in zip(keys, rows, strict=True) if row is None or row is TOMBSTONE}
            if removed:
                keys = [key for key in keys if key not in removed]
                rows = [runs[key] for key in keys]
        if self.ttl_ms is None:
            columns = Columns(keys, None, (), rows)
        else:
            columns = Columns(keys, None, (array("q", [row[1] for row in rows]),), [row[0] for row in rows])
        return BucketChange(columns, removed, dirty is None)

    def _expired_through(self) -> int:
        return self._expired

    def _maps_bytes(self) -> int:
        return super()._maps_bytes() + HEAP_BYTES * (len(self._heap) + sum(map(len, self._older.heaps)))

    def maps(self) -> list[Maps]:
        return [*super().maps(), *self._heap.lists]

    def _check(self) -> None:
        super()._check()
        runs, bucket = self._runs, self._bucket
        for key, value in runs.items():
            # a tombstone lies over a cold block, or over what the next checkpoint has
            assert value is not TOMBSTONE or self._older.fresh or bucket.covering(key) >= 0, ("tombstone alone", key)
            if self.ttl_ms is not None and value is not TOMBSTONE:
                # no expired row is kept, and every live row is in the heap
                assert value[1] > self._expired, ("expired row", key, value, self._expired)
                assert (value[1], key) in self._heap, ("row without heap entry", key, value)
        if self._order is not None:
            self._order._check()
