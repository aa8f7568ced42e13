"""Tally: the records of each key, counted in key order, with one block of each bucket in memory.

Every bucket has a few streams of ordered keys: its blocks, and the records beside its blocks. All streams are read in
parallel, up to the smallest of the last keys in memory. The counts of this key and of all smaller keys are complete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from operator import gt, lt
from typing import Any, NamedTuple

from ..stores.kinds import Row
from .selection import EVERYTHING, Selection
from .store_view import StoreView


class Tally(NamedTuple):
    """A key, the number of its records, and the sum of their weights."""

    key: Any
    records: int
    weight: int


class _Stream:
    """Ordered keys, one piece at a time. The columns have the rest of the piece in memory."""

    def __init__(self, pieces: Iterator[Iterator[Row]], weigh: Callable[[Row], int]) -> None:
        self._pieces = pieces
        self._weigh = weigh
        self.keys: list[Any] = []
        self.records: list[int] = []
        self.weights: list[int] = []

    def more(self) -> bool:
        """Read on if nothing is left in memory; False at the end. O(piece)."""
        while not self.keys:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            keys, records, weights, weigh = self.keys, self.records, self.weights, self._weigh
            for row in piece:
                if keys and keys[-1] == row.key:
                    records[-1] += 1
                    weights[-1] += weigh(row)
                else:
                    keys.append(row.key)
                    records.append(1)
                    weights.append(weigh(row))
        return True

    def take(self, beyond: Callable[[Any], bool], tallied: dict[Any, tuple[int, int]]) -> None:
        """Move the keys before the first key that is `beyond` to `tallied`. O(keys)."""
        part = slice(bisect_left(self.keys, True, key=beyond))
        for key, records, weight in zip(self.keys[part], self.records[part], self.weights[part], strict=True):
            other = tallied.get(key)
            tallied[key] = (records, weight) if other is None else (other[0] + records, other[1] + weight)
        del self.keys[part], self.records[part], self.weights[part]


def tallies(
    store: StoreView, selection: Selection = EVERYTHING, weigh: Callable[[Row], int] = lambda record: 0
) -> Iterator[Tally]:
    """Yield each key of a selection with its records, in key order or in the reverse.

    `weigh` is called with every record, in any order.

    O(records log buckets) time. Memory: the keys of one block of each bucket.
    """
    reverse = selection.reverse
    streams: list[_Stream] = []
    for bucket, entries in store.buckets(False):
        old, new = store.pieces(bucket, entries, selection, reverse)
        streams.append(_Stream(old, weigh))
        streams += [_Stream(iter((piece,)), weigh) for piece in new or ()]
    while streams := [stream for stream in streams if stream.more()]:
        tallied: dict[Any, tuple[int, int]] = {}
        lasts = [stream.keys[-1] for stream in streams]
        beyond = partial(gt, max(lasts)) if reverse else partial(lt, min(lasts))
        for stream in streams:
            stream.take(beyond, tallied)
        for key in sorted(tallied, reverse=reverse):
            yield Tally(key, *tallied[key])
