"""Layers: find the records of one key in a block with layers over it, without decoding either.

From the newest layer that knows the key down to the first that replaces all older records. The surprise: most keys are
in no layer, and to learn that takes longer than the rest of a read, where an index of the layers' hashes
(`layer_index`) does not say so at once.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from changelog.codec import pack

from .block import Columns
from .layer_index import MOST_LAYERS, LayerIndex
from .packed_key import EXACT, PACKERS, PackedKey, packed_key, packed_keys, plain
from .table import Record, RecordTable, Whole, only_record

# To search a layer for a key takes as long as to put so many hashes into a set.
_SEARCH_PRICE: Final = 12


class Layers:
    """What finds single records of a block with layers: from the newest that knows the key down to the first that
    replaces all older records.
    """

    __slots__ = ("_index", "_names", "_parts", "_tables", "_whole_tables", "kept")

    def __init__(self, parts: Sequence[RecordTable | Whole], names: Sequence[bytes]) -> None:
        """`parts` are of the layers and of the base, the newest first, and `names` the hashes of their contents."""
        self._parts, self._names = parts, names
        tables = [part for part in parts if isinstance(part, RecordTable)]
        # the parts, where each of them is a table; and where its records replace all older ones
        self._tables = tables if len(tables) == len(parts) else None
        self._whole_tables = self._tables if all(table.whole for table in tables) else None
        # says which layers may have a key, once single records are read
        self._index: LayerIndex | None = None
        self.kept = all(part.kept for part in parts)

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._parts)

    @property
    def decoded(self) -> bool:
        """Whether all records of a part were decoded to find one of them. O(1)."""
        return self._tables is None

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of what was read of the layers. O(1)."""
        return 0 if self._index is None else self._index.bytes_in_memory

    @property
    def hiding(self) -> list[int]:
        """How many keys of the base and of each layer hide older records, the oldest first. O(keys)."""
        return [keys for part in reversed(self._parts) for keys in part.hiding]

    def rows_of(self, key: Any) -> Columns:
        """Return the records of a key, none if it was deleted. Raises CorruptCheckpointError. O(layers log keys)."""
        wanted = packed_key(key)
        rows: Columns | None = None
        for part in self._with_hash(wanted.hash):
            if isinstance(part, Whole):
                older = part.rows_of(key)
                if not older.keys:
                    continue
            else:
                i = part.slot_of(wanted)
                if i < 0:
                    continue
                older = part.rows_at(i, wanted)
            rows = older if rows is None else _laid_on(older, rows)
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
        tables = self._whole_tables
        if tables is None or len(tables) > MOST_LAYERS:
            return only_record(self.rows_of(key))
        exact = type(key) in EXACT
        packed = PACKERS.pack(key) if exact else pack(plain(key))
        hashed = zlib.crc32(packed)
        for number in (self._index or self._find_index(tables)).layers_of(hashed):
            layer = tables[-2 - number]
            if layer.plain:
                record = layer.record_at(key, packed, hashed, exact)
                if record is not None:
                    return record
            elif (i := layer.slot_of(PackedKey(key, packed, hashed, exact))) >= 0:
                return layer.record_at(key, packed, hashed, exact, i)
        return tables[-1].record_at(key, packed, hashed, exact)

    def _with_hash(self, hashed: int) -> Sequence[RecordTable | Whole]:
        """Return the parts that may have a key of this hash, the newest first. O(1) where an index says so."""
        tables = self._tables
        if tables is None or len(tables) > MOST_LAYERS or not self.kept:
            return self._parts
        layers = (self._index or self._find_index(tables)).layers_of(hashed)
        return [*(tables[-2 - number] for number in layers), tables[-1]]

    def _find_index(self, tables: list[RecordTable]) -> LayerIndex:
        """Find the index of the layers, from the one that the base knows. O(hashes of new layers)."""
        base = tables[-1]
        names = tuple(reversed(self._names[:-1]))
        self._index = base.index = (base.index or LayerIndex()).over(names, lambda i: tables[-2 - i].hashes.tolist())
        return self._index

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of the keys has. Raises CorruptCheckpointError. O(hashes of the layers), and
        O(log keys) for each; O(layers log keys) for each that a layer knows.
        """
        tables = self._whole_tables
        if tables is None:
            return [len(self.rows_of(key)) for key in keys]
        if not keys:
            return []
        wanted = packed_keys(keys)
        *layers, base = tables
        counts = base.counts(wanted)
        asked: Sequence[int] = range(len(keys))
        if all(table.single for table in tables):
            # nothing was deleted, so a key of the base has its record whatever the layers say, and the largest of
            # these, the oldest ones, have most of the others
            asked = [at for at, count in enumerate(counts) if not count]
            layers.reverse()
            if not asked:
                return counts
        # most keys are in no layer: the hashes that are in one say so at once, if they are not too many to be read
        known: set[int] | None = None
        if _SEARCH_PRICE * len(asked) * len(layers) > sum(map(len, layers)):
            known = {wanted.hashes[at] for at in asked}
            known.intersection_update(chain.from_iterable([layer.hashes.tolist() for layer in layers]))
        for at in asked:
            if known is None or wanted.hashes[at] in known:
                key = wanted.at(at)
                for layer in layers:
                    if (i := layer.slot_of(key)) >= 0:
                        counts[at] = layer.count_at(i)
                        break
        return counts

    def present(self, keys: Sequence[Any]) -> list[bool]:
        """Return whether each of the keys has records, however many. Raises CorruptCheckpointError. O(log keys) for
        each, in each layer that deletes, and in the others as long as some key is in none of the older parts.
        """
        tables = [part for part in reversed(self._parts) if isinstance(part, RecordTable)]
        if len(tables) < len(self._parts) or not keys:
            return [bool(self.rows_of(key).values) for key in keys]
        wanted = packed_keys(keys)
        base, *layers = tables
        present = [count > 0 for count in base.counts(wanted)]
        for layer in layers:
            if all(present) and not layer.deletes:
                continue
            for at, i in enumerate(layer.slots_of(wanted)):
                if i >= 0:
                    present[at] = layer.count_at(i) > 0 or bool(self.rows_of(keys[at]).values)
        return present


def _laid_on(older: Columns, newer: Columns) -> Columns:
    """Return what two layers say of one key, as `composed` does. O(records), at C speed."""
    assert newer.froms is not None
    since, rows = newer.froms[0], len(older)
    first = bisect_left(older.ints[0], since) if rows else 0
    if not rows:
        ints, values = newer.ints, newer.values
    else:
        ints = tuple(before[:first] + after for before, after in zip(older.ints, newer.ints, strict=True))
        values = older.values[:first] + newer.values
    froms = None if older.froms is None else [min(since, older.froms[0])]
    return Columns(newer.keys, None if len(values) == 1 else [len(values)], ints, values, froms)


Lookup = RecordTable | Whole | Layers
