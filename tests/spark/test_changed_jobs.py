"""A topology that changes between two starts of a query, without Spark: processes that end at any write, the watermark
as the time, a rescale afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

import hybridstore as hs
from hybridstore.spark.operator_file import read_chain
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.memory_storage import MemoryStorage
from tests.tools.watched_storage import Killed, Killer

pytest.importorskip("pyarrow")

from tests.tools.rescaled_jobs import Job, in_memory

SELDOM = CheckpointPolicy(every_commits=1000)
WINDOWS = hs.TumblingWindows(300, grace=100)
STREAM = hs.stream(key="k", timestamp="ts").windowed_by(WINDOWS)
OLD = STREAM.aggregate(n=hs.Count(), total=hs.Sum("n"))
NEW = STREAM.aggregate(most=hs.Max("n"), n=hs.Count())
WORDS = ("drop aggregate total", "add aggregate most from now")
# Only what is lossless, so that a job which was the new one always has the same results.
FEWER = STREAM.aggregate(n=hs.Count())
FEWER_WORDS = ("drop aggregate total",)
SHARDS = 2


def rows_of(batch: int) -> list[dict[str, Any]]:
    return [{"k": f"k{number}", "ts": batch * 100 + number % 7, "n": number} for number in range(6)]


def begun(batches: int = 3, program: Any = OLD, **options: Any) -> Job:
    """A job that has done some batches and was stopped."""
    job = Job(in_memory(), program, **options)
    job.start(SHARDS)
    for batch in range(batches):
        job.batch(rows_of(batch), 100 * batch)
    job.forget()
    return job


def go_on(job: Job, program: Any, words: tuple[str, ...]) -> dict[int, list[dict[str, Any]]]:
    """Start the job with a program and do the batches up to the sixth; return their results by batch."""
    job.change(program, *words)
    job.start(SHARDS)
    # the first batch of the new program has rows for one shard only
    return {batch: job.batch(rows_of(batch)[: 1 if batch == 3 else 6]) for batch in range(job.number, 6)}


@pytest.mark.parametrize("behind", [False, True])
def test_a_crash_at_any_write_of_a_change_leaves_the_old_program_or_the_new_one(behind: bool) -> None:
    expected = begun(policy=SELDOM)
    results = go_on(expected, NEW, WORDS)
    prepared = begun(policy=SELDOM)
    storage: MemoryStorage = prepared.location.storage  # type: ignore[attr-defined]
    saved = dict(storage.objects)
    killer, at, standing = Killer(0, behind=False), 0, set()
    while killer.writes >= at:
        at += 1
        killer = Killer(at, behind=behind)
        disk = MemoryStorage(dict(saved), storage.base)
        job = Job(in_memory(killer, disk), OLD, policy=SELDOM)
        job.number = prepared.number
        try:
            go_on(job, NEW, WORDS)
        except Killed:
            assert killer.writes == at
        done = job.number
        job = Job(in_memory(storage=disk), OLD, policy=SELDOM)
        job.number = done
        chain = read_chain(job.location.operator("op"))
        standing.add(len(chain))
        if len(chain) == 1:
            # nothing says that there was another program
            job.start(SHARDS)
        assert go_on(job, NEW, WORDS) == {batch: rows for batch, rows in results.items() if batch >= done}
        assert job.rows() == expected.rows()
    # the description is what is written first
    assert standing == ({2} if behind else {1, 2})


def test_a_change_by_watermark_is_exact_in_windows_that_had_begun() -> None:
    old = STREAM.aggregate(n=hs.Count(), total=hs.Sum("n"), emit="close")
    new = STREAM.aggregate(n=hs.Count(), emit="close")
    job, always = begun(program=old, time="watermark"), begun(program=new, time="watermark")
    job.change(new, *FEWER_WORDS)
    for each in (job, always):
        each.start(SHARDS)
    finals = []
    for batch in range(3, 12):
        rows = rows_of(batch)[: 1 if batch == 3 else 6] if batch < 8 else []
        results = job.batch(rows, 100 * batch)
        assert results == always.batch(rows, 100 * batch)
        finals += results
    assert {row["window_start"] for row in finals} >= {0, 300, 600}
    assert job.rows() == always.rows()


@pytest.mark.parametrize(("into", "back"), [(4, False), (1, False), (4, True)])
def test_the_state_of_a_changed_program_is_rescaled(into: int, back: bool) -> None:
    job, always = begun(), begun(program=FEWER)
    job.change(FEWER, *FEWER_WORDS)
    for each in (job, always):
        each.start(SHARDS)
    assert job.batch(rows_of(3)) == always.batch(rows_of(3))
    job.forget()
    assert hs.rescale(job.location, "op", shards=into, accept_late=True).done
    if back:
        hs.rescale(job.location, "op", back=True)
    job.start(SHARDS if back else into)
    for batch in range(4, 8):
        assert job.batch(rows_of(batch)) == always.batch(rows_of(batch))
    assert job.rows() == always.rows()
    # and changes once more
    job.change(NEW, "add aggregate most from now")
    job.start(SHARDS if back else into)
    assert {row["most"] for row in job.batch(rows_of(9))} == set(range(6))
