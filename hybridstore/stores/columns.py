"""Columns in: sequences, numpy arrays and Arrow arrays to plain lists, without importing numpy or pyarrow."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import Any, Final

from changelog.codec import ATOMS
from recovery.block import Rows

from ..clock import INT64_MAX, NO_TIME, check_time

BATCH_ROWS: Final = 1000
# From this many rows at a time on, looking for equal keys among them is cheap.
_DENSE: Final = 8
_LISTS: Final = frozenset({list, tuple})
_NESTED: Final = ATOMS | _LISTS | {dict}
# The rows of TopK are lists of a list in lists of a list of aggregates; a list that contains itself has no end.
_LEVELS: Final = 4


def column_list(column: Any) -> list[Any]:
    """Return a column as a list of Python objects. O(n), at C speed for lists, numpy and Arrow arrays."""
    if type(column) is list:
        return column
    if hasattr(column, "iterchunks"):
        return list(chain.from_iterable(map(column_list, column.iterchunks())))
    if hasattr(column, "dictionary_decode"):  # fifty times as fast as a look into the dictionary for each row
        column = column.dictionary_decode()
    for method in ("tolist", "to_pylist"):  # numpy and pandas have the one, Arrow the other
        convert = getattr(column, method, None)
        if convert is not None:
            return list(convert())
    return list(column)


def time_list(column: Any, name: str) -> list[int]:
    """Return a column of timestamps (ms) as ints. Raises TypeError or ValueError naming the first bad one."""
    return time_column(column, name)[0]


def time_column(column: Any, name: str) -> tuple[list[int], int, int, bool]:
    """Return a column of timestamps (ms) as ints, the least and the largest (-1 when empty), and whether they never
    fall.

    Raises TypeError or ValueError naming the first bad one. O(n).
    """
    times = column_list(column)
    if not times:
        return times, NO_TIME, NO_TIME, True
    low = high = NO_TIME
    ordered = False
    if [*map(type, times)].count(int) == len(times):
        ordered = in_order(times)
        low, high = (times[0], times[-1]) if ordered else (min(times), max(times))
    if low < 0 or high > INT64_MAX:
        for i, ts in enumerate(times):
            check_time(ts, f"{name}[{i}]")
    return times, low, high, ordered


def in_order(times: list[int]) -> bool:
    """True when times never fall. O(n), and less for most columns that are out of order."""
    probe = times[::64]
    return sorted(probe) == probe and sorted(times) == times


def rows_differ(keys: list[Any], times: list[int]) -> bool:
    """True when no key has two rows at one time; False when a key has, or when the check costs more than it saves.
    `times` are in order. O(rows).
    """
    rows = len(times)
    if times[0] != times[min(_DENSE, rows) - 1] or rows == 1:
        return len(set(times)) == rows
    groups = at = 0
    while at < rows:
        end = bisect_right(times, times[at], at)
        groups += 1
        if len(set(keys[at:end])) < end - at or end < groups * _DENSE:
            return False
        at = end
    return True


def accepted(times: list[int], newest: int, lag: int, *, moves: bool = True) -> list[bool]:
    """Return for each row of a batch whether it is in time: `ts > stream time - lag`; with `moves`, the row's own time
    moves stream time first. O(n).
    """
    if not moves:
        return [ts > newest - lag for ts in times]
    return [
        ts > seen - lag for ts, seen in zip(times, islice(accumulate(times, max, initial=newest), 1, None), strict=True)
    ]


def all_flat(kinds: set[type], values: list[Any]) -> bool:
    """True when every value (of these types) is an atom, or consists of lists, tuples and dicts of atoms of a few
    levels, so that no value needs a check of its own.

    O(items), at C speed.
    """
    for _ in range(_LEVELS):
        if kinds <= ATOMS:
            return True
        if not kinds <= _NESTED:
            return False
        nested = values if kinds <= _LISTS else [value for value in values if type(value) in _LISTS]
        dicts = [value for value in values if type(value) is dict] if dict in kinds else []
        values = list(chain.from_iterable((*nested, *dicts, *map(dict.values, dicts))))
        kinds = set(map(type, values))
    return kinds <= ATOMS


def columns_of(rows: Iterable[Sequence[Any]], names: tuple[str, ...], where: str) -> list[list[Any]]:
    """Turn rows into columns, one for each of `names`.

    Raises TypeError or ValueError, naming the row, for an item that is no row or has another length. O(rows).
    """
    given = rows if type(rows) is list else list(rows)
    if not {tuple, list}.issuperset(map(type, given)):
        for i, row in enumerate(given):
            if isinstance(row, str | bytes) or not isinstance(
                row, Sequence
            ):  # a text of two letters is no key and value
                raise TypeError(f"{where}: row {i}: found {type(row).__name__}, expected ({', '.join(names)})")
    if given and set(map(len, given)) != {len(names)}:
        for i, row in enumerate(given):
            if len(row) != len(names):
                raise ValueError(
                    f"{where}: row {i}: found {len(row)} fields, expected {len(names)} ({', '.join(names)})"
                )
    return [list(map(itemgetter(i), given)) for i in range(len(names))]


def batches(*columns: list[Any]) -> Iterator[tuple[list[Any], ...]]:
    """Cut columns of equal length into pieces of a frame's size."""
    for start in range(0, len(columns[0]), BATCH_ROWS):
        yield tuple(column[start : start + BATCH_ROWS] for column in columns)


def rows_of(columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of columns (arrays). O(rows), at C speed."""
    return list(zip(*[column.tolist() for column in columns], strict=True))


def run_of(rows: list[tuple[int, Any]]) -> list[Any]:
    """Return the run of these rows, sorted by time; rows with equal times keep their order."""
    rows.sort(key=itemgetter(0))
    return [array("q", [ts for ts, _ in rows]), [value for _, value in rows]]


def beside_each_other(low: int, older: Rows, newer: Rows) -> Rows:
    """Return the values of two runs from `low` on, merged by time; of equal times the older first. O(rows log rows),
    and at C speed where the newer ones are later.
    """
    if not older[1] or not newer[1] or older[0][0][-1] <= newer[0][0][0]:
        times = array("q", older[0][0])
        times.extend(newer[0][0])
        first = bisect_left(times, low)
        return (times[first:],), [*older[1], *newer[1]][first:]
    rows = [*zip(older[0][0], older[1], strict=True), *zip(newer[0][0], newer[1], strict=True)]
    times, values = run_of([row for row in rows if row[0] >= low])
    return (times,), values
