"""Cold blocks: blocks of a checkpoint whose records are not in a store's maps yet.

    in the checkpoint ─▶ ColdBlock ────────────── touched, or warmed ──────────────▶ in `runs`
                            └── read in (`lazy=False`) ─▶ DecodedBlock ── the same ──▶

A cold block is read, checked and decoded when it is loaded; a decoded one is in memory as its sorted keys and values, and
only its place in the maps is still to come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from recovery.block import BlockEntry, Columns


class ColdBlock:
    """A block that is still only in the checkpoint."""

    __slots__ = ("entry", "load")

    def __init__(self, entry: BlockEntry, load: Callable[[int], Columns]) -> None:
        self.entry = entry
        self.load = load


class DecodedBlock(ColdBlock):
    """A block that is in memory, checked and decoded, but whose records are not in the maps yet."""

    __slots__ = ()

    def __init__(self, entry: BlockEntry, columns: Columns) -> None:
        super().__init__(entry, lambda _: columns)


def covering(blocks: list[ColdBlock], key: Any) -> int:
    """Return the index of the block whose key range holds `key`, or -1. `blocks` are in key order. O(log blocks)."""
    i = bisect_right(blocks, key, key=_first_key) - 1
    return i if i >= 0 and key <= blocks[i].entry.last else -1


def _first_key(block: ColdBlock) -> Any:
    return block.entry.first
