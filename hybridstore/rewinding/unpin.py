"""The command `unpin`: the name of a version is removed, and with it the files that nothing else names.

It begins with a rename, so that a pin is there as a whole or not at all. On an object store, which has none, the object
that makes the pin a state is removed first.
"""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from changelog.files import REAL_FILES
from changelog.storage import storage_at
from recovery.errors import RestoreError

from ..inspection.options import FINE, NEGATIVE, last_options
from ..inspection.show.output import Out
from ..reading.pins import bytes_of, has_pin, pin_names, pin_path
from ..reading.texts import say, size_text
from ..state.registry import kept_from_erase
from .fork import check_origin
from .makers import at_work, remove_alone
from .pins import checked_name


def arguments(parser: ArgumentParser) -> None:
    where = "A state directory, the state of a plain topology, or the place of a Spark query's state."
    parser.add_argument("location", metavar="STATE", help=where)
    parser.add_argument("name", metavar="NAME", help="The name of the pin.")
    how = parser.add_argument_group("how")
    last_options(how)


def run(given: Namespace) -> int:
    """Remove a pin: the state no longer keeps its version. Forks of the pin stay as they are.

    Exit codes: 0 done, 1 refused with nothing removed, 2 wrong usage, 3 cannot read.
    """
    try:
        size = unpin(given.location, given.name)
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    Out("raw").line(f"{given.location}: pin {given.name} removed, {size_text(size)} freed")
    return FINE


def unpin(location: str | os.PathLike[str], name: str) -> int:
    """Remove a pin; return the bytes of its files that nothing else named. Raises RestoreError for an unknown pin,
    OSError. O(files).

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> pin = hs.pin("state", "before")
    >>> hs.unpin("state", "before") == pin.size, hs.pins("state")
    (True, [])
    """
    state = check_origin(location)
    path = pin_path(state, checked_name(name))
    if not has_pin(state, name):
        known = ", ".join(pin_names(state)) or "none"
        raise RestoreError(f"{state}: found no pin {name!r} (known: {known})")
    size = bytes_of(path)
    if not isinstance(path, Path):
        with at_work() as maker:
            remove_alone(storage_at(path), maker)
        return size
    away = path.with_name(f".{name}.{os.urandom(8).hex()}.fork")
    with kept_from_erase(state):
        path.rename(away)
        REAL_FILES.sync_directory(path.parent)
        shutil.rmtree(away)
    return size
