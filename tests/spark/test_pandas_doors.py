"""Functions and classes written for Spark's pandas doors, unchanged, beside Spark's own operators: batch by batch."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

from hybridstore import spark as hsp
from hybridstore.spark.frames import FrameSettings
from tests.tools import frame_scenarios as frames
from tests.tools import group_scenarios as groups
from tests.tools.modes import patiently
from tests.tools.recorded import SparksRows, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Answers = dict[int, list[tuple[Any, ...]]]
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def write(folder: Path, names: list[str], seed: int, batches: int, *, whole: bool = False) -> None:
    """Write batches of rows of all types for every scenario, in disorder, some late, some without a key, time or
    value; `whole`: without nulls, on whose place in Spark's Arrow batches the types of its frames depend.
    """
    folder.mkdir()
    draw = random.Random(seed)
    for batch in range(batches):
        rows = []
        for name in names:
            # every scenario has rows before a row can be late
            for _ in range(draw.choice([0, 1, 4]) if batch else 4):
                second = max(0, 10 * batch - draw.choice([0, 0, 1, 2, 9, 30]))
                row = {
                    "s": name,
                    "k": draw.choice(["a", "b", None]),
                    "i": draw.choice([1, 1, 1, None]),
                    "v": draw.choice([None, draw.randrange(1 << 60)]),
                    "x": draw.choice([None, 1.5, 2.0]),
                    "b": draw.choice([None, True, False]),
                    "t": draw.choice([None, *[f"2026-01-01T00:{second // 60:02}:{second % 60:02}.5Z"] * 4]),
                    "d": "2026-02-03",
                    "m": 12.34,
                    "l": [1, 2],
                    "r": {"a": 1, "b": "x"},
                    "p": {"q": 1},
                }
                if whole:
                    time = f"2026-01-01T00:{second // 60:02}:{second % 60:02}.5Z"
                    rows.append(row | {"i": 1, "v": draw.randrange(1000), "x": 1.5, "b": True, "t": time})
                    continue
                rows.append(
                    {column: value for column, value in row.items() if draw.random() < 0.97 or column in "stik"}
                )
        draw.shuffle(rows)
        path = folder / f"{batch}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))


def answers(
    df: DataFrame, checkpoint: Path, batches: int, *, for_ever: bool = False, key: Callable[..., Any] = repr
) -> Answers:
    """Run a query to the end of what is there; return its rows, batch by batch. `for_ever`: it never ends."""
    results: Answers = {}

    def keep(batch: Any, number: int) -> None:
        results[number] = sorted((tuple(row) for row in batch.collect()), key=key)

    writer = df.writeStream.foreachBatch(keep).outputMode("update").option("checkpointLocation", str(checkpoint))

    def start() -> None:
        if not for_ever:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        query = writer.start()
        while len(results) < batches and not query.awaitTermination(0.2):
            pass
        query.stop()

    patiently(start)
    return results


def beside(
    spark: SparkSession,
    sparks: SparksRows,
    theirs: Callable[[], DataFrame],
    ours: DataFrame,
    tmp_path: Path,
    batches: int,
    kind: str,
) -> Answers:
    """Run ours, and Spark's where its rows are not recorded; return the rows, which are the same in each batch."""

    for_ever = kind.startswith("ProcessingTime")

    def run() -> Answers:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
        try:
            rows = answers(theirs(), tmp_path / "theirs", batches, for_ever=for_ever)
            return {number: rows[number] for number in rows if number < batches or not for_ever}
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")

    expected, given = (
        {int(number): [tuple(row) for row in rows] for number, rows in each.items()}
        for each in (sparks(kind, run), plain(answers(ours, tmp_path / "ours", batches)))
    )
    # Behind the input Spark makes a batch for the watermark even for a class without timers; it has no rows.
    expected, given = (
        {number: rows for number, rows in each.items() if rows or number < batches} for each in (expected, given)
    )
    compared = range(batches) if for_ever else sorted(expected)
    differing = {
        number: (
            sorted({*expected[number]} - {*given[number]}, key=repr),
            sorted({*given[number]} - {*expected[number]}, key=repr),
        )
        for number in compared
        if expected[number] != given.get(number)
    }
    assert not differing
    assert sorted(given) == list(compared)
    return given


class TestGroups:
    @pytest.mark.parametrize(
        "kind",
        [
            groups.EVENT,
            groups.NO,
            pytest.param(
                groups.PROCESSING, marks=pytest.mark.further("test_functions_give_the_rows_of_sparks_operator")
            ),
        ],
    )
    def test_functions_give_the_rows_of_sparks_operator(
        self, spark: SparkSession, tmp_path: Path, sparks: SparksRows, kind: str
    ) -> None:
        names, batches = list(groups.SCENARIOS[kind]), 6
        write(tmp_path / "in", names, sparks.seed, batches)
        df = spark.readStream.schema(groups.SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        # one partition, and so one order of arrival
        grouped = df.coalesce(1).withWatermark("t", "5 seconds").groupBy(*groups.KEY)
        arguments: Any = (groups.run(kind), groups.OUTPUT, groups.STATE, "Update", kind)
        place: Any = {"name": "op", "location": str(tmp_path / "ours"), "shards": 2}
        ours = hsp.apply_in_pandas_with_state(grouped, *arguments, **place)
        given = beside(spark, sparks, lambda: grouped.applyInPandasWithState(*arguments), ours, tmp_path, batches, kind)
        seen = {row[0] for rows in given.values() for row in rows}
        assert set(names) - seen <= {"silent"}


class TestProcessors:
    @pytest.mark.parametrize(
        "mode",
        [
            "EventTime",
            *(
                pytest.param(mode, marks=pytest.mark.further("test_classes_give_the_rows_of_sparks_operator"))
                for mode in ("None", "ProcessingTime")
            ),
        ],
    )
    def test_classes_give_the_rows_of_sparks_operator(
        self, spark: SparkSession, tmp_path: Path, sparks: SparksRows, mode: str
    ) -> None:
        pytest.importorskip("google.protobuf", reason="Spark's own operator needs protobuf")
        names, batches = list(frames.SCENARIOS[mode]), 5
        write(tmp_path / "in", names, sparks.seed, batches, whole=True)
        df = spark.readStream.schema(groups.SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        grouped = df.coalesce(1).withWatermark("t", "5 seconds").groupBy("s", "k")
        initial = None
        if mode == "EventTime":
            known = [("initial", "a", 1_767_225_600_000), ("initial", "a", 5), ("initial", "z", 1_767_225_615_000)]
            initial = spark.createDataFrame(known, "s string, k string, n long").coalesce(1).groupBy("s", "k")
        arguments: Any = (frames.Frames(), frames.OUTPUT, "Update", mode, initial)
        place: Any = {"name": "op", "location": str(tmp_path / "ours"), "shards": 2}
        ours = hsp.transform_with_state_in_pandas(grouped, *arguments, **place)
        given = beside(
            spark, sparks, lambda: grouped.transformWithStateInPandas(*arguments), ours, tmp_path, batches, mode
        )
        assert {row[0] for rows in given.values() for row in rows} == set(names)


def test_the_doors_over_connect(connected: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    names = ["count", "order_of_rows", "types_of_columns"]
    write(tmp_path / "in", names, 7, 3)
    df = connected.readStream.schema(groups.SCHEMA).json(str(tmp_path / "in")).withWatermark("t", "5 seconds")
    grouped = df.groupBy(*groups.KEY)
    place: Any = {"location": str(tmp_path / "ck"), "shards": 2}
    function: Any = (groups.run(groups.NO), groups.OUTPUT, groups.STATE, "Update", groups.NO)
    out = hsp.apply_in_pandas_with_state(grouped, *function, name="groups", **place)
    writer = out.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "ck"))
    patiently(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination())
    assert {row["s"] for row in connected.read.parquet(str(tmp_path / "out")).collect()} == set(names)


def test_bad_arguments(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.schema("k string, t timestamp").json(str(tmp_path))
    place: Any = {"name": "op", "location": str(tmp_path / "ck"), "shards": 2}

    def apply(timeout: str, mode: str = "Update", of: Any = df) -> Any:
        return hsp.apply_in_pandas_with_state(of.groupBy("k"), print, "k string", "n long", mode, timeout, **place)

    with pytest.raises(ValueError, match="timeoutConf: found 'Sometimes', expected one of NoTimeout"):
        apply("Sometimes")
    with pytest.raises(ValueError, match="outputMode: found 'Complete', expected append or update"):
        apply(groups.NO, "Complete")
    with pytest.raises(ValueError, match='found "EventTimeTimeout", but the DataFrame has no watermark'):
        apply(groups.EVENT)
    with pytest.raises(ValueError, match="found a batch DataFrame, expected a streaming one"):
        apply(groups.NO, of=spark.range(1).selectExpr("'a' k"))
    without: Any = {"name": "op"}
    with pytest.raises(TypeError, match="location=: missing, expected a name for the operator and the query's check"):
        hsp.apply_in_pandas_with_state(df.groupBy("k"), print, "k string", "n long", "Update", groups.NO, **without)
    assert apply(groups.EVENT, of=df.withWatermark("t", "1 second")).columns == ["k"]


def test_frames_are_made_by_the_settings_of_the_session(spark: SparkSession) -> None:
    # a default of ours would hold instead of that of its Spark, which since 4.1 refuses 1.5 in a whole number's column
    safely = spark.conf.get("spark.sql.execution.pandas.convertToArrowArraySafely") == "true"
    rows = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    settings = FrameSettings.of(spark)
    assert (settings.safely, settings.rows, settings.by_name) == (safely, rows, True)
    spark.conf.set("spark.sql.execution.pandas.convertToArrowArraySafely", str(not safely).lower())
    try:
        assert FrameSettings.of(spark).safely is not safely
    finally:
        spark.conf.unset("spark.sql.execution.pandas.convertToArrowArraySafely")
