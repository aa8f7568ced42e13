"""Arrow run: the Arrow batches of a plain run go into the windows by column, as Spark's do, and come out as rows.

A batch is one commit. What cannot go by column (`Vectorised`, `SlidingColumns` say what can) goes row by row and gives the same.
The surprise: a batch is split over shards only when the keys and times of all its rows are known to be good, because shards
commit one after the other and a bad row must not be found when half of them have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..collector import collector_held
from ..shards import shard_of
from .arrow_columns import Columns, keys_of, times_of
from .plan import Plan
from .rows import ToTime, arrow_list, arrow_to_time, to_rows

if TYPE_CHECKING:
    from .columns.sliding import SlidingColumns
    from .columns.time_windows import Vectorised


class ArrowRun:
    """The ways by column into the shards of a plan."""

    def __init__(self, plan: Plan, ways: list[Vectorised | SlidingColumns]) -> None:
        self._plan = plan
        self._ways = ways

    def split(self, batch: Any) -> list[pa.Table] | None:
        """Return the part of a batch for each shard, or None if it has to go row by row. O(rows)."""
        wanted = list(self._plan.columns)
        if not set(wanted) <= set(batch.column_names):
            return None
        whole = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        table = whole.select(wanted)
        shards = len(self._ways)
        if shards == 1:
            return [table]
        if not table.num_rows:
            return [table] * shards
        keys = keys_of([table.column(name) for name in self._plan.key])
        if keys is None or times_of(table.column(self._plan.timestamp)) is None:
            return None
        places = np.array([shard_of(name, shards) for name in keys.names], np.int64)[keys.codes]
        return [table.take(pa.array(np.nonzero(places == shard)[0])) for shard in range(shards)]

    def process(self, shard: int, table: pa.Table) -> list[dict[str, Any]] | None:
        """Process a shard's part of a batch as one commit and return its rows, or None, with nothing done, if it has to go row by row."""
        with collector_held():
            made = self._ways[shard].process(table)
            if made is None:
                return None
            to_time = arrow_to_time(table.schema.field(self._plan.timestamp).type)
            if isinstance(made, Columns):
                return _rows(self._plan, made, to_time)
            return list(to_rows(self._plan, made, to_time))


def _rows(plan: Plan, results: Columns, to_time: ToTime) -> list[dict[str, Any]]:
    """Turn results by column into rows, as `to_rows` does with results one by one."""
    assert plan.aggregates is not None
    names = (*plan.key, "window_start", "window_end", *plan.aggregates.names)
    bounds = [list(map(to_time, times.tolist())) for times in results[1:3]]
    aggregates = [list(column) if isinstance(column, tuple) else _listed(column) for column in results.aggregates]
    columns = [*map(arrow_list, results.keys), *bounds, *aggregates]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _listed(column: Any) -> list[Any]:
    found: list[Any] = column if type(column) is list else column.tolist()
    return found
