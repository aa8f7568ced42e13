"""Loaded shards: the stores of a shard in this process's memory, kept between tasks in a bounded cache.

An entry is taken out while a task works on it and given back after its commit under the new version and digest. Whoever
asks for another version gets it caught up with from the segments, or reloaded; an entry that was aborted is never given
back.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from changelog.storage import Storage
from recovery.layout import LogName
from recovery.line import Step

from ..state.checkpointer import Checkpointer
from ..state.group import StoreGroup
from ..state.memory import memory_bytes
from ..state.policy import CheckpointPolicy
from .shard_files import Reached

CACHED_SHARDS: int = 256
# Counting is O(keys) for some kinds of stores: a shard is measured again after so many tasks or logged records.
MEASURE_TASKS: int = 16
MEASURE_RECORDS: int = 1000
# Log objects whose parents a shard remembers: more than lie behind two checkpoints, about 400 bytes each.
KEPT_PARENTS: int = 512


class LoadedShard:
    """The stores of one shard at one step, and the checkpoint that their cold blocks come from; `storage` is the
    shard's.
    """

    def __init__(self, storage: Storage, policy: CheckpointPolicy, block_records: int, *, debug: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.group = StoreGroup(self.bodies.append, debug=debug)
        self.reached = Reached()
        # The parents of the newest log objects that this process has read or written: clearing away asks for them.
        self.parents: dict[LogName, Step] = {}
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
        # An estimate of its bytes in memory, and how many tasks and logged records ago it was made.
        self.measured = 0
        self._tasks = MEASURE_TASKS
        self._logged = 0

    def measure(self) -> None:
        """Estimate its bytes in memory, now and then: what was logged since the checkpoint counts as it was logged,
        beside the records."""
        logged = self.reached.since.logged
        self._tasks += 1
        if self._tasks >= MEASURE_TASKS or abs(logged.records - self._logged) >= MEASURE_RECORDS:
            self.measured = memory_bytes(self.group, self.checkpoints) + logged.bytes
            self._tasks, self._logged = 0, logged.records

    def follows(self, line: Iterable[tuple[LogName, Step]]) -> None:
        """Remember the parents of log objects, which come oldest first. O(objects)."""
        self.parents.update(line)
        while len(self.parents) > KEPT_PARENTS:
            del self.parents[next(iter(self.parents))]

    @property
    def settled(self) -> bool:
        """True when nothing is begun that only this process can bring to its end: no checkpoint is due or in the
        making, and what lies behind the last one is cleared away."""
        checkpoints = self.checkpoints
        return not self.checkpoint_due and checkpoints.attempt is None and self.cleared >= checkpoints.written

    def let_go(self) -> None:
        """Free the records. The shard is of no use then.

        The surprise: to drop the shard is not enough. It is part of a cycle, and a worker's collector looks at what is
        frozen only when that has grown by half.
        """
        self.runner = None
        for store in self.group.stores.values():
            store.clear_state()
        self.checkpoints.reader = None

    @contextmanager
    def _apart(self, _: str) -> Iterator[None]:
        self.broken = True
        yield
        self.broken = False


class ShardCache:
    """Loaded shards by where they are stored, the least recently used ones dropped: those beyond `capacity`, and as
    many as it takes to stay within `limit` (an estimate of bytes; None: any), but for those with a checkpoint in the
    making.

    A shard that is larger than the limit does not stay either: it comes back cold, and a batch then reads the blocks
    that it touches. Of one process: a forked child starts with none.
    """

    def __init__(self, capacity: int = CACHED_SHARDS, limit: int | None = None) -> None:
        self.capacity = capacity
        self.limit = limit
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
        """Keep a shard for the next task, unless its stores are in pieces. O(shards) where there is a limit."""
        leaving: list[LoadedShard] = []
        with self._guard:
            if self.capacity > 0 and not shard.broken:
                self._entries[(where, store_id)] = shard
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)
            if self.limit is not None:
                shard.measure()
                leaving = self._beyond(self.limit)
        for each in leaving:
            each.let_go()

    def _beyond(self, limit: int) -> list[LoadedShard]:
        """Take out the least recently used shards that are beyond the limit, and return them."""
        total, leaving = self.bytes(), []
        for key, shard in list(self._entries.items()):
            if total <= limit:
                break
            if shard.settled:
                total -= shard.measured
                leaving.append(self._entries.pop(key))
        return leaving

    def bytes(self) -> int:
        """Return an estimate of the bytes that the shards here hold."""
        return sum(shard.measured for shard in self._entries.values())

    def limit_to(self, limit: int | None) -> None:
        """Stay within a limit from now on; of several operators in a process the smallest governs."""
        if limit is not None:
            self.limit = limit if self.limit is None else min(self.limit, limit)

    def drop(self, where: str | Path) -> None:
        """Forget the shard at a path or URL, and the shards below it."""
        with self._guard:
            for key in [key for key in self._entries if f"{key[0]}/".startswith(f"{where}/")]:
                del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


CACHE = ShardCache()
