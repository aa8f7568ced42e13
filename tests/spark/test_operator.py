"""The operator in real streaming queries on local[2]: one session for all tests of a process."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of
from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from tests.tools.modes import both_modes, classic_first
from tests.tools.spark_jobs import Job, Source, count, expected, failure, row
from tests.tools.spark_programs import RunningCount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@contextmanager
def other_setting(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    """A setting of the session has another value for a while."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


@both_modes
def test_counts_go_on_over_batches_and_restarts(source: Source, job: Job) -> None:
    for batch in range(2):
        source.add(*(row(f"k{i % 7}", i) for i in range(10 + batch)))
    job.run(count(source.stream(), job), sink=True)
    source.add(row("k1", 100), row("new", 1))
    source.add()
    source.add(row("k1", 1))
    with other_setting(source.spark, "spark.sql.shuffle.partitions", "7"):  # which is not the number of shards
        job.run(count(source.stream(), job), sink=True)
    assert job.rows == expected(source.batches)
    shards = job.shards()
    assert [shard["version"] for shard in shards] == [5, 5]
    assert {shard["batch"] for shard in shards} == {4}
    assert len(list((job.checkpoint / "hybridstore/op").glob("*/*/log/*"))) == 5 * 2
    assert not list(job.checkpoint.rglob("*.tmp"))


def test_every_shard_holds_the_keys_that_python_gives_it(source: Source, job: Job) -> None:
    source.add(*(row(f"käse{i}") for i in range(100)), row(""))
    job.run(count(source.stream(), job, shards=5))
    for shard in range(5):
        query = json.loads((job.checkpoint / "metadata").read_text())["id"]
        provider = StateStoreProvider(StateStoreId(str(job.checkpoint), "op", shard, query_id=query))
        keys = list(provider.get_read_store(1).key_value("counts"))
        assert keys
        assert {shard_of(key, 5) for key in keys} == {shard}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("string", ["", "a", "ä€😀", "x" * 500]),
        ("binary", [b"", b"\xff\x00", b"abc"]),
        ("long", [0, -1, 5, 2**63 - 1, -(2**63)]),
        ("int", [0, -1, 7, 2**31 - 1]),
        ("boolean", [True, False]),
        ("double", [0.0, -0.0, 0.5, -3.75, 1e300, 12345678.875, float("inf")]),
        ("float", [0.5, -2.25]),
    ],
)
def test_shard_expression_equals_shard_of(spark: "SparkSession", kind: str, keys: list[Any]) -> None:
    from hybridstore.spark.sharding import shard_column

    df = spark.createDataFrame([(key,) for key in keys], f"k {kind}")
    numbers = (1, 2, 7, 200)
    for key, *placed in df.select("k", *(shard_column(df.schema, ("k",), shards) for shards in numbers)).collect():
        assert placed == [shard_of(bytes(key) if kind == "binary" else key, shards) for shards in numbers]


def test_shard_expression_of_several_columns(spark: "SparkSession") -> None:
    from hybridstore.spark.sharding import shard_column

    df = spark.createDataFrame([("a", 1, True), ("b", -7, False)], "a string, b int, c boolean")
    sharded = df.select("*", shard_column(df.schema, ("a", "b", "c"), 13)).collect()
    assert [row[3] for row in sharded] == [shard_of(tuple(row[:3]), 13) for row in sharded]
    # rows without a key are in shard 0, where the stores of a join keep them; a float beyond the scale is a key
    keys = [("a", math.nan), ("a", None), (None, 1.0), ("a", 1e300), ("b", 2.0)]
    df = spark.createDataFrame(keys, "a string, x double")
    placed = [shard for (shard,) in df.select(shard_column(df.schema, ("a", "x"), 13)).collect()]
    assert placed == [0, 0, 0, shard_of(keys[3], 13), shard_of(keys[4], 13)]
    assert 0 not in placed[3:]
    with pytest.raises(TypeError, match="key column 'd': found date, expected"):
        shard_column(spark.sql("select current_date() d").schema, ("d",), 3)


@pytest.mark.scenario(30, 32)
def test_a_limit_that_skips_shards_is_named(source: Source, job: Job) -> None:
    source.add(*(row(f"k{i}") for i in range(50)))
    source.add(*(row(f"k{i}") for i in range(50)))
    text = failure(lambda: job.run(count(source.stream(), job), action=lambda df: df.limit(1).collect()))
    assert "did not reach shard" in text
    assert "limit" in text


@classic_first
def test_several_actions_on_one_batch(source: Source, job: Job) -> None:
    for _ in range(2):
        source.add(*(row(f"k{i % 5}") for i in range(20)))
    job.run(count(source.stream(), job), action=lambda df: [df.count(), df.collect(), df.isEmpty()][1])
    assert job.rows == expected(source.batches)


def test_early_stop_after_the_commit_loses_nothing(source: Source, job: Job) -> None:
    for _ in range(2):
        source.add(*(row(f"k{i}") for i in range(3000)))
    df = count(source.stream(), job, shards=1)
    job.run(df, action=lambda df: df.limit(2).collect())
    assert job.shards()[0]["version"] == 2
    source.add(row("k1"))
    job.run(count(source.stream(), job, shards=1))
    assert job.rows[2] == [("k1", 3, 3)]


@both_modes
@pytest.mark.scenario(67)
def test_another_number_of_shards_program_or_time_is_refused(source: Source, job: Job) -> None:
    source.add(row("a"))
    job.run(count(source.stream(), job, shards=2), sink=True)
    with pytest.raises(hs.ProgramMismatchError, match="shards: the state has 2, asked for 7"):
        count(source.stream(), job, shards=7)
    with pytest.raises(hs.ProgramMismatchError, match="time: the state has 'stream', asked for 'watermark'"):
        count(source.stream().withWatermark("t", "1 second"), job, shards=2, time="watermark")
    with pytest.raises(hs.ProgramMismatchError, match=r"key: the state has .*string.*asked for .*binary"):
        count(source.stream().selectExpr("cast(k as binary) k", "v"), job, shards=2)

    class Other(RunningCount):
        def describe(self) -> dict[str, Any]:
            return {"kind": "other", "columns": ("k", "v")}

    with pytest.raises(
        hs.ProgramMismatchError, match=r"program\.kind: the state has 'running count', asked for 'other'"
    ):
        hsp.apply_program(source.stream(), Other(), name="op", location=str(job.checkpoint), shards=2)


@pytest.mark.scenario(68)
def test_checkpoint_deleted_but_state_left(source: Source, job: Job) -> None:
    import shutil

    source.add(row("a"))
    job.run(count(source.stream(), job))
    for name in ("metadata", "offsets", "commits", "sources"):
        path = job.checkpoint / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        (job.checkpoint / f".{name}.crc").unlink(missing_ok=True)
    assert "the state belongs to query" in failure(lambda: job.run(count(source.stream(), job)))


def test_state_removed_under_a_query_is_refused(source: Source, job: Job) -> None:
    import shutil

    source.add(row("a"))
    job.run(count(source.stream(), job))
    shutil.rmtree(job.checkpoint / "hybridstore")
    source.add(row("a"))
    assert "finds no operator/0000000001.json" in failure(lambda: job.run(count(source.stream(), job)))


def test_guards_name_the_setting(source: Source, job: Job, spark: "SparkSession") -> None:
    source.add(row("a"))
    rules = spark.conf.get("spark.sql.optimizer.excludedRules")
    for name, value in (("spark.sql.adaptive.enabled", "true"), ("spark.sql.optimizer.excludedRules", "")):
        counted = count(source.stream(), job)
        with other_setting(spark, name, value):
            text = failure(lambda counted=counted: job.run(counted))  # type: ignore[misc]
        assert f"{name}: found" in text
        assert "it was changed after `apply`" in text
    assert spark.conf.get("spark.sql.optimizer.excludedRules") == rules


@both_modes
def test_apply_sets_what_the_session_lacks_and_says_so_once(
    source: Source, job: Job, spark: "SparkSession", caplog: pytest.LogCaptureFixture
) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set("spark.sql.optimizer.excludedRules", "org.example.Rule")
    for _ in range(2):
        count(source.stream(), job, shards=None)
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "spark.sql.adaptive.enabled to false (adaptive execution may leave shards out" in record.getMessage()
    assert "PropagateEmptyRelation" in record.getMessage()
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    rules = str(spark.conf.get("spark.sql.optimizer.excludedRules"))
    assert rules.startswith("org.example.Rule,org.apache.spark")
    spark.conf.set("spark.sql.optimizer.excludedRules", rules.partition(",")[2])


@classic_first
def test_two_operators_in_one_query_one_of_them_process(source: Source, job: Job) -> None:
    def since(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
        known = stores["known"].get(row["k"]) or 0
        stores["known"].put(row["k"], row["n"])
        return [{"k": row["k"], "n": row["n"], "more": row["n"] - known}]

    for batch in range(2):
        source.add(*(row(f"k{i % 3}", i) for i in range(6 + batch)))
    counted = count(source.stream(), job, name="first", shards=2)
    topology = hs.stream(key="k", timestamp="n").process(
        since, "k string, n long, more long", stores=[hs.key_value_store("known")]
    )
    job.run(topology.apply(counted, "second", location=str(job.checkpoint)), sink=True)
    assert job.rows == {0: [(f"k{i}", 2, 2) for i in range(3)], 1: [("k0", 5, 3), ("k1", 4, 2), ("k2", 4, 2)]}
    assert len(job.shards("first")) == 2
    assert len(job.shards("second")) == 4  # the default: two for each core


def test_another_checkpoint_than_the_querys_is_refused(source: Source, job: Job, tmp_path: Path) -> None:
    source.add(row("a"))
    df = hsp.apply_program(source.stream(), RunningCount(), name="op", location=str(tmp_path / "else"), shards=2)
    assert "location= is not the query's checkpointLocation" in failure(lambda: job.run(df))


def test_bad_arguments(source: Source, job: Job, spark: "SparkSession") -> None:
    df = source.stream()
    for bad, message in (
        ({"shards": 0}, "shards: found 0"),
        ({"time": "wall"}, "time: found 'wall'"),
        ({"name": "a/b"}, "operator: found 'a/b'"),
    ):
        with pytest.raises(ValueError, match=message):
            count(df, job, **bad)
    with pytest.raises(ValueError, match="found a batch DataFrame"):
        count(spark.createDataFrame([("a", 1)], "k string, v long"), job)
    with pytest.raises(ValueError, match="column 'v' is missing"):
        count(df.drop("v"), job)
    for location, message in (
        ("relative/path", "location: found"),
        (None, "location: found NoneType, expected a path or a URL"),
        ("hdfs://name/x", "location: hdfs://name/x: state cannot be kept at hdfs:// locations"),
    ):
        with pytest.raises(hsp.SparkSetupError, match=message):
            hsp.apply_program(df, RunningCount(), name="op", location=location, shards=1)
    stream: Any = hs.stream(key="k", timestamp="t")
    for frame in (df, spark.range(2)):
        with pytest.raises(TypeError, match=r"rows: found a DataFrame of Spark, .* \(apply\(df, name, location\) runs"):
            list(stream.aggregate(n=hs.Count()).run(frame))
    for step in (stream.filter, stream.map):
        with pytest.raises(TypeError, match=r"function: found Column, .* \(on Spark: df.where or df.withColumn before"):
            step(df["v"] > 1)
    with pytest.raises(TypeError, match=r"where: found Column, expected a function of a row, such as `lambda row"):
        hs.Count(where=df["v"] > 1)  # type: ignore[arg-type]


@pytest.mark.scenario(71)
def test_async_progress_tracking_is_refused(source: Source, job: Job) -> None:
    source.add(row("a"))
    source.add(row("b"))
    writer = count(source.stream(), job).writeStream.format("noop").option("checkpointLocation", str(job.checkpoint))
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    query = writer.option("asyncProgressTrackingCheckpointIntervalMs", "3600000").start()
    try:
        text = failure(query.processAllAvailable)
    finally:
        query.stop()
    assert "asyncProgressTrackingEnabled=true" in text


def test_spark_refuses_the_operator_in_real_time_mode(spark: "SparkSession", job: Job) -> None:
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    source = getattr(jvm.org.apache.spark.sql.execution.streaming.sources, "LowLatencyMemoryStream$")
    stream = getattr(source, "MODULE$").apply(spark._jsparkSession, jvm.org.apache.spark.sql.Encoders.STRING())
    rows = DataFrame(stream.toDF(), spark).selectExpr("value k", "0L v")
    writer = count(rows, job).writeStream.format("console").outputMode("update")
    writer = writer.option("checkpointLocation", str(job.checkpoint))
    text = failure(lambda: writer.trigger(realTime="1 minute").start().awaitTermination())
    assert "MapInArrowExec is not in the operator allowlist for Real-Time Mode" in text
