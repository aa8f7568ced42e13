"""Ticks: a streaming source with a row per shard whenever the query's watermark has moved.

    commits/<batch> ── the next batch's watermark ──▶ offset ── one that is new ──▶ a row for each shard

Spark runs a batch without data for its own stateful operators when the watermark has moved, and calls them in every
batch. To Spark ours is none of these. The ticks make it so: they are new data, so that there is a batch, and they are
in every shard. Their offset is a watermark that Spark itself has written down, so that a replayed batch has the same
ticks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from changelog.storage import is_url

from .location import Location, locate
from .query_log import next_watermark
from .sharding import SHARD_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which asks a source once for all batches of a query that takes what is there

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for Spark's class of this name."""


NAME: Final = "hybridstore-ticks"
_WATERMARK: Final = "watermark_ms"
# Spark warns of a source that is registered a second time.
_registered: WeakSet[SparkSession] = WeakSet()


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tells Spark, on the driver, that there are ticks, and makes them."""

    def __init__(self, location: Location, shards: int) -> None:
        self._location = location
        self._shards = shards

    def initialOffset(self) -> dict[str, Any]:
        """No query begins with a watermark."""
        return {_WATERMARK: 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """Return the watermark that the next batch will have."""
        return {_WATERMARK: max(next_watermark(self._location.query()), 0 if start is None else start[_WATERMARK])}

    def prepareForTriggerAvailableNow(self) -> None:
        """What the data that is there makes of the watermark belongs to the query, too."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One, where the watermark has moved."""
        return [InputPartition(end[_WATERMARK])] if end[_WATERMARK] > start[_WATERMARK] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the marks of all shards."""
        return iter([(shard - self._shards,) for shard in range(self._shards)])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""


class TickSource(DataSource):
    """The data source "hybridstore-ticks"; options `checkpoint`, `shards`, and `secret`, the options of an object
    store: `spark.redaction.regex` has this word by default."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return f"{SHARD_COLUMN} int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = json.loads(self.options["secret"])
        return TickReader(locate(self.options["checkpoint"], storage_options=options), int(self.options["shards"]))


def with_ticks(sharded: DataFrame, location: Location, shards: int) -> DataFrame:
    """Return rows that have their shard's number with ticks among them: rows of nulls whose shard is a negative number,
    `shards` below."""
    from pyspark.sql import functions as f

    session = sharded.sparkSession
    if session not in _registered:
        session.dataSource.register(TickSource)
        _registered.add(session)
    secret = json.dumps(dict(location.options) if is_url(location.checkpoint) else {})
    ticks = (
        session.readStream.format(NAME)
        .option("checkpoint", location.checkpoint)
        .option("shards", shards)
        .option("secret", secret)
        .load()
    )
    return sharded.union(
        ticks.select(
            *(
                f.col(SHARD_COLUMN).cast(field.dataType)
                if field.name == SHARD_COLUMN
                else f.lit(None).cast(field.dataType).alias(field.name)
                for field in sharded.schema
            )
        )
    )
