"""Shapes: how the rows of an input are stored, and made into results again.

A row is stored as the list of its values, without its key and its time, which the store has. The names of the columns
are stored once for each input: they are declared, or taken from the first row of the input that the shard sees. A row
with other columns is stored as a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from ...state.group import StoreGroup
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

    def encoded(self, row: Mapping[str, Any]) -> Any:
        """Return the value that is stored for a row. O(columns)."""
        if self.names is None:
            names = [name for name in row if name not in self._apart]
            self._group.set(SHAPES, {**self._group.settings.get(SHAPES, {}), self._side: names})
            self._learn(names)
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
            values.append(_plain(moment))
        return values

    def _as_dict(self, row: Mapping[str, Any]) -> dict[str, Any]:
        moment = row[self._source.timestamp]
        value = {name: part for name, part in row.items() if name not in self._source.key}
        if type(moment) is int:
            del value[self._source.timestamp]
        else:
            value[self._source.timestamp] = _plain(moment)
        return value

    def columns(self, value: Any, ts: int) -> tuple[Any, ...] | None:
        """Return time and values of a stored row, in the order of `names`; None for a row with other columns."""
        if type(value) is not list:
            return None
        if len(value) == len(self.names or ()):
            return (ts, *value)
        return (value[-1], *value[:-1])

    def mapping(self, value: Any, ts: int) -> dict[str, Any]:
        """Return the columns of a stored row by name, without its key. O(columns)."""
        if type(value) is dict:
            return {self._source.timestamp: ts, **value}
        columns = self.columns(value, ts)
        assert columns is not None
        return dict(zip((self._source.timestamp, *(self.names or ())), columns, strict=True))


def _nothing(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


def _plain(moment: Any) -> Any:
    """Return a time as Python's own type, in place of those of pandas and numpy."""
    if hasattr(moment, "to_pydatetime"):
        return moment.to_pydatetime()
    return moment.item() if hasattr(moment, "dtype") else moment
