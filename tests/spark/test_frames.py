"""A batch DataFrame as the beginning of a stream: the rows of both are those of one stream over everything."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

from hybridstore.shards import shard_of
from tests.tools.spark_jobs import SCHEMA, Job, Source, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HISTORY = [row("a", 1, 5), row("b", 2, 7), row("a", 3, 31), row("c", 4, 33), row("a", 7, 12)]
BEHIND = [[row("a", 5, 35), row("b", 6, 20), row("d", 1, 52)], [row("c", 2, 75), row("a", 1, 74)]]
MINUTES = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("20 seconds"))
CLOSED = MINUTES.aggregate(n=hs.Count(), s=hs.Sum("v"), mean=hs.Mean("v"), emit="close")


def f() -> Any:
    from pyspark.sql import functions

    return functions


def job(tmp_path: Path, name: str) -> Job:
    (tmp_path / name).mkdir()
    return Job(tmp_path / name)


def keep(into: list[tuple[Any, ...]], df: DataFrame) -> None:
    into.extend(sorted(tuple(each) for each in df.collect()))


def rows_of(job: Job) -> list[list[tuple[Any, ...]]]:
    return [rows for _, rows in sorted(job.rows.items()) if rows]


def test_a_backfill_and_the_stream_behind_it_are_one_stream_over_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole, behind = Source(tmp_path / "whole", spark), Source(tmp_path / "behind", spark)
    past = Source(tmp_path / "past", spark)
    past.add(*HISTORY)
    whole.add(*HISTORY)
    for batch in BEHIND:
        whole.add(*batch)
        behind.add(*batch)
    history = spark.read.schema(SCHEMA).json(str(past.folder))

    def applied(source: Source, job: Job, by_watermark: bool) -> DataFrame:
        time: Any = "watermark" if by_watermark else "stream"
        events = source.stream().withWatermark("t", "10 seconds") if by_watermark else source.stream()
        results: DataFrame = CLOSED.apply(events, "op", location=str(job.checkpoint), shards=3, time=time)
        return results

    for by_watermark in (True, False):
        entire, ours = job(tmp_path, f"entire {by_watermark}"), job(tmp_path, f"ours {by_watermark}")
        entire.run(applied(whole, entire, by_watermark))
        results = applied(behind, ours, by_watermark)
        first: list[tuple[Any, ...]] = []
        with pytest.raises(hs.ImportRefusedError, match="column 'v': found int32, expected int64 as in the stream"):
            hs.backfill(history.withColumn("v", history["v"].cast("int")), results)
        report = hs.backfill(history, results, partial(keep, first))
        assert report.records == len(HISTORY)
        ours.run(results)
        given = ([first] if first else []) + rows_of(ours)
        assert given == rows_of(entire)
        assert len(given) >= 2
        with pytest.raises(hs.ImportRefusedError, match="expected a new checkpointLocation"):
            hs.backfill(history, applied(behind, ours, by_watermark))


def test_a_backfill_may_be_written_by_fewer_tasks_than_there_are_shards(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    keys = [f"k{number}" for number in range(9)]
    source.add(*(row(key) for key in keys))
    totals = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), emit="commit")
    # shards without rows among them, in every task
    for number, (before, tasks) in enumerate([(keys, 1), (keys[3:5], 3)]):
        ours = job(tmp_path, f"ours {number}")
        results = totals.apply(source.stream(), "op", location=str(ours.checkpoint), shards=6)
        history = spark.createDataFrame([(key, 1, datetime(2026, 1, 1)) for key in before], SCHEMA)
        first: list[tuple[Any, ...]] = []

        def write(df: DataFrame, into: list[tuple[Any, ...]] = first, tasks: int = tasks) -> None:
            keep(into, df.coalesce(tasks))

        hs.backfill(history, results, write)
        assert first == [(key, 1) for key in before]
        ours.run(results)
        assert rows_of(ours) == [[(key, 1 + (key in before)) for key in keys]]


def test_a_backfill_reads_its_history_once(spark: SparkSession, tmp_path: Path) -> None:
    readings = tmp_path / "readings"
    readings.mkdir()

    def reading(batches: Any) -> Any:
        (readings / uuid4().hex).touch()
        yield from batches

    source = Source(tmp_path / "in", spark)
    source.add(row("a", 1, 45), row("b", 1, 3))
    past = Source(tmp_path / "past", spark)
    past.add(*HISTORY)
    history = spark.read.schema(SCHEMA).json(str(past.folder)).coalesce(1).mapInArrow(reading, SCHEMA)
    expected = []
    for number, partly in enumerate((False, True)):
        ours = job(tmp_path, f"ours {number}")
        events = source.stream().withWatermark("t", "10 seconds")
        results = CLOSED.apply(events, "op", location=str(ours.checkpoint), shards=3, time="watermark")

        def write(df: DataFrame, partly: bool = partly) -> None:
            if partly:
                df.limit(1).collect()
            df.collect()

        assert hs.backfill(history, results, write).records == len(HISTORY)
        if not partly:
            assert len(list(readings.iterdir())) == 1
        ours.run(results)
        expected.append(rows_of(ours))
    assert expected[0] == expected[1] != []


def test_results_begin_a_topology_in_every_shard(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    source.add(row("a", 5, 35), row("b", 6, 21))
    totals = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), s=hs.Sum("v"), most=hs.Max("v"), emit="commit")
    ours = job(tmp_path, "ours")
    # what a start would replay is less than any aim of practice
    aim = hs.CheckpointPolicy(aim=timedelta(microseconds=1))
    results = totals.apply(source.stream(), "op", location=str(ours.checkpoint), shards=3, checkpoints=aim)
    before = spark.createDataFrame([("a", 10, 100, 9), ("c", 1, 1, 1)], "k string, n long, s long, most long")
    with pytest.raises(hs.ImportRefusedError, match="column 'most' is missing"):
        hs.initial_state(before.drop("most"), results)
    assert hs.initial_state(before, results).records == 2
    # a shard with rows has a checkpoint before the first batch
    assert len(list((ours.checkpoint / "hybridstore").rglob("*.lmdb"))) >= len({shard_of(key, 3) for key in "ac"})
    # the file sink's batch 0, which Spark wants to read
    files = ours.checkpoint.with_name("files")
    (files / "_spark_metadata").mkdir(parents=True)
    (files / "_spark_metadata" / "0").write_text("v1")
    ours.run(results, sink=True)
    assert spark.read.parquet(str(files)).count() == 2
    source.add(row("c", 2, 80), row("a", 1, 81))
    ours.run(totals.apply(source.stream(), "op", location=str(ours.checkpoint)))
    assert rows_of(ours) == [[("a", 11, 105, 9), ("b", 1, 6, 6)], [("a", 12, 106, 9), ("c", 2, 3, 2)]]


@pytest.mark.stress
@pytest.mark.parametrize("time", ["watermark", "stream"])
def test_a_query_whose_sources_have_names_begins_behind_a_history_and_behind_results(
    spark: SparkSession, named_sources: None, tmp_path: Path, rounds: int, time: Any
) -> None:
    if rounds == 1:
        pytest.skip("a stress run has this case")
    counts = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), emit="commit")
    for begin, known in ((hs.backfill, [("a", datetime(2024, 1, 1), 1)]), (hs.initial_state, [("a", 1)])):
        source = Source(tmp_path / begin.__name__, spark)
        source.name = "events"
        events = job(tmp_path, f"job of {begin.__name__}")
        for total in (2, 3):
            source.add(row("a", 1, total))
            df = source.stream().withWatermark("t", "10 seconds")
            results = counts.apply(df, "op", location=str(events.checkpoint), shards=2, time=time)
            if total == 2:
                schema = "k string, t timestamp, v long" if begin is hs.backfill else "k string, n long"
                begin(spark.createDataFrame(known, schema), results)
            events.run(results)
        assert rows_of(events) == [[("a", 2)], [("a", 3)]]
        assert (events.checkpoint / "offsets/1").read_text().startswith("v2")


def test_each_aggregate_begins_with_all_that_it_keeps(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    source.add(row("a", 5, 35), row("b", 6, 21))
    every = hs.stream(key="k", timestamp="t").aggregate(
        mean=hs.Mean("v"),
        spread=hs.Variance("v"),
        first=hs.First("v"),
        last=hs.Last("v"),
        values=hs.Collect("v"),
        distinct=hs.CountDistinct("v"),
        emit="commit",
    )
    ours = job(tmp_path, "ours")
    results = every.apply(source.stream(), "op", location=str(ours.checkpoint), shards=3)
    schema = (
        "k string, mean struct<sum: double, count: long>, spread struct<count: long, mean: double, m2: double>, "
        "first long, last long, values array<long>, distinct array<long>"
    )
    before = spark.createDataFrame(
        [("a", (3.5, 2), (2, 1.5, 0.5), 1, 2, [1, 2], [1, 2, 5]), ("c", (1.0, 1), (1, 1.0, 0.0), 1, 1, [1], [1])],
        schema,
    )
    wrong = before.withColumn("spread", before["mean"])
    with pytest.raises(
        hs.ImportRefusedError, match=r"aggregate 'spread': found struct<.*expected struct<count, mean, m2>"
    ):
        hs.initial_state(wrong, results)
    # fields in another order, with the names of the page
    swapped = before.withColumn("mean", f().struct("mean.count", "mean.sum"))
    assert hs.initial_state(swapped, results).records == 2
    ours.run(results.withColumn("mean", f().round("mean", 3)).withColumn("spread", f().round("spread", 3)))
    assert rows_of(ours) == [[("a", 2.833, 2.889, 1, 5, [1, 2, 5], 3), ("b", 6.0, 0.0, 6, 6, [6], 1)]]


def test_sessions_begin_with_their_start_and_last_record(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    source.add(row("a", 5, 12), row("b", 6, 21), row("c", 1, 60))
    counted = hs.stream(key="k", timestamp="t").windowed_by(hs.SessionWindows("10 seconds"))
    ours = job(tmp_path, "ours")
    results = counted.aggregate(n=hs.Count(), emit="commit").apply(
        source.stream(), "op", location=str(ours.checkpoint), shards=2
    )
    begin = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    rows = [("a", begin, begin + timedelta(seconds=5), 3), ("b", begin, begin + timedelta(seconds=2), 4)]
    before = spark.createDataFrame(rows, "k string, window_start timestamp, window_end timestamp, n long")
    assert hs.initial_state(before, results).records == 2
    # a session that another one replaces is a row without a result
    ours.run(results.where("n is not null").select("k", "n"))
    assert rows_of(ours) == [[("a", 4), ("b", 1), ("c", 1)]]


def test_stores_of_process_begin_with_rows(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    source.add(row("a", 5, 35), row("b", 6, 21))

    def total(given: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
        totals, recent = stores["totals"], stores["recent"]
        now = (totals.get(given["k"]) or 0) + given["v"]
        totals.put(given["k"], now)
        return [{"k": given["k"], "total": now, "recent": sum(v for _, v in recent.fetch(given["k"]))}]

    stores = [hs.key_value_store("totals"), hs.window_store("recent", retention="1 day")]
    every = hs.stream(key="k", timestamp="t").process(total, "k string, total long, recent long", stores=stores)
    ours = job(tmp_path, "ours")
    results = every.apply(source.stream(), "op", location=str(ours.checkpoint), shards=3)
    totals = spark.createDataFrame([("a", 100), ("c", 1)], "k string, value long")
    begin = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    recent = spark.createDataFrame([("a", begin, 7), ("b", begin, 8)], "k string, time timestamp, value long")
    with pytest.raises(hs.ImportRefusedError, match="store 'total': found no such store, expected one of <key_value"):
        hs.initial_state({"total": totals}, results)
    assert hs.initial_state({"totals": totals, "recent": recent}, results).records == 4
    ours.run(results)
    assert rows_of(ours) == [[("a", 105, 7), ("b", 6, 8)]]
