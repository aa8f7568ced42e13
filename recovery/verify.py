"""Verify: every fault of a state directory, with file and offset; a fault does not end the check.

    changelog    headers, frames, sequence, commits, the digest chain, no gap
    checkpoints  the index, packs, directories, every block's checksum and hash, that the digest is the chain's at its
                 version

A torn tail of the newest segment is no fault: a restore cuts and reports it. Nothing is changed, no lock is taken, and
no file is mapped, so that a file that would end the process inside LMDB is a fault like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from changelog.codec import unpack
from changelog.errors import HybridStoreError
from changelog.frame import HEADER_BYTES
from changelog.identity import Identity
from changelog.journal import EMPTY_DIGEST
from changelog.mutation import mutations, records_of
from changelog.reader import LoggedVersion, Tail
from changelog.segment import Position, segment_name
from changelog.storage import Storage, named_path

from .block import BlockEntry, Extent, content_hash, entry_of, is_sound, unpack_block
from .directory import PageEntry, page_entry
from .errors import CorruptCheckpointError
from .layout import CHANGELOG, damage_name, list_checkpoints
from .line import Fault, SegmentShape, Walk, foreign
from .meta import CheckpointMeta, StoreRecord
from .pack import FooterLine, PackRecord, StoredPack, check_header, read_footer
from .pages import PageCheckpoint
from .table import table_fault


@dataclass(slots=True)
class Checked:
    """How much was read: checkpoints, blocks, segments, versions, and bytes."""

    checkpoints: int = 0
    blocks: int = 0
    segments: int = 0
    versions: int = 0
    size: int = 0

    def add(self, other: Checked) -> None:
        """Add the counts of another check."""
        self.checkpoints += other.checkpoints
        self.blocks += other.blocks
        self.segments += other.segments
        self.versions += other.versions
        self.size += other.size


class Verifier:
    """Checks the files of one state. `checked` has the counts; `version` and `tail` describe the end of the changelog;
    `sound` has the checkpoints without a fault, by version, and where in the log they end; `pruned`: the writer has
    removed a checkpoint before it was read.
    """

    def __init__(
        self,
        *,
        quick: bool = False,
        decode: bool = False,
        progress: Callable[[int], None] | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._identity = identity
        self.checked = Checked()
        self.version: int | None = None
        self.tail: Tail | None = None
        self.sound: dict[int, Position] = {}
        self._walk: Walk | None = None
        self._reached: dict[int, tuple[bytes, Position]] = {0: (EMPTY_DIGEST, Position(0, 0, 0))}
        self._wanted: set[int] = set()
        self.pruned = False
        self._quick = quick
        self._decode = decode
        self._progress = progress
        # Packs, and places in packs, that were checked with an earlier checkpoint.
        self._footers: dict[str, dict[int, FooterLine]] = {}
        self._seen: set[tuple[str, int]] = set()

    def _read(self, size: int) -> None:
        self.checked.size += size
        if self._progress is not None:
            self._progress(size)

    def directory(self, storage: Storage, walk: Walk) -> Iterator[Fault]:
        """Yield the faults of a plain store; `walk` reads its whole changelog."""
        names = list_checkpoints(storage)
        yield from self.changelog(walk, wanted=[name.version for name in names])
        for name in names:
            yield from self.checkpoint(storage, str(name), name.version)
        first = max(self.sound, default=0) + 1
        if walk.begins is not None and walk.begins >= first and not self.pruned:
            what = f"version {first} is" if walk.begins == first else f"versions {first} to {walk.begins} are"
            path = next(segment.path for segment in walk.segments if segment.first > walk.begins)
            yield Fault(str(path), None, f"{what} missing before it, and no sound checkpoint holds them")

    # --- changelog --------------------------------------------------------------------------------------------

    def changelog(self, walk: Walk, *, wanted: Iterable[int] = ()) -> Iterator[Fault]:
        """Yield the faults of a line. `wanted` are the versions that checkpoints will be compared at."""
        self._walk = walk
        self._wanted = set(wanted)
        for item in walk:
            if isinstance(item, LoggedVersion):
                yield from self._version(item, walk)
            elif not isinstance(item.error, FileNotFoundError):  # pruned by its writer meanwhile
                yield item
        self.checked.segments += len(walk.sizes)
        self.version = None if walk.step is None else walk.step.version
        self.tail = walk.cut

    def _version(self, version: LoggedVersion, walk: Walk) -> Iterator[Fault]:
        commit = version.commit
        self.checked.versions += 1
        self._read(version.position.offset - version.start)
        if commit.version in self._wanted:
            self._reached[commit.version] = (commit.digest, version.position)
        if not self._decode or walk.reader is None:
            return
        path, offset = walk.reader.path, version.start
        counts = Counter[int]()
        for body in version.bodies:
            reason = _count(body, counts)
            if reason is not None:
                yield Fault(str(path), offset, f"mutations cannot be read: {reason}")
                return
            offset += HEADER_BYTES + len(body)
        if counts != commit.records:
            yield Fault(
                str(path),
                offset,
                f"version {commit.version} says {sum(commit.records.values())} records, its frames hold "
                f"{counts.total()}, or of other ops",
            )

    # --- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint(self, storage: Storage, name: str, version: int | None) -> Iterator[Fault]:
        """Yield the faults of a checkpoint; `version` is the version in its name, None for another name. A shard's
        checkpoint may belong to an attempt that did not count, so its digest is not compared.
        """
        sound, where = True, f"{storage.url}/{name}"
        try:
            self.checked.checkpoints += 1
            for fault in self._checkpoint(PageCheckpoint(storage, name, lenient=True), version):
                sound = False
                yield fault
        except FileNotFoundError:
            self.pruned = True  # by its writer, meanwhile
            return
        except Exception as error:  # a forged file may raise anything
            yield Fault(where, 0, _without_place(error, where))
            sound = False
        if not sound:
            self.sound.pop(version or 0, None)

    def _checkpoint(self, reader: PageCheckpoint, version: int | None) -> Iterator[Fault]:
        where = reader.where
        with suppress(FileNotFoundError):
            marker = reader.storage.get(damage_name(reader.name))
            yield Fault(where, 0, f"found damaged earlier: {marker.decode('utf-8', 'replace').strip()}")
        if not reader.checked:
            yield Fault(where, 0, "its name has no hash of its bytes, so it is not used")
        meta = reader.meta
        self.sound[version or 0] = meta.position
        if version is not None and meta.version != version:
            yield Fault(where, None, f"holds version {meta.version}, its name says {version}")
        expected = self._identity if self._walk is None else self._walk.identity or self._identity
        if expected is not None and not expected.fits(meta.identity):
            error = foreign(where, meta.identity, expected)
            yield Fault.of(error, named_path(where))
        if self._walk is not None and self._walk.shape is SegmentShape.LOG:
            yield from self._against_log(meta, self._walk, reader)
        readable = set()
        for pack in meta.packs:
            if (yield from self._pack(reader, pack)):
                readable.add(pack.number)
        for record in meta.stores:
            yield from self._store(reader, record, readable)
        for key in reader.unknown_records():
            yield Fault(where, None, f"record {key!r} belongs to nothing")

    def _against_log(self, meta: CheckpointMeta, walk: Walk, reader: PageCheckpoint) -> Iterator[Fault]:
        """Yield how a checkpoint of a plain store differs from its changelog."""
        where = reader.where
        known, position = self._reached.get(meta.version), meta.position
        if known is not None and known[0] != meta.digest:
            yield Fault(
                where, None, f"digest {meta.digest.hex()}, the changelog has {known[0].hex()} at version {meta.version}"
            )
        if not position.segment:
            return
        # the begin of the next segment is the same place, and there may be such a segment before its first version
        begins = position.segment == meta.version + 1 and not position.sequence
        if known is not None and known[1] != position and not begins:
            yield Fault(where, None, f"position {position}, the changelog has {known[1]} at version {meta.version}")
        segment = f"{reader.storage.url}/{CHANGELOG}/{segment_name(position.segment)}"
        if all(segment.first != position.segment for segment in walk.segments):
            if walk.whole and position.segment >= meta.version:
                return  # an object has one version: a fork has no copy of this one, an erase none of the next
            yield Fault(segment, None, f"missing, though checkpoint {meta.version} refers to it")
        elif walk.sizes.get(position.segment, position.offset) < position.offset:
            size = walk.sizes[position.segment]
            yield Fault(
                segment, size, f"the file was cut short: checkpoint {meta.version} refers to byte {position.offset}"
            )

    def _pack(self, reader: PageCheckpoint, pack: PackRecord) -> Generator[Fault, None, bool]:
        """Check a pack's size and footer, once; False when nothing can be read from it."""
        where = f"{reader.storage.url}/{pack.name}"
        if where in self._footers:
            return True
        try:
            size = reader.storage.size(pack.name)
        except FileNotFoundError:
            yield Fault(where, None, f"missing, though {reader.where} refers to it")
            return False
        if size != pack.size:
            yield Fault(where, min(size, pack.size), f"found {size} bytes, expected {pack.size}")
        try:
            opened = StoredPack(reader.storage, pack.name, pack.size)
            check_header(opened, pack.name, where)
            lines = read_footer(opened, pack.size, where)
        except (HybridStoreError, OSError) as error:
            if size == pack.size:
                yield Fault(where, None, _without_place(error, where))
            lines = []
        self._footers[where] = {line.offset: line for line in lines}
        return True

    def _store(self, reader: PageCheckpoint, record: StoreRecord, packs: set[int]) -> Generator[Fault, None, None]:
        where, file = f"store {record.name!r}", reader.where
        try:
            pages = reader.directory(record.number).pages
        except (CorruptCheckpointError, TypeError) as error:
            yield Fault(file, None, f"{where}: {_without_place(error, file)}")
            return
        if (sum(page.records for page in pages), sum(page.bytes for page in pages)) != (record.records, record.size):
            yield Fault(file, None, f"{where}: records or bytes of its pages are not what the meta record says")
        before: BlockEntry | None = None
        numbers: set[int] = set()
        for page in pages:
            # A missing pack is one fault, not one for each block.
            places = {place.pack for place in page.extents} - packs
            if not places.isdisjoint(pack.number for pack in reader.meta.packs):
                continue
            entries = yield from self._page(reader, record, page)
            for entry in entries:
                if before is not None and not _in_order(before, entry):
                    yield Fault(file, None, f"{where}: blocks {before.block} and {entry.block} are not in order")
                before = entry
                if entry.block in numbers or entry.block >= record.next_block:
                    yield Fault(file, None, f"{where}: block number {entry.block} is used twice or not given out yet")
                numbers.add(entry.block)
                if not self._quick:
                    yield from self._places(reader, record, entry, packs)

    def _names(self, reader: PageCheckpoint, number: int) -> str | None:
        return next((f"{reader.storage.url}/{p.name}" for p in reader.meta.packs if p.number == number), None)

    def _page(
        self, reader: PageCheckpoint, record: StoreRecord, page: PageEntry
    ) -> Generator[Fault, None, list[BlockEntry]]:
        """Check a page against the top record's line of it, and return its lines."""
        file = self._names(reader, page.pack) or reader.where
        where = f"store {record.name!r}: page of the directory"
        try:
            entries = reader.page(record.number, page)
            line = page_entry(entries, *page[9:12], page.hash, page.below) if entries else None
        except Exception as error:  # a forged page may raise anything
            yield Fault(file, page.offset, f"{where}: {_without_place(error, reader.where)}")
            return []
        if line != page:
            yield Fault(file, page.offset, f"{where}: it is not what the top record says of it")
        return entries

    def _places(
        self, reader: PageCheckpoint, record: StoreRecord, entry: BlockEntry, packs: set[int]
    ) -> Iterator[Fault]:
        """Check a block: its base and its layers, unless they were checked with an earlier checkpoint."""
        fresh = sound = True
        for place in entry.extents:
            file = self._names(reader, place.pack)
            if file is not None and place.pack not in packs:
                sound = False  # the missing pack is a fault already
                continue
            file = file or reader.where
            fresh = (file, place.offset) not in self._seen
            if not fresh:
                continue
            self._seen.add((file, place.offset))
            self._read(place.size)
            reason = self._place(reader, place)
            line = self._footers.get(file, {}).get(place.offset)
            if reason is None and line is not None and not self._belongs(line, record, entry, place):
                reason = f"the footer says block {line.number} of store {line.store}"
            if reason is not None:
                sound = False
                yield Fault(file, place.offset, f"store {record.name!r}: block {entry.block}: {reason}")
        # a block is as new as its newest layer
        self.checked.blocks += fresh
        if fresh and sound and self._decode and (reason := self._content(reader, record.number, entry)) is not None:
            newest = entry.extents[-1]
            file = self._names(reader, newest.pack) or reader.where
            yield Fault(file, newest.offset, f"store {record.name!r}: block {entry.block}: {reason}")

    def _belongs(self, line: FooterLine, record: StoreRecord, entry: BlockEntry, place: Extent) -> bool:
        """True when a footer's line is that of a block's base or layer: written for this block or, below its newest
        layer, for one before it.
        """
        newest = place == entry.extents[-1]
        return line.store == record.number and (
            line.number == entry.block or (not newest and line.number < entry.block)
        )

    def _place(self, reader: PageCheckpoint, place: Extent) -> str | None:
        """Return the fault of the bytes of a block's base or layer as text, or None."""
        try:
            raw = reader.raw_block(place)
            if not is_sound(raw):
                return "checksum mismatch"
            if (content_hash(memoryview(raw)[4:]), len(raw)) != (place.hash, place.size):
                return "its content is not what the directory's hash says"
            if self._decode:
                columns = unpack_block(raw, "")
                if any(not a < b for a, b in pairwise(columns.keys)):
                    return "keys are not in order"
                return table_fault(raw, columns)
        except Exception as error:  # a forged block may raise anything
            return _without_place(error, reader.where)
        return None

    def _content(self, reader: PageCheckpoint, store: int, entry: BlockEntry) -> str | None:
        """Return how a block's records, the layers over the base, differ from its line of the directory, or None."""
        try:
            columns = reader.block(store, entry)
            actual = entry_of(entry.block, entry.bucket, columns, entry.extents[0], entry.layers)
        except Exception as error:  # a forged block may raise anything
            return _without_place(error, reader.where)
        if entry.low <= actual.low and actual.high <= entry.high:
            # bounds: a writer that reads single records of a block does not learn what the nearest others are
            actual = actual._replace(low=entry.low, high=entry.high)
        for name, is_, says in zip(BlockEntry._fields, actual, entry, strict=True):
            if is_ != says:
                return f"{name}: found {is_!r}, the directory says {says!r}"
        return None


def _in_order(a: BlockEntry, b: BlockEntry) -> bool:
    try:
        return bool(a.bucket < b.bucket or (a.bucket == b.bucket and a.last < b.first))
    except TypeError:
        return False


def _count(body: bytes, counts: Counter[int]) -> str | None:
    """Unpack a frame and add its records to `counts`; return why it cannot be read, or None."""
    try:
        for store, op, args in mutations(unpack(body)):
            counts[store * 16 + op] += records_of(op, args[0])
    except (ValueError, TypeError, HybridStoreError) as error:
        return str(error)
    return None


def _without_place(error: Exception, where: str) -> str:
    """Return the text of an error without the path and offset that it begins with."""
    if not isinstance(error, (HybridStoreError, OSError)):
        return f"{type(error).__name__}: {error}"
    return str(error).removeprefix(where).removeprefix(" at byte 0").removeprefix(": ")
