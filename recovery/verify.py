"""Verify: every fault of a state directory, with file and offset; it goes on after each.

    changelog    headers, frames, sequence, commits, the digest chain, no gap
    checkpoints  pages, directories, every block's checksum and hash, that the digest is the chain's at its version

A torn tail of the newest segment is no fault: a restore cuts and reports it. Nothing is changed, no lock is taken, and no file is
mapped, so that a file which would end the process inside the storage engine is a fault like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from changelog.codec import unpack
from changelog.errors import CorruptFrameError, HybridStoreError
from changelog.frame import (
    COMMIT,
    END,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_BODY_BYTES,
    MUTATIONS,
    Commit,
    decode_commit,
    problem,
)
from changelog.journal import EMPTY_DIGEST
from changelog.mutation import mutations, records_of
from changelog.reader import SegmentReader, Tail
from changelog.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from changelog.segment import Position, list_segments, segment_name

from . import page_sums
from .block import HASH_BYTES, BlockEntry, entry_of, is_sound, unpack_block
from .checkpoint import (
    META_KEY,
    StoreRecord,
    block_key,
    checkpoint_name,
    damage_path,
    directory_key,
    list_checkpoints,
)
from .errors import CorruptCheckpointError
from .layout import CHANGELOG, CHECKPOINTS
from .pages import PageCheckpoint


class Fault(NamedTuple):
    """One thing that is wrong: the file, the byte in it where that is known, and what."""

    file: str
    offset: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}" if self.offset is None else f"{self.file} at byte {self.offset}: {self.what}"


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
    O(bytes) of time; memory for a frame, a block and a checkpoint's directory.
    """
    return Verifier(quick=quick, decode=decode, progress=progress).directory(path)


class Verifier:
    """Checks the files of one state. `checked` counts what was read; `version` and `tail` say how the changelog ended."""

    def __init__(
        self, *, quick: bool = False, decode: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        self.checked = Checked()
        self.version: int | None = None
        self.tail: Tail | None = None
        self._digest: bytes | None = None
        self._store_id: bytes | None = None
        self._reached: dict[int, tuple[bytes, Position]] = {}
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
        segments = list_segments(path / CHANGELOG)
        yield from self.changelog([path / CHANGELOG / segment_name(first) for first in segments], wanted=versions)
        for version in versions:
            yield from self.checkpoint(path / CHECKPOINTS / checkpoint_name(version), version)

    # --- changelog --------------------------------------------------------------------------------------------

    def changelog(
        self, paths: list[Path], *, wanted: Iterable[int] = (), whole: bool = False, sparse: bool = False
    ) -> Iterator[Fault]:
        """Yield the faults of segments that follow one another.

        `wanted` are the versions that checkpoints will be compared at. With `whole` even the last may not end torn;
        with `sparse` versions may be left out between segments, as they are in a shard.
        """
        self._wanted = {0, *wanted}
        for path in paths:
            last = path == paths[-1] and not whole
            try:
                reader = SegmentReader(path, last=last)
            except FileNotFoundError:
                continue  # pruned by its writer meanwhile
            except (HybridStoreError, OSError) as error:
                yield Fault(str(path), 0, _without_place(error, path))
                self.version = self._digest = None
                continue
            self.checked.segments += 1
            if reader.torn_header:
                self.tail = reader.tail
                continue
            yield from self._joins(reader, path)
            with path.open("rb", buffering=1 << 18) as file:
                yield from self._segment(reader, path, file, sparse)

    def _joins(self, reader: SegmentReader, path: Path) -> Iterator[Fault]:
        header = reader.header
        if self._store_id not in (None, header.store_id):
            yield Fault(
                str(path),
                16,
                f"store {header.store_id.hex()}, the segments before have {(self._store_id or b'').hex()}",
            )
        self._store_id = self._store_id or header.store_id
        if self.version is not None and header.parent_version != self.version:
            yield Fault(
                str(path), 40, f"continues version {header.parent_version}, found version {self.version} before it"
            )
        elif self._digest is not None and header.parent_digest != self._digest:
            yield Fault(
                str(path), 48, f"continues digest {header.parent_digest.hex()}, found {self._digest.hex()} before it"
            )
        self.version, self._digest = header.parent_version, header.parent_digest
        if header.parent_version == 0:
            self._reached[0] = (header.parent_digest, Position(0, 0, 0))

    def _segment(self, reader: SegmentReader, path: Path, file: BinaryIO, sparse: bool) -> Iterator[Fault]:
        first = reader.header.first_version
        committed = Position(first, SEGMENT_HEADER_BYTES, 0)
        offset, sequence, ended = committed.offset, 0, False
        counts: Counter[int] | None = Counter() if self._decode else None
        hashed = None if self._digest is None else blake2b(self._digest, digest_size=len(EMPTY_DIGEST))
        file.seek(offset)
        while header := file.read(HEADER_BYTES):
            length = HEADER.unpack(header)[3] if len(header) == HEADER_BYTES else 0
            body = file.read(length) if 0 < length <= MAX_BODY_BYTES else b""
            reason = problem(header, body, sequence, reader.seed)
            if reason is not None:
                if self._torn(reader, committed):
                    return
                file.seek(offset)
                rest = file.read()
                found = _next_sound(rest, sequence, reader.seed)
                if found is None:
                    yield Fault(str(path), offset, f"{reason} (nothing sound follows in this segment)")
                    return
                yield Fault(str(path), offset, f"{reason} ({found} bytes up to the next sound frame)")
                self._digest = hashed = counts = None
                offset += found
                sequence = HEADER.unpack_from(rest, found)[4]
                file.seek(offset)
                continue
            if ended:
                yield Fault(str(path), offset, "a frame follows the end mark")
            end = offset + HEADER_BYTES + length
            self._read(HEADER_BYTES + length)
            if header[2] == MUTATIONS:
                if hashed is not None:
                    hashed.update(memoryview(body)[5:])
                if self._decode and not (yield from _mutations(body, path, offset, counts)):
                    counts = None
            else:
                ended = header[2] == END
                position = Position(first, end, sequence + 1)
                given = None if hashed is None else hashed.digest()
                yield from self._commit(ended, body, given, counts, path, offset, position, sparse)
                hashed = None if self._digest is None else blake2b(self._digest, digest_size=len(EMPTY_DIGEST))
                counts, committed = Counter() if self._decode else None, position
            offset, sequence = end, sequence + 1
        if offset > committed.offset and not self._torn(reader, committed):
            yield Fault(str(path), offset, "the segment ends inside a version, but later segments follow")

    def _torn(self, reader: SegmentReader, committed: Position) -> bool:
        """True when the segment's reader takes what follows the last commit for a torn tail."""
        if not reader.last:
            return False
        try:
            for _ in reader.versions(committed):
                return False
        except CorruptFrameError:
            return False
        self.tail = reader.tail
        return self.tail is not None

    def _commit(
        self,
        ended: bool,
        body: bytes,
        given: bytes | None,
        counts: Counter[int] | None,
        path: Path,
        offset: int,
        position: Position,
        sparse: bool,
    ) -> Iterator[Fault]:
        try:
            commit: Commit = decode_commit(body)
        except ValueError as error:
            yield Fault(str(path), offset, f"commit cannot be read: {error}")
            self._digest = None
            return
        if ended:
            if self.version is not None and commit.version != self.version:
                yield Fault(
                    str(path), offset, f"end mark of version {commit.version}, found version {self.version} before it"
                )
            elif self._digest is not None and commit.digest != self._digest:
                yield Fault(
                    str(path), offset, f"end mark with digest {commit.digest.hex()}, found {self._digest.hex()}"
                )
            return
        self.checked.versions += 1
        if not sparse and self._digest is not None and self.version is not None and commit.version != self.version + 1:
            yield Fault(str(path), offset, f"version {commit.version} follows version {self.version}")
        if given is not None:
            if given != commit.digest:
                yield Fault(
                    str(path),
                    offset,
                    f"version {commit.version} has digest {commit.digest.hex()}, its mutations give {given.hex()}",
                )
            if counts is not None and counts != commit.records:
                yield Fault(
                    str(path),
                    offset,
                    f"version {commit.version} says {sum(commit.records.values())} records, its frames hold "
                    f"{counts.total()}, or of other ops",
                )
        self.version, self._digest = commit.version, commit.digest
        if commit.version in self._wanted:
            self._reached[commit.version] = (commit.digest, position)

    # --- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint(self, path: Path, version: int | None, *, sparse: bool = False) -> Iterator[Fault]:
        """Yield the faults of a checkpoint file; `version` is what its name says, None for a file of another name.

        In a shard (`sparse`) it may belong to an attempt that came to nothing, so that its digest is not compared.
        """
        try:
            yield from self._checkpoint(path, version, sparse)
        except FileNotFoundError:
            return  # pruned by its writer meanwhile
        except Exception as error:  # a file that someone made up may raise anything
            yield Fault(str(path), 0, _without_place(error, path))

    def _checkpoint(self, path: Path, version: int | None, sparse: bool) -> Iterator[Fault]:
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
            if version is not None and meta.version != version:
                yield Fault(str(path), at, f"holds version {meta.version}, its name says {version}")
            if self._store_id not in (None, meta.store_id):
                yield Fault(str(path), at, f"belongs to store {meta.store_id.hex()}, the changelog to another")
            known = None if sparse else self._reached.get(meta.version)
            if known is not None:
                if known[0] != meta.digest:
                    yield Fault(
                        str(path),
                        at,
                        f"digest {meta.digest.hex()}, the changelog has {known[0].hex()} at version {meta.version}",
                    )
                if known[1] != meta.position and meta.position.segment:
                    yield Fault(
                        str(path),
                        at,
                        f"position {meta.position}, the changelog has {known[1]} at version {meta.version}",
                    )
            expected = {META_KEY}
            for record in meta.stores:
                expected.add(directory_key(record.number))
                yield from self._store(reader, record, path, expected)
            for key in reader.record_keys():
                if key not in expected:
                    yield Fault(str(path), reader.place(key), f"record {key!r} belongs to nothing")
        finally:
            reader.close()

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


def _next_sound(rest: bytes, sequence: int, seed: int) -> int | None:
    """Return where in what follows a damaged place the next sound frame is, or None."""
    at = rest.find(MAGIC)
    while at >= 0:
        header = rest[at : at + HEADER_BYTES]
        if len(header) == HEADER_BYTES:
            _, kind, _, length, number, _ = HEADER.unpack(header)
            body = rest[at + HEADER_BYTES : at + HEADER_BYTES + length]
            if number > sequence and kind in (MUTATIONS, COMMIT, END) and problem(header, body, None, seed) is None:
                return at
        at = rest.find(MAGIC, at + 1)
    return None


def _mutations(body: bytes, path: Path, offset: int, counts: Counter[int] | None) -> Generator[Fault, None, bool]:
    """Unpack a frame and add its records to `counts`; False when it cannot be read."""
    try:
        for store, op, args in mutations(unpack(body)):
            if counts is not None:
                counts[store * 16 + op] += records_of(op, args[0])
    except (ValueError, TypeError, HybridStoreError) as error:
        yield Fault(str(path), offset, f"mutations cannot be read: {error}")
        return False
    return True


def _without_place(error: Exception, path: Path) -> str:
    """Return the text of an error without the path and offset that it begins with."""
    if not isinstance(error, (HybridStoreError, OSError)):
        return f"{type(error).__name__}: {error}"
    return str(error).removeprefix(str(path)).removeprefix(" at byte 0").removeprefix(": ")
