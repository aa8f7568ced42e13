"""The maps that a state no longer uses: those of before it became cold, and those of records that are no more.

They are emptied in slices, since freeing all records at once would take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import Final

from ..stores.cold_tail import Maps, empty_some
from ..stores.sizes import map_bytes
from .memory_budget import give_back

# So many entries of a map are freed between two looks at the clock.
FREED_ENTRIES: Final = 256


def _records(maps: Sequence[Maps]) -> int:
    """Return how many records maps have: a set has keys of other maps. O(maps)."""
    return sum(len(each) for each in maps if not isinstance(each, set))


def _keys(maps: Sequence[Maps]) -> int:
    """Return how many keys of records maps have. O(maps)."""
    return sum(len(each) for each in maps if isinstance(each, dict))


class OldMaps:
    """Maps to be emptied: `maps` of when the state became cold last, and `ended` of records that are no more.

    `freed_keys` and `freed_bytes` say what was freed of the first since the state was opened.
    """

    def __init__(self) -> None:
        self.maps: list[Maps] = []
        self.ended: list[Maps] = []
        self.freed_keys, self.freed_bytes = 0.0, 0
        # of `maps`: the records, the bytes that those take beside the tables, and the records per key
        self._records = self._bytes = 0
        self._each = 1.0

    def __len__(self) -> int:
        """How many maps remain. O(1)."""
        return len(self.maps) + len(self.ended)

    def end(self) -> None:
        """A state becomes cold again: the `maps` of the time before are no more. O(maps)."""
        self.ended += self.maps
        self.maps = []

    def add(self, maps: Iterable[Maps], size: int, records: int) -> None:
        """Take maps of a state that becomes cold, which took `size` bytes, tables and all, and had so many records.
        O(maps).
        """
        remaining, keys = _records(self.maps), _keys(self.maps)
        used = [each for each in maps if each]
        self.maps += used
        each_bytes = self._bytes // max(1, self._records)
        self._records = remaining + _records(used)
        self._bytes = remaining * each_bytes + max(0, size - sum(map(getsizeof, used)))
        self._each = (self._each * keys + records) / max(1, _keys(self.maps))

    def remaining(self) -> int:
        """Return about how many bytes of `maps` are still to be freed: a table keeps its size until its last entry is
        freed. O(maps).
        """
        return sum(map(getsizeof, self.maps)) + self._bytes * _records(self.maps) // max(1, self._records)

    def ended_bytes(self) -> int:
        """Return about how many bytes `ended` takes. O(maps)."""
        return sum(map_bytes(each) if isinstance(each, dict) else getsizeof(each) for each in self.ended)

    def free(self, budget_ms: float, least: int) -> None:
        """Empty maps for about `budget_ms` of processor time, and of at least so many entries and a part of one map."""
        deadline = time.thread_time() + budget_ms / 1000
        while self:
            if self.maps:
                self._free_some()
            else:
                empty_some(self.ended, FREED_ENTRIES)
            least -= FREED_ENTRIES
            if least <= 0 and time.thread_time() >= deadline:
                return

    def _free_some(self) -> None:
        """Empty a part of one of `maps`, and count what was freed."""
        last = self.maps[-1]
        entries, whole = empty_some(self.maps, FREED_ENTRIES)
        if not isinstance(last, set):
            self.freed_bytes += entries * (self._bytes // max(1, self._records))
        if isinstance(last, dict):
            self.freed_keys += entries * self._each
        self.freed_bytes += whole
        if not self.maps:
            give_back()
