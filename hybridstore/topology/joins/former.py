"""Former: the times that shards of a join had before they were merged, until the first commit behind the merge.

    shard 0 of 2, T = 90 ─┐   stores: T = 70, so that every row that waits is there
                          ├─▶ rows of shard 0 up to T = 90, and of shard 1 up to T = 70, have come out
    shard 1 of 2, T = 70 ─┘   the first commit begins with T = 90: rows that are due by it come out with its results

The surprise: the stores alone do not say which rows have come out, because the time of a merged shard is not that of
the shard in which a row waited. The former shard of a row follows from its key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...clock import NO_TIME
from ...shards import shard_of
from ...state.group import StoreGroup

FORMER: Final = "times of merged shards"
"""The setting with the former times: [shards, shard, T (ms)] of each merged shard; empty behind the first commit."""
KEYLESS: Final = b""
"""The key of rows without a key: its hash is 0, and these rows are in shard 0 of any number of shards."""

Times = list[list[int]]


def merged_times(parts: Iterable[Times]) -> Times:
    """Return the former times of several shards together. O(n log n)."""
    times: dict[tuple[int, int], int] = {}
    for shards, shard, ts in (time for part in parts for time in part):
        times[shards, shard] = max(ts, times.get((shards, shard), NO_TIME))
    return [[*place, ts] for place, ts in sorted(times.items())]


class FormerTimes:
    """The former times of the shards that were merged into one."""

    __slots__ = ("_counts", "_times", "latest")

    def __init__(self, times: Times) -> None:
        self._times = {(shards, shard): ts for shards, shard, ts in times}
        self._counts = sorted({shards for shards, _, _ in times})
        self.latest = max(self._times.values(), default=NO_TIME)
        """T (ms) of the merged shard from its first commit on; -1 if nothing was merged."""

    def __bool__(self) -> bool:
        return bool(self._times)

    def of(self, key: Any) -> int:
        """Return the T (ms) up to which the shards of a key had come; -1 for a key of a shard that was not merged."""
        return max((self._times.get((count, shard_of(key, count)), NO_TIME) for count in self._counts), default=NO_TIME)


def former_times(settings: dict[str, Any]) -> FormerTimes:
    """Return the former times that the settings of a shard have. O(merged shards)."""
    return FormerTimes(settings.get(FORMER) or [])


def forget_former(group: StoreGroup) -> None:
    """Forget the former times, as part of the version in progress: T has passed all of them. O(1)."""
    if group.settings.get(FORMER):
        group.set(FORMER, [])
