"""Group state: runs a function written for Spark's `applyInPandasWithState` on our stores, unchanged.

The state of a group is one variable of `processor_state`, and its time-out one of the timers there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from ..clock import Duration, Watermark
from ..state.group import StoreGroup
from ..topology.output_rows import Column
from .connect import watermark_column
from .contract import Batch, Program, Runner
from .frames import FrameReader, FrameSettings, FrameTable
from .grouping_keys import GroupingKeys
from .location import Location
from .operator import PlaceArguments, apply_program, check_place, spark_schema
from .processor_state import Handle
from .query_log import watermark_of
from .stateful_processor import grouping_of, in_groups, key_columns, on_time, ticks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

STATE: Final = "group"
_EMPTY_SHARDS: Final[dict[str, Literal["watermark", "batch"]]] = {
    "EventTimeTimeout": "watermark",
    "ProcessingTimeTimeout": "batch",
}
_NONE: Final = -1
_TIMEOUTS: Final = ("NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout")


def apply_in_pandas_with_state(
    grouped: Any,
    func: Callable[[Any, Iterator[Any], Any], Iterable[Any]],
    outputStructType: Any,
    stateStructType: Any,
    outputMode: str,
    timeoutConf: str,
    *,
    clock_ticks: Duration | None = None,
    **place: Unpack[PlaceArguments],
) -> DataFrame:
    """The same call as `GroupedData.applyInPandasWithState`, with the state in the workers.

    `grouped` is `df.groupBy(...)`. `func(key, frames, state)` gets the values of the grouping columns, an iterator of
    pandas frames, and pyspark's own `GroupState`; its rules are Spark's: a call that neither updates nor removes the
    state, nor sets a time-out, changes nothing; time-outs come in all shards, with rows or without, behind the rows of
    their batch. name, checkpoint and the other arguments by name: see `apply_program`.

    What differs from Spark: time-outs of processing time come in batches with rows of any key (Spark runs batches
    without rows for these), or as often as `clock_ticks`, with or without rows. Raises ValueError for an unknown mode,
    time-out or grouping, and for `EventTimeTimeout` without a watermark.

    >>> import pandas
    >>> def visits(key, frames, state):
    ...     before = state.get[0] if state.exists else 0
    ...     state.update((before + sum(len(frame) for frame in frames),))
    ...     yield pandas.DataFrame({"user": [key[0]], "n": [state.get[0]]})
    >>> counts = hsp.apply_in_pandas_with_state(
    ...     events.groupBy("user"), visits, "user string, n long", "n long", "Update", "NoTimeout",
    ...     name="visits", location=location, shards=1,
    ... )
    >>> query = counts.writeStream.format("memory").queryName("visits").option("checkpointLocation", location)
    >>> query.outputMode("update").trigger(availableNow=True).start().awaitTermination()
    >>> spark.table("visits").collect()
    [Row(user='ann', n=2)]
    """
    if timeoutConf not in _TIMEOUTS:
        raise ValueError(f"timeoutConf: found {timeoutConf!r}, expected one of {', '.join(_TIMEOUTS)}")
    if outputMode.lower() not in ("append", "update"):
        raise ValueError(f"outputMode: found {outputMode!r}, expected append or update")
    check_place(place)
    df, keys = grouping_of(grouped, None)
    late = watermark_column(df)
    if timeoutConf == "EventTimeTimeout" and late is None:
        raise ValueError(
            'timeoutConf: found "EventTimeTimeout", but the DataFrame has no watermark (say '
            'df.withWatermark("time", "10 minutes") before groupBy)'
        )
    program = GroupProgram(
        func,
        keys,
        spark_schema(outputStructType),
        spark_schema(stateStructType),
        timeoutConf,
        late,
        df.schema,
        FrameSettings.of(df.sparkSession),
        key_columns(df, keys),
    )
    by_clock = timeoutConf == "ProcessingTimeTimeout"
    program.tick_ms = ticks_of(clock_ticks, by_clock, 'timeoutConf="ProcessingTimeTimeout"')
    return apply_program(df, program, **place)


@dataclass(eq=False, repr=False)
class GroupProgram(Program):
    """A function of groups and their state as a program of the operator."""

    # Spark's functions begin anew with each task.
    fresh = True
    # Null is a group, and so are dates, timestamps, structs and arrays.
    null_keys = "group"
    wide_keys = True

    function: Callable[..., Any]
    key: tuple[str, ...] = field()
    output: Any
    state: Any
    timeout: str
    late: str | None
    schema: Any
    settings: FrameSettings
    key_columns: list[Column] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Groups time out in shards without rows, too.
        self.empty_shards = _EMPTY_SHARDS.get(self.timeout)

    def describe(self) -> dict[str, Any]:
        """The kind of the time-outs. The schema of the state is compared by the variable that holds it."""
        return {"groups": self.timeout}

    def output_schema(self, schema: pa.Schema) -> Any:
        return self.output

    def open(self, group: StoreGroup) -> GroupRunner:
        return GroupRunner(self, group)


class GroupRunner(Runner):
    """A function of groups on the stores of one shard, for one batch."""

    dropped = 0

    def __init__(self, program: GroupProgram, group: StoreGroup) -> None:
        self._program = program
        self._handle = Handle(group, keys=GroupingKeys(program.key_columns))
        self._state = self._handle.getValueState(STATE, program.state)
        self._late_ms = 0
        self._batch_ms = self._watermark_ms = _NONE
        self.dropped = 0

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        self._batch_ms, self._watermark_ms = batch.timestamp_ms, batch.watermark_ms
        if self._program.timeout == "EventTimeTimeout" and batch.number > 0:
            self._late_ms = watermark_of(location, batch).late_ms
        self._handle.begin(batch.timestamp_ms)

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Call the function with the frames of every key, then for each group whose time-out has passed."""
        program, handle = self._program, self._handle
        if program.timeout == "EventTimeTimeout" and program.late is not None:
            arrived, table = table.num_rows, on_time(table, program.late, self._late_ms)
            self.dropped += arrived - table.num_rows
        table, keys, places = in_groups(table, program.key)
        reader = FrameReader(table, program.schema, program.settings)
        frames = FrameTable(program.output, output, program.settings, joined=True)
        given = reader.values(program.key, places[:-1])
        for key, values, start, end in zip(keys, given, places, places[1:], strict=False):
            handle.select(key)
            self._call(values, reader.chunks(start, end), frames, timed_out=False)
        if program.timeout != "NoTimeout" and handle.has_timers:
            now_ms = self._watermark_ms if program.timeout == "EventTimeTimeout" else self._batch_ms
            # a time-out comes behind its time, a timer at it
            due = [stored for _, stored in handle.timers.expired(now_ms - 1)]
            given = self._given([handle.keys.given(stored) for stored in due], table.schema)
            for stored, values in zip(due, given, strict=True):
                handle.select_stored(stored)
                self._call(values, [reader.empty()], frames, timed_out=True)
        handle.flush()
        return frames.table()

    def _given(self, keys: list[tuple[Any, ...]], schema: pa.Schema) -> list[tuple[Any, ...]]:
        """Return keys of the state as a frame has them."""
        import pyarrow as pa

        program = self._program
        names = list(program.key)
        fields = pa.schema([schema.field(name) for name in names])
        columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(fields)]
        reader = FrameReader(pa.Table.from_arrays(columns, schema=fields), program.schema, program.settings)
        return reader.values(names, range(len(keys)))

    def _call(self, key: tuple[Any, ...], frames: Iterable[Any], results: FrameTable, *, timed_out: bool) -> None:
        """Call the function for the selected group, and write what it has changed."""
        from pyspark.sql import Row
        from pyspark.sql.streaming.state import GroupState

        program, variable, handle = self._program, self._state, self._handle
        value = variable.get()
        state = GroupState(
            Row(*value) if value is not None else None,  # type: ignore[arg-type]
            self._batch_ms,
            self._watermark_ms,
            program.timeout,
            timed_out,
            program.late is not None,
            value is not None,
            False,
            False,
            _NONE,
            b"",
            program.state,
        )
        results.extend(_checked(program.function(key, frames, state), len(program.output.fields)))
        timeout = int(state._timeout_timestamp)
        if state._updated or state._removed or timeout != _NONE:
            if not state._defined:
                variable.clear()
            elif state._updated:
                variable.update(tuple(state._value))
            for old in handle.timers.of(handle.key) if handle.has_timers else ():
                handle.deleteTimer(old)
            if timeout != _NONE:
                handle.registerTimer(timeout)


def _checked(results: Any, width: int) -> Iterator[Any]:
    """Yield the frames of a function. Raises what Spark raises for other answers."""
    import pandas as pd
    from pyspark.errors import PySparkRuntimeError, PySparkTypeError

    def refuse(expected: str, actual: str) -> PySparkTypeError:
        return PySparkTypeError(
            errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": actual}
        )

    if isinstance(results, pd.DataFrame):
        raise refuse("iterable of pandas.DataFrame", "DataFrame")
    if not hasattr(results, "__iter__"):
        raise refuse("iterable", type(results).__name__)
    for frame in results:
        if not isinstance(frame, pd.DataFrame):
            raise refuse("iterator of pandas.DataFrame", f"iterator of {type(frame).__name__}")
        if len(frame.columns) != width and not (frame.empty and not len(frame.columns)):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(width), "actual": str(len(frame.columns))},
            )
        yield frame
