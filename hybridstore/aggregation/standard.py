"""The built-in aggregators, each with its true powers.

    Count                        exact subtract, merge, commutative
    Sum Mean Variance            exact subtract (of ints and floats), merge, commutative
    Min Max                      selection, merge, commutative
    TopK                         merge, commutative
    CollectSet                   exact subtract, merge, commutative (`kept`)
    First Last Collect           merge, commutative: they are given the times of values (`kept`)
    Reduce(function)             what its arguments declare

Aggregates are plain numbers, text, lists, dicts and tuples, so that any store can hold them. Values are never changed;
the results of First, Last, Min, Max, TopK and Collect are the put objects themselves.

The surprise: sums of floats are exact (`exact`). An aggregate of them is a list of ints, which is rounded once, for the
result; so neither the order of the values nor where they were added up shows. Decimals are added exactly, whatever the
precision of the thread's decimal context.
"""

from __future__ import annotations

import operator
from bisect import insort
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import nan
from typing import Any, Final

from . import exact
from .aggregator import Builtin, Choice, independent_copy, no_value
from .projection import Where, name_of
from .rows import TopRows


def count_one(total: int, _value: Any) -> int:
    """Count a value."""
    return total + 1


def _uncount(total: int, _value: Any) -> int:
    return total - 1


def _count_many(total: int, values: Sequence[Any]) -> int:
    return total + len(values)


class Count(Builtin):
    """How many values: 0 if none. With a column, how many rows have a value there.

    >>> hs.Count().of(["/", "/help", "/"])
    3
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        if column == "*":
            raise ValueError("count: column: found '*', expected the name of a column, or Count() for all rows")
        super().__init__(
            "count",
            column,
            int,
            count_one,
            merge=operator.add,
            subtract=_uncount,
            exact_subtract=True,
            add_many=_count_many,
            where=where,
        )


_MEAN_PLACES: Final = 4  # a mean of decimals has this many decimal places more than their sum


class Sum(Builtin):
    """The sum of numbers: 0 if none. Exact: with floats among the values, the float nearest to the true sum, whatever
    their order. A bool counts as 0 or 1.

    Raises TypeError for floats beside decimals. O(1) per value of an ordinary range.

    >>> hs.Sum().of([1, 2, 4]), hs.Sum().of([])
    (7, 0)
    >>> hs.Sum().of([0.1] * 10), hs.Sum().of([1e17, 1.5, -1e17])
    (1.0, 1.5)
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__(
            "sum",
            column,
            int,
            exact.add,
            merge=exact.merge,
            subtract=exact.subtract,
            exact_subtract=exact.KINDS,
            add_many=exact.add_many,
            result=exact.result,
            where=where,
        )


def _no_mean() -> tuple[int, int]:
    return (0, 0)


def mean_add(state: tuple[Any, int], value: Any) -> tuple[Any, int]:
    """Add a number to a sum and a count."""
    return (exact.add(state[0], value), state[1] + 1)


def _mean_merge(older: tuple[Any, int], newer: tuple[Any, int]) -> tuple[Any, int]:
    return (exact.merge(older[0], newer[0]), older[1] + newer[1])


def _mean_subtract(state: tuple[Any, int], value: Any) -> tuple[Any, int]:
    return (exact.subtract(state[0], value), state[1] - 1)


def _mean_many(state: tuple[Any, int], values: Sequence[Any]) -> tuple[Any, int]:
    return (exact.add_many(state[0], values), state[1] + len(values))


def _mean_result(state: tuple[Any, int]) -> Any:
    total, count = state
    if not count:
        return None
    if type(total) is Decimal:
        return _mean_of_decimals(total, count) if total.is_finite() else total / count
    return exact.over(total, count) if type(total) is list or isinstance(total, int) else total / count


def _mean_of_decimals(total: Decimal, count: int) -> Decimal:
    """Return the mean, rounded half up to four places more than the sum has, as in SQL, independent of any decimal
    context.
    """
    exponent = total.as_tuple().exponent
    assert isinstance(exponent, int)
    places = max(0, -exponent) + _MEAN_PLACES
    units = int(exact.DECIMALS.scaleb(total, places))
    rounded = (2 * abs(units) + count) // (2 * count)
    return exact.DECIMALS.scaleb(Decimal(rounded if units >= 0 else -rounded), -places)


class Mean(Builtin):
    """The arithmetic mean of numbers: None if none. The float nearest to the true mean.

    The mean of decimals is rounded half up to four places more than the decimals have, as in Spark.

    >>> hs.Mean().of([1, 2, 4, 5]), hs.Mean().of([])
    (3.0, None)
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__(
            "mean",
            column,
            _no_mean,
            mean_add,
            merge=_mean_merge,
            subtract=_mean_subtract,
            exact_subtract=exact.KINDS,
            add_many=_mean_many,
            result=_mean_result,
            where=where,
        )


def _min_add(least: Any, value: Any) -> Any:
    if value != value:  # NaN has no order, so it is no candidate
        return least
    return value if least is None or value <= least else least


def _max_add(most: Any, value: Any) -> Any:
    if value != value:
        return most
    return value if most is None or value >= most else most


def _min_many(least: Any, values: Sequence[Any]) -> Any:
    # of equal values the last one stays, as one by one
    ordered = [value for value in reversed(values) if value == value]
    return _min_add(least, min(ordered)) if ordered else least


def _max_many(most: Any, values: Sequence[Any]) -> Any:
    ordered = [value for value in reversed(values) if value == value]
    return _max_add(most, max(ordered)) if ordered else most


class Min(Choice):
    """The least value: None if none. NaN is ignored; of equal values any may be returned (1 or 1.0). Spark's `min`
    returns the same, unless all values are NaN.

    >>> hs.Min().of([4, float("nan"), 2])
    2
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__("min", column, _min_add, where=where, add_many=_min_many)
        self.better = operator.le


class Max(Choice):
    """The greatest value: None if none. NaN is ignored, while for Spark's `max` NaN is the greatest value; of equal
    values any may be returned (1 or 1.0).

    >>> hs.Max().of(["ann", "eve", "bob"])
    'eve'
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__("max", column, _max_add, where=where, add_many=_max_many)
        self.better = operator.ge


def _check_k(k: object) -> None:
    if type(k) is not int or k < 1:
        raise ValueError(f"topk: k: found {k!r}, expected an int of at least 1")


class TopK(Builtin):
    """The k greatest values, greatest first. NaN is ignored; of equal values any may be kept.

    With `by` the k rows with the greatest values in that column, and `columns` chooses what a result has of each row,
    as in `MaxBy`; of equal values the earlier row is kept. Raises ValueError if `k` is not a positive int.

    >>> hs.TopK(2).of([3, 1, 4, 1, 5])
    [5, 4]
    >>> hs.TopK(1, by="bytes", columns=["page"]).of([{"page": "/", "bytes": 10}, {"page": "/help", "bytes": 32}])
    [{'page': '/help'}]
    """

    __slots__ = ()

    def __new__(
        cls,
        k: int = 1,
        column: str | None = None,
        *,
        by: str | None = None,
        columns: Sequence[str] | str | None = None,
        where: Where = None,
    ) -> Any:
        """Return an aggregator of values, or with `by` one of rows. A copy is made without arguments."""
        if by is None:
            if columns is not None:
                raise ValueError(f"topk: columns: found {columns!r} without by, expected the column that decides: by=")
            return super().__new__(cls)
        _check_k(k)
        if column is not None:
            raise ValueError(f"topk: column: found {column!r} beside by={by!r}, expected columns={column!r}")
        return TopRows(k, by, columns, where)

    def __init__(
        self,
        k: int,
        column: str | None = None,
        *,
        by: str | None = None,
        columns: Sequence[str] | str | None = None,
        where: Where = None,
    ) -> None:
        _check_k(k)

        def add(best: list[Any], value: Any) -> list[Any]:
            # ascending, so that a new value must beat the first one
            if len(best) < k:
                if value == value:  # not NaN
                    insort(best, value)
            elif value > best[0]:
                del best[0]
                insort(best, value)
            return best

        def add_many(best: list[Any], values: Sequence[Any]) -> list[Any]:
            for value in values:
                # most values are below all of k
                if len(best) < k or value > best[0]:
                    add(best, value)
            return best

        def merge(older: list[Any], newer: list[Any]) -> list[Any]:
            older += newer
            older.sort()
            del older[:-k]
            return older

        super().__init__(
            "topk",
            column,
            list,
            add,
            merge=merge,
            copy=list.copy,
            result=lambda best: best[::-1],
            add_many=add_many,
            parameters=[k],
            where=where,
        )


_Moments = tuple[int, Any, Any]  # count, sum, sum of squares


def _no_moments() -> _Moments:
    return (0, 0, 0)


def _square(value: Any) -> Any:
    """Return the square of a number as an exact total: of a float a list. NaN and infinities are in the sum."""
    if not isinstance(value, float):
        return operator.index(value) ** 2
    n, scale = exact.add(0, value)[:2]
    return [n * n, 2 * scale, 1]


def _moments_add(state: _Moments, value: Any) -> _Moments:
    return (state[0] + 1, exact.add(state[1], value), exact.merge(state[2], _square(value)))


def _moments_subtract(state: _Moments, value: Any) -> _Moments:
    return (state[0] - 1, exact.subtract(state[1], value), exact.split(state[2], _square(value)))


def _moments_merge(older: _Moments, newer: _Moments) -> _Moments:
    return (older[0] + newer[0], exact.merge(older[1], newer[1]), exact.merge(older[2], newer[2]))


def _variance(state: _Moments, ddof: int) -> float | None:
    """Return (count * squares - sum**2) / (count * (count - ddof)), rounded once."""
    count, total, squares = state
    if count <= ddof:
        return None
    n, scale, *counts = total if type(total) is list else (total, 0)
    if len(counts) > 1:
        return nan
    m, other = squares[:2] if type(squares) is list else (squares, 0)
    common = max(2 * scale, other)
    spread = count * (m << (common - other)) - (n * n << (common - 2 * scale))
    return exact.quotient(spread, count * (count - ddof) << common)


class Variance(Builtin):
    """The variance of ints and floats: `ddof` 0 of a population, 1 of a sample. None if too few values.

    The float nearest to the true variance, computed from exact sums of the values and of their squares. Raises
    ValueError if `ddof` is negative.

    >>> hs.Variance().of([1, 2, 3, 4, 5]), hs.Variance(ddof=1).of([1, 2, 3, 4, 5])
    (2.0, 2.5)
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, ddof: int = 0, where: Where = None) -> None:
        if type(ddof) is not int or ddof < 0:
            raise ValueError(f"variance: ddof: found {ddof!r}, expected an int of at least 0")
        super().__init__(
            "variance",
            column,
            _no_moments,
            _moments_add,
            merge=_moments_merge,
            subtract=_moments_subtract,
            exact_subtract=exact.KINDS,
            result=lambda state: _variance(state, ddof),
            parameters=[ddof],
            where=where,
        )


class Reduce(Builtin):
    """Values combined two by two, `function(aggregate, value)`, starting with the first value: None if none.

    The function returns an object of the same kind as a value; the function may change its first argument, never its
    second. The first value is copied before it is combined. `associative` promises that grouping does not matter, so
    that aggregates may be merged, and `commutative` that order does not matter; both are False unless declared. `name`
    is part of `describe()`; by default the function's name.

    >>> path = hs.Reduce(lambda before, page: f"{before} {page}", associative=True, name="path")
    >>> path.of(["/", "/help", "/docs"])
    '/ /help /docs'
    """

    __slots__ = ()

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        column: str | None = None,
        *,
        commutative: bool = False,
        associative: bool = False,
        name: str | None = None,
        where: Where = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"reduce: function: found {type(function).__name__}, expected a function of two values")

        def add(state: Any, value: Any) -> Any:
            return independent_copy(value) if state is None else function(state, value)

        def merge(older: Any, newer: Any) -> Any:
            return older if newer is None else add(older, newer)

        super().__init__(
            "reduce",
            column,
            no_value,
            add,
            merge=merge if associative else None,
            copy=None,
            commutative=commutative,
            parameters=[name or name_of(function)],
            where=where,
        )
