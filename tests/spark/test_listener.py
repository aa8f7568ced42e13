"""The listener beside a query that runs, classic and over Spark Connect."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from tests.tools.modes import both_modes
from tests.tools.spark_jobs import Job, Source, count, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@both_modes
def test_it_publishes_the_numbers_of_each_batch_of_a_query_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    source, job = Source(tmp_path / "in", spark), Job(tmp_path)
    published: dict[int, list[dict[str, Any]]] = {}
    last, ended = Event(), Event()

    def publish(progress: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        published[progress["batchId"]] = rows
        if progress["batchId"] == 2:
            last.set()

    listener = hsp.metrics_listener(job.checkpoint, publish)
    listener.onQueryTerminated = lambda event: ended.set()
    spark.streams.addListener(listener)
    try:
        for batch in range(3):
            source.add(*(row(f"k{i}") for i in range(5 + batch)))
        job.run(count(source.stream(), job), sink=True)
        # Spark calls listeners behind the batches, in a thread of its own
        assert last.wait(300)
    finally:
        # Spark Connect's client waits for the thread of its listeners with the lock that this thread takes for an event
        assert ended.wait(300)
        spark.streams.removeListener(listener)
    totals = {batch: sum(shard["total_rows"] or 0 for shard in rows) for batch, rows in published.items()}
    assert list(totals) == [0, 1, 2]
    # a later batch may have ended when the listener looks
    assert totals[0] >= 5
    assert totals[1] >= 11
    assert totals[2] == 18
