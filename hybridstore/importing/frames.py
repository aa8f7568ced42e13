"""Frames: a batch DataFrame as the beginning of an operator: of rows (`backfill`), or of results (`initial_state`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from recovery.layout import LOG, shard_folder

from ..aggregation import Forever, HoppingWindows, TumblingWindows
from ..spark.arrow_schema import arrow_schema
from ..spark.connect import is_client, run_near_location
from ..spark.location import Location
from ..spark.operator import Applied, to_shards, with_shards
from ..spark.program import TopologyProgram
from ..spark.query_log import BatchTime
from ..spark.session import prepare
from ..spark.steps import stepped
from ..spark.ticks import with_every_shard
from ..topology.plan import START as WINDOW_START
from .buffers import Part
from .door import applied_to, check_location, load_state, new_query_id, quiet
from .first_batch import OnStep, first_batch, in_tasks, now_ms, watched
from .loading import START, Aggregates
from .moves import Move
from .query_files import Standing, begin_behind, unread
from .report import ImportRefusedError, ImportReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Aggregates whose results are all that they keep.
_WHOLE: Final = ("count", "sum", "min", "max")


def backfill(
    history: Any,
    results: Any,
    write: Callable[[DataFrame], Any] | None = None,
    *,
    sources: int | None = None,
    progress: OnStep | None = None,
) -> ImportReport:
    """Let a batch DataFrame be the first batch of a query, so that its stream goes on behind it.

    history   rows with the columns of the stream's
    results   what `topology.apply`, `hsp.transform_with_state`, ... has returned for the stream, with a new
              checkpointLocation
    write     called once with the results of the history, a batch DataFrame; each action in it computes them again;
              None: they are not kept
    sources   how many sources the stream has, for a client of Spark Connect, which cannot see them (None: 1)
    progress  called as progress(phase, done, total)

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
    started = time.perf_counter()
    known = applied_to(results)
    operator, program = known.operator, known.operator.program
    session = results.sparkSession
    prepare(session)
    where = f"backfill of {operator.name!r}"
    rows = _input(history, known, where)
    run_near_location(session, partial(check_location, operator.location, operator.name))
    times = BatchTime(0, now_ms())
    name = run_near_location(session, partial(new_query_id, operator.location))
    function = first_batch(operator, program, where, operator.output, name, times)
    sharded = with_shards(rows, known.columns, program, operator.shards)
    filled = in_tasks(to_shards(with_every_shard(sharded, operator.shards), operator), function, known.output)
    with watched(operator, filled, progress or quiet):
        if write is None:
            filled.write.format("noop").mode("overwrite").save()
        else:
            write(filled)
    if not run_near_location(session, partial(_is_whole, operator.location, operator.name, operator.shards)):
        raise ImportRefusedError(
            f"{where}: found shards that were not written, expected all {operator.shards} (`write` must write the "
            "whole DataFrame; call it again)"
        )
    return _begun(results, known, where, rows.count(), _watermark(rows, known, where), sources, started, times)


def initial_state(
    frame: Any, results: Any, *, sources: int | None = None, progress: OnStep | None = None
) -> ImportReport:
    """Let rows of results be the state with which a topology begins: in every shard, before the first batch.

    frame    a batch DataFrame with the key columns, `window_start` if the topology has windows, and a column for each
             aggregate: `Count`, `Sum`, `Min` and `Max`, whose results are all that they keep
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
    started = time.perf_counter()
    known = applied_to(results)
    operator = known.operator
    session = results.sparkSession
    prepare(session)
    where = f"initial state of {operator.name!r}"
    run_near_location(session, partial(check_location, operator.location, operator.name))
    times = BatchTime(0, now_ms())
    standing = Standing(-1, times, 0, [])
    records = load_state(known, _states(frame, known, where), where, standing, progress or quiet)
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
    if plan is None or plan.aggregates is None or plan.suppression is not None:
        raise ImportRefusedError(
            f"{where}: found no aggregates, expected a topology of aggregates without suppress(...)"
        )
    if not isinstance(plan.windows, Forever | TumblingWindows | HoppingWindows):
        raise ImportRefusedError(f"{where}: found {plan.windows!r}, expected tumbling or hopping windows, or none")
    names = plan.aggregates.names
    for name, part in zip(names, plan.aggregates.parts, strict=True):
        if part.name not in _WHOLE:
            raise ImportRefusedError(
                f"{where}: aggregate {name!r}: found {part!r}, whose result is not all that it keeps, expected one of "
                f"{', '.join(_WHOLE)} (a backfill takes any)"
            )
    starts = [] if isinstance(plan.windows, Forever) else [WINDOW_START]
    missing = [name for name in (*plan.key, *starts, *names) if name not in frame.columns]
    if missing:
        raise ImportRefusedError(f"{where}: column {missing[0]!r} is missing: found {', '.join(frame.columns)}")
    times = [
        f.unix_millis(f.col(name)).alias(START)
        if frame.schema[name].dataType.typeName() == "timestamp"
        else f.col(name).cast("bigint").alias(START)
        for name in starts
    ]
    keys = [f.col(f"`{name}`") for name in plan.key]
    columns = [f.col(f"`{name}`").alias(f"v{place}") for place, name in enumerate(names)]
    parts = [Part(part.name, place, 1) for place, part in enumerate(plan.aggregates.parts)]
    assert isinstance(program, TopologyProgram)
    loader = Aggregates(plan, program.clocked, parts, [f"v{place}" for place in range(len(names))])
    return Move(frame.select(*keys, *times, *columns), loader)


def _watermark(rows: DataFrame, known: Applied, where: str) -> int:
    """Return the watermark (ms) behind rows: as Spark's, their greatest time less the delay. One pass over the rows."""
    from pyspark.sql import functions as f

    if known.watermark is None:
        if known.operator.time == "watermark":
            raise ImportRefusedError(
                f"{where}: found a watermark that a map hides, expected withWatermark on the input of apply"
            )
        return 0
    column, delay_ms = known.watermark
    greatest = rows.agg(f.max(f.unix_millis(f.col(f"`{column}`")))).collect()[0][0]
    return 0 if greatest is None else max(0, greatest - delay_ms)


def _is_whole(location: Location, operator: str, shards: int) -> bool:
    storage = location.operator(operator)
    return all(storage.list(f"{shard_folder(0, shard)}/{LOG}/") for shard in range(shards))


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
    operator = known.operator
    of_user = (1 if sources is None else sources) if is_client(results.sparkSession) else _sources(results, known)
    standing = Standing(-1, times, watermark_ms, unread(of_user))
    run_near_location(results.sparkSession, partial(_finish, operator.location, standing, known.ticks))
    spent_ms = (time.perf_counter() - started) * 1000
    return ImportReport(where, operator.name, operator.location.checkpoint, operator.shards, records, -1, spent_ms)


def _sources(results: DataFrame, known: Applied) -> int:
    """Return how many sources a streaming DataFrame has, without ticks, which are the last."""
    leaves = results._jdf.queryExecution().analyzed().collectLeaves()
    streams = sum(bool(leaves.apply(place).isStreaming()) for place in range(leaves.size()))
    return streams - (known.ticks is not None)


def _finish(new: Location, standing: Standing, ticks: dict[str, int] | None) -> None:
    begin_behind(new.query(), standing, ticks, None)
