"""A query that is stopped at some batch and goes on with another number of shards makes the rows of one that never
stopped.

Stream time is each shard's own, so that what is late, and when it leaves a suppression buffer, depends on what else is
in the shard. Two comparisons do not: with a watermark, or with a row in each shard that brings all times together at
the end of every batch, a run is compared with one that never stopped; and a shard that was split with twins of its
parent, each of which gets the rows of one child only.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of

pytest.importorskip("pyarrow")

from tests.tools.rescaled_jobs import Job, copied, in_memory

WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (hs.TumblingWindows(20, grace=5), {}),
    "tumbling kept": (hs.TumblingWindows(20, grace=5), {"retention": 90}),
    "panes": (hs.HoppingWindows(20, 5, grace=10), {}),
    "sessions": (hs.SessionWindows(6, grace=9), {}),
    "sliding": (hs.SlidingWindows(30), {}),
    "sliding of kafka": (hs.KafkaSlidingWindows(12, grace=10), {}),
    "no windows": (None, {}),
}
KEYS = [f"k{number}" for number in range(30)]
CHANGES = [(1, 2), (2, 6), (3, 3 * 4), (4, 2), (2, 3), (5, 1)]


def topologies(name: str, *, timed: bool = True) -> list[Any]:
    """Windows with every emission and suppression that can be declared, also by time with `timed`."""
    windows, options = WINDOWS[name]
    cases = []
    for emit in ("record", "commit", "close"):
        for bound in (None, "close", *([15] if timed else [])):
            try:
                topology = hs.stream(key="k", timestamp="ts")
                topology = topology if windows is None else topology.windowed_by(windows, **options)
                topology = topology.aggregate(
                    emit=emit,
                    count=hs.Count(),
                    total=hs.Sum("n"),
                    most=hs.MaxBy("n", ["ts"]),
                    kinds=hs.CountDistinct("n"),
                )
                topology = topology if bound is None else topology.hold(bound)
                cases.append(topology.complete())
            except (ValueError, TypeError):
                continue  # a declaration refuses what cannot be
    assert cases
    return cases


def clock_keys() -> list[str]:
    """A key for each shard, whatever their number is: one of each number modulo 60."""
    keys: dict[int, str] = {}
    for number in count():
        keys.setdefault(shard_of(f"clock {number}", 60), f"clock {number}")
        if len(keys) == 60:
            return list(keys.values())
    raise AssertionError


CLOCKS = clock_keys()


def stream(lot: random.Random, batches: int, *, clocks: bool) -> list[list[dict[str, Any]]]:
    """Batches of rows, some of them late."""
    now, parts = 100, []
    for _ in range(batches):
        now += lot.choice((0, 3, 10, 40))
        rows = [
            {"k": lot.choice(KEYS), "ts": max(0, now - lot.choice((0, 0, 2, 8, 25, 60))), "n": lot.randrange(10)}
            for _ in range(lot.choice((0, 1, 5, 25)))
        ]
        if clocks:
            rows += [{"k": key, "ts": now, "n": 0} for key in CLOCKS]
        parts.append(rows)
    return parts


@pytest.mark.parametrize("time", ["stream", "watermark"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_results_and_state_are_those_of_a_run_that_never_stopped(
    seed: int, rounds: int, windows: str, time: str
) -> None:
    lot = random.Random(seed)
    cases = topologies(windows, timed=time == "watermark")
    for topology in lot.sample(cases, min(len(cases), 2 * rounds)):
        check(lot, topology, time)


def check(lot: random.Random, topology: Any, time: str) -> None:
    """Compare a run that is rescaled at some batch with one that is not, batch by batch."""
    shards, into = lot.choice(CHANGES)
    batches = stream(lot, 9, clocks=time == "stream")
    cut = lot.randrange(1, 9)
    always, job = (Job(in_memory(), topology, time=time) for _ in range(2))
    always.start(shards)
    job.start(shards)
    # Kafka's sliding windows expire by the newest start of a window, of which each shard has its own.
    comparable = time == "watermark" or getattr(topology.windows, "flavour", "") != "kafka"
    watermark = 0
    for number, rows in enumerate(batches):
        if number == cut:
            before = job.rows()
            report = hs.rescale(job.location, "op", shards=into, accept_late=True)
            assert (report.done, report.unseen) == (True, 0)
            if comparable:
                assert report.expiring == 0
                assert job.rows() == before == always.rows()
            job.start(into)
        assert job.batch(rows, watermark) == always.batch(rows, watermark)
        watermark = max([watermark, *(row["ts"] - 20 for row in rows)])
    if comparable:
        assert job.rows() == always.rows()


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_child_of_a_split_does_what_its_parent_would_have_done_with_its_rows(
    seed: int, rounds: int, windows: str
) -> None:
    lot = random.Random(seed)
    cases = topologies(windows)
    for topology in lot.sample(cases, min(len(cases), 2 * rounds)):
        shards, into = lot.choice([(1, 2), (2, 4), (1, 3)])
        batches = stream(lot, 7, clocks=False)
        cut = lot.randrange(1, 6)
        job = Job(in_memory(), topology)
        job.start(shards)
        for rows in batches[:cut]:
            job.batch(rows)
        job.forget()
        twins = [twin_of(job, topology, shards) for _ in range(into)]
        hs.rescale(job.location, "op", shards=into)
        job.start(into)
        for rows in batches[cut:]:
            expected: list[dict[str, Any]] = []
            for child, twin in enumerate(twins):
                results = twin.batch([row for row in rows if shard_of(row["k"], into) == child])
                expected += [row for row in results if shard_of(row["k"], into) == child]
            # a parent without rows in a batch is not called, and neither is a child
            assert job.batch(rows) == sorted(expected, key=str)


def twin_of(job: Job, topology: Any, shards: int) -> Job:
    """Another job that is where this one is."""
    twin = Job(copied(job.location), topology)
    twin.number = job.number
    twin.start(shards)
    return twin
