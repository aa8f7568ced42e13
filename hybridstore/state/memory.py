"""Memory: which blocks of an open state are in memory: blocks are loaded slice by slice, and become cold when memory is
short.

restored   every block is cold, and a thread begins to decode ahead
slice      a commit loads decoded blocks, for 2 ms
chill      the records of the newest checkpoint are freed, and load again when they are touched
"""

from __future__ import annotations

from recovery.checkpoint import Ahead

from .checkpointer import Checkpointer
from .group import StoreGroup
from .hydration import COMMIT_BUDGET_MS, hydrate, read_ahead, stop_ahead
from .memory_budget import BUDGET, CHECK_COMMITS, CHECK_RECORDS, PLACE_BYTES
from .policy import Logged


def memory_bytes(group: StoreGroup, checkpoints: Checkpointer) -> int:
    """Return an estimate of the bytes that stores hold in memory; see `memory_budget`. The call changes nothing; only
    the thread of the stores may make it. O(keys) at worst.
    """
    records = sum(store.records_in_memory for store in group.stores.values())
    reader, packed = checkpoints.reader, 0.0
    if reader is not None and reader.meta.records:
        packed = reader.meta.size / reader.meta.records
    elif records:
        packed = checkpoints.behind.bytes / records
    return int(records * (PLACE_BYTES + 2 * packed))


class Memory:
    """The memory of one state: a member of the budget of the process, with a `limit` of its own or none (bytes)."""

    def __init__(self, group: StoreGroup, checkpoints: Checkpointer, limit: int | None) -> None:
        self.limit = limit
        # The bytes in memory when the state's own thread counted them last.
        self.counted = 0
        self._group = group
        self._checkpoints = checkpoints
        self._cold = False
        self._unchecked = Logged()  # since the budget was checked

    def restored(self, *, read_only: bool = False) -> None:
        """Blocks are cold: a thread decodes them ahead, and, unless `read_only`, commits load them."""
        self._cold = not read_only
        self.count()
        read_ahead(self._checkpoints.reader, self._group)

    def slice(self) -> None:
        """Load decoded blocks for about 2 ms; does nothing if the process has a budget."""
        if self._cold and BUDGET.limit is None:
            reader = self._checkpoints.reader
            self.hydrate(COMMIT_BUDGET_MS, None if reader is None else reader.ahead)

    def hydrate(self, budget_ms: float, ahead: Ahead | None = None) -> int:
        """Load cold blocks for about `budget_ms` and return how many remain; see `hydration.hydrate`."""
        self._cold = False  # until a call succeeds: a damaged block must not fail every commit
        remaining = hydrate(self._group.stores.values(), budget_ms, ahead)
        self._cold = remaining > 0
        return remaining

    def count(self) -> int:
        """Estimate the bytes in memory, for this state's part of the budget; see `memory_budget`. O(keys) at worst."""
        self.counted = memory_bytes(self._group, self._checkpoints)
        return self.counted

    def short(self, logged: Logged) -> bool:
        """After a commit of `logged`: True when the budget of the process is exceeded. From time to time this state is
        counted, and compared together with the last counts of the others.
        """
        if BUDGET.limit is None:
            return False
        unchecked = self._unchecked = self._unchecked.plus(logged)
        if unchecked.records < CHECK_RECORDS and unchecked.commits < CHECK_COMMITS:
            return False
        self._unchecked = Logged()
        self.count()
        return BUDGET.exceeded()

    def chill(self) -> None:
        """Free all records of the newest checkpoint, if it is of the last commit; else free nothing.

        Raises what reading the checkpoint's directory raises. O(blocks).
        """
        reader = self._checkpoints.reader
        if reader is None or reader.meta.version != self._group.version:
            return
        stop_ahead(reader)
        stores = self._group.stores.values()
        bases = {store.number: reader.directory(store.number) for store in stores}
        with self._checkpoints.apart("letting memory go"):
            for store in stores:
                store.chill(bases[store.number])
        self.count()

    def forget(self) -> None:
        """Close the checkpoint in use."""
        stop_ahead(self._checkpoints.reader)
        self._checkpoints.reader = None
