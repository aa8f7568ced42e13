"""Memory storage: the seven verbs over a dict.

An object store of one process, with nothing to sync and nothing to lose.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

_CREATING = threading.Lock()


class MemoryStorage:
    """Objects in a dict. `below` shares the dict."""

    def __init__(self, objects: dict[str, bytes] | None = None, base: str = "") -> None:
        self.objects: dict[str, bytes] = {} if objects is None else objects
        self.base = base

    @property
    def url(self) -> str:
        return f"memory:/{self.base}".rstrip("/")

    def _missing(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        with _CREATING:
            if self.base + name in self.objects:
                return False
            self.objects[self.base + name] = bytes(data)
            return True

    def get(self, name: str) -> bytes:
        try:
            return self.objects[self.base + name]
        except KeyError:
            raise self._missing(name) from None

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        data = self.get(name)
        return [data[start : start + length] for start, length in ranges]

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        start = self.base + prefix
        names = [name.removeprefix(self.base) for name in self.objects if name.startswith(start)]
        return sorted(name for name in names if name > after)

    def folders(self, folder: str = "") -> Sequence[str]:
        start = f"{folder}/" if folder else ""
        inner = (name.removeprefix(start).partition("/") for name in self.list(start))
        return sorted({name for name, slash, _ in inner if slash})

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.objects.pop(self.base + name, None)

    def size(self, name: str) -> int:
        return len(self.get(name))

    def path(self, name: str) -> Path | None:
        self.get(name)
        return None

    def below(self, folder: str) -> MemoryStorage:
        return MemoryStorage(self.objects, f"{self.base}{folder}/")
