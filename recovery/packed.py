"""Packed columns: texts of one length, and floats, of a block as they lie in its bytes, without an object for each.

For readers that want columns and not records: keys often have one length, and then a comparison of bytes tells where
all of them begin. Any other column is decoded, as `unpack_block` does.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from changelog.codec import UNPACK_ERRORS, unpacker

from .block import from_little, is_sound

# How many bytes a header has, and the number of items that it says, by the first byte of a packed array.
_FEW: Final = range(0x90, 0xA0)
_MANY: Final = {0xDC: 2, 0xDD: 4}
# The first byte of a packed text of up to 31 and of up to 255 bytes, and of a float.
_SHORT_TEXT: Final = range(0xA0, 0xC0)
_TEXT: Final = 0xD9
_FLOAT: Final = 0xCB
_FLOAT_BYTES: Final = 9


@dataclass(slots=True)
class PackedTexts:
    """Texts of `size` bytes each (UTF-8, unchecked), every one behind `header` other bytes in `data`."""

    data: memoryview
    header: int
    size: int

    def __len__(self) -> int:
        return len(self.data) // (self.header + self.size)


PackedItems: TypeAlias = "list[Any] | PackedTexts | array[float]"


class PackedBlock(NamedTuple):
    """The records of a block with one record for each key, by column."""

    keys: PackedItems
    ints: tuple[array[int], ...]
    values: PackedItems


def packed_block(data: bytes | memoryview) -> PackedBlock | None:
    """Return the columns of a block; None if it is damaged, a layer, or has several records for a key: such a block is
    for `unpack_block`. O(size), at the speed of a copy for texts of one length and floats.
    """
    if not is_sound(data):
        return None
    data = bytes(memoryview(data)[4:])
    try:
        parts = data[0] - _FEW.start
        keys, at = _items(data, 1)
        stream = unpacker(data[at:])
        if keys is None:
            keys = stream.unpack()
        counts, packed_ints = stream.unpack(), stream.unpack()
        begin = at + stream.tell()
        values, end = _items(data, begin)
        if values is None:
            values = stream.unpack()
            end = at + stream.tell()
        if parts == 5:  # the table, by which single records are read
            table = unpacker(data[end:])
            table.skip()
            end += table.tell()
        ints = tuple(map(from_little, packed_ints))
        lengths = {len(keys), len(values), *map(len, ints)}
    except UNPACK_ERRORS:
        return None
    sound = parts in (4, 5) and counts is None and end == len(data) and len(lengths) == 1
    return PackedBlock(keys, ints, values) if sound else None


def _items(data: bytes, at: int) -> tuple[PackedItems | None, int]:
    """Return the items of the packed array at a place, and its end; None for items that have to be decoded."""
    first = data[at]
    width = _MANY.get(first, 0)
    count = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else first - _FEW.start
    start = at + 1 + width
    if not count or not (width or first in _FEW):
        return None, at
    kind = data[start]
    if kind in _SHORT_TEXT:
        header, size = 1, kind - _SHORT_TEXT.start
    elif kind == _TEXT:
        header, size = 2, data[start + 1]
    elif kind == _FLOAT:
        header, size = 1, _FLOAT_BYTES - 1
    else:
        return None, at
    step = header + size
    end = start + count * step
    # an item that begins as the first one is as long, so the next one begins a step behind it
    places = range(start, start + header)
    if end > len(data) or any(data[place:end:step] != data[place : place + 1] * count for place in places):
        return None, at
    if kind == _FLOAT:
        return _floats(data[start:end]), end
    return PackedTexts(memoryview(data)[start:end], header, size), end


def _floats(packed: bytes) -> array[float]:
    body = bytearray(packed)
    del body[::_FLOAT_BYTES]
    floats = array("d", bytes(body))
    if sys.byteorder == "little":  # pragma: no branch
        floats.byteswap()
    return floats
