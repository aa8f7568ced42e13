"""The command `metrics`: the numbers of every shard, as OpenMetrics text or as rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

from recovery.runs import newest_claim
from recovery.shard_log import ShardLog

from ...reading.places import Place
from ...state.numbers import COLUMNS, openmetrics, row_of, shard_row
from .. import options as o
from ..look import Look
from ..query import records_of

# The columns that a table has room for.
_SHORT: Final = (
    "operator", "shard", "version", "batch", "rows", "late", "records", "bytes", "restore_estimate_ms",
)  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """Print the numbers of a state, or of all shards of a query, as OpenMetrics text, which Prometheus reads.

    With -o the numbers are rows with every column; a table shows the most important columns.
    """
    if given.output is None:
        look.out.stream.write(openmetrics(rows_of(look)))
    elif look.out.form == "table":
        look.out.rows(({**row, "records": records_of(row)} for row in rows_of(look)), _SHORT)
    else:
        look.out.rows(rows_of(look), COLUMNS)
    return look.finish()


def rows_of(look: Look) -> Iterator[dict[str, Any]]:
    """Yield the row of each place. The row of a shard has the numbers of the last batches; the row of a plain state has
    the numbers that its files give.
    """
    for place in look.places:
        yield _shard(place) if place.shard is not None else _plain(look, place)


def _shard(place: Place) -> dict[str, Any]:
    claim = None if place.operator_storage is None else newest_claim(place.operator_storage)
    log = ShardLog(place.storage)
    standing = log.standing(() if claim is None else claim.runs)
    known = {"operator": place.operator, "shard": place.shard, "version": standing.newest, **_usage(place)}
    return shard_row(log, standing.newest_name(), standing.top(standing.newest, log.parent), known)


def _plain(look: Look, place: Place) -> dict[str, Any]:
    view = look.open(place)
    times = [store.stream_time for store in view.stores.values() if store.stream_time >= 0]
    return row_of(
        {
            "operator": "",
            "shard": place.number,
            "version": view.version,
            "wall_ms": view.wall_ms,
            "event_time_ms": max(times, default=None),
            "records": {store.name: store.counted.records for store in view.stores.values()},
            "commits_since_checkpoint": view.tail.commits,
            "bytes_since_checkpoint": view.tail.bytes,
            "records_since_checkpoint": view.tail.records,
            "restore_estimate_ms": round(view.restart_seconds * 1000, 3),
            **_usage(place),
        }
    )


def _usage(place: Place) -> dict[str, int]:
    if place.path is None:  # on an object store each file would cost a request
        return {}
    sizes = [path.stat().st_size for path in place.path.rglob("*") if path.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}
