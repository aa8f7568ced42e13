"""Mapping: files that are mapped into memory, and the descriptors that they take.

    Python 3.13 and later   none: `mmap` keeps no descriptor
    before                  one for each map

Some states with hundreds of packs would have all of the 1,024 that a process usually may have.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import sys
from contextlib import suppress
from typing import Final

_UNLIMITED: Final = resource.RLIM_INFINITY


def map_file(fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
    """Map a file of which `fd` is a descriptor, which the caller closes. Raises OSError. O(1)."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, prot=prot, trackfd=False)
    keep_room(fd)
    return mmap.mmap(fd, size, prot=prot)


def keep_room(fd: int) -> None:
    """Double the soft limit of open files, up to the hard one, where the next descriptor is beyond half of it: the
    system gives the least free number, so all below it are taken. `fd` is any open descriptor. O(1).

    Not where the limit is reached: the call that fails there may be one of the program, or of a commit. And not at each
    opening of a state: a program with few files keeps its limit, for `select.select`, and for children that close every
    number up to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (hard, _UNLIMITED):
        return
    try:
        next_free = os.dup(fd)
        os.close(next_free)
    except OSError:
        next_free = soft  # none is free
    if 2 * next_free < soft:
        return
    limit = 2 * soft if hard == _UNLIMITED else min(2 * soft, hard)
    with suppress(ValueError, OSError):  # a system with a lower limit of its own: what fails for it says so
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        from logging import getLogger  # only here: few programs come here

        getLogger("hybridstore").info("the soft limit of open files is %d, was %d: %d are open", limit, soft, next_free)


def too_many(packs: int, where: str) -> OSError:
    """Return the error of a process that may not open as many files as a checkpoint with so many packs needs. O(1)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OSError(
        errno.EMFILE,
        f"{os.strerror(errno.EMFILE)}: the checkpoint has {packs} packs, an open file each, and this process may have "
        f"{most} (raise the hard limit, `ulimit -Hn`)",
        where,
    )
