"""Kept columns: a column of kept results as bytes, where all its values are whole numbers or floats.

    [1, 2, 3] ─▶ {"i4": 01000000 02000000 03000000}

Bytes take a tenth of the time of values: nothing checks or packs them one by one. The surprise: which columns become
bytes follows from their values alone, so a column of Arrow is kept as the equal list is. Texts stay apart, because an
erase looks for the bytes of a text as it is packed (`GivenKeys.parts`).
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

# The type codes of `array` by the names of the kinds.
_CODES: Final = {"i4": "i", "i8": "q", "f8": "d"}
_INT32: Final = 2**31


def column_to_keep(column: Any) -> Any:
    """Return a column of results (a list, or an array of numpy or Arrow) as it is kept. O(n), at C speed."""
    if hasattr(column, "null_count"):
        return _of_arrow(column)
    if hasattr(column, "dtype"):
        return _of_numbers(column)
    kinds = set(map(type, column))
    if kinds == {int}:
        for kind in ("i4", "i8"):
            try:
                return {kind: _little(array(_CODES[kind], column))}
            except OverflowError:
                continue
    elif kinds == {float}:
        return {"f8": _little(array("d", column))}
    return column


def _little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _of_numbers(column: Any) -> Any:
    """Return numpy's whole numbers of 64 bits, or floats."""
    if not len(column) or column.dtype.kind not in "if":
        return column_to_keep(column.tolist())
    if column.dtype.kind == "f":
        return {"f8": column.astype("<f8").tobytes()}
    small = int(column.min()) >= -_INT32 and int(column.max()) < _INT32
    return {"i4": column.astype("<i4").tobytes()} if small else {"i8": column.astype("<i8").tobytes()}


def _of_arrow(column: Any) -> Any:
    import pyarrow as pa

    from .columns.buffers import numbers_of
    from .times import arrow_list

    kind = column.type
    if len(column) and not column.null_count and (pa.types.is_int64(kind) or pa.types.is_float64(kind)):
        return _of_numbers(numbers_of(column))
    return column_to_keep(arrow_list(column))


def kept_column(kept: Any) -> list[Any]:
    """Return the values of a column as it was kept. O(n)."""
    if not isinstance(kept, dict):
        values: list[Any] = kept
        return values
    ((kind, data),) = kept.items()
    numbers = array(_CODES[kind])
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
