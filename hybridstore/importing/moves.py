"""Moves: for each kind of Spark's operators, the rows of its state and the loader that puts them into ours.

aggregation, session windows    a topology with the same windows and aggregates
dropDuplicates...               a topology with `drop_duplicates`
transformWithState              a class for `hsp.transform_with_state` or its pandas form
applyInPandasWithState          a function for `hsp.apply_in_pandas_with_state`
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..aggregation import Forever, SessionWindows, SlidingWindows
from ..spark.group_state import GroupProgram
from ..spark.operator import Applied
from ..spark.program import TopologyProgram
from ..spark.stateful_processor import ProcessorProgram
from ..state.group import StoreGroup
from ..topology.duplicates import WithoutDuplicates
from ..topology.plan import Plan
from . import spark_state
from .buffers import parts_of
from .loading import END, START, Aggregates, Loader, Seen
from .processors import CLASSES, EXPIRY, VARIABLE, Groups, Variables, opened
from .query_files import Standing
from .report import ImportRefusedError
from .spark_state import SparkOperator, StateFrame, state_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

_BOUNDS: Final = ["start", "end"]
_WHOLE: Final = {"tinyint", "smallint", "int", "bigint"}


class Move(NamedTuple):
    """The rows of a state, with the key columns of our operator, and what puts them into its stores."""

    rows: DataFrame
    loader: Loader


@dataclass(frozen=True, slots=True)
class Asked:
    """What is moved, and where to.

    where    names the state in messages
    order    the names of our aggregates in the order of Spark's; None: as they are declared
    columns  SQL expressions over the columns of Spark's key, by the names of our key columns
    """

    session: SparkSession
    checkpoint: str
    operator: SparkOperator
    standing: Standing
    applied: Applied
    where: str
    order: Sequence[str] | None = None
    columns: Mapping[str, str] | None = None

    def state(self, **options: Any) -> StateFrame:
        """Return the records of the operator."""
        return state_frame(self.session, self.checkpoint, self.operator.number, **options)

    def plan(self, what: str) -> TopologyProgram:
        """Return our operator as a topology. Raises ImportRefusedError for another one."""
        program = self.applied.operator.program
        if type(program) is not TopologyProgram:
            raise ImportRefusedError(
                f"{self.where}: found {type(program).__name__} for Spark's {self.operator.kind}, expected {what}"
            )
        return program


def move_of(asked: Asked) -> Move:
    """Return how a state is moved. Raises ImportRefusedError for an operator of ours that cannot go on from it."""
    return _MOVES[asked.operator.kind](asked)


def _rows(asked: Asked, state: StateFrame, fields: Mapping[str, StructField], others: Sequence[Column]) -> DataFrame:
    """Return our key columns, and behind them other columns of a state. `fields` are those of Spark's key by the
    columns that they lie in.

    A key column follows from an expression of the caller, else from the field of its name, else from the field at its
    place. Raises ImportRefusedError for keys that differ.
    """
    from pyspark.sql import functions as f

    names, kinds = asked.applied.operator.program.key, asked.applied.operator.key_type
    given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields.values()) or "none"
    by_name = {field.name: column for column, field in fields.items()}
    expressions = dict(asked.columns or {})
    if not expressions:
        if len(names) != len(fields):
            raise ImportRefusedError(
                f"{asked.where}: found the key {given}, expected {len(names)} columns: {', '.join(names) or 'none'} "
                "(the keys must be the same; columns= says how a column of ours follows from Spark's)"
            )
        if not set(names) <= set(by_name):
            by_name = dict(zip(names, fields, strict=True))
    frame = state.frame
    if expressions:
        frame = frame.select("*", *(f.col(column).alias(name) for name, column in by_name.items()))
    columns = []
    for name in names:
        if name not in expressions and name not in by_name:
            raise ImportRefusedError(
                f"{asked.where}: found the key {given}, expected {name!r} too (say how it follows from these: "
                f'columns={{"{name}": "an expression"}})'
            )
        columns.append((f.expr(expressions[name]) if name in expressions else f.col(by_name[name])).alias(name))
    rows = frame.select(*columns, *others)
    for name, kind in zip(names, kinds, strict=True):
        theirs = rows.schema[name].dataType.simpleString()
        if theirs != kind and not {theirs, kind} <= _WHOLE:
            raise ImportRefusedError(
                f"{asked.where}: key column {name!r}: found {theirs} in the state, expected {kind} as in the input of "
                f"{asked.applied.operator.name!r} (columns= says how it follows)"
            )
    return rows


def _is_window(field: StructField) -> bool:
    return getattr(field.dataType, "names", None) == _BOUNDS


def _aggregates(asked: Asked) -> Move:
    """Return the move of an aggregation, or of session windows."""
    from pyspark.sql import functions as f

    sessions = asked.operator.kind == spark_state.SESSIONS
    program = asked.plan("a topology with aggregates")
    plan, where = program.plan, asked.where
    if plan.aggregates is None or isinstance(plan.windows, SlidingWindows):
        raise ImportRefusedError(f"{where}: found {plan.windows!r}, expected aggregates as in Spark's query")
    if plan.suppression is not None:
        raise ImportRefusedError(f'{where}: found hold(...), expected emit="close" or emit="commit"')
    if sessions != isinstance(plan.windows, SessionWindows):
        raise ImportRefusedError(f"{where}: found {plan.windows!r}, expected windows as in Spark's {asked.operator}")
    _check_time(asked, plan)
    state = asked.state()
    fields = _key_fields(state)
    values = dict(enumerate(state.value.fields))
    times = []
    if sessions:
        # the key is followed by the start of the session; the value begins with the key and the session, in some order
        fields.pop(f"k{len(fields) - 1}")
        place = next(place for place, field in values.items() if _is_window(field))
        values = {at: field for at, field in values.items() if at > len(fields)}
        last = f.unix_millis(f.col(f"v{place}.end")) - plan.windows.gap_ms  # type: ignore[union-attr]
        times = [f.unix_millis(f.col(f"v{place}.start")).alias(START), last.alias(END)]
    else:
        windows = [column for column, field in fields.items() if _is_window(field)]
        if bool(windows) == isinstance(plan.windows, Forever) or len(windows) > 1:
            has = "a window" if windows else "no window"
            raise ImportRefusedError(f"{where}: found {has} in Spark's key, expected windows as in {plan.windows!r}")
        for column in windows:
            fields.pop(column)
            bounds = ((f"{column}.start", START), (f"{column}.end", END))
            times = [f.unix_millis(f.col(bound)).alias(name) for bound, name in bounds]
    named = dict(zip(plan.aggregates.names, plan.aggregates.parts, strict=True))
    order = list(named) if asked.order is None else list(asked.order)
    if sorted(order) != sorted(named):
        raise ImportRefusedError(f"{where}: order: found {', '.join(order)}, expected each of {', '.join(named)} once")
    given = [field.dataType.simpleString() for field in values.values()]
    parts = dict(
        zip(order, parts_of([(name, named[name]) for name in order], given, _kinds(asked), where), strict=True)
    )
    buffers = [f"v{place}" for place in values]
    rows = _rows(asked, state, fields, [*times, *map(f.col, buffers)])
    return Move(rows, Aggregates(plan, program.clocked, [parts[name] for name in named], buffers))


def _kinds(asked: Asked) -> dict[str, str]:
    """Return the types of the input's columns, by name."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = asked.applied.operator.input
    return {} if schema is None else {field.name: field.dataType.simpleString() for field in from_arrow_schema(schema)}


def _check_time(asked: Asked, plan: Plan) -> None:
    """Raise ImportRefusedError for windows whose time is not the query's watermark, by which Spark has kept them."""
    program = asked.applied.operator.program
    if isinstance(plan.windows, Forever) or getattr(program, "clocked", False):
        return
    raise ImportRefusedError(
        f'{asked.where}: time: found "stream", expected "watermark": Spark\'s windows know its watermark only (say '
        'apply(..., time="watermark"), with the old query\'s withWatermark)'
    )


def _duplicates(asked: Asked) -> Move:
    """Return the move of keys that were seen."""
    from pyspark.sql import functions as f

    program = asked.plan("a topology with drop_duplicates")
    plan, where = program.plan, asked.where
    logic = None if plan.custom is None else plan.custom.function
    if not isinstance(logic, WithoutDuplicates):
        raise ImportRefusedError(f"{where}: found {plan.describe()['process']}, expected drop_duplicates(within=...)")
    state = asked.state()
    fields = _key_fields(state)
    if asked.operator.kind == spark_state.DUPLICATES_WITHIN:
        _check_time(asked, plan)
        first = f.floor(f.col("v0") / 1000).cast("bigint") - logic.within_ms
    else:
        timed = [column for column, field in fields.items() if field.dataType.typeName() == "timestamp"]
        if asked.standing.next_watermark_ms and len(timed) == 1:
            _check_time(asked, plan)
            first = f.unix_millis(f.col(timed[0]))
        elif logic.within_ms <= asked.standing.times.timestamp_ms:
            raise ImportRefusedError(
                f"{where}: found within={logic.within_ms} ms, expected a time that never ends, as Spark keeps these "
                'keys for ever (drop_duplicates(within="36500 days"))'
            )
        else:
            first = f.lit(0).cast("bigint")
    rows = _rows(asked, state, fields, [f.greatest(first, f.lit(0)).alias(START)])
    return Move(rows, Seen(plan, program.clocked))


def _processor(asked: Asked) -> Move:
    """Return the move of the variables and timers of a processor."""
    from pyspark import cloudpickle
    from pyspark.sql import functions as f

    program, where = asked.applied.operator.program, asked.where
    if not isinstance(program, ProcessorProgram):
        raise ImportRefusedError(
            f"{where}: found {type(program).__name__}, expected hsp.transform_with_state, or its pandas form, with the "
            "query's class"
        )
    theirs, ours = asked.operator.properties.get("timeMode"), program.mode
    if theirs not in (ours, {"None": "NoTime"}.get(ours)):
        raise ImportRefusedError(f"{where}: timeMode: found {ours}, expected {theirs} as in the old query")
    # `init` changes the processor, so it is asked of a copy
    asking: ProcessorProgram = pickle.loads(cloudpickle.dumps(program))  # type: ignore[no-untyped-call]
    known = opened(asking, StoreGroup(), 0).variables
    for name, kind in asked.operator.variables.items():
        if not isinstance(known.get(name), CLASSES[kind]):
            raise ImportRefusedError(
                f"{where}: state variable {name!r}: found {kind} in the state, expected the class to ask for it in "
                f"init (it asks for {', '.join(known) or 'none'})"
            )
    names = list(asked.operator.variables)
    frames = []
    for number, name in enumerate(names):
        kind = asked.operator.variables[name]
        state = asked.state(stateVarName=name, **({"flattenCollectionTypes": False} if kind == "ListState" else {}))
        columns = [f.lit(name).alias(VARIABLE)]
        if kind == "ListState":
            columns.append(f.col("list_value").alias(f"s{number}"))
        else:
            value = "user_map_value" if kind == "MapState" else "value"
            columns += _with_expiry(state, value, f"s{number}")
            if kind == "MapState":
                columns.append(f.col("user_map_key").alias(f"m{number}"))
        frames.append(_rows(asked, state, _key_fields(state), columns))
    if asked.operator.timed:
        state = asked.state(readRegisteredTimers=True)
        due = f.col("expiration_timestamp_ms").alias(EXPIRY)
        frames.append(_rows(asked, state, _key_fields(state), [f.lit(None).cast("string").alias(VARIABLE), due]))
    rows = reduce(lambda all_, each: all_.unionByName(each, allowMissingColumns=True), frames)
    if EXPIRY not in rows.columns:
        rows = rows.withColumn(EXPIRY, f.lit(None).cast("bigint"))
    return Move(rows, Variables(program, names))


def _key_fields(state: StateFrame) -> dict[str, StructField]:
    return {f"k{place}": field for place, field in enumerate(state.key.fields)}


def _with_expiry(state: StateFrame, value: str, name: str) -> list[Column]:
    """Return the column of a value, and the time at which it expires if the variable has a ttl."""
    from pyspark.sql import functions as f

    schema = state.frame.schema
    fields = state.value.names if value == "value" else schema[value].dataType.names  # type: ignore[attr-defined]
    if fields == ["value", "ttlExpirationMs"]:
        parts = ("v0", "v1") if value == "value" else (f"{value}.value", f"{value}.ttlExpirationMs")
        return [f.col(parts[0]).alias(name), f.col(parts[1]).alias(EXPIRY)]
    if value == "value":
        return [f.struct(*(f.col(f"v{at}").alias(f"f{at}") for at in range(len(fields)))).alias(name)]
    return [f.col(value).alias(name)]


def _groups(asked: Asked) -> Move:
    """Return the move of groups, their state and time-outs."""
    from pyspark.sql import functions as f

    program = asked.applied.operator.program
    if not isinstance(program, GroupProgram):
        raise ImportRefusedError(
            f"{asked.where}: found {type(program).__name__}, expected hsp.apply_in_pandas_with_state with the query's "
            "function"
        )
    state = asked.state()
    places = {field.name: f"v{place}" for place, field in enumerate(state.value.fields)}
    columns = [f.col(places["groupState"]).alias("s0")]
    columns.append(f.col(places["timeoutTimestamp"]).cast("bigint").alias(EXPIRY))
    return Move(_rows(asked, state, _key_fields(state), columns), Groups(program))


_MOVES: Final[dict[str, Callable[[Asked], Move]]] = {
    spark_state.AGGREGATION: _aggregates,
    spark_state.SESSIONS: _aggregates,
    spark_state.DUPLICATES: _duplicates,
    spark_state.DUPLICATES_WITHIN: _duplicates,
    spark_state.PROCESSOR: _processor,
    spark_state.GROUPS: _groups,
}
