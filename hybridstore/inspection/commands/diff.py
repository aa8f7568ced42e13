"""The command `diff`: the differences between two versions, times or directories."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ...reading.differences import compare, same
from ...reading.store_view import StoreView
from ...reading.view import View
from .. import options as o
from ..look import Look
from ..show.output import key_cell, time_cell, value_cell


def _side(text: str, other: str | None) -> tuple[str, str | None]:
    """Split `PATH@VERSION|TIME`. `@VERSION` without a path has the path of the other side."""
    if Path(text).exists():
        return text, None
    path, mark, at = text.rpartition("@")
    if not mark:
        return text, None
    if path:
        return path, at
    if other is None:
        raise o.UsageError(f"first side: found {text!r}, expected a path (such as state/{text})")
    return other, at


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="A", help="PATH, or PATH@VERSION or PATH@TIME.")
    parser.add_argument("other", metavar="B", help="As A, or @VERSION or @TIME of A's path.")
    parser.add_argument("--store", help="Only this store.")
    parser.add_argument("--summary", action="store_true", help="Only the number of differing records of each store.")
    o.limit(parser)
    o.looking(parser, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show which records differ between A and B. Exit code 0 when no record differs, 1 when records differ.

    Settings and parameters of stores are compared, too. Blocks that both sides share are not read.
    """
    path, at = _side(look.location, None)
    sides = look.beside(path, at), look.beside(*_side(given.other, path))
    several = any(side.several for side in sides)
    limit: int | None = given.limit
    differing = False

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal differing
        for old, new in _pairs(*sides):
            label = {"shard": (new or old).place.label} if several else {}  # type: ignore[union-attr]
            for row in _compare_views(old, new, given, look.iso):
                differing = True
                yield {**label, **row}

    every = rows()
    shown = every if limit is None else islice(every, limit)
    change_columns = ("change", "store", "key", "ts", "start", "end", "old", "new")
    columns = ("store", "added", "removed", "changed") if given.summary else change_columns
    look.out.rows(shown, ("shard", *columns))
    if limit is not None and not differing:
        differing = next(every, None) is not None
    if any([side.finish() for side in sides]):  # a list, so that both sides report their faults
        return o.INCOMPLETE
    return o.NEGATIVE if differing else o.FINE


def _pairs(a: Look, b: Look) -> Iterator[tuple[View | None, View | None]]:
    if not a.several and not b.several:
        yield a.open(a.places[0]), b.open(b.places[0])
        return
    old = {place.label: place for place in a.places}
    new = {place.label: place for place in b.places}
    for label in dict.fromkeys([*old, *new]):
        yield (a.open(old[label]) if label in old else None, b.open(new[label]) if label in new else None)


def _compare_views(old: View | None, new: View | None, given: Namespace, iso: bool) -> Iterator[dict[str, Any]]:
    if old is not None and new is not None and old.digest == new.digest and old.identity == new.identity:
        return
    stores_old, stores_new = ({} if view is None else view.stores for view in (old, new))
    if given.store is None:
        settings_old, settings_new = ({} if view is None else view.settings for view in (old, new))
        for name in sorted(settings_old.keys() | settings_new.keys()):
            if not same(settings_old.get(name), settings_new.get(name)) and not given.summary:
                change = "changed" if name in settings_old and name in settings_new else "added"
                change = "removed" if name not in settings_new else change
                yield {"change": change, "store": "", "key": f"setting {name}"} | _values(
                    settings_old.get(name), settings_new.get(name)
                )
    for name in dict.fromkeys([*stores_old, *stores_new]):
        if given.store not in (None, name):
            continue
        yield from _compare_stores(name, stores_old.get(name), stores_new.get(name), given.summary, iso)


def _compare_stores(
    name: str, old: StoreView | None, new: StoreView | None, summary: bool, iso: bool
) -> Iterator[dict[str, Any]]:
    if old is None or new is None:
        change = "added" if old is None else "removed"
        count = (new or old).count()  # type: ignore[union-attr]
        if summary:
            yield {"store": name, "added": 0, "removed": 0, "changed": 0, change: count}
        else:
            yield {"change": change, "store": name, "key": f"the whole store, {count:,} records"}
        return
    if (old.kind, old.parameters) != (new.kind, new.parameters) and not summary:
        yield {"change": "changed", "store": name, "key": "kind or parameters"} | _values(
            {"kind": old.kind, **old.parameters}, {"kind": new.kind, **new.parameters}
        )
    if old.kind != new.kind:
        return
    differences = compare(old, new)
    if summary:
        counts = Counter(difference.change for difference in differences)
        if counts:
            yield {"store": name} | {change: counts[change] for change in ("added", "removed", "changed")}
        return
    for difference in differences:
        row: dict[str, Any] = {"change": difference.change, "store": name, "key": key_cell(difference.key)}
        for column, ts in sorted(zip(new.columns, difference.times, strict=False), key=lambda pair: pair[0] == "end"):
            row[column] = time_cell(ts, iso)
        yield row | _values(difference.old, difference.new)


def _values(old: Any, new: Any) -> dict[str, Any]:
    # No stored value is None (except a buffered tombstone), so None means that this side has no value.
    return {name: value_cell(value) for name, value in (("old", old), ("new", new)) if value is not None}
