"""Program: a topology as Spark's workers run it, Arrow tables in and out.

The column types of aggregates follow from the built-in aggregators; a user's aggregator needs a declared type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..clock import Watermark
from ..collector import collector_held
from ..state.changes import Difference
from ..state.group import StoreGroup
from ..topology.adopt import TOPOLOGY, changes_of
from ..topology.batch import ROW, LeftOut
from ..topology.column_types import aggregate_type, check_columns, result_array
from ..topology.custom import CustomLogic
from ..topology.failures import FailedRows
from ..topology.plan import Plan
from ..topology.results import Results, columns_of
from ..topology.shard_run import LateRows, ShardRun
from .contract import FRAME_ROWS, Program, Runner
from .event_time import with_times

if TYPE_CHECKING:
    import pyarrow as pa

    from .contract import Batch
    from .location import Location


class TopologyProgram(Program):
    """A topology that can be sent to workers.

    `types` gives the Arrow types of aggregates that are not built in, by name. `clocked`: a watermark is the time;
    records move nothing. `allow`: consent to the losses of a changed topology. `event_time`: the column of the results
    that carries the watermark; of windows it is added, of custom logic one of its columns.
    """

    def __init__(
        self,
        plan: Plan,
        types: dict[str, Any] | None = None,
        *,
        clocked: bool = False,
        allow: tuple[str, ...] = (),
        event_time: str | None = None,
    ) -> None:
        if event_time is not None:
            _check_event_time(plan, event_time, clocked)
        self.plan = plan
        self.key = plan.key
        self.null_keys = plan.null_keys
        # timers by the clock need batches
        self.tick_ms = None if plan.custom is None else plan.custom.tick_ms
        self.event_time = event_time
        self.allow = allow
        self.types = types or {}
        self.clocked = clocked

    def describe(self) -> dict[str, Any]:
        return self.plan.describe()

    def changes(self, stored: dict[str, Any], allow: Collection[str] = ()) -> list[Difference]:
        return changes_of(self.plan, {TOPOLOGY: stored}, allow)

    def columns(self) -> tuple[str, ...]:
        return () if self.plan.traced else self.plan.columns

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output for an input of `schema`.

        Raises ValueError or TypeError naming what is missing or wrong.
        """
        import pyarrow as pa

        plan = self.plan
        if plan.custom is not None:
            if plan.custom.schema is None:
                raise ValueError("process: output_schema: found None, expected a schema when it runs on Spark")
            schema_of_rows: pa.Schema = plan.custom.schema
            return schema_of_rows if plan.errors_column is None else self._with_errors(schema_of_rows, schema)
        for name in plan.columns or (*plan.key, plan.timestamp):
            if not plan.pending and name not in schema.names:
                raise ValueError(f"apply: column {name!r} is missing: found {', '.join(schema.names)}")
        assert plan.aggregates is not None
        time_type = schema.field(plan.timestamp).type
        if not plan.pending and not (pa.types.is_timestamp(time_type) or pa.types.is_integer(time_type)):
            raise TypeError(
                f"apply: column {plan.timestamp!r}: found {time_type}, expected a timestamp or an integer (ms since "
                "the epoch)"
            )
        fields = [pa.field(name, schema.field(name).type) for name in plan.key]
        fields += [pa.field(name, time_type) for name in plan.bounds]
        check_columns(plan, schema)
        for name, part in zip(plan.aggregates.names, plan.aggregates.parts, strict=True):
            fields.append(pa.field(name, self.types.get(name) or aggregate_type(name, part, schema)))
        row = schema.field(ROW).type if ROW in schema.names else pa.struct(list(schema))
        if plan.late_column is not None:
            fields.append(pa.field(plan.late_column, row))
        if plan.errors_column is not None:
            fields.append(pa.field(plan.errors_column, pa.struct([("error", pa.string()), ("row", row)])))
        if self.event_time is not None:
            zoned = pa.types.is_timestamp(time_type) and time_type.tz
            fields.append(pa.field(self.event_time, pa.timestamp("us", zoned or "UTC")))
        return pa.schema(fields)

    def _with_errors(self, output: Any, schema: pa.Schema) -> Any:
        """Return the columns of `process` with the column of rows that raised."""
        from pyspark.sql.types import StructType

        from .operator import spark_schema

        row = spark_schema(schema)
        row = row[ROW].dataType if ROW in schema.names else row
        cell = StructType().add("error", "string").add("row", row)
        assert self.plan.errors_column is not None
        return StructType(list(spark_schema(output))).add(self.plan.errors_column, cell)

    def open(self, group: StoreGroup) -> TopologyRunner:
        kind = TopologyRunner if self.event_time is None or self.plan.windows is None else TimedRunner
        return kind(self, group)


class _ArrowPieces:
    """Takes the results of windows that close by the piece, as they are read, and makes a table of each: as objects
    they take several times as much.
    """

    def __init__(self, table: Callable[[Results], pa.Table]) -> None:
        self._table = table
        self.rows = FRAME_ROWS
        self.tables: list[pa.Table] = []

    def take(self, piece: Results) -> None:
        """Make a table of the next piece. O(results)."""
        with collector_held():
            self.tables.append(self._table(piece))


class TopologyRunner(Runner):
    """A topology that runs on one shard, a batch at a time: Arrow tables in and out."""

    def __init__(self, program: TopologyProgram, group: StoreGroup) -> None:
        clocked, allow = program.clocked, program.allow
        self._run = ShardRun(program.plan, group, clocked=clocked, where="the state of a shard", allow=allow)
        self._event_time = program.event_time

    def begin(self, batch: Batch, shard: int, shards: int, location: Location) -> None:
        """Set the number of the shard, and of how many: rows were assigned to shards by their keys before any `map`."""
        self._run.place = (shard, shards)
        if isinstance(self._run.logic, CustomLogic):
            self._run.logic.at_clock(batch.timestamp_ms)

    @property
    def dropped(self) -> int:
        return self._run.dropped

    @property
    def left_out(self) -> LeftOut:
        """Rows left out since the runner was opened: how many have no key, and how many no time."""
        return self._run.left_out

    @property
    def by_row(self) -> str | None:
        return None if self._run.why is None else str(self._run.why)

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process one shard's rows of one batch as a commit, and return the results. O(n log n)."""
        import pyarrow as pa

        run = self._run
        plan, logic = run.plan, run.logic
        if isinstance(logic, CustomLogic):
            results = run.process_batch(table, watermark)
            with collector_held():
                columns = logic.output.columns(results)
                arrays = [output_array(field, column) for field, column in zip(output, columns, strict=False)]
                if plan.errors_column is not None:
                    return with_errors(plan, arrays, run.late_rows, output)
                return pa.Table.from_arrays(arrays, schema=output)
        fields = output if plan.extra_column is None else output.remove(len(output) - 1)
        pieces = _ArrowPieces(lambda piece: to_arrow(plan, logic.known(piece), fields))
        if logic.windowed.emit == "close":
            logic.windowed.taker = pieces
        pieces.take(run.process_batch(table, watermark))
        with collector_held():
            known = pa.concat_tables(pieces.tables)
            if run.late_rows is None:
                return known
            if isinstance(run.late_rows, FailedRows):
                return with_errors(plan, known.columns, run.late_rows, output)
            return with_late(plan, known, run.late_rows, output)


class TimedRunner(TopologyRunner):
    """A runner whose results have their event time as the last column."""

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process as `TopologyRunner`, and add the column."""
        windows = self._run.plan.windows
        assert watermark is not None
        assert windows is not None
        results = super().process(table, output.remove(len(output) - 1), watermark)
        return with_times(results, windows, watermark, output.field(len(output) - 1))


def _check_event_time(plan: Plan, column: str, clocked: bool) -> None:
    """Raise ValueError unless results of a plan can have an event time that is never late."""
    if not clocked:
        raise ValueError(
            'apply: event_time: found with time="stream", expected time="watermark" (a shard\'s stream time can be '
            "behind the query's watermark, and Spark would drop such rows)"
        )
    if plan.custom is not None:
        return
    if plan.windows is None or not plan.bounds:
        raise ValueError("apply: event_time: found aggregates without windows, which have no time")
    grace_ms = plan.windows.grace_ms or (plan.suppression.grace_ms if plan.suppression is not None else None)
    if grace_ms:
        raise ValueError(
            f"apply: event_time: found windows with a grace of {grace_ms} ms, expected none: a result would "
            "leave behind its window's end (delay the watermark instead)"
        )
    if plan.suppression is not None and not plan.suppression.final:
        raise ValueError(
            'apply: event_time: found hold(...) with a duration, expected hold("close"): a result can leave '
            "behind its window's end"
        )
    names = [*plan.key, "window_start", "window_end", *(plan.aggregates.names if plan.aggregates is not None else ())]
    if column in (*names, plan.late_column):
        raise ValueError(f"apply: event_time: {column!r} is the name of another column of the results (choose another)")


def with_errors(plan: Plan, columns: list[Any], failed: LateRows | FailedRows | None, output: pa.Schema) -> pa.Table:
    """Return the columns of results, with a last column of nulls, and behind them the rows that raised."""
    import pyarrow as pa

    rows = len(columns[0]) if columns else 0
    marked = pa.Table.from_arrays([*columns, pa.nulls(rows, output.field(len(output) - 1).type)], schema=output)
    if not isinstance(failed, FailedRows) or not failed.cells:
        return marked
    keyed = plan.key if plan.custom is None else ()
    cells = [
        {**dict(zip(keyed, key if isinstance(key, tuple) else (key,), strict=False)), str(plan.errors_column): cell}
        for key, cell in zip(failed.keys, failed.cells, strict=True)
    ]
    return pa.concat_tables([marked, pa.Table.from_pylist(cells, schema=output)])


def with_late(plan: Plan, results: pa.Table, late: LateRows, output: pa.Schema) -> pa.Table:
    """Return results and, behind them, late rows, with the column of late rows. O(results + late rows)."""
    import pyarrow as pa

    field = output.field(len(output) - 1)
    marked = results.append_column(field, pa.nulls(results.num_rows, field.type))
    if not late.places:
        return marked
    rows = late.source.take(pa.array(late.places, pa.int64())).combine_chunks()
    if ROW in rows.column_names:
        whole = rows.column(ROW).chunk(0).cast(field.type)
    else:
        columns = [rows.column(part.name).cast(part.type) for part in field.type]
        chunks = [column.combine_chunks() for column in columns]
        whole = pa.StructArray.from_arrays(
            [chunk if isinstance(chunk, pa.Array) else chunk.chunk(0) for chunk in chunks], fields=list(field.type)
        )
    parts = [late.keys] if len(plan.key) == 1 else list(zip(*late.keys, strict=True))
    arrays = [
        result_array(plan, list(part), output.field(place), late.keys.__getitem__) for place, part in enumerate(parts)
    ]
    arrays += [pa.nulls(len(late.places), output.field(i).type) for i in range(len(parts), len(output) - 1)]
    return pa.concat_tables([marked, pa.Table.from_arrays([*arrays, whole], schema=output)])


def output_array(field: pa.Field, column: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(column, type=field.type)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"process: column {field.name!r}: expected {field.type}: {error}") from error


def to_arrow(plan: Plan, results: Results, output: pa.Schema) -> pa.Table:
    """Turn results into a table of the output schema. O(results), by column."""
    import pyarrow as pa

    if not results:
        return output.empty_table()
    columns = columns_of(plan, results)
    key_of = partial(_key_at, columns[: len(plan.key)])
    bounds = range(len(plan.key), len(plan.key) + len(plan.bounds))
    arrays = [
        _timestamps(column, field.type)
        if place in bounds and pa.types.is_timestamp(field.type)
        else result_array(plan, column, field, key_of)
        for place, (field, column) in enumerate(zip(output, columns, strict=True))
    ]
    return pa.Table.from_arrays(arrays, schema=output)


def _key_at(parts: list[Any], place: int) -> Any:
    """Return the key of a result by column."""
    key = [part[place] if isinstance(part, list | tuple) else part[place].as_py() for part in parts]
    return key[0] if len(key) == 1 else tuple(key)


def _timestamps(times: Any, kind: Any) -> Any:
    import pyarrow as pa

    milliseconds = pa.array(times, type=pa.int64())
    return milliseconds.cast(pa.timestamp("ms")).cast(pa.timestamp(kind.unit)).cast(kind)
