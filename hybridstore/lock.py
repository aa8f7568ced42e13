"""Lock: one writer per state directory, and what the last owner left word of.

`LOCK` is held by flock, which dies with its process, so there are no stale locks. Its content is a note in JSON, with its
crc32 on the second line: who holds it and the newest segment, or, after a clean close, the version and digest that were
closed. So a changelog whose newest segment is gone, or that ends before the close, is known to be cut. A note that is
damaged counts as none. Readers never take the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Final

from .errors import StateDirectoryLockedError

LOCK_NAME: Final = "LOCK"


class DirectoryLock:
    """The lock on a state directory. Raises StateDirectoryLockedError, naming the holder, when another process has it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_NAME
        self._since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_note(directory)
            os.close(self._fd)
            self._fd = -1
            who = (
                f"process {holder['pid']} on {holder.get('host')} since {holder.get('since')}"
                if "pid" in holder
                else "another process"
            )
            here = holder.get("pid") == os.getpid() and holder.get("host") == os.uname().nodename
            where = "this one: close what opened it first" if here else "close it there"
            raise StateDirectoryLockedError(
                f"{directory}: in use by {who} ({where}; `hybridstore inspect` reads without the lock)"
            ) from None
        note = read_note(directory)
        # What the last owner left word of: a clean close, or the first version of the newest segment (0: unknown).
        self.closed: dict[str, Any] = note.get("closed", {})
        self.segment: int = note.get("segment", 0)

    def hold(self, segment: int = 0) -> None:
        """Write that this process holds the directory, and the newest segment (0: none that is durable); durable on return.

        From now on no clean close is on record. Called before the first write, and when a new segment was begun.
        """
        self._note(
            {
                "pid": os.getpid(),
                "host": os.uname().nodename,
                "since": self._since,
                "segment": segment,
            },
        )

    def _note(self, note: dict[str, Any]) -> None:
        line = json.dumps(note).encode() + b"\n"
        data = line + b"%08x\n" % zlib.crc32(line)
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        os.fdatasync(self._fd)

    def release(self, closed: dict[str, Any] | None = None) -> None:
        """Give the lock back; `closed` is the note of a clean close."""
        if self._fd < 0:
            return
        try:
            if closed is not None:
                self._note({"closed": closed})
        finally:
            os.close(self._fd)
            self._fd = -1


def read_note(directory: Path) -> dict[str, Any]:
    """Return the note in a directory's LOCK; an absent or unreadable one is empty."""
    try:
        line, _, crc = (directory / LOCK_NAME).read_bytes().partition(b"\n")
        if crc != b"%08x\n" % zlib.crc32(line + b"\n"):
            return {}
        note = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return {}
    if type(note) is not dict:
        return {}
    closed = note.get("closed", {})
    known = type(note.get("segment", 0)) is int and type(closed) is dict and type(closed.get("version", 0)) is int
    return note if known else {}
