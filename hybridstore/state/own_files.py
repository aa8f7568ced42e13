"""Own files: the file layer of a writer. Before every change of a name this layer checks that the directory is still
the writer's.

Paths are looked up by name each time. A directory that replaces a moved one, or that lost its LOCK, may belong to
another writer by now, and a checkpoint, a segment or a removal by this writer would damage the other writer's data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from changelog.files import AppendFile, Files


class OwnFiles(Files):
    """`files`, with a call of `check()`, which may raise, before every create, link, replacement or removal."""

    def __init__(self, files: Files, check: Callable[[], None]) -> None:
        super().__init__(files.mode)
        self._files = files
        self._check = check

    def create(self, path: Path) -> AppendFile:
        self._check()
        return self._files.create(path)

    def append(self, path: Path) -> AppendFile:
        self._check()
        return self._files.append(path)

    def mkdir(self, path: Path) -> None:
        self._check()
        self._files.mkdir(path)

    def link(self, temporary: Path, final: Path) -> None:
        self._check()
        self._files.link(temporary, final)

    def sync_path(self, path: Path) -> None:
        self._files.sync_path(path)

    def sync_directory(self, path: Path) -> None:
        self._files.sync_directory(path)

    def remove(self, path: Path) -> None:
        """See `Files`; a temporary file needs no check, because its name is unique."""
        if path.suffix != ".tmp":
            self._check()
        self._files.remove(path)
