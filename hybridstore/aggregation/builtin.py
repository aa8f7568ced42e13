"""Builtin: the base of the aggregators that come with the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from .aggregator import Add, Aggregator


class Builtin(Aggregator):
    """An aggregator with a fixed name, given its column and its powers."""

    __slots__ = ()

    def __init__(
        self,
        name: str,
        column: str | None,
        init: Callable[[], Any],
        add: Add,
        *,
        merge: Add | None = None,
        subtract: Add | None = None,
        copy: Callable[[Any], Any] | Literal[False] | None = False,
        result: Callable[[Any], Any] | None = None,
        commutative: bool = True,
        exact_subtract: bool | tuple[type, ...] = False,
        add_many: Callable[[Any, Any], Any] | None = None,
        parameters: Sequence[Any] = (),
        timed: bool = False,
    ) -> None:
        super().__init__(
            init,
            add,
            merge,
            subtract,
            copy=copy,
            result=result,
            commutative=commutative,
            exact_subtract=exact_subtract,
            add_many=add_many,
            name=name,
            timed=timed,
        )
        if column is not None and not isinstance(column, str):
            raise TypeError(f"{name}: column: found {type(column).__name__}, expected str")
        self.column = column
        self.parameters = list(parameters)


def no_value() -> None:
    """The aggregate of no value, where any value takes its place."""
