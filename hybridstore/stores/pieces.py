"""Pieces: a scan of a store whose blocks have no room in memory. It merges rows in memory and rows of blocks, a piece
at a time, and nothing that it reads stays.

    by_key      a piece is a block with the rows in memory up to its last key       key-value and sliding stores
    by_place    a piece is the first rows behind the piece before                   the others, which order by time

Blocks are cut by key. So a scan by place looks through all blocks for each piece, but for those that begin behind it.
Where records have one time, their order is that of the keys, and each block is read once. The surprise: between two
pieces nothing counts but the place that was reached, so blocks may be loaded, or keys be taken out of them, meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from .cold_blocks import SPARING, ColdBlock

Row: TypeAlias = tuple[Any, ...]


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
    place: Callable[[Row], tuple[Any, ...]],
    low: int,
    high: int,
    *,
    reverse: bool,
) -> Iterator[list[Row]]:
    """Yield the rows with times from `low` to `high` in order of `place`: their time, their key, and what decides
    between equal ones. Each piece asks for `blocks` and for the rows in `memory` anew, between two times. `rows_of`
    returns the rows of a block that memory does not replace; of equal places these come first. O(rows) a piece.
    """
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
