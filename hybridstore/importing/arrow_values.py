"""Arrow values: columns of Arrow as Python values with maps as dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def listed(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values, with maps as dicts, as processors give them. O(values)."""
    values: list[Any] = column.to_pylist()
    # Arrow lists a map as pairs
    return [_with_maps(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_map(kind) or any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def _with_maps(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = ((_with_maps(key, kind.key_type), _with_maps(part, kind.item_type)) for key, part in value)
        return {tuple_of(key) if isinstance(key, dict) else key: part for key, part in pairs}
    if pa.types.is_struct(kind):
        return {field.name: _with_maps(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_with_maps(part, kind.value_type) for part in value]
    return value


def tuple_of(value: Any) -> tuple[Any, ...]:
    """Return the fields of a struct."""
    return tuple(value.values())
