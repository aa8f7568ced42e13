"""Due: the rows of a window store in the order of their times, as time passes them.

    handled ──────┤ through          ahead ├────── not looked at
                  └── rows, by time ───────┘

A store keeps rows by key inside of buckets of time, so a look for the rows of a short stretch of time reads whole
buckets. Here each bucket is read once, when time reaches it, and rows that arrive later are put in their places.
Nothing is stored: after a restart the index is made from the store again.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from ...clock import INT64_MAX, NO_TIME
from ...stores.window import WindowStore

_BY_TIME: Final[Callable[[tuple[int, Any, Any]], Any]] = itemgetter(0)
_BY_TIME_AND_KEY: Final[Callable[[tuple[int, Any, Any]], Any]] = itemgetter(0, 1)


class Due:
    """Rows of a store as (time, key, value), by time, then key, then arrival, behind those that time has passed.

    through  the time (ms) up to which all rows are handled
    handled  the time (ms) up to which rows of a key were handled, if that is later, until the first `take`
    """

    def __init__(self, store: WindowStore, through: int, handled: Callable[[Any], int] | None = None) -> None:
        self._store = store
        self._handled = handled
        self._stretch = max(1, store.parameters["retention_ms"] // 8)
        self._rows: list[tuple[int, Any, Any]] = []
        self.through = self._ahead = max(through, NO_TIME)

    def add(self, keys: list[Any], times: list[int], values: list[Any]) -> None:
        """Note rows that were put. O(rows), and O(rows looked at) for each that is not ahead of these."""
        for ts, key, value in zip(times, keys, values, strict=True):
            if ts <= self._ahead:
                insort(self._rows, (ts, key, value), key=_BY_TIME_AND_KEY)

    def take(self, through: int) -> list[tuple[int, Any, Any]]:
        """Return the rows up to a time that were not returned before. O(log n + rows), and each bucket once."""
        if through <= self.through:
            return []
        if through > self._ahead:
            ahead = min(through + self._stretch, INT64_MAX)
            rows = self._store.scan(time_from=self._ahead + 1, time_to=ahead)
            self._rows += [(ts, key, value) for (key, ts), value in rows]
            self._ahead = ahead
        self.through = through
        cut = bisect_right(self._rows, through, key=_BY_TIME)
        rows_due = self._rows[:cut]
        del self._rows[:cut]
        if self._handled is not None:
            rows_due = [row for row in rows_due if row[0] > self._handled(row[1])]
            self._handled = None
        return rows_due
