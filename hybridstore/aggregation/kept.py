"""Kept: the built-in aggregators that keep values: the first and the last of them, all of them, each distinct one.

First Last Collect    (time, value): event order decides, whatever the order of arrival
CollectSet            {value: how often}, so that a value can be taken out again; None for nan
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from math import nan
from operator import eq
from typing import Any, Final

from changelog.codec import pack

from .aggregator import Builtin, Choice
from .projection import Where


def _before(pair: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether a (time, value) is before another one in event order: by time, then by the packed bytes of the value."""
    if pair[0] != other[0]:
        return bool(pair[0] < other[0])
    return pack(pair[1]) < pack(other[1])


def _first_add(state: Any, pair: Sequence[Any]) -> Any:
    return list(pair) if state is None or _before(pair, state) else state


def _last_add(state: Any, pair: Sequence[Any]) -> Any:
    return list(pair) if state is None or _before(state, pair) else state


def _value_of(state: Any) -> Any:
    return None if state is None else state[1]


class First(Choice):
    """The first value in event order, whatever the order of arrival: None if none. Of equal times the value whose
    packed bytes are the smaller is the first.

    >>> hs.First().of(["/", "/help", "/docs"])
    '/'
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__("first", column, _first_add, where=where, result=_value_of, timed=True)


class Last(Choice):
    """The last value in event order, whatever the order of arrival: None if none. Of equal times the value whose packed
    bytes are the greater is the last.

    >>> hs.Last().of(["/", "/help", "/docs"])
    '/docs'
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__("last", column, _last_add, where=where, result=_value_of, timed=True)


def _extend(items: list[Any], more: Sequence[Any]) -> list[Any]:
    items += more
    return items


def _append_many(items: list[Any], pairs: Sequence[Sequence[Any]]) -> list[Any]:
    items += chain.from_iterable(pairs)
    return items


def _in_event_order(items: list[Any]) -> list[int]:
    """Return the places of pairs (time, value, time, value, ...) in event order. O(n log n), and O(n) in order."""
    times = items[::2]
    places = sorted(range(len(times)), key=times.__getitem__)
    if len(set(times)) < len(times):
        values = items[1::2]
        places.sort(key=lambda place: (times[place], pack(values[place])))
    return places


class Collect(Builtin):
    """All values as a list, in event order, whatever the order of arrival; of equal times the value whose packed bytes
    are the smaller comes first.

    With `limit` at most so many values are kept: the first ones in event order. Raises ValueError for a limit below 1.

    >>> hs.Collect().of(["/", "/help", "/"])
    ['/', '/help', '/']
    >>> hs.Collect(limit=2).of(["/", "/help", "/"])
    ['/', '/help']
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, limit: int | None = None, where: Where = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"collect: limit: found {limit!r}, expected an int of at least 1")

        def cut(items: list[Any]) -> list[Any]:
            # twice as many may be kept, so that they are seldom sorted
            if limit is not None and len(items) > 4 * limit:
                places = _in_event_order(items)[:limit]
                items[:] = [part for place in places for part in items[2 * place : 2 * place + 2]]
            return items

        def result(items: list[Any]) -> list[Any]:
            values = items[1::2]
            return [values[place] for place in _in_event_order(items)[:limit]]

        super().__init__(
            "collect",
            column,
            list,
            _extend if limit is None else lambda items, pair: cut(_extend(items, pair)),
            merge=_extend if limit is None else lambda items, newer: cut(_extend(items, newer)),
            copy=list.copy,
            result=result,
            add_many=_append_many if limit is None else lambda items, pairs: cut(_append_many(items, pairs)),
            parameters=[] if limit is None else [limit],
            timed=True,
            where=where,
        )
        self.linear = limit is None


# nan is a value like others, but not equal to itself: it is counted in the place of None, which is no value
_NAN: Final = None


def tally(counts: dict[Any, int], value: Any) -> dict[Any, int]:
    """Count one more of a value. O(1)."""
    value = value if value == value else _NAN
    counts[value] = counts.get(value, 0) + 1
    return counts


def tally_many(counts: dict[Any, int], values: Sequence[Any]) -> dict[Any, int]:
    """Count more values. O(values), at C speed but for the distinct ones."""
    return merged(counts, Counter(values if all(map(eq, values, values)) else [v if v == v else _NAN for v in values]))


def untally(counts: dict[Any, int], value: Any) -> dict[Any, int]:
    """Count one less of a value. O(1)."""
    value = value if value == value else _NAN
    remaining = counts[value] - 1
    if remaining:
        counts[value] = remaining
    else:
        del counts[value]
    return counts


def merged(older: dict[Any, int], newer: dict[Any, int]) -> dict[Any, int]:
    """Add the counts of `newer` to `older`. O(newer)."""
    for value, count in newer.items():
        older[value] = older.get(value, 0) + count
    return older


def _set_of(counts: dict[Any, int]) -> set[Any]:
    return {nan if value is _NAN else value for value in counts} if _NAN in counts else set(counts)


class CollectSet(Builtin):
    """The distinct values as a set. Values must be hashable; of equal ones any may be kept (1 or 1.0). All nan are one
    value.

    >>> sorted(hs.CollectSet().of(["/", "/help", "/"]))
    ['/', '/help']
    """

    __slots__ = ()

    def __init__(self, column: str | None = None, *, where: Where = None) -> None:
        super().__init__(
            "collect_set",
            column,
            dict,
            tally,
            merge=merged,
            subtract=untally,
            exact_subtract=True,
            add_many=tally_many,
            copy=dict.copy,
            result=_set_of,
            where=where,
        )
