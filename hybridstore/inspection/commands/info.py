"""The commands that say what there is: `info` and `list`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from changelog.errors import HybridStoreError
from changelog.segment import FORMAT_VERSION
from recovery.checkpoint import checkpoint_name, list_checkpoints
from recovery.layout import CHECKPOINTS
from recovery.pages import PageCheckpoint

from ...shard_head import HEAD_NAME, read_head
from ...state.lock import read_note
from ...state.policy import CheckpointPolicy
from .. import options as o
from ..parameters import Option
from ..session import Inspection
from ..show.output import Out, Shown, size_cell, span_text, time_cell
from ..view.reader import View
from ..view.versions import commits_of, reach, segments

_STORE_COLUMNS = ("shard", "store", "kind", "keys", "records", "bytes", "stream_time", "parameters")


def parameters_text(parameters: dict[str, Any]) -> str:
    """Return the parameters of a store that are set, for people: `retention 1 h`."""

    def text(name: str, value: Any) -> str:
        if name.endswith("_ms") and type(value) is int:
            return f"{name.removesuffix('_ms').replace('_', ' ')} {span_text(value)}"
        return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}"

    return ", ".join(
        text(name, value) for name, value in parameters.items() if value is not None and value is not False
    )


def stopped(view: View) -> str:
    """Say how the last writer left the place: `clean`, `open or killed`, or `torn`."""
    note = read_note(view.place.path) if view.place.form == "directory" else {}
    if view.cut is not None:
        return (
            f"torn: {view.cut.size} bytes at byte {view.cut.offset} of {view.cut.path} do not count ({view.cut.reason})"
        )
    if view.ended is not None or "closed" in note:
        return "clean"
    if "pid" in note:
        return f"open or killed: process {note['pid']} on {note.get('host')} since {note.get('since')}"
    return "open or killed"


def facts_of(view: View, iso: bool, *, newest: bool) -> dict[str, Any]:
    """Return what `info` says of one place; `newest` when no --at was given."""
    row: dict[str, Any] = {}
    if view.place.label:
        row["shard"] = view.place.label
    row["path"] = str(view.place.path)
    row["store_id"] = view.store_id.hex()
    row["format"] = FORMAT_VERSION
    row["version"] = view.seen
    row["committed"] = time_cell(view.wall_ms, iso)
    row["digest"] = view.digest.hex()
    row["stopped"] = stopped(view) if newest and not view.place.label else None
    meta = view.checkpoint
    row["checkpoint"] = None if meta is None else meta.version
    row["checkpoint_bytes"] = None if meta is None else size_cell(view.checkpoint_bytes)
    row["tail_versions"] = view.tail.commits
    row["tail_records"] = view.tail.records
    row["tail_bytes"] = size_cell(view.tail.bytes)
    estimate = CheckpointPolicy().estimate(view.tail)
    row["estimated_restore_ms"] = Shown(f"{estimate * 1000:.0f} ms to the first read", round(estimate * 1000, 1))
    return row


FACT_NAMES = {
    "store_id": "store id",
    "stopped": "last writer",
    "checkpoint_bytes": "checkpoint size",
    "tail_versions": "versions since",
    "tail_records": "records since",
    "tail_bytes": "changelog since",
    "estimated_restore_ms": "restart",
}


def store_rows(view: View, iso: bool, label: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each store of a view."""
    for store in view.stores.values():
        about = "" if store.exact else "~"
        yield {
            **({"shard": view.place.label} if label else {}),
            "store": store.name,
            "kind": store.kind,
            "keys": store.key_type,
            "records": Shown(f"{about}{store.estimate:,}", store.estimate),
            "exact": store.exact,
            "bytes": size_cell(store.packed_bytes),
            "stream_time": time_cell(store.stream_time, iso),
            "parameters": Shown(parameters_text(store.parameters), store.parameters),
        }


def info(
    path: o.Where,
    at: o.At = None,
    shard: o.Shard = None,
    output: o.Output = None,
    iso: o.Iso = False,
    debug: o.Debug = False,
) -> int:
    """Say what is there: version, checkpoint, changelog behind it, how the last writer stopped, and the stores."""
    inspection = Inspection(path, at=at, shard=shard)
    out = Out(output)
    if out.form == "table":
        if inspection.several:
            _operators(inspection, out, iso)
        else:
            for view in inspection.views():
                out.facts(facts_of(view, iso, newest=at is None), FACT_NAMES)
                out.rows(store_rows(view, iso, False), _STORE_COLUMNS)
                if view.settings:
                    settings = ({"setting": name, "value": value} for name, value in view.settings.items())
                    out.rows(settings, ["setting", "value"])
    else:
        rows = (
            {
                **facts_of(view, iso, newest=at is None),
                "settings": view.settings,
                "stores": list(store_rows(view, iso, False)),
            }
            for view in inspection.views()
        )
        out.rows(rows, _INFO_COLUMNS)
    return inspection.finish(o.FINE)


_INFO_COLUMNS = ("shard", "path", "version", "committed", "digest", "checkpoint", "tail_versions", "tail_records")


def _operators(inspection: Inspection, out: Out, iso: bool) -> None:
    views = list(inspection.views())
    out.rows(
        (
            {
                "shard": view.place.label,
                "version": view.seen,
                "checkpoint": None if view.checkpoint is None else view.checkpoint.version,
                "since": view.tail.commits,
                "records": sum(store.estimate for store in view.stores.values()),
                "committed": time_cell(view.wall_ms, iso),
                "digest": Shown(view.digest.hex()[:8], view.digest.hex()),
            }
            for view in views
        ),
        ["shard", "version", "checkpoint", "since", "records", "committed", "digest"],
    )
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for view in views:
        for store in view.stores.values():
            total = totals.setdefault(
                (view.place.operator, store.name),
                {
                    "operator": view.place.operator,
                    "store": store.name,
                    "kind": store.kind,
                    "records": 0,
                    "parameters": parameters_text(store.parameters),
                },
            )
            total["records"] += store.estimate
    out.rows(totals.values(), ["operator", "store", "kind", "records", "parameters"])


def list_command(
    path: o.Where,
    stores: Annotated[bool, Option("--stores", help="Only the stores.")] = False,
    checkpoints: Annotated[bool, Option("--checkpoints", help="Only the checkpoints.")] = False,
    logs: Annotated[bool, Option("--logs", help="Only the changelog segments.")] = False,
    shard: o.Shard = None,
    output: o.Output = None,
    iso: o.Iso = False,
    debug: o.Debug = False,
) -> int:
    """List stores, checkpoints and changelog segments, and the versions that --at can reach."""
    inspection = Inspection(path, shard=shard)
    out = Out(output)
    wanted = [kind for kind, asked in (("store", stores), ("checkpoint", checkpoints), ("segment", logs)) if asked]
    views = list(inspection.views())
    damaged = False

    def rows(kind: str) -> Iterator[dict[str, Any]]:
        nonlocal damaged
        for view in views:
            if view.place.form != "directory" and kind != "store":
                continue
            label = {"shard": view.place.label} if inspection.several else {}
            for row in _LISTERS[kind](view, iso):
                damaged = damaged or bool(row.get("damaged"))
                yield {**label, "what": kind, **row}

    kinds = wanted or list(_LISTERS)
    if out.form == "table":
        for kind in kinds:
            out.rows(({**row, kind: row["name"]} for row in rows(kind)), ("shard", kind, *_LIST_COLUMNS))
    else:
        every = (row for kind in kinds for row in rows(kind))
        out.rows(every, ("shard", "what", "name", *_LIST_COLUMNS))
    if not wanted and out.form == "table":
        out.line("")
        for view in views:
            found = reach(view.place)
            newest = max([*found.checkpoints, *(commit.version for commit in found.commits)], default=0)
            where = f"{view.place.label}: " if inspection.several else ""
            out.line(f"{where}--at can reach versions {min(found.oldest, newest)} to {newest}")
    return inspection.finish(o.INCOMPLETE if damaged else o.FINE)


_LIST_COLUMNS = ("versions", "kind", "committed", "bytes", "records", "detail")


def _stores_listed(view: View, iso: bool) -> Iterator[dict[str, Any]]:
    for store in view.stores.values():
        about = "" if store.exact else "~"
        yield {
            "name": store.name,
            "kind": store.kind,
            "bytes": size_cell(store.packed_bytes),
            "records": Shown(f"{about}{store.estimate:,}", store.estimate),
        }


def _checkpoint_rows(view: View, iso: bool) -> Iterator[dict[str, Any]]:
    folder = view.place.path / CHECKPOINTS
    for version in list_checkpoints(folder):
        row: dict[str, Any] = {"name": checkpoint_name(version), "versions": str(version)}
        try:
            reader = PageCheckpoint(folder / checkpoint_name(version))
        except FileNotFoundError:
            continue
        except HybridStoreError as error:
            yield {**row, "detail": f"damaged: {error}", "damaged": True}
            continue
        records = reader.meta.records
        yield {
            **row,
            "committed": time_cell(reader.meta.wall_ms, iso),
            "bytes": size_cell(reader.size),
            "records": Shown(f"{records:,}", records),
            "damaged": False,
        }
        reader.close()


def _segment_rows(view: View, iso: bool) -> Iterator[dict[str, Any]]:
    head = read_head(view.place.path / HEAD_NAME)
    for reader, size in segments(view.place):
        row: dict[str, Any] = {"name": reader.path.name, "bytes": size_cell(size)}
        first = last = reader.header.first_version
        count, wall, damage = 0, None, ""
        try:
            for commit in commits_of(reader):
                last, wall = commit.version, commit.wall_ms
                count += 1
        except HybridStoreError as error:
            damage = f"damaged: {error}"
        if damage:
            detail = damage
        elif head is not None and first > head.tip.version:
            detail = "not committed: above the head"
        elif reader.ended is not None:
            detail = "closed"
        elif reader.tail is not None:
            detail = f"torn tail of {reader.tail.size} bytes"
        else:
            detail = ""
        yield {
            **row,
            "versions": "" if not count else str(first) if count == 1 else f"{first}-{last}",
            "committed": time_cell(wall, iso),
            "detail": detail,
            "damaged": bool(damage),
        }


_LISTERS = {"store": _stores_listed, "checkpoint": _checkpoint_rows, "segment": _segment_rows}
