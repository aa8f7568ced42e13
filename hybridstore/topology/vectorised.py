"""Vectorised: tumbling and hopping windows of an Arrow batch, grouped and added up by numpy, with no Python call per row.

    keys ── dictionary, sorted ──▶ code        times ──▶ starts of windows        start and code ──▶ group

Groups come out by start and then key. Counts, sums, means, minima and maxima of whole numbers are taken; other batches go row
by row (`TimeWindowed.process`), and both ways write the same bytes to the changelog and return the same results.

The surprise: lateness needs no order here. In canonical order the records of a commit come by time, so that none of them makes
another one late: only those are that were late before the commit began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..aggregation import TumblingWindows
from ..clock import expired_through, window_closed_through
from .arrow_columns import Columns, Keys, canonical_place, keys_of, times_of
from .declare import Topology
from .pane_columns import changed_windows
from .panes import PanedWindowed
from .results import Result
from .time_windows import TimeWindowed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_ADDED: Final = frozenset({"count", "sum", "mean"})
_TAKEN: Final = _ADDED | {"min", "max"}
# sums are formed by numpy in doubles, which are exact up to here
_EXACT: Final = 2**53
_INT64_MAX: Final = 2**63 - 1


class _Items(NamedTuple):
    """What is to be grouped: key code, window start, how many rows, and (values, how many) per value column."""

    codes: Ints
    starts: Ints
    rows: Ints
    columns: list[tuple[Ints, Ints]]


def fits(topology: Topology) -> bool:
    """Whether batches of this topology may be vectorised: it depends on each batch whether it is."""
    if topology.suppression is not None or topology.aggregates is None or not topology.columns:
        return False
    kinds = {part.name for part in topology.aggregates.parts}
    return kinds <= (_ADDED if topology.emit == "record" else _TAKEN)


class Vectorised:
    """A vectorised way into the windows of one shard."""

    def __init__(self, topology: Topology, windowed: TimeWindowed | PanedWindowed) -> None:
        assert topology.aggregates is not None
        self._topology = topology
        self._windowed = windowed
        aggregates = topology.aggregates
        self._names = [name for name in aggregates.columns if name is not None]
        self._parts = list(zip(aggregates.parts, aggregates.places, strict=True))
        # columns that are only counted may hold anything
        self._numeric = {place for part, place in self._parts if part.name != "count" or topology.emit == "record"} - {
            -1
        }
        self._size = windowed.windows.size_ms

    def process(self, table: pa.Table, clock: int | None = None) -> Columns | list[Result] | None:
        """Process a batch as one commit and return its results, or None, with nothing done, if it has to go row by row. O(rows)."""
        windowed = self._windowed
        if not table.num_rows or windowed.busy or windowed.form.timed:
            return None
        times = times_of(table.column(self._topology.timestamp))
        keys = keys_of([table.column(name) for name in self._topology.key])
        columns = self._columns(table)
        if times is None or keys is None or columns is None:
            return None
        before = windowed.stream_time if clock is None else max(windowed.stream_time, clock)
        now = max(before, int(times.max())) if clock is None else before
        closed = window_closed_through(before, windowed.windows.grace_ms)
        if windowed.emit == "record":
            return self._each(times, keys, columns, closed, now)
        items = _Items(keys.codes, times, np.ones(len(times), np.int64), columns)
        if isinstance(windowed, PanedWindowed):
            windowed.dropped += self._late_windows(times, closed)
            return self._add_panes(windowed, items, keys, closed, now)
        grouped = self._grouped(self._windows_of(items, len(keys.names), closed), len(keys.names))
        return self._finish(windowed, grouped, keys, now)

    # --- columns in -------------------------------------------------------------------------------------------

    def _columns(self, table: pa.Table) -> list[tuple[Ints, Ints]] | None:
        """Return (values, 1 where there is one) per value column, or None if they are not whole numbers of a safe size."""
        found = []
        for place, name in enumerate(self._names):
            column = table.column(name)
            valid = np.ones(len(column), np.int64)
            if column.null_count:
                valid = column.is_valid().to_numpy().astype(np.int64)
            if place not in self._numeric:
                found.append((valid, valid))
                continue
            if not pa.types.is_integer(column.type) or (column.null_count and self._windowed.emit == "record"):
                return None
            values = pc.fill_null(column, 0).to_numpy() if column.null_count else column.to_numpy()
            largest = max(abs(int(values.max())), abs(int(values.min())))
            # every window of a record counts, and a sum may be added to what is stored
            if largest * len(values) >= _EXACT:
                return None
            found.append((values.astype(np.int64), valid))
        return found

    # --- panes ------------------------------------------------------------------------------------------------

    def _late_windows(self, times: Ints, closed: int) -> int:
        """Return how many windows of the records have closed."""
        size, advance = self._size, self._windowed.windows.advance_ms
        base = times - times % advance
        first = np.maximum(0, times - size + advance) // advance * advance
        return int(np.maximum((np.minimum(base, closed - size) - first) // advance + 1, 0).sum())

    def _add_panes(
        self, windowed: PanedWindowed, items: _Items, keys: Keys, closed: int, now: int
    ) -> Columns | list[Result]:
        """Group items by pane, add them to what is stored, and end the commit; those too late for every window are left out."""
        advance, rest = windowed.windows.advance_ms, self._size % windowed.windows.advance_ms
        times = items.starts
        base = times - times % advance
        panes = base + rest * (times - base >= rest)
        kept = base + self._size > closed
        if not kept.all():
            items = _Items(
                items.codes[kept],
                items.starts[kept],
                items.rows[kept],
                [(values[kept], valid[kept]) for values, valid in items.columns],
            )
            panes = panes[kept]
        groups = self._grouped(items._replace(starts=panes), len(keys.names))
        names = [keys.names[code] for code in groups.codes.tolist()]
        columns = self._combined(groups, self._stored(names, groups.starts))
        aggregates = list(map(list, zip(*columns, strict=True)))
        windowed.add_panes(names, groups.starts.tolist(), aggregates, now, closed)
        if windowed.emit == "commit":
            made = changed_windows(windowed, self._stored, keys, groups.codes, groups.starts, columns, closed)
            if made is not None:
                windowed.write()
                return made
        return windowed.finish()

    # --- windows and groups -----------------------------------------------------------------------------------

    def _windows_of(self, items: _Items, keys: int, closed: int) -> _Items:
        """Return the items once for each window that holds them and is open. `starts` of those given are record times."""
        windows, times = self._windowed.windows, items.starts
        size, advance = windows.size_ms, windows.advance_ms
        if type(windows) is TumblingWindows:
            return self._in_time(items._replace(starts=times - times % size), closed)
        if size % advance == 0 and self._windowed.emit != "record":
            # what shares its last window shares all: it is added up before it is repeated
            items = self._grouped(items._replace(starts=times - times % advance), keys)
            times = items.starts
        last = times - times % advance
        starts = last[:, None] - np.arange(-(-size // advance) - 1, -1, -1, dtype=np.int64) * advance
        holds = (starts > (times - size)[:, None]) & (starts >= 0)
        each = np.nonzero(holds)[0]
        repeated = _Items(
            items.codes[each],
            starts[holds],
            items.rows[each],
            [(values[each], valid[each]) for values, valid in items.columns],
        )
        return self._in_time(repeated, closed)

    def _in_time(self, items: _Items, closed: int) -> _Items:
        """Return the items of windows that are open; the others are counted as dropped."""
        late = items.starts + self._size <= closed
        if not late.any():
            return items
        self._windowed.dropped += int(items.rows[late].sum())
        return _Items(
            items.codes[~late],
            items.starts[~late],
            items.rows[~late],
            [(values[~late], valid[~late]) for values, valid in items.columns],
        )

    def _grouped(self, items: _Items, keys: int) -> _Items:
        """Return one item per start and key, by start and then key. Minima and maxima stand in columns behind the sums."""
        if not len(items.codes):
            return items
        starts, place = np.unique(items.starts, return_inverse=True)
        group = place * keys + items.codes
        length = len(starts) * keys
        ids: Ints
        if length > 8 * len(group) + 1024:
            ids, group = np.unique(group, return_inverse=True)
            length = len(ids)
            filled: Any = slice(None)
        else:
            filled = np.nonzero(np.bincount(group, minlength=length))[0]
            ids = filled
        columns = []
        for values, valid in items.columns[: len(self._names)]:
            columns.append((_added(group, values, length)[filled], _added(group, valid, length)[filled]))
        for kind, place_of in self._extremes():
            at = len(columns)
            known = len(items.columns) > at
            values, valid = items.columns[at] if known else items.columns[place_of]
            least = np.full(length, _INT64_MAX if kind == "min" else -_INT64_MAX, np.int64)
            held = valid > 0
            (np.minimum if kind == "min" else np.maximum).at(least, group[held], values[held])
            columns.append((least[filled], columns[place_of][1]))
        return _Items(ids % keys, starts[ids // keys], _added(group, items.rows, length)[filled], columns)

    def _extremes(self) -> list[tuple[str, int]]:
        return [(part.name, place) for part, place in self._parts if part.name in ("min", "max")]

    # --- into the store ---------------------------------------------------------------------------------------

    def _finish(self, windowed: TimeWindowed, groups: _Items, keys: Keys, now: int) -> Columns | list[Result]:
        """Add the groups to what is stored, write it, and return what is due. O(groups)."""
        names = [keys.names[code] for code in groups.codes.tolist()]
        starts = groups.starts.tolist()
        stored = self._stored(names, groups.starts)
        columns = self._combined(groups, stored)
        values = columns[0] if windowed.form.bare else list(map(list, zip(*columns, strict=True)))
        results: Columns | list[Result]
        if windowed.emit == "close":
            closed = window_closed_through(now, windowed.windows.grace_ms)
            closing = int(np.searchsorted(groups.starts, closed - self._size, side="right"))
            shared = windowed.form.shared
            results = windowed.closing({(starts[i], names[i]): shared(values[i]) for i in range(closing)}, now)
        else:
            results = Columns(
                [part.take(pa.array(groups.codes)) for part in keys.parts],
                groups.starts,
                groups.starts + self._size,
                [
                    column if part.result is None else list(map(part.result, column))
                    for (part, _), column in zip(self._parts, columns, strict=True)
                ],
            )
        self._write(windowed, names, values, starts, groups.starts, now)
        return results

    def _stored(self, names: list[Any], starts: Ints) -> list[Any]:
        """Return the stored value of each group, or None. `starts` are sorted."""
        found: list[Any] = []
        distinct, first = np.unique(starts, return_index=True)
        bounds = [*first.tolist(), len(names)]
        for i, start in enumerate(distinct.tolist()):
            found += self._windowed.store.get_column(names[bounds[i] : bounds[i + 1]], start)
        return found

    def _combined(self, groups: _Items, stored: list[Any]) -> list[list[Any]]:
        """Return a column per aggregate: the stored one with the group's added."""
        bare = self._windowed.form.bare
        columns: list[list[Any]] = []
        extremes = len(self._names)
        if not stored:
            return [[] for _ in self._parts]
        for i, (part, place) in enumerate(self._parts):
            if part.name in ("min", "max"):
                values, valid = groups.columns[extremes]
                extremes += 1
                added: list[Any] = values.tolist()
                if not (valid > 0).all():
                    added = [value if held else None for value, held in zip(added, valid.tolist(), strict=True)]
                pick = part.merge
            elif part.name == "mean":
                added = list(zip(groups.columns[place][0].tolist(), groups.columns[place][1].tolist(), strict=True))
                pick = part.merge
            else:
                counted = groups.rows if place < 0 else groups.columns[place][1]
                added = (counted if part.name == "count" else groups.columns[place][0]).tolist()
                pick = None
            if bare:
                columns.append([new if old is None else old + new for old, new in zip(stored, added, strict=True)])
            elif pick is None:
                columns.append([new if old is None else old[i] + new for old, new in zip(stored, added, strict=True)])
            else:
                columns.append(
                    [new if old is None else pick(old[i], new) for old, new in zip(stored, added, strict=True)]
                )
        return columns

    @staticmethod
    def _write(
        windowed: TimeWindowed, names: list[Any], values: list[Any], starts: list[int], ordered: Ints, now: int
    ) -> None:
        gone = int(np.searchsorted(ordered, expired_through(now, windowed.retention_ms), side="right"))
        if gone < len(names):
            windowed.store.put_columns(names[gone:], values[gone:], starts[gone:])
        windowed.moved(now)

    # --- a result per record ----------------------------------------------------------------------------------

    def _each(self, times: Ints, keys: Keys, columns: list[tuple[Ints, Ints]], closed: int, now: int) -> Columns | None:
        """Return the result of each record, in canonical order: running counts and sums on top of what is stored. O(rows log rows)."""
        order = canonical_place(times, keys, [values for values, _ in columns])
        if order is None:
            return None
        windowed, distinct = self._windowed, len(keys.names)
        dropped = windowed.dropped
        records = _Items(
            keys.codes[order],
            times[order],
            np.ones(len(order), np.int64),
            [(values[order], valid) for values, valid in columns],
        )
        items = self._windows_of(records, distinct, closed)
        starts, place = np.unique(items.starts, return_inverse=True)
        group = place * distinct + items.codes
        by_group = np.argsort(group, kind="stable")
        ids, first = np.unique(group[by_group], return_index=True)
        sizes = np.diff(np.append(first, len(group)))
        names = [keys.names[code] for code in (ids % distinct).tolist()]
        group_starts = starts[ids // distinct] if len(ids) else np.empty(0, np.int64)
        paned = isinstance(windowed, PanedWindowed)
        if isinstance(windowed, PanedWindowed):
            stored: list[Any] = windowed.windows_before(names, group_starts.tolist())
        else:
            stored = self._stored(names, group_starts)
        bare = windowed.form.bare and not paned
        last = first + sizes - 1
        results: list[Any] = []
        finals: list[list[Any]] = []
        rows = np.arange(1, len(group) + 1, dtype=np.int64) - np.repeat(first, sizes)
        for i, (part, place_of) in enumerate(self._parts):
            olds = [0 if old is None else old if bare else old[i] for old in stored]
            running = [] if part.name == "count" else [items.columns[place_of][0]]
            sums = [_running(values[by_group], first, sizes) for values in running]
            if part.name != "sum":
                sums.append(rows)
            made = []
            for j, added in enumerate(sums):
                base = [old[j] if type(old) is tuple else 0 for old in olds] if part.name == "mean" else olds
                if not all(type(old) is int and -_EXACT < old < _EXACT for old in base):
                    windowed.dropped = dropped
                    return None
                total = added + np.repeat(np.array(base, np.int64), sizes)
                final = total[last].tolist() if len(total) else []
                scattered = np.empty_like(total)
                scattered[by_group] = total
                made.append((scattered, final))
            if part.name == "mean":
                results.append(made[0][0] / made[1][0])
                finals.append(list(zip(made[0][1], made[1][1], strict=True)))
            else:
                results.append(made[0][0])
                finals.append(made[0][1])
        if isinstance(windowed, PanedWindowed):
            self._add_panes(windowed, records, keys, closed, now)
        else:
            values = finals[0] if bare else list(map(list, zip(*finals, strict=True)))
            self._write(windowed, names, values, group_starts.tolist(), group_starts, now)
        return Columns(
            [part.take(pa.array(items.codes)) for part in keys.parts], items.starts, items.starts + self._size, results
        )


def _added(group: Ints, values: Ints, length: int) -> Ints:
    """Return the sum of the values of each group."""
    return np.bincount(group, weights=values, minlength=length).astype(np.int64)


def _running(values: Ints, first: Ints, sizes: Ints) -> Ints:
    """Return running sums of values that stand group by group."""
    if not len(values):
        return values
    sums = np.cumsum(values)
    return sums - np.repeat(sums[first] - values[first], sizes)
