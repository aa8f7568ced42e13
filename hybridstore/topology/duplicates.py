"""Duplicates: rows without those whose key was seen within a time, as Spark's `dropDuplicatesWithinWatermark`.

    row ── late? ──▶ left out, counted        seen within the time? ──▶ left out        ──▶ the row, and its key is seen

By a watermark W, a row is late when its time is at or before the W of late rows, and a key is forgotten when W reaches
the time of its first row and `within`. By stream time, W is the stream time less `within`: rows are as late as they are
far apart from duplicates. The surprise: a duplicate does not make its key seen anew, so that a key that comes for ever
is let through once in a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..clock import INT64_MAX, timed_by_records

SEEN: Final = "seen"


@dataclass(frozen=True, slots=True)
class WithoutDuplicates:
    """The logic of `Topology.drop_duplicates`; each shard opens it on its stores."""

    within_ms: int

    @property
    def retention_ms(self) -> int:
        """How long a key is kept: by stream time, which is ahead of the watermark, twice as long."""
        return 2 * self.within_ms

    def __call__(self, stores: Any) -> Opened:
        """Return the logic of one shard."""
        return Opened(self.within_ms, stores)


class Opened:
    """The logic of one shard: `process` returns a row, or nothing for a duplicate and a late row."""

    def __init__(self, within_ms: int, stores: Any) -> None:
        self._seen = stores[SEEN]
        self._stores = stores
        clocked = not timed_by_records(self._seen.parameters)
        self._behind_ms = 0 if clocked else within_ms
        self._within_ms = within_ms
        self.dropped = 0
        """Late rows since the logic was opened."""

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the row if it is neither late nor a duplicate. O(log n)."""
        key, ts, watermark = self._stores.key, self._stores.time, self._seen.stream_time - self._behind_ms
        if ts <= watermark:
            self.dropped += 1
            return []
        if any(True for _ in self._seen.fetch(key, max(0, watermark - self._within_ms + 1), INT64_MAX)):
            return []
        self._seen.put(key, 1, ts)
        return [row]
