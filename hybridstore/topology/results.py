"""Results: what a commit of a shard hands out, window by window or by column, and both as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .batch import ToTime, arrow_list
from .plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Result(NamedTuple):
    """One result: the key, the window's bounds (ms, as the window's kind says), the aggregates in order, and the
    largest record time.

    `aggregates` is None for a session that was merged into another.
    """

    key: Any
    start: int
    end: int
    aggregates: tuple[Any, ...] | None
    ts: int


class Columns(NamedTuple):
    """Results by column: an Arrow array per key column, window bounds in ms, and a column per aggregate."""

    keys: list[Any]
    starts: Ints
    ends: Ints
    aggregates: list[Any]


Results = list[Result] | Columns


def rows_of(plan: Plan, results: Results, to_time: ToTime) -> list[dict[str, Any]]:
    """Turn results into rows: key columns, window_start, window_end, aggregates by name (None for a removed session).

    `to_time` makes times (ms) what rows give. O(results).
    """
    if isinstance(results, Columns):
        names = (*plan.key, "window_start", "window_end", *plan.combined.names)
        bounds = [list(map(to_time, times.tolist())) for times in (results.starts, results.ends)]
        columns = [*map(arrow_list, results.keys), *bounds, *map(_listed, results.aggregates)]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return list(_rows(plan, results, to_time))


def _listed(column: Any) -> Sequence[Any]:
    listed: Sequence[Any] = column if isinstance(column, list | tuple) else column.tolist()
    return listed


def _rows(plan: Plan, results: Sequence[Result], to_time: ToTime) -> Iterator[dict[str, Any]]:
    names = plan.combined.names
    single = plan.key[0] if len(plan.key) == 1 else None
    for key, start, end, aggregates, _ in results:
        row = {single: key} if single is not None else dict(zip(plan.key, key, strict=True))
        row["window_start"] = to_time(start)
        row["window_end"] = to_time(end)
        row.update(zip(names, aggregates, strict=True) if aggregates is not None else dict.fromkeys(names))
        yield row
