"""Steps: the maps and filters of a topology as a step of a DataFrame of their own, before rows are given to shards.

    rows ── map, filter ──▶ rows with the columns that the map declares ── shards ──▶ windows
                            and, for late rows, the row as it arrived (`ROW`)

Spark has to know the columns behind the step before the first row arrives, so a `map` declares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..topology.batch import ROW, from_rows
from ..topology.batch import stepped as stepped_row
from ..topology.output_rows import OutputRows
from ..topology.plan import Plan
from .arrow_schema import arrow_schema
from .operator import spark_schema
from .program import output_array
from .shipped import carried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Steps:
    """The function for `mapInArrow`: the steps of a plan on each batch, in the columns `output`.

    `carries`: the last column is the row as it arrived. `keyed`: rows without a key or a time are left out.
    """

    def __init__(self, plan: Plan, output: pa.Schema, *, carries: bool = False, keyed: bool = False) -> None:
        self._plan = plan
        self._output = output
        self._carries = carries
        self._keyed = keyed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the steps return. Raises what a step raises, and for rows that do not fit the columns."""
        import pyarrow as pa

        fields = list(self._output)
        rows = OutputRows(pa.schema(fields[:-1] if self._carries else fields), "map")
        for batch in batches:
            given = batch.to_pylist()
            if self._keyed:
                kept, places = from_rows(self._plan, given).values, []
            else:
                pairs = [(place, stepped_row(self._plan.steps, row, place)) for place, row in enumerate(given)]
                places = [place for place, row in pairs if row is not None]
                kept = [row for _, row in pairs if row is not None]
            arrays = [output_array(field, column) for field, column in zip(fields, rows.columns(kept), strict=False)]
            if self._carries:
                arrays.append(pa.array([given[place] for place in places], fields[-1].type))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._output)


def _zone(df: DataFrame) -> str | None:
    return df.sparkSession.conf.get("spark.sql.session.timeZone")


def stepped(df: DataFrame, plan: Plan) -> tuple[DataFrame, Plan]:
    """Return the rows behind the steps, and the plan for these rows; both as they are if no `map` declares its columns.

    Raises SparkSetupError for columns that Spark cannot have.
    """
    if plan.mapped_schema is None:
        return df, plan
    from pyspark.sql.types import StructType

    wanted = StructType(list(spark_schema(plan.mapped_schema)))
    if plan.late_column is not None:
        wanted = wanted.add(ROW, df.schema)
    function = Steps(plan, arrow_schema(wanted, _zone(df)), carries=plan.late_column is not None)
    return df.mapInArrow(carried(function), wanted), replace(plan, stepped=True)


def passed_through(df: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows of a topology of maps and filters alone: a step without state, in each task as its rows lie.

    Raises ValueError if a `map` does not declare its columns.
    """
    declared = plan.mapped_schema
    if declared is None and any(step.kind == "map" for step in plan.steps):
        raise ValueError(
            "apply: map: output_schema: found None, expected the columns that the function returns, such as "
            "map(function, 'user string, n bigint'), when map and filter alone run on Spark"
        )
    wanted = df.schema if declared is None else spark_schema(declared)
    return df.mapInArrow(carried(Steps(plan, arrow_schema(wanted, _zone(df)), keyed=True)), wanted)
