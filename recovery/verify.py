"""Verify: every fault of a state directory, with file and offset; it goes on after each.

    changelog    headers, frames, sequence, commits, the digest chain, no gap
    checkpoints  pages, directories, every block's checksum and hash, that the digest is the chain's at its version

A torn tail of the newest segment is no fault: a restore cuts and reports it. Nothing is changed, no lock is taken, and no file is
mapped, so that a file which would end the process inside the storage engine is a fault like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

from changelog.codec import unpack
from changelog.errors import HybridStoreError
from changelog.frame import HEADER_BYTES
from changelog.journal import EMPTY_DIGEST
from changelog.mutation import mutations, records_of
from changelog.reader import Tail, Version
from changelog.segment import Position, segment_name

from . import page_sums
from .block import HASH_BYTES, BlockEntry, entry_of, is_sound, unpack_block
from .checkpoint import (
    META_KEY,
    CheckpointMeta,
    StoreRecord,
    block_key,
    checkpoint_name,
    damage_path,
    directory_key,
    list_checkpoints,
)
from .errors import CorruptCheckpointError
from .layout import CHANGELOG, CHECKPOINTS
from .line import Fault, Shape, Walk, log_walk
from .pages import PageCheckpoint


@dataclass(slots=True)
class Checked:
    """How much was read: checkpoints, blocks, segments, versions, and bytes."""

    checkpoints: int = 0
    blocks: int = 0
    segments: int = 0
    versions: int = 0
    size: int = 0

    def add(self, other: Checked) -> None:
        """Count what was read elsewhere, too."""
        self.checkpoints += other.checkpoints
        self.blocks += other.blocks
        self.segments += other.segments
        self.versions += other.versions
        self.size += other.size


def verify(
    path: Path, *, quick: bool = False, decode: bool = False, progress: Callable[[int], None] | None = None
) -> Iterator[Fault]:
    """Yield every fault of the state directory `path`, in the order of the files; nothing when all is sound.

    `quick` leaves the blocks of the checkpoints out; `decode` also unpacks every mutation and block and checks what is in
    them, which takes many times longer than checksums do; `progress` is told how many more bytes were read.
    O(bytes) of time; memory for a version, a block and a checkpoint's directory.
    """
    return Verifier(quick=quick, decode=decode, progress=progress).directory(path)


class Verifier:
    """Checks the files of one state. `checked` counts what was read; `version` and `tail` say how the changelog ended;
    `sound` are the checkpoints without a fault, by version, and where in the log they end."""

    def __init__(
        self, *, quick: bool = False, decode: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        self.checked = Checked()
        self.version: int | None = None
        self.tail: Tail | None = None
        self.sound: dict[int, Position] = {}
        self._walk: Walk | None = None
        self._reached: dict[int, tuple[bytes, Position]] = {0: (EMPTY_DIGEST, Position(0, 0, 0))}
        self._wanted: set[int] = set()
        self._quick = quick
        self._decode = decode
        self._progress = progress

    def _read(self, size: int) -> None:
        self.checked.size += size
        if self._progress is not None:
            self._progress(size)

    def directory(self, path: Path) -> Iterator[Fault]:
        """Yield the faults of a state directory."""
        versions = list_checkpoints(path / CHECKPOINTS)
        walk = log_walk(path / CHANGELOG, None)
        yield from self.changelog(walk, wanted=versions)
        for version in versions:
            yield from self.checkpoint(path / CHECKPOINTS / checkpoint_name(version), version)
        if walk.begins and not self.sound:
            what = "version 1 is" if walk.begins == 1 else f"versions 1 to {walk.begins} are"
            yield Fault(
                str(walk.segments[0].path), None, f"{what} missing before it, and no sound checkpoint holds them"
            )

    # --- changelog --------------------------------------------------------------------------------------------

    def changelog(self, walk: Walk, *, wanted: Iterable[int] = ()) -> Iterator[Fault]:
        """Yield the faults of a line. `wanted` are the versions that checkpoints will be compared at."""
        self._walk = walk
        self._wanted = set(wanted)
        for item in walk:
            if isinstance(item, Version):
                yield from self._version(item, walk)
            elif not isinstance(item.error, FileNotFoundError):  # pruned by its writer meanwhile
                yield item
        self.checked.segments += len(walk.sizes)
        self.version = None if walk.step is None else walk.step.version
        self.tail = walk.cut

    def _version(self, version: Version, walk: Walk) -> Iterator[Fault]:
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
                f"version {commit.version} says {sum(commit.records.values())} records, its frames hold {counts.total()}, "
                "or of other ops",
            )

    # --- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint(self, path: Path, version: int | None) -> Iterator[Fault]:
        """Yield the faults of a checkpoint file; `version` is what its name says, None for a file of another name.

        One of a shard may belong to an attempt that came to nothing, so that its digest is not compared.
        """
        sound = True
        try:
            for fault in self._checkpoint(path, version):
                sound = False
                yield fault
        except FileNotFoundError:
            return  # pruned by its writer meanwhile
        except Exception as error:  # a file that someone made up may raise anything
            yield Fault(str(path), 0, _without_place(error, path))
            sound = False
        if not sound:
            self.sound.pop(version or 0, None)

    def _checkpoint(self, path: Path, version: int | None) -> Iterator[Fault]:
        self.checked.checkpoints += 1
        marker = damage_path(path)
        if marker.exists():
            yield Fault(str(path), 0, f"found damaged earlier: {marker.read_text('utf-8', 'replace').strip()}")
        if page_sums.sums_path(path).exists():
            sound = True
            for offset, reason in page_sums.faults(path, heads=True):
                yield Fault(str(path), offset, reason)
                sound = False
            if not sound:
                return
        else:
            yield Fault(str(path), 0, f"{page_sums.sums_path(path).name} is missing, so it is not used")
        reader = PageCheckpoint(path)
        try:
            meta = reader.meta
            at = reader.place(META_KEY)
            self.sound[version or 0] = meta.position
            if version is not None and meta.version != version:
                yield Fault(str(path), at, f"holds version {meta.version}, its name says {version}")
            if self._walk is not None and self._walk.shape is Shape.LOG:
                yield from self._against_log(meta, self._walk, path, at)
            expected = {META_KEY}
            for record in meta.stores:
                expected.add(directory_key(record.number))
                yield from self._store(reader, record, path, expected)
            for key in reader.record_keys():
                if key not in expected:
                    yield Fault(str(path), reader.place(key), f"record {key!r} belongs to nothing")
        finally:
            reader.close()

    def _against_log(self, meta: CheckpointMeta, walk: Walk, path: Path, at: int) -> Iterator[Fault]:
        """Yield how a checkpoint of a plain store differs from its changelog."""
        if walk.store_id not in (None, meta.store_id):
            yield Fault(str(path), at, f"belongs to store {meta.store_id.hex()}, the changelog to another")
        known, position = self._reached.get(meta.version), meta.position
        if known is not None and known[0] != meta.digest:
            yield Fault(
                str(path),
                at,
                f"digest {meta.digest.hex()}, the changelog has {known[0].hex()} at version {meta.version}",
            )
        if not position.segment:
            return
        if known is not None and known[1] != position:
            yield Fault(str(path), at, f"position {position}, the changelog has {known[1]} at version {meta.version}")
        segment = path.parent.parent / CHANGELOG / segment_name(position.segment)
        if all(segment.first != position.segment for segment in walk.segments):
            yield Fault(str(segment), None, f"missing, though checkpoint {meta.version} refers to it")
        elif walk.sizes.get(position.segment, position.offset) < position.offset:
            size = walk.sizes[position.segment]
            yield Fault(
                str(segment),
                size,
                f"the file was cut short: checkpoint {meta.version} refers to byte {position.offset}",
            )

    def _store(self, reader: PageCheckpoint, record: StoreRecord, path: Path, expected: set[bytes]) -> Iterator[Fault]:
        where = f"store {record.name!r}"
        at = reader.place(directory_key(record.number))
        try:
            entries = reader.directory(record.number)
            out_of_order = [
                (a.block, b.block)
                for a, b in pairwise(entries)
                if not (a.bucket < b.bucket or (a.bucket == b.bucket and a.last < b.first))
            ]
        except (CorruptCheckpointError, TypeError) as error:
            yield Fault(str(path), at, f"{where}: {_without_place(error, path)}")
            return
        for one, other in out_of_order:
            yield Fault(str(path), at, f"{where}: blocks {one} and {other} are not in order")
        if (sum(e.records for e in entries), sum(e.size for e in entries)) != (record.records, record.size):
            yield Fault(str(path), at, f"{where}: records or bytes of its blocks are not what the meta record says")
        if len({entry.block for entry in entries}) != len(entries) or any(
            e.block >= record.next_block for e in entries
        ):
            yield Fault(str(path), at, f"{where}: a block number is used twice or not given out yet")
        for entry in entries:
            key = block_key(record.number, entry.block)
            expected.add(key)
            if self._quick:
                continue
            self.checked.blocks += 1
            self._read(entry.size)
            reason = self._block(reader, record.number, entry)
            if reason is not None:
                yield Fault(str(path), reader.place(key), f"{where}: block {entry.block}: {reason}")

    def _block(self, reader: PageCheckpoint, store: int, entry: BlockEntry) -> str | None:
        """Say what is wrong with a block, or None."""
        try:
            raw = reader.raw_block(store, entry.block)
            if not is_sound(raw):
                return "checksum mismatch"
            content_hash = blake2b(raw[4:], digest_size=HASH_BYTES).digest()
            if (content_hash, len(raw)) != (entry.hash, entry.size):
                return "its content is not what the directory's hash says"
            if not self._decode:
                return None
            columns = unpack_block(raw, "")
            if any(not a < b for a, b in pairwise(columns.keys)):
                return "keys are not in order"
            found = entry_of(entry.block, entry.bucket, columns, len(raw), content_hash)
        except Exception as error:  # a block that someone made up may raise anything
            return _without_place(error, reader.path)
        for name, is_, says in zip(BlockEntry._fields, found, entry, strict=True):
            if is_ != says:
                return f"{name}: found {is_!r}, the directory says {says!r}"
        return None


def _count(body: bytes, counts: Counter[int]) -> str | None:
    """Unpack a frame and add its records to `counts`; return why it cannot be read, or None."""
    try:
        for store, op, args in mutations(unpack(body)):
            counts[store * 16 + op] += records_of(op, args[0])
    except (ValueError, TypeError, HybridStoreError) as error:
        return str(error)
    return None


def _without_place(error: Exception, path: Path) -> str:
    """Return the text of an error without the path and offset that it begins with."""
    if not isinstance(error, (HybridStoreError, OSError)):
        return f"{type(error).__name__}: {error}"
    return str(error).removeprefix(str(path)).removeprefix(" at byte 0").removeprefix(": ")
