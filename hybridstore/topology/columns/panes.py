"""Pane columns: the windows that a batch changed, out of their panes, by numpy.

    panes that the batch changed, and stored ones that share a window with them ── repeat ──▶ windows ── group ──▶
    results

The results equal those of `PanedWindowed.finish` for whole numbers; panes with other values go through `PanedWindowed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...aggregation import Aggregator
from ..results import Columns
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
) -> Columns | None:
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
    numbers = [_numbers(part, column) for part, column in zip(parts, columns, strict=True)]
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
    for part, arrays in zip(parts, numbers, strict=True):
        if arrays is None:
            return None
        results.append(_combined(part, [array[each] for array in arrays], window, len(ids), changed))
    ids = ids[changed]
    begins = ids // width * advance + base
    return Columns([part.take(array_of(ids % width)) for part in keys.parts], begins, begins + size, results)


def _numbers(part: Aggregator, column: list[Any]) -> list[Ints] | None:
    """Return the aggregates of panes as columns of numbers, or None if they are not whole or too large to be summed
    exactly.
    """
    if part.name in ("min", "max"):
        if not {int, type(None)}.issuperset(map(type, column)):
            return None
        if not all(value is None or -_INT64_MAX < value < _INT64_MAX for value in column):
            return None
        nothing = _INT64_MAX if part.name == "min" else -_INT64_MAX
        return [np.array([nothing if value is None else value for value in column], np.int64)]
    arrays = []
    for values in zip(*column, strict=True) if part.name == "mean" else [column]:
        # no sum of some of them is larger than that of all
        if not {int}.issuperset(map(type, values)) or sum(map(abs, values)) >= EXACT:
            return None
        arrays.append(np.array(values, np.int64))
    return arrays


def _combined(part: Aggregator, arrays: list[Ints], window: Ints, count: int, changed: NDArray[np.bool_]) -> Any:
    """Return the results of the changed windows."""
    if part.name in ("min", "max"):
        nothing = _INT64_MAX if part.name == "min" else -_INT64_MAX
        best = np.full(count, nothing, np.int64)
        (np.minimum if part.name == "min" else np.maximum).at(best, window, arrays[0])
        return [None if value == nothing else value for value in best[changed].tolist()]
    sums = [np.bincount(window, weights=array, minlength=count).astype(np.int64)[changed] for array in arrays]
    if part.result is None:
        return sums[0]
    return [part.result(pair) for pair in zip(*(column.tolist() for column in sums), strict=True)]
