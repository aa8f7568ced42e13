"""Sliding windows with one result a commit: as a full scan, looked at in between, and without an add for the other
records.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.topology_oracle import Row, SlidingOracle
from tests.topology.test_windows_models import Reopening, as_rows, batches

ADDS = [0]


def _add(total: int, value: int) -> int:
    ADDS[0] += 1
    return total + value


COUNTING = hs.Aggregator(int, _add, copy=False, commutative=True, name="counting")
BAG = hs.Aggregator(list, lambda items, value: [*items, value], result=sorted, commutative=True, name="bag")
AGGREGATORS: dict[str, dict[str, hs.Aggregator]] = {
    "subtract": {"a": hs.Count(), "b": hs.Sum("n")},
    "monotone": {"a": hs.Max("n")},
    "merge": {"a": hs.TopK(3, "n")},
    "ladder": {"a": BAG.on("n")},
    "recompute": {"a": hs.Reduce(max, "n")},
    "timed": {"a": hs.Last("n"), "b": hs.Collect("n", limit=3), "n": hs.Count()},
}


def declared(aggregators: dict[str, hs.Aggregator], size: int = 40) -> hs.Topology:
    windows = hs.SlidingWindows(size)
    return hs.stream(key="user", timestamp="time").windowed_by(windows).aggregate(emit="commit", **aggregators)


@pytest.mark.parametrize("kind", AGGREGATORS)
@pytest.mark.parametrize("looking", [False, True])
def test_the_last_result_of_each_key_comes_with_the_commit(kind: str, looking: bool, tmp_path: Path, seed: int) -> None:
    r = random.Random(seed)
    oracle = SlidingOracle(40)
    aggregators = AGGREGATORS[kind]
    run = Reopening(declared(aggregators), tmp_path, r)
    for batch in batches(r, 300, 60):
        last: dict[Any, Row] = {}
        r.shuffle(batch)
        for record, given in zip(batch, as_rows(batch), strict=True):
            last.update({row[0]: row for row in oracle.process(*record)})
            assert run.engine.process(given) == []
            if looking and r.random() < 0.3:
                assert len(run.engine.windows()) == len(oracle.live())
        expected = [
            {"user": key, "window_start": start, "window_end": end}
            | {name: aggregator.of(values or []) for name, aggregator in aggregators.items()}
            for key, start, end, values in (last[key] for key in sorted(last))
        ]
        assert run.commit([])[1] == expected
    assert run.dropped == oracle.dropped
    run.engine.close()


def test_records_between_results_cost_no_add_of_their_own(tmp_path: Path) -> None:
    topology = declared({"a": COUNTING.on("n")}, size=1000)
    with topology.open(tmp_path, durability="os") as engine:
        for first in range(0, 5000, 500):
            ADDS[0] = 0
            for ts in range(first, first + 500):
                engine.process({"user": "a", "time": ts, "n": 1})
            (row,) = engine.commit()
            assert row["a"] == min(first + 500, 1001)
            # a result for each record would be ten adds a record, and adding up anew for each of them a thousand
            assert ADDS[0] <= 2500
