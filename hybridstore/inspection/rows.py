"""Rows: the content of a view as rows of output: facts of a place, stores, records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from changelog.segment import FORMAT_VERSION

from ..markup import Labelled
from ..reading.pins import Pin
from ..reading.store_view import RecordCount, StoreView
from ..reading.view import View
from ..state.lock import read_note
from ..stores.kinds import Row
from .show.output import key_cell, size_cell, span_text, time_cell, value_cell

STORE_COLUMNS = ("shard", "store", "kind", "keys", "records", "bytes", "stream_time", "parameters")
PIN_COLUMNS = ("pin", "version", "committed", "bytes")
RECORD_COLUMNS = ("shard", "key", "buffered", "ts", "start", "end", "time_0", "time_1", "value")


def pin_rows(pins: Sequence[Pin], iso: bool) -> list[dict[str, Any]]:
    """Return a row for each pin; its bytes are those that nothing else keeps."""
    return [
        {
            "pin": each.name,
            "version": each.version,
            "committed": time_cell(each.wall_ms, iso),
            "bytes": size_cell(each.size),
        }
        for each in pins
    ]


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
    """Return the state in which the last writer left the place: `clean`, `open or killed`, or `torn`."""
    path = view.place.path
    if path is None and view.place.form == "directory":
        return "not known: an owner of a state on an object store leaves no word when it stops"
    note = read_note(path) if path is not None and view.place.form == "directory" else {}
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
    """Return the facts of `info` about one place; `newest` when no --at was given."""
    row: dict[str, Any] = {}
    if view.place.label:
        row["shard"] = view.place.label
    row["path"] = view.place.where
    row["store_id"] = view.identity.store.hex()
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
    estimate = view.restart_seconds
    row["estimated_restore_ms"] = Labelled(f"{estimate * 1000:.0f} ms to the first read", round(estimate * 1000, 1))
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


def count_cell(count: RecordCount) -> Labelled:
    """Return a number of records as a cell: `~41` if it is not exact."""
    return Labelled(f"{'' if count.exact else '~'}{count.records:,}", count.records)


def store_rows(view: View, iso: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each store of a view."""
    for store in view.stores.values():
        yield {
            "store": store.name,
            "kind": store.kind,
            "keys": store.key_type,
            "records": count_cell(store.counted),
            "exact": store.counted.exact,
            "bytes": size_cell(store.packed_bytes),
            "stream_time": time_cell(store.stream_time, iso),
            "parameters": Labelled(parameters_text(store.parameters), store.parameters),
        }


def row_of(view: View, store: StoreView, record: Row, *, iso: bool, label: bool) -> dict[str, Any]:
    """Return a record as a row of output."""
    row: dict[str, Any] = {"shard": view.place.label} if label else {}
    row["key"] = key_cell(record.key)
    times = record.times
    if len(times) == 1 and store.columns:
        row[store.columns[0]] = time_cell(times[0], iso)
    elif times:
        names = store.columns or tuple(f"time_{i}" for i in range(len(times)))
        # A session is read as start, end whatever the order of its columns.
        for name, ts in sorted(zip(names, times, strict=False), key=lambda pair: pair[0] == "end"):
            row[name] = time_cell(ts, iso)
    row["value"] = value_cell(record.value)
    return row


def with_columns(rows: Iterator[dict[str, Any]]) -> tuple[Iterator[dict[str, Any]], Sequence[str]]:
    """Return the rows of one store with their columns, which its first row tells: a CSV file has no empty ones."""
    first = next(rows, None)
    if first is None:
        return rows, ("key", "value")
    return chain((first,), rows), [name for name in RECORD_COLUMNS if name in first]
