"""Suppression buffer (KIP-328): holds back the updates of a key until a time limit, a bound, or the end of its window.

    put ─▶ decide and log ─▶ `SuppressionMaps.apply_put` ─▶ what is due leaves ─▶ bounds: the oldest leave, logged

The buffer and its emissions are state: the emissions of the newest version are kept and returned again after a restart.
The surprise: None is a value here, a tombstone for the consumer; a buffer that waits for windows to close drops the
tombstone instead of emitting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from changelog.codec import packer
from changelog.journal import SMALL, Journal, is_small_atom, key_bytes
from changelog.mutation import EVICT, PUT_COLUMNS
from changelog.turn import entry, read

from ..clock import INT64_MAX, check_time
from ..collector import collector_held
from ..errors import BufferFullError, HybridStoreError
from .cold_blocks import SPARING, ColdBlock
from .columns import columns_of
from .edge import K, V
from .keys import shown
from .pieces import by_place
from .suppression_maps import Emission, SuppressionMaps
from .suppression_tail import Boundary, boundary_of

_FEW_ROWS: Final = 8  # up to so many rows, building columns costs more than it saves
_BY_PLACE: Final = itemgetter(0, 1)
_PIECE: Final = 1000  # what emits many emits so many at a time
_FULL_ROWS: Final = 64  # so many rows are put into a full buffer one by one before the room is computed again


class SuppressionBuffer(SuppressionMaps[K, V]):
    """A suppression buffer. Made by `State.suppression`; see there for the parameters.

    Time complexity, with n buffered records: put and each emission O(log n).

    >>> final = hs.open("state").suppression("final", until_window_closes="1 minute")
    >>> window = ("ann", 0, 300_000)  # a key that ends in start and end of its window
    >>> final.put(window, 1, ts=60_000), final.put(window, 2, ts=250_000)
    ([], [])
    >>> list(final.advance(360_000))  # the end of the window and its grace
    [[(('ann', 0, 300000), 2, 250000)]]
    """

    _in_order = "buffered"

    kind = "suppression"

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self.max_records: int | None = parameters["max_records"]
        self.max_bytes: int | None = parameters["max_bytes"]
        self._raises = parameters["on_full"] == "raise"
        self._bounded = self.max_records is not None or self.max_bytes is not None
        self._size_of: Callable[[Any, Any], int] | None = None
        self._pack = packer()
        super().__init__(name, number, parameters, journal)

    def alter(self, parameters: dict[str, Any]) -> None:
        """Use other bounds from now on: records beyond them are emitted with the next record, or when time moves.
        O(rows of a replay that wait)."""
        self.apply_waiting()
        self._kept()  # computed with the bounds that its version had
        self.parameters = parameters
        self.max_records, self.max_bytes = parameters["max_records"], parameters["max_bytes"]
        self._raises = parameters["on_full"] == "raise"
        self._bounded = self.max_records is not None or self.max_bytes is not None
        self._limit_to(parameters)

    @property
    def bound(self) -> Callable[[Any, Any], int] | None:
        """What `bind` was given last; None: nothing."""
        return self._size_of

    def bind(self, size_of: Callable[[Any, Any], int] | None) -> None:
        """Measure records with this function from now on (None: their packed bytes)."""
        if size_of is not self._size_of:
            self._size_of = size_of
            self._sizes = None

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @entry
    def put(self, key: K, value: V | None, ts: int) -> list[Emission[K, V]]:
        """Buffer an update with timestamp `ts` (ms) and return the emitted records: `(key, value, ts)`, oldest first.

        A buffered key gets the new value, even from an earlier time. None is a tombstone. Until windows close, keys are
        tuples that end in the window's start and end. Raises TypeError or ValueError, with nothing changed, for what
        cannot be stored, and BufferFullError with `on_full="raise"` when a bound is passed: the record is then in the
        buffer. O(log n).

        >>> results = hs.open("state").suppression("results", max_records=1)
        >>> results.put("ann", 1, ts=0)
        []
        >>> results.put("ann", 2, ts=5_000)  # the new value takes the place of the old one
        []
        >>> results.put("bob", 1, ts=6_000)  # the oldest record leaves the full buffer
        [('ann', 2, 5000)]
        """
        if type(ts) is not int or not 0 <= ts <= INT64_MAX:
            check_time(ts, f"store {self.name!r}: ts")
        kind = type(value)
        small = (
            ((kind is bytes or kind is str) and len(value) <= SMALL)  # type: ignore[arg-type]
            or kind is float
            or is_small_atom(value)
        )
        if not small:
            self._check_value(key, value)
        if self._final:
            self._check_window(key)
        measures = self._sizes is not None or self.max_bytes is not None
        size = self._size(key, value) if measures else 0
        if type(key) is not self._keys.fast or len(key) > SMALL:  # type: ignore[arg-type]
            small = self._keys.admit(key) and small
        # Steps that may fail alone (a damaged block, a user's function) run before anything is logged.
        if self._bucket.cold:
            self._load_for((key,), ts)
        elif SPARING.on:
            self.lookups.asked += 1
        if measures:
            self._measure()
        return self._put(key, value, ts, size, small)

    def _put(self, key: Any, value: Any, ts: int, size: int, small: bool) -> list[Emission]:
        """Log and apply one checked row, and emit records beyond the bounds."""
        try:
            self._log_row(small, (self._code_put, key, value, ts))
            emitted = self.apply_put(key, value, ts, size)
        except BaseException as error:
            self._journal.cut_short(error)
            raise
        return self._within_bounds(emitted) if self._bounded else emitted

    @entry
    def advance(self, ts: int) -> Iterator[list[Emission[K, V]]]:
        """Move stream time to `ts` (ms) without a record, and return an iterator over the emitted records, by the piece
        of up to 1,000.

        Time has moved when the call returns. A piece is emitted when the iterator comes to it: what was not taken of
        the due records stays in the buffer, and leaves with the next `put` or `advance`. So a commit behind each piece
        keeps few records in memory, and a piece belongs to the version of the next commit. Raises BufferFullError, the
        iterator too. O(emitted log n).

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put("ann", 1, ts=0)
        []
        >>> list(results.advance(59_999)), list(results.advance(60_000))
        ([], [[('ann', 1, 0)]])
        """
        check_time(ts, f"store {self.name!r}: ts")
        self.move_time(ts)
        return self._pieces(self._due)

    @entry
    def flush(self) -> Iterator[list[Emission[K, V]]]:
        """Return an iterator that emits all records, in the order of emission, by the piece of up to 1,000; see
        `advance`. Time does not move. A buffer that waits for windows to close must not be flushed while a window may
        still change: the results would not be final. O(n log n).

        >>> state = hs.open("state")
        >>> results = state.suppression("results", time_limit="1 minute")
        >>> results.put_many([("ann", 1, 0), ("bob", 4, 5_000)])
        []
        >>> for records in results.flush():
        ...     print(state.commit(), records)  # a consumer that has taken version 1 does not take it again
        1 [('ann', 1, 0), ('bob', 4, 5000)]
        """
        self._keys.admit_all([])  # raises when the state was closed
        return self._pieces(None)

    def _pieces(self, through: int | None) -> Iterator[list[Emission]]:
        while piece := self._next_piece(through):
            yield piece

    @entry
    def _next_piece(self, through: int | None) -> list[Emission]:
        """Emit the oldest records, a piece of them: those with a buffer time up to `through`, if time is not before it
        again, and those beyond the bounds; None: all records. An empty piece is behind the last.
        """
        self._keys.admit_all([])  # raises when the state was closed
        emitted: list[Emission] = []
        self._evict_to(boundary_of(INT64_MAX if through is None else min(through, self._due)), emitted)
        # a flush leaves none that could be too many
        return self._within_bounds(emitted, _PIECE) if self._bounded and through is not None else emitted

    def _evict_to(self, boundary: Boundary, emitted: list[Emission]) -> None:
        """Emit the oldest records at or before a boundary, as many as make a piece of `emitted`, and log the place that
        was reached. The error of a damaged block is raised if no record left before it; else by the next call.
        """
        first, reached = self._first(), None
        if self._sizes is not None:
            self._measure()
        with self._journal.sure:
            while first is not None and first <= boundary and len(emitted) < _PIECE:
                # those in memory that no cold record is before
                emitted += self.apply_leave(min(boundary, self._cold_first), _PIECE - len(emitted))
                reached = self._removed
                try:
                    first = self._first()
                except (HybridStoreError, OSError):
                    break
                if self._sizes is not None:
                    self._measure()
            if reached is not None:
                self._log_eviction(reached, first)

    def _log_eviction(self, reached: tuple[int, Any], first: tuple[int, Any] | None) -> None:
        """Log that all records up to a place were evicted; `first` is the place of the first that remains."""
        through, key = reached
        # the key is not needed if no other record has its buffer time
        alone = first is None or first[0] > through
        named = None if alone else key
        self._log_row(key_bytes(named) <= SMALL, (self.number * 16 + EVICT, through, named))

    def _within_bounds(self, emitted: list[Emission], most: int = INT64_MAX) -> list[Emission]:
        """Emit the oldest records until all bounds hold, or as many as make `most` of `emitted`, and return `emitted`
        with them. Raises BufferFullError if the bounds raise.
        """
        if len(emitted) >= most or not self._over():
            return emitted
        if self._raises:
            raise self._full(emitted)
        with self._journal.sure:
            last = first = self._first()
            while first is not None and len(emitted) < most and self._over():
                emitted += self.apply_evict(*first)
                last, first = first, self._first()
            if last is not None:
                self._log_eviction(last, first)
        return emitted

    def put_many(self, rows: Iterable[tuple[K, V | None, int]]) -> list[Emission[K, V]]:
        """Put many `(key, value, ts)`, in order: the same as a put for each, and faster.

        See `put_columns`. O(rows log n).

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put_many([("ann", 1, 0), ("bob", 4, 60_000)])
        [('ann', 1, 0)]
        """
        return self.put_columns(*columns_of(rows, ("key", "value", "ts"), f"store {self.name!r}"))

    @entry
    def put_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[Emission[K, V]]:
        """Put rows given by column: sequences, numpy arrays or Arrow arrays of equal length; return all emitted
        records.

        Raises ValueError when the lengths differ, and as `put`; then nothing is changed. A BufferFullError in the
        middle leaves the rows up to it in the buffer. O(rows log n).

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put_columns(["ann", "bob"], [1, 4], [0, 60_000])
        [('ann', 1, 0)]
        """
        key_list, value_list, ts_list = self._timed_columns(keys, values, times)
        if self._final:
            for key in key_list:
                self._check_window(key)
        measures = self._sizes is not None or self.max_bytes is not None
        sizes = self._sizes_of(key_list, value_list) if measures else []
        self._keys.admit_all(key_list)
        emitted: list[Emission] = []
        with collector_held():
            if self._bucket.cold and key_list:
                self._load_for(key_list, max(ts_list))
            elif SPARING.on:
                self.lookups.asked += len(key_list)
            if measures:
                self._measure()
            if not self._bounded:
                return self._put_together(key_list, value_list, ts_list, sizes)
            start, rows = 0, len(key_list)
            small = all(map(is_small_atom, value_list)) and max(map(key_bytes, key_list), default=0) <= SMALL
            if not small:
                self._journal.check_columns(key_list, value_list)
            while start < rows:
                end = start + self._room(sizes, start, rows)
                if end > start:
                    part = key_list[start:end], value_list[start:end], ts_list[start:end]
                    emitted += self._put_together(*part, sizes[start:end])
                    start = end
                    continue
                try:
                    for _ in range(min(_FULL_ROWS, rows - start)):
                        key, value, ts = key_list[start], value_list[start], ts_list[start]
                        size = sizes[start] if measures else 0
                        start += 1
                        short = small or (is_small_atom(value) and key_bytes(key) <= SMALL)
                        emitted += self._put(key, value, ts, size, short)
                except BufferFullError as error:
                    error.emitted[:0] = emitted  # records that earlier rows pushed out were emitted, too
                    raise
        return emitted

    def _put_together(self, keys: list[Any], values: list[Any], times: list[int], sizes: list[int]) -> list[Emission]:
        """Log and apply rows by column, none of which can pass a bound."""
        with self._journal.whole:
            short = len(keys) <= _FEW_ROWS and max(map(key_bytes, keys), default=0) <= SMALL
            if not (short and all(map(is_small_atom, values))):
                self._journal.record_columns(self.number * 16 + PUT_COLUMNS, keys, values, times)
            else:
                for row in zip(keys, values, times, strict=True):
                    self._log_row(True, (self._code_put, *row))
            return self.apply_columns(keys, values, times, sizes)

    def _room(self, sizes: list[int], start: int, end: int) -> int:
        """Return how many rows from `start` on cannot pass a bound, whatever their keys are.

        O(rows returned).
        """
        room = end - start
        if self.max_records is not None:
            room = min(room, self.max_records - len(self._runs) - self._cold_held)
        if self.max_bytes is not None:
            within, total = 0, self._total
            for size in islice(sizes, start, start + max(0, room)):
                total += size
                if total > self.max_bytes:
                    break
                within += 1
            room = within
        return room

    def _check_window(self, key: Any) -> None:
        if type(key) is not tuple or len(key) < 3:
            raise TypeError(
                f"store {self.name!r}: key {shown(key)}: found no window, expected (key, start, end), since the buffer "
                "waits for windows to close"
            )
        end = key[-1]
        if type(end) is not int or not 0 <= end <= INT64_MAX:
            check_time(end, f"store {self.name!r}: end of window {shown(key)}")

    # --- sizes and bounds -------------------------------------------------------------------------------------

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

    def _measure(self) -> None:
        """Measure all records at the first use, and again after a restart, because sizes are derived; else those that
        were loaded since. Where memory is short, blocks are read for it and not kept. O(records measured).
        """
        runs, sizes = self._runs, self._sizes
        if sizes is None:
            blocks = self._unloaded()
            sizes = {key: self._size(key, row[1]) for key, row in runs.items()}
            cold = sum(self._size(key, value) for block in blocks for key, _, value in block.columns().rows())
            self._sizes, self._total = sizes, sum(sizes.values()) + cold
        elif self._unsized:
            sizes.update(
                (key, self._size(key, runs[key][1])) for key in self._unsized if key in runs and key not in sizes
            )
        self._unsized = []

    def _over(self) -> bool:
        if self._sizes is not None or self.max_bytes is not None:
            self._measure()
        if self.max_records is not None and len(self._runs) + self._cold_held > self.max_records:
            return True
        if self.max_bytes is None:
            return False
        return self._total > self.max_bytes

    def _full(self, emitted: list[Emission]) -> BufferFullError:
        amount, expected = f"{self.num_records} records", f"{self.max_records}"
        if self.max_bytes is not None:
            amount += f" of {self._total} bytes"
            expected = f"{self.max_bytes} bytes" + ("" if self.max_records is None else f" and {expected} records")
        return BufferFullError(
            f"store {self.name!r}: buffer full: found {amount}, expected at most {expected} "
            '(raise the bound, or let records go early with on_full="emit")',
            emitted,
        )

    # --- reads ------------------------------------------------------------------------------------------------

    def buffered(self) -> Iterator[Emission[K, V]]:
        """Iterate over the buffered `(key, value, ts)` in the order of emission.

        A snapshot. O(n log n); under a limit of memory as a `scan` of a window store.

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put_many([("ann", 1, 5_000), ("bob", 4, 0)])
        []
        >>> list(results.buffered())
        [('bob', 4, 0), ('ann', 1, 5000)]
        """
        return ((key, value, ts) for _, key, value, ts in self.rows())

    @read
    def rows(self) -> Iterator[tuple[int, K, V, int]]:
        """As `buffered`, with the place of each record in the order of emission (ms) before it."""
        self.apply_waiting()
        blocks = self._unloaded()
        if not blocks:
            rows = sorted([(row[0], key, *row[1:]) for key, row in self._runs.items()], key=_BY_PLACE)
            return self._iterators.over(rows)
        loaded = list(self._runs.items())

        def in_memory(low: int, high: int) -> list[tuple[int, K, V, int]]:
            return [(at, key, value, ts) for key, (at, value, ts) in loaded if low <= at <= high]

        def stored(block: ColdBlock, low: int, high: int) -> list[tuple[int, K, V, int]]:
            rows = block.columns().rows()
            return [(at, key, value, ts) for key, (at, ts), value in rows if low <= at <= high]

        return self._iterators.piecewise(
            by_place(in_memory, lambda: blocks, stored, _BY_PLACE, 0, INT64_MAX, reverse=False, folder=self._folder)
        )

    @read
    def emitted(self) -> list[tuple[int, K, V, int]]:
        """Return the records that the newest committed version emitted, as `(version, key, value, ts)` in order, also
        after a restart.

        A consumer sees each emission exactly once if it stores the last version that it has taken and skips emissions
        of older versions: at its start it takes this list, then the results of `put` and `advance` after each commit.
        O(emitted).

        >>> state = hs.open("state")
        >>> results = state.suppression("results", time_limit="1 minute")
        >>> results.put("ann", 1, ts=0), list(results.advance(60_000)), state.commit()
        ([], [[('ann', 1, 0)]], 1)
        >>> results.emitted()
        [(1, 'ann', 1, 0)]
        """
        self._keys.admit_all([])  # raises when the state was closed
        return [(self._emitted_in, *row) for row in self._kept()]

    @read
    def __len__(self) -> int:
        self._keys.admit_all([])  # raises when the state was closed
        return self.num_records

    @property
    def num_records(self) -> int:
        """Records buffered. O(1), the first time after a replay as `apply_waiting`."""
        self.apply_waiting()
        return self._applied_records

    @property
    def _applied_records(self) -> int:
        return len(self._runs) + self._cold_held

    @property
    @read
    def buffer_size(self) -> int:
        """Bytes buffered, as measured by `size_of`. O(1); the first time O(n), and where memory is short it keeps no
        block.

        >>> results = hs.open("state").suppression("results", max_bytes=1_000, size_of=lambda key, value: 100)
        >>> results.put("ann", 1, ts=0)
        []
        >>> results.buffer_size
        100
        """
        self._keys.admit_all([])  # raises when the state was closed
        self._measure()
        return self._total

    @property
    @read
    def min_timestamp(self) -> int | None:
        """The buffer time of the record that is emitted next (ms; in a buffer that waits for windows to close, the end
        of its window); None when the buffer is empty.

        >>> results = hs.open("state").suppression("results", time_limit="1 minute")
        >>> results.put("ann", 1, ts=5_000)
        []
        >>> results.min_timestamp
        5000
        """
        self._keys.admit_all([])  # raises when the state was closed
        first = self._first()
        return None if first is None else first[0]
