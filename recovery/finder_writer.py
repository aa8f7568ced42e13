"""Finder writer: enters where the records of key-value stores are, for the owner of a state (`finder`).

The writer process makes checkpoints, and enters behind each of them what the checkpoint has written. A state that is
opened with many records has no finder at first: places are entered piece by piece, a few behind each checkpoint and
the others while the process has nothing else to do, the newest record of each key, where nothing is known of the key.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain, dropwhile, repeat, takewhile
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

from changelog.files import TEMPORARY_SUFFIX
from changelog.storage import Storage

from .block import BlockEntry, Extent
from .checkpoint import CheckpointReader
from .directory import Directory
from .errors import CheckpointError
from .finder import BY_BLOCKS, ENTRY_BYTES, TIME_BYTES, StoreFiles, place_shift
from .mapping import map_file
from .meta import StoreRecord
from .packed_key import packed_keys
from .table import SLOT, RecordTable, look_into

# Below, blocks are searched nearly as fast; above, the files have a gigabyte.
FEWEST_RECORDS: Final = 1 << 16
MOST_RECORDS: Final = 50_000_000
# The places of a part are so many, as a power of two; while a store has fewer, it has one part, of fewer places.
PART_BITS: Final = 20
# So many of the places of new parts are taken by the records of a store.
_FULL: Final = 0.625
# At most so many places of a part are taken, and fewer of some, by their prefix: parts are filled alike, and are not to
# be divided all at once.
_MOST_FULL: Final = 0.75
_EARLIER: Final = 0.25
_GOLDEN: Final = 0.618034
# So many records of a state of which nothing was known are entered behind each checkpoint, before it is told of: 16 ms.
# The process may have no time between its checkpoints. To enter all at once made commits wait for the first checkpoint
# behind a restart, of 8,000 records beside 200,000, for 300 ms rather than 100.
_AT_ONCE: Final = 1 << 14
# So many words of a part are in memory while it is divided.
_PIECE: Final = 1 << 12
_LEAST_BITS: Final = 12
_MOST_OFFSET: Final = 1 << 32
# Where the range of a block's keys begins and ends.
_begin_of: Final = attrgetter("bucket", "first")
_end_of: Final = attrgetter("bucket", "last")

Step = Callable[[], object]


class _Part:
    """The file with the places of the hashes whose first `depth` bits are `prefix`.

    slots    the words of its places
    down     where the place of a hash is (`finder.place_shift`)
    named    whether the owner was told the name: it maps the file then, and removes the name
    used     how many places are taken
    most     how many of them may be before the part is divided
    """

    __slots__ = ("depth", "down", "most", "named", "path", "prefix", "slots", "used")

    def __init__(self, folder: Path, bits: int, depth: int, prefix: int, *, timed: bool) -> None:
        """`timed`: a time belongs to each place. Raises OSError."""
        size = ENTRY_BYTES + TIME_BYTES * timed << bits
        self.depth, self.prefix, self.used, self.named = depth, prefix, 0, False
        self.down = place_shift(bits, depth)
        self.most = int((_MOST_FULL - _EARLIER * (prefix * _GOLDEN % 1)) * (1 << bits))
        self.path = f"{folder}/.finder-{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform == "linux":
                # a full disk is an error here; in a map of a file with holes it is the end of the process
                os.posix_fallocate(fd, 0, size)
            else:
                os.ftruncate(fd, size)
            self.slots = memoryview(map_file(fd, size, writable=True)).cast("Q")
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the name of the file, if it has it still; else the next prune does."""
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)


class FinderWriter:
    """The finder of one store."""

    def __init__(self, folder: Path, records: int, *, timed: bool = False) -> None:
        """`timed`: of records that have a time, as in a store with a ttl. Raises OSError."""
        self._folder, self._timed = folder, timed
        bits = max(_LEAST_BITS, int(records / _FULL).bit_length())
        depth = max(0, bits - PART_BITS)
        self._bits = bits - depth  # of the places of each part
        # by the first bits of a hash: a part of lower depth than others is there more than once
        self._parts: list[_Part] = []
        self._shift = 32 - depth
        # up to which key everything was entered; all of it: `complete`
        self._through: tuple[Any] | None = None
        self.complete = False
        try:
            for prefix in range(1 << depth):
                self._parts.append(_Part(folder, self._bits, depth, prefix, timed=timed))
        except BaseException:
            self.remove()
            raise

    @property
    def paths(self) -> list[str]:
        """The files, by the first bits of a hash."""
        return [part.path for part in self._parts]

    def tell(self) -> list[str]:
        """Return the files for the owner. O(parts)."""
        for part in self._parts:
            part.named = True
        return self.paths

    def is_whole(self) -> bool:
        """False where a file has lost its name before the owner was told it: an owner that makes a checkpoint removes
        temporary files. O(parts).
        """
        return all(part.named or os.path.exists(part.path) for part in self._parts)

    def remove(self) -> None:
        """Remove the names of the files, as far as they have them still."""
        for part in self._parts:
            part.remove()

    def has_room(self, records: int) -> bool:
        """False where most places are of keys that are no more: of two keys in blocks at least one is. O(parts)."""
        return sum(part.used for part in set(self._parts)) <= 2 * records + FEWEST_RECORDS

    # --- entering -------------------------------------------------------------------------------------------------

    def follow(self, before: CheckpointReader, reader: CheckpointReader, store: StoreRecord, alive: Step) -> None:
        """Enter what has changed from one checkpoint to a later one of the same line. Raises CorruptCheckpointError,
        OSError. O(records written).
        """
        old, lines = _changed(before.directory(store.number), reader.directory(store.number))
        new = max((record.number for record in before.meta.packs), default=0) + 1
        stay: set[Extent] = set()
        # in the order of keys, with the hashes that are entered of each
        lines.sort(key=_begin_of)
        entered: list[array[int]] = []
        for line in lines:
            alive()
            stay.update(line.extents)
            entered.append(array("I"))
            # What is in a pack of before is entered, and must not be again: a reader of the checkpoint before would
            # find a record there until the newer one of the key is entered behind it.
            newer: set[int] = set()
            places = list(dropwhile(lambda each: each.pack < new, line.extents))
            for place in reversed(places):
                hashes, slots, times = _slots_of(reader, store.number, line, place)
                if place.pack >= new:
                    entries: Iterable[tuple[int, int, int]] = zip(hashes, slots, times, strict=False)
                    if newer:
                        entries = [entry for entry in entries if entry[0] not in newer]
                        entered[-1].extend(map(itemgetter(0), entries))
                    else:
                        entered[-1].extend(hashes)
                    self._enter(place.pack, entries)
                if len(places) > 1:
                    newer.update(hashes)
        # a key of a part that is no more, and that was not entered, may have no record any more: its block was written
        # anew, perhaps as its base was before
        later = {line.hash: line for line in lines}
        for line in old:
            alive()
            same = _same(line.extents, later[line.hash].extents) if line.hash in later else 0
            dropped: set[int] = set()
            for place in line.extents[same:]:
                if place not in stay:
                    dropped.update(_slots_of(before, store.number, line, place)[0])
            # nearly all keys were entered again: sets say so in a fifth of the time that the places of the file take
            at = bisect_left(lines, (line.bucket, line.first), key=_end_of)
            while dropped and at < len(lines) and _begin_of(lines[at]) <= (line.bucket, line.last):
                dropped.difference_update(entered[at])
                at += 1
            self._leave(dropped, new)

    def build(self, reader: CheckpointReader, store: StoreRecord) -> Iterator[int]:
        """Enter the records of a checkpoint of which nothing is known, from where the last build ended; yield how many
        after each block. Raises CorruptCheckpointError. O(records).
        """
        live = {record.number for record in reader.meta.packs}
        for page in reader.directory(store.number).pages:
            if self._through is not None and page.last <= self._through[0]:
                continue
            for line in reader.page(store.number, page):
                if self._through is None or line.last > self._through[0]:
                    for place in line.extents[::-1]:
                        self._enter(place.pack, zip(*_slots_of(reader, store.number, line, place), strict=False), live)
                    self._through = (line.last,)
                    yield line.keys
        self.complete = True

    def _enter(self, pack: int, keys: Iterable[tuple[int, int, int]], live: Set[int] | None = None) -> None:
        """Enter keys, of each the hash, slot and time, whose records are newer than all that was entered of these keys.
        With `live` (packs that exist) only keys of which nothing is known, or a pack that is no more.
        """
        parts, shift, mask, timed = self._parts, self._shift, (2 << self._bits) - 2, self._timed
        for hashed, slot, ts in keys:
            part = parts[hashed >> shift]
            entries = part.slots
            at = hashed >> part.down & mask
            while (word := entries[at]) and word >> 32 != hashed:
                at = at + 2 & mask
            if not word:
                if timed:
                    entries[mask + 2 + (at >> 1)] = ts
                entries[at + 1] = slot
                entries[at] = hashed << 32 | pack
                part.used += 1
                if part.used >= part.most:
                    self._divide(hashed)
                    parts, shift, mask = self._parts, self._shift, (2 << self._bits) - 2
            elif live is None or ((there := word & BY_BLOCKS) != BY_BLOCKS and there not in live):
                # first the pack, which a reader in between does not know (`Finder.value_of`)
                entries[at] = hashed << 32 | pack
                entries[at + 1] = slot
                if timed:
                    entries[mask + 2 + (at >> 1)] = ts

    def _leave(self, hashes: Iterable[int], new: int) -> None:
        """Let the blocks say of these keys whether they have records, but of those that packs from `new` on have."""
        parts, shift, mask = self._parts, self._shift, (2 << self._bits) - 2
        for hashed in hashes:
            part = parts[hashed >> shift]
            entries, at = part.slots, hashed >> part.down & mask
            while (word := entries[at]) and word >> 32 != hashed:
                at = at + 2 & mask
            if word and word & BY_BLOCKS < new:
                entries[at] = hashed << 32 | BY_BLOCKS

    def _divide(self, hashed: int) -> None:
        """Divide the part of a hash until it is not full: a search for a free place would not end in one without any.
        Raises OSError. O(places of the part), more where hashes begin alike.
        """
        while (part := self._parts[hashed >> self._shift]).used >= part.most:
            self._replace(part)

    def _replace(self, full: _Part) -> None:
        """Put two parts in the place of one, or, where it is the only one and small, one of four times the size."""
        if self._bits < PART_BITS:
            self._bits = min(PART_BITS, self._bits + 2)
            new = [_Part(self._folder, self._bits, 0, 0, timed=self._timed)] * 2
            self._parts = new[:1]
        else:
            depth = full.depth + 1
            if self._shift > 32 - depth:
                self._shift -= 1
                self._parts = [part for part in self._parts for _ in range(2)]
            bits, timed = self._bits, self._timed
            new = [_Part(self._folder, bits, depth, 2 * full.prefix + bit, timed=timed) for bit in range(2)]
            each = 1 << 32 - depth - self._shift
            begin = 2 * full.prefix * each
            self._parts[begin : begin + 2 * each] = [new[0]] * each + [new[1]] * each
        full.remove()
        bit, mask = 63 - full.depth, (2 << self._bits) - 2
        words = full.slots.nbytes // (ENTRY_BYTES + TIME_BYTES * self._timed) * 2
        for begin in range(0, words, _PIECE):
            piece = full.slots[begin : min(begin + _PIECE, words)].tolist()
            times = full.slots[words + begin // 2 :][: len(piece) // 2].tolist() if self._timed else repeat(0)
            for word, slot, ts in zip(piece[::2], piece[1::2], times, strict=False):
                if word:
                    part = new[word >> bit & 1]
                    entries, at = part.slots, word >> 32 + part.down & mask
                    while entries[at]:
                        at = at + 2 & mask
                    entries[at], entries[at + 1] = word, slot
                    if self._timed:
                        entries[mask + 2 + (at >> 1)] = ts
                    part.used += 1


class StateFinders:
    """The finders of all key-value stores of a state, with files in `folder`, up to the process's last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores: dict[int, FinderWriter] = {}
        self._reader: CheckpointReader | None = None
        # the last number of a pack that a reader of the files may know
        self._last = 0
        self._builds: Iterator[int] = iter(())

    def clear(self) -> list[StoreFiles]:
        """Forget all finders; return no files. O(stores)."""
        for finder in self._stores.values():
            finder.remove()
        self._stores, self._reader, self._last, self._builds = {}, None, 0, iter(())
        return []

    def follow(self, storage: Storage, name: str, alive: Step) -> list[StoreFiles]:
        """Enter what the checkpoint `name` has and the one of the last call does not have. Return the files, by store:
        none, where it cannot be entered. O(records written since).
        """
        try:
            reader = CheckpointReader(storage, name)
            before = self._reader
            if before is not None and not _continues(before, reader, self._last):
                before = None
            if before is None:
                self.clear()
            for number, store in _stores_of(reader).items():
                finder = self._stores.get(number)
                if finder is not None and not (finder.has_room(store.records) and finder.is_whole()):
                    finder.remove()
                    finder = None
                if before is None or finder is None:
                    self._stores[number] = FinderWriter(self._folder, store.records, timed=_is_timed(store))
                else:
                    finder.follow(before, reader, store, alive)
            for number in self._stores.keys() - _stores_of(reader).keys():
                self._stores.pop(number).remove()
            self._builds = chain.from_iterable(self._begun(reader))
            entered = 0
            while entered < _AT_ONCE and (keys := next(self._builds, 0)):
                alive()
                entered += keys
        except (OSError, CheckpointError):  # the checkpoint is whole: its blocks are searched
            return self.clear()
        self._last = max([self._last, *(record.number for record in reader.meta.packs)])
        self._reader = reader
        return [(number, finder.tell()) for number, finder in self._stores.items()]

    @property
    def paths(self) -> set[str]:
        """The files of all finders. O(files)."""
        return {path for finder in self._stores.values() for path in finder.paths}

    def _begun(self, reader: CheckpointReader) -> Iterator[Iterator[int]]:
        for number, store in _stores_of(reader).items():
            if not self._stores[number].complete:
                yield self._stores[number].build(reader, store)

    def enter_some(self) -> bool:
        """Enter the records of a further block; False when nothing is left to do. O(block)."""
        try:
            return next(self._builds, None) is not None
        except (OSError, CheckpointError):
            self.clear()
            return False


def _stores_of(reader: CheckpointReader) -> dict[int, StoreRecord]:
    """Return the stores that have a finder, by number: those whose records have no times, or a ttl. O(pages)."""
    return {
        store.number: store
        for store in reader.meta.stores
        if FEWEST_RECORDS <= store.records <= MOST_RECORDS
        and (_is_timed(store) or all(page.high < 0 for page in reader.directory(store.number).pages))
    }


def _is_timed(store: StoreRecord) -> bool:
    """Return whether a store is a key-value store with a ttl."""
    return store.parameters.get("ttl_ms") is not None


def _continues(before: CheckpointReader, reader: CheckpointReader, last: int) -> bool:
    """Return whether a number means the same pack in both checkpoints and in those before, whose packs have numbers up
    to `last`, and the second is no older one. O(packs).

    The last pack of a checkpoint may go without a new one, as with the last record of a store. The next pack then gets
    its number, and a reader that has the old pack would read a record of another store there.
    """
    names = {record.number: record.name for record in before.meta.packs}
    return reader.meta.version >= before.meta.version and all(
        names[record.number] == record.name if record.number in names else record.number > last
        for record in reader.meta.packs
    )


def _same(before: Sequence[Extent], now: Sequence[Extent]) -> int:
    """Return how many parts of a block, the oldest first, are the same in both, though they may have moved."""
    return sum(1 for _ in takewhile(lambda pair: pair[0].hash == pair[1].hash, zip(before, now, strict=False)))


def _changed(before: Directory, now: Directory) -> tuple[list[BlockEntry], list[BlockEntry]]:
    """Return the lines of the blocks that only the first directory has, and of those that only the second has.
    O(lines of pages that were written).
    """
    old = {(page.pack, page.offset): page for page in before.pages}
    new = {(page.pack, page.offset): page for page in now.pages}
    old_lines = {line.extents: line for at in old.keys() - new.keys() for line in before.open(old[at])}
    new_lines = {line.extents: line for at in new.keys() - old.keys() for line in now.open(new[at])}
    return (
        [line for extents, line in old_lines.items() if extents not in new_lines],
        [line for extents, line in new_lines.items() if extents not in old_lines],
    )


def _slots_of(
    reader: CheckpointReader, store: int, line: BlockEntry, place: Extent
) -> tuple[list[int], Iterable[int], Iterable[int]]:
    """Return the hashes of the keys of a block's base or layer, the second word of each, and, endless without one, the
    time of each. O(keys).
    """
    table = look_into(reader.raw_block(place), f"block {line.block} of store {store}", kept=False)
    if not isinstance(table, RecordTable):
        hashes = packed_keys(reader.layer(store, line, place).keys).hashes
        return hashes, repeat(0, len(hashes)), repeat(0)  # where a pack begins is no slot
    hashes, begin = table.hashes.tolist(), table.begin
    first = place.offset + 4 + begin
    if first + table.size > _MOST_OFFSET:
        return hashes, repeat(0, len(hashes)), repeat(0)
    step = SLOT.size << 32 | SLOT.size
    return hashes, range(first << 32 | begin, (first << 32 | begin) + step * len(hashes), step), table.slot_times()
