"""Checkpoints of a state directory, as tests look for them and damage them."""

from __future__ import annotations

from pathlib import Path

from changelog.storage import LocalStorage
from recovery import layout
from recovery.checkpoint import CheckpointReader, index_hash, read_meta


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
