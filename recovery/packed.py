"""Packed columns: texts, floats and dicts of a block as they lie in its bytes, without an object for each.

For readers that want columns and not records. Keys often have one length, and then a comparison of bytes tells where
all of them begin. ASCII texts of several lengths are found by numpy: only their headers have such a first byte, and
each says where the next one is. Any other column but dicts (`packed_fields`) is decoded, as `unpack_block` does.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from changelog.codec import UNPACK_ERRORS, pack, unpacker

from .block import from_little, is_sound
from .packed_fields import FEW_KEYS, PackedFields, packed_fields
from .packed_fields import PackedSpans as PackedSpans

if TYPE_CHECKING:
    import numpy as np

# How many bytes a header has, and the number of items that it says, by the first byte of a packed array.
_FEW: Final = range(0x90, 0xA0)
_MANY: Final = {0xDC: 2, 0xDD: 4}
_NIL: Final = 0xC0
# How many bytes say the size of packed bytes, by their first byte.
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
# The first byte of a packed text of up to 31 and of up to 255 bytes, and of a float.
_SHORT_TEXT: Final = range(0xA0, 0xC0)
_TEXT: Final = 0xD9
_FLOAT: Final = 0xCB
_FLOAT_BYTES: Final = 9
# With more bytes than these in a block for each text, decoding the texts is cheaper than a look at each byte.
_MOST_BYTES: Final = 128


@dataclass(slots=True)
class PackedTexts:
    """Texts of `size` bytes each (UTF-8, unchecked), every one behind `header` other bytes in `data`."""

    data: memoryview
    header: int
    size: int

    def __len__(self) -> int:
        return len(self.data) // (self.header + self.size)


PackedItems: TypeAlias = "list[Any] | PackedTexts | PackedSpans | PackedFields | array[float]"


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
    data, begin = bytes(data), 4  # behind the checksum
    headers, rest = _Headers(data), memoryview(data)
    try:
        parts = data[begin] - _FEW.start
        keys, at = _items(data, begin + 1, headers)
        if keys is None:
            stream = unpacker(rest[at:])
            keys = stream.unpack()
            at += stream.tell()
        ints, at = _ints(data, at)
        values, end = _items(data, at, headers)
        if values is None:
            stream = unpacker(rest[at:])
            values = stream.unpack()
            end = at + stream.tell()
        if parts == 5:  # the table, by which single records are read
            table = unpacker(rest[end:])
            table.skip()
            end += table.tell()
        lengths = {len(keys), len(values), *map(len, ints)}
    except UNPACK_ERRORS:
        return None
    sound = parts in (4, 5) and end == len(data) and len(lengths) == 1
    return PackedBlock(keys, ints, values) if sound else None


def _ints(data: bytes, at: int) -> tuple[tuple[array[int], ...], int]:
    """Return the columns of integers at a place, behind the counts, and their end. Raises ValueError or LookupError for
    counts, of which a block with one record for each key has none, and for what are no columns.
    """
    number, at = _array_at(data, at + 1) if data[at] == _NIL else (-1, at)
    if number < 0:
        raise ValueError("several records for a key")
    columns: list[array[int]] = []
    for _ in range(number):
        start = at + 1 + _BYTES[data[at]]
        end = start + int.from_bytes(data[at + 1 : start], "big")
        columns.append(from_little(data[start:end]))
        at = end
    return tuple(columns), at


def packed_items(items: list[Any]) -> PackedItems:
    """Return items as `packed_block` gives those of a block. O(their size)."""
    data = pack(items)
    packed = _items(data, 0, _Headers(data))[0]
    return items if packed is None else packed


def _array_at(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the packed array at a place has, -1 for anything else, and where they begin."""
    first = data[at]
    width = _MANY.get(first, 0)
    start = at + 1 + width
    if width:
        return int.from_bytes(data[at + 1 : start], "big"), start
    return (first - _FEW.start if first in _FEW else -1), start


def _items(data: bytes, at: int, headers: _Headers) -> tuple[PackedItems | None, int]:
    """Return the items of the packed array at a place, and its end; None for items that have to be decoded."""
    count, start = _array_at(data, at)
    if count < 1:
        return None, at
    kind = data[start]
    if kind in _SHORT_TEXT:
        header, size = 1, kind - _SHORT_TEXT.start
    elif kind == _TEXT:
        header, size = 2, data[start + 1]
    elif kind == _FLOAT:
        header, size = 1, _FLOAT_BYTES - 1
    else:
        return (packed_fields(data, start, count) if kind in FEW_KEYS else None) or (None, at)
    step = header + size
    end = start + count * step
    # an item that begins as the first one is as long, so the next one begins a step behind it
    places = range(start, start + header)
    if end > len(data) or any(data[place:end:step] != data[place : place + 1] * count for place in places):
        spans = None if kind == _FLOAT else headers.spans(start, count)
        return (None, at) if spans is None else (PackedSpans(data, spans), int(spans[-1]))
    if kind == _FLOAT:
        return _floats(data[start:end]), end
    return PackedTexts(memoryview(data)[start:end], header, size), end


class _Headers:
    """The places of a block's bytes that may be headers of texts; looked for when texts of several lengths are met."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._places: np.ndarray[Any, Any] | None = None

    def spans(self, start: int, count: int) -> np.ndarray[Any, Any] | None:
        """Return the spans (`PackedSpans`) of so many texts, the first of which begins at `start`; None without numpy,
        and where an item is no text of up to 255 bytes or has a byte like a header, as most that are not ASCII do; the
        last one may be cut. O(size) at C speed.
        """
        try:
            import numpy as np  # only here: the core does not need numpy
        except ImportError:
            return None
        if len(self._data) > _MOST_BYTES * count:
            return None
        data = np.frombuffer(self._data, np.uint8)
        if self._places is None:
            self._places = np.flatnonzero((data - np.uint8(_SHORT_TEXT.start) < len(_SHORT_TEXT)) | (data == _TEXT))
        places = self._places[np.searchsorted(self._places, start) :][:count]
        kinds = data[places]
        long = kinds == _TEXT
        texts = places + 1 + long
        ends = texts + np.where(long, data[np.minimum(places + 1, len(data) - 1)], kinds - np.uint8(_SHORT_TEXT.start))
        if len(places) < count or places[0] != start or not (places[1:] == ends[:-1]).all():
            return None
        spans = np.empty(2 * count + 1, np.int32)
        spans[:-1:2], spans[1::2], spans[-1] = places, texts, ends[-1]
        return spans


def _floats(packed: bytes) -> array[float]:
    body = bytearray(packed)
    del body[::_FLOAT_BYTES]
    floats = array("d", bytes(body))
    if sys.byteorder == "little":  # pragma: no branch
        floats.byteswap()
    return floats
