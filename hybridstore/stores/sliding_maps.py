"""Sliding maps: the maps of a sliding store, and the only code that changes these maps.

    runs   key -> window state (a value log with what its strategy derives from it), or
                  [array of times, list of values] as they came from a block or the changelog, until the key is touched
    idle   when to look -> keys that may have gone quiet by then

The rows of a batch are added one by one, or together if numpy can compute the results. The surprise: both ways give the
same results, the same changelog and the same maps.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from traceback import walk_tb
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from changelog.journal import Journal
from changelog.mutation import PUT_AT, PUT_COLUMNS, TIME
from recovery.block import BucketChange, Columns, Combine, StoreCapture
from recovery.directory import Directory

from ..aggregation import Strategy, WindowState
from ..aggregation.subtract import Subtract
from ..clock import INT64_MAX, NO_TIME, slid_out_through
from ..errors import CheckpointError
from .cold_tail import ColdTail
from .columns import beside_each_other, in_order, rows_of, run_of
from .key_blocks import KeyBlocks
from .sizes import STATE_BYTES, map_bytes, run_bytes

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
_IDLE_STEPS: Final = 16  # searches for keys without live values in the time of one window


class SlidingMaps(KeyBlocks):
    """The values of each key's window with their derived data, and an index of the times at which keys lose their last
    value.
    """

    _idle: dict[int, list[Any]]
    _low: int
    _next_idle: int

    def __init__(self, name: str, number: int, parameters: dict[str, Any], journal: Journal) -> None:
        self.size_ms: int = parameters["size_ms"]
        self._idle_width = max(1, self.size_ms // _IDLE_STEPS)
        self._strategy: Strategy[Any] | None = None
        # whether window states have (time, value) in place of values
        self._timed = False
        self._state_type: type | None = None
        self._tail = ColdTail(3)
        super().__init__(name, number, parameters, journal, {"expired": 0}, PUT_AT)

    def bind(self, strategy: Strategy[Any]) -> None:
        """Aggregate with this strategy from now on. A strategy with the same description as the present strategy
        changes nothing.
        """
        present = self._strategy
        if present is not None and _described(present) == _described(strategy):
            return
        for key, run in self._runs.items():
            if type(run) is not list:
                self._runs[key] = list(self._values_of(run))
        self._strategy = strategy
        self._timed = strategy.aggregator.timed
        self._state_type = type(strategy.new())

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

    # --- apply ------------------------------------------------------------------------------------------------

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
        runs, state_type = self._runs, self._state_type
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
            if self._is_users(error) and type(state) is state_type and runs.get(key) is state:
                self._take_back(key, state, value[1] if self._timed else value, ts)
            raise
        self._stream_time, self._low = now, low

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
        return slid.results if each else [list(map(states.__getitem__, batch.codes.tolist()))]

    def _states_of(self, keys: list[Any]) -> list[Any] | None:
        """Return the state of each key (None: no values), or None if a block is damaged; the rows before the row that
        touches the block can then be added one by one. O(keys).
        """
        states = list(map(self._runs.get, keys))
        if not self._bucket.cold and {self._state_type, NoneType}.issuperset(map(type, states)):
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
        else:
            del self._runs[key]

    def apply_rows(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        """Add values of the tail, in order. Expired values are left out.

        O(1) for a value that is the newest of its key.
        """
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
                run.insert(ts, value)
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

    def apply_time(self, ts: int) -> None:
        """Move stream time to `ts`, if `ts` is later, and remove keys without live values. O(removed keys)."""
        if ts <= self._stream_time:
            return
        self._stream_time = ts
        expired = slid_out_through(ts, self.size_ms)
        self._low = expired + 1
        if expired >= self._next_idle:
            self._drop_idle(expired)
        if expired >= self._cold_until and self._expire_cold(expired):
            self._cold_changed()

    def appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function, for restore."""
        return {PUT_AT: self._tail.add, PUT_COLUMNS: self._tail.extend, TIME: self.apply_time}

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        """Return op -> function of the op's arguments by column, for restore."""
        return {PUT_AT: self._tail.extend}

    def _watch(self, key: Any, newest: int) -> None:
        """Schedule a check of a key for the time at which its newest value has expired."""
        step = newest // self._idle_width
        waiting = self._idle.get(step)
        if waiting is not None:
            waiting.append(key)
            return
        self._idle[step] = [key]
        self._next_idle = min(self._next_idle, (step + 1) * self._idle_width - 1)

    def _drop_idle(self, expired: int) -> None:
        """Remove the due keys whose newest value is at `expired` or before, and schedule another check of the other due
        keys.
        """
        width, runs = self._idle_width, self._runs
        steps = [step for step in self._idle if (step + 1) * width - 1 <= expired]
        due = [key for step in steps for key in self._idle.pop(step)]
        self._next_idle = min(((step + 1) * width - 1 for step in self._idle), default=INT64_MAX)
        for key in due:
            run = runs.get(key)
            if run is None:
                continue
            newest = run[0][-1] if type(run) is list else run.newest
            if newest > expired:
                self._watch(key, newest)
                continue
            del runs[key]
            if self._dirty is not None:
                self._dirty.add(key)

    def _wake(self, key: Any) -> Any:
        """Return the window state of a key, loaded and restored, or None if the key has no values. The values stay the
        same; only their form becomes the form of the strategy.
        """
        if self._strategy is None:
            raise RuntimeError(
                f"store {self.name!r}: found no aggregator, expected one (ask for the store by "
                "`sliding(name, size=..., aggregator=...)` first)"
            )
        runs = self._runs
        if self._bucket.cold:
            self._touch(key, absent=True)
        run = runs.get(key)
        if type(run) is list:
            # expired values are not restored, so they are never aggregated
            i = bisect_left(run[0], self._low)
            times, values = (run[0][i:], run[1][i:]) if i else run
            given = list(zip(times, values, strict=True)) if self._timed else values
            runs[key] = run = self._strategy.restore(times, given)
        return run

    def _values_of(self, state: WindowState) -> tuple[array[int], list[Any]]:
        """Return the times and values of a window state, as they are stored."""
        times, values = state.columns()
        return times, [value for _, value in values] if self._timed else values

    def _live(self, key: Any) -> tuple[Sequence[int], list[Any]]:
        """Return the times and values of a loaded key that are in the window."""
        run = self._runs.get(key)
        if run is None:
            return (), []
        times, values = run if type(run) is list else self._values_of(run)
        i = bisect_left(times, self._low)
        return times[i:], values[i:]

    # --- checkpoint and restore -------------------------------------------------------------------------------

    def clear_state(self) -> None:
        """Remove everything, as before a restore."""
        super().clear_state()
        # keys with values beside a cold block that a checkpoint has merged into that block
        self._beside: set[Any] = set()
        # those of the last capture alone: if its checkpoint fails, no block has their values
        self._newly_beside: set[Any] = set()
        # time of a key's newest value // width -> keys to check when that value has expired
        self._idle = {}
        self._next_idle = INT64_MAX
        self._low = slid_out_through(NO_TIME, self.size_ms) + 1

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        """Become the store of a checkpoint, all of it cold. O(pages of the directory)."""
        super().attach(directory, state)
        self._bucket.captured(self._stream_time)

    def _cold_changed(self) -> None:
        if not self._bucket.cold:
            self._beside.clear()

    def _install(self, columns: Columns) -> None:
        """Insert values of a block before values of the same time that were added since."""
        runs, low, dirty = self._runs, self._low, self._dirty
        times, values = columns.ints[0], columns.values
        start = 0
        for key, count in zip(columns.keys, columns.counts or [1] * len(columns.keys), strict=True):
            end = start + count
            newest = times[end - 1]
            run = runs.get(key)
            if newest < low:
                # no value is in the window, so the next checkpoint need not keep the key
                if dirty is not None:
                    dirty.add(key)
            elif run is None:
                runs[key] = [times[start:end], values[start:end]]
                self._watch(key, newest)
            else:
                base = zip(times[start:end], values[start:end], strict=True)
                runs[key] = run_of([*base, *zip(*run, strict=True)])
            start = end

    def _change(self, dirty: set[Any] | None, whole: bool) -> BucketChange:
        if dirty is None:
            change = BucketChange(self._columns(self._runs)[0], set(), True)
        else:
            change = self._changed(dirty, whole)
        self._bucket.captured(self._stream_time)
        return change

    def _changed(self, dirty: set[Any], whole: bool) -> BucketChange:
        over: list[Any] = []
        unknown: set[Any] = set()
        if self._bucket.cold:
            for key in list(dirty):
                if self._bucket.covering(key) < 0:
                    continue
                if whole or (key in self._beside and key in self._bucket.late):
                    # values beside the block are in the last checkpoint already, and would be added twice
                    self._touch(key, absent=True)
                elif key in self._runs:
                    over.append(key)
                else:
                    unknown.add(key)  # only the block has values of this key
        # loading blocks may have added keys
        columns, emptied = self._columns(dirty.difference(over, unknown), changed=True)
        self._newly_beside = set(over) - self._beside
        if not over:
            return BucketChange(columns, emptied, False)
        self._beside |= self._newly_beside
        return BucketChange(columns, emptied, False, self._columns(over, changed=True)[0])

    def _columns(self, keys: Iterable[Any], *, changed: bool = False) -> tuple[Columns, set[Any]]:
        """Return the live values of these keys by column, and the keys that have none; with `changed`, only the values
        that changed since the last checkpoint.
        """
        since, late = self._bucket.since, self._bucket.late
        kept: list[Any] = []
        froms: list[int] = []
        emptied: set[Any] = set()
        counts: list[int] = []
        times: array[int] = array("q")
        values: list[Any] = []
        for key in sorted(keys):
            own_times, own_values = self._live(key)
            if not own_values:
                emptied.add(key)
                continue
            if changed:
                time = late.get(key, since)
                first = bisect_left(own_times, time)
                if first == len(own_times) and key not in late:
                    continue
                own_times, own_values = own_times[first:], own_values[first:]
                froms.append(time)
            kept.append(key)
            counts.append(len(own_values))
            times.extend(own_times)
            values.extend(own_values)
        counted = None if counts.count(1) == len(kept) else counts
        return Columns(kept, counted, (times,), values, froms if changed else None), emptied

    @property
    def _combine(self) -> Combine:
        return partial(beside_each_other, self._low)

    def recapture(self, capture: StoreCapture) -> None:
        """Undo a capture whose checkpoint failed: all keys of the capture count as changed again. O(changed)."""
        super().recapture(capture)
        for change in capture.changed.values():
            self._bucket.recaptured(change)
            self._beside -= self._newly_beside

    def _expired_through(self) -> int:
        return self._low - 1

    def _maps_bytes(self) -> int:
        return map_bytes(self._runs, self._state_bytes)

    def _state_bytes(self, run: Any) -> int:
        return run_bytes(run) if type(run) is list else STATE_BYTES + run_bytes(list(run.columns()))

    @property
    def _applied_records(self) -> int:
        return sum(len(run[1]) if type(run) is list else len(run) for run in self._runs.values()) + self._block_records

    def _check(self) -> None:
        """Assert every invariant of the representation."""
        self._check_cold()
        self._check_tail()
        expired = self._low - 1
        # the window follows stream time
        assert expired == slid_out_through(self._stream_time, self.size_ms), ("window", expired, self._stream_time)
        steps: dict[Any, list[int]] = {}
        for step, keys in self._idle.items():
            for key in keys:
                steps.setdefault(key, []).append(step)
        for key, run in self._runs.items():
            if type(run) is list:
                times, values = run
                # as many values as times, in event order
                assert len(times) == len(values) > 0, ("run lengths", key, run)
                assert all(a <= b for a, b in pairwise(times)), ("run order", key, times)
                newest = times[-1]
            else:
                assert isinstance(run, WindowState), ("neither run nor state", key, run)
                assert type(run) is self._state_type, ("state of another strategy", key, run)
                run.check()
                newest = run.newest
            # every key has a scheduled check, at the latest when its newest value has expired
            assert key in steps, ("key not watched", key)
            assert newest < 0 or min(steps[key]) <= newest // self._idle_width, ("watched too late", key, newest)
            assert newest <= self._stream_time, ("time after stream time", key, newest)
        # no check is overdue
        assert self._next_idle > expired, ("idle", self._next_idle, expired)
        assert all(self._next_idle <= (step + 1) * self._idle_width - 1 for step in self._idle), ("next idle",)
        # every cold block may have live values
        assert all(block.until > expired for block in self._bucket.cold), ("expired block",)


def _described(strategy: Strategy[Any]) -> list[Any]:
    return [strategy.describe(), strategy.aggregator.describe()]
