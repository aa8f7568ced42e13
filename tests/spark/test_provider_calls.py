"""What a batch costs on storage: calls, counted by verb."""

from itertools import repeat
from pathlib import Path

import pytest

from changelog.storage import Storage
from hybridstore.spark.launches import begin
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.home import with_cache
from hybridstore.state.policy import CheckpointPolicy
from recovery import attempts
from recovery.fetching import FETCHING
from recovery.runs import Claim
from tests.tools.memory_storage import MemoryStorage
from tests.tools.requests import CountedStorage, counted
from tests.tools.shard_tools import ATTEMPTS, OFTEN, content, write
from tests.tools.watched_storage import Calls, WatchedStorage

SELDOM = CheckpointPolicy(every_commits=1000)


class Shard:
    """A shard in memory, whose calls are counted."""

    def __init__(self, root: Path, storage: Storage | None = None) -> None:
        self.calls = Calls()
        self.storage: Storage = WatchedStorage(MemoryStorage() if storage is None else storage, self.calls)
        self.id = StateStoreId(str(root), "op", 0)
        self.claim: Claim = begin(self.storage, 0)

    def task(self, cache: ShardCache, policy: CheckpointPolicy = SELDOM) -> StateStoreProvider:
        """A task of Spark's, which has a provider of its own; the calls of before are forgotten."""
        self.calls.taken()
        return StateStoreProvider(
            self.id,
            cache=cache,
            policy=policy,
            claim=self.claim,
            attempts=repeat(next(ATTEMPTS)),
            storage=self.storage,
        )


def test_a_batch_on_a_shard_in_memory_is_one_create_and_reads_nothing(tmp_path: Path) -> None:
    shard, cache = Shard(tmp_path), ShardCache()
    write(shard.task(cache), 0, a=0)
    for batch in range(1, 20):
        task = shard.task(cache)
        write(task, batch, a=batch) if batch % 3 else task.get_store(batch).commit()
        task.maintain(oldest_replay=batch)
        assert shard.calls.taken() == {"create": 1}


def test_a_batch_without_rows_is_one_create_whoever_does_it(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    write(shard.task(ShardCache()), 0, a=0)
    for batch in range(1, 20):
        task = shard.task(ShardCache())
        task.note_empty(batch)
        task.maintain(oldest_replay=batch)
        assert shard.calls.taken() == {"create": 1}


def test_catching_up_is_two_lists_and_what_is_missing(tmp_path: Path) -> None:
    shard, behind, ahead = Shard(tmp_path), ShardCache(), ShardCache()
    write(shard.task(behind), 0, a=0)
    for batch in range(1, 6):
        write(shard.task(ahead), batch, a=batch)
    task = shard.task(behind)
    assert content(task.get_store(6)) == {"a": 5}
    # of checkpoints and of the log; each object once
    assert shard.calls.taken() == {"list": 2, "get": 5}
    assert task.metrics().replayed_segments == 5


def test_a_cold_start_reads_the_checkpoint_and_what_lies_behind_it(tmp_path: Path) -> None:
    shard, cache = Shard(tmp_path), ShardCache()
    for batch in range(8):
        task = shard.task(cache, OFTEN)
        write(task, batch, **{f"k{batch}": batch})
        task.maintain(wait=True, oldest_replay=batch)
    task = shard.task(ShardCache(), OFTEN)
    store = task.get_store(8)
    taken = shard.calls.taken()
    assert (store.loaded.kind, store.metrics().replayed_segments) == ("checkpoint", 2)
    assert taken["list"] == 2
    # the index, and each object; packs when they are touched
    assert taken["get"] == 1 + 2


@pytest.mark.parametrize("remembered", [512, 3])
def test_clearing_away_reads_no_header_of_what_this_process_has_written_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr("hybridstore.spark.shard.shard.KEPT_PARENTS", remembered)
    with counted() as requests:
        shard = Shard(tmp_path, CountedStorage(requests))
        workers, asked = [ShardCache(), ShardCache()], []
        for batch in range(30):
            # a worker writes some batches, and catches up with those of the other
            task = shard.task(workers[(batch + 4) // 5 % 2], OFTEN)
            write(task, batch, **{f"k{batch}": batch})
            requests.reset()
            task.maintain(wait=True, oldest_replay=batch)
            asked += requests.names
        loaded = workers[1].take(task.path, shard.id.identity)
        assert loaded is not None
        log = task.log.objects
        names = log.names()
        assert len(names) < 20
        assert all(log.parent(name) == loaded.parents[name] for name in names if name in loaded.parents)
    headers = [name for name in asked if name.startswith("ranges log/")]
    assert bool(headers) is (remembered < 20)


def test_whatever_is_read_is_read_in_two_rounds(tmp_path: Path) -> None:
    with counted() as requests:
        shard = Shard(tmp_path, CountedStorage(requests))
        cache, behind, ahead = ShardCache(), ShardCache(), ShardCache()
        for batch in range(12):
            task = shard.task(cache, OFTEN) if batch < 6 else shard.task(behind if batch == 6 else ahead)
            write(task, batch, **{f"k{batch}": batch})
            task.maintain(wait=True, oldest_replay=batch)
        requests.reset()
        store = shard.task(behind).get_store(12)
        assert (store.loaded.kind, requests.rounds, store.metrics().replayed_segments) == ("catch-up", 2, 5)
        requests.reset()
        store = shard.task(ShardCache()).get_store(12)
        # names; the index and the tail
        assert (store.loaded.kind, requests.rounds) == ("checkpoint", 2), requests.names
        assert store.metrics().replayed_segments >= 6


def test_a_tail_that_is_longer_than_a_group_is_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted() as requests:
        shard, cache = Shard(tmp_path, CountedStorage(requests)), ShardCache()
        for batch in range(10):
            write(shard.task(cache), batch, **{f"k{batch}": batch})
        monkeypatch.setattr(attempts, "GROUP", 4)
        requests.reset()
        assert content(shard.task(ShardCache()).get_store(10)) == {f"k{batch}": batch for batch in range(10)}
        # names; four objects and six headers; the others in two groups
        assert requests.rounds == 4, requests.names
        assert requests.number == 2 + 10 + 4 + 2


def test_a_first_batch_takes_four_rounds_and_packs_come_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.rounds.REQUEST_BYTES", 100)
    numbers = range(2_000)
    with counted() as requests:
        behind = CountedStorage(requests)
        shard = Shard(tmp_path, behind)
        writer = shard.task(ShardCache(), OFTEN)
        for batch in range(4):
            store = writer.get_store(batch)
            keys = [f"{number:06d}" for number in numbers if number % 4 == batch]
            store.key_value("default").put_columns(keys, [str(batch) * 40] * len(keys))
            store.commit()
            writer.maintain(wait=True, oldest_replay=batch)
        shard.storage = with_cache(behind, tmp_path / "cache")
        cache = ShardCache()
        task = shard.task(cache)
        requests.reset()
        store = task.get_store(4)
        assert store.loaded.kind == "checkpoint"
        assert requests.rounds == 2, requests.names
        rows = store.key_value("default")
        assert rows.get_many(["000004", "000900", "001999"]) == ["0" * 40, "0" * 40, "3" * 40]
        assert requests.rounds == 4, requests.names
        rows.put("000004", "changed")
        store.commit()
        if (thread := FETCHING._thread) is not None:
            thread.join()
        before = requests.number
        rows = shard.task(cache).get_store(5).key_value("default")
        assert len(list(rows.all())) == len(numbers)
        assert requests.number == before
