"""Memory: one budget for all stores that are open in a process.

The smallest `memory_limit` given to any open store governs. The bytes in memory are estimated from counts: each record
counts twice its packed size, and 60 bytes for its place. A store that commits while the budget is exceeded writes a
checkpoint and makes all its records cold: they are freed, and load again when they are touched.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakSet

# The bytes of a record besides its value and key: its place in a run, a dict, a list.
PLACE_BYTES: Final = 60
# Counting is O(keys) for some kinds of stores, and so not done at every small commit.
CHECK_RECORDS: Final = 10_000
CHECK_COMMITS: Final = 64


class Holder(Protocol):
    """The part of `memory.Memory` that the budget uses."""

    @property
    def limit(self) -> int | None: ...
    def bytes(self) -> int: ...


class Budget:
    """The states that share a budget."""

    def __init__(self) -> None:
        self._open: WeakSet[Holder] = WeakSet()
        self._limited: WeakSet[Holder] = WeakSet()

    def join(self, holder: Holder) -> None:
        """Count a state from now on."""
        self._open.add(holder)
        if holder.limit is not None:
            self._limited.add(holder)

    def leave(self, holder: Holder) -> None:
        """Stop counting a state."""
        self._open.discard(holder)
        self._limited.discard(holder)

    @property
    def limit(self) -> int | None:
        """The limit that governs (bytes), None when no open state has one. Asked at every commit."""
        if not self._limited:
            return None
        return min((limit for holder in self._limited if (limit := holder.limit) is not None), default=None)

    def exceeded(self) -> bool:
        """True when all states together exceed the limit. O(states), and the cost of their counts."""
        limit = self.limit
        return limit is not None and sum(holder.bytes() for holder in self._open) > limit


BUDGET: Final = Budget()


def check_limit(limit: object) -> int | None:
    """Return a memory limit if it is one. Raises TypeError or ValueError."""
    if limit is None:
        return None
    if type(limit) is not int:
        raise TypeError(f"memory_limit: found {type(limit).__name__}, expected int (bytes) or None")
    if limit <= 0:
        raise ValueError(f"memory_limit: found {limit}, expected 1 or more bytes")
    return limit
