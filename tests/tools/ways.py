"""Ways: how a test says which way the batches of a shard go, and learns which way they went."""

from __future__ import annotations

from typing import Any

import pytest

from hybridstore.aggregation.subtract import Subtract
from hybridstore.spark.program import TopologyRunner
from hybridstore.stores import sliding_maps
from hybridstore.stores.sliding import SlidingStore
from hybridstore.topology import run_state
from hybridstore.topology.aggregating import Aggregating
from hybridstore.topology.columns.why import Why
from hybridstore.topology.shard_run import ShardRun


def shard_run(holder: Any) -> ShardRun:
    """The run of a shard: of a runner of Spark's, of an engine's first shard, or itself."""
    if isinstance(holder, ShardRun):
        return holder
    run = holder._run if isinstance(holder, TopologyRunner) else holder._runs[0]
    assert isinstance(run, ShardRun)
    return run


def aggregating(holder: Any) -> Aggregating:
    """The windows of a shard with their aggregates."""
    logic = shard_run(holder).logic
    assert isinstance(logic, Aggregating)
    return logic


def row_by_row(holder: Any) -> None:
    """Let every batch of a shard go row by row, as without numpy, and so into its store."""
    logic = aggregating(holder)
    assert hasattr(logic, "_never")
    logic._never = Why.NO_NUMPY
    store = logic.windowed.store
    if isinstance(store, SlidingStore) and isinstance(store._strategy, Subtract):
        store._strategy.parts = None


@pytest.fixture
def few_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rows of small batches go into a sliding store together, too."""
    monkeypatch.setattr(sliding_maps, "_A_BATCH", 0)
    monkeypatch.setattr(sliding_maps, "_A_KEY", 1)


@pytest.fixture
def two_in_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the results of small commits in several pieces, too."""
    monkeypatch.setattr(run_state, "_FIRST_ROWS", 2)
    monkeypatch.setattr(run_state, "_GROWTH", 1)


def went_by_column(holder: Any, batch: Any) -> bool:
    """Whether the last batch went by column."""
    return bool(batch.num_rows) and shard_run(holder).why is None
