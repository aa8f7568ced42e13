"""The queries of `examples/nexmark.py` against full scans, in dicts, Arrow batches, shards and over a restart."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "nexmark.py"), run_name="nexmark")
QUERIES, DAY_MS = EXAMPLE["QUERIES"], EXAMPLE["DAY_MS"]
Bids = list[dict[str, Any]]
RANKS = {"total": (0, 10**12), "rank1": (0, 10_000), "rank2": (10_000, 1_000_000), "rank3": (1_000_000, 10**12)}


def grouped(bids: Bids, *columns: str, daily: bool = True) -> Iterable[tuple[tuple[Any, ...], Bids]]:
    groups: dict[tuple[Any, ...], Bids] = {}
    for bid in bids:
        key = tuple(bid[column] for column in columns)
        day = bid["time"] // DAY_MS * DAY_MS
        groups.setdefault((*key, day, day + DAY_MS) if daily else key, []).append(bid)
    return groups.items()


def of_rank(bids: Bids, rank: str) -> Bids:
    low, high = RANKS[rank]
    return [bid for bid in bids if low <= bid["price"] < high]


def counts(bids: Bids) -> list[int]:
    return [len(of_rank(bids, rank)) for rank in RANKS]


def report(bids: Bids) -> list[int]:
    distinct = [len({bid[column] for bid in of_rank(bids, rank)}) for column in ("bidder", "auction") for rank in RANKS]
    return [*counts(bids), *distinct]


def prices(bids: Bids) -> list[float]:
    given = [bid["price"] for bid in bids]
    return [min(given), max(given), sum(given) / len(given), sum(given)]


def last(bids: Bids) -> dict[str, Any]:
    bid = max(bids, key=lambda bid: bid["time"])
    return {name: bid[name] for name in ("price", "channel", "time")}


def top(bids: Bids) -> Bids:
    best = sorted(bids, key=lambda bid: (-bid["price"], bid["time"]))[:10]
    return [{name: bid[name] for name in ("bidder", "price", "time")} for bid in best]


SCANS: dict[str, Callable[[Bids], set[str]]] = {
    "q15": lambda bids: {repr((*key, *report(group))) for key, group in grouped(bids)},
    "q16": lambda bids: {
        repr((*key, max(bid["time"] for bid in group), *report(group))) for key, group in grouped(bids, "channel")
    },
    "q17": lambda bids: {repr((*key, *counts(group), *prices(group))) for key, group in grouped(bids, "auction")},
    "q18": lambda bids: {repr((*key, last(group))) for key, group in grouped(bids, "bidder", "auction", daily=False)},
    "q19": lambda bids: {repr((*key, top(group))) for key, group in grouped(bids, "auction", daily=False)},
}


def newest(results: Iterable[dict[str, Any]], query: str) -> set[str]:
    """The last result of each group."""
    width = 1 if query == "q19" else 2 if query in ("q15", "q18") else 3
    rows = {tuple(row.values())[:width]: tuple(row.values()) for row in results}
    return set(map(repr, rows.values()))


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_full_scans(query: str, tmp_path: Path) -> None:
    topology, bids = QUERIES[query], list(EXAMPLE["bids"](1_200))
    expected = SCANS[query](bids)
    assert len(expected) >= 3
    tables = [pa.Table.from_pylist(bids[at : at + 300]).to_batches()[0] for at in range(0, 1_200, 300)]
    assert newest(topology.run(bids, commit_rows=100, shards=3), query) == expected
    assert newest(topology.run(tables), query) == expected
    # as in a worker of Spark
    program, group = TopologyProgram(topology), StoreGroup(lambda body: None)
    runner, given = program.open(group), pa.Table.from_pylist(bids)
    rows = runner.process(given, program.output_schema(given.schema)).to_pylist()
    assert newest(rows, query) == expected
    state = tmp_path / query
    results = [*topology.run(bids[:700], state, commit_rows=100), *topology.run(bids, state, commit_rows=100)]
    assert newest(results, query) == expected
