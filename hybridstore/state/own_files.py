"""Own files: the file layer of a writer, which looks before every change of a name whether the directory is still its
own.

Paths are looked up by name each time. A directory that was moved away and made anew, or whose LOCK was removed, may be
another writer's by now, and a checkpoint, a segment or a removal of ours would damage what that writer has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from changelog.files import AppendFile, Files


class OwnFiles(Files):
    """`files`, with a call of `check()`, which raises, before anything is created, named, replaced or removed."""

    def __init__(self, files: Files, check: Callable[[], None]) -> None:
        super().__init__(files.mode)
        self._files = files
        self._check = check

    def create(self, path: Path) -> AppendFile:
        """See `Files`."""
        self._check()
        return self._files.create(path)

    def append(self, path: Path) -> AppendFile:
        """See `Files`."""
        self._check()
        return self._files.append(path)

    def mkdir(self, path: Path) -> None:
        """See `Files`."""
        self._check()
        self._files.mkdir(path)

    def link(self, temporary: Path, final: Path) -> None:
        """See `Files`."""
        self._check()
        self._files.link(temporary, final)

    def sync_path(self, path: Path) -> None:
        """See `Files`."""
        self._files.sync_path(path)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        self._files.sync_directory(path)

    def remove(self, path: Path) -> None:
        """See `Files`; a temporary file has a name of its own, which nobody else's can have."""
        if path.suffix != ".tmp":
            self._check()
        self._files.remove(path)
