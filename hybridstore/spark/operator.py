"""Operator: a program as one step of a streaming DataFrame.

    rows with their shard's number -> repartitionById(tasks) -> mapInArrow

For Spark the query is stateless: Spark neither fixes the number of partitions nor guarantees to call the operator. This
module and `worker` check both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict
from weakref import WeakKeyDictionary

from ..errors import StateDirectoryError
from ..state.arguments import check
from ..state.changes import Difference, announce, consents
from ..state.lock import refuse_pinned
from ..state.policy import CheckpointPolicy
from ..topology.changes import OtherInputs
from .arrow_schema import arrow_schema
from .connect import DELAY, has_watermark, parallelism, run_near_location, watermark_column
from .contract import Program, whole_program
from .errors import SparkSetupError
from .event_time import marked
from .launches import new_launch
from .location import check_reachable, locate
from .operator_file import check_operator, operator_storage, read_chain
from .query_log import check_named, committed
from .session import prepare, share_of_overhead
from .shard.provider import POLICY
from .shard.shard_id import StateStoreId
from .sharding import SHARD_COLUMN, check_key, shard_column
from .shipped import Operator, Placement, Time, carried
from .worker import ShardFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG: Final = getLogger("hybridstore.spark")


class PlaceArguments(TypedDict, total=False):
    """The arguments of `apply_program` by name that every door of Spark's takes: where state is, and how it is kept."""

    name: Required[str]
    location: Required[str]
    shards: int | None
    checkpoints: CheckpointPolicy | None
    placement: Placement
    state_location: str | None
    tasks: int | None
    allow: str | Iterable[str] | None
    memory_limit: int | None


def check_place(place: PlaceArguments) -> None:
    """Raise TypeError where name or location is missing, which Spark's own methods do not have."""
    missing = [f"{each}=" for each in ("name", "location") if each not in place]
    if missing:
        raise TypeError(
            f"{' and '.join(missing)}: missing, expected a name for the operator and the query's checkpointLocation"
        )


def apply_program(
    df: DataFrame,
    program: Program | Any,
    *,
    name: str,
    location: str,
    shards: int | None = None,
    time: Time = "stream",
    checkpoints: CheckpointPolicy | None = None,
    placement: Placement = "auto",
    state_location: str | None = None,
    tasks: int | None = None,
    allow: str | Iterable[str] | None = None,
    memory_limit: int | None = None,
) -> DataFrame:
    """Return the streaming DataFrame of the results of `program` for the rows of `df`.

    `program` is a `hybridstore.spark.contract.Program`, or an object with some of its methods (docs/spark.md). The
    other arguments are those of `Topology.apply`: name, location, shards, tasks, time, checkpoints, placement,
    state_location, allow and memory_limit.

    Each call takes the number of a launch in the location (`launches`). Once started, a DataFrame that was applied
    later permanently outranks one that was applied earlier.

    The call also sets the session's settings for the query (`session.prepare`). A client of Spark Connect need not
    reach the location: a small job runs on the server's workers.

    Raises ValueError or TypeError for arguments that cannot work, SparkSetupError for a location that cannot be used,
    cannot be reached or lies inside another state, and for workers of Spark Connect without hybridstore, and
    ProgramMismatchError, with the difference, if existing state was made by another program or with other arguments.

    >>> from hybridstore.spark.program import TopologyProgram
    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> program = TopologyProgram(minutes.aggregate(n=hs.Count()).complete())  # or an object of your own
    >>> hsp.apply_program(events, program, name="counts", location=location).columns
    ['user', 'window_start', 'window_end', 'n']
    """
    check(checkpoints=checkpoints, time=time, placement=placement, memory_limit=memory_limit)
    _check_rows(df, time)
    _check_tasks(tasks, shards)
    StateStoreId(location, name, 0)
    program = whole_program(program)
    located = locate(location, state_location)
    columns = program.columns() or tuple(column for column in df.columns if column != SHARD_COLUMN)
    _check_columns(df, program, columns)
    session = df.sparkSession
    prepare(session)
    zone = session.conf.get("spark.sql.session.timeZone")
    rows = df.select(*(f"`{column}`" for column in columns))
    wanted = spark_schema(program.output_schema(arrow_schema(rows.schema, zone)))
    if program.event_time is not None:
        wanted = marked(wanted, program.event_time, df)
    possible = parallelism(session)
    operator = Operator(
        program,
        name,
        located,
        shards or 0,
        tuple(df.schema[column].dataType.simpleString() for column in program.key),
        time,
        arrow_schema(wanted, zone),
        checkpoints or POLICY,
        placement,
        tasks=tasks,
        allow=consents(allow),
        input=arrow_schema(rows.schema, zone),
    )
    launch, number, changes = run_near_location(session, partial(_begin, operator, default_shards(possible)))
    announce(located.state, [Difference(*change) for change in changes])
    if shards is None:
        _LOG.info("operator %s: %d shards (by default; the first batch fixes their number)", name, number)
    sharded = with_shards(df, columns, program, number)
    moves = "watermark" in (time, program.empty_shards)
    if moves or program.tick_ms:
        from .ticks import with_ticks

        sharded = with_ticks(sharded, located, number, name, watermark=moves, every_ms=program.tick_ms or 0)
    launched = replace(
        operator,
        shards=number,
        launch=launch,
        slots=min(tasks or number, possible or tasks or number),
        memory_limit=memory_limit or share_of_overhead(session.conf.get),
    )
    lying = to_shards(sharded, launched)
    results = lying.mapInArrow(carried(ShardFunction(launched)), wanted)
    ticks = ({"watermark_ms": 0} | ({"clock_ms": 0} if program.tick_ms else {})) if moves or program.tick_ms else None
    late = watermark_column(df)
    delay_ms = 0 if late is None else int(df.schema[late].metadata[DELAY])
    remember(results, Applied(launched, columns, wanted, ticks, None if late is None else (late, delay_ms), lying))
    return results


def _check_rows(df: Any, time: Time) -> None:
    if not hasattr(df, "isStreaming"):
        raise TypeError(f"df: found {type(df).__name__}, expected a streaming DataFrame (spark.readStream)")
    if not df.isStreaming:
        raise ValueError("df: found a batch DataFrame, expected a streaming one (spark.readStream)")
    if time == "watermark" and not has_watermark(df):
        raise ValueError(
            'time: found "watermark", but the DataFrame has no watermark, so no window would ever close (call '
            'df.withWatermark("time", "10 minutes") first, or use time="stream")'
        )


def _check_tasks(tasks: int | None, shards: int | None) -> None:
    if shards is not None:
        check(shards=shards)
    if tasks is not None and (type(tasks) is not int or not 1 <= tasks <= (shards or tasks)):
        raise ValueError(
            f"tasks: found {tasks!r} with {shards} shards, expected 1 to {shards}, or None for one task for each shard"
        )


def _check_columns(df: DataFrame, program: Program, columns: Sequence[str]) -> None:
    for column in (*columns, *program.key):
        if column not in df.columns:
            raise ValueError(
                f"df: column {column!r} is missing: found {', '.join(df.columns)} (a map that makes it declares its "
                "columns: map(function, 'user string, n bigint'))"
            )
    for column in program.key:
        check_key(df.schema[column].dataType, column, wide=program.wide_keys)


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply_program` has made of a DataFrame: the operator as it is sent, the columns that it takes, the columns
    of its results, the first offset of its ticks (None: no ticks), and the column of the input with a watermark and
    its delay (ms; None: no such column), and the rows as they lie in the tasks of their shards.
    """

    operator: Operator
    columns: tuple[str, ...]
    output: Any
    ticks: dict[str, int] | None
    watermark: tuple[str, int] | None
    lying: DataFrame


_applied: WeakKeyDictionary[DataFrame, Applied] = WeakKeyDictionary()


def remember(results: DataFrame, known: Applied) -> None:
    """Let `applied` return what was made of a DataFrame."""
    _applied[results] = known


def applied(results: DataFrame) -> Applied:
    """Return what `apply_program` has made of the DataFrame that it returned. Raises ValueError for another one."""
    known = _applied.get(results) if hasattr(results, "isStreaming") else None
    if known is None:
        raise ValueError(
            "results: found no DataFrame that `apply` has returned, expected its result as it is (before any select, "
            "withColumn or writeStream)"
        )
    return known


def with_shards(df: DataFrame, columns: Sequence[str], program: Program, shards: int) -> DataFrame:
    """Return columns of a DataFrame, and behind them the shard of each row."""
    shard = shard_column(df.schema, program.key, shards, program.null_keys, program.everywhere)
    return df.select(*(f"`{column}`" for column in columns), shard)


def to_shards(sharded: DataFrame, operator: Operator) -> DataFrame:
    """Return rows in the tasks of their shards."""
    from pyspark.sql import functions as f

    # Spark takes the number modulo `tasks`; a tick's shard is `shards` below the number (`ticks`).
    shard = f.pmod(f.col(SHARD_COLUMN), f.lit(operator.shards))
    return sharded.repartitionById(operator.tasks or operator.shards, shard)


def default_shards(possible: int | None) -> int:
    """Return the default number of shards of a new state: twice as many as tasks can run at once (None: a client cannot
    know), 4 to 64.
    """
    return 16 if possible is None else max(4, min(2 * possible, 64))


def _begin(operator: Operator, default: int) -> tuple[int, int, list[Difference]]:
    """Compare an operator with its state, and take the number of a launch; return that number, the number of shards,
    and the changes.

    An operator of 0 shards gets the number of its state, or `default` for a new state. Raises as `apply_program`.
    """
    location = operator.location
    try:
        refuse_pinned(location.states())
    except StateDirectoryError as error:
        raise SparkSetupError(str(error)) from None
    check_reachable(location, operator.name)
    storage = operator_storage(location, operator.name)
    chain = [] if operator.shards else read_chain(storage)
    shards = operator.shards or (chain[-1]["shards"] if chain else default)
    if (operator.tasks or 1) > shards:
        raise SparkSetupError(f"tasks: found {operator.tasks} with {shards} shards, expected 1 to {shards}")
    asked = replace(operator, shards=shards).fingerprint()
    changes = check_operator(storage, asked, committed(location.query()) + 1, operator.program, operator.allow)
    if any(isinstance(change, OtherInputs) for change in changes):
        check_named(location.query())
    return new_launch(storage), shards, changes


def arrow_type(kind: Any) -> Any:
    """Return a type, given as an Arrow type, by Arrow's name for it or as Spark's DDL text, as an Arrow type.

    Raises SparkSetupError for other text.
    """
    if not isinstance(kind, str):
        return kind
    import pyarrow as pa

    try:
        return pa.type_for_alias(kind)
    except ValueError:
        return arrow_schema(_from_ddl(f"given {kind}", f"type: found {kind!r}", "bigint"), "UTC").field(0).type


def _from_ddl(text: str, given: str, example: str) -> Any:
    """Return Spark's DDL text as a StructType. Raises SparkSetupError, which begins with `given`."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(text)
    except ParseException as error:
        raise SparkSetupError(f"{given}, expected Spark's DDL text, such as {example!r}") from error


def spark_schema(schema: Any) -> Any:
    """Return an Arrow schema, a StructType or DDL text as a StructType."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return _from_ddl(schema, f"output schema: found {schema!r}", "user string, n bigint")
    try:
        return from_arrow_schema(schema)
    except (AttributeError, TypeError) as error:
        raise SparkSetupError(
            f"output schema: found {type(schema).__name__}, expected an Arrow schema, a StructType or DDL text"
        ) from error
