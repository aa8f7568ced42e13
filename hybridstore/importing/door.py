"""Door: `hybridstore.import_spark`, which moves the state of a Spark query's own operator into an applied operator."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Any, Final

from ..spark.arrow_schema import arrow_schema
from ..spark.connect import run_near_location
from ..spark.location import Location, locate
from ..spark.operator import Applied, applied, spark_schema, to_shards, with_shards
from ..spark.operator_file import FIRST_BATCH, read_chain
from ..spark.session import prepare
from ..spark.sharding import SHARD_COLUMN
from ..spark.ticks import with_every_shard
from .first_batch import OnStep, first_batch, in_tasks, watched
from .loading import DONE, START, Loading
from .moves import Asked, Move, move_of
from .query_files import Standing, begin_behind, check_new, query_id, standing_of
from .report import ImportRefusedError, ImportReport
from .spark_state import chosen, operators_of

_REFUSED: Final = re.compile(r"ImportRefusedError: (.*)")


def import_spark(
    location: str | PathLike[str],
    results: Any,
    operator: int | None = None,
    *,
    order: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnStep | None = None,
) -> ImportReport:
    """Move the state of an operator of Spark's own into an operator of ours, and return the report.

    location    the checkpointLocation of the old query, which is stopped and has a stateful operator of Spark's; it
                stays as it is
    results     what `topology.apply`, `hsp.transform_with_state`, ... has returned for the new query, with a new
                checkpointLocation; its sources are those of the old query, in the same order
    operator    the number of Spark's operator; None: the only one
    order       the names of the topology's aggregates in the order of the old query's; None: as they are declared
    columns     SQL expressions over the columns of Spark's key, by the names of ours; None: by name, else by place
    storage_options  as in `apply`, if the old checkpoint is on an object store
    progress    called as progress(phase, done, total)

    The state is read by Spark's own state sources, as of the newest committed batch, in Spark's tasks, and shared out
    to the shards of the new operator. Then the new query begins with the next rows of its sources and the old watermark
    (docs/moving-in.md says what can be moved, and which rows are the same). A move that was broken off has changed
    nothing that counts: call it again. Raises ImportRefusedError for what cannot be moved. O(state).

    >>> old = events.groupBy("user").count().writeStream.format("noop").outputMode("update")
    >>> old.option("checkpointLocation", location).trigger(availableNow=True).start().awaitTermination()
    >>> totals = hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    >>> results = totals.apply(events, "totals", location=f"{location}-new", shards=1)
    >>> report = hs.import_spark(location, results)
    >>> report.records, report.batch
    (1, 0)
    """
    started = time.perf_counter()
    known = applied_to(results)
    session = results.sparkSession
    prepare(session)
    place = fspath(location)
    old = locate(place, storage_options=storage_options or dict(known.operator.location.options))
    standing = Standing.of(
        run_near_location(session, partial(_standing, old, known.operator.location, known.operator.name))
    )
    spark_operator = chosen(operators_of(session, place), operator, place)
    where = f"{spark_operator.kind} {spark_operator.number} of {place}"
    move = move_of(Asked(session, place, spark_operator, standing, known, where, order, columns))
    records = load_state(known, move, where, standing, progress or quiet)
    ticks = None if known.ticks is None else {**known.ticks, "watermark_ms": standing.times.watermark_ms}
    run_near_location(session, partial(_finish, old, known.operator.location, standing, ticks))
    new, spent_ms = known.operator.location.checkpoint, (time.perf_counter() - started) * 1000
    return ImportReport(where, known.operator.name, new, known.operator.shards, records, standing.batch, spent_ms)


def applied_to(results: Any) -> Applied:
    """Return what `apply` has made. Raises ImportRefusedError for what `apply` has not returned."""
    try:
        return applied(results)
    except ValueError as error:
        raise ImportRefusedError(str(error)) from None


def load_state(known: Applied, move: Move, where: str, standing: Standing, progress: OnStep) -> int:
    """Put the rows of a state into the shards, and return how many there were. Raises ImportRefusedError."""
    from pyspark.errors import PySparkException

    operator, session = known.operator, move.rows.sparkSession
    zone = session.conf.get("spark.sql.session.timeZone")
    done = spark_schema(DONE)
    loading = Loading(operator.program, move.loader)
    name = run_near_location(session, partial(new_query_id, operator.location))
    function = first_batch(operator, loading, where, arrow_schema(done, zone), name, standing.times)
    sharded = with_shards(move.rows, move.rows.columns, operator.program, operator.shards)
    try:
        with watched(operator, sharded, progress):
            # stores are filled fastest in the order of time
            by_time = [START] if START in sharded.columns else []
            lying = to_shards(with_every_shard(sharded, operator.shards), operator).sortWithinPartitions(
                SHARD_COLUMN, *by_time
            )
            counted = in_tasks(lying, function, done).collect()
    except PySparkException as error:
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise
        raise ImportRefusedError(refused[1]) from None
    if sorted(row["shard"] for row in counted) != list(range(operator.shards)):
        raise ImportRefusedError(
            f"{where}: found {len(counted)} shards that were written, expected {operator.shards} (call it again)"
        )
    return sum(row["records"] for row in counted)


def _standing(old: Location, new: Location, operator: str) -> list[Any]:
    check_location(new, operator)
    return standing_of(old.query()).plain()


def check_location(new: Location, operator: str) -> None:
    """Raise ImportRefusedError if a query has begun at a location."""
    chain = read_chain(new.operator(operator))
    check_new(new.query(), begun=bool(chain) and FIRST_BATCH in chain[0])


def new_query_id(new: Location) -> str:
    """Return the id of the query at a new location; see `query_files.query_id`."""
    return query_id(new.query())


def _finish(old: Location, new: Location, standing: Standing, ticks: dict[str, int] | None) -> None:
    begin_behind(new.query(), standing, ticks, old.query())


def quiet(phase: str, done: int, total: int) -> None:
    """Show nothing."""
