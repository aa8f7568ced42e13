"""Session store (KIP-445): (key, start, end) -> value, grouped by end, with retention.

    bucket of ends (about retention / 64 wide) -> key -> run of (end, start, value), by end, then start descending

The surprise: no search walks the ends. Each bucket and each long run knows its longest session, so that one which
begins by a given time cannot end much later: both ends of the range to look at are found by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, pairwise
from operator import gt
from types import NoneType
from typing import Any

from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import DELETE_SPAN, PUT_SPAN, PUT_SPANS, TIME
from recovery.block import BucketChange, Columns, Combine
from recovery.directory import Directory

from ..clock import INT64_MAX, check_time, expired_through
from ..collector import collector_held
from .buckets import TOMBSTONE
from .columns import accepted, batches, column_list, columns_of, in_order, rows_differ, time_column, time_list
from .session_runs import SHORT, SessionBucket, combined, long_run, place, run_of, sessions_of, unfolded, value_of
from .snapshots import SnapshotToken
from .time_buckets import BUCKETS_PER_RETENTION, TimeBuckets

Session = tuple[Any, int, int]  # key, start, end
_Row = tuple[int, Any, int, Any]  # end, key, minus start, value: its order is the store's


class SessionStore(TimeBuckets):
    """A session store. Made by `HybridStore.session`; see there for the parameters.

    The store merges nothing: overlapping sessions of a key stay apart. Time complexity, with n sessions of a key in a
    bucket and b buckets in range: put O(1) in order and O(log n) otherwise, get O(log n), find_sessions O(b + log n +
    result).
    """

    kind = "session"

    def __init__(
        self,
        name: str,
        number: int,
        parameters: dict[str, Any],
        journal: Journal,
        *,
        divisor: int = BUCKETS_PER_RETENTION,
    ) -> None:
        super().__init__(name, number, parameters, journal, divisor, {"expired": 0}, PUT_SPAN, 4)

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    def put(self, key: Any, start: int, end: int, value: Any) -> None:
        """Put `value` for the session of `key` from `start` to `end` (ms, both inclusive); None deletes it.

        It moves stream time to `end`; a session with end <= stream_time - retention is dropped and counted. Raises
        TypeError or ValueError (start after end), with nothing changed, for arguments that cannot be stored. O(1) in
        order.
        """
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= INT64_MAX:
            self._check_span(start, end)
        kind = type(value)
        small = kind is float or ((kind is bytes or kind is str) and len(value) <= SMALL) or is_small_atom(value)
        if not small:
            self._check_value(key, value)
        if type(key) is not self._keys.fast:
            self._keys.admit(key, pin=value is not None)
        now = self._stream_time
        if end <= now and end <= now - self._expiry_lag:
            self.dropped["expired"] += 1
            return
        if value is None:
            if end > self._stream_time and self._by_records:
                # no session ends after stream time, so there is none to delete
                self._move_time(end)
            else:
                self._remove(key, start, end)
            return
        try:
            if small:
                self._log((self._code_put, key, value, start, end))
                if len(self._items) >= self._limit:
                    self._journal.spill()
            else:
                self._journal.record(self._code_put, key, value, start, end)
            self.apply_put(key, value, start, end)
        except BaseException as error:
            self._journal.cut_short(error)
            raise

    def remove(self, key: Any, start: int, end: int) -> None:
        """Remove a session; one that is absent or expired is no error. Stream time does not move. O(log n)."""
        self._check_span(start, end)
        self._keys.admit(key, pin=False)
        if end > self._expired:
            self._remove(key, start, end)

    def _remove(self, key: Any, start: int, end: int) -> None:
        if self._find(key, start, end) is not None:
            with self._journal.whole:
                self._journal.record(self.number * 16 + DELETE_SPAN, key, start, end)
                self.apply_delete(key, start, end)

    def put_many(self, rows: Iterable[tuple[Any, int, int, Any]]) -> None:
        """Put many `(key, start, end, value)`: the same as as many puts, in order, and faster.

        All or nothing on bad arguments. O(rows).
        """
        self.put_columns(*columns_of(rows, ("key", "start", "end", "value"), f"store {self.name!r}"))

    def put_columns(
        self, keys: Sequence[Any], starts: Sequence[int], ends: Sequence[int], values: Sequence[Any]
    ) -> None:
        """Put sessions given by column: sequences, numpy arrays or Arrow arrays of equal length; times are int ms.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. O(rows).
        """
        key_list, value_list = column_list(keys), column_list(values)
        start_list = time_list(starts, f"store {self.name!r}: starts")
        end_list, low, high, ordered = time_column(ends, f"store {self.name!r}: ends")
        self._check_lengths(keys=key_list, starts=start_list, ends=end_list, values=value_list)
        if any(map(gt, start_list, end_list)):
            for start, end in zip(start_list, end_list, strict=True):
                self._check_span(start, end)
        kinds = self._check_values(key_list, value_list)
        self._keys.admit_all(key_list)
        if not key_list:
            return
        with collector_held():
            whole = key_list, value_list, start_list, end_list
            if NoneType in kinds or not self._put_together(whole, low, high, ordered):
                for part in batches(*whole):
                    span = min(part[3]), max(part[3]), in_order(part[3])
                    if None in part[1] or not self._put_together(part, *span):
                        for key, value, start, end in zip(*part, strict=True):
                            self.put(key, start, end, value)

    def _put_together(self, rows: tuple[list[Any], ...], low: int, high: int, ordered: bool) -> bool:
        """Log and apply sessions by column, without those that are late; False, with nothing done, if one expires
        behind a later one.
        """
        newest = max(high, self._stream_time) if self._by_records else self._stream_time
        if low <= expired_through(newest, self.retention_ms):
            kept = accepted(rows[3], self._stream_time, self.retention_ms, moves=self._by_records)
            if min(compress(rows[3], kept), default=newest) <= expired_through(newest, self.retention_ms):
                return False
            self.dropped["expired"] += kept.count(False)
            rows = tuple(list(compress(column, kept)) for column in rows)
        if rows[0]:
            with self._journal.whole:
                self._journal.record_columns(self.number * 16 + PUT_SPANS, *rows)
                self.apply_together(rows, high, ordered)
        return True

    def _check_span(self, start: int, end: int) -> None:
        check_time(start, f"store {self.name!r}: start")
        check_time(end, f"store {self.name!r}: end")
        if start > end:
            raise ValueError(f"store {self.name!r}: start: found {start}, expected at most the end, {end}")

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any, start: int, end: int) -> None:
        """Insert or overwrite one session."""
        if end > self._stream_time and self._by_records:
            # apply_time, in place: in a stream that is in order every put comes by here
            self._stream_time = end
            if end >= self._drop_at:
                self._drop_expired()
        bucket = self._near if self._near_from <= end < self._near_to else self._approach(end)
        if end - start > bucket.longest:
            bucket.longest = end - start
        if bucket.dirty is not None:
            bucket.dirty.add(key)
        runs = bucket.runs
        run = runs.get(key)
        if run is None:
            runs[key] = (end, start, value)
            if bucket.by_key is not None:
                bucket.by_key.add(key)
        elif type(run) is tuple and end > run[-3] and len(run) < SHORT:
            runs[key] = run + (end, start, value)  # noqa: RUF005  # unpacking builds a list in between
        elif not self._insert(bucket, key, value, start, end, run):
            return
        bucket.records += 1
        if bucket.by_end is not None:
            bucket.by_end.add((end, key, -start))

    def _insert(self, bucket: SessionBucket, key: Any, value: Any, start: int, end: int, run: Any) -> bool:
        """Put a session into a run that exists, wherever it belongs; True when it is a new one."""
        if type(run) is tuple:
            i = place(run[::3], run[1::3], start, end)
            replaces = i < len(run) // 3 and run[3 * i] == end and run[3 * i + 1] == start
            if replaces or len(run) < SHORT:
                bucket.runs[key] = (*run[: 3 * i], end, start, value, *run[3 * (i + replaces) :])
                return not replaces
            run = bucket.runs[key] = unfolded(run)
            if bucket.owned is not None:
                bucket.owned.add(key)
        elif bucket.owned is not None and key not in bucket.owned:
            run = bucket.runs[key] = [run[0][:], run[1][:], run[2][:], run[3]]
            bucket.owned.add(key)
        ends, starts, values, longest = run
        if end - start > longest:
            run[3] = end - start
        if end > ends[-1]:
            ends.append(end)
            starts.append(start)
            values.append(value)
            return True
        i = place(ends, starts, start, end)
        if i < len(ends) and ends[i] == end and starts[i] == start:
            values[i] = value
            return False
        ends.insert(i, end)
        starts.insert(i, start)
        values.insert(i, value)
        return True

    def apply_delete(self, key: Any, start: int, end: int) -> None:
        """Remove one session; over a cold block, remember that it is gone."""
        number = end // self._width
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        if bucket.cold and bucket.covering(key) >= 0:
            self.apply_put(key, TOMBSTONE, start, end)
            self._buckets[number].bury(key)
            return
        bucket = self._writable(number)
        run = bucket.runs.get(key)
        if run is None:
            return
        rows = list(sessions_of(run))
        i = next((i for i, row in enumerate(rows) if row[0] == end and row[1] == start), -1)
        if i < 0:
            return
        del rows[i]
        if rows:
            bucket.runs[key] = run_of(rows)
            if bucket.owned is not None:
                bucket.owned.add(key)
        else:
            del bucket.runs[key]
            if bucket.by_key is not None:
                bucket.by_key.remove(key)
        bucket.records -= 1
        if bucket.by_end is not None:
            bucket.by_end.remove((end, key, -start))
        if bucket.dirty is not None:
            bucket.dirty.add(key)
        if not bucket.runs and not bucket.cold:
            self._remove_bucket(number)

    def apply_rows(self, keys: list[Any], values: list[Any], starts: list[int], ends: list[int]) -> None:
        """Insert sessions of the tail, in order, but none of a bucket that has expired. O(sessions)."""
        first, put = self._first_live(), self.apply_put
        for key, value, start, end in zip(keys, values, starts, ends, strict=True):
            if value is TOMBSTONE:
                self.apply_delete(key, start, end)
            elif end >= first:
                put(key, value, start, end)

    def apply_together(self, rows: tuple[list[Any], ...], newest: int, ordered: bool) -> None:
        """Insert rows by column, of which none expires while they go in; the newest moves stream time. O(rows)."""
        keys, values, starts, ends = rows
        before = self._stream_time
        if self._by_records:
            self.apply_time(newest)
        # what ends after all that was here goes to the end of every run, and there need not be looked at
        at = bisect_right(ends, before) if ordered and self._by_records else len(ends)
        if at < len(ends) and (self._thin(ends[at:]) or not rows_differ(keys[at:], ends[at:])):
            at = len(ends)
        put = self.apply_put
        for key, value, start, end in zip(keys[:at], values[:at], starts[:at], ends[:at], strict=True):
            put(key, value, start, end)
        if at == len(ends):
            return
        if at:
            keys, values, starts, ends = keys[at:], values[at:], starts[at:], ends[at:]
        for bucket, i, j in self._stretches(ends):
            if bucket.owned is not None:
                for key, value, start, end in zip(keys[i:j], values[i:j], starts[i:j], ends[i:j], strict=True):
                    put(key, value, start, end)
                continue
            bucket.append_sessions(keys[i:j], values[i:j], starts[i:j], ends[i:j])

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore: sessions wait in the tail."""
        return {
            PUT_SPAN: self._tail.add,
            DELETE_SPAN: self._wait_delete,
            TIME: self.apply_time,
            PUT_SPANS: self._tail.extend,
        }

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function of the op's arguments by column, for restore."""
        return {PUT_SPAN: self._tail.extend, DELETE_SPAN: self._wait_deletes}

    # --- reads ------------------------------------------------------------------------------------------------

    def get(self, key: Any, start: int, end: int) -> Any:
        """Return the value of one session, or None. O(log n)."""
        self._keys.admit(key, pin=False)
        self._check_span(start, end)
        return self._find(key, start, end) if end > self._expired else None

    def _find(self, key: Any, start: int, end: int) -> Any:
        run = self._run(end // self._width, key)
        return None if run is None else value_of(run, start, end)

    def find_sessions(
        self, key: Any, earliest_end: int | None = None, latest_start: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Session, Any]]:
        """Iterate over `((key, start, end), value)` of one key with end >= earliest_end and start <= latest_start
        (None: open).

        By end, then start descending. A snapshot. O(buckets + log n + result), as long as the key's sessions are of
        like length.
        """
        self._keys.admit(key, pin=False)
        low, latest = self._bounds(earliest_end, latest_start)
        width, buckets = self._width, self._buckets
        rows: list[tuple[Session, Any]] = self._iterators.rows()
        for number in self._numbers(low, INT64_MAX):
            bucket = buckets[number]
            if number * width - bucket.longest > latest:
                continue
            if bucket.cold and (i := bucket.covering(key)) >= 0:
                self._load(bucket, i)
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
        return reversed(rows) if reverse else iter(rows)

    def find_sessions_range(
        self,
        key_from: Any = None,
        key_to: Any = None,
        earliest_end: int | None = None,
        latest_start: int | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Session, Any]]:
        """Iterate over `((key, start, end), value)` with key_from <= key <= key_to, and as `find_sessions`; bounds may
        be None.

        By end, then key, then start descending. A snapshot: later changes are not seen. O(1) to open; to read, O(log n)
        a bucket, plus the rows and their sorting.
        """
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.admit(bound, pin=False)
        low, latest = self._bounds(earliest_end, latest_start)
        self.settle()
        if key_from is not None and key_to is not None and key_from > key_to:
            return iter(())
        width = self._width
        numbers = [n for n in self._numbers(low, INT64_MAX) if n * width - self._buckets[n].longest <= latest]
        return self._scan(numbers, key_from, key_to, low, INT64_MAX, latest, reverse)

    def find_sessions_by_end(
        self, earliest_end: int | None = None, latest_end: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[Session, Any]]:
        """Iterate over `((key, start, end), value)` of all keys with earliest_end <= end <= latest_end (None: open).

        In the order and at the cost of `find_sessions_range`.
        """
        low, high = self._bounds(earliest_end, latest_end)
        self.settle()
        return self._scan(self._numbers(low, high), None, None, low, high, INT64_MAX, reverse)

    def fetch(self, key: Any, *, reverse: bool = False) -> Iterator[tuple[Session, Any]]:
        """Iterate over all live sessions of one key; see `find_sessions`."""
        return self.find_sessions(key, reverse=reverse)

    def fetch_range(
        self, key_from: Any = None, key_to: Any = None, *, reverse: bool = False
    ) -> Iterator[tuple[Session, Any]]:
        """Iterate over all live sessions of a range of keys; see `find_sessions_range`."""
        return self.find_sessions_range(key_from, key_to, reverse=reverse)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[Session, Any]]:
        """Iterate over all live sessions; see `find_sessions_range`."""
        return self.find_sessions_range(reverse=reverse)

    def __len__(self) -> int:
        """Count the live sessions.

        O(buckets), and O(sessions) in the one bucket that expires right now; loads what is cold.
        """
        self._keys.admit_all([])  # refuses when the state was closed
        self.settle()
        total = 0
        for number in self._numbers(0, INT64_MAX):
            bucket = self._buckets[number]
            self._load_all(bucket)
            if number * self._width > self._expired:
                total += bucket.records
            else:
                total += len(_rows(bucket, None, None, self._expired + 1, INT64_MAX, INT64_MAX))
        return total

    def _scan(
        self, numbers: list[int], key_from: Any, key_to: Any, low: int, high: int, latest: int, reverse: bool
    ) -> Iterator[tuple[Session, Any]]:
        buckets = self._iterators.rows((n, self._buckets[n]) for n in (reversed(numbers) if reverse else numbers))
        return self._read(buckets, key_from, key_to, low, high, latest, reverse, self._open_snapshot())

    def _read(
        self,
        buckets: list[tuple[int, SessionBucket]],
        key_from: Any,
        key_to: Any,
        low: int,
        high: int,
        latest: int,
        reverse: bool,
        token: SnapshotToken,
    ) -> Iterator[tuple[Session, Any]]:
        for number, bucket in buckets:
            self._load_all(bucket)
            first, last = number * self._width, (number + 1) * self._width - 1
            if key_from is None and key_to is None and (high < last or low > first):
                rows = _rows_by_end(bucket, low, high, latest)
            else:
                rows = _rows(bucket, key_from, key_to, low, high, latest)
                rows.sort(key=_order)
            if reverse:
                rows.reverse()
            for end, key, minus_start, value in self._iterators.rows(rows):
                yield (key, -minus_start, end), value
        del token

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def _new_bucket(self, number: int, epoch: int) -> SessionBucket:
        return SessionBucket(epoch)

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        """Become the store of a checkpoint, all of it cold. O(pages of the directory)."""
        super().attach(directory, state)
        for number, longest in state["longest"]:
            bucket = self._buckets.get(number)
            if bucket is not None:
                bucket.longest = longest

    def _state(self) -> dict[str, Any]:
        longest = [[number, bucket.longest] for number, bucket in sorted(self._buckets.items())]
        return {**super()._state(), "longest": longest}

    def _install(self, bucket: SessionBucket, columns: Columns) -> None:
        bucket.forget_orders()
        runs = bucket.runs
        (ends, starts), values = columns.ints, columns.values
        if columns.counts is None and not runs:
            runs.update(zip(columns.keys, zip(ends, starts, values, strict=True), strict=True))
            return
        at = 0
        for key, count in zip(columns.keys, columns.counts or [1] * len(columns.keys), strict=True):
            end = at + count
            if key in runs:
                self._underlay(bucket, key, ends[at:end], starts[at:end], values[at:end])
            elif count == 1:
                runs[key] = (ends[at], starts[at], values[at])
            elif 3 * count <= SHORT:
                runs[key] = tuple(chain.from_iterable(zip(ends[at:end], starts[at:end], values[at:end], strict=True)))
            else:
                runs[key] = long_run(ends[at:end], starts[at:end], values[at:end])
            at = end
        for key in bucket.uncovered() if bucket.tombstoned else ():
            if key in runs:  # put and removed while the block was cold, which does not hold it
                self._underlay(bucket, key, ends[:0], starts[:0], [])

    def _underlay(
        self, bucket: SessionBucket, key: Any, ends: array[int], starts: array[int], values: list[Any]
    ) -> None:
        """Merge a key's sessions of a loaded block under those that were written since."""
        over = list(sessions_of(bucket.runs[key]))
        over_ends, over_starts, over_values = zip(*over, strict=True)
        merged = combined(((ends, starts), values), ((over_ends, over_starts), over_values))
        rows = list(zip(*merged[0], merged[1], strict=True))
        bucket.records += len(rows) - len(ends) - len(over)
        if rows:
            bucket.runs[key] = run_of(rows)
        else:
            del bucket.runs[key]
        if bucket.owned is not None:
            bucket.owned.add(key)

    @property
    def _combine(self) -> Combine:
        return combined

    def _columns(self, bucket: SessionBucket, keys: list[Any], fresh: bool) -> BucketChange:
        kept: list[Any] = []
        counts: list[int] = []
        ends: array[int] = array("q")
        starts: array[int] = array("q")
        values: list[Any] = []
        removed: set[Any] = set()
        runs = bucket.runs
        for key in keys:
            run = runs.get(key)
            if run is None:
                removed.add(key)
                continue
            kept.append(key)
            run_ends, run_starts, run_values = (run[::3], run[1::3], run[2::3]) if type(run) is tuple else run[:3]
            counts.append(len(run_values))
            ends.extend(run_ends)
            starts.extend(run_starts)
            values.extend(run_values)
        counted = None if len(values) == len(kept) else counts
        return BucketChange(Columns(kept, counted, (ends, starts), values), removed, fresh)

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        super()._check()
        for number, bucket in self._buckets.items():
            total = 0
            for key, run in bucket.runs.items():
                sessions = list(sessions_of(run))
                # no empty runs, and no long ones as tuples
                assert sessions, ("empty run", key)
                assert type(run) is list or len(run) <= SHORT, ("long tuple", key, run)
                # by end, then start descending, each once
                order = [(end, -start) for end, start, _ in sessions]
                assert all(a < b for a, b in pairwise(order)), ("run order", key, order)
                assert all(end // self._width == number for end, _, _ in sessions), ("end outside its bucket", key)
                # no session is longer than its run and its bucket say
                longest = max(end - start for end, start, _ in sessions)
                assert longest <= bucket.longest, ("longest of bucket", number, bucket.longest, longest)
                assert type(run) is not list or longest <= run[3], ("longest of run", key, run[3], longest)
                # a deletion is remembered over cold blocks only
                assert bucket.cold or all(value is not TOMBSTONE for _, _, value in sessions), ("tombstone", key)
                total += len(sessions)
            assert bucket.cold or total == bucket.records, ("record count", number, total, bucket.records)
            # kept orders describe what is there
            if bucket.by_key is not None and not bucket.cold:
                assert list(bucket.by_key) == sorted(bucket.runs), ("key order", number)
            if bucket.by_end is not None and not bucket.cold:
                rows = [(end, key, -start) for key, run in bucket.runs.items() for end, start, _ in sessions_of(run)]
                assert list(bucket.by_end) == sorted(rows), ("end order", number)


def _order(row: _Row) -> tuple[int, Any, int]:
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
