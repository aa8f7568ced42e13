"""Checkpoint: the records of all stores at one version, as an index and the packs that the index names; and its reader.

    checkpoints/<version>-<hash>.lmdb   index: meta, and for each store where its directory is (`index`, `directory`)
    packs/...                           blocks and pages of the directory, written by this checkpoint or an earlier one
                                        (`pack`)

The index is checked as a whole when it is opened, a page when it is opened, and a block when it is loaded.
"""

from __future__ import annotations

import errno
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias, TypeVar

from changelog.outlook import behind
from changelog.rounds import merged, side_by_side, worth_whole
from changelog.storage import Storage

from . import index
from .block import BlockEntry, Columns, Extent, content_hash, is_sound, unpack_block, with_layers
from .directory import Ahead, Directory, PageEntry, Traffic, check_page, decode_changes, decode_page, decode_top
from .errors import CheckpointError, CorruptCheckpointError
from .finder import Finder
from .layers import Layers, Lookup
from .layout import CheckpointName, damage_name
from .mapping import too_many
from .meta import CheckpointMeta, checked_index, decode_meta
from .pack import MappedPack, PackBytes, PackRecord, StoredPack, open_pack
from .packed import PackedBlock, packed_block
from .table import RecordTable, Whole, has_table, look_into

# How many bytes of prefetched pages and blocks are kept before unused ones are forgotten.
_FETCHED_BYTES: Final = 64 << 20

Decoded = TypeVar("Decoded")
# Reads a block, and names the place in errors: all of it, or its keys.
Unpack: TypeAlias = Callable[[bytes | memoryview, str], Columns]
_Span: TypeAlias = tuple[int, int]


def _sound(data: bytes | memoryview, where: str, advice: str = "") -> bytes | memoryview:
    """Return the bytes of a page or block. Raises CorruptCheckpointError when their checksum does not fit. O(bytes)."""
    if not is_sound(data):
        raise CorruptCheckpointError(f"{where} checksum mismatch {advice}".rstrip())
    return data


def _matching(data: bytes | memoryview, place: Extent, where: str) -> bytes | memoryview:
    """Return a block's bytes. Raises CorruptCheckpointError unless they have the directory's hash. O(bytes)."""
    if content_hash(memoryview(data)[4:]) != place.hash:
        raise CorruptCheckpointError(
            f"{where}: its content is not what the directory's hash says (reopen to fall back)"
        )
    return data


def _changed(where: str, place: Extent, below: list[BlockEntry], data: bytes | memoryview) -> list[BlockEntry]:
    return decode_changes(data, where, place.hash, below)


def _check(where: str, place: Extent, data: bytes | memoryview) -> None:
    check_page(data, where, place.hash)


class CheckpointReader:
    """An open checkpoint: attaches in milliseconds and reads pages and blocks when asked.

    Raises CorruptCheckpointError when the index is damaged, cut short or foreign or when a pack is missing or too
    short, UnsupportedVersionError when it is newer, FileNotFoundError for an unknown name. Blocks stay
    readable as long as this object lives, also after their packs were pruned. Not usable in a forked child.

    With `marks`, a block that proves damaged later leaves a marker beside the index, so that the next restore falls
    back to the checkpoint before. A checkpoint with such a marker counts as damaged, unless `marked` is True.
    """

    # Decodes blocks before they are needed; None: nothing does.
    ahead: Ahead | None = None

    def __init__(
        self, storage: Storage, name: CheckpointName | str, *, marks: bool = False, marked: bool = False
    ) -> None:
        self.storage = storage
        self.name = str(name)
        self.where = f"{storage.url}/{self.name}"
        self._marks = marks
        # The newest checkpoint in use, shared with the checkpoints in between; empty while this checkpoint is the
        # newest. (Nothing here refers to the reader itself, so that its packs are unmapped as soon as the last block
        # was loaded.)
        self._newest: list[weakref.ref[CheckpointReader]] = []
        self._pid = os.getpid()
        self.traffic = Traffic()
        self.finders: dict[int, Finder] = {}  # by the number of a store; empty: blocks are searched
        # Raises the error that is the reason for a missing pack, if another owner has the state and has pruned it.
        self.check_owner: Callable[[], None] = lambda: None
        if not marked:
            self._check_marker()
        self._tops = self._read()
        # Pages and blocks are read after the restore that the index was read for.
        self.storage = behind(storage)
        self.meta = self._meta(self._tops.pop(index.META_KEY, b""))
        self._pack_names = {record.number: record.name for record in self.meta.packs}
        self._decoded: dict[int, list[PageEntry]] = {}
        # Prefetched bytes by pack and offset, and how many bytes they are.
        self._fetched: dict[tuple[int, int], bytes | memoryview] = {}
        self._fetched_bytes = 0
        try:
            self.packs = {record.number: self._open(record) for record in self.meta.packs}
            self._stored = any(isinstance(opened, StoredPack) for opened in self.packs.values())
        except CorruptCheckpointError:
            # A writer removes a checkpoint before its packs, so this checkpoint was pruned just now and is not damaged.
            if not self.exists():
                raise FileNotFoundError(f"{self.where}: pruned while it was opened") from None
            raise
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise too_many(len(self.meta.packs), self.where) from error
            raise

    def _check_marker(self) -> None:
        try:
            marker = self.storage.get(damage_name(self.name))
        except FileNotFoundError:
            return
        raise CorruptCheckpointError(
            f"{self.where}: found damaged earlier: {marker.decode('utf-8', 'replace').strip()}"
        )

    def _read(self) -> dict[bytes, bytes]:
        """Return the records of the index, checked by its name."""
        data = checked_index(self.storage, self.name)
        self.index_bytes = len(data)
        return index.decode(data, self.where)

    def _meta(self, data: bytes) -> CheckpointMeta:
        return decode_meta(data, self.where)

    def _open(self, record: PackRecord) -> PackBytes:
        return open_pack(self.storage, record)

    # --- directories ----------------------------------------------------------------------------------------------

    def directory(self, store: int) -> Directory:
        """Return the directory of a store. Raises CorruptCheckpointError. O(pages), once."""
        pages = self._decoded.get(store)
        if pages is None:
            data = self._tops.get(index.top_key(store))
            if data is None:
                raise CorruptCheckpointError(f"{self.where}: top record of store {store} missing")
            pages = self._decoded[store] = self._pages(data, f"{self.where}: store {store}")
        return Directory(
            pages, partial(self.page, store), partial(self.block, store), partial(self.look, store), weakref.ref(self)
        )

    def _pages(self, data: bytes, where: str) -> list[PageEntry]:
        return decode_top(data, where)

    def unknown_records(self) -> list[bytes]:
        """Return the keys of the index that belong to no store."""
        return sorted(self._tops.keys() - {index.top_key(record.number) for record in self.meta.stores})

    def page(self, store: int, page: PageEntry) -> list[BlockEntry]:
        """Return the lines of a page of the directory. Raises CorruptCheckpointError. O(lines)."""
        if self.ahead is not None and (lines := self.ahead.take_page(page)) is not None:
            return lines
        self._gather(page)
        where = self._page_where(store, page)
        base, *changes = page.extents
        lines = self._read_twice(base, lambda data: decode_page(data, where, base.hash))
        for place in changes:
            lines = self._read_twice(place, partial(_changed, where, place, lines))
        return lines

    def check_page(self, store: int, page: PageEntry) -> None:
        """Raise CorruptCheckpointError for a page with other bytes than those that were written. O(bytes)."""
        where = self._page_where(store, page)
        for place in page.extents:
            self._read_twice(place, partial(_check, where, place))

    def _page_where(self, store: int, page: PageEntry) -> str:
        return f"{self._in_pack(page.pack, page.offset)}: store {store}"

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _bytes(self, number: int, offset: int, size: int) -> bytes | memoryview:
        if os.getpid() != self._pid:
            raise CheckpointError(
                f"{self.where}: opened by process {self._pid}, used in its child {os.getpid()} (open the store again "
                "there)"
            )
        fetched = self._fetched.pop((number, offset), None)
        if fetched is not None:
            self._fetched_bytes -= len(fetched)
            return fetched
        opened = self.packs.get(number)
        if opened is None:
            raise CorruptCheckpointError(
                f"{self.where}: its directory refers to pack {number}, which is not in its list"
            )
        try:
            return opened.read(offset, size)
        except FileNotFoundError as error:
            self.check_owner()
            missing = CorruptCheckpointError(
                f"{self._in_pack(number, offset)}: the pack is missing (reopen to fall back)"
            )
            self._mark(missing)
            raise missing from error

    def _in_pack(self, number: int, offset: int) -> str:
        return f"{self.storage.url}/{self._pack_names.get(number) or f'pack {number}'} at byte {offset}"

    def _where(self, store: int, entry: BlockEntry, place: Extent | None = None) -> str:
        pack_number, offset = (entry.pack, entry.offset) if place is None else place[:2]
        return f"{self._in_pack(pack_number, offset)}: block {entry.block} of store {store}"

    def raw_block(self, place: BlockEntry | Extent) -> bytes | memoryview:
        """Return the bytes of a block's base or layer, unchecked: a view of the map of its pack where that is a local
        file. O(1) there.
        """
        return self._bytes(place.pack, place.offset, place.size)

    def sound_block(self, store: int, entry: BlockEntry, place: Extent) -> bytes | memoryview:
        """Return the bytes of a block's base or layer. Raises CorruptCheckpointError when its checksum does not fit.
        O(bytes).
        """
        where = f"{self._where(store, entry, place)}: block"
        return self._read_twice(place, lambda data: _matching(_sound(data, where), place, where))

    def block(self, store: int, entry: BlockEntry) -> Columns:
        """Load one block. Raises CorruptCheckpointError when its checksum does not fit. O(block)."""
        self.traffic.block(entry.bytes)
        if self.ahead is not None and (ready := self.ahead.take(store, entry.block)) is not None:
            return ready
        self._gather(entry)
        return self.with_layers(store, entry, self.layer(store, entry, entry.extents[0]))

    def packed(self, store: int, entry: BlockEntry) -> PackedBlock | None:
        """Return the columns of a block's base, most of them not decoded; None for a base that `block` has to read. Its
        layers are not over it. Raises CorruptCheckpointError. O(base).
        """
        self._gather(entry)
        return packed_block(self._checked(entry.extents[0], self.raw_block(entry), self._where(store, entry)))

    def parts(self, store: int, entry: BlockEntry) -> list[Columns]:
        """Load the base and the layers of a block, the oldest first. Raises CorruptCheckpointError. O(their size)."""
        self._gather(entry)
        return [self.layer(store, entry, place) for place in entry.extents]

    def _gather(self, entry: BlockEntry | PageEntry) -> None:
        """Read the parts of a far block, or page, side by side: as many parts, one round of requests."""
        if self.far and len(entry.extents) > 1:
            self.prefetch([entry])

    def layer(self, store: int, entry: BlockEntry, place: Extent, unpack: Unpack | None = None) -> Columns:
        """Load the base or a layer of a block. Raises CorruptCheckpointError. O(its size)."""
        where, unpack = self._where(store, entry, place), unpack or unpack_block
        return self._read_twice(place, lambda data: unpack(self._checked(place, data, where), where))

    def with_layers(self, store: int, entry: BlockEntry, base: Columns) -> Columns:
        """Return the records of a block: those of its base with its layers over them. Raises CorruptCheckpointError.
        O(1) for a block without layers, else O(block).
        """
        return with_layers(base, [self.layer(store, entry, place) for place in entry.layers])

    def has_tables(self, entry: BlockEntry) -> bool:
        """Return whether single records of a block are read without the others. O(layers) of a local file."""
        return all(has_table(self.raw_block(place)) for place in entry.extents)

    def look(self, store: int, entry: BlockEntry) -> Lookup:
        """Return what finds single records of a block, in its base and its layers. Raises CorruptCheckpointError when a
        checksum does not fit. O(block).
        """
        extents = entry.extents
        self._gather(entry)
        if len(extents) == 1:
            return self._look_at(store, entry, extents[0])
        extents = extents[::-1]
        return Layers([self._look_at(store, entry, each) for each in extents], [each.hash for each in extents])

    def _look_at(self, store: int, entry: BlockEntry, place: Extent) -> RecordTable | Whole:
        opened = self.packs.get(place.pack)
        mapped = opened if isinstance(opened, MappedPack) else None
        if mapped is not None and (known := mapped.table(place.offset, place.size)) is not None:
            table: RecordTable = known
            return table
        where = self._where(store, entry, place)
        # a view is of a map, but for those of what was fetched
        kept = (place.pack, place.offset) not in self._fetched
        look = self._read_twice(
            place,
            lambda data: look_into(
                self._checked(place, data, where), where, kept=kept and isinstance(data, memoryview)
            ),
        )
        self.traffic.look(look, place.size)
        if mapped is not None and look.kept:
            mapped.keep(place.offset, place.size, look)
        return look

    def fetched_block(self, store: int, entry: BlockEntry) -> bytes | memoryview:
        """Return the bytes of a block's base for a decoder that checks their checksum; see `with_layers`. Raises
        CorruptCheckpointError.
        """
        return self._checked(entry.extents[0], self.raw_block(entry), self._where(store, entry))

    def _checked(self, place: Extent, data: bytes | memoryview, where: str) -> bytes | memoryview:
        """Check the hash of a block that a request or a cache has given. Of a local file only the pack's number is
        compared, when it is opened: a hash for each block costs a fifth of its load. Verify compares all hashes.
        """
        if self._stored and isinstance(self.packs.get(place.pack), StoredPack):
            return _matching(data, place, where)
        return data

    def _read_twice(self, line: Extent, decode: Callable[[bytes | memoryview], Decoded]) -> Decoded:
        """Read and decode a page or block; once more where only the copy in a cache is damaged."""
        data = self._bytes(line.pack, line.offset, line.size)
        try:
            return decode(data)
        except CorruptCheckpointError as error:
            opened = self.packs.get(line.pack)
            again = opened.read_afresh(line.offset, line.size) if isinstance(opened, StoredPack) else None
            if again is None:
                raise self._damaged(error, line) from error.__cause__
        try:
            return decode(again)
        except CorruptCheckpointError as error:
            raise self._damaged(error, line) from error.__cause__

    # --- far ------------------------------------------------------------------------------------------------------

    @property
    def far(self) -> bool:
        """See `Source`. O(1) where packs are local files, else O(packs)."""
        return self._stored and any(opened.far for opened in self.packs.values())

    @property
    def can_bring(self) -> bool:
        """True while `bring` has a pack to fetch. O(1) where packs are local files, else O(packs)."""
        return self._stored and any(
            isinstance(opened, StoredPack) and opened.far and opened.size <= opened.limit
            for opened in self.packs.values()
        )

    def prefetch(self, lines: Iterable[BlockEntry | PageEntry]) -> None:
        """See `Source`: one round of requests, for what is not read yet and not local.

        Neighbouring ranges are one request. If the ranges of a pack cost nearly as much as the whole pack, the pack is
        fetched into the cache. A missing pack is reported when a page of it is opened or a block loaded. After 64 MiB
        unused ranges are forgotten. Raises OSError. O(bytes).
        """
        if self._fetched_bytes > _FETCHED_BYTES:
            self._fetched, self._fetched_bytes = {}, 0
        wanted: dict[int, set[tuple[int, int]]] = {}
        for line in lines:
            for place in line.extents:
                opened = self.packs.get(place.pack)
                if opened is not None and opened.far and (place.pack, place.offset) not in self._fetched:
                    wanted.setdefault(place.pack, set()).add((place.offset, place.size))
        whole = {number for number, ranges in wanted.items() if self._worth_whole(number, ranges)}
        requests: list[tuple[int, _Span | None]] = [(number, None) for number in whole]
        for number, ranges in wanted.items():
            requests += [(number, span) for span in merged(ranges) if number not in whole]
        answers = self._ask_all(requests)
        # The ranges of packs that the cache could not keep are read as well.
        refused = [number for number in whole if self.packs[number].far]
        answers += self._ask_all([(number, span) for number in refused for span in merged(wanted[number])])
        for number, ranges in wanted.items():
            self._keep(number, ranges, [(start, data) for other, start, data in answers if other == number])

    def _ask_all(self, requests: list[tuple[int, _Span | None]]) -> list[tuple[int, int, memoryview]]:
        """Read spans of packs, or bring whole packs (None), side by side; returns (pack, start, bytes) of spans."""

        def ask(request: tuple[int, _Span | None]) -> tuple[int, int, memoryview]:
            number, span = request
            opened = self.packs[number]
            assert isinstance(opened, StoredPack)
            with suppress(FileNotFoundError):
                if span is not None:
                    start, end = span
                    return number, start, memoryview(opened.read_ranges([(start, end - start)])[0])
                opened.bring()
            return number, 0, memoryview(b"")

        return side_by_side(ask, requests)

    def _worth_whole(self, number: int, ranges: Iterable[tuple[int, int]]) -> bool:
        opened = self.packs[number]
        assert isinstance(opened, StoredPack)
        return opened.size <= opened.limit and worth_whole(merged(ranges), opened.size)

    def _keep(self, number: int, ranges: Iterable[_Span], parts: list[tuple[int, memoryview]]) -> None:
        """Keep each range of a pack, of parts (start, bytes) of it in order. O(ranges log parts)."""
        for offset, size in ranges:
            at = bisect_right(parts, offset, key=itemgetter(0)) - 1
            start, data = parts[at] if at >= 0 else (0, memoryview(b""))
            # Nothing is kept of a fetched pack. A missing or short pack is reported when a missing part is
            # read.
            if offset + size <= start + len(data):
                self._fetched[number, offset] = data[offset - start : offset - start + size]
                self._fetched_bytes += size

    def bring(self, go_on: Callable[[], bool]) -> None:
        """Fetch every far pack into the cache, if the storage has a cache, and map the pack, until `go_on` returns
        False: the newest pack first, and no more packs than the cache has room for.

        For a separate thread, over a twin: every reader that shares the packs reads the maps from then on. Raises
        OSError. O(bytes).
        """
        room: int | None = None
        for record in reversed(self.meta.packs):
            opened = self.packs.get(record.number)
            if not isinstance(opened, StoredPack):
                continue
            room = opened.limit if room is None else room
            if record.size <= room and go_on():
                room -= record.size
                opened.bring(go_on)

    # --- damage ---------------------------------------------------------------------------------------------------

    def _damaged(self, error: CorruptCheckpointError, line: Extent) -> CorruptCheckpointError:
        """Write the marker that makes the next restore fall back, and return the error."""
        newest = self._newest[0]() if self._newest else None
        reader = newest if newest is not None and newest is not self and newest._names(line) else self
        reader._mark(error)
        return error

    def _mark(self, error: CorruptCheckpointError) -> None:
        if self._marks:
            # Without a marker the error is raised all the same, and a reopened store meets the damage again.
            with suppress(OSError):
                self.storage.create(damage_name(self.name), str(error).encode("utf-8", "replace") + b"\n")

    def _names(self, line: Extent) -> bool:
        """True when this checkpoint refers to the same bytes as a line of an older checkpoint. O(blocks)."""
        at = (line.pack, line.offset)
        pages = [page for record in self.meta.stores for page in self.directory(record.number).pages]
        if any((place.pack, place.offset) == at for page in pages for place in page.extents):
            return True
        # A page that cannot be read counts as damaged, too.
        with suppress(CorruptCheckpointError):
            return any(
                (place.pack, place.offset) == at
                for page in pages
                if line.pack in page.packs[::2]
                for other in self._unmarked(page)
                for place in other.extents
            )
        return True

    def _unmarked(self, page: PageEntry) -> list[BlockEntry]:
        """Return the lines of a page; one that cannot be read leaves no marker. O(lines)."""
        base, *changes = page.extents
        lines = decode_page(self._bytes(*base[:3]), self.where, base.hash)
        for place in changes:
            lines = decode_changes(self._bytes(*place[:3]), self.where, place.hash, lines)
        return lines

    def succeeded_by(self, newer: CheckpointReader) -> None:
        """Note that a newer checkpoint is in use: damage in bytes that both checkpoints refer to then marks the newer
        one. O(1).
        """
        self._newest[:] = [weakref.ref(newer)]
        newer._newest = self._newest

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the index and of the packs that it names. O(packs)."""
        return self.index_bytes + sum(record.size for record in self.meta.packs)

    def exists(self) -> bool:
        """True unless the checkpoint was pruned since it was opened. While it exists, its packs exist.

        Raises OSError.
        """
        try:
            return self.storage.size(self.name) > 0
        except FileNotFoundError:
            return False

    def twin(self) -> CheckpointReader:
        """Return a reader of the same open files, for use in another thread; the twin does not use `ahead`, and has a
        traffic of its own.
        """
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, ahead=None, traffic=Traffic(), _fetched={}, _fetched_bytes=0)
        return twin

    def close(self) -> None:
        """Release the packs: a pack is unmapped when its last reader releases it.

        Views that this reader gave stay readable.
        """
        self.packs = {}
        self._fetched, self._fetched_bytes = {}, 0
