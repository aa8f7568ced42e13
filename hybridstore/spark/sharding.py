"""The shard of a row as a Spark SQL expression: the twin of `hybridstore.shards.shard_of`, computed in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..shards import FLOAT_SCALE, SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column

SHARD_COLUMN = "__hybridstore_shard"


def check_key(kind: Any, name: str) -> None:
    """Raise TypeError for a type of Spark's that a key column cannot have: what no key of a store can be."""
    from pyspark.sql import types as t

    whole = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
    if not isinstance(kind, (t.StringType, t.BinaryType, t.BooleanType, t.FloatType, t.DoubleType, *whole)):
        raise TypeError(
            f"key column {name!r}: found {kind.simpleString()}, expected a string, binary, integer, float or boolean "
            "column (cast it)"
        )


def _canonical(column: Column, kind: Any, name: str) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    check_key(kind, name)
    if isinstance(kind, (t.StringType, t.BinaryType)):
        return column.cast("binary")
    if isinstance(kind, t.BooleanType):
        return column.cast("string").cast("binary")
    if isinstance(kind, (t.FloatType, t.DoubleType)):
        return f.coalesce(
            (column.cast("double") * f.lit(FLOAT_SCALE)).try_cast("bigint").cast("string").cast("binary"), f.lit(b"")
        )
    return column.cast("bigint").cast("string").cast("binary")


def shard_column(schema: Any, key: Sequence[str], shards: int) -> Column:
    """Return the shard (int) of each row by its key columns. Raises TypeError for a type that cannot be a key.

    A row without a key gets some shard, where it is left out and counted.
    """
    from pyspark.sql import functions as f

    parts = [_canonical(f.col(f"`{name}`"), schema[name].dataType, name) for name in key]
    hashed = parts[0]
    for part in parts[1:]:
        hashed = f.concat(hashed, f.lit(SEPARATOR), part)
    return f.coalesce(f.pmod(f.crc32(hashed), f.lit(shards)).cast("int"), f.lit(0)).alias(SHARD_COLUMN)
