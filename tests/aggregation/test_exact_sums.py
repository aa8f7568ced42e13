"""Sums, means and variances are the correctly rounded values of the true ones: against `fractions` and `math.fsum`."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.codec import pack, unpack
from hybridstore.aggregation import Collect, Count, Mean, Sum, Variance, check_laws, choose, exact
from hybridstore.aggregation.combined import Combined

np = pytest.importorskip("numpy")

from hybridstore.aggregation.exact_columns import Scale  # noqa: E402  (it needs numpy)

EDGES = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 1.7976931348623157e308, 1e17, -1e17, 0.1]
finite = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(EDGES),
    st.integers(1, 50_000).map(lambda cents: cents / 100),
    st.integers(-20, 20).map(lambda n: n / 2),
    st.floats(0, 5),
    # two of these are midway between two floats
    st.builds(math.ldexp, st.sampled_from([1.0, 2.0**52 + 1, 2.0**53 - 1]), st.sampled_from([0, -53, -54, -1, 1, 54])),
)
whole = st.one_of(st.integers(-10, 10), st.integers(-(2**70), 2**70), st.booleans())
odd = st.sampled_from([math.nan, math.inf, -math.inf])


def nearest(value: Fraction) -> float:
    """Return the float nearest to a fraction, an infinity beyond the largest."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def true_sum(values: list[Any]) -> Fraction:
    """Return the sum that no arithmetic rounds."""
    return sum(map(Fraction, values), Fraction(0))


def total_of(values: list[Any]) -> Any:
    """Return the aggregate of a sum."""
    return exact.add_many(0, values)


def same(a: Any, b: Any) -> bool:
    """Return whether two results are equal in every bit and of one type."""
    return type(a) is type(b) and repr(a) == repr(b)


@given(st.lists(st.one_of(finite, finite, whole), max_size=12))
@example([1e308, 1e308, -1e308])
@example([1e16, 1.0, 1e-16])
def test_a_sum_is_the_float_nearest_to_the_true_sum(values: list[Any]) -> None:
    expected: Any = true_sum(values)
    expected = nearest(expected) if float in map(type, values) else int(expected)
    assert same(Sum().of(values), expected)
    assert same(Sum().of(values[::-1]), expected)
    floats = [value for value in values if type(value) is float]
    if floats and abs(true_sum(floats)) < Fraction(1.7e308):
        try:
            assert Sum().of(floats) == math.fsum(floats)
        except OverflowError:  # in between: ours is exact there, too
            assert max(map(abs, floats)) > 1e307


@given(st.lists(st.one_of(finite, whole), min_size=1, max_size=9))
def test_means_and_variances_are_rounded_once(values: list[Any]) -> None:
    mean = true_sum(values) / len(values)
    assert same(Mean().of(values), nearest(mean))
    squares = sum(((Fraction(value) - mean) ** 2 for value in values), Fraction(0))
    assert same(Variance().of(values), nearest(squares / len(values)))
    sample = nearest(squares / (len(values) - 1)) if len(values) > 1 else None
    assert same(Variance(ddof=1).of(values), sample)


@given(st.lists(st.one_of(finite, whole, odd), max_size=10), st.integers(0, 10), st.integers(0, 10))
def test_what_is_taken_out_leaves_no_trace(values: list[Any], first: int, second: int) -> None:
    """Not a bit, not a type, not a NaN: the aggregate is the one of the values that are left."""
    low, high = sorted((min(first, len(values)), min(second, len(values))))
    for aggregator in (Sum(), Mean(), Variance()):
        assert aggregator.subtract is not None
        assert aggregator.merge is not None
        aggregate = aggregator.fold(aggregator.init(), values)
        for value in [*values[:low], *values[high:]]:
            aggregate = aggregator.subtract(aggregate, value)
        rest = aggregator.fold(aggregator.init(), values[low:high])
        assert pack(aggregate) == pack(rest)
        assert same(aggregator.finish(aggregate), aggregator.finish(rest))
        merged = aggregator.merge(rest, aggregator.fold(aggregator.init(), [*values[:low], *values[high:]]))
        assert pack(merged) == pack(aggregator.fold(aggregator.init(), values))
        assert unpack(pack(merged)) == merged


def test_nan_and_infinities_are_counted_beside_the_sum() -> None:
    inf, nan = math.inf, math.nan
    cases = [
        ([inf, 1.5], inf),
        ([-inf, 1], -inf),
        ([inf, -inf], nan),
        ([nan, 1.0], nan),
        ([inf, nan], nan),
        ([inf, inf, 2**2000], inf),
    ]
    for values, expected in cases:
        assert repr(Sum().of(values)) == repr(Mean().of(values)) == repr(expected)
        assert repr(Variance().of(values)) == "nan"
    window = choose(Combined({"n": Count(), "sum": Sum("x"), "mean": Mean("x")})).new()
    seen = [window.update(ts, x, ts - 1) for ts, x in enumerate([1.5, inf, -inf, 0.25, 0.5])]
    assert repr(seen) == repr([(1, 1.5, 1.5), (2, inf, inf), (2, nan, nan), (2, -inf, -inf), (2, 0.75, 0.375)])


def test_the_table_of_mixed_values() -> None:
    """The table of docs/exact-sums.md."""
    cases: list[tuple[list[Any], Any]] = [
        ([], 0),
        ([1, 2, True], 4),
        ([1, 2.5], 3.5),
        ([2**53, 1, 1.0], float(2**53 + 2)),
        ([True, 0.5], 1.5),
        ([-0.0], 0.0),
        ([5e-324, 5e-324], 1e-323),
        ([1e308, 1e308], math.inf),
        ([1e308, 1e308, -1e308], 1e308),
        ([10**400, 0.5], math.inf),
        ([Decimal("0.10"), 1], Decimal("1.10")),
        ([Decimal("0.1"), Decimal("0.2")], Decimal("0.3")),
        ([np.float64(0.5), 1], 1.5),
    ]
    for values, expected in cases:
        assert same(Sum().of(values), expected), values
    for values in ([0.5, Decimal(1)], [Decimal(1), 0.5]):
        with pytest.raises(TypeError, match="a sum of floats cannot take a Decimal"):
            Sum().of(values)
    with pytest.raises(TypeError, match="cannot"):
        Variance().of([Decimal(1)])


def test_the_bytes_of_a_sum_of_prices() -> None:
    """Measured for docs/exact-sums.md: a float has 9 bytes, an exact sum of prices a few more."""
    prices = [cents / 100 for cents in range(199, 100_000, 37)]
    assert len(pack(total_of(prices[:20]))) <= 13
    assert len(pack(total_of(prices))) <= 18
    assert pack(total_of([4.0, 4.5])) == pack([17, 1, 2])


def test_the_laws_hold() -> None:
    for aggregator in (Sum(), Mean(), Variance(), Variance(ddof=1)):
        check_laws(aggregator, [0.1, 0.2, 1e17, -1e17, 3, True])
    assert Collect().of([0.1]) == [0.1]


@given(
    st.lists(st.one_of(finite, finite, odd), max_size=20),
    st.lists(st.one_of(finite, whole, odd), max_size=4),
    st.sampled_from([53, 62]),
    st.integers(1, 9),
)
def test_columns_equal_values_one_by_one(values: list[float], before: list[Any], room: int, counted: int) -> None:
    base = total_of(before)
    column = np.array(values, np.float64)
    scale = Scale.of([column], [base], len(values) + 1, room, len(values) + counted)
    parts = zip(scale.split(column), scale.split_totals([base]), strict=True)
    running = [np.cumsum(part) + start for part, start in parts]
    totals = [exact.add_many(base, values[: i + 1]) for i in range(len(values))]
    counts = np.arange(len(values)) + counted
    floats = np.array([total[2] for total in totals], np.int64)
    assert scale.totals(running, floats) == totals
    assert list(map(repr, scale.sums(running).tolist())) == [repr(exact.result(total)) for total in totals]
    means = [repr(exact.over(total, count)) for total, count in zip(totals, counts.tolist(), strict=True)]
    assert list(map(repr, scale.means(running, counts).tolist())) == means
    again = scale.split_totals(scale.totals(running, floats, lowest=False))
    assert [part.tolist() for part in scale.split_totals(totals)] == [part.tolist() for part in again]


def test_a_sum_that_is_no_float_is_divided_before_it_is_rounded() -> None:
    """Sums of one limb that have more bits than a float."""
    dice = random.Random(3)
    sums, counts = [dice.randrange(2**53, 2**60) for _ in range(200)], [dice.randrange(2, 50) for _ in range(200)]
    means = Scale(0, 46, 1, False).means([np.array(sums, np.int64)], np.array(counts, np.int64))
    assert means.tolist() == [nearest(Fraction(*pair)) for pair in zip(sums, counts, strict=True)]


def test_many_prices_need_two_limbs_and_far_apart_floats_more() -> None:
    prices = np.arange(1, 10_000) / 100
    assert Scale.of([prices], [], 20_000, 62, 2**15).limbs == 2
    assert Scale.of([np.arange(100) / 4], [], 20_000, 62).limbs == 1
    assert Scale.of([np.array([1e308, 1e-308])], [], 2, 62).limbs > 20


@pytest.mark.parametrize("more", [0, 10, 60, 120, 200])
def test_what_lies_next_to_the_middle_of_two_floats_is_rounded_to_the_right_side(more: int, seed: int) -> None:
    """Numbers of two limbs and of many, at the middle of two floats or a last bit beside it, for sums and for means."""
    r = random.Random(seed)
    counts = [r.choice([1, 2, 3, 7, 10, 1000, 60_000]) for _ in range(600)]
    middles = [2 * r.randint(2**52, 2**53 - 1) + 1 for _ in counts]
    for divisors in (counts, [1] * len(counts)):
        totals = [
            [r.choice([-1, 1]) * ((middle * divisor << r.randint(0, more)) + r.choice([-1, 0, 1])), 150, 1]
            for middle, divisor in zip(middles, divisors, strict=True)
        ]
        scale = Scale.of([], totals, 1000, 62, 60_000)
        scale = scale._replace(low=-150, limbs=scale.limbs + 4)
        columns = scale.split_totals(totals)
        means = scale.means(columns, np.array(divisors))
        assert means.tolist() == [exact.over(total, divisor) for total, divisor in zip(totals, divisors, strict=True)]
        assert scale.sums(columns).tolist() == [exact.result(total) for total in totals]
    # two limbs, for which there is a shorter way
    totals = [[middle * count + r.choice([-1, 0, 1]), 20, 1] for middle, count in zip(middles, counts, strict=True)]
    scale = Scale.of([], totals, 1000, 62, 60_000)._replace(low=-20, limbs=2)
    means = scale.means(scale.split_totals(totals), np.array(counts))
    assert means.tolist() == [exact.over(total, count) for total, count in zip(totals, counts, strict=True)]
    assert scale.sums(scale.split_totals(totals)).tolist() == [exact.result(total) for total in totals]


@given(st.lists(st.one_of(finite, whole, odd)), st.lists(finite))
def test_totals_of_each_of_many_numbers_are_those_of_one(mixed: list[Any], floats: list[float]) -> None:
    for values in (mixed, floats, [*floats, math.nan]):
        assert exact.each(values) == [exact.add(0, value) for value in values]


def test_a_sum_of_decimals_of_too_many_digits_is_refused() -> None:
    with pytest.raises(OverflowError, match="found more than 100,000 digits, expected at most that"):
        Sum().of([Decimal(1), Decimal((0, (1,), -100_001))])


def test_a_kind_of_float_is_added_as_a_float() -> None:
    class Metres(float):
        """A float with a name."""

    for values in ([Metres(0.25), 0.5], [0.5, Metres(0.25)], [1, Metres(0.25), 2]):
        total = Sum().of(values)
        assert (type(total), total) == (float, math.fsum(values))


def test_means_below_the_least_normal_float_are_rounded_once() -> None:
    least, odd, count = 5e-324, 2**34 + 1, 2**18 + 3
    # a little below the middle of two floats: as a quotient of 53 bits it is the middle
    middle = math.ldexp(odd * count + count // 2, -1074)
    values = np.array([least, 3 * least, 5 * least, 0.0, 1.0, middle])
    counts = np.array([3, 2, 7, 5, 3, count])
    scale = Scale.of([values], [], 1, 62, int(counts.max()))
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    expected = [float(Fraction(value) / divisor) for value, divisor in pairs]
    assert scale.means(scale.split(values), counts).tolist() == expected
