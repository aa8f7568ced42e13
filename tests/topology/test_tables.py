"""Results of a run as Arrow tables: the rows of the run, commit by commit."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

import hybridstore as hs

KEYED = hs.stream(key="k", timestamp="t")
PAIRED = hs.stream(key=["k", "v"], timestamp="t")
MINUTE = hs.TumblingWindows("1 minute")
TOPOLOGIES: dict[str, hs.Topology] = {
    "sliding": KEYED.windowed_by(hs.SlidingWindows("1 minute")).aggregate(n=hs.Count(), mean=hs.Mean("v")),
    "two keys": PAIRED.windowed_by(hs.SlidingWindows("1 minute")).aggregate(n=hs.Count()),
    "tumbling": KEYED.windowed_by(MINUTE).aggregate(n=hs.Count(), most=hs.Max("v")),
    "a row a commit": KEYED.windowed_by(MINUTE).aggregate(n=hs.Count(), emit="commit"),
    "sessions": KEYED.windowed_by(hs.SessionWindows("20 seconds")).aggregate(of=hs.Collect("v")),
    "late rows": KEYED.windowed_by(MINUTE).aggregate(n=hs.Count()).late("late"),
    "custom": KEYED.process(lambda row, stores: [{"k": row["k"], "v": row["v"]}] if row["v"] else None),
}


def rows_of(seed: int, form: str) -> list[dict[str, Any]]:
    r = random.Random(seed)
    rows = []
    for now in range(0, 400_000, 1000):
        ts = max(0, now - r.choice([0, 0, 0, 5_000, 90_000]))
        moment = datetime(2026, 1, 1, tzinfo=UTC if form == "aware" else None) + timedelta(milliseconds=ts)
        rows.append({"k": r.choice("abcd"), "t": ts if form == "ms" else moment, "v": r.randint(-9, 9)})
    return rows


@pytest.mark.parametrize("form", ["ms", "naive", "aware"])
@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_tables_have_the_rows_of_the_run(kind: str, arrow: bool, form: str, tmp_path: Path, seed: int) -> None:
    rows = rows_of(seed, form)
    given: Any = pa.Table.from_pylist(rows) if arrow else rows
    topology = TOPOLOGIES[kind]
    expected = [(row.commit, dict(row)) for row in topology.run(given, tmp_path / "rows", commit_rows=100, shards=2)]
    tables = list(topology.run(given, tmp_path / "tables", commit_rows=100, shards=2).tables())
    assert [(commit, row) for commit, table in tables for row in table.to_pylist()] == expected
    assert all(table.num_rows for _, table in tables)
    if kind not in ("late rows", "custom"):
        assert len({table.schema for _, table in tables}) == 1


def test_a_consumer_of_tables_that_stopped_gets_the_last_ones_again(tmp_path: Path, seed: int) -> None:
    rows, topology = rows_of(seed, "aware"), TOPOLOGIES["sliding"]
    run = topology.run(rows, tmp_path / "s", commit_rows=100).tables()
    first = [next(run), next(run)]
    run.close()
    again = list(topology.run(rows, tmp_path / "s", commit_rows=100).tables())
    assert [commit for commit, _ in again] == [1, 2, 3, 4]
    assert all(table.equals(same) for (_, table), (_, same) in zip(first, again, strict=False))
    assert list(topology.run(rows, tmp_path / "s", commit_rows=100).tables()) == []


def test_a_run_is_a_generator(tmp_path: Path) -> None:
    run = TOPOLOGIES["sliding"].run(rows_of(1, "ms"), tmp_path / "s", commit_rows=100)
    assert next(run).commit == 1
    assert next(iter(run))["k"] in "abcd"
    run.close()
    assert list(run) == []
    run = TOPOLOGIES["sliding"].run(rows_of(1, "ms"), tmp_path / "s", commit_rows=100)
    with pytest.raises(KeyError, match="thrown"):
        run.throw(KeyError("thrown"))
    run = TOPOLOGIES["sliding"].run(rows_of(1, "ms"), tmp_path / "s", commit_rows=100)
    run.close()  # before the first row: nothing was opened
    assert list(run) == []
