"""The canonical order of a batch: the same by column as row by row."""

import random
from decimal import Decimal
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.codec import pack
from hybridstore.topology.batch import canonical_order
from hybridstore.topology.columns.arrow import ascending_of, canonical_place, keys_of

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from("abcd"), st.integers(-2, 2), st.integers(0, 4)), min_size=1
)


@given(ROWS, st.integers(0, 2), st.booleans())
def test_a_batch_has_the_same_order_by_column_as_row_by_row(
    rows: list[tuple[int, str, int, int]], width: int, halves: bool
) -> None:
    times, names, *values = (list(column) for column in zip(*rows, strict=True))
    keys = keys_of([pyarrow.chunked_array([names])], len(names))
    assert keys is not None
    columns = [numpy.array(column) / 2 if halves else numpy.array(column) for column in values[:width]]
    place = canonical_place(numpy.array(times), keys, columns)
    expected = canonical_order(names, list(zip(*values[:width], strict=True)) if width else [0] * len(rows), times)
    assert place is not None
    chosen = [(times[i], names[i], *(column[i] for column in values[:width])) for i in place.tolist()]
    assert chosen == [(times[i], names[i], *(column[i] for column in values[:width])) for i in expected]
    # rows that are equal in all stay as they arrived, so that a late row is the same one each time
    assert place.tolist() == sorted(range(len(rows)), key=lambda i: (times[i], names[i], *(c[i] for c in columns)))


def test_numbers_that_cannot_be_compared_have_no_order_by_column() -> None:
    keys = keys_of([pyarrow.chunked_array([["a", "a", "b"]])], 3)
    assert keys is not None
    times, values = numpy.array([1, 1, 2]), numpy.array([1.0, float("nan"), 2.0])
    assert canonical_place(times, keys, [values]) is None
    assert canonical_place(times, keys, [None]) is None
    assert canonical_place(numpy.array([1, 3, 2]), keys, [values]) is not None


@pytest.mark.parametrize("kind", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)])
@given(st.data())
def test_whole_numbers_as_keys_are_numbered_in_their_order(kind: str, data: st.DataObject) -> None:
    """Close to each other or far apart, at both ends of their type, in slices and chunks."""
    ends = numpy.iinfo(kind)
    low, high = int(ends.min), int(ends.max)
    first = data.draw(st.sampled_from([low, max(low, -3), high - 9]) | st.integers(low, high - 9))
    numbers = data.draw(st.lists(st.integers(first, first + 9), min_size=1) | st.lists(st.integers(low, high)))
    half = len(numbers) // 2
    parts = [pyarrow.array(numbers, kind).slice(0, half), pyarrow.array([low, *numbers], kind).slice(1 + half)]
    column = pyarrow.chunked_array(parts)
    keys = keys_of([column], len(column))
    assert keys is not None
    (part,) = keys.parts
    part.validate(full=True)
    expected: list[Any] = sorted(set(numbers))
    assert (part.type, part.to_pylist(), keys.names) == (kind, expected, expected)
    assert [expected[code] for code in keys.codes] == numbers


@given(st.lists(st.integers(0, 2**62 - 1) | st.integers(0, 50)))
def test_numbers_are_sorted_in_a_stable_order(numbers: list[int]) -> None:
    order, ascending = ascending_of(numpy.array(numbers, numpy.int64))
    assert ascending.tolist() == sorted(numbers)
    assert order.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


def test_values_that_python_cannot_compare_are_in_order_of_their_bytes(seed: int) -> None:
    r = random.Random(seed)
    rows = [(r.randint(0, 3), r.choice("ab"), [r.choice([None, 1, "x"]), r.randint(0, 9)]) for _ in range(60)]
    times, keys, values = map(list, zip(*rows, strict=True))
    expected = sorted(range(60), key=lambda at: (rows[at][0], rows[at][1], pack(rows[at][2])))
    assert canonical_order(keys, values, times) == expected


@pytest.mark.parametrize("beside", [[1, 2], [None, 1], [Decimal("nan"), Decimal(1)]])
def test_the_order_of_the_rows_of_a_key_does_not_depend_on_other_keys(beside: list[Any]) -> None:
    """Packed, 21 is before -5."""
    assert canonical_order(["a", "a", "b", "b"], [21, -5, *beside], [0, 0, 0, 0])[:2] == [1, 0]
