"""Frame processor: runs a class written for Spark's `transformWithStateInPandas` on our stores, unchanged.

The same program as `stateful_processor`; only rows come, and go, as pandas frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ..clock import Duration
from ..state.group import StoreGroup
from ..state.upgrades import Upgrade
from .arrow_schema import arrow_schema
from .frames import FrameReader, FrameSettings, FrameTable
from .operator import PlaceArguments
from .stateful_processor import ProcessorArguments, ProcessorProgram, ProcessorRunner, in_groups, run_processor

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor


def transform_with_state_in_pandas(
    grouped: Any,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: Any = None,
    eventTimeColumnName: str = "",
    *,
    key: Sequence[str] | str | None = None,
    upgrade: Mapping[str, Upgrade] | None = None,
    clock_ticks: Duration | None = None,
    **place: Unpack[PlaceArguments],
) -> DataFrame:
    """The same call as `GroupedData.transformWithStateInPandas`, with the state in the workers.

    `handleInputRows(key, frames, timerValues)` gets an iterator of pandas frames of one key, and returns frames;
    `handleInitialState` gets one frame with the key's rows. All other rules, and the arguments: `transform_with_state`.

    >>> import pandas
    >>> from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    >>> class Visits(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.total = handle.getValueState("total", "n long")
    ...     def handleInputRows(self, key, frames, timers):
    ...         (before,) = self.total.get() or (0,)
    ...         self.total.update((before + sum(len(frame) for frame in frames),))
    ...         yield pandas.DataFrame({"user": [key[0]], "n": [self.total.get()[0]]})
    ...     def close(self):
    ...         pass
    >>> visits = hsp.transform_with_state_in_pandas(
    ...     events.groupBy("user"), Visits(), "user string, n long", name="visits", location=location, shards=1
    ... )
    >>> query = visits.writeStream.format("memory").queryName("visits").option("checkpointLocation", location)
    >>> query.trigger(availableNow=True).start().awaitTermination()
    >>> spark.table("visits").collect()
    [Row(user='ann', n=2)]
    """
    spark = statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
    return run_processor(FrameProgram, grouped, ProcessorArguments(*spark, key, upgrade, clock_ticks), place)


class FrameProgram(ProcessorProgram):
    """A stateful processor whose rows are frames."""

    schema: Any = None
    settings = FrameSettings()

    def see(self, df: DataFrame) -> None:
        """Take the types of the rows, and the session's settings of frames."""
        self.schema, self.settings = df.schema, FrameSettings.of(df.sparkSession)

    def open(self, group: StoreGroup) -> FrameRunner:
        return FrameRunner(self, group)


class FrameRunner(ProcessorRunner):
    """A processor of frames that is open on the stores of a shard, for one batch."""

    _program: FrameProgram

    def _given(self, initial: list[Any]) -> tuple[tuple[Any, ...], Iterable[Any]]:
        import pyarrow as pa

        program = self._program
        schema = arrow_schema(program.initial_schema, program.settings.zone)
        table = pa.Table.from_pylist([row.asDict(True) for row in initial], schema=schema)
        reader = FrameReader(table, program.initial_schema, program.settings, widened=True)
        return reader.values(program.initial_key, [0])[0], reader.chunks(0, len(initial))

    def _by_key(self, table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        program = self._program
        table, keys, places = in_groups(table, program.key)
        if keys:
            reader = FrameReader(table, program.schema, program.settings, widened=True)
            for key, start, end in zip(keys, places, places[1:], strict=False):
                yield key, reader.chunks(start, end)

    def _results(self, output: pa.Schema) -> FrameTable:
        return FrameTable(self._program.output, output, self._program.settings)
