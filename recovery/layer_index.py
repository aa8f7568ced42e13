"""Layer index: says of a key which layers of a block may have it, so that a read searches one of them, or none.

    one byte for each hash, at the place of its leading bits or the first free one behind it: 3 further bits of the
    hash, and the number of its layer, 1 for the oldest; 0: free

A new checkpoint adds a layer to a block, or puts the newest ones into one. So the index of the checkpoint before, which
the table of the base keeps, becomes that of the new one for the price of the layer that is new. The surprise: a key of
which several layers have records may be there several times, and the newest of them counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

# The lower bits of an entry are the number of a layer, the others are of the hash.
MOST_LAYERS: Final = 31
_FURTHER_BITS: Final = 3
# The number of a layer that is among those that became one.
_AS_ONE: Final = [bytes(entry & 0xE0 | min(entry & 0x1F, most) for entry in range(256)) for most in range(32)]


class LayerIndex:
    """An index of the hashes of layers over one base. It does not change: `over` makes another one."""

    __slots__ = ("_entries", "_names", "_shift")

    def __init__(self) -> None:
        """An index of no layers."""
        self._names: tuple[bytes, ...] = ()
        self._entries, self._shift = bytes(1), 32

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of the entries. O(1)."""
        return len(self._entries)

    def over(self, names: tuple[bytes, ...], hashes_of: Callable[[int], list[int]]) -> LayerIndex:
        """Return the index of other layers of the same base, at least one and at most MOST_LAYERS, the oldest first.
        `names`: the hash of the content of each; `hashes_of` returns the hashes of one. O(hashes of layers that this
        index does not have).
        """
        if names == self._names:
            return self
        same = 0
        for before, name in zip(self._names, names, strict=False):
            if before != name:
                break
            same += 1
        new = [hashes_of(i) for i in range(same, len(names))]
        entered = len(self._entries) - self._entries.count(0) + sum(map(len, new))
        index = LayerIndex()
        index._names, index._shift = names, self._shift
        if same and new and 8 * entered <= 5 * len(self._entries):
            entries = bytearray(self._entries.translate(_AS_ONE[same + 1]))
        else:
            new, same = [hashes_of(i) for i in range(len(names))], 0
            bits = max(4, (2 * sum(map(len, new))).bit_length())
            entries, index._shift = bytearray(1 << bits), 32 - bits
        for number, hashes in enumerate(new, same + 1):
            _enter(entries, index._shift, hashes, number)
        index._entries = bytes(entries)
        return index

    def layers_of(self, hashed: int) -> Sequence[int]:
        """Return which layers may have a key of a hash, the newest first: layer 0 is the oldest. O(1)."""
        entries, at = self._entries, hashed >> self._shift
        entry = entries[at]
        if not entry:
            return ()
        numbers, last = [], len(entries) - 1
        further = hashed >> self._shift - _FURTHER_BITS & 7
        while entry:
            if entry >> 5 == further:
                numbers.append((entry & 0x1F) - 1)
            at = at + 1 & last
            entry = entries[at]
        if len(numbers) > 1:
            numbers = sorted(set(numbers), reverse=True)
        return numbers


def _enter(entries: bytearray, shift: int, hashes: Iterable[int], number: int) -> None:
    """Enter the hashes of a layer. O(hashes)."""
    last, low = len(entries) - 1, shift - _FURTHER_BITS
    for hashed in hashes:
        at, entry = hashed >> shift, (hashed >> low & 7) << 5 | number
        while (there := entries[at]) and there != entry:
            at = at + 1 & last
        entries[at] = entry
