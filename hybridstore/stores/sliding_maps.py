"""Sliding maps: adding values to the runs of a sliding store.

The rows of a batch are added one by one, or together if numpy can compute the results. The surprise: both ways give the
same results, the same changelog and the same maps.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from traceback import walk_tb
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic

from ..aggregation.subtract import Subtract
from ..clock import slid_out_through
from ..errors import CheckpointError
from .columns import in_order, rows_of
from .edge import A, K, V
from .sliding_runs import SlidingRuns

if TYPE_CHECKING:
    from ..aggregation.slid import Before, Grouped

# The methods of a window state in which the aggregator may raise.
_ASKING: Final = ("update", "hold", "expire", "value")
# What it costs to add rows together: as much as so many rows one by one, and for each of the keys as much as so many.
_A_BATCH: Final = 500
_A_KEY: Final = 4
# So many rows go together whatever their keys: the states are outside of the cache, so that each row costs more.
_MANY: Final = 10_000
_SAMPLE: Final = 64  # so many keys tell whether the keys of a batch have window states


class SlidingMaps(SlidingRuns, Generic[K, V, A]):
    """The runs of a sliding store, and what adds values to them: value by value, by column, and on a restore."""

    def apply_add(self, key: Any, value: Any, ts: int) -> Any:
        """Add a value that is not late and return the aggregate; `apply_rows` does it without the aggregate.

        Errors of the aggregator are raised, and the value is removed again.
        """
        if ts > self._stream_time:
            self.apply_time(ts)
        state: Any = self._runs.get(key)
        if type(state) is not self._state_type:
            state = self._state_of(key, ts)
        if self._dirty is not None:
            self._dirty.add(key)
            if ts < self._bucket.since:
                self._bucket.note_late((key,), (ts,))
        try:
            return state.update(ts, (ts, value) if self._timed else value, self._low)
        except BaseException:
            self._take_back(key, state, value, ts)
            raise

    def apply_columns(
        self,
        keys: list[Any],
        values: list[Any],
        times: list[int],
        results: list[Any],
        late: set[int],
        *,
        whole: bool,
        each: bool,
        grouped: Grouped | None = None,
    ) -> list[Any] | None:
        """Add values by column, in order, each as `apply_add` does. A late value is not added; its row number is added
        to `late`.

        If all rows go together, return what `apply_together` does. Else `results` gets the windows, with `whole` False
        the aggregates, and with `each` False the states of the keys. After an error, `results` has the results of all
        rows before the failing row. `grouped` has the numbers of the rows, if these are known.
        """
        first = len(keys) if whole else self._together_from(times, self._stream_time)
        if first == 0 and keys:
            columns = self.apply_together(keys, values, times, each=each, grouped=grouped)
            if columns is not None:
                return columns
            first = len(keys)
        self.apply_in_turn(keys[:first], values[:first], times[:first], results, late, whole=whole, each=each)
        if first < len(keys):
            rest = keys[first:], values[first:], times[first:]
            columns = self.apply_together(*rest, each=each)
            if columns is None:
                self.apply_in_turn(*rest, results, late, whole=whole, each=each)
            else:
                results += rows_of(columns) if each else columns[0]
        return None

    def _together_from(self, times: list[int], now: int) -> int:
        """Return the first row at `now` or later if the times allow `apply_together`, else the number of rows.

        O(rows).
        """
        strategy = self._strategy
        apart = len(times) <= _A_BATCH or not isinstance(strategy, Subtract) or not strategy.parts
        if apart or "numpy" not in sys.modules or not in_order(times):
            return len(times)
        return bisect_left(times, now)

    def apply_in_turn(
        self,
        keys: list[Any],
        values: list[Any],
        times: list[int],
        results: list[Any],
        late: set[int],
        *,
        whole: bool,
        each: bool,
    ) -> None:
        """Add values one by one, as `apply_columns` says."""
        self._note_changed(keys, times)
        runs, older, state_type = self._runs, self._older, self._state_type
        now, low, size = self._stream_time, self._low, self.size_ms
        due = min(self._next_idle, self._cold_until) + size + 1
        state: Any = None
        given = list(zip(times, values, strict=True)) if self._timed else values
        try:
            for key, value, ts in zip(keys, given, times, strict=True):
                if ts > now:
                    if ts >= due:
                        self.apply_time(ts)
                        due = min(self._next_idle, self._cold_until) + size + 1
                    now, low = ts, ts - size  # the same as `apply_time`, because no key is due yet
                elif ts < low:
                    late.add(len(results))
                    results.append(None)
                    if older or older.cut:
                        self._recall(key)  # it was noted as changed
                    continue
                state = runs.get(key)
                if type(state) is not state_type:
                    self._stream_time, self._low = now, low
                    state = self._state_of(key, ts)
                    due = min(self._next_idle, self._cold_until) + size + 1
                if each:
                    aggregate = state.update(ts, value, low)
                    results.append((key, low if low > 0 else 0, now, aggregate) if whole else aggregate)
                    continue
                state.hold(ts, value, low)
                results.append(state)
        except BaseException as error:
            self._stream_time, self._low = now, low
            if older or older.cut:
                for each_key in keys[len(results) :]:
                    self._recall(each_key)  # as those of late rows
            if self._is_users(error) and type(state) is state_type and runs.get(key) is state:
                self._take_back(key, state, value[1] if self._timed else value, ts)
            raise
        self._stream_time, self._low = now, low
        if self._older.due:
            self._drop_due(2 * len(keys))

    def apply_together(
        self, keys: list[Any], values: list[Any], times: list[int], *, each: bool = True, grouped: Grouped | None = None
    ) -> list[Any] | None:
        """Add values that are in order and not before stream time, all rows at once. Return a column of results for
        each part of the aggregate; with `each` False, one column of the keys' states. `grouped` has the numbers of the
        rows, if these are known.

        Return None, with no record changed, if the values must be added one by one. O(keys), and O(rows) at C speed.
        """
        from ..aggregation.slid import Sorted, batch_of, slide, width_of  # numpy is there

        strategy = self._strategy
        assert isinstance(strategy, Subtract)
        assert strategy.parts is not None
        names = list(dict.fromkeys(keys)) if grouped is None else grouped.names
        if len(keys) <= min(_A_BATCH + _A_KEY * len(names), _MANY - 1):
            return None
        if grouped is None:
            places = dict(zip(names, range(len(names)), strict=True))
            codes = list(map(places.__getitem__, keys))
            batch = batch_of(codes, times, values, width_of(strategy.parts))
        else:
            batch = grouped.batch
        if batch is None:
            return None
        rows = Sorted.of(batch, len(names))
        states = self._states_of(names)
        lows = (rows.ends - self.size_ms).tolist()
        before = None if states is None else self._before(states, (rows.begins - self.size_ms).tolist(), lows)
        slid = None if before is None else slide(strategy.parts, rows, values, self.size_ms, before)
        if slid is None or states is None:
            return None
        runs, watch, new, size = self._runs, self._watch, strategy.new, self.size_ms
        quiet = slid_out_through(times[-1], size) - size if each else -size - 1
        its_times, its_values, start = slid.times, slid.values, 0
        each_key = zip(names, states, slid.totals, lows, slid.stops, strict=True)
        for place, (key, state, total, low, stop) in enumerate(each_key):
            if low > quiet:
                if state is None:
                    state = runs[key] = new()
                    states[place] = state
                    watch(key, low + size)
                state.slide(its_times[start:stop], its_values[start:stop], low, total)
            elif state is not None:
                del runs[key]  # the key has no live value any more
            start = stop
        self._note_changed(keys, times)
        self.apply_time(times[-1])
        if self._older.due:
            self._drop_due(2 * len(keys))
        return slid.results if each else [list(map(states.__getitem__, batch.codes.tolist()))]

    def _states_of(self, keys: list[Any]) -> list[Any] | None:
        """Return the state of each key (None: no values), or None if a block is damaged; the rows before the row that
        touches the block can then be added one by one. O(keys).
        """
        states = list(map(self._runs.get, keys))
        if not (self._bucket.cold or self._older or self._older.cut) and {self._state_type, NoneType}.issuperset(
            map(type, states)
        ):
            return states
        try:
            return list(map(self._wake, keys))
        except CheckpointError:
            return None

    def _before(self, states: list[Any], begins: list[int], lows: list[int]) -> Before | None:
        """Return what these states (None: no values) have that is in the windows of new rows: for each key, the window
        of its first new row begins at `begins`, that of its last one at `lows`.

        Return None if a total is not known exactly, or a stored value is newer than a new one of its key. O(keys), and
        O(values that expire).
        """
        from ..aggregation.slid import Before

        assert self._strategy is not None
        nothing, size = self._strategy.init(), self.size_ms
        totals: list[Any] = []
        counts: list[int] = []
        times: array[int] = array("q")
        values: list[Any] = []
        for state, begin, low in zip(states, begins, lows, strict=True):
            count = 0
            if state is None or state.newest < begin:
                totals.append(nothing)
            else:
                total = state.known()
                if total is None or state.newest > begin + size:
                    return None
                totals.append(total)
                if state.oldest < low:
                    its_times, its_values = state.before(low)
                    times += its_times
                    values += its_values
                    count = len(its_values)
            counts.append(count)
        return Before(totals, counts, times, values)

    def _state_of(self, key: Any, ts: int) -> Any:
        """Return the state of a key to which a value at `ts` will be added; a new state if the key has no values."""
        state = self._wake(key)
        if state is None:
            assert self._strategy is not None  # `_wake` has checked
            state = self._runs[key] = self._strategy.new()
            self._watch(key, ts)
        return state

    def _take_back(self, key: Any, state: Any, value: Any, ts: int) -> None:
        """The aggregator failed: remove the new value, keep the other values, and rebuild the derived data at the next
        touch.
        """
        times, values = self._values_of(state)
        i = bisect_right(times, ts) - 1
        if i >= 0 and times[i] == ts and values[i] is value:
            del times[i], values[i]
        if values:
            self._runs[key] = [times, values]
            self._mark_whole([key])
        else:
            del self._runs[key]

    def apply_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Add values of the tail, in order. Expired values are left out.

        O(1) for a value that is the newest of its key.
        """
        if self._older or self._older.cut:
            for key in keys:
                self._recall(key)
        if self._caught_up(keys, values, times):
            return
        runs, low, watch = self._runs, self._low, self._watch
        get = runs.get
        for key, value, ts in zip(keys, values, times, strict=True):
            if ts < low:
                continue
            run = get(key)
            if run is None:
                runs[key] = [array("q", (ts,)), [value]]
                watch(key, ts)
            elif type(run) is not list:
                run.insert(ts, (ts, value) if self._timed else value)
            else:
                its_times, its_values = run
                if ts >= its_times[-1]:
                    its_times.append(ts)
                    its_values.append(value)
                else:
                    i = bisect_right(its_times, ts)
                    its_times.insert(i, ts)
                    its_values.insert(i, value)
        self._note_changed(keys, times)

    def _note_changed(self, keys: list[Any], times: list[int]) -> None:
        if self._dirty is not None and keys:
            self._dirty.update(keys)
            self._bucket.note_late(keys, times)

    def _caught_up(self, keys: list[Any], values: list[Any], times: list[int]) -> bool:
        """Add values of the tail together.

        Return False, with no record changed, if they must be added one by one, or if most of the keys were not touched
        since a restart: then it is cheaper to append the values to what came from the blocks or the changelog.
        """
        sample = map(self._runs.get, keys[:: len(keys) // _SAMPLE + 1])
        if sum(type(run) is list for run in sample) > _SAMPLE // 2 or self._bucket.cold:
            return False
        if self._together_from(times, 0) > 0:
            return False
        first = bisect_left(times, self._low)
        return first == len(times) or self.apply_together(keys[first:], values[first:], times[first:]) is not None

    def _is_users(self, error: BaseException) -> bool:
        """True for an error after which the store is sound and only a value was not added: an error of the aggregator,
        a damaged block, or no aggregator yet.

        Any other error (such as KeyboardInterrupt) may have stopped a change half-way.
        """
        if isinstance(error, CheckpointError) or self._strategy is None or self._state_type is None:
            return True
        asked = {getattr(self._state_type, name).__code__ for name in _ASKING}
        frames = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
        return isinstance(error, Exception) and not isinstance(error, MemoryError) and not asked.isdisjoint(frames)
