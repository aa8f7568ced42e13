"""Loaded shards: the stores of a shard in this process's memory, kept between tasks in a bounded cache.

An entry is taken out while a task works on it and given back after its commit under the new version and digest. Whoever asks
for another version gets it caught up with from the segments, or reloaded; an entry that was aborted is never given back.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader, checkpoint_name
from recovery.line import EMPTY, Step
from recovery.write import CheckpointReport

from ..state.group import StoreGroup

CACHED_SHARDS: int = 256


class LoadedShard:
    """The stores of one shard at one step, and the checkpoint that their cold blocks come from."""

    def __init__(self, checkpoints: Path, *, files: Files = REAL_FILES, debug: bool = False) -> None:
        self.checkpoints = checkpoints
        self._files = files
        self.bodies: list[bytes] = []
        self.group = StoreGroup(self.bodies.append, debug=debug)
        self.step: Step = EMPTY
        self.reader: CheckpointReader | None = None
        # What the owner hangs here lives as long as the stores stay as they are: through hits, not through catching up.
        self.runner: Any = None
        self.checkpoint_due = False
        # True when its checkpoint was pruned and changes can no longer be captured against it.
        self.outlived = False
        self._thread: threading.Thread | None = None
        self._captures: list[StoreCapture] = []
        self._report: CheckpointReport | None = None
        self._error: Exception | None = None
        # Told in the metrics: the batch is committed before either is tried, and does not fail for it.
        self.failed_checkpoints = 0
        self.failed_clearings = 0
        # True when a checkpoint was taken over, by whichever call came first, and what lies behind it has not been
        # cleared away.
        self.clearing_due = False

    def begin_checkpoint(self, work: Callable[[list[StoreCapture], CheckpointReader | None], CheckpointReport]) -> None:
        """Capture what changed and run `work(captures, previous)` in the background; what fails is counted.

        O(changed).
        """
        self.finish_checkpoint(wait=True)
        try:
            previous = None if self.reader is None else self.reader.twin()
        except (OSError, HybridStoreError):
            self.failed_checkpoints += 1
            return
        captures = self._captures = self.group.capture()

        def run() -> None:
            try:
                self._report = work(captures, previous)
            except Exception as error:  # counted and told in the metrics: the segments hold it all
                self._error = error

        thread = threading.Thread(target=run, name="hybridstore-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread to give
            self._captures = []
            self._recapture(captures)
        else:
            self._thread = thread

    def finish_checkpoint(self, *, wait: bool) -> CheckpointReport | None:
        """Take over a finished checkpoint: cold blocks come from it from now on. Returns its report when there is a new one."""
        thread = self._thread
        if thread is None or (thread.is_alive() and not wait):
            return None
        thread.join()
        self._thread = None
        report, error = self._report, self._error
        captures, self._captures, self._report, self._error = self._captures, [], None, None
        try:
            if report is None:
                raise error or RuntimeError("a checkpoint ended without a report")
            reader = CheckpointReader(self.checkpoints / checkpoint_name(report.version), files=self._files)
        except Exception:
            # not made, or pruned already
            self._recapture(captures)
            return None
        for capture in captures:
            store = self.group.stores.get(capture.name)
            if store is not None and store.cold_blocks:
                store.rebase(reader.loader(capture.number), reader.directory(capture.number))
        self.reader = reader
        self.clearing_due = True
        return report

    def _recapture(self, captures: list[StoreCapture]) -> None:
        """Count what was captured for a checkpoint that was not made as changed again."""
        self.failed_checkpoints += 1
        for capture in captures:
            store = self.group.stores.get(capture.name)
            if store is not None:
                store.recapture(capture)

    @property
    def checkpointed(self) -> int:
        """Records in the checkpoint that the stores come from; 0 where there is none. O(stores)."""
        return 0 if self.reader is None else self.reader.meta.records


class ShardCache:
    """Loaded shards by store directory, the least recently used ones dropped. Of one process: a forked child starts with none."""

    def __init__(self, capacity: int = CACHED_SHARDS) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[tuple[str, bytes], LoadedShard] = OrderedDict()
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def take(self, path: Path, store_id: bytes) -> LoadedShard | None:
        """Take a shard out, if it is here; nobody else gets it until it is given back."""
        with self._guard:
            if self._pid != os.getpid():
                self._entries.clear()
                self._pid = os.getpid()
            return self._entries.pop((str(path), store_id), None)

    def give(self, path: Path, store_id: bytes, shard: LoadedShard) -> None:
        """Keep a shard for the next task."""
        with self._guard:
            if self.capacity > 0:
                self._entries[(str(path), store_id)] = shard
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)

    def drop(self, path: Path) -> None:
        """Forget the shard of a directory, and the shards in directories below it."""
        with self._guard:
            for key in [key for key in self._entries if Path(key[0]).is_relative_to(path)]:
                del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


CACHE = ShardCache()
