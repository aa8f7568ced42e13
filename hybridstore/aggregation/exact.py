"""Exact: sums of numbers that are never rounded, so that their order does not matter and values can be taken out again.

    total of ints, of decimals     an int, a Decimal
    total with floats              [n, scale, floats]: the sum is n / 2**scale, in lowest terms; `floats` counts them
    ... with NaN or infinities     [n, scale, floats, NaNs, infinities, negative infinities]: n / 2**scale without them

A float is a whole number divided by a power of two, so a sum of floats is, too. It is rounded once, when it is handed
out: the float nearest to the true sum, of two equally near ones the even one, an infinity beyond the largest float.

A total in memory need not be in lowest terms; one that is stored is, so that equal sums have equal bytes.

The surprise: a total is never changed in place, although it may be a list, which packs smaller than a tuple does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from functools import reduce
from operator import index
from typing import Any, Final

KINDS: Final = (int, bool, float)
"""The types of values that `subtract` takes out of a total without a trace."""

# Sums of decimals are exact up to this many digits; a longer sum raises instead of being rounded.
_DIGITS: Final = 100_000
DECIMALS: Final = Context(prec=_DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


def add(total: Any, value: Any) -> Any:
    """Return a total with a number added.

    Raises OverflowError for a sum of decimals of too many digits, TypeError for floats beside decimals. O(bits between
    the greatest and the smallest value).
    """
    if type(value) is float:
        return _with_float(total, value, 1)
    if type(total) is list:
        return _with_other(total, value, 1)
    if type(value) is not Decimal and type(total) is not Decimal:
        return _with_float(total, float(value), 1) if isinstance(value, float) else total + value
    try:
        return DECIMALS.add(total, value)
    except Inexact:
        raise OverflowError(
            f"sum of decimals: found more than {_DIGITS:,} digits, expected at most that (round the values)"
        ) from None


def subtract(total: Any, value: Any) -> Any:
    """Return a total with a number taken out that was added before. Values of `KINDS` leave no trace."""
    if type(value) is float:
        return _with_float(total, value, -1)
    if type(total) is list:
        return _with_other(total, value, -1)
    return _with_float(total, float(value), -1) if isinstance(value, float) else total - value


def add_many(total: Any, values: Sequence[Any]) -> Any:
    """Return a total with each of the numbers added."""
    if type(total) is int and {int, bool}.issuperset(map(type, values)):
        return sum(values, total)
    return reduce(add, values, total)


def each(values: Sequence[Any]) -> list[Any]:
    """Return for each number the total that begins with it: `add(0, number)`. O(values)."""
    if {float}.issuperset(map(type, values)) and all(map(math.isfinite, values)):
        # a float's ratio is in lowest terms
        return [[n, divisor.bit_length() - 1, 1] for n, divisor in map(float.as_integer_ratio, values)]
    return [add(0, value) for value in values]


def merge(total: Any, other: Any) -> Any:
    """Return the total of the values of both."""
    return _both(total, other, 1) if type(other) is list else add(total, other)


def split(total: Any, other: Any) -> Any:
    """Return a total without the values of another one, which were merged into it before; of ints and floats."""
    return _both(total, other, -1) if type(other) is list else subtract(total, other)


def result(total: Any) -> Any:
    """Return the sum: an int or a Decimal as it is; with floats among the values, the float nearest to it."""
    return over(total, 1) if type(total) is list else total


def over(total: Any, divisor: int) -> float:
    """Return a total of ints and floats divided by a positive int: the float nearest to the quotient; an infinity or
    NaN if the values contain one, as in floating-point arithmetic.
    """
    if type(total) is not list:
        return quotient(total, divisor)
    if len(total) > 3:
        _, _, _, nans, infinities, negative = total
        return math.nan if nans or (infinities and negative) else math.inf if infinities else -math.inf
    return quotient(total[0], divisor << total[1])


def quotient(dividend: int, divisor: int) -> float:
    """Return the float nearest to the quotient of two ints; an infinity beyond the largest float."""
    try:
        return dividend / divisor  # of two ints, Python rounds once
    except OverflowError:
        return math.inf if dividend > 0 else -math.inf


def ratio(n: int, scale: int, m: int, other: int) -> tuple[int, int]:
    """Return n / 2**scale + m / 2**other in lowest terms: the numerator, and the power of the denominator."""
    if other > scale:
        return (n << (other - scale)) + m, other
    if other < scale:
        return n + (m << (scale - other)), scale
    return lowest(n + m, scale)


def lowest(n: int, scale: int) -> tuple[int, int]:
    """Return n / 2**scale in lowest terms. O(bits)."""
    if n & 1 or not scale:
        return n, scale
    if not n:
        return 0, 0
    zeros = min((n & -n).bit_length() - 1, scale)
    return n >> zeros, scale - zeros


def _both(total: Any, other: list[int], sign: int) -> Any:
    """Return a total and another one with floats, of which the values are added or taken out."""
    if type(total) is not list:
        total = _with_other([0, 0, 0], total, 1)
    n, scale = ratio(total[0], total[1], sign * other[0], other[1])
    if len(total) == len(other) == 3:
        return counted(n, scale, [total[2] + sign * other[2]])
    return counted(n, scale, [a + sign * b for a, b in zip(_counts(total), _counts(other), strict=True)])


def _with_float(total: Any, value: float, sign: int) -> Any:
    if type(total) is not list:
        total = _with_other([0, 0, 0], total, 1)
    try:
        m, divisor = value.as_integer_ratio()
    except (OverflowError, ValueError):
        counts = _counts(total)
        counts[0] += sign
        counts[1 if value != value else 2 if value > 0 else 3] += sign
        return counted(total[0], total[1], counts)
    other = divisor.bit_length() - 1
    n, scale = total[0], total[1]
    m = m if sign > 0 else -m
    # as `ratio`, without a call
    if other > scale:
        n, scale = (n << (other - scale)) + m, other
    elif other < scale:
        n += m << (scale - other)
    else:
        n += m
        if scale and not n & 1:
            n, scale = lowest(n, scale)
    if len(total) == 3 and (floats := total[2] + sign):
        return [n, scale, floats]
    return counted(n, scale, [total[2] + sign, *total[3:]])


def _with_other(total: list[int], value: Any, sign: int) -> Any:
    """Return a total with floats and another number."""
    if isinstance(value, float):
        return _with_float(total, float(value), sign)
    try:
        whole = index(value)
    except TypeError:
        raise TypeError(f"a sum of floats cannot take a {type(value).__name__}") from None
    n, scale, *counts = total
    return [n + (sign * whole << scale), scale, *counts]  # still in lowest terms


def _counts(total: list[int]) -> list[int]:
    """Return how many floats, NaNs, infinities and negative infinities a total has."""
    return total[2:] if len(total) > 3 else [total[2], 0, 0, 0]


def counted(n: int, scale: int, counts: list[int]) -> Any:
    """Return a total with these counts: an int without floats, and without the counts of NaN and infinities if all
    three are 0.
    """
    if not counts[0]:
        return n >> scale  # only whole numbers are left
    return [n, scale, *counts] if any(counts[1:]) else [n, scale, counts[0]]
