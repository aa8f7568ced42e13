"""Plain stores on an object store: commits, crashes, two owners, pruning, and a restart that reads little."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

import hybridstore as hs
from changelog.cloud_storage import CloudStorage
from changelog.storage import storage_at
from hybridstore.errors import (
    ForeignFileError,
    HybridStoreError,
    StateClosedError,
    StateLockedError,
    StatePoisonedError,
)
from hybridstore.state import bucket_log, home, in_place
from hybridstore.state.group import StoreGroup
from hybridstore.state.opening import Tuning
from recovery.errors import RestoreError
from recovery.restore import Reached
from tests.conftest import SEED
from tests.tools.azurite import Azurite, installed
from tests.tools.hooks import check_stores, crash
from tests.tools.s3_server import S3Server

SMALL = Tuning(block_records=8)
NEVER = hs.CheckpointPolicy(every_commits=None)


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def server(running: S3Server) -> Iterator[S3Server]:
    yield running
    running.faults.clear()
    running.draw = lambda method, path: None
    running.reset()


Open = Callable[..., hs.State]


@pytest.fixture
def open_state(server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    def opened(name: str = "state", cache: Path = tmp_path / "cache", **options: Any) -> hs.State:
        return hs.open(server.bucket(f"states/{request.node.name}", cache) / name, **{"_tuning": SMALL, **options})

    return opened


def contents(state: hs.State) -> dict[str, Any]:
    return {name: sorted(store.all()) for name, store in state.stores.items()}


def fill(state: hs.State, rows: range) -> None:
    for number in rows:
        state.key_value("names").put(f"k{number % 50:03d}", number)
        state.window("clicks", retention=10_000).put("w", number, ts=number * 10)


def with_checkpoint_and_tail(state: hs.State) -> dict[str, Any]:
    """Fill a state, with a checkpoint and a commit after it; return its contents."""
    fill(state, range(100))
    state.commit()
    state.checkpoint(wait=True)
    fill(state, range(100, 150))
    state.commit()
    return contents(state)


def test_what_was_committed_is_there_again(open_state: Open) -> None:
    with open_state() as state:
        assert state.restore_report.created
        fill(state, range(100))
        version = state.commit()
        fill(state, range(100, 200))
        state.rollback()
        expected = contents(state)
        assert state.version == version
    with open_state() as state:
        assert contents(state) == expected
        check_stores(state)
        fill(state, range(200, 300))
        state.commit()
        after, behind = contents(state), state.metrics().bytes_since_checkpoint
    with open_state(at="newest") as state:
        assert contents(state) == after
    with open_state() as state:
        assert state.metrics().bytes_since_checkpoint == behind > 0


def test_a_commit_is_one_request_and_none_without_changes(
    open_state: Open, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # however long this machine takes from one commit to the next
    monkeypatch.setattr(bucket_log, "LOOK_SECONDS", float("inf"))
    with open_state(checkpoints=NEVER) as state:
        fill(state, range(10))
        state.commit()
        server.reset()
        for number in range(5):
            fill(state, range(number, number + 10))
            state.commit()
            state.commit()
        assert dict(server.count) == {"put": 5}


def test_a_copy_on_a_disk_is_a_state_directory(open_state: Open, server: S3Server, tmp_path: Path) -> None:
    with open_state() as state:
        expected, url, version = with_checkpoint_and_tail(state), str(state.path), state.version
    bucket = CloudStorage(url, server.options)
    for name in bucket.list():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.get(name))
    shutil.rmtree(tmp_path / "copy" / "fences")
    with hs.open(tmp_path / "copy") as state:
        assert state.version == version
        assert contents(state) == expected


def test_the_later_owner_has_the_state_and_nothing_acknowledged_is_lost(open_state: Open) -> None:
    first = open_state()
    fill(first, range(20))
    first.commit()
    acknowledged = contents(first)
    second = open_state()
    assert contents(second) == acknowledged
    fill(first, range(20, 30))
    with pytest.raises(StateLockedError, match=rf"process {os.getpid()} on .*this one commits nothing more"):
        first.commit()
    with pytest.raises(StatePoisonedError):
        first.commit()
    fill(second, range(30, 40))
    second.commit()
    after = contents(second)
    first.close()
    second.close()
    with open_state() as state:
        assert contents(state) == after


@pytest.mark.parametrize("days", [-3, 0, 2, 3650])
def test_an_owner_that_slept_for_any_time_by_any_clock_is_refused(
    open_state: Open, server: S3Server, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    sleeper = open_state(checkpoints=NEVER)
    fill(sleeper, range(10))
    sleeper.commit()
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + days * 86_400.0)
        with open_state() as state:  # claims the state by a clock that is wrong
            for start in (10, 20):
                fill(state, range(start, start + 10))
                state.commit()
    with open_state() as state:
        for start in (30, 40, 50):
            fill(state, range(start, start + 10))
            state.commit()
            state.checkpoint(wait=True)
        version = state.version
        names = CloudStorage(str(state.path), server.options).list("changelog/")
        assert len(names) < version, "nothing was pruned"
    fill(sleeper, range(10))
    with pytest.raises(StateLockedError, match="version 3 is that of process"):
        sleeper.commit()
    sleeper.close()
    with open_state(at="newest") as state:
        assert state.version == version


@pytest.mark.parametrize("pruned", [True, False])
def test_a_claim_of_a_version_that_was_written_since_the_restore_does_not_count(
    open_state: Open, monkeypatch: pytest.MonkeyPatch, pruned: bool
) -> None:
    first = open_state(checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1))
    fill(first, range(10))
    first.commit()
    begin = home.BucketHome.begin
    before: list[int] = []

    def late(self: home.BucketHome, group: StoreGroup, reached: Reached) -> bucket_log.BucketLog:
        if not before:  # between the restore and the claim the owner writes, and may prune the name of the claim
            before.append(group.version)
            for start in (10, 20, 30):
                fill(first, range(start, start + 10))
                first.commit()
                if pruned:
                    first.checkpoint(wait=True)
        return begin(self, group, reached)

    monkeypatch.setattr(home.BucketHome, "begin", late)
    with open_state() as state:
        assert state.version > before[0] + 3
        assert contents(state) == contents(first)
        assert state.restore_report.version == state.version - 1
        assert pruned or state.restore_report.tail_versions == before[0] + 3
    crash(first)


def test_the_estimate_of_a_restart_counts_the_requests_for_commits(open_state: Open, server: S3Server) -> None:
    policy = hs.CheckpointPolicy(max_restore=100)  # ms
    with open_state(checkpoints=policy) as state:
        for number in range(200):
            state.key_value("names").put("a", number)
            state.commit()
            # 16 commits at a time, a request of 20 ms or more each
            # (a record each, and one that defines the store)
            waiting = (state.metrics().records_since_checkpoint - 1) * 20 / 16
            assert state.metrics().restore_estimate_ms > waiting
        assert state.metrics().checkpoints_written >= 1
    pace = bucket_log.Pace()
    for _ in range(100):
        pace.note(0.2)
    assert 0.19 < pace.request_seconds < 0.21
    for _ in range(1000):
        pace.note(0.0001)
    assert pace.request_seconds == bucket_log.REQUEST_SECONDS


@pytest.mark.parametrize("fault", ["lost", "500", "503", "reset"])
def test_a_commit_whose_answer_is_lost_is_committed_once(open_state: Open, server: S3Server, fault: str) -> None:
    with open_state(checkpoints=NEVER) as state:
        fill(state, range(10))
        server.faults.append(fault)
        version = state.commit()
        expected = contents(state)
    with open_state(at="newest") as state:
        assert state.version == version
        assert contents(state) == expected


def test_a_store_that_does_not_answer_poisons_and_reopening_shows_what_was_acknowledged(
    open_state: Open, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from changelog import cloud_storage

    with monkeypatch.context() as patch:
        patch.setattr(cloud_storage, "LINE_SECONDS", 1.0)
        state = open_state(checkpoints=NEVER)
        fill(state, range(10))
        state.commit()
    expected = contents(state)
    monkeypatch.setattr(cloud_storage, "RETRY_SECONDS", 0.1)
    fill(state, range(10, 20))
    server.draw = lambda method, path: "503"
    with pytest.raises(OSError, match="tried for"):
        state.commit()
    with pytest.raises(StatePoisonedError, match=r"what was acknowledged is intact|reopen the store"):
        state.key_value("names").put("a", 1)
    server.draw = lambda method, path: None
    monkeypatch.undo()
    state.close()
    with open_state() as state:
        assert contents(state) == expected


def test_a_restart_reads_the_checkpoint_index_and_the_blocks_that_are_touched(
    open_state: Open, server: S3Server, tmp_path: Path
) -> None:
    with open_state(_tuning=Tuning(block_records=100)) as state:
        names = state.key_value("names")
        for number in range(20_000):
            names.put(f"k{number:06d}", f"value of {number} " + "x" * 40)
        state.commit()
        state.checkpoint(wait=True)
    size = sum(
        CloudStorage(str(state.path), server.options).size(name)
        for name in CloudStorage(str(state.path), server.options).list("packs/")
    )
    server.reset()
    with open_state(at="newest", cache=tmp_path / "empty") as state:
        assert state.key_value("names").get("k012345") == "value of 12345 " + "x" * 40
        assert server.bytes_sent < size / 10
    server.reset()
    with open_state(at="newest") as state:  # the cache of the process that wrote it
        assert state.key_value("names").get("k012345") == "value of 12345 " + "x" * 40
        assert len(list(state.key_value("names").all())) == 20_000
        assert server.bytes_sent < size / 10


@pytest.mark.skipif(installed() is None, reason="Azure's local server is not installed (npm install --global azurite)")
def test_a_state_on_azure_is_restored_and_its_later_owner_has_it(tmp_path: Path) -> None:
    with Azurite() as azurite:

        def opened() -> hs.State:
            bucket = hs.Bucket(azurite.url("state"), cache=tmp_path / "cache", **azurite.options)
            return hs.open(bucket, _tuning=SMALL)

        with opened() as state:
            expected = with_checkpoint_and_tail(state)
        first, second = opened(), opened()
        assert contents(second) == expected
        fill(second, range(5))
        second.commit()
        fill(first, range(9))
        with pytest.raises(StateLockedError, match="commits nothing more"):
            first.commit()
        crash(first)
        second.close()


def test_a_place_that_is_not_a_state_is_refused(open_state: Open, tmp_path: Path) -> None:
    with open_state("a/b") as state:
        state.key_value("names").put("a", 1)
        state.commit()
    with pytest.raises(ForeignFileError, match="not empty: found 'b/"):
        open_state("a")
    with pytest.raises(ForeignFileError, match="found no object of a state below it"):
        open_state("nothing", at="newest")
    with pytest.raises(HybridStoreError, match="hdfs://"):
        hs.open("hdfs://host/state")


def test_a_topology_runs_on_an_object_store(server: S3Server, tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    rows = [{"k": f"{number % 7}", "ts": number} for number in range(1000)]
    for shards in (1, 3):
        bucket = server.bucket(f"topology-{shards}", tmp_path / "cache")
        expected = list(topology.run(rows, tmp_path / f"local-{shards}", shards=shards, commit_rows=100))
        # Each half is a process that ended: the second is given the source from its beginning.
        first = list(topology.run(rows[:500], bucket, shards=shards, commit_rows=100))
        second = list(topology.run(rows, bucket, shards=shards, commit_rows=100))
        assert [dict(row) for row in first + second] == [dict(row) for row in expected]
    with pytest.raises(HybridStoreError, match="asked for 2"):
        topology.open(bucket, shards=2)


WRITER = """
import sys
import hybridstore as hs
from hybridstore.state import bucket_log
bucket_log.LOOK_SECONDS = 0.5
url, endpoint, cache = sys.argv[1:]
options = {"endpoint": endpoint, "access_key_id": "test", "secret_access_key": "x", "region": "us-east-1"}
state = hs.open(hs.Bucket(url, cache=cache, **options), checkpoints=hs.CheckpointPolicy(every_commits=7))
count = state.key_value("count")
while True:
    number = (count.get("n") or 0) + 1
    count.put("n", number)
    state.commit()
    print(number, flush=True)
"""


def writer(server: S3Server, url: str, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, server.endpoint, str(cache)]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the end of a writer; return what else it has printed, and its errors.

    `communicate` would leave out the lines that came together with the first one.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    with process, process.stdout as output, process.stderr as errors:
        return output.read(), errors.read()


def test_two_real_processes_never_both_acknowledge(server: S3Server, tmp_path: Path) -> None:
    url = server.url("two-processes")
    acknowledged = 0
    before: subprocess.Popen[str] | None = None
    for _ in range(2):
        now = writer(server, url, tmp_path / "cache")
        assert now.stdout is not None
        first = int(now.stdout.readline())
        if before is not None:
            # The older one ends by itself, at its next commit, and what it had acknowledged is in the newer one's
            # state.
            output, errors = ended(before)
            acknowledged = max([acknowledged, *map(int, output.split())])
            assert "StateLockedError" in errors
            assert first > acknowledged
        acknowledged = first
        before = now
    assert before is not None
    before.send_signal(signal.SIGKILL)
    output, _ = ended(before)
    acknowledged = max([acknowledged, *map(int, output.split())])
    with hs.open(server.bucket("two-processes", tmp_path / "cache"), at="newest") as state:
        assert state.key_value("count").get("n") in (acknowledged, acknowledged + 1)


@pytest.mark.stress
def test_random_lives_of_a_state_equal_those_of_a_directory(open_state: Open, server: S3Server, tmp_path: Path) -> None:
    draw = random.Random(SEED)
    server.draw = lambda method, path: draw.choice(("lost", "500", "reset")) if draw.random() < 0.05 else None
    there, here = open_state(), hs.open(tmp_path / "local", _tuning=SMALL)
    fill(there, range(1))
    fill(here, range(1))
    for _ in range(30):
        step = draw.choice(("fill", "fill", "commit", "commit", "checkpoint", "rollback", "reopen", "crash"))
        if step == "fill":
            start = draw.randrange(1000)
            for state in (there, here):
                fill(state, range(start, start + draw.randrange(1) + 20))
        elif step == "reopen":
            there.close()
            here.close()
            there, here = open_state(), hs.open(tmp_path / "local", _tuning=SMALL)
        elif step == "crash":
            crash(there)
            crash(here)
            there, here = open_state(), hs.open(tmp_path / "local", _tuning=SMALL)
        else:
            for state in (there, here):
                if step == "checkpoint":
                    state.commit()
                    state.checkpoint(wait=True)
                else:
                    getattr(state, step)()
        assert contents(there) == contents(here), step
    check_stores(there)
    there.close()
    here.close()


def test_a_key_is_erased_while_the_job_runs(server: S3Server, open_state: Open) -> None:
    state = open_state(checkpoints=hs.CheckpointPolicy(every_commits=3, keep=2))
    users = state.key_value("users")
    for number in range(20):
        users.put_many({f"key-{number % 8}-{each}": f"secret-{number % 8}." for each in range(9)})
        state.commit()
    kept = {key: value for key, value in users.all() if key != "key-3-1"}
    users.erase("key-3-1")
    version = state.commit()
    assert state.settings["erase"] is None
    assert dict(users.all()) == kept
    storage = state._home.storage
    assert not [name for name in storage.list() if b"key-3-1" in storage.get(name)]
    users["more"] = 1
    assert state.commit() == version + 1
    crash(state)
    with open_state() as state:
        users = state.key_value("users")
        assert dict(users.all()) == kept | {"more": 1}
        check_stores(state)
    assert not [name for name in storage.list() if b"key-3-1" in storage.get(name)]


def test_the_command_erases_a_stopped_state(server: S3Server, open_state: Open, tmp_path: Path) -> None:
    with open_state(checkpoints=hs.CheckpointPolicy(every_commits=3, keep=2)) as state:
        users, pairs = state.key_value("users"), state.key_value("pairs")
        clicks = state.window("clicks", retention=10_000)
        for number in range(20):
            users.put_many({f"key-{number % 8}-{each}": f"secret-{number % 8}." for each in range(9)})
            pairs[(f"key-{number % 8}-1", number)] = number
            clicks.put("key-3-1", number, ts=number * 10)
            if number == 17:
                users["key-9-once"] = users["key-3-2"] = 1
                state.commit()
                users.delete("key-9-once")
                users.delete("key-3-2")
            state.commit()
        kept, version, storage = contents(state), state.version, state._home.storage
    where = server.bucket("states/test_the_command_erases_a_stopped_state", tmp_path / "cache") / "state"
    assert hs.prove(where, "key-3-1").traces
    done = hs.erase(where, "key-3-1", "key-9-once")
    assert done.places == [storage.url]
    assert done.records > 3
    assert done.removed > done.written > 0
    texts = [b"key-3-1", b"key-9-once"]
    assert [name for name in storage.list() if texts[1] in storage.get(name)] == []
    # of a tuple the whole key is given, or its first parts
    assert hs.erase(where, ("key-3-1",), prefix=True).records == 3
    assert not [name for name in storage.list() if any(text in storage.get(name) for text in texts)]
    assert hs.prove(where, "key-3-1", "key-9-once").traces == []
    with open_state() as state:
        state.window("clicks", retention=10_000)
        expected = {
            "users": [row for row in kept["users"] if row[0] != "key-3-1"],
            "pairs": [row for row in kept["pairs"] if row[0][0] != "key-3-1"],
            "clicks": [],
        }
        assert contents(state) == expected
        assert state.version > version
        assert len(state.settings["erasures"]) == 2
        check_stores(state)


def test_a_closed_state_that_is_still_named_stops_no_erase(server: S3Server, open_state: Open, tmp_path: Path) -> None:
    """On an object store an open reader keeps the packs that it reads, and an erase is refused."""
    named = []
    for more in range(3):
        state = open_state(checkpoints=hs.CheckpointPolicy(every_commits=None))
        named.append((state, state.key_value("users"), state.window("clicks", retention=10_000)))
        if not more:
            state.key_value("users").put_many({f"key-{number}": "x" * 40 for number in range(2000)})
        for number in range(more):  # blocks that are not loaded stay in the packs of the checkpoint before
            state.key_value("users")["key-5"] = number
            state.commit()
            state.checkpoint(wait=True)
        state.commit()
        state.checkpoint(wait=True)
        state.close()
    where = server.bucket("states/test_a_closed_state_that_is_still_named_stops_no_erase", tmp_path / "cache") / "state"
    look = hs.inspect(where)
    assert look["users"].get("key-1")
    with pytest.raises(RestoreError, match=r"let go of what hs\.inspect has returned, and run the same erase again"):
        hs.erase(where, "key-1234")
    del look
    hs.erase(where, "key-1234")
    assert not hs.prove(where, "key-1234").traces
    for _, users, _ in named:
        with pytest.raises(StateClosedError):
            users.get("key-1")


def test_a_topology_of_several_shards_is_erased_on_an_object_store(server: S3Server, tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(100)).aggregate(n=hs.Count())
    source = [{"k": f"key-{number % 7}", "ts": number} for number in range(300)]
    where = server.bucket("states/erased-topology", tmp_path / "cache")
    for _ in topology.run(source[:200], where, shards=3, commit_rows=50):
        pass
    assert len(hs.erase(where, "key-3").places) == 3
    assert hs.prove(where, "key-3").traces == []
    rest = [dict(row) for row in topology.run(source, where, shards=3, commit_rows=50)]
    assert {row["k"] for row in rest if row["window_start"] == 200} == {f"key-{number}" for number in range(7)}
    with pytest.raises(RestoreError, match="is a shard"):
        hs.erase(where / "1", "key-3")


def test_rows_that_wait_for_their_consumer_are_erased_by_the_prefix_of_their_keys(
    server: S3Server, tmp_path: Path
) -> None:
    def twice(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
        if row["ts"] < 100:  # most of the pack stays
            stores["seen"].put_many({f"{row['ts']}-{each}": os.urandom(50) for each in range(50)})
        return [row]

    topology = hs.stream(key="k", timestamp="ts").process(twice, None, [hs.key_value_store("seen")])
    where = server.bucket("states/erased-results", tmp_path / "cache")
    source = [{"k": f"key-{number % 7}-{number}", "ts": number} for number in range(300)]
    policy = hs.CheckpointPolicy(every_commits=3)
    for _ in topology.run(source, where, commit_rows=50, checkpoints=policy):
        pass
    storage = storage_at(where)
    assert [name for name in storage.list() if b"key-3" in storage.get(name)]
    hs.erase(where, "key-3", prefix=True)
    assert not [name for name in storage.list() if b"key-3" in storage.get(name)]
    assert [name for name in storage.list() if b"key-4" in storage.get(name)]


def test_an_erase_of_an_owner_that_was_overtaken_removes_nothing(
    open_state: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_state(checkpoints=NEVER)
    before.key_value("users").put_many({f"key-{number}": number for number in range(50)})
    before.commit()
    before.checkpoint(wait=True)
    later: list[hs.State] = []

    def overtaken(*given: Any) -> Any:
        """The erase takes so long that another process has opened the state meanwhile, and gone on."""
        monkeypatch.undo()
        report = in_place.write_erased(*given)
        later.append(open_state(checkpoints=hs.CheckpointPolicy(every_commits=None, keep=1)))
        later[0].key_value("users")["more"] = 1
        later[0].commit()
        later[0].checkpoint(wait=True)
        return report

    monkeypatch.setattr(in_place, "write_erased", overtaken)
    before.key_value("users").erase("key-3")
    with pytest.raises(StatePoisonedError, match=r"an erase was cut short by StateLockedError: version [^(]*[(][^(]*$"):
        before.commit()
    crash(before)
    (state,) = later
    expected = {f"key-{number}": number for number in range(50) if number != 3} | {"more": 1}
    assert dict(state.key_value("users").all()) == expected
    state.key_value("users")["last"] = 2
    state.commit()
    state.checkpoint(wait=True)
    crash(state)
    with open_state() as state:
        assert dict(state.key_value("users").all()) == expected | {"last": 2}
        check_stores(state)
