"""Rebuild: writes a state directory of one version: a checkpoint, an empty changelog behind it, and nothing else.

Only into a place where nothing is. The digest chain goes on from the version, so the new directory is as good as the
old one for everything but its history.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from changelog.files import REAL_FILES
from changelog.segment import HEADER_BYTES, Position, SegmentHeader, segment_name
from changelog.storage import LocalStorage
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.layout import CHANGELOG, CHECKPOINTS
from recovery.write import write_checkpoint

from ..errors import HybridStoreError


class OccupiedError(HybridStoreError):
    """The place to write to is not empty; nothing of ours ever overwrites."""


def claim(path: Path) -> None:
    """Create a new directory. Raises OccupiedError when anything is there already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OccupiedError(f"{path}: exists already (give a new or empty directory)")
    path.mkdir(parents=True, exist_ok=True)


def write_state(
    path: Path,
    *,
    version: int,
    digest: bytes,
    settings: dict[str, Any],
    captures: list[StoreCapture],
    previous: CheckpointReader | None,
    store_id: bytes | None = None,
) -> None:
    """Write a state directory that holds exactly these stores at this version. `captures` are changes over `previous`.

    Raises OccupiedError, OSError or CheckpointError. A new store id is drawn unless one is given.
    """
    claim(path)
    (path / CHANGELOG).mkdir(exist_ok=True)
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    if version == 0:
        return
    owner = store_id or os.urandom(16)
    # The segment comes first: a checkpoint that refers to a missing one would be refused.
    write_segment(path, owner, version, digest)
    write_checkpoint(
        LocalStorage(path),
        store_id=owner,
        version=version,
        digest=digest,
        position=Position(version + 1, HEADER_BYTES, 0),
        settings=settings,
        captures=captures,
        previous=previous,
    )
    REAL_FILES.sync_directory(path)


def write_segment(path: Path, store_id: bytes, version: int, digest: bytes) -> None:
    """Write the empty segment that goes on from a version, durably."""
    segment = path / CHANGELOG / segment_name(version + 1)
    file = REAL_FILES.create(segment)
    try:
        file.write(SegmentHeader(store_id, version + 1, version, digest).encode())
        file.sync()
    finally:
        file.close()
    REAL_FILES.sync_directory(path / CHANGELOG)
