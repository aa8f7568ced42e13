"""Tasks apart from shards: how many Spark tasks share the shards changes neither the state nor its versions."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark import cloudpickle

from hybridstore.shards import shard_of
from hybridstore.spark import worker
from hybridstore.spark.contract import Batch, whole_program, whole_runner
from hybridstore.spark.errors import SkippedBatchError
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.location import locate
from hybridstore.spark.operator_file import has_moved, operator_storage
from hybridstore.spark.shard import provider
from hybridstore.spark.shard.cache import CACHE, ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.spark.shipped import Operator
from hybridstore.spark.worker import ShardWork
from tests.tools.spark_programs import RunningCount

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
ATTEMPTS = count(1)


def operator(root: Path, shards: int, tasks: int | None) -> Operator:
    return Operator(RunningCount(), "op", locate(root), shards, ("string",), "stream", OUTPUT, tasks=tasks)


@given(st.integers(1, 300), st.data())
def test_every_shard_has_one_task_which_is_where_spark_sends_its_rows_and_ticks(
    shards: int, data: st.DataObject
) -> None:
    tasks = data.draw(st.integers(1, shards) | st.none())
    asked = operator(Path("/nowhere"), shards, tasks)
    width = tasks or shards
    owners = {shard: task for task in range(width) for shard in asked.shards_of(task)}
    assert sum(len(asked.shards_of(task)) for task in range(width)) == len(owners) == shards
    assert owners == {shard: asked.task_of(shard) for shard in range(shards)}
    assert not asked.shards_of(width)
    for shard, task in owners.items():
        # the expression of apply_program, for a row and for a tick, and then Spark's own modulo
        assert task == shard % shards % width == (shard - shards) % shards % width


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder whose shards this process forgets afterwards."""
    yield tmp_path
    CACHE.drop(tmp_path)


class Query:
    """What Spark does with the tasks of a query, in this process: runs of any number of tasks, batches, replays."""

    def __init__(self, root: Path, shards: int) -> None:
        self.root, self.shards = root, shards
        root.mkdir()

    def start(self, first: int, tasks: int | None) -> None:
        """Begin a run with batch `first`, in a process that has nothing in memory."""
        CACHE.drop(self.root)
        self.operator = operator(self.root, self.shards, tasks)
        self.storage = operator_storage(self.operator.location, "op")
        self.claim = claim(self.storage, new_launch(self.storage), f"run {next(ATTEMPTS)}", first, 1)

    def batch(self, number: int, keys: list[str], skipped: frozenset[int] = frozenset()) -> list[dict[str, object]]:
        """Do a batch but for the tasks `skipped`, and return its rows, sorted."""
        rows: list[dict[str, object]] = []
        for task in range(self.operator.tasks or self.shards):
            if task not in skipped:
                rows += self._task(number, keys, task, task, next(ATTEMPTS))
        return sorted(rows, key=str)

    def merged_batch(self, number: int, keys: list[str], merged: list[list[int]]) -> list[dict[str, object]]:
        """Do a batch below a `coalesce`: Spark's task i, in one attempt, does what the tasks merged[i] are to do."""
        rows: list[dict[str, object]] = []
        for partition, tasks in enumerate(merged):
            attempt = next(ATTEMPTS)
            for task in tasks:
                rows += self._task(number, keys, task, partition, attempt)
        return sorted(rows, key=str)

    def _task(self, number: int, keys: list[str], task: int, partition: int, attempt: int) -> list[dict[str, object]]:
        """Do what task `task` is to do, in a task of Spark's with the number `partition`."""
        rows: list[dict[str, object]] = []
        batch = Batch(number, "query", self.claim.run_id, partition, 0, 0, self.claim, attempt)
        work = ShardWork(self.operator, batch)
        arrived: dict[int, list[str]] = {}
        for key in keys:
            if self.operator.task_of(shard_of(key, self.shards)) == task:
                arrived.setdefault(shard_of(key, self.shards), []).append(key)
        work.begin(sorted(arrived))
        for shard, mine in sorted(arrived.items()):
            rows += work.shard(shard, pa.table({"k": mine, "v": [1] * len(mine)}), 0.0).to_pylist()
        work.maintain()
        return rows

    def digests(self, version: int) -> list[bytes]:
        """The chain of every shard up to a version, which must be there: strictly."""
        digests = []
        for shard in range(self.shards):
            identity = StateStoreId(str(self.root), "op", shard, query_id="query")
            digests.append(StateStoreProvider(identity).get_read_store(version).loaded.reached.step.digest)
        return digests


@pytest.mark.parametrize("turn", range(8))
def test_any_number_of_tasks_at_every_start_writes_the_same_versions_and_rows(root: Path, seed: int, turn: int) -> None:
    lot = random.Random(seed + turn)
    shards = lot.randint(1, 9)
    first, other = Query(root / "one", shards), Query(root / "other", shards)
    first.start(0, None)
    other.start(0, lot.randint(1, shards))
    batches: list[list[str]] = []
    results: list[list[dict[str, object]]] = []
    for number in range(12):
        batches.append([f"k{lot.randrange(40)}" for _ in range(lot.choice((0, 1, 3, 30)))])
        results.append(first.batch(number, batches[number]))
        if lot.random() < 0.4:
            # The driver dies in the batch: some tasks have committed it, others not, and it is done again by other
            # tasks.
            width = other.operator.tasks or shards
            other.batch(number, batches[number], frozenset(task for task in range(width) if lot.random() < 0.5))
            other.start(number, lot.choice((lot.randint(1, shards), None)))
        assert other.batch(number, batches[number]) == results[number]
        assert other.digests(number + 1) == first.digests(number + 1)
    assert not has_moved(other.storage)


def test_a_task_that_is_never_reached_is_noticed_by_the_one_before(root: Path) -> None:
    query = Query(root / "state", 10)
    query.start(0, 4)
    keys = [f"k{number}" for number in range(100)]
    query.batch(0, keys, frozenset((2,)))
    with pytest.raises(SkippedBatchError, match="did not reach shard 2"):
        query.batch(1, keys, frozenset((2,)))


def test_a_shard_of_the_next_task_that_missed_a_batch_is_noticed_whichever_it_is(root: Path) -> None:
    query = Query(root / "state", 10)
    query.start(0, 4)
    query.batch(0, [])
    log = StateStoreId(str(query.root), "op", 9, query_id="query").directory / "log"
    for entry in log.iterdir():
        entry.unlink()
    with pytest.raises(SkippedBatchError, match="did not reach shard 9"):
        query.batch(1, [next(f"k{number}" for number in range(100) if shard_of(f"k{number}", 10) == 4)])


def test_merged_tasks_are_not_taken_for_skipped_ones(root: Path, seed: int) -> None:
    lot = random.Random(seed)
    for turn in range(12):
        query = Query(root / str(turn), lot.randint(2, 6))
        tasks = lot.randint(2, query.shards)
        query.start(0, tasks)
        # as few tasks as a coalesce may leave, the ones that they merge in any order
        merged: list[list[int]] = [[] for _ in range(lot.randint(1, tasks - 1))]
        for place, task in enumerate(lot.sample(range(tasks), tasks)):
            merged[place if place < len(merged) else lot.randrange(len(merged))].append(task)
        keys = [f"k{number}" for number in range(200)]
        counts: dict[object, int] = {}
        for number in range(5):
            # rows for few of the tasks, so that many batches bring most of them nothing
            asked = set(lot.sample(range(tasks), lot.choice((0, 1, 1, tasks))))
            chosen = [
                key for key in lot.sample(keys, 20) if query.operator.task_of(shard_of(key, query.shards)) in asked
            ]
            rows = query.merged_batch(number, chosen, merged)
            counts |= {key: counts.get(key, 0) + 1 for key in chosen}
            assert {row["k"]: row["n"] for row in rows} == {key: counts[key] for key in chosen}, (turn, number, merged)


@pytest.mark.parametrize("guess_commits_last", [False, True])
def test_a_worker_that_guessed_its_shards_goes_on_with_the_rows_of_the_call_that_knew_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, guess_commits_last: bool
) -> None:
    query = Query(root / "state", 4)
    query.start(0, None)
    rows = pa.table({"k": ["a"], "v": [1]})
    shard = shard_of("a", 4)
    asked = replace(query.operator, input=rows.schema)
    caches = {"guesses": ShardCache(), "knows": ShardCache()}

    def work(number: int, partition: int) -> ShardWork:
        batch = Batch(number, "query", query.claim.run_id, partition, 0, 0, query.claim, next(ATTEMPTS))
        return ShardWork(asked, batch)

    def call(process: str, work: ShardWork, table: pa.Table) -> list[dict[str, object]]:
        for module in (provider, worker):
            monkeypatch.setattr(module, "CACHE", caches[process])
        rows: list[dict[str, object]] = work.shard(shard, table, 0.0).to_pylist()
        return rows

    # below coalesce(2), at once: one task has the shard's rows, another has no row, and the shard's number
    guess, known = work(0, shard), work(0, shard - 1)
    assert [number for number, _ in guess.everywhere([])] == [shard]
    assert [number for number, _ in known.everywhere([(shard, rows)])] == [shard]
    calls = [lambda: call("guesses", guess, rows.slice(1)), lambda: call("knows", known, rows)]
    for each in reversed(calls) if guess_commits_last else calls:
        each()
    # the next batch's rows come to the worker that guessed
    assert call("guesses", work(1, shard), rows) == [{"k": "a", "n": 2, "total": 2}]


def test_an_object_of_ones_own_class_gets_what_it_lacks_from_the_contract() -> None:
    class Little:
        key = ("k",)
        dropped = 3

        def describe(self) -> dict[str, str]:
            return {"kind": "little"}

    program = pickle.loads(cloudpickle.dumps(whole_program(Little())))
    assert (program.key, program.describe()) == (("k",), {"kind": "little"})
    assert (program.null_keys, program.fresh, program.tick_ms, program.columns()) == ("skip", False, None, ())
    assert program.changes({}) is None
    runner = whole_runner(Little())
    assert (runner.dropped, runner.left_out, runner.by_row) == (3, (0, 0), None)
    assert whole_program(program) is program
    with pytest.raises(AttributeError, match="colour"):
        _ = program.colour
