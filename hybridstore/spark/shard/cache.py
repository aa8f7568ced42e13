"""Cache: the shards in this process's memory, kept between tasks within bounds.

A task takes a shard out of the cache and gives it back after the commit, under the new version and digest. For another
version the shard catches up by the objects behind it, or is loaded again; an aborted shard is never given back.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from changelog.identity import Identity

from .shard import Shard

CACHED_SHARDS: int = 256


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
        self._entries: OrderedDict[tuple[str, Identity], Shard] = OrderedDict()
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def take(self, where: str, identity: Identity) -> Shard | None:
        """Take a shard out of the cache, if it is there; no other task gets the shard until it is given back."""
        with self._guard:
            if self._pid != os.getpid():
                self._entries.clear()
                self._pid = os.getpid()
            return self._entries.pop((where, identity), None)

    def give(self, where: str, identity: Identity, shard: Shard) -> None:
        """Keep a shard for the next task, unless its stores are half-changed. O(shards) with a limit."""
        leaving: list[Shard] = []
        with self._guard:
            if self.capacity > 0 and not shard.steps.broken:
                self._entries[(where, identity)] = shard
            while len(self._entries) > self.capacity:
                leaving.append(self._entries.popitem(last=False)[1])
            if self.limit is not None:
                shard.measure()
                leaving += self._beyond(self.limit)
        for each in leaving:
            each.free()

    def _beyond(self, limit: int) -> list[Shard]:
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
            each.free()

    def __len__(self) -> int:
        return len(self._entries)


CACHE = ShardCache()
