"""Row columns: rows as projections take them, by column: dicts, and the rows of an Arrow batch.

    Arrow batch ── column ──▶ a list, when the first projection asks for it
                ── asked ───▶ `where` of each row: a dict that has the columns which the function has read so far

The surprise: `where` is given a dict that is not filled. To make a dict of all columns takes longer than all else that
an aggregate costs, and most functions read one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter, setitem
from typing import Any, Final, TypeVar

from ..aggregation.projection import asked
from .times import arrow_list

Where = Callable[[dict[str, Any]], Any]
Row = TypeVar("Row", bound=dict[str, Any])


def rows_of(names: Sequence[str], columns: Sequence[Iterable[Any]], rows: list[Row]) -> list[Row]:
    """Put columns into rows, which are empty: column by column in two thirds of the time of a dict of each zipped row.

    O(cells).
    """
    for name, column in zip(names, columns, strict=True):
        deque(map(setitem, rows, repeat(name), column), maxlen=0)
    return rows


def rows_of_arrow(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow batch or table as dicts. O(cells)."""
    empty: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    return rows_of(batch.column_names, list(map(arrow_list, batch.columns)), empty)


class DictColumns:
    """Dicts by column. `times` are their times (ms)."""

    __slots__ = ("_asked", "_columns", "_rows", "times")

    def __init__(self, rows: list[Any], times: Sequence[int]) -> None:
        self._rows = rows
        self.times = times
        self._columns: dict[str, list[Any]] = {}
        self._asked: dict[Where, list[bool]] = {}

    def rows(self) -> list[Any]:
        """Return the rows."""
        return self._rows

    def column(self, name: str) -> list[Any]:
        """Return a column; None where a row has none. O(rows) at the first call."""
        column = self._columns.get(name)
        if column is None:
            try:
                column = list(map(itemgetter(name), self._rows))
            except KeyError:
                column = [row.get(name) for row in self._rows]
            self._columns[name] = column
        return column

    def asked(self, where: Where) -> list[bool]:
        """Return for each row whether a function of it is true. O(rows) at the first call."""
        answers = self._asked.get(where)
        if answers is None:
            answers = self._asked[where] = asked(where, self._rows)
        return answers


class _Cells:
    """The columns of an Arrow batch as lists, each when it is asked for first."""

    __slots__ = ("_batch", "_columns", "names", "read")

    def __init__(self, batch: Any, but: Sequence[str]) -> None:
        self._batch = batch
        self.names = [name for name in batch.column_names if name not in but]
        self._columns: dict[str, list[Any]] = {}
        self.read: dict[str, list[Any]] = {}
        """The columns that functions of a row have read."""

    def column(self, name: str) -> list[Any]:
        """Return a column; None for each row where the batch has none. O(rows) at the first call."""
        column = self._columns.get(name)
        if column is None:
            there = name in self.names
            column = arrow_list(self._batch.column(name)) if there else [None] * self._batch.num_rows
            self._columns[name] = column
        return column

    def of(self, name: str, at: int) -> Any:
        """Return the cell of a column for a function of a row. Raises KeyError. O(rows) at the first call."""
        if name not in self.names:
            raise KeyError(name)
        return self.read.setdefault(name, self.column(name))[at]


class ArrowColumns:
    """The rows of an Arrow batch or table, without the columns `but`. `times` are their times (ms)."""

    __slots__ = ("_asked", "_batch", "_cells", "_rows", "_unread", "times")

    def __init__(self, batch: Any, times: Sequence[int], but: Sequence[str] = ()) -> None:
        self._batch = batch
        self.times = times
        self._cells = _Cells(batch, but)
        self._asked: dict[Where, list[bool]] = {}
        self._rows: list[Any] | None = None
        # rows that have the cells of the columns that were read, one at least, because what is written in C asks
        # whether a dict is empty, and no method of it; they know the cells and not this object, which knows them: in a
        # ring they would wait for the garbage collector
        self._unread: list[UnreadRow] = []

    def rows(self) -> list[Any]:
        """Return the rows as dicts. O(cells) at the first call."""
        if self._rows is None:
            self._rows = rows_of_arrow(self._batch.select(self._cells.names))
        return self._rows

    def column(self, name: str) -> list[Any]:
        """Return a column; None for each row where the batch has none. O(rows) at the first call."""
        return self._cells.column(name)

    def asked(self, where: Where) -> list[bool]:
        """Return for each row whether a function of it is true. O(rows) at the first call."""
        answers = self._asked.get(where)
        if answers is None:
            if self._rows is not None:
                answers = asked(where, self._rows)
            else:
                # the first row says which columns the function reads
                answers = asked(where, self._unread_rows(1)[:1])
                answers += asked(where, self._unread_rows(self._batch.num_rows)[1:])
            self._asked[where] = answers
        return answers

    def _unread_rows(self, count: int) -> list[UnreadRow]:
        """Return the first rows, `count` at least, with the cells of the columns that were read so far."""
        cells, unread = self._cells, self._unread
        names = tuple(cells.read) or cells.names[:1]
        if not unread or len(unread) < count or not set(names) <= dict.keys(unread[-1]):
            unread = list(map(UnreadRow, repeat(cells), range(min(count, self._batch.num_rows))))
            self._unread = rows_of(names, list(map(cells.column, names)), unread)
        return self._unread


class UnreadRow(dict[str, Any]):
    """A row of an Arrow batch that reads each cell when it is asked for, and a dict in every other respect."""

    __slots__ = ("_at", "_source")

    def __init__(self, source: _Cells, at: int) -> None:
        self._source = source
        self._at = at

    def __missing__(self, name: str) -> Any:
        value = self._source.of(name, self._at)
        self[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._source.names

    def get(self, name: str, default: Any = None) -> Any:
        """Return the cell of a column, or the default without such a column."""
        return self[name] if name in self._source.names else default

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)

    def _fill(self) -> None:
        """Read all cells, in the order of the columns."""
        cells = {name: self[name] for name in self._source.names}
        dict.clear(self)
        dict.update(self, cells)


_OF_WHOLE_ROWS: Final = ("__eq__", "__iter__", "__len__", "__ne__", "__or__", "__repr__", "__reversed__", "__ror__")
_METHODS: Final = ("copy", "items", "keys", "pop", "popitem", "setdefault", "values")


def _filled(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def of_whole_row(row: UnreadRow, *arguments: Any) -> Any:
        row._fill()
        return method(row, *arguments)

    return of_whole_row


for _name in (*_OF_WHOLE_ROWS, *_METHODS):
    setattr(UnreadRow, _name, _filled(_name))
