"""Rows and values at the edge of Spark's types, in real queries: nulls are counted, and what does not fit is named."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Query:
    """A topology over JSON rows, a list of them for each batch."""

    def __init__(self, spark: "SparkSession", folder: Path, schema: str) -> None:
        self.spark, self.schema = spark, schema
        self.files, self.checkpoint = folder / "in", str(folder / "checkpoint")
        self.files.mkdir()
        self.rows: list[dict[str, Any]] = []

    def run(self, topology: hs.Topology, *batches: list[dict[str, Any]], shards: int = 2, **options: Any) -> list[Any]:
        """Return what comes out of all batches."""
        for number, batch in enumerate(batches):
            path = self.files / f"{number}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in batch))
            os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
        df = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.files))
        answers = topology.apply(df, "op", location=self.checkpoint, shards=shards, **options)

        def keep(batch: Any, _number: int) -> None:
            self.rows += [row.asDict() for row in batch.collect()]

        writer = answers.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return self.rows


def test_rows_without_a_key_or_a_time_are_counted_in_the_metrics(spark: "SparkSession", tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "k string, l int, t long, v long")
    topology = (
        hs.stream(key=["k", "l"], timestamp="t")
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(emit="commit", n=hs.Count(), total=hs.Sum("v"))
    )
    whole = [{"k": "a", "l": 1, "t": 1, "v": 2}, {"k": "b", "l": 2, "t": 2}]
    broken = [
        {"k": None, "l": 1, "t": 10**6, "v": 1},
        {"k": "a", "l": None, "t": 10**6, "v": 1},
        {"k": "a", "l": 1, "t": None, "v": 1},
    ]
    results = query.run(topology, [*whole, *broken], shards=3)
    assert sorted((row["k"], row["l"], row["n"], row["total"]) for row in results) == [("a", 1, 1, 2), ("b", 2, 1, 0)]
    metrics = hsp.metrics(query.checkpoint)
    assert sum(row.get("null_key", 0) for row in metrics) == 2
    assert sum(row.get("null_timestamp", 0) for row in metrics) == 1
    assert sum(row["rows"] for row in metrics) == 5


def test_decimals_and_dates_go_through_a_query_and_its_restart(spark: "SparkSession", tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "k string, t long, v decimal(20,2), d date")
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(emit="commit", total=hs.Sum("v"), mean=hs.Mean("v"), days=hs.CollectSet("d"), last=hs.Max("d"))
    )
    batches: list[list[dict[str, Any]]] = [
        [{"k": "a", "t": 1, "v": "999999999999999999.99", "d": "1969-12-31"}, {"k": "a", "t": 2, "v": "0.02"}],
        [{"k": "a", "t": 3, "v": "0.02", "d": "2026-01-02"}],
    ]
    query.run(topology, batches[0])
    results = query.run(topology, *batches)
    assert [
        (str(row["total"]), str(row["mean"]), sorted(map(str, row["days"])), str(row["last"])) for row in results
    ] == [
        ("1000000000000000000.01", "500000000000000000.005000", ["1969-12-31"], "1969-12-31"),
        ("1000000000000000000.03", "333333333333333333.343333", ["1969-12-31", "2026-01-02"], "2026-01-02"),
    ]


def test_what_does_not_fit_into_a_bigint_is_named_and_a_wider_type_holds_it(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    topology = (
        hs.stream(key="k", timestamp="t").windowed_by(hs.SlidingWindows(50)).aggregate(total=hs.Sum("v"), emit="commit")
    )
    rows = [{"k": "a", "t": t, "v": 2**62} for t in range(3)]
    (tmp_path / "narrow").mkdir()
    with pytest.raises(
        PySparkException, match="aggregate 'total': sum of column 'v': key 'a': found 13835058055282163712"
    ):
        Query(spark, tmp_path / "narrow", "k string, t long, v long").run(topology, rows)
    (tmp_path / "wide").mkdir()
    wide = Query(spark, tmp_path / "wide", "k string, t long, v long")
    assert [int(row["total"]) for row in wide.run(topology, rows, types={"total": "decimal(38,0)"})] == [3 * 2**62]
    with pytest.raises(hsp.SparkSetupError, match="type: found 'bigin', expected Spark's DDL text"):
        wide.run(topology, rows, types={"total": "bigin"})


def test_rows_that_do_not_fit_the_schema_end_the_query_with_one_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    functions = {
        "found a row of tuple ('a', 1), expected a dict or named tuple with the columns k, n": lambda row, stores: [
            ("a", 1)
        ],
        "column 'n': found str 'one', expected bigint": lambda row, stores: [{"k": "a", "n": "one"}],
    }
    for number, (sentence, function) in enumerate(functions.items()):
        (tmp_path / f"{number}").mkdir()
        topology = hs.stream(key="k", timestamp="t").process(function, "k string, n long")
        query = Query(spark, tmp_path / f"{number}", "k string, t long")
        with pytest.raises(PySparkException) as raised:
            query.run(topology, [{"k": "a", "t": 1}])
        assert f"process: {sentence}" in str(raised.value)
