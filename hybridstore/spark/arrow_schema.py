"""Arrow schema: Spark's schemas as Arrow's, the same with every version of pyspark that hybridstore runs on."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_schema(schema: Any, zone: str | None) -> pa.Schema:
    """Return a StructType as an Arrow schema whose timestamps are in a time zone. O(fields)."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    convert: Any = to_arrow_schema
    if "timezone" in signature(convert).parameters:
        return convert(schema, timezone=zone)
    # pyspark 4.1 knows UTC alone
    fields: list[pa.Field] = list(convert(schema))
    return pa.schema([field.with_type(_in_zone(field.type, zone)) for field in fields])


def _in_zone(kind: Any, zone: str | None) -> Any:
    """Return an Arrow type with each timestamp of UTC, however deep, in a zone."""
    import pyarrow as pa

    def field(part: pa.Field) -> pa.Field:
        return part.with_type(_in_zone(part.type, zone))

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(part) for part in kind])
    return kind
