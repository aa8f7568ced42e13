"""transform_with_state: runs a class written for Spark's `transformWithState` (the Row API) on our stores,
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

from ..clock import Duration, Watermark, duration_ms
from ..shards import shard_of
from ..state.changes import Difference, differs, refused
from ..state.group import StoreGroup
from ..state.upgrades import Upgrade
from ..topology.batch import LeftOut
from ..topology.null_keys import stored_key
from ..topology.output_rows import Column, columns_of_schema
from .batch_processor import process_batch
from .connect import grouping, parallelism, run_near_location, watermark_column
from .contract import Batch, Program, Runner
from .grouping_keys import GroupingKeys
from .location import Location, locate
from .operator import PlaceArguments, apply_program, check_place, spark_schema
from .operator_file import has_moved, operator_storage
from .processor_state import MODE_NAMES, MODES, Handle
from .query_log import committed, watermark_of
from .row_table import RowTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

INITIAL = "initial state handled"


def transform_with_state(
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
    """The same call as `GroupedData.transformWithState`, with the state in the workers instead of behind a socket.

    `grouped` is `df.groupBy(...)`, or a DataFrame with `key`, the grouping columns. A null key is a group like others.
    `initialState` is grouped likewise and must fit in the driver; every key's enters the state in batch 0, and later
    starts ignore the argument. name, checkpoints, allow and the other arguments by name: see `Topology.apply`. upgrade:
    functions by the name of a state variable, for variables whose schema differs from the stored schema. A function
    takes a value (a tuple) of the old schema and returns a value of the new schema; for a list it is called with each
    element, for a map with each value. Without a function a schema may change as Avro's rules allow: fields are added
    (null), removed and reordered, numbers widen. The first batch of a start opens every shard, also shards without
    rows, so that `init` changes and deletes state everywhere. clock_ticks: how often a batch is made, with or without
    rows, for timers of processing time (None: these timers expire in batches with rows of any key).

    What differs from Spark: docs/spark.md, "What differs from Spark's transformWithState". Raises ValueError for an
    unknown mode or grouping.

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
    ...     events.groupBy("user"), Visits(), "user string, n long", name="visits", location=location, shards=1
    ... )
    >>> query = visits.writeStream.format("memory").queryName("visits").option("checkpointLocation", location)
    >>> query.trigger(availableNow=True).start().awaitTermination()
    >>> spark.table("visits").collect()
    [Row(user='ann', n=2)]
    """
    spark = statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
    return run_processor(ProcessorProgram, grouped, ProcessorArguments(*spark, key, upgrade, clock_ticks), place)


class ProcessorArguments(NamedTuple):
    """The arguments of Spark's `transformWithState` and its pandas form, and ours besides a place."""

    processor: StatefulProcessor
    output: Any
    output_mode: str
    time_mode: str
    initial: Any
    event_time: str
    key: Sequence[str] | str | None
    upgrade: Mapping[str, Upgrade] | None
    clock_ticks: Duration | None


def run_processor(
    kind: type[ProcessorProgram], grouped: Any, asked: ProcessorArguments, place: PlaceArguments
) -> DataFrame:
    """Return the streaming DataFrame of a processor, whose rows come in the form of a kind of program."""
    mode = MODES.get((asked.time_mode or "").lower())
    if mode is None:
        raise ValueError(f"timeMode: found {asked.time_mode!r}, expected one of {MODE_NAMES}")
    if str(asked.output_mode).lower() not in ("append", "update", "complete"):
        raise ValueError(f"outputMode: found {asked.output_mode!r}, expected append or update")
    if isinstance(asked.processor, type) or not hasattr(asked.processor, "handleInputRows"):
        raise TypeError(
            f"statefulProcessor: found {asked.processor!r}, expected an object of a StatefulProcessor class"
        )
    df, keys = grouping_of(grouped, asked.key)
    if df.isStreaming:
        check_place(place)
    late, output = watermark_column(df), spark_schema(asked.output)
    late = late if mode == "EventTime" else None
    program = kind(asked.processor, keys, output, mode, late, {}, asked.upgrade, key_columns(df, keys))
    program.event_time = asked.event_time or None
    program.tick_ms = ticks_of(asked.clock_ticks, mode == "ProcessingTime", 'timeMode="ProcessingTime"')
    program.see(df)
    if asked.initial is not None:
        location = locate(place["location"], place.get("state_location")) if df.isStreaming else None
        if location is None or not run_near_location(
            df.sparkSession, partial(_has_initial_state, location, place["name"])
        ):
            frame, initial_keys = grouping_of(asked.initial, asked.key, "initialState")
            if frame.isStreaming or len(initial_keys) != len(keys):
                given = f"a {'streaming' if frame.isStreaming else 'batch'} DataFrame by {', '.join(initial_keys)}"
                raise ValueError(f"initialState: found {given}, expected a batch one, grouped as by {', '.join(keys)}")
            program.initial, program.initial_key = _initial_rows(frame, initial_keys, df, keys), initial_keys
            program.initial_schema = frame.schema
    if not df.isStreaming:
        return process_batch(
            df, program, place.get("tasks") or place.get("shards") or parallelism(df.sparkSession) or 1
        )
    return apply_program(df, program, **place)


def ticks_of(clock_ticks: Duration | None, by_clock: bool, expected: str) -> int | None:
    """Return how often a batch is made (ms). Raises ValueError for ticks where nothing expires by the clock."""
    if clock_ticks is None:
        return None
    if not by_clock:
        raise ValueError(f"clock_ticks: found {clock_ticks!r} where nothing expires by the clock, expected {expected}")
    return duration_ms(clock_ticks, "clock_ticks")


def rows_by_key(rows: Iterable[Any], keys: Iterable[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Return rows by the text of their grouping keys, in the order of their arrival. O(rows)."""
    texts, groups = GroupingKeys(), dict[str, list[Any]]()
    for row, key in zip(rows, keys, strict=True):
        groups.setdefault(texts.stored(key), []).append(row)
    return groups


def _initial_rows(frame: DataFrame, columns: Sequence[str], df: DataFrame, keys: Sequence[str]) -> dict[str, list[Any]]:
    """Return the rows of an initial state by key. Their keys have the types of the stream's, as on Spark. O(rows)."""
    cast = (frame[f"`{name}`"].cast(df.schema[key].dataType) for name, key in zip(columns, keys, strict=True))
    table = frame.select("*", *(column.alias(f"{place}") for place, column in enumerate(cast))).toArrow()
    width = table.num_columns - len(keys)
    of_keys = zip(*map(python_values, table.columns[width:]), strict=True)
    return rows_by_key(_rows(table.select(range(width))), of_keys)


def key_columns(df: DataFrame, key: Sequence[str]) -> list[Column]:
    """Return the names and types of the grouping columns."""
    return [
        column
        for name in key
        if name in df.columns
        for column in columns_of_schema(df.select(f"`{name}`").schema) or ()
    ]


def _has_initial_state(location: Location, name: str) -> bool:
    """Whether batch 0 has put the initial state into every shard. With a union or a coalesce below the operator a shard
    without rows in batch 0 gets its initial state with its first rows, so it is asked for at every start.
    """
    return committed(location.query()) >= 0 and not has_moved(operator_storage(location, name))


def grouping_of(
    grouped: Any, key: Sequence[str] | str | None, what: str = "grouped"
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the DataFrame and the grouping columns of `df.groupBy(...)`, which errors call `what`."""
    if key is not None:
        frame = grouped if hasattr(grouped, "schema") else grouped._df
        return frame, (key,) if isinstance(key, str) else tuple(key)
    if not hasattr(grouped, "agg") or hasattr(grouped, "schema"):
        raise ValueError(f"{what}: found {type(grouped).__name__}, expected df.groupBy(...)")
    return grouped._df, grouping(grouped, grouped._df)


@dataclass(eq=False, repr=False)
class ProcessorProgram(Program):
    """A stateful processor as a program of the operator. `initial` has rows by the text of their grouping key."""

    # Spark makes a new processor for every task, so attributes that a processor sets must not survive a batch.
    fresh = True
    # Null is a group, and so are dates, timestamps, structs and arrays.
    null_keys = "group"
    wide_keys = True
    # `init` of a new program deletes and changes state in every shard, and initial state is for all of them.
    begins_everywhere = True

    processor: StatefulProcessor
    key: tuple[str, ...] = field()
    output: Any
    mode: str
    late: str | None
    initial: dict[str, list[Any]]
    upgrade: Mapping[str, Upgrade] | None = None
    key_columns: list[Column] = field(default_factory=list)
    initial_schema: Any = None

    def __post_init__(self) -> None:
        # Timers expire in shards without rows, too: when the watermark moves, or in every batch (processing time).
        self.empty_shards = "watermark" if self.late else "batch" if self.mode == "ProcessingTime" else None
        # the grouping columns of the initial state
        self.initial_key = self.key

    def see(self, df: DataFrame) -> None:
        """Take from the input what the form of the rows needs: nothing."""

    def describe(self) -> dict[str, Any]:
        """The time mode. Each state variable is compared when the processor asks for it; the name of the class does not
        matter.
        """
        return {"processor": "transformWithState", "time_mode": self.mode}

    def changes(self, stored: dict[str, Any], allow: Collection[str] = ()) -> list[Difference]:
        """Return the differences from the description of the program that made the state: another time mode."""
        if "processor" not in stored:
            other = "a topology" if "aggregates" in stored else "another program"
            return [refused("program", other, self.describe()["processor"])]
        before, after = stored.get("time_mode"), self.mode
        if before == after:
            return []
        note = "timers of the state expire by the new mode's clock, or never in mode None"
        return [Difference(differs("timeMode", before, after), "consent", note, f"timeMode {before} to {after}")]

    def output_schema(self, schema: pa.Schema) -> Any:
        return self.output

    def open(self, group: StoreGroup) -> ProcessorRunner:
        return ProcessorRunner(self, group)


class ProcessorRunner(Runner):
    """A processor that is open on the stores of a shard, for one batch.

    `dropped` counts late rows, `left_out` rows without a time (which are processed, as Spark does).
    """

    dropped = 0
    left_out = LeftOut()

    def __init__(self, program: ProcessorProgram, group: StoreGroup) -> None:
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

        self._program = program
        self._group = group
        self._handle = Handle(group, program.upgrade, GroupingKeys(program.key_columns), program.mode)
        self._expired: Callable[[int], Any] = ExpiredTimerInfo
        self._values = TimerValues(-1, -1)
        self._times: Callable[[int, int], Any] = TimerValues
        self._late_ms = 0
        self._now = -1
        self._shard = 0
        self._shards = 1

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        mode = self._program.mode
        self._shard, self._shards = shard, shards
        processing = -1 if mode == "None" else batch.timestamp_ms
        # Spark gives the watermark of a query to classes that have timers of processing time, too; without one it is 0.
        watermark = -1 if mode == "None" else batch.watermark_ms
        self._values = self._times(processing, watermark)
        self._now = watermark if mode == "EventTime" else processing
        if self._program.late is not None:
            # The watermark of the batch before decides which rows are late, as in Spark.
            self._late_ms = watermark_of(location, batch).late_ms
        self._handle.begin(batch.timestamp_ms)

    def begin_alone(self, now_ms: int, shard: int, shards: int) -> None:
        """Set the times for a batch DataFrame, which has no watermark: no row is late, and no event timer expires."""
        self._shard, self._shards = shard, shards
        processing = -1 if self._program.mode == "None" else now_ms
        self._values = self._times(processing, -1)
        self._now = processing if self._program.mode == "ProcessingTime" else -1
        self._handle.begin(now_ms)

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Call the processor with the rows of every key, then with each expired timer."""
        program, handle = self._program, self._handle
        processor: Any = program.processor
        processor.init(handle)
        handle.ready()
        results = self._results(output)
        for stored, initial in self._initial():
            handle.select_stored(stored)
            given, rows = self._given(initial)
            for row in rows:
                processor.handleInitialState(given, row, self._values)
        for key, on_time in self._by_key(self._on_time(table)):
            handle.select(key)
            results.extend(processor.handleInputRows(key, on_time, self._values))
        if program.mode != "None" and handle.has_timers:
            for expiry, stored in handle.timers.expired(self._now):
                handle.select_stored(stored)
                given = handle.keys.of_timer(stored)
                results.extend(processor.handleExpiredTimer(given, self._values, self._expired(expiry)))
                handle.timers.delete(stored, expiry)
        processor.close()
        handle.flush()
        return results.table()

    def _given(self, initial: list[Any]) -> tuple[tuple[Any, ...], Iterable[Any]]:
        """Return a key, and the rows of its initial state, as `handleInitialState` gets them, one by one."""
        return tuple([initial[0][name] for name in self._program.initial_key]), initial

    def _results(self, output: pa.Schema) -> Results:
        """Return what takes the processor's results."""
        return RowTable(output)

    def _initial(self) -> list[tuple[str, list[Any]]]:
        """Return the rows of the initial state that belong to this shard, once in the life of the shard."""
        if not self._program.initial or self._group.settings.get(INITIAL):
            return []
        self._group.set(INITIAL, True)
        return [
            (key, rows) for key, rows in self._program.initial.items() if shard_of(key, self._shards) == self._shard
        ]

    def _on_time(self, table: pa.Table) -> pa.Table:
        """Return the rows that are not late. A row without a time is never late."""
        if self._program.late is None:
            return table
        self.left_out = LeftOut(0, table.column(self._program.late).null_count)
        rows = on_time(table, self._program.late, self._late_ms)
        self.dropped = table.num_rows - rows.num_rows
        return rows

    def _by_key(self, table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
        """Yield the keys in order, null first, each with its rows in the order of their arrival, as Spark does."""
        table, keys, places = in_groups(table, self._program.key)
        rows = _rows(table)
        for key, start, end in zip(keys, places, places[1:], strict=False):
            yield key, iter(rows[start:end])


def on_time(table: pa.Table, column: str, late_ms: int) -> pa.Table:
    """Return the rows whose time is behind a watermark (ms), or null. O(n)."""
    import pyarrow.compute as pc

    times = table.column(column).cast("int64")
    return table.filter(pc.fill_null(pc.greater(times, late_ms * 1000), True))


def in_groups(table: pa.Table, key: Sequence[str]) -> tuple[pa.Table, list[tuple[Any, ...]], list[int]]:
    """Return a table in the order of its grouping keys, null first, rows of a key as they arrived; the keys; and the
    place at which each begins, with the number of rows behind. O(n log n).

    Arrays are in the order of their elements, as Spark has them: null first, not a number last.
    """
    if not table.num_rows:
        return table, [], [0]
    table = table.take(_order(table, key))
    places = _beginnings([table.column(name) for name in key])
    keys = list(zip(*(python_values(table.column(name).take(places)) for name in key), strict=True))
    return table, keys, [*places, table.num_rows]


def _beginnings(columns: Sequence[pa.ChunkedArray]) -> list[int]:
    """Return the places at which a key differs from the one before it, and 0. O(n), by column unless a column is nested
    or of floats.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    differs = np.ones(len(columns[0]), bool)
    differs[1:] = False
    for column in columns:
        if pa.types.is_nested(column.type) or pa.types.is_floating(column.type):
            values = python_values(column)
            if "timestamp" in str(column.type):
                # moments of one zone are equal where its clocks are put back
                values = list(map(stored_key, values))
            differs[1:] |= np.array([not _same(*pair) for pair in pairwise(values)], bool)
            continue
        here, before = column.slice(1), column.slice(0, len(column) - 1)
        changes = pc.fill_null(pc.not_equal(here, before), False)
        if column.null_count:
            changes = pc.or_(changes, pc.not_equal(pc.is_null(here), pc.is_null(before)))
        differs[1:] |= changes.to_numpy()
    places: list[int] = np.flatnonzero(differs).tolist()
    return places


def _same(value: Any, other: Any) -> bool:
    """Whether two values are one group: what is equal, and what has one text as state: every nan has the same."""
    return bool(value == other) or stored_key(value) == stored_key(other)


def _order(table: pa.Table, key: Sequence[str]) -> Any:
    """Return the places of the rows by key, null first; rows of one key in the order of their arrival. O(n log n), of
    which only numbers are sorted for n rows, and values only once each.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: list[Any] = []

    def add(column: Any) -> None:
        if column.null_count:
            columns.append(pc.is_valid(column).to_numpy())
        if pa.types.is_list(column.type):
            columns.append(_ranks(column))
            return
        if not pa.types.is_struct(column.type):
            columns.append(_places_in_order(column))
            return
        for place in range(column.type.num_fields):
            add(pc.struct_field(column, [place]))

    for name in key:
        add(table.column(name))
    return np.lexsort(columns[::-1])  # which is stable


def _places_in_order(column: Any) -> Any:
    """Return numbers in the order of the values of a column, any for null. Floats stay: 0.0 is equal to -0.0, and every
    nan to the others.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        return pc.fill_null(column, 0.0).to_numpy()
    encoded = pa.concat_arrays(column.chunks).dictionary_encode()
    size = len(encoded.dictionary)
    # a number of 16 bits is sorted by its digits
    places = np.zeros(max(size, 1), np.min_scalar_type(size))
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(size)
    return places[pc.fill_null(encoded.indices, 0).to_numpy()]


def _ranks(column: Any) -> Any:
    """Return the places of arrays in their order, which Arrow does not know, as whole numbers. O(n log n)."""
    import numpy as np

    values = column.to_pylist()
    texts = list(map(stored_key, values))
    distinct = dict(zip(texts, values, strict=True))
    ranks = {text: rank for rank, text in enumerate(sorted(distinct, key=lambda text: _in_order(distinct[text])))}
    return np.array([ranks[text] for text in texts], np.int64)


def _in_order(value: Any) -> tuple[Any, ...]:
    """Return what sorts a value of an array as Spark does: null first, not a number last."""
    if value is None:
        return (0,)
    if isinstance(value, list | dict):
        return 1, [_in_order(part) for part in (value.values() if isinstance(value, dict) else value)]
    return (2,) if value != value else (1, value)


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
            if str(zone) == "UTC":
                import pandas as pd

                return list(pd.DatetimeIndex(column.to_numpy()).tz_localize(zone).to_pydatetime())
            return moments if zone is None else [zone.fromutc(moment.replace(tzinfo=zone)) for moment in moments]
    return list(column.to_pylist())


def _rows(table: pa.Table) -> list[Any]:
    """Return the rows of a table as Spark's Rows."""
    names = table.column_names
    values = zip(*map(python_values, table.columns), strict=True)
    return list(map(partial(tuple.__new__, _row_class(tuple(names))), values))


@lru_cache(maxsize=64)
def _row_class(names: tuple[str, ...]) -> Any:
    """Return Spark's Row with these fields: equal to a Row, and pickled and shown as one; reading a field searches no
    names.
    """
    from pyspark.sql import Row

    read = tuple.__getitem__
    # of two fields of a name the first is read
    places = {name: place for place, name in reversed([*enumerate(names)])}

    def of_name(row: Any, item: Any) -> Any:
        if type(item) is str and item in places:
            return read(row, places[item])
        return Row.__getitem__(row, item)

    fields = {
        name: property(partial(_read, place))
        for name, place in places.items()
        if not name.startswith("__") and not hasattr(Row, name)
    }
    return type("Row", (Row,), {**fields, "__module__": Row.__module__, "__fields__": [*names], "__getitem__": of_name})


def _read(place: int, row: Any) -> Any:
    return tuple.__getitem__(row, place)


class Results(Protocol):
    """Takes the results of a processor."""

    def extend(self, results: Iterable[Any], /) -> None:
        """Take results."""

    def table(self) -> pa.Table:
        """Return them as a table of the output."""
