"""Table: finds the records of one key in a block without decoding the block. Bytes: docs/format.md, "Table of a block".

    slots    crc32 of each packed key, ascending, each with where the packed key begins, where the values of the key
             begin and end, and a checksum of the key with its records: all in one place, because each page that a read
             touches costs about as much as the rest of the read
    order    for each slot: which of the sorted keys it is of; where one of the next is in the table
    rows     the first record of each key, in a block with counts
    ints     where the integers of each column begin
    froms    from which time on the records of each key replace older ones, in a layer with `froms`

A block has a table when it was written under a limit of memory: then single records are read. The table has a checksum
of its own, compared when the table is opened, because a damaged table makes keys absent; that of a record is compared
when the record is read. So the first record of a block costs the bytes of its table, not those of the block.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, pairwise, repeat
from math import isqrt
from typing import Any, Final, TypeAlias

from changelog.codec import UNPACK_ERRORS, array_header, pack, pack_each, packer, unpack, unpacker

from .block import (
    ADDED,
    Columns,
    content_hash,
    hiding,
    pack_counts,
    seal,
    short_froms,
    to_little,
    unpack_block,
)
from .errors import CorruptCheckpointError
from .layer_index import LayerIndex
from .packed_key import EXACT, PACKERS, PackedKey, PackedKeys, packed_key, packed_keys, plain

# The end of a table: how many keys, how many columns of integers, and flags; and the checksum of all before it.
_TAIL: Final = struct.Struct("<IHH")
_CHECK: Final = struct.Struct("<I")
# A slot: the hash, where the packed key begins, where its values begin and end, and the checksum of both; and its head.
SLOT: Final = struct.Struct("<5I")
_HEAD: Final = struct.Struct("<2I")
_INT: Final = struct.Struct("<q")
_END: Final = _TAIL.size + _CHECK.size
# The flags: counts; `froms`, one for each key; a single one for all.
_COUNTED: Final = 1
_FROMS: Final = 2
_ONE_FROM: Final = 4
_FLAGS: Final = frozenset(counted | froms for counted in (0, _COUNTED) for froms in (0, _FROMS, _ONE_FROM))
# The header of a msgpack array of five items: a block with a table.
_FIVE: Final = 0x95
# The number of a key is a u16.
MOST_KEYS: Final = 1 << 16
# About 2 to the power of so many hashes have equal leading bits (`RecordTable._places`), of its square or more hashes.
_PLACE_BITS: Final = 4
# Bytes in which nearly all packed keys end.
_NEAR: Final = 1 << 10
# A record: its value, and its integers.
Record: TypeAlias = tuple[Any, ...]


def pack_with_table(columns: Columns) -> tuple[bytes, bytes]:
    """Return (the bytes of a block with a table, the hash of its content); without one for more than MOST_KEYS keys
    (`pack_block` is for those). Raises ValueError then. O(n log n).
    """
    keys, counts = columns.keys, columns.counts
    if len(keys) > MOST_KEYS:
        raise ValueError(f"{len(keys)} keys in a block, expected {MOST_KEYS} or fewer")
    pack_one = packer()
    _, stored_keys, hashes, exact = packed_keys(keys, pack_one)
    packed_values = pack_each(columns.values, pack_one)
    parts = [bytes([_FIVE]), array_header(len(keys))]
    key_places = list(accumulate(map(len, stored_keys), initial=sum(map(len, parts))))
    parts += stored_keys
    between = [pack_one(pack_counts(columns)), array_header(len(columns.ints))]
    size, ints = key_places[-1] + sum(map(len, between)), array("I")
    for column in columns.ints:
        between.append(pack_one(to_little(column)))
        size += len(between[-1])
        ints.append(size - 8 * len(column))
    between.append(array_header(len(packed_values)))
    value_places = list(accumulate(map(len, packed_values), initial=size + len(between[-1])))
    parts += between
    parts += packed_values
    rows = array("I") if counts is None else array("I", accumulate(counts, initial=0))
    if counts is not None:
        value_places = list(map(value_places.__getitem__, rows))
    froms = array("q") if columns.froms is None else short_froms(columns.froms)
    flags = (_ONE_FROM if len(froms) == 1 else _FROMS) if froms else 0
    flags |= 0 if counts is None else _COUNTED
    checks = _checks(columns, hashes if exact else list(map(zlib.crc32, stored_keys)), packed_values)
    # by columns, where the last one of `value_places` is the end of all
    slots = list(map(SLOT.pack, hashes, key_places, value_places, islice(value_places, 1, None), checks))
    order = sorted(range(len(keys)), key=hashes.__getitem__)
    table = b"".join(
        (
            *map(slots.__getitem__, order),
            to_little(array("H", order)) if rows or ints or froms else b"",
            to_little(rows),
            to_little(ints),
            to_little(froms),
            _TAIL.pack(len(keys), len(ints), flags),
        )
    )
    parts.append(pack_one(table + _CHECK.pack(zlib.crc32(table))))
    payload = b"".join(parts)
    return seal(payload), content_hash(payload)


def _checks(columns: Columns, key_checks: list[int], packed_values: list[bytes]) -> list[int]:
    """Return a checksum for each key: the crc32 of its packed key (`key_checks`), its packed values, and its int64s of
    each column, one after the other. O(bytes).
    """
    counts = columns.counts
    if counts is not None:
        ends = list(accumulate(counts, initial=0))
        packed_values = [b"".join(packed_values[first:last]) for first, last in pairwise(ends)]
    checks = list(map(zlib.crc32, packed_values, key_checks))
    for column in columns.ints:
        data = to_little(column)
        spans = zip(range(len(checks)), range(1, len(checks) + 1), strict=True) if counts is None else pairwise(ends)
        checks = [
            zlib.crc32(data[8 * first : 8 * last], check) for (first, last), check in zip(spans, checks, strict=True)
        ]
    return checks


class Whole:
    """A block without a table: it is decoded."""

    __slots__ = ("_columns",)
    # Whether this object may be kept: it holds all records.
    kept: Final = False
    # Whether all records were decoded to find one of them.
    decoded: Final = True

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    @property
    def hiding(self) -> list[int]:
        """How many keys hide older records (`hiding`), as the only item. O(keys)."""
        return [hiding(self._columns)]

    def rows_of(self, key: Any) -> Columns:
        """Return the records of a key. O(log keys), with counts O(keys)."""
        return self._columns.between(key, key)

    def record_of(self, key: Any) -> Record | None:
        """Return the only record of a key, None if the block has none. O(log keys), with counts O(keys)."""
        return only_record(self.rows_of(key))

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of the keys has. O(log keys) for each, with counts O(keys)."""
        return [len(self.rows_of(key)) for key in keys]

    def present(self, keys: Sequence[Any]) -> list[bool]:
        """Return whether each of the keys has records. O(log keys) for each, with counts O(keys)."""
        return list(map(bool, self.counts_of(keys)))

    def no_rows(self) -> Columns:
        """Return no records, with the columns of this block."""
        return Columns([], None, tuple(array("q") for _ in self._columns.ints), [])


class RecordTable:
    """The table of a block. `kept`: the bytes are mapped, so keeping it takes no memory. `begin`: of its slots."""

    decoded: Final = False
    __slots__ = (
        "_around",
        "_froms",
        "_ints",
        "_order",
        "_payload",
        "_places",
        "_rows",
        "_shift",
        "_where",
        "begin", "checksum",
        "hashes", "index",
        "kept", "stretches"
    )  # fmt: skip

    def __init__(self, data: memoryview, where: str, *, kept: bool) -> None:
        """Raises ValueError or TypeError for a table of another form, or with another checksum. O(table)."""
        self.kept = kept
        self.index: LayerIndex | None = None  # of the layers that were last read over it
        self._where = where
        # a single view: each object of a block that a read touches is a miss of the processor's cache
        self._payload, self.checksum = data[4:], int.from_bytes(data[:4], "little")
        self.stretches: Any = None  # see `table_range`
        count, columns, flags = _TAIL.unpack_from(data, len(data) - _END)
        if flags not in _FLAGS:
            raise ValueError(f"flags {flags}")
        counted, froms = flags & _COUNTED, count if flags & _FROMS else 1 if flags & _ONE_FROM else 0
        order, rows = 2 * count if counted or columns or froms else 0, 4 * (count + 1) * counted
        sizes = (SLOT.size * count, order, rows, 4 * columns, 8 * froms)
        start = len(data) - _END - sum(sizes)
        if start < 4:
            raise ValueError(f"a table of {count} keys in {len(data)} bytes")
        if _CHECK.unpack_from(data, len(data) - _CHECK.size)[0] != zlib.crc32(data[start : len(data) - _CHECK.size]):
            raise ValueError("checksum mismatch (reopen to fall back to the previous checkpoint)")
        begins = accumulate(sizes, initial=start)
        views = [data[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
        self.hashes = views[0].cast("I")[:: SLOT.size // 4]
        self.begin = start - 4  # in the payload, as all other places
        self._order = views[1].cast("H") if order else None
        self._rows = views[2].cast("I") if counted else None
        self._ints = views[3].cast("I") if columns else None
        self._froms = views[4].cast("q") if froms else None
        # Hashes are spread evenly: two and a half standard deviations around where one is expected.
        self._around = 5 * isqrt(count) // 4
        # where the hashes of equal leading bits begin, and the end: a search in between touches one or two lines of
        # memory, where one around the expected place touches five
        self._places: array[int] | None = None
        self._shift = 32 - (count.bit_length() - _PLACE_BITS if kept and count >> 2 * _PLACE_BITS else 0)

    @property
    def size(self) -> int:
        """The bytes of the table. O(1)."""
        return len(self._payload) - self.begin

    def __len__(self) -> int:
        """How many keys the block has."""
        return len(self.hashes)

    @property
    def hiding(self) -> list[int]:
        """How many keys hide older records (`hiding`), as the only item. O(keys)."""
        froms = self._froms
        if froms is None:
            return [len(self)]
        return [len(self) - froms.tolist().count(ADDED) * (len(self) if len(froms) == 1 else 1)]

    def first_of(self, hashed: int) -> int:
        """Return the index of the first hash that is not below this one. O(log keys)."""
        hashes, around = self.hashes, self._around
        end = len(hashes)
        expected = hashed * end >> 32
        low, high = expected - around, expected + around
        if low > 0 and high < end:
            i = bisect_left(hashes, hashed, low, high)
            if low < i < high:
                return i
        return bisect_left(hashes, hashed)

    def _find_places(self) -> array[int]:
        """Find where the hashes of equal leading bits begin, once single records are read. O(keys)."""
        hashes, shift = self.hashes.tolist(), self._shift
        size = "H" if len(hashes) < MOST_KEYS else "I"
        places = array(size, (bisect_left(hashes, first << shift) for first in range(1 << 32 - shift)))
        places.append(len(hashes))
        self._places = places
        return places

    def slot_of(self, wanted: PackedKey, i: int | None = None) -> int:
        """Return the index of the hash of this key, -1 if the block does not have the key. `i`: what `first_of` says of
        its hash, if that is known. Raises CorruptCheckpointError. O(log keys).
        """
        key, packed, hashed, _ = wanted
        hashes = self.hashes
        if i is None:
            i = self.first_of(hashed)
        end = len(hashes)
        try:
            while i < end and hashes[i] == hashed:
                if self._stored(i, len(packed)) == packed:
                    return i
                # another key of the same hash, an equal key (0.0 and -0.0), or damage
                stored = self._key(i)
                if zlib.crc32(pack(plain(stored))) != hashed:
                    raise self._damaged()
                if stored == key:
                    return i
                i += 1
        except (*UNPACK_ERRORS, struct.error) as error:
            raise self._unreadable(error) from error
        return -1

    def _key(self, i: int) -> Any:
        """Return the key of a hash, whose length is not known. Raises one of UNPACK_ERRORS. O(key)."""
        try:
            # not the rest of the block: many keys may have one hash
            return unpacker(self._stored(i, _NEAR)).unpack()
        except UNPACK_ERRORS:
            return unpacker(self._stored(i, len(self._payload))).unpack()

    def _stored(self, i: int, size: int) -> bytes:
        """Return so many bytes of the packed key of a hash."""
        start = SLOT.unpack_from(self._payload, self.begin + SLOT.size * i)[1]
        return self._payload[start : start + size].tobytes()  # a view compares byte by byte

    def rows_of(self, key: Any) -> Columns:
        """Return the records of a key, none if the block has none. Raises CorruptCheckpointError. O(log keys)."""
        wanted = packed_key(key)
        i = self.slot_of(wanted)
        return self.no_rows() if i < 0 else self.rows_at(i, wanted)

    def rows_at(self, i: int, wanted: PackedKey) -> Columns:
        """Return the records of the key of a hash. Raises CorruptCheckpointError. O(records)."""
        try:
            key, check = wanted.key, wanted.hash
            if not wanted.exact:
                stored = self._stored(i, len(wanted.packed))  # equal keys are as long
                key, check = unpack(stored), zlib.crc32(stored)
            return self._read(i, key, check)
        except (*UNPACK_ERRORS, struct.error) as error:
            raise self._unreadable(error) from error

    def no_rows(self) -> Columns:
        """Return no records, with the columns of this block."""
        return Columns([], None, tuple(array("q") for _ in self._ints or ()), [])

    def record_of(self, key: Any) -> Record | None:
        """Return the only record of a key, None if the block has none. Raises CorruptCheckpointError. O(log keys)."""
        exact = type(key) in EXACT
        packed = PACKERS.pack(key) if exact else pack(plain(key))
        return self.record_at(key, packed, zlib.crc32(packed), exact)

    def record_at(self, key: Any, packed: bytes, hashed: int, exact: bool, i: int | None = None) -> Record | None:
        """Return the only record of a key, given as by `packed_key`, as `record_of`. `i`: what `slot_of` says of the
        key, if that is known.
        """
        if i is None and self._shift < 32:
            places, at = self._places or self._find_places(), hashed >> self._shift
            high = places[at + 1]
            i = bisect_left(self.hashes, hashed, places[at], high)
            if i == high:
                return None
        elif i is None:
            i = self.first_of(hashed)
            if i == len(self.hashes):
                return None
        if self._rows is None:
            # as below, without calls: the way of most reads
            try:
                payload = self._payload
                hash_there, at, start, stop, check = SLOT.unpack_from(payload, self.begin + SLOT.size * i)
                if hash_there != hashed:
                    return None
                if payload[at : at + len(packed)].tobytes() == packed:
                    packed_value = payload[start:stop]
                    hashed = zlib.crc32(packed_value, hashed)
                    ints: list[int] = []
                    if self._order is not None:
                        place = _INT.size * self._order[i]
                        for first in self._ints or ():
                            hashed = zlib.crc32(payload[first + place : first + place + _INT.size], hashed)
                            ints += _INT.unpack_from(payload, first + place)
                    if hashed != check:
                        raise self._damaged()
                    return (unpack(packed_value), *ints)
            except (*UNPACK_ERRORS, struct.error) as error:
                raise self._unreadable(error) from error
        elif self.hashes[i] != hashed:
            return None
        wanted = PackedKey(key, packed, hashed, exact)
        i = self.slot_of(wanted, i)
        return None if i < 0 else only_record(self.rows_at(i, wanted))

    def slot_times(self) -> Iterable[int]:
        """Return the first integer of the first record of each hash, 0 for a hash of no record. O(keys)."""
        if not self._ints or self._order is None:
            return repeat(0)
        rows = None if self._rows is None else self._rows.tolist()
        (first, *_), count = self._ints, len(self) if rows is None else rows[-1]
        times = array("Q")
        times.frombytes(self._payload[first : first + 8 * count])
        if rows is None:
            return list(map(times.__getitem__, self._order))
        return [times[rows[place]] if rows[place] < rows[place + 1] else 0 for place in self._order]

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(log keys) for each."""
        return self.counts(packed_keys(keys)) if keys else []

    def slots_of(self, wanted: PackedKeys) -> list[int]:
        """Return for each key what `slot_of` says of it. Raises CorruptCheckpointError. O(log keys) for each."""
        hashes, payload, slots, around = self.hashes, self._payload, self.begin, self._around
        end, head_of = len(hashes), _HEAD.unpack_from
        indexes: list[int] = []
        for packed, hashed in zip(wanted.packed, wanted.hashes, strict=True):
            # as `first_of` and `slot_of`, without their calls for the key that is nearly always the first of its hash
            expected = hashed * end >> 32
            low, high = expected - around, expected + around
            if not (low > 0 and high < end and low < (i := bisect_left(hashes, hashed, low, high)) < high):
                i = bisect_left(hashes, hashed)
            there, start = (0, 0) if i == end else head_of(payload, slots + SLOT.size * i)
            if i == end or there != hashed:
                i = -1
            elif payload[start : start + len(packed)].tobytes() != packed:
                i = self.slot_of(wanted.at(len(indexes)), i)
            indexes.append(i)
        return indexes

    def counts(self, wanted: PackedKeys) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(log keys) for each."""
        slots = self.slots_of(wanted)
        if self.single:
            return [1 if i >= 0 else 0 for i in slots]
        return [self.count_at(i) if i >= 0 else 0 for i in slots]

    def present(self, keys: Sequence[Any]) -> list[bool]:
        """Return whether each of the keys has records. Raises and costs as `counts_of`."""
        return list(map(bool, self.counts_of(keys)))

    @property
    def single(self) -> bool:
        """True where each key has one record. O(1)."""
        return self._rows is None

    @property
    def deletes(self) -> bool:
        """True where a key has no records: it was deleted. O(keys)."""
        return self._rows is not None and len(set(self._rows)) <= len(self)

    def count_at(self, i: int) -> int:
        """Return how many records the key of a hash has. O(1)."""
        rows = self._rows
        if rows is None:
            return 1
        place = self._order[i]  # type: ignore[index]  # a table with rows has it
        return rows[place + 1] - rows[place]

    @property
    def plain(self) -> bool:
        """True where each key has one record of a value alone. O(1)."""
        return self._order is None

    @property
    def whole(self) -> bool:
        """True where the records of each key replace all older ones."""
        return self._froms is None

    def _unreadable(self, error: Exception) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._where}: record cannot be read: {error}")

    def _damaged(self) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self._where}: record checksum mismatch (reopen to fall back to the previous checkpoint)"
        )

    def _read(self, i: int, key: Any, check: int) -> Columns:
        payload, rows, froms = self._payload, self._rows, None
        place = 0 if self._order is None else self._order[i]
        if self._froms is not None:
            froms = [self._froms[place if len(self._froms) > 1 else 0]]
        *_, start, end, expected = SLOT.unpack_from(payload, self.begin + SLOT.size * i)
        first, last = (place, place + 1) if rows is None else (rows[place], rows[place + 1])
        check = zlib.crc32(payload[start:end], check)
        ints = tuple(self._times(first, last))
        for column in ints:
            check = zlib.crc32(to_little(column), check)
        if check != expected:
            raise self._damaged()
        if last == first + 1:
            values = [unpack(payload[start:end])]
            counts = None
        else:
            values = unpack(array_header(last - first) + bytes(payload[start:end]))
            counts = [last - first]
        return Columns([key], counts, ints, values, froms)

    def _times(self, first: int, last: int) -> Iterable[array[int]]:
        for at in self._ints or ():
            column = array("q")
            column.frombytes(self._payload[at + 8 * first : at + 8 * last])
            yield column


def only_record(rows: Columns) -> Record | None:
    """Return the value and the integers of the only one of these records, None without one."""
    return (rows.values[0], *(column[0] for column in rows.ints)) if rows.values else None


def has_table(data: bytes | memoryview) -> bool:
    """Return whether single records of a block are read without the others. O(1)."""
    return len(data) > 4 and data[4] == _FIVE and sys.byteorder == "little"


def look_into(data: bytes | memoryview, where: str, *, kept: bool) -> RecordTable | Whole:
    """Return what finds single records of a block: its table, or, without one, all its records. Raises
    CorruptCheckpointError, naming `where`, when the checksum or the form of the table is wrong, or of a block without
    one. O(table), O(size) without one.
    """
    if not has_table(data):
        return Whole(unpack_block(data, where))
    try:
        return RecordTable(memoryview(data), where, kept=kept)
    except (ValueError, TypeError, struct.error) as error:
        raise CorruptCheckpointError(f"{where}: table of the block cannot be read: {error}") from error


def table_fault(data: bytes | memoryview, columns: Columns) -> str | None:
    """Return how the table of a block differs from its records as text, or None. O(n log n)."""
    lookup = look_into(data, "", kept=False)
    if isinstance(lookup, Whole):
        return None
    if len(lookup) != len(columns.keys):
        return f"its table has {len(lookup)} keys, the block {len(columns.keys)}"
    start = 0
    counts = columns.counts or [1] * len(columns.keys)
    for at, (key, count) in enumerate(zip(columns.keys, counts, strict=True)):
        rows = lookup.rows_of(key)
        time = None if columns.froms is None else [columns.froms[at]]
        ints = tuple(column[start : start + count] for column in columns.ints)
        values = columns.values[start : start + count]
        start += count
        if rows.keys != [key] or rows.ints != ints or pack(rows.values) != pack(values) or rows.froms != time:
            return f"its table says something else of key {key!r} than its records"
    return None
