"""Compaction: which packs the next checkpoint rewrites, so that packs are few and most of their bytes are in use.

    sparse   less than a third of its bytes is still referred to: those bytes go into the new pack
    small    8 packs of a size class (factor 8) become one, unless they have a 64th of the state each

A pack of a 64th of the state is never merged, since there can be no more than 64 of those: a checkpoint that changes
much of the state is written once. Smaller ones are merged once per class, so that a state of n bytes has at most 64 +
8 * log(n) packs, and a byte that lives long is written at most 1 + log(n / 64 / checkpoint) times, in base 8 (`Sizes`).

Under a limit of memory the writer cuts packs off at `pack_bytes`. A pack of half of that is never merged either,
however small beside the state: else each larger checkpoint would merge all packs of the state, and cut them off again.
A pack that is not sparse has a third of its bytes in use, so such a state has some 3 * n / `pack_bytes` packs more: a
few hundred, since packs are cut off at a 256th of the state if that is more. Each is an open file of every reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from .block import BLOCK_RECORDS, BlockEntry
from .directory import PAGE_LINES, PageEntry
from .pack import PACK_BYTES, PackRecord

SPARSE_SHARE: Final = 3
LARGE_SHARE: Final = 64
# Packs are cut off at no less than one of so many of the bytes of a state.
CUT_SHARE: Final = 256


class Sizes(NamedTuple):
    """Bounds of the parts of a checkpoint: records of a block, lines of a page, packs of a size class and the factor
    between classes, and two sizes of packs: packs up to `small_bytes` are one class, packs below `large_bytes` are
    always merged.
    """

    block_records: int = BLOCK_RECORDS
    page_lines: int = PAGE_LINES
    tier: int = 8
    small_bytes: int = 64 << 10
    large_bytes: int = 4 << 20

    @property
    def few_lines(self) -> int:
        """A page that is written again takes in a neighbour of fewer lines, so that pages do not shrink over time."""
        return max(2, self.page_lines // 4)

    def size_class(self, size: int) -> int:
        """Return the class of a pack: 0 up to `small_bytes`, then one more for each factor of `tier`."""
        number = 0
        while size > self.small_bytes:
            size //= self.tier
            number += 1
        return number


SIZES: Final = Sizes()

# Part of a store's directory during planning: a page that stays as it is, or lines.
Item: TypeAlias = PageEntry | list[BlockEntry]


def live_bytes(items: Iterable[Item]) -> Counter[int]:
    """Return how many bytes of each pack are referred to. O(pages + lines)."""
    live: Counter[int] = Counter()
    for item in items:
        if isinstance(item, PageEntry):
            live[item.pack] += item.size
            for number, size in item.uses():
                live[number] += size
        else:
            for line in item:
                for place in line.places:
                    live[place.pack] += place.size
    return live


def bounded(pack_bytes: int | None, state: int) -> int | None:
    """Return where packs of a state of so many bytes are cut off, under a limit of memory at `pack_bytes` or beyond
    (None: no limit). O(1).
    """
    return None if pack_bytes is None else max(pack_bytes, min(PACK_BYTES, state // CUT_SHARE))


def packs_to_rewrite(
    packs: Sequence[PackRecord], items: Iterable[Item], fresh: int, bounds: Sizes, pack_bytes: int | None = None
) -> set[int]:
    """Return the numbers of the packs whose live blocks and pages are to be written again.

    `fresh` is how many bytes the new checkpoint writes anyway, `pack_bytes` where packs are cut off (None: only large
    ones are). O(pages + lines + packs log packs).
    """
    live = live_bytes(items)
    sizes = {record.number: live[record.number] for record in packs if live[record.number]}
    chosen = {record.number for record in packs if 0 < live[record.number] * SPARSE_SHARE < record.size}
    written = fresh + sum(sizes[number] for number in chosen)
    large = max(bounds.large_bytes, live.total() // LARGE_SHARE)
    if pack_bytes is not None:
        large = min(large, pack_bytes // 2)
    classes: dict[int, list[int]] = {}
    for number, size in sizes.items():
        if number not in chosen and size < large:
            classes.setdefault(bounds.size_class(size), []).append(number)
    # The new pack is one of its class; merged with that it may be one too many of the next.
    while written < large and len(members := classes.pop(bounds.size_class(written), [])) >= bounds.tier - 1:
        chosen.update(members)
        written += sum(sizes[number] for number in members)
    return chosen
