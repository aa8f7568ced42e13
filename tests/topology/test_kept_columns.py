"""Kept columns: what is kept depends on the values alone, and comes back with the same values and types."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack, unpack
from hybridstore.topology import run_state
from hybridstore.topology.kept_columns import column_to_keep, kept_column
from hybridstore.topology.results import Late, ResultTable
from hybridstore.topology.run import _with_late
from hybridstore.topology.run_state import RESULTS, Keeping, kept
from tests.tools.hooks import force_cold

INTS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1])
COLUMNS = (
    st.lists(INTS)
    | st.lists(st.floats())
    | st.lists(st.text())
    | st.lists(st.text(st.characters(codec=None)))
    | st.lists(INTS | st.booleans() | st.none() | st.text() | st.floats() | st.integers(0, 2**64 - 1) | st.binary())
)


def same(first: list[Any], second: list[Any]) -> bool:
    """Equal in values, types, signs of zeros and nans."""
    return [(type(value), repr(value)) for value in first] == [(type(value), repr(value)) for value in second]


@given(COLUMNS)
def test_a_column_comes_back_as_it_was(column: list[Any]) -> None:
    before = list(column)
    kept = unpack(pack(column_to_keep(column)))
    assert same(kept_column(kept), before)
    assert same(column, before)


@given(st.lists(INTS) | st.lists(st.floats()))
def test_numbers_of_numpy_and_arrow_are_kept_as_the_equal_list(column: list[Any]) -> None:
    kind = np.int64 if all(type(value) is int for value in column) else np.float64
    expected = pack(column_to_keep(column))
    assert pack(column_to_keep(np.array(column, kind))) == expected
    assert pack(column_to_keep(pa.array(column, pa.int64() if kind is np.int64 else pa.float64()))) == expected
    assert pack(column_to_keep(pa.chunked_array([pa.array(column, pa.from_numpy_dtype(kind))]))) == expected


@given(st.lists(st.text() | st.none()), st.integers(0, 5))
def test_texts_of_arrow_are_kept_as_the_equal_list(column: list[Any], start: int) -> None:
    array = pa.array(column, pa.string()).slice(min(start, len(column)))
    assert pack(column_to_keep(array)) == pack(column_to_keep(column[start:]))
    assert same(kept_column(column_to_keep(array)), column[start:])


@pytest.mark.parametrize("tables", [False, True])
def test_the_results_of_a_join_are_kept_as_bytes_and_emitted_again(tmp_path: Path, tables: bool) -> None:
    dice = random.Random(3)
    orders = [{"order": f"n{i:02}", "ordered": i, "item": f"\u00e4 {i}", "price": i / 7} for i in range(50)]
    paid = [{"order": f"n{i:02}", "paid": dice.randrange(60), "amount": dice.choice([1, None])} for i in range(50)]
    join = hs.stream(name="orders", key="order", timestamp="ordered").join(
        hs.stream(name="payments", key="order", timestamp="paid"), within="1 minute"
    )
    given_rows: dict[str, Any] = {"orders": orders, "payments": sorted(paid, key=lambda row: row["paid"])}
    inputs = {name: pa.Table.from_pylist(rows) for name, rows in given_rows.items()} if tables else given_rows
    first = [dict(row) for row in join.run(inputs, tmp_path)]
    assert len(first) == 50
    with hs.open(tmp_path) as state:
        ((_, kept),) = state.key_value(RESULTS).all()
    names, _, columns = unpack(kept)
    kinds = {name: set(column) if type(column) is dict else None for name, column in zip(names, columns, strict=True)}
    assert kinds == {
        "order": None,
        "ordered": {"i4"},
        "item": None,
        "price": {"f8"},
        "paid": {"i4"},
        "amount": None,
        "result_time": {"i4"},
    }
    again = [dict(row) for row in join.run(inputs, tmp_path, replay_last=True)]
    assert same(again, first)


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("results", [0, 1, 5, 40])
@pytest.mark.parametrize("names", [["k", "n"], None])
def test_results_are_kept_in_pieces_of_about_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None, results: int, late: int
) -> None:
    for name, value in (("_FIRST_ROWS", 2), ("_PIECE_BYTES", 1000)):
        monkeypatch.setattr(run_state, name, value)
    rows = [{"k": f"{i:03}", "n": i} for i in range(results)]
    columns: list[Any] = rows if names is None else [[row["k"] * 20 for row in rows], [row["n"] for row in rows]]
    late_rows = Late("late", ["a"] * late, [{"k": "a", "i": i} for i in range(late)]) if late and names else None
    table = ResultTable(names, None, columns, late_rows)
    with hs.open(tmp_path) as state:
        for commit in (3, 4, 5):
            keeping = Keeping(state, commit, commit - 1)
            keeping.keep(table)
            assert keeping.size == table.size
            state.commit()
        assert sorted({commit for commit, _ in state.key_value(RESULTS)}) == ([4, 5] if table else [])
        force_cold(state)
        for commit in (4, 5):
            pieces = list(kept(state, commit))
            assert len(pieces) == keeping.pieces
            # the run names the column of late rows in the pieces that have none
            column = None if table.late is None else table.late.column
            assert [row for piece in pieces for row in _with_late(piece, column).rows(dict)] == list(table.rows(dict))
            # the late rows come with the last piece
            assert [piece.late is not None for piece in pieces[:-1]] == [False] * (len(pieces) - 1)
        assert max((len(value) for value in state.key_value(RESULTS).values()), default=0) < 1200


def test_a_piece_of_large_results_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "_FIRST_ROWS", 2)
    monkeypatch.setattr(run_state, "_PIECE_BYTES", 1000)
    with hs.open(tmp_path) as state:
        Keeping(state, 1, 0).keep(ResultTable(["v"], None, [["x" * 3000] * 5]))
        assert [table.results for table in kept(state, 1)] == [2, 1, 1, 1]
