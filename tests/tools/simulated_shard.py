"""Simulated shard: the Spark provider's own code as the simulation calls it, with the shard's memory in its process."""

from __future__ import annotations

from collections.abc import Callable

from hybridstore.spark.launches import STARTS, claim, new_launch
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.simulated_storage import Process, SimulatedStorage
from tests.tools.spark_query import Rows, Task

NEVER = CheckpointPolicy(every_commits=10**9)


class ProviderShard:
    """A shard of the provider.

    policy       when to checkpoint; then the shard is cleared up after each batch, too
    by_arrival   launches have the number in which their first tasks began, not the driver's: a protocol that is broken
    """

    def __init__(self, *, policy: CheckpointPolicy = NEVER, retain: int = 10, by_arrival: bool = False) -> None:
        self.policy, self.retain = policy, retain
        self.by_arrival = by_arrival
        self.numbers: dict[int, int] = {}

    def launch(self, storage: SimulatedStorage) -> int:
        return new_launch(storage)

    def attempt(self, storage: SimulatedStorage, process: Process, task: Task, check: Callable[[Rows], None]) -> None:
        launch = task.launch
        if self.by_arrival:
            launch = self.numbers.setdefault(launch, (len(self.numbers) + 1) * STARTS)
        if process.memory.get("run") != task.run:
            process.memory["claim"] = claim(storage, launch, f"run {task.run}", task.batch, task.number)
            process.memory["run"] = task.run
        provider = StateStoreProvider(
            StateStoreId("/simulated", "op", 0),
            storage=storage,
            claim=process.memory["claim"],
            attempts=iter([task.number]),
            cache=process.memory.setdefault("cache", ShardCache()),
            policy=self.policy,
            retain=self.retain,
        )
        store = provider.get_store(task.batch)
        rows = store.key_value("rows")
        check(dict(rows.all()))
        if task.value:
            rows.put(task.batch, task.value)
        store.commit()
        if self.policy is not NEVER:
            provider.maintain(wait=True, oldest_replay=task.batch)
