"""Steps before the shards on Spark: keys and times that a map makes, map and filter alone, no windows, no key."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from tests.tools.spark_jobs import Job, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOUD = hs.stream(key="who", timestamp="at").map(
    lambda row: {"who": (row["k"] or "nobody").upper()[:1], "at": row["t"], "n": row["v"]},
    "who string, at bigint, n bigint",
)
SCHEMA = "k string, v long, t long"
COUNTS: dict[str, Any] = {"n": hs.Count(), "total": hs.Sum("n"), "least": hs.Min("n"), "newest": hs.Last("at")}
TOPOLOGIES: dict[str, hs.Topology] = {
    "running": hs.stream(key="k", timestamp="t").aggregate(emit="commit", n=hs.Count(), total=hs.Sum("v")),
    "one_group": hs.stream(timestamp="t").aggregate(emit="commit", n=hs.Count(), total=hs.Sum("v")),
    "filtered": hs.stream(key="k", timestamp="t").filter(lambda row: row["v"] > 1),
    "mapped": LOUD,
    "mapped_key": LOUD.aggregate(emit="commit", **COUNTS),
    "mapped_late": LOUD.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(emit="commit", **COUNTS).late(),
    "rows": hs.stream(key="k", timestamp="t").aggregate(
        emit="commit",
        most=hs.MaxBy("v"),
        least=hs.MinBy("v", "t"),
        top=hs.TopK(2, by="v", columns=["t", "v"]),
        kinds=hs.CountDistinct("v"),
        even=hs.Sum("v", where=lambda row: row["v"] % 2 == 0),
    ),
    "local_days": hs.stream(key="k", timestamp="t")
    .windowed_by(hs.TumblingWindows("1 day", time_zone="Europe/Berlin"))
    .aggregate(emit="commit", n=hs.Count()),
    "rows_by_window": LOUD.windowed_by(hs.TumblingWindows("10 seconds")).aggregate(
        emit="commit", last=hs.LastBy("at"), odd=hs.Count(where=lambda row: row["n"] % 2)
    ),
    "errors": hs.stream(key="who", timestamp="at")
    .map(
        lambda row: {"who": row["k"][:1], "at": row["t"], "n": 10 // (row["v"] - 2)}, "who string, at bigint, n bigint"
    )
    .aggregate(emit="commit", n=hs.Sum("n"))
    .errors(),
    "errors_of_process": LOUD.process(
        lambda row, stores: [{"who": row["who"], "n": 6 // (row["n"] - 3)}], "who string, n bigint"
    ).errors(),
    "mapped_process": LOUD.process(lambda row, stores: [{"who": row["who"], "n": row["n"]}], "who string, n bigint"),
}


def shown(row: Any) -> tuple[str, ...]:
    """A result as texts, which have an order."""
    return tuple(map(repr, row.values()))


def read(spark: SparkSession, source: Source) -> Any:
    """The source with times as whole numbers, which are the same in a worker and in plain Python."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source.folder))


def test_steps_before_the_shards_give_the_rows_of_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    source = Source(tmp_path / "in", spark)
    source.add(*[{"k": k, "v": v, "t": 1000 * v} for k, v in (("ann", 1), ("alf", 2), ("bob", 3), (None, 4))])
    source.add(*[{"k": k, "v": v, "t": t} for k, v, t in (("ann", 5, 40_000), ("bob", 6, 1), ("cyd", 7, 41_000))])
    job = Job(tmp_path)
    # one query for all, in whose rows each has a column; one shard, because lateness is each shard's own
    frames = []
    for name, topology in TOPOLOGIES.items():
        results = topology.apply(read(spark, source), name, location=str(job.checkpoint), shards=1)
        frames.append(results.select(f.struct("*").alias(name)))
    together = reduce(lambda before, frame: before.unionByName(frame, allowMissingColumns=True), frames)

    def named(df: DataFrame) -> list[Any]:
        rows = [row.asDict(recursive=True) for row in df.collect()]
        return [(name, shown(part)) for row in rows for name, part in row.items() if part is not None]

    job.run(together, named)
    for name, topology in TOPOLOGIES.items():
        expected: dict[int, list[Any]] = {0: [], 1: []}
        tables = [pa.Table.from_pylist(batch).to_batches()[0] for batch in source.batches]
        for result in topology.run(tables):
            expected[result.commit - 1].append(shown(result))
        of_spark = {number: [row for of, row in rows if of == name] for number, rows in job.rows.items()}
        assert of_spark == {number: sorted(rows) for number, rows in expected.items()}, name


def test_a_map_that_makes_the_key_has_to_declare_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(tmp_path / "in", spark)
    undeclared = hs.stream(key="who", timestamp="t").map(lambda row: {**row, "who": row["k"]})
    with pytest.raises(ValueError, match=r"column 'who' is missing: found k, v, t \(a map that makes it declares"):
        undeclared.aggregate(n=hs.Count()).apply(source.stream(), "op", location=str(tmp_path / "check"))
    with pytest.raises(ValueError, match="map: output_schema: found None"):
        undeclared.apply(source.stream(), "op", location=str(tmp_path / "check"))
