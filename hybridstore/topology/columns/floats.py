"""Float columns: sums and extremes of groups by numpy that are equal to those row by row in every bit.

Rounding depends on the order of additions, so a group is summed as rows would be: the stored sum first, and then the
values in canonical order, one by one. `bincount` does that, because it adds its weights from first to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def sums_onto(stored: Sequence[Any], group: Ints, values: Floats, valid: Ints) -> list[Any]:
    """Return each group's stored sum with its valid values added one by one; without any it stays as it is.

    O(values + groups).
    """
    present = valid > 0
    member = group[present]
    places = np.concatenate([np.arange(len(stored)), member])
    # inf - inf is NaN, as row by row
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.bincount(places, weights=np.concatenate([np.array(stored, np.float64), values[present]]))
    totals: list[Any] = sums.tolist()
    counts = np.bincount(member, minlength=len(stored))
    for i in np.nonzero(counts == 0)[0].tolist():
        totals[i] = stored[i]
    return totals


def running_onto(stored: Sequence[Any], values: Floats, sizes: Ints) -> Floats:
    """Return running sums of values that are sorted by group, each on top of the stored sum of its group.

    O(values).
    """
    ordered = values.tolist()
    running: list[float] = []
    at = 0
    for old, size in zip(stored, sizes.tolist(), strict=True):
        sums = accumulate(ordered[at : at + size], initial=old)
        next(sums)
        running += sums
        at += size
    return np.array(running, np.float64)


def extremes_of(kind: str, group: Ints, values: Floats, valid: Ints, length: int) -> tuple[Floats, Ints]:
    """Return (least or greatest value of each group, how many values that are no NaN).

    Of equal ones, -0.0 and 0.0, the last.

    O(values), and O(values log values) if there is a -0.0.
    """
    present = (valid > 0) & (values == values)
    group, values = group[present], values[present]
    counts = np.bincount(group, minlength=length)
    best = np.full(length, np.inf if kind == "min" else -np.inf)
    if (np.signbit(values) & (values == 0)).any():
        # stable, so that the last of equal values is behind the others, and it is the one that stays
        order = np.argsort(values if kind == "max" else -values, kind="stable")
        best[group[order]] = values[order]
    else:
        (np.minimum if kind == "min" else np.maximum).at(best, group, values)
    return best, counts
