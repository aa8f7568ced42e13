"""The numbers of our operators in Spark's own progress of the query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from hybridstore import spark as hsp
from hybridstore.spark.exchange import pack_table, unpack_table
from hybridstore.spark.task_numbers import COLUMN, NUMBERS, noted, with_numbers
from tests.tools.modes import patiently
from tests.tools.spark_jobs import Job, Source, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTED = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("20 seconds"))


def test_a_task_gives_the_sums_of_its_shards_behind_its_results() -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])
    none = dict.fromkeys(NUMBERS[1:], 0)
    tables = [
        noted(pa.table({"k": ["a", "b"], "n": [1, None]}, schema=schema), none | {"rows": 3, "late": 1}),
        noted(schema.empty_table(), none | {"rows": 4, "null_key": 2}),
    ]
    # as they come from a holder
    tables = [unpack_table(memoryview(pack_table(table))) for table in tables]
    rows = pa.Table.from_batches(list(with_numbers(tables)))
    numbers = dict.fromkeys(NUMBERS, 0) | {"shards": 2, "rows": 7, "late": 1, "null_key": 2}
    assert rows.to_pylist() == [
        {"k": "a", "n": 1, COLUMN: None},
        {"k": "b", "n": None, COLUMN: None},
        {"k": None, "n": None, COLUMN: numbers},
    ]
    assert list(with_numbers([])) == []


@pytest.mark.usefixtures("one_partition")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("spark", "placement"), [("classic", "worker"), ("connected", "holder")], indirect=["spark"])
def test_numbers_of_a_batch_are_in_its_progress_and_nowhere_else(
    spark: SparkSession, source: Source, job: Job, placement: Any
) -> None:
    from pyspark.sql import functions as f

    source.add(row("a", 1, 1), row("b", 2, 2), row(None, 3, 3))
    source.add(row("a", 1, 50), row("c", 1, 2))
    source.add(row("a", 1, 90))
    source.add(row("a", 1, 95), row("c", 1, 3))

    def results() -> DataFrame:
        events = source.stream().withWatermark("t", "10 seconds")
        closed = COUNTED.aggregate(n=hs.Count(), emit="close").apply(
            events,
            "op",
            location=str(job.checkpoint),
            shards=2,
            time="watermark",
            placement=placement,
            event_time="at",
        )
        return hsp.observed(closed)

    def answers(folder: Path) -> list[tuple[Any, ...]]:
        rows = spark.read.parquet(str(folder)).select("k", "n").collect()
        return sorted(tuple(each) for each in rows)

    progress: list[dict[str, int]] = []

    def start() -> None:
        out = results()
        assert COLUMN not in out.columns
        if placement == "worker":
            # the mark of the event time passes
            out = out.groupBy("k", f.window("at", "20 seconds")).agg(f.sum("n").alias("n"))
        out = out.select("k", "n")
        writer = out.writeStream.format("parquet").option("checkpointLocation", str(job.checkpoint))
        query = writer.trigger(availableNow=True).start(str(job.results))
        query.awaitTermination()
        for each in query.recentProgress:
            numbers = json.loads(each.json)["observedMetrics"].get("hybridstore:op", {})
            # over Spark Connect without names
            numbers = dict(zip(NUMBERS, numbers["values"], strict=True)) if "values" in numbers else numbers
            if numbers.get("rows"):
                progress.append(numbers)

    patiently(start)
    counted = [(each["rows"], each["null_key"], each["late"]) for each in progress]
    assert counted == [(3, 1, 0), (2, 0, 0), (1, 0, 0), (2, 0, 1)]
    assert sum(each["rows_out"] for each in progress) <= 4
    assert answers(job.results) == [("a", 1), ("a", 1), ("b", 1), ("c", 1)]
    source.add(row("a", 1, 200))
    patiently(start)
    assert answers(job.results) == [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("c", 1)]


def test_only_what_apply_has_returned_can_be_observed() -> None:
    with pytest.raises(ValueError, match="found no DataFrame that `apply` has returned"):
        hsp.observed(7)  # type: ignore[arg-type]
