"""The command `scan`: the records of a store, or of all stores, in the store's order."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ...reading.selection import Selection
from ...reading.store_view import StoreView
from .. import options as o
from ..look import Look, selection
from ..rows import RECORD_COLUMNS, row_of, with_columns
from .get import typed


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.maybe_store(parser)
    parser.add_argument("--keys-only", action="store_true", help="Leave the values out.")
    o.keys(parser)
    o.windows(parser)
    o.looking(parser, at=True, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show the records of a store (or of all stores), in the store's order. Records are read from disk one block at a
    time.
    """
    chosen = selection(given)
    out = look.out
    if given.count_only:
        counts = ((view, store, _count(store, chosen)) for view, store in look.stores(given.store))
        rows = ({**look.label(view.place), "store": store.name, "records": count} for view, store, count in counts)
        out.rows(rows, ["records"] if out.form == "raw" else ["shard", "store", "records"])
        return look.finish()

    def records() -> Iterator[dict[str, Any]]:
        remaining = given.limit
        if remaining == 0:
            return
        for view, store in look.stores(given.store):
            for record in typed(store, chosen, store.records(chosen)):
                row = row_of(view, store, record, iso=look.iso, label=look.several)
                if given.store is None:
                    row = {"store": store.name, **row}
                if given.keys_only:
                    del row["value"]
                yield row
                if remaining is not None:
                    remaining -= 1
                    if remaining == 0:
                        return

    if given.store is None:
        out.rows(records(), ("store", *RECORD_COLUMNS))
    else:
        out.rows(*with_columns(records()))
    return look.finish()


def _count(store: StoreView, chosen: Selection) -> int:
    return store.count(chosen) if chosen.everything else sum(1 for _ in typed(store, chosen, store.unordered(chosen)))
