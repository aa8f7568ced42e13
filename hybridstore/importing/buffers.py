"""Buffers: what Spark keeps of an aggregate, as what our aggregators keep of the same values.

    count         bigint                       count_if, too
    sum           a number; of decimals also `isEmpty`
    avg           sum, count
    min, max      the value
    var, stddev   n, avg, m2                   rounded: Spark has no exact sums
    first, last   value, valueSet              Spark's order is that of arrival
    collect_*     a binary array of Spark's

The buffers do not say which aggregate they belong to: they lie in the order of the query's aggregates, where an
aggregate that occurs twice has one. Number and types of the buffers are compared with those that a topology asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isfinite, nan
from typing import Any, Final

from ..aggregation import Aggregator, Projection, exact
from ..aggregation.kept import tally_many
from ..topology.times import arrow_list
from .report import ImportRefusedError

_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
# What Spark has kept came before all that comes, so that it stays the first value, and the next one is the last.
_BEFORE_ALL: Final = 0
_EMPTY: Final = "boolean"
# Distinct values, and a sketch of them.
DISTINCT: Final = "distinct"
SKETCH: Final = "sketch"


@dataclass(frozen=True, slots=True)
class Part:
    """The buffers of one aggregate: its place among the aggregates, the first of its buffers, and their number.

    scale    of the decimals that Spark keeps without their point, as it does for short ones; else None
    element  the type of an element of a binary array
    """

    name: str
    first: int
    width: int
    scale: int | None = None
    element: str = ""

    def read(self, columns: Sequence[Any]) -> list[Any]:
        """Return what our aggregator keeps, for each row of Arrow columns. O(rows)."""
        mine = [arrow_list(column) for column in columns[self.first : self.first + self.width]]
        return _READERS[self.name](self, mine)


def _numbers(part: Part, values: list[Any]) -> list[Any]:
    """Return sums as our exact sums begin with them; 0 for null. O(rows)."""
    if part.scale is not None:
        return [0 if value is None else Decimal(int(value)).scaleb(-part.scale, exact.DECIMALS) for value in values]
    kinds = set(map(type, values))
    if kinds == {float}:
        return exact.each(values)
    return [0 if value is None else exact.add(0, value) if type(value) is float else value for value in values]


def _counts(part: Part, columns: list[list[Any]]) -> list[Any]:
    return [value or 0 for value in columns[0]]


def _sums(part: Part, columns: list[list[Any]]) -> list[Any]:
    if set(map(type, columns[0])) == {int} and part.scale is None:
        return columns[0]
    values = _numbers(part, columns[0])
    return (
        values if part.width == 1 else [0 if empty else value for value, empty in zip(values, columns[1], strict=True)]
    )


def _means(part: Part, columns: list[list[Any]]) -> list[Any]:
    totals, counts = columns
    if None in counts or 0 in counts:
        totals = [total if n else None for total, n in zip(totals, counts, strict=True)]
        counts = [n or 0 for n in counts]
    return list(zip(_numbers(part, totals), counts, strict=True))


def _values(part: Part, columns: list[list[Any]]) -> list[Any]:
    return columns[0]


def _moments(part: Part, columns: list[list[Any]]) -> list[Any]:
    rows = []
    for n, mean, m2 in zip(*columns, strict=True):
        count = int(n or 0)
        if not (isfinite(mean or 0.0) and isfinite(m2 or 0.0)):
            # of NaN or an infinity among the values, as our sums would hold it
            rows.append((count, exact.add(0, nan), exact.add(0, nan)))
            continue
        total = Fraction(mean or 0.0) * count
        squares = Fraction(m2 or 0.0) + Fraction(mean or 0.0) * total
        rows.append((count, _rounded(total), _rounded(squares)))
    return rows


def _rounded(value: Fraction) -> Any:
    return exact.add(0, float(value)) if value else 0


def _timed(part: Part, columns: list[list[Any]], ts: int) -> list[Any]:
    return [[ts, value] if known and value is not None else None for value, known in zip(*columns, strict=True)]


def _firsts(part: Part, columns: list[list[Any]]) -> list[Any]:
    return _timed(part, columns, _BEFORE_ALL)


def _lists(part: Part, columns: list[list[Any]]) -> list[Any]:
    return [[each for value in elements(raw, part.element) for each in (_BEFORE_ALL, value)] for raw in columns[0]]


def _sets(part: Part, columns: list[list[Any]]) -> list[Any]:
    return [tally_many({}, elements(raw, part.element)) for raw in columns[0]]


def _sketches(part: Part, columns: list[list[Any]]) -> list[Any]:
    return [value or b"" for value in columns[0]]


_READERS: Final[dict[str, Callable[[Part, list[list[Any]]], list[Any]]]] = {
    "count": _counts,
    "sum": _sums,
    "mean": _means,
    "min": _values,
    "max": _values,
    "variance": _moments,
    "first": _firsts,
    "last": _firsts,
    "collect": _lists,
    "collect_set": _sets,
    # of a DataFrame only: Spark's sketches are others
    DISTINCT: _sets,
    SKETCH: _sketches,
}
# How an element of Spark's binary array is packed.
_PACKED: Final = {
    "boolean": "?",
    "tinyint": "b",
    "smallint": "<h",
    "int": "<i",
    "bigint": "<q",
    "float": "<f",
    "double": "<d",
}
_WORD: Final = struct.Struct("<q")
_TEXTS: Final = ("string", "binary")


def elements(raw: bytes | list[Any] | None, kind: str) -> list[Any]:
    """Return the elements of Spark's binary form of an array (`UnsafeArrayData`): the count, a bit for each null, and
    the elements; text has its place and length there, and lies behind them. A list is returned without its nulls.
    """
    if not raw:
        return []
    if isinstance(raw, list):
        return [value for value in raw if value is not None]
    (count,) = _WORD.unpack_from(raw)
    at = 8 + (count + 63) // 64 * 8
    if kind in _TEXTS:
        words = struct.unpack_from(f"<{count}q", raw, at)
        texts = [raw[word >> 32 : (word >> 32) + (word & 0xFFFFFFFF)] for word in words]
        return [text.decode() for text in texts] if kind == "string" else texts
    return list(struct.unpack_from(f"<{count}{_PACKED[kind][-1]}", raw, at))


def parts_of(
    aggregators: Sequence[tuple[str, Aggregator]], given: Sequence[str], kinds: dict[str, str], where: str
) -> list[Part]:
    """Return the buffers of aggregators, by the types of Spark's buffers (`given`) and those of the input's columns.

    Raises ImportRefusedError for an aggregator that no buffer of Spark's can begin, and for buffers of another number
    or type.
    """
    parts: list[Part] = []
    known: dict[str, Part] = {}
    at = 0
    for name, aggregator in aggregators:
        if aggregator.name not in _READERS:
            raise ImportRefusedError(
                f"{where}: aggregate {name!r}: found {aggregator!r}, which cannot go on from Spark's state, expected "
                f"one of {', '.join(_READERS)} (begin it in a state of its own)"
            )
        # two functions of `where=` may have one name
        chosen = isinstance(aggregator.projection, Projection)
        description = name if chosen else repr(aggregator.describe())
        part = known.get(description)
        if part is None:
            part = known[description] = _part(
                name, aggregator, at, given, kinds.get(aggregator.column or "", ""), where
            )
            at += part.width
        parts.append(part)
    if at != len(given):
        raise ImportRefusedError(
            f"{where}: found {len(given)} buffers of Spark's aggregates ({', '.join(given)}), expected {at} for "
            f"{', '.join(name for name, _ in aggregators)} (declare the query's aggregates, in the query's order, in "
            "aggregate(...); order= says another order)"
        )
    return parts


def _part(name: str, aggregator: Aggregator, at: int, given: Sequence[str], kind: str, where: str) -> Part:
    here = list(given[at : at + 3])
    first = here[0] if here else "nothing"
    scale = int(kind.rstrip(")").partition(",")[2] or 0) if kind.startswith("decimal") else None
    number = first in _NUMBERS or first.startswith("decimal")
    unscaled = None if scale is None or first.startswith("decimal") else scale
    fits, width = True, 1
    match aggregator.name:
        case "count":
            fits = first == "bigint"
        case "sum":
            fits, width = number, 1 + (here[1:2] == [_EMPTY])
        case "mean":
            fits, width = number and here[1:2] == ["bigint"], 2
        case "variance":
            fits, width = here == ["double"] * 3, 3
        case "first" | "last":
            fits, width = here[1:2] == [_EMPTY], 2
        case "collect" | "collect_set":
            fits = first == "binary" and (kind in _PACKED or kind in _TEXTS)
    if not fits:
        raise ImportRefusedError(
            f"{where}: aggregate {name!r}: found {', '.join(here) or 'no more buffers'} in Spark's state, expected "
            f"what {aggregator!r} begins with (declare the query's aggregates, in the query's order, in "
            "aggregate(...); order= says another order)"
        )
    if aggregator.name in ("sum", "mean"):
        return Part(aggregator.name, at, width, unscaled)
    return Part(aggregator.name, at, width, None, kind)
