"""Erase: which blocks and packs of a checkpoint have the records of some keys, live or not, and a block without them.

A pack also has blocks and pages that no directory names any more, and layers that say that a key has no records. So
packs are searched by their footers, and a pack with a trace of a key is not named by the next checkpoint: its other
blocks are copied (`write_checkpoint`). What is searched is read once; only blocks with the bytes of a key are decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from changelog.storage import Storage

from .block import BlockEntry, Columns, merge, unpack_block
from .directory import page_keys
from .pack import PAGE, FooterLine, PackRecord, open_pack, read_footer

# The setting with the entry of each erase, for an auditor.
ERASURES: Final = "erasures"


class Wanted(NamedTuple):
    """What is erased of a store: the keys that `takes` says, and everything with one of `needles` in its bytes is
    looked at (none: everything is). `values`: the values of other keys have them, too, so that each block with a needle
    is written anew.
    """

    takes: Callable[[object], bool]
    needles: tuple[bytes, ...]
    values: bool = False

    def in_block(self, raw: bytes, line: FooterLine, where: str) -> bool:
        """Return whether a block or a page of the store has one of the keys. Raises CorruptCheckpointError.
        O(bytes).
        """
        if self.needles and not any(needle in raw for needle in self.needles):
            return False
        if line.number == PAGE:
            return any(map(self.takes, page_keys(raw, where)))
        return self.values or any(map(self.takes, unpack_block(raw, where).keys))


class Erasure(NamedTuple):
    """The packs with a trace of the keys, the places (pack, offset) of the blocks with it, and what is erased, by the
    number of the store.
    """

    packs: frozenset[int]
    blocks: frozenset[tuple[int, int]]
    stores: Mapping[int, Wanted]

    def touches(self, line: BlockEntry) -> bool:
        """Return whether the block of a line, or a layer over it, has one of the keys. O(layers)."""
        return any((place.pack, place.offset) in self.blocks for place in line.extents)

    def rest(self, store: int, columns: Columns) -> Columns:
        """Return the records of a block without those of the keys. O(records)."""
        removed = set(filter(self.stores[store].takes, columns.keys))
        nothing = Columns([], None, tuple(array("q") for _ in columns.ints), [])
        return merge(columns, nothing, removed) if removed else columns


def find_traces(
    storage: Storage, records: Iterable[PackRecord], stores: Mapping[int, Wanted], others: Wanted
) -> Erasure:
    """Search packs; `others` is what is erased of stores that were dropped. Raises CorruptCheckpointError for a damaged
    pack, OSError. O(bytes of the packs), and decoding what has a needle.
    """
    packs, blocks = set[int](), set[tuple[int, int]]()
    for record in records:
        where = f"{storage.url}/{record.name}"
        opened = open_pack(storage, record)
        for line in read_footer(opened, record.size, where):
            wanted = stores.get(line.store, others)
            if wanted.in_block(bytes(opened.read(line.offset, line.size)), line, f"{where} at byte {line.offset}"):
                packs.add(record.number)
                if line.number != PAGE:
                    blocks.add((record.number, line.offset))
    return Erasure(frozenset(packs), frozenset(blocks), stores)
