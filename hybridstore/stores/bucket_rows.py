"""Bucket rows: what window and session stores share beside their buckets: how rows come in by column, from blocks and
into checkpoints.

A row is a key, a value and one or two times, of which the last decides the bucket and is the first column of a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress, repeat
from typing import Any

from changelog.turn import read
from recovery.block import BlockEntry, Combine
from recovery.directory import PageEntry

from ..clock import INT64_MAX
from ..collector import collector_held
from .buckets import TOMBSTONE
from .cold_blocks import SPARING, ColdBlock, chosen, load_or_leave
from .columns import accepted, batches, in_order
from .time_buckets import TimeBuckets


class BucketRows(TimeBuckets):
    """The rows of a window or session store. The store above says what a run looks like, and puts single rows."""

    put: Callable[..., None]
    apply_put: Callable[..., None]
    apply_together: Callable[..., None]
    # Returns the run with these columns; and the index of the row with these times in a run, or -1.
    _run_of: Callable[[Sequence[Any]], Any]
    _index_of: Callable[..., int]
    # `ts - lag` is the boundary at stream time `ts`: a row at or before the boundary is refused.
    _refusal_lag: int

    @property
    def _combine(self) -> Combine | None:
        return self._laid_over

    # --- rows by column ---------------------------------------------------------------------------------------

    def _put_checked(self, rows: tuple[list[Any], ...], low: int, high: int, ordered: bool, deletes: bool) -> None:
        """Put rows by column that can be stored; `deletes` says that a value is None."""
        with collector_held():
            if deletes or not self._put_together(rows, low, high, ordered):
                self._journal.check_columns(*rows[:2])
                for part in batches(*rows):
                    times = part[-1]
                    if None in part[1] or not self._put_together(part, min(times), max(times), in_order(times)):
                        for row in zip(*part, strict=True):
                            self.put(*row)

    def _put_together(self, rows: tuple[list[Any], ...], low: int, high: int, ordered: bool) -> bool:
        """Log and apply rows by column, without late ones; False, with nothing done, if a row would expire during the
        batch.

        False without a time in which rows may be late, too: then every row is late by its own time, but still moves
        time.
        """
        newest = max(high, self._stream_time) if self._by_records else self._stream_time
        if low <= newest - self._refusal_lag:
            times = rows[-1]
            kept = accepted(times, self._stream_time, self._refusal_lag, moves=self._by_records)
            if self._refusal_lag <= 0 or min(compress(times, kept), default=newest) <= newest - self._expiry_lag:
                return False
            self._count_dropped(times, kept)
            rows = tuple(list(compress(column, kept)) for column in rows)
        if rows[0]:
            with self._journal.whole:
                self._journal.record_columns(self.number * 16 + self.ops[1], *rows)
                self.apply_together(rows, high, ordered)
        return True

    def _count_dropped(self, times: list[int], kept: list[bool]) -> None:
        self.dropped["expired"] += kept.count(False)

    # --- one row ----------------------------------------------------------------------------------------------

    def _remove_row(self, key: Any, *times: int) -> bool:
        """Remove a row from the maps; over a cold block, leave a tombstone. False: the row was not in the maps."""
        number = times[-1] // self._width
        bucket = self._buckets.get(number)
        if bucket is None:
            return False
        if bucket.cold and bucket.covering(key) >= 0:
            self.apply_put(key, TOMBSTONE, *times)
            self._buckets[number].note_tombstone(key)
            return False
        bucket = self._writable(number)
        run = bucket.runs.get(key)
        i = -1 if run is None else self._index_of(run, *times)
        if i < 0:
            return False
        if type(run) is tuple:
            fields = self.ints + 1
            rest: Any = run[: i * fields] + run[(i + 1) * fields :]
        else:
            rest = self._run_of([[*part[:i], *part[i + 1 :]] for part in self._parts(run)])
        self._set_run(bucket, key, rest)
        bucket.records -= 1
        bucket.changed((key,), times[-1:])
        if not bucket.runs and not bucket.cold:
            self._remove_bucket(number)
        return True

    @staticmethod
    def _set_run(bucket: Any, key: Any, run: Any) -> None:
        if run:
            bucket.runs[key] = run
        else:
            del bucket.runs[key]
        if bucket.owned is not None:
            bucket.owned.add(key)

    # --- scans ------------------------------------------------------------------------------------------------

    def _unloaded(
        self, bucket: Any, key_from: Any, key_to: Any, low: int, high: int
    ) -> Callable[[], Iterable[ColdBlock]] | None:
        """Load the blocks of a bucket that may have rows of these keys (None: open) and times; where memory is short,
        only those for which it has room. Return what lists the others, None if no block is cold. O(records loaded).
        """
        if not SPARING.on:
            self._load_all(bucket)
        if not bucket.cold:
            return None

        def wanted(entry: BlockEntry | PageEntry) -> bool:
            return (
                entry.low <= high
                and entry.high >= low
                and (key_from is None or entry.last >= key_from)
                and (key_to is None or entry.first <= key_to)
            )

        def blocks() -> Iterable[ColdBlock]:
            self._turn.take(self, reads=True)
            return [bucket.cold[i] for i in chosen(bucket.cold, wanted)]

        load_or_leave(bucket.cold, wanted, partial(self._load, bucket))
        return blocks

    def _cold_rows(self, bucket: Any, block: ColdBlock, low: int, high: int) -> list[Sequence[Any]]:
        """Return the columns (key, times, value) of the rows of a cold block with times from `low` to `high`, but for
        those that rows in memory replace; by key. Raises CorruptCheckpointError. O(block).
        """
        columns = block.columns()
        ints, keys = columns.ints, columns.keys
        runs = bucket.runs
        # rows of a store that keeps all replace no others
        known = runs.keys() & keys if self._combine is not None else ()
        over = {key: set(zip(*self._parts(runs[key])[:-1], strict=True)) for key in known}
        if columns.counts is not None:
            keys = list(chain.from_iterable(map(repeat, keys, columns.counts)))
        parts: list[Sequence[Any]] = [keys, *ints, columns.values]
        if over:
            rows = zip(keys, zip(*ints, strict=True), strict=True)
            kept = [low <= times[0] <= high and times not in over.get(key, ()) for key, times in rows]
        elif min(ints[0], default=low) < low or max(ints[0], default=high) > high:
            kept = [low <= time <= high for time in ints[0]]
        else:
            return parts
        return [list(compress(part, kept)) for part in parts]

    # --- blocks and checkpoints -------------------------------------------------------------------------------

    def _underlay(self, bucket: Any, key: Any, parts: list[Any]) -> None:
        """Put the rows of a cold block under those written since."""
        over = self._parts(bucket.runs[key])
        ints, values = self._laid_over((tuple(parts[:-1]), parts[-1]), (tuple(over[:-1]), over[-1]))
        bucket.records += len(values) - len(parts[-1]) - len(over[-1])
        self._set_run(bucket, key, self._run_of([*ints, values]) if values else ())

    @read
    def __len__(self) -> int:
        """Count the live rows. O(buckets), and O(rows) in the bucket that expires right now and in buckets with cold
        blocks, which are loaded or, where memory is short, read.
        """
        self._keys.admit_all([])  # raises when the state was closed
        self.apply_waiting()
        total, expired = 0, self._expired
        for number in self._numbers(0, INT64_MAX):
            bucket = self._buckets[number]
            cold = self._unloaded(bucket, None, None, expired + 1, INT64_MAX)
            if cold is not None:
                total += sum(len(self._cold_rows(bucket, block, expired + 1, INT64_MAX)[0]) for block in cold())
                for run in bucket.runs.values():
                    times, *_, values = self._parts(run)
                    total += sum(value is not TOMBSTONE for value in values[bisect_right(times, expired) :])
                continue
            total += bucket.records
            if number * self._width <= expired:
                total -= sum(bisect_right(self._parts(run)[0], expired) for run in bucket.runs.values())
        return total
