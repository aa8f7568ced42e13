"""Several aggregators over one stream of rows, computed together, as in `aggregate(a=..., b=...)` of a topology.

    row ── project ──▶ value ── add ──▶ [aggregate of a, aggregate of b, ...] ── result ──▶ (a, b)

A projected value is the part of a row that the aggregators need: the list of its values in the distinct columns; with
one column the value itself and without columns 0, because logging atoms costs a twentieth.

All share one value log. The powers are those that all aggregators have, so one aggregator that needs order makes all of
them slower.

The surprise: a column that is missing or None in a row adds nothing to the aggregators bound to it, as in SQL;
aggregators without a column get the row itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .aggregator import Aggregator, check_aggregator
from .projection import Projection, RowsByColumn, cell

# So many values are added part by part; fewer are added one by one, which takes as long.
_MANY: Final = 8


class Combined(Aggregator):
    """Named aggregators as one; an aggregate is a list, a result a tuple in the order of `names`.

    Raises ValueError without aggregators, TypeError for anything but aggregators.
    """

    __slots__ = ("_copied", "_finishers", "columns", "names", "parts", "places")

    def __init__(self, aggregators: Mapping[str, Aggregator]) -> None:
        if not aggregators:
            raise ValueError("aggregate: found no aggregators, expected at least one (such as requests=Count())")
        for name, part in aggregators.items():
            check_aggregator(part, f"aggregate: {name}", "Count()")
        self.names = tuple(aggregators)
        self.parts = tuple(aggregators.values())
        columns: list[Projection | str | None] = []
        given = [part.projection for part in self.parts]
        for part, projection in zip(self.parts, given, strict=True):
            # a count of rows needs no value
            if projection not in columns and not (projection is None and part.name == "count"):
                columns.append(projection)
        self.columns = tuple(columns)
        """The distinct columns and projections that a projected row holds, in order; None is the row itself."""
        self.places = tuple(columns.index(projection) if projection in columns else -1 for projection in given)
        parts = self.parts
        # what makes the result of a part; a part without either is its own result
        self._finishers = [part.result or part.copy for part in parts]
        self._copied = [(i, part.copy) for i, part in enumerate(parts) if part.copy is not None]
        exact = all(p.exact_subtract for p in parts)
        super().__init__(
            _starting(parts),
            self._each([p.add for p in parts]),
            _both([p.merge for p in parts if p.merge is not None]) if all(p.merge for p in parts) else None,
            self._each([p.subtract for p in parts if p.subtract is not None])
            if all(p.subtract for p in parts)
            else None,
            copy=list.copy if all(p.copy is None for p in parts) else self._copy_all,
            result=tuple if all(p.copy is None and p.result is None for p in parts) else self._finish_all,
            commutative=all(p.commutative for p in parts),
            exact_subtract=exact,
            add_many=self._add_many,
            name="combined",
            timed=any(p.timed for p in parts),
        )
        if exact and any(p.exact_subtract is not True for p in parts):
            # each part is then asked which values are exact
            limits = [p.exact_subtract for p in parts if isinstance(p.exact_subtract, tuple)]
            self.exact_subtract = tuple(dict.fromkeys(kind for kinds in limits for kind in kinds))
        self.linear = all(p.linear for p in parts)
        self.parameters = [[name, *part.describe()] for name, part in aggregators.items()]

    def __reduce__(self) -> tuple[type[Combined], tuple[dict[str, Aggregator]]]:
        # rebuilt from its parts when it is unpickled, because its functions are its own methods
        return Combined, (dict(zip(self.names, self.parts, strict=True)),)

    def project(self, row: Any) -> Any:
        """Return the projected value of a row: the list of its values in the distinct columns, with one column the
        value, without columns 0.
        """
        values = [row if c is None else c.of(row) if isinstance(c, Projection) else cell(row, c) for c in self.columns]
        return values if len(values) > 1 else values[0] if values else 0

    def projected(self, rows: RowsByColumn, count: int) -> list[Any]:
        """Return `project` of so many rows that are given by column. O(rows)."""
        columns = [
            c.of_rows(rows) if isinstance(c, Projection) else rows.rows() if c is None else rows.column(c)
            for c in self.columns
        ]
        if len(columns) < 2:
            return columns[0] if columns else [0] * count
        return list(map(list, zip(*columns, strict=True)))

    def exact_for(self, value: Any) -> bool:
        single = len(self.columns) < 2
        for part, place in zip(self.parts, self.places, strict=True):
            if part.exact_subtract is not True:
                part_value = value if single else value[place]
                if part_value is not None and not part.exact_for(part_value):
                    return False
        return True

    def _copy_all(self, aggregates: list[Any]) -> list[Any]:
        copied = aggregates.copy()
        for i, copy in self._copied:
            copied[i] = copy(copied[i])
        return copied

    def _finish_all(self, aggregates: list[Any]) -> tuple[Any, ...]:
        return tuple([a if make is None else make(a) for make, a in zip(self._finishers, aggregates, strict=True)])

    def _add_many(self, aggregates: list[Any], values: Sequence[Any]) -> list[Any]:
        """Add projected values, in their order, part by part: a part is given all its values at once."""
        if len(values) < _MANY:
            add = self.add
            for value in values:
                aggregates = add(aggregates, value)
            return aggregates
        times: Sequence[int] = ()
        if self.timed:
            times, values = zip(*values, strict=True)
        columns: Sequence[Sequence[Any]] = [values] if len(self.columns) < 2 else list(zip(*values, strict=True))
        for i, (part, place) in enumerate(zip(self.parts, self.places, strict=True)):
            # a count of rows needs no value
            given = values if place < 0 else columns[place]
            if part.timed:
                given = [pair for pair in zip(times, given, strict=True) if pair[1] is not None]
            elif place >= 0:
                given = [value for value in given if value is not None]
            aggregates[i] = part.fold(aggregates[i], given)
        return aggregates

    def _each(self, functions: list[Callable[[Any, Any], Any]]) -> Callable[[list[Any], Any], list[Any]]:
        """Return a function that applies one function of each part to its aggregate and its column's value."""
        steps = [(i, function, place) for i, (function, place) in enumerate(zip(functions, self.places, strict=True))]
        if any(part.timed for part in self.parts):
            return self._each_timed(steps)
        if len(self.columns) > 1:

            def each(aggregates: list[Any], values: list[Any]) -> list[Any]:
                for i, function, place in steps:
                    if place < 0:
                        aggregates[i] = function(aggregates[i], None)
                    else:
                        value = values[place]
                        if value is not None:
                            aggregates[i] = function(aggregates[i], value)
                return aggregates

            return each
        if len(functions) == 1:
            only, counts = functions[0], self.places[0] < 0

            def add_single(aggregates: list[Any], value: Any) -> list[Any]:
                if value is not None or counts:
                    aggregates[0] = only(aggregates[0], value)
                return aggregates

            return add_single
        always = [(i, function) for i, function, place in steps if place < 0]
        if len(functions) == 2:
            first, second = functions

            def two(aggregates: list[Any], value: Any) -> list[Any]:
                if value is not None:
                    aggregates[0] = first(aggregates[0], value)
                    aggregates[1] = second(aggregates[1], value)
                    return aggregates
                for i, function in always:
                    aggregates[i] = function(aggregates[i], None)
                return aggregates

            return two
        every = [(i, function) for i, function, _ in steps]

        def all_of(aggregates: list[Any], value: Any) -> list[Any]:
            for i, function in always if value is None else every:
                aggregates[i] = function(aggregates[i], value)
            return aggregates

        return all_of

    def _each_timed(self, steps: list[tuple[int, Any, int]]) -> Callable[[list[Any], Any], list[Any]]:
        """Return the function of `_each` for (event time, value): parts that are not timed are given the value."""
        single = len(self.columns) == 1
        timed = [part.timed for part in self.parts]

        def each(aggregates: list[Any], pair: tuple[int, Any]) -> list[Any]:
            ts, values = pair
            for i, function, place in steps:
                value = None if place < 0 else values if single else values[place]
                if value is not None or place < 0:
                    aggregates[i] = function(aggregates[i], (ts, value) if timed[i] else value)
            return aggregates

        return each


def _starting(parts: tuple[Aggregator, ...]) -> Callable[[], list[Any]]:
    """Return a function that makes an empty aggregate of every part."""
    if all(part.name in ("count", "sum") for part in parts):
        # zeros: the same list serves every time
        zeros = [part.init() for part in parts]
        return zeros.copy
    return lambda: [part.init() for part in parts]


def _both(merges: list[Callable[[Any, Any], Any]]) -> Callable[[list[Any], list[Any]], list[Any]]:
    """Return a function that merges the parts of two aggregates one by one, into the first."""

    def both(older: list[Any], newer: list[Any]) -> list[Any]:
        for i, merge in enumerate(merges):
            older[i] = merge(older[i], newer[i])
        return older

    return both
