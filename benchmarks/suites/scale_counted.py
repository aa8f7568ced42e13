"""Scale, counted: requests of many shards on many workers to the storage, by the provider's own code, no processes.

    python -m benchmarks.suites.scale_counted [--write]       1,000 workers and 10,000 shards: about a minute

The storage is in memory, and counts. `--write` keeps the counts for docs/scale.md
(benchmarks/results/scale-counted.json); they depend on no machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sortedcontainers import SortedDict

from benchmarks.suites.scale_model import KEPT, counted_section
from hybridstore.spark.launches import claim, new_launch
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.memory_storage import MemoryStorage
from tests.tools.watched_storage import WatchedStorage

SIZES: Final = ((40, 1), (160, 1), (160, 20), (1000, 100), (10_000, 100), (10_000, 1000))
BATCHES: Final = 4
_NEVER: Final = CheckpointPolicy(every_commits=10**9)


class SortedStorage(MemoryStorage):
    """A storage in memory that lists names without looking at all of them."""

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        """Return the names that begin so, behind `after`. O(log objects + names)."""
        start, names = self.base + prefix, list[str]()
        for name in self.objects.irange(start):  # type: ignore[attr-defined]
            if not name.startswith(start):
                break
            names.append(name.removeprefix(self.base))
        return [name for name in names if name > after]

    def below(self, folder: str) -> SortedStorage:
        """Return the part below a folder; it shares the objects."""
        return SortedStorage(self.objects, f"{self.base}{folder}/")


def calls_of_batches(shards: int, workers: int, batches: int) -> tuple[Counter[str], list[Counter[str]]]:
    """Return the calls of the driver's launch and of the tasks in each batch; a worker has every so many-th shard."""
    calls: Counter[str] = Counter()

    def watch(verb: str, name: str, call: Callable[[], Any]) -> Any:
        calls[verb] += 1
        return call()

    storage: Any = WatchedStorage(SortedStorage(SortedDict()), watch)
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
                policy=_NEVER,
            )
            store = provider.get_store(batch)
            store.key_value("rows").put(batch, shard)
            store.commit()
        of_batches.append(Counter(calls))
    return of_launch, of_batches


def counted(sizes: Iterable[tuple[int, int]] = SIZES) -> list[dict[str, Any]]:
    """Return the counts for each (shards, workers): of a launch, of the first batch, of each later one."""
    rows = []
    for shards, workers in sizes:
        begun = time.process_time()
        launch, (first, *later) = calls_of_batches(shards, workers, BATCHES)
        if any(calls != later[0] for calls in later):
            raise RuntimeError(f"{shards} shards on {workers} workers: later batches differ: {later}")
        row = {"shards": shards, "workers": workers, "launch": launch, "first": first, "later": later[0]}
        print(f"{row}, {time.process_time() - begun:.1f} processor seconds", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    table = counted()
    print("\n".join(counted_section(table)))
    if sys.argv[1:] == ["--write"]:
        KEPT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
