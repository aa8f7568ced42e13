"""A worker that lives for long: what tasks leave as garbage is freed, and freeing it does not walk the state.

Each test runs the worker's own function, batch after batch, in a process of its own, because it freezes what is alive
there; and counts objects, not bytes.
"""

import gc
import multiprocessing
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

import hybridstore as hs
from hybridstore.collector import CLEAN_TASKS, SELDOM, Tasks
from hybridstore.spark import worker
from hybridstore.spark.contract import Batch
from hybridstore.spark.launches import begin
from hybridstore.spark.location import locate
from hybridstore.spark.operator_file import operator_storage
from hybridstore.spark.program import TopologyProgram
from hybridstore.spark.shard import shard as shard_module
from hybridstore.spark.shard.cache import CACHE
from hybridstore.spark.sharding import SHARD_COLUMN
from hybridstore.spark.shipped import Operator
from hybridstore.state.checkpointer import Attempt
from hybridstore.state.group import StoreGroup
from hybridstore.state.policy import CheckpointPolicy

ROWS = 50
alive: "weakref.WeakSet[Node]" = weakref.WeakSet()


class Node:
    """Something that a program makes for a row, and that this module counts while it lives."""

    def __init__(self) -> None:
        self.me: Node | None = None
        self.parts: list[list[int]] = []
        alive.add(self)


class Making:
    """A program that counts rows by key, and makes something for each of them with `make`."""

    key = ("k",)

    def __init__(self, make: Callable[["MakingRunner"], None]) -> None:
        self.make = make

    def columns(self) -> tuple[str, ...]:
        return ("k",)

    def describe(self) -> dict[str, Any]:
        return {"kind": "making"}

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([("k", pa.int64())])

    def open(self, group: StoreGroup) -> "MakingRunner":
        return MakingRunner(self.make, group.open("counts", "key_value", {"ttl_ms": None}))


class MakingRunner:
    def __init__(self, make: Callable[["MakingRunner"], None], store: Any) -> None:
        self.make = make
        self.store = store
        self.last: Any = None

    def process(self, table: pa.Table, output: pa.Schema, watermark_ms: int | None = None) -> pa.Table:
        for key in table["k"].to_pylist():
            self.make(self)
            self.store.put(key, (self.store.get(key) or 0) + 1)
        return table.select(["k"]).cast(output)


def cycle(runner: MakingRunner) -> None:
    node = Node()
    node.me = node


def no_cycle(runner: MakingRunner) -> None:
    Node()


def exception(runner: MakingRunner) -> None:
    node = Node()
    try:
        raise ValueError(node)
    except ValueError as error:
        kept = error
    assert kept.args[0] is node


def cycle_for_a_while(runner: MakingRunner) -> None:
    """The cycle is in use when its task ends and is frozen with it; the next task drops it."""
    node = Node()
    node.me = node
    node.parts = [[] for _ in range(5000)]
    runner.last = node


class Interrupted(Exception):
    pass


def cycle_and_error(runner: MakingRunner) -> None:
    cycle(runner)
    if len(alive) >= ROWS // 2:
        raise Interrupted


def tasks(root: str, make: Callable[[MakingRunner], None], count: int) -> Iterator[int]:
    """Run `count` tasks as Spark's worker does, and yield how many nodes are alive behind each."""
    operator = Operator(
        Making(make), "op", locate(root), 1, ("int64",), "stream", pa.schema([("k", pa.int64())]), placement="worker"
    )
    function = worker.ShardFunction(operator)
    begun = begin(operator_storage(root, "op"), 0)
    for number in range(count):
        batch = Batch(number, "q", begun.run_id, 0, 0, 0, begun, number + 2)
        worker.this_batch = lambda _, batch=batch: batch  # type: ignore[assignment, misc]
        rows = pa.record_batch({"k": list(range(ROWS)), SHARD_COLUMN: pa.array([0] * ROWS, pa.int32())})
        try:
            assert sum(part.num_rows for part in worker.run_shards(function, iter([rows]))) == ROWS
        except Interrupted:
            return
        finally:
            gc.collect()  # as PySpark's worker does after a task
            yield len(alive)


def serve(pipe: Connection, root: str, make: Callable[[MakingRunner], None], count: int, growth: int) -> None:
    worker._tasks.growth = growth
    pipe.send(list(tasks(root, make, count)))


def nodes_alive(root: Path, make: Callable[[MakingRunner], None], count: int, growth: int = 10**9) -> list[int]:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(other, str(root), make, count, growth), daemon=True)
    process.start()
    other.close()
    counts: list[int] = pipe.recv()
    process.join()
    assert process.exitcode == 0
    return counts


@pytest.mark.parametrize("make", [cycle, no_cycle, exception, cycle_and_error], ids=lambda make: make.__name__)
def test_what_a_task_leaves_as_garbage_is_freed_with_the_task(tmp_path: Path, make: Any) -> None:
    assert not any(nodes_alive(tmp_path, make, 5))


def test_what_was_in_use_at_the_end_of_its_task_is_freed_later(tmp_path: Path) -> None:
    counts = nodes_alive(tmp_path, cycle_for_a_while, 24, growth=ROWS)
    assert counts[0] == 1
    # Without a walk over everything, one more would be alive behind every task.
    assert max(counts) < 16


def counted() -> None:
    tasks, walks, unfreeze = Tasks(growth=1000), [], gc.unfreeze
    state: dict[Any, Any] = {}

    def walk() -> None:
        walks.append(len(state))
        unfreeze()

    gc.unfreeze = walk
    for number in range(40):
        with tasks.task():
            if number < 20:
                state.update({(number, i): [i] for i in range(3000)})
            else:
                state.update({(number - 20, i): [i] for i in range(3000)})
        # behind each task all that it left is frozen: nothing is left to be walked
        assert not any(item is state for item in gc.get_objects())
    # 20 tasks of growth are walked whole in ever longer intervals, and 20 tasks that replace what is there not at all
    assert 3 <= len(walks) <= 8, walks
    assert gc.isenabled()
    with tasks.task():
        assert not gc.isenabled()
        with tasks.task():
            pass
        assert not gc.isenabled()


def trusted() -> None:
    gc.collect()
    tasks, looks = Tasks(), []
    gc.callbacks.append(lambda phase, info: looks.append(phase) if phase == "start" else None)

    def run(count: int, make: Callable[[Any], None]) -> int:
        looks.clear()
        for _ in range(count):
            with tasks.task():
                make(None)
        return len(looks)

    # the first tasks of a process are looked at, and one in a while of those that follow
    assert run(CLEAN_TASKS, no_cycle) == CLEAN_TASKS
    assert run(SELDOM - CLEAN_TASKS, no_cycle) == 0
    assert run(4 * SELDOM + 1, no_cycle) == 5
    # garbage of tasks that were not looked at goes with the first that is seen ...
    run(SELDOM - 1, cycle)
    assert len(alive) == SELDOM - 1
    run(1, cycle)
    assert len(alive) == 0
    # ... and from then on every task's own goes with it
    for _ in range(2 * CLEAN_TASKS):
        run(1, cycle)
        assert len(alive) == 0
    # a guess that was wrong once takes twice as many tasks without garbage
    assert run(2 * CLEAN_TASKS, no_cycle) == 2 * CLEAN_TASKS
    assert run(1, no_cycle) == 0


def test_tasks_without_garbage_are_looked_at_seldom() -> None:
    process = multiprocessing.get_context("spawn").Process(target=trusted)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_all_is_walked_again_only_after_growth() -> None:
    process = multiprocessing.get_context("spawn").Process(target=counted)
    process.start()
    process.join()
    assert process.exitcode == 0


INPUT = pa.schema([("k", pa.int64()), ("ms", pa.int64())])
STREAM = hs.stream(key="k", timestamp="ms")


def windowed(windows: Any, **options: Any) -> TopologyProgram:
    return TopologyProgram(STREAM.windowed_by(windows).aggregate(n=hs.Count(), **options).complete())


def first(row: dict[str, Any], stores: Any) -> Iterator[dict[str, Any]]:
    if stores["seen"].put_if_absent(row["k"], 1) is None:
        yield {"k": row["k"]}


PROGRAMS: dict[str, Any] = {
    "key value": Making(no_cycle),
    "tumbling": windowed(hs.TumblingWindows("1 minute"), emit="close"),
    "sliding": windowed(hs.SlidingWindows("1 minute")),
    "session": windowed(hs.SessionWindows("10 seconds")),
    "process": TopologyProgram(
        STREAM.process(first, pa.schema([("k", pa.int64())]), [hs.key_value_store("seen")]).complete()
    ),
}


def ours() -> Counter[str]:
    """How many objects of each class of this project are alive."""
    gc.unfreeze()
    kinds = (type(each) for each in gc.get_objects())
    rooms = ("hybridstore", "recovery", "changelog")
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).partition(".")[0] in rooms)


def grown(root: str, name: str, limit: int | None, dropped: bool) -> Counter[str]:
    """Run 24 tasks on each of two shards; return what the last eight of them have added, by class."""
    program, counts = PROGRAMS[name], []
    output = program.output_schema(INPUT)
    policy = CheckpointPolicy(every_commits=4)
    operator = Operator(
        program, name, locate(root), 2, ("int64",), "stream", output, policy, placement="worker", memory_limit=limit
    )
    function, storage = worker.ShardFunction(operator), operator_storage(root, name)
    begun = begin(storage, 0)
    for number in range(24):
        for shard in range(2):
            batch = Batch(number, "q", begun.run_id, shard, 0, 0, begun, 2 * number + shard + 2)
            worker.this_batch = lambda _, batch=batch: batch  # type: ignore[assignment, misc]
            keys = list(range(shard, ROWS, 2))
            times, shards = [60_000 * number + key for key in keys], pa.array([shard] * len(keys), pa.int32())
            rows = pa.record_batch({"k": keys, "ms": times, SHARD_COLUMN: shards})
            for _ in worker.run_shards(function, iter([rows])):
                pass
        if dropped:
            CACHE.drop(storage.url)
        if number in (15, 23):
            counts.append(ours())
    return counts[1] - counts[0]


def without_a_collector(pipe: Connection, root: str, limit: int | None, dropped: bool) -> None:
    """Send what grows with the tasks of each program, where an object is freed with its last reference or never."""
    gc.disable()
    gc.collect = lambda generation=2: 0  # type: ignore[assignment]
    # a checkpoint is finished in the task that begins it
    Attempt.begin = lambda attempt: attempt.run() is None  # type: ignore[method-assign]
    shard_module.KEPT_PARENTS = 4
    for name in PROGRAMS:
        pipe.send({kind: n for kind, n in grown(root, name, limit, dropped).items() if n >= 4})


@pytest.mark.parametrize(("limit", "dropped"), [(None, False), (1, False), (None, True)])
def test_tasks_and_shards_leave_nothing_to_the_collector(tmp_path: Path, limit: int | None, dropped: bool) -> None:
    """What is in use at the end of a task is frozen with it, so that its cycles would stay until all is walked. With
    the limit, and with shards that a holder takes over, each task loads its shard anew.
    """
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe(duplex=False)
    process = context.Process(target=without_a_collector, args=(other, str(tmp_path), limit, dropped), daemon=True)
    process.start()
    other.close()
    assert {name: pipe.recv() for name in PROGRAMS} == {name: {} for name in PROGRAMS}
    process.join()
    assert process.exitcode == 0
