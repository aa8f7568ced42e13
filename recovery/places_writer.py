"""Places writer: enters where the records of key-value stores are, for the owner of a state (`places`).

The writer process makes checkpoints, and enters behind each of them what the checkpoint has written. A state that is
opened with many records has no places at first: they are entered piece by piece while the process has nothing else to
do, the newest record of each key, where nothing is known of the key yet.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain, repeat, takewhile
from pathlib import Path
from typing import Any, Final

from changelog.files import TEMPORARY_SUFFIX
from changelog.storage import Storage

from .block import BlockEntry, Extent
from .checkpoint import CheckpointReader, StoreRecord
from .directory import Directory
from .errors import CheckpointError
from .packed_key import packed_keys
from .places import BY_BLOCKS, ENTRY_BYTES
from .table import SLOT, RecordTable, look_into

# Below, blocks are searched nearly as fast; above, a file of twice the size would take too long to make.
FEWEST_RECORDS: Final = 1 << 16
MOST_RECORDS: Final = 10_000_000
# So many of the places of a new file are taken by its records, and at most so many at all.
_FULL: Final = 0.625
_MOST_FULL: Final = 0.75
# So many records are entered at once at the first look at a state.
_AT_ONCE: Final = 1 << 18
# So many words of a file are in memory while it becomes another one.
_PIECE: Final = 1 << 12
_LEAST_BITS: Final = 12
_MOST_OFFSET: Final = 1 << 32

Step = Callable[[], object]


class PlacesWriter:
    """The places of one store."""

    def __init__(self, folder: Path, records: int) -> None:
        """Raises OSError."""
        self._folder = folder
        self._make(_bits(records))
        # up to which key everything was entered; all of it: `complete`
        self._through: tuple[Any] | None = None
        self.complete = False

    def _make(self, bits: int) -> None:
        self.path = f"{self._folder}/.places-{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform == "linux":
                # a full disk is an error here; in a map of a file with holes it is the end of the process
                os.posix_fallocate(fd, 0, ENTRY_BYTES << bits)
            else:
                os.ftruncate(fd, ENTRY_BYTES << bits)
            self._slots = memoryview(mmap.mmap(fd, ENTRY_BYTES << bits)).cast("Q")
        except BaseException:
            self.remove()
            raise
        finally:
            os.close(fd)
        self._shift, self._last, self._used = 32 - bits, (2 << bits) - 1, 0

    def remove(self) -> None:
        """Remove the name of the file, if it has it still; else the next prune does."""
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)

    def has_room(self, records: int) -> bool:
        """False where most places are of keys that are no more: of each two keys in blocks one at least is. O(1)."""
        return self._used <= 2 * records + FEWEST_RECORDS

    # --- entering -------------------------------------------------------------------------------------------------

    def follow(self, before: CheckpointReader, reader: CheckpointReader, store: StoreRecord, alive: Step) -> None:
        """Enter what has changed from one checkpoint to a later one of the same line. Raises CorruptCheckpointError,
        OSError. O(records written).
        """
        old, lines = _changed(before.directory(store.number), reader.directory(store.number))
        new = max((record.number for record in before.meta.packs), default=0) + 1
        known = {line.hash: line for line in old}
        for line in lines:
            alive()
            before_it = known.get(line.hash)
            same = 0 if before_it is None else _same(before_it.places, line.places)
            if any(place.pack >= new for place in line.places[:same]):
                same = 0  # copies
            for place in line.places[same:]:
                self._enter(place.pack, *_slots_of(reader, store.number, line, place))
        # of a block that was written anew, a key that was not entered has no record any more
        bases = {line.hash for line in lines}
        for line in old:
            if line.hash not in bases:
                alive()
                for place in line.places:
                    self._leave(_slots_of(before, store.number, line, place)[0], new)

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
                    for place in line.places[::-1]:
                        self._enter_unknown(place.pack, *_slots_of(reader, store.number, line, place), live)
                    self._through = (line.last,)
                    yield line.keys
        self.complete = True

    def _enter(self, pack: int, hashes: Sequence[int], slots: Iterable[int]) -> None:
        """Enter keys whose records are newer than all that was entered of these keys."""
        self._room(len(hashes))
        entries, shift, last = self._slots, self._shift, self._last
        for hashed, slot in zip(hashes, slots, strict=True):
            at = hashed >> shift << 1
            while (word := entries[at]) and word >> 32 != hashed:
                at = at + 2 & last
            if word:
                # first the pack, which a reader in between does not know (`Places.value_of`)
                entries[at] = hashed << 32 | pack
                entries[at + 1] = slot
            else:
                self._used += 1
                entries[at + 1] = slot
                entries[at] = hashed << 32 | pack

    def _enter_unknown(self, pack: int, hashes: Sequence[int], slots: Iterable[int], live: Set[int]) -> None:
        """Enter the keys of which nothing is known, or a pack that is no more."""
        self._room(len(hashes))
        entries, shift, last = self._slots, self._shift, self._last
        for hashed, slot in zip(hashes, slots, strict=True):
            at = hashed >> shift << 1
            while (word := entries[at]) and word >> 32 != hashed:
                at = at + 2 & last
            if not word:
                self._used += 1
                entries[at + 1] = slot
                entries[at] = hashed << 32 | pack
            elif (there := word & BY_BLOCKS) != BY_BLOCKS and there not in live:
                entries[at] = hashed << 32 | pack
                entries[at + 1] = slot

    def _leave(self, hashes: Iterable[int], new: int) -> None:
        """Let the blocks say of these keys whether they have records, but of those that packs from `new` on have."""
        entries, shift, last = self._slots, self._shift, self._last
        for hashed in hashes:
            at = hashed >> shift << 1
            while (word := entries[at]) and word >> 32 != hashed:
                at = at + 2 & last
            if word and word & BY_BLOCKS < new:
                entries[at] = hashed << 32 | BY_BLOCKS

    def _room(self, more: int) -> None:
        """Make a file of at least four times the size where this one may become too full by so many keys: a search for
        a free place would not end in a full one. O(1), O(places) for a file.
        """
        if self._used + more <= _MOST_FULL * (self._last + 1) // 2:
            return
        before, path, bits = self._slots, self.path, _bits(self._used + more)
        self._make(max(bits, min(34 - self._shift, _bits(MOST_RECORDS))))
        with suppress(OSError):
            Path(path).unlink(missing_ok=True)
        entries, shift, last = self._slots, self._shift, self._last
        for begin in range(0, len(before), _PIECE):
            piece = before[begin : begin + _PIECE].tolist()
            for word, slot in zip(piece[::2], piece[1::2], strict=True):
                if not word:
                    continue
                at = word >> 32 + shift << 1
                while entries[at]:
                    at = at + 2 & last
                entries[at], entries[at + 1] = word, slot
                self._used += 1


def _bits(records: int) -> int:
    """Return the logarithm of the places for so many records."""
    return max(_LEAST_BITS, int(records / _FULL).bit_length())


class StatePlaces:
    """The places of all key-value stores of a state, in files in `folder`, up to the last checkpoint of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores: dict[int, PlacesWriter] = {}
        self._reader: CheckpointReader | None = None
        self._builds: Iterator[int] = iter(())

    def clear(self) -> list[tuple[int, str]]:
        """Forget all places; return no files. O(stores)."""
        for places in self._stores.values():
            places.remove()
        self._stores, self._reader, self._builds = {}, None, iter(())
        return []

    def follow(self, storage: Storage, name: str, alive: Step) -> list[tuple[int, str]]:
        """Enter what the checkpoint `name` has and the one of the last call does not have. Return the files, by store:
        none, where it cannot be entered. O(records written since).
        """
        try:
            reader = CheckpointReader(storage, name)
            before = self._reader if self._reader is not None and _continues(self._reader, reader) else None
            if before is None:
                self.clear()
            for number, store in _stores_of(reader).items():
                places = self._stores.get(number)
                if places is not None and not places.has_room(store.records):
                    places.remove()
                    places = None
                if before is None or places is None:
                    places = self._stores[number] = PlacesWriter(self._folder, store.records)
                    for _ in places.build(reader, store) if store.records <= _AT_ONCE else ():
                        alive()
                else:
                    places.follow(before, reader, store, alive)
            for number in self._stores.keys() - _stores_of(reader).keys():
                self._stores.pop(number).remove()
        except (OSError, CheckpointError):  # the checkpoint is whole: its blocks are searched
            return self.clear()
        self._reader, self._builds = reader, chain.from_iterable(self._begun(reader))
        return [(number, places.path) for number, places in self._stores.items()]

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
    """Return the stores whose places are entered, by number: those whose records have no times. O(pages)."""
    return {
        store.number: store
        for store in reader.meta.stores
        if FEWEST_RECORDS <= store.records <= MOST_RECORDS
        and all(page.high < 0 for page in reader.directory(store.number).pages)
    }


def _continues(before: CheckpointReader, reader: CheckpointReader) -> bool:
    """Return whether a number means the same pack in both checkpoints, and the second is no older one. O(packs)."""
    names = {record.number: record.name for record in before.meta.packs}
    return reader.meta.version >= before.meta.version and all(
        names.get(record.number, record.name) == record.name for record in reader.meta.packs
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
    old_lines = {line.places: line for at in old.keys() - new.keys() for line in before.open(old[at])}
    new_lines = {line.places: line for at in new.keys() - old.keys() for line in now.open(new[at])}
    return (
        [line for places, line in old_lines.items() if places not in new_lines],
        [line for places, line in new_lines.items() if places not in old_lines],
    )


def _slots_of(reader: CheckpointReader, store: int, line: BlockEntry, place: Extent) -> tuple[list[int], Iterable[int]]:
    """Return the hashes of the keys of a block's base or layer, and the second word of each. O(keys)."""
    table = look_into(reader.raw_block(place), f"block {line.block} of store {store}", kept=False)
    if not isinstance(table, RecordTable):
        hashes = packed_keys(reader.layer(store, line, place).keys).hashes
        return hashes, repeat(0, len(hashes))  # where a pack begins is no slot
    hashes, begin = table.hashes.tolist(), table.begin
    first = place.offset + 4 + begin
    if first + table.size > _MOST_OFFSET:
        return hashes, repeat(0, len(hashes))
    step = SLOT.size << 32 | SLOT.size
    return hashes, range(first << 32 | begin, (first << 32 | begin) + step * len(hashes), step)
