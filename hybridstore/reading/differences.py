"""Differences: which records differ between two views of a store.

Blocks with equal hashes are skipped unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from recovery.block import BlockEntry

from ..stores.kinds import KINDS, Row
from .scan import written
from .store_view import StoreView


class RecordDifference(NamedTuple):
    """One record that differs: `added`, `removed` or `changed`, and its value on both sides (lists where a slot
    holds several).

    >>> with hs.open("state") as state:
    ...     for name in ("ann", "bob"):
    ...         state.key_value("users")[name] = 1
    ...         version = state.commit()
    >>> (difference,) = hs.inspect("state", at=1).diff(hs.inspect("state"))["users"]
    >>> difference.change, difference.key, difference.old, difference.new
    ('added', 'bob', None, 1)
    """

    change: str
    key: Any
    times: tuple[int, ...]
    old: Any
    new: Any


def _unread(mine: StoreView, other: StoreView) -> set[int]:
    """Return ids of blocks of `mine` that `other` has too, with nothing written over them on either side. O(blocks)."""

    def name(entry: BlockEntry) -> tuple[Any, ...]:
        hashes = tuple(place.hash for place in entry.extents)
        return entry.bucket, hashes, entry.first, entry.last, entry.low, entry.high

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


def _slots(rows: list[Row]) -> dict[tuple[int, ...], list[Any]]:
    slots: dict[tuple[int, ...], list[Any]] = {}
    for row in rows:
        slots.setdefault(row.times, []).append(row.value)
    return slots


def _of_keys(old: Iterator[Row], new: Iterator[Row]) -> Iterator[RecordDifference]:
    """Yield the differences between rows by key, key by key."""
    old_keys, new_keys = (((key, list(rows)) for key, rows in groupby(side, attrgetter("key"))) for side in (old, new))
    mine, other = next(old_keys, None), next(new_keys, None)
    while mine is not None or other is not None:
        old_key = mine if other is None or (mine is not None and mine[0] <= other[0]) else None
        new_key = other if mine is None or (other is not None and other[0] <= mine[0]) else None
        first = old_key or new_key
        assert first is not None
        before, after = _slots(old_key[1] if old_key else []), _slots(new_key[1] if new_key else [])
        for times in before.keys() | after.keys():
            yield from _differ(first[0], times, before.get(times), after.get(times))
        mine = next(old_keys, None) if old_key else mine
        other = next(new_keys, None) if new_key else other


def compare(old: StoreView, new: StoreView) -> Iterator[RecordDifference]:
    """Yield the differences between two views of a store, in the store's order. O(blocks that differ).

    Memory: a block, the rows of a key, and for a store by time the differences in one bucket; of a suppression buffer
    all differences. Where the sides have buckets of two lengths, as before and after a change of the retention, a block
    of each bucket and all differences.
    """
    skip_old, skip_new = _unread(old, new), _unread(new, old)
    kind = KINDS[old.kind]
    if kind.one_per_key:
        of_keys = _merge(old.of_buckets({0}, skip_old), new.of_buckets({0}, skip_new))
        yield from of_keys if kind.order == "key" else sorted(of_keys, key=_by_time)
        return
    buckets = {entry.bucket for entry in old.entries if entry.block not in skip_old} | old.changed.keys()
    buckets |= {entry.bucket for entry in new.entries if entry.block not in skip_new} | new.changed.keys()
    alike = old.bucket_ms == new.bucket_ms
    for group in [{bucket} for bucket in sorted(buckets)] if alike else [buckets]:
        differences = _of_keys(old.of_buckets(group, skip_old), new.of_buckets(group, skip_new))
        yield from sorted(differences, key=_by_time)


def _by_time(difference: RecordDifference) -> tuple[Any, ...]:
    return difference.times, difference.key


def _differ(
    key: Any, times: tuple[int, ...], old: list[Any] | None, new: list[Any] | None
) -> Iterator[RecordDifference]:
    def only_value(values: list[Any] | None) -> Any:
        return values[0] if values is not None and len(values) == 1 else values

    if old is None:
        yield RecordDifference("added", key, times, None, only_value(new))
    elif new is None:
        yield RecordDifference("removed", key, times, only_value(old), None)
    elif not same(old, new):
        yield RecordDifference("changed", key, times, only_value(old), only_value(new))


def same(old: Any, new: Any) -> bool:
    """Return whether two values are equal, with the same types: 1, 1.0 and True differ here, and a value that is
    not equal to itself does not.
    """
    if type(old) is not type(new):
        return False
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(same, old, new))
    if type(old) is dict:
        return old.keys() == new.keys() and all(same(value, new[key]) for key, value in old.items())
    return bool(old == new) or (old != old and new != new)


def _merge(old: Iterator[Row], new: Iterator[Row]) -> Iterator[RecordDifference]:
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before.key < after.key):
            assert before is not None
            yield RecordDifference("removed", before.key, before.times, before.value, None)
            before = next(old, None)
        elif before is None or after.key < before.key:
            yield RecordDifference("added", after.key, after.times, None, after.value)
            after = next(new, None)
        else:
            if before.times != after.times or not same(before.value, after.value):
                yield RecordDifference("changed", after.key, after.times, before.value, after.value)
            before, after = next(old, None), next(new, None)
