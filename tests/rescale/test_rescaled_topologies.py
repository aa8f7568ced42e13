"""A query that is stopped at some batch and goes on with another number of shards makes the rows of one that never
stopped.

Stream time is each shard's own, so that what is late depends on the number of shards: where shards are to agree, a row
in each of them at the end of every batch brings their times together. A watermark does so by itself.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.shards import shard_of

pytest.importorskip("pyarrow")

from tests.tools.rescaled_jobs import Job, in_memory

WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (hs.TumblingWindows(20, grace=5), {}),
    "tumbling kept": (hs.TumblingWindows(20, grace=5), {"retention": 90}),
    "panes": (hs.HoppingWindows(20, 5, grace=10), {}),
    "sessions": (hs.SessionWindows(6, grace=9), {}),
    "sliding": (hs.SlidingWindows(30), {}),
    "sliding of kafka": (hs.SlidingWindows(12, grace=10, flavour="kafka"), {}),
}
KEYS = [f"k{number}" for number in range(30)]
CHANGES = [(1, 2), (2, 6), (3, 3 * 4), (4, 2), (2, 3), (5, 1)]


def topologies(name: str) -> list[Any]:
    """Windows with every emission and suppression that can be declared."""
    windows, options = WINDOWS[name]
    cases = []
    for emit in ("record", "commit", "close"):
        for suppression in (None, hs.until_time_limit(15), hs.until_window_closes()):
            try:
                topology = hs.stream(key="k", timestamp="ts").windowed_by(windows, **options)
                topology = topology.aggregate(count=hs.Count(), total=hs.Sum("n"), emit=emit)
                topology = topology if suppression is None else topology.suppress(suppression)
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
    cases = topologies(windows)
    for topology in lot.sample(cases, min(len(cases), 3 * rounds)):
        check(lot, topology, time)


def check(lot: random.Random, topology: Any, time: str) -> None:
    """Compare a run that is rescaled at some batch with one that is not, batch by batch."""
    shards, into = lot.choice(CHANGES)
    batches = stream(lot, 9, clocks=time == "stream")
    cut = lot.randrange(1, 9)
    always, job = (Job(in_memory(), topology, time=time) for _ in range(2))
    always.start(shards)
    job.start(shards)
    watermark = 0
    for number, rows in enumerate(batches):
        if number == cut:
            before = job.rows()
            report = hs.rescale(job.location, "op", shards=into, late=True)
            assert report.done
            assert (report.expiring, report.unseen) == (0, 0)
            assert job.rows() == before == always.rows()
            job.start(into)
        assert job.batch(rows, watermark) == always.batch(rows, watermark)
        watermark = max([watermark, *(row["ts"] - 20 for row in rows)])
    assert job.rows() == always.rows()
