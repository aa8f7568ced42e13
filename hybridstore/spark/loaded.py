"""Loaded shards: the stores of a shard in this process's memory, kept between tasks in a bounded cache.

An entry is taken out while a task works on it and given back after its commit under the new version and digest. Whoever
asks for another version gets it caught up with from the segments, or reloaded; an entry that was aborted is never given
back.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from changelog.storage import Storage

from ..state.checkpointer import Checkpointer
from ..state.group import StoreGroup
from ..state.policy import CheckpointPolicy
from .shard_files import Reached

CACHED_SHARDS: int = 256


class LoadedShard:
    """The stores of one shard at one step, and the checkpoint that their cold blocks come from; `storage` is the
    shard's.
    """

    def __init__(self, storage: Storage, policy: CheckpointPolicy, block_records: int, *, debug: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.group = StoreGroup(self.bodies.append, debug=debug)
        self.reached = Reached()
        # How long its last commit in this process took, told by the object of the next one.
        self.commit_ms = 0.0
        self.checkpoints = Checkpointer(self.group, storage.url, policy, block_records, self._apart)
        # What the owner hangs here lives as long as the stores stay as they are: through hits, not through catching up.
        self.runner: Any = None
        self.checkpoint_due = False
        # True from the load of a checkpoint to the first commit, behind which its packs are brought to this host.
        self.packs_due = False
        # True when its checkpoint was pruned and changes can no longer be captured against it.
        self.outlived = False
        # True when an exception has left the stores in pieces.
        self.broken = False
        # How many of its checkpoints were taken over, by whichever call came first, and what lies behind them cleared.
        self.cleared = 0
        # The batch is committed before files are cleared away, and does not fail for it: counted in the metrics.
        self.failed_clearings = 0

    @contextmanager
    def _apart(self, _: str) -> Iterator[None]:
        self.broken = True
        yield
        self.broken = False


class ShardCache:
    """Loaded shards by where they are stored, the least recently used ones dropped.

    Of one process: a forked child starts with none.
    """

    def __init__(self, capacity: int = CACHED_SHARDS) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[tuple[str, bytes], LoadedShard] = OrderedDict()
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def take(self, where: str, store_id: bytes) -> LoadedShard | None:
        """Take a shard out, if it is here; nobody else gets it until it is given back."""
        with self._guard:
            if self._pid != os.getpid():
                self._entries.clear()
                self._pid = os.getpid()
            return self._entries.pop((where, store_id), None)

    def give(self, where: str, store_id: bytes, shard: LoadedShard) -> None:
        """Keep a shard for the next task, unless its stores are in pieces."""
        with self._guard:
            if self.capacity > 0 and not shard.broken:
                self._entries[(where, store_id)] = shard
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)

    def drop(self, where: str | Path) -> None:
        """Forget the shard at a path or URL, and the shards below it."""
        with self._guard:
            for key in [key for key in self._entries if f"{key[0]}/".startswith(f"{where}/")]:
                del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


CACHE = ShardCache()
