"""Shared: one followed state that many threads read, a committed version at a time.

A thread of its own asks for newer versions every `refresh_ms`, and ten times as often while a reader waits for a
version. A refresh that fails leaves the older version, which is
served with the time since the last refresh that succeeded; the next refresh tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from changelog.errors import HybridStoreError

from ..reading.follow import Followed
from ..state.memory_budget import BUDGET

# Blocks are loaded for so long at once (ms), and then answers have their turn (s).
_WARM_MS: Final = 1.0
_PAUSE_SECONDS: Final = 0.002
# While a reader waits for a version, looks are so many times as often; a pause is so many times as long as a look.
_SOONER: Final = 10
_LEAST_PAUSE: Final = 4
# After so many reads the memory of the blocks that they have loaded is counted: each may have loaded one, of a MB.
_LOOK_READS: Final = 4
# The least limit of memory that the process keeps.
_LEAST_LIMIT: Final = 100_000_000
_LOG: Final = logging.getLogger("hybridstore")


class TooOldError(HybridStoreError):
    """The version asked for was not committed in time."""


class ClosedError(HybridStoreError):
    """The state is not served any more."""


class Shared:
    """A followed state behind a lock, and the thread that refreshes it.

    view        the state; the caller's thread must not use it any more
    refresh_ms  the time between two looks for newer versions
    memory_limit  bytes of memory, of which records may take half (None: all are loaded, block by block, between the
                  looks)

    Not a store: nothing is written. `close` ends the thread and closes the view.
    """

    def __init__(self, view: Followed, refresh_ms: int, memory_limit: int | None = None) -> None:
        self._view = view
        self._limit = memory_limit
        self._reads = 0
        self._seconds = refresh_ms / 1000
        # Notified after every refresh, for those who wait for a version.
        self._turn = threading.Condition()
        self._ended = threading.Event()
        # how many readers wait for a version; each wakes the thread when it begins to wait, and so does `close`
        self._waiting = 0
        self._woken = threading.Event()
        self._current = time.monotonic()
        self._failure: str | None = None
        if memory_limit is not None:
            BUDGET.join_reader(self)  # a get reads the records of its key, and not all of their block
            if memory_limit < _LEAST_LIMIT:
                _LOG.warning(
                    "serve: memory_limit: found %d bytes, expected %d or more: answers do not change, but the process "
                    'may take more than that (docs/serving.md, "What it costs")',
                    memory_limit,
                    _LEAST_LIMIT,
                )
        self._thread = threading.Thread(target=self._refresh_often, name="hybridstore serve", daemon=True)
        self._thread.start()

    @contextmanager
    def reading(self, min_version: int = 0, wait_ms: int = 0) -> Iterator[Followed]:
        """Give the view, at `min_version` or newer, to this thread alone. Raises TooOldError when that version does not
        arrive within `wait_ms`, and ClosedError after `close`.
        """
        with self._turn:
            if min_version > self._view.version:
                self._wait_for(min_version, wait_ms / 1000)
            if self._ended.is_set():
                raise ClosedError("the server was closed")
            if min_version > self._view.version:
                raise TooOldError(
                    f"min_version: found version {self._view.version} after {wait_ms} ms, expected {min_version} "
                    f"(ask again{f'; the last refresh failed: {self._failure}' if self._failure else ''})"
                )
            yield self._view
            self._reads += 1
            if self._limit is not None and self._reads % _LOOK_READS == 0:
                self._keep_within()

    def _wait_for(self, version: int, seconds: float) -> None:
        """Return when the view is at a version, after so many seconds, or after `close`."""
        self._waiting += 1
        self._woken.set()
        try:
            self._turn.wait_for(lambda: self._ended.is_set() or self._view.version >= version, seconds)
        finally:
            self._waiting -= 1

    def behind_ms(self) -> int:
        """Return the time since the view was last known to be at the newest version (ms)."""
        return round((time.monotonic() - self._current) * 1000)

    @property
    def failure(self) -> str | None:
        """Why the last refresh failed; None when it succeeded."""
        return self._failure

    def refresh(self) -> None:
        """Look for newer versions once; a failure is kept, and logged when it is new."""
        with self._turn:
            asked = time.monotonic()
            try:
                self._view.refresh()
            except (HybridStoreError, OSError) as error:
                if self._failure is None:
                    _LOG.warning("the state cannot be refreshed, and version %s is served: %s", self._version(), error)
                self._failure = str(error)
            else:
                if self._failure is not None:
                    _LOG.warning("the state is refreshed again, to version %s", self._version())
                self._current, self._failure = asked, None
            self._keep_within()
            self._turn.notify_all()

    def _version(self) -> int:
        return self._view.version

    def _refresh_often(self) -> None:
        looked, took = time.monotonic(), 0.0
        while self._is_due(looked, took, warm=took > 0):
            begun = time.monotonic()
            self.refresh()
            looked = time.monotonic()
            took = looked - begun

    def _is_due(self, looked: float, took: float, *, warm: bool) -> bool:
        """Return True at the time of the next look, and load blocks until then; False after `close`. The time depends
        on when the last look ended, on what it took (s), so that looks leave time for answers, and on who waits.
        """
        sooner, due = looked + max(self._seconds / _SOONER, took * _LEAST_PAUSE), looked + self._seconds
        while not self._ended.is_set():
            rest = (sooner if self._waiting else due) - time.monotonic()
            if rest <= 0:
                return True
            warm = warm and not self._waiting and self._warm()
            self._woken.wait(min(rest, _PAUSE_SECONDS) if warm else rest)
            self._woken.clear()
        return False

    def _keep_within(self) -> None:
        if self._limit is not None:
            try:
                self._view.keep_within(self._limit)
            except (HybridStoreError, OSError) as error:  # the version in memory stays; the next refresh tries again
                _LOG.warning("the state cannot be opened again, so more than the limit is in memory: %s", error)

    def _warm(self) -> bool:
        """Load a few blocks, so that few answers wait for one; see `Followed.warm`."""
        with self._turn:
            try:
                return self._view.warm(_WARM_MS, self._limit)
            except (HybridStoreError, OSError):  # who reads the damaged block is told, or the next refresh
                return False

    def close(self) -> None:
        """End the thread and close the view."""
        self._ended.set()
        self._woken.set()
        self._thread.join()
        BUDGET.leave_reader(self)
        with self._turn:
            self._turn.notify_all()
            self._view.close()
