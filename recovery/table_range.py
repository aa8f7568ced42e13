"""Table range: the records of a range of keys in a block with a table, read without decoding the block.

    keys     [k0 .. k63 | k64 .. k127 | ...]        one key of each stretch, where it begins, and where its values do,
    values   [v0 .. v63 | v64 .. v127 | ...]        stay with the open table

Keys and values lie in key order, and the slots of the table have their places. So the places in ascending order are
those of the keys in order, and a range is bytes of each column between two of them. The first range of a table sorts
the places and compares the checksum of the block; each further one decodes the stretches that it touches.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any, Final, NamedTuple, TypeAlias

from changelog.codec import UNPACK_ERRORS, array_header, unpack, unpacker

from .block import Columns, with_layers
from .layers import Layers, Lookup
from .table import RecordTable, Whole

# Returns the places of the first key of a range and behind its last one, of sorted keys.
Bounds: TypeAlias = Callable[[Sequence[Any]], tuple[int, int]]
# At most so many keys are a stretch: with fewer the open tables take more memory, with more a range decodes more beside
# itself. In a layer of few keys a stretch has fewer, or a range would decode most of each layer for a key or none.
STRETCH: Final = 64
_LEAST: Final = 4
# A key of a stretch and its two places.
_STRETCH_BYTES: Final = 80
# Integers of a slot, see `RecordTable`: where the key begins, where its values begin and end.
_SLOT: Final = 5
_KEY, _FIRST, _LAST = 1, 2, 3


class Stretches(NamedTuple):
    """The first key of each stretch of `width` keys, and the places in the block at which its keys and its values
    begin; and behind the last one, the places at which they end.
    """

    width: int
    firsts: list[Any]
    keys: Sequence[int]
    values: Sequence[int]


def between(key_from: Any, key_to: Any) -> Bounds:
    """Return the bounds of the keys within inclusive ones (None: open)."""

    def bounds(keys: Sequence[Any]) -> tuple[int, int]:
        first = 0 if key_from is None else bisect_left(keys, key_from)
        return first, len(keys) if key_to is None else bisect_right(keys, key_to, first)

    return bounds


def beginning_with(prefix: Any) -> Bounds:
    """Return the bounds of the keys that begin with a prefix."""
    length = len(prefix)

    def bounds(keys: Sequence[Any]) -> tuple[int, int]:
        first = bisect_left(keys, prefix)
        return first, bisect_right(keys, prefix, first, key=lambda key: key[:length])

    return bounds


def range_of(lookup: Lookup, bounds: Bounds) -> Columns:
    """Return the records of a range of keys. Raises CorruptCheckpointError. O(records + layers log keys), and O(keys
    log keys) for the first range of a table; O(block) for a part without a table.
    """
    if isinstance(lookup, Layers):
        *layers, base = [_range_of_part(part, bounds) for part in lookup._parts]
        layers.reverse()
        return with_layers(base, [layer for layer in layers if layer.keys])
    return _range_of_part(lookup, bounds)


def stretch_bytes(lookup: Lookup) -> int:
    """Return about how many bytes the stretches take that ranges have left in memory. O(layers)."""
    parts = lookup._parts if isinstance(lookup, Layers) else [lookup]
    known = [part.stretches for part in parts if isinstance(part, RecordTable) and part.stretches is not None]
    return _STRETCH_BYTES * sum(len(stretches.firsts) for stretches in known)


def _range_of_part(part: RecordTable | Whole, bounds: Bounds) -> Columns:
    if isinstance(part, Whole):
        return part._columns.cut(*bounds(part._columns.keys))
    try:
        return _range_of_table(part, bounds)
    except UNPACK_ERRORS as error:
        raise part._unreadable(error) from error


def _range_of_table(table: RecordTable, bounds: Bounds) -> Columns:
    stretches: Stretches = table.stretches or _find_stretches(table)
    first, last = bounds(stretches.firsts)
    first = max(0, first - 1)  # the stretch before may end in the range
    if first >= last:
        return table.no_rows()
    payload, rows, froms, count = table._payload, table._rows, table._froms, len(table)
    start, end = stretches.width * first, min(stretches.width * last, count)
    keys = unpack(array_header(end - start) + payload[stretches.keys[first] : stretches.keys[last]])
    low, high = bounds(keys)
    if low == high:
        return table.no_rows()
    begin, stop, counts = start, end, None
    if rows is not None:
        begin, stop = rows[start], rows[end]
        counts = [behind - before for before, behind in pairwise(rows[start : end + 1])]
    values = unpack(array_header(stop - begin) + payload[stretches.values[first] : stretches.values[last]])
    of_keys = None if froms is None else list(froms[start:end] if len(froms) == count else [froms[0]] * len(keys))
    return Columns(keys, counts, tuple(table._times(begin, stop)), values, of_keys).cut(low, high)


def _find_stretches(table: RecordTable) -> Stretches:
    """Find the stretches of a table, which keeps them. Raises CorruptCheckpointError. O(keys log keys + bytes)."""
    payload, count = table._payload, len(table)
    if zlib.crc32(payload) != table.checksum:
        raise table._damaged()
    slots = payload[table.begin : table.begin + 4 * _SLOT * count].cast("I")
    begins, firsts = slots[_KEY::_SLOT].tolist(), slots[_FIRST::_SLOT].tolist()
    order = sorted(range(count), key=begins.__getitem__)
    width = min(STRETCH, max(_LEAST, isqrt(count)))
    last = unpacker(payload[begins[order[-1]] :])
    last.skip()
    end = begins[order[-1]] + last.tell()  # behind the keys are the counts
    places = array("I", [*map(begins.__getitem__, order[::width]), end])
    values = array("I", [*map(firsts.__getitem__, order[::width]), slots[_SLOT * order[-1] + _LAST]])
    of_stretches = [unpacker(bytes(payload[place:end])).unpack() for place, end in pairwise(places)]
    table.stretches = stretches = Stretches(width, of_stretches, places, values)
    return stretches
