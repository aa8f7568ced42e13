"""Time and the operator in real queries: watermarks, late rows, heartbeats, and a topology as in plain Python."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from tests.tools.modes import classic_first
from tests.tools.spark_jobs import Job, Source, count, files_of, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@classic_first
def test_watermark_time_reaches_the_program_and_late_rows_are_dropped(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("10 seconds"))
        .aggregate(n=hs.Count(), emit="commit")
    )
    for seconds in ([0, 1, 12], [13, 40], [2, 41], [3, 70]):
        source.add(*(row("a", second=second) for second in seconds))
    df = source.stream().withWatermark("t", "5 seconds")
    job.run(topology.apply(df, "op", location=str(job.checkpoint), shards=2, time="watermark"), sink=True)
    assert {number: [(row[1].second, row[3]) for row in rows] for number, rows in job.rows.items()} == {
        0: [(0, 2), (10, 1)],
        1: [(10, 2), (40, 1)],
        # the row of second 2 was on time when the batch before began, whose rows have moved the watermark to 35
        2: [(0, 3), (40, 2)],
        3: [(10, 1)],
        # a batch for the new watermark alone
        4: [],
    }


@classic_first
def test_the_watermark_as_time_needs_a_watermark(source: Source, job: Job) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count())

    def apply(df: "DataFrame") -> Any:
        return topology.apply(df, "op", location=str(job.checkpoint), shards=2, time="watermark")

    source.add(row("a"))
    for df in (source.stream(), source.stream().where("v > 0").union(source.stream())):
        with pytest.raises(ValueError, match=r'time: found "watermark", but the DataFrame has no watermark'):
            apply(df)
        with pytest.raises(ValueError, match=r"df\.withWatermark"):
            count(df, job, time="watermark")
    marked = source.stream().withWatermark("t", "1 second")
    for df in (marked, marked.where("v > 0").union(source.stream()), marked.selectExpr("k", "v", "t")):
        assert apply(df).isStreaming
    # what Spark's operators behind it take for the mark, as a client sees it, too
    final = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("10 seconds"))
    final = final.aggregate(emit="close", n=hs.Count())
    out = final.apply(marked, "op", location=str(job.checkpoint), shards=2, time="watermark", event_time="at")
    assert out.schema["at"].metadata == {"spark.watermarkDelayMs": 0}


def test_a_topology_gives_what_plain_python_gives(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.SlidingWindows("10 seconds"))
        .aggregate(n=hs.Count(), total=hs.Sum("v"))
    )
    for batch in range(2):
        source.add(*(row(f"k{i % 9}", i, batch * 5 + i % 11) for i in range(40)))
    job.run(topology.apply(source.stream(), "op", location=str(job.checkpoint), shards=3))
    rows = [{**row, "t": datetime.fromisoformat(row["t"])} for batch in source.batches for row in batch]
    plain: dict[int, list[tuple[Any, ...]]] = {}
    for result in topology.run(rows, shards=3, commit_rows=40):
        plain.setdefault(result.commit - 1, []).append(tuple(result.values()))
    utc = {
        number: sorted(tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row) for row in results)
        for number, results in plain.items()
    }
    assert {number: len(results) for number, results in job.rows.items()} == {0: 40, 1: 40}
    zone = datetime.now().astimezone().utcoffset()
    if not zone:  # Spark hands out timestamps in the machine's own zone
        assert job.rows == utc


@classic_first
def test_late_rows_come_as_a_struct_of_what_they_came_as(source: Source, job: Job) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 second"))
    counted = topology.aggregate(n=hs.Count(), emit="commit").late()
    source.add(row("a", 1, 60), row("b", 2, 60))
    source.add(row("a", 3, 5), row("b", 4, 61), row("a", 5, 60))
    df = counted.apply(source.stream(), "op", location=str(job.checkpoint), shards=2)
    assert df.schema["late"].dataType == source.stream().schema
    brief = df.selectExpr("coalesce(late.v, 0)", "k", "coalesce(n, 0)", "late.t = timestamp'2026-01-01T00:00:05Z'")
    job.run(brief, sink=True)
    assert job.rows == {
        0: [(0, "a", 1, None), (0, "b", 1, None)],
        1: [(0, "a", 2, None), (0, "b", 1, None), (3, "a", 0, True)],
    }
    assert sum(shard["total_late"] or 0 for shard in job.shards()) == 1


def test_heartbeats_let_suppressed_results_out_of_every_shard(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("10 seconds"))
        .aggregate(n=hs.Count(), total=hs.Sum("v"))
        .hold("close")
    )
    source.add(*(row(f"k{i}", i, 1) for i in range(12)))
    beating = hsp.with_heartbeats(source.stream(), key="k", timestamp="t", shards=3, every="1 second", delay="1 second")
    out = topology.apply(beating, "op", location=str(job.checkpoint), shards=3)
    files = job.checkpoint.with_name("files")

    def arrived() -> list[tuple[Any, ...]]:
        from pyarrow import parquet

        # every tenth log has the files of those before once more
        paths = {path for log in files.glob("_spark_metadata/[0-9]*") for path in files_of(log)}
        return sorted(tuple(row.values()) for path in paths for row in parquet.read_table(path).to_pylist())

    writer = hsp.without_heartbeats(out, key="k").drop("window_start", "window_end").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(job.checkpoint)).start(str(files))
    try:
        while len(arrived()) < 12 and not query.awaitTermination(1):
            pass
    finally:
        query.stop()
    assert arrived() == sorted((f"k{i}", 1, i) for i in range(12))


@classic_first
def test_heartbeats_are_rows_of_the_stream_and_bad_arguments_are_named(source: Source) -> None:
    beating = hsp.with_heartbeats(source.stream(), key="k", timestamp="t", shards=3, every="1 second")
    assert beating.schema == source.stream().schema
    assert hsp.without_heartbeats(beating, key="k").isStreaming
    for shards in (1, 3, 50):
        assert [shard_of(key, shards) for key in hsp.heartbeat_keys(shards)] == list(range(shards))
    with pytest.raises(ValueError, match="shards: found 0"):
        hsp.heartbeat_keys(0)
    with pytest.raises(ValueError, match="expected a second or more"):
        hsp.with_heartbeats(source.stream(), key="k", timestamp="t", shards=2, every=10)
    with pytest.raises(TypeError, match="key column 'v': found bigint, expected string"):
        hsp.with_heartbeats(source.stream(), key="v", timestamp="t", shards=2)


@pytest.mark.parametrize("time", ["watermark", "stream"])
def test_time_reaches_every_shard_of_a_task(source: Source, job: Job, time: Any) -> None:
    keys = [f"k{i}" for i in range(20)]
    source.add(*(row(key, 1, second=1) for key in keys))
    source.add(*(row(key, 1, second=300) for key in (hsp.heartbeat_keys(7) if time == "stream" else ("far",))))
    topology = (
        hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count())
    ).hold("close")
    df = source.stream().withWatermark("t", "1 second")
    job.run(topology.apply(df, "op", location=str(job.checkpoint), shards=7, tasks=3, time=time))
    closed = sorted(row[0] for rows in job.rows.values() for row in rows if row[0] in keys)
    assert closed == sorted(keys)
