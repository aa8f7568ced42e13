"""How long commits wait, under a limit of memory, for a checkpoint that must have been made before the room is used."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import hybridstore as hs
from hybridstore.state.checkpoint_job import Outcome
from hybridstore.state.checkpointer import Attempt, AttemptBeside, Target
from hybridstore.state.memory import Relief
from hybridstore.state.policy import Logged
from hybridstore.state.writer_process import WRITER

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")


def test_commits_wait_so_that_the_room_lasts_until_the_checkpoint_has_been_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    work = SimpleNamespace(process_time=lambda: clock, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr("hybridstore.state.memory.time", work)
    monkeypatch.setattr("hybridstore.state.checkpointer.time", work)
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, checkpoints, store = state._memory, state._checkpoints, state.key_value("k")
        store.put_many((i, "x" * 1000) for i in range(100))
        memory.relief(Logged(1, 100, 2000), renewed=True)
        # the limit has a million bytes for records, of which a tenth is used
        assert 700 < memory._room < 1000
        memory._room, memory._waited = 1000.0, clock

        def steady(records: int) -> float:
            return memory._steady(records, clock - memory._waited)

        assert steady(10) <= 0  # no checkpoint is in progress
        checkpoints._record_seconds = 1e-4
        attempt = Attempt(
            Target(state._home.storage, state._identity, 1, b"", state._log.position), [], Logged(records=10_000), list
        )
        checkpoints.attempt = attempt
        assert checkpoints.remaining() == 1.0
        assert steady(10) == pytest.approx(0.01)
        clock += 0.004
        assert steady(10) == pytest.approx(0.00996 - 0.004)  # what the commit has taken counts
        assert steady(1000) == pytest.approx(0.996 - 0.004)
        memory._unchecked = Logged(records=500)  # the room shrinks with what was logged since the count
        assert steady(5) == pytest.approx(0.00996 - 0.004)
        memory._unchecked = Logged(records=2000)
        assert steady(1) == pytest.approx(0.996 - 0.004)
        clock += 2.0  # late: a quarter of its time more
        assert checkpoints.remaining() == pytest.approx(2.004 / 4)
        checkpoints.attempt = None


def test_records_that_are_written_again_and_again_take_no_room(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, store = state._memory, state.key_value("k")

        def share(keys: range) -> float:
            store.put_many((f"key {i:04d}", b"x" * 100) for i in keys)
            memory.relief(Logged(100, 0, len(keys)), renewed=False)
            return memory._growth.share

        assert share(range(1000)) == 1.0  # nothing was counted before
        assert 0.8 < share(range(1000, 2000)) <= 1.0
        assert share(range(1000)) < 0.01
        assert 0.4 < share(range(1500, 2500)) < 0.6
        # so a commit of them waits for no checkpoint that is in progress
        target = Target(state._home.storage, state._identity, 1, b"", state._log.position)
        state._checkpoints.attempt = Attempt(target, [], Logged(records=10_000), list)
        state._checkpoints._record_seconds = 10.0
        assert memory._steady(1000, 0.0) > 1000
        share(range(1000))
        assert memory._steady(1000, 0.0) < 1000
        store.put_many((f"key {i:04d}", b"x" * 1000) for i in range(1000))  # but longer values do
        memory.relief(Logged(100, 0, 1000), renewed=False)
        assert memory._growth.share == 1.0
        state._checkpoints.attempt = None


def test_what_a_commit_has_taken_itself_is_part_of_its_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(work=100.0)
    times = SimpleNamespace(**vars(time) | {"thread_time": lambda: now.work, "process_time": lambda: 0.0})
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory = state._memory
        monkeypatch.setattr("hybridstore.state.memory.time", times)
        memory.slice()  # a commit begins
        memory._wait = 25e-6, 1.0
        monkeypatch.setattr(memory, "_steady", lambda *_: 0.5)
        assert memory._pause(1000) == 0.025
        now.work += 0.008
        assert memory._pause(1000) == pytest.approx(0.025 - 0.008)
        memory._wait = 0.0, 0.0
        assert memory._pause(1000) == pytest.approx(0.025 - 0.008)
        memory._wait = 5e-3, 5.0  # far beyond the limit
        assert memory._pause(1000) == pytest.approx(5.0 - 0.008)
        now.work += 6.0
        assert memory._pause(1000) < 0


@pytest.mark.parametrize("late", [False, True])
def test_a_checkpoint_that_would_be_late_begins_in_the_commit_in_which_the_state_becomes_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 1 << 40)
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, checkpoints, store = state._memory, state._checkpoints, state.suppression("s", max_records=10**6)
        monkeypatch.setattr(checkpoints, "late", lambda *_: late)
        store.put_many((i, "x" * 1000, i) for i in range(500))
        state.commit()
        assert checkpoints.attempt is not None
        checkpoints.attempt.join()
        store.put_many((i, "y" * 1000, i) for i in range(300))
        state.commit()
        assert memory._in_memory() == 300  # cold, but for what has changed since
        assert (checkpoints.attempt is not None) == late
        if not late:
            store.put_many((i, "z" * 1000, i) for i in range(400))
            state.commit()
            assert checkpoints.attempt is not None


def test_a_checkpoint_is_late_that_takes_longer_than_commits_that_wait_a_little_use_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, checkpoints = state._memory, state._checkpoints
        assert not memory._late  # nothing was counted
        memory._fits, memory._logged, memory._worked = 100_000.0, 1000, 0.015
        # begun behind another 1,000 records, it has 60 commits of 40 ms, up to 115 % of the limit
        for seconds, late in ((1.9, False), (2.0, True)):
            checkpoints.since, checkpoints._record_seconds = Logged(records=54_000), seconds / 55_000
            assert memory._late == late
        for records, late in ((10_000, False), (115_000, True)):
            checkpoints.since = Logged(records=records)
            assert memory._late == late


def test_the_commit_that_begins_a_checkpoint_waits_as_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(work=100.0)
    times = SimpleNamespace(**vars(time) | {"thread_time": lambda: now.work, "process_time": lambda: now.work})
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, checkpoints = state._memory, state._checkpoints
        monkeypatch.setattr("hybridstore.state.memory.time", times)
        target = Target(state._home.storage, state._identity, 1, b"", state._log.position)
        checkpoints.attempt = attempt = Attempt(target, [], Logged(records=10_000), list)
        waits: list[float] = []
        monkeypatch.setattr(attempt, "wait", lambda seconds: waits.append(round(seconds, 6)) or seconds)
        monkeypatch.setattr(checkpoints, "remaining", lambda: 0.2)
        memory.needed()
        memory.slice()
        memory._room, memory._worked = 10_000.0, 0.015
        memory.pause_begun(1000, 0.0)  # a tenth of 200 ms, less the time that the records took
        memory._room = 1000.0
        memory.pause_begun(1000, 0.0)
        now.work += 0.004
        memory._paused = 0.006  # before the checkpoint began
        memory.pause_begun(1000, 0.0)
        memory.pause_begun(1000, 0.007)  # in which the checkpoint's thread was started
        memory._paused = 0.025
        memory.pause_begun(1000, 0.0)
        checkpoints.attempt = None
        memory.pause_begun(1000, 0.0)
        assert waits == [0.005, 0.025, 0.015, 0.008]


def test_a_commit_that_begins_a_checkpoint_waits_less_by_the_time_for_which_that_has_stalled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(work=100.0, clock=5000.0)
    works = {name: lambda: now.work for name in ("thread_time", "process_time")}
    times = SimpleNamespace(**vars(time) | works | {"perf_counter": lambda: now.clock})
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, checkpoints = state._memory, state._checkpoints
        for name in ("memory", "in_place"):
            monkeypatch.setattr(f"hybridstore.state.{name}.time", times)
        target = Target(state._home.storage, state._identity, 1, b"", state._log.position)
        attempt = Attempt(target, [], Logged(records=10_000), list)
        waits: list[float] = []
        monkeypatch.setattr(attempt, "wait", lambda seconds: waits.append(round(seconds, 6)) or seconds)
        monkeypatch.setattr(checkpoints, "remaining", lambda: 0.2)
        monkeypatch.setattr(memory, "relief", lambda *_, **__: Relief.CHECKPOINT)

        def begin(log: object) -> None:
            checkpoints.attempt = attempt
            now.work += 0.004
            now.clock += 0.004 + 0.007  # for which its thread did not let this one go on

        monkeypatch.setattr(state, "_begin_checkpoint", begin)
        memory.needed()
        memory.slice()
        memory._room = 1000.0
        state._relieve(state._log, Logged(1, 0, 1000), renewed=False)
        assert waits == [0.014]
        checkpoints.attempt = None


def test_time_in_which_no_record_comes_in_is_not_time_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # stopped for an hour, as by a pause of its container, the process has worked for 10 ms
    now = SimpleNamespace(work=100.0, clock=5000.0)
    times = SimpleNamespace(**vars(time) | {"process_time": lambda: now.work, "monotonic": lambda: now.clock})
    monkeypatch.setattr("hybridstore.state.checkpointer.time", times)
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        checkpoints, store = state._checkpoints, state.key_value("k")
        target = Target(state._home.storage, state._identity, 1, b"", state._log.position)
        attempt = Attempt(target, [], Logged(records=10_000), list)
        now.work, now.clock = now.work + 0.01, now.clock + 3600.0
        assert attempt.seconds == pytest.approx(0.01)

        def join(seconds: float | None) -> None:
            now.clock += 0.02

        monkeypatch.setattr(attempt, "join", join)
        attempt.wait(0.03)  # more records would have come in
        assert attempt.seconds == pytest.approx(0.03)
        attempt.wait(0.005)  # the process was stopped meanwhile
        assert attempt.seconds == pytest.approx(0.035)
        # where the process did nothing meanwhile, the next one is expected to take as long as this one's work
        store.put(1, 1)
        state.commit()
        state.checkpoint(wait=True)
        assert checkpoints.last is not None
        assert checkpoints.reader is not None
        # and a faster one is believed little by little
        for busy, expected in ((40.0, 0.004), (20.0, 0.003)):
            attempt = Attempt(target, [], Logged(records=10_000), list)
            attempt.outcome = Outcome(checkpoints.last, reader=checkpoints.reader.twin(), busy=busy)
            checkpoints._take_over(attempt)
            assert checkpoints._record_seconds == pytest.approx(expected)


def test_commits_wait_for_the_start_of_the_process_little_by_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 1)
    monkeypatch.setattr("hybridstore.state.checkpointer._START_SECONDS", 1000.0)
    WRITER.kill("belonged to another test")
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        checkpoints, store = state._checkpoints, state.key_value("k")
        for starts in (True, False):
            store.put(1, starts)
            state.commit()
            state.checkpoint()
            assert (checkpoints.remaining() > 900) == starts
            attempt = checkpoints.attempt
            assert attempt is not None
            attempt._waited = attempt.start  # as if all of it had passed
            attempt.join()
            assert checkpoints.finish(wait=True) is not None
            assert checkpoints._record_seconds < 1  # a checkpoint does not take longer because of the start
            assert WRITER.ready


def test_the_process_says_how_long_it_has_worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 1)
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        state.key_value("k").put_many((i, "x" * 100) for i in range(1000))
        state.commit()
        state.checkpoint()
        attempt = state._checkpoints.attempt
        assert isinstance(attempt, AttemptBeside)
        attempt.join()
        assert attempt.outcome is not None
        assert attempt.outcome.busy > 0


@pytest.mark.parametrize("copies", [True, False])
def test_only_a_checkpoint_of_a_thread_counts_as_one_that_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        attempt = SimpleNamespace(copies=copies, running=True)
        with monkeypatch.context() as patch:
            patch.setattr(state._checkpoints, "attempt", attempt)
            assert state._memory.copying is (attempt if copies else None)
            attempt.running = False
            assert state._memory.copying is None
