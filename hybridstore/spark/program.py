"""Program: a topology as Spark's workers run it, Arrow tables in and out.

Aggregates' column types follow from the built-in aggregators; one's own aggregator needs its type declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..clock import Watermark
from ..collector import collector_held
from ..shards import shard_of
from ..state.group import StoreGroup
from ..topology.column_types import aggregate_type, check_columns, result_array
from ..topology.plan import Plan
from ..topology.results import Result, canonical_order
from ..topology.rows import LeftOut, from_arrow, without_nulls
from ..topology.task import CustomTask, WindowTask

if TYPE_CHECKING:
    import pyarrow as pa

    from ..topology.arrow_columns import Columns


class TopologyProgram:
    """A topology that can be sent to workers.

    `types` gives the Arrow types of aggregates that are not built in, by name. `clocked`: a watermark is the time;
    records move nothing.
    """

    def __init__(self, plan: Plan, types: dict[str, Any] | None = None, *, clocked: bool = False) -> None:
        self.plan = plan
        self.types = types or {}
        self.clocked = clocked

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.plan.key

    @property
    def timestamp(self) -> str:
        """The event time column."""
        return self.plan.timestamp

    def describe(self) -> dict[str, Any]:
        """Return what the stored state is compared with."""
        return self.plan.describe()

    def columns(self) -> tuple[str, ...]:
        """Return the input columns that are needed, () for all."""
        return self.plan.columns

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output for an input of `schema`. Raises ValueError or TypeError naming what is missing or wrong."""
        import pyarrow as pa

        plan = self.plan
        if plan.custom is not None:
            if plan.custom.schema is None:
                raise ValueError("process: output_schema: found None, expected a schema when it runs on Spark")
            found: pa.Schema = plan.custom.schema
            return found
        for name in plan.columns or (*plan.key, plan.timestamp):
            if not plan.steps and name not in schema.names:
                raise ValueError(f"apply: column {name!r} is missing: found {', '.join(schema.names)}")
        assert plan.aggregates is not None
        time_type = schema.field(plan.timestamp).type
        if not plan.steps and not (pa.types.is_timestamp(time_type) or pa.types.is_integer(time_type)):
            raise TypeError(
                f"apply: column {plan.timestamp!r}: found {time_type}, expected a timestamp or an integer (ms since the epoch)"
            )
        fields = [pa.field(name, schema.field(name).type) for name in plan.key]
        fields += [pa.field("window_start", time_type), pa.field("window_end", time_type)]
        check_columns(plan, schema)
        for name, part in zip(plan.aggregates.names, plan.aggregates.parts, strict=True):
            fields.append(pa.field(name, self.types.get(name) or aggregate_type(name, part, schema)))
        return pa.schema(fields)

    def open(self, group: StoreGroup) -> Runner:
        """Open the topology on the stores of a shard."""
        return Runner(self.plan, group, clocked=self.clocked)


class Runner:
    """A topology at work on one shard, a batch at a time."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        self.plan = plan
        self.task: WindowTask | CustomTask = (
            CustomTask(plan, group, clocked=clocked)
            if plan.custom is not None
            else WindowTask(plan, group, clocked=clocked)
        )
        self._columns = self.task.by_column() if isinstance(self.task, WindowTask) else None
        self._maps = any(step.kind == "map" for step in plan.steps)
        self._place: tuple[int, int] | None = None
        self.left_out = LeftOut()
        """Rows left out since the runner was opened: how many have no key, and how many no time."""

    def begin(self, batch: object, shard: int, shards: int, checkpoint: str) -> None:
        """Learn which of how many shards this is: rows were given to it by their keys as they were before any `map`."""
        self._place = (shard, shards)

    def _check_keys(self, keys: list[Any]) -> None:
        """Raise ValueError for a key that a `map` has changed into one of another shard. O(keys)."""
        if self._place is None or not self._maps:
            return
        shard, shards = self._place
        for key in dict.fromkeys(keys):
            if shard_of(key, shards) != shard:
                raise ValueError(
                    f"map: found key {key!r} of shard {shard_of(key, shards)} in shard {shard}, expected the key that the row came "
                    "with (a map step cannot change the key here: change the column before apply)"
                )

    @property
    def dropped(self) -> int:
        """Late records dropped since the runner was opened."""
        return self.task.dropped

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process one shard's rows of one batch, in canonical order, end its commit, and return the results. O(n log n)."""
        with collector_held():
            table, left_out = without_nulls(self.plan, table)
            self.left_out = self.left_out.and_also(left_out)
            if self._columns is not None:
                results = self._columns.process(table, watermark)
                if results is not None:
                    return (
                        to_arrow(self.plan, results, output)
                        if isinstance(results, list)
                        else by_column(self.plan, results, output)
                    )
            return self._by_row(table, output, watermark)

    def _by_row(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None) -> pa.Table:
        import pyarrow as pa

        task = self.task
        records = from_arrow(self.plan, table)
        self.left_out = self.left_out.and_also(records.left_out)
        self._check_keys(records.keys)
        if isinstance(task, CustomTask):
            order = canonical_order(records.keys, [sorted(row.items()) for row in records.values], records.times)
            ordered = [records.values[i] for i in order], [records.times[i] for i in order]
            columns = task.output.columns(task.process_rows(*ordered, watermark) + task.finish())
            arrays = [_output_array(field, column) for field, column in zip(output, columns, strict=True)]
            return pa.Table.from_arrays(arrays, schema=output)
        results = task.process(records.keys, records.values, records.times, watermark)
        return to_arrow(self.plan, results + task.finish(), output)


def _output_array(field: pa.Field, column: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(column, type=field.type)
    except (OverflowError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"process: column {field.name!r}: expected {field.type}: {error}") from error


def to_arrow(plan: Plan, results: list[Result], output: pa.Schema) -> pa.Table:
    """Turn results into a table of the output schema. O(results), by column."""
    import pyarrow as pa

    if not results:
        return output.empty_table()
    keys, starts, ends, aggregates, _ = zip(*results, strict=True)
    width = len(output.names) - len(plan.key) - 2
    none = (None,) * width
    parts = [keys] if len(plan.key) == 1 else list(zip(*keys, strict=True))
    columns = [*parts, starts, ends]
    columns += list(zip(*[a if a is not None else none for a in aggregates], strict=True))
    arrays = []
    for i, (field, column) in enumerate(zip(output, columns, strict=True)):
        if i in (len(plan.key), len(plan.key) + 1) and pa.types.is_timestamp(field.type):
            arrays.append(_timestamps(list(column), field.type))
        else:
            arrays.append(result_array(plan, column, field, keys.__getitem__))
    return pa.Table.from_arrays(arrays, schema=output)


def by_column(plan: Plan, results: Columns, output: pa.Schema) -> pa.Table:
    """Turn results by column into a table of the output schema. O(results)."""
    import pyarrow as pa

    def key_of(place: int) -> Any:
        parts = [part[place].as_py() for part in results.keys]
        return parts[0] if len(parts) == 1 else tuple(parts)

    given = [*results.keys, results.starts, results.ends, *results.aggregates]
    arrays = []
    for field, column in zip(output, given, strict=True):
        if pa.types.is_timestamp(field.type):
            arrays.append(_timestamps(column, field.type))
        else:
            arrays.append(result_array(plan, column, field, key_of))
    return pa.Table.from_arrays(arrays, schema=output)


def _timestamps(times: Any, kind: Any) -> Any:
    import pyarrow as pa

    milliseconds = pa.array(times, type=pa.int64())
    return milliseconds.cast(pa.timestamp("ms")).cast(pa.timestamp(kind.unit)).cast(kind)
