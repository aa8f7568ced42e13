"""A stateful processor on a batch DataFrame, as Spark runs it: state begins empty, or with the initial state, lives in
the task, and is gone with it. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..state.group import StoreGroup
from .arrow_schema import arrow_schema
from .contract import FRAME_ROWS
from .operator import spark_schema
from .session import prepare
from .sharding import SHARD_COLUMN, check_key, shard_column
from .shipped import carried
from .worker import by_shard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def process_batch(df: DataFrame, program: Any, tasks: int) -> DataFrame:
    """Return the rows of a processor (a `ProcessorProgram`) for a batch DataFrame, computed in so many tasks at each
    action.
    """
    from pyspark.sql import functions as f

    from .ticks import with_every_shard

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
    shard = f.pmod(f.col(SHARD_COLUMN), f.lit(tasks))
    return with_every_shard(sharded, tasks).repartitionById(tasks, shard).mapInArrow(carried(function), wanted)


class BatchFunction:
    """Processes the rows of one task: all rows of its keys."""

    def __init__(self, program: Any, tasks: int, rows: pa.Schema, output: pa.Schema) -> None:
        self.program, self.tasks, self.rows, self.output = program, tasks, rows, output

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        # Each call has a tick of its shard, also below a `coalesce`, where the number of the task does not say it.
        for shard, table in by_shard([part for part in batches if part.num_rows], self.tasks):
            runner = self.program.open(StoreGroup())
            runner.begin_alone(int(time.time() * 1000), shard, self.tasks)
            yield from runner.process(table.cast(self.rows), self.output).to_batches(FRAME_ROWS)
