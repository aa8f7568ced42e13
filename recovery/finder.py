"""Finder: says of the keys of a key-value store where their records are, so that a read searches no blocks and layers.

    writer process    enters what each checkpoint has written              (`FinderWriter`, in `finder_writer`)
    owner             maps the same file, and looks for a key              (`Finder`)

A table of hashes with free places, in files that the owner maps, each with the hashes that begin with some bits: two
u64 for each place, little-endian hosts only (where the place of a hash is: `place_shift`):

    hash of the key (crc32) << 32 | number of the pack     0: free
    where the slot of the key is in the pack << 32 | how far behind the begin of the block's content that is

Of a store with a ttl, behind all places: the time of the record, a u64 for each; a block has it far from the slot.

The files are no part of the state: they have no names once they are mapped, and nothing in them is believed before the
key and the checksum of its record were compared. What they do not know, and what is damaged, is looked for in the
blocks.

Three rules keep an answer from being an old one. A hash has one place, and the newest record that was written of it is
entered there; where that is a deletion, nothing can be read there. A key that a block had and that was left out when
the block was written anew is entered as one that the blocks know (`BY_BLOCKS`). And the records of a checkpoint are
entered before the checkpoint is used: a reader of an older one finds packs that it does not know, and asks its blocks.
For that reader's sake nothing in a pack of before is entered again.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from changelog.codec import UNPACK_ERRORS, pack, packer, unpack

from .mapping import map_file
from .pack import MappedPack, PackBytes
from .packed_key import EXACT, plain
from .table import SLOT

# What `value_of` returns for a key of which the blocks have to be asked.
UNKNOWN: Final = object()
# The pack of a key of which the blocks have to be asked; packs count from 1.
BY_BLOCKS: Final = 0xFFFFFFFF
ENTRY_BYTES: Final = 16
TIME_BYTES: Final = 8
_TIME: Final = struct.Struct("<Q")
_slot_at: Final = SLOT.unpack_from
# The number of a store, and the files of its finder, by the first bits of a hash: a power of two, of one size. A file
# with the hashes of several such bits is there for each of them.
StoreFiles = tuple[int, Sequence[str]]


def place_shift(bits: int, depth: int) -> int:
    """Return by how many bits a hash is shifted down to give twice its place, in a part of 2**`bits` places for hashes
    that have the first `depth` bits in common.

    The bits behind those count, so that the hashes of a block, which ascend, are entered from the begin of a part to
    its end: at random places nearly each of them misses the caches of the processor twice.
    """
    return max(0, 31 - bits - depth)


class FinderMaps:
    """The files of finders that an owner has mapped, by path. The name of a file is removed when it is mapped, so that
    the file ends with its maps.
    """

    def __init__(self) -> None:
        self._maps: dict[str, memoryview] = {}

    def finders(self, files: Iterable[StoreFiles], packs: Mapping[int, PackBytes]) -> dict[int, Finder]:
        """Return the finders of stores, by number, for the readers of a checkpoint with these packs. A store of which a
        file cannot be mapped is left out. O(packs + files).
        """
        before, self._maps, finders = self._maps, {}, {}
        mapped = {number: each.mapped for number, each in packs.items() if isinstance(each, MappedPack)}
        for store, paths in files:
            with suppress(OSError, ValueError):  # it is not there any more: blocks are searched
                for path in paths:
                    if path not in self._maps:
                        self._maps[path] = before[path] if path in before else _mapped(path)
                finders[store] = Finder([self._maps[path] for path in paths], mapped)
        return finders

    def clear(self) -> None:
        """Forget all files. O(files)."""
        self._maps = {}


def _mapped(path: str) -> memoryview:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = memoryview(map_file(fd, 0)).cast("Q")
    finally:
        os.close(fd)
    os.unlink(path)
    return mapped


class Finder:
    """Where the records of one store are, for the readers of one checkpoint, whose mapped packs are `packs`."""

    __slots__ = ("_mask", "_pack", "_packs", "_parts", "_shift", "_timed")

    def __init__(self, parts: Sequence[memoryview], packs: dict[int, mmap.mmap]) -> None:
        self._packs = packs
        self._pack = packer()  # packing an atom runs no Python code, so nothing can use the packer meanwhile
        words = len(parts[0])
        self._timed = words % 3 == 0  # the places are a power of two
        self._mask = (words // 3 * 2 if self._timed else words) - 2
        self._shift = 33 - len(parts).bit_length()
        bits, repeated = self._mask.bit_length() - 1, Counter(map(id, parts))
        # a part that is there twice has hashes of one bit less in common
        depths = [len(parts).bit_length() - repeated[id(part)].bit_length() for part in parts]
        self._parts = [(part, place_shift(bits, depth)) for part, depth in zip(parts, depths, strict=True)]

    def value_of(self, key: Any) -> Any:
        """Return the value of a key, of a store with a ttl `(value, time)`; UNKNOWN where the blocks have to be asked.
        O(1).
        """
        packed = self._pack(key) if type(key) in EXACT else pack(plain(key))
        hashed = zlib.crc32(packed)
        slots, down = self._parts[hashed >> self._shift]
        mask = self._mask
        at = hashed >> down & mask
        word = slots[at]
        while word >> 32 != hashed:
            if not word:
                return UNKNOWN
            at = at + 2 & mask
            word = slots[at]
        mapped = self._packs.get(word & 0xFFFFFFFF)
        if mapped is None:
            return UNKNOWN
        place = slots[at + 1]
        if slots[at] != word:  # the writer has changed the entry between the two looks
            return UNKNOWN
        start = place >> 32
        try:
            there, key_at, first, end, check = _slot_at(mapped, start)
            start -= place & 0xFFFFFFFF
            key_at += start
            # a slice of a map is bytes: a view of it, and its bytes, are two objects
            if there != hashed or mapped[key_at : key_at + len(packed)] != packed:
                return UNKNOWN
            packed_value = mapped[start + first : start + end]
            checksum = zlib.crc32(packed_value, hashed)
            if self._timed:
                ts = slots[mask + 2 + (at >> 1)]
                return (unpack(packed_value), ts) if zlib.crc32(_TIME.pack(ts), checksum) == check else UNKNOWN
            return unpack(packed_value) if checksum == check else UNKNOWN
        except (*UNPACK_ERRORS, struct.error):
            return UNKNOWN
