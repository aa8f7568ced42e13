"""State directory: what may become one, who owns it, and whether its last owner left more than is found now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from changelog.files import Files
from changelog.segment import segment_name
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, LOCK
from recovery.restore import Reached

from ..errors import ForeignFileError
from .lock import DirectoryLock

_ACCEPT: Final = "make a directory of what can be read with `hybridstore inspect repair`"


def prepare(path: Path, files: Files, *, read_only: bool) -> DirectoryLock | None:
    """Make a state directory at `path`, unless it is one, and lock it; with `read_only` do neither and return None.

    Raises ForeignFileError when something else is there, StateDirectoryLockedError when another process has it.
    """
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        names = set()
    except NotADirectoryError:
        raise ForeignFileError(f"{path}: a file, expected a state directory") from None
    ours = bool(names & {CHANGELOG, CHECKPOINTS, LOCK})
    if names and not ours:
        raise ForeignFileError(
            f"{path}: not a state directory: found {sorted(names)[0]!r} in it, expected a new, empty or hybridstore directory"
        )
    if read_only:
        if not ours:
            raise ForeignFileError(f"{path}: not a state directory")
        return None
    if not names:
        files.mkdir(path)
    for name in (CHANGELOG, CHECKPOINTS):
        if name not in names:
            files.mkdir(path / name)
    if not ours:
        files.sync_directory(path)
        files.sync_directory(path.parent)
    return DirectoryLock(path, files.mode)


def check_for_loss(path: Path, lock: DirectoryLock, reached: Reached) -> None:
    """Raise RestoreError when the last owner closed a later version than was restored, or wrote to a segment that is gone."""
    version = reached.report.version
    if lock.closed and lock.closed.get("version", 0) > version:
        raise RestoreError(
            f"{path}: was closed at version {lock.closed['version']}, but the changelog ends at version {version} "
            f"(so says {lock.path}; restore the missing files from a copy, or {_ACCEPT})"
        )
    if not lock.segment:
        return
    segment = path / CHANGELOG / segment_name(lock.segment)
    # Without syncs nobody notes newer segments, so the one on record may have been pruned behind a checkpoint.
    needed = reached.checkpoint is None or lock.segment >= reached.checkpoint.meta.position.segment
    if needed and (not segment.exists() or segment in reached.resume.stale):
        raise RestoreError(
            f"{segment}: {'cut short' if segment.exists() else 'missing'}, though the last owner wrote to it: committed data is lost "
            f"(so says {lock.path}; restore this file from a copy, or {_ACCEPT})"
        )
