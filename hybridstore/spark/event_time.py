"""Event time: the column of an operator's output that carries the query's watermark to operators of Spark behind it.

    withWatermark ─▶ our operator ─ a column with Spark's mark ─▶ groupBy, dropDuplicates, join, in append mode

Spark passes the watermark itself through every node that is not stateful, as ours is for Spark, and looks only for a
mark in the column's metadata. In batch N our operator emits what becomes final between the watermarks of batch N - 1
and batch N; operators behind judge late rows by the former and expire their state by the latter. So every time in the
column must be later than the watermark of batch N - 1.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ..aggregation import Windows
from ..clock import Watermark
from .connect import DELAY, has_watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from .contract import Batch
    from .shipped import Operator

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def marked(output: Any, column: str, df: DataFrame) -> Any:
    """Return the StructType of an output with Spark's mark on a column.

    Raises ValueError for a column that is missing, is no timestamp, or when the input has no watermark: then the mark
    would be a lie.
    """
    from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

    kinds = {field.name: field.dataType for field in output}
    if column not in kinds:
        raise ValueError(f"event time: column {column!r} is missing in the output: found {', '.join(kinds)}")
    if not isinstance(kinds[column], TimestampType | TimestampNTZType):
        raise ValueError(f"event time: column {column!r}: found {kinds[column].simpleString()}, expected timestamp")
    if not has_watermark(df):
        raise ValueError(
            f'event time: column {column!r}: the input has no watermark (say df.withWatermark("time", "10 minutes") '
            "before)"
        )
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), DELAY: 0})
            if field.name == column
            else field
            for field in output
        ]
    )


def check_event_time(times: pa.ChunkedArray, watermark: Watermark, operator: Operator, batch: Batch) -> None:
    """Raise ValueError if a time is not later than the watermark of the batch before; a null is no time. O(n).

    Spark's next operator would silently drop such a row.
    """
    import pyarrow.compute as pc

    earliest = pc.min(times.cast("int64")).as_py()
    if batch.number and watermark.late_ms and earliest is not None and earliest <= watermark.late_ms * 1000:
        time, late = (_EPOCH + timedelta(microseconds=n) for n in (earliest, watermark.late_ms * 1000))
        raise ValueError(
            f"EMITTING_ROWS_OLDER_THAN_WATERMARK: operator {operator.name!r}, batch {batch.number}: a row's "
            f"event time: found {time}, expected later than the watermark {late} (for Spark's next operator the row is "
            "late: give it a later time)"
        )


def with_times(results: pa.Table, windows: Windows, watermark: Watermark, field: pa.Field) -> pa.Table:
    """Return results of windows with their event time as the last column: the last microsecond before the window
    closes, as Spark's `window_time`; null for late rows. O(results).

    A session that ends between two milliseconds can close at the watermark itself: its time is rounded up.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = results.column("window_end")
    if pa.types.is_timestamp(ends.type):
        micros = ends.cast(pa.timestamp("us", ends.type.tz)).cast("int64")
    else:
        micros = pc.multiply(ends.cast("int64"), 1000)
    micros = pc.add(micros, windows.closing_ms(clocked=True) * 1000 - 1)
    if watermark.late_ms:
        micros = pc.if_else(pc.is_valid(micros), pc.max_element_wise(micros, watermark.late_ms * 1000 + 1), None)
    return results.append_column(field, micros.cast(field.type))
