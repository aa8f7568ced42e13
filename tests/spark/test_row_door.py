"""Rows and groups as the door of `transformWithState` hands them out, without Spark."""

from __future__ import annotations

import pickle
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql import Row

from hybridstore.spark.stateful_processor import _rows, in_groups

NAMES = ("k", "count", "_x", "a b", "k")
KINDS: list[tuple[Any, Any]] = [
    (pa.string(), st.sampled_from(["", "a", "b"])),
    (pa.int32(), st.integers(-1, 1)),
    (pa.float64(), st.sampled_from([-1.0, 0.0, float("nan")])),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.sampled_from([date(1970, 1, 1), date(1970, 1, 2)])),
    (pa.decimal128(4, 2), st.sampled_from([Decimal("1.00"), Decimal("2.50")])),
    (pa.struct({"a": pa.int64()}), st.fixed_dictionaries({"a": st.none() | st.integers(0, 1)})),
]


def answer(action: Any) -> Any:
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def test_a_row_is_sparks_row_with_the_same_answers() -> None:
    values = ("v", 1, None, 2.5, "second")
    (given,) = _rows(pa.Table.from_arrays([pa.array([value]) for value in values], names=list(NAMES)))
    expected: Any = tuple.__new__(Row, values)
    expected.__fields__ = list(NAMES)
    assert isinstance(given, Row)
    assert (given, repr(given), hash(given)) == (expected, repr(expected), hash(expected))
    assert (given.__fields__, given.asDict(), "k" in given, "z" in given) == (
        list(NAMES),
        expected.asDict(),
        True,
        False,
    )
    for item in (*NAMES, "z", 0, -1, 9, slice(1, 3), None):
        assert answer(lambda item=item: given[item]) == answer(lambda item=item: expected[item]), item
    for name in (*NAMES, "z", "__z", "index"):
        first, second = (answer(lambda row=row, name=name: getattr(row, name)) for row in (given, expected))
        assert first == second or (callable(first) and callable(second)), name
    for row in (given, expected):
        assert answer(lambda row=row: setattr(row, "k", 1)) == "PySparkRuntimeError"
    again = pickle.loads(pickle.dumps(given))
    assert (type(again), again, again.__fields__) == (Row, expected, list(NAMES))


@given(st.data(), st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
def test_groups_are_those_of_equal_keys(data: st.DataObject, kinds: list[tuple[Any, Any]]) -> None:
    size = data.draw(st.integers(0, 12))
    keys = [data.draw(st.lists(st.none() | values, min_size=size, max_size=size)) for _, values in kinds]
    names = [f"k{place}" for place in range(len(kinds))]
    arrays = [pa.array(column, kind) for column, (kind, _) in zip(keys, kinds, strict=True)]
    table = pa.Table.from_arrays([*arrays, pa.array(range(size), pa.int64())], names=[*names, "n"])
    ordered, groups, places = in_groups(table, names)
    expected: dict[str, list[int]] = {}
    for n in range(size):
        expected.setdefault(repr([column[n] for column in keys]), []).append(n)
    numbers = ordered.column("n").to_pylist()
    rows = [numbers[start:end] for start, end in pairwise(places)]
    assert {repr(list(key)): part for key, part in zip(groups, rows, strict=True)} == expected
    assert len(groups) == len(expected)
    # null first
    if groups and keys[0].count(None):
        assert groups[0][0] is None
