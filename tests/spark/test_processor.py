"""transform_with_state: the same class on Spark's engine and on ours; and the state variables, without Spark."""

import json
import os
import pickle
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore import spark as hsp
from hybridstore.spark.processor_state import Handle
from hybridstore.spark.stateful_processor import ProcessorProgram, python_values
from tests.tools.modes import patiently
from tests.tools.recorded import SparksRows, plain
from tests.tools.shard_tools import provider, segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def handle_at(store: Any, now: int, key: str = "a") -> Handle:
    handle = Handle(store.group)
    handle.begin(now)
    handle.select((key,))
    return handle


@given(
    st.lists(st.one_of(st.none(), st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1))), max_size=5),
    st.sampled_from([None, "UTC", "+02:00", "Europe/Berlin", "America/St_Johns"]),
)
@example([datetime(2026, 10, 25, 0, 30), datetime(2026, 10, 25, 1, 30)], "Europe/Berlin")  # 2:30 twice
def test_timestamps_of_rows_are_those_that_arrow_makes(moments: list[datetime | None], zone: str | None) -> None:
    column = pa.chunked_array([pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", zone))])

    def shown(values: list[Any]) -> list[Any]:
        return [value and (value, value.fold, value.tzinfo) for value in values]

    assert shown(python_values(column)) == shown(column.to_pylist())


def test_the_name_of_the_class_does_not_matter() -> None:
    class Visits:
        pass

    class Renamed:
        pass

    first = ProcessorProgram(Visits(), ("k",), None, "None", None, {})  # type: ignore[arg-type]
    second = ProcessorProgram(Renamed(), ("k",), None, "None", None, {})  # type: ignore[arg-type]
    assert first.describe() == second.describe()
    timed = ProcessorProgram(Renamed(), ("k",), None, "EventTime", None, {})  # type: ignore[arg-type]
    (change,) = timed.changes(first.describe())
    assert (change.verdict, change.consent) == ("consent", "timeMode None to EventTime")


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
    assert handle.timers.expired(4) == [(3, '"b"')]
    handle.select(("b",))
    handle.deleteTimer(3)
    assert list(handle.listTimers()) == [5]
    handle.flush()
    store.commit()
    back = provider(tmp_path).get_store(2)
    assert len(back.key_value("value:v")) == len(back.key_value("list:l")) == len(back.key_value("entries:m")) == 0


def test_an_update_of_one_entry_writes_that_entry(tmp_path: Path) -> None:
    p = provider(tmp_path)
    sizes = []
    for batch in range(3):
        store = p.get_store(batch)
        handle = handle_at(store, 0)
        entries = handle.getMapState("m", "k string, n long", "n long, t string")
        handle.select(("a",))
        for number in range(5000 if batch == 0 else 1):
            entries.updateValue((f"entry {number}", None), (batch, "x" * 20))
        handle.flush()
        store.commit()
        sizes.append(segment(tmp_path, batch + 1).stat().st_size)
    print(f"bytes of a batch that updates one of 5,000 entries: {sizes[1]}; all were {sizes[0]}")
    # but for the digits of the times that it took
    assert abs(sizes[1] - sizes[2]) < 64
    assert sizes[1] * 50 < sizes[0]


def test_maps_agree_with_dicts(tmp_path: Path, seed: int) -> None:
    draw, expected = random.Random(seed), {key: dict[Any, Any]() for key in (("a",), ("ab",), ("b",))}
    for batch in range(30):
        if batch % 7 == 0:
            p = provider(tmp_path)
        store = p.get_store(batch)
        handle = handle_at(store, 0)
        entries = handle.getMapState("m", "k string, n long", "n long")
        for _ in range(draw.randrange(12)):
            key = draw.choice(list(expected))
            handle.select(key)
            entry = (draw.choice(("x", "y", None)), draw.randrange(4))
            what = draw.choice(("update", "update", "update", "remove", "clear"))
            if what == "update":
                entries.updateValue(entry, (batch,))
                expected[key][entry] = (batch,)
            elif what == "remove":
                entries.removeKey(entry)
                expected[key].pop(entry, None)
            elif draw.random() < 0.3:
                entries.clear()
                expected[key].clear()
            assert entries.getValue(entry) == expected[key].get(entry)
            assert dict(entries.iterator()) == expected[key]
        handle.flush()
        store.commit()
    store = provider(tmp_path).get_store(30)
    handle = handle_at(store, 0)
    entries = handle.getMapState("m", "k string, n long", "n long")
    for key, content in expected.items():
        handle.select(key)
        assert dict(entries.iterator()) == content
        assert entries.exists() == bool(content)
    handle.deleteIfExists("m")
    assert "entries:m" not in store.group.stores


def test_another_schema_is_refused(tmp_path: Path) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    Handle(store.group).getValueState("v", "n long")
    store.commit()
    with pytest.raises(hs.ProgramMismatchError, match="the state has value n bigint, asked for list n string"):
        Handle(p.get_store(1).group).getListState("v", "n string")


def test_an_append_to_a_long_list_writes_the_element(tmp_path: Path) -> None:
    p = provider(tmp_path)
    sizes = []
    for batch in range(40):
        store = p.get_store(batch)
        handle = handle_at(store, 0)
        items = handle.getListState("l", "n long, t string")
        handle.select(("a",))
        if batch:
            items.appendValue((batch, "x" * 20))
        else:
            items.appendList([(0, "x" * 20)] * 20_000)
        handle.flush()
        store.commit()
        sizes.append(segment(tmp_path, batch + 1).stat().st_size)
    print(f"bytes of an append to 20,000 elements: {sizes[1]} to {max(sizes[1:])}; all were {sizes[0]}")
    assert max(sizes[1:]) * 100 < sizes[0]
    handle = handle_at(provider(tmp_path).get_store(40), 0)
    items = handle.getListState("l", "n long, t string")
    handle.select(("a",))
    assert [n for n, _ in items.get()] == [0] * 20_000 + [*range(1, 40)]


@pytest.mark.parametrize(
    ("schema", "key", "equal", "keys"),
    [
        ("k boolean", (True,), (1,), "[(True,), (None,)]"),
        ("k long", (1,), (True,), "[(1,), (None,)]"),
        ("k double", (0.0,), (-0.0,), "[(0.0,), (-0.0,)]"),
    ],
)
def test_an_entry_key_is_not_taken_for_an_equal_one_that_was_used_before(
    tmp_path: Path, schema: str, key: tuple[Any, ...], equal: tuple[Any, ...], keys: str
) -> None:
    handle = handle_at(provider(tmp_path).get_store(0), 0)
    entries = handle.getMapState("m", schema, "n long")
    handle.select(("a",))
    for each in (key, equal, key, equal):
        entries.updateValue(each, (1,))
    assert repr([*entries.keys()]) == keys


def test_lists_agree_with_lists(tmp_path: Path, seed: int) -> None:
    draw, expected = random.Random(seed), {key: list[Any]() for key in (("a",), ("b",))}
    for batch in range(60):
        if batch % 7 == 0:
            p = provider(tmp_path)
        store = p.get_store(batch)
        handle = handle_at(store, 0)
        items = handle.getListState("l", "n long")
        for key, elements in expected.items():
            handle.select(key)
            for _ in range(draw.randrange(3)):
                some = [(draw.randrange(100),) for _ in range(draw.choice((1, 2, 30, 90)))]
                what = draw.choice(("append", "append", "append", "one", "put", "clear"))
                if what == "append":
                    items.appendList(some)
                    elements.extend(some)
                elif what == "one":
                    items.appendValue(some[0])
                    elements.append(some[0])
                elif draw.random() < 0.2:
                    items.clear()
                    elements.clear()
                elif what == "put" and draw.random() < 0.3:
                    items.put(some)
                    elements[:] = some
                assert list(items.get()) == elements
                assert items.exists() == bool(elements)
        handle.flush()
        store.commit()
    store = provider(tmp_path).get_store(60)
    handle = handle_at(store, 0)
    items = handle.getListState("l", "n long")
    for key, elements in expected.items():
        handle.select(key)
        assert list(items.get()) == elements
    handle.deleteIfExists("l")
    assert not {"list:l", "tail:l"} & store.group.stores.keys()
    with pytest.raises(RuntimeError, match="Error checking value state exists: List state l is not initialized"):
        items.exists()


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        ("a int, b string", (1, "x"), "b string, a int", ("x", 1)),
        ("a int, b string", (1, "x"), "a int", (1,)),
        ("a int", (1,), "a int, b string, c struct<p:int>", (1, None, None)),
        ("a tinyint", (5,), "a long", (5,)),
        ("a int", (5,), "a double", (5.0,)),
        ("a float", (0.5,), "a double", (0.5,)),
        ("a string", ("x",), "a binary", (b"x",)),
        ("s struct<p:int,q:string>", ((1, "x"),), "s struct<q:string,r:int,p:long>", (("x", None, 1),)),
        ("l array<struct<p:int>>", ([(1,)],), "l array<struct<q:string,p:long>>", ([(None, 1)],)),
        ("m map<string,int>", ({"k": 1},), "m map<string,double>", ({"k": 1.0},)),
    ],
)
def test_schemas_change_by_the_rules_of_avro(
    tmp_path: Path, old: str, value: tuple[Any, ...], new: str, expected: tuple[Any, ...]
) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    handle = handle_at(store, 0)
    variables: list[Any] = [handle.getValueState("v", old), handle.getListState("l", old)]
    handle.select(("a",))
    variables[0].update(value)
    variables[1].appendValue(value)
    handle.flush()
    store.commit()
    handle = handle_at(p.get_store(1), 0)
    variables = [handle.getValueState("v", new), handle.getListState("l", new)]
    handle.select(("a",))
    assert (variables[0].get(), list(variables[1].get())) == (expected, [expected])


@pytest.mark.parametrize(("old", "new"), [("a long", "a int"), ("a string", "a long"), ("a array<int>", "a int")])
def test_schemas_that_do_not_fit_are_refused(tmp_path: Path, old: str, new: str) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    Handle(store.group).getValueState("v", old)
    store.commit()
    words = r"\[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION\] Schema evolution is not possible: .*say how one becomes"
    with pytest.raises(hs.ProgramMismatchError, match=words):
        Handle(p.get_store(1).group).getValueState("v", new)


@pytest.mark.parametrize("ttl", [None, 1000])
def test_values_of_another_schema_go_through_a_function(tmp_path: Path, ttl: int | None) -> None:
    p = provider(tmp_path)
    store = p.get_store(0)
    handle = Handle(store.group)
    value, items = handle.getValueState("v", "n long", ttl), handle.getListState("l", "n long", ttl)
    entries = handle.getMapState("m", "k string", "n long", ttl)
    for key in (("a",), ("b",)):
        handle.select(key)
        value.update((7,))
        items.put([(1,), (2,)])
        entries.updateValue(("x",), (3,))
    handle.flush()
    store.commit()

    def both(old: tuple[Any, ...]) -> tuple[Any, ...]:
        return (old[0], f"{old[0]}")

    def variables(group: Any, upgrades: Any) -> list[Any]:
        handle = Handle(group, upgrades)
        opened = [
            handle.getValueState("v", "n long, t string", ttl),
            handle.getListState("l", "n long, t string", ttl),
            handle.getMapState("m", "k string", "n long, t string", ttl),
        ]
        handle.select(("b",))
        return [opened[0].get(), list(opened[1].get()), opened[2].getValue(("x",))]

    with pytest.raises(
        hs.UpgradeError, match=r"store 'value:v': the value of key .* cannot be upgraded: ZeroDivisionError"
    ):
        variables(p.get_store(1).group, {"v": lambda old: (1 // 0,)})
    upgrades = dict.fromkeys("vlm", both)
    upgraded = [(7, "7"), [(1, "1"), (2, "2")], (3, "3")]
    store = p.get_store(1)
    assert variables(store.group, upgrades) == upgraded
    store.commit()
    # without a function, Avro's rules hold
    assert variables(p.get_store(1).group, {}) == [(7, None), [(1, None), (2, None)], (3, None)]
    # The next batch finds them so, with the functions still there or gone.
    assert variables(p.get_store(2).group, upgrades) == upgraded
    assert variables(p.get_store(2).group, {}) == upgraded
    with pytest.raises(hs.ProgramMismatchError, match="only values can be upgraded"):
        Handle(p.get_store(2).group, {"m": both}).getMapState("m", "k long", "n long, t string", ttl)


@pytest.mark.spark
@pytest.mark.slow
class TestBothEngines:
    @pytest.fixture
    def folder(self, tmp_path: Path, sparks: SparksRows) -> Path:
        folder, draw = tmp_path / "in", random.Random(sparks.seed)
        folder.mkdir()
        for batch in range(5):
            rows = []
            for _ in range(40):
                second = batch * 4 + draw.randrange(4)
                key = f"k{draw.randrange(25) if draw.random() < 0.8 else batch * 100}"
                # where summer time begins, and the clocks of some zones leave an hour out
                moment, wall = (
                    f"2026-03-29T00:59:{40 + second:02d}.{draw.randrange(1000):03d}Z",
                    f"2026-03-29T02:3{second % 10}:00",
                )
                rows.append({"k": key, "v": draw.randrange(100), "t": moment, "w": wall})
            path = folder / f"{batch}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))
        return folder

    @pytest.fixture
    def zones(self, request: pytest.FixtureRequest, spark: "SparkSession") -> Iterator[tuple[str, str]]:
        """A session in one time zone, and workers and a driver that are in another."""
        session, process = request.param
        before, environment = os.environ.get("TZ"), spark.sparkContext.environment
        spark.conf.set("spark.sql.session.timeZone", session)
        environment["TZ"] = os.environ["TZ"] = process
        time.tzset()
        yield request.param
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        del environment["TZ"], os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()

    def run(
        self, spark: "SparkSession", processor: Any, mode: str, folder: Path, checkpoint: Path, ours: bool
    ) -> dict[int, list[tuple[Any, ...]]]:
        from pyspark.sql import functions as f

        schema = "k string, v long, t timestamp, w timestamp_ntz"
        df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))
        df = df.withWatermark("t", "1 second")
        initial = None
        if mode == "EventTime":
            known = spark.createDataFrame([("k1", 1000, 5), ("k2", 2000, 7)], "k string, n long, total long")
            initial = known.withColumn("since", f.timestamp_millis(f.col("n") * 1_700_000_001)).groupBy("k")
        grouped = df.groupBy("k")
        if ours:
            place = {"name": "op", "location": str(checkpoint), "shards": 2}
            answers = hsp.transform_with_state(grouped, processor, processor.output, "Update", mode, initial, **place)
        else:
            answers = grouped.transformWithState(processor, processor.output, "Update", mode, initial)
        results = checkpoint.with_name(f"{checkpoint.name}-rows")
        results.mkdir(parents=True)

        # with Spark Connect this runs in another process
        def keep(batch: Any, number: int) -> None:
            rows = sorted((tuple(row) for row in batch.collect()), key=repr)
            (results / f"{number}.part").write_bytes(pickle.dumps(rows))
            (results / f"{number}.part").rename(results / str(number))

        def kept() -> dict[int, list[tuple[Any, ...]]]:
            return {int(path.name): pickle.loads(path.read_bytes()) for path in results.glob("*[0-9]")}

        writer = answers.writeStream.foreachBatch(hsp.foreach_batch(keep) if ours else keep)
        writer = writer.outputMode("update").option("checkpointLocation", str(checkpoint))
        last = results / str(len(list(folder.iterdir())) - 1)

        def start() -> None:
            if mode == "EventTime":
                writer.trigger(availableNow=True).start().awaitTermination()
                return
            # with timers of processing time Spark runs batches for ever, for want of rows without any
            query = writer.start()
            # raises what ended the query
            while not last.exists() and not query.awaitTermination(1):
                pass
            query.stop()

        patiently(start)
        return kept()

    def both(
        self, spark: "SparkSession", sparks: SparksRows, processor: Any, mode: str, folder: Path, tmp_path: Path
    ) -> list[list[Any]]:
        """Run a class on our engine, and on Spark's where its rows are not recorded: equal, batch by batch."""
        pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
        name = "spark.sql.streaming.stateStore.providerClass"
        batches = len(list(folder.iterdir()))

        # `zones` says the zone of the process, which leaves an hour out that a time of UTC would not show
        def in_the_zone(rows: dict[int, list[tuple[Any, ...]]]) -> dict[int, list[list[Any]]]:
            return {
                number: [[str(cell) if isinstance(cell, datetime) else cell for cell in row] for row in each]
                for number, each in rows.items()
            }

        def run() -> dict[int, list[list[Any]]]:
            spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
            try:
                rows = self.run(spark, processor, mode, folder, tmp_path / "theirs", ours=False)
            finally:
                spark.conf.unset(name)
            # for timers of processing time Spark runs any number of batches without rows
            return in_the_zone({number: rows[number] for number in rows if mode == "EventTime" or number < batches})

        theirs = sparks(f"{mode} {spark.conf.get('spark.sql.session.timeZone')}", run)
        ours = plain(in_the_zone(self.run(spark, processor, mode, folder, tmp_path / "ours", ours=True)))
        assert ours == theirs
        return [row for rows in ours.values() for row in rows]

    @pytest.mark.parametrize(
        "zones",
        [
            ("America/New_York", "Europe/Berlin"),
            *(
                pytest.param(zones, marks=pytest.mark.further("test_the_same_class_gives_the_same_rows"))
                for zones in (("UTC", "UTC"), ("Asia/Kolkata", "America/New_York"))
            ),
        ],
        ids=lambda zones: " in ".join(zones),
        indirect=True,
    )
    def test_the_same_class_gives_the_same_rows(
        self, spark: "SparkSession", sparks: SparksRows, folder: Path, tmp_path: Path, zones: tuple[str, str]
    ) -> None:
        from tests.tools.spark_processors import Everything

        rows = self.both(spark, sparks, Everything(), "EventTime", folder, tmp_path / "events")
        assert {"idle", "last", "times", "naive"} <= {row[1] for row in rows}
        # what a row's time says of itself is in the zone of the session, wherever the worker is
        assert any(" EDT" in row[6] for row in rows) == (zones[0] == "America/New_York")

    @pytest.mark.parametrize("zones", [("Asia/Kolkata", "America/New_York")], ids=["zones"], indirect=True)
    def test_values_that_expire_give_the_same_rows(
        self, spark: "SparkSession", sparks: SparksRows, folder: Path, tmp_path: Path, zones: tuple[str, str]
    ) -> None:
        from tests.tools.spark_processors import Expiring

        rows = self.both(spark, sparks, Expiring(), "ProcessingTime", folder, tmp_path / "expiring")
        assert any(row[1] == "timer" and row[2] == 1 for row in rows)
        assert any(row[1] == "before" and row[2] for row in rows)

    @pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
    def test_timers_expire_in_shards_without_rows(self, spark: "SparkSession", tmp_path: Path, mode: str) -> None:
        from tests.tools.spark_processors import Alarm

        keys = [f"k{number}" for number in range(6)]
        folder = tmp_path / "in"
        folder.mkdir()
        for number, (second, of_batch) in enumerate([(10, keys), (30, ["late"])]):
            path = folder / f"{number}.json"
            path.write_text(
                "".join(json.dumps({"k": key, "t": f"2026-01-01T00:00:{second}Z"}) + "\n" for key in of_batch)
            )
            os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
        df = spark.readStream.schema("k string, t timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
        df = df.withWatermark("t", "0 seconds")
        place = {"name": "op", "location": str(tmp_path / "ck"), "shards": 4}
        answers = hsp.transform_with_state(df.groupBy("k"), Alarm(mode), Alarm.output, "Append", mode, **place)
        name = f"alarms{mode}"
        writer = answers.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / "ck"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert sorted(row["k"] for row in spark.table(name).collect()) == keys

    def test_over_connect_as_without(
        self, classic: "SparkSession", connected: "SparkSession", folder: Path, tmp_path: Path, monkeypatch: Any
    ) -> None:
        from pyarrow import dataset

        from tests.tools.spark_processors import Everything

        def rows(session: "SparkSession", name: str) -> list[str]:
            df = session.readStream.schema("k string, v long, t timestamp, w timestamp_ntz").json(str(folder))
            grouped = df.withWatermark("t", "1 second").groupBy("k")
            place = {"name": "op", "location": str(tmp_path / name), "shards": 2}
            answers = hsp.transform_with_state(grouped, Everything(), Everything.output, "Update", "EventTime", **place)
            writer = answers.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / name))
            writer.trigger(availableNow=True).start(str(tmp_path / f"{name}-rows")).awaitTermination()
            files = sorted((tmp_path / f"{name}-rows").glob("*.parquet"))
            return sorted(map(str, dataset.dataset(list(map(str, files))).to_table().to_pylist()))

        without = rows(classic, "without")
        assert len(without) > 25
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        assert rows(connected, "over") == without

    def test_bad_arguments(self, spark: "SparkSession", folder: Path, tmp_path: Path) -> None:
        from pyspark.sql import functions as f

        from hybridstore.spark.stateful_processor import grouping_of
        from tests.tools.spark_processors import Everything

        df = spark.readStream.schema("k string, v long, t timestamp").json(str(folder))
        place = {"name": "op", "location": str(tmp_path / "ck"), "shards": 2}
        with pytest.raises(ValueError, match="timeMode: found 'Sometimes'"):
            hsp.transform_with_state(df.groupBy("k"), Everything(), Everything.output, "Update", "Sometimes", **place)
        with pytest.raises(
            ValueError, match="timeMode: found None, expected one of 'None', 'ProcessingTime', 'EventTime'"
        ):
            hsp.transform_with_state(df.groupBy("k"), Everything(), Everything.output, "Update", None, **place)
        with pytest.raises(ValueError, match="outputMode: found None"):
            hsp.transform_with_state(df.groupBy("k"), Everything(), Everything.output, None, **place)
        with pytest.raises(ValueError, match=r"grouped: found DataFrame, expected df.groupBy"):
            hsp.transform_with_state(df, Everything(), Everything.output, **place)
        with pytest.raises(TypeError, match=r"statefulProcessor: found <class .*>, expected an object of a Stateful"):
            hsp.transform_with_state(df.groupBy("k"), Everything, Everything.output, **place)
        with pytest.raises(TypeError, match="name= and location=: missing, expected a name for the operator and the"):
            hsp.transform_with_state(df.groupBy("k"), Everything(), Everything.output)
        for initial, message in (
            (df, r"found DataFrame, expected df.groupBy"),
            (df.groupBy("k"), "found a streaming DataFrame by k, expected a batch one, grouped as by k"),
            (
                spark.range(1).groupBy("id", "id"),
                "found a batch DataFrame by id, id, expected a batch one, grouped as by",
            ),
        ):
            with pytest.raises(ValueError, match=f"initialState: {message}"):
                hsp.transform_with_state(
                    df.groupBy("k"), Everything(), Everything.output, "Update", "None", initial, **place
                )
        # an expression is no column, also where a column has its name; capitals do not matter
        for column, name in (
            (f.upper("k").alias("k"), "k"),
            (f.col("k").alias("v"), "v"),
            (f.col("v") % 2, r"\(v % 2\)"),
        ):
            with pytest.raises(ValueError, match=f"groupBy: found an expression called {name}, expected columns"):
                hsp.transform_with_state(df.groupBy(column), Everything(), Everything.output, **place)
        assert grouping_of(df.groupBy("K", f.col("T"), "v"), None) == (df, ("k", "t", "v"))
        # a window is no column of its name
        windowed = df.selectExpr("*", "struct(t as start, t as end) window")
        with pytest.raises(ValueError, match="groupBy: found an expression called k, window, expected columns"):
            hsp.transform_with_state(
                windowed.groupBy("k", f.window("t", "10 seconds")), Everything(), Everything.output, **place
            )
        assert grouping_of(windowed.groupBy("k", "window"), None) == (windowed, ("k", "window"))
        grouped = df.selectExpr("*", "map(k, v) a").groupBy("k", "v", "a")
        with pytest.raises(TypeError, match="key column 'a': found map<string,bigint>"):
            hsp.transform_with_state(grouped, Everything(), Everything.output, **place)
        answers = hsp.transform_with_state(df, Everything(), Everything.output, key="k", **place)
        assert answers.columns == ["k", "what", "n", "total", "at", "wall", "said"]
