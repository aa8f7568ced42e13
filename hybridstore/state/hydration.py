"""Hydration: loads the cold blocks of a lazy restore, all at once or in short slices.

A thread decodes blocks ahead (`recovery.ahead`); commits, `hydrate` and the touch of a record put the blocks into the
stores. Callbacks are called as progress(phase, done, total).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection
from typing import Final

from recovery.ahead import ReadAhead
from recovery.block import BlockEntry
from recovery.checkpoint import CheckpointReader
from recovery.directory import Ahead, PageEntry

from ..collector import collector_held
from ..progress import OnProgress
from ..stores.kinds import KINDS, Store
from .group import StoreGroup
from .memory_budget import BUDGET

# How many milliseconds a commit spends on hydration, as long as a block is cold.
COMMIT_BUDGET_MS: Final = 2.0


def _steps(stores: Collection[Store]) -> int:
    """Return about how often `warm` has to be called. O(blocks)."""
    return sum(store.cold_blocks + store.decoded_blocks + (store.waiting_rows > 0) for store in stores)


def hydrate(stores: Collection[Store], budget_ms: float, ahead: Ahead | None = None) -> int:
    """Load cold blocks, newest first, for about `budget_ms` and return how many remain.

    The function ends before a block that would exceed the budget, judged by the slowest block so far. At least one
    block is loaded, so that repeated calls always finish. With `ahead` only decoded blocks are loaded, as long as the
    thread decodes more. Blocks that expire meanwhile are never read. O(blocks loaded).
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


def load_all(stores: Collection[Store], progress: OnProgress) -> None:
    """Read, check and decode every cold block, so that no block is only in the checkpoint. O(records).

    Blocks decoded by `read_in` are put into the maps when they are touched, or in slices of hydration.
    """
    total = sum(store.cold_blocks for store in stores)
    done = 0

    def on_block() -> None:
        nonlocal done
        done += 1
        progress("blocks", done, total)

    with collector_held():
        for store in stores:
            store.apply_waiting()
            store.read_in(on_block)


def read_ahead(reader: CheckpointReader | None, group: StoreGroup) -> None:
    """Decode a checkpoint's blocks for the stores of a group in the background, until all are decoded or the checkpoint
    is closed.
    """
    if reader is None or BUDGET.limit is not None or not any(store.cold_blocks for store in group.stores.values()):
        return
    owner = weakref.ref(group)

    def has_expired(number: int, entry: BlockEntry | PageEntry) -> bool:
        # Runs in the thread: reads fields that the owner sets, and changes nothing.
        group = owner()
        if group is None or BUDGET.limit is not None:
            return True
        for store in list(group.stores.values()):
            if store.number == number:
                return 0 <= entry.high <= KINDS[store.kind].expired_through(store.parameters, store.stream_time)
        return True

    reader.ahead = ReadAhead(reader, [store.number for store in group.stores.values()], has_expired)


def pass_on(old: CheckpointReader | None, new: CheckpointReader) -> None:
    """Use a newer checkpoint: cold blocks, and blocks decoded ahead, still come from the checkpoint before."""
    if old is not None:
        new.ahead = old.ahead
        old.succeeded_by(new)


def stop_ahead(reader: CheckpointReader | None) -> None:
    """End the decoding of a checkpoint's blocks, and forget decoded blocks that were not taken."""
    if reader is not None and reader.ahead is not None:
        reader.ahead.stop()
