"""Nexmark on Spark: each query, stage behind stage, gives the stored answer that other engines gave, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.queries import QUERIES, Query, answer_of, digest_of
from benchmarks.suites import nexmark_spark
from hybridstore.spark.batches import rows_of_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
STORED: dict[str, Any] = json.loads((ROOT / "benchmarks/nexmark/answers.json").read_text(encoding="utf-8"))
PARTS = 4


def halves(rows: Any) -> list[Any]:
    """Two batches: of two inputs the rows before a moment, and those from it on."""
    if not isinstance(rows, Mapping):
        return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    moments = sorted(row["time"] for part in rows.values() for row in part)
    middle = moments[len(moments) // 2]
    return [
        {name: [row for row in part if (row["time"] < middle) == first] for name, part in rows.items()}
        for first in (True, False)
    ]


def on_spark(spark: SparkSession, name: str, query: Query) -> str:
    """The digest of a query's answer."""
    rows = query.rows(generate(**STORED["events"]))
    if query.by_column:
        rows = rows.to_pylist()
    for number, stage in enumerate(query.stages):
        plan = stage.complete()
        closes = plan.aggregates is not None and plan.final
        batches = halves(rows)
        if closes:
            batches.append(nexmark_spark.closing(rows[-1])[:1])
        # windows close with the time of their shard: one closing row is enough for one
        types = nexmark_spark.TYPES.get(name) if number else None
        rows = rows_of_query(spark, stage, batches, shards=1 if closes else 2, types=types)
    return digest_of(answer_of(query, rows))


@pytest.mark.further("tests/benchmarks/test_nexmark.py::test_runners_of_spark_give_the_same")
@pytest.mark.parametrize("part", range(PARTS))
def test_queries_give_the_answers_that_other_engines_gave(spark: SparkSession, part: int) -> None:
    """Some queries each, because a query takes seconds, and more of a session that starts."""
    answers, expected = {}, {}
    for name in list(QUERIES)[part::PARTS]:
        expected[name] = STORED["answers"][name]
        try:
            answers[name] = on_spark(spark, name, QUERIES[name])
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {str(error)[:3000]}"
        print(name, answers[name] == expected[name], answers[name], flush=True)
    assert answers == expected


@pytest.mark.further("tests/benchmarks/test_nexmark.py::test_duckdb_agrees")
def test_queries_of_sparks_own_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    answers = {}
    for name, native in nexmark_spark.NATIVE.items():
        rows = QUERIES[name].rows(generate(**STORED["events"]))
        folder, results = tmp_path / name, dict[int, list[dict[str, Any]]]()
        nexmark_spark.write_input(folder, QUERIES[name], rows if isinstance(rows, list) else rows.to_pylist())
        schema = spark.read.parquet(str(folder / "all")).schema
        # in two batches, which keep the order of the files
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 6).parquet(str(folder / "all"))

        def keep(batch: Any, number: int, results: dict[int, list[dict[str, Any]]] = results) -> None:
            results[number] = [row.asDict(recursive=True) for row in batch.collect()]

        mode = "update" if name in nexmark_spark.UPDATED else "append"
        writer = native(stream).writeStream.outputMode(mode).foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        given = [row for _, part in sorted(results.items()) for row in part]
        answers[name] = digest_of(answer_of(QUERIES[name], given))
    assert answers == {name: STORED["answers"][name] for name in nexmark_spark.NATIVE}
