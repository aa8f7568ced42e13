"""Time windows by column: tumbling and hopping windows of a batch, by numpy, with no Python call per row.

    keys ── dictionary, sorted ──▶ code        times ──▶ starts of windows        start and code ──▶ group (`groups`)

Groups come out by start and then key. Counts, sums, means, minima and maxima of numbers are taken, also of rows that a
function chooses (`where`: 0 and 1, made once for each function). In windows that do not overlap distinct values of text
and whole numbers are counted, and rows chosen by a number or a time. Other batches go row by row
(`TimeWindowed.process`). Both ways return the same results and write the same bytes to the changelog, but for the order
of distinct values, which here is that of the values.

The surprise: lateness needs no order here. Within a commit records are taken in time order, so a record is late only
if it was late before the commit began. (By a watermark no record makes another one late.)
"""

from __future__ import annotations

from decimal import Decimal
from operator import add
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...aggregation import Aggregator, HoppingWindows, TumblingWindows
from ...aggregation.exact_columns import Scale
from ...clock import Watermark, expired_through
from ..plan import Plan
from ..results import ResultColumns, Results
from ..windows.panes import PanedWindowed
from ..windows.time_windows import TimeWindowed
from .arrow import Keys, canonical_place
from .buffers import array_of
from .fits import EXACT, ColumnBatch, numeric, summed
from .groups import Items, Runs, ValueCounts, Winners, grouped, is_float, runs_of
from .panes import changed_windows
from .why import Why, picked, tallied

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int64] | NDArray[np.float64]


_ROOM: Final = 62  # bits for a running sum of floats' limbs


# So many windows are looked up by column at most.
_SPANS: Final = 1_000_000


class TimeColumns:
    """The way by column into the tumbling or hopping windows of one shard."""

    def __init__(self, plan: Plan, windowed: TimeWindowed | PanedWindowed) -> None:
        self._windowed = windowed
        self._sums = sum(name is not None for name in plan.combined.columns)
        self._parts = list(zip(plan.combined.parts, plan.combined.places, strict=True))
        self._numeric, self._summed = numeric(plan), summed(plan)
        self._extremes = [(part.name, place) for part, place in self._parts if part.name in ("min", "max")]
        self._size = windowed.windows.size_ms

    def process(self, way: ColumnBatch, clock: Watermark | None = None) -> Results | Why:
        """Process a batch as one commit and return its results, or why it has to go row by row, with nothing done.

        O(rows) and the windows that they are in.
        """
        windowed = self._windowed
        times, keys = way.times, way.keys
        if not windowed.windows.regular and int(times.max() - times.min()) // windowed.windows.advance_ms > _SPANS:
            return Why.SPREAD
        before = windowed.stream_time if clock is None else max(windowed.stream_time, clock.late_ms)
        now = max(before, int(times.max()) if clock is None else clock.now_ms)
        closed = windowed.closed(before)
        dropped = windowed.dropped
        if windowed.store.far:
            windowed.prefetch(keys.names, int(times.min()), int(times.max()))
        results = self._process(way, closed, now)
        if isinstance(results, Why):
            windowed.dropped = dropped
        elif windowed.late is not None:
            windowed.late += np.nonzero(self._all_closed(times, closed))[0].tolist()
        return results

    def _process(self, way: ColumnBatch, closed: int, now: int) -> Results | Why:
        times, keys, columns, coded, picks = way
        windowed, rows = self._windowed, len(times)
        if windowed.emit == "record":
            return self._each(times, keys, columns, closed, now)
        ones, at = np.ones(rows, np.int64), np.arange(rows)
        items = Items(keys.codes, times, ones, columns, [[] for _ in columns], at, coded, picks, {}, [])
        if self._order_matters(columns):
            order = self._order(times, keys, columns)
            if order is None:
                return Why.ORDER
            items = items.chosen(order)
        scales, limbs = self._limbs(items.columns)
        items = items._replace(limbs=limbs)
        if isinstance(windowed, PanedWindowed):
            late = self._late_windows(times, closed)
            if windowed.emit == "close" and late != self._late_windows(times, windowed.closed_before):
                # the clock closes windows in this commit whose records come too late, and their panes would show them
                return Why.LATE
            windowed.dropped += late
            return self._add_panes(windowed, items, scales, keys, closed, now)
        grouped = self._grouped(self._windows_of(items, len(keys.names), closed), len(keys.names))
        return self._finish(windowed, grouped, scales, keys, now)

    def _limbs(self, columns: list[tuple[Any, Ints]]) -> tuple[list[Scale | None], list[list[Ints]]]:
        """Return for each column of floats that are added up their scale and limbs, for others None and nothing."""
        scales: list[Scale | None] = []
        limbs: list[list[Ints]] = []
        for place, (values, valid) in enumerate(columns):
            scale = None
            if place in self._summed and is_float(values):
                scale = Scale.of([values], [], len(values), EXACT.bit_length() - 1)
                # a null is a zero here, which is not counted
                values = values if valid.all() else np.where(valid > 0, values, 0.0)
            scales.append(scale)
            limbs.append([] if scale is None else scale.split(values))
        return scales, limbs

    def _order_matters(self, columns: list[tuple[Any, Ints]]) -> bool:
        """Whether results depend on the order of records: which of -0.0 and 0.0 is the last extreme does."""
        return any(
            is_float(columns[place][0]) and bool((np.signbit(columns[place][0]) & (columns[place][0] == 0)).any())
            for _, place in self._extremes
        )

    def _order(self, times: Ints, keys: Keys, columns: list[tuple[Any, Ints]]) -> Ints | None:
        """Return the canonical order, or None if it cannot be told by column."""
        known = [
            values if place in self._numeric and valid.all() else None for place, (values, valid) in enumerate(columns)
        ]
        return canonical_place(times, keys, known)

    # --- panes ------------------------------------------------------------------------------------------------

    def _late_windows(self, times: Ints, closed: int) -> int:
        """Return how many windows of the records have closed."""
        size, advance = self._size, self._windowed.windows.advance_ms
        base = times - times % advance
        first = np.maximum(0, times - size + advance) // advance * advance
        return int(np.maximum((np.minimum(base, closed - size) - first) // advance + 1, 0).sum())

    def _add_panes(
        self, windowed: PanedWindowed, items: Items, scales: list[Scale | None], keys: Keys, closed: int, now: int
    ) -> Results | Why:
        """Group items by pane, add them to what is stored, and end the commit.

        Items that are too late for every window are left out.
        """
        advance, rest = windowed.windows.advance_ms, self._size % windowed.windows.advance_ms
        times = items.starts
        base = times - times % advance
        panes = base + rest * (times - base >= rest)
        kept = base + self._size > closed
        if not kept.all():
            items, panes = items.chosen(kept), panes[kept]
        groups = self._grouped(items._replace(starts=panes), len(keys.names))
        names = [keys.names[code] for code in groups.codes.tolist()]
        columns = self._combined(groups, scales, self._stored(names, groups.starts))
        if columns is None:
            return Why.STORED
        aggregates = list(map(list, zip(*columns, strict=True)))
        windowed.add_panes(names, groups.starts.tolist(), aggregates, now, closed)
        if windowed.emit == "commit":
            results = changed_windows(windowed, self._stored, keys, groups.codes, groups.starts, columns, closed)
            if results is not None:
                windowed.write()
                windowed.written()
                return results
        return windowed.finish()

    # --- windows and groups -----------------------------------------------------------------------------------

    def _windows_of(self, items: Items, keys: int, closed: int) -> Items:
        """Return the items once for each open window that holds them; the starts of `items` are record times."""
        windows, times = self._windowed.windows, items.starts
        size, advance = windows.size_ms, windows.advance_ms
        if isinstance(windows, TumblingWindows | HoppingWindows) and not windows.regular:
            starts, _, first, behind = self._spans(times)
            counts = behind - first
            each = np.repeat(np.arange(len(times)), counts)
            within = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
            return self._in_time(items.chosen(each)._replace(starts=starts[first[each] + within]), closed)
        if not isinstance(windows, HoppingWindows):
            return self._in_time(items._replace(starts=times - times % size), closed)
        if size % advance == 0 and self._windowed.emit != "record":
            # items with the same last window share all windows, so they are added up before they are repeated
            items = self._grouped(items._replace(starts=times - times % advance), keys)
            times = items.starts
        last = times - times % advance
        starts = last[:, None] - np.arange(-(-size // advance) - 1, -1, -1, dtype=np.int64) * advance
        holds = (starts > (times - size)[:, None]) & (starts >= 0)
        each = np.nonzero(holds)[0]
        return self._in_time(items.chosen(each)._replace(starts=starts[holds]), closed)

    def _spans(self, times: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the starts and ends of the windows on a grid of their own that contain one of the times, and for each
        time the place of the first of its windows, and of the first behind them.
        """
        windows = self._windowed.windows
        assert isinstance(windows, TumblingWindows | HoppingWindows)
        spans = np.array(windows.grid.spans(int(times.min()), int(times.max())), np.int64).reshape(-1, 2)
        starts, ends = spans[:, 0], spans[:, 1]
        first = np.searchsorted(ends, times, "right")
        return starts, ends, first, np.maximum(np.searchsorted(starts, times, "right"), first)

    def _all_closed(self, times: Ints, closed: int) -> Any:
        """Return for each time whether it has windows, and all of them have closed."""
        windows = self._windowed.windows
        if windows.regular:
            return times - times % windows.advance_ms + self._size <= closed
        if not len(times):
            return np.zeros(0, bool)
        _, ends, first, behind = self._spans(times)
        last = np.maximum(behind - 1, 0)
        return (behind > first) & (ends[last] <= closed) if len(ends) else np.zeros(len(times), bool)

    def _ends(self, starts: Ints) -> Ints:
        """Return the ends of windows by their starts."""
        windows = self._windowed.windows
        if windows.regular:
            return starts + self._size
        distinct, place = np.unique(starts, return_inverse=True)
        ends: Ints = np.array([windows.end_of(start) for start in distinct.tolist()], np.int64)[place]
        return ends

    def _in_time(self, items: Items, closed: int) -> Items:
        """Return the items of windows that are open; the others are counted as dropped."""
        late = self._ends(items.starts) <= closed
        if not late.any():
            return items
        self._windowed.dropped += int(items.rows[late].sum())
        return items.chosen(~late)

    def _grouped(self, items: Items, keys: int) -> Items:
        return grouped(items, keys, self._sums, self._summed, self._extremes)

    # --- into the store ---------------------------------------------------------------------------------------

    def _finish(
        self, windowed: TimeWindowed, groups: Items, scales: list[Scale | None], keys: Keys, now: int
    ) -> Results | Why:
        """Add the groups to the stored values, write them, and return the due results. O(groups)."""
        names = [keys.names[code] for code in groups.codes.tolist()]
        starts = groups.starts.tolist()
        stored = self._stored(names, groups.starts)
        columns = self._combined(groups, scales, stored)
        if columns is None:
            return Why.STORED
        values = columns[0] if windowed.form.bare else list(map(list, zip(*columns, strict=True)))
        results: Results
        if windowed.emit == "close":
            # only windows of the commit that close in it must be in memory, before the stored ones
            closing = int(np.searchsorted(self._ends(groups.starts), windowed.closed(now), "right"))
            shared = windowed.form.shared
            windowed.open = {(starts[i], names[i]): list(shared(values[i])) for i in range(closing)}
            windowed.stream_time = now
            results = windowed.due()
        else:
            results = ResultColumns(
                [part.take(array_of(groups.codes)) for part in keys.parts],
                groups.starts,
                self._ends(groups.starts),
                [
                    column if part.result is None else list(map(part.result, column))
                    for (part, _), column in zip(self._parts, columns, strict=True)
                ],
            )
        self._write(windowed, names, values, starts, groups.starts, now)
        return results

    def _stored(self, names: list[Any], starts: Ints) -> list[Any]:
        """Return the stored value of each group, or None. `starts` are sorted."""
        stored: list[Any] = []
        distinct, first = np.unique(starts, return_index=True)
        bounds = [*first.tolist(), len(names)]
        for i, start in enumerate(distinct.tolist()):
            stored += self._windowed.store.get_many(names[bounds[i] : bounds[i + 1]], start)
        return stored

    def _combined(self, groups: Items, scales: list[Scale | None], stored: list[Any]) -> list[list[Any]] | None:
        """Return a column per aggregate, the stored one with the group's added.

        None if decimals are stored where floats come.
        """
        bare = self._windowed.form.bare
        columns: list[list[Any]] = []
        extremes = self._sums
        winners = iter(groups.winners)
        if not stored:
            return [[] for _ in self._parts]
        for i, (part, place) in enumerate(self._parts):
            olds = stored if bare else [None if old is None else old[i] for old in stored]
            if tallied(part):
                columns.append(_with_tally(olds, groups.tallies[place]))
                continue
            if picked(part):
                columns.append(_with_winners(part, olds, next(winners)))
                continue
            pick = part.merge
            assert pick is not None
            if part.name in ("min", "max"):
                values, valid = groups.columns[extremes]
                extremes += 1
                added: list[Any] = values.tolist()
                if not (valid > 0).all():
                    added = [value if present else None for value, present in zip(added, valid.tolist(), strict=True)]
            elif part.name == "count":
                added = (groups.rows if place < 0 else groups.columns[place][1]).tolist()
            else:
                sums, counts = groups.columns[place]
                scale = scales[place]
                added = sums.tolist() if scale is None else scale.totals(groups.limbs[place], counts)
                mean = part.name == "mean"
                kinds = set(map(type, [old and old[0] for old in olds] if mean else olds))
                if scale is not None and Decimal in kinds:
                    # the error of rows one by one tells more
                    return None
                if mean:
                    added = list(zip(added, counts.tolist(), strict=True))
                elif scale is None and kinds <= {int, NoneType}:
                    pick = add
            columns.append([new if old is None else pick(old, new) for old, new in zip(olds, added, strict=True)])
        return columns

    @staticmethod
    def _write(
        windowed: TimeWindowed, names: list[Any], values: list[Any], starts: list[int], ordered: Ints, now: int
    ) -> None:
        live = int(np.searchsorted(ordered, expired_through(now, windowed.retention_ms), side="right"))
        if live < len(names):
            windowed.store.put_plain(names[live:], values[live:], starts[live:])
        windowed.stream_time = now
        windowed.written()

    # --- a result per record ----------------------------------------------------------------------------------

    def _each(
        self, times: Ints, keys: Keys, columns: list[tuple[Any, Ints]], closed: int, now: int
    ) -> ResultColumns | Why:
        """Return the result of each record, in canonical order: running counts and sums on top of the stored values.

        O(rows log rows).
        """
        order = canonical_place(times, keys, [values for values, _ in columns])
        if order is None:
            return Why.ORDER
        windowed, distinct = self._windowed, len(keys.names)
        columns = [(values[order], valid) for values, valid in columns]
        scales, limbs = self._limbs(columns) if isinstance(windowed, PanedWindowed) else ([], [[] for _ in columns])
        records = Items(
            keys.codes[order], times[order], np.ones(len(order), np.int64), columns, limbs, order, [], [], {}, []
        )
        items = self._windows_of(records, distinct, closed)
        runs, codes, starts = runs_of(items, distinct)
        names = [keys.names[code] for code in codes.tolist()]
        bare = windowed.form.bare
        if isinstance(windowed, PanedWindowed):
            stored, bare = windowed.windows_before(names, starts.tolist()), False
        else:
            stored = self._stored(names, starts)
        results: list[Any] = []
        finals: list[list[Any]] = []
        for i, (part, place) in enumerate(self._parts):
            olds = [0 if old is None else old if bare else old[i] for old in stored]
            values = None if part.name == "count" else items.columns[place][0][runs.order]
            running = _running(part, olds, values, runs)
            if running is None:
                return Why.STORED
            results.append(runs.scattered(running[0]))
            finals.append(running[1])
        if isinstance(windowed, PanedWindowed):
            if isinstance(why := self._add_panes(windowed, records, scales, keys, closed, now), Why):
                return why
        else:
            stored = finals[0] if bare else list(map(list, zip(*finals, strict=True)))
            self._write(windowed, names, stored, starts.tolist(), starts, now)
        return ResultColumns(
            [part.take(array_of(items.codes)) for part in keys.parts], items.starts, self._ends(items.starts), results
        )


def _with_tally(olds: list[Any], tally: ValueCounts) -> list[dict[Any, int]]:
    """Return the counts of values of each group with those of the batch, in copies. O(groups and their values)."""
    counts: list[dict[Any, int]] = [{} if old is None else old.copy() for old in olds]
    for group, value, more in zip(*tally, strict=True):
        of_group = counts[group]
        of_group[value] = of_group.get(value, 0) + more
    return counts


def _with_winners(part: Aggregator, olds: list[Any], winners: Winners) -> list[Any]:
    """Return the rows that are chosen in each group, of the stored ones and those of the batch. O(groups + rows)."""
    init, add, copy = part.init, part.add, part.copy
    chosen = [init() if old is None else old if copy is None else copy(old) for old in olds]
    for group, value in zip(winners.groups.tolist(), winners.pick.values(winners.rows), strict=True):
        chosen[group] = add(chosen[group], value)
    return chosen


def _running(part: Aggregator, olds: list[Any], values: Any, runs: Runs) -> tuple[Any, list[Any]] | None:
    """Return a count, sum or mean after each item, group by group, and the new stored value of each group; None if they
    cannot be exact.

    `olds` are the stored values of the groups; `values` are sorted by group, None for a count.
    """
    ones = np.ones(len(runs.order), np.int64)
    mean = part.name == "mean"
    counts = None
    if mean:
        pairs = [old if type(old) is tuple else (0, 0) for old in olds]
        counts = runs.totals(ones, [count for _, count in pairs])
        olds = [total for total, _ in pairs]
    sums: Any
    if values is None or not is_float(values):
        if not all(type(old) is int and -EXACT < old < EXACT for old in olds):
            return None
        sums = runs.totals(ones if values is None else values, olds)
        results, totals = sums if counts is None else sums / counts, runs.last(sums)
    else:
        if not {int, list}.issuperset(map(type, olds)):
            return None
        floats = runs.totals(ones, [old[2] if type(old) is list else 0 for old in olds])
        most = 1 if counts is None else int(counts.max(initial=1))
        scale = Scale.of([values], olds, len(values) + 1, _ROOM, most)
        parts = zip(scale.split(values), scale.split_totals(olds), strict=True)
        columns = [runs.totals(column, base) for column, base in parts]
        results = scale.sums(columns) if counts is None else scale.means(columns, counts)
        ends = runs.ends
        totals = scale.totals([column[ends] for column in columns], floats[ends])
    return results, totals if counts is None else list(zip(totals, runs.last(counts), strict=True))
