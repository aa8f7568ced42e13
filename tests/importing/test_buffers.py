"""Buffers of Spark's aggregates become what our aggregators keep, and others are refused with a sentence."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa

from hybridstore.importing.buffers import DISTINCT, SKETCH, Part, elements, parts_of


def array_of(values: list[Any], letter: str) -> bytes:
    """An array of numbers in Spark's binary form: the count, a bit for each null, the elements in whole words."""
    packed = struct.pack(f"<{len(values)}{letter}", *values)
    return struct.pack("<q", len(values)) + bytes((len(values) + 63) // 64 * 8) + packed + bytes(-len(packed) % 8)


def texts_of(values: list[str]) -> bytes:
    """An array of texts in Spark's binary form: place and length of each, behind them the texts in whole words."""
    start = 8 + (len(values) + 63) // 64 * 8 + 8 * len(values)
    words, texts = [], b""
    for value in values:
        encoded = value.encode()
        words.append((start + len(texts)) << 32 | len(encoded))
        texts += encoded + bytes(-len(encoded) % 8)
    return (
        struct.pack("<q", len(values))
        + bytes((len(values) + 63) // 64 * 8)
        + struct.pack(f"<{len(values)}q", *words)
        + texts
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=130))
def test_numbers_of_a_binary_array(values: list[int]) -> None:
    assert elements(array_of(values, "q"), "bigint") == values


@given(st.lists(st.text(max_size=20), max_size=130))
def test_texts_of_a_binary_array(values: list[str]) -> None:
    assert elements(texts_of(values), "string") == values


def test_other_elements_of_a_binary_array() -> None:
    assert elements(array_of([1, -2], "i"), "int") == [1, -2]
    assert elements(array_of([True, False], "?"), "boolean") == [True, False]
    assert elements(None, "bigint") == []


def read(aggregators: dict[str, Any], columns: list[tuple[str, Any]], kinds: dict[str, str] | None = None) -> Any:
    """What the aggregators hold, row by row, and what they answer."""
    parts = parts_of(list(aggregators.items()), [kind for kind, _ in columns], kinds or {}, "here")
    arrays = [pa.chunked_array([array]) for _, array in columns]
    kept = list(zip(*(part.read(arrays) for part in parts), strict=True))
    return [tuple(each.finish(value) for each, value in zip(aggregators.values(), row, strict=True)) for row in kept]


def test_numbers_go_on_where_spark_was() -> None:
    aggregators = {"n": hs.Count(), "s": hs.Sum("v"), "mean": hs.Mean("v"), "again": hs.Count(), "least": hs.Min("v")}
    columns = [
        ("bigint", pa.array([2, 1])),
        ("double", pa.array([0.75, None], pa.float64())),
        ("double", pa.array([0.75, 0.0])),
        ("bigint", pa.array([2, 0])),
        ("double", pa.array([0.25, None], pa.float64())),
    ]
    assert read(aggregators, columns) == [(2, 0.75, 0.375, 2, 0.25), (1, 0, None, 1, None)]


def test_decimals_with_and_without_their_point() -> None:
    aggregators = {"s": hs.Sum("m"), "mean": hs.Mean("m"), "t": hs.Sum("w")}
    columns = [
        ("bigint", pa.array([1234])),
        ("double", pa.array([1234.0])),
        ("bigint", pa.array([2])),
        ("decimal(38,2)", pa.array([Decimal("7.50")], pa.decimal128(38, 2))),
        ("boolean", pa.array([False])),
    ]
    kinds = {"m": "decimal(6,2)", "w": "decimal(28,2)"}
    assert read(aggregators, columns, kinds) == [(Decimal("12.34"), Decimal("6.170000"), Decimal("7.50"))]


def test_moments_of_values_that_are_not_finite() -> None:
    aggregators = {"var": hs.Variance("v"), "n": hs.Count()}
    moments = [("double", pa.array([3.0, 2.0])), ("double", pa.array([math.nan, math.inf]))]
    columns = [*moments, ("double", pa.array([math.nan, math.nan])), ("bigint", pa.array([3, 2]))]
    (first, _), (second, _) = read(aggregators, columns)
    assert math.isnan(first)
    assert math.isnan(second)


def test_moments_and_values_in_order() -> None:
    aggregators = {"var": hs.Variance("v"), "first": hs.First("v"), "last": hs.Last("v"), "set": hs.CollectSet("k")}
    columns = [
        ("double", pa.array([4.0])),
        ("double", pa.array([2.5])),
        ("double", pa.array([5.0])),
        ("bigint", pa.array([7])),
        ("boolean", pa.array([True])),
        ("bigint", pa.array([None], pa.int64())),
        ("boolean", pa.array([True])),
        ("binary", pa.array([texts_of(["b", "a"])])),
    ]
    assert read(aggregators, columns, {"k": "string", "v": "bigint"}) == [(1.25, 7, None, {"a", "b"})]
    parts = parts_of(list(aggregators.items()), [kind for kind, _ in columns], {"k": "string"}, "here")
    (first,) = parts[1].read([pa.chunked_array([array]) for _, array in columns])
    # what comes now is behind Spark's first value, and is the last one
    assert hs.First("v").finish(hs.First("v").add(first, (5, 1))) == 7
    assert hs.Last("v").finish(hs.Last("v").add(first, (5, 1))) == 1


@pytest.mark.parametrize(
    ("aggregators", "given_kinds", "sentence"),
    [
        ({"n": hs.Count(), "s": hs.Sum("v")}, ["bigint"], r"aggregate 's': found no more buffers in Spark's state"),
        ({"n": hs.Count()}, ["bigint", "bigint"], r"found 2 buffers .*\(bigint, bigint\), expected 1 for n"),
        ({"mean": hs.Mean("v")}, ["bigint", "string"], r"aggregate 'mean': found bigint, string"),
        ({"k": hs.TopK(3, "v")}, ["binary"], r"aggregate 'k': found TopK.* which cannot go on from Spark's state"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(aggregators: Any, given_kinds: list[str], sentence: str) -> None:
    with pytest.raises(hs.ImportRefusedError, match=sentence):
        parts_of(list(aggregators.items()), given_kinds, {}, "here")


def test_columns_of_a_data_frame_begin_what_has_no_buffer_of_sparks() -> None:
    arrays = pa.array([[1, 2, None], None, []], pa.list_(pa.int64()))
    assert Part("collect", 0, 1).read([arrays]) == [[0, 1, 0, 2], [], []]
    assert Part("collect_set", 0, 1).read([arrays]) == [{1: 1, 2: 1}, {}, {}]
    assert Part(DISTINCT, 0, 1).read([arrays]) == [{1: 1, 2: 1}, {}, {}]
    assert Part(SKETCH, 0, 1).read([pa.array([b"sketch", None])]) == [b"sketch", b""]
