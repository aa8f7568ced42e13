"""Digest: the hash over the mutations of a version, taken beside the owner where there is much to hash.

blake2b reads about a gigabyte a second: nothing for small values, more than a quarter of a put for values of a kilobyte. So what a
version logs is handed over in pieces to a thread (hashlib lets the interpreter go on meanwhile), and `digest` waits for the
last of them. A version smaller than a piece never leaves its owner.
"""

from __future__ import annotations

import os
import threading
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, Final

DIGEST_BYTES: Final = 16
# Large enough that handing over does not count, small enough that hashing the rest at a commit does not either.
PIECE_BYTES: Final = 384 * 1024

Job = tuple[Any, list[memoryview], threading.Lock]


class _Worker:
    """The thread that hashes for all journals of a process, begun when the first of them has a whole piece."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] | None = None
        self._pid = 0

    def submit(self, job: Job) -> None:
        """Hash the parts of a job, in order, and release its lock. Raises RuntimeError when there can be no thread."""
        if self._jobs is None or self._pid != os.getpid():  # a forked child has no threads but its own
            jobs: SimpleQueue[Job] = SimpleQueue()
            threading.Thread(target=_work, args=(jobs,), name="hybridstore-digest", daemon=True).start()
            self._pid, self._jobs = os.getpid(), jobs
        self._jobs.put(job)


def _work(jobs: SimpleQueue[Job]) -> None:
    while True:
        _hash(*jobs.get())


def _hash(digest: Any, parts: list[memoryview], busy: threading.Lock) -> None:
    try:
        # one call, and one wait for the interpreter behind it: a call for each part would make the owner wait as often
        digest.update(parts[0] if len(parts) == 1 else b"".join(parts))
    finally:
        busy.release()


_WORKER: Final = _Worker()


class RunningDigest:
    """blake2b-16 over a parent digest and what is added. One thread adds; a piece that was added may be hashed by another."""

    __slots__ = ("_busy", "_bytes", "_hash", "_parts")

    def __init__(self, parent: bytes) -> None:
        self._hash = blake2b(parent, digest_size=DIGEST_BYTES)
        self._parts: list[memoryview] = []
        self._bytes = 0
        # held while the thread hashes
        self._busy = threading.Lock()

    def add(self, part: memoryview) -> None:
        """Add bytes, which must not change until `digest` was called. O(1), but for waiting while the thread is two pieces behind."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes >= PIECE_BYTES:
            self._busy.acquire()
            try:
                _WORKER.submit((self._hash, self._parts, self._busy))
            except RuntimeError:  # too many threads, or the interpreter is about to end
                self._busy.release()
                return
            self._parts, self._bytes = [], 0

    def digest(self) -> bytes:
        """Return the digest of all that was added. O(bytes of a piece), and the thread's part if it is not done."""
        with self._busy:
            for part in self._parts:
                self._hash.update(part)
            self._parts, self._bytes = [], 0
            return self._hash.digest()
