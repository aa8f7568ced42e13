"""Prune: delete what no retained checkpoint needs. A crash in the middle leaves extra files, never a missing one.

Checkpoints go first, oldest first (the file before its page sums), then segments, oldest first: whatever is left is a state that
restores. Kept are the newest `keep` checkpoints and every segment from the one that the oldest of them refers to.
"""

from __future__ import annotations

from pathlib import Path

from changelog.files import REAL_FILES, Files
from changelog.segment import list_segments, segment_name

from .checkpoint import SUFFIX, CheckpointReader, checkpoint_name, damage_path, list_checkpoints
from .errors import CheckpointError
from .layout import CHANGELOG, CHECKPOINTS
from .page_sums import sums_path


def prune(path: Path, *, keep: int, files: Files = REAL_FILES) -> list[Path]:
    """Delete what `keep` checkpoints do not need and return what was deleted. O(files).

    A damaged checkpoint does not count as kept, so nothing that it would be replaced by is deleted. What a crash left of an
    earlier checkpoint or prune (temporary files, page sums and markers of no checkpoint) goes too: no checkpoint may be
    in the making.
    """
    deleted: list[Path] = []
    sound: list[int] = []
    oldest_segment: int | None = None
    for version in reversed(list_checkpoints(path / CHECKPOINTS)):
        file = path / CHECKPOINTS / checkpoint_name(version)
        if len(sound) >= keep:
            for old in (file, sums_path(file), damage_path(file)):
                if old.exists():
                    files.remove(old)
                    deleted.append(old)
            continue
        try:
            reader = CheckpointReader(file)
        except CheckpointError:
            continue
        oldest_segment = reader.meta.position.segment
        reader.close()
        sound.append(version)
    if len(sound) >= keep and oldest_segment is not None:
        for first in list_segments(path / CHANGELOG):
            if first < oldest_segment:
                segment = path / CHANGELOG / segment_name(first)
                files.remove(segment)
                deleted.append(segment)
    for orphan in leftovers(path / CHECKPOINTS):
        files.remove(orphan)
        deleted.append(orphan)
    return deleted


def leftovers(directory: Path) -> list[Path]:
    """Return what crashes left in a directory of checkpoints: temporary files, and companions of files that are gone."""
    names = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    return [
        directory / name
        for name in sorted(names)
        if (name.startswith(".") and name.endswith(".tmp"))
        or (name.endswith((".sum", ".damaged")) and name.rpartition(".")[0] + SUFFIX not in names)
    ]
