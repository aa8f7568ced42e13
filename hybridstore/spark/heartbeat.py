"""Heartbeats: rows that move the time of every shard while the source is quiet, so that suppressed results are emitted
and windows close.

events + rate source -> one row per shard every few seconds, keys of their own -> operator -> those keys filtered away

With a watermark as the time heartbeats are not needed (`ticks`), unless the wall clock must move the watermark, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..clock import Duration, duration_ms
from ..shards import shard_of
from ..topology.null_keys import stored_key
from ..topology.plan import NullKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX: Final = "\u0001heartbeat-"


def heartbeat_keys(shards: int, null_keys: NullKeys = "skip") -> list[str]:
    """Return one key per shard, in the order of the shards; each falls into its shard, of a topology with these
    `null_keys`. O(shards log shards) tries.

    >>> from hybridstore.shards import shard_of
    >>> [shard_of(key, 4) for key in hsp.heartbeat_keys(4)]
    [0, 1, 2, 3]
    """
    if type(shards) is not int or shards < 1:
        raise ValueError(f"shards: found {shards!r}, expected a whole number of 1 or more")
    newest: dict[int, str] = {}
    number = 0
    while len(newest) < shards:
        key = f"{PREFIX}{number}"
        newest.setdefault(shard_of(stored_key(key) if null_keys == "group" else key, shards), key)
        number += 1
    return [newest[shard] for shard in range(shards)]


def with_heartbeats(
    df: DataFrame,
    *,
    key: str,
    timestamp: str,
    shards: int,
    every: Duration = "10 seconds",
    delay: Duration = 0,
    null_keys: NullKeys = "skip",
) -> DataFrame:
    """Return `df` with an additional row per shard and interval: a key of its own, the wall clock less `delay` as its
    time, zeros in other columns.

    The key column must be a string, the timestamp column a timestamp or milliseconds (bigint). `every` is at least a
    second. From then on the query runs a batch at every trigger (give it `processingTime="10 seconds"`), and time
    follows the wall clock: give `delay` the lateness that your events may have. With `time="watermark"` say
    `withWatermark` behind the heartbeats. `null_keys` is the topology's. Take the rows out again behind the operator
    with `without_heartbeats`. Raises ValueError or TypeError.

    >>> beating = hsp.with_heartbeats(events, key="user", timestamp="ts", shards=4, every="10 seconds")
    >>> beating.columns, beating.isStreaming
    (['user', 'ts'], True)
    """
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    seconds = duration_ms(every, "every") // 1000
    if seconds < 1:
        raise ValueError(f"every: found {every!r}, expected a second or more")
    late = duration_ms(delay, "delay", zero=True)
    if not isinstance(df.schema[key].dataType, t.StringType):
        raise TypeError(f"key column {key!r}: found {df.schema[key].dataType.simpleString()}, expected string")
    rate = df.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).load()
    rate = rate.where(f.col("value") % seconds == 0)
    moment = f.timestamp_millis(f.unix_millis("timestamp") - f.lit(late))
    frames = []
    for field in df.schema:
        if field.name == key:
            column = f.explode(f.array(*map(f.lit, heartbeat_keys(shards, null_keys))))
        elif field.name == timestamp:
            column = f.unix_millis(moment) if isinstance(field.dataType, t.LongType) else moment.cast(field.dataType)
        elif isinstance(field.dataType, t.NumericType):
            column = f.lit(0).cast(field.dataType)
        elif isinstance(field.dataType, t.StringType):
            column = f.lit("")
        else:
            column = f.lit(None).cast(field.dataType)
        frames.append(column.alias(field.name))
    return df.unionByName(rate.select(*frames))


def without_heartbeats(df: DataFrame, *, key: str) -> DataFrame:
    """Return `df` without the rows of heartbeats.

    >>> beat = hsp.heartbeat_keys(1)[0]
    >>> rows = spark.createDataFrame([("ann", 0), (beat, 0)], "user string, ts long")
    >>> [row.user for row in hsp.without_heartbeats(rows, key="user").collect()]
    ['ann']
    """
    from pyspark.sql import functions as f

    return df.where(~f.coalesce(f.col(f"`{key}`").startswith(PREFIX), f.lit(False)))
