"""Scale, counted: the provider's own decisions for many workers and shards over a storage in memory, without processes.

Behind the first batch of a run a shard with rows costs one object a batch, and nothing else is asked of the storage:
nothing of a batch depends on how many shards or workers there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.suites.object_costs import BATCH
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.conftest import STRESS
from tests.tools.memory_storage import MemoryStorage
from tests.tools.watched_storage import WatchedStorage

NEVER = CheckpointPolicy(every_commits=10**9)


def calls_of_batches(shards: int, workers: int, batches: int) -> tuple[Counter[str], list[Counter[str]]]:
    """Return the calls of the driver's launch and of the tasks in each batch; a worker has every so many-th shard."""
    calls: Counter[str] = Counter()

    def watch(verb: str, name: str, call: Callable[[], Any]) -> Any:
        calls[verb] += 1
        return call()

    storage: Any = WatchedStorage(MemoryStorage(), watch)
    launch = new_launch(storage)
    of_launch, of_batches = Counter(calls), list[Counter[str]]()
    caches = [ShardCache() for _ in range(workers)]
    claims: dict[int, Any] = {}
    for batch in range(batches):
        calls.clear()
        for shard in range(shards):
            worker = shard % workers
            if worker not in claims:
                claims[worker] = claim(storage, launch, "run", batch, shard + 1)
            provider = StateStoreProvider(
                StateStoreId("/counted", "op", shard),
                storage=storage,
                claim=claims[worker],
                attempts=iter([batch * shards + shard + 1]),
                cache=caches[worker],
                policy=NEVER,
            )
            store = provider.get_store(batch)
            store.key_value("rows").put(batch, shard)
            store.commit()
        of_batches.append(Counter(calls))
    return of_launch, of_batches


@pytest.mark.parametrize("workers", [1, 20])
def test_a_batch_costs_an_object_for_each_shard_and_nothing_else(workers: int) -> None:
    sizes = [(40, workers), (160, workers), (160, 4 * workers)]
    if STRESS:
        sizes.append((10_000, 1000))
    launches = []
    for shards, count in sizes:
        of_launch, (first, *later) = calls_of_batches(shards, count, 4)
        launches.append(of_launch)
        for calls in later:
            assert calls == {"create": BATCH.puts * shards}
        # the first batch of a run looks for each shard, and each worker claims the launch
        assert sum(first.values()) <= 10 * shards + 10 * count
    # what the driver does at a start depends on neither
    assert all(of_launch == launches[0] for of_launch in launches)
