"""Ticks: a streaming source that emits a row for each shard whenever the query's watermark has moved, or the clock has
come to the next multiple of an interval.

    commits/<batch> ── the next batch's watermark ──▶ offset ── one that is new ──▶ a row for each shard

When the watermark has moved, Spark runs a batch without data for its own stateful operators, and calls them for every
partition. For Spark, hybridstore's operator is not a stateful operator. Ticks give the same effect: ticks are new data,
so Spark runs a batch, and every shard gets a tick. The offset of ticks is a watermark that Spark has written itself, so
a replayed batch has the same ticks. Timers by the clock fire by the time of the batch, which Spark writes too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from changelog.bucket import Bucket

from ..topology.custom import wall_ms
from .location import Location, locate
from .query_log import NAMED, next_watermark
from .sharding import SHARD_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, which calls a source once for all batches of an `availableNow` query

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The replacement for Spark's class of this name."""


NAME: Final = "hybridstore-ticks"
_WATERMARK: Final = "watermark_ms"
_CLOCK: Final = "clock_ms"
# Sessions with the source; Spark warns if a source is registered a second time.
_registered: WeakSet[SparkSession] = WeakSet()


def _first_offset(every_ms: int) -> dict[str, int]:
    return {_WATERMARK: 0, **({_CLOCK: 0} if every_ms else {})}


def tick_offset(leaf: Any) -> dict[str, int] | None:
    """Return the first offset of a source of a plan of Spark's (a streaming leaf, in the JVM) if it is ticks, else
    None.
    """
    if leaf.getClass().getSimpleName() != "StreamingRelationV2" or leaf.sourceName() != NAME:
        return None
    return _first_offset(int(leaf.extraOptions().get("every_ms")))


def are_named(session: SparkSession) -> bool:
    """Whether each source of a query has a name in this session."""
    return (session.conf.get(NAMED, "false") or "").lower() == "true"


def tick_name(operator: str) -> str:
    """Return the name of an operator's ticks where sources have names: Spark takes letters, digits and underscores."""
    return "hybridstore_ticks_" + re.sub(r"\W", lambda match: f"_{ord(match[0]):x}_", operator, flags=re.A)


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs on the driver: tells Spark about new ticks, and makes them."""

    def __init__(self, location: Location, shards: int, *, watermark: bool = True, every_ms: int = 0) -> None:
        self._location = location
        self._shards = shards
        self._watermark = watermark
        self._every_ms = every_ms
        # the clock of a query that ends with what is available at its start
        self._stopped_ms: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return 0, because a new query has no watermark."""
        return _first_offset(self._every_ms)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """Return the watermark that the next batch will have, and the clock, rounded down to a multiple of the
        interval. Neither moves back."""
        before = self.initialOffset() if start is None else start
        offset = {_WATERMARK: before[_WATERMARK]}
        if self._watermark:
            offset[_WATERMARK] = max(next_watermark(self._location.query()), offset[_WATERMARK])
        if self._every_ms:
            now_ms = wall_ms() if self._stopped_ms is None else self._stopped_ms
            offset[_CLOCK] = max(now_ms // self._every_ms * self._every_ms, before.get(_CLOCK, 0))
        return offset

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop the clock, which would never end. Ticks of watermarks that follow from the available data belong to the
        query, too."""
        self._stopped_ms = wall_ms()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition if the watermark or the clock has moved, else none."""
        moved = end[_WATERMARK] > start[_WATERMARK] or end.get(_CLOCK, 0) > start.get(_CLOCK, 0)
        return [InputPartition(end[_WATERMARK])] if moved else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the ticks of all shards."""
        return iter([(shard - self._shards,) for shard in range(self._shards)])

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because the source keeps no data."""


class TickSource(DataSource):
    """The data source "hybridstore-ticks". Its options are `checkpoint`, `shards`, `watermark`, `every_ms` and
    `secret`. The last has the settings of a bucket; Spark redacts an option of this name by default
    (`spark.redaction.regex`).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return f"{SHARD_COLUMN} int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        checkpoint, settings = self.options["checkpoint"], json.loads(self.options["secret"])
        return TickReader(
            locate(Bucket(checkpoint, **settings) if settings else checkpoint),
            int(self.options["shards"]),
            watermark=self.options["watermark"] == "true",
            every_ms=int(self.options["every_ms"]),
        )


def with_ticks(
    sharded: DataFrame, location: Location, shards: int, operator: str, *, watermark: bool, every_ms: int
) -> DataFrame:
    """Return the rows of `sharded` together with ticks. A tick is a row of nulls whose shard is the negative number
    `shard - shards`. The source has the operator's name where Spark asks every source of a query for a name (`NAMED`),
    and none elsewhere, where Spark refuses names.
    """

    session = sharded.sparkSession
    if session not in _registered:
        session.dataSource.register(TickSource)
        _registered.add(session)
    secret = json.dumps(dict(location.checkpoint_settings))
    reader: Any = session.readStream.format(NAME)
    if are_named(session):
        reader = reader.name(tick_name(operator))
    reader = reader.option("checkpoint", location.checkpoint).option("shards", shards).option("secret", secret)
    ticks = reader.option("watermark", "true" if watermark else "false").option("every_ms", every_ms).load()
    return _with_nulls(sharded, ticks)


def with_every_shard(sharded: DataFrame, shards: int) -> DataFrame:
    """Return the rows of a batch DataFrame together with a tick for each shard, so that every shard is processed once,
    where its rows are: also below a `coalesce` of the results, where a task cannot know its shards.
    """
    from pyspark.sql import functions as f

    ticks = sharded.sparkSession.range(shards).select((f.col("id") - shards).alias(SHARD_COLUMN))
    return _with_nulls(sharded, ticks)


def _with_nulls(sharded: DataFrame, ticks: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

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
