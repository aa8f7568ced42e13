"""Loaded shards: the stores of a shard in this process's memory, kept between tasks in a bounded cache.

A task takes an entry out of the cache and gives it back after the commit, under the new version and digest. For another
version the entry catches up by the segments, or is reloaded; an aborted entry is never given back.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from changelog.identity import Identity
from changelog.storage import Storage
from recovery.layout import LogName
from recovery.line import Step

from ...state.checkpointer import Checkpointer
from ...state.group import StoreGroup
from ...state.memory import memory_bytes
from ...state.policy import CheckpointPolicy
from .log import Reached

CACHED_SHARDS: int = 256
# Counting is O(keys) for some kinds of stores: a shard is measured again after so many tasks or logged records.
MEASURE_TASKS: int = 16
MEASURE_RECORDS: int = 1000
# Log objects whose parents a shard remembers: more than lie behind two checkpoints, about 400 bytes each.
KEPT_PARENTS: int = 512


class Steps:
    """A `with` block around code that changes the stores of a shard in steps; `broken` after an exception in it.

    A method of the shard would be part of a cycle with the shard's checkpoints.
    """

    def __init__(self) -> None:
        self.broken = False

    @contextmanager
    def __call__(self, _: str) -> Iterator[None]:
        """Enclose one change."""
        self.broken = True
        yield
        self.broken = False


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
        self.steps = Steps()
        self.checkpoints = Checkpointer(self.group, storage.url, policy, block_records, self.steps)
        # An object of the owner, kept as long as the stores do not change outside of its use: through hits, not through
        # catching up.
        self.runner: Any = None
        self.checkpoint_due = False
        # True from the load of a checkpoint to the first commit, after which its packs are fetched to this host.
        self.packs_due = False
        # True when its checkpoint was pruned and changes can no longer be captured against it.
        self.outlived = False
        # How many finished checkpoints are in use, and for how many of them old files were removed.
        self.cleared = 0
        # The batch is committed before old files are removed, so a failure does not fail the batch: the metrics count
        # it.
        self.failed_clearings = 0
        # An estimate of its bytes in memory, and how many tasks and logged records ago it was made.
        self.measured = 0
        self._tasks = MEASURE_TASKS
        self._logged = 0

    def measure(self) -> None:
        """Estimate the bytes in memory, from time to time: records, and the bytes logged since the checkpoint."""
        logged = self.reached.since.logged
        self._tasks += 1
        if self._tasks >= MEASURE_TASKS or abs(logged.records - self._logged) >= MEASURE_RECORDS:
            self.measured = memory_bytes(self.group) + logged.bytes
            self._tasks, self._logged = 0, logged.records

    def follows(self, line: Iterable[tuple[LogName, Step]]) -> None:
        """Remember the parents of log objects, which come oldest first. O(objects)."""
        self.parents.update(line)
        while len(self.parents) > KEPT_PARENTS:
            del self.parents[next(iter(self.parents))]

    @property
    def settled(self) -> bool:
        """True when this process has no work left that only it can finish: no checkpoint is due or in progress, and the
        files behind the last checkpoint are removed.
        """
        checkpoints = self.checkpoints
        return not self.checkpoint_due and checkpoints.attempt is None and self.cleared >= checkpoints.written

    def let_go(self) -> None:
        """Free the records. The shard cannot be used afterwards.

        The surprise: dropping the reference is not enough. The user's program may be part of a cycle with the stores,
        and a worker's collector visits frozen objects only after they have grown by half.
        """
        self.runner = None
        for store in self.group.stores.values():
            store.clear_state()
        self.checkpoints.reader = None


class ShardCache:
    """Loaded shards by their places. The least recently used shards are dropped: those beyond `capacity`, and as many
    as needed to stay within `limit` (an estimate of bytes; None: no limit), except shards with a checkpoint in
    progress.

    A shard larger than the limit is dropped, too: the next batch loads it cold and reads only the blocks that it
    touches. One cache per process: a forked child begins with none.
    """

    def __init__(self, capacity: int = CACHED_SHARDS, limit: int | None = None) -> None:
        self.capacity = capacity
        self.limit = limit
        self._entries: OrderedDict[tuple[str, Identity], LoadedShard] = OrderedDict()
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def take(self, where: str, identity: Identity) -> LoadedShard | None:
        """Take a shard out of the cache, if it is there; no other task gets the shard until it is given back."""
        with self._guard:
            if self._pid != os.getpid():
                self._entries.clear()
                self._pid = os.getpid()
            return self._entries.pop((where, identity), None)

    def give(self, where: str, identity: Identity, shard: LoadedShard) -> None:
        """Keep a shard for the next task, unless its stores are half-changed. O(shards) if there is a limit."""
        leaving: list[LoadedShard] = []
        with self._guard:
            if self.capacity > 0 and not shard.steps.broken:
                self._entries[(where, identity)] = shard
            while len(self._entries) > self.capacity:
                leaving.append(self._entries.popitem(last=False)[1])
            if self.limit is not None:
                shard.measure()
                leaving += self._beyond(self.limit)
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
            below = [key for key in self._entries if f"{key[0]}/".startswith(f"{where}/")]
            leaving = [self._entries.pop(key) for key in below]
        for each in leaving:
            each.let_go()

    def __len__(self) -> int:
        return len(self._entries)


CACHE = ShardCache()
