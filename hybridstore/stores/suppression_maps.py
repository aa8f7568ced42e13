"""Suppression maps: the records of a suppression buffer, and the only code that changes them.

    runs   key -> (buffer time, value, record time)
    heap   (buffer time, key), in the order of emission; outdated entries stay until they reach the top

A put emits the records that become due by the put, live and in a replay, and nothing more is logged; a bound, `advance`
and `flush` emit by a logged eviction up to a place in that order. The surprise: a replay rarely runs the buffer. Its
rows wait (`suppression_tail`), and the remaining records are known without the heap.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count
from sys import getsizeof
from typing import Any, Final, Generic

from changelog.codec import pack, unpack
from changelog.journal import Journal
from changelog.mutation import EVICT, PUT_AT, PUT_COLUMNS, TIME
from recovery.block import BucketChange, Columns
from recovery.directory import Directory

from ..clock import INT64_MAX, NO_TIME, due_through
from ..collector import collector_held
from .cold_blocks import SPARING, ColdBlock, ColdPage, DecodedBlock, TakenBlock, open_page
from .cold_tail import Maps
from .edge import K, V
from .key_blocks import KeyBlocks
from .sizes import HEAP_BYTES
from .suppression_tail import Boundary, BufferTail, TailEvent, TailRows, Unasked, boundary_of, not_due, remaining

Emission = tuple[K, V, int]  # key, value, record time
NEVER: Final = INT64_MAX + 1
_FEW_BLOCKS: Final = 4  # a heap of up to so many blocks' records is rebuilt instead of extended
_FEW_KEYS: Final = 8  # up to so many keys are looked for one by one, and not in the list of all blocks
_SPARSE: Final = 4  # if a replay has fewer rows than one for so many records, the rows are put one by one
_NEWEST: Final = 64  # if the newest version has more than one row in so many, its emissions are computed when asked for


def _place(block: ColdBlock | ColdPage) -> tuple[int, Any]:
    """Return a place in the order of emission that no record of a cold block is before."""
    return block.low, block.first


class SuppressionMaps(KeyBlocks, Generic[K, V]):
    """The records of a suppression buffer, by key and in the order of emission, and the emissions of the newest
    version.
    """

    ops = PUT_AT, PUT_COLUMNS, None
    cools = True
    _tail: BufferTail
    _heap: list[tuple[int, Any]]
    # the sizes of the records in memory (None: not measured), but for some that were loaded since; `_total` is the size
    # of all records
    _sizes: dict[Any, int] | None
    _unsized: list[Any]
    # the emissions of the newest committed version (packed, or not computed yet, until they are needed), and of the
    # version in progress
    _emitted: bytes | Unasked | list[Emission]
    _emitted_in: int
    _emitting: list[Emission]
    _removed: tuple[int, Any]  # the place of the record that was removed last
    _cold_first: Boundary  # no cold record is before it
    _cold_held: int
    _due: int

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self._stream_time = NO_TIME
        self._limit_to(parameters)
        self._tail = BufferTail()
        super().__init__(name, number, parameters, journal, {})

    def _limit_to(self, parameters: dict[str, Any]) -> None:
        self._final: bool = parameters["final"]
        self._first_seen = parameters["timer"] == "first"
        limit: int | None = parameters["grace_ms"] if self._final else parameters["time_limit_ms"]
        # `ts - lag` is the boundary at stream time `ts`: clock.py's rule, computed once instead of at every put
        self._lag = NEVER if limit is None else -due_through(0, limit)
        self._due = self._stream_time - self._lag

    # --- apply: the only code that changes the maps. What is cold of it was loaded before ---------------------

    def apply_put(self, key: Any, value: Any, ts: int, size: int = 0) -> list[Emission]:
        """Insert or update one record, and return the records that time makes due.

        `size` is used if the buffer has a bound in bytes.
        """
        if ts > self._stream_time and self._by_records:
            self._stream_time = ts
            self._due = ts - self._lag
        runs = self._runs
        old = runs.get(key)
        if self._final:
            at = key[-1]
        elif self._first_seen and old is not None:
            at = old[0]
        else:
            at = ts
        runs[key] = (at, value, ts)
        if self._dirty is not None:
            self._dirty.add(key)
        if self._sizes is not None:
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size
        heap = self._heap
        if old is None or old[0] != at:
            heappush(heap, (at, key))
            if len(heap) > 2 * len(runs) + 64:
                self._tidy()
        return [] if heap[0][0] > self._due else self.apply_leave(boundary_of(self._due))

    def apply_columns(
        self, keys: list[Any], values: list[Any], times: list[int], sizes: Sequence[int] = ()
    ) -> list[Emission]:
        """Insert or update records by column, in order, each as `apply_put` does, and return all emitted records."""
        runs, heap, byte_sizes = self._runs, self._heap, self._sizes
        final, first_seen = self._final, self._first_seen
        now, due = self._stream_time if self._by_records else INT64_MAX, self._due
        emitted: list[Emission] = []
        if self._dirty is not None:
            self._dirty.update(keys)
        for row, (key, value, ts) in enumerate(zip(keys, values, times, strict=True)):
            if ts > now:
                now = self._stream_time = ts
                due = self._due = ts - self._lag
            old = runs.get(key)
            at = key[-1] if final else old[0] if first_seen and old is not None else ts
            runs[key] = (at, value, ts)
            if byte_sizes is not None:
                self._total += sizes[row] - byte_sizes.get(key, 0)
                byte_sizes[key] = sizes[row]
            if old is None or old[0] != at:
                heappush(heap, (at, key))
                if len(heap) > 2 * len(runs) + 64:
                    self._tidy()
            if heap[0][0] <= due:
                emitted += self.apply_leave((due + 1,))
        return emitted

    def apply_evict(self, through: int, key: Any = None) -> list[Emission]:
        """Emit the records with a buffer time up to `through`; with a key, at `through` only up to that key."""
        return self.apply_leave(boundary_of(through, key))

    def apply_leave(self, boundary: Boundary, most: int = INT64_MAX) -> list[Emission]:
        """Remove the records at or before a boundary, in order, until `most` are emitted, and return these.

        O(removed log n).
        """
        heap, runs, dirty, sizes = self._heap, self._runs, self._dirty, self._sizes
        emitted: list[Emission] = []
        while heap and heap[0] <= boundary and len(emitted) < most:
            place = heappop(heap)
            at, key = place
            record = runs.get(key)
            if record is None or record[0] != at:
                continue  # overtaken
            self._removed = place
            del runs[key]
            if dirty is not None:
                dirty.add(key)
            if sizes is not None:
                self._total -= sizes.pop(key)
            if record[1] is not None or not self._final:
                emitted.append((key, record[1], record[2]))
        self._emitting += emitted
        return emitted

    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts`, if `ts` is later. Due records are emitted with the next put, or by an eviction."""
        if ts > self._stream_time:
            self._stream_time = ts
            self._due = ts - self._lag

    def _tidy(self) -> None:
        """Remove outdated entries from the top of the heap."""
        self._heap[:] = [(row[0], key) for key, row in self._runs.items()]
        heapify(self._heap)

    # --- what a replay brings ---------------------------------------------------------------------------------

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore: rows, and what came between them, wait in the tail."""
        return {
            PUT_AT: self._wait_row,
            PUT_COLUMNS: self._wait_rows,
            EVICT: self._wait_evict,
            TIME: self._wait_time,
        }

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        return {PUT_AT: self._wait_rows}

    def _wait_row(self, key: Any, value: Any, ts: int) -> None:
        if not self._tail:
            self._tail.began = self._stream_time
        self._tail.add(key, value, ts)

    def _wait_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        if not self._tail:
            self._tail.began = self._stream_time
        self._tail.extend(keys, values, times)

    def _wait_time(self, ts: int) -> None:
        if self._tail:
            self._tail.events.append(TailEvent(len(self._tail), ts, ()))
        self.apply_time(ts)

    def _wait_evict(self, through: int, key: Any) -> None:
        if self._tail:
            self._tail.events.append(TailEvent(len(self._tail), None, boundary_of(through, key)))
            return
        self._load_before(boundary_of(through, key))
        self.apply_evict(through, key)

    def end_version(self, ts: int, version: int) -> None:
        """A version ends at stream time `ts` (ms): `emitted` returns its emissions from now on. O(1)."""
        self._wait_time(ts)
        self._emitted, self._emitting = self._emitting, []
        self._emitted_in = version
        if self._tail:
            self._tail.end_version()

    def touch(self, keys: Sequence[Any]) -> None:
        """Apply all waiting rows: the next emission depends on all records together. O(waiting rows)."""
        self.apply_waiting()

    def apply_some_waiting(self) -> bool:
        """Apply all waiting rows; False when no row waits. O(waiting rows)."""
        waiting = len(self._tail) > 0
        self.apply_waiting()
        return waiting

    def apply_waiting(self) -> None:
        """Apply all waiting rows. O(waiting rows) at C speed, and O(records)."""
        tail = self._tail
        if tail:
            if self._bucket.cold:  # with a damaged block, all rows keep waiting
                self._load_for(set(tail.keys()), self._stream_time)
                self._load_before(max((event.boundary for event in tail.events), default=()))
            with self._applying_tail(), collector_held():
                self._sizes = None
                emitting, self._emitting = self._emitting, []
                began, now, newest = tail.began, self._stream_time, tail.newest
                self._stream_time, self._due = began, began - self._lag
                rows = tail.take()
                before, behind = rows.before(newest), rows.behind(newest)
                # with the timer "first" a row's buffer time depends on all rows of its key before
                together = not self._first_seen and _SPARSE * len(rows.keys) >= len(self._runs)
                if together and _NEWEST * len(behind.keys) > len(rows.keys):
                    self._emitted = Unasked(self._kept(), began, self.apply_rows(*rows), before, behind)
                else:
                    self.apply_rows(*before) if together else self.apply_in_turn(before)
                    self._emitting = self._kept()
                    self.apply_in_turn(behind)
                    self._emitted = self._emitting
                self._emitting = emitting
                if not self._heap:
                    self._tidy()
                self.apply_time(now)
        self._end_tail()

    def apply_in_turn(self, part: TailRows) -> None:
        """Apply rows and the events between them as the live store did, and emit the due records."""
        keys, values, times, events = part
        if not self._heap:
            self._tidy()
        start = 0
        for event in [*events, TailEvent(len(keys), NO_TIME, ())]:
            if event.rows > start:
                self.apply_columns(keys[start : event.rows], values[start : event.rows], times[start : event.rows])
                start = event.rows
            if event.time is None:
                self.apply_leave(event.boundary)
            else:
                self.apply_time(event.time)

    def apply_rows(
        self, keys: list[Any], values: list[Any], times: list[int], events: Sequence[TailEvent] = ()
    ) -> dict[Any, Any]:
        """Apply rows of the tail, and emit nothing: the last row of each key counts, if it is still buffered. Return
        the records taken out: those due, and those replaced by a row of their key. The heap is empty then.

        O(rows) at C speed, and O(records).
        """
        runs = self._runs
        moves = [event.time for event in events if event.time is not None and event.rows < len(keys)]
        newest = max(times, default=NO_TIME) if self._by_records else NO_TIME
        # time alone emits nothing
        due = max([self._stream_time, newest, *moves]) - self._lag if keys else NO_TIME
        evictions = [event for event in events if event.time is None]
        furthest = max([boundary_of(due), *(event.boundary for event in evictions)])
        ats = [key[-1] for key in keys] if self._final else times
        first = not_due(ats, due)  # all rows before were emitted
        last = dict(zip(keys[first:], count(first), strict=False))
        through = furthest[0]
        taken = {
            key: row
            for key, row in runs.items()
            if row[0] < through or key in last or (row[0] == through and (through, key) <= furthest)
        }
        if len(taken) == len(runs):
            runs.clear()
        else:
            taken.update((key, runs[key]) for key in (runs.keys() - taken.keys()).intersection(keys[:first]))
            for key in taken:
                del runs[key]
        rows = remaining(last.items(), ats, due, evictions)
        kept = [keys[i] for i in rows]
        runs.update(
            zip(kept, zip(*([column[i] for i in rows] for column in (ats, values, times)), strict=True), strict=True)
        )
        if self._dirty is not None:
            self._dirty.update(taken, kept)
        self._heap.clear()
        for event in (*events, TailEvent(0, newest, ())):
            self.apply_time(event.time or NO_TIME)
        return taken

    def apply_records(self, records: dict[Any, Any]) -> None:
        """Put records as they were. The heap does not have them yet. O(records)."""
        self._runs.update(records)

    # --- looking ----------------------------------------------------------------------------------------------

    def _first(self) -> tuple[int, Any] | None:
        """Return the buffer time and key of the next record to be emitted, after loading it; None when the buffer is
        empty.
        """
        heap, runs = self._heap, self._runs
        while True:
            while heap and ((row := runs.get(heap[0][1])) is None or row[0] != heap[0][0]):
                heappop(heap)
            if not self._bucket.cold or (heap and heap[0] < self._cold_first):
                return heap[0] if heap else None
            self._load_oldest(None)

    def _kept(self) -> list[Emission]:
        """Return the emissions of the newest version; the first call unpacks or computes them."""
        kept = self._emitted
        if isinstance(kept, bytes):
            kept = [(key, value, ts) for key, value, ts in unpack(kept)]
        elif isinstance(kept, Unasked):
            again = type(self)(self.name, self.number, self.parameters, self._journal)
            again.apply_time(kept.began)
            again.apply_records(kept.records)
            again.apply_rows(*kept.before)
            again.apply_in_turn(kept.newest)
            kept = [*kept.emitted, *again._emitting]
        self._emitted = kept
        return kept

    # --- loading ----------------------------------------------------------------------------------------------

    def _load_for(self, keys: Collection[Any], ts: int) -> None:
        """Load the cold records that rows of these keys, the newest at `ts`, change or make due."""
        self.prefetch(keys)
        if SPARING.on:
            self.lookups.asked += len(keys)
        if len(keys) > _FEW_KEYS:
            self._touch_all(keys)
        else:
            for key in keys:
                self._touch(key, absent=True)
        now = max(ts, self._stream_time) if self._by_records else self._stream_time
        self._load_before(boundary_of(now - self._lag))

    def _load_key(self, index: int, key: Any, *, absent: bool = False) -> None:
        self._load_keys(index, (key,))

    def _load_before(self, boundary: Boundary) -> None:
        """Load the cold records at or before a boundary: where memory is not short, their blocks."""
        while self._bucket.cold and self._cold_first <= boundary:
            self._load_oldest(boundary[0])

    def _load_oldest(self, through: int | None) -> None:
        """Load the block that has the first of the cold records in the order of emission; where memory is short, only
        its records with a buffer time up to `through`, None: those that leave before all other cold records, or a
        share.
        """
        cold = self._bucket.cold
        (place, i), *others = nsmallest(2, ((_place(block), i) for i, block in enumerate(cold)))
        if place != self._cold_first:  # pages were opened: their blocks are known better
            self._cold_first = place
            return
        block = cold[i]
        if isinstance(block, ColdPage):
            open_page(cold, i)
        elif not SPARING.on or (type(block) is TakenBlock and block.mostly_taken):
            self._load(i)
        else:
            if through is None:
                through = others[0][0][0] - 1 if others else INT64_MAX
            self._load_first(i, through)

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def clear_state(self) -> None:
        super().clear_state()
        self._heap = []
        self._sizes, self._unsized = None, []
        self._total = 0
        self._emitted, self._emitting = [], []
        self._emitted_in = 0
        self._due = NO_TIME - self._lag
        self._cold_held = 0
        self._cold_changed()

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        super().attach(directory, state)
        self._cold_held = self._block_records
        if state["emitted"] is not None:
            self._emitted_in, self._emitted = state["emitted"]

    def _cool(self, directory: Directory) -> list[Maps]:
        heap, records, sizes = self._heap, self._applied_records, self._sizes
        others = super()._cool(directory)
        # what is hidden of the blocks is not known block by block
        self._cold_held = records - len(self._runs)
        self._heap = []
        if sizes is not None:
            self._sizes = {key: sizes[key] for key in self._runs if key in sizes}
        self._tidy()
        return [*others, heap]

    def _cold_changed(self) -> None:
        self._cold_first = min(map(_place, self._bucket.cold), default=(NEVER,))

    def _taken(self, records: int) -> None:
        self._cold_held -= records

    def _install(self, columns: Columns) -> None:
        """Put records of a block into the maps. No record lies over them, because a record only changes after it was
        loaded.
        """
        ats, times = columns.ints
        self._runs.update(zip(columns.keys, zip(ats, columns.values, times, strict=True), strict=True))
        if self._sizes is not None:
            self._unsized += columns.keys
        heap, places = self._heap, zip(ats, columns.keys, strict=True)
        if len(heap) < _FEW_BLOCKS * len(ats):
            heap += places
            heapify(heap)
        else:
            for place in places:
                heappush(heap, place)

    @property
    def cold_records(self) -> int:
        return self._cold_held - sum(block.records for block in self._bucket.cold if type(block) is DecodedBlock)

    def _maps_bytes(self) -> int:
        return super()._maps_bytes() + HEAP_BYTES * len(self._heap) + getsizeof(self._sizes)

    def maps(self) -> list[Maps]:
        return [*super().maps(), self._heap]

    def _change(self, dirty: set[Any] | None) -> BucketChange:
        runs = self._runs
        removed = set() if dirty is None else {key for key in dirty if key not in runs}
        keys = sorted(runs if dirty is None else dirty - removed)
        rows = [runs[key] for key in keys]
        ints = array("q", [row[0] for row in rows]), array("q", [row[2] for row in rows])
        return BucketChange(Columns(keys, None, ints, [row[1] for row in rows]), removed, dirty is None)

    def _state(self) -> dict[str, Any]:
        kept = self._emitted if isinstance(self._emitted, bytes) else self._kept()
        packed = kept if isinstance(kept, bytes) else pack([list(row) for row in kept])
        return super()._state() | {"emitted": [self._emitted_in, packed] if kept else None}

    def _check(self) -> None:
        self._check_cold()
        self._check_tail()
        runs, bucket = self._runs, self._bucket
        waiting = set(self._heap)
        for key, (at, _, ts) in runs.items():
            # every buffered record is in the heap
            assert (at, key) in waiting, ("record without heap entry", key, at)
            # no record is both loaded and cold
            assert bucket.covering(key) < 0, ("loaded and cold", key)
            # a buffer time is the window's end, or one of the record times
            assert at == key[-1] if self._final else at == ts or self._first_seen, ("buffer time", key, at, ts)
            assert ts <= self._stream_time or not self._by_records, ("time after stream time", key, ts)
        # blocks count records that are in memory, too, behind `cool`
        assert 0 <= self._cold_held <= self._block_records, ("cold", self._cold_held)
        assert bucket.cold or not self._cold_held, ("cold records without blocks", self._cold_held)
        assert self._cold_first <= min(map(_place, bucket.cold), default=(NEVER,)), ("cold first",)
        if self._sizes is not None:
            # sizes are those of the records in memory
            assert self._sizes.keys() <= runs.keys(), ("sizes", self._sizes.keys() - runs.keys())
            assert runs.keys() - self._sizes.keys() <= set(self._unsized), ("unsized", self._unsized)
            assert bucket.cold or self._unsized or self._total == sum(self._sizes.values()), ("total", self._total)
        # the due time follows stream time
        assert self._due == self._stream_time - self._lag, ("due", self._due, self._stream_time)
