"""A snapshot has the rows of its version for every thread, whatever the owner writes, prunes or frees meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.errors import HybridStoreError, StateClosedError, StateInUseError
from hybridstore.state.memory_budget import BUDGET
from hybridstore.state.opening import Tuning
from hybridstore.state.snapshot import Snapshot
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(segment_bytes=2000, block_records=7, parts=SMALL_PARTS)
KEPT = hs.CheckpointPolicy(every_commits=None, keep=1)


def one_commit(state: hs.State, dice: random.Random, clock: int) -> int:
    """Change records of every kind."""
    for _ in range(1 + dice.randrange(9)):
        key, ts, value = f"k{dice.randrange(12)}", max(0, clock - dice.randrange(30)), dice.randrange(99)
        state.key_value("kv").put(key, value)
        state.key_value("ttl", ttl=40).put(key, value, ts)
        state.window("win", retention=100).put(key, value, ts)
        state.session("ses", retention=80).put(key, value, max(0, ts - dice.randrange(9)), ts)
        state.sliding("load", size=60, aggregator=hs.Sum()).add(key, value, ts)
        state.suppression("waiting", max_records=8, time_limit=40).put(key, value, ts)
    return state.commit()


def answers(stores: Any) -> dict[str, Any]:
    """Return what the reads of every kind answer, single reads before those that load whole ranges."""
    if isinstance(stores, hs.State):
        stores = stores.stores
    kv, ttl, win, ses, load, waiting = (stores[name] for name in ("kv", "ttl", "win", "ses", "load", "waiting"))
    keys = [f"k{number}" for number in range(12)]
    return {
        "get": [kv.get(key) for key in keys],
        "many": kv.get_many(keys),
        "in": [key in kv for key in keys],
        "range": list(kv.scan("k1", "k5", reverse=True)),
        "kv": (list(kv), list(kv.all()), len(kv)),
        "ttl": list(ttl.all()),
        "of a window": [list(win.fetch(key, 0, 10**6)) for key in keys],
        "win": list(win.all()),
        "ses": (list(ses.fetch("k1")), list(ses.all())),
        "load": ([load.get(key) for key in keys], list(load.aggregates()), list(load.all())),
        "waiting": (list(waiting.buffered()), waiting.num_records),
    }


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Return what the calls return or raise, each made by a thread of its own."""
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.stress
@pytest.mark.parametrize("memory_limit", [None, 1])
def test_snapshots_answer_as_their_versions(tmp_path: Path, seed: int, rounds: int, memory_limit: int | None) -> None:
    """Random commits, checkpoints that prune all others, rollbacks; every open snapshot is read again and again."""
    for number in range(rounds):
        dice = random.Random(f"{seed} {number}")
        options: Any = {"checkpoints": KEPT, "memory_limit": memory_limit, "_tuning": TUNING}
        with hs.open(tmp_path / str(number), **options) as state:
            expected: list[tuple[Snapshot, dict[str, Any]]] = []
            for clock in range(0, 400, 10):
                one_commit(state, dice, clock)
                if dice.random() < 0.2:
                    expected.append((state.snapshot(), answers(state)))
                    assert expected[-1][0].version == state.version
                if dice.random() < 0.2:
                    state.checkpoint(wait=True)
                if dice.random() < 0.1:
                    state.key_value("kv").put("k1", "not committed")
                    state.rollback()
                if expected and dice.random() < 0.3:
                    snapshot, rows = dice.choice(expected)
                    assert answers(snapshot) == rows
            for snapshot, rows in expected:
                assert answers(snapshot) == rows
                snapshot.close()


def test_threads_read_while_the_owner_writes_and_prunes(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with hs.open(tmp_path / "state", checkpoints=KEPT, _tuning=TUNING) as state:
        for clock in range(0, 300, 10):
            one_commit(state, dice, clock)
        state.checkpoint(wait=True)
        one_commit(state, dice, 300)
        expected = answers(state)
        with state.snapshot() as snapshot:
            ended = threading.Event()

            def read() -> list[dict[str, Any]]:
                reads = [answers(snapshot)]
                while not ended.is_set():
                    reads.append(answers(snapshot))
                return [*reads, answers(snapshot)]

            def write() -> None:
                try:
                    for clock in range(310, 500, 10):
                        one_commit(state, dice, clock)
                        state.checkpoint(wait=True)
                finally:
                    state.hand_over()
                    ended.set()

            state.hand_over()
            *reads, outcome = in_threads([read, read, read, write])
            assert outcome is None
            for of_thread in reads:
                assert all(answer == expected for answer in of_thread)
        assert state.version == 50
        assert answers(state) != expected


def test_an_iteration_may_be_shared_by_interleaved_reads(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", _tuning=TUNING) as state:
        users = state.key_value("users")
        users.put_many({number: number for number in range(500)})
        state.commit()
        state.checkpoint(wait=True)
        with state.snapshot() as snapshot:
            rows = iter(snapshot["users"].scan(reverse=True))
            assert next(rows) == (499, 499)
            users[3] = "changed"
            state.commit()
            assert in_threads([lambda: snapshot["users"].get(3), lambda: snapshot["users"][499]]) == [3, 499]
            assert in_threads([lambda: list(rows)]) == [[(number, number) for number in range(498, -1, -1)]]


class CountingLock:
    """A lock that counts how often it was taken."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.taken = lock, 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_view_of_keys_items_or_values_is_read_behind_the_lock(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", _tuning=TUNING) as state:
        users = state.key_value("users")
        users.put_many({number: -number for number in range(200)})
        state.commit()
        with state.snapshot() as snapshot:
            store, expected = snapshot["users"], dict(users)
            items, keys, values = store.items(), store.keys(), store.values()
            lock = snapshot._lock = CountingLock(snapshot._lock)  # type: ignore[assignment]
            reads: list[tuple[Callable[[], Any], Any]] = [
                (lambda: dict(items), expected),
                (lambda: list(keys), list(expected)),
                (lambda: list(values), list(expected.values())),
                (lambda: (7, -7) in items, True),
                (lambda: len(items), 200),
                (lambda: dict(store), expected),
            ]
            for read, rows in reads:
                before = lock.taken
                assert in_threads([read]) == [rows]
                assert lock.taken > before


@pytest.mark.parametrize("read", ["all", "get"])
def test_what_a_snapshot_has_read_counts_towards_the_limit(tmp_path: Path, read: str) -> None:
    with hs.open(tmp_path / "state", memory_limit=1 << 40, checkpoints=KEPT) as state:
        users = state.key_value("users")
        users.put_many({number: number for number in range(12_000)})
        state.commit()
        state.checkpoint(wait=True)
        with state.snapshot() as snapshot:
            memory = snapshot._close.__self__._memory  # type: ignore[attr-defined]  # the state that it reads
            assert memory.counted < 10_000
            if read == "all":
                assert sum(1 for _ in snapshot["users"].all()) == 12_000
            else:
                assert all(snapshot["users"].get(number) == number for number in range(12_000))
            assert memory.counted > 10_000 * 50
            assert memory in BUDGET._open.living()
        assert memory not in BUDGET._open.living()


def test_what_is_not_committed_is_not_in_a_snapshot(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        users = state.key_value("users")
        with state.snapshot() as snapshot:
            assert (snapshot.version, list(snapshot)) == (0, [])
        users["ann"] = 1
        state.set("offset", 7)
        state.commit()
        users["ann"] = 2
        state.set("offset", 8)
        with state.snapshot() as snapshot:
            assert (snapshot.version, dict(snapshot["users"].all()), snapshot.settings) == (
                1,
                {"ann": 1},
                {"offset": 7},
            )
            assert (users["ann"], list(snapshot), len(snapshot)) == (2, ["users"], 1)
        state.commit()
        assert state.version == 2


def test_a_snapshot_of_a_read_only_state(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("users")["ann"] = 1
        state.commit()
        with hs.open(tmp_path / "state", at="newest") as reading:
            state.key_value("users")["ann"] = 2
            state.commit()
            with reading.snapshot() as snapshot:
                assert (snapshot.version, snapshot["users"]["ann"]) == (1, 1)


def test_what_is_refused(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        users = state.key_value("users")
        users["ann"] = 1
        state.commit()
        with pytest.raises(StateInUseError, match="one thread owns a state"):
            raise in_threads([state.snapshot])[0]
        snapshot = state.snapshot()
        for write in (lambda: snapshot["users"].put("ann", 2), lambda: snapshot["users"].delete("ann")):
            with pytest.raises(HybridStoreError, match="opened read-only at version 1"):
                write()
            assert isinstance(in_threads([write])[0], HybridStoreError)
        assert snapshot["users"].get("ann") == 1
        with pytest.raises(KeyError, match=r"no store 'user' in version 1 \(known: users\)"):
            snapshot["user"]
        assert not hasattr(snapshot["users"], "_runs")
        snapshot.close()
        snapshot.close()
        with pytest.raises(StateClosedError):
            snapshot["users"].get("ann")
        assert users["ann"] == 1
    with pytest.raises(StateClosedError):
        state.snapshot()


def test_a_snapshot_outlives_its_state(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("users")["ann"] = 1
        state.commit()
        snapshot = state.snapshot()
    with hs.open(tmp_path / "state", checkpoints=KEPT) as state:
        state.key_value("users")["ann"] = 2
        state.commit()
        state.checkpoint(wait=True)
    with snapshot:
        assert snapshot["users"]["ann"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_is_refused_although_another_thread_reads(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        state.key_value("users")["ann"] = 1
        state.commit()
        with state.snapshot() as snapshot:
            users, code = snapshot["users"], -1
            inside, ended = threading.Event(), threading.Event()

            def stay() -> None:
                with snapshot._alone():
                    inside.set()
                    ended.wait()

            reader = threading.Thread(target=stay)
            reader.start()
            inside.wait()
            child = os.fork()
            if child == 0:  # the lock is of a thread that the child does not have
                try:
                    users.scan()
                except StateClosedError:
                    os._exit(7)
                os._exit(1)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            ended.set()
            reader.join()
            assert code == 7
            assert users["ann"] == 1


def test_on_an_object_store_pruned_blocks_stay_readable(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from tests.tools.s3_server import S3Server

    with S3Server() as server:
        bucket = server.bucket("states/one", tmp_path / "cache")
        with hs.open(bucket, checkpoints=KEPT, _tuning=TUNING) as state:
            users = state.key_value("users")
            users.put_many({number: number for number in range(200)})
            state.commit()
            state.checkpoint(wait=True)
            with state.snapshot() as snapshot:
                for _ in range(4):
                    users.put_many({number: -1 for number in range(200)})
                    state.commit()
                    state.checkpoint(wait=True)
                shutil.rmtree(tmp_path / "cache")
                assert dict(snapshot["users"].all()) == {number: number for number in range(200)}
