"""transform_with_state: the same class on Spark's engine and on ours; and the state variables, without Spark."""

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore import spark as hsp
from hybridstore.spark.processor_state import Handle
from tests.shard_tools import provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def handle_at(store: Any, now: int, key: str = "a") -> Handle:
    handle = Handle(store.group)
    handle.begin(now)
    handle.select((key,))
    return handle


def test_variables_survive_a_commit(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    handle = handle_at(store, 0)
    value, items, entries = (
        handle.getValueState("v", "n long"),
        handle.getListState("l", "n long"),
        handle.getMapState("m", "k string", "n long"),
    )
    handle.select(("a",))
    assert (value.exists(), items.exists(), entries.exists()) == (False, False, False)
    value.update((1,))
    items.appendValue((1,))
    items.appendList([(2,), (3,)])
    entries.updateValue(("x",), (1,))
    entries.updateValue(("y",), (2,))
    entries.removeKey(("x",))
    handle.select(("b",))
    assert value.get() is None
    assert list(items.get()) == []
    handle.registerTimer(5)
    handle.registerTimer(3)
    handle.flush()
    store.commit()
    store = provider(tmp_path).get_store(1)
    handle = handle_at(store, 0)
    value, items, entries = (
        handle.getValueState("v", "n long"),
        handle.getListState("l", "n long"),
        handle.getMapState("m", "k string", "n long"),
    )
    handle.select(("a",))
    assert value.get() == (1,)
    assert list(items.get()) == [(1,), (2,), (3,)]
    assert list(entries.iterator()) == [(("y",), (2,))]
    items.clear()
    entries.clear()
    value.clear()
    assert (value.exists(), items.exists(), list(entries.keys()), list(entries.values())) == (False, False, [], [])
    assert handle.timers.expired(4) == [(3, ("b",))]
    handle.select(("b",))
    handle.deleteTimer(3)
    assert list(handle.listTimers()) == [5]
    handle.flush()
    store.commit()
    back = provider(tmp_path).get_store(2)
    assert len(back.key_value("value:v")) == len(back.key_value("list:l")) == len(back.key_value("map:m")) == 0


def test_time_to_live(tmp_path: Path) -> None:
    p = provider(tmp_path)
    for batch, now in enumerate((1000, 1050, 1099, 1100, 1160)):
        store = p.get_store(batch)
        handle = handle_at(store, now)
        value = handle.getValueState("v", "n long", 100)
        items = handle.getListState("l", "n long", 100)
        entries = handle.getMapState("m", "k long", "n long", 100)
        handle.select(("a",))
        assert value.exists() == (1000 < now < 1100)
        assert [one[0] for one in items.get()] == [t for t in (1000, 1050) if t < now < t + 100]
        assert sorted(one[0] for one, _ in entries.iterator()) == [t for t in (1000, 1050) if t < now < t + 100]
        if now == 1000:
            value.update((1,))
        if now in (1000, 1050):
            items.appendValue((now,))
            entries.updateValue((now,), (1,))
        handle.flush()
        store.commit()


def test_another_schema_is_refused(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    Handle(store.group).getValueState("v", "n long")
    store.commit()
    with pytest.raises(hs.CheckpointMismatchError, match="the state has value n long, asked for list n string"):
        Handle(p.get_store(1).group).getListState("v", "n string")


@pytest.mark.spark
@pytest.mark.slow
class TestBothEngines:
    @pytest.fixture
    def folder(self, tmp_path: Path, seed: int) -> Path:
        made, draw = tmp_path / "in", random.Random(seed)
        made.mkdir()
        for batch in range(5):
            rows = []
            for _ in range(200):
                second = batch * 4 + draw.randrange(4)
                key = f"k{draw.randrange(40) if draw.random() < 0.8 else batch * 100}"
                rows.append({"k": key, "v": draw.randrange(100), "t": f"2026-01-01T00:00:{second:02d}Z"})
            path = made / f"{batch}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))
        return made

    def run(
        self, spark: "SparkSession", folder: Path, checkpoint: Path, ours: bool
    ) -> dict[int, list[tuple[Any, ...]]]:
        from tests.spark_processors import Everything

        df = spark.readStream.schema("k string, v long, t timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
        df = df.withWatermark("t", "1 second")
        initial = spark.createDataFrame([("k1", 1000, 5), ("k2", 2000, 7)], "k string, n long, total long").groupBy("k")
        grouped = df.groupBy("k")
        if ours:
            place = {"name": "op", "checkpoint": str(checkpoint), "shards": 2}
            made = hsp.transform_with_state(
                grouped, Everything(), Everything.output, "Update", "EventTime", initial, **place
            )
        else:
            made = grouped.transformWithState(Everything(), Everything.output, "Update", "EventTime", initial)
        rows: dict[int, list[tuple[Any, ...]]] = {}

        def keep(batch: Any, number: int) -> None:
            rows[number] = sorted(tuple(row) for row in batch.collect())

        writer = made.writeStream.foreachBatch(keep).outputMode("update").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return rows

    def test_the_same_class_gives_the_same_rows(self, spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        try:
            theirs = self.run(spark, folder, tmp_path / "theirs", ours=False)
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        ours = self.run(spark, folder, tmp_path / "ours", ours=True)
        assert sorted(ours) == list(range(5))
        # Spark runs one more batch, without rows, for the last watermark
        assert ours == {number: theirs[number] for number in range(5)}
        assert any(row[1] == "idle" for rows in ours.values() for row in rows)

    def test_bad_arguments(self, spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
        from tests.spark_processors import Everything

        df = spark.readStream.schema("k string, v long, t timestamp").json(str(folder))
        place = {"name": "op", "checkpoint": str(tmp_path / "ck"), "shards": 2}
        with pytest.raises(ValueError, match="timeMode: found 'Sometimes'"):
            hsp.transform_with_state(df.groupBy("k"), Everything(), Everything.output, "Update", "Sometimes", **place)
        with pytest.raises(ValueError, match="key: missing"):
            hsp.transform_with_state(df, Everything(), Everything.output, **place)
        with pytest.raises(ValueError, match="key: cannot be read from"):
            hsp.transform_with_state(df.groupBy("k", "v", "t"), Everything(), Everything.output, **place)
        made = hsp.transform_with_state(df, Everything(), Everything.output, key="k", **place)
        assert made.columns == ["k", "what", "n", "total"]
