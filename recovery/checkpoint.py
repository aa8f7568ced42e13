"""Checkpoint: one immutable LMDB file per checkpointed version. Reading one, listing them, naming them.

    b"meta"                  format, store id, version, digest, changelog position, stores and their own meta, settings
    b"d" + store             directory: a line per block (`BlockEntry`)
    b"b" + store + block     the blocks

Meta and directories carry a crc32 in front. A file is checked before it is mapped (`page_sums`), and a block when it is loaded.
"""

from __future__ import annotations

import os
import re
import struct
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import lmdb

from changelog.codec import pack, unpack
from changelog.errors import UnsupportedVersionError
from changelog.files import Files
from changelog.segment import Position

from . import page_sums
from .block import BlockEntry, Columns, Loader, is_sound, unpack_block
from .errors import CheckpointError, CorruptCheckpointError

FORMAT_VERSION: Final = 1
SUFFIX: Final = ".lmdb"
_NAME: Final = re.compile(r"(\d{20})\.lmdb")
META_KEY: Final = b"meta"


class StoreRecord(NamedTuple):
    """What a checkpoint's meta record says of one store: its number, name, kind and parameters, its own state, next free block id, totals."""

    number: int
    name: str
    kind: str
    parameters: dict[str, Any]
    state: dict[str, Any]
    next_block: int
    records: int
    size: int


class CheckpointMeta(NamedTuple):
    """The meta record of a checkpoint."""

    store_id: bytes
    version: int
    digest: bytes
    position: Position
    wall_ms: int
    settings: dict[str, Any]
    stores: list[StoreRecord]

    @property
    def records(self) -> int:
        """The records of all stores. O(stores)."""
        return sum(record.records for record in self.stores)


def checkpoint_name(version: int) -> str:
    """Return the file name of the checkpoint of this version."""
    return f"{version:020d}{SUFFIX}"


def parse_checkpoint_name(name: str) -> int | None:
    """Return the version that a file name stands for, or None when it is not a checkpoint's name."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def damage_path(checkpoint: Path) -> Path:
    """Return the path of the marker that says that a checkpoint was found damaged while it was in use."""
    return checkpoint.with_suffix(".damaged")


def list_checkpoints(directory: Path) -> list[int]:
    """Return the versions that have a checkpoint file, in order; an absent directory has none. Soundness is not checked."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(version for name in names if (version := parse_checkpoint_name(name)) is not None)


def directory_key(store: int) -> bytes:
    """Return the LMDB key of a store's directory."""
    return b"d" + store.to_bytes(4, "big")


def block_key(store: int, block: int) -> bytes:
    """Return the LMDB key of a block."""
    return b"b" + struct.pack(">IQ", store, block)


def seal(payload: bytes) -> bytes:
    """Put a crc32 in front of a record."""
    return zlib.crc32(payload).to_bytes(4, "little") + payload


def _unseal(data: memoryview | bytes | None, where: str) -> Any:
    if data is None:
        raise CorruptCheckpointError(f"{where}: record missing")
    payload = memoryview(data)[4:]
    if zlib.crc32(payload) != int.from_bytes(data[:4], "little"):
        raise CorruptCheckpointError(f"{where}: checksum mismatch")
    try:
        return unpack(payload)
    except ValueError as error:
        raise CorruptCheckpointError(f"{where}: cannot be read: {error}") from error


def encode_meta(meta: CheckpointMeta) -> bytes:
    """Return the meta record's bytes."""
    return seal(
        pack(
            {
                "format": FORMAT_VERSION,
                "min_reader": 1,
                "store_id": meta.store_id,
                "version": meta.version,
                "digest": meta.digest,
                "position": list(meta.position),
                "wall_ms": meta.wall_ms,
                "settings": meta.settings,
                "stores": [list(record) for record in meta.stores],
            }
        )
    )


# LMDB refuses to open a file twice in a process, so readers of a file share its environment: a state can be reopened, or
# looked into, while someone still holds a store of the one that was closed. It is unmapped when the last of them is gone.
# By process, device and inode: a forked child must open its own, and a name may come to stand for another file.
_environments: weakref.WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = weakref.WeakValueDictionary()


_TRIES: Final = 50
_WAIT_SECONDS: Final = 0.01


def _map(path: Path) -> lmdb.Environment:
    status = path.stat()
    file = (os.getpid(), status.st_dev, status.st_ino)
    for tries in range(_TRIES, 0, -1):
        environment = _environments.get(file)
        if environment is not None:
            return environment
        try:
            environment = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_dbs=0,
                map_size=status.st_size,
                lib_version=0,
            )
        except lmdb.Error as error:
            if tries == 1 or "already open" not in str(error):
                raise
            # Another thread, a checkpoint's or a reader's, has opened it and is about to say so. (Not a lock: an
            # interrupt could leave it locked for ever.)
            time.sleep(_WAIT_SECONDS)
        else:
            return _environments.setdefault(file, environment)
    raise AssertionError("unreachable")  # pragma: no cover


class Ahead(Protocol):
    """What has blocks ready before they are asked for (`recovery.ahead`)."""

    def take(self, store: int, block: int) -> Columns | None:
        """Hand a block over, if it is ready."""

    def has_some(self) -> bool:
        """False while nothing is ready but will be."""

    def stop(self) -> None:
        """End it."""


class CheckpointReader:
    """An open checkpoint: attaches in milliseconds and reads blocks when asked.

    Raises CorruptCheckpointError when the file is damaged, cut short or foreign, UnsupportedVersionError when it is newer.
    Blocks stay readable as long as this object lives, also after the file was pruned. Not usable in a forked child.

    With `files`, a block that proves to be damaged later leaves a marker beside the file, so that the next restore falls
    back to the checkpoint before. A file with such a marker counts as damaged, unless `marked` asks for it all the same.
    """

    # Decodes blocks before they are asked for, if anything does.
    ahead: Ahead | None = None

    def __init__(self, path: Path, *, files: Files | None = None, marked: bool = False) -> None:
        self.path = path
        self._files = files
        if not marked and (marker := damage_path(path)).exists():
            raise CorruptCheckpointError(
                f"{path}: found damaged earlier: {marker.read_text('utf-8', 'replace').strip()}"
            )
        page_sums.verify(path)
        try:
            self._environment = _map(path)
        except lmdb.Error as error:
            raise CorruptCheckpointError(f"{path}: LMDB cannot open it: {error}") from error
        self._pid = os.getpid()
        self._transaction = self._environment.begin(buffers=True)
        self.meta = self._read_meta()

    def _get(self, key: bytes) -> memoryview | None:
        if os.getpid() != self._pid:
            raise CheckpointError(
                f"{self.path}: opened by process {self._pid}, used in its child {os.getpid()} (open the store again there)"
            )
        try:
            found: memoryview | None = self._transaction.get(key)
        except lmdb.Error as error:
            # A page header that LMDB noticed; the transaction is spoilt for what is sound, too.
            self._transaction = self._environment.begin(buffers=True)
            raise self._found_damaged(
                CorruptCheckpointError(f"{self.path}: block or record {key!r}: {error} (reopen to fall back)")
            ) from error
        return found

    def _read_meta(self) -> CheckpointMeta:
        where = f"{self.path}: meta record"
        fields = _unseal(self._get(META_KEY), where)
        try:
            if fields["min_reader"] > FORMAT_VERSION:
                raise UnsupportedVersionError(
                    f"{self.path}: checkpoint format {fields['format']} needs a reader of version {fields['min_reader']}, "
                    f"this one reads {FORMAT_VERSION} (upgrade hybridstore)"
                )
            return CheckpointMeta(
                fields["store_id"],
                fields["version"],
                fields["digest"],
                Position(*fields["position"]),
                fields["wall_ms"],
                fields["settings"],
                [StoreRecord(*record) for record in fields["stores"]],
            )
        except (KeyError, TypeError) as error:
            raise CorruptCheckpointError(f"{where}: field missing or of the wrong type: {error}") from error

    def directory(self, store: int) -> list[BlockEntry]:
        """Return the lines of a store's directory, by bucket and then by first key. O(blocks)."""
        lines = _unseal(self._get(directory_key(store)), f"{self.path}: directory of store {store}")
        try:
            return [BlockEntry(*line) for line in lines]
        except TypeError as error:
            raise CorruptCheckpointError(f"{self.path}: directory of store {store}: {error}") from error

    def record_keys(self) -> Iterator[bytes]:
        """Iterate over all keys of the file, in LMDB's order."""
        with self._transaction.cursor() as cursor:
            yield from map(bytes, cursor.iternext(values=False))

    def raw_block(self, store: int, block: int) -> memoryview:
        """Return a block's bytes, unchecked, as a view of the map. Raises CorruptCheckpointError when there is no such block."""
        data = self._get(block_key(store, block))
        if data is None:
            raise self._found_damaged(CorruptCheckpointError(f"{self._where(store, block)}: block missing"))
        return data

    def sound_block(self, store: int, block: int) -> memoryview:
        """Return a block's bytes as a view of the map. Raises CorruptCheckpointError when its checksum does not fit. O(block)."""
        data = self.raw_block(store, block)
        if not is_sound(data):
            raise self._found_damaged(
                CorruptCheckpointError(f"{self._where(store, block)}: block checksum mismatch (reopen to fall back)")
            )
        return data

    def block(self, store: int, block: int) -> Columns:
        """Load one block. Raises CorruptCheckpointError when its checksum does not fit. O(block)."""
        if self.ahead is not None and (ready := self.ahead.take(store, block)) is not None:
            return ready
        try:
            return unpack_block(self.raw_block(store, block), self._where(store, block))
        except CorruptCheckpointError as error:
            raise self._found_damaged(error) from error.__cause__

    def _where(self, store: int, block: int) -> str:
        return f"{self.path}: block {block} of store {store}"

    def _found_damaged(self, error: CorruptCheckpointError) -> CorruptCheckpointError:
        marker = damage_path(self.path)
        if self._files is not None and not marker.exists():
            # Where no marker can be written the error still is raised, and a reopened store finds the block again.
            with suppress(OSError):
                file = self._files.create(marker)
                try:
                    file.write(str(error).encode("utf-8", "replace") + b"\n")
                    file.sync()
                finally:
                    file.close()
                self._files.sync_directory(marker.parent)
        return error

    def loader(self, store: int) -> Loader:
        """Return the function that loads blocks of one store."""
        return lambda block: self.block(store, block)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def twin(self) -> CheckpointReader:
        """Return a reader of the same open file with a transaction of its own, for use in another thread."""
        twin = CheckpointReader.__new__(CheckpointReader)
        twin.path, twin.meta, twin._files = self.path, self.meta, self._files
        twin._environment, twin._pid = self._environment, self._pid
        twin._transaction = self._environment.begin(buffers=True)
        return twin

    def close(self) -> None:
        """Let go of the file: it is unmapped when its last reader does. Views of it that this reader gave must be gone."""
        self._transaction.abort()
        del self._transaction, self._environment
