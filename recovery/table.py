"""Table: finds the records of one key in a block without decoding the block. Bytes: docs/format.md, "Table of a block".

    hashes   crc32 of each packed key, ascending      order    which of the keys has the hash
    keys     where each packed key begins             values   where the first value of each key begins
    rows     the first record of each key, in a block with counts
    froms    from which time on the records of each key replace older ones, in a layer with `froms`
    checks   a checksum of each key with its records

A block has a table when it was written under a limit of memory: then single records are read. The table has a checksum
of its own, compared when the table is opened, because a damaged table makes keys absent; that of a record is compared
when the record is read. So the first record of a block costs the bytes of its table, not those of the block.
"""

from __future__ import annotations

import struct
import sys
import threading
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from changelog.codec import UNPACK_ERRORS, array_header, pack, packer, unpack

from .block import (
    ADDED,
    Columns,
    composed,
    content_hash,
    hiding,
    pack_counts,
    seal,
    short_froms,
    to_little,
    unpack_block,
)
from .errors import CorruptCheckpointError

# The end of a table: how many keys, how many columns of integers, and flags; and the checksum of all before it.
_TAIL: Final = struct.Struct("<IHH")
_CHECK: Final = struct.Struct("<I")
_END: Final = _TAIL.size + _CHECK.size
# The flags: counts; `froms`, one for each key; a single one for all.
_COUNTED: Final = 1
_FROMS: Final = 2
_ONE_FROM: Final = 4
_FLAGS: Final = frozenset(counted | froms for counted in (0, _COUNTED) for froms in (0, _FROMS, _ONE_FROM))
# The header of a msgpack array of five items: a block with a table.
_FIVE: Final = 0x95
# The place of a key is a u16.
MOST_KEYS: Final = 1 << 16
# A record: its value, and its integers.
Record: TypeAlias = tuple[Any, ...]
# Keys of these types are equal only if their packed bytes are; 0.0 and -0.0 are equal, too.
_EXACT: Final = (str, bytes, int, bool)


class _Packers(threading.local):
    """A packer for each thread: packing an atom runs no Python code, so nothing can use the packer meanwhile."""

    def __init__(self) -> None:
        self.pack = packer()


_PACKERS: Final = _Packers()


def _plain(key: Any) -> Any:
    """Return an equal key whose packed bytes are those of every equal key: without -0.0."""
    if type(key) is float:
        return key + 0.0
    if type(key) is tuple:
        return tuple(part + 0.0 if type(part) is float else part for part in key)
    return key


class PackedKey(NamedTuple):
    """A key as tables look for it: its packed bytes, their hash, and whether equal keys have equal bytes."""

    key: Any
    packed: bytes
    hash: int
    exact: bool


def packed_key(key: Any) -> PackedKey:
    """Return a key as tables look for it. O(key)."""
    exact = type(key) in _EXACT
    packed = _PACKERS.pack(key) if exact else pack(_plain(key))
    # not PackedKey(...), a Python function that does this line
    return tuple.__new__(PackedKey, (key, packed, zlib.crc32(packed), exact))


class PackedKeys(NamedTuple):
    """Keys of one store as tables look for them, by column, as those of a `PackedKey`."""

    keys: Sequence[Any]
    packed: list[bytes]
    hashes: list[int]
    exact: bool

    def at(self, place: int) -> PackedKey:
        """Return one of the keys. O(1)."""
        return PackedKey(self.keys[place], self.packed[place], self.hashes[place], self.exact)


def packed_keys(keys: Sequence[Any]) -> PackedKeys:
    """Return keys of one store, at least one, as tables look for them: their own packed bytes, not those of an equal
    key. O(keys).
    """
    pack_one = packer()
    packed = list(map(pack_one, keys))
    exact = type(keys[0]) in _EXACT
    hashes = list(map(zlib.crc32, packed if exact else map(pack_one, map(_plain, keys))))
    return PackedKeys(keys, packed, hashes, exact)


def pack_with_table(columns: Columns) -> tuple[bytes, bytes]:
    """Return (the bytes of a block with a table, the hash of its content); without one for more than MOST_KEYS keys
    (`pack_block` is for those). Raises ValueError then. O(n log n).
    """
    keys, counts = columns.keys, columns.counts
    if len(keys) > MOST_KEYS:
        raise ValueError(f"{len(keys)} keys in a block, expected {MOST_KEYS} or fewer")
    pack_one = packer()
    _, stored_keys, hashes, exact = packed_keys(keys)
    order = sorted(range(len(keys)), key=hashes.__getitem__)
    packed_values = list(map(pack_one, columns.values))
    size = 0
    parts: list[bytes] = []

    def add(*pieces: bytes) -> int:
        nonlocal size
        parts.extend(pieces)
        size += sum(map(len, pieces))
        return size

    start = add(bytes([_FIVE]), array_header(len(keys)))
    key_places = array("I", accumulate(map(len, stored_keys), initial=start))
    add(*stored_keys)
    add(packer()(pack_counts(columns)), array_header(len(columns.ints)))
    ints = array("I")
    for column in columns.ints:
        ints.append(add(pack_one(to_little(column))) - 8 * len(column))
    value_places = array("I", accumulate(map(len, packed_values), initial=add(array_header(len(packed_values)))))
    add(*packed_values)
    rows = array("I") if counts is None else array("I", accumulate(counts, initial=0))
    froms = array("q") if columns.froms is None else short_froms(columns.froms)
    flags = (_ONE_FROM if len(froms) == 1 else _FROMS) if froms else 0
    flags |= 0 if counts is None else _COUNTED
    table = b"".join(
        (
            to_little(array("I", map(hashes.__getitem__, order))),
            to_little(array("H", order)),
            to_little(key_places),
            to_little(value_places if counts is None else array("I", map(value_places.__getitem__, rows))),
            to_little(rows),
            to_little(ints),
            to_little(froms),
            to_little(_checks(columns, hashes if exact else list(map(zlib.crc32, stored_keys)), packed_values)),
            _TAIL.pack(len(keys), len(ints), flags),
        )
    )
    add(pack_one(table + _CHECK.pack(zlib.crc32(table))))
    payload = b"".join(parts)
    return seal(payload), content_hash(payload)


def _checks(columns: Columns, key_checks: list[int], packed_values: list[bytes]) -> array[int]:
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
    return array("I", checks)


class Whole:
    """A block without a table: it is decoded."""

    __slots__ = ("_columns",)
    # Whether this object may be kept: it holds all records.
    kept: Final = False

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

    def no_rows(self) -> Columns:
        """Return no records, with the columns of this block."""
        return Columns([], None, tuple(array("q") for _ in self._columns.ints), [])


class RecordTable:
    """The table of a block. `kept`: the bytes are mapped, so keeping it takes no memory."""

    __slots__ = (
        "_checks", "_froms", "_ints", "_keys", "_order", "_payload", "_rows", "_values", "_where", "hashes", "kept"
    )  # fmt: skip

    def __init__(self, data: memoryview, where: str, *, kept: bool) -> None:
        """Raises ValueError or TypeError for a table of another form, or with another checksum. O(table)."""
        self.kept = kept
        self._where = where
        self._payload = data[4:]
        count, columns, flags = _TAIL.unpack_from(data, len(data) - _END)
        if flags not in _FLAGS:
            raise ValueError(f"flags {flags}")
        counted, froms = flags & _COUNTED, count if flags & _FROMS else 1 if flags & _ONE_FROM else 0
        places, rows = 4 * (count + 1), 4 * (count + 1) * counted
        sizes = (4 * count, 2 * count, places, places, rows, 4 * columns, 8 * froms, 4 * count)
        start = len(data) - _END - sum(sizes)
        if start < 4:
            raise ValueError(f"a table of {count} keys in {len(data)} bytes")
        if _CHECK.unpack_from(data, len(data) - _CHECK.size)[0] != zlib.crc32(data[start : len(data) - _CHECK.size]):
            raise ValueError("checksum mismatch (reopen to fall back to the previous checkpoint)")
        begins = accumulate(sizes, initial=start)
        views = [data[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
        self.hashes, self._keys, self._values = (views[i].cast("I") for i in (0, 2, 3))
        self._order = views[1].cast("H")
        self._rows = views[4].cast("I") if counted else None
        self._ints = views[5].cast("I") if columns else None
        self._froms = views[6].cast("q") if froms else None
        self._checks = views[7].cast("I")

    @property
    def size(self) -> int:
        """The bytes of the table. O(1)."""
        parts = self.hashes, self._order, self._keys, self._values, self._rows, self._ints, self._froms, self._checks
        return sum(part.nbytes for part in parts if part is not None) + _END

    def __len__(self) -> int:
        """How many keys the block has."""
        return len(self._order)

    @property
    def hiding(self) -> list[int]:
        """How many keys hide older records (`hiding`), as the only item. O(keys)."""
        froms = self._froms
        if froms is None:
            return [len(self)]
        if len(froms) == 1:
            return [0 if froms[0] == ADDED else len(self)]
        return [len(self) - froms.tolist().count(ADDED)]

    def place_of(self, wanted: PackedKey, i: int | None = None) -> int:
        """Return which of the keys this is, -1 for none of them. `i`: the first of the hashes that is not below that of
        the key, if it is known. Raises CorruptCheckpointError. O(log keys).
        """
        key, packed, hashed, exact = wanted
        hashes, order, keys, payload = self.hashes, self._order, self._keys, self._payload
        if i is None:
            i = bisect_left(hashes, hashed)
        end = len(hashes)
        try:
            while i < end and hashes[i] == hashed:
                place = order[i]
                stored = payload[keys[place] : keys[place + 1]].tobytes()  # a view compares byte by byte
                if stored == packed if exact else unpack(stored) == key:
                    return place
                if zlib.crc32(stored if exact else pack(_plain(unpack(stored)))) != hashed:
                    raise self._damaged()  # not another key of the same hash
                i += 1
        except (*UNPACK_ERRORS, struct.error) as error:
            raise self._unreadable(error) from error
        return -1

    def rows_of(self, key: Any) -> Columns:
        """Return the records of a key, none if the block has none. Raises CorruptCheckpointError. O(log keys)."""
        wanted = packed_key(key)
        place = self.place_of(wanted)
        return self.no_rows() if place < 0 else self.rows_at(place, wanted)

    def rows_at(self, place: int, wanted: PackedKey) -> Columns:
        """Return the records of the key at a place. Raises CorruptCheckpointError. O(records)."""
        try:
            key, check = wanted.key, wanted.hash
            if not wanted.exact:
                stored = self._payload[self._keys[place] : self._keys[place + 1]]
                key, check = unpack(stored), zlib.crc32(stored)
            return self._read(place, key, check)
        except (*UNPACK_ERRORS, struct.error) as error:
            raise self._unreadable(error) from error

    def no_rows(self) -> Columns:
        """Return no records, with the columns of this block."""
        return Columns([], None, tuple(array("q") for _ in self._ints or ()), [])

    def record_of(self, key: Any) -> Record | None:
        """Return the only record of a key, None if the block has none. Raises CorruptCheckpointError. O(log keys)."""
        wanted = packed_key(key)
        place = self.place_of(wanted)
        return None if place < 0 else self.record_at(place, wanted)

    def record_at(self, place: int, wanted: PackedKey) -> Record | None:
        """Return the only record of the key at a place, None if its records were deleted. Raises
        CorruptCheckpointError. O(1).
        """
        if self._rows is not None or self._ints is not None:
            return only_record(self.rows_at(place, wanted))
        try:
            values, check = self._values, wanted[2]
            if not wanted[3]:
                check = zlib.crc32(self._payload[self._keys[place] : self._keys[place + 1]])
            packed_value = self._payload[values[place] : values[place + 1]]
            if zlib.crc32(packed_value, check) != self._checks[place]:
                raise self._damaged()
            return (unpack(packed_value),)
        except (*UNPACK_ERRORS, struct.error) as error:
            raise self._unreadable(error) from error

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(log keys) for each."""
        return self.counts(packed_keys(keys)) if keys else []

    def counts(self, wanted: PackedKeys) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(log keys) for each."""
        hashes, order, starts, payload = self.hashes, self._order, self._keys, self._payload
        exact, end = wanted.exact, len(hashes)
        counts: list[int] = []
        for at, (packed, hashed) in enumerate(zip(wanted.packed, wanted.hashes, strict=True)):
            i = bisect_left(hashes, hashed)
            place = -1
            if i < end and hashes[i] == hashed:
                place = order[i]
                # as `place_of`, without its call for the key that is nearly always the first of its hash
                if not exact or payload[starts[place] : starts[place + 1]].tobytes() != packed:
                    place = self.place_of(wanted.at(at), i)
            counts.append(0 if place < 0 else self.count_at(place))
        return counts

    def count_at(self, place: int) -> int:
        """Return how many records the key at a place has. O(1)."""
        return 1 if self._rows is None else self._rows[place + 1] - self._rows[place]

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

    def _read(self, place: int, key: Any, check: int) -> Columns:
        payload, rows, froms = self._payload, self._rows, None
        if self._froms is not None:
            froms = [self._froms[place if len(self._froms) > 1 else 0]]
        start, end = self._values[place], self._values[place + 1]
        first, last = (place, place + 1) if rows is None else (rows[place], rows[place + 1])
        check = zlib.crc32(payload[start:end], check)
        ints = tuple(self._times(first, last))
        for column in ints:
            check = zlib.crc32(to_little(column), check)
        if check != self._checks[place]:
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


class Layers:
    """What finds single records of a block with layers: from the newest that knows the key down to the first that
    replaces all older records.
    """

    __slots__ = ("_parts", "_tables", "kept")

    def __init__(self, parts: Sequence[RecordTable | Whole]) -> None:
        """`parts` are of the layers and of the base, the newest first."""
        self._parts = parts
        tables = [part for part in parts if isinstance(part, RecordTable) and part.whole]
        # the parts, where each of them is a table whose records replace all older ones
        self._tables = tables if len(tables) == len(parts) else None
        self.kept = all(part.kept for part in parts)

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._parts)

    @property
    def hiding(self) -> list[int]:
        """How many keys of the base and of each layer hide older records, the oldest first. O(keys)."""
        return [keys for part in reversed(self._parts) for keys in part.hiding]

    def rows_of(self, key: Any) -> Columns:
        """Return the records of a key, none if it was deleted. Raises CorruptCheckpointError. O(layers log keys)."""
        wanted = packed_key(key)
        rows: Columns | None = None
        for part in self._parts:
            if isinstance(part, Whole):
                older = part.rows_of(key)
                if not older.keys:
                    continue
            else:
                place = part.place_of(wanted)
                if place < 0:
                    continue
                older = part.rows_at(place, wanted)
            rows = older if rows is None else composed(older, rows)
            if rows.froms is None:
                break
        if rows is None or not rows.values:
            last = self._parts[-1]
            return Columns([], None, last.no_rows().ints if rows is None else rows.ints, [])
        return Columns(rows.keys, rows.counts, rows.ints, rows.values)

    def record_of(self, key: Any) -> Record | None:
        """Return the only record of a key, None if the block has none. Raises CorruptCheckpointError. O(layers log
        keys).
        """
        tables = self._tables
        if tables is None:
            return only_record(self.rows_of(key))
        wanted = packed_key(key)
        hashed = wanted[2]
        for part in tables:
            # most parts do not know the key: one search in C for each
            hashes = part.hashes
            i = bisect_left(hashes, hashed)
            if i < len(hashes) and hashes[i] == hashed and (place := part.place_of(wanted, i)) >= 0:
                return part.record_at(place, wanted)
        return None

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(hashes of the layers), and
        O(log keys) for each; O(layers log keys) for each that a layer knows.
        """
        tables = self._tables
        if tables is None:
            return [len(self.rows_of(key)) for key in keys]
        if not keys:
            return []
        wanted = packed_keys(keys)
        *layers, base = tables
        counts = base.counts(wanted)
        # most keys are in no layer: a set of all hashes says so at once
        known: set[int] = set().union(*(layer.hashes for layer in layers))
        for at, hashed in enumerate(wanted.hashes):
            if hashed in known:
                key = wanted.at(at)
                for layer in layers:
                    if (place := layer.place_of(key)) >= 0:
                        counts[at] = layer.count_at(place)
                        break
        return counts


def only_record(rows: Columns) -> Record | None:
    """Return the value and the integers of the only one of these records, None without one."""
    return (rows.values[0], *(column[0] for column in rows.ints)) if rows.values else None


Lookup = RecordTable | Whole | Layers


def look_into(data: bytes | memoryview, where: str, *, kept: bool) -> RecordTable | Whole:
    """Return what finds single records of a block: its table, or, without one, all its records. Raises
    CorruptCheckpointError, naming `where`, when the checksum or the form of the table is wrong, or of a block without
    one. O(table), O(size) without one.
    """
    if len(data) < 5 or data[4] != _FIVE or sys.byteorder == "big":
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
