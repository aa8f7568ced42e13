"""Pins: named versions of a state, which pruning leaves alone.

A pin is a state of its own in `pins/NAME` of the state, made as a fork is: its files are the state's, under a second
name. So pruning the state never removes what a pin needs, and a pin costs the files that nothing else names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from changelog.storage import LocalStorage, is_url, local_path
from recovery.layout import PINS

from ..state.generations import current_shards
from .places import resolve
from .texts import iso
from .view import open_view

# A pin's name is no version and no time, and no path.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Pin(NamedTuple):
    """A named version of a state.

    name      the name
    path      its directory, a state that is read like any other: `hs.inspect(pin.path)`
    version   the version (of several shards that of shard 0), 0 if it cannot be read
    wall_ms   the time of its commit (ms), None if it is not known
    size      bytes of the files that nothing else names, which `unpin` frees
    fault     why it cannot be read; "" for a sound pin

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> pin = hs.pin("state", "release-7")
    >>> pin.name, pin.version, pin.size < 1000, [each.name for each in hs.pins("state")]
    ('release-7', 1, True, ['release-7'])
    """

    name: str
    path: Path
    version: int
    wall_ms: int | None
    size: int
    fault: str

    def __repr__(self) -> str:
        when = "" if self.wall_ms is None else f" of {iso(self.wall_ms)}"
        return f"<Pin {self.name!r}, version {self.version}{when}, {self.size} bytes>"


def is_pin_name(name: str) -> bool:
    """Return whether a pin may have this name: a letter, then letters, digits, `_`, `.` and `-`, 64 at most."""
    return _NAME.fullmatch(name) is not None


def pin_path(state: Path, name: str) -> Path:
    """Return the directory of a pin."""
    return state / PINS / name


def pins_of(location: str | os.PathLike[str]) -> list[Pin]:
    """Return the pins of a state, by name; [] for an object store, where none can be. O(pins * (blocks + tail))."""
    if is_url(location):
        return []
    try:
        names = sorted(name for name in os.listdir(local_path(location) / PINS) if is_pin_name(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [read_pin(pin_path(local_path(location), name)) for name in names]


def read_pin(path: Path) -> Pin:
    """Return the pin in a directory. O(blocks + tail)."""
    size = sum(os.lstat(file).st_size for file in _files(path) if os.lstat(file).st_nlink == 1)
    try:
        there = current_shards(LocalStorage(path))
        view = open_view(resolve(path / there.folder(0) if there is not None else path)[0])
    except Exception as error:  # whatever its files hold, the other pins are shown
        return Pin(path.name, path, 0, None, size, str(error))
    # the version of a query, whose last batches may have brought this shard no rows
    version = view.version if view.place.shard is None else view.seen
    return Pin(path.name, path, version, view.wall_ms, size, view.faults[0] if view.faults else "")


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
