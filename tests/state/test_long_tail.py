"""A long tail under a limit of memory: a restart replays it in pieces, a checkpoint begins before it is long, and
commits wait for that, but never for storage that refuses checkpoints.
"""

import errno
import hashlib
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hybridstore as hs
from benchmarks.measure import watched
from benchmarks.measure.watched import BASE, phase
from hybridstore.state import checkpointer, long_tail
from hybridstore.state import memory as memory_module
from hybridstore.state.policy import Logged
from tests.tools.hooks import check_stores, crash
from tests.tools.s3_server import S3Server

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
LIMIT = 20_000_000
ROWS = 240_000


def write(state: hs.State, rows: int, seed: int) -> None:
    """Write so many rows at random: two thirds into a key-value store, with deletions, the others by time."""
    dice, keys, windows = random.Random(seed), state.key_value("k"), state.window("w", retention="30 days")
    for first in range(0, rows, 1500):
        chosen = [dice.randrange(rows) for _ in range(1000)]
        keys.put_many((f"key{i:09d}", None if i % 10 == 0 and first else b"%040d" % first) for i in chosen)
        windows.put_many((f"key{first // 1500:05d}", b"%040d" % i, first + i) for i in range(500))
        state.commit()


def contents(state: hs.State) -> str:
    total = hashlib.sha256()
    for store in (state.key_value("k"), state.window("w", retention="30 days")):
        for row in store.all():
            total.update(repr(row).encode())
    return total.hexdigest()


def restarted(folder: str, limit: int | None) -> dict[str, Any]:
    """Open a state, read keys with commits in between, and then all of it."""
    phase(BASE)
    phase("restart")
    state = hs.open(folder, memory_limit=limit, checkpoints=NEVER)
    pieces, version, keys = state.metrics().checkpoints_written, state.version, state.key_value("k")
    phase("read")
    read: list[Any] = []
    for first in range(0, ROWS, 2000):
        read += keys.get_many([f"key{i:09d}" for i in range(first, min(first + 2000, ROWS), 10)])
        state.commit()
    phase("end")
    answer = contents(state)
    crash(state)
    return {"read": hashlib.sha256(repr(read).encode()).hexdigest(), "contents": answer, "version": version} | (
        {} if limit is None else {"pieces": pieces}
    )


def test_a_restart_with_a_tail_of_several_times_the_limit_keeps_the_limit(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        write(state, ROWS, seed=1)
        right, version = contents(state), state.version
        crash(state)
    free, without = watched.call("tests.state.test_long_tail:restarted", folder=str(tmp_path / "s"), limit=None)
    kept, within = watched.call("tests.state.test_long_tail:restarted", folder=str(tmp_path / "s"), limit=LIMIT)
    assert kept.pop("pieces") > 1
    assert free == kept
    assert (free["contents"], free["version"]) == (right, version)
    print(without, within, kept)
    assert without["restart"].anonymous > 2 * LIMIT
    for name in ("restart", "read"):
        assert within[name].anonymous <= 1.3 * LIMIT, name


def open_small(path: Path | hs.Bucket, limit: int = 3_000_000, **how: Any) -> hs.State:
    """Open a state with a million bytes for records."""
    return hs.open(path, durability="os", memory_limit=limit, checkpoints=NEVER, **how)


def test_a_checkpoint_begins_when_the_tail_is_long_however_little_memory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "CHECK_COMMITS", 1)
    with open_small(tmp_path / "s") as state:
        store = state.key_value("k")
        rows = 0
        while state._checkpoints.attempt is None and rows < 10_000:
            store.put_many([("a", 1)] * 100)
            state.commit()
            rows += 100
        # a quarter of the part for records
        assert 250_000 / 100 < rows <= 250_000 / 80 + 100
        assert state._memory.counted < 10_000


def test_a_commit_waits_while_the_tail_is_long_and_no_longer_than_a_second(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as state:
        memory, checkpoints = state._memory, state._checkpoints
        waits = ((0.7, 0), (0.8, 0), (0.9, 12.5), (1.0, 25), (1.15, 25), (1.2, 62.5), (1.25, 100), (9.0, 100))
        for share, each in waits:
            checkpoints.since = Logged(1, round(share * 1_000_000), 0)
            assert memory._waiting(100) == pytest.approx(100 * each * 1e-6)
        assert memory._waiting(10**6) == 1.0


@pytest.mark.parametrize(("late", "longest"), [(0.5, 0.025), (1.2, 0.025), (3.0, 0.08)])
def test_a_checkpoint_that_is_late_once_makes_many_commits_wait_a_little(late: float, longest: float) -> None:
    """By simulated time: commits of 1,000 records of 190 bytes and 5 ms, from 100 % of what 100 MB have for records."""
    clock, used, waits = 0.0, 1.0, []
    while clock < late:
        each, most = memory_module._pressed_wait(used)
        waits.append(min(most, 1000 * each))
        clock += waits[-1] + 0.005
        used += 1000 * 190 / memory_module.usable(100_000_000)
    assert len(waits) >= late / (longest + 0.005)
    assert max(waits) <= longest
    assert used < 1.25


def test_commits_go_on_where_the_storage_refuses_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_module, "CHECK_COMMITS", 1)
    monkeypatch.setattr(checkpointer, "_FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(checkpointer, "BESIDE_RECORDS", 10**9)  # the process is not refused anything
    write_checkpoint = checkpointer.write_checkpoint
    with open_small(tmp_path / "s") as state:
        store = state.key_value("k")
        monkeypatch.setattr(checkpointer, "write_checkpoint", refuse)
        for i in range(100):
            store.put_many([("a", i)] * 200)
            assert state.commit() == i + 1
            if state._checkpoints.attempt is not None:
                state._checkpoints.attempt.join()
        numbers = state.metrics()
        assert numbers.failed_checkpoints > 10
        assert numbers.records_since_checkpoint > 20_000
        assert memory_module.BUDGET.limit is not None
        assert state._memory._tail_share > 1.5
        # at most once in 30 s
        assert caplog.text.count("No space left on device") == 1
        monkeypatch.setattr(checkpointer, "write_checkpoint", write_checkpoint)
        state.checkpoint(wait=True)
        assert state._memory._tail_share == 0


@pytest.mark.parametrize("keys", [100, 1500])
def test_a_thread_makes_the_checkpoint_of_a_long_tail_of_few_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.setattr(checkpointer, "PIECE_RECORDS", 5000)
    with open_small(tmp_path / "s", limit=1 << 40) as state:
        store = state.key_value("k")
        store.put_many((i % keys, i) for i in range(5500))
        state.commit()
        state.checkpoint()
        attempt = state._checkpoints.attempt
        assert attempt is not None
        assert attempt.copies == (keys == 100)
        assert dict(store.all()) == {i % keys: i for i in range(5500)}


def refuse(*given: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_under_a_limit_a_failed_checkpoint_is_tried_again_sooner_and_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(
        monotonic=lambda: 100.0, time=time.time, perf_counter=time.perf_counter, process_time=time.process_time
    )
    monkeypatch.setattr(checkpointer, "time", clock)
    for limit, expected in ((3_000_000, [1, 2, 4, 8, 16, 30, 30]), (None, [30, 30])):
        with hs.open(tmp_path / str(limit), memory_limit=limit, checkpoints=NEVER) as state:
            checkpoints, store = state._checkpoints, state.key_value("k")
            for _ in range(2):
                seconds = []
                for _ in expected:
                    checkpoints.fail(1, OSError("full"))
                    seconds.append(checkpoints._retry_at - 100)
                assert seconds == expected
                store["a"] = state.version
                state.commit()
                state.checkpoint(wait=True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_long_tail_is_replayed_over_the_checkpoint_before_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    path = tmp_path / "s"
    with hs.open(path, durability="os", checkpoints=NEVER) as state:
        write(state, 3000, seed=2)
        state.checkpoint(wait=True)
        write(state, 24_000, seed=3)
        state.checkpoint(wait=True)
        damaged = max((path / "checkpoints").iterdir())
        write(state, 12_000, seed=4)
        right, version = contents(state), state.version
        crash(state)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    if fails:
        monkeypatch.setattr(checkpointer, "write_checkpoint", refuse)
    with open_small(path) as state:
        numbers = state.metrics()
        assert (numbers.checkpoints_written > 1, numbers.failed_checkpoints) == ((False, 1) if fails else (True, 0))
        assert (state.version, contents(state)) == (version, right)
        assert state._checkpoints.behind.records == state.restore_report.tail_records
        check_stores(state)
        # and a rollback, which restores it again
        state.key_value("k")["new"] = 1
        state.rollback()
        assert (state.version, contents(state)) == (version, right)
        state.key_value("k")["new"] = 1
        state.commit()
        crash(state)
    monkeypatch.undo()
    with hs.open(path, checkpoints=NEVER) as state:
        assert state.version == version + 1
        assert state.key_value("k").delete("new") == 1
        assert contents(state) == right


def test_a_reader_under_a_limit_replays_a_long_tail_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with hs.open(path, durability="os", checkpoints=NEVER) as state:
        write(state, 12_000, seed=6)
        older, version = contents(state), state.version
        write(state, 3000, seed=7)
        newest = contents(state)
        crash(state)
    files = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    for at, right in ((version, older), ("newest", newest)):
        with open_small(path, at=at) as state:
            tail = state.restore_report
            assert long_tail.tail_over(2_000_000, tail.tail_records, tail.tail_bytes)
            assert (contents(state), state.metrics().checkpoints_written) == (right, 0)
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == files


def test_on_an_object_store_a_long_tail_becomes_checkpoints_at_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with S3Server() as server:
        location = server.bucket("states", tmp_path / "cache") / "s"
        state = hs.open(location, checkpoints=NEVER)
        write(state, 12_000, seed=5)
        right, version = contents(state), state.version
        crash(state)
        with open_small(location) as state:  # whose owner makes one more version
            assert state.metrics().checkpoints_written > 1
            assert state.restore_report.tail_records < 6000
            assert (state.version, contents(state)) == (version + 1, right)
        with hs.open(location) as state:
            assert contents(state) == right
