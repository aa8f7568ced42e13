"""Rebuild: writes a state of one version: a checkpoint, on a disk an empty changelog behind it, and nothing else.

Only into an empty place, a directory or a location on an object store. The digest chain continues from the version, so
the new state equals the old one except for its history.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from changelog.files import REAL_FILES
from changelog.identity import ID_BYTES, Identity
from changelog.segment import HEADER_BYTES, Position, SegmentHeader, segment_name
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.layout import CHANGELOG, CHECKPOINTS
from recovery.write import write_checkpoint

from ..errors import HybridStoreError


class OccupiedError(HybridStoreError):
    """The place to write to is not empty; hybridstore never overwrites."""


def target_at(location: str) -> Storage:
    """Return the storage to write to. Raises OccupiedError when the place is not empty, and OSError."""
    storage = storage_at(location)
    if isinstance(storage, LocalStorage):
        claim(storage.root)
    elif storage.list():
        raise OccupiedError(f"{location}: found objects below it, expected an empty location (give a new one)")
    return storage


def claim(path: Path) -> None:
    """Create a new directory. Raises OccupiedError when the path exists."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OccupiedError(f"{path}: exists already (give a new or empty directory)")
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def whole_or_nothing(storage: Storage) -> Iterator[None]:
    """Remove what was written into a new place (`target_at`) if not all of it could be: on a full disk, or interrupted.

    A part of a state may open, and without its newest versions.
    """
    try:
        yield
    except BaseException:
        if isinstance(storage, LocalStorage):
            shutil.rmtree(storage.root, ignore_errors=True)
        else:
            with suppress(OSError):  # the store that refused a request may refuse this one, too
                storage.delete(storage.list())
        raise


def write_state(
    storage: Storage,
    *,
    version: int,
    digest: bytes,
    settings: dict[str, Any],
    captures: list[StoreCapture],
    previous: CheckpointReader | None,
    identity: Identity | None = None,
) -> None:
    """Write a state that holds exactly these stores at this version into `storage`, which is empty (`target_at`).

    `captures` are changes over `previous`. Raises OSError or CheckpointError. A new identity is drawn unless one is
    given.
    """
    path = storage.root if isinstance(storage, LocalStorage) else None
    if path is not None:
        (path / CHANGELOG).mkdir(parents=True, exist_ok=True)
        (path / CHECKPOINTS).mkdir(exist_ok=True)
    if version == 0:
        return
    owner = identity or Identity(os.urandom(ID_BYTES))
    if path is not None:
        # The segment comes first: a checkpoint that refers to a missing one would be refused.
        with closing(REAL_FILES.create(path / CHANGELOG / segment_name(version + 1))) as file:
            file.write(SegmentHeader(owner, version + 1, version, digest).encode())
            file.sync()
        REAL_FILES.sync_directory(path / CHANGELOG)
    write_checkpoint(
        storage,
        identity=owner,
        version=version,
        digest=digest,
        position=Position(0, 0, 0) if path is None else Position(version + 1, HEADER_BYTES, 0),
        settings=settings,
        captures=captures,
        previous=previous,
    )
    if path is not None:
        REAL_FILES.sync_directory(path)
