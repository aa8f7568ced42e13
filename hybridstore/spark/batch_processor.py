"""A stateful processor on a batch DataFrame, as Spark runs it: state begins empty, or with the initial state, lives in
the task, and is gone with it. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..state.group import StoreGroup
from .arrow_schema import arrow_schema
from .operator import spark_schema
from .session import prepare
from .sharding import SHARD_COLUMN, check_key, shard_column
from .shipped import carried

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def process_batch(df: DataFrame, program: Any, tasks: int) -> DataFrame:
    """Return the rows of a processor (a `ProcessorProgram`) for a batch DataFrame, computed in so many tasks at each
    action.
    """
    from pyspark.sql import functions as f

    session = df.sparkSession
    prepare(session)
    zone = session.conf.get("spark.sql.session.timeZone")
    for column in program.key:
        if column not in df.columns:
            raise ValueError(f"df: column {column!r} is missing: found {', '.join(df.columns)}")
        check_key(df.schema[column].dataType, column, wide=True)
    rows = arrow_schema(df.schema, zone)
    wanted = spark_schema(program.output_schema(rows))
    function = BatchFunction(program, tasks, rows, arrow_schema(wanted, zone))
    sharded = df.select("*", shard_column(df.schema, program.key, tasks, program.null_keys))
    return sharded.repartitionById(tasks, f.col(SHARD_COLUMN)).mapInArrow(carried(function), wanted)


class BatchFunction:
    """Processes the rows of one task: all rows of its keys."""

    def __init__(self, program: Any, tasks: int, rows: pa.Schema, output: pa.Schema) -> None:
        self.program, self.tasks, self.rows, self.output = program, tasks, rows, output

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        table = pa.Table.from_batches([batch.drop_columns([SHARD_COLUMN]) for batch in batches], self.rows)
        runner = self.program.open(StoreGroup(lambda body: None))
        runner.begin_alone(int(time.time() * 1000), 0 if context is None else context.partitionId(), self.tasks)
        yield from runner.process(table, self.output).to_batches()
