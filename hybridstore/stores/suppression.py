"""Suppression buffer (KIP-328): holds back the updates of a key until a time limit, a bound, or the end of its window.

    runs   key -> (buffer time, value, record time)
    heap   (buffer time, key), in the order of leaving; entries that were overtaken stay until they come to the top

The buffer is state like any other, and so is what leaves it: an eviction is logged with the version it belongs to, and the
newest version's emissions are kept and handed out again after a restart. The surprise: None is a value here, a tombstone on its
way; until windows close it is dropped when it would leave.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from changelog.codec import pack, packer, unpack
from changelog.journal import SMALL, Journal, is_small_atom
from changelog.mutation import EVICT, PUT_AT, PUT_COLUMNS, TIME
from recovery.block import BlockEntry, BucketChange, Columns, Loader

from ..clock import INT64_MAX, NO_TIME, check_time, due_through
from ..collector import collector_held
from ..errors import BufferFullError
from .columns import columns_of
from .key_blocks import KeyBlocks
from .keys import shown

Emission = tuple[Any, Any, int]  # key, value, record time
_NEVER: Final = INT64_MAX + 1
_FEW_BLOCKS: Final = 4  # up to so many blocks' records, a heap is made anew rather than grown
_FEW_ROWS: Final = 8  # up to so many rows, columns are not worth their making


class SuppressionBuffer(KeyBlocks):
    """A suppression buffer. Made by `HybridStore.suppression`; see there for the parameters.

    Time complexity, with n buffered records: put and each emission O(log n).
    """

    kind = "suppression"
    _heap: list[tuple[int, Any]]
    _sizes: dict[Any, int] | None
    # version -> what it emitted, packed as long as nobody asked
    _emissions: dict[int, Any]
    _cold_low: int
    _cold_held: int
    _due: int

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self.max_records: int | None = parameters["max_records"]
        self.max_bytes: int | None = parameters["max_bytes"]
        self._final: bool = parameters["final"]
        self._limit_ms: int | None = parameters["grace_ms"] if self._final else parameters["time_limit_ms"]
        self._first_seen = parameters["timer"] == "first"
        self._raises = parameters["on_full"] == "raise"
        self._bounded = self.max_records is not None or self.max_bytes is not None
        self._size_of: Callable[[Any, Any], int] | None = None
        self._pack = packer()
        super().__init__(name, number, parameters, journal, {}, PUT_AT)

    def bind(self, size_of: Callable[[Any, Any], int] | None) -> None:
        """Measure records with this function from now on (None: their packed bytes)."""
        if size_of is not self._size_of:
            self._size_of = size_of
            self._sizes = None

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    def put(self, key: Any, value: Any, ts: int) -> list[Emission]:
        """Buffer an update with timestamp `ts` (ms) and return what leaves the buffer: `(key, value, ts)`, oldest first.

        A buffered key gets the new value, even from an earlier time. None is a tombstone. Until windows close, keys are tuples that end
        in the window's start and end. Raises TypeError or ValueError, with nothing changed, for what cannot be stored, and
        BufferFullError with `on_full="raise"` when a bound is passed: the record is then in the buffer. O(log n).
        """
        if type(ts) is not int or not 0 <= ts <= INT64_MAX:
            check_time(ts, f"store {self.name!r}: ts")
        kind = type(value)
        small = ((kind is bytes or kind is str) and len(value) <= SMALL) or kind is float or is_small_atom(value)
        if not small:
            self._check_value(key, value)
        if self._final:
            self._check_window(key)
        measures = self._measures
        size = self._size(key, value) if measures else 0
        if type(key) is not self._keys.fast:
            self._keys.admit(key)
        # What may fail by itself, a damaged block, a function of the user's, comes before anything is logged.
        if measures and self._sizes is None:
            self._measure()
        if self._bucket.cold:
            self._touch(key)
        try:
            if small:
                self._log((self._code_put, key, value, ts))
                if len(self._items) >= self._limit:
                    self._journal.spill()
            else:
                self._journal.record(self._code_put, key, value, ts)
            self.apply_put(key, value, ts)
            if measures:
                self._resize(key, size)
        except BaseException as error:
            self._journal.cut_short(error)
            raise
        heap = self._heap
        # nothing can be due, nor a bound be passed: nearly every put of a buffer with a time limit
        if heap[0][0] > self._due < self._cold_low and not self._bounded:
            return []
        return self._evict()

    def advance(self, ts: int) -> list[Emission]:
        """Move stream time to `ts` (ms) without a record, and return what leaves the buffer. Raises BufferFullError. O(emitted log n)."""
        check_time(ts, f"store {self.name!r}: ts")
        self.move_time(ts)
        return self._evict()

    def flush(self) -> list[Emission]:
        """Let everything go and return it, in the order of leaving; time does not move. Until windows close, this is
        not to be called while a window may still change: its results would no longer be final. O(n log n)."""
        self._keys.admit_all([])  # refuses when the state was closed
        return self._let_go(INT64_MAX)[1]

    def put_many(self, rows: Iterable[tuple[Any, Any, int]]) -> list[Emission]:
        """Put many `(key, value, ts)`: the same as as many puts, in order, and faster. See `put_columns`. O(rows log n)."""
        return self.put_columns(*columns_of(rows, ("key", "value", "ts"), f"store {self.name!r}"))

    def put_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[Emission]:
        """Put rows given by column: sequences, numpy arrays or Arrow arrays of equal length; return all that leaves.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. A BufferFullError in the middle
        leaves the rows up to it in the buffer. O(rows log n).
        """
        key_list, value_list, ts_list = self._timed_columns(keys, values, times)
        if self._final:
            for key in key_list:
                self._check_window(key)
        sizes = self._sizes_of(key_list, value_list) if self._measures else None
        self._keys.admit_all(key_list)
        rows: list[Emission] = []
        with collector_held():
            if sizes is not None and self._sizes is None:
                self._measure()
            with self._journal.sure:  # rows go in before they are logged
                if not self._raises and not self._bucket.cold:
                    full = self._put_loaded_rows(key_list, value_list, ts_list, sizes, rows)
                else:
                    full = self._put_rows(key_list, value_list, ts_list, sizes, rows)
                emitted = self._emit(rows, self._journal.version + 1) if rows else rows
        if full:
            raise self._full(emitted)
        return emitted

    def _put_loaded_rows(
        self, keys: list[Any], values: list[Any], times: list[int], sizes: list[int] | None, left: list[Emission]
    ) -> bool:
        """`_put_rows` where nothing is cold and no bound raises: the steps of `apply_put` and `_leave` without a call."""
        runs, heap, dirty, log = self._runs, self._heap, self._dirty, self._log
        final, first_seen, code = self._final, self._first_seen, self._code_put
        most = INT64_MAX if self.max_records is None else self.max_records
        most_bytes = INT64_MAX if self.max_bytes is None else self.max_bytes
        held: dict[Any, int] = {} if self._sizes is None else self._sizes
        evict, version = self.number * 16 + EVICT, self._journal.version + 1
        small = all(map(is_small_atom, values))
        now, due, by_records = self._stream_time, self._due, self._by_records
        logged = 0
        lag = None if self._limit_ms is None else -due_through(0, self._limit_ms)
        for row, (key, value, ts) in enumerate(zip(keys, values, times, strict=True), 1):
            if ts > now and by_records:
                self._stream_time = now = ts
                if lag is not None:
                    self._due = due = ts - lag
            old = runs.get(key)
            at = key[-1] if final else old[0] if first_seen and old is not None else ts
            runs[key] = (at, value, ts)
            if old is None or old[0] != at:
                heappush(heap, (at, key))
                if len(heap) > 2 * len(runs) + 64:
                    self._tidy()
            if sizes is not None:
                self._total += sizes[row - 1] - held.get(key, 0)
                held[key] = sizes[row - 1]
            if heap[0][0] > due and len(runs) <= most and self._total <= most_bytes:
                continue
            if small and row - logged == 1:
                log((code, key, value, ts))
            else:
                self._log_rows(keys, values, times, logged, row)
            logged = row
            count = 0
            while heap:
                at, key = heap[0]
                record = runs.get(key)
                if record is None or record[0] != at:
                    heappop(heap)
                    continue
                if at > due and len(runs) <= most and self._total <= most_bytes:
                    break
                heappop(heap)
                del runs[key]
                if sizes is not None:
                    self._total -= held.pop(key)
                if dirty is not None:
                    dirty.add(key)
                left.append((key, record[1], record[2]))
                count += 1
            if count:
                log((evict, count, version))
                if len(self._items) >= self._limit:
                    self._journal.spill()
        if dirty is not None:
            dirty.update(keys)
        self._log_rows(keys, values, times, logged, len(keys))
        return False

    def _put_rows(
        self, keys: list[Any], values: list[Any], times: list[int], sizes: list[int] | None, left: list[Emission]
    ) -> bool:
        """Do what `put` does row by row, as `apply_put` would, and move what leaves to `left`; True when that is not allowed."""
        runs, heap, bucket, dirty = self._runs, self._heap, self._bucket, self._dirty
        final, first_seen, bounded = self._final, self._first_seen, self._bounded
        small = all(map(is_small_atom, values))
        now, due, by_records = self._stream_time, self._due, self._by_records
        logged = 0
        for row, (key, value, ts) in enumerate(zip(keys, values, times, strict=True), 1):
            if ts > now and by_records:
                self.apply_time(ts)
                now, due = ts, self._due
            if bucket.cold:
                self._touch(key)
            old = runs.get(key)
            at = key[-1] if final else old[0] if first_seen and old is not None else ts
            runs[key] = (at, value, ts)
            if dirty is not None:
                dirty.add(key)
            if old is None or old[0] != at:
                self._wait(at, key)
            if sizes is not None:
                self._resize(key, sizes[row - 1])
            if heap[0][0] <= due or self._cold_low <= due or (bounded and self._over()):
                # what leaves has to be logged behind the rows that pushed it out
                if small and row - logged == 1:
                    self._log((self._code_put, key, value, ts))
                else:
                    self._log_rows(keys, values, times, logged, row)
                logged = row
                if self._leave(left, self._due):
                    return True
        self._log_rows(keys, values, times, logged, len(keys))
        return False

    def _log_rows(self, keys: list[Any], values: list[Any], times: list[int], start: int, end: int) -> None:
        if end - start <= _FEW_ROWS and all(map(is_small_atom, values[start:end])):
            for row in range(start, end):
                self._log((self._code_put, keys[row], values[row], times[row]))
            return
        if start < end:
            self._journal.record_columns(
                self.number * 16 + PUT_COLUMNS, keys[start:end], values[start:end], times[start:end]
            )

    def _check_window(self, key: Any) -> None:
        if type(key) is not tuple or len(key) < 3:
            raise TypeError(
                f"store {self.name!r}: key {shown(key)}: expected (key, start, end) (the buffer waits for windows)"
            )
        end = key[-1]
        if type(end) is not int or not 0 <= end <= INT64_MAX:
            check_time(end, f"store {self.name!r}: end of window {shown(key)}")

    # --- sizes and bounds -------------------------------------------------------------------------------------

    @property
    def _measures(self) -> bool:
        return self._sizes is not None or self.max_bytes is not None

    def _size(self, key: Any, value: Any) -> int:
        if self._size_of is None:
            return len(self._pack([key, value])) - 1
        size = self._size_of(key, value)
        if type(size) is not int:
            raise TypeError(f"store {self.name!r}: size_of: found {type(size).__name__}, expected int")
        if size < 0:
            raise ValueError(f"store {self.name!r}: size_of: found {size} for key {shown(key)}, expected 0 or more")
        return size

    def _sizes_of(self, keys: list[Any], values: list[Any]) -> list[int]:
        if self._size_of is not None:
            return list(map(self._size, keys, values))
        pack = self._pack
        return [len(pack([key, value])) - 1 for key, value in zip(keys, values, strict=True)]

    def _resize(self, key: Any, size: int) -> None:
        if self._sizes is None:
            self._measure()
        else:
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size

    def _measure(self) -> dict[Any, int]:
        """Measure all records: the first time, and the first after a restart, since sizes are derived."""
        self._load_all()
        sizes = self._sizes = {key: self._size(key, row[1]) for key, row in self._runs.items()}
        self._total = sum(sizes.values())
        return sizes

    def _over(self) -> bool:
        if self.max_records is not None and len(self._runs) + self._cold_held > self.max_records:
            return True
        if self.max_bytes is None:
            return False
        if self._sizes is None:
            self._measure()
        return self._total > self.max_bytes

    def _evict(self) -> list[Emission]:
        """Let go what is due by time, then the oldest until all bounds hold; log it, and return what is emitted."""
        full, emitted = self._let_go(self._due)
        if full:
            raise self._full(emitted)
        return emitted

    def _let_go(self, due: int) -> tuple[bool, list[Emission]]:
        """Let go what is due, log it, and return whether a bound is passed that raises, and what is emitted."""
        if self.max_bytes is not None and self._sizes is None:
            self._measure()
        rows: list[Emission] = []
        with self._journal.sure:
            return self._leave(rows, due), self._emit(rows, self._journal.version + 1) if rows else rows

    def _leave(self, rows: list[Emission], due: int) -> bool:
        """Move what has to leave to `rows`, and log it: by time (`due`) or by bounds. True when that may not leave."""
        before = len(rows)
        heap, runs, dirty = self._heap, self._runs, self._dirty
        full = False
        while (first := self._first()) <= due or (self._bounded and first != _NEVER and self._over()):
            if first > due and self._raises:
                full = True
                break
            # as `_pop`, without a call
            _, key = heappop(heap)
            _, value, ts = runs.pop(key)
            if self._sizes is not None:
                self._total -= self._sizes.pop(key)
            if dirty is not None:
                dirty.add(key)
            rows.append((key, value, ts))
        if len(rows) > before:
            self._log((self.number * 16 + EVICT, len(rows) - before, self._journal.version + 1))
            if len(self._items) >= self._limit:
                self._journal.spill()
        return full

    def _full(self, emitted: list[Emission]) -> BufferFullError:
        found, expected = f"{self.num_records} records", f"{self.max_records}"
        if self.max_bytes is not None:
            found += f" of {self._total} bytes"
            expected = f"{self.max_bytes} bytes" + ("" if self.max_records is None else f" and {expected} records")
        return BufferFullError(
            f"store {self.name!r}: buffer full: found {found}, expected at most {expected} "
            '(raise the bound, or let records go early with on_full="emit")',
            emitted,
        )

    # --- apply: the only code that changes the maps -----------------------------------------------------------

    def apply_put(self, key: Any, value: Any, ts: int) -> None:
        """Insert or update one record."""
        if ts > self._stream_time and self._by_records:
            self.apply_time(ts)
        runs = self._runs
        if self._bucket.cold:
            self._touch(key)
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
        if old is None or old[0] != at:
            # as `_wait`, without a call
            heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(runs) + 64:
                self._tidy()

    def _wait(self, at: int, key: Any) -> None:
        """Note that a record may leave at a buffer time."""
        heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._runs) + 64:
            self._tidy()

    def _tidy(self) -> None:
        """Forget what was overtaken."""
        self._heap[:] = [(row[0], key) for key, row in self._runs.items()]
        heapify(self._heap)

    def apply_columns(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Insert or update records by column, in order."""
        for key, value, ts in zip(keys, values, times, strict=True):
            self.apply_put(key, value, ts)

    def apply_evict(self, count: int, version: int) -> None:
        """Let the first `count` records go; they are emitted by `version`."""
        rows: list[Emission] = []
        for _ in range(count):
            self._first()
            rows.append(self._pop())
        self._emit(rows, version)

    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts`, if that is later. What is due leaves by an eviction of its own."""
        if ts > self._stream_time:
            self._stream_time = ts
            if self._limit_ms is not None:
                self._due = due_through(ts, self._limit_ms)

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore."""
        return {
            PUT_AT: self.apply_put,
            PUT_COLUMNS: self.apply_columns,
            EVICT: self.apply_evict,
            TIME: self.apply_time,
        }

    def _first(self) -> int:
        """Return the buffer time of the record that leaves next, which is then loaded and on top of the heap."""
        heap, runs = self._heap, self._runs
        while True:
            while heap and ((row := runs.get(heap[0][1])) is None or row[0] != heap[0][0]):
                heappop(heap)
            first = heap[0][0] if heap else _NEVER
            if self._cold_low > first or self._cold_low == _NEVER:
                return first
            cold = self._bucket.cold
            for i in range(len(cold) - 1, -1, -1):
                if cold[i].entry.low == self._cold_low:
                    self._load(i)
                    break

    def _pop(self) -> Emission:
        """Take the record that `_first` found out of the buffer."""
        _, key = heappop(self._heap)
        _, value, ts = self._runs.pop(key)
        if self._sizes is not None:
            self._total -= self._sizes.pop(key)
        if self._dirty is not None:
            self._dirty.add(key)
        return key, value, ts

    def _emit(self, rows: list[Emission], version: int) -> list[Emission]:
        if self._final:
            rows = [row for row in rows if row[1] is not None]
        if version not in self._emissions:
            # the newest committed version's are kept while the one in progress collects its own
            for old in [old for old in self._emissions if old < version - 1]:
                del self._emissions[old]
            self._emissions[version] = []
        self._kept(version).extend(rows)
        return rows

    def _kept(self, version: int) -> list[Emission]:
        """Return the emissions kept of a version, unpacking those that a checkpoint gave."""
        kept = self._emissions.get(version, [])
        rows: list[Emission] = kept
        if isinstance(kept, bytes):
            rows = self._emissions[version] = [(key, value, ts) for key, value, ts in unpack(kept)]
        return rows

    # --- reads ------------------------------------------------------------------------------------------------

    def buffered(self) -> Iterator[Emission]:
        """Iterate over the buffered `(key, value, ts)` in the order in which they would leave. A snapshot. O(n log n)."""
        self._load_all()
        order = sorted((row[0], key) for key, row in self._runs.items())
        return iter(self._iterators.rows((key, *self._runs[key][1:]) for _, key in order))

    def emitted(self) -> list[tuple[int, Any, Any, int]]:
        """Return what the newest committed version emitted, as `(version, key, value, ts)` in order, also after a restart.

        A consumer that remembers the version it took last, and skips what is not newer, sees each emission exactly once: it takes
        this at the start, and what `put` and `advance` return once they are committed. O(emitted).
        """
        self._keys.admit_all([])  # refuses when the state was closed
        version = self._journal.version
        return [(version, *row) for row in self._kept(version)]

    def __len__(self) -> int:
        self._keys.admit_all([])  # refuses when the state was closed
        return self.num_records

    @property
    def num_records(self) -> int:
        """Records buffered. O(1)."""
        return len(self._runs) + self._cold_held

    @property
    def buffer_size(self) -> int:
        """Bytes buffered, as measured by `size_of`. O(1); the first time O(n)."""
        self._keys.admit_all([])  # refuses when the state was closed
        if self._sizes is None:
            self._measure()
        return self._total

    @property
    def min_timestamp(self) -> int | None:
        """The buffer time of the record that leaves next (ms; until windows close, the end of its window); None when empty."""
        self._keys.admit_all([])  # refuses when the state was closed
        first = self._first()
        return None if first == _NEVER else first

    @property
    def waiting_rows(self) -> int:
        """None: what leaves next is decided by all records together, so a replay lets no row wait."""
        return 0

    def settle(self) -> None:
        """Nothing waits."""

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def clear_state(self) -> None:
        """Forget everything, as before a restore."""
        super().clear_state()
        self._heap = []
        self._sizes = None
        self._total = 0
        self._emissions = {}
        self._due = NO_TIME
        self._cold_changed()

    def attach(self, load: Loader, state: dict[str, Any], entries: list[BlockEntry]) -> None:
        """Become the store of a checkpoint, all of it cold. O(blocks)."""
        super().attach(load, state, entries)
        if state["emitted"] is not None:
            version, packed = state["emitted"]
            self._emissions[version] = packed

    def _cold_changed(self) -> None:
        cold = self._bucket.cold
        self._cold_low = min((block.entry.low for block in cold), default=_NEVER)
        self._cold_held = sum(block.entry.records for block in cold)

    def _install(self, entry: BlockEntry, columns: Columns) -> None:
        """Put a block's records in place. Nothing lies over them: a record is only changed when its block is loaded."""
        ats, times = columns.ints
        self._runs.update(zip(columns.keys, zip(ats, columns.values, times, strict=True), strict=True))
        heap, places = self._heap, zip(ats, columns.keys, strict=True)
        if len(heap) < _FEW_BLOCKS * len(ats):
            heap += places
            heapify(heap)
        else:
            for place in places:
                heappush(heap, place)

    def _change(self, dirty: set[Any] | None, whole: bool) -> BucketChange:
        runs = self._runs
        removed = set() if dirty is None else {key for key in dirty if key not in runs}
        keys = sorted(runs if dirty is None else dirty - removed)
        rows = [runs[key] for key in keys]
        ints = array("q", [row[0] for row in rows]), array("q", [row[2] for row in rows])
        return BucketChange(Columns(keys, None, ints, [row[1] for row in rows]), removed, dirty is None)

    def _state(self) -> dict[str, Any]:
        version = self._journal.version
        kept = self._emissions.get(version)
        if kept is not None:
            kept = [version, kept if isinstance(kept, bytes) else pack([list(row) for row in kept])]
        return super()._state() | {"emitted": kept}

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        self._check_cold()
        runs, bucket = self._runs, self._bucket
        waiting = set(self._heap)
        for key, (at, _, ts) in runs.items():
            # everything buffered has its place in the heap
            assert (at, key) in waiting, ("record without heap entry", key, at)
            # nothing is both loaded and cold
            assert bucket.covering(key) < 0, ("loaded and cold", key)
            # a buffer time is the window's end, or one of the record times
            assert at == key[-1] if self._final else at == ts or self._first_seen, ("buffer time", key, at, ts)
            assert ts <= self._stream_time or not self._by_records, ("time after stream time", key, ts)
        # counts of what is cold
        assert self._cold_held == sum(block.entry.records for block in bucket.cold), ("cold", self._cold_held)
        assert self._cold_low == min((block.entry.low for block in bucket.cold), default=_NEVER), ("cold low",)
        if self._sizes is not None:
            # sizes are of what is there
            assert self._sizes.keys() == runs.keys(), ("sizes", self._sizes.keys() ^ runs.keys())
            assert self._total == sum(self._sizes.values()), ("total", self._total)
        # emissions of two versions at the most
        assert len(self._emissions) <= 2, ("emissions", list(self._emissions))
