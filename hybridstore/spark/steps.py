"""Steps: the maps and filters of a topology as a step of a DataFrame of their own, before rows are given to shards.

    rows ── map, filter ──▶ rows with the columns that the map declares ── shards ──▶ windows
                            and, for late rows, the row as it arrived (`ROW`)

Spark has to know the columns behind the step before the first row arrives, so a `map` declares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..topology.batch import ERROR, ROW, from_rows
from ..topology.batch import stepped as stepped_row
from ..topology.failures import text_of
from ..topology.output_rows import OutputRows
from ..topology.plan import Plan
from .arrow_schema import arrow_schema
from .operator import spark_schema
from .program import output_array
from .shipped import carried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class ArrowSteps:
    """The function for `mapInArrow`: the steps of a plan on each batch, in the columns `output`.

    `carries`: the last column is the row as it arrived. `keyed`: rows without a key or a time are left out.
    """

    def __init__(self, plan: Plan, output: pa.Schema, *, carries: bool = False, keyed: bool = False) -> None:
        self._plan = plan
        self._output = output
        self._carries = carries
        self._keyed = keyed
        self._catches = plan.errors_column is not None and not keyed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the steps return. Raises what a step raises, and for rows that do not fit the columns."""
        import pyarrow as pa

        fields = list(self._output)
        mapped = len(fields) - self._carries - self._catches
        rows = OutputRows(pa.schema(fields[:mapped]), "map")
        for batch in batches:
            given = batch.to_pylist()
            failed: list[tuple[int, str]] = []
            if self._keyed:
                kept, places = from_rows(self._plan, given).values, []
            else:
                pairs = [(place, self._stepped(row, place, failed)) for place, row in enumerate(given)]
                places = [place for place, row in pairs if row is not None]
                kept = [row for _, row in pairs if row is not None]
            arrays = [output_array(field, column) for field, column in zip(fields, rows.columns(kept), strict=False)]
            if self._carries:
                arrays.append(pa.array([given[place] for place in places], self._output.field(ROW).type))
            if self._catches:
                arrays.append(pa.nulls(len(places), pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._output)
            if failed:
                # of no key: the first shard hands them out
                nothing = [pa.nulls(len(failed), field.type) for field in fields[:-2]]
                rows_in = pa.array([given[place] for place, _ in failed], self._output.field(ROW).type)
                texts = pa.array([text for _, text in failed], pa.string())
                yield pa.RecordBatch.from_arrays([*nothing, rows_in, texts], schema=self._output)

    def _stepped(self, row: Any, place: int, failed: list[tuple[int, str]]) -> Any:
        try:
            return stepped_row(self._plan.steps, row, place)
        except Exception as error:
            if not self._catches:
                raise
            failed.append((place, text_of(error)))
            return None


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
    if plan.traced:
        wanted = wanted.add(ROW, df.schema)
    if plan.errors_column is not None:
        wanted = wanted.add(ERROR, "string")
    function = ArrowSteps(plan, arrow_schema(wanted, _zone(df)), carries=plan.traced)
    return df.mapInArrow(carried(function), wanted), replace(plan, stepped=True)


def passed_through(df: DataFrame, plan: Plan, where: str, *, keyed: bool = False) -> DataFrame:
    """Return the rows behind the maps and filters of a plan: a step without state, in each task as its rows lie.

    `keyed`: rows without a key or a time are left out. Raises ValueError, which begins with `where`, if a `map` does
    not declare its columns.
    """
    if not plan.steps:
        return df
    declared = plan.mapped_schema
    if declared is None and any(step.kind == "map" for step in plan.steps):
        raise ValueError(
            f"{where}: map: output_schema: found None, expected the columns that the function returns, such as "
            "map(function, 'user string, n bigint'), because Spark has to know them before the first row"
        )
    wanted = df.schema if declared is None else spark_schema(declared)
    return df.mapInArrow(carried(ArrowSteps(plan, arrow_schema(wanted, _zone(df)), keyed=keyed)), wanted)
