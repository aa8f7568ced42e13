"""Compaction: which packs the next checkpoint rewrites, so that packs are few and most of their bytes are in use.

    sparse   as long as less than half of the bytes of all packs is in use, those with the smallest share in use
    small    beyond 112 packs, 28 with the least in use of about one size, or fewer that have the bytes of a large pack

Of sparse packs a checkpoint copies up to as many bytes as it has packed, or a 64th of the state: commits wait for one
that copies more. So the last one may be copied in part, and the rest by the next checkpoints, as long as two fifths of
all bytes are in use. A sparse pack frees at least twice the bytes that are copied of it, so garbage does not grow for
long.

A pack of 1 MiB and a 64th of the state is large, since not many more than 64 of those are possible: a checkpoint that
changes much of the state is written once. As long as half of that is in use, a pack is never merged. Beside any number
of large packs 48 small ones wait, and more while a state has no more than 112 packs. A small pack waits for long, and
meanwhile most of its layers become part of newer ones; what lives is written again once or twice. Small packs are
merged until they have become a large one. So a checkpoint copies less than two large packs of them, and what it has
copied is not merged again before the state has grown.

Under a limit of memory the writer cuts packs off at `pack_bytes`. A pack with half of that in use is never merged
either, however small beside the state: else each larger checkpoint would merge all packs of the state, and cut them off
again. So a state of n bytes has some 2 * n / `pack_bytes` packs more: a few hundred, since packs are cut off at a 256th
of the state if that is more. Before Python 3.13 each is an open file of every reader (`mapping`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from .block import BLOCK_BYTES, BLOCK_RECORDS, BlockEntry
from .directory import PAGE_LINES, PageEntry
from .pack import PACK_BYTES, PackRecord

# Packs are copied that have more than so many times the bytes in use, down to the second at once.
SPARSE_SHARE: Final = 2
MOST_SPARSE_SHARE: Final = 2.5
LARGE_SHARE: Final = 64
# Packs are cut off at no less than one of so many of the bytes of a state.
CUT_SHARE: Final = 256
# Beside what changed a checkpoint writes so many times that, or so many large packs.
_ROOM: Final = 10
_LARGE_ROOM: Final = 2


class Sizes(NamedTuple):
    """Bounds of the parts of a checkpoint: records of a block, lines of a page, how many packs a state has before small
    ones are merged, and the bytes from which on a pack is large in a small state.
    """

    block_records: int = BLOCK_RECORDS
    page_lines: int = PAGE_LINES
    most_packs: int = 112
    large_bytes: int = 1 << 20

    @property
    def few_lines(self) -> int:
        """A page that is written again takes in a neighbour of fewer lines, so that pages do not shrink over time."""
        return max(2, self.page_lines // 4)


SIZES: Final = Sizes()

# Part of a store's directory during planning: a page that stays as it is, or lines.
Item: TypeAlias = PageEntry | list[BlockEntry]


def size_class(size: int) -> int:
    """Return the size class of so many bytes, at least 1: one more for each factor of 8. O(1)."""
    return (size.bit_length() - 1) // 3


def live_bytes(items: Iterable[Item]) -> Counter[int]:
    """Return how many bytes of each pack are referred to. O(pages + lines)."""
    live: Counter[int] = Counter()
    for item in items:
        if isinstance(item, PageEntry):
            for place in item.extents:
                live[place.pack] += place.size
            for number, size in item.uses():
                live[number] += size
        else:
            for line in item:
                for place in line.extents:
                    live[place.pack] += place.size
    return live


def bounded(pack_bytes: int | None, state: int) -> int | None:
    """Return where packs of a state of so many bytes are cut off, under a limit of memory at `pack_bytes` or beyond
    (None: no limit). O(1).
    """
    return None if pack_bytes is None else max(pack_bytes, min(PACK_BYTES, state // CUT_SHARE))


def large_bytes(bounds: Sizes, state: int, pack_bytes: int | None = None) -> int:
    """Return from how many bytes on a pack of a state of so many is large, where packs are cut off at `pack_bytes`
    (None: only large ones are). O(1).
    """
    large = max(bounds.large_bytes, state // LARGE_SHARE)
    return large if pack_bytes is None else min(large, pack_bytes)


def first_cut(bounds: Sizes, state: int) -> int:
    """Return where packs of a new state of about so many bytes are cut off, so that they are large, but not by much.
    O(1).
    """
    return max(4 * bounds.large_bytes, state // LARGE_SHARE) + BLOCK_BYTES


class RoomToWrite:
    """How many bytes a checkpoint writes beside what changed, in blocks that are written anew and in copies: what is
    beyond that waits for the next checkpoints, since commits wait for a long one. Two packs of `large` bytes fit in,
    so that what lives for long is in large packs at once, and small packs become one that is large.
    """

    def __init__(self, large: int) -> None:
        self.large = large
        self._changed = self._anew = 0

    def room(self, changed: int, anew: int) -> int:
        """Return how many further bytes may be written, where a store has changed and written anew so many. O(1)."""
        return max(_LARGE_ROOM * self.large, _ROOM * (self._changed + changed)) - self._anew - anew

    def add(self, changed: int, anew: int) -> int:
        """Count the bytes of a store, and return how many further ones may be written. O(1)."""
        self._changed += changed
        self._anew += anew
        return self.room(0, 0)


class Rewrites(NamedTuple):
    """The numbers of the packs whose live blocks and pages are to be written again, and of one of which only so many
    bytes (0: of no pack). `beside`: so many bytes of other packs may be written again where layers become one.
    """

    packs: set[int]
    partly: int = 0
    room: int = 0
    beside: int = PACK_BYTES


def packs_to_rewrite(
    packs: Sequence[PackRecord],
    items: Iterable[Item],
    packed: int,
    bounds: Sizes,
    pack_bytes: int | None = None,
    most: int = PACK_BYTES,
) -> Rewrites:
    """Return what a checkpoint that has packed so many bytes rewrites.

    `pack_bytes`: where packs are cut off (None: only large ones are). `most`: how many bytes a checkpoint may copy.
    O(pages + lines + packs log packs).
    """
    live = live_bytes(items)
    total = live.total()
    named = sorted((live[pack.number] / pack.size, pack) for pack in packs if live[pack.number])
    chosen: set[int] = set()
    partly, size = 0, sum(pack.size for _, pack in named)
    room = max(0, min(max(packed, total // LARGE_SHARE), most))
    for _, pack in named:
        if size <= SPARSE_SHARE * total:
            break
        if live[pack.number] > room and size <= MOST_SPARSE_SHARE * total:
            partly = pack.number
            break
        chosen.add(pack.number)
        size -= pack.size - live[pack.number]
        room -= live[pack.number]
    large = large_bytes(bounds, total, pack_bytes)
    small = sorted(
        (live[pack.number], pack.number)
        for _, pack in named
        if pack.number not in chosen and pack.number != partly and 2 * live[pack.number] < large
    )
    batch = bounds.most_packs // 4
    others = len(named) - len(chosen) - len(small)
    more = 1 + len(small) - max(bounds.most_packs - others, bounds.most_packs * 3 // 7)
    copied = sum(live[number] for number in chosen)
    if more > 0 and (more > batch // 2 or 2 * (most - copied) >= large):
        # a pack of little more than half of the bytes of a large one is large, too
        target = min(large, max(large * 9 // 16, (most - copied) * 3 // 4))
        chosen.update(_merged(small, more + batch, target))
    return Rewrites(chosen, partly, room, max(0, most - sum(live[number] for number in chosen)))


def _merged(small: Sequence[tuple[int, int]], most: int, large: int) -> list[int]:
    """Return the numbers of up to `most` of the packs (bytes in use, number), in order of bytes, that become a pack of
    `large` bytes, or a smaller one: the first neighbours of which none has more than half of the bytes of all, since a
    pack would be copied again and again for the sake of tiny ones. O(packs * most).
    """
    for start in range(len(small) - 1):
        size, end = 0, start
        while end < len(small) and end < start + most and size < large:
            size += small[end][0]
            end += 1
        if 2 * small[end - 1][0] <= size or size >= large:
            return [number for _, number in small[start:end]]
    return [number for _, number in small[:most]]
