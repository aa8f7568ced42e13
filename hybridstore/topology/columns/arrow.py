"""Arrow: keys and times of an Arrow batch as columns of numbers, and the canonical order of its rows.

numpy does the work, without Python code per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..plan import ALL
from ..times import arrow_list
from .buffers import array_of, numbers_of, times_in, whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int64] | NDArray[np.float64]


_LARGE: Final = 2**62


class Keys(NamedTuple):
    """The distinct keys of a batch, sorted, by key column and as Python keys, and each row's place among them."""

    parts: list[Any]
    names: list[Any]
    codes: Ints


def times_of(column: pa.ChunkedArray) -> Ints | None:
    """Return times in ms, or None if some are missing or before the epoch."""
    if column.null_count:
        return None
    if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
        return None
    milliseconds = times_in(column)
    return None if int(milliseconds.min()) < 0 or int(milliseconds.max()) >= 2**62 else milliseconds


def plain_key(kind: pa.DataType) -> bool:
    """Whether a type of a key column is text or whole numbers, which are compared by column."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def keys_of(columns: list[pa.ChunkedArray], rows: int) -> Keys | None:
    """Return the keys of a batch of so many rows, or None if some are missing or are neither text nor whole numbers."""
    combined: Keys | None = None if columns else Keys([], [ALL], np.zeros(rows, np.int64))
    for column in columns:
        if column.null_count or not plain_key(column.type):
            return None
        ordered, codes = numbered(column)
        if combined is None:
            combined = Keys([ordered], arrow_list(ordered), codes)
            continue
        pairs, both = np.unique(combined.codes * len(ordered) + codes, return_inverse=True)
        first, second = pairs // len(ordered), pairs % len(ordered)
        parts = [part.take(array_of(first)) for part in combined.parts] + [ordered.take(array_of(second))]
        combined = Keys(parts, list(zip(*map(arrow_list, parts), strict=True)), both)
    return combined


def numbered(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Return the distinct values of a column of text or whole numbers, sorted, and each row's place among them."""
    if len(column) and pa.types.is_integer(column.type):
        numbers = numbers_of(column)
        low = numbers.min()
        if int(numbers.max()) - int(low) < 2 * len(numbers):
            # close to each other: counted, in a third of the time of a sort; without a sign no difference overflows
            above = (numbers - low).view(f"u{numbers.itemsize}").astype(np.int64)
            present = np.zeros(int(above.max()) + 1, bool)
            present[above] = True
            distinct = np.flatnonzero(present).astype(numbers.dtype) + low
            return array_of(distinct), (np.cumsum(present) - 1)[above]
        if int(numbers.max()) - int(low) < _LARGE:
            order, ascending = ascending_of((numbers - low).view(f"u{numbers.itemsize}").astype(np.int64))
            first = np.ones(len(order), bool)
            np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
            codes = np.empty(len(order), np.int64)
            codes[order] = np.cumsum(first) - 1
            return array_of(ascending[first].astype(numbers.dtype) + low), codes
        numbers, codes = np.unique(numbers, return_inverse=True)
        return array_of(numbers), codes
    encoded = whole(column).dictionary_encode()
    distinct = encoded.dictionary
    order = pc.sort_indices(distinct)
    rank = np.empty(len(distinct), np.int64)
    rank[numbers_of(order)] = np.arange(len(distinct))
    return distinct.take(order), rank[numbers_of(encoded.indices)]


def ascending_of(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the stable order of numbers of 0 or more, and the numbers in that order.

    With their places in the lowest bits, all numbers differ, and numpy sorts them ten times as fast as it finds a
    stable order. O(n log n).
    """
    bits = len(numbers).bit_length()
    if not len(numbers) or int(numbers.max()) >= _LARGE >> bits:
        order = np.argsort(numbers, kind="stable")
        return order, numbers[order]
    both = (numbers << bits) | np.arange(len(numbers))
    both.sort()
    return both & ((1 << bits) - 1), both >> bits


def canonical_place(times: Ints, keys: Keys, values: Sequence[Numbers | None]) -> Ints | None:
    """Return the canonical order, by time, key and values (None for a column that cannot be compared by column).

    None if it cannot be told by column: the numbers are too large, or two rows of one key and time have values with NaN
    or of such a column. O(rows log rows).
    """
    low = int(times.min())
    if (int(times.max()) - low + 1) * len(keys.names) >= _LARGE:
        return None
    place = (times - low) * len(keys.names) + keys.codes
    order, ascending = ascending_of(place)
    tied = ascending[1:] == ascending[:-1]
    if not values or not tied.any():
        return order
    compared = [column for column in values if column is not None]
    if len(compared) < len(values) or any(column.dtype.kind == "f" and np.isnan(column).any() for column in compared):
        return None
    # the values order only rows of one key and time, which stand together already and are mostly few
    among = np.zeros(len(order), bool)
    among[1:] = tied
    among[:-1] |= tied
    rows = order[among]
    order[among] = rows[np.lexsort((*(column[rows] for column in reversed(compared)), place[rows]))]
    return order
