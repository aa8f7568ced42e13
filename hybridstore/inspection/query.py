"""Query: figures from the numbers of all shards together: skew, the hottest shard, the slowest, growth, a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class OperatorNumbers(NamedTuple):
    """The numbers of one operator's shards together.

    version        the oldest version that a shard has reached
    batch          the newest batch of any shard
    rows, late     totals since the query began
    records        records in the stores, as the shards noted them
    skew           rows of the hottest shard over the mean (records, where no rows were counted); 1.0: even, 0.0: none
    hottest        that shard
    slowest        the shard whose last batch took longest, and its milliseconds, with those of its commit
    bytes          the size of all files, None if the files were not counted
    logged_bytes   changelog written since the query began
    restart_ms     estimated restart: all shards one after the other, and the slowest shard, which many tasks wait for
    """

    operator: str
    shards: int
    version: int
    batch: int | None
    rows: int
    late: int
    records: int
    skew: float
    hottest: int | None
    slowest: int | None
    slowest_ms: float
    slowest_commit_ms: float
    bytes: int | None
    logged_bytes: int
    restart_ms: float
    restart_slowest_ms: float


def wholes(rows: Sequence[Row]) -> list[OperatorNumbers]:
    """Return each operator's shards together, in the order of the rows. O(rows)."""
    operators: dict[str, list[Row]] = {}
    for row in rows:
        operators.setdefault(str(row.get("operator") or ""), []).append(row)
    return [_whole(operator, shards) for operator, shards in operators.items()]


def records_of(row: Row) -> int:
    """Return the records that a shard holds, over its stores."""
    by_store = row.get("records")
    if not isinstance(by_store, Mapping):
        return 0
    return sum(number for number in by_store.values() if type(number) is int)


def number_of(row: Row, name: str) -> float:
    """Return a number, 0 for anything else, because files may be forged."""
    value = row.get(name)
    return value if isinstance(value, int | float) else 0


def _whole(operator: str, rows: list[Row]) -> OperatorNumbers:
    counted = [int(number_of(row, "total_rows")) for row in rows]
    loads = counted if any(counted) else [records_of(row) for row in rows]
    hottest = max(range(len(rows)), key=loads.__getitem__)
    slowest = max(rows, key=lambda row: number_of(row, "process_ms") + number_of(row, "commit_ms"))
    mean = fmean(loads)
    batches = [int(number_of(row, "batch")) for row in rows if row.get("batch") is not None]
    restarts = [number_of(row, "restore_estimate_ms") for row in rows]
    sizes = [row.get("bytes") for row in rows]
    return OperatorNumbers(
        operator=operator,
        shards=len(rows),
        version=min(int(number_of(row, "version")) for row in rows),
        batch=max(batches, default=None),
        rows=sum(counted),
        late=int(sum(number_of(row, "total_late") for row in rows)),
        records=sum(map(records_of, rows)),
        skew=round(loads[hottest] / mean, 2) if mean else 0.0,
        hottest=rows[hottest].get("shard"),
        slowest=slowest.get("shard"),
        slowest_ms=round(number_of(slowest, "process_ms"), 1),
        slowest_commit_ms=round(number_of(slowest, "commit_ms"), 1),
        bytes=None if None in sizes else int(sum(number_of(row, "bytes") for row in rows)),
        logged_bytes=int(sum(number_of(row, "total_segment_bytes") for row in rows)),
        restart_ms=round(sum(restarts), 1),
        restart_slowest_ms=round(max(restarts), 1),
    )
