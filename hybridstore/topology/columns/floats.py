"""Float columns: extremes of groups of floats by numpy, equal to those row by row in every bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def extremes_of(kind: str, group: Ints, values: Floats, valid: Ints, length: int) -> tuple[Floats, Ints]:
    """Return (least or greatest value of each group, how many values that are no NaN).

    Of equal ones, -0.0 and 0.0, the last.

    O(values), and O(values log values) with a -0.0.
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
