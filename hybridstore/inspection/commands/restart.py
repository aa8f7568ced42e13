"""The command `restart`: the steps and the cost of a restart."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ...reading.versions import reach
from ...reading.view import View
from ...state.policy import SPEED, Logged, commit_seconds
from .. import options as o
from ..look import Look
from ..show.output import counted, size_cell


def restart_rows(view: View) -> Iterator[dict[str, Any]]:
    """Yield the steps of a restore to this view. Each step has the data that it reads and an estimate of its time."""
    attach = SPEED.estimate(Logged())
    requests = commit_seconds(view.place.storage) * view.tail.commits
    for note in view.notes:
        yield {"step": "pass over", "detail": note.replace(" passed over", "")}
    if view.checkpoint is not None:
        records = view.checkpoint.records
        yield {
            "step": "attach",
            "detail": f"checkpoint {view.checkpoint.version}: {counted(records, 'record')} left on disk",
            "records": records,
            "bytes": size_cell(view.checkpoint_bytes),
            "estimate_ms": round(attach * 1000, 1),
        }
    yield {
        "step": "replay",
        "detail": f"{counted(view.tail.commits, 'version')}, {counted(view.tail.records, 'record')} of the changelog",
        "records": view.tail.records,
        "bytes": size_cell(view.tail.bytes),
        "estimate_ms": round((view.restart_seconds - attach - requests) * 1000, 1),
    }
    if requests:
        yield {
            "step": "requests",
            "detail": f"{counted(view.tail.commits, 'object')} of the changelog, read side by side",
            "estimate_ms": round(requests * 1000, 1),
        }
    if view.cut is not None:
        yield {
            "step": "cut",
            "detail": f"{view.cut.size} bytes at byte {view.cut.offset} of {view.cut.path}: {view.cut.reason}",
            "bytes": size_cell(view.cut.size),
        }
    for fault in view.faults:
        yield {"step": "refuse", "detail": fault}
    yield {"step": "serve", "detail": f"version {view.version}", "estimate_ms": round(view.restart_seconds * 1000, 1)}


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.looking(parser, at=True)


def run(look: Look, given: Namespace) -> int:
    """Show the steps of a restore and an estimate of the time until the first read. The state is not changed.

    Exit code 1 when a restore would fail because committed data is damaged or missing.
    """
    out = look.out
    refused = False

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal refused
        for view in look.views():
            refused = refused or bool(view.faults)
            for row in restart_rows(view):
                yield look.label(view.place) | row

    out.rows(rows(), ("shard", "step", "bytes", "estimate_ms", "detail"))
    if look.at is None and out.form == "table" and not look.several:
        out.line("")
        out.line(f"--at can reach versions from {reach(look.places[0]).oldest}")
    return o.NEGATIVE if refused else o.FINE
