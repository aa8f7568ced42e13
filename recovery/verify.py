"""Verify: every fault of a state directory, with file and offset; it goes on after each.

    changelog    headers, frames, sequence, commits, the digest chain, that every mutation can be read, no gap
    checkpoints  pages, directories, every block's checksum, hash and order, that the digest is the chain's at its version

A torn tail of the newest segment is no fault: a restore cuts and reports it. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from changelog.codec import unpack
from changelog.errors import HybridStoreError
from changelog.frame import COMMIT, END, HEADER, HEADER_BYTES, MAGIC, MUTATIONS, Commit, decode_commit, problem
from changelog.journal import chain
from changelog.mutation import mutations
from changelog.reader import SegmentReader
from changelog.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from changelog.segment import Position, list_segments, segment_name

from . import page_sums
from .block import BlockEntry, entry_of, is_sound, pack_block
from .checkpoint import (
    META_KEY,
    CheckpointReader,
    StoreRecord,
    block_key,
    checkpoint_name,
    damage_path,
    directory_key,
    list_checkpoints,
)
from .errors import CorruptCheckpointError
from .restore import CHANGELOG, CHECKPOINTS


class Fault(NamedTuple):
    """One thing that is wrong: the file, the byte in it, and what."""

    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.what}"


def verify(path: Path) -> Iterator[Fault]:
    """Yield every fault of the state directory `path`, in the order of the files; nothing when all is sound.

    O(bytes) of time; memory for one segment.
    """
    log = _Log(path / CHANGELOG)
    yield from log.faults()
    for version in list_checkpoints(path / CHECKPOINTS):
        yield from _checkpoint(path / CHECKPOINTS / checkpoint_name(version), version, log)


class _Log:
    """The changelog as far as it was read: the store it is of, and the digest and position after each version."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store_id: bytes | None = None
        self.reached: dict[int, tuple[bytes, Position]] = {}
        self._version: int | None = None
        self._digest: bytes | None = None

    def faults(self) -> Iterator[Fault]:
        firsts = list_segments(self._directory)
        for first in firsts:
            path = self._directory / segment_name(first)
            try:
                reader = SegmentReader(path, last=first == firsts[-1])
            except (HybridStoreError, OSError) as error:
                yield Fault(str(path), 0, _without_place(error, path))
                self._version = self._digest = None
                continue
            if not reader.torn_header:
                yield from self._segment(reader, path)

    def _segment(self, reader: SegmentReader, path: Path) -> Iterator[Fault]:
        header = reader.header
        if self.store_id not in (None, header.store_id):
            yield Fault(str(path), 16, f"store {header.store_id.hex()}, the segments before have {self.store_id!r}")
        self.store_id = self.store_id or header.store_id
        if self._version is not None and header.parent_version != self._version:
            yield Fault(
                str(path), 40, f"continues version {header.parent_version}, found version {self._version} before it"
            )
        elif self._digest is not None and header.parent_digest != self._digest:
            yield Fault(
                str(path), 48, f"continues digest {header.parent_digest.hex()}, found {self._digest.hex()} before it"
            )
        self._version, self._digest = header.parent_version, header.parent_digest
        if header.parent_version == 0:
            self.reached[0] = (header.parent_digest, Position(0, 0, 0))
        raw = path.read_bytes()
        offset, sequence, bodies = SEGMENT_HEADER_BYTES, 0, list[bytes]()
        while offset < len(raw):
            reason = _problem(raw, offset, sequence, reader.seed)
            if reason is not None:
                found = self._next_sound(raw, offset, sequence, reader)
                if found is None:
                    break
                yield Fault(str(path), offset, f"{reason} ({found - offset} bytes up to the next sound frame)")
                self._digest, bodies = None, []
                offset = found
            _, kind, _, length, sequence, _ = HEADER.unpack_from(raw, offset)
            end = offset + HEADER_BYTES + length
            body = raw[offset + HEADER_BYTES : end]
            if kind == MUTATIONS:
                yield from self._mutations(body, path, offset)
                bodies.append(body)
            else:
                yield from self._commit(
                    kind, body, bodies, path, offset, Position(header.first_version, end, sequence + 1)
                )
                bodies = []
            offset, sequence = end, sequence + 1
        if not reader.last and (offset < len(raw) or bodies):
            yield Fault(str(path), offset, "the segment ends inside a version, but later segments follow")

    def _next_sound(self, raw: bytes, offset: int, sequence: int, reader: SegmentReader) -> int | None:
        """Return where the next sound frame is, or None when what is left is the torn tail of the newest segment, or nothing."""
        sound: int | None = None
        at = raw.find(MAGIC, offset)
        while at >= 0:
            header = raw[at : at + HEADER_BYTES]
            if (
                len(header) == HEADER_BYTES
                and HEADER.unpack(header)[4] > sequence
                and _problem(raw, at, None, reader.seed) is None
            ):
                sound = at if sound is None else sound
                if not reader.last or header[2] in (COMMIT, END):
                    return sound
            at = raw.find(MAGIC, at + 1)
        return None

    def _mutations(self, body: bytes, path: Path, offset: int) -> Iterator[Fault]:
        try:
            for _ in mutations(unpack(body)):
                pass
        except (ValueError, TypeError, HybridStoreError) as error:
            yield Fault(str(path), offset, f"mutations cannot be read: {error}")

    def _commit(
        self, kind: int, body: bytes, bodies: list[bytes], path: Path, offset: int, position: Position
    ) -> Iterator[Fault]:
        try:
            commit: Commit = decode_commit(body)
        except ValueError as error:
            yield Fault(str(path), offset, f"commit cannot be read: {error}")
            return
        if kind == END:
            if self._version is not None and commit.version != self._version:
                yield Fault(
                    str(path), offset, f"end mark of version {commit.version}, found version {self._version} before it"
                )
            elif self._digest is not None and commit.digest != self._digest:
                yield Fault(
                    str(path), offset, f"end mark with digest {commit.digest.hex()}, found {self._digest.hex()}"
                )
            return
        if self._version is not None and commit.version != self._version + 1 and self._digest is not None:
            yield Fault(str(path), offset, f"version {commit.version} follows version {self._version}")
        if self._digest is not None:
            digest = chain(self._digest, bodies)
            if digest != commit.digest:
                yield Fault(
                    str(path),
                    offset,
                    f"version {commit.version} has digest {commit.digest.hex()}, its mutations give {digest.hex()}",
                )
            items = sum(int.from_bytes(one[1:5], "big") for one in bodies)
            if items != commit.items:
                yield Fault(
                    str(path), offset, f"version {commit.version} says {commit.items} items, its frames hold {items}"
                )
        self._version, self._digest = commit.version, commit.digest
        self.reached[commit.version] = (commit.digest, position)


def _problem(raw: bytes, offset: int, sequence: int | None, seed: int) -> str | None:
    header = raw[offset : offset + HEADER_BYTES]
    length = HEADER.unpack(header)[3] if len(header) == HEADER_BYTES else 0
    return problem(header, raw[offset + HEADER_BYTES : offset + HEADER_BYTES + length], sequence, seed)


def _without_place(error: Exception, path: Path) -> str:
    """Return the text of an error without the path and offset that it begins with."""
    return str(error).removeprefix(str(path)).removeprefix(" at byte 0").removeprefix(": ")


def _checkpoint(path: Path, version: int, log: _Log) -> Iterator[Fault]:
    marker = damage_path(path)
    if marker.exists():
        yield Fault(str(path), 0, f"found damaged earlier: {marker.read_text('utf-8', 'replace').strip()}")
    sound = True
    try:
        for offset, reason in page_sums.faults(path, heads=True):
            yield Fault(str(path), offset, reason)
            sound = False
        if not sound:
            return
        reader = CheckpointReader(path, marked=True)
        offsets = page_sums.offsets(path)
    except (HybridStoreError, OSError) as error:
        yield Fault(str(path), 0, _without_place(error, path))
        return
    try:
        meta, at = reader.meta, offsets.get(META_KEY, 0)
        if meta.version != version:
            yield Fault(str(path), at, f"holds version {meta.version}, its name says {version}")
        if log.store_id not in (None, meta.store_id):
            yield Fault(str(path), at, f"belongs to store {meta.store_id.hex()}, the changelog to another")
        known = log.reached.get(meta.version)
        if known is not None:
            if known[0] != meta.digest:
                yield Fault(
                    str(path),
                    at,
                    f"digest {meta.digest.hex()}, the changelog has {known[0].hex()} at version {meta.version}",
                )
            if known[1] != meta.position and meta.position.segment:
                yield Fault(
                    str(path), at, f"position {meta.position}, the changelog has {known[1]} at version {meta.version}"
                )
        expected = {META_KEY}
        for record in meta.stores:
            expected.add(directory_key(record.number))
            yield from _store(reader, record, path, offsets, expected)
        for key in reader.record_keys():
            if key not in expected:
                yield Fault(str(path), offsets.get(key, 0), f"record {key!r} belongs to nothing")
    finally:
        reader.close()


def _store(
    reader: CheckpointReader, record: StoreRecord, path: Path, offsets: dict[bytes, int], expected: set[bytes]
) -> Iterator[Fault]:
    where = f"store {record.name!r}"
    at = offsets.get(directory_key(record.number), 0)
    try:
        entries = reader.directory(record.number)
    except CorruptCheckpointError as error:
        yield Fault(str(path), at, f"{where}: {_without_place(error, path)}")
        return
    for a, b in pairwise(entries):
        if not (a.bucket < b.bucket or (a.bucket == b.bucket and a.last < b.first)):
            yield Fault(str(path), at, f"{where}: blocks {a.block} and {b.block} are not in order")
    if (sum(e.records for e in entries), sum(e.size for e in entries)) != (record.records, record.size):
        yield Fault(str(path), at, f"{where}: records or bytes of its blocks are not what the meta record says")
    if len({entry.block for entry in entries}) != len(entries) or any(e.block >= record.next_block for e in entries):
        yield Fault(str(path), at, f"{where}: a block number is used twice or not given out yet")
    for entry in entries:
        key = block_key(record.number, entry.block)
        expected.add(key)
        reason = _block(reader, record.number, entry)
        if reason is not None:
            yield Fault(str(path), offsets.get(key, 0), f"{where}: block {entry.block}: {reason}")


def _block(reader: CheckpointReader, store: int, entry: BlockEntry) -> str | None:
    """Say what is wrong with a block, or None."""
    try:
        raw = reader.raw_block(store, entry.block)
        if not is_sound(raw):
            return "checksum mismatch"
        columns = reader.block(store, entry.block)
        if any(not a < b for a, b in pairwise(columns.keys)):
            return "keys are not in order"
        _, content_hash = pack_block(columns)
        found = entry_of(entry.block, entry.bucket, columns, len(raw), content_hash)
    except (CorruptCheckpointError, TypeError, IndexError) as error:
        return str(error)
    for name, is_, says in zip(BlockEntry._fields, found, entry, strict=True):
        if is_ != says:
            return f"{name}: found {is_!r}, the directory says {says!r}"
    return None
