"""Results: the results of a shard's commit, window by window or by column, and both as rows.

    list[Result], Columns ── tabled ──▶ ResultTable ── rows ──▶ dicts
                                             └── kept by `run` beside the state (docs/format.md, "Kept results")

Of many windows that close at one commit `run` takes the results by the piece, while the windows are read (`Taker`).

Times are whole milliseconds until a row is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from .null_keys import given_keys
from .plan import END, START, Plan
from .row_columns import Row, rows_of
from .times import TimeForm, listed, times_as

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# So many rows are made at a time: so few that Python's garbage collector does not look at them.
_ROWS: Final = 256


class Result(NamedTuple):
    """One result: the key, the window's bounds (ms, as the window's kind says), the aggregates in order, and the
    largest record time.

    `aggregates` is None for a session that was merged into another.
    """

    key: Any
    start: int
    end: int
    aggregates: tuple[Any, ...] | None
    ts: int


class ResultColumns(NamedTuple):
    """Results by column: an Arrow array or a list per key column, window bounds in ms, and a column per aggregate."""

    keys: list[Any]
    starts: Ints | list[int]
    ends: Ints | list[int]
    aggregates: list[Any]


Results = list[Result] | ResultColumns


class Taker(Protocol):
    """Takes the first results of a commit while the others are not made yet, by the piece of so many `rows`."""

    rows: int

    def take(self, piece: ResultColumns) -> None:
        """Take the next piece."""


def by_column(plan: Plan, results: Iterable[Result], taker: Taker | None = None) -> Results:
    """Return results by column, without record times and without removed sessions. They are made some at a time, and
    equal times in a row are one object, so that the results are in memory once; with a taker only those of a piece,
    and the last piece is returned. O(results).
    """
    single = len(plan.key) == 1 or plan.null_keys == "group"
    parts = 1 if single else len(plan.key)

    def nothing() -> ResultColumns:
        return ResultColumns([[] for _ in range(parts)], [], [], [[] for _ in plan.combined.names])

    columns, iterator = nothing(), iter(results)
    while part := list(islice(iterator, _ROWS if taker is None else min(_ROWS, taker.rows))):
        if taker is not None and len(columns.ends) >= taker.rows:
            taker.take(columns)
            columns = nothing()
        keys, starts, ends, aggregates, _ = zip(*part, strict=True)
        for column, values in (
            *zip(columns.keys, [keys] if single else zip(*keys, strict=True), strict=True),
            (columns.starts, shared(starts)),
            (columns.ends, shared(ends)),
            *zip(columns.aggregates, zip(*aggregates, strict=True), strict=True),
        ):
            column.extend(values)
    return columns if columns.ends else []


def shared(numbers: Iterable[int]) -> Iterator[int]:
    """Yield numbers, of which equal ones in a row are one object: each other object takes 32 bytes."""
    last: int | None = None
    for number in numbers:
        if number != last:
            last = number
        yield last


class Late(NamedTuple):
    """Late rows of one commit of a shard as results: their column, their keys, and the input rows."""

    column: str
    keys: list[Any]
    rows: list[dict[str, Any]]


class ResultTable(NamedTuple):
    """The results of one commit of a shard, by column.

    names    the columns of each row; None: rows differ in their columns, and `columns` are the rows
    times    the form of the windows' bounds; None: without bounds, as rows of custom logic, which are not changed
    columns  a list, or an array of numpy or Arrow, for each name; with `times`, window_start and window_end are in ms
    late     the late rows; None if the topology does not emit them
    """

    names: list[str] | None
    times: TimeForm | None
    columns: list[Any]
    late: Late | None = None

    def __bool__(self) -> bool:
        """True if any result exists."""
        if self.late is not None and self.late.rows:
            return True
        return bool(self.columns) and (self.names is None or len(self.columns[0]) > 0)

    @property
    def results(self) -> int:
        """The number of results without late rows."""
        return len(self.columns) if self.names is None else len(self.columns[0]) if self.columns else 0

    @property
    def size(self) -> int:
        """The number of results, late rows included."""
        return self.results + (0 if self.late is None else len(self.late.rows))

    def between(self, start: int, end: int) -> ResultTable:
        """Return the results from a place to before another one; the late rows come with the last results. O(those)."""
        if start == 0 and end >= self.results:
            return self
        parts = self.columns[start:end] if self.names is None else [column[start:end] for column in self.columns]
        return self._replace(columns=parts, late=self.late if end >= self.results else None)

    def arrow(self) -> pa.Table:
        """Return the results as an Arrow table, with the types that Arrow infers from the rows. O(results)."""
        import pyarrow as pa

        if self.names is None or self.late is not None:
            return pa.Table.from_pylist(list(self.rows(dict)))
        if self.times is None:
            return pa.table([_arrow(column) for column in self.columns], self.names)
        bounds: list[Any] = []
        for name in (START, END):
            times = pa.array(self.columns[self.names.index(name)], pa.int64())
            if self.times != "ms":
                zone = "UTC" if self.times == "aware" else None
                times = times.cast(pa.timestamp("ms", zone)).cast(pa.timestamp("us", zone))
            bounds.append(times)
        start = self.names.index(START)
        columns = [_arrow(column) for column in self.columns[start + 2 :]]
        return pa.table([*map(_arrow, self.columns[:start]), *bounds, *columns], self.names)

    def rows(self, make: type[Row]) -> Iterator[Row]:
        """Yield the results as rows; `make` is called as `dict` would be. O(results)."""
        if self.names is None:
            return map(make, self.columns)
        columns = self.columns
        if self.times is not None:
            start, end = self.names.index(START), self.names.index(END)
            columns = columns.copy()
            columns[start], columns[end] = times_as(self.times, columns[start]), times_as(self.times, columns[end])
        names, late = self.names, self.late
        columns = list(map(listed, columns))
        if late is None:
            return chain.from_iterable(_rows(names, columns, make))
        names = [*names, late.column]
        results = map(make, map(zip, repeat(names), zip(*columns, repeat(None))))
        keyless = names[0] == START
        parts = (key if keyless or isinstance(key, tuple | list) else (key,) for key in late.keys)
        return chain(
            results,
            (
                make(zip(names, (*part, *((None,) * (len(names) - len(part) - 1)), row), strict=True))
                for part, row in zip(parts, late.rows, strict=True)
            ),
        )


def _arrow(column: Any) -> Any:
    """Return a column as Arrow takes it: an array of numpy without the import of pandas."""
    if not hasattr(column, "dtype"):
        return column
    from .columns.buffers import array_of

    return array_of(column)


def _rows(names: list[str], columns: list[Any], make: type[Row]) -> Iterator[list[Row]]:
    """Yield rows, some at a time."""
    for start in range(0, len(columns[0]), _ROWS):
        parts = [column[start : start + _ROWS] for column in columns]
        yield rows_of(names, parts, [make() for _ in parts[0]])


def unknown_out(results: Results, since: Mapping[int, int]) -> Results:
    """Return results with None for each aggregate (by its place) in windows that begin at or before a time (ms),
    because the aggregate did not exist then. O(results).
    """
    if not isinstance(results, ResultColumns):
        return [_unknown_out_of(result, since) for result in results]
    starts = listed(results.starts)
    aggregates = list(results.aggregates)
    for place, ts in since.items():
        column = listed(aggregates[place])
        aggregates[place] = [None if start <= ts else value for start, value in zip(starts, column, strict=True)]
    return results._replace(aggregates=aggregates)


def _unknown_out_of(result: Result, since: Mapping[int, int]) -> Result:
    if result.aggregates is None or not any(result.start <= ts for ts in since.values()):
        return result
    parts = enumerate(result.aggregates)
    return result._replace(aggregates=tuple(None if result.start <= since.get(i, -1) else part for i, part in parts))


def with_given_keys(plan: Plan, results: Results) -> Results:
    """Return results whose keys are stored as text (`null_keys`) with the keys that rows came with. O(results)."""
    if not isinstance(results, ResultColumns):
        keys = given_keys(result.key for result in results)
        return [result._replace(key=key) for result, key in zip(results, keys, strict=True)]
    (texts,) = results.keys
    keys = given_keys(listed(texts))
    parts = [keys] if len(plan.key) == 1 else [list(part) for part in zip(*keys, strict=True)]
    return results._replace(keys=parts or [[] for _ in plan.key])


def columns_of(plan: Plan, results: Results) -> list[Any]:
    """Return results by column, as they are: key columns, window_start, window_end, aggregates (None for a removed
    session). O(results).
    """
    if isinstance(results, ResultColumns):
        return [*results.keys, *((results.starts, results.ends) if plan.bounds else ()), *results.aggregates]
    keys, starts, ends, aggregates, _ = zip(*results, strict=True)
    if None in aggregates:
        removed = (None,) * len(plan.combined.names)
        aggregates = tuple([removed if part is None else part for part in aggregates])
    parts = [keys] if len(plan.key) == 1 else zip(*keys, strict=True)
    return [*parts, *((starts, ends) if plan.bounds else ()), *zip(*aggregates, strict=True)]


def tabled(plan: Plan, results: Results, times: TimeForm) -> ResultTable:
    """Return results by column: key columns, window_start, window_end, aggregates by name (None for a removed session).

    Raises OverflowError for a bound beyond datetime, if times are returned as datetimes. O(results).
    """
    names, form = [*plan.key, *plan.bounds, *plan.combined.names], times if plan.bounds else None
    if not results:
        return ResultTable(names, form, [[] for _ in names])
    columns = columns_of(plan, results)
    if plan.bounds:
        _check_bounds(times, columns[len(plan.key) + 1])
    if not isinstance(results, ResultColumns):
        return ResultTable(names, form, list(map(list, columns)))
    bounds = range(len(plan.key), len(plan.key) + len(plan.bounds))
    given = [column if place in bounds else listed(column) for place, column in enumerate(columns)]
    return ResultTable(names, form, given)


def _check_bounds(times: TimeForm, ends: Any) -> None:
    """Convert the latest end now, because rows are made after the commit, and an end that cannot be converted must stop
    the commit.
    """
    if times != "ms" and len(ends):
        times_as(times, [int(ends.max()) if hasattr(ends, "dtype") else max(ends)])


def arrow_of(pieces: Iterable[ResultTable]) -> pa.Table | None:
    """Return the pieces of a commit's results as an Arrow table, with the types that Arrow infers from all rows; None
    without results. Each piece becomes a part of it before the next is asked for, but for rows that differ in their
    columns. O(results).
    """
    import pyarrow as pa

    some = (piece for piece in pieces if piece)
    tables: list[pa.Table] = []
    for piece in some:
        if piece.names is None:
            rows = [row for part in (piece, *some) for row in part.rows(dict)]
            return ResultTable(None, None, rows).arrow()
        tables.append(piece.arrow())
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def tabled_rows(rows: Sequence[dict[str, Any]]) -> ResultTable:
    """Return the rows of custom logic by column, if all have the same columns in the same order. O(rows)."""
    names = list(rows[0]) if rows else []
    if not names or any(list(row) != names for row in rows):
        return ResultTable(None, None, list(rows))
    values: Iterable[Any] = zip(*[row.values() for row in rows], strict=True)
    return ResultTable(names, None, list(map(list, values)))
