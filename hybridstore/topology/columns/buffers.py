"""Buffers: Arrow columns as numpy's numbers, and numpy's numbers and Python's text as Arrow columns.

The surprise: pyarrow's own ways, `to_numpy`, `array` and `scalar`, import pandas at their first call wherever pandas is
installed, which takes longer than everything else that a start imports. The ways here read and make the buffers of the
Arrow format, and import nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column that is not empty as one array. O(1) for one chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of whole numbers or floats, without nulls, as numpy's numbers of the same type, which nobody may
    change. O(1) for one chunk.
    """
    if not len(column):
        return np.empty(0, np.int64)
    return np.from_dlpack(whole(column))


def times_in(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of timestamps (any unit) or whole numbers (ms), without nulls, as milliseconds, rounded down.
    O(rows).
    """
    raw = numbers_of(column.cast(pa.int64()))
    if not pa.types.is_timestamp(column.type):
        return raw
    scale = {"s": 1000, "ms": 1, "us": -1000, "ns": -1_000_000}[column.type.unit]
    times: NDArray[np.int64] = raw * scale if scale > 0 else raw // -scale
    return times


def array_of(numbers: NDArray[Any]) -> pa.Array:
    """Return numpy's numbers as an Arrow array of the same type. O(1) where they lie side by side."""
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def taken_at(rows: pa.Table | pa.RecordBatch, places: Sequence[int]) -> Any:
    """Return the rows at these places. O(places)."""
    return rows.take(array_of(np.array(places, np.int64)))


def zero_of(kind: pa.DataType) -> pa.Scalar:
    """Return zero as a scalar of a type of numbers."""
    return array_of(np.zeros(1, np.int64)).cast(kind)[0]


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array of text. O(bytes)."""
    text = "".join(texts)
    if text.isascii():  # a byte for each character
        lengths, data = np.fromiter(map(len, texts), np.int32, len(texts)), text.encode()
    else:
        encoded = [text.encode() for text in texts]
        lengths, data = np.fromiter(map(len, encoded), np.int32, len(texts)), b"".join(encoded)
    bounds = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
