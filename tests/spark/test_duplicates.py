"""`drop_duplicates` beside Spark's own `dropDuplicatesWithinWatermark`, by a watermark, batch by batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")

from tests.tools.recorded import SparksRows, plain
from tests.tools.spark_jobs import Job, Source, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_rows_without_duplicates_are_those_of_sparks_own_operator(
    spark: SparkSession, tmp_path: Path, sparks: SparksRows
) -> None:
    r = random.Random(sparks.seed)
    source = Source(tmp_path / "in", spark)
    now = 60
    for _ in range(5):
        # of equal rows Spark may keep any, so those of one key in a batch are equal
        times = {key: now - r.randint(0, 25) for key in "abcd"}
        source.add(*[row(key, 1, times[key]) for key in r.choices("abcd", k=6)])
        now += r.choice([3, 8, 25])
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"

    def run(folder: Path) -> dict[int, Any]:
        folder.mkdir()
        job = Job(folder)
        marked = source.stream().withWatermark("t", "10 seconds")
        if folder == ours:
            once = hs.stream(timestamp="t").drop_duplicates("k", within="10 seconds")
            job.run(once.apply(marked, "op", location=str(job.checkpoint), shards=2, time="watermark"))
        else:
            job.run(marked.dropDuplicatesWithinWatermark(["k"]))
        return {number: rows for number, rows in job.rows.items() if rows}

    given = plain(run(ours))
    assert given == sparks("rows", lambda: run(theirs))
    assert sum(map(len, given.values())) < 30
