"""Table range: the records of a range of keys in blocks with tables, read without decoding the blocks.

    base      [k0 .. k63 | k64 .. k127 | ...]       the first key of each stretch, where it begins, and where its values
    layer     [k5, k60   |             | ...]       do, stay with the open table; of a layer where those of its base do

Keys and values lie in key order, and the slots of the table have their places. So the places in ascending order are
those of the keys in order, and a range is bytes of each column between two of them. The first range of a table sorts
the places and compares the checksum of the block; each further one decodes the stretches that it touches, and a layer
without keys in these costs two looks.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, pairwise
from math import isqrt
from operator import itemgetter, not_
from typing import Any, Final, NamedTuple, TypeAlias

from changelog.codec import UNPACK_ERRORS, array_header, unpack, unpacker

from .layers import Layers, Lookup
from .table import RecordTable, Whole

# Returns the places of the first key of a range and behind its last one, of sorted keys.
Bounds: TypeAlias = Callable[[Sequence[Any]], tuple[int, int]]
# At most so many keys are a stretch: with fewer the open tables take more memory, with more a range decodes more beside
# itself.
STRETCH: Final = 64
_LEAST: Final = 4
# Of a stretch: three places; and its first key, which layers share with their base.
_PLACES_BYTES: Final = 12
_KEY_BYTES: Final = 72
# Integers of a slot, see `RecordTable`: where the key begins, where its values begin and end.
_SLOT: Final = 5
_KEY, _FIRST, _LAST = 1, 2, 3


class Stretches(NamedTuple):
    """The first key of each stretch of the base, the number of the first key of the table in it, and the places in the
    block at which its keys and its values begin; and behind the last one, where they end.
    """

    firsts: list[Any]
    starts: Sequence[int]
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


def range_of(lookup: Lookup, bounds: Bounds) -> dict[Any, Any]:
    """Return the records of a range of keys, of one record each, by key and in order: values, or tuples of a value and
    its integers. All parts of `Layers` have tables (`kept`). Raises CorruptCheckpointError. O(records + layers), and
    O(keys log keys) for the first range of a table.
    """
    if isinstance(lookup, Whole):
        columns = lookup._columns.cut(*bounds(lookup._columns.keys))
        records = zip(columns.values, *columns.ints, strict=True) if columns.ints else columns.values
        return dict(zip(columns.keys, records, strict=True))
    parts: Sequence[Any] = lookup._parts if isinstance(lookup, Layers) else [lookup]
    base = parts[-1]
    firsts = (base.stretches or _find_stretches(base, None)).firsts
    first, last = bounds(firsts)
    first = max(0, first - 1)  # the stretch before may end in the range
    last = max(last, first + 1)
    chosen: list[tuple[RecordTable, int, int]] = []
    packed: list[bytes | memoryview] = []
    for part in reversed(parts):
        stretches = part.stretches
        if stretches is None or stretches.firsts is not firsts:
            stretches = _find_stretches(part, firsts)
        _, starts, keys, values = stretches
        start, end = starts[first], starts[last]
        if start < end:
            payload, offsets = part._payload, part._rows
            begin, stop = (start, end) if offsets is None else (offsets[start], offsets[end])
            packed += (array_header(end - start), payload[keys[first] : keys[last]])
            packed += (array_header(stop - begin), payload[values[first] : values[last]])
            chosen.append((part, start, begin))
    try:
        # by one call: of most layers a range has a key or two
        columns = iter(unpack(b"".join((array_header(2 * len(chosen)), *packed))))
        return _laid_over(zip(chosen, columns, columns, strict=True), bounds)
    except UNPACK_ERRORS as error:
        raise base._unreadable(error) from error


def stretch_bytes(lookup: Lookup) -> int:
    """Return about how many bytes the stretches take that ranges have left in memory. O(layers)."""
    if not lookup.kept:
        return 0
    parts: Sequence[Any] = lookup._parts if isinstance(lookup, Layers) else [lookup]
    stretches: Stretches | None = parts[-1].stretches
    if stretches is None:
        return 0
    known = sum([part.stretches is not None for part in parts])
    return len(stretches.firsts) * (_KEY_BYTES + _PLACES_BYTES * known)


def _laid_over(
    parts: Iterable[tuple[tuple[RecordTable, int, int], list[Any], list[Any]]], bounds: Bounds
) -> dict[Any, Any]:
    """Return the records of a range of keys, those of each table over those of the ones before. Of each table come the
    numbers of the first key and of the first record, and so many keys and values as have a part of the range. O(records
    of the parts).
    """
    rows: dict[Any, Any] = {}
    in_order = 0
    for (table, start, begin), keys, values in parts:
        low, high = bounds(keys)
        if low == high:
            continue
        offsets, before, behind = table._rows, low, high
        if offsets is not None:
            before, behind = offsets[start + low] - begin, offsets[start + high] - begin
        keys = keys[low:high]
        records: Iterable[Any] = values[before:behind]
        if table._ints:
            records = zip(records, *table._times(begin + before, begin + behind), strict=True)
        if offsets is not None:
            present = [last > first for first, last in pairwise(offsets[start + low : start + high + 1])]
            for key in compress(keys, map(not_, present)):
                rows.pop(key, None)
                in_order = -1  # it may come again, behind all others
            keys = list(compress(keys, present))
        rows.update(zip(keys, records, strict=True))
        in_order = in_order or len(rows)
    return rows if len(rows) == in_order else dict(sorted(rows.items(), key=itemgetter(0)))


def _find_stretches(table: RecordTable, firsts: list[Any] | None) -> Stretches:
    """Find the stretches of a table, which keeps them: those that begin with `firsts`, or, of a base, its own. Raises
    CorruptCheckpointError. O(keys log keys + bytes).
    """
    payload, count = table._payload, len(table)
    if zlib.crc32(payload) != table.checksum:
        raise table._damaged()
    slots = payload[table.begin : table.begin + 4 * _SLOT * count].cast("I")
    key_places, value_places = (sorted(slots[field::_SLOT].tolist()) for field in (_KEY, _FIRST))
    stream = unpacker(payload[1 : value_places[0]])
    try:
        keys = stream.unpack()
    except UNPACK_ERRORS as error:
        raise table._unreadable(error) from error
    key_places.append(1 + stream.tell())
    value_places.append(max(slots[_LAST::_SLOT].tolist()))
    if firsts is None:
        starts = [*range(0, count, min(STRETCH, max(_LEAST, isqrt(count)))), count]
        firsts = list(map(keys.__getitem__, starts[:-1]))
    else:
        # keys before all of the base belong to the first stretch
        starts = [0, *(bisect_left(keys, first) for first in firsts[1:]), count]
    places = (array("I", map(each.__getitem__, starts)) for each in (key_places, value_places))
    table.stretches = stretches = Stretches(firsts, array("I", starts), *places)
    return stretches
