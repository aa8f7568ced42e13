"""The data source and the metrics: the state of a query, read from outside.

One state is made without Spark for all tests.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore import spark as hsp
from hybridstore.shards import shard_of
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import agree_on_description, operator_storage
from hybridstore.spark.reading import newest_version, shards
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
from tests.tools.modes import both_modes, classic_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"k{i}" for i in range(20)]
SHARDS = 3


def make_state(root: Path, operator: str = "op") -> Path:
    """Four batches as the operator would commit them: counts in a key-value store, times in a window store."""
    asked = {
        "query_id": "q",
        "name": operator,
        "shards": SHARDS,
        "key": [["k", "string"]],
        "time": "stream",
        "program": {},
    }
    storage = operator_storage(root, operator)
    agree_on_description(storage, asked, 0)
    cache, begun = ShardCache(), begin(storage, 0)
    for shard in range(SHARDS):
        identity = StateStoreId(str(root), operator, shard, query_id="q")
        provider = StateStoreProvider(identity, cache=cache, claim=begun)
        for batch in range(4):
            store = provider.get_store(batch)
            counts, seen = store.key_value("counts"), store.window("seen", retention="1 day")
            for key in KEYS[: 5 * (batch + 1)]:
                if shard_of(key, SHARDS) == shard:
                    counts.put(key, (counts.get(key) or 0) + 1)
                    seen.put(key, {"batch": batch}, 1000 * batch)
            store.commit({"batch": batch, "rows": 5})
    return root


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_state(tmp_path_factory.mktemp("state"))


def test_metrics_of_every_shard(state: Path) -> None:
    rows = hsp.metrics(state)
    assert [(row["operator"], row["shard"], row["version"], row["batch"]) for row in rows] == [
        ("op", i, 4, 3) for i in range(SHARDS)
    ]
    assert sum(row["records"]["counts"] for row in rows) == len(KEYS)
    for row in rows:
        assert row["files"] == 4
        assert row["bytes"] > 0
        assert row["load"] == "hit"
        assert row["commit_ms"] > 0
        assert row["restore_estimate_ms"] > 0


def test_a_listener_publishes_the_numbers_with_sparks_progress(
    state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyspark")
    caplog.set_level("INFO", logger="hybridstore.spark")
    published: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []

    def event(batch: int, name: str | None = None) -> Any:
        text = json.dumps({"batchId": batch, "name": name, "processedRowsPerSecond": 2.5})
        return SimpleNamespace(progress=SimpleNamespace(json=text))

    listener = hsp.metrics_listener(state, lambda progress, rows: published.append((progress, rows)), name="q")
    listener.onQueryProgress(event(3, "q"))
    listener.onQueryProgress(event(4, "other"))
    ((progress, rows),) = published
    assert (progress["batchId"], len(rows), sum(row["total_rows"] for row in rows)) == (3, SHARDS, SHARDS * 4 * 5)
    hsp.metrics_listener(state).onQueryProgress(event(3))
    assert f"batch 3: {SHARDS * 5} rows in, 0 out, 0 late; 2.5 rows/s" in caplog.text
    hsp.metrics_listener(tmp_path).onQueryProgress(event(3))
    assert "the numbers of batch 3 cannot be read" in caplog.text
    hsp.metrics_listener(state, lambda progress, rows: 1 // 0).onQueryProgress(event(3))
    assert "the numbers of batch 3 were not published" in caplog.text


def test_metrics_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(hsp.MissingVersionError, match="no operator's state found"):
        hsp.metrics(tmp_path)


def test_a_shard_without_objects_is_named(tmp_path: Path) -> None:
    make_state(tmp_path)
    assert newest_version(shards(tmp_path)) == 4
    begin(operator_storage(tmp_path, "op"), 4)
    shutil.rmtree(tmp_path / "hybridstore/op/000000/000001")
    with pytest.raises(hsp.MissingVersionError, match="000001: found no object of shard 1"):
        hsp.metrics(tmp_path)


def test_several_operators_must_be_told_apart(tmp_path: Path) -> None:
    make_state(tmp_path)
    make_state(tmp_path, "second")
    assert len(hsp.metrics(tmp_path)) == 2 * SHARDS
    assert len(hsp.metrics(tmp_path, "second")) == SHARDS
    with pytest.raises(hsp.MissingVersionError, match="operator: found None, expected one of op, second"):
        shards(tmp_path)


@pytest.mark.parametrize("options", [{}, {"version": "2"}, {"changes": "2,4"}])
def test_a_store_that_is_not_there_is_named_with_those_that_are(options: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    from hybridstore.spark.source import StateSource

    make_state(tmp_path)
    source = StateSource({"path": str(tmp_path), "store": "nope", **options})
    with pytest.raises(hsp.SparkSetupError, match=r"option store: .*: no store 'nope' \(known: counts, seen\)"):
        source.reader(StructType()).partitions()
    assert (
        len(StateSource({"path": str(tmp_path), "store": "seen", **options}).reader(StructType()).partitions())
        == SHARDS
    )


def load(spark: "SparkSession", state: Path, schema: str | None = None, **options: Any) -> Any:
    reader = spark.read.format("hybridstore").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(state))


@pytest.mark.spark
@pytest.mark.slow
class TestDataSource:
    @both_modes
    def test_contents(self, spark: "SparkSession", state: Path) -> None:
        df = load(spark, state, store="counts")
        assert df.columns == ["shard", "store", "key", "start", "end", "value"]
        values = {(row["key"], row["shard"]): row["value"] for row in df.collect()}
        assert values == {(key, shard_of(key, SHARDS)): str(4 - i // 5) for i, key in enumerate(KEYS)}

    def test_an_older_version_and_typed_columns(self, spark: "SparkSession", state: Path) -> None:
        df = load(spark, state, "key string, value bigint", store="counts", version=2)
        assert {row["key"]: row["value"] for row in df.collect()} == {
            key: 2 - i // 5 for i, key in enumerate(KEYS[:10])
        }
        assert df.selectExpr("sum(value)").first()[0] == 15

    def test_times_of_a_window_store_and_one_shard(self, spark: "SparkSession", state: Path) -> None:
        rows = load(spark, state, store="seen", shard=0).collect()
        assert {row["shard"] for row in rows} == {0}
        assert {row["start"] for row in rows} == {0, 1000, 2000, 3000}
        assert rows[0]["value"] == '{"batch": 0}'

    def test_changes(self, spark: "SparkSession", state: Path) -> None:
        rows = load(spark, state, store="counts", changes="2,4").collect()
        assert {row["version"] for row in rows} == {3, 4}
        assert {row["batch"] for row in rows} == {2, 3}
        assert len(rows) == 15 + 20
        assert {row["op"] for row in rows} == {"put"}

    @classic_first
    def test_metadata_and_filters(self, spark: "SparkSession", state: Path) -> None:
        rows = load(spark, state, metadata="true").collect()
        assert sorted((row["shard"], row["store"], row["kind"]) for row in rows) == sorted(
            (shard, store, kind)
            for shard in range(SHARDS)
            for store, kind in (("counts", "key_value"), ("seen", "window"))
        )
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            df = load(spark, state, pushdown="true").where("shard = 1 and store = 'counts' and key > 'k1'")
            keys = {row["key"] for row in df.collect()}
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert keys == {key for key in KEYS if shard_of(key, SHARDS) == 1 and key > "k1"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"version": 9}, "version: found 9, expected at most"),
            ({"version": "x"}, "option version: found 'x', expected a whole number"),
            ({"changes": "4,2"}, "expected two versions"),
            ({"stroe": "counts"}, "option stroe: unknown"),
            ({"operator": "other"}, "no operator 'other'"),
        ],
    )
    def test_wrong_options(self, spark: "SparkSession", state: Path, options: dict[str, Any], message: str) -> None:
        from pyspark.errors import PySparkException

        with pytest.raises(PySparkException, match=message):
            load(spark, state, **options).collect()

    def test_state_is_not_changed_by_reading(self, spark: "SparkSession", state: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
        load(spark, state).collect()
        assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_contents_equal_what_the_store_holds(state: Path) -> None:
    store = StateStoreProvider(shards(state)[0].id, cache=ShardCache(0)).get_read_store(4)
    mine = [key for key in KEYS if shard_of(key, SHARDS) == 0]
    assert sorted(store.key_value("counts")) == sorted(mine)
    with pytest.raises(hs.HybridStoreError):
        store.commit()
