"""Spark state: the stateful operators of a Spark query, and their state as DataFrames, by Spark's own state sources.

format("state-metadata")   a row for each operator and store
format("statestore")       the records of an operator as of the newest committed batch, or of one state variable
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .report import ImportRefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

AGGREGATION: Final = "aggregation"
SESSIONS: Final = "session windows"
DUPLICATES: Final = "dropDuplicates"
DUPLICATES_WITHIN: Final = "dropDuplicatesWithinWatermark"
PROCESSOR: Final = "transformWithState"
GROUPS: Final = "applyInPandasWithState"
# By the beginnings of Spark's names of operators.
_KINDS: Final = {
    "stateStoreSave": AGGREGATION,
    "sessionWindowStateStoreSave": SESSIONS,
    "dedupeWithinWatermark": DUPLICATES_WITHIN,
    "dedupe": DUPLICATES,
    "transformWithState": PROCESSOR,
    "applyInPandasWithState": GROUPS,
    "flatMapGroupsInPandasWithState": GROUPS,
}
_TIMERS: Final = "TimerState"


@dataclass(frozen=True, slots=True)
class SparkOperator:
    """A stateful operator of a Spark query.

    kind        one of the constants of this module, "" for an operator that cannot be moved
    name        Spark's name for it
    properties  the variables and the time mode of a processor
    """

    number: int
    kind: str
    name: str
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The state variables of a processor by name: "ValueState", "ListState" or "MapState"."""
        listed = self.properties.get("stateVariables", [])
        return {each["stateName"]: each["stateVariableType"] for each in listed if each["stateVariableType"] != _TIMERS}

    @property
    def timed(self) -> bool:
        """Whether a processor has registered timers."""
        return any(each["stateVariableType"] == _TIMERS for each in self.properties.get("stateVariables", []))

    def __str__(self) -> str:
        variables = f" with {', '.join(f'{name} ({kind})' for name, kind in self.variables.items())}"
        kind = self.kind or f"{self.name}, which cannot be moved"
        return f"operator {self.number}: {kind}{variables if self.variables else ''}"


def operators_of(session: SparkSession, checkpoint: str) -> list[SparkOperator]:
    """Return the stateful operators of a query, by number. Raises Spark's errors for what is no checkpoint."""
    rows = session.read.format("state-metadata").load(checkpoint).collect()
    known: dict[int, SparkOperator] = {}
    for row in sorted(rows, key=lambda row: row["operatorId"]):
        name = row["operatorName"]
        kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), "")
        properties = json.loads(row["operatorProperties"] or "{}")
        known.setdefault(row["operatorId"], SparkOperator(row["operatorId"], kind, name, properties))
    return list(known.values())


def chosen(operators: list[SparkOperator], asked: Sequence[int] | int | None, checkpoint: str) -> list[SparkOperator]:
    """Return the operators to be moved, by their numbers; None: the only one. Raises ImportRefusedError for an operator
    that is not asked for, which would lose its state, for an absent number, and for an operator that cannot be moved.
    """
    names = "; ".join(map(str, operators)) or "none"
    known = {operator.number: operator for operator in operators}
    numbers = [asked] if isinstance(asked, int) else list(known) if asked is None else list(asked)
    if len(known) > 1 and (asked is None or set(numbers) < set(known)):
        raise ImportRefusedError(
            f"{checkpoint}: found {len(operators)} stateful operators ({names}), expected results for each of them "
            "(import_spark(location, {number: results, ...}, query=...))"
        )
    for number in numbers or [0]:
        if number not in known:
            raise ImportRefusedError(f"{checkpoint}: operator {number}: found {names}, expected a stateful operator")
        if not known[number].kind:
            raise ImportRefusedError(
                f"{checkpoint}: found {known[number]}, expected one of {', '.join(dict.fromkeys(_KINDS.values()))} "
                "(begin without its state)"
            )
    return [known[number] for number in numbers]


class StateFrame(NamedTuple):
    """Records of an operator: the columns k0, k1, ... of the key and v0, v1, ... of the value, with their fields."""

    frame: DataFrame
    key: StructType
    value: StructType


def state_frame(session: SparkSession, checkpoint: str, number: int, **options: Any) -> StateFrame:
    """Return the records of an operator, or with `stateVarName=` or `readRegisteredTimers=` those of a processor."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    reader = session.read.format("statestore").option("operatorId", number)
    for name, value in options.items():
        reader = reader.option(name, value)
    frame = reader.load(checkpoint)
    columns, kinds = [], []
    for letter, name in (("k", "key"), ("v", "value")):
        kind = frame.schema[name].dataType if name in frame.columns else StructType()
        assert isinstance(kind, StructType)
        kinds.append(kind)
        if not kind.fields:
            continue
        # names may occur twice, so fields are named by their places
        numbered = StructType([StructField(f"{letter}{i}", each.dataType) for i, each in enumerate(kind.fields)])
        if not any(each.dataType.typeName() == "void" for each in kind.fields):
            columns += [f.col(name).cast(numbered).getField(each.name).alias(each.name) for each in numbered.fields]
    others = [column for column in frame.columns if column not in ("key", "value", "partition_id")]
    columns += [f.col(f"`{column}`") for column in others]
    return StateFrame(frame.select(*columns) if columns else frame.select(f.lit(1).alias("one")), *kinds)
