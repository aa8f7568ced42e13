"""A holder does what its worker would do, and whatever becomes of it the worker goes on by itself. No Spark session is
needed.
"""

import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark import cloudpickle

import hybridstore as hs
from hybridstore.spark import exchange, placement, shipped, worker
from hybridstore.spark.exchange import SocketFolder
from hybridstore.spark.placement import hand_over, holder_name, holder_names
from hybridstore.spark.shard.cache import CACHE
from hybridstore.spark.sharding import SHARD_COLUMN
from hybridstore.spark.worker import ShardFunction, ShardWork
from tests.tools import rescaled_jobs
from tests.tools.holder_jobs import Job, no_holder_stays
from tests.tools.spark_programs import CountRunner, RunningCount

# a holder imports neither this file nor pytest, which take it longer than all else that it does
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(not exchange.POSSIBLE, reason="holders need Linux")


class Watched(RunningCount):
    """The running count, which does something else first for some rows."""

    def open(self, group: Any) -> "WatchedRunner":
        return WatchedRunner(group.open("counts", "key_value", {"ttl_ms": None}))


class WatchedRunner(CountRunner):
    def process(self, table: Any, output: Any, watermark_ms: int | None = None) -> Any:
        for key in table["k"].to_pylist():
            if key == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif key == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif key == "memory":
                raise MemoryError
            elif key == "fail":
                raise KeyError("a program's own mistake")
            elif key == "network":
                raise ConnectionResetError("not ours")
            elif key == "local":
                raise Unportable(lambda: None)
            elif key == "exit":
                sys.exit(3)
        return super().process(table, output, watermark_ms)


class Unportable(Exception):
    """An exception that cannot be pickled."""


class InWorkerOnly(RunningCount):
    """A program that opens in this process only."""

    def __reduce__(self) -> Any:
        return _only_in, (os.getpid(),)


def _only_in(pid: int) -> InWorkerOnly:
    if os.getpid() != pid:
        raise RuntimeError("a broadcast variable is missing")
    return InWorkerOnly()


@pytest.fixture(autouse=True)
def leave_no_holder(tmp_path: Path) -> Iterator[None]:
    with no_holder_stays(str(tmp_path / "state/hybridstore/op")):
        yield


def rows(**counts: int) -> list[dict[str, Any]]:
    return [{"k": key, "n": n, "total": n} for key, n in counts.items()]


def test_a_holder_keeps_the_shard_and_commits_it(tmp_path: Path) -> None:
    job = Job(tmp_path, RunningCount())
    assert job.hand(0, "a", "b", "a") == rows(a=2, b=1)
    pid = job.pid()
    assert pid != os.getpid()
    assert job.hand(1, "a") == rows(a=3)
    metrics = job.metrics()
    assert (metrics["seen"], metrics["load"], metrics["placement"], metrics["rows"]) == (2, "hit", "holder", 1)
    assert job.pid() == pid


def test_a_worker_goes_on_where_the_holder_stopped_and_back(tmp_path: Path) -> None:
    job = Job(tmp_path, RunningCount())
    assert job.hand(0, "a") == rows(a=1)
    assert job.work(1, "a") == rows(a=2)
    assert job.metrics()["placement"] == "worker"
    assert job.hand(2, "a") == rows(a=3)
    assert (job.metrics()["load"], job.metrics()["replayed_segments"]) == ("catch-up", 1)


def test_a_batch_that_comes_again_gives_the_same_rows(tmp_path: Path) -> None:
    job = Job(tmp_path, RunningCount())
    job.hand(0, "a")
    assert job.hand(1, "a") == job.hand(1, "a") == rows(a=2)
    assert job.hand(2, "a") == rows(a=3)


def test_two_attempts_at_once_give_the_same_rows_one_after_the_other(tmp_path: Path) -> None:
    """As under speculative execution: both are handed to the same holder."""
    job = Job(tmp_path, RunningCount())
    job.hand(0, "a")
    for number in range(1, 4):
        with ThreadPoolExecutor(4) as attempts:
            handed = [attempts.submit(job.hand, number, "a", "b") for _ in range(4)]
            answers = [attempt.result() for attempt in handed]
        assert answers == [rows(a=number + 1, b=number)] * 4
        assert job.metrics()["seen"] == number + 1


def test_many_workers_hand_many_shards_to_the_holders_of_a_host(tmp_path: Path) -> None:
    shards, loads = 32, []
    job = Job(tmp_path, RunningCount(), shards=shards)
    job.batch(0)
    with ThreadPoolExecutor(8) as workers:
        for number in range(3):
            handed = [workers.submit(job.hand, number, "a", shard=shard) for shard in range(shards)]
            assert [worker.result() for worker in handed] == [rows(a=number + 1)] * shards
            loads.append({(metrics["placement"], metrics["load"]) for metrics in map(job.metrics, range(shards))})
    assert loads == [{("holder", "empty")}, {("holder", "hit")}, {("holder", "hit")}]
    assert len(placement._started) == placement.slots_of(shards)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("fail", KeyError), ("network", ConnectionResetError), ("local", RuntimeError), ("exit", SystemExit)],
)
def test_what_the_program_raises_is_raised_in_the_worker(tmp_path: Path, kind: str, error: type[BaseException]) -> None:
    job = Job(tmp_path, Watched())
    job.hand(0, "a")
    pid = job.pid()
    with pytest.raises(error):
        job.hand(1, kind)
    assert job.metrics()["seen"] == 1
    assert job.hand(1, "a") == rows(a=2)
    assert job.pid() == pid


@pytest.mark.parametrize("death", ["stop", "kill", "memory"])
def test_a_holder_that_dies_or_hangs_is_given_up_and_replaced(
    tmp_path: Path, death: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, Watched())
    job.hand(0, "a")
    pid = job.pid()
    # one that dies is noticed at once, and only one that hangs is waited for
    with monkeypatch.context() as impatient:
        if death == "stop":
            impatient.setattr(placement, "SILENCE_SECONDS", 0.2)
        assert job.hand(1, "a", death) is None
    assert "gave up on holder" in caplog.text
    assert "batch 1 of shard 0 continues in the worker" in caplog.text
    ((_, process),) = placement._started
    process.wait()
    assert process.pid == pid
    assert job.work(1, "a") == rows(a=2)
    # the next one is not started at once ...
    job.last_failure(-3600)
    assert job.hand(2, "a") is None
    job.work(2, "a")
    # ... but after a pause, which is that of one failure: the worker has lost its holder, and its process has ended
    assert job.place.failures(job.name)[0] == 1
    job.last_failure(3600)
    assert job.hand(3, "a") == rows(a=4)
    assert job.pid() != pid


def test_a_stopped_holder_that_wakes_up_too_late_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_kill", lambda connection: None)
    job = Job(tmp_path, Watched())
    job.hand(0, "a")
    pid = placement._started[0][1].pid
    with monkeypatch.context() as impatient:
        impatient.setattr(placement, "SILENCE_SECONDS", 0.2)
        # on a loaded machine it may not have come to the request in that time, and leaves it then
        while not os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG):
            assert job.hand(1, "stop", "a") is None
    for number in (1, 2, 3):
        job.work(number, "a")
    os.kill(pid, signal.SIGCONT)
    # it is served after the late attempt, which was refused, by the same process
    assert job.hand(4, "a") == rows(a=5)
    assert (job.metrics()["seen"], job.metrics()["placement"]) == (5, "holder")
    assert job.pid() == pid


def test_a_holder_that_cannot_start_is_not_started_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, RunningCount())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert job.hand(0, "a") is None
    assert caplog.text.count("ended with exit code 1") == 1
    assert job.place.failures(job.name)[0] == 1
    job.last_failure(-3600)
    for _ in range(3):
        assert job.hand(0, "a") is None
    assert (placement._started, job.place.failures(job.name)[0]) == ([], 1)


def test_a_holder_whose_queue_of_connections_is_full_is_left_out_for_a_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, RunningCount())
    with ExitStack() as waiting:
        waiting.enter_context(job.place.listen(job.name))  # and accepts none
        with suppress(BlockingIOError):
            while True:
                waiting.enter_context(job.place.connect(job.name, 1.0))
        assert job.hand(0, "a") is None
        (line,) = caplog.messages
        assert f"holder {job.name} takes no connection: it is stopped, or its queue is full; this batch" in line
        assert job.work(0, "a") == rows(a=1)
    assert job.hand(1, "a") == rows(a=2)
    assert job.metrics()["placement"] == "holder"


def test_a_program_that_opens_in_a_worker_only_stays_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path, InWorkerOnly())
    assert job.hand(0, "a") is None
    assert "works without a holder: the operator cannot be opened" in caplog.text
    assert "a broadcast variable is missing" in caplog.text
    caplog.clear()
    assert job.hand(1, "a") is None
    assert caplog.text == ""


def test_auto_starts_a_holder_when_workers_have_lost_enough_time(tmp_path: Path) -> None:
    job = Job(tmp_path, RunningCount(), "auto")
    assert job.hand(0, "a") is None
    assert not job.place.names()
    job.work(0, "a")

    def moved(spent_ms: float) -> int:
        placement.note_load(job.function, job.batch(1), 0, spent_ms, job.place)
        return len(placement._started)

    assert moved(placement.MOVED_MS / 2) == 0
    # what other workers of this host spend counts, that on the shards of another holder does not
    assert not job.place.has_cost(f"{job.name}0", placement.MOVED_MS / 2, placement.MOVED_MS)
    code = "import sys; from pathlib import Path; from hybridstore.spark.exchange import SocketFolder; "
    code += "print(SocketFolder(Path(sys.argv[1])).has_cost(sys.argv[2], *map(float, sys.argv[3:])))"
    spent = map(str, (job.place.path, job.name, placement.MOVED_MS / 2 - 1, placement.MOVED_MS))
    worker = subprocess.run([sys.executable, "-P", "-c", code, *spent], capture_output=True, text=True, check=True)
    assert worker.stdout == "False\n"
    assert moved(1.0) == 1
    assert moved(1.0) == 1
    # no more is noted than is enough
    assert (job.place.path / f"{job.name}.moved").stat().st_size == 10 * placement.MOVED_MS
    while job.hand(1, "a") is None:
        pass
    assert job.metrics()["placement"] == "holder"


def test_auto_starts_all_holders_of_an_operator_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "slots_of", lambda asked: asked)
    job = Job(tmp_path, RunningCount(), "auto", shards=3)
    job.work(0, "a")
    placement.note_load(job.function, job.batch(1), 1, placement.MOVED_MS, job.place)
    assert job.place.names() == sorted(holder_names(job.function, job.batch(1)))
    placement.note_load(job.function, job.batch(2), 2, placement.MOVED_MS, job.place)
    assert len(placement._started) == 3


def test_a_shard_that_comes_from_another_process_of_the_run_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "APPLYING_MS", 3_600_000.0)
    job = Job(tmp_path, RunningCount())
    table = pa.table({"k": ["a"], "v": [1]})

    def moved(number: int) -> float | None:
        work = ShardWork(job.function.operator, job.batch(number))
        work.shard(0, table, 0.0)
        return work.moved_ms

    assert moved(0) is None
    assert moved(1) is None
    CACHE.drop(tmp_path / "state/hybridstore/op")
    spent = moved(2)
    assert spent is not None
    # each replayed record counts an hour, and the load took less than one
    assert spent // worker.APPLYING_MS == job.metrics()["replayed_records"] > 1
    # a new run has to load what it finds: no other worker is to blame
    job.run = "run-2"
    CACHE.drop(tmp_path / "state/hybridstore/op")
    assert moved(3) is None


def test_a_changed_program_goes_on_in_a_holder_of_its_run(tmp_path: Path) -> None:
    windows = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(1000))
    (tmp_path / "state").mkdir()
    query = rescaled_jobs.Job(tmp_path / "state", windows.aggregate(n=hs.Count(), total=hs.Sum("n")))
    holders = []
    for program, words in ((query.program.plan, ()), (windows.aggregate(n=hs.Count()), ("drop aggregate total",))):
        query.change(program, *words)
        query.start(1)
        query.operator = replace(query.operator, placement="holder")
        job = Job(tmp_path, RunningCount())
        job.function = pickle.loads(cloudpickle.dumps(ShardFunction(query.operator)))
        for _ in range(2):
            batch = query.of_shard(0)
            rows = pa.Table.from_pylist([{"k": "a", "ts": query.number, "n": 5}], schema=rescaled_jobs.SCHEMA)
            results = hand_over(job.function, batch, 0, rows, 0.0, job.place)
            assert results is not None
            query.number += 1
            expected = {"k": "a", "window_start": 0, "window_end": 1000, "n": query.number, "total": 5 * query.number}
            assert results.to_pylist() == [{name: expected[name] for name in results.column_names}]
        assert ("total" in results.column_names) is not bool(words)
        with job.place.connect(holder_name(job.function, batch, 0), 60) as connection:
            holders.append(exchange.peer(connection)[0])
    assert len(set(holders)) == 2


def test_a_newer_run_ends_the_holders_of_the_older_one(tmp_path: Path) -> None:
    first = Job(tmp_path, RunningCount())
    first.hand(0, "a")
    second = Job(tmp_path, RunningCount(), run="run-2")
    assert second.hand(1, "a") == rows(a=2)
    placement._started[0][1].wait()
    assert second.place.names() == [second.name]


def test_workers_of_all_executors_of_a_host_hand_a_shard_to_one_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, RunningCount())
    assert job.hand(0, "a") == rows(a=1)
    first = job.pid()
    # the parent of a worker is its executor's daemon
    monkeypatch.setattr(os, "getppid", lambda: first)
    assert job.hand(1, "a") == rows(a=2)
    assert (job.pid(), job.metrics()["load"], len(placement._started)) == (first, "hit", 1)


def test_a_holder_ends_with_the_process_it_works_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert daemon.stdin is not None
    monkeypatch.setattr(os, "getppid", lambda: daemon.pid)
    job = Job(tmp_path, RunningCount())
    assert job.hand(0, "a") == rows(a=1)
    daemon.stdin.close()
    daemon.wait()
    assert placement._started[0][1].wait() == 0
    assert list((tmp_path / "meet").iterdir()) == []


@pytest.mark.parametrize("holder_lives", [False, True])
def test_a_worker_whose_daemon_was_killed_hands_its_rows_to_a_holder_that_ends_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder_lives: bool
) -> None:
    daemon, orphan = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    job = Job(tmp_path, RunningCount())
    if holder_lives:
        monkeypatch.setattr(os, "getppid", lambda: daemon.pid)
        assert job.hand(0, "b") == rows(b=1)
    # Spark goes on with the workers of a killed daemon; their parent is then the first process of the system
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(os, "getpid", lambda: orphan.pid)
    assert job.hand(int(holder_lives), "a") == rows(a=1)
    assert (job.metrics()["placement"], len(placement._started)) == ("holder", 1)
    for process in (daemon, orphan):
        assert placement._started[0][1].poll() is None
        process.communicate()
    assert placement._started[0][1].wait(60) == 0


def test_only_the_same_user_meets_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = SocketFolder(tmp_path / "meet")
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
    place.path.chmod(0o755)
    with pytest.raises(PermissionError, match="expected a folder that only user"):
        SocketFolder(place.path)
    place.path.chmod(0o700)
    (tmp_path / "link").symlink_to(place.path)
    with pytest.raises(PermissionError):
        SocketFolder(tmp_path / "link")
    with place.listen("x-y-0"):
        place.connect("x-y-0", 1.0).close()
        monkeypatch.setattr(exchange, "peer", lambda connection: (1, os.geteuid() + 1))
        with pytest.raises(PermissionError, match="found a holder of user"):
            place.connect("x-y-0", 1.0)


def test_what_killed_holders_left_is_swept(tmp_path: Path) -> None:
    place = SocketFolder(tmp_path / "meet")
    alive = place.lock("a-a-0")
    dead = place.lock("b-b-0")
    assert alive is not None
    assert dead is not None
    place.note_failure("b-b-0")
    os.close(dead)
    assert not place.has_cost("d-d-0", 1.0, 20.0)
    for path in place.path.iterdir():
        os.utime(path, (0, 0))
    young = place.lock("c-c-0")
    assert young is not None
    os.close(young)
    place.sweep()
    assert {path.stem for path in place.path.iterdir()} == {"a-a-0"}
    assert place.failures("b-b-0") == (0, 0.0)
    # what a killed holder leaves goes at once, but for what tells how often it failed; with its run that goes, too
    killed = place.lock("e-e-0")
    assert killed is not None
    place.listen("e-e-0").close()
    place.note_failure("e-e-0")
    os.close(killed)
    place.sweep()
    assert {path.name for path in place.path.iterdir()} == {"a-a-0.lock", "e-e-0.failed"}
    place.sweep("e-e-")
    assert {path.name for path in place.path.iterdir()} == {"a-a-0.lock"}
    os.close(alive)


class DiesBehindCommit(RunningCount):
    """Ends its holder between the create of the log object of a version and the answer, once."""

    def __init__(self, once: Path, version: int) -> None:
        self.once, self.version = once, version

    def open(self, group: Any) -> Any:
        from changelog.storage import LocalStorage

        plain, once = LocalStorage.create, self.once
        if "hybridstore.spark.holder" in sys.modules and not hasattr(LocalStorage, "armed"):
            LocalStorage.armed = True  # type: ignore[attr-defined]

            def create(storage: Any, name: str, data: bytes) -> bool:
                created = plain(storage, name, data)
                if f"log/{self.version:020d}-" in name and not once.exists():
                    once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return created

            LocalStorage.create = create  # type: ignore[method-assign]
        return super().open(group)


@pytest.mark.parametrize("what", ["socket", "lock", "folder"])
def test_a_holder_that_nobody_can_reach_ends_and_leaves_what_is_not_its_own(tmp_path: Path, what: str) -> None:
    job = Job(tmp_path, RunningCount())
    assert job.hand(0, "a") == rows(a=1)
    ((name, process),) = placement._started
    if what == "folder":
        shutil.rmtree(job.place.path)
        job.place = SocketFolder(job.place.path)
        other = job.place.lock(name)  # as another worker that starts the next holder
        listener = job.place.listen(name)
    else:
        (job.place.path / f"{name}.{'sock' if what == 'socket' else 'lock'}").unlink()
    assert process.wait(60) == 0
    if what == "folder":
        assert sorted(path.suffix for path in job.place.path.iterdir()) == [".lock", ".sock"]
        listener.close()
        assert other is not None
        os.close(other)
        job.place.clear(name)
    assert job.hand(1, "a") == rows(a=2)
    assert job.metrics()["placement"] == "holder"


def test_a_holder_that_does_not_listen_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, RunningCount())
    lock = job.place.lock(job.name)
    assert lock is not None
    monkeypatch.setattr(placement, "START_SECONDS", 0.05)
    assert job.hand(0, "a") is None
    assert "could not be reached for 0.05 s" in caplog.text
    job.last_failure(-1)
    monkeypatch.setattr(placement, "START_SECONDS", 3600.0)
    assert job.hand(0, "a") is None
    assert job.hand(0, "a") is None
    os.close(lock)


def test_a_message_that_ends_early_is_an_end() -> None:
    near, far = socket.socketpair()
    with near, far:
        exchange.send(near, exchange.SHARD, [b"", b"abc"])
        assert [bytes(part) for part in exchange.receive(far).parts] == [b"", b"abc"]
        near.sendall(b"S\x01\x00\x00\x00")
        assert not exchange.ended(far)
        near.close()
        with pytest.raises(EOFError):
            exchange.receive(far)
        assert exchange.ended(far)


def test_a_worker_lets_go_of_its_shards_when_a_holder_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, RunningCount())
    batches = iter(range(3))
    monkeypatch.setattr(worker, "this_batch", lambda operator: job.batch(next(batches)))
    function = job.function

    def task(how: shipped.Placement) -> int:
        function.operator = replace(function.operator, placement=how)
        batch = pa.record_batch({"k": ["a"], "v": [1], SHARD_COLUMN: pa.array([0], pa.int32())})
        assert [answer.num_rows for answer in worker.run_shards(function, iter([batch]))] == [1]
        folder = str(tmp_path / "state")
        return sum(path.startswith(folder) for path, _ in CACHE._entries)

    monkeypatch.setattr(placement, "SocketFolder", lambda: job.place)
    assert task("worker") == 1
    assert task("holder") == 0
    assert job.metrics()["placement"] == "holder"
    assert task("worker") == 1
