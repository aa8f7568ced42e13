"""Sliding windows, one per record (KIP-450 as in its text): the values of a key in a sliding store, the aggregate rebuilt from them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from ..aggregation import Combined, SlidingWindows, WindowState, choose
from ..clock import slid_out_through
from ..store_group import StoreGroup
from .results import Result

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
    ) -> None:
        self.size_ms = windows.size_ms
        self.emit = emit
        store: Any = group.open(name, "sliding", {"size_ms": windows.size_ms, "aggregator": aggregates.describe()})
        store.bind(choose(aggregates, strategy))
        self._store = store
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

    def aggregates_of(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: int | None
    ) -> list[Any]:
        """Add records in order and return their aggregates, None for those that are late. O(cost of the strategy) per record."""
        if clock is not None:
            self._store.advance(clock)
        found: list[Any] = self._store.add_columns(keys, values, times)
        self.dropped += found.count(None)
        return found

    def states_of(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: int | None
    ) -> list[WindowState | None]:
        """Add records in order and aggregate nothing; return the states that can, None for records that are late. O(1) per record."""
        if clock is not None:
            self._store.advance(clock)
        found: list[WindowState | None] = self._store.hold_columns(keys, values, times)
        self.dropped += found.count(None)
        return found

    def process(
        self, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int], clock: int | None = None
    ) -> list[Result]:
        """Take records in order and return the results due at once. O(cost of the strategy) per record."""
        now, size = self.stream_time, self.size_ms
        if clock is not None and clock > now:
            now = clock
        if self.emit == "commit":
            for key, ts, state in zip(keys, times, self.states_of(keys, values, times, clock), strict=True):
                if state is not None:
                    now = max(now, ts)
                    self._last[key] = (state, now, ts)
            return []
        results: list[Result] = []
        for key, ts, aggregate in zip(keys, times, self.aggregates_of(keys, values, times, clock), strict=True):
            if aggregate is None:
                continue
            if ts > now:
                now = ts
            # the window ends at stream time and is clamped at 0
            results.append(Result(key, max(0, slid_out_through(now, size) + 1), now, aggregate, ts))
        return results

    def finish(self) -> list[Result]:
        """End the commit and return the last result of each key, by key, if that is what is emitted.

        Only those are aggregated: what a strategy needs for a result after many records, not for each of them.
        """
        last, self._last = self._last, {}
        size = self.size_ms
        return [
            Result(key, max(0, slid_out_through(now, size) + 1), now, state.value(), ts)
            for key, (state, now, ts) in sorted(last.items(), key=_BY_KEY)
        ]

    def live(self) -> list[Result]:
        """Return the current window of every key that has records in it, by key. O(keys)."""
        # a look lets values of the keys expire that the results still to come are made of
        self._last = {key: (_Made(state.value()), now, ts) for key, (state, now, ts) in self._last.items()}
        now = self.stream_time
        start = max(0, slid_out_through(now, self.size_ms) + 1)
        return [Result(key, start, now, aggregate, now) for key, aggregate in self._store.aggregates()]
