"""Start of the writer process under a limit of memory, before its first job; and its end, beside that of its owner."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.checkpoint_job import Job
from hybridstore.state.policy import Logged
from hybridstore.state.writer_process import PROGRAM, WRITER, Pending, WriterProcess, framed

NEVER = hs.CheckpointPolicy(max_restore="1 day")


@pytest.fixture(autouse=True)
def no_process() -> Iterator[None]:
    """A process of another test is ended before, and none remains."""
    WRITER.kill("belonged to a test")
    WRITER._users.clear()  # states that other tests left open would keep the process
    yield
    pid = WRITER.pid
    WRITER.kill("belonged to a test")
    assert pid is None


def opened(path: Path, limit: int) -> hs.State:
    return hs.open(path, durability="os", memory_limit=limit, checkpoints=NEVER)


def checkpoint(state: hs.State) -> None:
    state.checkpoint()
    state._checkpoints.finish(wait=True)
    assert state._checkpoints.failure is None


def test_under_a_limit_the_process_waits_for_its_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 8 * 4 * 3900)
    with opened(tmp_path, 30_000_000) as state:  # 18 MB of it are for records

        def put(first: int, last: int) -> int | None:
            state.key_value("kv").put_many((i, "x" * 10_000) for i in range(first, last))
            state.commit()
            state._memory.relief(Logged(), renewed=True)
            return WRITER.pid

        assert put(0, 200) is None
        # more than 20 %, but so few KiB that a thread will make the checkpoint
        assert put(200, 398) is None
        assert state._memory.counted > 3_800_000
        pid = put(398, 400)
        assert pid is not None
        (thread,) = [each for each in threading.enumerate() if each.name == "hybridstore-writer"][-1:]
        assert state._checkpoints.attempt is None
        monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
        checkpoint(state)
        assert (WRITER.pid, state.metrics().checkpoints_by_writer_process) == (pid, 1)
    thread.join()  # waits for the process


def test_under_a_limit_the_process_makes_the_checkpoints_of_few_large_records(tmp_path: Path) -> None:
    with opened(tmp_path, 30_000_000) as state:
        for size, by_process in (1_000, 0), (100_000, 1):
            state.key_value("kv").put_many((i, "x" * size) for i in range(20))
            state.commit()
            checkpoint(state)
            assert state.metrics().checkpoints_by_writer_process == by_process


def test_while_the_process_starts_a_thread_makes_small_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WriterProcess, "_started", lambda *_: None)
    with opened(tmp_path, 1 << 40) as state:

        def by_process(records: int, size: int) -> int:
            state.key_value("kv").put_many((i, "x" * size) for i in range(records))
            state.commit()
            checkpoint(state)
            return state.metrics().checkpoints_by_writer_process

        WRITER.start(state._checkpoints)
        assert by_process(1000, 10) == 0
        assert by_process(1000, 2000) == 1  # what a thread copies is beside the limit
        assert by_process(4096, 10) == 2
        WRITER.ready = True
        assert by_process(1000, 10) == 3


@pytest.mark.parametrize("asked", [None, "3"])
def test_numpy_starts_no_threads_in_the_process_unless_the_user_asks(
    monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked)
    environments, spawn = [], os.posix_spawn

    def noted(path: str, arguments: list[str], environment: Mapping[str, str], **rest: Any) -> int:
        environments.append(dict(environment))
        return spawn(path, arguments, environment, **rest)

    monkeypatch.setattr(os, "posix_spawn", noted)
    process = WriterProcess()
    process.start(process)
    process.kill("has been looked at")
    assert [environment["OPENBLAS_NUM_THREADS"] for environment in environments] == [asked or "1"]


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_under_a_limit_the_process_makes_smaller_checkpoints(tmp_path: Path, limit: int | None) -> None:
    with hs.open(tmp_path, durability="os", memory_limit=limit, checkpoints=NEVER) as state:
        for records in (512, 511):
            state.key_value("kv").put_many((i, records) for i in range(records))
            state.commit()
            checkpoint(state)
        numbers = state.metrics()
        assert (numbers.checkpoints_written, numbers.checkpoints_by_writer_process) == (2, 0 if limit is None else 1)


def test_under_a_limit_a_process_that_cannot_be_started_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    with opened(tmp_path, 3_000_000) as state:  # 1 MB of it is for records
        for turn in range(3):
            state.key_value("kv").put_many((i, f"{turn}" * 5000) for i in range(45))
            state.commit()
            state._memory.relief(Logged(), renewed=True)
        checkpoint(state)
        assert (state.metrics().failures_of_writer_process, state.metrics().failed_checkpoints) == (1, 0)
    assert [line.count("because no process starts") for line in caplog.messages] == [1]


def test_a_process_that_was_killed_a_moment_before_its_job_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    with opened(tmp_path, 1 << 40) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        checkpoint(state)
        first = WRITER.pid
        assert first is not None
        assert WRITER._link is not None
        state.key_value("kv")["a"] = 2
        state.commit()
        with WRITER._lock:  # the thread that listens cannot say that it has ended
            os.kill(first, signal.SIGKILL)
            ended = select.poll()
            ended.register(WRITER._link, select.POLLHUP)
            ended.poll()
            state.checkpoint()
        state._checkpoints.finish(wait=True)
        assert state._checkpoints.failure is None
        assert WRITER.pid not in (None, first)
        numbers = state.metrics()
        assert (numbers.checkpoints_by_writer_process, numbers.failures_of_writer_process) == (2, 0)
        threads = [each for each in threading.enumerate() if each.name == "hybridstore-writer"]
    for thread in threads:
        thread.join()  # waits for the process


def test_a_process_whose_owner_has_ended_before_its_answer_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    def give(self: WriterProcess, job: Job, *_: object) -> Pending:
        jobs.append(job)
        return Pending(self, lambda outcome: outcome)

    monkeypatch.setattr(WriterProcess, "give", give)
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    state = opened(tmp_path, 1 << 40)
    state.key_value("kv")["a"] = 1
    state.commit()
    state.checkpoint()
    state._abandon()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_RD)  # no answer can be sent, and the process has not heard yet that nobody is there
        ours.sendall(framed([1, *jobs[0].packed()]))
        command = [sys.executable, "-c", PROGRAM, *sys.path]
        ended = subprocess.run(command, stdin=theirs.fileno(), capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
