"""The operator in real streaming queries on local[2]: one session for all tests of this file."""

import json
import os
import pickle
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from hybridstore.cli import run as run_command
from recovery.layout import MOVED
from tests.tools.modes import both_modes, patiently
from tests.tools.spark_programs import RunningCount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "k string, v long, t timestamp"


class Source:
    """A folder of JSON files, one per batch."""

    def __init__(self, folder: Path, spark: "SparkSession") -> None:
        self.folder = folder
        self.spark = spark
        self.batches: list[list[dict[str, Any]]] = []
        folder.mkdir(parents=True)

    def add(self, *rows: dict[str, Any]) -> None:
        """Add one batch; a file without rows is a batch too."""
        number = len(self.batches)
        self.batches.append(list(rows))
        hidden = self.folder / f".{number:05d}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes files in the order of their times
        os.utime(hidden, (1_760_000_000 + number, 1_760_000_000 + number))
        hidden.rename(self.folder / f"{number:05d}.json")

    def stream(self) -> "DataFrame":
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder))


def row(k: str | None, v: int = 1, second: int = 0) -> dict[str, Any]:
    return {"k": k, "v": v, "t": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"}


@pytest.fixture
def source(tmp_path: Path, spark: "SparkSession") -> Source:
    return Source(tmp_path / "in", spark)


class Job:
    """Runs a query to the end of what is there, and keeps what came out."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = tmp_path / "checkpoint"
        self.results = tmp_path / "results"
        self.results.mkdir()
        self.rows: dict[int, list[tuple[Any, ...]]] = {}

    def run(
        self,
        df: "DataFrame",
        action: Callable[["DataFrame"], list[Any]] = lambda df: df.collect(),
        *,
        sink: bool = False,
        **options: Any,
    ) -> None:
        """Run to the end of the input; `sink`: into files, as Spark Connect does without a process more."""
        results, files = self.results, self.checkpoint.with_name("files")

        # with Spark Connect this runs in another process
        def keep(batch: "DataFrame", number: int) -> None:
            (results / str(number)).write_bytes(pickle.dumps(sorted(tuple(row) for row in action(batch))))

        def start() -> None:
            writer = df.writeStream.foreachBatch(hsp.foreach_batch(keep))
            if sink:
                writer = df.writeStream.format("parquet").option("path", str(files))
            for name, value in {"checkpointLocation": str(self.checkpoint), **options}.items():
                writer = writer.option(name, value)
            writer.trigger(availableNow=True).start().awaitTermination()

        try:
            patiently(start)
        finally:
            for path in results.iterdir():
                self.rows[int(path.name)] = pickle.loads(path.read_bytes())
                path.unlink()
            for path in files.glob("_spark_metadata/*[0-9]"):
                self.rows[int(path.name)] = sorted(_rows_of_files(path))

    def shards(self, name: str = "op") -> list[dict[str, Any]]:
        return hsp.metrics(self.checkpoint, name)


def _files_of(log: Path) -> list[str]:
    return [json.loads(line)["path"].removeprefix("file://") for line in log.read_text().splitlines()[1:]]


def _rows_of_files(log: Path) -> list[tuple[Any, ...]]:
    """The rows that a batch has written into files, as the log of Spark's file sink says."""
    from pyarrow import parquet

    paths = _files_of(log)
    return [tuple(row.values()) for path in paths for row in parquet.read_table(path).to_pylist()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def count(df: "DataFrame", job: Job, *, name: str = "op", shards: int = 4, **options: Any) -> "DataFrame":
    return hsp.apply_program(df, RunningCount(), name=name, checkpoint=str(job.checkpoint), shards=shards, **options)


def expected(batches: list[list[dict[str, Any]]]) -> dict[int, list[tuple[Any, ...]]]:
    state: dict[str, tuple[int, int]] = {}
    results = {}
    for number, batch in enumerate(batches):
        for row in batch:
            n, total = state.get(row["k"], (0, 0))
            state[row["k"]] = (n + 1, total + row["v"])
        results[number] = sorted((key, *state[key]) for key in {row["k"] for row in batch})
    return results


def failure(run: Callable[[], Any]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)


@both_modes
def test_counts_go_on_over_batches_and_restarts(source: Source, job: Job) -> None:
    for batch in range(3):
        source.add(*(row(f"k{i % 7}", i) for i in range(10 + batch)))
    job.run(count(source.stream(), job), sink=True)
    source.add(row("k1", 100), row("new", 1))
    source.add()
    source.add(row("k1", 1))
    job.run(count(source.stream(), job), sink=True)
    assert job.rows == expected(source.batches)
    shards = job.shards()
    assert [shard["version"] for shard in shards] == [6, 6, 6, 6]
    assert {shard["batch"] for shard in shards} == {5}
    assert len(list((job.checkpoint / "hybridstore/op").glob("*/*/log/*"))) == 6 * 4
    assert not list(job.checkpoint.rglob("*.tmp"))


def test_every_shard_holds_the_keys_that_python_gives_it(source: Source, job: Job) -> None:
    source.add(*(row(f"käse{i}") for i in range(100)), row(""))
    job.run(count(source.stream(), job, shards=5))
    for shard in range(5):
        query = json.loads((job.checkpoint / "metadata").read_text())["id"]
        provider = hsp.StateStoreProvider(hsp.StateStoreId(str(job.checkpoint), "op", shard, query_id=query))
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
    for shards in (1, 2, 7, 200):
        placed = df.select("k", shard_column(df.schema, ("k",), shards)).collect()
        assert [row[1] for row in placed] == [shard_of(bytes(k) if kind == "binary" else k, shards) for k, _ in placed]


def test_shard_expression_of_several_columns(spark: "SparkSession") -> None:
    from hybridstore.spark.sharding import shard_column

    df = spark.createDataFrame([("a", 1, True), ("b", -7, False)], "a string, b int, c boolean")
    sharded = df.select("*", shard_column(df.schema, ("a", "b", "c"), 13)).collect()
    assert [row[3] for row in sharded] == [shard_of(tuple(row[:3]), 13) for row in sharded]
    with pytest.raises(TypeError, match="key column 'd': found date, expected"):
        shard_column(spark.sql("select current_date() d").schema, ("d",), 3)


def test_scenario_30_and_32_a_limit_that_skips_shards_is_named(source: Source, job: Job) -> None:
    source.add(*(row(f"k{i}") for i in range(50)))
    source.add(*(row(f"k{i}") for i in range(50)))
    text = failure(lambda: job.run(count(source.stream(), job), action=lambda df: df.limit(1).collect()))
    assert "did not reach shard" in text
    assert "limit" in text


@both_modes
def test_several_actions_on_one_batch(source: Source, job: Job) -> None:
    for _ in range(3):
        source.add(*(row(f"k{i % 5}") for i in range(20)))
    job.run(count(source.stream(), job), action=lambda df: [df.count(), df.collect(), df.isEmpty()][1])
    assert job.rows == expected(source.batches)


def test_early_stop_after_the_commit_loses_nothing(source: Source, job: Job) -> None:
    for _ in range(3):
        source.add(*(row(f"k{i}") for i in range(3000)))
    df = count(source.stream(), job, shards=1)
    job.run(df, action=lambda df: df.limit(2).collect())
    assert job.shards()[0]["version"] == 3
    source.add(row("k1"))
    job.run(count(source.stream(), job, shards=1))
    assert job.rows[3] == [("k1", 4, 4)]


@pytest.mark.parametrize("shape", ["union", "union first", "coalesce", "self union", "project"])
def test_scenario_69_plans_that_move_tasks(source: Source, job: Job, tmp_path: Path, shape: str) -> None:
    other = Source(tmp_path / "other", source.spark)
    for batch in range(5):
        source.add(*(row(f"k{i}") for i in range((batch * 3) % 5)))
        other.add(*(row(f"o{i}") for i in range(batch % 2)))
    mine = count(source.stream(), job, name="op")
    if shape == "coalesce":
        job.run(mine.coalesce(2))
        assert job.rows == expected(source.batches)
    elif shape == "project":
        job.run(mine.selectExpr("k", "n + 0 as n", "total").where("n > 0"))
        assert job.rows == expected(source.batches)
    elif shape == "self union":
        theirs = count(other.stream(), job, name="theirs")
        job.run(mine.union(theirs))
        parts = [expected(source.batches), expected(other.batches)]
        assert job.rows == {number: sorted(parts[0][number] + parts[1][number]) for number in range(5)}
        for name in ("op", "theirs"):
            assert {shard["version"] for shard in job.shards(name)} <= set(range(6))
    else:
        raw = other.stream().selectExpr("k", "v as n", "v as total")
        job.run(raw.union(mine) if shape == "union" else mine.union(raw))
        kept = {number: [row for row in rows if row[0].startswith("k")] for number, rows in job.rows.items()}
        assert kept == expected(source.batches)
    assert (job.checkpoint / "hybridstore/op" / MOVED).exists() == (shape in ("union", "coalesce"))


@both_modes
def test_scenario_67_another_number_of_shards_program_or_time_is_refused(source: Source, job: Job) -> None:
    source.add(row("a"))
    job.run(count(source.stream(), job, shards=2), sink=True)
    with pytest.raises(hs.CheckpointMismatchError, match="shards: the state has 2, asked for 7"):
        count(source.stream(), job, shards=7)
    with pytest.raises(hs.CheckpointMismatchError, match="time: the state has 'stream', asked for 'watermark'"):
        count(source.stream().withWatermark("t", "1 second"), job, shards=2, time="watermark")
    with pytest.raises(hs.CheckpointMismatchError, match=r"key: the state has .*string.*asked for .*binary"):
        count(source.stream().selectExpr("cast(k as binary) k", "v"), job, shards=2)

    class Other(RunningCount):
        def describe(self) -> dict[str, Any]:
            return {"kind": "other", "columns": ("k", "v")}

    with pytest.raises(
        hs.CheckpointMismatchError, match=r"program\.kind: the state has 'running count', asked for 'other'"
    ):
        hsp.apply_program(source.stream(), Other(), name="op", checkpoint=str(job.checkpoint), shards=2)


def test_scenario_68_checkpoint_deleted_but_state_left(source: Source, job: Job) -> None:
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
        spark.conf.set(name, value)
        try:
            text = failure(lambda counted=counted: job.run(counted))  # type: ignore[misc]
        finally:
            hsp.configure(spark)
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


@both_modes
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
    job.run(topology.apply(counted, "second", checkpoint=str(job.checkpoint)), sink=True)
    assert job.rows == {0: [(f"k{i}", 2, 2) for i in range(3)], 1: [("k0", 5, 3), ("k1", 4, 2), ("k2", 4, 2)]}
    assert len(job.shards("first")) == 2
    assert len(job.shards("second")) == 4  # the default: two for each core


def test_another_checkpoint_than_the_querys_is_refused(source: Source, job: Job, tmp_path: Path) -> None:
    source.add(row("a"))
    df = hsp.apply_program(source.stream(), RunningCount(), name="op", checkpoint=str(tmp_path / "else"), shards=2)
    assert "checkpoint= is not the query's checkpointLocation" in failure(lambda: job.run(df))


def test_scenario_66_manual_rewind_of_the_query(source: Source, job: Job) -> None:
    for batch in range(4):
        source.add(*(row(f"k{i}", batch) for i in range(6)))
    job.run(count(source.stream(), job))
    for name in ("commits", "offsets"):
        for batch in (2, 3):
            (job.checkpoint / name / f"{batch}").unlink()
            (job.checkpoint / name / f".{batch}.crc").unlink(missing_ok=True)
    before, job.rows = job.rows, {}
    job.run(count(source.stream(), job))
    # Spark may cut the batches anew; what they add up to must be the same
    assert job.rows[max(job.rows)] == before[3]


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
        ("relative/path", "checkpoint: found"),
        ("hdfs://name/x", "checkpoint: hdfs://name/x: state cannot be kept at hdfs:// locations"),
    ):
        with pytest.raises(hsp.SparkSetupError, match=message):
            hsp.apply_program(df, RunningCount(), name="op", checkpoint=location, shards=1)


def test_changed_shuffle_partitions_change_nothing(source: Source, job: Job, spark: "SparkSession") -> None:
    source.add(*(row(f"k{i}") for i in range(20)))
    job.run(count(source.stream(), job))
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        source.add(*(row(f"k{i}") for i in range(20)))
        job.run(count(source.stream(), job))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert job.rows == expected(source.batches)


def test_scenario_71_async_progress_tracking_is_refused(source: Source, job: Job) -> None:
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


@both_modes
def test_watermark_time_reaches_the_program_and_late_rows_are_dropped(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("10 seconds"))
        .aggregate(n=hs.Count(), emit="commit")
    )
    for seconds in ([0, 1, 12], [13, 40], [2, 41], [3, 70]):
        source.add(*(row("a", second=second) for second in seconds))
    df = source.stream().withWatermark("t", "5 seconds")
    job.run(topology.apply(df, "op", checkpoint=str(job.checkpoint), shards=2, time="watermark"), sink=True)
    assert {number: [(row[1].second, row[3]) for row in rows] for number, rows in job.rows.items()} == {
        0: [(0, 2), (10, 1)],
        1: [(10, 2), (40, 1)],
        # the row of second 2 was on time when the batch before began, whose rows have moved the watermark to 35
        2: [(0, 3), (40, 2)],
        3: [(10, 1)],
        # a batch for the new watermark alone
        4: [],
    }


@both_modes
def test_the_watermark_as_time_needs_a_watermark(source: Source, job: Job, tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count())

    def apply(df: "DataFrame") -> Any:
        return topology.apply(df, "op", checkpoint=str(job.checkpoint), shards=2, time="watermark")

    source.add(row("a"))
    for df in (source.stream(), source.stream().where("v > 0").union(source.stream())):
        with pytest.raises(ValueError, match=r'time: found "watermark", but the DataFrame has none'):
            apply(df)
        with pytest.raises(ValueError, match=r"df\.withWatermark"):
            count(df, job, time="watermark")
    marked = source.stream().withWatermark("t", "1 second")
    for df in (marked, marked.where("v > 0").union(source.stream()), marked.selectExpr("k", "v", "t")):
        assert apply(df).isStreaming


def test_a_topology_gives_what_plain_python_gives(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.SlidingWindows("10 seconds"))
        .aggregate(n=hs.Count(), total=hs.Sum("v"))
    )
    for batch in range(3):
        source.add(*(row(f"k{i % 9}", i, batch * 5 + i % 11) for i in range(40)))
    job.run(topology.apply(source.stream(), "op", checkpoint=str(job.checkpoint), shards=3))
    rows = [{**row, "t": datetime.fromisoformat(row["t"])} for batch in source.batches for row in batch]
    plain: dict[int, list[tuple[Any, ...]]] = {}
    for result in topology.run(rows, shards=3, commit_rows=40):
        plain.setdefault(result.commit - 1, []).append(tuple(result.values()))
    utc = {
        number: sorted(tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row) for row in results)
        for number, results in plain.items()
    }
    assert {number: len(results) for number, results in job.rows.items()} == {0: 40, 1: 40, 2: 40}
    zone = datetime.now().astimezone().utcoffset()
    if not zone:  # Spark hands out timestamps in the machine's own zone
        assert job.rows == utc


def test_late_rows_come_as_a_struct_of_what_they_came_as(source: Source, job: Job) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("1 second"))
    counted = topology.aggregate(n=hs.Count(), emit="commit").late()
    source.add(row("a", 1, 60), row("b", 2, 60))
    source.add(row("a", 3, 5), row("b", 4, 61), row("a", 5, 60))
    df = counted.apply(source.stream(), "op", checkpoint=str(job.checkpoint), shards=2)
    assert df.schema["late"].dataType == source.stream().schema
    brief = df.selectExpr("coalesce(late.v, 0)", "k", "coalesce(n, 0)", "late.t = timestamp'2026-01-01T00:00:05Z'")
    job.run(brief)
    assert job.rows == {
        0: [(0, "a", 1, None), (0, "b", 1, None)],
        1: [(0, "a", 2, None), (0, "b", 1, None), (3, "a", 0, True)],
    }
    assert sum(shard["total_late"] or 0 for shard in job.shards()) == 1


@both_modes
def test_heartbeats_let_suppressed_results_out_of_every_shard(source: Source, job: Job) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows("10 seconds"))
        .aggregate(n=hs.Count(), total=hs.Sum("v"))
        .suppress(hs.until_window_closes())
    )
    source.add(*(row(f"k{i}", i, 1) for i in range(12)))
    beating = hsp.with_heartbeats(source.stream(), key="k", timestamp="t", shards=3, every="1 second", delay="1 second")
    out = topology.apply(beating, "op", checkpoint=str(job.checkpoint), shards=3)
    files = job.checkpoint.with_name("files")

    def arrived() -> list[tuple[Any, ...]]:
        from pyarrow import parquet

        # every tenth log has the files of those before once more
        paths = {path for log in files.glob("_spark_metadata/[0-9]*") for path in _files_of(log)}
        return sorted(tuple(row.values()) for path in paths for row in parquet.read_table(path).to_pylist())

    writer = hsp.without_heartbeats(out, key="k").drop("window_start", "window_end").writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(job.checkpoint)).start(str(files))
    try:
        while len(arrived()) < 12 and not query.awaitTermination(1):
            pass
    finally:
        query.stop()
    assert arrived() == sorted((f"k{i}", 1, i) for i in range(12))


def test_heartbeat_keys_and_bad_arguments(source: Source) -> None:
    for shards in (1, 3, 50):
        assert [shard_of(key, shards) for key in hsp.heartbeat_keys(shards)] == list(range(shards))
    with pytest.raises(ValueError, match="shards: found 0"):
        hsp.heartbeat_keys(0)
    with pytest.raises(ValueError, match="expected a second or more"):
        hsp.with_heartbeats(source.stream(), key="k", timestamp="t", shards=2, every=10)
    with pytest.raises(TypeError, match="key column 'v': found bigint, expected string"):
        hsp.with_heartbeats(source.stream(), key="v", timestamp="t", shards=2)


@pytest.mark.parametrize("placement", ["worker", "holder"])
def test_another_number_of_tasks_at_every_start(source: Source, job: Job, placement: str) -> None:
    def fail_at_the_end(df: "DataFrame") -> list[Any]:
        # The last batch is committed all the same, and done again by the next start.
        rows = df.collect()
        if len(source.batches) % 3 == 0 and ("last", len(source.batches) // 3) in [
            (row["k"], row["n"]) for row in rows
        ]:
            raise RuntimeError("the sink is full")
        return rows

    starts = (2, 5, 1, None, 3)
    for start, tasks in enumerate(starts):
        source.add(*(row(f"k{i}", i) for i in range(30)))
        source.add()
        df = count(source.stream(), job, shards=5, tasks=tasks, placement=placement)
        if start == len(starts) - 1:
            job.run(df)
        else:
            source.add(row("k1"), row("last"))
            assert "the sink is full" in failure(lambda df=df: job.run(df, action=fail_at_the_end))  # type: ignore[misc]
    assert job.rows == expected(source.batches)
    assert {shard["version"] for shard in job.shards()} == {len(source.batches)}
    assert not (job.checkpoint / "hybridstore/op" / MOVED).exists()


def test_more_tasks_than_shards_are_refused(source: Source, job: Job) -> None:
    for tasks in (0, 5, True, 2.0):
        with pytest.raises(ValueError, match=rf"tasks: found {tasks} with 4 shards, expected 1 to 4, or None"):
            count(source.stream(), job, tasks=tasks)


def test_a_limit_that_skips_a_task_of_several_shards_is_named(source: Source, job: Job) -> None:
    source.add(*(row(f"k{i}") for i in range(50)))
    source.add(*(row(f"k{i}") for i in range(50)))
    df = count(source.stream(), job, shards=9, tasks=4)
    assert "did not reach shard" in failure(lambda: job.run(df, action=lambda df: df.limit(1).collect()))


@pytest.mark.parametrize("shape", ["union", "coalesce"])
def test_plans_that_move_tasks_of_several_shards(source: Source, job: Job, tmp_path: Path, shape: str) -> None:
    other = Source(tmp_path / "other", source.spark)
    # A batch without rows, and one with rows for a single task, come before the tasks are seen to have moved.
    for batch, keys in enumerate((0, 1, 12, 3, 0)):
        source.add(*(row(f"k{i}") for i in range(keys)))
        other.add(*(row(f"o{i}") for i in range(batch % 2)))
    mine = count(source.stream(), job, shards=7, tasks=3)
    if shape == "coalesce":
        job.run(mine.coalesce(2))
    else:
        job.run(other.stream().selectExpr("k", "v as n", "v as total").union(mine))
    kept = {number: [row for row in rows if row[0].startswith("k")] for number, rows in job.rows.items()}
    assert kept == expected(source.batches)


@pytest.mark.parametrize("time", ["watermark", "stream"])
def test_time_reaches_every_shard_of_a_task(source: Source, job: Job, time: Any) -> None:
    keys = [f"k{i}" for i in range(20)]
    source.add(*(row(key, 1, second=1) for key in keys))
    source.add(*(row(key, 1, second=300) for key in (hsp.heartbeat_keys(7) if time == "stream" else ("far",))))
    topology = (
        hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows("10 seconds")).aggregate(n=hs.Count())
    ).suppress(hs.until_window_closes())
    df = source.stream().withWatermark("t", "1 second")
    job.run(topology.apply(df, "op", checkpoint=str(job.checkpoint), shards=7, tasks=3, time=time))
    closed = sorted(row[0] for rows in job.rows.values() for row in rows if row[0] in keys)
    assert closed == sorted(keys)


def test_a_query_goes_on_with_other_numbers_of_shards(source: Source, job: Job) -> None:
    def rescale(shards: int) -> None:
        # here the process of the driver is this one, which has no query that runs
        assert run_command(["rescale", str(job.checkpoint), "op", "--shards", str(shards)]) == 0

    def go_on(shards: int) -> None:
        source.add(*(row(f"k{i * 7 % 60}", i) for i in range(90)))
        source.add(row("k1", 100))
        job.run(count(source.stream(), job, shards=shards))
        assert [shard["shard"] for shard in job.shards()] == list(range(shards))

    go_on(2)
    with pytest.raises(hs.CheckpointMismatchError, match="hybridstore rescale LOCATION op --shards 4"):
        count(source.stream(), job, shards=4)
    rescale(4)
    go_on(4)
    # and by Spark's workers
    assert hs.rescale(job.checkpoint, "op", shards=3, spark=source.spark).done
    go_on(3)
    assert job.rows == expected(source.batches)
