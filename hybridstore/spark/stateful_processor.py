"""transform_with_state: runs a class written for Spark's `transformWithState` (the Row API) on our stores,
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..clock import Watermark
from ..shards import shard_of
from ..state.group import StoreGroup
from ..state.policy import CheckpointPolicy
from ..state.upgrades import Upgrade
from .connect import grouping, watermark_column
from .location import Location
from .operator import apply_program
from .processor_state import Handle
from .provider import POLICY
from .query_log import watermark_of
from .shipped import Batch, Placement

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

_INITIAL = "initial state handled"
_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


def transform_with_state(
    grouped: Any,
    statefulProcessor: StatefulProcessor,
    outputStructType: Any,
    outputMode: str = "Update",
    timeMode: str = "None",
    initialState: Any = None,
    eventTimeColumnName: str = "",
    *,
    name: str,
    checkpoint: str,
    shards: int | None = None,
    key: Sequence[str] | str | None = None,
    policy: CheckpointPolicy = POLICY,
    placement: Placement = "auto",
    state: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | None = None,
    cache_bytes: int | None = None,
    tasks: int | None = None,
    upgrade: Mapping[str, Upgrade] | None = None,
    memory_limit: int | None = None,
) -> DataFrame:
    """The same call as `GroupedData.transformWithState`, with the state in the workers instead of behind a socket.

    `grouped` is `df.groupBy(...)`, or a DataFrame with `key`, the grouping columns. `initialState` is grouped likewise
    and must fit in the driver. name, checkpoint and the following arguments: see `apply_program`. Rows of a key are
    sorted by their columns, so a replay gives the same results. upgrade: functions by the name of a state variable, for
    variables whose schema differs from the stored schema. A function takes a value (a tuple) of the old schema and
    returns a value of the new schema; for a list it is called with each element, for a map with each value. The values
    of a shard are upgraded in the shard's next batch with rows.

    What differs from Spark: timers of processing time expire in batches with rows of any key (Spark runs batches
    without rows for these timers); ttl needs no time mode; the output carries no watermark (`eventTimeColumnName` is
    accepted and not used). Raises ValueError for an unknown mode
    or grouping.

    >>> from pyspark.sql import Row
    >>> from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    >>> class Visits(StatefulProcessor):
    ...     def init(self, handle):
    ...         self.total = handle.getValueState("total", "n long")
    ...     def handleInputRows(self, key, rows, timers):
    ...         (before,) = self.total.get() or (0,)
    ...         self.total.update((before + len(list(rows)),))
    ...         yield Row(user=key[0], n=self.total.get()[0])
    ...     def close(self):
    ...         pass
    >>> visits = hsp.transform_with_state(
    ...     events.groupBy("user"), Visits(), "user string, n long", name="visits", checkpoint=location, shards=1
    ... )
    >>> query = visits.writeStream.format("memory").queryName("visits").option("checkpointLocation", location)
    >>> query.trigger(availableNow=True).start().awaitTermination()
    >>> spark.table("visits").collect()
    [Row(user='ann', n=2)]
    """
    mode = _MODES.get(timeMode.lower())
    if mode is None:
        raise ValueError(f"timeMode: found {timeMode!r}, expected one of {', '.join(_MODES.values())}")
    if outputMode.lower() not in ("append", "update", "complete"):
        raise ValueError(f"outputMode: found {outputMode!r}, expected append or update")
    df, keys = _grouping(grouped, key)
    initial: dict[tuple[Any, ...], list[Any]] = {}
    if initialState is not None:
        frame, initial_keys = _grouping(initialState, key)
        for row in _rows(frame.toArrow()):
            initial.setdefault(tuple(row[column] for column in initial_keys), []).append(row)
    late = watermark_column(df)
    program = ProcessorProgram(
        statefulProcessor, keys, outputStructType, mode, late if mode == "EventTime" else None, initial, upgrade
    )
    return apply_program(
        df,
        program,
        name=name,
        checkpoint=checkpoint,
        shards=shards,
        policy=policy,
        placement=placement,
        state=state,
        storage_options=storage_options,
        cache=cache,
        cache_bytes=cache_bytes,
        tasks=tasks,
        memory_limit=memory_limit,
    )


def _grouping(grouped: Any, key: Sequence[str] | str | None) -> tuple[DataFrame, tuple[str, ...]]:
    if key is not None:
        frame = grouped if hasattr(grouped, "schema") else grouped._df
        return frame, (key,) if isinstance(key, str) else tuple(key)
    if not hasattr(grouped, "agg") or hasattr(grouped, "schema"):
        raise ValueError("key: missing, expected the grouping columns, or df.groupBy(...) instead of the DataFrame")
    return grouped._df, grouping(grouped)


class ProcessorProgram:
    """A stateful processor as a program of the operator."""

    # Spark makes a new processor for every task, so attributes that a processor sets must not survive a batch.
    fresh = True

    def __init__(
        self,
        processor: StatefulProcessor,
        key: tuple[str, ...],
        output: Any,
        mode: str,
        late: str | None,
        initial: dict[tuple[Any, ...], list[Any]],
        upgrade: Mapping[str, Upgrade] | None = None,
    ) -> None:
        self.processor = processor
        # The driver reads the name, because a class that is defined in a function has lost the function's name in a
        # worker.
        self.name = type(processor).__qualname__
        self.upgrade = dict(upgrade or {})
        self.key = key
        self.output = output
        self.mode = mode
        self.late = late
        # Timers expire in shards without rows, too: when the watermark moves, or in every batch (processing time).
        self.empty_shards = "watermark" if late else "batch" if mode == "ProcessingTime" else None
        self.initial = initial

    def columns(self) -> tuple[str, ...]:
        """Return (), which means all columns."""
        return ()

    def describe(self) -> dict[str, Any]:
        """The processor's name and time mode. Each state variable is compared when the processor asks for it."""
        return {"processor": self.name, "time_mode": self.mode}

    def output_schema(self, schema: pa.Schema) -> Any:
        """The schema that the caller gave."""
        return self.output

    def open(self, group: StoreGroup) -> ProcessorRunner:
        """Let the processor open its variables."""
        return ProcessorRunner(self, group)


class ProcessorRunner:
    """A processor that is open on the stores of a shard, for one batch."""

    def __init__(self, program: ProcessorProgram, group: StoreGroup) -> None:
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

        self._program = program
        self._group = group
        self._handle = Handle(group, program.upgrade)
        self._expired: Callable[[int], Any] = ExpiredTimerInfo
        self._values = TimerValues(-1, -1)
        self._times: Callable[[int, int], Any] = TimerValues
        self._late_ms: int | None = None
        self._now = -1
        self._shard = 0
        self._shards = 1

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        """Set the batch and its times; called before `process`."""
        mode = self._program.mode
        self._shard, self._shards = shard, shards
        processing = batch.timestamp_ms if mode == "ProcessingTime" else -1
        watermark = batch.watermark_ms if mode == "EventTime" else -1
        self._values = self._times(processing, watermark)
        self._now = watermark if mode == "EventTime" else processing
        if self._program.late is not None and batch.number > 0:
            # The watermark of the batch before decides which rows are late, as in Spark.
            self._late_ms = watermark_of(location, batch).late_ms
        self._handle.begin(batch.timestamp_ms)

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Call the processor with the rows of every key, then with each expired timer."""
        program, handle = self._program, self._handle
        processor: Any = program.processor
        processor.init(handle)
        results: list[Any] = []
        initial = {} if self._group.settings.get(_INITIAL) else self._initial()
        if program.initial and not self._group.settings.get(_INITIAL):
            self._group.set(_INITIAL, True)
        for key, rows in initial.items():
            handle.select(key)
            for row in rows:
                processor.handleInitialState(key, row, self._values)
        for key, on_time in self._by_key(self._on_time(table)):
            handle.select(key)
            results.extend(processor.handleInputRows(key, on_time, self._values) or ())
        if program.mode != "None" and handle.has_timers:
            for expiry, key in handle.timers.expired(self._now):
                handle.select(key)
                results.extend(processor.handleExpiredTimer(key, self._values, self._expired(expiry)) or ())
                handle.timers.delete(key, expiry)
        processor.close()
        handle.flush()
        return _to_arrow(results, output)

    def _initial(self) -> dict[tuple[Any, ...], list[Any]]:
        def mine(key: tuple[Any, ...]) -> bool:
            return shard_of(key if len(key) > 1 else key[0], self._shards) == self._shard

        return {key: rows for key, rows in self._program.initial.items() if mine(key)}

    def _on_time(self, table: pa.Table) -> pa.Table:
        if self._late_ms is None or not self._late_ms:
            return table
        import pyarrow.compute as pc

        micros = table.column(self._program.late).cast("int64")
        return table.filter(pc.greater(micros, self._late_ms * 1000))

    def _by_key(self, table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not table.num_rows:
            return
        names = table.column_names
        sortable = [name for name in names if not pa.types.is_nested(table.schema.field(name).type)]
        order = [*self._program.key, *(name for name in sortable if name not in self._program.key)]
        table = table.take(pc.sort_indices(table, [(name, "ascending") for name in order]))
        rows = _rows(table)
        keys = list(map(itemgetter(*(names.index(name) for name in self._program.key)), rows))
        keys = keys if len(self._program.key) > 1 else [(key,) for key in keys]
        start = 0
        for end in range(1, len(keys) + 1):
            if end == len(keys) or keys[end] != keys[start]:
                yield keys[start], iter(rows[start:end])
                start = end


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values in the form of Spark's rows: timestamps are in the zone of the session, or have
    no zone if the column has none. O(n), by numpy for text, numbers and timestamps without nulls.
    """
    import pyarrow as pa

    kind = column.type
    if not len(column) or column.null_count:
        return list(column.to_pylist())
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return list(column.to_numpy().tolist())
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        moments = column.to_numpy().tolist()
        if {*map(type, moments)} == {datetime}:  # numpy returns times outside of datetime's range as integers
            zone = column[0].as_py().tzinfo
            return moments if zone is None else [zone.fromutc(moment.replace(tzinfo=zone)) for moment in moments]
    return list(column.to_pylist())


def _rows(table: pa.Table) -> list[Any]:
    """Return the rows of a table as Spark's Rows."""
    from pyspark.sql import Row

    names, new = table.column_names, tuple.__new__

    def whole(values: tuple[Any, ...]) -> Any:
        row = new(Row, values)
        row.__fields__ = names
        return row

    return list(map(whole, zip(*(python_values(table.column(name)) for name in names), strict=True)))


def _to_arrow(rows: list[Any], output: pa.Schema) -> pa.Table:
    import pyarrow as pa

    if not rows:
        return output.empty_table()
    names = output.names
    first = getattr(rows[0], "__fields__", None)
    if first is None or list(first) == names:
        columns: list[Any] = list(zip(*rows, strict=True))
    else:
        columns = [[row[name] for row in rows] for name in names]
    arrays = []
    for field, column in zip(output, columns, strict=True):
        arrays.append(pa.array(column, type=field.type))
    return pa.Table.from_arrays(arrays, schema=output)
