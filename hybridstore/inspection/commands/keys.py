"""The command `keys`: the distinct keys of a store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ...reading.tally import tallies
from ...reading.view import View
from .. import options as o
from ..look import Look, selection
from ..show.output import key_cell
from .get import typed


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.store(parser)
    o.keys(parser)
    o.looking(parser, at=True)


def run(look: Look, given: Namespace) -> int:
    """Show the distinct keys of a store in key order, each with its number of records."""
    chosen = selection(given)

    def counted() -> Iterator[tuple[View, Any, int]]:
        for view, store in look.stores(given.store):
            for tally in typed(store, chosen, tallies(store, chosen)):
                yield view, tally.key, tally.records

    def rows() -> Iterator[dict[str, Any]]:
        for i, (view, key, records) in enumerate(counted()):
            if given.limit is not None and i >= given.limit:
                return
            yield {**look.label(view.place), "key": key_cell(key), "records": records}

    out = look.out
    if given.count_only:
        out.rows([{"keys": sum(1 for _ in counted())}], ["keys"])
    else:
        out.rows(rows(), ["key"] if out.form == "raw" else ["shard", "key", "records"])
    return look.finish()
