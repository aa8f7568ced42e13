"""Columns in: sequences, numpy arrays and Arrow arrays to plain lists, without importing numpy or pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from ..clock import check_time

BATCH_ROWS: Final = 1000


def column_list(column: Any) -> list[Any]:
    """Return a column as a list of Python objects. O(n), at C speed for lists, numpy and Arrow arrays."""
    if type(column) is list:
        return column
    for method in ("tolist", "to_pylist"):  # numpy and pandas have the one, Arrow the other
        convert = getattr(column, method, None)
        if convert is not None:
            return list(convert())
    return list(column)


def time_list(column: Any, name: str) -> list[int]:
    """Return a column of timestamps (ms) as ints. Raises TypeError or ValueError naming the first bad one."""
    times = column_list(column)
    if times and ({int}.issuperset(map(type, times)) is False or min(times) < 0 or max(times) > 2**63 - 1):
        for i, ts in enumerate(times):
            check_time(ts, f"{name}[{i}]")
    return times


def row_batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Cut rows into lists of a frame's size."""
    rest = iter(rows)
    while batch := list(islice(rest, BATCH_ROWS)):
        yield batch


def columns_of(rows: Iterable[Sequence[Any]], names: tuple[str, ...], where: str) -> list[list[Any]]:
    """Turn rows into columns, as many as there are `names`. Raises ValueError, naming the row, when one has another length. O(rows)."""
    given = rows if type(rows) is list else list(rows)
    if given and set(map(len, given)) != {len(names)}:
        for i, row in enumerate(given):
            if len(row) != len(names):
                raise ValueError(f"{where}: row {i} has {len(row)} fields, expected {len(names)} ({', '.join(names)})")
    return [list(map(itemgetter(i), given)) for i in range(len(names))]


def batches(*columns: list[Any]) -> Iterator[tuple[list[Any], ...]]:
    """Cut columns of equal length into pieces of a frame's size."""
    for start in range(0, len(columns[0]), BATCH_ROWS):
        yield tuple(column[start : start + BATCH_ROWS] for column in columns)
