"""Block: the unit that a checkpoint stores and a restore loads. Bytes: docs/format.md, "Block".

A block holds sorted keys, the number of records of each, columns of 64-bit integers (times), and the values:

    keys   [k0, k1, ...]          counts [n0, n1, ...] or None when every key has one record
    ints   (array('q'), ...)      values [v, ...]       both in key order, record by record

A block may have layers over it: blocks of what changed since. The records of a key in a layer replace all older ones,
and a count of 0 deletes them; or, in a layer with `froms`, only those whose time is at or after the key's `from`. So a
row that is added to a key with many rows is one row of a layer.

The format is the same for all kinds of stores: a window store's block has one integer column, a session store's two, a
key-value store's none.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple

from changelog.codec import UNPACK_ERRORS, packer, unpack, unpacker
from changelog.errors import UnsupportedVersionError

from .columns import WHOLE as WHOLE
from .columns import Columns as Columns
from .columns import joined, rows_of, without_ones
from .errors import CorruptCheckpointError

# Loads the block of a line of the directory. Stores get this function instead of a checkpoint.
Loader = Callable[["BlockEntry"], "Columns"]

BLOCK_RECORDS = 4096
# A block of large values is cut below this many bytes, so that loading one is never a long pause.
BLOCK_BYTES = 1 << 20
# How many values a slice has when a block is read in slices: well under a millisecond, except for values of many
# kilobytes.
SLICE_VALUES = 32
HASH_BYTES = 16
# A change of one key in more than so many is merged by the stretches between its keys.
_SPLICED: Final = 16
# The type of an array of counts, by the bytes of each: a layer of few records is mostly these otherwise.
_COUNT_CODES: Final = {1: "B", 2: "H", 4: "I"}
# The `from` of a key of a layer that only adds records, later than all; see also `WHOLE`.
ADDED: Final = (1 << 63) - 1


class Extent(NamedTuple):
    """Where bytes of a block are: `pack` is the number of a pack in the checkpoint's list."""

    pack: int
    offset: int
    size: int
    hash: bytes


class BlockEntry(NamedTuple):
    """A line of a checkpoint's directory: one block of one store, and where its bytes are.

    `low` and `high` bound its first integer column (-1 when it has none); `pack`, `offset`, `size` and `hash` are the
    place of its base. `layers` are the places of what changed since the base was written, the oldest first; all other
    fields are of the block with its layers.
    """

    block: int
    bucket: int
    first: Any
    last: Any
    keys: int
    records: int
    size: int
    low: int
    high: int
    hash: bytes
    pack: int
    offset: int
    layers: tuple[Extent, ...] = ()

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Where the bytes of the base and of the layers are, the oldest first. O(layers)."""
        return Extent(self.pack, self.offset, self.size, self.hash), *self.layers

    @property
    def bytes(self) -> int:
        """The size of the base and of the layers. O(layers)."""
        return self.size + sum(layer.size for layer in self.layers)


class BucketChange(NamedTuple):
    """The changes of one bucket: the new records of changed keys (sorted by key) and the removed keys. `fresh`: no
    older block of the bucket counts.

    `over` has rows of further keys, written while their block was not loaded: the writer of the checkpoint lays them
    over the rows of the older block from the key's `from` on.
    """

    columns: Columns
    removed: set[Any]
    fresh: bool
    over: Columns | None = None


# Lays rows of one key over older ones: (ints, values) of the older, (ints, values) of the newer -> (ints, values) of
# both.
Rows = tuple[tuple[Sequence[int], ...], Sequence[Any]]
Combine = Callable[[Rows, Rows], Rows]


@dataclass(slots=True)
class StoreCapture:
    """Everything that a store gives to a checkpoint: a copy, so that the owner can go on."""

    number: int
    name: str
    kind: str
    parameters: dict[str, Any]
    state: dict[str, Any]
    changed: dict[int, BucketChange]
    dropped: set[int] = field(default_factory=set)
    # Blocks whose largest time is at or before this have no live record: they are left out without being read.
    expired_through: int = -1
    # Lays rows over those of an older block; pure, because another thread calls this function.
    combine: Combine | None = None


def to_little(column: array[int]) -> bytes:
    """Return the bytes of a column, little-endian. O(n)."""
    if sys.byteorder == "big":  # pragma: no cover
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_little(data: bytes, code: str = "q") -> array[int]:
    """Return the column that has these bytes; `code` is the type of its array. O(n)."""
    column = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":  # pragma: no cover
        column.byteswap()
    return column


def content_hash(payload: bytes | memoryview) -> bytes:
    """Return the hash of a record without its checksum: equal content, equal hash."""
    return blake2b(payload, digest_size=HASH_BYTES).digest()


def pack_block(columns: Columns) -> tuple[bytes, bytes]:
    """Return (the block's bytes, the hash of its content). O(size)."""
    payload = packer()(
        [
            columns.keys,
            pack_counts(columns),
            [to_little(column) for column in columns.ints],
            columns.values,
        ]
    )
    return seal(payload), content_hash(payload)


def pack_counts(columns: Columns) -> Any:
    """Return the second part of a block: the counts, None or bytes; with `froms`, both in a list. O(keys)."""
    counts = None
    if columns.counts is not None:
        most = max(columns.counts, default=0)
        code = next(code for size, code in _COUNT_CODES.items() if most < 1 << 8 * size)
        counts = to_little(array(code, columns.counts))
    return counts if columns.froms is None else [counts, to_little(short_froms(columns.froms))]


def short_froms(froms: Sequence[int]) -> array[int]:
    """Return the `froms` of a layer as they are stored: a single one where all are equal. O(keys)."""
    return array("q", froms[:1] if froms.count(froms[0]) == len(froms) else froms)


def seal(payload: bytes) -> bytes:
    """Put a crc32 in front of a record."""
    return zlib.crc32(payload).to_bytes(4, "little") + payload


def is_sound(data: bytes | memoryview) -> bool:
    """True when a block's checksum fits. O(size), without unpacking."""
    return len(data) > 4 and zlib.crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "little")


def unseal(data: bytes | memoryview) -> Any:
    """Return the content of a sealed record. Raises ValueError if the record is damaged. O(size)."""
    if not is_sound(data):
        raise ValueError("checksum mismatch")
    return unpack(memoryview(data)[4:])


def unseal_fields(data: bytes, where: str, version: int) -> dict[str, Any]:
    """Return the fields of a sealed record that says which readers can read it; this one reads format `version`.

    Raises UnsupportedVersionError, naming `where`; ValueError, KeyError or TypeError if the record is damaged. O(size).
    """
    fields: dict[str, Any] = unseal(data)
    if fields["min_reader"] > version:
        raise UnsupportedVersionError(
            f"{where}: format {fields['format']} needs a reader of version {fields['min_reader']}, this one reads "
            f"{version} (upgrade hybridstore)"
        )
    return fields


def unpack_block(data: bytes | memoryview, where: str) -> Columns:
    """Read a block. Raises CorruptCheckpointError, naming `where`, when its checksum or its form is wrong. O(size)."""
    try:
        parts = unpack(_payload(data, where))
        _check_parts(len(parts) if type(parts) is list else None)
        return _columns(*parts)
    except (ValueError, TypeError, OverflowError) as error:
        raise _unreadable(error, where) from error


def unpack_keys(data: bytes | memoryview, where: str) -> Columns:
    """Read a block, but None in place of each value. Raises as `unpack_block`. O(keys), and a copy of the block."""
    try:
        stream = unpacker(_payload(data, where))
        _check_parts(stream.read_array_header())
        keys, counted, packed_ints = stream.unpack(), stream.unpack(), stream.unpack()
        return _columns(keys, counted, packed_ints, [None] * stream.read_array_header())
    except UNPACK_ERRORS as error:
        raise _unreadable(error, where) from error


def _payload(data: bytes | memoryview, where: str) -> memoryview:
    if not is_sound(data):
        raise CorruptCheckpointError(
            f"{where}: block checksum mismatch (reopen to fall back to the previous checkpoint)"
        )
    return memoryview(data)[4:]


def _check_parts(count: int | None) -> None:
    """Raise ValueError unless this is how many parts a block has; None: it is no array."""
    if count not in (4, 5):
        raise ValueError(f"found {'no array' if count is None else f'{count} parts'}, expected 4 parts, or 5")


def _unreadable(error: Exception, where: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{where}: block cannot be read: {error}")


def unpack_block_in_slices(data: bytes, where: str, pause: Callable[[], None]) -> Columns:
    """Read a block as `unpack_block` does, with a call of `pause` every SLICE_VALUES values. O(size)."""
    try:
        stream = unpacker(_payload(data, where))
        parts = stream.read_array_header()
        _check_parts(parts)
        keys, counted, packed_ints = stream.unpack(), stream.unpack(), stream.unpack()
        values: list[Any] = []
        remaining = stream.read_array_header()
        while remaining:
            pause()
            count = min(remaining, SLICE_VALUES)
            values += [stream.unpack() for _ in range(count)]
            remaining -= count
        if parts == 5:
            stream.skip()
        return _columns(keys, counted, packed_ints, values)
    except UNPACK_ERRORS as error:
        raise _unreadable(error, where) from error


def _columns(
    keys: list[Any],
    counted: Any,
    packed_ints: list[bytes],
    values: list[Any],
    table: bytes = b"",
) -> Columns:
    froms = None
    if type(counted) is list:
        packed_counts, packed_froms = counted
        froms = list(from_little(packed_froms))
        froms *= len(keys) if len(froms) == 1 else 1
        if len(froms) != len(keys):
            raise ValueError("keys and froms of different lengths")
    else:
        packed_counts = counted
    counts = None
    if packed_counts is not None:
        code = _COUNT_CODES.get(len(packed_counts) // max(1, len(keys)), "B")  # others have another length
        counts = list(from_little(packed_counts, code))
    ints = tuple(map(from_little, packed_ints))
    records = len(keys) if counts is None else sum(counts)
    if len(values) != records or any(len(column) != records for column in ints):
        raise ValueError("columns of different lengths")
    if counts is not None and len(counts) != len(keys):
        raise ValueError("keys and counts of different lengths")
    return Columns(keys, counts, ints, values, froms)


def merge(old: Columns, changed: Columns, removed: set[Any]) -> Columns:
    """Return `old`, a block, with the records of `changed` in place and without the keys in `removed`.

    O(n log n) in keys, O(n) for few changes and where no key is new.
    """
    if changed.froms is not None:
        changed = _resolved(old, changed)
        if changed.counts is not None and 0 in changed.counts:
            removed = removed.union(key for key, count in zip(changed.keys, changed.counts, strict=True) if not count)
    if (len(changed.keys) + len(removed)) * _SPLICED < len(old.keys):
        return _spliced(old, changed, removed)
    if changed.keys and removed.isdisjoint(changed.keys) and removed.union(changed.keys).issuperset(old.keys):
        # This happens when all keys of a bucket got a record.
        return Columns(changed.keys, without_ones(changed.counts), changed.ints, changed.values)
    return _last(joined((old, changed)), len(old.keys), removed)


def _last(records: Columns, ordered: int, removed: Collection[Any]) -> Columns:
    """Return, sorted, the last records of each key, without those of `removed`; the first `ordered` keys are unique
    and in order. O(n log n), O(n) where those are all keys.
    """
    # a key keeps its place in a dict
    places = dict(zip(records.keys, range(len(records.keys)), strict=True))
    fresh = len(places) > ordered
    for key in removed:
        places.pop(key, None)
    return records.take([*map(places.__getitem__, sorted(places))] if fresh else [*places.values()])


def layer_of(changed: Columns, removed: set[Any]) -> Columns:
    """Return a layer: the records of `changed`, and the keys in `removed`, which have no records. O(n log n)."""
    if not removed:
        return changed
    deleted = Columns(sorted(removed), [0] * len(removed), tuple(array("q") for _ in changed.ints), [])
    return composed((changed, deleted)) if changed.keys else deleted


def with_layers(columns: Columns, layers: Sequence[Columns]) -> Columns:
    """Return the records of a block with layers over them, the oldest first. O(n), and a step for each key of the
    layers; O(n) for each layer that has `froms`.
    """
    if any(layer.froms is not None for layer in layers):
        return reduce(_with_layer, layers, columns)
    return _with_layer(columns, composed(layers)) if layers else columns


def _with_layer(columns: Columns, layer: Columns) -> Columns:
    if layer.froms is not None:
        return merge(columns, layer, set())
    counts = layer.counts
    removed = set() if counts is None else {key for key, count in zip(layer.keys, counts, strict=True) if not count}
    return merge(columns, layer, removed)


def hiding(layer: Columns) -> int:
    """Return how many keys of a layer, or of a base, hide older records: all but those that only add some. O(keys)."""
    return len(layer.keys) - (0 if layer.froms is None else layer.froms.count(ADDED))


def _resolved(old: Columns, changed: Columns) -> Columns:
    """Return `changed` with all records of its keys, those that `old` has from before the key's `from` first. O(rows),
    and O(log n) for each key.
    """
    assert changed.froms is not None
    counts: list[int] = []
    pieces: list[tuple[Columns, int, int]] = []
    offsets, starts = old.offsets(), changed.offsets()
    at, before = 0, old.ints[0] if old.ints else ()
    for key, time, start, end in zip(changed.keys, changed.froms, starts, starts[1:], strict=False):
        at = bisect_left(old.keys, key, at)
        count = end - start
        if time != WHOLE and at < len(old.keys) and old.keys[at] == key:
            first, last = offsets[at], offsets[at + 1]
            last = bisect_left(before, time, first, last)
            pieces.append((old, first, last))
            count += last - first
        pieces.append((changed, start, end))
        counts.append(count)
    ints, values = rows_of(pieces, max(len(old.ints), len(changed.ints)))
    return Columns(changed.keys, without_ones(counts), ints, values)


def composed(layers: Sequence[Columns]) -> Columns:
    """Return the layer that says what several say, the oldest first. O(n log n), and for each layer anew where one of
    them has `froms`.
    """
    if any(layer.froms is not None for layer in layers):
        return reduce(_composed, layers)
    return layers[0] if len(layers) == 1 else _last(joined(layers), 0, ())


def _composed(older: Columns, newer: Columns) -> Columns:
    if older.froms is None and newer.froms is None:
        return composed((older, newer))
    keys = sorted({*older.keys, *newer.keys})
    counts: list[int] = []
    froms: list[int] = []
    rows: list[tuple[Columns, int, int]] = []
    starts = {id(each): dict(zip(each.keys, range(len(each.keys)), strict=True)) for each in (older, newer)}
    offsets = {id(each): each.offsets() for each in (older, newer)}
    for key in keys:
        time, records = ADDED, 0
        pieces: list[tuple[Columns, int, int]] = []
        for layer in (newer, older):
            at = starts[id(layer)].get(key)
            if at is None or time == WHOLE:
                continue
            first, last = offsets[id(layer)][at : at + 2]
            pieces.append((layer, first, bisect_left(layer.ints[0], time, first, last) if pieces else last))
            time = min(time, WHOLE if layer.froms is None else layer.froms[at])
            records += pieces[-1][2] - first
        rows += reversed(pieces)
        counts.append(records)
        froms.append(time)
    ints, values = rows_of(rows, max(len(older.ints), len(newer.ints)))
    return Columns(keys, without_ones(counts), ints, values, None if froms.count(WHOLE) == len(froms) else froms)


def _spliced(old: Columns, changed: Columns, removed: set[Any]) -> Columns:
    """Return the result of `merge`, made of the stretches of `old` between the changed keys.

    O(n), and a step per change.
    """
    offsets, starts = old.offsets(), changed.offsets()
    places = {key: i for i, key in enumerate(changed.keys) if key not in removed}
    keys: list[Any] = []
    counts: list[int] = []
    pieces: list[tuple[Columns, int, int]] = []
    at = 0
    for key in sorted({*changed.keys, *removed}):
        i = bisect_left(old.keys, key, at)
        if i > at:
            keys += old.keys[at:i]
            counts += repeat(1, i - at) if old.counts is None else old.counts[at:i]
            pieces.append((old, offsets[at], offsets[i]))
        at = i + (i < len(old.keys) and old.keys[i] == key)
        if (place := places.get(key)) is not None:
            keys.append(changed.keys[place])
            pieces.append((changed, starts[place], starts[place + 1]))
            counts.append(starts[place + 1] - starts[place])
    keys += old.keys[at:]
    counts += repeat(1, len(old.keys) - at) if old.counts is None else old.counts[at:]
    pieces.append((old, offsets[at], offsets[-1]))
    ints, values = rows_of(pieces, max(len(old.ints), len(changed.ints)))
    return Columns(keys, without_ones(counts), ints, values)


def laid(over: Columns, older_of: Callable[[Any], Columns], combine: Combine, high: int) -> Columns:
    """Return a change that says of each key of `over` what its rows are, laid over those that `older_of` says, from the
    key's `from` on. No older row has a time above `high`. O(rows).
    """
    keys: list[Any] = []
    counts: list[int] = []
    froms: list[int] = []
    all_ints: tuple[array[int], ...] = tuple(array("q") for _ in over.ints)
    all_values: list[Any] = []
    nothing: tuple[array[int], ...] = tuple(array("q") for _ in over.ints)
    none = Columns([], None, nothing, [])
    for at, (key, (start, end)) in enumerate(zip(over.keys, pairwise(over.offsets()), strict=True)):
        time = WHOLE if over.froms is None else over.froms[at]
        older = none if time > high else older_of(key)
        newer = tuple(column[start:end] for column in over.ints), over.values[start:end]
        ints, values = combine((older.ints or nothing, older.values), newer)
        first = bisect_left(ints[0], time)
        if time > high and first == len(values):
            continue
        keys.append(key)
        counts.append(len(values) - first)
        froms.append(time)
        for column, part in zip(all_ints, ints, strict=True):
            column.extend(part[first:])
        all_values.extend(values[first:])
    return Columns(keys, counts, all_ints, all_values, froms)


def lay_over(old: Columns, over: Columns, combine: Combine) -> Columns:
    """Return `old` with the rows of `over` laid over those of the same keys.

    O(n), and O(log n) for each key of `over`.
    """
    change = laid(over, old.rows_by_key(), combine, ADDED)
    return merge(old, change, set())


def entry_of(block: int, bucket: int, columns: Columns, base: Extent, layers: tuple[Extent, ...] = ()) -> BlockEntry:
    """Return the directory line of a block with these records, whose base and layers are at these places."""
    times: Sequence[int] = columns.ints[0] if columns.ints else ()
    return BlockEntry(
        block,
        bucket,
        columns.keys[0],
        columns.keys[-1],
        len(columns.keys),
        len(columns),
        base.size,
        min(times, default=-1),
        max(times, default=-1),
        base.hash,
        base.pack,
        base.offset,
        layers,
    )
