"""Session runs: the sessions of a key in a bucket, and the bucket.

A run is the flat tuple `(end, start, value, end, start, value, ...)` while it is short, and `[ends, starts, values,
longest]` when it is not, always by end, then start descending. Tuples take less memory, and the garbage collector does
not track them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import neg, sub
from typing import Any, Final, Self

from sortedcontainers import SortedList

from recovery.block import Rows

from .buckets import TOMBSTONE, StoreBucket

# Fields of the longest run that is a tuple: six sessions. The long form takes less memory from the fifth session on (83
# bytes instead of 103), but making it takes longer than a put, and most keys have only so few sessions in a bucket.
SHORT: Final = 18
_NONE: Final[tuple[Any, ...]] = ()


class SessionBucket(StoreBucket):
    """A bucket of sessions.

    `longest` is no less than any session's length; the orders are made when first asked for, then kept.

    `by_key` orders the keys, `by_end` all `(end, key, -start)`; both only ever describe `runs` without cold blocks or
    overlay.
    """

    __slots__ = ("by_end", "by_key", "longest")

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.longest = 0
        self.by_key: Any = None
        self.by_end: Any = None

    def clone(self, epoch: int) -> Self:
        """Return a copy that may be changed while snapshots keep this bucket; the copy's orders are rebuilt when they
        are needed.
        """
        copy = super().clone(epoch)
        copy.longest = self.longest
        return copy

    def over_newer(self, epoch: int, *, shared: bool) -> Self:
        """See `StoreBucket`; the orders are rebuilt when they are needed."""
        bucket = super().over_newer(epoch, shared=shared)
        bucket.longest = self.longest
        return bucket

    def append_sessions(self, keys: list[Any], values: list[Any], starts: list[int], ends: list[int]) -> None:
        """Add sessions, each of which ends after all sessions of its key here; no run may be shared with a snapshot.

        O(sessions).
        """
        if self.by_key is not None:
            self.by_key.update(set(keys).difference(self.runs))
        if self.by_end is not None:
            self.by_end.update(zip(ends, keys, map(neg, starts), strict=True))
        longest = max(map(sub, ends, starts))
        if longest > self.longest:
            self.longest = longest
        self.changed(keys, ends)
        self.records += len(keys)
        runs = self.runs
        get = runs.get
        for key, session in zip(keys, zip(ends, starts, values, strict=True), strict=True):
            run = get(key, _NONE)
            if type(run) is tuple:
                run += session
                runs[key] = run if len(run) <= SHORT else unfolded(run)
            else:
                end, start, value = session
                run[0].append(end)
                run[1].append(start)
                run[2].append(value)
                if end - start > run[3]:
                    run[3] = end - start

    def forget_orders(self) -> None:
        """Drop both orders: the content changes as a whole."""
        self.by_key = self.by_end = None

    def keys_between(self, key_from: Any, key_to: Any) -> Iterator[Any]:
        """Iterate over the keys of a range, in order. O(log n + keys), the first time O(n log n)."""
        if self.by_key is None:
            self.by_key = SortedList(self.runs)
        keys: Iterator[Any] = self.by_key.irange(key_from, key_to)
        return keys

    def ends_between(self, low: int, high: int) -> Iterator[tuple[int, Any, int]]:
        """Iterate over `(end, key, -start)` with low <= end <= high, in order.

        O(log n + rows), the first time O(n log n).
        """
        if self.by_end is None:
            self.by_end = SortedList(
                (end, key, -start) for key, run in self.runs.items() for end, start, _ in sessions_of(run)
            )
        ends: Iterator[tuple[int, Any, int]] = self.by_end.irange((low,), (high + 1,))
        return ends


def place(ends: Sequence[int], starts: Sequence[int], start: int, end: int) -> int:
    """Return the index of a session in a run, or the index at which to insert it. O(log n)."""
    i = bisect_left(ends, end)
    if i < len(ends) and ends[i] == end and starts[i] > start:
        i = bisect_left(starts, -start, i, bisect_right(ends, end, i), key=neg)
    return i


def parts_of(run: Any) -> Sequence[Any]:
    """Return a run's ends, starts and values."""
    return (run[::3], run[1::3], run[2::3]) if type(run) is tuple else run[:3]


def sessions_of(run: Any) -> Iterable[tuple[int, int, Any]]:
    """Iterate over a run's `(end, start, value)`, in order."""
    return zip(*parts_of(run), strict=True)


def run_of(parts: Sequence[Any]) -> Any:
    """Return the run with these ends, starts and values, in order."""
    ends, starts, values = parts
    if 3 * len(ends) <= SHORT:
        return tuple(chain.from_iterable(zip(ends, starts, values, strict=True)))
    return long_run(array("q", ends), array("q", starts), list(values))


def unfolded(run: tuple[Any, ...]) -> list[Any]:
    """Return the long form of a run that is a tuple. O(sessions)."""
    return long_run(array("q", run[::3]), array("q", run[1::3]), list(run[2::3]))


def long_run(ends: array[int], starts: array[int], values: list[Any]) -> list[Any]:
    return [ends, starts, values, max(map(sub, ends, starts))]


def index_of(run: Any, start: int, end: int) -> int:
    """Return the index of a session in a run, -1 if the run has no such session. O(log n)."""
    ends, starts, _ = parts_of(run)
    i = place(ends, starts, start, end)
    return i if i < len(ends) and ends[i] == end and starts[i] == start else -1


def value_of(run: Any, start: int, end: int) -> Any:
    """Return the value of one session of a run, or None. O(log n)."""
    if type(run) is tuple:
        for i in range(0, len(run), 3):
            if run[i] == end and run[i + 1] == start:
                return run[i + 2]
        return None
    i = index_of(run, start, end)
    return None if i < 0 else run[2][i]


def combined(older: Rows, newer: Rows) -> Rows:
    """Lay sessions of a key over older ones: of equal start and end only the newer session stays, and a tombstone
    removes both.

    O(sessions log sessions).
    """
    sessions: dict[tuple[int, int], Any] = {}
    for (ends, starts), values in (older, newer):
        sessions.update(zip(zip(ends, map(neg, starts), strict=True), values, strict=True))
    order = sorted(place for place, value in sessions.items() if value is not TOMBSTONE)
    return ([end for end, _ in order], [-start for _, start in order]), [sessions[place] for place in order]
