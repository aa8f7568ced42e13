"""Custom: the user's own logic on the stores of one shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time_ns
from typing import Any, Final

from ..clock import BY_ADVANCE, NO_TIME, Watermark
from ..state.group import StoreGroup
from ..stores.keys import shown
from ..stores.kinds import KINDS
from .batch import Records, canonical_order
from .columns.why import Why
from .duplicates import Opened, WithoutDuplicates
from .failures import Failure, text_of
from .output_rows import OutputRows
from .plan import Plan
from .results import ResultTable, tabled_rows
from .timers import CLOCK_TIMERS, TIMERS, KeyTimers, Timer
from .times import TimeForm

# The setting of a state that holds the event time which its timers have reached (ms).
_TIME: Final = "timers reached"


def wall_ms() -> int:
    """Return the clock (ms)."""
    return time_ns() // 1_000_000


class Stores(dict[str, Any]):
    """The stores of custom logic by name, with the `time` of the row in hand, or of the timer (ms), whatever its
    timestamp column holds, its `key` in the stored form, and the timers of the key."""

    __slots__ = ("_clock_timers", "_timers", "key", "time")
    time: int
    key: Any

    def __init__(self) -> None:
        self._timers: KeyTimers | None = None
        self._clock_timers: KeyTimers | None = None

    @property
    def timers(self) -> KeyTimers:
        """The timers of the key in hand by event time. Raises ValueError without `on_timer`."""
        if self._timers is None:
            raise ValueError("process: timers: found no on_timer, expected process(..., on_timer=function)")
        return self._timers

    @property
    def clock_timers(self) -> KeyTimers:
        """The timers of the key in hand by the clock. Raises ValueError without `clock_ticks`."""
        if self._clock_timers is None:
            raise ValueError('process: clock timers: expected process(..., on_timer=..., clock_ticks="10 seconds")')
        return self._clock_timers

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"process: store {name!r} is not declared: found {', '.join(self) or 'no stores'}")


class CustomLogic:
    """The user's function or class (`Topology.process`) on the stores of one shard.

    The surprise: the time of every store with a time moves to the row's time before the function sees the row. If only
    puts moved time, rows would never expire in a function that does not put while a row exists.
    """

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        custom = plan.custom
        assert custom is not None
        self.output = OutputRows(custom.schema)
        self.stores = Stores()
        self.stores.time = NO_TIME
        self._movers: list[Callable[[int], object]] = []
        for name, declared in custom.stores.items():
            kind = KINDS[declared.kind]
            more = BY_ADVANCE if clocked and kind.by_advance else {}
            store = kind.open(group, name, {**declared.parameters, **more})
            if declared.bound is not None:
                store.bind(declared.bound)
            self.stores[name] = store
            if kind.timed(declared.parameters):
                # due records of a suppression buffer are emitted by the function's next call, which returns them
                self._movers.append(store.move_time)
        self._logic: Opened | None = None
        self._call: Callable[[Any], Any]
        self._close: Callable[[], Any] | None
        if isinstance(custom.function, WithoutDuplicates):
            self._logic = custom.function(self.stores)
            self._call = self._logic.process
            self._close = on_timer = None
        elif isinstance(custom.function, type):
            instance = custom.function(self.stores)
            on_timer = getattr(instance, "on_timer", None)
            self._call = instance.process
            self._close = getattr(instance, "finish", None)
        else:
            function, stores = custom.function, self.stores
            given = custom.on_timer
            on_timer = None if given is None else lambda timer: given(timer, stores)
            self._call = lambda row: function(row, stores)
            self._close = None
        self.failed: list[Failure] | None = None if plan.errors_column is None else []
        """Where rows that raised are handed out, the places and errors of those of the last `process`."""
        self.dropped = 0
        """Late rows that were left out since the opening: `process` decides itself, and counts none."""
        self._group = group
        self._on_timer: Callable[[Timer], Any] | None = on_timer
        self._clocks: list[KeyTimers] = []
        if on_timer is not None:
            self._open_timers(plan.null_keys == "group", custom.tick_ms is not None)

    def _open_timers(self, texts: bool, by_clock: bool) -> None:
        stores = self.stores
        stores._timers = KeyTimers(self._group, TIMERS, "event", texts=texts)
        stores._timers.now = self._group.settings.get(_TIME, NO_TIME)
        self._clocks = [stores._timers]
        if by_clock:
            stores._clock_timers = KeyTimers(self._group, CLOCK_TIMERS, "wall", texts=texts)
            self._clocks.append(stores._clock_timers)

    def at_clock(self, now_ms: int) -> None:
        """Set the clock of the commit (ms), for timers by the clock: the same in each replay of the commit."""
        if self.stores._clock_timers is not None:
            self.stores._clock_timers.now = now_ms

    def order(self, records: Records) -> list[int]:
        """Return the canonical order of the records of a commit. O(n log n)."""
        return canonical_order(records.keys, [sorted(row.items()) for row in records.values], records.times)

    def process(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Run the function on each row, in order, and return its output rows unchecked; `rows` checks them.

        Before a row the stores' time moves to the row's time (ms), if that is later. If `clock` is given, only the
        clock moves time: during the rows the stores are at the watermark by which rows are late, and afterwards at the
        new one.
        """
        results: list[Any] = []
        now, stores, row, ts = NO_TIME, self.stores, None, NO_TIME
        timers, failed = stores._timers, self.failed
        if stores._clock_timers is not None and stores._clock_timers.now == NO_TIME:
            stores._clock_timers.now = wall_ms()
        if clock is not None:
            self._move(clock.late_ms)
        try:
            for at, (key, row, ts) in enumerate(records.rows()):
                if ts > now and clock is None:
                    now = ts
                    self._move(ts)
                    if timers is not None and ts > timers.now:
                        timers.now = ts
                        self._fire(timers, results)
                stores.time, stores.key = ts, key
                for each in self._clocks:
                    each.select(key)
                before = len(results)
                try:
                    out = self._call(row)
                    if out is not None:
                        results.extend(_rows_of(out))
                except Exception as error:
                    if failed is None:
                        raise
                    del results[before:]
                    failed.append((at, text_of(error)))
                if timers is not None and clock is None:
                    self._fire(timers, results)
        except Exception as error:
            error.add_note(f"process: while processing the row {shown(row)}, time {ts}")
            raise
        if self._logic is not None:
            self.dropped = self._logic.dropped
        if clock is not None:
            self._move(clock.now_ms)
            if timers is not None:
                timers.now = clock.now_ms
                self._fire(timers, results)
        return results

    def _fire(self, timers: KeyTimers, results: list[Any]) -> None:
        """Call `on_timer` with the timers that are due, and add its rows to `results`."""
        stores, on_timer = self.stores, self._on_timer
        assert on_timer is not None

        def call(key: Any, timer: Timer) -> None:
            stores.time, stores.key = timer.time, key
            for each in self._clocks:
                each.select(key)
            try:
                results.extend(_rows_of(on_timer(timer)))
            except Exception as error:
                error.add_note(f"process: while the {timer.clock} timer {timer.time} of key {shown(timer.key)} fired")
                raise

        timers.fire(call)

    def _move(self, ts: int) -> None:
        for move in self._movers:
            move(ts)

    def process_batch(self, records: Records, clock: Watermark | None = None) -> list[Any]:
        """Process the records of a whole commit and end it: `process` and `finish` in one."""
        return self.process(records, clock) + self.finish()

    def by_column(self, batch: Any, clock: Watermark | None = None) -> list[Any] | Why:
        """Return why rows of an Arrow batch go one by one."""
        return Why.WHOLE_ROWS

    def finish(self) -> list[Any]:
        """End the commit: timers by the clock fire, and a class with `finish()` may return further rows, unchecked."""
        results: list[Any] = []
        if (alarms := self.stores._clock_timers) is not None:
            if alarms.now == NO_TIME:
                alarms.now = wall_ms()
            self._fire(alarms, results)
            # the next commit has its own
            alarms.now = NO_TIME
        if self._close is not None:
            results.extend(self._close() or ())
        if (timers := self.stores._timers) is not None and timers.now != self._group.settings.get(_TIME, NO_TIME):
            self._group.set(_TIME, timers.now)
        return results

    def table(self, results: list[Any], times: TimeForm) -> ResultTable:
        """Return results by column. Raises TypeError or ValueError for columns that are not declared. O(results)."""
        return tabled_rows(self.output.rows(results))

    def rows(self, results: list[Any], times: TimeForm) -> list[dict[str, Any]]:
        """Return results as rows, as `table` does."""
        return list(self.table(results, times).rows(dict))

    @property
    def holds_back(self) -> bool:
        """False: only the function knows which results it holds back."""
        return False

    def flush(self) -> list[Any]:
        """Raise TypeError: only the function knows which results it holds back."""
        raise TypeError("flush: found process, expected windows with aggregates")


def _rows_of(out: Any) -> Iterable[Any]:
    """Return what a function returned as rows. Raises TypeError for what would be taken apart."""
    if type(out) is dict or type(out) is str:
        raise TypeError(f"process: returned {type(out).__name__}, expected an iterable of rows (dicts), or None")
    return () if out is None else out
