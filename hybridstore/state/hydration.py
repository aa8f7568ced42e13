"""Hydration: loading what a lazy restore left cold, all at once or in slices that never hold the owner up for long.

A thread decodes blocks ahead (`recovery.ahead`); commits, `hydrate` and whoever touches a record put them into the
stores. Callbacks are called as progress(phase, done, total).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from recovery.ahead import ReadAhead
from recovery.block import BlockEntry
from recovery.checkpoint import Ahead, CheckpointReader
from recovery.directory import PageEntry

from ..collector import collector_held
from ..stores.kinds import KINDS
from .memory_budget import BUDGET

OnProgress = Callable[[str, int, int], None]
# What a commit spends on it, in milliseconds, as long as something is cold.
COMMIT_BUDGET_MS: Final = 2.0


class Cold(Protocol):
    """What hydration needs of a store."""

    @property
    def cold_blocks(self) -> int: ...
    @property
    def decoded_blocks(self) -> int: ...
    @property
    def waiting_rows(self) -> int: ...
    def settle(self) -> None: ...
    def warm(self) -> bool: ...
    def read_in(self, on_block: Callable[[], None], /) -> None: ...


def _steps(stores: Collection[Cold]) -> int:
    """Return how often `warm` has to be called, nearly. O(blocks)."""
    return sum(store.cold_blocks + store.decoded_blocks + (store.waiting_rows > 0) for store in stores)


def hydrate(stores: Collection[Cold], budget_ms: float, ahead: Ahead | None = None) -> int:
    """Load cold blocks, newest first, for about `budget_ms` and return how many are left.

    It ends before a block that would, going by the slowest so far, take it over the budget; at least one is loaded, so
    that it always comes to an end. With `ahead` it takes only what is decoded already, as long as more will be. Blocks
    that expire meanwhile are never read. O(blocks loaded).
    """
    deadline = time.perf_counter() + budget_ms / 1000
    slowest = 0.0
    with collector_held():
        for store in stores:
            while True:
                started = time.perf_counter()
                if (slowest and started + slowest > deadline) or (ahead is not None and not ahead.has_some()):
                    return _steps(stores)
                if not store.warm():
                    break
                slowest = max(slowest, time.perf_counter() - started)
    return 0


def load_all(stores: Collection[Cold], progress: OnProgress) -> None:
    """Read, check and decode every cold block: nothing is only in the checkpoint any more. O(records).

    What was decoded by `read_in` takes its place when it is touched, and in slices of hydration until then.
    """
    total = sum(store.cold_blocks for store in stores)
    done = 0

    def on_block() -> None:
        nonlocal done
        done += 1
        progress("blocks", done, total)

    with collector_held():
        for store in stores:
            store.settle()
            store.read_in(on_block)


class Group(Protocol):
    """The stores of a state."""

    stores: dict[str, Any]


def read_ahead(reader: CheckpointReader | None, group: Group) -> None:
    """Let a checkpoint's blocks be decoded for the stores of a group in the background: until all are, or it is
    closed, or forgotten.
    """
    if reader is None or BUDGET.limit is not None or not any(store.cold_blocks for store in group.stores.values()):
        return
    owner = weakref.ref(group)

    def has_expired(number: int, entry: BlockEntry | PageEntry) -> bool:
        # Runs in the thread: it reads what the owner sets, and changes nothing.
        group = owner()
        if group is None or BUDGET.limit is not None:
            return True
        for store in list(group.stores.values()):
            if store.number == number:
                return 0 <= entry.high <= KINDS[store.kind].expired_through(store.parameters, store.stream_time)
        return True

    reader.ahead = ReadAhead(reader, [store.number for store in group.stores.values()], has_expired)


def pass_on(old: CheckpointReader | None, new: CheckpointReader) -> None:
    """Take a newer checkpoint over: what is still cold, and what is decoded ahead, goes on to come from the one
    before.
    """
    if old is not None:
        new.ahead = old.ahead
        old.succeeded_by(new)


def stop_ahead(reader: CheckpointReader | None) -> None:
    """End the decoding of a checkpoint's blocks, and forget what nobody took."""
    if reader is not None and reader.ahead is not None:
        reader.ahead.stop()
