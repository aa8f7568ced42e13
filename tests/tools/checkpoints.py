"""Checkpoints of a state directory, as tests look for them and damage them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage
from recovery import layout
from recovery.block import BlockEntry, BucketChange, Columns, StoreCapture, is_sound
from recovery.checkpoint import CheckpointReader
from recovery.layout import CHANGELOG
from recovery.line import Fault, log_walk
from recovery.meta import index_hash, read_meta
from recovery.pack import FooterLine, PackBytes
from recovery.verify import Verifier
from recovery.write import CheckpointReport, write_checkpoint

from .memory_storage import MemoryStorage
from .sizes import SMALL_PARTS


def versions(path: Path) -> list[int]:
    """Return the versions that have a checkpoint, oldest first."""
    return [name.version for name in layout.list_checkpoints(LocalStorage(path))]


def index_of(path: Path, version: int) -> Path:
    """Return the index of the checkpoint of a version; there must be one."""
    (name,) = [name for name in layout.list_checkpoints(LocalStorage(path)) if name.version == version]
    return path / str(name)


def packs_of(path: Path, version: int) -> list[Path]:
    """Return the packs that the checkpoint of a version names, oldest first."""
    storage = LocalStorage(path)
    name = str(index_of(path, version).relative_to(path))
    parsed = layout.parse_checkpoint_name(name)
    assert parsed is not None
    return [path / record.name for record in read_meta(storage, parsed).packs]


def own_packs(path: Path, version: int) -> list[Path]:
    """Return the packs that were written for the checkpoint of a version, and that no older one has."""
    return [pack for pack in packs_of(path, version) if int(pack.name[:20]) == version]


def marker_of(index: Path) -> Path:
    """Return where the marker of damage of a checkpoint would be."""
    return index.with_suffix(".damaged")


def reader_of(path: Path, version: int, **options: bool) -> CheckpointReader:
    """Open the checkpoint of a version."""
    return CheckpointReader(LocalStorage(path), str(index_of(path, version).relative_to(path)), **options)


def verify(path: Path, *, decode: bool = False) -> Iterator[Fault]:
    """Yield every fault of a state directory."""
    return Verifier(decode=decode).directory(LocalStorage(path), log_walk(path / CHANGELOG, None))


def is_whole(opened: PackBytes, line: FooterLine) -> bool:
    """True when a sound block or page of a pack is where the footer says."""
    return is_sound(opened.read(line.offset, line.size))


def flip(file: Path, at: int) -> None:
    """Turn one bit of a file over."""
    raw = bytearray(file.read_bytes())
    raw[at] ^= 0x40
    file.write_bytes(raw)


def replaced(path: Path, version: int, data: bytes) -> Path:
    """Put an index of these bytes in the place of the one of a version, under a name with their hash; return its
    path.
    """
    index_of(path, version).unlink()
    new = path / str(layout.CheckpointName(version, 0, index_hash(data)))
    new.write_bytes(data)
    return new


class Line:
    """A line of checkpoints of one key-value store, number 1, in blocks of up to 256 records, and its records."""

    def __init__(self, storage: Storage | None = None, *, tables: bool) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.rows: dict[str, bytes] = {}
        self.reader: CheckpointReader | None = None
        self.version = 0
        self._tables = tables

    def checkpoint(self, changed: dict[str, bytes], removed: set[str]) -> CheckpointReport:
        self.version += 1
        self.rows = {key: value for key, value in (self.rows | changed).items() if key not in removed}
        change = BucketChange(
            Columns(sorted(changed), None, (), [changed[key] for key in sorted(changed)]), removed, self.reader is None
        )
        report = write_checkpoint(
            self.storage,
            identity=Identity(bytes(16)),
            version=self.version,
            digest=bytes(16),
            position=Position(0, 0, 0),
            settings={},
            captures=[StoreCapture(1, "it", "key_value", {}, {"stream_time": -1}, {0: change})],
            previous=self.reader,
            sizes=SMALL_PARTS._replace(block_records=256),
            tables=self._tables,
        )
        self.reader = CheckpointReader(self.storage, report.name)
        return report

    def entries(self) -> list[BlockEntry]:
        assert self.reader is not None
        return list(self.reader.directory(1))
