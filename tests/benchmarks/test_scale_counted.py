"""Scale, counted: the provider's own decisions for many workers and shards over a storage in memory, without processes.

Behind the first batch of a run a shard with rows costs one object a batch, and nothing else is asked of the storage:
nothing of a batch depends on how many shards or workers there are.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.suites.object_costs import BATCH
from tests.conftest import STRESS

pytest.importorskip("pyarrow")

from benchmarks.suites.scale_counted import KEPT, SIZES, calls_of_batches, counted

ROWS: list[dict[str, Any]] = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("workers", [1, 20])
def test_a_batch_costs_an_object_for_each_shard_and_nothing_else(workers: int) -> None:
    launches = []
    for shards, count in [(40, workers), (160, workers), (160, 4 * workers)]:
        of_launch, (first, *later) = calls_of_batches(shards, count, 4)
        launches.append(of_launch)
        for calls in later:
            assert calls == {"create": BATCH.puts * shards}
        # the first batch of a run looks for each shard, and each worker claims the launch
        assert sum(first.values()) <= 10 * shards + 10 * count
    # what the driver does at a start depends on neither
    assert all(of_launch == launches[0] for of_launch in launches)


def test_the_counts_of_the_page_are_those_of_the_code() -> None:
    assert [(row["shards"], row["workers"]) for row in ROWS] == list(SIZES)
    sizes = SIZES if STRESS else [size for size in SIZES if size[0] < 1000]
    assert counted(sizes) == ROWS[: len(sizes)]
    for row in ROWS:
        assert row["launch"] == ROWS[0]["launch"]
        assert row["later"] == {"create": row["shards"]}
        assert sum(row["first"].values()) <= 4 * row["shards"] + 4 * row["workers"]
