"""API: `hybridstore.import_spark`, which moves the state of a Spark query's own operator into an applied operator."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import Any, Final, overload

from ..progress import OnProgress, watching
from ..spark.arrow_schema import arrow_schema
from ..spark.connect import is_client, run_near_location
from ..spark.location import Location, locate
from ..spark.operator import Applied, applied, spark_schema, to_shards, with_shards
from ..spark.operator_file import FIRST_BATCH, read_chain
from ..spark.session import prepare
from ..spark.sharding import SHARD_COLUMN
from ..spark.shipped import carried
from ..spark.ticks import tick_name, tick_offset, with_every_shard
from ..state.arguments import check
from .first_batch import FirstBatch, watched
from .loading import DONE, START, Loading
from .moves import Asked, Move, move_of
from .query_files import BY_NAME, Standing, begin_behind, check_new, query_id, standing_of, with_ticks
from .report import ImportRefusedError, ImportReport
from .spark_state import chosen, operators_of

_REFUSED: Final = re.compile(r"ImportRefusedError: (.*)")


@overload
def import_spark(
    location: str | PathLike[str],
    results: Mapping[int, Any],
    operator: None = None,
    *,
    query: Any = None,
    order: Mapping[int, Sequence[str]] | None = None,
    columns: Mapping[int, Mapping[str, str]] | None = None,
    progress: OnProgress | bool | None = None,
) -> list[ImportReport]: ...


@overload
def import_spark(
    location: str | PathLike[str],
    results: Any,
    operator: int | None = None,
    *,
    query: Any = None,
    order: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    progress: OnProgress | bool | None = None,
) -> ImportReport: ...


def import_spark(
    location: str | PathLike[str],
    results: Any,
    operator: int | None = None,
    *,
    query: Any = None,
    order: Any = None,
    columns: Any = None,
    progress: OnProgress | bool | None = None,
) -> ImportReport | list[ImportReport]:
    """Move the state of a query's operators of Spark's own into operators of ours, and return the report.

    location    the checkpointLocation of the old query, which is stopped and has a stateful operator of Spark's; it
                stays as it is
    results     what `topology.apply`, `hsp.transform_with_state`, ... has returned for the new query, with a new
                checkpointLocation; its sources are those of the old query, in the same order. Of a query with several
                stateful operators, a mapping: {number of Spark's operator: results}, each of them, and a report of each
                is returned
    operator    the number of Spark's operator; None: the only one
    query       the DataFrame that is started, which says in which order the sources are read; None: `results`. A query
                of several operators needs it, and Spark classic
    order       the names of the topology's aggregates in the order of the old query's; None: as they are declared
    columns     SQL expressions over the columns of Spark's key, by the names of ours; None: by name, else by place.
                Of several operators, `order` and `columns` are mappings from the operator's number
    progress    called as progress(phase, done, total), or True for a bar on a terminal

    The state is read by Spark's own state sources, as of the newest committed batch, in Spark's tasks, and shared out
    to the shards of the new operators. Then the new query begins with the next rows of its sources and the old
    watermark (docs/moving-in.md says what can be moved, and which rows are the same). A move that was broken off has
    changed nothing that counts: call it again. Raises ImportRefusedError for what cannot be moved. O(state).

    >>> old = events.groupBy("user").count().writeStream.format("noop").outputMode("update")
    >>> old.option("checkpointLocation", location).trigger(availableNow=True).start().awaitTermination()
    >>> totals = hs.stream(key="user", timestamp="ts").aggregate(n=hs.Count(), emit="commit")
    >>> results = totals.apply(events, "totals", location=f"{location}-new", shards=1)
    >>> report = hs.import_spark(location, results)
    >>> report.records, report.batch
    (1, 0)
    """
    check(progress=progress)
    started = time.perf_counter()
    several = isinstance(results, Mapping)
    if several and (operator is not None or query is None):
        raise ImportRefusedError(
            "results: found a mapping, expected query= with the DataFrame that is started, and no operator="
        )
    given = list(results.values()) if several else [results]
    known = list(map(applied_to, given))
    if not known:
        raise ImportRefusedError("results: found an empty mapping, expected what `apply` has returned")
    session = given[0].sparkSession
    prepare(session)
    place, new = fspath(location), known[0].operator.location
    for each in known[1:]:
        if each.operator.location.checkpoint != new.checkpoint:
            raise ImportRefusedError(
                f"results: found location={each.operator.location.checkpoint!r} beside {new.checkpoint!r}, expected "
                "one, as of one query"
            )
    old = locate(place)
    names = tuple(each.operator.name for each in known)
    if len(set(names)) < len(names):
        raise ImportRefusedError(
            f"results: found {', '.join(map(repr, names))}, expected an operator of its own for each of Spark's"
        )
    standing = Standing.of(run_near_location(session, partial(_standing, old, new, names)))
    of_spark = chosen(operators_of(session, place), list(results) if several else operator, place)
    lines = _lines(given[0] if query is None else query, known, standing, place)
    moves = []
    for each, theirs in zip(known, of_spark, strict=True):
        where = f"{theirs.kind} {theirs.number} of {place}"
        how = (order or {}).get(theirs.number) if several else order
        by = (columns or {}).get(theirs.number) if several else columns
        moves.append((each, where, move_of(Asked(session, place, theirs, standing, each, where, how, by))))
    reports = []
    for each, where, move in moves:
        with watching(progress, "import") as step:
            records = load_state(each, move, where, standing, step)
        spent_ms, started = (time.perf_counter() - started) * 1000, time.perf_counter()
        shards, name = each.operator.shards, each.operator.name
        reports.append(ImportReport(where, name, new.checkpoint, shards, records, standing.batch, spent_ms))
    run_near_location(session, partial(finish, new, replace(standing, sources=lines), old))
    return reports if several else reports[0]


def _lines(query: Any, known: Sequence[Applied], standing: Standing, checkpoint: str) -> list[str]:
    """Return a line for each source of the new query. Raises ImportRefusedError for sources of another number."""
    now = {"watermark_ms": standing.times.watermark_ms}
    offsets = first_offsets(query, known, len(standing.sources), checkpoint)
    users = offsets.count(None)
    if users != len(standing.sources):
        raise ImportRefusedError(
            f"{checkpoint}: found {len(standing.sources)} sources of the old query, and {users} of the new one, "
            "expected the same sources in the same order"
        )
    if standing.version == BY_NAME:
        old, new = {line.partition(":")[0] for line in standing.sources}, _names(query)
        if new is not None and new != old:
            raise ImportRefusedError(
                f"{checkpoint}: found sources named {', '.join(sorted(old))} of the old query, and "
                f"{', '.join(sorted(new))} of the new one, expected the same names (Spark reads a source of another "
                "name from its beginning)"
            )
        return [*standing.sources, *named_ticks(known, now)]
    return with_ticks(standing.sources, [None if offset is None else offset | now for offset in offsets])


def _sources(query: Any) -> list[Any]:
    """Return the sources of a query in Spark's order, as objects of Java."""
    leaves = query._jdf.queryExecution().analyzed().collectLeaves()
    return [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]


def _names(query: Any) -> set[str] | None:
    """Return the names of a query's sources, ticks left out; None over Spark Connect, where they cannot be seen."""
    if is_client(query.sparkSession):
        return None
    names = [leaf.sourceIdentifyingName().nameOpt() for leaf in _sources(query) if tick_offset(leaf) is None]
    return {str(name.get()) if name.isDefined() else "no name" for name in names}


def named_ticks(known: Sequence[Applied], more: Mapping[str, int]) -> list[str]:
    """Return the lines of ticks of a query whose sources have names: their first offsets, with `more`."""
    ticks = {tick_name(each.operator.name): {**each.ticks, **more} for each in known if each.ticks is not None}
    return [f"{name}:{json.dumps(offset)}" for name, offset in ticks.items()]


def first_offsets(query: Any, known: Sequence[Applied], sources: int, where: str) -> list[dict[str, int] | None]:
    """Return for each source of a query, in Spark's order, the first offset of ticks, or None for the user's.

    A client of Spark Connect cannot see them: there the user's are `sources`, and ticks the last. Raises
    ImportRefusedError for operators that are not those of the query.
    """
    expected = [each.ticks for each in known if each.ticks is not None]
    if is_client(query.sparkSession):
        if len(known) > 1:
            raise ImportRefusedError(
                f"{where}: found {len(known)} operators and a client of Spark Connect, which cannot see the order of "
                "their sources, expected Spark classic (run the import there, and the query anywhere)"
            )
        return [None] * sources + list(expected)
    offsets = list(map(tick_offset, _sources(query)))
    ticks = [offset for offset in offsets if offset is not None]
    if len(ticks) != len(expected):
        raise ImportRefusedError(
            f"{where}: query: found {len(ticks)} sources of ticks, expected {len(expected)}, of "
            f"{', '.join(repr(each.operator.name) for each in known)} (each operator once, and no other)"
        )
    return offsets


def applied_to(results: Any) -> Applied:
    """Return what `apply` has made. Raises ImportRefusedError for what `apply` has not returned."""
    try:
        return applied(results)
    except ValueError as error:
        raise ImportRefusedError(str(error)) from None


def load_state(known: Applied, move: Move, where: str, standing: Standing, progress: OnProgress) -> int:
    """Put the rows of a state into the shards, and return their number. Raises ImportRefusedError."""
    from pyspark.errors import PySparkException

    operator, session = known.operator, move.rows.sparkSession
    zone = session.conf.get("spark.sql.session.timeZone")
    done = spark_schema(DONE)
    loading = Loading(operator.program, move.loader)
    name = run_near_location(session, partial(new_query_id, operator.location))
    function = FirstBatch(operator, loading, where, arrow_schema(done, zone), name, standing.times)
    sharded = with_shards(move.rows, move.rows.columns, operator.program, operator.shards)
    try:
        with watched(operator, sharded, progress):
            lying = to_shards(with_every_shard(sharded, operator.shards), operator)
            if START in sharded.columns:
                # stores are filled fastest in the order of time
                lying = lying.sortWithinPartitions(SHARD_COLUMN, START)
            counted = lying.mapInArrow(carried(function), done).collect()
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


def _standing(old: Location, new: Location, operators: Sequence[str]) -> list[Any]:
    for operator in operators:
        check_location(new, operator)
    return standing_of(old.query()).plain()


def check_location(new: Location, operator: str) -> None:
    """Raise ImportRefusedError if a query has begun at a location."""
    chain = read_chain(new.operator(operator))
    check_new(new.query(), begun=bool(chain) and FIRST_BATCH in chain[0])


def new_query_id(new: Location) -> str:
    """Return the id of the query at a new location; see `query_files.query_id`."""
    return query_id(new.query())


def finish(new: Location, standing: Standing, old: Location | None) -> None:
    """Let a query at a new location go on behind an old one, or begin; see `query_files.begin_behind`."""
    begin_behind(new.query(), standing, None if old is None else old.query())
