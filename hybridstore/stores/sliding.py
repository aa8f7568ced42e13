"""Sliding store (KIP-450): key -> the values of the last `size` ms, and an aggregate of them with every record.

    add ─▶ late? ─▶ `apply_add`, which calls the aggregator and may raise ─▶ log

Only the values and stream time are state, so only these are logged and checkpointed. The data that a strategy derives
is rebuilt when a key is first touched after a restart, with one add for each value. The surprise: no record marks the
moment at which a key's last value expires. An index by time finds such keys, and their removal is not logged, because
the stream time that causes the removal is logged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from changelog.journal import MAX_KEY_BYTES, SMALL, is_small_atom, key_bytes
from changelog.mutation import PUT_COLUMNS, TIME
from changelog.turn import entry, read

from ..aggregation import WindowState
from ..clock import INT64_MAX, check_time
from ..collector import collector_held
from .cold_blocks import SPARING, ColdBlock
from .columns import columns_of, rows_of, time_list
from .edge import A, K, V
from .pieces import by_key
from .sliding_maps import SlidingMaps

if TYPE_CHECKING:
    from ..aggregation.slid import Grouped

Window = tuple[K, int, int, A]  # key, start, end, aggregate
# Values that take a few bytes each.
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


class SlidingStore(SlidingMaps[K, V, A]):
    """A store of sliding windows. Made by `State.sliding`; see there for the parameters.

    The cost of an add depends on the strategy (`hybridstore.aggregation.strategy`); at most O(values in the window).

    >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
    >>> load.add("web-1", 5, ts=0)
    ('web-1', 0, 0, 5)
    >>> load.add("web-1", 2, ts=60_000)  # both ends are inclusive
    ('web-1', 0, 60000, 7)
    >>> load.add("web-1", 1, ts=60_001)
    ('web-1', 1, 60001, 3)
    """

    kind = "sliding"

    # --- the edge: decide, log, apply -------------------------------------------------------------------------

    @entry
    def add(self, key: K, value: V, ts: int) -> Window[K, A] | None:
        """Add a value at `ts` (ms) and return `(key, start, end, aggregate)`: of the key's values from start to end,
        both inclusive.

        The window ends at stream time and is `size` long, or begins at 0. A record before the window is late: the
        record is dropped and counted, and None is returned. Two values of a key and time both count. Raises TypeError
        or ValueError, with nothing changed, for a key, value or time that cannot be stored. Errors of the aggregator
        are raised; the value is then not added, but time has moved.

        >>> latest = hs.open("state").sliding("latest", size="1 minute", aggregator=hs.Max())
        >>> latest.add("web-1", 5, ts=90_000)
        ('web-1', 30000, 90000, 5)
        >>> latest.add("web-1", 7, ts=29_999) is None  # before the window: dropped
        True
        >>> latest.dropped
        {'expired': 1}
        """
        if type(ts) is not int or not 0 <= ts <= INT64_MAX:
            check_time(ts, f"store {self.name!r}: ts")
        small = is_small_atom(value)
        if not small:
            self._check_value(key, value)
        if type(key) is not self._keys.fast or len(key) > SMALL:  # type: ignore[arg-type]
            small = self._keys.admit(key) and small
        if SPARING.on:
            self.lookups.asked += 1
        if ts < self._low:
            self.dropped["expired"] += 1
            return None
        before, mutation = self._stream_time, (self._code_put, key, value, ts)
        packed = None if small else self._journal.packed(*mutation)
        try:
            aggregate = self.apply_add(key, value, ts)
            if packed is None:
                self._log_row(True, mutation)
            else:
                self._journal.log(packed, mutation)
        except BaseException as error:
            if self._is_users(error):
                self._log_time(before)
            else:
                self._journal.fail(error)  # the value was added before it was logged, so the store must fail
            raise
        return key, self._low if self._low > 0 else 0, self._stream_time, aggregate

    def _log_time(self, before: int) -> None:
        """Log stream time if it has moved and no logged record has this time."""
        if self._stream_time > before:
            self._journal.record(self.number * 16 + TIME, self._stream_time)

    def advance(self, ts: int) -> None:
        """Move stream time to `ts` (ms) without a record; an earlier time changes nothing, nor does -1.

        O(expired keys).

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add("web-1", 5, ts=0)
        ('web-1', 0, 0, 5)
        >>> load.advance(60_001)
        >>> load.get("web-1") is None
        True
        """
        self.move_time(ts)

    def add_many(self, rows: Iterable[tuple[K, V, int]]) -> list[Window[K, A] | None]:
        """Add many `(key, value, ts)`, in order, and return the results of `add` for each.

        See `add_columns`. O(rows) of `add`.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add_many([("web-1", 5, 0), ("web-1", 2, 30_000)])
        [('web-1', 0, 0, 5), ('web-1', 0, 30000, 7)]
        """
        keys, values, times = columns_of(rows, ("key", "value", "ts"), f"store {self.name!r}")
        time_list(times, f"store {self.name!r}: times")
        self._check_values(keys, values)
        results: list[Window | None] = []
        with collector_held():
            self._add_rows(keys, values, times, results, whole=True)
        return results

    def add_columns(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[A | None]:
        """Add rows given by column: sequences, numpy arrays or Arrow arrays of equal length; return their aggregates.

        The aggregate of a late row is None. Raises ValueError when the lengths differ, and the errors of `add`; then
        nothing is changed. When the aggregator raises, the rows before the failing row are added. O(rows) of `add`.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add_columns(["web-1", "web-2", "web-1"], [5, 9, 2], [0, 0, 30_000])
        [5, 9, 7]
        """
        results: list[Any] = []
        with collector_held():
            _, columns = self._add_rows(*self._timed_columns(keys, values, times), results, whole=False)
            aggregates: list[Any] = results if columns is None else rows_of(columns)
            return aggregates

    def add_for_columns(
        self, keys: list[Any], values: list[Any], times: list[int], grouped: Grouped | None = None
    ) -> tuple[list[Any], list[int]]:
        """Add rows as `add_columns` does. Return the aggregates as a column for each of their parts, an array or a
        list, without late rows (no columns if all rows are late); and the places of the late rows, in order.

        `grouped` has the numbers of the rows if all values are known to be ints; such rows are not checked. Only for
        aggregators of several parts (`Combined`). O(rows) of `add`.
        """
        if grouped is None:
            keys, values, times = self._timed_columns(keys, values, times)
        results: list[Any] = []
        with collector_held():
            late, columns = self._add_rows(keys, values, times, results, whole=False, grouped=grouped)
        if columns is None:
            if late:
                results = [result for result in results if result is not None]
            columns = list(zip(*results, strict=True))
        return columns, sorted(late)

    def hold_columns(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]
    ) -> list[WindowState | None]:
        """Add rows as `add_columns` does, but do not aggregate. Return the window state of each row's key, None for a
        late row.

        `value()` of a state gives the aggregate after the key's last row, until the key is read or changed by another
        call. Useful if one result is needed for many rows: the other rows are not aggregated. O(rows).
        """
        states: list[WindowState | None] = []
        with collector_held():
            _, columns = self._add_rows(*self._timed_columns(keys, values, times), states, whole=False, each=False)
        return states if columns is None else columns[0]

    @entry
    def _add_rows(
        self,
        keys: list[Any],
        values: list[Any],
        times: list[int],
        results: list[Any],
        *,
        whole: bool,
        each: bool = True,
        grouped: Grouped | None = None,
    ) -> tuple[set[int], list[Any] | None]:
        """Add rows in order. Return the places of late rows, and the results by column if all rows went together.

        Else `results` gets the windows, or with `whole` False the aggregates; None for a late row. With `each` False
        nothing is aggregated, and the results are the keys' states.
        """
        self._keys.admit_all(keys)
        if keys and (sum(map(key_bytes, keys)) > MAX_KEY_BYTES or not _NUMBERS.issuperset(map(type, values))):
            self._journal.check_columns(keys, values)
        self.prefetch(keys)
        if SPARING.on:
            self.lookups.asked += len(keys)
        late: set[int] = set()
        before = self._stream_time
        try:
            columns = self.apply_columns(keys, values, times, results, late, whole=whole, each=each, grouped=grouped)
        except BaseException as error:
            if self._is_users(error):
                self._log_added(keys, values, times, len(results), late, before)
            else:
                self._journal.fail(error)
            raise
        self._log_added(keys, values, times, len(keys), late, before)
        return late, columns

    def _log_added(
        self, keys: list[Any], values: list[Any], times: list[int], count: int, late: set[int], before: int
    ) -> None:
        """Log the first `count` rows without late rows, and stream time if a later row has moved it from `before`."""
        with self._journal.sure:
            self.dropped["expired"] += len(late)
            self._log_rows(keys, values, times, count, late)
            # only a failed row can have moved time further than the logged rows
            self._log_time(max([before, *times[:count]]))

    def _log_rows(self, keys: list[Any], values: list[Any], times: list[int], count: int, late: set[int]) -> None:
        """Log the first `count` rows without late rows, in batches of a frame's size."""
        columns = keys[:count], values[:count], times[:count]
        if late:
            kept = [row for row in range(count) if row not in late]
            columns = [keys[row] for row in kept], [values[row] for row in kept], [times[row] for row in kept]
        if columns[0]:
            self._journal.record_columns(self.number * 16 + PUT_COLUMNS, *columns)

    # --- reads ------------------------------------------------------------------------------------------------

    @read
    def get(self, key: K) -> Window[K, A] | None:
        """Return `(key, start, end, aggregate)` of the window that ends at stream time, or None if the key has no value
        in it.

        O(values) at the first touch after a restart, else the cost of the strategy.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Mean())
        >>> load.add_many([("web-1", 4, 0), ("web-1", 2, 30_000)])
        [('web-1', 0, 0, 4.0), ('web-1', 0, 30000, 3.0)]
        >>> load.get("web-1")
        ('web-1', 0, 30000, 3.0)
        """
        self._keys.admit(key, pin=False)
        if SPARING.on:
            self.lookups.asked += 1
        state = self._wake(key)
        if state is None:
            return None
        try:
            state.expire(self._low)
            return (key, max(0, self._low), self._stream_time, state.value()) if len(state) else None
        except BaseException as error:
            if not self._is_users(error):
                self._journal.fail(error)
            raise

    @read
    def aggregates(self) -> Iterator[tuple[K, A]]:
        """Iterate over `(key, aggregate)` of every key with values in the window, by key.

        A snapshot. O(keys) of `get`; under a limit of memory for the keys in memory, and the iterator reads a block
        when it comes to it and does not keep it: CorruptCheckpointError and errors of the aggregator may come from it.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Count())
        >>> load.add_columns(["web-1", "web-2", "web-1"], [5, 9, 2], [0, 0, 30_000])
        [1, 1, 2]
        >>> dict(load.aggregates())
        {'web-1': 2, 'web-2': 1}
        """
        self.apply_waiting()
        blocks = self._unloaded()
        windows = [window for key in sorted(self._runs) if (window := self.get(key)) is not None]
        rows = [(window[0], window[3]) for window in windows]
        if not blocks:
            return self._iterators.over(rows)
        strategy, low = self._strategy, self._low

        def aggregated(key: Any, times: Sequence[int], values: list[Any]) -> list[tuple[K, A]]:
            assert strategy is not None  # nobody has got this store without one
            state = strategy.restore(times, list(zip(times, values, strict=True)) if self._timed else values)
            state.expire(low)
            return [(key, state.value())]

        keys = [key for key, _ in rows]
        return self._iterators.piecewise(
            by_key(keys, blocks, self._merged(keys, lambda i: rows[i : i + 1], aggregated), reverse=False)
        )

    @read
    def fetch(self, key: K, *, reverse: bool = False) -> Iterator[tuple[int, V]]:
        """Iterate over `(ts, value)` of one key's values in the window, in event order. A snapshot. O(values).

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add_columns(["web-1", "web-1"], [5, 2], [30_000, 0])
        [5, 7]
        >>> list(load.fetch("web-1"))  # in event order
        [(0, 2), (30000, 5)]
        """
        self._keys.admit(key, pin=False)
        if SPARING.on:
            self.lookups.asked += 1
        if self._bucket.cold or self._older or self._older.cut:
            self._touch(key)
        times, values = self._live(key)
        return self._iterators.over(zip(times, values, strict=True), reverse=reverse)

    @read
    def all(self, *, reverse: bool = False) -> Iterator[tuple[tuple[K, int], V]]:
        """Iterate over `((key, ts), value)` of all values in the window, by key, then in event order.

        A snapshot. O(values); under a limit of memory as `aggregates`.

        >>> load = hs.open("state").sliding("load", size="1 minute", aggregator=hs.Sum())
        >>> load.add_columns(["web-2", "web-1"], [9, 5], [0, 30_000])
        [9, 5]
        >>> list(load.all())
        [(('web-1', 30000), 5), (('web-2', 0), 9)]
        """
        self.apply_waiting()
        blocks, keys = self._unloaded(), sorted(self._runs)
        runs = [self._live(key) for key in keys]

        def shown(key: Any, times: Sequence[int], values: list[Any]) -> list[tuple[tuple[K, int], V]]:
            return [((key, ts), value) for ts, value in zip(times, values, strict=True)]

        merged = self._merged(keys, lambda i: shown(keys[i], *runs[i]), shown)
        if not blocks:
            return self._iterators.over(merged(0, len(keys), None), reverse=reverse)
        return self._iterators.piecewise(by_key(keys, blocks, merged, reverse=reverse))

    def _unloaded(self) -> list[ColdBlock]:
        """As every store, and of each key that the map has the map has all values. O(keys in memory), too."""
        self._gather()
        if SPARING.on and self._bucket.cold:
            for key in list(self._runs):
                self._touch(key, absent=True)
        return super()._unloaded()

    def _merged(
        self,
        keys: list[Any],
        in_memory: Callable[[int], list[Any]],
        shown: Callable[[Any, Sequence[int], list[Any]], list[Any]],
    ) -> Callable[[int, int, ColdBlock | None], list[Any]]:
        """Return what merges keys in memory, each of which has rows `in_memory`, with a block, of which each other key
        has the rows `shown` of its times and values in the window of now: see `by_key`.
        """
        low = self._low

        def merged(first: int, last: int, block: ColdBlock | None) -> list[Any]:
            of_keys = [(keys[i], in_memory(i)) for i in range(first, last)]
            if block is not None:
                columns, known = block.columns(), set(keys[first:last])
                times, values = columns.ints[0], columns.values
                for key, (start, end) in zip(columns.keys, pairwise(columns.offsets()), strict=True):
                    start = bisect_left(times, low, start, end)
                    if start < end and key not in known:
                        of_keys.append((key, shown(key, times[start:end], values[start:end])))
                of_keys.sort(key=itemgetter(0))
            return list(chain.from_iterable(rows for _, rows in of_keys))

        return merged
