"""First batch: runs a batch DataFrame as batch 0 of an operator, in all of its shards.

    rows with their shard ── tasks of the operator ──▶ program on version 0 ──▶ version 1 of every shard

What holds for a batch of a query holds here: a task that is repeated writes another object, and one of them counts; a
job that is begun anew outranks the one before. The description of the operator says that batch 0 is not a query's, so
that no query begins at the location before the job has ended.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from recovery.layout import LOG, shard_folder

from ..progress import OnProgress
from ..spark.connect import is_client
from ..spark.contract import Program
from ..spark.operator_file import FIRST_BATCH, operator_storage
from ..spark.query_log import BatchTime
from ..spark.shard.cache import CACHE
from ..spark.shipped import Operator
from ..spark.worker import ShardWork, begun_batch, by_shard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """The function of `mapInArrow` that makes batch 0 of `operator`, by `program` instead of the operator's own, in a
    run of its own. The rows lie in the tasks of their shards, with a tick for each shard (`with_every_shard`).

    source  what makes batch 0, in words
    output  the columns of what `program` gives
    """

    operator: Operator
    program: Program
    source: str
    output: pa.Schema
    query_id: str
    times: BatchTime
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = begun_batch(
            self.operator,
            number=0,
            query_id=self.query_id,
            run_id=self.run_id,
            times=self.times,
            context=context,
            first={FIRST_BATCH: self.source},
        )
        operator = replace(self.operator, program=self.program, output=self.output)
        arrived = by_shard([part for part in batches if part.num_rows], operator.shards)
        results: list[pa.Table] = []
        for shard, table in arrived:
            work = ShardWork(operator, batch)
            results.append(work.shard(shard, table, 0.0))
            # each shard once: its memory is needed for the next one, and the query reads the checkpoint
            work.maintain(closing=True)
            CACHE.drop(work.storage.url)
        for table in results:
            yield from table.to_batches()


@contextmanager
def watched(operator: Operator, df: DataFrame, progress: OnProgress) -> Iterator[None]:
    """Report the number of shards that are done, once a second, while the block runs. A client of Spark Connect cannot
    see them.
    """
    if is_client(df.sparkSession):
        yield
        return
    ended = threading.Event()

    def look() -> None:
        storage = operator_storage(operator.location, operator.name)
        while not ended.wait(_LOOK_SECONDS):
            logs = [f"{shard_folder(0, shard)}/{LOG}/" for shard in range(operator.shards)]
            progress("shards", sum(1 for log in logs if storage.list(log)), operator.shards)

    thread = threading.Thread(target=look, name="hybridstore-import", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress("shards", operator.shards, operator.shards)
