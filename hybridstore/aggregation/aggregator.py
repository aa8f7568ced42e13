"""An aggregator: functions that turn values into an aggregate, and declared powers.

    init() -> aggregate      add(aggregate, value) -> aggregate          always
    merge(older, newer) -> aggregate                                     may combine two aggregates
    subtract(aggregate, value) -> aggregate                              may take the oldest value out again
    commutative, exact_subtract                                          may be computed in another order; without drift

A sliding window's cost per record follows from the powers alone: see `docs/sliding-windows.md`.

The surprise: `commutative` is False unless declared. The fast algorithms for an aggregator that can only add, KIP-450's
sqrt(N) design as well as the ladder, apply newer values before older ones *even on a stream in order*. Appending to a
list, keeping the last value, joining text, moving averages and state machines would silently give wrong results.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any, Literal, Self

from .projection import Projection, Where, cell, name_of

Add = Callable[[Any, Any], Any]

_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None), frozenset, Decimal, date})


def independent_copy(aggregate: Any) -> Any:
    """Return a copy that shares nothing mutable with `aggregate`; atoms are returned as they are.

    Flat lists, dicts, sets and tuples of atoms are copied at C speed, anything else by `copy.deepcopy`, which is 3 to 6
    times slower than a custom copy function. A nested object is never copied shallowly.
    """
    kind = type(aggregate)
    if kind in _ATOMS:
        return aggregate
    if kind is list or kind is set:
        if _ATOMS.issuperset(map(type, aggregate)):
            return aggregate.copy()
    elif kind is tuple:
        if _ATOMS.issuperset(map(type, aggregate)):
            return aggregate
    elif kind is dict and _ATOMS.issuperset(map(type, aggregate.values())):
        # keys are hashable, so they do not change
        return aggregate.copy()
    return copying.deepcopy(aggregate)


def _function(argument: str, value: Any, *, optional: bool = False) -> None:
    if not callable(value) and not (optional and value is None):
        hint = {
            "init": " (init makes a new aggregate each time: give a function, such as `list` or `lambda: 0`)",
            "where": " of a row, such as `lambda row: row['bytes'] > 0`",
        }.get(argument, "")
        raise TypeError(f"aggregator: {argument}: found {type(value).__name__}, expected a function{hint}")


def check_aggregator(value: object, argument: str, example: str) -> None:
    """Raise TypeError, naming the argument, unless the value is an Aggregator; a class is not called yet."""
    if not isinstance(value, Aggregator):
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{argument}: found {kind}, expected an Aggregator (such as {example})")


class Aggregator:
    """Functions that turn values into an aggregate, and the promises that they keep.

    `init()` returns a new, empty aggregate at each call. `add(aggregate, value)` returns the aggregate with the value
    added; `add` may change and return its first argument or return another object, so only the returned object is used.
    `add` must not change the value.

    `merge(older, newer)` returns the aggregate of both; `merge` may change the first and must neither change nor keep
    parts of the second. `subtract(aggregate, value)` removes `value`, which is the oldest value if the aggregator is
    not commutative. `result(aggregate)` returns the result for the user, without changing the aggregate or sharing
    mutable parts with it. `add_many(aggregate, values)` is a faster `add` for each value of a sequence.

    `copy(aggregate)` returns an independent copy. None: atoms as they are, flat containers at C speed, others by
    `copy.deepcopy`. False: no copies at all; this promises that `add`, `merge` and `subtract` never change an aggregate
    in place, and that the user does not change results.

    `commutative` promises that the order of values does not change the result. The default False is slow but always
    right. `exact_subtract` promises that `subtract` leaves no trace of the value, which is false for floats: True, or
    the types of values for which this holds (`(int, bool)`). Without `exact_subtract`, `subtract` is only used if its
    strategy is named.

    `timed`: `add`, `add_many` and `subtract` are given tuples (event time in ms, value) in place of values, so that the
    time of a value may decide, and not the order of arrival, which depends on where commits are cut.

    `where(row)` says which rows of a topology are added: a function of the row, a dict. The function's name is part of
    `describe()`, and so is `name`, by which stored state is compared with the code; by default the names of the
    functions.

    Raises TypeError if a function is not callable.

    >>> largest_gap = hs.Aggregator(
    ...     init=lambda: (None, 0),
    ...     add=lambda state, ts: (ts, 0 if state[0] is None else max(state[1], ts - state[0])),
    ...     result=lambda state: state[1],
    ...     copy=False,
    ...     name="largest gap",
    ... )
    >>> largest_gap.of([0, 300, 450])
    300
    """

    __slots__ = (
        "add",
        "add_many",
        "better",
        "column",
        "commutative",
        "copy",
        "exact_subtract",
        "init",
        "linear",
        "merge",
        "name",
        "parameters",
        "result",
        "subtract",
        "timed",
        "where",
    )

    def __init__(
        self,
        init: Callable[[], Any],
        add: Add,
        merge: Add | None = None,
        subtract: Add | None = None,
        *,
        copy: Callable[[Any], Any] | Literal[False] | None = None,
        result: Callable[[Any], Any] | None = None,
        commutative: bool = False,
        exact_subtract: bool | tuple[type, ...] = False,
        add_many: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
        where: Where = None,
        timed: bool = False,
    ) -> None:
        _function("init", init)
        _function("add", add)
        for argument, value in (("merge", merge), ("subtract", subtract), ("result", result), ("add_many", add_many)):
            _function(argument, value, optional=True)
        if copy is not False:
            _function("copy", copy, optional=True)
        if exact_subtract and subtract is None:
            raise ValueError("aggregator: exact_subtract: found without subtract, expected both or neither")
        self.init = init
        self.add = add
        self.merge = merge
        self.subtract = subtract
        self.copy: Callable[[Any], Any] | None = None if copy is False else copy or independent_copy
        """None where aggregates never change in place."""
        self.result = result
        self.commutative = commutative
        self.exact_subtract = exact_subtract
        self.add_many = add_many
        self.column: str | None = None
        """The column of a row that is the value; None: the row itself."""
        self.better: Callable[[Any, Any], bool] | None = None
        """For an aggregate that is one of the values: whether the first, a newer value, replaces the second."""
        self.timed = timed
        """Whether `add`, `add_many` and `subtract` are given (event time in ms, value) in place of values."""
        self.linear = False
        """Whether an aggregate is as large as what went in, so that holding several at once does not pay."""
        self.where: Where = None
        """The function of a row (a dict) that says whether the row is added; None: all rows are."""
        self.name = name or "aggregator"
        self.parameters: list[Any] = [] if name else [f and name_of(f) for f in (init, add, merge, subtract, result)]
        self.only(where)

    def on(self, column: str) -> Self:
        """Return this aggregator bound to a column of its input rows.

        >>> biggest = hs.Max().on("bytes")
        >>> biggest, biggest.value_of({"ip": "10.0.0.7", "bytes": 32})
        (Max('bytes'), 32)
        """
        if not isinstance(column, str):
            raise TypeError(f"aggregator {self.name}: column: found {type(column).__name__}, expected str")
        bound = copying.copy(self)
        bound.column = column
        return bound

    def value_of(self, row: Any) -> Any:
        """Return the value that is added for a row: that of the bound column (None if the row has none), or the row
        itself.
        """
        projection = self.projection
        if isinstance(projection, Projection):
            return projection.of(row)
        return row if projection is None else cell(row, projection)

    def only(self, where: Where) -> None:
        """Set `where`, the function that says which rows are added. Raises TypeError for anything but a function or
        None.
        """
        _function("where", where, optional=True)
        self.where = where

    def with_time(self, column: str) -> Aggregator:
        """Return this aggregator for rows whose event time is in a column; itself if time decides nothing."""
        return self

    @property
    def projection(self) -> Projection | str | None:
        """What the aggregator is given of a row: the value of a column, the row (None), or a projection."""
        if self.where is None:
            return self.column
        return Projection(self.column, self.where, counts=self.column is None and self.name == "count")

    def fold(self, aggregate: Any, values: Iterable[Any]) -> Any:
        """Return `aggregate` with all of `values` added, in their order."""
        if self.add_many is not None:
            return self.add_many(aggregate, values)
        return reduce(self.add, values, aggregate)

    def exact_for(self, value: Any) -> bool:
        """Return whether `subtract` leaves no trace of this value."""
        exact = self.exact_subtract
        return exact if isinstance(exact, bool) else type(value) in exact

    def finish(self, aggregate: Any) -> Any:
        """Return the result of `aggregate`; both share no mutable part."""
        if self.result is not None:
            return self.result(aggregate)
        return aggregate if self.copy is None else self.copy(aggregate)

    def of(self, values: Iterable[Any]) -> Any:
        """Return the result for `values` in their order, which every strategy must equal. If the aggregator is timed,
        their places are their times.

        >>> hs.Last().of([1, 2, 3])
        3
        """
        given: list[Any] = list(enumerate(values)) if self.timed else list(values)
        return self.finish(self.fold(self.init(), given))

    def describe(self) -> list[Any]:
        """Return a stable description of plain lists, text and numbers: equal for equal aggregators, also in later
        releases.

        >>> hs.Sum("bytes").describe()
        ['sum', 'bytes']
        """
        projection = self.projection
        given = projection.describe() if isinstance(projection, Projection) else projection
        return [self.name, given, *self.parameters]

    def powers(self) -> list[str]:
        """Return the names of the declared powers, such as ["commutative", "merge", "subtract"].

        >>> hs.Sum().powers()
        ['commutative', 'merge', 'subtract', 'exact subtract of int, bool, float']
        """
        exact = self.exact_subtract
        limits = "" if exact is True or not exact else " of " + ", ".join(t.__name__ for t in exact)
        powers = {
            "commutative": self.commutative,
            "merge": self.merge is not None,
            "subtract": self.subtract is not None,
            f"exact subtract{limits}": bool(exact),
            "selection": self.better is not None,
        }
        return [power for power, declared in powers.items() if declared]

    def __repr__(self) -> str:
        named = type(self) is Aggregator and not self.parameters
        arguments = [repr(self.column)] if self.column is not None else []
        arguments += [f"name={self.name!r}"] if named else map(repr, self.parameters)
        arguments += [] if self.where is None else [f"where={name_of(self.where)}"]
        return f"{type(self).__name__}({', '.join(arguments)})"


class Builtin(Aggregator):
    """An aggregator that comes with the library: a fixed name, its column and its powers, as of an `Aggregator`."""

    __slots__ = ()

    def __init__(
        self,
        name: str,
        column: str | None,
        init: Callable[[], Any],
        add: Add,
        *,
        copy: Callable[[Any], Any] | Literal[False] | None = False,
        commutative: bool = True,
        parameters: Sequence[Any] = (),
        **powers: Any,
    ) -> None:
        super().__init__(init, add, copy=copy, commutative=commutative, name=name, **powers)
        if column is not None and not isinstance(column, str):
            raise TypeError(f"{name}: column: found {type(column).__name__}, expected str")
        self.column = column
        self.parameters = list(parameters)


def no_value() -> None:
    """The aggregate of no value, where any value takes its place."""


class Choice(Builtin):
    """A built-in aggregator that chooses one of its values by `add`; None chooses nothing."""

    __slots__ = ()

    def __init__(self, name: str, column: str | None, add: Add, *, where: Where = None, **more: Any) -> None:
        def merge(older: Any, newer: Any) -> Any:
            return older if newer is None else add(older, newer)

        super().__init__(name, column, no_value, add, merge=merge, where=where, **more)
