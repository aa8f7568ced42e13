"""Pane columns: the windows that a batch changed, out of their panes, by numpy.

    panes that the batch changed, and stored ones that share a window with them ── repeat ──▶ windows ── group ──▶
    results

The results equal those of `PanedWindowed.finish` for numbers; panes with decimals, text or both zeros as extremes go
through `PanedWindowed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...aggregation import Aggregator, exact
from ...aggregation.exact_columns import Scale
from ..results import ResultColumns
from ..windows.panes import PanedWindowed
from .arrow import Keys
from .buffers import array_of
from .fits import EXACT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_INT64_MAX: Final = 2**63 - 1


def changed_windows(
    windowed: PanedWindowed,
    stored_at: Callable[[list[Any], Ints], list[Any]],
    keys: Keys,
    codes: Ints,
    panes: Ints,
    columns: list[list[Any]],
    closed: int,
) -> ResultColumns | None:
    """Return the windows that contain one of the given panes, by start and then key, or None if they must be made one
    by one.

    `columns` are the panes' aggregates, a column per aggregator; `stored_at` reads stored values of keys at ascending
    panes. O(panes x windows that overlap).
    """
    size, advance = windowed.windows.size_ms, windowed.windows.advance_ms
    if size % advance or not len(panes):
        return None
    overlap, width = size // advance, len(keys.names)
    # windows from here on are open
    base = max(0, windowed.windows.first_open(closed))
    offsets = np.arange(1 - overlap, overlap, dtype=np.int64) * advance
    near = panes[:, None] + offsets
    beside = (near - base) // advance * width + codes[:, None]
    others = np.setdiff1d(beside[near >= base], (panes - base) // advance * width + codes)
    other_codes, other_panes = others % width, others // width * advance + base
    stored = stored_at([keys.names[code] for code in other_codes.tolist()], other_panes)
    present = np.array([i for i, value in enumerate(stored) if value is not None], np.int64)
    parts = windowed.aggregates.parts
    bare = windowed.form.bare
    for i, column in enumerate(columns):
        column += [value if bare else value[i] for value in stored if value is not None]
    all_panes = np.concatenate([panes, other_panes[present]])
    starts = all_panes[:, None] - np.arange(overlap - 1, -1, -1, dtype=np.int64) * advance
    holds = starts >= base
    each = np.nonzero(holds)[0]
    ids, window = np.unique(
        (starts[holds] - base) // advance * width + np.concatenate([codes, other_codes[present]])[each],
        return_inverse=True,
    )
    changed = np.zeros(len(ids), bool)
    changed[window[each < len(panes)]] = True
    results: list[Any] = []
    for part, column in zip(parts, columns, strict=True):
        combine = _extremes if part.name in ("min", "max") else _sums
        result = combine(part, column, each, window, changed)
        if result is None:
            return None
        results.append(result)
    ids = ids[changed]
    begins = ids // width * advance + base
    return ResultColumns([part.take(array_of(ids % width)) for part in keys.parts], begins, begins + size, results)


def _extremes(part: Aggregator, column: list[Any], each: Ints, window: Ints, changed: NDArray[np.bool_]) -> Any:
    """Return the minima or maxima of the changed windows, or None if they must be compared one by one.

    `column` has the aggregates of the panes, `each` the pane of each pair of a window and a pane, `window` its window.
    """
    kinds = set(map(type, column)) - {NoneType}
    least = part.name == "min"
    if kinds <= {int}:
        nothing: float = _INT64_MAX if least else -_INT64_MAX
        if not all(value is None or -_INT64_MAX < value < _INT64_MAX for value in column):
            return None
        values: Any = np.array([nothing if value is None else value for value in column], np.int64)
    elif kinds <= {float} and None not in column and 0.0 not in column:
        # with both zeros the last would count
        nothing, values = np.inf if least else -np.inf, np.array(column, np.float64)
    else:
        return None
    best = np.full(len(changed), nothing, values.dtype)
    (np.minimum if least else np.maximum).at(best, window, values[each])
    results = best[changed].tolist()
    return results if values.dtype.kind == "f" else [None if value == nothing else value for value in results]


def _sums(part: Aggregator, column: list[Any], each: Ints, window: Ints, changed: NDArray[np.bool_]) -> Any:
    """Return the counts, sums or means of the changed windows, or None if they must be added up one by one."""

    def added(arrays: Sequence[Ints]) -> list[Ints]:
        sums = [np.bincount(window, weights=array[each], minlength=len(changed)) for array in arrays]
        return [array[changed].astype(np.int64) for array in sums]

    totals, counts = zip(*column, strict=True) if part.name == "mean" else (column, None)
    kinds = set(map(type, totals))
    if kinds <= {int}:
        # no sum of some of them is larger than that of all
        if sum(map(abs, totals)) >= EXACT:
            return None
        sums = added([np.array(totals, np.int64)])[0]
        if counts is None:
            return sums
        divisors = added([np.array(counts, np.int64)])[0]
        return [part.finish(pair) for pair in zip(sums.tolist(), divisors.tolist(), strict=True)]
    if not kinds <= {int, list}:
        return None
    floats = added([np.array([total[2] if type(total) is list else 0 for total in totals], np.int64)])[0]
    scale = Scale.of([], totals, len(totals), EXACT.bit_length() - 1, 0 if counts is None else sum(counts))
    limbs = added(scale.split_totals(totals))
    if counts is not None:
        means = scale.means(limbs, np.maximum(divisors := added([np.array(counts, np.int64)])[0], 1))
        return [mean if count else None for mean, count in zip(means.tolist(), divisors.tolist(), strict=True)]
    if floats.all():
        return scale.sums(limbs)
    return list(map(exact.result, scale.totals(limbs, floats)))
