"""Task: a topology at work on the stores of one shard. The same code runs in plain Python and in Spark's workers.

A task is given the records of one commit in canonical order and returns results; `finish` ends the commit. What lies
between is memory only: the stores hold what the results were made of when `finish` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..aggregation import Combined, SessionWindows, SlidingWindows
from ..clock import BY_ADVANCE, INT64_MAX, NO_TIME, Watermark
from ..state.group import StoreGroup
from ..stores.keys import shown
from ..stores.kinds import KINDS
from .output_rows import OutputRows
from .plan import Plan
from .results import Result, canonical_order
from .windows.kafka_sliding import KafkaSlidingWindowed
from .windows.panes import PanedWindowed
from .windows.sessions import SessionWindowed
from .windows.sliding import SlidingWindowed
from .windows.suppressed import Suppressed
from .windows.time_windows import TimeWindowed
from .windows.windowed import Windowed

if TYPE_CHECKING:
    from .columns.sliding import SlidingColumns
    from .columns.time_windows import Vectorised

_TIME_OF = attrgetter("ts")


class WindowTask:
    """One shard's windowed aggregation, with suppression behind it if the topology says so.

    `timed`: results know their largest record time (`Result.ts`), which is kept only for suppression otherwise.
    `clocked`: a watermark is the time, given to every `process`; records move nothing.
    """

    def __init__(self, plan: Plan, group: StoreGroup, *, timed: bool = False, clocked: bool = False) -> None:
        assert plan.aggregates is not None
        self.plan = plan
        self.aggregates: Combined = plan.aggregates
        self._windowed = _windowed(plan, group, timed or plan.suppression is not None, clocked)
        self._suppressed = None if plan.suppression is None else Suppressed(plan, group, clocked=clocked)
        self._final = plan.final

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """Process the records of one commit, in any order, and return the results due.

        `clock` is the time, if the task is clocked. `values` are projected rows (`Combined.project`). O(n log n) and
        the cost of the windows.
        """
        order = canonical_order(keys, values, times)
        return self.process_ordered(
            [keys[i] for i in order], [values[i] for i in order], [times[i] for i in order], clock
        )

    def process_ordered(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """The same, for records that are in the order wanted."""
        try:
            results = self._windowed.process(keys, values, times, clock)
        except TypeError as error:
            if (message := self._cannot_be_added(keys, values, times)) is not None:
                raise TypeError(f"{message} ({error})") from error
            error.add_note(f"while aggregating the values of {len(keys)} records: {self._kinds_of(values)}")
            raise
        return self._held(results)

    def _cannot_be_added(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> str | None:
        """Name the first value that its aggregator cannot add to nothing: an adder's own error names neither row nor
        column. O(values)."""
        combined = self.aggregates
        single = len(combined.columns) == 1
        for name, part, place in zip(combined.names, combined.parts, combined.places, strict=True):
            if place < 0:
                continue
            for key, row, ts in zip(keys, values, times, strict=True):
                value = row if single else row[place]
                if value is None:
                    continue
                try:
                    part.add(part.init(), value)
                except TypeError:
                    of = "whole rows" if part.column is None else f"column {part.column!r}"
                    fault = f"found {type(value).__name__} {shown(value)}, which it cannot add"
                    return f"aggregate {name!r}: {part.name} of {of}: key {shown(key)}, time {ts}: {fault}"
        return None

    def _kinds_of(self, values: Sequence[Any]) -> str:
        """Return the columns of projected rows with the types found in them: an adder's own error names neither. O(values)."""
        columns = ["whole row" if column is None else column for column in self.aggregates.columns]
        parts = [values] if len(columns) == 1 else list(zip(*values, strict=True)) if len(columns) > 1 else []
        named = zip(columns, parts, strict=False)
        return "; ".join(
            f"{name} {', '.join(sorted({type(value).__name__ for value in part}))}" for name, part in named
        )

    def finish(self) -> list[Result]:
        """End the commit and return the results due at its end."""
        results = self._windowed.finish()
        if self._suppressed is None:
            return results
        # by time: a later one may let windows leave of which an earlier one is the last word
        results = self._suppressed.hold(sorted(results, key=_TIME_OF))
        return results + self._suppressed.advance(self._windowed.stream_time)

    @property
    def holds_back(self) -> bool:
        """Whether results wait for windows to close or time to pass: only then is there something to flush."""
        return self._final or self._suppressed is not None

    def flush(self) -> list[Result]:
        """End the commit as at the end of the stream, and return all results that were held back.

        Where they are to be final, stream time moves so far that every window closes which has begun, and no further: a
        later record is late for these, and windows that begin later are as ever. Otherwise time stays. O(windows that
        are open).
        """
        results: list[Result] = []
        if self._final and self.stream_time >= 0:
            results = self._held(self._windowed.process([], [], [], self._all_closed()))
        results += self.finish()
        return results if self._suppressed is None else results + self._suppressed.flush()

    def _all_closed(self) -> Watermark:
        """Return the first time at which every window has closed that has begun by now."""
        windows = self.plan.windows
        assert windows is not None
        now = windows.latest_end(self.stream_time) + windows.closing_ms()
        now = min(now, INT64_MAX)
        return Watermark(now, now)

    def _held(self, results: list[Result]) -> list[Result]:
        return results if self._suppressed is None else self._suppressed.hold(results)

    @property
    def stream_time(self) -> int:
        """The largest record time seen, or the watermark (ms); -1 at first."""
        return self._windowed.stream_time

    @property
    def dropped(self) -> int:
        """Late records dropped since the task was made (per window, where a record has several)."""
        return self._windowed.dropped

    def by_column(self) -> Vectorised | SlidingColumns | None:
        """Return a way into the windows for Arrow batches, by column, or None where there is none (numpy is needed for it)."""
        if find_spec("numpy") is None or find_spec("pyarrow") is None:
            return None
        windowed, plan = self._windowed, self.plan
        if isinstance(windowed, TimeWindowed | PanedWindowed):
            from .columns.time_windows import Vectorised, fits

            return Vectorised(plan, windowed) if fits(plan) else None
        if isinstance(windowed, SlidingWindowed):
            from .columns.sliding import SlidingColumns

            return SlidingColumns(plan, windowed) if SlidingColumns.fits(plan) else None
        return None

    def live(self) -> list[Result]:
        """Return the windows stored now."""
        return self._windowed.live()

    def find_sessions(self, key: Any, earliest_end: int | None, latest_start: int | None) -> list[Result]:
        """Return a key's stored sessions with end >= earliest_end and start <= latest_start. Raises TypeError for other windows."""
        if not isinstance(self._windowed, SessionWindowed):
            raise TypeError(
                f"find_sessions: the topology has {type(self.plan.windows).__name__}, expected SessionWindows"
            )
        return self._windowed.find(key, earliest_end, latest_start)


def _windowed(plan: Plan, group: StoreGroup, timed: bool, clocked: bool) -> Windowed[Any]:
    windows = plan.windows
    kind: type[TimeWindowed | PanedWindowed | SessionWindowed | SlidingWindowed | KafkaSlidingWindowed] = TimeWindowed
    if isinstance(windows, SlidingWindows):
        kind = KafkaSlidingWindowed if windows.flavour == "kafka" else SlidingWindowed
    elif isinstance(windows, SessionWindows):
        kind = SessionWindowed
    elif plan.paned:
        kind = PanedWindowed
    return kind(plan, group, timed=timed, clocked=clocked)


class Stores(dict[str, Any]):
    """The stores of one's own logic by name, with the `time` of the row in hand (ms), whatever its timestamp column
    holds."""

    __slots__ = ("time",)
    time: int

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"process: store {name!r} is not declared: found {', '.join(self) or 'no stores'}")


class CustomTask:
    """One shard's own logic (`Topology.process`).

    The surprise: every store with a time learns the time of a row before the row is looked at. A store that learnt it
    from its own puts alone would never let anything expire where expired rows are what keeps the function from putting.
    """

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        custom = plan.custom
        assert custom is not None
        self.plan = plan
        self.output = OutputRows(custom.schema)
        self.stores = Stores()
        self.stores.time = NO_TIME
        self._movers: list[Callable[[int], object]] = []
        for name, declared in custom.stores.items():
            kind = KINDS[declared.kind]
            more = BY_ADVANCE if clocked and kind.by_advance else {}
            store: Any = group.open(name, declared.kind, {**declared.parameters, **more})
            if declared.bound is not None:
                store.bind(declared.bound)
            self.stores[name] = store
            if kind.timed(declared.parameters):
                # what is due in a suppression buffer leaves with the function's next call, which takes it
                self._movers.append(store.move_time)
        if isinstance(custom.function, type):
            made = custom.function(self.stores)
            self._call = made.process
            self._close = getattr(made, "finish", None)
        else:
            self._call = lambda row: custom.function(row, self.stores)
            self._close = None
        self.dropped = 0

    def process_rows(
        self, rows: Iterable[dict[str, Any]], times: Iterable[int], clock: Watermark | None = None
    ) -> list[Any]:
        """Run the function on each row, in order, and return the rows that it made, as it made them: `output` looks at
        them.

        Before a row the stores' time becomes the row's (ms), if that is later. If `clock` is given, it alone moves
        their time: while rows are processed they are at the watermark by which rows are late, and then at the new one.
        """
        results: list[Any] = []
        now, stores = NO_TIME, self.stores
        if clock is not None:
            self._move(clock.late_ms)
        for row, ts in zip(rows, times, strict=True):
            if ts > now and clock is None:
                now = ts
                self._move(ts)
            stores.time = ts
            out = self._call(row)
            if type(out) is dict or type(out) is str:  # would be taken apart
                raise TypeError(
                    f"process: returned {type(out).__name__}, expected an iterable of rows (dicts), or None"
                )
            if out is not None:
                results.extend(out)
        if clock is not None:
            self._move(clock.now_ms)
        return results

    def _move(self, ts: int) -> None:
        for move in self._movers:
            move(ts)

    def finish(self) -> list[Any]:
        """End the commit; a class with `finish()` may return further rows, as it made them."""
        return list(self._close() or ()) if self._close is not None else []
