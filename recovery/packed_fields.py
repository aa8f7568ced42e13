"""Packed fields: the values of a block that are dicts with the same keys, by key, without an object for each, by numpy.

All such dicts begin with the same bytes, those of the first key, so a search gives places where they may begin. From
there all dicts are read at once, a key and its values at a time. At the end it is seen whether each of them begins
where the one before it ends: bytes inside of a value may look like a beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    _Numbers: TypeAlias = np.ndarray[Any, Any]

# The first byte of dicts that are read here, and how many of them may be inside of each other.
FEW_KEYS: Final = range(0x80, 0x90)
_MOST_LEVELS: Final = 8
# What a value is, by its first byte; anything else is decoded.
_NULL: Final = 1
_BOOL: Final = 2
_INT: Final = 3
_FLOAT: Final = 4
_TEXT: Final = 5
_DICT: Final = 6
# First bytes: of a null, of true, of numbers of 1, 2, 4 and 8 bytes, and of texts that say their size in 1 and 2 bytes.
_NIL: Final = 0xC0
_TRUE: Final = 0xC3
_FLOAT64: Final = 0xCB
_UNSIGNED: Final = 0xCC
_UINT64: Final = 0xCF
_SIGNED: Final = 0xD0
# The type of numpy, and the bytes, of the numbers behind such a first byte.
_WIDE: Final = {
    _UNSIGNED + 4 * signed + power: (f">{kind}{1 << power}", 1 << power)
    for signed, kind in enumerate("ui")
    for power in range(4)
}
_SHORT_TEXT: Final = range(0xA0, 0xC0)
_TEXT_8: Final = 0xD9
_TEXT_16: Final = 0xDA
_NEGATIVE: Final = 0xE0


@dataclass(slots=True)
class PackedSpans:
    """Texts (UTF-8, unchecked). `spans` are int32 places in `data`: between the texts, and of where each text begins
    and ends, so that text `i` is what lies between `spans[2 * i + 1]` and `spans[2 * i + 2]`.
    """

    data: bytes
    spans: _Numbers

    def __len__(self) -> int:
        return len(self.spans) // 2


@dataclass(slots=True)
class PackedField:
    """The values of one key: bools, int64s or float64s of numpy, texts, or dicts; None if all are null. `nulls` says
    which of them are null, if any is.
    """

    items: _Numbers | PackedSpans | PackedFields | None
    nulls: _Numbers | None


@dataclass(slots=True)
class PackedFields:
    """So many dicts with the same keys in the same order."""

    count: int
    fields: dict[str, PackedField]

    def __len__(self) -> int:
        return self.count


def packed_fields(data: bytes, start: int, count: int) -> tuple[PackedFields, int] | None:
    """Return so many dicts, the first of which begins at `start`, and where the last one ends, which may be behind the
    data. None without numpy, and unless all have the same keys, texts, and values that are null, bools, int64s, floats,
    texts or such dicts, for each key of one of these types.

    O(size) at C speed. Raises `UNPACK_ERRORS` for bytes that are no packed value, and for keys that are not in UTF-8.
    """
    try:
        import numpy as np  # only here: the core does not need numpy
    except ImportError:
        return None
    block = _Block(data)
    prefix = data[start : start + 1] + block.key(start + 1)
    at = np.flatnonzero(block.octets[start : len(data) - len(prefix) + 1] == prefix[0]) + start
    at = at[block.have(at, prefix)][:count]
    if len(at) < count or at[0] != start:
        return None
    read = block.dicts(at, 0)
    if read is None or not (read[1][:-1] == at[1:]).all():
        return None
    return read[0], int(read[1][-1])


class _Block:
    """The bytes of a block, and what numpy reads at many places in them; a place behind them is an IndexError."""

    def __init__(self, data: bytes) -> None:
        import numpy as np

        self._data = data
        self._padded = data + bytes(8)  # the last number is read as eight bytes, too
        self.octets = np.frombuffer(self._padded, np.uint8)
        self._steps, self._kinds = _tables()

    def _as(self, kind: str, size: int) -> _Numbers:
        """Return the items of a type of numpy that begin at each place."""
        import numpy as np

        return np.ndarray((len(self._padded) - size + 1,), kind, self._padded, strides=(1,))

    def have(self, at: _Numbers, expected: bytes) -> _Numbers:
        """Return whether these bytes are at each of the places."""
        import numpy as np

        kind = f"V{len(expected)}"
        same: _Numbers = self._as(kind, len(expected))[at] == np.frombuffer(expected, kind)
        return same

    def key(self, at: int) -> bytes:
        """Return the bytes of the key at a place; b"" unless it is a text of up to 255 bytes."""
        head = self._data[at]
        if head in _SHORT_TEXT:
            return self._data[at : at + 1 + head - _SHORT_TEXT.start]
        return self._data[at : at + 2 + self._data[at + 1]] if head == _TEXT_8 else b""

    def dicts(self, at: _Numbers, level: int) -> tuple[PackedFields, _Numbers] | None:
        """Return the dicts at the places, which have the keys of the first one, and where they end."""
        header = self._data[int(at[0]) : int(at[0]) + 1]
        if header[0] not in FEW_KEYS or level == _MOST_LEVELS or not self.have(at, header).all():
            return None
        at, fields = at + 1, dict[str, PackedField]()
        for _ in range(header[0] - FEW_KEYS.start):
            packed = self.key(int(at[0]))
            if not packed or not self.have(at, packed).all():
                return None
            key = packed[1 if packed[0] in _SHORT_TEXT else 2 :].decode()
            read = None if key in fields else self._values(at + len(packed), level)
            if read is None:
                return None
            fields[key], at = read
        return (PackedFields(len(at), fields), at) if fields else None

    def _values(self, at: _Numbers, level: int) -> tuple[PackedField, _Numbers] | None:
        """Return the values at the places and where they end; None unless all are null or of one type."""
        heads = self.octets[at]
        first, nulls = int(heads[0]), None
        if (heads == first).all():  # as of most columns of numbers: less is to be found out
            kind, ends = int(self._kinds[first]), at + int(self._steps[first])
        else:
            kinds = self._kinds[heads]
            kind, ends = int(kinds.max()), at + self._steps[heads]
            if int(kinds.min()) != kind:
                nulls = kinds == _NULL
                if not (nulls | (kinds == kind)).all():
                    return None
        if kind == _NULL:
            return PackedField(None, None), ends
        if kind == _BOOL:
            return PackedField(heads == _TRUE, nulls), ends
        if kind == _INT:
            numbers = self._ints(at, heads)
            return None if numbers is None else (PackedField(numbers, nulls), ends)
        if kind == _FLOAT:
            return PackedField(self._as(">f8", 8)[at + 1].astype("f8"), nulls), ends
        if kind == _TEXT:
            return self._texts(at, heads, ends, nulls)
        read = self.dicts(at, level + 1) if kind == _DICT and nulls is None else None
        return None if read is None else (PackedField(read[0], None), read[1])

    def _ints(self, at: _Numbers, heads: _Numbers) -> _Numbers | None:
        """Return the numbers at the places; None if one is beyond int64. What is none of them gives any number."""
        import numpy as np

        first = int(heads[0])
        if first in _WIDE and (heads == first).all():
            alike: _Numbers = self._as(*_WIDE[first])[at + 1].astype(np.int64)
            return None if first == _UINT64 and (alike < 0).any() else alike
        numbers = heads.view(np.int8).astype(np.int64)  # of most small numbers the first byte is the number
        wide = (heads >= _UNSIGNED) & (heads < _NEGATIVE)
        if wide.any():
            octets = self._as(">i8", 8)[at + 1].astype(np.int64)
            unused = (8 - self._steps[heads] + 1) * 8
            if ((heads == _UINT64) & (octets < 0)).any():
                return None
            signed = octets >> unused
            unsigned = (octets.view(np.uint64) >> unused.view(np.uint64)).view(np.int64)
            numbers = np.where(wide, np.where(heads < _SIGNED, unsigned, signed), numbers)
        return numbers

    def _texts(
        self, at: _Numbers, heads: _Numbers, ends: _Numbers, nulls: _Numbers | None
    ) -> tuple[PackedField, _Numbers]:
        """Return the texts at the places, where no text that says its size ends yet, and where they end."""
        import numpy as np

        begins = at + 1
        if int(heads.max()) >= _TEXT_8:
            short, long = heads == _TEXT_8, heads == _TEXT_16
            ends = ends + np.where(short | long, self.octets[begins], 0)
            ends[long] += 255 * self.octets[at[long] + 1].astype(np.int64) + self.octets[at[long] + 2]
            begins += short + 2 * long.astype(np.int64)
        spans = np.empty(2 * len(at) + 1, np.int32)
        spans[0], spans[1::2], spans[2::2] = at[0], begins, ends
        return PackedField(PackedSpans(self._data, spans), nulls), ends


@cache
def _tables() -> tuple[_Numbers, _Numbers]:
    """Return, by the first byte of a value, its size, without what a text says of its own, and what it is."""
    import numpy as np

    steps, kinds = np.ones(256, np.int64), np.zeros(256, np.uint8)
    kinds[:0x80] = kinds[_NEGATIVE:] = kinds[_UNSIGNED : _SIGNED + 4] = _INT
    steps[_UNSIGNED : _SIGNED + 4] = (2, 3, 5, 9) * 2
    kinds[FEW_KEYS.start : FEW_KEYS.stop] = _DICT
    kinds[_NIL], kinds[_TRUE - 1 : _TRUE + 1] = _NULL, _BOOL
    kinds[_FLOAT64], steps[_FLOAT64] = _FLOAT, 9
    kinds[_SHORT_TEXT.start : _SHORT_TEXT.stop] = kinds[_TEXT_8 : _TEXT_16 + 1] = _TEXT
    steps[_SHORT_TEXT.start : _SHORT_TEXT.stop] = range(1, 33)
    steps[_TEXT_8], steps[_TEXT_16] = 2, 3
    return steps, kinds
