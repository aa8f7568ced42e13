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
from hybridstore.spark.batches import rows_of_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
STORED: dict[str, Any] = json.loads((ROOT / "benchmarks/nexmark/answers.json").read_text(encoding="utf-8"))
# The types of aggregates that are no built-in ones.
TYPES = {"q5": {"best": "array<array<long>>"}}
DAY_MS = 86_400_000
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


def closing(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a key of its own, so late that all windows before it close. On Spark nothing is flushed."""
    number = 10**9
    keys = {name: number for name in ("key", "auction", "bidder") if name in row}
    return {**row, "number": number, "time": row["time"] + DAY_MS, **keys}


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
            batches.append([closing(rows[-1])])
        # windows close with the time of their shard: one closing row is enough for one
        types = TYPES.get(name) if number else None
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
