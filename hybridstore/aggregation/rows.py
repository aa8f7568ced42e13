"""Aggregators whose results are rows, or chosen columns of rows: those that are the greatest, least, first or last by a
column.

    row ── projection ──▶ [by, time, chosen] ── beats ──▶ the row that stays

An aggregate is the value that stays, so results depend neither on the order in which rows arrive nor on where commits
are cut: of rows that are equal by the column the event time decides, and then the packed bytes of what is chosen.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any, ClassVar

from changelog.codec import pack

from .aggregator import Aggregator, no_value
from .projection import Projection, Where, name_of

Beats = Callable[[Any, Any], bool]


def _tied_first(new: Any, old: Any) -> bool:
    """Whether of two rows that are equal by their column the first argument is the one of event order before."""
    if new[1] != old[1]:
        return bool(new[1] < old[1])
    return pack(new[2]) < pack(old[2])


def _greater(new: Any, old: Any) -> bool:
    return _tied_first(new, old) if new[0] == old[0] else bool(new[0] > old[0])


def _less(new: Any, old: Any) -> bool:
    return _tied_first(new, old) if new[0] == old[0] else bool(new[0] < old[0])


def _later(new: Any, old: Any) -> bool:
    return _tied_first(old, new) if new[0] == old[0] else bool(new[0] > old[0])


def chosen_columns(kind: str, columns: Any) -> tuple[str, ...] | str | None:
    """Return the chosen columns. Raises TypeError or ValueError, which name the aggregator, for other values."""
    if columns is None or (isinstance(columns, str) and columns):
        return columns
    if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"{kind}: columns: found {columns!r}, expected the name of a column, or a list of names")
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"{kind}: columns: found {columns!r}, expected at least one name, and each once")
    return tuple(columns)


def chosen(columns: tuple[str, ...] | str | None) -> Callable[[Any], Any]:
    """Return the function that makes the result of a value: a row, a row of the chosen columns, or one value."""
    if isinstance(columns, tuple):
        names = columns
        return lambda value: dict(zip(names, value[2], strict=True))
    return lambda value: dict(value[2]) if columns is None else value[2]


class OfRows(Aggregator):
    """An aggregator that chooses rows by a column. Made by the classes below, and by `TopK` with `by`."""

    __slots__ = ("by", "chosen_columns", "time_column")

    def __init__(
        self,
        kind: str,
        by: str,
        columns: Sequence[str] | str | None,
        where: Where,
        init: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        *,
        add_many: Callable[[Any, Any], Any] | None = None,
        better: Beats | None = None,
        in_place: bool = False,
        parameters: Sequence[Any] = (),
    ) -> None:
        if type(by) is not str or not by:
            raise TypeError(f"{kind}: by: found {by!r}, expected the name of a column")
        super().__init__(
            init,
            add,
            merge,
            copy=list.copy if in_place else False,
            result=result,
            add_many=add_many,
            commutative=True,
            name=kind,
            where=where,
        )
        self.better = better
        self.by = by
        self.chosen_columns = chosen_columns(kind, columns)
        self.time_column: str | None = None
        self.parameters = list(parameters)

    def with_time(self, column: str) -> Aggregator:
        bound = copying.copy(self)
        bound.time_column = column
        return bound

    @property
    def projection(self) -> Projection:
        return Projection(where=self.where, by=self.by, columns=self.chosen_columns, time=self.time_column)

    def __repr__(self) -> str:
        top = [repr(part) for part in self.parameters]
        given = [*top, f"by={self.by!r}"] if top else [repr(self.by)]
        given += [] if self.chosen_columns is None else [f"columns={self.chosen_columns!r}"]
        given += [] if self.where is None else [f"where={name_of(self.where)}"]
        return f"{'TopK' if top else type(self).__name__}({', '.join(given)})"

    def of(self, values: Any) -> Any:
        """Return the result for rows (dicts); their places are their times, if no column has them.

        >>> hs.MaxBy("bytes").of([{"page": "/", "bytes": 10}, {"page": "/help", "bytes": 32}])
        {'page': '/help', 'bytes': 32}
        """
        projected = enumerate(map(self.value_of, values))
        given = [
            [value[0], place if self.time_column is None else value[1], value[2]]
            for place, value in projected
            if value is not None
        ]
        return self.finish(self.fold(self.init(), given))


class _OneRow(OfRows):
    __slots__ = ()
    _rule: ClassVar[tuple[str, Beats]]

    def __init__(self, by: str, columns: Sequence[str] | str | None = None, *, where: Where = None) -> None:
        kind, beats = self._rule
        make = chosen(chosen_columns(kind, columns))

        def add(state: Any, value: Any) -> Any:
            return value if state is None or beats(value, state) else state

        super().__init__(
            kind,
            by,
            columns,
            where,
            no_value,
            add,
            lambda older, newer: older if newer is None else add(older, newer),
            lambda state: None if state is None else make(state),
            better=beats,
        )


class MaxBy(_OneRow):
    """The row with the greatest value in the column `by`: None if no row has one.

    `columns` chooses what the result has of the row: a list of names, or one name, for the value alone (None: the row
    as a dict, on Spark a struct). Of equal values the earliest row is chosen, of equal times the one whose packed bytes
    are the smaller. NaN and None in `by` are ignored. Raises TypeError or ValueError for other columns than names.

    >>> hits = [{"page": "/", "bytes": 10}, {"page": "/help", "bytes": 32}]
    >>> hs.MaxBy("bytes").of(hits), hs.MaxBy("bytes", "page").of(hits)
    ({'page': '/help', 'bytes': 32}, '/help')
    """

    __slots__ = ()
    _rule = ("max_by", _greater)


class MinBy(_OneRow):
    """The row with the least value in the column `by`: None if no row has one. See `MaxBy`; of equal values the
    earliest row is chosen.

    >>> hs.MinBy("bytes", ["page"]).of([{"page": "/", "bytes": 10}, {"page": "/help", "bytes": 32}])
    {'page': '/'}
    """

    __slots__ = ()
    _rule = ("min_by", _less)


class FirstBy(_OneRow):
    """The first row by the column `by`, such as a time or a sequence number: None if no row has a value there.

    Of equal values the earliest row in event time is chosen. See `MaxBy` for `columns`.

    >>> hs.FirstBy("seq", "page").of([{"page": "/", "seq": 2}, {"page": "/help", "seq": 1}])
    '/help'
    """

    __slots__ = ()
    _rule = ("first_by", _less)


class LastBy(_OneRow):
    """The last row by the column `by`, such as a time or a sequence number: None if no row has a value there.

    Of equal values the latest row in event time is chosen, of equal times the one whose packed bytes are the greater.
    See `MaxBy` for `columns`.

    >>> hs.LastBy("seq", "page").of([{"page": "/", "seq": 2}, {"page": "/help", "seq": 1}])
    '/'
    """

    __slots__ = ()
    _rule = ("last_by", _later)


def _compared(a: Any, b: Any) -> int:
    return -1 if _greater(a, b) else 1 if _greater(b, a) else 0


def _sort(best: list[Any]) -> None:
    """Sort values, the greatest first. A function of the module, because closures are sent to workers with what they
    name."""
    best.sort(key=cmp_to_key(_compared))


class TopRows(OfRows):
    """The k rows with the greatest values in a column, greatest first: what `TopK(k, by=...)` makes."""

    __slots__ = ()

    def __init__(self, k: int, by: str, columns: Sequence[str] | str | None, where: Where) -> None:
        make = chosen(chosen_columns("topk", columns))

        def add(best: list[Any], value: Any) -> list[Any]:
            by, place = value[0], len(best)
            # most values are below all of k, and are compared with the last one only
            while place and (
                _tied_first(value, best[place - 1]) if by == best[place - 1][0] else by > best[place - 1][0]
            ):
                place -= 1
            if place < k:
                best.insert(place, value)
                del best[k:]
            return best

        def add_many(best: list[Any], values: Sequence[Any]) -> list[Any]:
            for value in values:
                # most values are below all of k
                if len(best) < k or value[0] == best[-1][0] or value[0] > best[-1][0]:
                    add(best, value)
            return best

        def merge(older: list[Any], newer: list[Any]) -> list[Any]:
            older += newer
            _sort(older)
            del older[k:]
            return older

        super().__init__(
            "topk",
            by,
            columns,
            where,
            list,
            add,
            merge,
            lambda best: list(map(make, best)),
            add_many=add_many,
            in_place=True,
            parameters=[k],
        )
