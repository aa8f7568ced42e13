"""Digest: the hash over the mutations of a version; a large version is hashed by a second thread.

blake2b reads about a gigabyte a second: nothing for small values, more than a quarter of a put for values of a
kilobyte. So the owner hands the logged bytes of a version to a thread in pieces (hashlib releases the interpreter's
lock), and `digest` waits for the last piece. The owner hashes a version smaller than a piece itself. The thread is
needed for speed only: pieces that a failed or dead thread did not begin are hashed by the owner.
"""

from __future__ import annotations

import sys
import threading
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, Final

from .errors import StatePoisonedError

DIGEST_BYTES: Final = 16
# Large enough that the cost of handing over is small, and small enough that hashing the rest at a commit is cheap.
PIECE_BYTES: Final = 384 * 1024

# How often a waiting owner checks that the thread is alive.
_LOOK_SECONDS: Final = 0.1


class _Piece:
    """Parts that a thread adds to a hash. The thread sets `over` and releases `ended` when it has added them or has
    failed.

    Between `begun` and `done` the content of the hash is undefined.
    """

    __slots__ = ("begun", "done", "ended", "error", "into", "over", "parts", "thread")

    def __init__(self, into: Any, parts: list[memoryview], thread: threading.Thread) -> None:
        self.into = into
        self.parts = parts
        self.thread = thread
        self.begun = self.done = self.over = False
        self.error: BaseException | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def hash(self) -> None:
        """Hash the parts in one call, which waits for the interpreter's lock only once. O(bytes)."""
        data = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.begun = True
        self.into.update(data)
        self.done = True

    def wait(self) -> None:
        """Return when the parts are hashed. Parts that the thread did not begin are hashed here.

        Raises StatePoisonedError when the thread failed in the middle of it. O(bytes).
        """
        # `over` first: whoever has acquired `ended` may have been interrupted before the release
        while not self.over and self.thread.is_alive() and not sys.is_finalizing():
            if self.ended.acquire(timeout=_LOOK_SECONDS):
                self.ended.release()
        if self.done:
            return
        if self.begun:
            raise StatePoisonedError(
                f"the thread that hashes failed in the middle of a version: {self.error!r} (reopen the store: the last "
                "commit is intact)"
            ) from self.error
        for part in self.parts:  # one by one: when memory is short, joining them is what fails
            self.into.update(part)
        self.done = True


class _Hasher(threading.Thread):
    """The thread that hashes for all journals of a process."""

    def __init__(self) -> None:
        super().__init__(name="hybridstore-digest", daemon=True)
        self.pieces: SimpleQueue[_Piece] = SimpleQueue()

    def run(self) -> None:
        """Hash one piece after the other, for ever."""
        while True:
            piece = self.pieces.get()
            try:
                piece.hash()
            except BaseException as error:  # the waiting owner raises it, or hashes the piece itself
                piece.error = error
            finally:
                piece.over = True
                piece.ended.release()


class _Worker:
    """Takes pieces for the thread, which is started with the first piece, and again if it has died."""

    def __init__(self) -> None:
        self._hasher: _Hasher | None = None

    def submit(self, into: Any, parts: list[memoryview]) -> _Piece:
        """Give parts to the thread. Raises RuntimeError when no thread can be started."""
        hasher = self._hasher
        if hasher is None or not hasher.is_alive():  # nor is it in a forked child
            hasher = _Hasher()
            hasher.start()
            self._hasher = hasher
        piece = _Piece(into, parts, hasher)
        hasher.pieces.put(piece)
        return piece


_WORKER: Final = _Worker()


class RunningDigest:
    """blake2b-16 over a parent digest and what is added.

    One thread adds; a piece that was added may be hashed by another.
    """

    __slots__ = ("_bytes", "_hash", "_parts", "_piece", "size")

    def __init__(self, parent: bytes) -> None:
        # covers everything added except `_parts`, once the thread has finished `_piece`
        self._hash = blake2b(parent, digest_size=DIGEST_BYTES)
        self._piece: _Piece | None = None
        self._parts: list[memoryview] = []
        self._bytes = 0
        # bytes added
        self.size = 0

    def add(self, part: memoryview) -> None:
        """Add bytes, which must not change until `digest` was called.

        O(1), but for waiting while the thread is two pieces behind.
        """
        self._parts.append(part)
        self._bytes += len(part)
        self.size += len(part)
        if self._bytes >= PIECE_BYTES:
            self._settle()
            try:
                self._piece = _WORKER.submit(self._hash, self._parts)
            except RuntimeError:  # too many threads, or the interpreter is about to end
                return
            self._parts, self._bytes = [], 0

    def _settle(self) -> None:
        """Wait for the thread's piece and continue from its hash."""
        if self._piece is not None:
            self._piece.wait()
            self._piece = None

    def digest(self) -> bytes:
        """Return the digest of all that was added. O(bytes of a piece), and the thread's part if it is not done."""
        self._settle()
        for part in self._parts:
            self._hash.update(part)
        self._parts, self._bytes = [], 0
        return self._hash.digest()
