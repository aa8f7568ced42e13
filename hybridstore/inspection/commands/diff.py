"""The command `diff`: what differs between two versions, times or directories. Equal blocks are passed over unread, by their hash."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from recovery.block import BlockEntry

from ...stores.kinds import KINDS
from .. import options as o
from ..look import Look
from ..show.output import key_cell, time_cell, value_cell
from ..view.reader import View
from ..view.store_view import Record, StoreView, written


class Difference(NamedTuple):
    """One record that differs: `added`, `removed` or `changed`, and its value on both sides (lists where a slot holds several)."""

    change: str
    key: Any
    times: tuple[int, ...]
    old: Any
    new: Any


def _unread(mine: StoreView, other: StoreView) -> set[int]:
    """Return ids of blocks of `mine` that `other` has too, with nothing written over them on either side. O(blocks)."""

    def name(entry: BlockEntry) -> tuple[Any, ...]:
        return entry.bucket, entry.hash, entry.first, entry.last, entry.low, entry.high

    def touched(store: StoreView, entry: BlockEntry) -> bool:
        change = store.changed.get(entry.bucket)
        if change is None:
            return False
        keys = (*(key for columns in written(change) for key in columns.keys), *change.removed)
        return any(entry.first <= key <= entry.last for key in keys)

    theirs = {name(entry): entry for entry in other.entries}
    expired = max(mine.expired_through, other.expired_through)
    return {
        entry.block
        for entry in mine.entries
        if (twin := theirs.get(name(entry))) is not None
        and not 0 <= entry.low <= expired
        and not touched(mine, entry)
        and not touched(other, twin)
    }


def _slots(rows: list[Record]) -> dict[tuple[int, ...], list[Any]]:
    slots: dict[tuple[int, ...], list[Any]] = {}
    for row in rows:
        slots.setdefault(row.times, []).append(row.value)
    return slots


def _of_keys(old: Iterator[Record], new: Iterator[Record]) -> Iterator[Difference]:
    """Yield what differs between rows by key, key by key."""
    left, right = (((key, list(rows)) for key, rows in groupby(side, attrgetter("key"))) for side in (old, new))
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        one = mine if other is None or (mine is not None and mine[0] <= other[0]) else None
        two = other if mine is None or (other is not None and other[0] <= mine[0]) else None
        first = one or two
        assert first is not None
        before, after = _slots(one[1] if one else []), _slots(two[1] if two else [])
        for times in before.keys() | after.keys():
            yield from _differ(first[0], times, before.get(times), after.get(times))
        mine = next(left, None) if one else mine
        other = next(right, None) if two else other


def compare(old: StoreView, new: StoreView) -> Iterator[Difference]:
    """Yield what differs between two views of a store, in the store's order. O(blocks that differ).

    Memory: a block, the rows of a key, and for a store by time what differs in one bucket.
    """
    skip_old, skip_new = _unread(old, new), _unread(new, old)
    kind = KINDS[old.kind]
    if kind.one_per_key and kind.order == "key":
        yield from _merge(old.unordered(0, skip_old), new.unordered(0, skip_new))
        return
    buckets = {entry.bucket for entry in old.entries if entry.block not in skip_old} | old.changed.keys()
    buckets |= {entry.bucket for entry in new.entries if entry.block not in skip_new} | new.changed.keys()
    for bucket in sorted(buckets):
        found = _of_keys(old.unordered(bucket, skip_old), new.unordered(bucket, skip_new))
        yield from sorted(found, key=lambda one: (one.times, one.key))


def _differ(key: Any, times: tuple[int, ...], old: list[Any] | None, new: list[Any] | None) -> Iterator[Difference]:
    def one(values: list[Any] | None) -> Any:
        return values[0] if values is not None and len(values) == 1 else values

    if old is None:
        yield Difference("added", key, times, None, one(new))
    elif new is None:
        yield Difference("removed", key, times, one(old), None)
    elif not _same(old, new):
        yield Difference("changed", key, times, one(old), one(new))


def _same(old: Any, new: Any) -> bool:
    """Equal with the same types: 1, 1.0 and True differ here, and a value that is not equal to itself does not."""
    if type(old) is not type(new):
        return False
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if type(old) is dict:
        return old.keys() == new.keys() and all(_same(value, new[key]) for key, value in old.items())
    return bool(old == new) or (old != old and new != new)


def _merge(old: Iterator[Record], new: Iterator[Record]) -> Iterator[Difference]:
    left, right = next(old, None), next(new, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.key < right.key):
            assert left is not None
            yield Difference("removed", left.key, left.times, left.value, None)
            left = next(old, None)
        elif left is None or right.key < left.key:
            yield Difference("added", right.key, right.times, None, right.value)
            right = next(new, None)
        else:
            if left.times != right.times or not _same(left.value, right.value):
                yield Difference("changed", right.key, right.times, left.value, right.value)
            left, right = next(old, None), next(new, None)


def _side(text: str, other: Path | None) -> tuple[Path, str | None]:
    """Split `PATH@VERSION|TIME`; a bare `@VERSION` takes the other side's path."""
    whole = Path(text)
    if whole.exists():
        return whole, None
    path, mark, at = text.rpartition("@")
    if not mark:
        return whole, None
    if path:
        return Path(path), at
    if other is None:
        raise o.UsageError(f"{text!r}: the first side needs a path, such as state/{text}")
    return other, at


def arguments(parser: ArgumentParser) -> None:
    """Declare what `diff` takes."""
    parser.add_argument("path", metavar="A", help="PATH, or PATH@VERSION or PATH@TIME.")
    parser.add_argument("other", metavar="B", help="The same, or only @VERSION or @TIME.")
    parser.add_argument("--store", help="Only this store.")
    parser.add_argument("--summary", action="store_true", help="Only how many records differ, per store.")
    o.limit(parser)
    o.looking(parser, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show which records differ between A and B. Exit code 0 when none does, 1 when some do.

    Settings and parameters of stores count too. Blocks that both sides hold are not read.
    """
    path, at = _side(str(look.path), None)
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
    if any([side.finish() for side in sides]):  # a list: both name their faults
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
    if old is not None and new is not None and old.digest == new.digest and old.store_id == new.store_id:
        return
    stores_old, stores_new = ({} if view is None else view.stores for view in (old, new))
    if given.store is None:
        settings_old, settings_new = ({} if view is None else view.settings for view in (old, new))
        for name in sorted(settings_old.keys() | settings_new.keys()):
            if not _same(settings_old.get(name), settings_new.get(name)) and not given.summary:
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
    found = compare(old, new)
    if summary:
        counts = Counter(difference.change for difference in found)
        if counts:
            yield {"store": name} | {change: counts[change] for change in ("added", "removed", "changed")}
        return
    for difference in found:
        row: dict[str, Any] = {"change": difference.change, "store": name, "key": key_cell(difference.key)}
        for column, ts in sorted(zip(new.columns, difference.times, strict=False), key=lambda pair: pair[0] == "end"):
            row[column] = time_cell(ts, iso)
        yield row | _values(difference.old, difference.new)


def _values(old: Any, new: Any) -> dict[str, Any]:
    # No stored value is None, so None says that there is none on that side (a buffered tombstone aside).
    return {name: value_cell(value) for name, value in (("old", old), ("new", new)) if value is not None}
