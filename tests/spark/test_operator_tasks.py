"""Tasks of the operator in real queries: shards that share a task, tasks that a plan moves, other numbers of both."""

from functools import partial
from itertools import product
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
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
further = pytest.mark.further


# in every run one plan that moves tasks and one that does not
@pytest.mark.parametrize(
    "shape",
    [
        "union first",
        "coalesce",
        *(pytest.param(shape, marks=further("test_plans_that_move_tasks")) for shape in ("union", "self union")),
    ],
)
@pytest.mark.scenario(69)
def test_plans_that_move_tasks(source: Source, job: Job, tmp_path: Path, shape: str) -> None:
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


@pytest.mark.parametrize(
    "placement", ["worker", pytest.param("holder", marks=further("test_another_number_of_tasks_at_every_start"))]
)
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
            assert "the sink is full" in failure(partial(job.run, df, action=fail_at_the_end))
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


@pytest.mark.parametrize("shape", ["union", pytest.param("coalesce", marks=further("test_plans_that_move_tasks"))])
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


class Counted:
    """A class for transformWithState: rows so far, and who is reminded of them by the clock of the next batch."""

    def init(self, handle: Any) -> None:
        self.handle, self.n = handle, handle.getValueState("n", "n long")

    def handleInitialState(self, key: Any, row: Any, timers: Any) -> None:
        self.n.update((row.n,))

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
        from pyspark.sql import Row

        self.n.update(((self.n.get() or (0,))[0] + len(list(rows)),))
        if timers.getCurrentProcessingTimeInMs() > 0:
            self.handle.registerTimer(timers.getCurrentProcessingTimeInMs())
        yield Row(k=key[0], n=self.n.get()[0])

    def handleExpiredTimer(self, key: Any, timers: Any, info: Any) -> Any:
        from pyspark.sql import Row

        yield Row(k=key[0], n=-self.n.get()[0])

    def close(self) -> None:
        pass


# in every run each mode, and a coalesce and a union
@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        ("two", "ProcessingTime"),
        ("union", "None"),
        *(
            pytest.param(*case, marks=further("test_a_class_of_sparks_below_plans_that_move_tasks"))
            for case in product(("one", "two", "union"), ("None", "ProcessingTime"))
            if case not in {("two", "ProcessingTime"), ("union", "None")}
        ),
    ],
)
def test_a_class_of_sparks_below_plans_that_move_tasks(
    source: Source, job: Job, tmp_path: Path, mode: str, shape: str
) -> None:
    from hybridstore import spark as hsp

    known = {f"k{i}": 100 * (i + 1) for i in range(9)}
    initial = source.spark.createDataFrame(list(known.items()), "k string, n long").groupBy("k")
    asked: Any = ("k string, n long", "Update", mode, initial)
    other = Source(tmp_path / "other", source.spark)
    # a batch without rows, rows for one task only, for some, for none, for all, over two starts
    for start, batches in enumerate(((0, 1, 3), (0, 2, 9, 4))):
        for keys in batches:
            source.add(*(row(f"k{i}") for i in range(keys)))
            other.add(*(row(f"o{i}") for i in range(start)))
        out = hsp.transform_with_state(
            source.stream().groupBy("k"),
            Counted(),
            *asked,
            name="op",
            location=str(job.checkpoint),
            shards=5,
            tasks=4,
        )
        if shape == "union":
            job.run(other.stream().selectExpr("k", "v as n").union(out))
        else:
            job.run(out.coalesce(1 if shape == "one" else 2))
    expected: dict[int, list[tuple[str, int]]] = {}
    for number, batch in enumerate(source.batches):
        for each in batch:
            known[each["k"]] += 1
        reminded = [(key, -known[key]) for key in (each["k"] for each in batch)] if mode == "ProcessingTime" else []
        expected[number] = sorted([*((each["k"], known[each["k"]]) for each in batch), *reminded])
    kept = {number: [row for row in rows if row[0].startswith("k")] for number, rows in job.rows.items()}
    assert kept == expected
    assert (job.checkpoint / "hybridstore/op" / MOVED).exists()


def test_the_initial_state_of_a_batch_dataframe_below_a_coalesce(spark: "SparkSession") -> None:
    from hybridstore import spark as hsp

    initial = spark.createDataFrame([(f"k{i}", 100) for i in range(9)], "k string, n long").groupBy("k")
    df = spark.createDataFrame([(f"k{i}",) for i in range(12)], "k string").groupBy("k")
    out = hsp.transform_with_state(df, Counted(), "k string, n long", initialState=initial, name="op", shards=4)
    rows = out.coalesce(1).collect()
    assert sorted(map(tuple, rows)) == sorted((f"k{i}", 101 if i < 9 else 1) for i in range(12))


@pytest.mark.parametrize(("theirs", "ours"), [("int", "string"), ("string", "bigint")])
def test_the_keys_of_initial_state_have_the_types_of_the_streams_as_on_spark(
    spark: "SparkSession", theirs: str, ours: str
) -> None:
    from hybridstore import spark as hsp

    initial = spark.range(1, 3).selectExpr(f"cast(id as {theirs}) number", "100L n").groupBy("number")
    df = spark.range(1, 4).selectExpr(f"cast(id as {ours}) k").groupBy("k")
    schema = f"k {ours}, n long"
    out = hsp.transform_with_state(df, Counted(), schema, initialState=initial, name="op", shards=2)
    assert sorted((int(row.k), row.n) for row in out.collect()) == [(1, 101), (2, 101), (3, 1)]
