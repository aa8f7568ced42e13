"""Registry: which states began as versions of a state, noted at that state, so that an erase can name them.

    forks/<hash>    at the origin, and at the origin's origin: where the fork is
    forks/origin    at the fork: where its origin is

A note is written before the fork has its name, so no fork is without one. A note of a fork that is no more is removed
when the notes are read. While a fork or a pin is made, the folder of the origin is locked against an erase.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from changelog.files import Files
from changelog.storage import LocalStorage
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, FORKS, GENERATIONS, SPARK_FOLDER

_ORIGIN = f"{FORKS}/origin"
# The errors of a state that may be read and not written: of another user, or a snapshot of a file system.
_READ_ONLY: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def note_fork(origin: Path, fork: Path, files: Files) -> None:
    """Note a fork at its origin, and at those before, but for states that cannot be written. Durable on return.
    O(origins).
    """
    where = os.fsencode(fork.resolve())
    name = f"{FORKS}/{blake2b(where, digest_size=16).hexdigest()}"
    for state in (origin, *origins_of(origin)):
        try:
            LocalStorage(state, files=files).create(name, where)
        except OSError as error:
            # who may only read a state may fork it; the page of privacy says that such a fork is not known there
            if error.errno not in _READ_ONLY:
                raise


def note_origin(fork: Path, origin: Path, files: Files) -> None:
    """Note at a fork, which is being built, where its origin is. Durable on return."""
    LocalStorage(fork, files=files).create(_ORIGIN, os.fsencode(origin.resolve()))


def origins_of(state: Path) -> list[Path]:
    """Return the state that a state began as a version of, and so on, as far as they are where they were."""
    origins: list[Path] = []
    while _ORIGIN in LocalStorage(state).list(f"{FORKS}/"):
        state = Path(os.fsdecode(LocalStorage(state).get(_ORIGIN)))
        if not _is_state(state) or state in origins:
            break
        origins.append(state)
    return origins


def forks_of(state: Path) -> list[Path]:
    """Return where the forks of a state are, and their forks; notes of those that are no more are removed. O(forks)."""
    storage, forks = LocalStorage(state), []
    for name in storage.list(f"{FORKS}/"):
        if name == _ORIGIN:
            continue
        fork = Path(os.fsdecode(storage.get(name)))
        if _is_state(fork):
            forks.append(fork)
        else:
            storage.delete([name])
    return sorted(forks)


def _is_state(path: Path) -> bool:
    return any((path / name).is_dir() for name in (CHANGELOG, GENERATIONS, SPARK_FOLDER))


@contextmanager
def registered(origin: Path) -> Iterator[None]:
    """Exclude an erase of a state, and of those before, in this block, in which a fork of it is made. Raises
    RestoreError.
    """
    with ExitStack() as stack:
        for state in (origin, *origins_of(origin)):
            stack.enter_context(kept_from_erase(state))
        yield


@contextmanager
def kept_from_erase(state: Path, *, erasing: bool = False) -> Iterator[None]:
    """Exclude forks and pins from an erase of a state, and an erase from them, in this block. Raises RestoreError."""
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if erasing else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        other = "a fork, a pin or another erase is at work" if erasing else "an erase is at work"
        raise RestoreError(f"{state}: {other} (try again when it has ended)") from None
    finally:
        os.close(fd)
