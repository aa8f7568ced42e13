"""Shapes: how the rows of an input are stored, and made into results again.

A row is stored as the list of its values, without its key and its time, which the store has. The names of the columns
are stored once for each input: they are declared, or taken from the first row of the input that the shard sees. A row
with other columns is stored as a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from ...state.group import StoreGroup
from ..times import listed
from .pairs import values_of
from .spec import Input

SHAPES: Final = "columns of the inputs"


class Shape:
    """The columns of one input on one shard.

    The surprise: the time of a row is stored with its values only if it is no int, because a store keeps whole
    milliseconds: such a list is one value longer.
    """

    def __init__(self, source: Input, group: StoreGroup, side: int) -> None:
        self._source = source
        self._group = group
        self._side = str(side)
        self._apart = frozenset((*source.key, source.timestamp))
        self.names: tuple[str, ...] | None = None
        """The columns besides key and time; None while they are unknown."""
        names: Any = group.settings.get(SHAPES, {}).get(self._side) if source.columns is None else source.columns
        if names is not None:
            self._learn([name for name in names if name not in self._apart])

    def _learn(self, names: list[str]) -> None:
        self.names = tuple(names)
        taken: Callable[[Mapping[str, Any]], tuple[Any, ...]]
        if not names:
            taken = _nothing
        elif len(names) == 1:
            only = names[0]
            taken = lambda row: (row[only],)  # noqa: E731
        else:
            taken = itemgetter(*names)
        self._taken = taken
        # the columns of a row that has exactly these names, besides key and time
        self._width = len(names) + len(self._apart)

    @property
    def timestamp(self) -> str:
        """The column with the time of a row."""
        return self._source.timestamp

    def named(self, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Return `names` for rows that all have these columns, or None if they are not the columns of earlier rows."""
        names = [name for name in columns if name not in self._apart]
        if self.names is None:
            self._store(names)
        assert self.names is not None
        return self.names if self._source.columns is not None or set(names) == set(self.names) else None

    def _store(self, names: list[str]) -> None:
        self._group.set(SHAPES, {**self._group.settings.get(SHAPES, {}), self._side: names})
        self._learn(names)

    def encoded(self, row: Mapping[str, Any]) -> Any:
        """Return the value that is stored for a row. O(columns)."""
        if self.names is None:
            self._store([name for name in row if name not in self._apart])
        moment = row[self._source.timestamp]
        try:
            values = [*self._taken(row)]
        except KeyError:
            if self._source.columns is None:
                return self._as_dict(row)
            values = [row.get(name) for name in self.names or ()]
        if self._source.columns is None and len(row) != self._width:
            return self._as_dict(row)
        if type(moment) is not int:
            values.append(plain(moment))
        return values

    def no_key(self, row: Mapping[str, Any]) -> Any:
        """Return what a row has in place of a key: a column is None or nan, others may have values. O(columns)."""
        parts = tuple([plain(row[name]) for name in self._source.key])
        return parts[0] if len(parts) == 1 else parts

    def _as_dict(self, row: Mapping[str, Any]) -> dict[str, Any]:
        moment = row[self._source.timestamp]
        value = {name: part for name, part in row.items() if name not in self._source.key}
        if type(moment) is int:
            del value[self._source.timestamp]
        else:
            value[self._source.timestamp] = plain(moment)
        return value

    def encoded_all(self, rows: list[Mapping[str, Any]]) -> list[Any]:
        """Return the values that are stored for rows, each as `encoded` gives it. O(rows), at C speed for dicts of the
        known columns with times in ms.
        """
        if not rows:
            return []
        first = self.encoded(rows[0])  # names the columns
        if self._source.columns is None and set(map(len, rows)) != {self._width}:
            return list(map(self.encoded, rows))
        try:
            columns = [list(map(itemgetter(name), rows)) for name in (self._source.timestamp, *(self.names or ()))]
        except KeyError:
            return list(map(self.encoded, rows))
        if set(map(type, columns[0])) != {int}:
            return list(map(self.encoded, rows))
        return values_of(columns[1:], len(rows)) if type(first) is list else list(map(self.encoded, rows))

    def columns(self, values: list[Any], times: Any) -> list[Any] | None:
        """Return times and values of stored rows, at least of one, by column, in the order of `names`, with None for a
        row whose time is None; None if a row has other columns. O(rows).
        """
        width = len(self.names or ())
        absent = type(times) is list and None in times
        present = values if not absent else [value for value, ts in zip(values, times, strict=True) if ts is not None]
        if present and set(map(type, present)) != {list}:
            return None
        if {width}.issuperset(map(len, present)):
            if absent:
                none = [None] * width
                values = [none if ts is None else value for value, ts in zip(values, times, strict=True)]
            return [times, *map(list, zip(*values, strict=True))]
        none = [None] * (width + 1)
        rows = [
            none if ts is None else (ts, *value) if len(value) == width else (value[-1], *value[:-1])
            for value, ts in zip(values, listed(times), strict=True)
        ]
        return list(map(list, zip(*rows, strict=True)))

    def mapping(self, value: Any, ts: int) -> dict[str, Any]:
        """Return the columns of a stored row by name, without its key. O(columns)."""
        if type(value) is dict:
            return {self._source.timestamp: ts, **value}
        columns = self.columns([value], [ts])
        assert columns is not None
        names = (self._source.timestamp, *(self.names or ()))
        return {name: part for name, (part,) in zip(names, columns, strict=True)}


def _nothing(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


def plain(moment: Any) -> Any:
    """Return a time as Python's own type, in place of those of pandas and numpy; all else as it is."""
    if hasattr(moment, "to_pydatetime"):
        return moment.to_pydatetime()
    return moment.item() if hasattr(moment, "dtype") else moment
