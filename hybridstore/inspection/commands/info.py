"""The command `info`: an overview of a state."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from typing import Any

from ...markup import Labelled
from ...reading.store_view import RecordCount
from .. import options as o
from ..look import Look
from ..rows import FACT_NAMES, STORE_COLUMNS, count_cell, facts_of, parameters_text, store_rows

_COLUMNS = ("shard", "path", "version", "committed", "digest", "checkpoint", "tail_versions", "tail_records")


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.looking(parser, at=True, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show an overview: version, checkpoint, changelog behind the checkpoint, how the last writer stopped, and the
    stores.
    """
    out, newest = look.out, look.at is None
    if out.form == "table" and look.several:
        _operators(look)
    elif out.form == "table":
        for view in look.views():
            out.facts(facts_of(view, look.iso, newest=newest), FACT_NAMES)
            out.rows(store_rows(view, look.iso), STORE_COLUMNS)
            if view.settings:
                settings = ({"setting": name, "value": value} for name, value in view.settings.items())
                out.rows(settings, ["setting", "value"])
    else:
        rows = (
            {
                **facts_of(view, look.iso, newest=newest),
                "settings": view.settings,
                "stores": list(store_rows(view, look.iso)),
            }
            for view in look.views()
        )
        out.rows(rows, _COLUMNS)
    return look.finish()


def _operators(look: Look) -> None:
    views = list(look.views())
    look.out.rows(
        (
            {
                "shard": view.place.label,
                "version": view.seen,
                "checkpoint": None if view.checkpoint is None else view.checkpoint.version,
                "since": view.tail.commits,
                "records": count_cell(summed(store.counted for store in view.stores.values())),
                "committed": look.time(view.wall_ms),
                "digest": Labelled(view.digest.hex()[:8], view.digest.hex()),
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
                    "records": RecordCount(0, True),
                    "parameters": parameters_text(store.parameters),
                },
            )
            total["records"] = summed([total["records"], store.counted])
    rows = ({**total, "records": count_cell(total["records"])} for total in totals.values())
    operators = ["operator"] if any(view.place.operator for view in views) else []
    look.out.rows(rows, [*operators, "store", "kind", "records", "parameters"])


def summed(counts: Iterable[RecordCount]) -> RecordCount:
    """Return the sum of numbers of records, which is exact if all are."""
    counts = list(counts)
    return RecordCount(sum(count.records for count in counts), all(count.exact for count in counts))
