"""Projections: the part of a row that an aggregator needs, where that is more than one column or depends on the row.

    column, or the row      Count("bytes"), Last()         the plain case: no projection, `Combined` takes the column
    where                   Count(where=function)          the value, if the function of the row is true; else None
    by, columns             MaxBy("price", ["bidder"])     [what decides, time, [the columns]], None without a value

None adds nothing to an aggregate, as in SQL. The surprise: the value of `where` is kept with the values of a sliding
window, so that the function is asked once for each row, and never again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import eq
from typing import Any, Final, Protocol

from ..clock import time_ms

Where = Callable[[dict[str, Any]], Any] | None
_ROWS: Final = "rows"
_WHERE: Final = "where"


def cell(row: Any, column: str) -> Any:
    """Return the value of a column of a row, a mapping or a named tuple; None if a mapping has none."""
    return row.get(column) if isinstance(row, Mapping) else getattr(row, column)


class RowsByColumn(Protocol):
    """Rows that projections take by column."""

    @property
    def times(self) -> Sequence[int]:
        """The times of the rows (ms)."""

    def rows(self) -> list[Any]:
        """Return the rows, as mappings."""

    def column(self, name: str) -> list[Any]:
        """Return a column; None where a row has none."""

    def asked(self, where: Callable[[dict[str, Any]], Any]) -> list[bool]:
        """Return for each row whether a function of it is true."""


@dataclass(frozen=True, slots=True)
class Projection:
    """What an aggregator is given of a row.

    column   the column that is the value; None: the row
    where    only rows for which this function is true have a value
    counts   the value is 1, whatever is in the row
    by       the column that decides which rows are chosen (`aggregation.rows`); the value is then [by, time, chosen]
    columns  the chosen columns, as a list; a text: the value of that column; None: the row
    time     the column of the time of a row; None: rows have no time
    """

    column: str | None = None
    where: Where = None
    counts: bool = False
    by: str | None = None
    columns: tuple[str, ...] | str | None = None
    time: str | None = None

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The columns that are needed, None for whole rows."""
        if self.where is not None or self.by is None or self.columns is None:
            return None
        return (*self.taken, *(() if self.time is None else (self.time,)))

    @property
    def taken(self) -> tuple[str, ...]:
        """The columns that decide which rows are chosen, and that are chosen of them; none of whole rows."""
        if self.by is None or self.columns is None:
            return ()
        return (self.by, self.columns) if isinstance(self.columns, str) else (self.by, *self.columns)

    def of(self, row: Any) -> Any:
        """Return the value of a row, None if it has none. Raises what `where` raises, with a note."""
        if self.where is not None and not self._asked(row):
            return None
        if self.by is None:
            return 1 if self.counts else row if self.column is None else cell(row, self.column)
        decides = cell(row, self.by)
        # NaN has no order, so it decides nothing
        if decides is None or decides != decides:
            return None
        time = 0 if self.time is None else time_ms(cell(row, self.time), self.time)
        if self.columns is None:
            return [decides, time, dict(row if isinstance(row, Mapping) else row._asdict())]
        if isinstance(self.columns, str):
            return [decides, time, cell(row, self.columns)]
        return [decides, time, [cell(row, column) for column in self.columns]]

    def of_rows(self, rows: RowsByColumn) -> list[Any]:
        """Return the values of rows by column: `of` of each row. O(rows), at C speed but for `where`, which is asked
        once for each row, also where several projections have it.
        """
        asked = None if self.where is None else rows.asked(self.where)
        if self.counts:
            assert asked is not None
            return [1 if yes else None for yes in asked]
        values = self._by_column(rows)
        return values if asked is None else [value if yes else None for value, yes in zip(values, asked, strict=True)]

    def _by_column(self, rows: RowsByColumn) -> list[Any]:
        """Return the values of rows without regard to `where`."""
        if self.by is None:
            return rows.rows() if self.column is None else rows.column(self.column)
        decides = rows.column(self.by)
        at: Iterable[int] = repeat(0) if self.time is None else rows.times
        columns = self.columns
        chosen: Iterable[Any] = (
            map(dict, rows.rows())
            if columns is None
            else rows.column(columns)
            if isinstance(columns, str)
            else map(list, zip(*map(rows.column, columns), strict=True))
        )
        values: list[Any] = list(map(list, zip(decides, at, chosen, strict=False)))
        if all(map(eq, decides, decides)) and None not in decides:
            return values
        return [None if part is None or part != part else value for part, value in zip(decides, values, strict=True)]

    def _asked(self, row: Any) -> bool:
        assert self.where is not None
        return asked(self.where, [row])[0]

    def describe(self) -> Any:
        """Return a stable, plain description: the column, or a list."""
        value: Any = self.column
        if self.by is not None:
            columns = self.columns if self.columns is None or isinstance(self.columns, str) else list(self.columns)
            value = [_ROWS, self.by, columns, self.time]
        return value if self.where is None else [_WHERE, name_of(self.where), value]

    def __str__(self) -> str:
        return str(self.describe())


def asked(where: Callable[[dict[str, Any]], Any], rows: Iterable[Any]) -> list[bool]:
    """Return for each row whether `where` is true. Raises what `where` raises, with a note."""
    try:
        return list(map(bool, map(where, rows)))
    except Exception as error:
        error.add_note(f"where {name_of(where)}: while looking at a row")
        raise


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, by which stored state is compared with the code."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def renamed_column(column: Any, names: Mapping[str, str]) -> Any:
    """Return the description of a column, or of a projection, with the new names of columns, as tuples for lists."""
    if not isinstance(column, list | tuple):
        return names.get(column, column)
    if column[0] == _WHERE:
        return (_WHERE, column[1], renamed_column(column[2], names))
    by, columns, time = column[1:]
    several = isinstance(columns, list | tuple)
    chosen = tuple(names.get(name, name) for name in columns) if several else names.get(columns, columns)
    return (_ROWS, names.get(by, by), chosen, names.get(time, time))
