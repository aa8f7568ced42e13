"""Sliding runs: the values of each key of a sliding store, the index of their expiry, and their blocks.

    runs   key -> window state (a value log with what its strategy derives from it), or
                  [array of times, list of values] as they came from a block or the changelog, until the key is touched
    idle   when to look -> keys that may have gone quiet by then

Which values a key has changes by `SlidingMaps.apply_...` and by time (`apply_time`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final

from changelog.journal import Journal
from changelog.mutation import PUT_AT, PUT_COLUMNS
from recovery.block import BucketChange, Columns, Combine
from recovery.directory import Directory

from ..aggregation import Strategy, WindowState
from ..clock import INT64_MAX, NO_TIME, slid_out_through
from .buckets import Sealed
from .cold_tail import ColdTail, Maps
from .columns import beside_each_other, run_of
from .key_blocks import KeyBlocks
from .sizes import STATE_BYTES, map_bytes, run_bytes

_COUNTED: Final = 512  # the values of up to so many keys are counted where an estimate is asked for
_IDLE_STEPS: Final = 16  # searches for keys without live values in the time of one window


class SlidingRuns(KeyBlocks):
    """The values of each key's window with their derived data, and an index of the times at which keys lose their last
    value.
    """

    ops = PUT_AT, PUT_COLUMNS, None
    cools = True
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
        super().__init__(name, number, parameters, journal, {"expired": 0})

    @property
    def bound(self) -> Strategy[Any] | None:
        """What `bind` was given last; None: nothing yet."""
        return self._strategy

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
        super().clear_state()
        # keys with values beside a cold block that a checkpoint has merged into that block
        self._beside: set[Any] = set()
        # time of a key's newest value // width -> keys to check when that value has expired
        self._idle = {}
        self._next_idle = INT64_MAX
        self._low = slid_out_through(NO_TIME, self.size_ms) + 1

    def attach(self, directory: Directory, state: dict[str, Any]) -> None:
        super().attach(directory, state)
        self._bucket.captured(self._stream_time)

    def cool(self, directory: Directory) -> list[Maps]:
        waiting = list(self._idle.values())
        others = super().cool(directory)
        self._beside.clear()
        self._idle, self._next_idle = {}, INT64_MAX
        for key, run in self._runs.items():
            self._watch(key, run[0][-1] if type(run) is list else run.newest)
        self._expire_cold(self._low - 1)
        return [*others, *waiting]

    def _cooled(self, changed: list[Any]) -> tuple[dict[Any, Any], list[Any]]:
        """See `KeyBlocks`. The values that came since the checkpoint was begun lie beside its blocks; of a key with
        values before those that it has, all values stay.
        """
        late, since, kept = self._bucket.late, self._bucket.since, {}
        whole = [key for key in changed if key in late]
        for key in whole:
            self._touch(key, absent=True)
        runs = self._runs
        for key in changed:
            run = runs.get(key)
            if run is None:
                continue
            if key in late:
                kept[key] = run
                continue
            if type(run) is list:
                first = bisect_left(run[0], since)
                times, values = run[0][first:], run[1][first:]
            else:
                times, values = run.since(since)
                if self._timed:
                    values = [value for _, value in values]
            if values:
                kept[key] = [times, values]
        return kept, whole

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
            return BucketChange(self._columns(self._runs)[0], set(), True)
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
        return BucketChange(columns, emptied, False, self._columns(over, changed=True)[0] if over else None)

    def _set_beside(self) -> set[Any]:
        if not self._bucket.cold:
            return set()
        covering, runs = self._bucket.covering, self._runs
        newly = {key for key in (self._dirty or ()) if key in runs and covering(key) >= 0} - self._beside
        self._beside |= newly
        return newly

    def _columns(self, keys: Iterable[Any], *, changed: bool = False) -> tuple[Columns, set[Any]]:
        """Return the live values of these keys by column, and the keys that have none; with `changed`, only the values
        that changed since the last checkpoint.
        """
        since, late, low, runs = self._bucket.since, self._bucket.late, self._low, self._runs
        kept: list[Any] = []
        froms: list[int] = []
        emptied: set[Any] = set()
        counts: list[int] = []
        times: array[int] = array("q")
        values: list[Any] = []
        for key in sorted(keys):
            run = runs.get(key)
            own_times, own_values = ((), ()) if run is None else run if type(run) is list else self._values_of(run)
            first, end = bisect_left(own_times, low), len(own_times)
            if first == end:
                emptied.add(key)
                continue
            if changed:
                time = late.get(key, since)
                first = bisect_left(own_times, time, first)
                if first == end and key not in late:
                    continue
                froms.append(time)
            kept.append(key)
            counts.append(end - first)
            times.extend(own_times[first:])
            values.extend(own_values[first:])
        counted = None if counts.count(1) == len(kept) else counts
        return Columns(kept, counted, (times,), values, froms if changed else None), emptied

    @property
    def _combine(self) -> Combine:
        return partial(beside_each_other, self._low)

    def unseal(self, sealed: Sealed) -> None:
        super().unseal(sealed)
        self._beside -= sealed.beside

    def _expired_through(self) -> int:
        return self._low - 1

    def _maps_bytes(self) -> int:
        return map_bytes(self._runs, self._state_bytes)

    def _state_bytes(self, run: Any) -> int:
        return run_bytes(run) if type(run) is list else STATE_BYTES + run_bytes(list(run.columns()))

    @property
    def records_in_memory(self) -> int:
        """See `Tailed`. O(sample): commits under a limit ask."""
        runs = self._runs
        if len(runs) <= _COUNTED:
            return super().records_in_memory
        # of both ends: the first keys may have more values
        sample = [*islice(runs.values(), _COUNTED // 2), *islice(reversed(runs.values()), _COUNTED // 2)]
        decoded = self._block_records - self.cold_records
        return sum(map(_records, sample)) * len(runs) // len(sample) + decoded + len(self._tail)

    @property
    def _applied_records(self) -> int:
        return sum(map(_records, self._runs.values())) + self._block_records

    def _check(self) -> None:
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


def _records(run: Any) -> int:
    return len(run[1]) if type(run) is list else len(run)


def _described(strategy: Strategy[Any]) -> list[Any]:
    return [strategy.describe(), strategy.aggregator.describe()]
