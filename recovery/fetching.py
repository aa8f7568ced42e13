"""Fetching: one background thread of a process fetches the packs of checkpoints into the cache of the host.

A Spark worker has many shards: each needs its packs, and none needs a thread of its own. The user of a checkpoint adds
the checkpoint; its packs are fetched after those added before, and mapped for the checkpoint's readers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial

from .checkpoint import CheckpointReader


def _is_used(reader: weakref.ref[CheckpointReader]) -> bool:
    return reader() is not None


class Fetching:
    """The checkpoints whose packs are still to be fetched. One queue per process: a forked child begins with none."""

    def __init__(self) -> None:
        self._waiting: deque[weakref.ref[CheckpointReader]] = deque()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def add(self, reader: CheckpointReader) -> None:
        """Fetch the packs of a checkpoint, if they are far and can be kept. The queue does not keep the checkpoint
        open. O(1) and a thread that starts; O(packs) on an object store.
        """
        if not reader.can_bring:
            return
        with self._guard:
            if self._pid != os.getpid():
                self._waiting.clear()
                self._thread, self._pid = None, os.getpid()
            self._waiting.append(weakref.ref(reader))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hybridstore-fetch-packs", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None  # the system gives no thread: blocks are read by ranges as before

    def _run(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._thread = None
                    return
                reference = self._waiting.popleft()
            reader = reference()
            if reader is not None:
                twin, reader = reader.twin(), None
                # What cannot be brought is read by whoever wants it, who hears the reason. An interpreter that
                # ends takes no more requests side by side (RuntimeError).
                with suppress(OSError, RuntimeError):
                    twin.bring(partial(_is_used, reference))
                twin.close()


FETCHING = Fetching()
