"""Frames: a batch DataFrame as the beginning of an operator: of rows (`backfill`), or of results (`initial_state`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from recovery.layout import shard_folder
from recovery.runs import newest_claim
from recovery.shard_log import ShardLog

from ..aggregation import Aggregator, Forever, SessionWindows, SlidingWindows
from ..progress import OnProgress, watching
from ..spark.arrow_schema import arrow_schema
from ..spark.connect import run_near_location
from ..spark.location import Location
from ..spark.operator import Applied, to_shards, with_shards
from ..spark.program import TopologyProgram
from ..spark.query_log import NAMED, BatchTime
from ..spark.session import prepare
from ..spark.shard_rows import metrics
from ..spark.shipped import carried
from ..spark.steps import stepped
from ..spark.ticks import are_named, with_every_shard
from ..state.arguments import check
from ..topology.custom import wall_ms
from ..topology.plan import END as WINDOW_END
from ..topology.plan import START as WINDOW_START
from ..topology.plan import Plan
from .api import applied_to, check_location, finish, first_offsets, load_state, named_ticks, new_query_id
from .buffers import DISTINCT, SKETCH, Part
from .first_batch import FirstBatch, watched
from .loading import END, START, STORE, Aggregates, StoredRows
from .moves import Move
from .query_files import BY_NAME, Standing, unread, with_ticks
from .report import ImportRefusedError, ImportReport

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Kinds of stores of `process` that can begin with rows; a window store has times.
_TIMED: Final = "window"
_STORES: Final = ("key_value", _TIMED)
# What the column of an aggregate has, by the aggregator's name: all that it keeps.
_FORMS: Final = {
    "count": "a number",
    "sum": "a number",
    "min": "a value",
    "max": "a value",
    "mean": "struct<sum, count>",
    "variance": "struct<count, mean, m2>",
    "first": "a value",
    "last": "a value",
    "collect": "array",
    "collect_set": "array",
    DISTINCT: "array",
    SKETCH: "binary",
}


def backfill(
    history: Any,
    results: Any,
    write: Callable[[DataFrame], Any] | None = None,
    *,
    sources: int | None = None,
    progress: OnProgress | bool | None = None,
) -> ImportReport:
    """Let a batch DataFrame be the first batch of a query, so that its stream continues behind it.

    history   rows with the columns of the stream's
    results   what `topology.apply`, `hsp.transform_with_state`, ... has returned for the stream, with a new
              checkpointLocation
    write     called once with the results of the history, a batch DataFrame; each action in it computes them again;
              None: they are not kept
    sources   how many sources the stream has, for a client of Spark Connect, which cannot see them (None: 1)
    progress  called as progress(phase, done, total), or True for a bar on a terminal

    The rows are those of a query that reads the history as its first batch, and the stream behind it: all state is
    there, and with `time="watermark"` the stream begins with the watermark of the history. The stream begins at the
    first offsets of its sources (`startingOffsets`, `startingVersion`, another folder), so it must not have the rows of
    the history again. A backfill that was broken off does not count: call it again. Raises ImportRefusedError. O(rows).

    >>> from pyspark.sql import Row
    >>> history = spark.createDataFrame([Row(user="ann", ts=100), Row(user="bob", ts=200)])
    >>> totals = hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    >>> results = totals.apply(events, "totals", location=location, shards=1)
    >>> report = hs.backfill(history, results, write=lambda df: print(df.count()))
    2
    >>> writer = results.writeStream.foreachBatch(lambda df, batch: print(batch, df.collect()))
    >>> query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
    >>> query.awaitTermination()
    1 [Row(user='ann', n=3)]
    """
    from pyspark.sql import Observation

    check(progress=progress)
    started = time.perf_counter()
    known = applied_to(results)
    operator, program = known.operator, known.operator.program
    session = results.sparkSession
    prepare(session)
    where = f"backfill of {operator.name!r}"
    rows = _input(history, known, where)
    run_near_location(session, partial(check_location, operator.location, operator.name))
    times = BatchTime(0, wall_ms())
    name = run_near_location(session, partial(new_query_id, operator.location))
    function = FirstBatch(operator, program, where, operator.output, name, times)
    seen = Observation()
    sharded = with_shards(rows.observe(seen, *_numbers(known, where)), known.columns, program, operator.shards)
    lying = to_shards(with_every_shard(sharded, operator.shards), operator)
    filled = lying.mapInArrow(carried(function), known.output)
    with watching(progress, "backfill") as step, watched(operator, filled, step):
        if write is None:
            filled.write.format("noop").mode("overwrite").save()
        else:
            write(filled)
    whole = partial(_is_whole, operator.location, operator.name, operator.shards, function.run_id)
    if not run_near_location(session, whole):
        raise ImportRefusedError(
            f"{where}: found shards that were not written, expected all {operator.shards} (`write` must write the "
            "whole DataFrame; call it again)"
        )
    numbers = seen.get
    if numbers["records"] != run_near_location(session, partial(_rows_of, operator.location, operator.name)):
        # of several actions of `write` the first one has read only a part
        numbers = rows.agg(*_numbers(known, where)).collect()[0].asDict()
    watermark_ms = 0
    if known.watermark is not None and numbers["greatest"] is not None:
        # as Spark's
        watermark_ms = max(0, numbers["greatest"] - known.watermark[1])
    return _begun(results, known, where, numbers["records"], watermark_ms, sources, started, times)


def initial_state(
    frame: Any, results: Any, *, sources: int | None = None, progress: OnProgress | bool | None = None
) -> ImportReport:
    """Let rows of results be the state with which a topology begins: in every shard, before the first batch.

    frame    a batch DataFrame with the key columns, `window_start` if the topology has windows (and `window_end`, the
             last record's time, of sessions), and a column for each aggregate that has all that it keeps: the result of
             `Count`, `Sum`, `Min`, `Max`, `First`, `Last`; a struct of sum and count of `Mean`; of count, mean and sum
             of squared differences from the mean of `Variance`; an array of the values of `Collect`, `CollectSet` and
             `CountDistinct`; the sketch of `CountDistinct(approximate=True)`. Of `process` a mapping of its key-value
             and window stores: {store: DataFrame} with the key columns of the stream, `value`, `time` if the store has
             one, and `key` if the store's key is not the stream's
    results, sources, progress  as in `backfill`

    A processor takes its initial state as in Spark: `hsp.transform_with_state(..., initialState=)`. With
    `time="watermark"` the watermark begins at 0, so that no window of the frame is late. Raises ImportRefusedError.
    O(rows).

    >>> from pyspark.sql import Row
    >>> totals = hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    >>> results = totals.apply(events, "totals", location=location, shards=1)
    >>> report = hs.initial_state(spark.createDataFrame([Row(user="ann", n=40)]), results)
    >>> writer = results.writeStream.foreachBatch(lambda df, batch: print(batch, df.collect()))
    >>> query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
    >>> query.awaitTermination()
    1 [Row(user='ann', n=42)]
    """
    check(progress=progress)
    started = time.perf_counter()
    known = applied_to(results)
    operator = known.operator
    session = results.sparkSession
    prepare(session)
    where = f"initial state of {operator.name!r}"
    run_near_location(session, partial(check_location, operator.location, operator.name))
    times = BatchTime(0, wall_ms())
    standing = Standing(-1, times, 0, [])
    with watching(progress, "initial state") as step:
        records = load_state(known, _states(frame, known, where), where, standing, step)
    return _begun(results, known, where, records, 0, sources, started, times)


def _input(history: Any, known: Applied, where: str) -> DataFrame:
    """Return the rows of a history as the operator gets those of the stream. Raises ImportRefusedError."""
    if getattr(history, "isStreaming", True):
        raise ImportRefusedError(f"{where}: history: found {type(history).__name__}, expected a batch DataFrame")
    operator = known.operator
    rows: DataFrame = history
    if isinstance(operator.program, TopologyProgram):
        if operator.program.plan.joined is not None:
            raise ImportRefusedError(f"{where}: found a join, expected a topology of one input, or a processor")
        if operator.program.plan.stepped:
            rows, _ = stepped(history, replace(operator.program.plan, stepped=False))
    zone = rows.sparkSession.conf.get("spark.sql.session.timeZone")
    missing = [name for name in known.columns if name not in rows.columns]
    if missing:
        raise ImportRefusedError(
            f"{where}: column {missing[0]!r} is missing: found {', '.join(rows.columns)}, expected the columns of the "
            "stream"
        )
    given = arrow_schema(rows.select(*(f"`{name}`" for name in known.columns)).schema, zone)
    for field, other in zip(given, operator.input or given, strict=True):
        if field.type != other.type:
            raise ImportRefusedError(
                f"{where}: column {field.name!r}: found {field.type}, expected {other.type} as in the stream (cast it)"
            )
    return rows


def _states(frame: Any, known: Applied, where: str) -> Move:
    """Return the rows of results with what puts them into the stores. Raises ImportRefusedError."""
    from pyspark.sql import functions as f

    program = known.operator.program
    plan = program.plan if isinstance(program, TopologyProgram) else None
    if plan is not None and plan.custom is not None:
        return _stored(frame, known, plan, where)
    if plan is None or plan.aggregates is None or plan.suppression is not None:
        raise ImportRefusedError(
            f"{where}: found no aggregates, expected a topology of aggregates without hold(...), or of process"
        )
    if isinstance(plan.windows, SlidingWindows):
        raise ImportRefusedError(
            f"{where}: found {plan.windows!r}, expected tumbling, hopping or session windows, or none"
        )
    names = plan.aggregates.names
    bounds = {} if isinstance(plan.windows, Forever) else {WINDOW_START: START}
    if isinstance(plan.windows, SessionWindows):
        bounds[WINDOW_END] = END
    _check_columns(frame, [*plan.key, *bounds, *names], where)
    times = [_millis(frame, name).alias(column) for name, column in bounds.items()]
    keys = [f.col(f"`{name}`") for name in plan.key]
    columns: list[Column] = []
    parts: list[Part] = []
    for name, aggregator in zip(names, plan.aggregates.parts, strict=True):
        part, values = _part(frame, name, aggregator, len(columns), where)
        parts.append(part)
        columns += values
    buffers = [f"v{place}" for place in range(len(columns))]
    assert isinstance(program, TopologyProgram)
    loader = Aggregates(plan, program.clocked, parts, buffers)
    return Move(
        frame.select(*keys, *times, *(column.alias(name) for column, name in zip(columns, buffers, strict=True))),
        loader,
    )


def _check_columns(frame: Any, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise ImportRefusedError(f"{where}: column {missing[0]!r} is missing: found {', '.join(frame.columns)}")


def _millis(frame: DataFrame, name: str) -> Column:
    """Return a column of times as ms."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    return f.unix_millis(column) if frame.schema[name].dataType.typeName() == "timestamp" else column.cast("bigint")


def _part(frame: DataFrame, name: str, aggregator: Aggregator, at: int, where: str) -> tuple[Part, list[Column]]:
    """Return how an aggregate begins with a column, and the columns in which the loader gets its fields, the first at
    `at`. Raises ImportRefusedError.
    """
    from pyspark.sql import functions as f

    described = aggregator.describe()
    kind = aggregator.name
    if kind == "count_distinct":
        kind = SKETCH if "hll" in described else DISTINCT
    if kind not in _FORMS:
        raise ImportRefusedError(
            f"{where}: aggregate {name!r}: found {aggregator!r}, expected one of {', '.join(_FORMS)} (a backfill takes "
            "any)"
        )
    column, given = f.col(f"`{name}`"), frame.schema[name].dataType
    form, text = _FORMS[kind], given.simpleString()
    if (form.startswith("struct") and len(getattr(given, "names", ())) != form.count(",") + 1) or (
        form in ("array", "binary") and given.typeName() != form
    ):
        raise ImportRefusedError(f"{where}: aggregate {name!r}: found {text}, expected {form} (all that it keeps)")
    columns = [column]
    if form.startswith("struct"):
        # in the order of the form, or by place if the fields have other names
        names = form.removeprefix("struct<").removesuffix(">").split(", ")
        fields = given.names  # type: ignore[attr-defined]
        columns = [column.getField(field) for field in (names if sorted(names) == sorted(fields) else fields)]
    elif kind in ("first", "last"):
        columns.append(column.isNotNull())
    return Part(kind, at, len(columns)), columns


def _stored(frames: Any, known: Applied, plan: Plan, where: str) -> Move:
    """Return the rows of the stores of `process`. Raises ImportRefusedError."""
    from pyspark.sql import functions as f

    custom, program = plan.custom, known.operator.program
    assert custom is not None
    assert isinstance(program, TopologyProgram)
    if not isinstance(frames, Mapping) or not frames:
        raise ImportRefusedError(
            f"{where}: found {type(frames).__name__}, expected a mapping of the stores of process: {{store: DataFrame}}"
        )
    parts = []
    for number, (name, frame) in enumerate(frames.items()):
        declared = custom.stores.get(name)
        if declared is None or declared.kind not in _STORES:
            raise ImportRefusedError(
                f"{where}: store {name!r}: found {declared or 'no such store'}, expected one of "
                f"{', '.join(map(repr, custom.stores.values()))}, a key-value or a window store"
            )
        timed = declared.kind == _TIMED or declared.parameters.get("ttl_ms") is not None
        _check_columns(frame, [*plan.key, "value", *(["time"] if timed else [])], f"{where}: store {name!r}")
        columns = [f.col(f"`{key}`") for key in plan.key]
        columns += [f.lit(name).alias(STORE), f.col("value").alias(f"s{number}")]
        if "key" in frame.columns and "key" not in plan.key:
            columns.append(f.col("key").alias(f"m{number}"))
        columns.append((_millis(frame, "time") if timed else f.lit(None).cast("bigint")).alias(START))
        parts.append(frame.select(*columns))
    rows = reduce(lambda all_, each: all_.unionByName(each, allowMissingColumns=True), parts)
    return Move(rows, StoredRows(plan, program.clocked, list(frames)))


def _numbers(known: Applied, where: str) -> list[Column]:
    """Return what Spark counts of a history: its rows, and their greatest time (ms; null without a watermark)."""
    from pyspark.sql import functions as f

    if known.watermark is None and known.operator.time == "watermark":
        raise ImportRefusedError(
            f"{where}: found a watermark that a map hides, expected withWatermark on the input of apply"
        )
    greatest = f.lit(None) if known.watermark is None else f.unix_millis(f.col(f"`{known.watermark[0]}`"))
    return [f.count(f.lit(1)).alias("records"), f.max(greatest).alias("greatest")]


def _rows_of(location: Location, operator: str) -> int:
    """Return how many rows the shards have taken in the last batch."""
    return sum(row["rows"] or 0 for row in metrics(location, operator))


def _is_whole(location: Location, operator: str, shards: int, run_id: str) -> bool:
    """Whether a run has written every shard. Objects of a backfill that was broken off are those of another run."""
    storage = location.operator(operator)
    newest = newest_claim(storage)
    if newest is None or newest.run_id != run_id:
        return False
    logs = (ShardLog(storage.below(shard_folder(0, shard))) for shard in range(shards))
    return all(any(name.launch == newest.launch for name in log.names()) for log in logs)


def _begun(
    results: DataFrame,
    known: Applied,
    where: str,
    records: int,
    watermark_ms: int,
    sources: int | None,
    started: float,
    times: BatchTime,
) -> ImportReport:
    """Write the files by which the query begins with batch 1, and return the report."""
    operator, session = known.operator, results.sparkSession
    offsets = first_offsets(results, [known], 1 if sources is None else sources, where)
    standing = Standing(-1, times, watermark_ms, with_ticks(unread(offsets.count(None)), offsets))
    if are_named(session):
        # a source that the log does not name is read from its beginning
        standing = Standing(-1, times, watermark_ms, named_ticks([known], {}), {NAMED: "true"}, BY_NAME)
    run_near_location(session, partial(finish, operator.location, standing, None))
    spent_ms = (time.perf_counter() - started) * 1000
    return ImportReport(where, operator.name, operator.location.checkpoint, operator.shards, records, -1, spent_ms)
