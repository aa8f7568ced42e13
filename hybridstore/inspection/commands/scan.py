"""The commands that read records: `get`, `keys` and `scan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

from .. import options as o
from ..parameters import Option
from ..session import Inspection
from ..show.output import Out, key_cell, time_cell, value_cell
from ..view.reader import View
from ..view.store_view import Record, Selection, StoreView
from ..view.tally import tallies

T = TypeVar("T")


def row_of(view: View, store: StoreView, record: Record, *, iso: bool, label: bool) -> dict[str, Any]:
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


COLUMN_ORDER = ("shard", "key", "buffered", "ts", "start", "end", "time_0", "time_1", "value")


def get(
    path: o.Where,
    store: o.StoreName,
    key: o.Key,
    window_from: o.WindowFrom = None,
    window_to: o.WindowTo = None,
    at: o.At = None,
    shard: o.Shard = None,
    output: o.Output = None,
    iso: o.Iso = False,
    debug: o.Debug = False,
) -> int:
    """Show the records of one key: its value, or its windows or sessions. Exit code 1 when there are none."""
    inspection = Inspection(path, at=at, shard=shard)
    wanted = o.typed_key(key)
    inspection.route(wanted)
    base = o.selection(None, None, None, window_from, window_to, False)
    chosen = base._replace(key_from=wanted, key_to=wanted)
    out = Out(output)
    found = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal found
        for view, one in inspection.stores(store):
            for record in checked(one, chosen):
                found += 1
                yield row_of(view, one, record, iso=iso, label=inspection.several)

    if out.form == "raw":
        out.rows(rows(), ["value"])
    else:
        out.rows(*_with_columns(rows()))
    return inspection.finish(o.FINE if found else o.NEGATIVE)


def _with_columns(rows: Iterator[dict[str, Any]]) -> tuple[Iterator[dict[str, Any]], Sequence[str]]:
    """Return the rows of one store with their columns, which its first row tells: a CSV file has no empty ones."""
    first = next(rows, None)
    if first is None:
        return rows, ("key", "value")
    return chain((first,), rows), [name for name in COLUMN_ORDER if name in first]


def checked(store: StoreView, chosen: Selection) -> Iterator[Record]:
    """Yield the records of a selection. Raises UsageError when its keys are of another type than the store's."""
    return typed(store, chosen, store.records(chosen))


def typed(store: StoreView, chosen: Selection, rows: Iterator[T]) -> Iterator[T]:
    """Yield what a selection of a store gives. Raises UsageError when its keys are of another type than the store's."""
    try:
        yield from rows
    except TypeError as error:
        bound = next(bound for bound in (*chosen[:3], "") if bound is not None)
        raise o.UsageError(
            f"store {store.name!r}: keys are {store.key_type or 'of another type'}, found {type(bound).__name__} {bound!r} "
            "(keys are typed: text, int:5, float:1.5, hex:00ff, json:[..])"
        ) from error


def scan(
    path: o.Where,
    store: o.MaybeStore = None,
    key_from: o.From = None,
    key_to: o.To = None,
    prefix: o.Prefix = None,
    window_from: o.WindowFrom = None,
    window_to: o.WindowTo = None,
    limit: o.Limit = None,
    reverse: o.Reverse = False,
    count_only: o.CountOnly = False,
    keys_only: Annotated[bool, Option("--keys-only", help="Leave the values out.")] = False,
    at: o.At = None,
    shard: o.Shard = None,
    output: o.Output = None,
    iso: o.Iso = False,
    debug: o.Debug = False,
) -> int:
    """Show the records of a store (or of all stores), in the store's order, as they stream from disk."""
    inspection = Inspection(path, at=at, shard=shard)
    chosen = o.selection(key_from, key_to, prefix, window_from, window_to, reverse)
    out = Out(output)
    if count_only:
        counts = ((view, one, _count(one, chosen)) for view, one in inspection.stores(store))
        rows = (
            ({"shard": view.place.label} if inspection.several else {}) | {"store": one.name, "records": count}
            for view, one, count in counts
        )
        out.rows(rows, ["records"] if out.form == "raw" else ["shard", "store", "records"])
        return inspection.finish(o.FINE)

    def rows_of_all() -> Iterator[dict[str, Any]]:
        left = limit
        if left == 0:
            return
        for view, one in inspection.stores(store):
            for record in checked(one, chosen):
                row = row_of(view, one, record, iso=iso, label=inspection.several)
                if store is None:
                    row = {"store": one.name, **row}
                if keys_only:
                    del row["value"]
                yield row
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    if store is None:
        out.rows(rows_of_all(), ("store", *COLUMN_ORDER))
    else:
        out.rows(*_with_columns(rows_of_all()))
    return inspection.finish(o.FINE)


def _count(store: StoreView, chosen: Selection) -> int:
    return store.count(chosen) if chosen.everything else sum(1 for _ in typed(store, chosen, store.anyhow(chosen)))


def keys(
    path: o.Where,
    store: o.StoreName,
    key_from: o.From = None,
    key_to: o.To = None,
    prefix: o.Prefix = None,
    limit: o.Limit = None,
    reverse: o.Reverse = False,
    count_only: o.CountOnly = False,
    at: o.At = None,
    shard: o.Shard = None,
    output: o.Output = None,
    debug: o.Debug = False,
) -> int:
    """Show the distinct keys of a store, in key order, with how many records each has."""
    inspection = Inspection(path, at=at, shard=shard)
    chosen = o.selection(key_from, key_to, prefix, None, None, reverse)
    out = Out(output)

    def counted() -> Iterator[tuple[View, Any, int]]:
        for view, one in inspection.stores(store):
            for tally in typed(one, chosen, tallies(one, chosen)):
                yield view, tally.key, tally.records

    def rows() -> Iterator[dict[str, Any]]:
        for i, (view, key, records) in enumerate(counted()):
            if limit is not None and i >= limit:
                return
            label = {"shard": view.place.label} if inspection.several else {}
            yield {**label, "key": key_cell(key), "records": records}

    if count_only:
        total = sum(1 for _ in counted())
        out.rows([{"keys": total}], ["keys"])
    else:
        out.rows(rows(), ["key"] if out.form == "raw" else ["shard", "key", "records"])
    return inspection.finish(o.FINE)
