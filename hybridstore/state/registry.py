"""Registry: which states began as versions of a state, noted at that state, so that an erase can name them.

    forks/<hash>    at the origin, and at the origin's origin: where the fork is
    forks/origin    at the fork: where its origin is

A note is written before the fork is a state, so no fork is without one. A note of a fork that is no more is removed
when the notes are read. While a fork or a pin is made on a disk, the folder of the origin is locked against an erase;
on an object store, which has no locks, whoever makes one looks at the origin once more at the end (`rewinding`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from changelog.bucket import Bucket, same_settings
from changelog.files import REAL_FILES, Files
from changelog.rounds import side_by_side
from changelog.storage import LocalStorage, is_url, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, FORKS, GENERATIONS, PINS, SPARK_FOLDER

from ..errors import HybridStoreError
from .generations import ORIGIN

# The errors of a state that may be read and not written: of another user, or a snapshot of a file system.
_READ_ONLY: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
# The name of the note of a fork.
_NOTE: Final = re.compile(rf"{FORKS}/[0-9a-f]{{32}}")
_UNFINISHED: Final = re.compile(r"\..*\.[0-9a-f]{16}\.fork", re.DOTALL)
# A fork on an object store has the last one of these from its first object on.
_OF_STATES: Final = (CHANGELOG, CHECKPOINTS, GENERATIONS, SPARK_FOLDER, FORKS)


def note_fork(origin: Path | str, fork: Path | str, files: Files = REAL_FILES) -> None:
    """Note a fork at its origin, and at those before, but for states that cannot be written. Durable on return.
    O(origins).
    """
    where, name = note_of(fork), _name_of(fork)

    def note(state: Path | str) -> None:
        try:
            storage_at(state, files=files).create(name, where)
        except OSError as error:
            # who may only read a state may fork it; the page of privacy says that such a fork is not known there
            if error.errno not in _READ_ONLY:
                raise

    if is_url(origin):
        steps: list[Callable[[], Any]] = [partial(note, origin), partial(origins_of, origin)]
        origins = side_by_side(lambda step: step(), steps)[1]
    else:
        note(origin)
        origins = origins_of(origin)
    for state in origins:
        note(state)


def remove_note(origin: Path | str, fork: Path | str) -> None:
    """Remove the note of a fork that is not made. Raises OSError."""
    for state in (origin, *origins_of(origin)):
        storage_at(state).delete([_name_of(fork)])


def note_origin(fork: Path, origin: Path | str, files: Files) -> None:
    """Note at a fork, which is being built, where its origin is. Durable on return."""
    LocalStorage(fork, files=files).create(ORIGIN, note_of(origin))


def note_of(place: Path | str) -> bytes:
    """Return what a note says of a place: an absolute path, or a URL."""
    return os.fsencode(str(place).rstrip("/") if is_url(place) else Path(place).resolve())


def _name_of(fork: Path | str) -> str:
    return f"{FORKS}/{blake2b(note_of(fork), digest_size=16).hexdigest()}"


def _noted(state: Path | str, name: str) -> Path | str:
    """Return the place that a note at a state names; a bucket's is reached as the state is."""
    where = os.fsdecode(storage_at(state).get(name))
    if not is_url(where):
        return Path(where)
    where = where.partition("\n")[0]  # at a fork its maker follows
    return same_settings(state, where) if isinstance(state, Bucket) else where


def origins_of(state: Path | str) -> list[Path | str]:
    """Return the state that a state began as a version of, and so on, as far as they are where they were."""
    origins: list[Path | str] = []
    while ORIGIN in storage_at(state).list(f"{FORKS}/"):
        state = _noted(state, ORIGIN)
        if not _is_state(state) or state in origins:
            break
        origins.append(state)
    return origins


def forks_of(state: Path | str) -> list[Path | str]:
    """Return where the forks of a state are, and their forks: those too that were made when a state in between was no
    more, and so are not noted here. Notes of forks that are no more are removed. O(forks).
    """
    forks, waiting, unused = list[Path | str](), list[Path | str](), list[str]()
    for name, fork in _notes_at(state):
        if _is_state(fork):
            waiting.append(fork)
        else:
            unused.append(name)
    if unused and not any(map(is_unfinished, waiting)):  # a fork has its name a moment behind the note
        storage_at(state).delete(unused)
    while waiting:
        fork = waiting.pop()
        # where states were moved, one may be noted as a fork of its own fork
        if fork not in forks and note_of(fork) != note_of(state):
            forks.append(fork)
            with suppress(OSError, HybridStoreError):  # who cannot read a fork names it
                # nothing is removed there, where a fork may be in the making: nobody has locked that state
                waiting += [each for _, each in _notes_at(fork) if _is_state(each) and not is_unfinished(each)]
    return sorted(forks, key=str)


def is_unfinished(fork: Path | str) -> bool:
    """Return whether a noted fork is the folder in which one is made, which a kill leaves behind. O(1)."""
    return isinstance(fork, Path) and _UNFINISHED.fullmatch(fork.name) is not None


def remove_unfinished(state: Path) -> None:
    """Remove the folders that forks and pins of a state have left behind a kill. None may be at work: the caller has
    excluded them (`kept_from_erase`). Raises OSError. O(files).
    """
    for folder in (*filter(is_unfinished, forks_of(state)), *(state / PINS).glob(".*.fork")):
        shutil.rmtree(folder)


def _notes_at(state: Path | str) -> Iterator[tuple[str, Path | str]]:
    """Yield the names of the notes of a state's forks, and where these are, or were."""
    for name in storage_at(state).list(f"{FORKS}/"):
        if _NOTE.fullmatch(name):
            yield name, _noted(state, name)


def _is_state(place: Path | str) -> bool:
    if not is_url(place):
        return any((Path(place) / name).is_dir() for name in _OF_STATES)
    try:
        return not set(_OF_STATES).isdisjoint(storage_at(place).folders())
    except (OSError, HybridStoreError):
        return True  # for all that is known


@contextmanager
def registered(origin: Path | str) -> Iterator[None]:
    """Exclude an erase of a state, and of those before, in this block, in which a fork of it is made. Raises
    RestoreError.
    """
    with ExitStack() as stack:
        for state in () if is_url(origin) else (origin, *origins_of(origin)):
            stack.enter_context(kept_from_erase(state))
        yield


@contextmanager
def kept_from_erase(state: Path | str, *, erasing: bool = False) -> Iterator[None]:
    """Exclude forks and pins from an erase of a state on a disk, and an erase from them, in this block. Raises
    RestoreError.
    """
    if is_url(state):
        yield
        return
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if erasing else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        other = "a fork, a pin or another erase is at work" if erasing else "an erase is at work"
        raise RestoreError(f"{state}: {other} (try again when it has ended)") from None
    finally:
        os.close(fd)
