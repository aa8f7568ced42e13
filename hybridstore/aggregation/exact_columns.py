"""Exact columns: sums and means of floats by numpy, equal to those of `exact` in every bit, with no Python per value.

    x = limb 0 * 2**low  +  limb 1 * 2**(low + bits)  +  limb 2 * 2**(low + 2 bits)  + ...

Each float of a column is cut into limbs, whole numbers that are small enough for all sums of them to be exact in 64
bits. So running sums, differences of them and sums of groups are those of whole numbers, limb by limb. The result is
rounded once: limbs are carried, divided by counts where a mean is asked for, and the three greatest that are not zero
decide with the rest which float is the nearest.

The surprise: 18 digits behind one another, as prices and measurements have, need two limbs. Each further limb costs as
much again, so one value of 1e-300 beside ones of 1e300 makes the batch slow, and still exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from . import exact

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Values that are multiples of 2**-10 need no more than a limb: whole numbers, halves, quarters.
_SHORT: Final = -10
# A limb is below this, so that it is a float, and a limb times a count has 64 bits.
_LIMB_BITS: Final = 46
_EXACT: Final = 2.0**53
_SMALL: Final = 2**26
_SPLIT: Final = 2.0**27 + 1
# Totals may have so many more bits behind the point than the values, before their trailing zeros are removed.
_SLACK: Final = 16
_LEAST_NORMAL: Final = 2.0**-1021


class Scale(NamedTuple):
    """How some columns of floats and some totals are cut into limbs.

    low      the exponent of the last bit: all are multiples of 2**low
    bits     a limb of a value is less than 2**bits
    limbs    how many limbs a value has
    special  whether NaN or infinities are among the values: three columns more count them
    """

    low: int
    bits: int
    limbs: int
    special: bool

    @classmethod
    def of(cls, columns: Sequence[Floats], totals: Sequence[Any], addends: int, room: int, divisor: int = 1) -> Scale:
        """Return the scale for sums of so many addends, each a value of the columns or one of the totals (of `exact`),
        that have `room` bits, and for means of at most `divisor` values. O(values).
        """
        special = any(type(total) is list and len(total) > 3 for total in totals)
        low, high = 0, 0
        for column in columns:
            sizes = np.abs(column)
            finite = np.isfinite(sizes)
            if not finite.all():
                special, sizes = True, sizes[finite]
            if not len(sizes) or not (greatest := float(sizes.max())):
                continue
            high = max(high, frexp(greatest)[1])
            short = column * 2.0**-_SHORT if greatest < 2.0**1000 and not special else column
            if short is not column and (short == np.trunc(short)).all():
                low = min(low, _SHORT)
                continue
            least = float(sizes.min()) or float(sizes[sizes > 0].min())
            low = min(low, max(frexp(least)[1] - 53, -1074))
        for total in totals:
            n, scale = total[:2] if type(total) is list else (total, 0)
            if scale > -low:
                if scale > _SLACK - low:
                    n, scale = exact.lowest(n, scale)
                low = min(low, -scale)
            high = max(high, n.bit_length() - scale)
        bits = min(room - addends.bit_length(), 62 - divisor.bit_length(), _LIMB_BITS)
        return cls(low, bits, max(1, -(-(high - low) // bits)), special)

    # --- in ---------------------------------------------------------------------------------------------------

    def split(self, values: Floats) -> list[Ints]:
        """Return the columns of values: limbs, the lowest first, and counts of what is not finite. O(values)."""
        specials: list[Ints] = []
        if self.special:
            specials = [column.astype(np.int64) for column in (np.isnan(values), values == np.inf, values == -np.inf)]
            values = np.where(np.isfinite(values), values, 0.0)
        limbs: list[Ints] = []
        for place in range(self.limbs - 1, -1, -1):
            exponent = self.low + place * self.bits
            limb = np.trunc(_scaled(values, -exponent))
            if place:
                values = values - _scaled(limb, exponent)
            limbs.append(limb.astype(np.int64))
        return limbs[::-1] + specials

    def split_totals(self, totals: Sequence[Any]) -> list[Ints]:
        """Return the columns of totals of `exact`. O(totals)."""
        low, bits = -self.low, self.bits
        rest = [
            total << low
            if type(total) is not list
            else total[0] << (low - total[1])
            if total[1] <= low
            else total[0] >> (total[1] - low)  # the dropped bits are zeros, see `of`
            for total in totals
        ]
        columns: list[Any] = []
        mask = (1 << bits) - 1
        for _ in range(self.limbs - 1):
            columns.append([n & mask for n in rest])
            rest = [n >> bits for n in rest]
        columns.append(rest)
        if self.special:
            counts = [total[3:] if type(total) is list and len(total) > 3 else [0, 0, 0] for total in totals]
            columns += zip(*counts, strict=True) if counts else [[], [], []]
        return [np.array(column, np.int64) for column in columns]

    # --- out --------------------------------------------------------------------------------------------------

    def totals(self, columns: Sequence[Ints], floats: Ints, *, lowest: bool = True) -> list[Any]:
        """Return the totals, of `exact`, of these columns and counts of floats; in lowest terms, unless they are not to
        be stored. O(totals).
        """
        wholes = self._wholes(columns[: self.limbs])
        scale, counts = -self.low, floats.tolist()
        if self.special:
            specials = zip(*[column.tolist() for column in columns[self.limbs :]], strict=True)
            return [
                exact.counted(*exact.lowest(n, scale), [count, *others])
                for n, count, others in zip(wholes, counts, specials, strict=True)
            ]
        if lowest or 0 in counts:
            reduced = exact.lowest
            return [
                [*reduced(n, scale), count] if count else n >> scale for n, count in zip(wholes, counts, strict=True)
            ]
        return [[n, scale, count] for n, count in zip(wholes, counts, strict=True)]

    def sums(self, columns: Sequence[Ints]) -> Floats:
        """Return the float nearest to each sum. O(sums)."""
        return self._with_specials(columns, self._rounded(list(columns[: self.limbs]), None))

    def means(self, columns: Sequence[Ints], counts: Ints) -> Floats:
        """Return the float nearest to each sum divided by its count, which is at least 1. O(sums)."""
        return self._with_specials(columns, self._rounded(list(columns[: self.limbs]), counts))

    def _with_specials(self, columns: Sequence[Ints], rounded: Floats) -> Floats:
        if not self.special:
            return rounded
        nans, infinities, negative = columns[self.limbs :]
        rounded = np.where(infinities > 0, np.inf, np.where(negative > 0, -np.inf, rounded))
        return np.where((nans > 0) | ((infinities > 0) & (negative > 0)), np.nan, rounded)

    def _rounded(self, limbs: list[Ints], counts: Ints | None) -> Floats:
        if not len(limbs[0]):
            return np.empty(0, np.float64)
        if len(limbs) == 1 and (counts is None or largest(limbs[0]) < _EXACT):
            # both are floats, or the only rounding is that of the whole number
            whole = limbs[0].astype(np.float64)
            if counts is None:
                return _scaled(whole, self.low)
            return self._unless_tiny(_scaled(whole / counts, self.low), limbs, counts)
        given = limbs
        limbs = self._carried(limbs)
        if len(limbs) == 2:
            # two floats, whose sum is rounded once; a sum of floats is never rounded below the least normal float
            if counts is None:
                return _scaled(limbs[1] * 2.0**self.bits + limbs[0], self.low)
            if int(counts.max()) < _SMALL:
                means = _quotients(limbs[1].astype(np.float64) * 2.0**self.bits, limbs[0].astype(np.float64), counts)
                return self._unless_tiny(_scaled(means, self.low), given, counts)
        negative = limbs[-1] < 0
        if negative.any():
            sign = np.where(negative, -1, 1)
            limbs = self._carried([limb * sign for limb in limbs])
        low = self.low
        inexact = np.zeros(len(negative), bool)
        if counts is not None:
            # so many limbs more that the quotient has more bits than a float
            more = -(-(56 + int(counts.max()).bit_length()) // self.bits)
            limbs, inexact = self._divided(limbs, counts, more)
            low -= more * self.bits
        rounded = self._nearest(limbs, inexact, low)
        rounded = np.where(negative, -rounded, rounded)
        return rounded if counts is None else self._unless_tiny(rounded, given, counts)

    def _carried(self, limbs: list[Ints]) -> list[Ints]:
        """Return limbs from 0 to 2**bits of the same numbers; only the last may be negative, and is less than 2**53."""
        carried: list[Ints] = []
        mask = (1 << self.bits) - 1
        carry: Ints = np.zeros_like(limbs[0])
        for limb in limbs[:-1]:
            whole = limb + carry
            carried.append(whole & mask)
            carry = whole >> self.bits
        last = limbs[-1] + carry
        if largest(last) >= 1 << self.bits:
            carried.append(last & mask)
            last = last >> self.bits
        return [*carried, last]

    def _divided(self, limbs: list[Ints], counts: Ints, more: int) -> tuple[list[Ints], NDArray[np.bool_]]:
        """Return the quotients of numbers that are not negative, with so many limbs more behind them, and whether a
        remainder is left.
        """
        quotients: list[Ints] = []
        remainder = np.zeros(len(counts), np.int64)
        for limb in [*reversed(limbs), *[remainder] * more]:
            dividend = (remainder << self.bits) + limb
            quotient = dividend // counts
            remainder = dividend - quotient * counts
            quotients.append(quotient)
        return quotients[::-1], remainder > 0

    def _nearest(self, limbs: list[Ints], inexact: NDArray[np.bool_], low: int) -> Floats:
        """Return the float nearest to each number that is not negative: three limbs or more times 2**low, and a little
        more where `inexact`.
        """
        base = 2.0**self.bits
        first, second, third = limbs[-1], limbs[-2], limbs[-3]
        shift = np.full(len(first), len(limbs) - 3, np.int64)
        rest = inexact
        for place in range(len(limbs) - 4, -1, -1):
            # the limbs move up where the first one is zero
            up = first == 0
            rest = rest | (~up & (limbs[place] != 0))
            first, second = np.where(up, second, first), np.where(up, third, second)
            third = np.where(up, limbs[place], third)
            shift = np.where(up, place, shift)
        high, middle = first * base, second.astype(np.float64)
        total = high + middle
        error = middle - (total - high)
        below = third + 0.5 * rest
        # either the first two are a float, or the rest only says on which side of their sum the number lies
        fine = total * base + below
        coarse = (total + (error + 0.5 * (below > 0))) * base
        rounded = np.where(total < _EXACT, fine, coarse)
        if not shift.any():
            return _scaled(rounded, low)
        with np.errstate(over="ignore"):
            scaled: Floats = np.ldexp(rounded, (low + shift * self.bits).astype(np.int32))
        return scaled

    def _unless_tiny(self, rounded: Floats, limbs: list[Ints], counts: Ints) -> Floats:
        """Return the means; those that are less than a normal float have been rounded twice, and are computed anew."""
        tiny = np.abs(rounded) < _LEAST_NORMAL
        if tiny.any() and (tiny := tiny & np.logical_or.reduce([limb != 0 for limb in limbs])).any():
            wholes = self._wholes([limb[tiny] for limb in limbs])
            divisors = counts[tiny].tolist()
            means = [exact.quotient(n, count << -self.low) for n, count in zip(wholes, divisors, strict=True)]
            rounded = rounded.copy()
            rounded[tiny] = means
        return rounded

    def _wholes(self, limbs: Sequence[Ints]) -> list[int]:
        """Return the numbers as whole multiples of 2**low. O(numbers)."""
        wholes: list[int] = limbs[-1].tolist()
        for limb in reversed(limbs[:-1]):
            bits = self.bits
            wholes = [(n << bits) + part for n, part in zip(wholes, limb.tolist(), strict=True)]
        return wholes


def _quotients(high: Floats, low: Floats, counts: Ints) -> Floats:
    """Return the float nearest to each (high + low) / count, for counts below 2**26 and whole numbers below 2**92, of
    which `high` is zero or greater than `low`.

    A quotient that is off by at most an ulp is put right by what remains of the dividend: the remainder of a rounded
    division is a float, and a true quotient is further from the middle of two floats than any rounding here.
    """
    divisor = counts.astype(np.float64)
    whole = high + low
    lost = low - (whole - high)
    quotient = whole / divisor
    # in halves of 26 bits, each of which times a count is a float
    half = quotient * _SPLIT
    half = half - (half - quotient)
    remainder = (whole - half * divisor) - (quotient - half) * divisor
    nearest: Floats = quotient + (remainder + lost) / divisor
    return nearest


def _scaled(values: Any, exponent: int) -> Floats:
    """Return floats times 2**exponent; infinities beyond the largest float."""
    with np.errstate(over="ignore"):
        if -1000 < exponent < 1000:
            scaled: Floats = values * 2.0**exponent
        else:
            scaled = np.ldexp(values, exponent)
    return scaled


def largest(column: NDArray[Any]) -> int:
    """Return the largest absolute value, 0 for an empty column."""
    return max(-int(column.min()), int(column.max())) if len(column) else 0
