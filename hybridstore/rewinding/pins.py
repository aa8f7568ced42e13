"""The command `pin`: a version of a state gets a name, and is kept until the name is removed (`unpin`).

A pin is a fork in `pins/NAME` of the state (`fork`), a folder or a URL, and is never written.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from recovery.errors import RestoreError

from ..inspection.options import FINE, NEGATIVE, last_options
from ..inspection.rebuild import OccupiedError
from ..inspection.rows import PIN_COLUMNS, pin_rows
from ..inspection.show.output import Out
from ..reading.pins import Pin, is_pin_name, pin_path, pins_of, read_pin
from ..reading.texts import say, size_text
from ..state.registry import kept_from_erase
from .fork import begin_at, check_origin, origin_of, split_version


def arguments(parser: ArgumentParser) -> None:
    where = (
        "A state directory, the state of a plain topology, or the checkpointLocation of a Spark query; with @VERSION "
        "(of several shards that of shard 0, of a query the number of batches done), or"
    )
    parser.add_argument("location", metavar="STATE[@VERSION]", help=f"{where} @TIME. Without it the newest version.")
    text = "The name: a letter, then letters, digits, _, . and -. Without NAME the pins are listed."
    parser.add_argument("name", metavar="NAME", nargs="?", help=text)
    how = parser.add_argument_group("how")
    how.add_argument("--state", metavar="PLACE", help="The place of a query's state, if not STATE.")
    how.add_argument("--iso", action="store_true", help="Times in ISO form (UTC) instead of milliseconds.")
    last_options(how)


def run(given: Namespace) -> int:
    """Give a version of a state a name, so that pruning keeps it, or list the pins. The job may run.

    The pin is in STATE/pins/NAME and is read as a state: `hybridstore inspect get STATE/pins/NAME STORE KEY`. Another
    state begins there with `hybridstore fork STATE@NAME NEW`. `hybridstore unpin STATE NAME` removes it.

    Exit codes: 0 done, 1 refused with nothing written, or a pin is damaged, 2 wrong usage, 3 cannot read.
    """
    location, at = split_version(given.location)
    out = Out(None)
    try:
        if given.name is not None:
            new = pin(location, given.name, at=at, state_location=given.state)
            out.line(f"{location}: pin {new.name}: version {new.version}, {size_text(new.size)} of its own")
            return FINE
        if at is not None:
            raise RestoreError(f"{given.location}: found no NAME, expected one for the version")
        known = pins(location if given.state is None else given.state)
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    out.rows(pin_rows(known, given.iso), PIN_COLUMNS)
    for each in known:
        if each.fault:
            say(f"damaged: {each.fault}")
    return NEGATIVE if any(each.fault for each in known) else FINE


def pins(location: str | os.PathLike[str]) -> list[Pin]:
    """Return the pins of a state, by name; of a Spark query those at the place of its state. Raises FileNotFoundError.
    O(pins * (blocks + tail)); on an object store some requests for each.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> hs.pins("state")
    []
    """
    check_origin(location)
    return pins_of(location)


def pin(
    location: str | os.PathLike[str],
    name: str,
    *,
    at: int | str | None = None,
    state_location: str | os.PathLike[str] | None = None,
) -> Pin:
    """Give a version of a state, or of a Spark query, a name, so that pruning keeps it; return the pin. The job may
    run.

    at   the version (of several shards that of shard 0, of a query the number of batches done), or a time (ISO, UTC):
         the newest one committed by then; None: the newest version
    state_location   of a Spark query, as in `apply`; its pins are there

    Raises RestoreError when the version is not retained, or the name is taken or no name; OSError.
    O(files + bytes behind the begin of the last segment).

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 2
    ...     state.commit()
    2
    >>> hs.inspect(hs.pin("state", "before", at=1).path)["users"].get("ann")
    [Row(key='ann', times=(), value=1)]
    """
    checkpoint, state = origin_of(location, state_location)
    target = pin_path(state, checked_name(name))
    taken = RestoreError(
        f"{state}: found a pin {name} already (choose another name, or remove it: hybridstore unpin {state} {name})"
    )
    if isinstance(target, Path) and target.exists():
        raise taken
    with kept_from_erase(state):
        try:
            begin_at(state, None if at is None else str(at), target, checkpoint=checkpoint)
        except OccupiedError:
            raise taken from None
    return read_pin(target)


def checked_name(name: str) -> str:
    """Return the name of a pin. Raises RestoreError for what is none."""
    if not is_pin_name(name):
        raise RestoreError(
            f"pin: found the name {name!r}, expected a letter, then letters, digits, _, . and -, at most 64"
        )
    return name
