"""A shard that moves between worker processes, real ones: each replays only what it lacks, and its metrics say so."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hybridstore.spark.shard_files import CATCH_UP
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
    own = provider(Path(root), policy=SELDOM)
    for asked in iter(pipe.recv, None):
        if asked == "checkpoint":
            pipe.send(own.checkpoint())
            continue
        store = own.get_store(asked)
        before = content(store)
        put(store, **rows_of(asked))
        store.commit()
        told = own.metrics()
        pipe.send((told.load, told.replayed_segments, told.replayed_records, before))


class Worker:
    """A worker process, spoken to over a pipe."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, str(root)), daemon=True)
        self.process.start()
        other.close()

    def run(self, version: int) -> tuple[str, int]:
        """Run a batch; returns how the version before it came into memory, and how many segments were replayed for that."""
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
    made = [Worker(root) for _ in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.kill()


def test_a_shard_that_moves_replays_only_what_the_process_lacks(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (one, two):
        assert [one.run(version) for version in range(3)] == [("empty", 0), ("hit", 0), ("hit", 0)]
        # a process that has never seen it reads all there is
        assert two.run(3) == ("changelog", 3)
        assert one.run(4) == ("catch-up", 1)
        assert [two.run(version) for version in (5, 6, 7)] == [("catch-up", 1), ("hit", 0), ("hit", 0)]
        assert one.run(8) == ("catch-up", 3)
        assert one.run(9) == ("hit", 0)
    assert at(tmp_path, 10) == held_at(10)


def test_a_process_that_is_far_behind_attaches_a_checkpoint_as_a_new_one_does(tmp_path: Path) -> None:
    with workers(tmp_path, 3) as (one, two, three):
        assert one.run(0) == ("empty", 0)
        assert two.run(1) == ("changelog", 1)
        for version in range(2, 10):
            assert two.run(version) == ("hit", 0)
        assert two.ask("checkpoint")
        # a newer checkpoint is no reason to give up what is in memory
        assert one.run(10) == ("catch-up", 9)
        assert three.run(11) == ("checkpoint", 1)
        for version in range(12, 12 + CATCH_UP):
            assert three.run(version) == ("hit", 0)
        assert three.ask("checkpoint")
        last = 12 + CATCH_UP
        assert three.run(last) == ("hit", 0)
        assert one.run(last + 1) == ("checkpoint", 1)
    assert at(tmp_path, last + 2) == held_at(last + 2)


def test_a_process_that_is_killed_begins_anew_and_its_neighbour_goes_on(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as (one, two):
        one.run(0)
        two.run(1)
        one.kill()
        assert two.run(2) == ("hit", 0)
        with workers(tmp_path, 1) as (again,):
            assert again.run(3) == ("changelog", 3)
        assert two.run(4) == ("catch-up", 1)
