"""Checkpoints of the writer process: those that a thread makes; and what dies, hangs or outlives its owner."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hybridstore as hs
from changelog.codec import pack, unpack
from changelog.files import Files
from hybridstore.state import checkpoint_job, writer_process
from hybridstore.state.checkpoint_job import Job, KeptPacks, Outcome, make
from hybridstore.state.lock import DirectoryLock, read_note
from hybridstore.state.opening import Tuning
from hybridstore.state.writer_process import WRITER, Pending, WriterProcess
from recovery import finder_writer
from recovery.checkpoint import CheckpointReader
from recovery.compaction import Sizes
from tests.conftest import STRESS
from tests.tools.checkpoints import verify
from tests.tools.hooks import check_stores, crash

SMALL = Tuning(8, 4000, 16, 4, Sizes(page_lines=4, most_packs=8, large_bytes=6000))
Then = Callable[[Outcome], Outcome]
NEVER = hs.CheckpointPolicy(max_restore="1 day")

# The process, but for a file system that kills it at the change with the number `{at}`.
KILLED = """
import os, signal, sys
sys.path[:] = sys.argv[1:]
from changelog.files import Files
from hybridstore.state import checkpoint_job
from hybridstore.state.writer_process import main

class Killing(Files):
    changes = 0

    def __getattribute__(self, name):
        if name in ("create", "append", "mkdir", "link", "sync_path", "sync_directory", "remove"):
            Killing.changes += 1
            if Killing.changes == {at}:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getattribute__(name)

checkpoint_job.Files = Killing
checkpoint_job.PIECE_RECORDS = {piece}
main()
"""


@pytest.fixture(autouse=True)
def small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every checkpoint in the background is one for a new process; none waits after a failure."""
    end_all()
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    monkeypatch.setattr("hybridstore.state.checkpointer.RETRY_SECONDS", 0.0)
    yield
    pid, users = WRITER.pid, list(WRITER._users)
    end_all()
    assert (pid, users) == (None, [])


def end_all() -> None:
    WRITER.kill("belonged to a test")
    WRITER._users.clear()
    for thread in threading.enumerate():
        if thread.name == "hybridstore-writer":
            thread.join()


def listener() -> threading.Thread:
    """The thread that waits for the newest process: it ends after the process has."""
    return [thread for thread in threading.enumerate() if thread.name == "hybridstore-writer"][-1]


def opened(path: Path, limit: int | None = None) -> hs.State:
    return hs.open(path, durability="os", memory_limit=limit, checkpoints=NEVER, _tuning=SMALL)


def checkpoint(state: hs.State) -> str | None:
    """Make a checkpoint in the background, and return its failure."""
    state.checkpoint()
    state._checkpoints.finish(wait=True)
    return None if state._checkpoints.failure is None else str(state._checkpoints.failure)


def names(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


# --- what it makes ----------------------------------------------------------------------------------------------------


class Stores:
    """One of two states with the same stores, of all kinds, that get the same changes."""

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path, self.limit = path, limit
        self.open()

    def open(self) -> None:
        self.state = state = opened(self.path, self.limit)
        self.kv = state.key_value("kv")
        self.ttl = state.key_value("ttl", ttl=300)
        self.window = state.window("w", retention=400)
        self.duplicates = state.window("d", retention=400, retain_duplicates=True)
        self.session = state.session("s", retention=400)
        self.sliding = state.sliding("l", size=300, aggregator=hs.Collect())
        self.buffer = state.suppression("b", max_records=40, time_limit=200, timer="first")

    def change(self, kind: int, key: str, number: int, ts: int) -> None:
        changes: list[Callable[[], object]] = [
            lambda: self.kv.put(key, number),
            lambda: self.kv.delete(key),
            lambda: self.ttl.put(key, number, ts),
            lambda: self.window.put(key, number, ts),
            lambda: self.window.delete(key, ts - number % 20),
            lambda: self.duplicates.put(key, number, ts),
            lambda: self.session.put(key, number, start=ts, end=ts + number % 9),
            lambda: [self.session.delete(*place) for place, _ in list(self.session.find_sessions(key))[:1]],
            lambda: self.sliding.add(key, number, ts),
            lambda: self.buffer.put(key, number, ts),
            lambda: list(self.buffer.advance(ts)),
        ]
        changes[kind % len(changes)]()

    def contents(self) -> list[Any]:
        rows = [list(each.all()) for each in (self.kv, self.ttl, self.window, self.duplicates, self.session)]
        buffer = [list(self.buffer.buffered()), [row[1:] for row in self.buffer.emitted()]]
        return [*rows, list(self.sliding.all()), *buffer, self.state.settings]


class AtOnce:
    """Makes checkpoints as the process makes them, but here; while `fails`, none."""

    fails = False
    opened = KeptPacks()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    work = AtOnce()

    def give(self: WriterProcess, job: Job, user: object, then: Then) -> Pending:
        pending, again = Pending(self, then), Job.of(unpack(pack(job.packed())))
        assert again == job
        outcome = Outcome(None, OSError("planned")) if work.fails else make(again, lambda: None, work.opened)
        pending.end(Outcome.of(unpack(pack(outcome.packed()))))
        return pending

    monkeypatch.setattr(WriterProcess, "give", give)
    return work


@pytest.mark.stress
@pytest.mark.parametrize(
    ("limit", "piece"), [(None, 150_000), (1, 150_000), (None, 12)], ids=["in memory", "under a limit", "in pieces"]
)
def test_a_state_whose_checkpoints_are_made_beside_is_that_of_a_twin(
    tmp_path: Path,
    at_once: AtOnce,
    seed: int,
    rounds: int,
    limit: int | None,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_job, "PIECE_RECORDS", piece)
    monkeypatch.setattr(finder_writer, "FEWEST_RECORDS", 1)
    for turn in range(rounds):
        dice = random.Random(seed + turn)
        beside, twin = Stores(tmp_path / f"beside {turn}", limit), Stores(tmp_path / f"twin {turn}", None)
        now, written = 1000, 0
        for step in range(600):
            now += dice.choice((0, 0, 1, 4))
            kind, key, ts = dice.randrange(11), f"k{dice.randrange(40):02}", now - dice.choice((0, 0, 0, 20, 90))
            beside.change(kind, key, step, ts)
            twin.change(kind, key, step, ts)
            if dice.random() < 0.1:
                for each in (beside, twin):
                    each.state.set("step", step)
                    each.state.commit()
                choice = dice.random()
                if choice < 0.2:
                    at_once.fails = True
                    assert "planned" in (checkpoint(beside.state) or "planned")
                    at_once.fails = False
                elif choice < 0.5:
                    assert checkpoint(beside.state) is None
                elif choice < 0.6:
                    beside.state.checkpoint(wait=True)
                check_stores(beside.state)
                assert beside.contents() == twin.contents(), (seed + turn, step)
                if dice.random() < 0.2:
                    written += beside.state.metrics().checkpoints_by_writer_process
                    crash(beside.state)
                    assert list(verify(beside.path, decode=True)) == []
                    beside.open()
                    check_stores(beside.state)
                    if dice.random() < 0.5:
                        assert beside.contents() == twin.contents(), (seed + turn, step)
        assert written > 0
        beside.state.close()
        twin.state.close()


def test_the_process_makes_checkpoints_and_ends_with_the_last_state(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        pids = set()
        for turn in range(3):
            for state in (a, b):
                for i in range(100):
                    state.key_value("kv")[f"k{i % (30 + turn)}"] = f"{turn} {i}"
                state.commit()
                assert checkpoint(state) is None
                pids.add(WRITER.pid)
        assert len(pids) == 1
        thread = listener()
        assert a.metrics().checkpoints_by_writer_process == 3
        assert a.metrics().failures_of_writer_process == 0
        right = dict(a.key_value("kv").all())
    thread.join()  # waits for the process
    with opened(tmp_path / "a") as a:
        assert a.restore_report.tail_versions == 0
        assert dict(a.key_value("kv").all()) == right


def test_an_answer_that_arrives_before_the_job_is_known_to_be_sent_is_taken() -> None:
    process = WriterProcess()

    class AnswersAtOnce:
        def send(self, data: bytes, flags: int) -> int:
            process._answered(1, Outcome(None, OSError("planned")))
            return len(data)

    process._link = cast(socket.socket, AnswersAtOnce())
    job = cast(Job, SimpleNamespace(packed=list))
    pending = process.give(job, process, lambda outcome: outcome)
    assert pending.done.is_set()
    assert pending.outcome is not None
    assert "planned" in str(pending.outcome.error)


def test_small_checkpoints_and_those_that_a_caller_waits_for_are_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        state.checkpoint(wait=True)
        state.key_value("kv")["a"] = 2
        state.commit()
        monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 4096)
        assert checkpoint(state) is None
        monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
        monkeypatch.setattr("sys.executable", "/usr/bin/uwsgi")  # a program that has swallowed its interpreter
        state.key_value("kv")["a"] = 3
        state.commit()
        assert checkpoint(state) is None
        assert (state.metrics().checkpoints_written, state.metrics().checkpoints_by_writer_process) == (3, 0)


# --- what dies, hangs or outlives its owner ---------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [150_000, 12], ids=["whole", "in pieces"])
def test_a_process_killed_at_any_write_fails_one_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    right: dict[str, int] = {}
    state = opened(tmp_path)
    at, died = 1, 0
    while True:
        monkeypatch.setattr(writer_process, "PROGRAM", KILLED.format(at=at, piece=piece))
        for i in range(20):
            right[f"k{(at + 7 * i) % 50}"] = state.key_value("kv")[f"k{(at + 7 * i) % 50}"] = at
            if i % 5 == 4:
                state.commit()
        failure = checkpoint(state)
        if WRITER.pid is not None:
            thread = listener()
            WRITER.leave(state._checkpoints)
            thread.join()
        if failure is None:
            break
        assert "ended with status -9" in failure
        died += 1
        assert state.metrics().failures_of_writer_process == died
        right["next"] = state.key_value("kv")["next"] = at
        state.commit()
        assert dict(state.key_value("kv").all()) == right
        if died % 2:
            assert checkpoint(state) is None  # written here
            assert state.metrics().failures_of_writer_process == died
        else:
            crash(state)
            assert list(verify(tmp_path, decode=True)) == []
            state = opened(tmp_path)
            died = 0
            assert dict(state.key_value("kv").all()) == right
        at += 1 if STRESS else 4
    assert at > 12
    state.close()
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
    with opened(tmp_path) as state:
        assert dict(state.key_value("kv").all()) == right


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_process, "PROGRAM", "import signal; signal.pause()")
    with opened(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        state.checkpoint()
        state._checkpoints.finish(wait=False)
        assert state._checkpoints.attempt is not None  # no commit waits for it
        thread = listener()
        monkeypatch.setattr(writer_process, "PATIENCE_SECONDS", 0.0)
        state._checkpoints.finish(wait=False)
        assert "said nothing" in str(state._checkpoints.failure)
        thread.join()
        state.key_value("kv")["a"] = 2
        state.commit()
        assert checkpoint(state) is None  # written here
        assert state.metrics().checkpoints_by_writer_process == 0
    with opened(tmp_path) as state:
        assert state.key_value("kv")["a"] == 2


def test_where_no_process_can_be_started_a_thread_makes_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with opened(tmp_path) as state:
        for turn in range(3):
            state.key_value("kv")["a"] = turn
            state.commit()
            assert checkpoint(state) is None
        numbers = state.metrics()
        assert (numbers.checkpoints_written, numbers.failed_checkpoints) == (3, 0)
        assert (numbers.checkpoints_by_writer_process, numbers.failures_of_writer_process) == (0, 1)
    assert [line.count("because no process starts") for line in caplog.messages] == [1]


def test_what_outlives_its_owner_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    pending: list[Pending] = []

    def give(self: WriterProcess, job: Job, user: object, then: Then) -> Pending:
        jobs.append(job)
        pending.append(Pending(self, then))
        return pending[-1]

    monkeypatch.setattr(WriterProcess, "give", give)
    with opened(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        state.checkpoint()
        before = names(tmp_path)
        (job,) = jobs
        # the next owner is another process
        other = job._replace(holder=job.holder._replace(pid=job.holder.pid + 1))
        assert "found another holder" in str(make(other, lambda: None).error)
        assert names(tmp_path) == before
        wrong = make(job._replace(digest=bytes(16)), lambda: None)
        assert "the changelog is of another line" in str(wrong.error)
        assert names(tmp_path) == before
        pending[0].end(Outcome(None, OSError("ended")))
    closed = names(tmp_path)
    # the owner has closed the state
    assert "found another holder" in str(make(job, lambda: None).error)
    assert names(tmp_path) == closed


def test_what_outlives_its_owner_ends_when_the_next_one_takes_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    def give(self: WriterProcess, job: Job, user: object, then: Then) -> Pending:
        jobs.append(job)
        return Pending(self, then)

    monkeypatch.setattr(WriterProcess, "give", give)
    state = opened(tmp_path)
    state.key_value("kv")["a"] = 1
    state.commit()
    before = read_note(tmp_path)
    state.checkpoint()
    state._abandon()
    files = names(tmp_path)
    # of the same process and second, and before it has restored anything
    lock = DirectoryLock(tmp_path)
    assert "found another holder" in str(make(jobs[0], lambda: None).error)
    assert names(tmp_path) == files
    assert lock.segment == read_note(tmp_path)["segment"] == before["segment"]
    lock.release()
    with opened(tmp_path) as state:
        assert state.key_value("kv")["a"] == 1


def test_a_state_whose_process_fails_again_and_again_does_without(
    tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.RETRY_SECONDS", 1e9)
    policy = hs.CheckpointPolicy(every_commits=1)
    at_once.fails = True
    with hs.open(tmp_path, durability="os", checkpoints=policy, _tuning=SMALL) as state:
        for turn in range(20):
            state.key_value("kv")["a"] = turn
            state.commit()
            state._checkpoints.finish(wait=True)
        numbers = state.metrics()
        assert numbers.failures_of_writer_process == 3
        assert numbers.checkpoints_written == 17  # by a thread, and no commit has to wait for the next try


def test_an_owner_that_takes_over_in_the_middle_of_a_checkpoint_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    def give(self: WriterProcess, job: Job, user: object, then: Then) -> Pending:
        jobs.append(job)
        return Pending(self, then)

    monkeypatch.setattr(WriterProcess, "give", give)
    state = opened(tmp_path)
    for turn in range(3):
        state.key_value("kv")["a"] = turn
        state.commit()
        state.checkpoint(wait=True)
    state.key_value("kv")["a"] = 3
    state.commit()
    state.checkpoint()
    taken = False

    class Overtaken(Files):
        """Another owner takes the directory over behind the first new file, and has a temporary file."""

        def link(self, temporary: Path, final: Path) -> None:
            nonlocal taken
            super().link(temporary, final)
            if not taken:
                taken = True
                lock = state._home._lock  # type: ignore[attr-defined]
                lock._note({"pid": os.getpid() + 1, "host": "this", "since": "now", "segment": 1})
                (tmp_path / "packs" / ".0123.tmp").write_bytes(b"of the next owner")

    monkeypatch.setattr(checkpoint_job, "Files", Overtaken)
    outcome = make(jobs[0], lambda: None)
    assert taken
    assert "found another holder" in str(outcome.error)
    assert (tmp_path / "packs" / ".0123.tmp").exists()
    assert list(verify(tmp_path, decode=True)) == []
    state._abandon()


def test_a_forked_child_leaves_the_process_to_its_parent(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        assert checkpoint(state) is None
        pid = WRITER.pid
        assert pid is not None
        link = WRITER._link
        assert link is not None
        child = os.fork()
        if not child:
            # with the socket open, the process would outlive its owner by the child
            os._exit(0 if WRITER.pid is None and not list(WRITER._users) and link.fileno() == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        state.key_value("kv")["a"] = 2
        state.commit()
        assert checkpoint(state) is None
        assert WRITER.pid == pid
        thread = listener()
        os.kill(pid, signal.SIGKILL)
        thread.join()
        state.key_value("kv")["a"] = 3
        state.commit()
        assert checkpoint(state) is None  # another process
        assert WRITER.pid not in (None, pid)
        assert state.metrics().checkpoints_by_writer_process == 3


def test_the_answers_of_a_process_that_has_written_and_pruned_are_lost(
    tmp_path: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    given = WriterProcess.give

    def lose(self: WriterProcess, job: Job, user: object, then: Then) -> Pending:
        outcome = given(self, job, user, then).outcome
        assert getattr(outcome, "report", None) is not None
        lost = Pending(self, then)
        lost.end(Outcome(None, OSError("ended")))
        return lost

    monkeypatch.setattr(WriterProcess, "give", lose)
    monkeypatch.setattr(checkpoint_job, "PIECE_RECORDS", 12)  # half of the checkpoints are in pieces
    dice = random.Random(seed)
    right: dict[str, int] = {}
    state = opened(tmp_path)
    for turn in range(100):
        changed = {f"k{dice.randrange(400):03}": turn for _ in range(dice.choice((1, 3, 30, 200)))}
        right.update(changed, last=turn)
        for rows in sorted(changed.items()), [("last", turn)]:
            state.key_value("kv").put_many(rows)
            state.commit()
        failure = checkpoint(state)
        # the next one, by a thread, builds on what the owner knows: all its packs are there
        assert (failure is None) == (turn % 2 == 1), failure
        state._checkpoints._failed_in_a_row = 0
    crash(state)
    assert list(verify(tmp_path, decode=True)) == []
    with opened(tmp_path) as state:
        assert dict(state.key_value("kv").all()) == right


def test_a_state_that_keeps_one_checkpoint_does_without_the_process(tmp_path: Path) -> None:
    policy = hs.CheckpointPolicy(max_restore="1 day", keep=1)
    with hs.open(tmp_path, durability="os", checkpoints=policy, _tuning=SMALL) as state:
        state.key_value("kv")["a"] = 1
        state.commit()
        assert checkpoint(state) is None
        assert (state.metrics().checkpoints_written, state.metrics().checkpoints_by_writer_process) == (1, 0)


@pytest.mark.parametrize("records", [0, 10**9], ids=["by the process", "by a thread"])
def test_a_checkpoint_is_opened_beside_the_commits_and_one_that_cannot_be_opened_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", records)
    owner, threads = threading.get_ident(), []
    broken = False

    class Opened(CheckpointReader):
        def __init__(self, *given: Any, **named: Any) -> None:
            threads.append(threading.get_ident())
            if broken:
                raise OSError("planned")
            super().__init__(*given, **named)

    monkeypatch.setattr(checkpoint_job, "CheckpointReader", Opened)
    with opened(tmp_path) as state:
        kv = state.key_value("kv")
        for turn in range(4):
            kv["a"] = turn
            state.commit()
            state.checkpoint()
            attempt = state._checkpoints.attempt
            assert attempt is not None
            attempt.join()
            before = len(threads)
            kv["b"] = turn
            state.commit()  # takes it over
            assert state._checkpoints.version == 2 * turn + 1
            assert len(threads) == before == turn + 1
        assert owner not in threads
        broken = True
        assert "planned" in str(checkpoint(state))
        assert state._checkpoints.version == 7
        broken = False
        assert checkpoint(state) is None  # of the same version: its changes count again
        assert state._checkpoints.version == state.version == 8
        assert owner not in threads
    with opened(tmp_path) as state:
        assert dict(state.key_value("kv").all()) == {"a": 3, "b": 3}


def test_the_thread_that_waits_for_answers_keeps_nothing_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the lock of a state that was collected without a close would stay, as long as another state is open."""
    process = WriterProcess()
    process._pending[1] = Pending(process, lambda outcome: outcome)
    job, kept = weakref.ref(process._pending[1]), []

    def received(link: socket.socket) -> Iterator[list[Any]]:
        yield [1, Outcome(None, OSError("planned")).packed()]
        gc.collect()
        kept.append(job())

    monkeypatch.setattr("hybridstore.state.writer_process.received", received)
    link, other = socket.socketpair()
    with other:
        process._listen(link, os.getpid())
    assert kept == [None]
