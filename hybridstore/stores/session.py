"""Session store (KIP-445): (key, start, end) -> value, grouped by end, with retention.

    bucket of ends (about retention / 64 wide) -> key -> run of (end, start, value), by end, then start descending

Searches are in `session_reads`, runs in `session_runs`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from operator import gt
from types import NoneType
from typing import Any

from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import DELETE_SPAN, PUT_SPAN, PUT_SPANS
from changelog.turn import entry, in_place
from recovery.block import Columns, Combine
from recovery.directory import Directory

from ..clock import INT64_MAX
from .buckets import TOMBSTONE
from .columns import column_list, columns_of, rows_differ, time_column, time_list
from .edge import K, V
from .session_reads import SessionReads
from .session_runs import (
    SHORT,
    SessionBucket,
    combined,
    index_of,
    long_run,
    parts_of,
    place,
    run_of,
    sessions_of,
    unfolded,
)
from .time_buckets import BUCKETS_PER_RETENTION


class SessionStore(SessionReads[K, V]):
    """A session store. Made by `State.session`; see there for the parameters.

    The store merges nothing: overlapping sessions of a key stay apart. Time complexity, with n sessions of a key in a
    bucket and b buckets in range: put O(1) in order and O(log n) otherwise, get O(log n), find_sessions O(b + log n +
    result).

    >>> visits = hs.open("state").session("visits", retention="1 minute")
    >>> visits.put("ann", {"pages": 3}, start=0, end=30_000)
    >>> visits.get("ann", 0, 30_000)
    {'pages': 3}
    >>> visits.put("bob", {"pages": 1}, start=90_000, end=90_000)  # the session that ended at 30,000 expires
    >>> len(visits)
    1
    """

    kind = "session"
    ops = PUT_SPAN, PUT_SPANS, DELETE_SPAN
    ints = 2
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
        super().__init__(name, number, parameters, journal, divisor, {"expired": 0})
        self._refusal_lag = self._expiry_lag

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @in_place
    def put(self, key: K, value: V | None, start: int, end: int) -> None:
        """Put `value` for the session of `key` from `start` to `end` (ms, both inclusive); None deletes it.

        Stream time moves to `end`; a session with end <= stream_time - retention is dropped and counted. Raises
        TypeError or ValueError (start after end), with nothing changed, for arguments that cannot be stored. O(1) in
        order.

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put("ann", {"pages": 3}, start=0, end=30_000)
        >>> visits.put("ann", None, start=0, end=30_000)  # deletes
        >>> len(visits)
        0
        """
        turn = self._turn
        before = turn.take(self) if turn.busy is not None or not turn.lock._is_owned() else None
        try:
            turn.busy = self
            if type(start) is not int or type(end) is not int or not 0 <= start <= end <= INT64_MAX:
                self._check_span(start, end)
            kind = type(value)
            small = (
                kind is float
                or ((kind is bytes or kind is str) and len(value) <= SMALL)  # type: ignore[arg-type]
                or is_small_atom(value)
            )
            if not small:
                self._check_value(key, value)
            if type(key) is not self._keys.fast or len(key) > SMALL:  # type: ignore[arg-type]
                small = self._keys.admit(key, pin=value is not None) and small
            now = self._stream_time
            if end <= now and end <= now - self._expiry_lag:
                self.dropped["expired"] += 1
                return
            if value is None:
                if end > self._stream_time and self._by_records:
                    # no session ends after stream time, so nothing can be deleted
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
        finally:
            turn.busy = before

    @entry
    def delete(self, key: K, start: int, end: int) -> None:
        """Remove a session; an absent or expired session is no error. Stream time does not move. O(log n).

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put("ann", {"pages": 3}, start=0, end=30_000)
        >>> visits.delete("ann", 0, 30_000)
        >>> visits.put("ann", {"pages": 4}, start=0, end=45_000)  # the session is longer now
        >>> list(visits.fetch("ann"))
        [(('ann', 0, 45000), {'pages': 4})]
        """
        self._check_span(start, end)
        self._keys.admit(key, pin=False)
        if end > self._expired:
            self._remove(key, start, end)

    def _remove(self, key: Any, start: int, end: int) -> None:
        if self._find(key, start, end) is not None:
            with self._journal.whole:
                self._journal.record(self.number * 16 + DELETE_SPAN, key, start, end)
                self.apply_delete(key, start, end)

    def put_many(self, rows: Iterable[tuple[K, V | None, int, int]]) -> None:
        """Put many `(key, value, start, end)`, in order: the same as a put for each, and faster.

        All or nothing on bad arguments. O(rows).

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_many([("ann", 3, 0, 30_000), ("bob", 1, 0, 10_000)])
        >>> list(visits.all())
        [(('bob', 0, 10000), 1), (('ann', 0, 30000), 3)]
        """
        self.put_columns(*columns_of(rows, ("key", "value", "start", "end"), f"store {self.name!r}"))

    @entry
    def put_columns(
        self, keys: Sequence[Any], values: Sequence[Any], starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        """Put sessions given by column: sequences, numpy arrays or Arrow arrays of equal length; times are int ms.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. O(rows).

        >>> visits = hs.open("state").session("visits", retention="1 hour")
        >>> visits.put_columns(["ann", "bob"], [3, 1], starts=[0, 0], ends=[30_000, 10_000])
        >>> len(visits)
        2
        """
        key_list, value_list = column_list(keys), column_list(values)
        start_list = time_list(starts, f"store {self.name!r}: starts")
        end_list, low, high, ordered = time_column(ends, f"store {self.name!r}: ends")
        self._check_lengths(keys=key_list, values=value_list, starts=start_list, ends=end_list)
        if any(map(gt, start_list, end_list)):
            for start, end in zip(start_list, end_list, strict=True):
                self._check_span(start, end)
        kinds = self._check_values(key_list, value_list)
        self._keys.admit_all(key_list)
        if key_list:
            self._put_checked((key_list, value_list, start_list, end_list), low, high, ordered, NoneType in kinds)

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any, start: int, end: int) -> None:
        """Insert or overwrite one session."""
        if end > self._stream_time and self._by_records:
            # apply_time, inlined: in a stream in order every put runs these lines
            self._stream_time = end
            if end >= self._drop_at:
                self._drop_expired()
        bucket = self._near if self._near_from <= end < self._near_to else self._approach(end)
        if end - start > bucket.longest:
            bucket.longest = end - start
        if bucket.dirty is not None:
            bucket.dirty.add(key)
            if end < bucket.since:
                bucket.note_late((key,), (end,))
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
        """Put a session into an existing run, at its place; True when the session is new."""
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
        """Remove one session; over a cold block, leave a tombstone."""
        if not self._remove_row(key, start, end):
            return
        bucket = self._buckets.get(end // self._width)
        if bucket is not None and bucket.by_end is not None:
            bucket.by_end.remove((end, key, -start))
        if bucket is not None and bucket.by_key is not None and key not in bucket.runs:
            bucket.by_key.remove(key)

    def apply_rows(self, keys: list[Any], values: list[Any], starts: list[int], ends: list[int]) -> None:
        """Insert sessions of the tail, in order, without those of expired buckets. O(sessions)."""
        first, put = self._first_live(), self.apply_put
        for key, value, start, end in zip(keys, values, starts, ends, strict=True):
            if value is TOMBSTONE:
                self.apply_delete(key, start, end)
            elif end >= first:
                put(key, value, start, end)

    def apply_together(self, rows: tuple[list[Any], ...], newest: int, ordered: bool) -> None:
        """Insert rows by column, none of which expires during the batch; the newest row moves stream time. O(rows)."""
        keys, values, starts, ends = rows
        before = self._stream_time
        if self._by_records:
            self.apply_time(newest)
        # sessions that end after all present ones are appended to their runs without a search
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

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def _new_bucket(self, number: int, epoch: int) -> SessionBucket:
        return SessionBucket(epoch)

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        super().attach(directory, state)
        for number, longest in state["longest"]:
            bucket = self._buckets.get(number)
            if bucket is not None:
                bucket.longest = longest

    def _state(self) -> dict[str, Any]:
        longest = [[number, bucket.longest] for number, bucket in sorted(self._buckets.items())]
        return {**super()._state(), "longest": longest}

    @property
    def _laid_over(self) -> Combine:
        return combined

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
                self._underlay(bucket, key, [ends[at:end], starts[at:end], values[at:end]])
            elif count == 1:
                runs[key] = (ends[at], starts[at], values[at])
            elif 3 * count <= SHORT:
                runs[key] = tuple(chain.from_iterable(zip(ends[at:end], starts[at:end], values[at:end], strict=True)))
            else:
                runs[key] = long_run(ends[at:end], starts[at:end], values[at:end])
            at = end
        for key in bucket.uncovered() if bucket.tombstoned else ():
            if key in runs:  # put and removed while the block was cold, and absent from the block
                self._underlay(bucket, key, [[], [], []])

    def _columns(self, bucket: SessionBucket, keys: list[Any], *, changed: bool) -> tuple[Columns, set[Any]]:
        kept: list[Any] = []
        froms: list[int] = []
        counts: list[int] = []
        ends: array[int] = array("q")
        starts: array[int] = array("q")
        values: list[Any] = []
        removed: set[Any] = set()
        runs, since, late = bucket.runs, bucket.since, bucket.late
        for key in keys:
            run = runs.get(key)
            if run is None:
                removed.add(key)
                continue
            run_ends, run_starts, run_values = (run[::3], run[1::3], run[2::3]) if type(run) is tuple else run[:3]
            if changed:
                time = late.get(key, since)
                first = bisect_left(run_ends, time)
                if first == len(run_ends) and key not in late:
                    continue
                run_ends, run_starts, run_values = run_ends[first:], run_starts[first:], run_values[first:]
                froms.append(time)
            kept.append(key)
            counts.append(len(run_values))
            ends.extend(run_ends)
            starts.extend(run_starts)
            values.extend(run_values)
        counted = None if counts.count(1) == len(kept) else counts
        return Columns(kept, counted, (ends, starts), values, froms if changed else None), removed

    def _check(self) -> None:
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
                # no session is longer than the `longest` of its run and its bucket
                longest = max(end - start for end, start, _ in sessions)
                assert longest <= bucket.longest, ("longest of bucket", number, bucket.longest, longest)
                assert type(run) is not list or longest <= run[3], ("longest of run", key, run[3], longest)
                # tombstones lie over cold blocks only
                assert bucket.cold or all(value is not TOMBSTONE for _, _, value in sessions), ("tombstone", key)
                total += len(sessions)
            assert bucket.cold or total == bucket.records, ("record count", number, total, bucket.records)
            # kept orders have exactly the present sessions
            if bucket.by_key is not None and not bucket.cold:
                assert list(bucket.by_key) == sorted(bucket.runs), ("key order", number)
            if bucket.by_end is not None and not bucket.cold:
                rows = [(end, key, -start) for key, run in bucket.runs.items() for end, start, _ in sessions_of(run)]
                assert list(bucket.by_end) == sorted(rows), ("end order", number)
