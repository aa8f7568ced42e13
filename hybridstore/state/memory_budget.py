"""Memory: one budget for all stores that are open in a process.

The smallest `memory_limit` given to any open store governs. The bytes in memory are estimated from samples
(`stores.sizes`). Under a limit, a touch of a cold key takes the key's records alone out of their block
(`stores.cold_blocks`), and what a state has in memory beyond the limit is freed as `memory` says.

The surprise: states of several threads share the budget, and a thread must not look into the stores of another thread,
not even to count. So each state is counted by its own thread, at its commits, and `exceeded` adds up these numbers.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from math import inf
from typing import Final, Generic, Protocol, TypeVar
from weakref import ReferenceType, ref

from recovery.pack import LARGE, MOST_LARGE, MOST_SMALL, PACK_BYTES, SMALL

from ..stores.cold_blocks import SPARING
from ..stores.sizes import LAYER_BYTES, TABLE_BYTES
from .log_lines import warn

# Counting is O(blocks), and so not done at every small commit: after so many commits, or after so many records that
# were logged or loaded, one for this many bytes of the limit.
CHECK_RECORDS: Final = 10_000
CHECK_COMMITS: Final = 64
CHECK_BYTES: Final = 8192
PACK_SHARE: Final = 32
# The least limit that stores of every kind keep: below it Python's own needs and those of a checkpoint take more.
LEAST_LIMIT: Final = 10_000_000
# Between two commits blocks of up to this part of the limit, with their layers, may be loaded whole where few of their
# keys were touched; records take three to four times as much in memory.
BLOCK_SHARE: Final = 64
# A scan has rows of so many bytes of blocks at a time, or of the same part: with fewer it reads each block more often.
LEAST_PIECE: Final = 1 << 18
# Open tables of blocks, and those of layers, may take this part of the limit each: behind each checkpoint they are read
# again, and to open one takes about as long as to read a record.
TABLES_SHARE: Final = 10
_KEPT_BYTES: Final = 9 << 20
LEAST_PACK_BYTES: Final = 1 << 20
# The names of parameters of glibc's `mallopt`.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
# What the C library maps apart, and so gives back once it is free, and the free memory that it keeps at most.
_MAPPED_BYTES: Final = 1 << 20


class Copying(Protocol):
    """A checkpoint that a thread of this process makes: see `checkpointer.Attempt`."""

    def wait(self, seconds: float) -> float: ...


class Budgeted(Protocol):
    """The part of `memory.Memory` that the budget uses: `counted` is its last number (bytes), `copying` a checkpoint
    that a thread of this process makes now.
    """

    counted: int

    @property
    def limit(self) -> int | None: ...

    @property
    def copying(self) -> Copying | None: ...


Holder = TypeVar("Holder", bound=object)


class _Holders(Generic[Holder]):
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

    def __len__(self) -> int:
        return len(self._references)


class Budget:
    """The states that share a budget, of whatever threads."""

    def __init__(self) -> None:
        self._open = _Holders[Budgeted]()
        self._limited = _Holders[Budgeted]()
        self._readers = _Holders[object]()
        self._warned = LEAST_LIMIT

    def join(self, holder: Budgeted) -> None:
        """Count a state from now on."""
        self._open.add(holder)
        if holder.limit is not None:
            allocate_sparingly()
            self._limited.add(holder)
            self._warn_of(holder.limit)
        self._decide()

    def leave(self, holder: Budgeted) -> None:
        """Stop counting a state."""
        self._open.discard(holder)
        self._limited.discard(holder)
        self._decide()

    def join_reader(self, reader: object) -> None:
        """From now on something reads states with a limit of memory of its own, which `limit` leaves out."""
        self._readers.add(reader)
        self._decide()

    def leave_reader(self, reader: object) -> None:
        """It has ended."""
        self._readers.discard(reader)
        self._decide()

    def _decide(self) -> None:
        limit = self.limit
        self.renew_room(limit)
        SPARING.full = False  # until it is counted
        SPARING.piece = max(LEAST_PIECE, (limit or 0) // BLOCK_SHARE)
        LARGE.most = MOST_LARGE if limit is None else limit // TABLES_SHARE // TABLE_BYTES
        SMALL.most = MOST_SMALL if limit is None else limit // TABLES_SHARE // LAYER_BYTES
        # An owner without a limit keeps its speed beside a reader: its blocks are loaded whole.
        SPARING.on = limit is not None or (bool(self._readers) and not self._open.living())

    def _warn_of(self, limit: int) -> None:
        """Log that a limit is too small to be kept, unless one as small was logged before."""
        if limit < self._warned:
            self._warned = limit
            warn(
                "memory_limit: found %d bytes, expected %d or more: results do not change, but stores may take more "
                'than that (docs/operating.md, "A limit of memory")',
                limit,
                LEAST_LIMIT,
            )

    def renew_room(self, limit: int | None) -> None:
        """Let blocks of a part of the limit that governs be loaded whole until the next commit. O(1)."""
        SPARING.room = 0 if limit is None else limit // BLOCK_SHARE

    @property
    def limit(self) -> int | None:
        """The limit that governs (bytes), None when no open state has one. Asked at every commit."""
        if not self._limited:
            return None
        return min((limit for holder in self._limited.living() if (limit := holder.limit) is not None), default=None)

    def used(self, holder: Budgeted) -> tuple[int, bool]:
        """Return the bytes of all states together, by the last count of each, and whether `holder` has at least half
        of its share: a smaller one would free little. O(states).
        """
        counts = [other.counted for other in self._open.living()]
        return sum(counts), 2 * len(counts) * holder.counted >= sum(counts)

    def copying(self) -> list[Copying]:
        """Return the checkpoints that threads of this process make now: each takes memory beside the records.
        O(states).
        """
        return [attempt for holder in self._open.living() if (attempt := holder.copying) is not None]

    @property
    def states(self) -> int:
        """How many states share the budget, at least 1. O(1)."""
        return max(1, len(self._open))


BUDGET: Final = Budget()


class Growth:
    """Which `share` of the records that came in between the last two counts took room: records that are in memory, and
    stay there, may be written again and again. All of it, until it is known.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._stay: float = inf

    def note(self, stay: int, came: int) -> None:
        """Note that so many bytes of what is in memory cannot be freed, after records of about `came` bytes came in.
        O(1).
        """
        if came and stay >= self._stay:  # where a checkpoint has made it less, what came in is not known
            self.share = min(1.0, (stay - self._stay) / came)
        self._stay = stay


def usable(limit: int) -> int:
    """Return how many of the bytes of a limit records may take by their estimate. The rest is for what a checkpoint
    copies and packs, and for memory that Python and the C library keep: measured from outside, an eighth and 9 MB,
    and two thirds of a small limit.
    """
    return max(limit // 3, (limit - _KEPT_BYTES) * 7 // 8)


def pack_bytes() -> int | None:
    """Return how many bytes a writer of checkpoints may collect before it creates a file: a share of the limit, twice
    of which is in memory while the file is created; None without a limit. O(1).
    """
    limit = BUDGET.limit
    return None if limit is None else min(PACK_BYTES, max(LEAST_PACK_BYTES, limit // PACK_SHARE))


def allocate_sparingly() -> None:
    """Let the C library keep less beside the limit, where it can. O(1).

    All threads that begin from now on allocate from one arena: each has its own otherwise. The gaps were a third of a
    limit of 64 MB in a server, and twenty states under 20 MB, whose checkpoints threads make, took 33 to 75 MB (22 to
    36 with one arena). Python's lock admits one thread anyway. And what is large is mapped apart: else the library
    learns to keep what was freed, and LMDB, which clears lists of 3 MB for each index, then takes memory for them.
    """
    with suppress(OSError, AttributeError):
        library = _c_library()
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _MAPPED_BYTES)


def give_back() -> None:
    """Return freed memory to the system, where the C library can. A millisecond for some 10 MB."""
    with suppress(OSError, AttributeError):
        _c_library().malloc_trim(0)


@cache
def _c_library() -> ctypes.CDLL:
    """Return the C library. Once: each object has types of its own, of which the collector frees one in 7 ms."""
    return ctypes.CDLL(None)
