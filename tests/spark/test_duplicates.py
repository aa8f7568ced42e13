"""`drop_duplicates` beside Spark's own `dropDuplicatesWithinWatermark`, by a watermark, batch by batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

from tests.tools.spark_jobs import Job, Source, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_rows_without_duplicates_are_those_of_sparks_own_operator(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    r = random.Random(seed)
    source = Source(tmp_path / "in", spark)
    now = 60
    for _ in range(5):
        # of equal rows Spark may keep any, so those of one key in a batch are equal
        times = {key: now - r.randint(0, 25) for key in "abcd"}
        source.add(*[row(key, 1, times[key]) for key in r.choices("abcd", k=6)])
        now += r.choice([3, 8, 25])
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    jobs = Job(ours), Job(theirs)
    marked = [source.stream().withWatermark("t", "10 seconds") for _ in jobs]
    once = hs.stream(timestamp="t").drop_duplicates("k", within="10 seconds")
    jobs[0].run(once.apply(marked[0], "op", location=str(jobs[0].checkpoint), shards=2, time="watermark"))
    jobs[1].run(marked[1].dropDuplicatesWithinWatermark(["k"]))
    given = [{number: rows for number, rows in job.rows.items() if rows} for job in jobs]
    assert given[0] == given[1]
    assert sum(map(len, given[0].values())) < 30
