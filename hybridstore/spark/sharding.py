"""The shard of a row as a Spark SQL expression, computed in the JVM; equal to `hybridstore.shards.shard_of`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..shards import FLOAT_SCALE, SEPARATOR, shard_of
from ..topology.null_keys import NULL, QUOTED
from ..topology.plan import ALL, NullKeys

if TYPE_CHECKING:
    from pyspark.sql import Column

SHARD_COLUMN = "__hybridstore_shard"


def check_key(kind: Any, name: str, *, wide: bool = False) -> None:
    """Raise TypeError for a Spark type that cannot be a key of a store. `wide`: dates, timestamps, decimals, structs
    and arrays can.
    """
    from pyspark.sql import types as t

    if wide and isinstance(kind, t.StructType):
        for field in kind:
            check_key(field.dataType, f"{name}.{field.name}", wide=True)
        return
    if wide and isinstance(kind, t.ArrayType):
        check_key(kind.elementType, f"{name}[]", wide=True)
        return
    if wide and isinstance(kind, (t.DateType, t.TimestampType, t.TimestampNTZType, t.DecimalType)):
        return

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


def _stored_text(column: Column, kind: Any, name: str) -> Column:
    """Return the text of `hybridstore.topology.null_keys.stored_key` for one column, as a SQL expression."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    check_key(kind, name, wide=True)
    if isinstance(kind, t.StructType):
        parts = [_stored_text(column.getField(field.name), field.dataType, name) for field in kind]
        text = f.concat(f.lit("["), f.concat_ws(",", *parts), f.lit("]"))
        column = f.when(column.isNotNull(), text)
    elif isinstance(kind, t.ArrayType):
        element = kind.elementType
        texts = f.transform(column, lambda each: _stored_text(each, element, name))
        column = f.when(column.isNotNull(), f.concat(f.lit("["), f.concat_ws(",", texts), f.lit("]")))
    elif isinstance(kind, t.DateType):
        column = f.concat(f.lit('{"date":'), f.unix_date(column).cast("string"), f.lit("}"))
    elif isinstance(kind, t.TimestampType):
        column = f.concat(f.lit('{"timestamp":'), f.unix_micros(column).cast("string"), f.lit("}"))
    elif isinstance(kind, t.TimestampNTZType):
        column = f.concat(f.lit('{"clock":"'), column.cast("string"), f.lit('"}'))
    elif isinstance(kind, t.DecimalType):
        # unlike a cast, whose text depends on spark.sql.ansi.enabled, always that of Java's and Python's str
        digits = f.regexp_replace(f.format_string("%s", column), r"(\.[0-9]*?)0+(?=E|$)", "$1")
        digits = f.when(column == 0, f.lit("0")).otherwise(f.regexp_replace(digits, r"\.(?=E|$)", ""))
        text = f.concat(f.lit('{"decimal":"'), digits, f.lit('"}'))
        column = f.when(column.isNotNull(), text)
    elif isinstance(kind, t.StringType):
        for plain, escaped in QUOTED:
            column = f.replace(column, f.lit(plain), f.lit(escaped))
        column = f.concat(f.lit('"'), column, f.lit('"'))
    elif isinstance(kind, t.BinaryType):
        column = f.concat(f.lit('{"hex":"'), f.hex(column), f.lit('"}'))
    elif isinstance(kind, (t.FloatType, t.DoubleType)):
        # -0.0 + 0.0 is 0.0
        column = f.when(
            column.isNotNull(),
            f.concat(f.lit('{"float":"'), f.format_string("%a", column.cast("double") + f.lit(0.0)), f.lit('"}')),
        )
    else:
        column = column.cast("string")
    return f.coalesce(column, f.lit(NULL))


def shard_column(
    schema: Any, key: Sequence[str], shards: int, null_keys: NullKeys = "skip", everywhere: str | None = None
) -> Column:
    """Return the shard (int) of each row by its key columns. Raises TypeError for a type that cannot be a key.

    A row without a key (a column of the key is null or nan) gets shard 0, where the row is left out and counted, or
    waits in a join. With `null_keys="group"` the row gets the shard of its key. A row for which the condition
    `everywhere` (SQL) is true comes once for each shard.
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if everywhere is not None:
        of_key = shard_column(schema, key, shards, null_keys)
        every = f.sequence(f.lit(0), f.lit(shards - 1))
        return f.explode(f.when(f.expr(everywhere), every).otherwise(f.array(of_key))).alias(SHARD_COLUMN)
    if not key:
        return f.lit(shard_of(ALL, shards)).alias(SHARD_COLUMN)
    if null_keys == "group":
        texts = [_stored_text(f.col(f"`{name}`"), schema[name].dataType, name) for name in key]
        text = texts[0] if len(texts) == 1 else f.concat(f.lit("["), f.concat_ws(",", *texts), f.lit("]"))
        return f.pmod(f.crc32(text.cast("binary")), f.lit(shards)).cast("int").alias(SHARD_COLUMN)
    parts = [_canonical(f.col(f"`{name}`"), schema[name].dataType, name) for name in key]
    hashed = parts[0]
    for part in parts[1:]:
        hashed = f.concat(hashed, f.lit(SEPARATOR), part)
    shard = f.coalesce(f.pmod(f.crc32(hashed), f.lit(shards)).cast("int"), f.lit(0))
    # of floats an empty text is hashed, which other floats have, too
    floats = [f.col(f"`{name}`") for name in key if isinstance(schema[name].dataType, (t.FloatType, t.DoubleType))]
    for column in floats if len(key) > 1 else []:
        shard = f.when(column.isNull() | f.isnan(column), f.lit(0)).otherwise(shard)
    return shard.alias(SHARD_COLUMN)
