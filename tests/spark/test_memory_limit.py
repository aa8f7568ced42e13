"""A process of Spark's holds no more than its limit: shards leave, least recently used first, and come back cold."""

from __future__ import annotations

import random
from itertools import repeat
from pathlib import Path

import pytest

from hybridstore.spark.session import share_of_overhead
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard import Shard
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.memory_budget import usable
from hybridstore.state.policy import CheckpointPolicy
from recovery.runs import Claim
from tests.tools.shard_tools import ATTEMPTS, provider, started

SHARDS = 6
# the records of a shard, and what they are estimated at, packed twice and with their places
RECORDS, RECORD_BYTES = 400, 100
LIMIT = SHARDS * RECORDS * RECORD_BYTES // 5


def batch(root: Path, cache: ShardCache, claim: Claim, shard: int, version: int, rows: dict[str, int]) -> str:
    """A task of one shard, as the worker does it; returns how the state came into memory."""
    provider = StateStoreProvider(
        StateStoreId(str(root), "op", shard),
        cache=cache,
        claim=claim,
        attempts=repeat(next(ATTEMPTS)),
        policy=CheckpointPolicy(every_commits=4),
        lenient=lambda: True,
    )
    store = provider.get_store(version)
    counts = store.key_value("counts")
    for key, value in rows.items():
        counts.put(key, (counts.get(key) or 0) + value)
    store.commit()
    provider.maintain(wait=True, oldest_replay=version)
    return store.loaded.kind


@pytest.mark.stress
def test_state_of_five_times_the_limit_stays_within_it(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r, root = random.Random(f"{seed} {number}"), tmp_path / str(number)
        cache, claim = ShardCache(limit=LIMIT), started(root, 0)
        expected: list[dict[str, int]] = [{} for _ in range(SHARDS)]
        loads: set[str] = set()
        for version in range(40):
            shard = version if version < SHARDS else r.randrange(SHARDS)
            keys = range(RECORDS) if version < SHARDS else (r.randrange(RECORDS) for _ in range(20))
            rows = {f"key{key:04d}": r.randint(1, 9) for key in keys}
            loads.add(batch(root, cache, claim, shard, version, rows))
            for key, value in rows.items():
                expected[shard][key] = expected[shard].get(key, 0) + value
            assert cache.bytes() <= LIMIT or not all(each.settled for each in cache._entries.values())
        assert sum(len(rows) for rows in expected) * RECORD_BYTES >= 5 * LIMIT
        assert "checkpoint" in loads
        for shard, rows in enumerate(expected):
            provider = StateStoreProvider(StateStoreId(str(root), "op", shard), claim=claim, lenient=lambda: True)
            assert dict(provider.get_read_store(40).key_value("counts").all()) == rows


def test_the_least_recently_used_shard_leaves_and_its_records_are_freed(tmp_path: Path) -> None:
    cache, claim = ShardCache(), started(tmp_path, 0)
    for shard in range(3):
        batch(tmp_path, cache, claim, shard, shard, {f"k{i}": 1 for i in range(100)})
    shards = list(cache._entries.values())
    for each in shards:
        each.measure()
    cache.limit_to(shards[0].measured * 2 + 100)
    cache.limit_to(10**9)  # the smaller limit of two operators governs
    assert cache.limit == shards[0].measured * 2 + 100
    batch(tmp_path, cache, claim, 0, 3, {"k0": 1})
    assert [key[0].rpartition("/")[2] for key in cache._entries] == ["000002", "000000"]
    assert [each.group.stores["counts"].num_records for each in shards] == [100, 0, 100]


def test_a_shard_that_is_larger_than_the_limit_comes_back_cold(tmp_path: Path) -> None:
    cache, claim = ShardCache(limit=1000), started(tmp_path, 0)
    kinds = [batch(tmp_path, cache, claim, 0, version, {f"k{i}": 1 for i in range(100)}) for version in range(8)]
    assert kinds[0] == "empty"
    assert set(kinds[1:]) <= {"changelog", "checkpoint", "hit"}
    assert "checkpoint" in kinds
    provider = StateStoreProvider(StateStoreId(str(tmp_path), "op", 0), claim=claim)
    assert dict(provider.get_read_store(8).key_value("counts").all()) == {f"k{i}": 8 for i in range(100)}


@pytest.mark.parametrize("limit", [30_000_000, None])
def test_the_tail_of_a_shard_is_bounded_by_the_limit(tmp_path: Path, limit: int | None) -> None:
    """Of few keys that change often: rows that a restart has in memory, however few records the shard has."""
    policy, claim, cache = CheckpointPolicy(max_restore="1 hour"), started(tmp_path, 0), ShardCache(limit=limit)
    most = usable(30_000_000) // 4
    assert most < 80 * 120_000  # else the test shows nothing
    for version in range(12):
        task = provider(tmp_path, run=claim, cache=cache, policy=policy)
        store = task.get_store(version)
        store.key_value("hot").put_many((f"key{i % 50}", i) for i in range(10_000))
        store.commit()
        task.maintain(wait=True)
    restarted = provider(tmp_path, run=claim, policy=policy).get_store(12)
    tail = restarted.loaded.replayed
    assert dict(restarted.key_value("hot").all()) == {f"key{i % 50}": i for i in range(9950, 10_000)}
    a_batch = 10_000 * (80 + 2 * 16)
    assert (80 * tail.records + 2 * tail.bytes <= most + a_batch) == (limit is not None)


def test_a_shard_with_a_checkpoint_to_be_made_stays(tmp_path: Path) -> None:
    cache, claim = ShardCache(), started(tmp_path, 0)
    batch(tmp_path, cache, claim, 0, 0, {f"k{i}": 1 for i in range(100)})
    (shard,) = cache._entries.values()
    assert isinstance(shard, Shard)
    shard.checkpoint_due = True
    cache.limit_to(1)
    where, store_id = next(iter(cache._entries))
    taken = cache.take(where, store_id)
    assert taken is shard
    cache.give(where, store_id, shard)
    assert len(cache) == 1
    shard.checkpoint_due = False
    cache.give(where, store_id, shard)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark.master": "local[4]", "spark.executor.cores": "2"}, None),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.executor.cores": "2"}, 384 << 18),
        ({"spark.master": "yarn"}, 384 << 19),
        ({"spark.master": "yarn", "spark.executor.memory": "20g"}, 1 << 30),
        ({"spark.master": "yarn", "spark.executor.memoryOverhead": "1024", "spark.executor.cores": "4"}, 128 << 20),
        ({"spark.master": "k8s://host", "spark.executor.memoryOverhead": "2g"}, 1 << 30),
        (
            {"spark.master": "yarn", "spark.executor.pyspark.memory": "1g", "spark.executor.memoryOverhead": "4g"},
            1 << 29,
        ),
    ],
)
def test_the_default_is_half_of_the_overhead_shared_by_cores(settings: dict[str, str], expected: int | None) -> None:
    assert share_of_overhead(lambda name, default: settings.get(name, default)) == expected
