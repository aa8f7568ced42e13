"""The command `list`: stores, checkpoints and segments, and the versions in reach."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from changelog.errors import HybridStoreError
from recovery.layout import list_checkpoints
from recovery.pages import PageCheckpoint

from ...markup import Labelled
from ...reading.versions import reach, segment_states
from ...reading.view import View
from .. import options as o
from ..look import Look
from ..rows import count_cell
from ..show.output import size_cell

_COLUMNS = ("versions", "kind", "committed", "bytes", "records", "detail")


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    parser.add_argument("--stores", action="store_true", help="Only the stores.")
    parser.add_argument("--checkpoints", action="store_true", help="Only the checkpoints.")
    parser.add_argument("--logs", action="store_true", help="Only the changelog segments.")
    o.looking(parser, iso=True)


def run(look: Look, given: Namespace) -> int:
    """List stores, checkpoints and changelog segments, and the versions that --at can reach."""
    out = look.out
    asked = {"store": given.stores, "checkpoint": given.checkpoints, "segment": given.logs}
    wanted = [kind for kind in asked if asked[kind]]
    views = list(look.views())
    damaged = False

    def rows(kind: str) -> Iterator[dict[str, Any]]:
        nonlocal damaged
        for view in views:
            if view.place.form != "directory" and kind != "store":
                continue
            for row in _LISTERS[kind](view, look):
                damaged = damaged or bool(row.get("damaged"))
                yield {**look.label(view.place), "what": kind, **row}

    kinds = wanted or list(_LISTERS)
    if out.form == "table":
        for kind in kinds:
            out.rows(({**row, kind: row["name"]} for row in rows(kind)), ("shard", kind, *_COLUMNS))
    else:
        every = (row for kind in kinds for row in rows(kind))
        out.rows(every, ("shard", "what", "name", *_COLUMNS))
    if not wanted and out.form == "table":
        out.line("")
        for view in views:
            within = reach(view.place)
            newest = max([*within.checkpoints, *(commit.version for commit in within.commits)], default=0)
            where = f"{view.place.label}: " if look.several else ""
            out.line(f"{where}--at can reach versions {min(within.oldest, newest)} to {newest}")
    return look.finish(o.INCOMPLETE if damaged else o.FINE)


def _stores_listed(view: View, look: Look) -> Iterator[dict[str, Any]]:
    for store in view.stores.values():
        yield {
            "name": store.name,
            "kind": store.kind,
            "bytes": size_cell(store.packed_bytes),
            "records": count_cell(store.counted),
        }


def _checkpoint_rows(view: View, look: Look) -> Iterator[dict[str, Any]]:
    for name in list_checkpoints(view.place.storage):
        row: dict[str, Any] = {"name": str(name).rpartition("/")[2], "versions": str(name.version)}
        try:
            reader = PageCheckpoint(view.place.storage, name)
        except FileNotFoundError:
            continue
        except HybridStoreError as error:
            yield {**row, "detail": f"damaged: {error}", "damaged": True}
            continue
        records = reader.meta.records
        yield {
            **row,
            "committed": look.time(reader.meta.wall_ms),
            "bytes": size_cell(reader.size),
            "records": Labelled(f"{records:,}", records),
            "damaged": False,
        }
        reader.close()


def _segment_rows(view: View, look: Look) -> Iterator[dict[str, Any]]:
    for state in segment_states(view.place):
        first, last = state.first, state.last
        yield {
            "name": state.path.name,
            "bytes": size_cell(state.size),
            "versions": "" if not state.number else str(first) if state.number == 1 else f"{first}-{last}",
            "committed": look.time(state.wall_ms),
            "detail": f"damaged: {state.damage}" if state.damage else state.void or state.end,
            "damaged": bool(state.damage),
        }


_LISTERS = {"store": _stores_listed, "checkpoint": _checkpoint_rows, "segment": _segment_rows}
