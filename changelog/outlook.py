"""Outlook: a view of another storage, through which a restore reads names and objects in few rounds of requests.

    begin(folders)   the names of these folders, a list for each, side by side; `extend` lists further ones
    fetch(names)     objects, side by side
    end()            forget what was read so

From `begin` to `end`, lists of these folders, reads of absent objects and reads of fetched objects are answered from
memory, as the storage was at that moment; a restore needs no more. The storage serves every other call.

The surprise: on a local disk `begin` and `fetch` do nothing, because a thread costs more than reading a small file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .rounds import side_by_side
from .storage import LocalStorage, Storage


class Outlook:
    """See the module. `storage` is the storage behind the view; calls raise as the storage does. For one thread."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # By folder: the name after which the list began, and the names, in order.
        self._folders: dict[str, tuple[str, dict[str, None]]] = {}
        self._objects: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        """That of the storage behind."""
        return self.storage.url

    def __repr__(self) -> str:
        return f"Outlook({self.storage!r})"

    @property
    def begun(self) -> bool:
        """True from `begin` to `end`, on storage that is not local."""
        return bool(self._folders)

    def begin(self, folders: Mapping[str, str]) -> None:
        """Read the names in these folders; each list begins after the name given with the folder ("": all names).

        One round of requests, as long as no folder has more than 1,000 names.
        """
        self.end()
        self.extend(folders)

    def extend(self, folders: Mapping[str, str]) -> None:
        """Read the names of further folders, as `begin` does. One round of requests."""
        if isinstance(self.storage, LocalStorage):
            return

        def listed(item: tuple[str, str]) -> tuple[str, tuple[str, dict[str, None]]]:
            folder, after = item
            return folder, (after, dict.fromkeys(self.storage.list(f"{folder}/", after=after)))

        self._folders |= side_by_side(listed, folders.items())

    def fetch(self, names: Iterable[str], *, whole: int, head: int = 0) -> None:
        """Read the first `whole` of these objects, and the first `head` bytes of the others, because they are needed
        next. One round of requests. Objects fetched earlier that are not among these are forgotten; absent objects are
        left out. O(bytes).
        """
        if not self.begun:
            return

        def read(item: tuple[int, str]) -> tuple[str, bytes | None]:
            number, name = item
            known = self._objects.get(name) if number < whole else self._heads.get(name)
            if known is not None:
                return name, known
            with suppress(FileNotFoundError):
                if number < whole:
                    return name, self.storage.get(name)
                return name, bytes(self.storage.get_ranges(name, [(0, head)])[0])
            return name, None

        wanted = [(number, name) for number, name in enumerate(dict.fromkeys(names)) if number < whole or head]
        answers = side_by_side(read, wanted)
        self._objects = {name: data for name, data in answers[:whole] if data is not None}
        self._heads = {name: data for name, data in answers[whole:] if data is not None}

    def end(self) -> None:
        """Answer from the storage again. O(objects)."""
        self._folders, self._objects, self._heads = {}, {}, {}

    def cached(self, name: str) -> bool:
        """True when a read of an object needs no request: its file is on this host. O(1)."""
        try:
            return self.storage.path(name) is not None
        except FileNotFoundError:
            return False

    def _check(self, name: str) -> None:
        """Raise FileNotFoundError for an object that was not there at `begin`."""
        after, names = self._folders.get(name.partition("/")[0], ("", None))
        if names is not None and name > after and name not in names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        return self.storage.create(name, data)

    def get(self, name: str) -> bytes:
        data = self._objects.get(name)
        if data is not None:
            return data
        self._check(name)
        return self.storage.get(name)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        data = self._objects.get(name)
        head = self._heads.get(name, b"") if data is None else data
        if data is not None or all(start + length <= len(head) for start, length in ranges):
            return [head[start : start + length] for start, length in ranges]
        return self.storage.get_ranges(name, ranges)

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        folder, slash, _ = prefix.partition("/")
        listed_after, names = self._folders.get(folder, ("", None))
        if not slash or names is None or after < listed_after:
            return self.storage.list(prefix, after)
        return [name for name in names if name.startswith(prefix) and name > after]

    def folders(self, folder: str = "") -> Sequence[str]:
        """See `Storage`. Always of the storage behind."""
        return self.storage.folders(folder)

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage`. What was read of these objects is forgotten."""
        removed = list(names)
        self.storage.delete(removed)
        for name in removed:
            _, listed = self._folders.get(name.partition("/")[0], ("", {}))
            for known in (listed, self._objects, self._heads):
                known.pop(name, None)

    def size(self, name: str) -> int:
        return self.storage.size(name)

    def path(self, name: str) -> Path | None:
        return self.storage.path(name)

    def below(self, folder: str) -> Storage:
        """See `Storage`: the storage behind, from a folder of it."""
        return self.storage.below(folder)


def behind(storage: Storage) -> Storage:
    """Return the storage behind an outlook, for reads after its end; any other storage is returned as it is."""
    return storage.storage if isinstance(storage, Outlook) else storage
