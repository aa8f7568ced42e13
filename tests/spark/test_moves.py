"""Shards that move between the workers of a machine, or the executors of a cluster, replay only what each process
lacks, and the metrics of every batch say so.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.tools import spark_moves
from tests.tools.script import run_script
from tests.tools.spark_moves import BATCHES, KEYS, PLACEMENTS, SHARDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def check(query: Path, placement: str) -> None:
    """Compare each batch's metrics with what the process that served a shard had of it."""
    # version that a process has of a shard
    versions: dict[tuple[int, int], int] = {}
    kinds: list[str] = []
    for batch in range(BATCHES):
        report = json.loads((query / "out" / str(batch)).read_text())
        total = sum(range(batch + 1))
        assert report["rows"] == sorted([f"k{i}", batch + 1, total] for i in range(KEYS))
        for shard, metrics in enumerate(report["metrics"]):
            (pid,) = report["pids"][shard]
            load = metrics["load"], metrics["replayed_segments"]
            known = versions.get((pid, shard))
            where = f"batch {batch}, shard {shard}: {load}, the process has version {known}"
            if batch == 0:
                assert load == ("empty", 0), where
            elif known is None:
                assert load == ("changelog", batch), where
            else:
                assert load == (("hit", 0) if known == batch else ("catch-up", batch - known)), where
            versions[pid, shard] = batch + 1
            kinds.append(load[0])
    assert len(kinds) == BATCHES * SHARDS
    if placement == "holder":
        # all workers of the host hand a shard to the same process, which has it in memory
        assert kinds == ["empty"] * SHARDS + ["hit"] * SHARDS * (BATCHES - 1)
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))})


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_shards_that_move_between_workers_are_caught_up_with(
    placement: str, spark: "SparkSession", tmp_path: Path
) -> None:
    spark_moves.run(spark, tmp_path / placement, placement)
    check(tmp_path / placement, placement)


@pytest.mark.stress
def test_shards_that_move_between_executors_are_caught_up_with(tmp_path: Path, rounds: int) -> None:
    if rounds == 1:
        pytest.skip("clusters take long to start: make stress")
    assert run_script("tests.tools.spark_moves", str(tmp_path)) == 0
    for placement in PLACEMENTS:
        check(tmp_path / placement, placement)
