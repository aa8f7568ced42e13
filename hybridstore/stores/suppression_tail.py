"""Suppression tail: the waiting rows of a replay of a suppression buffer, and which of them remain buffered.

    rows        ── a ── b ── a ── c ──│── d ── b ──       by column, as any cold tail
    events             │         │         │              between them: time moved, or records left early
    versions    ───────┴─────────┼─────────┴───           what the newest version emitted is asked for, too

The surprise: the content of the buffer is known without running the buffer. Records that time alone made due were
emitted for good, so the last row of each key counts, if it is newer than the due time at that row and than every
eviction behind it. Only the rows of the newest version are put one by one, when their emissions are asked for again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from .cold_tail import ColdTail

Boundary = tuple[Any, ...]
"""Of an eviction: records at or before it in the order (buffer time, key) leave the buffer."""

_STRIDE: Final = 256


Place = tuple[int, int]
"""In a tail: behind so many rows and events."""


class TailEvent(NamedTuple):
    """An event behind so many rows: stream time moved to `time`, or (None) all records at or before `boundary` were
    emitted.
    """

    rows: int
    time: int | None
    boundary: Boundary


class TailRows(NamedTuple):
    """Rows of the tail by column, and the events between them."""

    keys: list[Any]
    values: list[Any]
    times: list[int]
    events: Sequence[TailEvent]

    def before(self, place: Place) -> TailRows:
        """Return the rows and events before a place. O(rows), at C speed."""
        row, event = place
        return TailRows(self.keys[:row], self.values[:row], self.times[:row], self.events[:event])

    def behind(self, place: Place) -> TailRows:
        """Return the rows and events behind a place. O(rows), at C speed."""
        row, event = place
        events = [later._replace(rows=later.rows - row) for later in self.events[event:]]
        return TailRows(self.keys[row:], self.values[row:], self.times[row:], events)


class Unasked(NamedTuple):
    """The emissions of the newest version before they are computed: those `emitted` before all rows, and what its rows
    emit from a buffer of the `records` at stream time `began`: those that were due, or had a row of their key. No other
    record matters.
    """

    emitted: list[Any]
    began: int
    records: dict[Any, Any]
    before: TailRows
    newest: TailRows


class BufferTail(ColdTail):
    """Rows (key, value, time) with the events between them. `began` is the stream time before the first of them.

    `newest` is the place where the newest completed version begins.
    """

    __slots__ = ("_next", "began", "events", "newest")
    began: int

    def __init__(self) -> None:
        super().__init__(3)

    def clear(self) -> None:
        super().clear()
        self.events: list[TailEvent] = []
        self.newest = self._next = (0, 0)

    def end_version(self) -> None:
        """A version ends. O(1)."""
        self.newest = self._next
        self._next = len(self), len(self.events)

    def take(self) -> TailRows:
        """Return all rows and events, and forget them. O(rows that were added one by one)."""
        self._gather()
        (keys, values, times), events = self.columns, self.events
        self.columns = [], [], []
        self.clear()
        return TailRows(keys, values, times, events)

    def _check(self) -> None:
        super()._check()
        # events stand in order, and versions end one after the other
        places = [event.rows for event in self.events]
        assert places == sorted(places), ("events", places)
        assert self.newest <= self._next <= (len(self), len(self.events)), ("versions", self.newest, self._next)


def boundary_of(through: int, key: Any = None) -> Boundary:
    """Return the boundary of buffer times up to `through`; with a key, at `through` only up to that key."""
    return (through + 1,) if key is None else (through, key)


def not_due(ats: list[int], due: int) -> int:
    """Return a position such that all buffer times before it are at or before `due`: nearly the last such. O(rows), at
    C speed."""
    start = 0
    while start < len(ats) and max(ats[start : start + _STRIDE]) <= due:
        start += _STRIDE
    return min(start, len(ats))


def remaining(last: Iterable[tuple[Any, int]], ats: list[int], due: int, evictions: list[TailEvent]) -> list[int]:
    """Return which rows are still in the buffer, of `last`: key -> position of its last row.

    `ats` are the rows' buffer times, `due` is the newest time that was due at the last row; evictions are in order.
    O(keys), and with evictions O((keys + evictions) log evictions).
    """
    if not evictions:
        return [i for _, i in last if ats[i] > due]
    # the furthest of all evictions from each one on
    furthest = [*accumulate((event.boundary for event in reversed(evictions)), max)][::-1]
    rows = [event.rows for event in evictions]
    kept = []
    for key, i in last:
        behind = bisect_left(rows, i + 1)  # the first eviction behind the row
        if ats[i] > due and (behind == len(rows) or (ats[i], key) > furthest[behind]):
            kept.append(i)
    return kept
