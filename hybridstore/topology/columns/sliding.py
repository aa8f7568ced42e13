"""Sliding columns: a way for Arrow batches into the sliding windows of one shard that makes no object per row but
the aggregate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...aggregation.slid import Grouped, TimedRows
from ...clock import Watermark
from ..plan import Plan
from ..results import ResultColumns
from ..windows.sliding import SlidingWindowed
from .arrow import canonical_place
from .buffers import array_of
from .fits import ColumnBatch
from .why import Why


class SlidingColumns:
    """The same records, results and changelog bytes as `SlidingWindowed.process`, by column."""

    def __init__(self, plan: Plan, windowed: SlidingWindowed) -> None:
        self._plan = plan
        self._windowed = windowed

    def process(self, way: ColumnBatch, clock: Watermark | None = None) -> ResultColumns | Why:
        """Process a batch as one commit and return its results, or why it has to go row by row, with nothing done.

        O(rows).
        """
        windowed = self._windowed
        times, keys, given, _, _ = way
        numbers = [values for values, _ in given]
        order = canonical_place(times, keys, numbers)
        if order is None:
            return Why.ORDER
        codes, times = keys.codes[order], times[order]
        numbers = [number[order] for number in numbers]
        values: list[Any] = [0] * len(order)
        if numbers:
            parts = [number.tolist() for number in numbers]
            values = parts[0] if len(parts) == 1 else list(map(list, zip(*parts, strict=True)))
        names = [keys.names[code] for code in codes.tolist()]
        before = windowed.stream_time
        columns: list[Any]
        if windowed.emit == "commit":
            # the last result of each key, by key: only those are aggregated
            states = windowed.states_of(names, values, times.tolist())
            kept = np.array([i for i, state in enumerate(states) if state is not None], np.int64)
            last = np.full(len(keys.names), -1, np.int64)
            np.maximum.at(last, codes[kept], kept)
            kept = last[last >= 0]
            columns = list(
                zip(*[state.value() for i in kept.tolist() if (state := states[i]) is not None], strict=True)
            )
        else:
            grouped = None
            if all(number.dtype != np.uint64 for number in numbers):
                columns = [number if number.dtype == np.float64 else number.astype(np.int64) for number in numbers]
                grouped = Grouped(keys.names, TimedRows(codes, times, columns))
            columns, late = windowed.columns_of(names, values, times.tolist(), grouped)
            kept = np.delete(np.arange(len(order)), late)
        newest = np.maximum(np.maximum.accumulate(times), before)
        windowed.stream_time = int(newest[-1])
        if windowed.late:
            windowed.late[:] = order[windowed.late].tolist()
        windowed.written()
        ends = newest[kept]
        return ResultColumns(
            [part.take(array_of(codes[kept])) for part in keys.parts],
            np.maximum(ends - windowed.size_ms, 0),
            ends,
            columns or [[] for _ in self._plan.combined.names],
        )
