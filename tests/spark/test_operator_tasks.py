"""Tasks of the operator in real queries: shards that share a task, tasks that a plan moves, other numbers of both."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hybridstore.cli import run as run_command
from recovery.layout import MOVED
from tests.tools.spark_jobs import Job, Source, count, expected, failure, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("shape", ["union", "union first", "coalesce", "self union"])
def test_scenario_69_plans_that_move_tasks(source: Source, job: Job, tmp_path: Path, shape: str) -> None:
    other = Source(tmp_path / "other", source.spark)
    for batch in range(4):
        source.add(*(row(f"k{i}") for i in range((batch * 3) % 5)))
        other.add(*(row(f"o{i}") for i in range(batch % 2)))
    mine = count(source.stream(), job, name="op", shards=4)
    if shape == "coalesce":
        job.run(mine.coalesce(2))
        assert job.rows == expected(source.batches)
    elif shape == "self union":
        theirs = count(other.stream(), job, name="theirs")
        job.run(mine.union(theirs))
        parts = [expected(source.batches), expected(other.batches)]
        assert job.rows == {number: sorted(parts[0][number] + parts[1][number]) for number in range(4)}
        for name in ("op", "theirs"):
            assert {shard["version"] for shard in job.shards(name)} <= set(range(5))
    else:
        raw, projected = other.stream().selectExpr("k", "v as n", "v as total"), mine.selectExpr("k", "n + 0", "total")
        job.run(raw.union(mine) if shape == "union" else projected.where("total > 0").union(raw))
        kept = {number: [row for row in rows if row[0].startswith("k")] for number, rows in job.rows.items()}
        assert kept == expected(source.batches)
    assert (job.checkpoint / "hybridstore/op" / MOVED).exists() == (shape in ("union", "coalesce"))


@pytest.mark.parametrize("placement", ["worker", "holder"])
def test_another_number_of_tasks_at_every_start(source: Source, job: Job, placement: str) -> None:
    def fail_at_the_end(df: "DataFrame") -> list[Any]:
        # The last batch is committed all the same, and done again by the next start.
        rows = df.collect()
        if len(source.batches) % 3 == 0 and ("last", len(source.batches) // 3) in [
            (row["k"], row["n"]) for row in rows
        ]:
            raise RuntimeError("the sink is full")
        return rows

    starts = (2, 5, 1) if placement == "worker" else (3, None, 2)
    for start, tasks in enumerate(starts):
        source.add(*(row(f"k{i}", i) for i in range(30)))
        source.add()
        df = count(source.stream(), job, shards=5, tasks=tasks, placement=placement)
        if start == len(starts) - 1:
            job.run(df)
        else:
            source.add(row("k1"), row("last"))
            assert "the sink is full" in failure(lambda df=df: job.run(df, action=fail_at_the_end))  # type: ignore[misc]
    assert job.rows == expected(source.batches)
    assert {shard["version"] for shard in job.shards()} == {len(source.batches)}
    assert not (job.checkpoint / "hybridstore/op" / MOVED).exists()


def test_more_tasks_than_shards_are_refused(source: Source, job: Job) -> None:
    for tasks in (0, 5, True, 2.0):
        with pytest.raises(ValueError, match=rf"tasks: found {tasks} with 4 shards, expected 1 to 4, or None"):
            count(source.stream(), job, shards=4, tasks=tasks)


def test_a_limit_that_skips_a_task_of_several_shards_is_named(source: Source, job: Job) -> None:
    source.add(*(row(f"k{i}") for i in range(50)))
    source.add(*(row(f"k{i}") for i in range(50)))
    df = count(source.stream(), job, shards=5, tasks=2)
    assert "did not reach shard" in failure(lambda: job.run(df, action=lambda df: df.limit(1).collect()))


@pytest.mark.parametrize("shape", ["union", "coalesce"])
def test_plans_that_move_tasks_of_several_shards(source: Source, job: Job, tmp_path: Path, shape: str) -> None:
    other = Source(tmp_path / "other", source.spark)
    # A batch without rows, and one with rows for a single task, come before the tasks are seen to have moved.
    for batch, keys in enumerate((0, 1, 12, 0)):
        source.add(*(row(f"k{i}") for i in range(keys)))
        other.add(*(row(f"o{i}") for i in range(batch % 2)))
    mine = count(source.stream(), job, shards=7, tasks=3)
    if shape == "coalesce":
        job.run(mine.coalesce(2))
    else:
        job.run(other.stream().selectExpr("k", "v as n", "v as total").union(mine))
    kept = {number: [row for row in rows if row[0].startswith("k")] for number, rows in job.rows.items()}
    assert kept == expected(source.batches)


def test_a_query_goes_on_with_other_numbers_of_shards(source: Source, job: Job) -> None:
    def rescale(shards: int) -> None:
        # here the process of the driver is this one, which has no query that runs
        assert run_command(["rescale", str(job.checkpoint), "op", "--shards", str(shards)]) == 0

    def go_on(shards: int) -> None:
        source.add(*(row(f"k{i * 7 % 60}", i) for i in range(90)), row("k1", 100))
        job.run(count(source.stream(), job, shards=shards))
        assert [shard["shard"] for shard in job.shards()] == list(range(shards))

    go_on(2)
    with pytest.raises(hs.ProgramMismatchError, match="hybridstore rescale LOCATION op --shards 4"):
        count(source.stream(), job, shards=4)
    rescale(4)
    go_on(4)
    # and by Spark's workers
    assert hs.rescale(job.checkpoint, "op", shards=3, spark=source.spark).done
    go_on(3)
    assert job.rows == expected(source.batches)
