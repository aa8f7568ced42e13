"""The lines of docs/inspect.md by which pandas, Polars and DuckDB read a store: each library has what `scan` has.

Polars and DuckDB are in the group `tables` of pyproject.toml (`pip install --group tables`); without them their tests
are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs


@pytest.fixture
def clicks(tmp_path: Path) -> Any:
    with hs.open(tmp_path) as state:
        store = state.window("clicks", retention="1 day")
        for number in range(2_000):
            store.put(f"user-{number % 70}", {"n": number, "of": f"page {number % 9}"}, ts=number * 500)
            if number % 400 == 0:
                state.commit()
        state.commit()
        state.checkpoint(wait=True)
    return hs.inspect(tmp_path)["clicks"]


def expected(clicks: Any) -> list[tuple[Any, ...]]:
    return sorted((row.key, row.times[0], row.value["n"], row.value["of"]) for row in clicks)


def test_pandas(clicks: Any) -> None:
    pytest.importorskip("pandas")
    frame = clicks.arrow().read_pandas()
    rows = zip(frame["key"], frame["ts"], frame["value"], strict=True)
    assert sorted((key, ts, value["n"], value["of"]) for key, ts, value in rows) == expected(clicks)
    totals = clicks.arrow(["key"], time_from=500_000).read_pandas().groupby("key").size()
    assert int(totals.sum()) == 1_000


def test_polars(clicks: Any) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(clicks.arrow().read_all())
    rows = frame.unnest("value").sort("key", "ts").rows()
    assert rows == expected(clicks)
    totals = polars.from_arrow(clicks.arrow(["key"], time_from=500_000).read_all()).group_by("key").len()
    assert totals["len"].sum() == 1_000


def test_duckdb(clicks: Any) -> None:
    duckdb = pytest.importorskip("duckdb")
    reader = clicks.arrow()
    rows = duckdb.sql("SELECT key, ts, value.n, value.of FROM reader ORDER BY key, ts").fetchall()
    del reader  # duckdb has found it by its name
    assert rows == expected(clicks)
    later = clicks.arrow(["key"], time_from=500_000)
    totals = duckdb.from_arrow(later).aggregate("count(*), count(DISTINCT key)").fetchall()
    assert totals == [(1_000, 70)]
