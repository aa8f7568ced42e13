"""What a batch costs on storage: calls, counted by verb."""

from itertools import repeat
from pathlib import Path

from hybridstore.spark import StateStoreId, StateStoreProvider
from hybridstore.spark.launches import begin
from hybridstore.spark.loaded import ShardCache
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import Claim
from tests.tools.memory_storage import MemoryStorage
from tests.tools.shard_tools import ATTEMPTS, OFTEN, content, write
from tests.tools.watched_storage import Calls, WatchedStorage

SELDOM = CheckpointPolicy(every_commits=1000)


class Shard:
    """A shard in memory, whose calls are counted."""

    def __init__(self, root: Path) -> None:
        self.calls = Calls()
        self.storage = WatchedStorage(MemoryStorage(), self.calls)
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
    # of checkpoints and of the log; of each object its header, and itself
    assert shard.calls.taken() == {"list": 2, "get": 2 * 5}
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
    # a marker of damage, the index, and of each object its header and itself; packs when they are touched
    assert taken["get"] <= 2 + 2 * 2 + 2
