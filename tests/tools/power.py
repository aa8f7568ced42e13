"""Power: the disks that a power failure may leave of a directory tree, whatever wrote it: states, shards, rescales.

`Power` records what the code under test asks of the system, at `changelog.files`, below one root: folders, names,
writes, cuts, syncs. `disk(moment)` then draws one of the trees that POSIX allows after a failure at that moment:

    names      of a folder that was synced: those of then. Of what was done in it since, each name by itself has any of
               its later states, in whatever order the names were changed
    folders    as names: what is in a folder whose own name is not there is lost with it
    contents   of a file that was synced: those of then; of what was written since, each sector of 512 bytes by itself
               has any of its later contents, or zeros, and the file any of its later lengths

A LOCK is written beside this layer, durably; it has the content of the moment.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from changelog.files import AppendFile, Files

SECTOR = 512


class Event(NamedTuple):
    what: str
    path: Path
    file: int = 0
    detail: Any = None
    locks: dict[Path, bytes] | None = None


class Power:
    """A recording of everything below `root`. Real syncs are left out."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.history: list[Event] = []
        self._numbers: dict[Path, int] = {}
        self._by_file: dict[int, int] = {}
        make, write, truncate = AppendFile.__init__, AppendFile.write, AppendFile.truncate
        mkdir, link, remove = Files.mkdir, Files.link, Files.remove

        def make_file(file: AppendFile, path: Path, *, create: bool, **options: Any) -> None:
            make(file, path, create=create, **options)
            if create:
                self._numbers[path] = len(self.history) + 1
                self._note("name", path, self._numbers[path])

        def wrote(file: AppendFile, data: bytes) -> None:
            write(file, data)
            self._note("write", file.path, self._numbers.get(file.path, 0), bytes(data))

        def cut(file: AppendFile, size: int) -> None:
            truncate(file, size)
            self._note("cut", file.path, self._numbers.get(file.path, 0), size)

        def folder(files: Files, path: Path) -> None:
            new = not path.exists()
            mkdir(files, path)
            if new:
                self._note("folder", path)

        def linked(files: Files, temporary: Path, final: Path) -> None:
            link(files, temporary, final)
            self._numbers[final] = self._numbers[temporary]
            self._note("name", final, self._numbers[final])

        def synced(files: Files, path: Path) -> None:
            if path.is_dir():
                self._note("sync names", path)
            else:
                self._note("sync", path, self._numbers.get(path, 0))

        def removed(files: Files, path: Path) -> None:
            there = path.exists()
            remove(files, path)
            if there:
                self._note("unname", path)

        patch.setattr(AppendFile, "__init__", make_file)
        patch.setattr(AppendFile, "write", wrote)
        patch.setattr(AppendFile, "truncate", cut)
        patch.setattr(AppendFile, "sync", lambda file: self._note("sync", file.path, self._numbers.get(file.path, 0)))
        for name, method in (
            ("mkdir", folder), ("link", linked), ("sync_path", synced), ("remove", removed)
        ):  # fmt: skip
            patch.setattr(Files, name, method)

    def acknowledge(self, detail: Any) -> None:
        """Note what is promised from now on."""
        self._note("acknowledged", self.root, 0, detail)

    def _note(self, what: str, path: Path, file: int = 0, detail: Any = None) -> None:
        path = Path(os.path.abspath(path))
        if not path.is_relative_to(self.root):
            return
        locks = {lock: lock.read_bytes() for lock in self.root.rglob("LOCK")}
        self.history.append(Event(what, path, file, detail, locks))

    def acknowledged(self, moment: int) -> Any:
        """Return what was promised last before a moment; None: nothing."""
        return next((event.detail for event in reversed(self.history[:moment]) if event.what == "acknowledged"), None)

    def lay(self, moment: int, dice: random.Random, root: Path) -> None:
        """Lay out, below `root`, one of the trees that a failure after this many events may leave."""
        durable: dict[Path, int] = {self.root: -1}  # the number of the file, -1: a folder
        later: dict[Path, list[int | None]] = {}  # the states of a name since its folder was synced
        kept: dict[int, bytes] = {}
        contents: dict[int, list[bytes]] = {}
        for event in self.history[:moment]:
            path, number = event.path, event.file
            if event.what in ("name", "folder", "unname"):
                state = {"name": number, "folder": -1, "unname": None}[event.what]
                later.setdefault(path, []).append(state)
            elif event.what == "sync names":
                for name in [name for name in later if name.parent == path]:
                    state = later.pop(name)[-1]
                    durable.pop(name, None)
                    if state is not None:
                        durable[name] = state
            elif event.what == "sync":
                kept[number] = contents.get(number, [b""])[-1]
                contents[number] = [kept[number]]
            elif event.what in ("write", "cut"):
                now = contents.setdefault(number, [b""])[-1]
                contents[number].append(now + event.detail if event.what == "write" else now[: event.detail])
        names = dict(durable)
        for name, states in later.items():
            state = dice.choice([durable.get(name), *states])
            names.pop(name, None)
            if state is not None:
                names[name] = state
        for name in sorted(names, key=lambda name: len(name.parts)):
            target = root / name.relative_to(self.root)
            if not target.parent.is_dir() and name != self.root:
                continue  # its folder is lost
            if names[name] == -1:
                target.mkdir(exist_ok=True)
            else:
                target.write_bytes(mixed(contents.get(names[name], [b""]), dice))
        for lock, data in (self.history[moment - 1].locks or {}).items():
            target = root / lock.relative_to(self.root)
            if target.parent.is_dir():
                target.write_bytes(data)


def mixed(contents: list[bytes], dice: random.Random) -> bytes:
    """Return what a disk may have of a file with these contents since its last sync, the first of them."""
    if len(contents) == 1:
        return contents[0]
    how = dice.random()
    if how < 0.4:
        return dice.choice(contents)
    size = len(dice.choice(contents))
    sectors = []
    for at in range(0, size, SECTOR):
        source = dice.choice(contents)
        sectors.append(source[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0"))
    return b"".join(sectors)
