"""Null and not a number as keys on Spark: groups as Spark's own GROUP BY has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of
from hybridstore.topology.null_keys import stored_key

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore import spark as hsp
from tests.tools.modes import classic_first
from tests.tools.spark_jobs import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAN, INF = float("nan"), float("inf")
KEYS: dict[str, list[Any]] = {
    "string": ["", "a", "ä€😀", "null", 'q"\\\n\t\x01', None],
    "binary": [b"", b"\xff\x00", b"abc", None],
    "long": [0, -1, 2**63 - 1, -(2**63), None],
    "boolean": [True, False, None],
    "double": [0.0, -0.0, 0.5, -3.75, 1e300, -5e-324, 0.1, NAN, INF, -INF, None],
    "float": [0.5, -0.0, NAN, None],
}
# keys as text, so that results have an order
SHOWN = ("coalesce(string(k), 'null')", "coalesce(s, 'null')")


def test_shards_of_null_keys_are_those_of_their_texts(spark: SparkSession) -> None:
    from hybridstore.spark.sharding import shard_column

    # one column of keys is shifted against the others, so that each row has a null somewhere else
    rows = [tuple(keys[(i + j) % len(keys)] for j, keys in enumerate(KEYS.values())) for i in range(12)]
    df = spark.createDataFrame(rows, ", ".join(f"{kind}_ {kind}" for kind in KEYS))
    names = df.columns
    single = [shard_column(df.schema, (name,), 997, "group").alias(f"shard of {name}") for name in names]
    for row in df.select("*", *single, shard_column(df.schema, names, 997, "group")).collect():
        key = [bytes(part) if isinstance(part, bytearray) else part for part in row[: len(names)]]
        assert list(row[len(names) : -1]) == [shard_of(stored_key(part), 997) for part in key]
        assert row[-1] == shard_of(stored_key(tuple(key)), 997)


@classic_first
def test_groups_are_those_of_sparks_own_operator(spark: SparkSession, tmp_path: Path) -> None:
    job, folder = Job(tmp_path), tmp_path / "in"
    folder.mkdir()
    topology = (
        hs.stream(key=["k", "s"], timestamp="t", null_keys="group")
        .windowed_by(hs.TumblingWindows("1 hour"))
        .aggregate(n=hs.Count(), emit="commit")
    )
    keys = [(k, s) for k in (0.0, -0.0, 1.5, NAN, None) for s in ("a", None)]
    for batch in range(2):
        rows = [{"k": k, "s": s, "t": 1000 * i} for i, (k, s) in enumerate(keys * 2)]
        (folder / f"{batch}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        stream = spark.readStream.schema("k double, s string, t long").json(str(folder))
        counted = topology.apply(stream, "op", location=str(job.checkpoint), shards=3)
        job.run(counted.selectExpr(*SHOWN, "n"), sink=True)
    native = spark.read.schema("k double, s string, t long").json(str(folder)).groupBy("k", "s").count().collect()
    shown = [tuple(row) for row in spark.createDataFrame(native).selectExpr(*SHOWN, "count").collect()]
    assert job.rows[1] == sorted(shown)
    assert ("NaN", "null", 4) in shown
    assert [sum(shard[name] for shard in job.shards()) for name in ("total_rows", "total_null_key")] == [40, 0]
    assert {shard_of(stored_key(tuple(row[:2])), 3) for row in native} == {0, 1, 2}
    assert hsp.heartbeat_keys(3, "group") != hsp.heartbeat_keys(3)
    assert [shard_of(stored_key(key), 3) for key in hsp.heartbeat_keys(3, "group")] == [0, 1, 2]


def test_the_shard_of_a_decimal_is_that_of_its_text_whatever_the_settings(spark: SparkSession) -> None:
    from hybridstore.shards import shard_of
    from hybridstore.spark.grouping_keys import GroupingKeys
    from hybridstore.spark.sharding import shard_column
    from hybridstore.spark.stateful_processor import key_columns
    from hybridstore.topology.null_keys import stored_key

    texts = ("0", "1e-7", "-12345.25", "0.1", "100", "-20.50", "-1e-9", "99999999.9999999999", None)
    kinds = ("decimal(18,10)", "decimal(38,2)", "decimal(5,0)", "decimal(38,38)")
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    try:
        for ansi in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", ansi)
            for kind in kinds:
                df = rows.selectExpr(f"try_cast(text as {kind}) k", f"struct(try_cast(text as {kind}) as k) s")
                keys = GroupingKeys(key_columns(df, ["k", "s"]))
                shards = [shard_column(df.schema, (name,), 997, "group").alias(f"of {name}") for name in ("k", "s")]
                for row in df.select("*", *shards).collect():
                    expected = shard_of(stored_key(row["k"]), 997), shard_of(stored_key(tuple(row["s"])), 997)
                    assert (row["of k"], row["of s"]) == expected, (ansi, kind, row)
                    # as Spark gives it, with the digits of its column
                    assert repr(tuple(keys.given(keys.stored((row["k"], row["s"]))))) == repr(row[:2])
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
