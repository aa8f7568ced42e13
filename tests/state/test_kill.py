"""`kill -9` of a real writer at a random moment: what it acknowledged is there, and nothing that it did not commit.

The writer runs in a process of its own, commits small versions as fast as it can, with checkpoints in the background,
and says so after each. Under a limit, records are freed and read again, and lie in several dicts. Where a process
beside the writer makes the checkpoints, in pieces, it is killed at another moment, too.
With HYBRIDSTORE_STRESS=N there are 50 * N rounds; without, 4 on a disk, and 2 with that process or on an object store.
"""

import inspect
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash


def facts_of(number: int) -> Iterator[tuple[int, float | None]]:
    """What a version puts and deletes of some keys, of which there are 600."""
    for i in range(12):
        yield (number * 97 + i * i) % 600, None if i % 5 == 3 else number + i / 7


WRITER = (
    f"from __future__ import annotations\n{inspect.getsource(facts_of)}"
    + """
import json
import os
import signal
import sys
from datetime import timedelta
import hybridstore as hs
from hybridstore.state import checkpointer, memory, writer_process
from hybridstore.state.opening import Tuning
from hybridstore.state.writer_process import WRITER

beside = int(sys.argv[4])
if beside:
    checkpointer.BESIDE_RECORDS = checkpointer.RETRY_SECONDS = 0
    in_pieces = "from hybridstore.state import checkpoint_job; checkpoint_job.PIECE_RECORDS = 80"
    in_pieces += "; from recovery import finder_writer; finder_writer.FEWEST_RECORDS = 1"
    writer_process.PROGRAM = writer_process.PROGRAM.replace("main()", f"{in_pieces}; main()")
memory._FREED_ENTRIES = 16
# Checkpoints all the time, so that the kill often meets one.
policy = hs.CheckpointPolicy(max_restore=timedelta(hours=1), every_commits=7, keep=2)
settings = json.loads(sys.argv[3])
location = hs.Bucket(sys.argv[1], **settings) if settings else sys.argv[1]
state = hs.open(
    location, checkpoints=policy, memory_limit=int(sys.argv[2]) or None, _tuning=Tuning(8, 4000, 16)
)
counts, rows = state.key_value("counts"), state.window("rows", retention=500)
sums = state.sliding("sums", size=500, aggregator=hs.Sum())
facts, seen = state.key_value("facts"), state.key_value("seen", ttl=300)
number = counts.get("last") or 0
claims = state.version - number
known = dict(facts.all())
print("ready", number, flush=True)
while True:
    number += 1
    for i in range(10):
        rows.put(f"k{i % 3}", number, number * 10 + i)
    counts["last"] = number
    counts[f"step {number % 50}"] = number
    sums.add("k", number, number * 10 + 9)
    for key, value in facts_of(number):
        for asked in (key, key + 300):
            if facts.get(asked) != known.get(asked):
                raise SystemExit(f"fact {asked} is not {known.get(asked)}")
        facts.put(key, value)
        known[key] = value
        seen.put(key, value, number * 10)
    if number % 5 == 0:
        counts["never"] = number
        facts.clear()
        rows.put("never", number, number * 10 + 9)
        state.rollback()
        for i in range(10):
            rows.put(f"k{i % 3}", number, number * 10 + i)
        counts["last"] = number
        counts[f"step {number % 50}"] = number
        sums.add("k", number, number * 10 + 9)
        for key, value in facts_of(number):
            facts.put(key, value)
            seen.put(key, value, number * 10)
    if state.commit() != number + claims:
        raise SystemExit("a version is missing")
    beside -= 1
    if beside == 0 and WRITER.pid is not None:
        os.kill(WRITER.pid, signal.SIGKILL)
    sys.stdout.write(f"{number} {state.metrics().freed_records}\\n")
    sys.stdout.flush()
"""
)


def expected_facts(version: int, after: int = 0) -> dict[int, float]:
    """What versions behind `after` have put and not deleted."""
    facts = {key: value for number in range(after + 1, version + 1) for key, value in facts_of(number)}
    return {key: value for key, value in sorted(facts.items()) if value is not None}


def expected(version: int) -> tuple[dict[str, int], list[tuple[tuple[str, int], int]]]:
    """The stores after this version, from what the writer does."""
    counts = {f"step {number % 50}": number for number in range(1, version + 1)}
    counts["last"] = version
    newest = version * 10 + 9
    rows = [
        ((f"k{i % 3}", number * 10 + i), number)
        for number in range(max(1, version - 51), version + 1)
        for i in range(10)
        if number * 10 + i > newest - 500
    ]
    return counts, rows


def round_of(location: str, after: int, limit: int, options: dict[str, Any], beside: int) -> tuple[int, int, int]:
    """Start the writer, with a limit of memory unless that is 0, kill it when it has acknowledged `after` commits, and
    return how many commits there were before, and with those that it has acknowledged, and how many records it has
    freed. The process beside it is killed after `beside` commits (0: a thread makes the checkpoints).
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, location, str(limit), json.dumps(options), str(beside)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None
    with writer.stdout as out:
        first = int(out.readline().split()[1])
        lines = [f"{first} 0\n", *(out.readline() for _ in range(after))]
        writer.send_signal(signal.SIGKILL)
        lines += out.read().splitlines(keepends=True)
    assert writer.wait() == -signal.SIGKILL
    last, freed = map(int, [line for line in lines if line.endswith("\n")][-1].split())
    return first, last, freed


def killed_again_and_again(
    location: str, kills: int, seed: int, limit: int, options: dict[str, Any], *, process: bool = False
) -> None:
    """Kill writers of one state; after each, the state has all that was acknowledged, and at most one commit more."""
    dice = random.Random(seed)
    reached = least = all_freed = 0
    for _ in range(kills):
        # a process beside the writer takes its time to start
        after, beside = dice.randint(0, 40), 0
        if process:
            after = dice.randint(40, 200)
            beside = dice.randint(1, 2 * after)
        first, acknowledged, freed = round_of(location, after, limit, options, beside)
        assert first == reached
        least += after
        all_freed += freed
        with hs.open(hs.Bucket(location, **options) if options else location) as state:
            reached = state.key_value("counts").get("last") or 0
            assert reached in (acknowledged, acknowledged + 1)
            assert state.restore_report.skipped == []
            counts, rows = expected(reached)
            if reached:
                assert dict(state.key_value("counts").all()) == counts
                assert list(state.window("rows", retention=500).all()) == rows
                facts, seen = state.key_value("facts"), state.key_value("seen", ttl=300)
                assert dict(facts.all()) == expected_facts(reached)
                assert len(facts) == len(expected_facts(reached))
                assert dict(seen.all()) == expected_facts(reached, max(0, reached - 30))
                window = state.sliding("sums", size=500, aggregator=hs.Sum()).get("k")
                assert window is not None
                assert window[3] == sum(range(max(1, reached - 50), reached + 1))
            check_stores(state)
            if dice.random() < 0.5:
                crash(state)
    assert reached >= least
    assert all_freed or not (limit and STRESS)


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("limit", [0, 1], ids=["in memory", "under a limit"])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int, rounds: int, limit: int) -> None:
    killed_again_and_again(str(tmp_path / "state"), 50 * rounds if STRESS else 4, seed, limit, {})


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("limit", [0, 1], ids=["in memory", "under a limit"])
def test_a_writer_and_the_process_beside_it_are_killed_and_nothing_acknowledged_is_lost(
    tmp_path: Path, seed: int, rounds: int, limit: int
) -> None:
    location, kills = str(tmp_path / "state"), 50 * rounds if STRESS else 2
    killed_again_and_again(location, kills, seed, limit, {}, process=True)


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("limit", [0, 1], ids=["in memory", "under a limit"])
def test_a_writer_killed_on_an_object_store_loses_nothing_that_it_acknowledged(
    tmp_path: Path, seed: int, rounds: int, limit: int
) -> None:
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        options = {"cache": str(tmp_path / "cache"), **server.options}
        killed_again_and_again(server.url("killed"), 50 * rounds if STRESS else 2, seed, limit, options)
