"""Event time comes out: Spark's own operators behind ours, in append mode, as they stand behind Spark's own."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.tools.modes import classic_first, patiently
from tests.tools.recorded import SparksRows, plain
from tests.tools.spark_jobs import Job, Source, failure, row
from tests.tools.watermark_streams import DELAY, GAP, SIZE, random_stream, read, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Answers = dict[int, list[tuple[Any, ...]]]
ROWS = hs.stream(key="k", timestamp="t")


def fronts(df: DataFrame, checkpoint: Path, *, ours: bool) -> list[DataFrame]:
    """Tumbling windows and sessions with their event time, by Spark's operators or by ours."""
    from pyspark.sql import functions as f

    windows: dict[str, tuple[Any, Any]] = {
        "tumbling": (f.window("t", f"{SIZE} seconds"), hs.TumblingWindows(SIZE * 1000)),
        "session": (f.session_window("t", f"{GAP} seconds"), hs.SessionWindows(GAP * 1000)),
    }
    frames = []
    for kind, (theirs, mine) in windows.items():
        if ours:
            topology = ROWS.windowed_by(mine).aggregate(emit="close", n=hs.Count())
            frame = topology.apply(df, kind, location=str(checkpoint), shards=2, time="watermark", event_time="at")
        else:
            counts = df.groupBy("k", theirs.alias("w")).agg(f.count("*").alias("n"))
            frame = counts.withColumn("at", f.window_time("w"))
        frames.append(frame.select("k", "at", "n"))
    return frames


def behind(front: DataFrame) -> DataFrame:
    """Spark's aggregation and deduplication over results."""
    from pyspark.sql import functions as f

    sums = front.groupBy("k", f.window("at", f"{3 * SIZE} seconds").alias("w")).agg(f.sum("n").alias("n"))
    unique = front.dropDuplicates(["k", "at"])
    out = sums.select(f.lit("sum"), "k", f.col("w.start").cast("string"), "n")
    return out.union(unique.select(f.lit("unique"), "k", f.col("at").cast("string"), "n"))


def answers(df: DataFrame, checkpoint: Path, results: Answers, crash: int | None = None) -> None:
    """Run a query to the end of what is there; `crash`: fail once in that batch, and start again."""
    from pyspark.errors import PySparkException

    crashes = [] if crash is None else [crash]

    def keep(batch: DataFrame, number: int) -> None:
        results[number] = sorted(map(tuple, batch.collect()))
        if number in crashes:
            crashes.remove(number)
            raise RuntimeError("a crash of the test")

    writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    for _ in range(2):
        try:
            patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())
            break
        except PySparkException as error:
            if "a crash of the test" not in str(error):
                raise


@pytest.mark.usefixtures("one_partition")
@pytest.mark.stress
def test_sparks_operators_behind_ours_give_what_they_give_behind_sparks_own(
    tmp_path: Path, spark: SparkSession, seed: int, rounds: int
) -> None:
    from pyspark.sql import functions as f

    if rounds == 1:
        pytest.skip("five of Spark's stateful operators in each of four queries take long: make stress")
    for number in range(rounds):
        r = random.Random(seed + number)
        folder = tmp_path / f"{number}"
        stream = random_stream(r, 6, 5, 2)
        half = len(stream) // 2
        results: dict[str, Answers] = {"theirs": {}, "ours": {}}
        for low, high in ((0, half), (half, len(stream))):
            write(folder / "in", stream[low:high], low)
            for name, rows in results.items():
                df = read(spark, folder / "in", DELAY)
                checkpoint = folder / name
                kinds = fronts(df, checkpoint, ours=name == "ours")
                out = behind(kinds[0])
                out = out.union(
                    kinds[1]
                    .groupBy("k", f.window("at", "1 minute"))
                    .agg(f.sum("n").alias("n"))
                    .select(f.lit("session"), "k", f.col("window.start").cast("string"), "n")
                )
                answers(out, checkpoint, rows, crash=high - 1)
        # the last rows close what was before them; which of their own windows are closed depends on the last batch
        final = {
            name: sorted(row for batch in rows.values() for row in batch if not row[1].startswith("last"))
            for name, rows in results.items()
        }
        assert final["ours"] == final["theirs"], (seed, number)
        assert {row[0] for row in final["ours"]} == {"sum", "unique", "session"}


@pytest.mark.usefixtures("one_partition")
@classic_first
def test_an_aggregation_behind_windows_in_append_mode(source: Source, job: Job) -> None:
    from pyspark.sql import functions as f

    topology = ROWS.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(emit="close", n=hs.Count())
    # the row of second 9 is in disorder, and counted; that of second 1 is late; a run ends between them
    for batches in (((0, 12, 25, 61),), ((9, 75), (80,), (1, 200))):
        for seconds in batches:
            source.add(*(row(k, second=second + (k == "b" and second != 1)) for second in seconds for k in "ab"))
        df = source.stream().withWatermark("t", "55 seconds")
        out = topology.apply(df, "op", location=str(job.checkpoint), shards=2, time="watermark", event_time="at")
        assert out.columns == ["k", "window_start", "window_end", "n", "at"]
        sums = out.groupBy("k", f.window("at", "1 minute").alias("w")).agg(f.sum("n").alias("n"))
        job.run(sums.select("k", f.minute("w.start"), "n"), sink=True)
    assert sorted(row for rows in job.rows.values() for row in rows) == [
        ("a", 0, 4),
        ("a", 1, 3),
        ("b", 0, 4),
        ("b", 1, 3),
    ]


@pytest.mark.usefixtures("one_partition")
@pytest.mark.further("test_an_aggregation_behind_windows_in_append_mode")
@classic_first
def test_an_outer_join_and_dropped_duplicates_behind_windows(source: Source, job: Job) -> None:
    from pyspark.sql import functions as f

    topology = ROWS.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(emit="close", n=hs.Count())
    # the row of second 72 is in disorder; a run ends between the batches
    for batches in (((0, 12, 25), (61,)), ((75,), (72, 200), (300,))):
        for seconds in batches:
            source.add(*(row(k, second=second + (k == "b")) for second in seconds for k in "ab"))
        df = source.stream().withWatermark("t", "5 seconds")
        out = topology.apply(df, "op", location=str(job.checkpoint), shards=2, time="watermark", event_time="at")
        other = df.where("k = 'a'").select(f.col("k").alias("key"), f.col("t").alias("u"))
        near = (f.col("k") == f.col("key")) & f.expr("u BETWEEN at AND at + interval 40 seconds")
        shown = [f.col("k"), f.unix_seconds("at") % 3600]
        joined = out.join(other, near, "leftOuter").select(*shown, f.coalesce(f.unix_seconds("u") % 3600, f.lit(-1)))
        unique = out.dropDuplicates(["k", "at"]).select(*shown, f.lit(-2).cast("long"))
        job.run(joined.union(unique), sink=True)
    ends = (9, 19, 29, 69, 79, 209)
    partners = {9: (12, 25), 19: (25,), 29: (61,), 69: (72, 75)}
    assert sorted(row for rows in job.rows.values() for row in rows) == sorted(
        [("a", end, u) for end in ends for u in partners.get(end, (-1,))]
        + [("b", end, -1) for end in ends]
        + [(k, end, -2) for end in ends for k in "ab"]
    )


@pytest.mark.usefixtures("one_partition")
def test_a_time_of_process_is_checked_as_spark_checks_it(source: Source, job: Job) -> None:
    from pyspark.sql import functions as f

    def shifted(row: dict[str, Any], stores: dict[str, Any]) -> Any:
        yield {"k": row["k"], "at": row["t"] - timedelta(seconds=row["v"])}

    topology = ROWS.process(shifted, "k string, at timestamp")
    for second, shift in ((0, 0), (60, 0), (61, 0), (62, 8), (63, 9)):
        source.add(row("a", v=shift, second=second))

    def run() -> None:
        df = source.stream().withWatermark("t", "5 seconds")
        out = topology.apply(df, "op", location=str(job.checkpoint), shards=1, time="watermark", event_time="at")
        job.run(out.groupBy(f.window("at", "1 second")).count().select("window.start", "count"))

    text = failure(run)
    expected = (
        "EMITTING_ROWS_OLDER_THAN_WATERMARK: operator 'op', batch 3: a row's event time: "
        "found 2026-01-01 00:00:54+00:00, expected later than the watermark 2026-01-01 00:00:55+00:00"
    )
    assert expected in text
    assert max(job.rows) == 2


@pytest.mark.usefixtures("one_partition")
def test_the_event_time_of_a_processor_is_that_of_sparks_operator(
    source: Source, spark: SparkSession, tmp_path: Path, sparks: SparksRows
) -> None:
    from pyspark.sql import functions as f

    from hybridstore import spark as hsp
    from tests.tools.spark_processors import Tens

    pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
    draw = random.Random(sparks.seed)
    for second in (0, 12, 61, 200):
        source.add(row("a", second=second), row("b", second=second + draw.randint(1, 9)))
    grouped = source.stream().withWatermark("t", "5 seconds").groupBy("k")
    arguments: Any = (Tens(), Tens.output, "Append", "EventTime", None, "at")

    def run(name: str) -> Answers:
        results: Answers = {}
        if name == "theirs":
            out = grouped.transformWithState(*arguments)
        else:
            out = hsp.transform_with_state(grouped, *arguments, name="op", location=str(tmp_path / name), shards=2)
        sums = out.groupBy("k", f.window("at", "1 minute")).agg(f.sum("n").alias("n"))
        answers(sums.select("k", f.minute("window.start"), "n"), tmp_path / name, results)
        return results

    setting = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        rows = plain(run("ours"))
        assert rows == sparks("rows", lambda: run("theirs"))
        assert sum(map(len, rows.values())) >= 4
        # a time that is late ends the batch, as in Spark
        source.add(row("a", -1, 230))
        text = failure(lambda: run("ours"))
    finally:
        spark.conf.unset(setting)
    assert "EMITTING_ROWS_OLDER_THAN_WATERMARK: operator 'op'" in text


def test_an_event_time_that_spark_would_take_for_late_is_refused(source: Source, job: Job) -> None:
    source.add(row("a"))
    marked = source.stream().withWatermark("t", "5 seconds")

    def apply(topology: hs.Topology, name: str, df: Any = marked, time: Any = "watermark") -> Any:
        return topology.apply(df, "op", location=str(job.checkpoint), shards=1, time=time, event_time=name)

    minutes = ROWS.windowed_by(hs.TumblingWindows("1 minute")).aggregate(emit="close", n=hs.Count())
    graced = ROWS.windowed_by(hs.TumblingWindows("1 minute", grace="1 second")).aggregate(n=hs.Count())
    plain = ROWS.process(lambda row, stores: None, "k string, at timestamp, n long")
    updates = ROWS.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count())
    limited = updates.hold("1 minute")
    graced_at_the_end = updates.hold("close", grace="1 second")
    for topology, name, time, words in (
        (minutes, "at", "stream", 'expected time="watermark"'),
        (graced, "at", "watermark", "found windows with a grace of 1000 ms"),
        (graced_at_the_end, "at", "watermark", "found windows with a grace of 1000 ms"),
        (limited, "at", "watermark", r"expected hold\(\"close\"\)"),
        (minutes, "n", "watermark", "is the name of another column"),
        (plain, "other", "watermark", "column 'other' is missing in the output: found k, at, n"),
        (plain, "n", "watermark", "column 'n': found bigint, expected timestamp"),
    ):
        with pytest.raises(ValueError, match=words):
            apply(topology, name, time=time)
    assert apply(minutes, "at").schema["at"].metadata == {"spark.watermarkDelayMs": 0}
    assert apply(plain, "at").schema["at"].metadata == {"spark.watermarkDelayMs": 0}


def test_the_time_of_a_session_that_ends_between_milliseconds_is_not_the_watermark() -> None:
    import pyarrow as pa

    from hybridstore.clock import Watermark
    from hybridstore.spark.event_time import with_times

    ends = pa.table({"window_end": pa.array([0, 1, None], pa.timestamp("ms", "UTC"))})
    field = pa.field("at", pa.timestamp("us", "UTC"))
    for late_ms, expected in ((0, [9_999, 10_999, None]), (10, [10_001, 10_999, None]), (11, [11_001, 11_001, None])):
        times = with_times(ends, hs.SessionWindows(10), Watermark(late_ms, 100), field).column("at")
        assert times.cast("int64").to_pylist() == expected
