"""Makers: who makes a fork or a pin on an object store, so that nobody removes the objects of a maker that is at work.

`forks/origin` is the first object of a fork and its last line names the maker. What a killed maker has left is removed
by the next command, but only where it is certain that the maker was killed: its process was on this machine and is no
more. Elsewhere the user says so, by removing the objects, or a pin by `unpin`.

Of several commands that remove the same objects one wins: it creates `forks/removing-<of>-<n>` first, where `of` is
the hash of `forks/origin`, and finds `forks/origin` still as it was. The object is removed last, so whoever creates it
behind that finds another `forks/origin`, or none, and removes nothing. Where a winner was killed, n + 1 is the next.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.storage import Storage, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHECKPOINT_SUFFIX, CHECKPOINTS, FORKS, METADATA, SPARK_FOLDER, parse_generation_name
from recovery.object_log import object_name

from ..inspection.rebuild import OccupiedError
from ..reading.texts import iso
from ..state.generations import ORIGIN

_REMOVING: Final = f"{FORKS}/removing-"
# The ids of the makers of this process that have not ended.
_AT_WORK: Final[set[str]] = set()
# When an object is created: its turn. All of a turn are there before the next one begins.
_FIRST: Final = 0
BEGINNING: Final = 1
COUNTING: Final = 2
_OLDER: Final = 3


class Maker(NamedTuple):
    """A command that makes or removes a fork or a pin.

    id       of this command, 16 random bytes in hex
    machine  of its process: other machines, and other containers, do not know it
    """

    id: str
    machine: str
    host: str
    pid: int
    wall_ms: int

    def line(self) -> bytes:
        """Return what a note says of the maker."""
        return json.dumps(self._asdict(), sort_keys=True).encode()

    @property
    def ended(self) -> bool:
        """Whether it is certain that the maker is no longer at work."""
        if self.machine != _machine():
            return False
        if self.pid == os.getpid():
            return self.id not in _AT_WORK
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {iso(self.wall_ms)}"


@cache
def _machine() -> str:
    """Return what is equal for the processes that see one another's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return os.urandom(16).hex()  # only this process knows that its makers have ended


@contextmanager
def at_work() -> Iterator[Maker]:
    """Return a maker of this process, which has ended behind this block."""
    maker = Maker(os.urandom(16).hex(), _machine(), os.uname().nodename, os.getpid(), int(time.time() * 1000))
    _AT_WORK.add(maker.id)
    try:
        yield maker
    finally:
        _AT_WORK.discard(maker.id)


def _maker_of(note: bytes) -> Maker | None:
    try:
        return Maker(**json.loads(note.rpartition(b"\n")[2]))
    except (ValueError, TypeError):
        return None


def _check_ended(where: object, note: bytes, *, certain: bool) -> None:
    """Raise RestoreError where the maker that a note names is at work; with `certain`, too, where it may be."""
    maker = _maker_of(note)
    ended = maker is not None and maker.ended
    if ended or (not certain and (maker is None or maker.machine != _machine())):
        return
    who = "another command" if maker is None else str(maker)
    raise RestoreError(
        f"{where}: {who} makes a fork or a pin here, or removes one (if it was killed, remove the objects below this "
        "place, those of a pin with hybridstore unpin; or give another place)"
    )


def turns_of(names: Sequence[str] | dict[str, Any]) -> dict[str, int]:
    """Return the turn of each object of a state: the last one makes it a state."""
    newest = max((number for name in names if (number := parse_generation_name(name)) is not None), default=None)

    def turn(name: str) -> int:
        number = parse_generation_name(name)
        if name == METADATA or (number is not None and number == newest):
            return COUNTING
        if number is not None:
            return _OLDER
        begins = name.endswith((CHECKPOINT_SUFFIX, f"/{object_name(1)}")) or name == object_name(1)
        return BEGINNING if begins else _FIRST

    return {name: turn(name) for name in names}


def is_whole(names: Sequence[str]) -> bool:
    """Return whether the objects of a place, by their names, are a state, and not what a killed command has left of a
    fork or a pin. What they contain does not matter: a state that is damaged, or of a later release, is one. O(names).
    """
    turns = set(turns_of(names).values())
    if any(name.startswith(f"{SPARK_FOLDER}/") for name in names):
        return METADATA in names
    if COUNTING in turns:
        return True
    return any(name.startswith(f"{CHECKPOINTS}/") or name == object_name(1) for name in names)


def check_whole(location: str | PathLike[str]) -> None:
    """Raise RestoreError for what a killed command has left of a fork or a pin on an object store, or what is being
    made. One list.
    """
    names = storage_at(location).list()
    if ORIGIN in names and not is_whole(names):
        raise RestoreError(
            f"{location}: is being made, or its maker was killed (remove the objects below it, those of a pin with "
            "hybridstore unpin; or make it again)"
        )


def is_begun(names: Sequence[str]) -> bool:
    """Return whether the objects of a place are what a command makes or removes, or a killed one has left. O(names)."""
    return not is_whole(names) and (ORIGIN in names or all(name.startswith(_REMOVING) for name in names))


def occupied(where: object) -> OccupiedError:
    """Return the error of a place with objects that are not a fork or a pin in the making."""
    return OccupiedError(f"{where}: found objects below it, expected an empty place (give a new one)")


def remove_alone(storage: Storage, maker: Maker, *, begun: bool = False) -> None:
    """Remove all objects of a fork or a pin, or what a killed command has left of one; with `begun` only that
    (OccupiedError), and only if it is certain that nobody is at work on it. Raises RestoreError where another command
    is, OSError.
    """
    note = _note(storage)
    names = storage.list()
    if is_whole(names):
        if begun:
            raise occupied(storage.url)
    elif note:
        _check_ended(storage.url, note, certain=begun)
    elif ORIGIN in names:
        raise _began(storage)
    removals = [name for name in names if name.startswith(_REMOVING)]
    for name in removals:
        _check_ended(storage.url, storage.get(name), certain=begun)
    number = max((int(name.rpartition("-")[2]) for name in removals), default=0) + 1
    mine = f"{_REMOVING}{blake2b(note, digest_size=16).hexdigest()}-{number}"
    alone = storage.create(mine, maker.line())
    if alone and _note(storage) != note:
        storage.delete([mine])
        alone = False
    if not alone:
        raise _began(storage)
    if note:
        remove_in_turns(storage, [name for name in storage.list() if name not in (mine, *removals)])
    else:  # what came since is of a command that found nothing here, before a killed one began
        remove_in_turns(storage, [name for name in names if name not in removals])
    storage.delete([*removals, mine])


def _began(storage: Storage) -> RestoreError:
    return RestoreError(f"{storage.url}: another command makes a fork or a pin here, or removes one (try again)")


def remove_in_turns(storage: Storage, names: Sequence[str]) -> None:
    """Remove the objects of a fork or a pin, the last one first, so that what a kill leaves is no state. The first one
    of all is removed last: by it the rest is known as what a killed command has left.
    """
    turns = turns_of([name for name in names if name != ORIGIN])
    for turn in sorted(set(turns.values()), reverse=True):
        storage.delete([name for name in turns if turns[name] == turn])
    if ORIGIN in names:
        storage.delete([ORIGIN])


def _note(storage: Storage) -> bytes:
    try:
        return storage.get(ORIGIN)
    except FileNotFoundError:
        return b""
