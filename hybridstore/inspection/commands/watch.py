"""The command `watch`: rates of a running writer, a line per interval. A line of a query sums up all its shards."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...markup import Labelled
from ...reading.changes import ChangeHistory
from ...reading.places import Place
from ...reading.versions import reach
from ...state.policy import SPEED, Logged, commit_seconds
from .. import options as o
from ..look import Look
from ..query import OperatorNumbers, wholes
from ..show.output import size_cell
from .metrics import rows_of


def _committed(place: Place, after: int) -> tuple[int, int, int, int, dict[int, str]]:
    """Return (newest version, versions, changes, bytes) committed after a version, and the kinds of the stores by
    number."""
    newest, versions, changes, size = after, 0, 0, 0
    story = ChangeHistory(place)
    for logged in story.versions(after):
        newest = logged.commit.version
        versions += 1
        changes += len(logged.changes)
        size += logged.size
    return newest, versions, changes, size, story.kinds


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    seconds = "Seconds between two lines (default: 1)."
    parser.add_argument("--interval", metavar="SECONDS", type=o.at_least(0.05, float), default=1.0, help=seconds)
    parser.add_argument("--count", metavar="N", type=o.at_least(1), help="Stop after N lines.")
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """Show what a running writer commits: versions, changes and bytes per second, checkpoints, estimated restart.

    A query has one line for each operator: all shards together, with skew and the slowest shard. With --shard, only
    that shard is shown.
    """
    if look.several and all(place.shard is not None for place in look.places):
        return _query(look, given)
    out = look.out
    within = {place: reach(place) for place in look.places}
    reached = {place: max((commit.version for commit in each.commits), default=0) for place, each in within.items()}
    faults = [fault for each in within.values() for fault in each.faults]

    def rows() -> Iterator[dict[str, Any]]:
        before = time.monotonic()
        lines = 0
        while given.count is None or lines < given.count:
            time.sleep(given.interval)
            now = time.monotonic()
            for place in look.places:
                yield {**look.label(place), **_line(place, reached, now - before)}
            before = now
            lines += 1
            out.stream.flush()

    columns = ("shard", "version", "versions_per_s", "changes_per_s", "bytes_per_s", "checkpoint", "restart_ms")
    _show(look, rows(), columns, "" if look.several else "shard")
    return look.finish(more=faults)


def _show(look: Look, rows: Iterator[dict[str, Any]], columns: Sequence[str], hidden: str) -> None:
    """Show each row as soon as it arrives. A table leaves out the `hidden` column."""
    out = look.out
    if out.form != "table":
        out.rows(rows, columns)
        return
    columns = [name for name in columns if name != hidden]
    # `Out.rows` waits for the first rows to know the widths of a table; here each line must be shown at once.
    names = [name.replace("_per_", "/").replace("_", " ") for name in columns]
    out.line("  ".join(f"{name:>10}" for name in names))
    for row in rows:
        cells = ("" if (cell := row.get(name)) is None else cell for name in columns)
        out.line("  ".join(f"{cell.text if isinstance(cell, Labelled) else cell!s:>10}" for cell in cells))
        out.stream.flush()


_OF_QUERY: Final = (
    "operator", "batch", "rows_per_s", "late_per_s", "bytes_per_s", "records", "skew", "hottest", "slowest",
    "slowest_ms", "restart_ms",
)  # fmt: skip


def _query(look: Look, given: Namespace) -> int:
    """Show a line per interval for each operator of a query, with all its shards together."""

    def rows() -> Iterator[dict[str, Any]]:
        before = {whole.operator: whole for whole in wholes(list(rows_of(look)))}
        then, lines = time.monotonic(), 0
        while given.count is None or lines < given.count:
            time.sleep(given.interval)
            now, seen = time.monotonic(), wholes(list(rows_of(look)))
            for whole in seen:
                yield _rates(whole, before.get(whole.operator, whole), now - then)
            before, then = {whole.operator: whole for whole in seen}, now
            lines += 1
            look.out.stream.flush()

    several = len({place.operator for place in look.places}) > 1
    _show(look, rows(), _OF_QUERY, "" if several else "operator")
    return look.finish()


def _rates(whole: OperatorNumbers, before: OperatorNumbers, seconds: float) -> dict[str, Any]:
    return {
        "operator": whole.operator,
        "batch": whole.batch,
        "rows_per_s": round((whole.rows - before.rows) / seconds),
        "late_per_s": round((whole.late - before.late) / seconds, 1),
        "bytes_per_s": size_cell(max(0, round((whole.logged_bytes - before.logged_bytes) / seconds))),
        "records": whole.records,
        "skew": whole.skew,
        "hottest": whole.hottest,
        "slowest": whole.slowest,
        "slowest_ms": round(whole.slowest_ms + whole.slowest_commit_ms, 1),
        "restart_ms": whole.restart_ms,
    }


def _line(place: Place, reached: dict[Place, int], seconds: float) -> dict[str, Any]:
    newest, versions, changes, size, kinds = _committed(place, reached[place])
    reached[place] = newest
    within = reach(place)
    checkpoints = within.checkpoints
    behind = Logged()
    for commit in within.commits:
        if commit.version > max(checkpoints, default=0):
            behind = behind.plus(Logged.of(1, commit.size, commit.records, kinds))
    estimate = SPEED.estimate(behind, commit_seconds(place.storage))
    return {
        "version": newest,
        "versions_per_s": round(versions / seconds, 1),
        "changes_per_s": round(changes / seconds),
        "bytes_per_s": size_cell(round(size / seconds)),
        "checkpoint": max(checkpoints, default=None),
        "restart_ms": round(estimate * 1000, 1),
    }
