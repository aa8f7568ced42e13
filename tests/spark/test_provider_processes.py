"""A shard that moves between worker processes, real ones: each replays only what it lacks, and its metrics say so."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hybridstore.spark.shard.shard import CATCH_UP
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import newest_claim
from tests.tools.shard_tools import at, content, operator, provider, put, started

SELDOM = CheckpointPolicy(max_restore=timedelta(days=1))
ROWS = 5


def rows_of(version: int) -> dict[str, int]:
    return {f"k{version}_{i}": version for i in range(ROWS)}


def held_at(version: int) -> dict[str, int]:
    return {key: value for number in range(version) for key, value in rows_of(number).items()}


def serve(pipe: Connection, root: str) -> None:
    """A worker: a provider and a memory of its own, batches on demand, until None comes."""
    shard = provider(Path(root), policy=SELDOM)
    for asked in iter(pipe.recv, None):
        if asked == "checkpoint":
            pipe.send(shard.checkpoint())
            continue
        store = shard.get_store(asked)
        before = content(store)
        put(store, **rows_of(asked))
        store.commit()
        numbers = shard.metrics()
        pipe.send((numbers.load, numbers.replayed_segments, numbers.replayed_records, before))


class Worker:
    """A worker process, spoken to over a pipe."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, str(root)), daemon=True)
        self.process.start()
        other.close()

    def run(self, version: int) -> tuple[str, int]:
        """Run a batch; returns how the version before it came into memory, and how many segments were replayed for
        that.
        """
        load, segments, records, before = self.ask(version)
        assert before == held_at(version)
        # the first segment says which store there is, too
        assert records == segments * ROWS + (load == "changelog")
        return load, segments

    def ask(self, what: Any) -> Any:
        self.pipe.send(what)
        assert self.pipe.poll(60), "the worker does not answer"
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def workers(root: Path, count: int) -> Iterator[list[Worker]]:
    if newest_claim(operator(root)) is None:
        started(root, 0)
    started_workers = [Worker(root) for _ in range(count)]
    try:
        yield started_workers
    finally:
        for worker in started_workers:
            worker.kill()


def test_a_shard_that_moves_replays_only_what_the_process_lacks(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (first, second):
        assert [first.run(version) for version in range(3)] == [("empty", 0), ("hit", 0), ("hit", 0)]
        # a process that has never seen it reads all there is
        assert second.run(3) == ("changelog", 3)
        assert first.run(4) == ("catch-up", 1)
        assert [second.run(version) for version in (5, 6, 7)] == [("catch-up", 1), ("hit", 0), ("hit", 0)]
        assert first.run(8) == ("catch-up", 3)
        assert first.run(9) == ("hit", 0)
    assert at(tmp_path, 10) == held_at(10)


def test_a_process_that_is_far_behind_attaches_a_checkpoint_as_a_new_one_does(tmp_path: Path) -> None:
    with workers(tmp_path, 3) as (first, second, third):
        assert first.run(0) == ("empty", 0)
        assert second.run(1) == ("changelog", 1)
        for version in range(2, 10):
            assert second.run(version) == ("hit", 0)
        assert second.ask("checkpoint")
        # a newer checkpoint is no reason to give up what is in memory
        assert first.run(10) == ("catch-up", 9)
        assert third.run(11) == ("checkpoint", 1)
        for version in range(12, 12 + CATCH_UP):
            assert third.run(version) == ("hit", 0)
        assert third.ask("checkpoint")
        last = 12 + CATCH_UP
        assert third.run(last) == ("hit", 0)
        assert first.run(last + 1) == ("checkpoint", 1)
    assert at(tmp_path, last + 2) == held_at(last + 2)


def test_a_process_that_is_killed_begins_anew_and_its_neighbour_goes_on(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (first, second):
        first.run(0)
        second.run(1)
        first.kill()
        assert second.run(2) == ("hit", 0)
        with workers(tmp_path, 1) as (again,):
            assert again.run(3) == ("changelog", 3)
        assert second.run(4) == ("catch-up", 1)
