"""Memory: one budget for all stores that are open in a process.

The smallest `memory_limit` given to any open store governs. The bytes in memory are estimated from counts: each record
counts twice its packed size, and 60 bytes for its place. A store that commits while the budget is exceeded writes a
checkpoint and makes all its records cold: they are freed, and load again when they are touched.

The surprise: states of several threads share the budget, and a thread must not look into the stores of another thread,
not even to count. So each state is counted by its own thread, at its commits, and `exceeded` adds up these numbers.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import ReferenceType, ref

# The bytes of a record besides its value and key: its place in a run, a dict, a list.
PLACE_BYTES: Final = 60
# Counting is O(keys) for some kinds of stores, and so not done at every small commit.
CHECK_RECORDS: Final = 10_000
CHECK_COMMITS: Final = 64


class Holder(Protocol):
    """The part of `memory.Memory` that the budget uses: `counted` is its last number (bytes)."""

    counted: int

    @property
    def limit(self) -> int | None: ...


class _Holders:
    """Holders that are kept weakly. Each step is one call of a dict, which neither another thread nor a signal handler
    can interrupt.
    """

    def __init__(self) -> None:
        self._references: dict[ReferenceType[Holder], None] = {}

    def add(self, holder: Holder) -> None:
        for reference in list(self._references):
            if reference() is None:
                self._references.pop(reference, None)
        self._references[ref(holder)] = None

    def discard(self, holder: Holder) -> None:
        self._references.pop(ref(holder), None)

    def living(self) -> list[Holder]:
        """Return the holders of now. O(holders)."""
        return [holder for reference in list(self._references) if (holder := reference()) is not None]

    def __bool__(self) -> bool:
        return bool(self._references)


class Budget:
    """The states that share a budget, of whatever threads."""

    def __init__(self) -> None:
        self._open = _Holders()
        self._limited = _Holders()

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
        return min((limit for holder in self._limited.living() if (limit := holder.limit) is not None), default=None)

    def exceeded(self) -> bool:
        """True when all states together exceed the limit, by the last count of each. O(states)."""
        limit = self.limit
        return limit is not None and sum(holder.counted for holder in self._open.living()) > limit


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
