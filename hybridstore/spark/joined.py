"""Joined: a join on Spark: its inputs as one DataFrame, and the program that workers run.

    orders.withWatermark(...)   ─┐  key columns, time, side, the row of its input as a struct
                                 ├─ union ──────────────────────────────────────────────────▶ one operator, one shuffle
    payments.withWatermark(...) ─┘

The watermark of a union is that of Spark's own policy for several (`spark.sql.streaming.multipleWatermarkPolicy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from ..clock import Watermark
from ..collector import collector_held
from ..state.group import StoreGroup
from ..topology.joins.columns import all_names, chosen_columns
from ..topology.joins.joining import Joining
from ..topology.joins.rows import Sides, input_plan
from ..topology.joins.spec import LEFT, RIGHT, Join, by_name, checked_inputs, given_inputs
from ..topology.joins.stores import declared_stores, unused
from ..topology.plan import Custom, Plan
from ..topology.times import TimeForm
from .arrow_schema import arrow_schema
from .operator import spark_schema
from .program import TopologyProgram, TopologyRunner, output_array
from .steps import passed_through

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SIDE: Final = "__side"
TIME: Final = "__time"
KEYS: Final = ("__key", "__row")


def union(plan: Plan, inputs: Any) -> tuple[DataFrame, Plan]:
    """Return the inputs of a join as one streaming DataFrame, and the plan with the columns of both. An input that is
    given later has its columns in place of rows (DDL text or a StructType).

    Raises TypeError or ValueError for inputs that cannot be joined.
    """
    from pyspark.sql import functions as f

    join = plan.joined
    assert join is not None
    frames = checked_inputs(join, inputs)
    streams = {name: frame for name, frame in frames.items() if hasattr(frame, "isStreaming")}
    if len(frames) < 2 or not streams:
        names = " and ".join(repr(source.name) for source in join.inputs)
        raise ValueError(
            f"apply: found {', '.join(map(repr, streams)) or 'no input'}, expected {names} (of one that is given later "
            "its columns as text, such as 'user string, paid timestamp')"
        )
    join = given_inputs(join, streams)
    session = next(iter(streams.values())).sparkSession
    known: dict[int, DataFrame] = {
        by_name(join, name): frame if name in streams else session.createDataFrame([], spark_schema(frame))
        for name, frame in frames.items()
    }
    sources = []
    for side, source in enumerate(join.inputs):
        known[side] = passed_through(known[side], input_plan(plan, source), f"apply: input {source.name!r}")
        columns = known[side].columns
        for column in (*source.key, source.timestamp, *(source.columns or ()), *filter(None, [source.delete])):
            if column not in columns:
                raise ValueError(
                    f"apply: input {source.name!r}: column {column!r} is missing: found {', '.join(columns)}"
                )
        wanted = source.columns if source.columns is not None else tuple(columns)
        sources.append(replace(source, columns=tuple(c for c in wanted if c not in (*source.key, source.timestamp))))
    join = replace(join, left_side=sources[LEFT], right_side=sources[RIGHT])
    sent = [_sent(known[side], join, side) for side in (LEFT, RIGHT)]
    rows = [_row(known[side], sent[side]) for side in (LEFT, RIGHT)]
    kinds = [known[LEFT].schema[name].dataType for name in join.left_side.key]
    parts = []
    for side in (LEFT, RIGHT):
        source = join.inputs[side]
        keys = [f.col(f"`{name}`") for name in source.key]
        if side == RIGHT and join.on is not None:
            keys = [f.lit(None).cast(kind) for kind in kinds]  # the rows of a broadcast table reach every shard
        named = [key.alias(f"{KEYS[0]}{place}") for place, key in enumerate(keys)]
        # the event time is the first column that is taken, so that its mark stays on it
        structs = [
            f.struct(*(f.col(f"`{name}`") for name in sent[at])) if at == side else f.lit(None).cast(rows[at])
            for at in (LEFT, RIGHT)
        ]
        named += [struct.alias(f"{KEYS[1]}{at}") for at, struct in enumerate(structs)]
        moment = f.col(f"`{source.timestamp}`").alias(TIME)
        parts.append(known[side].select(*named[: len(keys)], moment, f.lit(side).alias(SIDE), *named[len(keys) :]))
    key = tuple(f"{KEYS[0]}{place}" for place in range(len(join.left_side.key)))
    custom = Custom(unused, None, declared_stores(join))
    given = [part for part, source in zip(parts, join.inputs, strict=True) if source.name != join.without]
    return reduce(lambda rows, more: rows.union(more), given), replace(
        plan, joined=join, key=key, timestamp=TIME, custom=custom, stepped=True
    )


def _sent(frame: DataFrame, join: Join, side: int) -> tuple[str, ...]:
    """Return the columns of an input that its rows bring: those that are kept; of rows that may be handed out, all."""
    source = join.inputs[side]
    more = frame.columns if join.late is not None else [name for name in (source.delete,) if name is not None]
    return tuple(dict.fromkeys((*source.key, source.timestamp, *(source.columns or ()), *more)))


def _row(frame: DataFrame, names: Sequence[str]) -> Any:
    """Return the type of the struct with the row of an input."""
    from pyspark.sql import types as t

    return t.StructType([t.StructField(name, frame.schema[name].dataType) for name in names])


class JoinProgram(TopologyProgram):
    """A join that can be sent to workers."""

    def __init__(self, plan: Plan, types: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(plan, types, **options)
        # the rows of a broadcast table
        self.everywhere = f"`{SIDE}` = {RIGHT}" if plan.joined is not None and plan.joined.on is not None else None

    def columns(self) -> tuple[str, ...]:
        return ()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of results, with the types of the inputs."""
        import pyarrow as pa

        join = self.plan.joined
        assert join is not None
        structs = [schema.field(f"{KEYS[1]}{side}").type for side in (LEFT, RIGHT)]
        names = all_names(join, [source.columns or () for source in join.inputs])
        places, result = chosen_columns(join, names)
        width = len(join.left_side.key)
        kinds = [structs[LEFT].field(name).type for name in join.left_side.key]
        kinds += [structs[side].field(name).type for side, name in names[width:-1]]
        kinds.append(schema.field(TIME).type)
        if places is not None:
            kinds = [kinds[place] for place in places]
        fields = [pa.field(name, kind) for name, kind in zip(result, kinds, strict=True)]
        maps = [step for step in join.behind if step.kind == "map"]
        if maps:
            if maps[-1].schema is None:
                raise ValueError(
                    "apply: map behind a join: output_schema: found None, expected the columns that the function "
                    "returns, such as map(function, 'user string, n bigint'), because Spark has to know them before "
                    "the first row"
                )
            fields = list(
                arrow_schema(spark_schema(maps[-1].schema), getattr(schema.field(TIME).type, "tz", None) or "UTC")
            )
        if join.late is not None:
            if join.late in {field.name for field in fields}:
                raise ValueError(
                    f"late: column: {join.late!r} is the name of another column of the results (choose another)"
                )
            fields.append(pa.field(join.late, _late_type(join, structs)))
        if self.event_time is not None:
            if join.behind:
                raise ValueError(
                    f"apply: event_time: found {join.behind[0].kind} behind the join, expected none (use where and "
                    "select of the results)"
                )
            if self.event_time in [field.name for field in fields]:
                raise ValueError(
                    f"apply: event_time: {self.event_time!r} is the name of another column of the results (choose "
                    "another)"
                )
            fields.append(pa.field(self.event_time, pa.timestamp("us", "UTC")))
        return pa.schema(fields)

    def open(self, group: StoreGroup) -> JoinRunner:
        return JoinRunner(self, group)


def _late_type(join: Join, rows: Sequence[Any]) -> Any:
    """Return the type of late rows: the name of the input, and the columns of both, each of which is null in the rows
    of the other. Raises TypeError for a column that both have in different types.
    """
    import pyarrow as pa

    kinds = {"input": pa.string()}
    for side, row in enumerate(rows):
        for field in row:
            if kinds.setdefault(field.name, field.type) != field.type:
                raise TypeError(
                    f"late: input {join.inputs[side].name!r}: column {field.name!r}: found {field.type}, expected "
                    f"{kinds[field.name]}, as the other column of the name has (rename the column, or cast it)"
                )
    return pa.struct(list(kinds.items()))


class JoinRunner(TopologyRunner):
    """A join that runs on one shard, a batch at a time: Arrow tables in and out."""

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        import pyarrow as pa

        run = self._run
        results = run.process_batch(_sides(table), watermark)
        with collector_held():
            assert isinstance(run.logic, Joining)
            form: TimeForm = "ms" if pa.types.is_integer(table.schema.field(TIME).type) else "aware"
            columns = run.logic.table(results, form)
            wanted = [name for name in output.names if name != self._event_time]
            if columns and (columns.names is None or {*columns.names} != {*wanted}):
                names = columns.names or sorted({name for row in columns.columns for name in row})
                raise ValueError(
                    f"map behind a join: found rows with {', '.join(names)}, expected {', '.join(wanted)} in each"
                )
            known: dict[str, list[Any]] = dict(zip(columns.names or (), columns.columns, strict=False))
            if self._event_time is not None:
                assert watermark is not None
                # a row that arrives with a grace may be older than the watermark, for operators behind it may not
                first = watermark.late_ms * 1000 + 1 if watermark.late_ms else 0
                certain = [max(ts * 1000, first) for ts in run.logic.certain(results)]
                known[self._event_time] = [*certain, *[None] * (columns.size - len(certain))]
            arrays = [output_array(field, known.get(field.name, [])) for field in output]
            return pa.Table.from_arrays(arrays, schema=output)


def _sides(table: pa.Table) -> Sides:
    """Return the rows of both inputs of a batch. O(rows)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tables: list[Any] = []
    for side in (LEFT, RIGHT):
        rows = table.filter(pc.equal(table.column(SIDE), side)).column(f"{KEYS[1]}{side}")
        tables.append(pa.Table.from_struct_array(rows.combine_chunks()) if len(rows) else None)
    return Sides(*tables)
