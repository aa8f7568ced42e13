"""Sliding windows, one per record (KIP-450 as in its text): the values of a key in a sliding store, the aggregate
rebuilt from them.

Where a watermark is the time, a record that is ahead of it waits in a store of its own until the watermark has come to
it. Records so enter their windows in the order of their times, however they arrived, and a window never holds one that
is newer than its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from ...aggregation import Combined, SlidingWindows, WindowState, choose
from ...clock import BY_ADVANCE, Watermark, slid_out_through
from ...state.group import StoreGroup
from ..results import Result, canonical_order

_BY_KEY: Final = itemgetter(0)


class _Made:
    """The aggregate of a window that was made before it is handed out."""

    __slots__ = ("_aggregate",)

    def __init__(self, aggregate: Any) -> None:
        self._aggregate = aggregate

    def value(self) -> Any:
        return self._aggregate


class SlidingWindowed:
    """The state of one shard's sliding windows."""

    def __init__(
        self,
        windows: SlidingWindows,
        aggregates: Combined,
        group: StoreGroup,
        name: str,
        emit: str,
        strategy: str | None,
        *,
        clocked: bool = False,
    ) -> None:
        self.size_ms = windows.size_ms
        self.emit = emit
        store: Any = group.open(name, "sliding", {"size_ms": windows.size_ms, "aggregator": aggregates.describe()})
        store.bind(choose(aggregates, strategy))
        self._store = store
        self._waiting: Any = group.open(f"{name} ahead", "window", _waiting(windows.size_ms)) if clocked else None
        self._watermark = -1
        self.dropped = 0
        # key -> its state, stream time and record time as of its last record in this commit, where one result a commit is wanted
        self._last: dict[Any, tuple[WindowState | _Made, int, int]] = {}

    @property
    def stream_time(self) -> int:
        """The largest record time seen (ms), -1 at first."""
        found: int = self._store.stream_time
        return found

    @property
    def busy(self) -> bool:
        """True while results of a commit are held in memory."""
        return bool(self._last)

    def aggregates_of(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[Any]:
        """Add records in order and return their aggregates, None for those that are late. O(cost of the strategy) per record."""
        found: list[Any] = self._store.add_columns(keys, values, times)
        self.dropped += found.count(None)
        return found

    def states_of(self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[WindowState | None]:
        """Add records in order and aggregate nothing; return the states that can, None for records that are late. O(1) per record."""
        found: list[WindowState | None] = self._store.hold_columns(keys, values, times)
        self.dropped += found.count(None)
        return found

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. O(cost of the strategy) per record."""
        if clock is not None:
            keys, values, times = self._due(keys, values, times, clock)
        now, size = self.stream_time, self.size_ms
        if self.emit == "commit":
            for key, ts, state in zip(keys, times, self.states_of(keys, values, times), strict=True):
                if state is not None:
                    now = max(now, ts)
                    self._last[key] = (state, now, ts)
            return []
        results: list[Result] = []
        for key, ts, aggregate in zip(keys, times, self.aggregates_of(keys, values, times), strict=True):
            if aggregate is None:
                continue
            if ts > now:
                now = ts
            # the window ends at stream time and is clamped at 0
            results.append(Result(key, max(0, slid_out_through(now, size) + 1), now, aggregate, ts))
        return results

    def _due(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: Watermark
    ) -> tuple[list[Any], list[Any], list[int]]:
        """Let what is ahead of the watermark wait; return what it has come to, in order, without what is late by it.

        O(n log n).
        """
        waiting = self._waiting
        passed = waiting.stream_time  # the watermark that this shard has seen last: what it had come to waits no more
        self._watermark = now = max(passed, clock.now_ms)
        through = slid_out_through(max(passed, clock.late_ms), self.size_ms)
        waited = list(waiting.fetch_all(passed + 1, now)) if now > passed else []
        due = [(key, value, ts) for key, value, ts in zip(keys, values, times, strict=True) if through < ts <= now]
        self.dropped += sum(ts <= through for ts in times)
        # in a list: to a store that keeps duplicates None is nothing, to an aggregator it is a value
        waiting.put_many([(key, [value], ts) for key, value, ts in zip(keys, values, times, strict=True) if ts > now])
        due += [(key, value, ts) for (key, ts), (value,) in waited]
        columns = [row[0] for row in due], [row[1] for row in due], [row[2] for row in due]
        order = canonical_order(*columns)
        names, added, moments = ([column[i] for i in order] for column in columns)
        return names, added, moments

    def finish(self) -> list[Result]:
        """End the commit and return the last result of each key, by key, if that is what is emitted.

        Only those are aggregated: what a strategy needs for a result after many records, not for each of them.
        """
        last, self._last = self._last, {}
        size = self.size_ms
        results = [
            Result(key, max(0, slid_out_through(now, size) + 1), now, state.value(), ts)
            for key, (state, now, ts) in sorted(last.items(), key=_BY_KEY)
        ]
        if self._waiting is not None:
            self._waiting.advance(self._watermark)
            self._store.advance(self._watermark)
        return results

    def live(self) -> list[Result]:
        """Return the current window of every key that has records in it, by key. O(keys)."""
        # a look lets values of the keys expire that the results still to come are made of
        self._last = {key: (_Made(state.value()), now, ts) for key, (state, now, ts) in self._last.items()}
        now = self.stream_time
        start = max(0, slid_out_through(now, self.size_ms) + 1)
        return [Result(key, start, now, aggregate, now) for key, aggregate in self._store.aggregates()]


def _waiting(size_ms: int) -> dict[str, Any]:
    """Return the parameters of the store in which records wait.

    What the watermark has come to may go: its retention only says in what pieces.
    """
    retention = max(1, size_ms // 4)
    return {
        "retention_ms": retention,
        "window_size_ms": None,
        "grace_ms": retention,
        "retain_duplicates": True,
        **BY_ADVANCE,
    }
