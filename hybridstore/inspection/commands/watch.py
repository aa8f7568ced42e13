"""The command `watch`: rates while a writer runs, a line per interval."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from ...state.policy import CheckpointPolicy, Logged
from .. import options as o
from ..parameters import Option
from ..session import Inspection
from ..show.output import Out, Shown, size_cell
from ..view.changes import Story
from ..view.places import Place
from ..view.versions import reach


def _look(place: Place, after: int) -> tuple[int, int, int, int, dict[int, str]]:
    """Return (newest version, versions, changes, bytes) committed after a version, and the kinds of the stores by
    number."""
    newest, versions, changes, size = after, 0, 0, 0
    story = Story(place)
    for logged in story.versions(after):
        newest = logged.commit.version
        versions += 1
        changes += len(logged.changes)
        size += logged.size
    return newest, versions, changes, size, story.kinds


def watch(
    path: o.Where,
    interval: Annotated[float, Option("--interval", min=0.05, help="Seconds between two lines.")] = 1.0,
    count: Annotated[int | None, Option("--count", min=1, help="Stop after so many lines.", show_default=False)] = None,
    shard: o.Shard = None,
    output: o.Output = None,
    debug: o.Debug = False,
) -> int:
    """Show what a running writer commits: versions, changes and bytes per second, checkpoints, estimated restart."""
    inspection = Inspection(path, shard=shard)
    out = Out(output)
    reached = {
        place: max((commit.version for commit in reach(place).commits), default=0) for place in inspection.places
    }

    def rows() -> Iterator[dict[str, Any]]:
        before = time.monotonic()
        lines = 0
        while count is None or lines < count:
            time.sleep(interval)
            now = time.monotonic()
            for place in inspection.places:
                yield _line(place, reached, now - before, inspection.several)
            before = now
            lines += 1
            out.stream.flush()

    columns = ("shard", "version", "versions_per_s", "changes_per_s", "bytes_per_s", "checkpoint", "restart_ms")
    if out.form == "table":
        # A table waits for its first rows to know its widths; here each line is wanted at once.
        names = [
            name.replace("_per_", "/").replace("_", " ") for name in columns if name != "shard" or inspection.several
        ]
        out.line("  ".join(f"{name:>10}" for name in names))
        for row in rows():
            cells = (row.get(name) for name in columns if name in row)
            out.line("  ".join(f"{cell.text if isinstance(cell, Shown) else cell!s:>10}" for cell in cells))
            out.stream.flush()
    else:
        out.rows(rows(), columns)
    return inspection.finish(o.FINE)


def _line(place: Place, reached: dict[Place, int], seconds: float, label: bool) -> dict[str, Any]:
    newest, versions, changes, size, kinds = _look(place, reached[place])
    reached[place] = newest
    within = reach(place)
    checkpoints = within.checkpoints
    behind = Logged()
    for commit in within.commits:
        if commit.version > max(checkpoints, default=0):
            behind = behind.plus(Logged.of(1, commit.size, commit.records, kinds))
    estimate = CheckpointPolicy().estimate(behind)
    return {
        **({"shard": place.label} if label else {}),
        "version": newest,
        "versions_per_s": round(versions / seconds, 1),
        "changes_per_s": round(changes / seconds),
        "bytes_per_s": size_cell(round(size / seconds)),
        "checkpoint": max(checkpoints, default=None),
        "restart_ms": round(estimate * 1000, 1),
    }
