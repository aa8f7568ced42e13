"""Columns: records by column, and their algebra: cut, take, join, sort, compare.

`tests/recovery/test_columns.py` states the laws, against plain lists of records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import lt
from typing import Any, Final

from changelog.codec import pack

# The `from` of a key of a layer that replaces all records of before.
WHOLE: Final = -1


@dataclass(slots=True, eq=False)
class Columns:
    """The records of a block, or of a change to one, by column. Keys are unique and sorted in Python's order.

    `froms` of a change has a time for each key (None: `WHOLE` for all): the older records of the key whose first
    integer is at or after it are replaced by those here. Records of a key are in the order of their first integer.
    """

    keys: list[Any]
    counts: list[int] | None
    ints: tuple[array[int], ...]
    values: list[Any]
    froms: list[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def offsets(self) -> Sequence[int]:
        """Return for each key the place of its first record, and the number of records. O(keys) with counts."""
        return range(len(self.keys) + 1) if self.counts is None else list(accumulate(self.counts, initial=0))

    def rows(self) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
        """Yield (key, integers, value) of each record, in order. O(1) for each."""
        keys: Iterable[Any] = self.keys
        if self.counts is not None:
            keys = (key for key, count in zip(self.keys, self.counts, strict=True) for _ in range(count))
        times: Iterable[tuple[int, ...]] = zip(*self.ints, strict=True) if self.ints else repeat((), len(self.values))
        return zip(keys, times, self.values, strict=True)

    def cut(self, first: int, last: int) -> Columns:
        """Return the records of the keys from place `first` to before `last`. O(these), with counts O(keys)."""
        counts = self.counts
        if first == 0 and last == len(self.keys):
            return self
        if counts is None:
            return self._slice(first, last, first, last)
        start = sum(counts[:first])
        return self._slice(first, last, start, start + sum(counts[first:last]))

    def pieces(self, bounds: Iterable[int]) -> Iterator[Columns]:
        """Yield the records between each two of ascending places of keys. O(records), O(keys) before the first."""
        offsets = self.offsets()
        return (self._slice(first, last, offsets[first], offsets[last]) for first, last in pairwise(bounds))

    def _slice(self, first: int, last: int, start: int, end: int) -> Columns:
        return Columns(
            self.keys[first:last],
            without_ones(None if self.counts is None else self.counts[first:last]),
            tuple(column[start:end] for column in self.ints),
            self.values[start:end],
            None if self.froms is None else self.froms[first:last],
        )

    def between(self, key_from: Any, key_to: Any) -> Columns:
        """Return the records of the keys within inclusive bounds (None: open). O(log keys), with counts O(keys)."""
        first = 0 if key_from is None else bisect_left(self.keys, key_from)
        last = len(self.keys) if key_to is None else max(first, bisect_right(self.keys, key_to))
        return self.cut(first, last)

    def rows_by_key(self) -> Callable[[Any], Columns]:
        """Return a function that returns the records of a key, possibly none. O(keys), and O(log keys) for each call,
        where `between` is O(keys) with counts.
        """
        keys, offsets = self.keys, self.offsets()

        def rows_of(key: Any) -> Columns:
            first = bisect_left(keys, key)
            last = first + (first < len(keys) and keys[first] == key)
            return self._slice(first, last, offsets[first], offsets[last])

        return rows_of

    def split(self, limit: int) -> list[Columns]:
        """Return pieces of about `limit` records; a key's records stay together. O(n)."""
        total, keys = len(self), len(self.keys)
        if total <= limit + limit // 2:
            return [self] if total else []
        step = -(-total // -(-total // limit))
        if self.counts is None:
            return list(self.pieces([*range(0, keys, step), keys]))
        offsets, bounds = self.offsets(), [0]
        while (start := bounds[-1]) < keys:
            bounds.append(max(start + 1, bisect_right(offsets, offsets[start] + step) - 1))
        return list(self.pieces(bounds))

    def halves(self) -> list[Columns]:
        """Return two pieces of as many keys, of two keys or more. O(n)."""
        return list(self.pieces((0, len(self.keys) // 2, len(self.keys))))

    def take(self, places: Sequence[int]) -> Columns:
        """Return the records of the keys at these places, in this order. O(records of these keys)."""
        keys, counts = self.keys, self.counts
        if len(places) == len(keys) and all(map(lt, places, islice(places, 1, None))):
            return self
        froms = None if self.froms is None else [self.froms[place] for place in places]
        taken = [keys[place] for place in places]
        rows: Sequence[int] = places
        if counts is not None:
            offsets = self.offsets()
            starts, ends = map(offsets.__getitem__, places), map(offsets[1:].__getitem__, places)
            # no object for each row, which would take more memory than the records
            rows = array("q", chain.from_iterable(map(range, starts, ends)))
            counts = without_ones([counts[place] for place in places])
        ints = tuple(array("q", map(column.__getitem__, rows)) for column in self.ints)
        return Columns(taken, counts, ints, list(map(self.values.__getitem__, rows)), froms)

    def in_order(self) -> Columns:
        """Return the records sorted by key. O(n log n)."""
        return self.take(sorted(range(len(self.keys)), key=self.keys.__getitem__))

    def same_as(self, other: Columns) -> bool:
        """Return whether both have the same records. Packed values count, because nan is not equal to itself. O(n)."""
        return (
            self.keys == other.keys
            and list(self.offsets()) == list(other.offsets())
            and self.ints == other.ints
            and self.froms == other.froms
            and (self.values == other.values or pack(self.values) == pack(other.values))
        )


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the records of several parts, joined in order: their keys may be neither unique nor sorted. O(records)."""
    parts = [part for part in parts if part.keys] or [max(parts, key=lambda part: len(part.ints))]
    if len(parts) == 1:
        return parts[0]
    ints = tuple(array("q") for _ in parts[0].ints)
    for part in parts:
        for column, more in zip(ints, part.ints, strict=True):
            column.extend(more)
    counts = froms = None
    if any(part.counts is not None for part in parts):
        counts = [count for part in parts for count in part.counts or [1] * len(part.keys)]
    if any(part.froms is not None for part in parts):
        froms = [time for part in parts for time in part.froms or [WHOLE] * len(part.keys)]
    keys = list(chain.from_iterable(part.keys for part in parts))
    return Columns(keys, counts, ints, list(chain.from_iterable(part.values for part in parts)), froms)


def rows_of(pieces: Sequence[tuple[Columns, int, int]], width: int) -> tuple[tuple[array[int], ...], list[Any]]:
    """Return `width` columns of integers, and the values, of the records of each piece from one place to before another
    one. O(records), at C speed, and a step for each piece.
    """
    ints = tuple(array("q", b"".join([part.ints[at][first:end] for part, first, end in pieces])) for at in range(width))
    return ints, list(chain.from_iterable([part.values[first:end] for part, first, end in pieces]))


def without_ones(counts: list[int] | None) -> list[int] | None:
    """Return None for counts of one record each."""
    return None if counts is None or counts.count(1) == len(counts) else counts
