"""Pieces: a scan of a store whose blocks have no room in memory. It merges rows in memory and rows of blocks, a piece
at a time, and nothing that it reads stays.

    by_key      a piece is a block with the rows in memory up to its last key       key-value and sliding stores
    by_place    a piece is the first rows behind the piece before                   the others, which order by time

Blocks are cut by key. So a scan by place looks through all blocks for each piece, but for those that begin behind it.
Where records have one time, their order is that of the keys, and each block is read once. Where more blocks overlap
than two pieces have, each is read once, too, and the rows go through a file without a name, in sorted runs: else a
bucket of 81 pieces was read 81 times. The surprise: between two pieces nothing counts but the place that was reached,
so blocks may be loaded, or keys be taken out of them, meanwhile.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from changelog.codec import pack, unpack

from .cold_blocks import SPARING, ColdBlock

Row: TypeAlias = tuple[Any, ...]
Place: TypeAlias = Callable[[Row], tuple[Any, ...]]
# Blocks that overlap are read once if they have more bytes than so many pieces, or than so many of the largest of them.
_OVERLAPPING: Final = 2
# Rows in memory are taken in so many parts, by time, since each row is an object.
_PARTS: Final = 8
# A run in a file is read by so many rows at least, or by those of a piece.
_LEAST_ROWS: Final = 16


def by_key(
    keys: list[Any],
    blocks: Sequence[ColdBlock],
    merged: Callable[[int, int, ColdBlock | None], list[Any]],
    *,
    reverse: bool,
) -> Iterator[list[Any]]:
    """Yield the rows of memory and of `blocks`, both in key order, a block at a time. `keys` are those in memory;
    `merged` returns the rows of those from one index to before another one, and of a block between them, by key.
    """
    # each block has the rows in memory up to its last key; behind the last block rows in memory remain
    edges = [0, *(bisect_right(keys, block.entry.last) for block in blocks), len(keys)]
    for i in reversed(range(len(edges) - 1)) if reverse else range(len(edges) - 1):
        piece = merged(edges[i], edges[i + 1], blocks[i] if i < len(blocks) else None)
        if reverse:
            piece.reverse()
        if piece:
            yield piece


def by_place(
    memory: Callable[[int, int], Iterable[Row]],
    blocks: Callable[[], Iterable[ColdBlock]],
    rows_of: Callable[[ColdBlock, int, int], Iterable[Row]],
    place: Place,
    low: int,
    high: int,
    *,
    reverse: bool,
    folder: Path | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows with times from `low` to `high` in order of `place`: their time, their key, and what decides
    between equal ones. Each piece asks for `blocks` and for the rows in `memory` anew, between two times. `rows_of`
    returns the rows of a block that memory does not replace; of equal places these come first. O(rows) a piece.
    Where many blocks overlap, all is asked for at once, if a `folder` (None: the system's) has room for the rows.
    O(rows log pieces) then.
    """
    overlapping = list(blocks())
    largest = max((block.entry.bytes for block in overlapping), default=0)
    if _most_overlapping(overlapping) > _OVERLAPPING * max(SPARING.piece, largest):
        parts = chain(
            (rows_of(block, low, high) for block in overlapping),
            (memory(first, last) for first, last in _spans(overlapping, low, high)),
        )
        pieces = _through_file(parts, place, overlapping, folder, reverse=reverse)
        if pieces is not None:
            yield from pieces
            return
    del overlapping
    done: tuple[Any, ...] | None = None
    while True:
        remaining = sorted(blocks(), key=_last if reverse else _first, reverse=reverse)
        most = _most(remaining)
        rows: list[Row] = []
        end: tuple[Any, ...] | None = None
        for block in (*remaining, None):
            if block is not None and (_is_done(block, done, reverse) or _is_behind(block, end, reverse)):
                continue
            if reverse:
                first, last = end or (low,), done or (high,)
            else:
                first, last = done or (low,), end or (high,)
            new = memory(first[0], last[0]) if block is None else rows_of(block, first[0], last[0])
            if len(first) > 1:
                new = [row for row in new if (place(row) >= first if reverse else place(row) > first)]
            if len(last) > 1:
                new = [row for row in new if (place(row) < last if reverse else place(row) <= last)]
            rows += new
            if block is not None and len(rows) >= 2 * most:
                # the first of them in order remain, with all that have the place of the last
                rows.sort(key=place)
                if reverse:
                    end = place(rows[-most])
                    del rows[: bisect_left(rows, end, key=place)]
                else:
                    end = place(rows[most - 1])
                    del rows[bisect_right(rows, end, key=place) :]
        rows.sort(key=place)
        if reverse:
            rows.reverse()
        if rows:
            yield rows
        if end is None:
            return
        done = end


def _most(blocks: Sequence[ColdBlock]) -> int:
    """Return about how many rows of these blocks a piece has. O(blocks)."""
    records = sum(block.entry.records for block in blocks)
    return max(1, SPARING.piece * records // max(1, sum(block.entry.bytes for block in blocks)))


def _first(block: ColdBlock) -> tuple[int, Any]:
    """Return a place that none of the block's rows is before."""
    return block.entry.low, block.entry.first


def _last(block: ColdBlock) -> tuple[int, Any]:
    return block.entry.high, block.entry.last


def _is_done(block: ColdBlock, done: tuple[Any, ...] | None, reverse: bool) -> bool:
    """Return whether earlier pieces had all rows of a block."""
    if done is None:
        return False
    return _first(block) > done[:2] if reverse else _last(block) < done[:2]


def _is_behind(block: ColdBlock, end: tuple[Any, ...] | None, reverse: bool) -> bool:
    """Return whether all rows of a block come behind a piece that ends at a place."""
    if end is None:
        return False
    return _last(block) < end[:2] if reverse else _first(block) > end[:2]


def _most_overlapping(blocks: Iterable[ColdBlock]) -> int:
    """Return the most bytes that all blocks with rows on both sides of a place have. O(blocks log blocks)."""
    most = now = 0
    ends: list[tuple[tuple[int, Any], int]] = []
    for block in sorted(blocks, key=_first):
        while ends and ends[0][0] < _first(block):
            now -= heappop(ends)[1]
        heappush(ends, (_last(block), block.entry.bytes))
        now += block.entry.bytes
        most = max(most, now)
    return most


def _spans(blocks: Sequence[ColdBlock], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the times from `low` to `high`, both inclusive, in which rows in memory are taken."""
    first = max(low, min(block.entry.low for block in blocks))
    last = min(high, max(block.entry.high for block in blocks))
    step = max(1, (last - first) // _PARTS)
    cuts = [low, *range(first + step, last, step), high + 1]
    return ((start, end - 1) for start, end in pairwise(cuts))


def _through_file(
    parts: Iterable[Iterable[Row]], place: Place, blocks: Sequence[ColdBlock], folder: Path | None, *, reverse: bool
) -> Iterator[list[Row]] | None:
    """Write rows into a file of `folder` that has no name, in runs that are sorted, and return all of them in order, a
    piece at a time; None, with no row lost, if the file has no room. `parts` are read to the end. O(rows log runs).
    """
    import tempfile  # only here: few scans need it

    most = _most(blocks)
    runs = 1 + sum(block.entry.records for block in blocks) // most
    each = max(min(_LEAST_ROWS, most), most // (2 * runs))
    offsets: list[array[int]] = []
    rows: list[Row] = []
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # the pieces close it
    except OSError:
        return None
    for part in chain(parts, (None,)):
        rows += part or ()
        if len(rows) < most and part is not None:
            continue
        rows.sort(key=place)
        if reverse:
            rows.reverse()
        cuts = array("q", [file.tell()])
        try:
            for start in range(0, len(rows), each):
                file.write(pack(list(map(list, zip(*rows[start : start + each], strict=True)))))
                cuts.append(file.tell())
            file.flush()
        except OSError:
            file.close()
            return None
        rows.clear()
        offsets.append(cuts)
    # of equal places the rows of earlier parts come first, or backwards last
    ordered = offsets[::-1] if reverse else offsets
    merged = merge(*(_run(file.fileno(), cuts) for cuts in ordered), key=place, reverse=reverse)
    return _pieces(file, merged, most)


def _run(fd: int, cuts: Sequence[int]) -> Iterator[Row]:
    """Read the rows of a run that lies between these offsets of a file. Raises OSError."""
    for start, end in pairwise(cuts):
        yield from zip(*unpack(os.pread(fd, end - start, start)), strict=True)


def _pieces(file: Any, rows: Iterator[Row], most: int) -> Iterator[list[Row]]:
    with file:
        while piece := list(islice(rows, most)):
            yield piece
