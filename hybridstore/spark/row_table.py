"""RowTable: the Rows that a stateful processor gives, as a table of the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class RowTable(list[Any]):
    """The rows that a processor gives, as a table of the output. What is inside of a row is copied when the row comes,
    as on Spark: a processor may change what it gave.
    """

    def __init__(self, output: pa.Schema) -> None:
        from pyarrow.types import is_nested

        super().__init__()
        self._output = output
        self._nested = any(map(is_nested, output.types))

    def extend(self, results: Iterable[Any]) -> None:
        """Take rows. O(values) where the output has nested columns, else O(rows)."""
        super().extend(map(_copied, results) if self._nested else results)

    def table(self) -> pa.Table:
        """Return the rows so far as a table. O(rows)."""
        return _to_arrow(self, self._output)


def _to_arrow(rows: list[Any], output: pa.Schema) -> pa.Table:
    """Return rows as a table: columns are matched by name in every row, a field that a row lacks is null, and a field
    that the schema lacks is left out, as Spark does; a Row with more fields than values (`Row("k", "a")("x")`) lacks
    the last. Raises TypeError for what is not a Row with names.
    """
    import pyarrow as pa

    if not rows:
        return output.empty_table()
    names = output.names
    columns: list[Any]
    if all(getattr(row, "__fields__", None) == names for row in rows):
        columns = list(zip_longest(*rows))
        columns += [(None,) * len(rows)] * (len(names) - len(columns))
    else:
        columns = [[] for _ in names]
        for row in rows:
            if not getattr(row, "__fields__", None):
                frame = type(row).__module__.startswith("pandas")
                raise TypeError(
                    "processor: found a frame of pandas, expected Rows (transform_with_state_in_pandas takes frames)"
                    if frame
                    else f"processor: found a row of {type(row).__name__} {row!r}, expected a Row with names"
                )
            fields = dict(zip(row.__fields__, row, strict=False))
            for name, column in zip(names, columns, strict=True):
                column.append(fields.get(name))
    arrays = list(map(_array, output, columns))
    return pa.Table.from_arrays(arrays, schema=output)


def _array(field: pa.Field, column: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(column, type=field.type)
    except (TypeError, ValueError, ArithmeticError) as error:  # of Arrow too, which names no column
        error.add_note(f"processor: column {field.name!r}: expected {field.type}")
        raise


def _copied(row: Any) -> Any:
    """Return a row with copies of its nested values, Rows as dicts, so that Arrow matches their fields by name."""
    copied = row
    if getattr(row, "__fields__", None):
        copied = tuple.__new__(type(row), map(_as_dicts, row))
        copied.__fields__ = row.__fields__
    return copied


def _as_dicts(value: Any) -> Any:
    """Return a copy of a nested value with Rows as dicts, as `Row.asDict(recursive=True)`."""
    if hasattr(value, "__fields__"):
        return {name: _as_dicts(part) for name, part in zip(value.__fields__, value, strict=False)}
    if isinstance(value, list):
        return list(map(_as_dicts, value))
    if isinstance(value, dict):
        return {key: _as_dicts(part) for key, part in value.items()}
    return value
