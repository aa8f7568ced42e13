"""Window store (KIP-428): window start -> key -> value, with retention and grace.

    time bucket (about retention / 64 wide) -> key -> run of (time, value), sorted by time

A run is the tuple `(time, value)` while the key has one record in the bucket, and `[array of times, list of values]` from the
second on: 36 bytes a record on sparse timestamps, where the KIP's TreeMap of TreeMaps takes 2,090. Time is outermost, so that
what expires leaves as whole buckets. The surprise: expiry is exact all the same, because every read is cut at the
retention boundary. An open iterator sees the store as it was when it was opened.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from changelog.codec import check_value
from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import DELETE_AT, PUT_AT, PUT_COLUMNS, TIME
from recovery.block import BlockEntry, BucketChange, Columns, Loader, StoreCapture

from ..clock import INT64_MAX, NO_TIME, check_time, expired_through, refused_through
from .buckets import TOMBSTONE, Bucket, ColdBlock, OpenIterators, Snapshots, SnapshotToken
from .columns import batches, column_list, row_batches, time_list
from .keys import KeyRule, ShutKeys

BUCKETS_PER_RETENTION: Final = 64
_BY_TIME_AND_KEY: Final = itemgetter(0, 1)


class WindowStore:
    """A window store. Made by `HybridStore.window`; see there for the parameters.

    Time complexity, with n records of a key in a bucket and b buckets in range: put O(1) in order and O(log n) otherwise,
    get O(log n), fetch O(b log n + rows), expiry O(expired).
    """

    kind = "window"
    _sorted: list[int] | None
    _stream_time: int
    _next_drop: int

    def __init__(
        self,
        name: str,
        number: int,
        parameters: dict[str, Any],
        journal: Journal,
        *,
        divisor: int = BUCKETS_PER_RETENTION,
    ) -> None:
        self.name = name
        self.number = number
        self.parameters = parameters
        self.retention_ms: int = parameters["retention_ms"]
        self.grace_ms: int = parameters["grace_ms"]
        self.retain_duplicates: bool = parameters["retain_duplicates"]
        self.dropped: dict[str, int] = {"expired": 0, "grace": 0}
        self._width = max(1, self.retention_ms // divisor)
        self._journal = journal
        self._log = journal.extend
        self._items = journal.items
        self._limit = journal.limit
        self._code_put = number * 16 + PUT_AT
        self._snapshots = Snapshots()
        self._iterators = OpenIterators()
        self.clear_state()

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @property
    def stream_time(self) -> int:
        """The largest timestamp ever given to a put or delete, -1 at first (ms)."""
        return self._stream_time

    def put(self, key: Any, value: Any, ts: int) -> None:
        """Put `value` under `key` in the window that starts at `ts` (ms); None deletes (ignored with `retain_duplicates`).

        A record at or before `stream_time - retention` or `stream_time - grace` is dropped and counted. Raises TypeError or
        ValueError, with nothing changed, for a key, value or time that cannot be stored. O(1) in order.
        """
        if type(ts) is not int or not 0 <= ts <= INT64_MAX:
            check_time(ts, f"store {self.name!r}: ts")
        if value is None:
            self._delete(key, ts)
            return
        kind = type(value)
        small = kind is float or ((kind is bytes or kind is str) and len(value) <= SMALL) or is_small_atom(value)
        if not small:
            self._check_value(key, value)
        if type(key) is not self._keys.fast:
            self._keys.admit(key)
        if ts <= self._refused:
            self._drop(ts)
            return
        if small:
            self._log((self._code_put, key, value, ts))
            if len(self._items) >= self._limit:
                self._journal.spill()
        else:
            self._journal.record(self._code_put, key, value, ts)
        self.apply_put(key, value, ts)

    def delete(self, key: Any, ts: int) -> None:
        """Delete the row of `key` at `ts`; the same as putting None. It moves stream time. O(log n)."""
        check_time(ts, f"store {self.name!r}: ts")
        self._delete(key, ts)

    def _delete(self, key: Any, ts: int) -> None:
        self._keys.admit(key, pin=False)
        if ts <= self._refused:
            self._drop(ts)
            return
        if not self.retain_duplicates and self._holds(key, ts):
            self._journal.record(self.number * 16 + DELETE_AT, key, ts)
            self.apply_delete(key, ts)
        elif ts > self._stream_time:
            self._journal.record(self.number * 16 + TIME, ts)
            self.apply_time(ts)

    def advance(self, ts: int) -> None:
        """Move stream time to `ts` (ms) without a record; an earlier time changes nothing. O(expired)."""
        if ts == NO_TIME:
            return
        check_time(ts, f"store {self.name!r}: ts")
        if ts > self._stream_time:
            self._journal.record(self.number * 16 + TIME, ts)
            self.apply_time(ts)

    def put_many(self, rows: Iterable[tuple[Any, Any, int]]) -> None:
        """Put many `(key, value, ts)`: the same as as many puts, in order, and faster. All or nothing on bad arguments. O(rows)."""
        columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for batch in row_batches(rows):
            for column, part in zip(columns, zip(*batch, strict=True), strict=True):
                column.extend(part)
        self.put_columns(*columns)

    def put_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        """Put rows given by column: sequences, numpy arrays or Arrow arrays of equal length; times are int ms.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. O(rows).
        """
        key_list, value_list, ts_list = (
            column_list(keys),
            column_list(values),
            time_list(times, f"store {self.name!r}: times"),
        )
        if not len(key_list) == len(value_list) == len(ts_list):
            raise ValueError(
                f"store {self.name!r}: columns of different lengths: {len(key_list)} keys, {len(value_list)} values, {len(ts_list)} times"
            )
        self._keys.admit_all(key_list)
        for key, value in zip(key_list, value_list, strict=True) if not _all_atoms(value_list) else ():
            self._check_value(key, value)
        code = self.number * 16 + PUT_COLUMNS
        for part_keys, part_values, part_times in batches(key_list, value_list, ts_list):
            if None in part_values or min(part_times) <= self._refused or not self._accepts(part_times):
                for key, value, ts in zip(part_keys, part_values, part_times, strict=True):
                    self.put(key, value, ts)
                continue
            self._journal.record(code, part_keys, part_values, part_times)
            self.apply_columns(part_keys, part_values, part_times)

    def _accepts(self, times: list[int]) -> bool:
        """True when no row of the batch is late even after the batch's own largest time (then one mutation carries all)."""
        newest = max(max(times), self._stream_time)
        return min(times) > max(expired_through(newest, self.retention_ms), refused_through(newest, self.grace_ms))

    def _drop(self, ts: int) -> None:
        self.dropped["expired" if ts <= self._expired else "grace"] += 1

    def _check_value(self, key: Any, value: Any) -> None:
        try:
            check_value(value)
        except TypeError as error:
            raise TypeError(f"store {self.name!r}: value of key {key!r}: {error}") from None

    def _holds(self, key: Any, ts: int) -> bool:
        run = self._run(ts // self._width, key)
        if run is None or ts <= self._expired:
            return False
        if type(run) is tuple:
            return bool(run[0] == ts)
        i = bisect_left(run[0], ts)
        return i < len(run[0]) and run[0][i] == ts

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any, ts: int) -> None:
        """Insert or overwrite one row (append it, with `retain_duplicates`)."""
        if ts > self._stream_time:
            self.apply_time(ts)
        number = ts // self._width
        bucket = self._buckets.get(number)
        if bucket is None or self._snapshots.live:
            bucket = self._writable(number)
        if bucket.dirty is not None:
            bucket.dirty.add(key)
        run = bucket.runs.get(key)
        if run is None:
            bucket.runs[key] = (ts, value)
            bucket.records += 1
        else:
            self._insert(bucket, key, value, ts, run)

    def _writable(self, number: int) -> Bucket:
        """Return a bucket that may be changed: made anew, or copied if an open snapshot may read it."""
        bucket = self._buckets.get(number)
        if bucket is None:
            return self._add_bucket(number)
        if self._snapshots.live and bucket.epoch < self._snapshots.epoch:
            bucket = self._buckets[number] = bucket.clone(self._snapshots.epoch)
        return bucket

    def _insert(self, bucket: Bucket, key: Any, value: Any, ts: int, run: Any) -> None:
        """Put a row into a run that exists."""
        if type(run) is tuple:
            old = run[0]
            if ts == old and not self.retain_duplicates:
                bucket.runs[key] = (ts, value)
            else:
                bucket.runs[key] = (
                    [array("q", (old, ts)), [run[1], value]] if ts >= old else [array("q", (ts, old)), [value, run[1]]]
                )
                bucket.records += 1
                if bucket.owned is not None:
                    bucket.owned.add(key)
            return
        if bucket.owned is not None and key not in bucket.owned:
            run = bucket.runs[key] = [run[0][:], run[1][:]]
            bucket.owned.add(key)
        times, values = run
        if ts > times[-1]:
            times.append(ts)
            values.append(value)
            bucket.records += 1
            return
        if self.retain_duplicates:
            i = bisect_right(times, ts)
        else:
            i = bisect_left(times, ts)
            if times[i] == ts:
                values[i] = value
                return
        times.insert(i, ts)
        values.insert(i, value)
        bucket.records += 1

    def apply_delete(self, key: Any, ts: int) -> None:
        """Remove one row; over a cold block, remember that it is gone."""
        if ts > self._stream_time:
            self.apply_time(ts)
        number = ts // self._width
        bucket = self._buckets.get(number)
        if bucket is None:
            return
        if bucket.cold and bucket.covering(key) >= 0:
            self.apply_put(key, TOMBSTONE, ts)
            return
        if self._snapshots.live and bucket.epoch < self._snapshots.epoch:
            bucket = self._buckets[number] = bucket.clone(self._snapshots.epoch)
        run = bucket.runs.get(key)
        if run is None:
            return
        if type(run) is tuple:
            if run[0] != ts:
                return
            del bucket.runs[key]
        else:
            i = bisect_left(run[0], ts)
            if i == len(run[0]) or run[0][i] != ts:
                return
            times, values = run[0][:], run[1][:]
            del times[i], values[i]
            bucket.runs[key] = [times, values] if len(values) > 1 else (times[0], values[0])
            if bucket.owned is not None:
                bucket.owned.add(key)
        bucket.records -= 1
        if bucket.dirty is not None:
            bucket.dirty.add(key)
        if not bucket.runs and not bucket.cold:
            self._remove_bucket(number)

    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts` (if that is later) and free the buckets that expired. O(expired)."""
        if ts <= self._stream_time:
            return
        self._stream_time = ts
        self._expired = expired_through(ts, self.retention_ms)
        self._refused = max(self._expired, refused_through(ts, self.grace_ms))
        if self._expired >= self._next_drop:
            self._drop_expired()

    def apply_columns(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert rows by column, in order. None of them may be late even at the largest of their times."""
        self.apply_time(max(times))
        width, insert = self._width, self._insert
        current = -1
        for key, value, ts in zip(keys, values, times, strict=True):
            number = ts // width
            if number != current:
                current = number
                bucket = self._writable(number)
                runs, dirty, exclusive = bucket.runs, bucket.dirty, bucket.owned is None
            if dirty is not None:
                dirty.add(key)
            run = runs.get(key)
            if run is None:
                runs[key] = (ts, value)
                bucket.records += 1
            elif exclusive and type(run) is list and ts > run[0][-1]:
                run[0].append(ts)
                run[1].append(value)
                bucket.records += 1
            else:
                insert(bucket, key, value, ts, run)

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore."""
        return {
            PUT_AT: self.apply_put,
            DELETE_AT: self.apply_delete,
            TIME: self.apply_time,
            PUT_COLUMNS: self.apply_columns,
        }

    def _add_bucket(self, number: int) -> Bucket:
        bucket = self._buckets[number] = Bucket(self._snapshots.epoch)
        self._sorted = None
        end = (number + 1) * self._width - 1
        if end < self._next_drop:
            self._next_drop = end
        return bucket

    def _remove_bucket(self, number: int) -> None:
        del self._buckets[number]
        self._sorted = None
        if number in self._checkpointed:
            self._checkpointed.discard(number)
            self._gone.add(number)

    def _drop_expired(self) -> None:
        """Free whole buckets of which even the last millisecond has expired."""
        newest = (self._expired + 1) // self._width  # the first bucket that may hold a live millisecond
        for number in [number for number in self._buckets if number < newest]:
            self._remove_bucket(number)
        self._next_drop = (min(self._buckets) + 1) * self._width - 1 if self._buckets else INT64_MAX

    # --- reads ------------------------------------------------------------------------------------------------

    def get(self, key: Any, ts: int) -> Any:
        """Return the value of `key` at `ts`, or None; with `retain_duplicates` the list of values there (empty if none). O(log n)."""
        self._keys.admit(key, pin=False)
        check_time(ts, f"store {self.name!r}: ts")
        run = self._run(ts // self._width, key) if ts > self._expired else None
        if self.retain_duplicates:
            if run is None:
                return []
            if type(run) is tuple:
                return [run[1]] if run[0] == ts else []
            return run[1][bisect_left(run[0], ts) : bisect_right(run[0], ts)]
        if run is None:
            return None
        if type(run) is tuple:
            return run[1] if run[0] == ts else None
        i = bisect_left(run[0], ts)
        return run[1][i] if i < len(run[0]) and run[0][i] == ts else None

    def fetch(
        self, key: Any, time_from: int | None = None, time_to: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over `(ts, value)` of one key with time_from <= ts <= time_to (None: open), by time. O(b log n + rows)."""
        self._keys.admit(key, pin=False)
        low, high = self._bounds(time_from, time_to)
        rows: list[tuple[int, Any]] = self._iterators.rows()
        for number in self._numbers(low, high):
            run = self._run(number, key)
            if run is None:
                continue
            if type(run) is tuple:
                if low <= run[0] <= high:
                    rows.append(run)
                continue
            times, values = run
            if times[0] >= low and times[-1] <= high:
                rows += zip(times, values, strict=True)
            else:
                i, j = bisect_left(times, low), bisect_right(times, high)
                rows += zip(times[i:j], values[i:j], strict=True)
        return reversed(rows) if reverse else iter(rows)

    def fetch_range(
        self,
        key_from: Any = None,
        key_to: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Iterate over `((key, ts), value)` with key_from <= key <= key_to and the time range, both inclusive, None open.

        By ts, then key, then arrival. A snapshot: later changes are not seen. O(1) to open, O(rows log rows) to read.
        """
        for bound in (key_from, key_to):
            if bound is not None:
                self._keys.admit(bound, pin=False)
        low, high = self._bounds(time_from, time_to)
        numbers = self._numbers(low, high)
        buckets = self._iterators.rows(self._buckets[n] for n in (reversed(numbers) if reverse else numbers))
        return self._scan(buckets, key_from, key_to, low, high, reverse, self._snapshots.open())

    def fetch_all(
        self, time_from: int | None = None, time_to: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Iterate over `((key, ts), value)` of all keys in a time range; see `fetch_range`."""
        return self.fetch_range(None, None, time_from, time_to, reverse=reverse)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Iterate over all live rows; see `fetch_range`."""
        return self.fetch_range(reverse=reverse)

    def __len__(self) -> int:
        """Count the live rows. O(buckets), and O(rows) in the one bucket that expires right now; loads what is cold there."""
        total = 0
        for number in self._numbers(0, INT64_MAX):
            bucket = self._buckets[number]
            if bucket.cold:
                self._load_all(bucket)
            if number * self._width > self._expired:
                total += bucket.records
            else:
                total += sum(1 for _ in self._rows(bucket, None, None, self._expired + 1, INT64_MAX))
        return total

    def _bounds(self, time_from: int | None, time_to: int | None) -> tuple[int, int]:
        low = self._expired + 1 if time_from is None or time_from <= self._expired else time_from
        return max(low, 0), INT64_MAX if time_to is None else time_to

    def _numbers(self, low: int, high: int) -> list[int]:
        """Return the numbers of the buckets that may hold times low..high, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._buckets)
        if low > high:
            return []
        return self._sorted[
            bisect_left(self._sorted, low // self._width) : bisect_right(self._sorted, high // self._width)
        ]

    def _run(self, number: int, key: Any) -> Any:
        """Return a key's run in a bucket, loading the block that may hold it."""
        bucket = self._buckets.get(number)
        if bucket is None:
            return None
        if bucket.cold:
            i = bucket.covering(key)
            if i >= 0:
                self._load(bucket, i)
        return bucket.runs.get(key)

    def _rows(self, bucket: Bucket, key_from: Any, key_to: Any, low: int, high: int) -> Iterator[tuple[int, Any, Any]]:
        for key, run in bucket.runs.items():
            if (key_from is not None and key < key_from) or (key_to is not None and key > key_to):
                continue
            if type(run) is tuple:
                if low <= run[0] <= high:
                    yield run[0], key, run[1]
                continue
            times, values = run
            i, j = bisect_left(times, low), bisect_right(times, high)
            for at in range(i, j):
                yield times[at], key, values[at]

    def _scan(
        self,
        buckets: list[Bucket],
        key_from: Any,
        key_to: Any,
        low: int,
        high: int,
        reverse: bool,
        token: SnapshotToken,
    ) -> Iterator[tuple[tuple[Any, int], Any]]:
        for bucket in buckets:
            if bucket.cold:
                self._load_all(bucket)
            rows = self._iterators.rows(self._rows(bucket, key_from, key_to, low, high))
            rows.sort(key=_BY_TIME_AND_KEY)
            if reverse:
                rows.reverse()
            for ts, key, value in rows:
                yield (key, ts), value
        del token

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def shut(self, error: Exception) -> None:
        """End open iterators and refuse every key and query with `error`: the state was closed. O(open iterators)."""
        self._iterators.shut(error)
        self._keys: KeyRule = ShutKeys(self.name, error)

    def clear_state(self) -> None:
        """Forget everything, as before a restore."""
        self._keys = KeyRule(self.name)
        self._buckets: dict[int, Bucket] = {}
        self._sorted = None
        self._checkpointed: set[int] = set()
        self._gone: set[int] = set()
        self._stream_time = NO_TIME
        self._expired = self._refused = NO_TIME
        self._next_drop = INT64_MAX

    def attach(self, load: Loader, state: dict[str, Any], entries: list[BlockEntry]) -> None:
        """Become the store of a checkpoint, all of it cold. O(blocks)."""
        self.clear_state()
        self._keys.restore(state["key"])
        self._width = state["width_ms"]  # the blocks are cut by it, whatever this release would choose
        for entry in entries:
            bucket = self._buckets.get(entry.bucket)
            if bucket is None:
                bucket = self._add_bucket(entry.bucket)
                bucket.dirty = set()
                self._checkpointed.add(entry.bucket)
            bucket.records += entry.records
        self.rebase(load, entries, everything=True)
        self.apply_time(state["stream_time"])

    def rebase(self, load: Loader, entries: list[BlockEntry], *, everything: bool = False) -> None:
        """Read cold blocks from a newer checkpoint from now on. `everything`: all of its blocks are cold."""
        by_id = {entry.block: entry for entry in entries}
        if everything:
            for entry in entries:
                found = self._buckets.get(entry.bucket)
                if found is not None:
                    found.cold.append(ColdBlock(entry, load))
        else:
            for bucket in self._buckets.values():
                # A block that was merged with what changed about it has another number now; the older file still has it,
                # and what was written since lies over it as before.
                bucket.cold = [
                    ColdBlock(by_id[cold.entry.block], load) if cold.entry.block in by_id else cold
                    for cold in bucket.cold
                ]

    def _load_all(self, bucket: Bucket) -> None:
        while bucket.cold:
            self._load(bucket, len(bucket.cold) - 1)

    def _load(self, bucket: Bucket, index: int) -> None:
        """Load one cold block and put it under what was written since."""
        cold = bucket.cold[index]
        columns = cold.load(cold.entry.block)
        del bucket.cold[index]
        runs = bucket.runs
        times, values = columns.ints[0], columns.values
        if columns.counts is None:
            if runs:
                for key, ts, value in zip(columns.keys, times, values, strict=True):
                    if key in runs:
                        self._underlay(bucket, key, times[:0], [ts], [value])
                    else:
                        runs[key] = (ts, value)
            else:
                runs.update(zip(columns.keys, zip(times, values, strict=True), strict=True))
            return
        start = 0
        for key, count in zip(columns.keys, columns.counts, strict=True):
            end = start + count
            if key in runs:
                self._underlay(bucket, key, times[:0], times[start:end].tolist(), values[start:end])
            elif count == 1:
                runs[key] = (times[start], values[start])
            else:
                runs[key] = [times[start:end], values[start:end]]
            start = end

    def _underlay(
        self, bucket: Bucket, key: Any, empty: array[int], base_times: list[int], base_values: list[Any]
    ) -> None:
        run = bucket.runs[key]
        over = [run] if type(run) is tuple else list(zip(run[0], run[1], strict=True))
        base = list(zip(base_times, base_values, strict=True))
        if self.retain_duplicates:
            rows = sorted(base + over, key=itemgetter(0))
        else:
            merged = dict(base)
            merged.update(over)
            rows = sorted((row for row in merged.items() if row[1] is not TOMBSTONE), key=itemgetter(0))
        bucket.records += len(rows) - len(base) - len(over)
        if not rows:
            del bucket.runs[key]
        elif len(rows) == 1:
            bucket.runs[key] = rows[0]
        else:
            empty.extend(row[0] for row in rows)
            bucket.runs[key] = [empty, [row[1] for row in rows]]
        if bucket.owned is not None:
            bucket.owned.add(key)

    def capture(self) -> StoreCapture:
        """Copy what changed since the last checkpoint, and begin to collect anew. O(changed)."""
        changed: dict[int, BucketChange] = {}
        for number, bucket in list(self._buckets.items()):
            if bucket.dirty is not None and not bucket.dirty:
                continue
            if bucket.dirty is None:
                keys, fresh = sorted(bucket.runs), True
            else:
                for key in bucket.dirty:
                    if bucket.cold and (i := bucket.covering(key)) >= 0:
                        self._load(bucket, i)
                keys, fresh = sorted(bucket.dirty), False
            changed[number] = self._columns(bucket, keys, fresh)
            bucket.dirty = set()
            if not bucket.runs and not bucket.cold:
                # Its last rows were deleted over a cold block, which is loaded only now.
                del self._buckets[number]
                self._sorted = None
        capture = StoreCapture(self.number, self.name, self.kind, self.parameters, self._state(), changed, self._gone)
        self._gone = set()
        self._checkpointed = set(self._buckets)
        return capture

    def recapture(self, capture: StoreCapture) -> None:
        """Take back a capture whose checkpoint failed: all that it held counts as changed again. O(changed)."""
        for number, change in capture.changed.items():
            bucket = self._buckets.get(number)
            if bucket is None:
                self._gone.add(number)
                continue
            if change.fresh:
                bucket.dirty = None
                self._checkpointed.discard(number)
            elif bucket.dirty is not None:
                bucket.dirty.update(change.columns.keys, change.removed)
        self._gone |= {number for number in capture.dropped if number not in self._buckets}

    def _state(self) -> dict[str, Any]:
        return {"stream_time": self._stream_time, "key": self._keys.describe(), "width_ms": self._width}

    def _columns(self, bucket: Bucket, keys: list[Any], fresh: bool) -> BucketChange:
        kept: list[Any] = []
        counts: list[int] = []
        times: array[int] = array("q")
        values: list[Any] = []
        removed: set[Any] = set()
        runs = bucket.runs
        for key in keys:
            run = runs.get(key)
            if run is None:
                removed.add(key)
                continue
            kept.append(key)
            if type(run) is tuple:
                counts.append(1)
                times.append(run[0])
                values.append(run[1])
            else:
                counts.append(len(run[1]))
                times.extend(run[0])
                values.extend(run[1])
        return BucketChange(
            Columns(kept, None if len(values) == len(kept) else counts, (times,), values), removed, fresh
        )

    def chill(self, load: Loader, entries: list[BlockEntry]) -> None:
        """Let everything go cold again: the checkpoint must hold exactly what the store does. O(blocks)."""
        self.attach(load, self._state(), entries)

    @property
    def cold_blocks(self) -> int:
        """How many blocks are not loaded."""
        return sum(len(bucket.cold) for bucket in self._buckets.values())

    def warm(self) -> bool:
        """Load one cold block; False when there is none left. O(block)."""
        for number in reversed(self._numbers(0, INT64_MAX)):
            bucket = self._buckets[number]
            if bucket.cold:
                self._load(bucket, len(bucket.cold) - 1)
                return True
        return False

    @property
    def num_records(self) -> int:
        """Rows held, including those of a bucket that has expired in part; an estimate while blocks are cold. O(buckets)."""
        return sum(bucket.records for bucket in self._buckets.values())

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        width, expired = self._width, self._expired
        assert self._sorted is None or self._sorted == sorted(self._buckets), ("bucket order", self._sorted)
        for number, bucket in self._buckets.items():
            # nothing older than retention keeps a bucket alive
            assert (number + 1) * width - 1 > expired, ("expired bucket", number, expired)
            # no empty inner maps, but for one that the next checkpoint has to empty too
            assert bucket.runs or bucket.cold or bucket.dirty, ("empty bucket", number)
            # a bucket that a checkpoint holds knows its dirty keys
            assert (bucket.dirty is None) == (number not in self._checkpointed), ("dirty", number)
            # the next expiry is not later than the first bucket's end
            assert self._next_drop <= (number + 1) * width - 1, ("next drop", self._next_drop, number)
            total = 0
            for key, run in bucket.runs.items():
                if type(run) is tuple:
                    times, values = [run[0]], [run[1]]
                else:
                    times, values = list(run[0]), run[1]
                    assert len(times) > 1, ("short run", key, run)
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


def _all_atoms(values: list[Any]) -> bool:
    return {str, bytes, int, float, bool, type(None)}.issuperset(map(type, values))
