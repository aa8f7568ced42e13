"""Window store (KIP-428): window start -> key -> value, with retention and grace.

    time bucket (about retention / 64 wide) -> key -> run of (time, value), sorted by time

Reads are in `window_reads`. Runs (`window_runs`) take 36 bytes a record on sparse timestamps, where the KIP's TreeMap
of TreeMaps takes 2,090. Time is outermost, so that expired records are freed by whole buckets. The surprise: expiry is
exact all the same, because every read is cut at the retention boundary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import compress, pairwise, repeat
from operator import is_not
from types import NoneType
from typing import Any

from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import DELETE_AT, PUT_AT, PUT_COLUMNS
from changelog.turn import entry, in_place
from recovery.block import Columns, Combine

from ..clock import INT64_MAX, check_time, expired_through, refused_through, timed_by_records
from .buckets import TOMBSTONE, StoreBucket
from .columns import accepted, column_list, columns_of, rows_differ, time_column
from .edge import K, V
from .time_buckets import BUCKETS_PER_RETENTION
from .window_reads import WindowReads
from .window_runs import SHORT, append_rows, combined, gathered, in_turn, index_of, parts_of, run_of


class WindowStore(WindowReads[K, V]):
    """A window store. Made by `State.window`; see there for the parameters.

    Time complexity, with n records of a key in a bucket and b buckets in range: put O(1) in order and O(log n)
    otherwise, get O(log n), fetch O(b log n + rows), expiry O(expired).

    >>> pages = hs.open("state").window("pages", retention="1 minute")
    >>> pages.put("ann", "/", ts=0)
    >>> pages.put("ann", "/help", ts=59_999)
    >>> list(pages.fetch("ann"))
    [(0, '/'), (59999, '/help')]
    >>> pages.put("bob", "/", ts=60_000)  # the row at 0 expires
    >>> list(pages.all())
    [(('ann', 59999), '/help'), (('bob', 60000), '/')]
    """

    kind = "window"
    ops = PUT_AT, PUT_COLUMNS, DELETE_AT
    ints = 1
    _parts, _run_of, _index_of = staticmethod(parts_of), staticmethod(run_of), staticmethod(index_of)

    def __init__(
        self,
        name: str,
        number: int,
        parameters: dict[str, Any],
        journal: Journal,
        *,
        divisor: int = BUCKETS_PER_RETENTION,
    ) -> None:
        grace_ms: int = parameters["grace_ms"]
        self.retain_duplicates: bool = parameters["retain_duplicates"]
        self._refusal_lag = min(-expired_through(0, parameters["retention_ms"]), -refused_through(0, grace_ms))
        if grace_ms == 0 and timed_by_records(parameters):
            # a write moves time before it is checked, so with a grace of 0 each write is late by its own time
            self._refusal_lag = -(INT64_MAX + 1)
        super().__init__(name, number, parameters, journal, divisor, {"expired": 0, "grace": 0})

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @in_place
    def put(self, key: K, value: V | None, ts: int) -> None:
        """Put `value` under `key` in the window that starts at `ts` (ms); None deletes (ignored with
        `retain_duplicates`).

        A record at or before `stream_time - retention` or `stream_time - grace` is dropped and counted. Raises
        TypeError or ValueError, with nothing changed, for a key, value or time that cannot be stored. O(1) in order.

        >>> pages = hs.open("state").window("pages", retention="1 hour", grace="1 minute")
        >>> pages.put("ann", "/", ts=60_000)
        >>> pages.put("ann", "/help", ts=0)  # 0 <= 60,000 - grace: dropped
        >>> len(pages), pages.dropped
        (1, {'expired': 0, 'grace': 1})
        """
        turn = self._turn
        before = turn.take(self) if turn.busy is not None or not turn.lock._is_owned() else None
        try:
            turn.busy = self
            if type(ts) is not int or not 0 <= ts <= INT64_MAX:
                check_time(ts, f"store {self.name!r}: ts")
            if value is None:
                self._delete(key, ts)
                return
            kind = type(value)
            small = (
                ((kind is bytes or kind is str) and len(value) <= SMALL)  # type: ignore[arg-type]
                or kind is float
                or is_small_atom(value)
            )
            if not small:
                self._check_value(key, value)
            if type(key) is not self._keys.fast or len(key) > SMALL:  # type: ignore[arg-type]
                small = self._keys.admit(key) and small
            if ts <= self._stream_time - self._refusal_lag:
                self._drop(ts)
                return
            try:
                if small:
                    self._log((self._code_put, key, value, ts))
                    if len(self._items) >= self._limit:
                        self._journal.spill()
                else:
                    self._journal.record(self._code_put, key, value, ts)
                self.apply_put(key, value, ts)
            except BaseException as error:
                self._journal.cut_short(error)
                raise
        finally:
            turn.busy = before

    @entry
    def delete(self, key: K, ts: int) -> None:
        """Delete the row of `key` at `ts`, as putting None does. Stream time moves to `ts`. O(log n).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put("ann", "/", ts=0)
        >>> pages.delete("ann", ts=0)
        >>> len(pages)
        0
        """
        check_time(ts, f"store {self.name!r}: ts")
        self._delete(key, ts)

    def _delete(self, key: Any, ts: int) -> None:
        self._keys.admit(key, pin=False)
        if ts <= self._stream_time - self._refusal_lag:
            self._drop(ts)
            return
        if not self.retain_duplicates and self._holds(key, ts):
            with self._journal.whole:
                self._journal.record(self.number * 16 + DELETE_AT, key, ts)
                self.apply_delete(key, ts)
        elif self._by_records:
            self._move_time(ts)

    def put_many(self, rows: Iterable[tuple[K, V | None, int]]) -> None:
        """Put many `(key, value, ts)`, in order: the same as a put for each, and faster.

        All or nothing on bad arguments. O(rows).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_many([("ann", "/", 0), ("bob", "/", 500), ("ann", "/help", 900)])
        >>> list(pages.fetch("ann"))
        [(0, '/'), (900, '/help')]
        """
        keys, values, times = columns_of(rows, ("key", "value", "ts"), f"store {self.name!r}")
        self.put_columns(keys, values, times)

    @entry
    def put_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        """Put rows given by column: sequences, numpy arrays or Arrow arrays of equal length; times are int ms.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. O(rows).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_columns(["ann", "bob"], ["/", "/help"], [0, 500])
        >>> list(pages.all())
        [(('ann', 0), '/'), (('bob', 500), '/help')]
        """
        key_list, value_list = column_list(keys), column_list(values)
        ts_list, low, high, ordered = time_column(times, f"store {self.name!r}: times")
        self._check_lengths(keys=key_list, values=value_list, times=ts_list)
        kinds = self._check_values(key_list, value_list)
        self._keys.admit_all(key_list)
        if ts_list:
            self._put_checked((key_list, value_list, ts_list), low, high, ordered, NoneType in kinds)

    @entry
    def put_plain(self, keys: list[K], values: list[V], times: list[int]) -> None:
        """Put rows by column as `put_columns`, without a look into the values: for rows of Arrow columns, whose types
        say that they can be stored.

        `values`, none of them None, consist of what can be stored; `times` are times that never fall, one at least.
        O(rows).

        >>> pages = hs.open("state").window("pages", retention="1 hour")
        >>> pages.put_plain(["ann", "bob"], [["/"], ["/help"]], [0, 500])
        >>> list(pages.fetch("bob"))
        [(500, ['/help'])]
        """
        self._keys.admit_all(keys)
        if self._tail:
            self.touch(keys)  # their waiting rows are older
        self._put_checked((keys, values, times), times[0], times[-1], True, False)

    def _count_dropped(self, times: list[int], kept: list[bool]) -> None:
        live = accepted(times, self._stream_time, self._expiry_lag, moves=self._by_records)
        self.dropped["expired"] += live.count(False)
        self.dropped["grace"] += live.count(True) - kept.count(True)

    def _drop(self, ts: int) -> None:
        if self._by_records:
            self._move_time(ts)  # with a grace of 0 only
        self.dropped["expired" if ts <= self._expired else "grace"] += 1

    def _holds(self, key: Any, ts: int) -> bool:
        run = self._run(ts // self._width, key)
        return run is not None and ts > self._expired and index_of(run, ts) >= 0

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any, ts: int) -> None:
        """Insert or overwrite one row (append it, with `retain_duplicates`)."""
        if ts > self._stream_time and self._by_records:
            # apply_time, inlined: in a stream in order every put runs these lines
            self._stream_time = ts
            if ts >= self._drop_at:
                self._drop_expired()
        bucket = self._near if self._near_from <= ts < self._near_to else self._approach(ts)
        if bucket.dirty is not None:
            bucket.dirty.add(key)
            if ts < bucket.since:
                bucket.note_late((key,), (ts,))
        runs = bucket.runs
        run = runs.get(key)
        if run is None:
            runs[key] = (ts, value)
        elif type(run) is tuple:
            if ts > run[-2] and len(run) < SHORT:
                runs[key] = run + (ts, value)  # noqa: RUF005  # unpacking builds a list in between
            else:
                self._insert(bucket, key, value, ts, run)
                return
        elif ts > run[0][-1] and bucket.owned is None:
            run[0].append(ts)
            run[1].append(value)
        else:
            self._insert(bucket, key, value, ts, run)
            return
        bucket.records += 1

    def _insert(self, bucket: StoreBucket, key: Any, value: Any, ts: int, run: Any) -> None:
        """Put a row into an existing run, at its place."""
        short = type(run) is tuple
        times = run[::2] if short else run[0]
        i = bisect_right(times, ts) if self.retain_duplicates else bisect_left(times, ts)
        replaces = i < len(times) and times[i] == ts  # never behind equal times
        if short and (replaces or len(run) < SHORT):
            bucket.runs[key] = (*run[: 2 * i], ts, value, *run[2 * i + 2 * replaces :])
            bucket.records += not replaces
            return
        if short:
            run = bucket.runs[key] = [array("q", times), list(run[1::2])]
            if bucket.owned is not None:
                bucket.owned.add(key)
        elif bucket.owned is not None and key not in bucket.owned:
            run = bucket.runs[key] = [run[0][:], run[1][:]]
            bucket.owned.add(key)
        if replaces:
            run[1][i] = value
            return
        run[0].insert(i, ts)
        run[1].insert(i, value)
        bucket.records += 1

    def apply_delete(self, key: Any, ts: int) -> None:
        """Remove one row; over a cold block, leave a tombstone."""
        if ts > self._stream_time and self._by_records:
            self.apply_time(ts)
        self._remove_row(key, ts)

    def apply_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert rows of the tail, in order, without those of expired buckets. O(rows)."""
        first = self._first_live()
        if min(times) < first:
            live = [ts >= first for ts in times]
            keys, values, times = (list(compress(column, live)) for column in (keys, values, times))
        if not self._tail.deletes:
            self._insert_rows(keys, values, times)
            return
        for key, value, ts in zip(keys, values, times, strict=True):
            if value is TOMBSTONE:
                self.apply_delete(key, ts)
            else:
                self.apply_put(key, value, ts)

    def apply_together(self, rows: tuple[list[Any], ...], newest: int, ordered: bool) -> None:
        """Insert rows by column, none of which expires during the batch; the newest row moves stream time. O(rows)."""
        keys, values, times = rows
        before = self._stream_time
        if self._by_records:
            self.apply_time(newest)
        # in a store timed by `advance`, a row newer than stream time may be older than a present row
        if not ordered or not self._by_records:
            if ordered and not self._thin(times):
                self._insert_stretches(keys, values, times)
            else:
                self._insert_rows(keys, values, times)
            return
        # rows newer than all present ones are appended to their runs without a search
        i = bisect_right(times, before)
        if i:
            self._insert_rows(keys[:i], values[:i], times[:i])
            keys, values, times = keys[i:], values[i:], times[i:]
        if times:
            self._append_rows(keys, values, times)

    def _append_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert rows that are in order and newer than all others, a bucket at a time."""
        if self._thin(times) or not (self.retain_duplicates or rows_differ(keys, times)):
            self._insert_rows(keys, values, times)
            return
        for bucket, i, j in self._stretches(times):
            if bucket.owned is not None:
                self._insert_rows(keys[i:j], values[i:j], times[i:j])
                continue
            append_rows(bucket.runs, keys[i:j], times[i:j], values[i:j])
            bucket.records += j - i
            bucket.changed(keys[i:j], times[i:j])

    def _insert_stretches(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert rows that are in order, a bucket at a time: at C speed where each key is new in its bucket."""
        for bucket, i, j in self._stretches(times):
            runs, part, rows = bucket.runs, keys[i:j], list(zip(times[i:j], values[i:j], strict=True))
            before = len(runs)
            placed = list(map(runs.setdefault, part, rows))
            added = len(runs) - before
            bucket.records += added
            bucket.changed(part, times[i:j])
            if added < len(rows):
                # their keys have a run, from before or from an earlier row
                others = list(map(is_not, placed, rows))
                self._insert_rows(*(list(compress(column[i:j], others)) for column in (keys, values, times)))

    def _insert_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert rows wherever they belong, in the order given."""
        width, insert, added = self._width, self._insert, 0
        start = end = -1
        bucket = StoreBucket(0)
        for key, value, ts in zip(keys, values, times, strict=True):
            if not start <= ts < end:
                bucket.records += added
                added = 0
                number = ts // width
                start, end = number * width, (number + 1) * width
                bucket = self._writable(number)
                runs, dirty, exclusive, since = bucket.runs, bucket.dirty, bucket.owned is None, bucket.since
            if dirty is not None:
                dirty.add(key)
                if ts < since:
                    bucket.note_late((key,), (ts,))
            run = runs.get(key)
            if run is None:
                runs[key] = (ts, value)
            elif type(run) is tuple:
                if ts > run[-2] and len(run) < SHORT:
                    runs[key] = run + (ts, value)  # noqa: RUF005  # unpacking builds a list in between
                elif ts == run[0] and len(run) == 2 and not self.retain_duplicates:
                    runs[key] = (ts, value)
                    continue
                else:
                    insert(bucket, key, value, ts, run)
                    continue
            elif exclusive and ts > run[0][-1]:
                run[0].append(ts)
                run[1].append(value)
            else:
                insert(bucket, key, value, ts, run)
                continue
            added += 1
        bucket.records += added

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def _install(self, bucket: StoreBucket, columns: Columns) -> None:
        runs = bucket.runs
        times, values = columns.ints[0], columns.values
        fresh = not runs
        if columns.counts is None and fresh:
            runs.update(zip(columns.keys, zip(times, values, strict=True), strict=True))
            return
        start = 0
        for key, count in zip(columns.keys, columns.counts or repeat(1, len(columns.keys)), strict=True):
            end = start + count
            if not fresh and key in runs:
                self._underlay(bucket, key, [times[start:end], values[start:end]])
            elif count == 1:
                runs[key] = (times[start], values[start])
            elif count == 2:
                runs[key] = (times[start], values[start], times[start + 1], values[start + 1])
            else:
                runs[key] = [times[start:end], values[start:end]]
            start = end
        for key in bucket.uncovered() if bucket.tombstoned else ():
            if key in runs:  # put and deleted while the block was cold, and absent from the block
                self._underlay(bucket, key, [[], []])

    @property
    def _combine(self) -> Combine | None:
        # rows with equal times have no identity: laying them over a block twice would duplicate them
        return None if self.retain_duplicates else combined

    @property
    def _laid_over(self) -> Combine:
        return in_turn if self.retain_duplicates else combined

    def _columns(self, bucket: StoreBucket, keys: list[Any], *, changed: bool) -> tuple[Columns, set[Any]]:
        return gathered(bucket, keys, changed=changed)

    def _check(self) -> None:
        super()._check()
        width = self._width
        for number, bucket in self._buckets.items():
            total = 0
            for key, run in bucket.runs.items():
                # a short run is a flat tuple, a long one an array beside a list
                if type(run) is tuple:
                    assert len(run) in range(2, SHORT + 1, 2), ("short run", key, run)
                else:
                    assert len(run[0]) > 1, ("long run", key, run)
                times, values = parts_of(run)
                assert len(times) == len(values), ("run lengths", key, run)
                assert all(ts // width == number for ts in times), ("time outside its bucket", number, key, times)
                pairs = list(pairwise(times))
                assert all(a <= b if self.retain_duplicates else a < b for a, b in pairs), ("run order", key, times)
                assert bucket.cold or all(value is not TOMBSTONE for value in values), (
                    "tombstone without cold block",
                    key,
                )
                total += len(times)
            assert bucket.cold or total == bucket.records, ("record count", number, total, bucket.records)
