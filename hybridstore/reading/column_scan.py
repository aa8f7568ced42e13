"""Column scan: the records of a scan by column, block after block, for tables: no object for a row.

A block is merged with the changes of its keys, and of the keys between it and the block before, so the pieces of a
bucket are in the order of keys; those of a bucket of a store ordered by time are joined and sorted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, TypeAlias, overload

from recovery.block import BlockEntry, Columns, composed, layer_of
from recovery.block import merge as merged
from recovery.columns import joined

from ..stores.kinds import Row
from .scan import NOTHING, Scan, outside
from .selection import EVERYTHING, Selection
from .tables import Piece, laid_piece, piece_of

# Gives the records of a block, with changes over them (None: no changes); None if they have to be decoded.
_Whole: TypeAlias = Callable[[BlockEntry, Columns | None], Piece | None]


class ColumnScan(Scan):
    """A scan that also gives its records by column."""

    def by_column(self, selection: Selection = EVERYTHING) -> Iterator[Piece]:
        """Yield the records of `records` by column, several at a time, in the order of `records`, never in the reverse.

        O(blocks touched), at C speed where no record of a block is left out.
        """
        for bucket, entries in self.buckets(reverse=False):
            if self._kind.order == "key":
                yield from (piece for piece in self._pieces_by_key(bucket, entries, selection) if len(piece[0]))
            else:
                yield _by_time(list(self._pieces_by_key(bucket, entries, selection)), len(self.columns))

    def pieces(
        self, bucket: int, entries: list[BlockEntry], selection: Selection, reverse: bool
    ) -> tuple[Iterator[Iterator[Row]], list[Iterator[Row]] | None]:
        """See `Scan.pieces`."""
        change = self.changed.get(bucket)
        if change is None or not change.columns.froms or self.capture.combine is not None:
            return super().pieces(bucket, entries, selection, reverse)
        blocks: Iterable[Columns] = self._blocks_by_key(bucket, entries, selection)
        if reverse:
            blocks = reversed(list(blocks))
        return (self._rows(columns, selection, set(), reverse) for columns in blocks), None

    def _pieces_by_key(self, bucket: int, entries: list[BlockEntry], selection: Selection) -> Iterator[Piece]:
        """Yield the selected records of a bucket, by key."""
        whole = self._piece if selection.everything and self._kind.order == "key" else None
        for block in self._blocks_by_key(bucket, entries, selection, whole):
            yield block if isinstance(block, tuple) else self._selected(block, selection)

    def _piece(self, entry: BlockEntry, change: Columns | None) -> Piece | None:
        """Return the records of a block with its layers and a change over them, most of them not decoded; None for a
        block that has to be decoded.
        """
        if 0 <= entry.low <= self.expired_through:
            return None
        assert self._checkpoint is not None
        try:
            block = self._checkpoint.packed(self.number, entry)
            piece = None if block is None else piece_of(block)
            layers = [self._checkpoint.layer(self.number, entry, place) for place in entry.layers]
            if change is not None:
                layers.append(change)
            return laid_piece(piece, composed(layers)) if layers and piece is not None else piece
        except Exception:  # whatever is wrong is a fault when the block is decoded
            return None

    @overload
    def _blocks_by_key(
        self, bucket: int, entries: list[BlockEntry], selection: Selection, whole: None = None
    ) -> Iterator[Columns]: ...
    @overload
    def _blocks_by_key(
        self, bucket: int, entries: list[BlockEntry], selection: Selection, whole: _Whole | None
    ) -> Iterator[Columns | Piece]: ...
    def _blocks_by_key(
        self, bucket: int, entries: list[BlockEntry], selection: Selection, whole: _Whole | None = None
    ) -> Iterator[Columns | Piece]:
        """Yield the blocks of a bucket, by key, each with the changes of its keys and of those before them, as `whole`
        returns it, or decoded.
        """
        change = self.changed.get(bucket)
        new, removed, over = NOTHING, list[Any](), None
        if change is not None:
            new, removed, over = change.columns, sorted(change.removed), change.over
            if over:
                covered = [(entry.first, entry.last) for entry in entries]
                beside = self._laid(NOTHING, outside(over, covered))
                new = joined((new, beside)).in_order() if beside else new
        start = 0
        for entry in entries:
            end = bisect_right(new.keys, entry.last, start)
            part, start = new.cut(start, end), end
            if not selection.touches(entry.first, entry.last):
                yield part
                continue
            hidden = set(removed[bisect_left(removed, entry.first) : bisect_right(removed, entry.last)])
            hidden.difference_update(part.keys)
            if whole is not None and (over is None or not over.between(entry.first, entry.last).keys):
                piece = whole(entry, layer_of(part, hidden) if part.keys or hidden else None)
                if piece is not None:
                    yield piece
                    continue
            block = self._current(entry, selection, over)
            yield merged(block, part, hidden) if part.keys or hidden else block
        yield new.cut(start, len(new.keys))

    def _selected(self, columns: Columns, selection: Selection) -> Piece:
        columns = columns.between(selection.key_from, selection.key_to)
        keys, ints, values = columns.keys, columns.ints, columns.values
        if columns.counts is not None:
            keys = list(chain.from_iterable(map(repeat, keys, columns.counts)))
        expired = self.expired_through if ints else -1
        if expired < 0 and selection.everything:
            return keys, ints, values
        times: Iterable[tuple[int, ...]] = zip(*ints, strict=True) if ints else repeat((), len(values))
        taken = [
            place
            for place, (key, at) in enumerate(zip(keys, times, strict=True))
            if not (at and at[0] <= expired) and selection.takes(key) and selection.within(at)
        ]
        return (keys, ints, values) if len(taken) == len(keys) else _at(taken, keys, ints, values)


def _at(places: list[int], keys: list[Any], ints: Sequence[array[int]], values: list[Any]) -> Piece:
    """Return the records at these places."""
    return (
        list(map(keys.__getitem__, places)),
        [array("q", map(column.__getitem__, places)) for column in ints],
        list(map(values.__getitem__, places)),
    )


def _by_time(pieces: list[Piece], times: int) -> Piece:
    """Return the records of pieces, which are by key, in the order of `time_order`."""
    keys = [key for piece in pieces for key in piece[0]]
    ints = [array("q") for _ in range(times)]
    for piece in pieces:
        for column, more in zip(ints, piece[1], strict=False):
            column += more
    values = [value for piece in pieces for value in piece[2]]
    if times > 1:
        order = sorted(range(len(keys)), key=lambda place: (ints[0][place], keys[place], -ints[-1][place]))
    else:  # records of a time are by key already
        order = sorted(range(len(keys)), key=ints[0].__getitem__)
    return _at(order, keys, ints, values)
