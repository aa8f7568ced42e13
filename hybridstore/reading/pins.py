"""Pins: named versions of a state, which pruning leaves alone.

A pin is a state of its own in `pins/NAME` of the state, made as a fork is: its files are the state's, under a second
name. So pruning the state never removes what a pin needs, and a pin costs the files that nothing else names. On an
object store it has objects of its own, and costs their bytes.
"""

from __future__ import annotations

import re
from os import PathLike, fspath, lstat
from pathlib import Path
from typing import Final, NamedTuple

from changelog.cloud_storage import CloudStorage
from changelog.storage import is_url, local_path, storage_at
from recovery.errors import RestoreError
from recovery.layout import PINS

from ..state.generations import current_shards, place_below
from .places import resolve
from .texts import iso
from .view import open_view

# A pin's name is no version and no time, and no path.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Pin(NamedTuple):
    """A named version of a state.

    name      the name
    path      its directory or URL, a state that is read like any other: `hs.inspect(pin.path)`
    version   the version (of several shards that of shard 0), 0 if it cannot be read
    wall_ms   the time of its commit (ms), None if it is not known
    size      bytes of the files that nothing else names, on an object store of all of them, which `unpin` frees
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
    path: Path | str
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


def pin_path(state: Path | str, name: str) -> Path | str:
    """Return the place of a pin."""
    return state / PINS / name if isinstance(state, Path) else fspath(place_below(state, f"{PINS}/{name}"))


def pin_names(state: Path | str) -> list[str]:
    """Return the names of the pins of a state, sorted; on an object store with those that are being made. O(pins); one
    request.
    """
    return [name for name in storage_at(state).folders(PINS) if is_pin_name(name)]


def has_pin(state: Path | str, name: str) -> bool:
    """Return whether a state has a pin of this name, as `pin_names`."""
    return name in pin_names(state)


def pins_of(location: str | PathLike[str]) -> list[Pin]:
    """Return the pins of a state, by name. O(pins * (blocks + tail))."""
    state = fspath(location) if is_url(location) else local_path(location)
    return [read_pin(pin_path(state, name)) for name in pin_names(state)]


def read_pin(path: Path | str) -> Pin:
    """Return the pin at a place. O(blocks + tail)."""
    storage, name = storage_at(path), str(path).rpartition("/")[2]
    size = bytes_of(path)
    try:
        there = current_shards(storage)
        place = resolve(path if there is None else place_below(path, there.folder(0)))[0]
        view = open_view(place, rows=False)
        if not view.version and not view.faults:
            raise RestoreError(f"{path}: is being made, or its maker was killed (remove it: hybridstore unpin)")
    except Exception as error:  # whatever its files hold, the other pins are shown
        return Pin(name, path, 0, None, size, str(error))
    # the version of a query, whose last batches may have brought this shard no rows
    version = view.version if view.place.shard is None else view.seen
    return Pin(name, path, version, view.wall_ms, size, view.faults[0] if view.faults else "")


def bytes_of(path: Path | str) -> int:
    """Return the bytes of the files of a pin that nothing else names; on an object store of all objects. O(files)."""
    storage = storage_at(path)
    if isinstance(storage, CloudStorage):
        return sum(storage.sizes().values())
    files = (file for file in Path(path).rglob("*") if file.is_file() and not file.is_symlink())
    return sum(status.st_size for status in map(lstat, files) if status.st_nlink == 1)
