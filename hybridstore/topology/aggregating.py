"""Aggregating: windows with aggregates on the stores of one shard, and the suppression buffer behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from changelog.codec import check_value

from ..aggregation import SessionWindows, SlidingWindows
from ..clock import INT64_MAX, Watermark
from ..state.group import StoreGroup
from ..stores.keys import shown
from .adopt import Adopted
from .batch import Records, canonical_order
from .columns.why import Why, never
from .plan import Plan
from .results import Result, ResultColumns, Results, ResultTable, tabled, unknown_out, with_given_keys
from .times import TimeForm, times_as
from .windows.panes import PanedWindowed
from .windows.suppressed import Suppressed
from .windows.time_windows import TimeWindowed
from .windows.windowed import Windowed

if TYPE_CHECKING:
    import pyarrow as pa

    from .columns.sliding import SlidingColumns
    from .columns.time_windows import TimeColumns

R = TypeVar("R")
_TIME_OF = attrgetter("ts")
# A batch of fewer rows costs less row by row than what numpy and Arrow take for any batch.
_FEW_ROWS: Final = 48


def _windowed_class(plan: Plan) -> Callable[..., Windowed[Any]]:
    """Return the class of a plan's windows. Those with a kind of store of their own are imported for them only."""
    windows = plan.windows
    if isinstance(windows, SessionWindows):
        from .windows.sessions import SessionWindowed

        return SessionWindowed
    if isinstance(windows, SlidingWindows) and windows.flavour == "kafka":
        from .windows.kafka_sliding import KafkaSlidingWindowed

        return KafkaSlidingWindowed
    if isinstance(windows, SlidingWindows):
        from .windows.sliding import SlidingWindowed

        return SlidingWindowed
    return PanedWindowed if plan.paned else TimeWindowed


class Aggregating:
    """One shard's windowed aggregation, with suppression behind it if the plan has one.

    `clocked`: a watermark is the time, given to every `process`; records move nothing. `adopted`: facts about earlier
    topologies.
    """

    def __init__(
        self,
        plan: Plan,
        group: StoreGroup,
        *,
        clocked: bool = False,
        adopted: Adopted | None = None,
    ) -> None:
        self.plan = plan
        adopted = adopted or Adopted(plan)
        self._since = adopted.since
        self._aggregates = plan.combined
        self.windowed: Windowed[Any] = _windowed_class(plan)(plan, group, clocked=clocked)
        if adopted.floor is not None:
            self.windowed.floor = adopted.floor
        self.windowed.closed_before = self.windowed.closed(self.windowed.stream_time)
        if adopted.before is not None:
            self.windowed.closed_before = adopted.before
        self._suppressed = None if plan.suppression is None else Suppressed(plan, group, clocked=clocked)
        if self._suppressed is not None:
            self._suppressed.released = adopted.released
        self._never = never(plan, clocked=clocked)

    @cached_property
    def _columns(self) -> TimeColumns | SlidingColumns:
        """The way by column, made for the first batch: a run of dicts then loads neither numpy nor pyarrow."""
        if isinstance(self.plan.windows, SlidingWindows):
            from .columns.sliding import SlidingColumns
            from .windows.sliding import SlidingWindowed

            assert isinstance(self.windowed, SlidingWindowed)
            return SlidingColumns(self.plan, self.windowed)
        from .columns.time_windows import TimeColumns

        assert isinstance(self.windowed, TimeWindowed | PanedWindowed)
        return TimeColumns(self.plan, self.windowed)

    # --- a commit ---------------------------------------------------------------------------------------------

    def by_column(self, batch: pa.Table, clock: Watermark | None = None) -> Results | Why:
        """Process a batch as one commit and return its results, or why it has to go row by row, with nothing done."""
        if self._never is not None:
            return self._never
        if self.windowed.busy:
            return Why.STEPPED
        if 0 < batch.num_rows < _FEW_ROWS:
            return Why.FEW_ROWS
        from .columns.fits import fits

        way = fits(self.plan, batch)
        return way if isinstance(way, Why) else self._columns.process(way, clock)

    def order(self, records: Records) -> list[int]:
        """Return the canonical order of the records of a commit. O(n log n)."""
        return canonical_order(records.keys, records.values, records.times)

    def process(self, records: Records, clock: Watermark | None = None) -> list[Result]:
        """Process records in the order given, and return the results due at once. The cost of the windows.

        `clock` is the time, if it is clocked. Their values are projected rows (`Combined.project`).
        """
        return self._suppress(self._explained(self.windowed.process, records, clock))

    def process_batch(self, records: Records, clock: Watermark | None = None) -> Results:
        """Process the records of a whole commit in the order given, end it, and return its results: `process` and
        `finish` in one."""
        if self._suppressed is None:
            return self._explained(self.windowed.process_batch, records, clock)
        return self.process(records, clock) + self._released(self.windowed.finish(), self._suppressed)

    def _explained(
        self, process: Callable[[Records, Watermark | None], R], records: Records, clock: Watermark | None
    ) -> R:
        """Return the result of `process`; a TypeError gets a note with the values."""
        try:
            return process(records, clock)
        except TypeError as error:
            if (message := self._refused(records)) is not None:
                raise TypeError(f"{message} ({error})") from error
            kinds = self._kinds_of(records.values)
            error.add_note(f"while aggregating the values of {len(records.keys)} records: {kinds}")
            raise

    def _refused(self, records: Records) -> str | None:
        """Find the first value that its aggregator cannot add to an empty aggregate, or that an aggregate cannot keep,
        because neither an `add` function nor a store names the column. O(values).
        """
        combined = self._aggregates
        single = len(combined.columns) == 1
        for name, part, place in zip(combined.names, combined.parts, combined.places, strict=True):
            if place < 0:
                continue
            for key, row, ts in records.rows():
                value = row if single else row[place]
                if value is None:
                    continue
                cannot = "keep"
                try:
                    added = part.add(part.init(), (ts, value) if part.timed else value)
                    if _can_be_kept(value) or _can_be_kept(added):
                        continue
                except TypeError:
                    cannot = "add"
                of = "whole rows" if part.column is None else f"column {part.column!r}"
                fault = f"found {type(value).__name__} {shown(value)}, which it cannot {cannot}"
                return f"aggregate {name!r}: {part.name} of {of}: key {shown(key)}, time {ts}: {fault}"
        return None

    def _kinds_of(self, values: Sequence[Any]) -> str:
        """Return the columns of projected rows with the types of their values, because the error of an `add` function
        has neither.

        O(values).
        """
        columns = ["whole row" if column is None else column for column in self._aggregates.columns]
        parts = [values] if len(columns) == 1 else list(zip(*values, strict=True)) if len(columns) > 1 else []
        named = zip(columns, parts, strict=False)
        return "; ".join(
            f"{name} {', '.join(sorted({type(value).__name__ for value in part}))}" for name, part in named
        )

    def finish(self) -> Results:
        """End the commit and return the results due at its end."""
        results = self.windowed.finish()
        return results if self._suppressed is None else self._released(results, self._suppressed)

    def _released(self, results: Results, suppressed: Suppressed) -> list[Result]:
        """Hold the results at the end of a commit back, and return those that leave the buffer."""
        assert not isinstance(results, ResultColumns)  # only windows without a buffer are emitted when they close
        # Hold results in time order: a later one may release a window whose final value is an earlier one.
        results = suppressed.hold(sorted(results, key=_TIME_OF))
        return results + suppressed.advance(self.windowed.stream_time)

    @property
    def holds_back(self) -> bool:
        """Whether results wait for windows to close or time to pass, so that a flush would return results."""
        return self.plan.final or self._suppressed is not None

    def flush(self) -> Results:
        """End the commit as at the end of the stream, and return all results that were held back.

        If results must be final, stream time moves just so far that every begun window closes: later records are late
        for these windows, and windows that begin later behave as usual. Otherwise time stays. O(open windows).
        """
        at_once: list[Result] = []
        windowed, windows = self.windowed, self.plan.windows
        if self.plan.final and windowed.stream_time >= 0 and windows is not None:
            now = min(windows.latest_end(windowed.stream_time) + windows.closing_ms(), INT64_MAX)
            at_once = self._suppress(windowed.process(Records([], [], []), Watermark(now, now)))
        if self._suppressed is None:
            return self.finish()
        return at_once + self._released(windowed.finish(), self._suppressed) + self._suppressed.flush()

    def _suppress(self, results: list[Result]) -> list[Result]:
        return results if self._suppressed is None else self._suppressed.hold(results)

    # --- looks ------------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Late records dropped since the windows were opened (counted per window, if a record has several)."""
        return self.windowed.dropped

    def table(self, results: Results, times: TimeForm) -> ResultTable:
        """Return results by column; `times` is the form of the windows' bounds. O(results)."""
        return tabled(self.plan, self.known(results), times)

    def known(self, results: Results) -> Results:
        """Return results with the keys that rows came with, without aggregates that are not known: they are newer than
        the window. O(1), or O(results)."""
        if self.plan.null_keys == "group":
            results = with_given_keys(self.plan, results)
        return unknown_out(results, self._since) if self._since else results

    def rows(self, results: list[Result], times: TimeForm) -> list[dict[str, Any]]:
        """Return the results of one record as rows. For a few rows a table would cost more. O(results)."""
        plan = self.plan
        names = (*plan.key, *plan.bounds, *plan.combined.names)
        removed = (None,) * len(plan.combined.names)
        rows = []
        for key, start, end, aggregates, _ in cast("list[Result]", self.known(results)):
            parts = (key,) if len(plan.key) == 1 else key
            bounds: Sequence[Any] = (start, end) if times == "ms" or not plan.bounds else times_as(times, [start, end])
            rows.append(
                dict(
                    zip(
                        names,
                        (*parts, *bounds[: len(plan.bounds)], *(removed if aggregates is None else aggregates)),
                        strict=True,
                    )
                )
            )
        return rows

    def find_sessions(self, key: Any, earliest_end: int | None, latest_start: int | None) -> list[Result]:
        """Return a key's stored sessions with end >= earliest_end and start <= latest_start.

        Raises TypeError for other windows.
        """
        from .windows.sessions import SessionWindowed

        if not isinstance(self.windowed, SessionWindowed):
            raise TypeError(
                f"find_sessions: the topology has {type(self.plan.windows).__name__}, expected SessionWindows"
            )
        return self.windowed.find(key, earliest_end, latest_start)


def _can_be_kept(value: object) -> bool:
    try:
        check_value(value)
    except TypeError:
        return False
    return True
