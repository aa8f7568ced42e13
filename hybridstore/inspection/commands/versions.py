"""The command `versions`: which program wrote which versions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ...reading.places import operator_chain
from .. import options as o
from ..look import Look


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.looking(parser)


def run(look: Look, given: Namespace) -> int:
    """List the programs of a job's state, the oldest first. Each program has the versions that it wrote, its
    differences from the program before, and the consent (`allow=`) that these differences needed.

    Exit code 1 for a state without a topology, because such a state has no programs.
    """
    count = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal count
        operators: set[str] = set()
        for view in look.views():
            chain = operator_chain(view.place)
            label = look.label(view.place)
            if chain is not None:
                # all shards of an operator have one chain
                if view.place.operator in operators:
                    continue
                operators.add(view.place.operator)
                label = {"operator": view.place.operator}
            for row in program_rows(view.settings if chain is None else {"programs": chain}, view.version):
                count += 1
                yield label | row

    out = look.out
    if out.form != "table":
        out.rows(rows(), ("operator", "shard", "program", "versions", "shards", "changes", "consents"))
        return look.finish(o.FINE if count else o.NEGATIVE)
    for row in rows():
        label = "".join(f"{row[name]}: " for name in ("operator", "shard") if name in row)
        shards = f", {row['shards']} shards" if "shards" in row else ""
        out.line(f"{label}program {row['program']}: versions {row['versions']}{shards}")
        for change in row["changes"]:
            out.paragraph(f"    {change}", indent=8)
        for words in row["consents"]:
            out.paragraph(f"    allow={words!r}", indent=8)
    return look.finish(o.FINE if count else o.NEGATIVE)


def program_rows(settings: dict[str, Any], version: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each program. `settings` are those of a state at a version, or have an operator's chain."""
    chain = settings.get("programs")
    if chain is None:
        chain = [{"number": 1, "from": 1, "changes": [], "consents": []}] if "topology" in settings else []
    for i, entry in enumerate(chain):
        later = [other["from"] for other in chain[i + 1 :]]
        last = min([version, *(first - 1 for first in later)])
        row = {
            "program": entry["number"],
            "versions": f"{entry['from']}-{last}" if last >= entry["from"] else "none",
            "changes": list(entry.get("changes", [])),
            "consents": list(entry.get("consents", [])),
        }
        yield row | ({"shards": entry["shards"]} if "shards" in entry else {})
