"""Prune: delete what no retained checkpoint needs. A crash in the middle leaves extra files, never a missing one.

The order is: checkpoints, oldest first; packs that no checkpoint names; segments, oldest first. After each deletion the
remaining files are a state that can be restored. The newest `keep` checkpoints are kept, and every segment from the one
that the oldest of these checkpoints refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from changelog.errors import ForeignFileError
from changelog.files import REAL_FILES, Files
from changelog.segment import list_segments, segment_name
from changelog.storage import LocalStorage, Storage, temporaries

from .checkpoint import CheckpointReader
from .errors import CheckpointError
from .layout import (
    CHANGELOG,
    CHECKPOINTS,
    DAMAGE_SUFFIX,
    PACKS,
    CheckpointName,
    damage_name,
    list_checkpoints,
    parse_pack_name,
)
from .meta import CheckpointMeta, read_meta
from .pack import names_in_use


def prune(path: Path, *, keep: int, files: Files = REAL_FILES, used: str | None = None) -> list[Path]:
    """Delete the files that the newest `keep` checkpoints, and the one named `used`, do not need, and return their
    names. O(files).

    A damaged checkpoint does not count, so the files that replace it are kept. Leftovers of a crash (temporary files,
    packs and markers without a checkpoint) are deleted too, so no checkpoint may be in progress.
    """
    storage = LocalStorage(path, files=files)
    names, oldest_segment = prune_checkpoints(storage, keep=keep, used=used)
    deleted = [path / name for name in names]
    if oldest_segment is not None:
        for first in list_segments(path / CHANGELOG):
            if first < oldest_segment:
                segment = path / CHANGELOG / segment_name(first)
                files.remove(segment)
                deleted.append(segment)
    for file in (file for folder in (CHANGELOG, CHECKPOINTS, PACKS) for file in temporaries(path / folder)):
        files.remove(file)
        deleted.append(file)
    return deleted


def prune_checkpoints(storage: Storage, *, keep: int, used: str | None = None) -> tuple[list[str], int | None]:
    """Delete all but the newest `keep` sound checkpoints and the one named `used`, and packs and markers that none of
    the others has; return their names, and the oldest segment that the kept ones need (None: fewer exist, so every
    segment is needed).
    """
    deleted: list[str] = []
    sound: dict[CheckpointName, CheckpointMeta] = {}
    oldest_segment: int | None = None
    for name in reversed(list_checkpoints(storage)):
        if len(sound) >= keep and str(name) != used:
            storage.delete([str(name)])
            deleted.append(str(name))
            continue
        try:
            reader = CheckpointReader(storage, name)
        except CheckpointError:
            continue
        oldest_segment = reader.meta.position.segment
        reader.close()
        sound[name] = reader.meta
    deleted += collect_packs(storage, below=max((name.version for name in sound), default=0), known=sound)
    markers = stray_markers(storage)
    storage.delete(markers)
    return deleted + markers, oldest_segment if len(sound) >= keep else None


def stray_markers(storage: Storage) -> list[str]:
    """Return the names of damage markers whose checkpoints no longer exist. O(names)."""
    names = storage.list(f"{CHECKPOINTS}/")
    marks = {damage_name(name) for name in names}
    return [name for name in names if name.endswith(DAMAGE_SUFFIX) and name not in marks]


def collect_packs(
    storage: Storage, *, below: int, known: Mapping[CheckpointName, CheckpointMeta] = MappingProxyType({})
) -> list[str]:
    """Delete the packs of versions below `below` that no checkpoint names; return their names.

    `below` is the version of the newest sound checkpoint. Checkpoints that are `known` are not read.

    A pack of that version or a later one stays, because a checkpoint in progress may name it, however old it is: no
    clock is asked, and two processes may write a checkpoint of one version, where a task runs twice. Of a checkpoint
    that failed, it is removed behind the next checkpoint that is sound. A pack of an earlier version can only belong to
    a checkpoint that is not needed; if a process still writes such a checkpoint, the checkpoint is never used, because
    a pack is missing. A checkpoint that is damaged names no pack; none is deleted if one that was listed is gone. Packs
    that this process reads by ranges stay, too.
    Raises StorageUnreachableError, also where only a checkpoint could not be read now. O(names + checkpoints).
    """
    packs = [(name, pack) for name in storage.list(f"{PACKS}/") if (pack := parse_pack_name(name)) is not None]
    old = [name for name, pack in packs if pack.version < below]
    if not old:
        return []
    # Listed after the packs: a checkpoint that was finished meanwhile is seen, and so are the packs that it names.
    named: set[str] = set()
    for checkpoint in list_checkpoints(storage):
        try:
            meta = known.get(checkpoint) or read_meta(storage, checkpoint)
            named.update(record.name for record in meta.packs)
        except FileNotFoundError:
            return []  # a newer one, which is not in the list, has replaced it, and may name its packs: the next prune
        except (CheckpointError, ForeignFileError):
            continue
    unnamed = [name for name in old if name not in named | names_in_use(storage)]
    storage.delete(unnamed)
    return unnamed
