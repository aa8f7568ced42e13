"""Panes: hopping windows whose aggregates can be combined, kept and logged as the pieces that windows share.

    windows   [s ------------------- s + size)
                      [s + advance ----------- s + advance + size)
    panes     | .  |  | .  |  | .  |  | .  |       cut wherever a window begins or ends: at most two an advance

A record is added to one pane, so that a commit logs at most one row for it, however many windows overlap; a window is
combined from its panes when it is emitted, with about three merges. That needs a `merge`, and a `commutative`
aggregator, because panes are combined in the order of time and not of arrival: `TimeWindowed` keeps the windows of the
others.

The surprise: a closed window is not the sum of its panes any more, because a late record may still be added to a pane
for a later window. A closed window is read only in the commit that closes it, so its value is saved in `_aside` before
the late record is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

from ...aggregation import HoppingWindows
from ...clock import INT64_MAX, NO_TIME, Watermark, closed_through, expired_through
from ...state.group import StoreGroup
from ...stores.window import WindowStore
from ..batch import Records
from ..plan import Plan
from ..results import Result
from .windowed import WINDOWS, Windowed, window_store

_BY_KEY = _BY_START = itemgetter(0)
Pane = tuple[int, int, list[Any]]  # start, largest record time or -1, aggregate


class PanedWindowed(Windowed[WindowStore]):
    """The state of one shard's hopping windows, as panes."""

    def __init__(self, plan: Plan, group: StoreGroup, *, clocked: bool = False) -> None:
        assert isinstance(plan.windows, HoppingWindows)
        self.windows = plan.windows
        store = window_store(group, WINDOWS, plan.kept_ms, clocked=clocked)
        super().__init__(plan, store, store.stream_time, clocked=clocked)
        self._rest = self.windows.size_ms % self.windows.advance_ms
        # (pane, key) -> [largest record time, aggregate, largest closed end when it was first changed], changed in this
        # commit
        self.open: dict[tuple[int, Any], list[Any]] = {}
        # (start, key) -> [largest record time, aggregate]: windows touched in this commit, with emit="record" only
        self._touched: dict[tuple[int, Any], list[Any]] = {}
        # (start, key) -> the value of a window that closed in this commit, from before a record that is too late for
        # the window
        self._aside: dict[tuple[int, Any], Pane | None] = {}

    # --- where panes and windows lie ----------------------------------------------------------------------------

    def _cuts(self, low: int, high: int) -> Iterable[int]:
        """Return the starts of the panes in [low, high), ascending; `low` is the start of a window."""
        advance, rest = self.windows.advance_ms, self._rest
        bases = range(low, high, advance)
        return [cut for base in bases for cut in (base, base + rest) if cut < high] if rest else bases

    # --- records in ---------------------------------------------------------------------------------------------

    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """See `Windowed.add`. One add per record; with a result per record, also one per window of the record."""
        open_, each = self.open, self.emit == "record"
        closing, floor = self.closing_ms, self.floor
        advance, rest = self.windows.advance_ms, self._rest
        add = self.aggregates.add
        closed = self.closed(now)
        self.store.touch(records.keys)
        for key, value, ts in self.rows(records):
            if ts > now and clock is None:
                now = ts
                closed = max(closed_through(now, closing), floor)
            pane = ts - ts % advance
            if rest and ts - pane >= rest:
                pane += rest
            # no window of the record has closed if the first one begins behind the last closed end
            if pane < closed and not self._in_time(key, pane, closed):
                self.too_late()
                continue
            slot = open_.get((pane, key))
            if slot is None:
                slot = open_[(pane, key)] = self._load(key, pane, closed)
            slot[1] = add(slot[1], value)
            if ts > slot[0]:
                slot[0] = ts
            if each:
                self._update(key, value, ts, pane, closed, results)
        return now

    def _load(self, key: Any, pane: int, closed: int) -> list[Any]:
        stored = self.store.get(key, pane)
        return [-1, self.aggregates.init(), closed] if stored is None else [*self.form.changeable(stored), closed]

    def _in_time(self, key: Any, pane: int, closed: int) -> bool:
        """Count the windows for which the record is too late; return whether another window accepts it."""
        windows, advance = self.windows, self.windows.advance_ms
        first, last = windows.first_holding(pane), pane - pane % advance
        open_from = max(first, windows.first_open(closed))
        self.dropped += max(0, min(open_from, last + advance) - first) // advance
        if open_from > last:
            return False
        if self.emit != "record":
            # windows that closed before this commit are not read again
            since = max(first, windows.first_open(self.closed_before))
            for start in range(since, open_from, advance):
                if (start, key) not in self._aside:
                    window = self._of_windows({key: [start]})[key]
                    self._aside[(start, key)] = window[0] if window else None
        return True

    def _update(self, key: Any, value: Any, ts: int, pane: int, closed: int, results: list[Result]) -> None:
        """Add a record to each of its open windows."""
        size, advance = self.windows.size_ms, self.windows.advance_ms
        windows, add, finish = self._touched, self.aggregates.add, self.aggregates.finish
        first = max(self.windows.first_holding(pane), self.windows.first_open(closed))
        starts = range(first, pane - pane % advance + 1, advance)
        for start in starts:
            window = windows.get((start, key))
            if window is None:
                # a window that was not touched in this commit has no touched pane
                missing = [start for start in starts if (start, key) not in windows]
                windows.update(((start, key), [-1, self.aggregates.init()]) for start in missing)
                for begins, newest, aggregate in self._of_windows({key: missing}, stored=True)[key]:
                    windows[(begins, key)] = [newest, aggregate]
                window = windows[(start, key)]
            window[1] = add(window[1], value)
            if ts > window[0]:
                window[0] = ts
            results.append(Result(key, start, start + size, finish(window[1]), window[0]))

    # --- windows out of panes -----------------------------------------------------------------------------------

    def _of_windows(self, starts: dict[Any, list[int]], *, stored: bool = False) -> dict[Any, list[Pane]]:
        """Return, for each key and its ascending window starts, the windows with records; the caller may change their
        aggregates.

        With `stored`, as the last commit left them.
        """
        size, advance, open_ = self.windows.size_ms, self.windows.advance_ms, self.open
        names: dict[int, list[Any]] = {}
        for key, key_starts in starts.items():
            cuts = self._cuts(key_starts[0], key_starts[-1] + size)
            if key_starts[-1] - key_starts[0] != (len(key_starts) - 1) * advance:
                cuts = {cut for start in key_starts for cut in self._cuts(start, start + size)}
            for cut in cuts:
                names.setdefault(cut, []).append(key)
        panes: dict[Any, list[Pane]] = {key: [] for key in starts}
        for cut in sorted(names):
            for key, value in zip(names[cut], self.store.get_many(names[cut], cut), strict=True):
                slot = None if stored else open_.get((cut, key))
                if slot is not None:
                    panes[key].append((cut, slot[0], slot[1]))
                elif value is not None:
                    panes[key].append((cut, *self.form.shared(value)))
        return {key: self._combined(panes[key], key_starts) for key, key_starts in starts.items()}

    def _combined(self, panes: list[Pane], starts: list[int]) -> list[Pane]:
        """Combine the panes of a key, ascending, into windows. About three merges a window, as with two stacks.

        ahead: panes low..middle-1, each with all between it and middle        behind: panes middle..high-1 in one
        """
        size, timed = self.windows.size_ms, self.form.timed
        merge, copy = self.aggregates.merge, self.aggregates.copy
        assert merge is not None
        assert copy is not None
        combined: list[Pane] = []
        ahead: list[list[Any]] = []
        behind: list[Any] | None = None
        low = middle = merged = high = 0
        for start in starts:
            while low < len(panes) and panes[low][0] < start:
                low += 1
            high = max(high, low)
            while high < len(panes) and panes[high][0] < start + size:
                high += 1
            if low == high:
                continue
            if low >= middle:
                ahead, behind, middle, merged = [], None, high, high
                for at in range(high - 1, low - 1, -1):
                    ahead.append(merge(copy(panes[at][2]), ahead[-1]) if ahead else copy(panes[at][2]))
            for at in range(merged, high):
                behind = copy(panes[at][2]) if behind is None else merge(behind, panes[at][2])
            merged = high
            window = copy(ahead[middle - 1 - low])
            if behind is not None:
                window = merge(window, behind)
            combined.append((start, max(pane[1] for pane in panes[low:high]) if timed else -1, window))
        return combined

    # --- the end of a commit ------------------------------------------------------------------------------------

    def write(self) -> None:
        """See `Windowed.write`: the panes, by start and then key."""
        expired = expired_through(self.stream_time, self.retention_ms)
        value = self.form.value
        self.store.put_many(
            [(key, value(slot[0], slot[1]), pane) for (pane, key), slot in sorted(self.open.items()) if pane > expired]
        )
        self._touched, self._aside = {}, {}

    def changed(self) -> list[Result]:
        """See `Windowed.changed`: by start and then key. About three merges a window."""
        windows, advance = self.windows, self.windows.advance_ms
        starts: dict[Any, set[int]] = {}
        for (pane, key), slot in self.open.items():
            first = max(windows.first_holding(pane), windows.first_open(slot[2]))
            starts.setdefault(key, set()).update(range(first, pane - pane % advance + 1, advance))
        windows_of = self._of_windows({key: sorted(key_starts) for key, key_starts in starts.items() if key_starts})
        return list(self._ordered(windows_of.items()))

    def _ordered(self, windows_of: Iterable[tuple[Any, list[Pane]]]) -> Iterator[Result]:
        """Yield the windows of keys as results, by start and then key, and forget each; a value in `_aside` replaces
        that of its panes.
        """
        aside, size, finish = self._aside, self.windows.size_ms, self.aggregates.finish
        by_start: dict[int, list[Result]] = {}
        for key, windows in windows_of:
            for window in windows:
                given = aside.get((window[0], key), window) if aside else window
                if given is not None:
                    start, newest, aggregate = given
                    result = Result(key, start, start + size, finish(aggregate), newest)
                    by_start.setdefault(start, []).append(result)
        for start in sorted(by_start):
            results = sorted(by_start.pop(start), key=_BY_KEY, reverse=True)
            while results:
                yield results.pop()

    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """See `Windowed.ended`: by start and then key. O(panes in those windows), and about three merges a window.
        Windows that begin at several times are in memory together, those of one a few keys at a time.
        """
        windows, size = self.windows, self.windows.size_ms
        low, high = max(0, windows.first_open(after)), None if through is None else through - size
        if high is not None and high < low:
            return iter(())
        last_pane = INT64_MAX if through is None else through - 1
        keys = self._windows_by_key(low, INT64_MAX if high is None else high, last_pane)
        if high is not None and high - low < self.windows.advance_ms:  # all begin together: keys come in order
            return chain.from_iterable(self._ordered([of_key]) for of_key in keys)
        return self._ordered(keys)

    def _windows_by_key(self, low: int, high: int, last_pane: int) -> Iterator[tuple[Any, list[Pane]]]:
        """Yield each key, in order, with its windows that begin from `low` to `high`. Where memory is short, panes of
        some keys at a time are in it.
        """
        windows, advance, shared = self.windows, self.windows.advance_ms, self.form.shared
        changed: dict[Any, list[Pane]] = {}
        for (pane, key), slot in self.open.items():
            if low <= pane <= last_pane:
                changed.setdefault(key, []).append((pane, slot[0], slot[1]))
        waiting = sorted(changed, reverse=True)
        for first, behind in pairwise((None, *self.store.cuts(low, last_pane), None)):
            panes: dict[Any, list[Pane]] = {}
            for (key, pane), value in self.store.scan(first, behind, time_from=low, time_to=last_pane):
                if key != behind and (pane, key) not in self.open:
                    panes.setdefault(key, []).append((pane, *shared(value)))
            while waiting and (behind is None or waiting[-1] < behind):
                panes.setdefault(waiting[-1], []).extend(changed[waiting[-1]])
                waiting.pop()
            for key in sorted(panes):
                key_panes = sorted(panes.pop(key), key=_BY_START)
                starts: set[int] = set()
                for pane, _, _ in key_panes:
                    start = max(low, windows.first_holding(pane))
                    starts.update(range(start, min(pane - pane % advance, high) + 1, advance))
                yield key, self._combined(key_panes, sorted(starts))

    def live(self) -> list[Result]:
        """See `Windowed.live`: windows not closed when the commit began; panes of others have expired."""
        return list(self.ended(max(NO_TIME, self.closed_before), None))

    # --- by column ----------------------------------------------------------------------------------------------

    def add_panes(self, names: list[Any], panes: list[int], aggregates: list[list[Any]], now: int, closed: int) -> None:
        """Set the aggregates of whole panes, stored values included; `closed` has decided which records are late."""
        for name, pane, aggregate in zip(names, panes, aggregates, strict=True):
            self.open[(pane, name)] = [-1, aggregate, closed]
        self.stream_time = now

    def windows_before(self, names: list[Any], starts: list[int]) -> list[list[Any] | None]:
        """Return the aggregates of windows as the last commit left them, None for those without any.

        `starts` ascend.
        """
        wanted: dict[Any, list[int]] = {}
        for name, start in zip(names, starts, strict=True):
            wanted.setdefault(name, []).append(start)
        aggregates = {
            (window[0], name): window[2]
            for name, windows in self._of_windows(wanted, stored=True).items()
            for window in windows
        }
        return [aggregates.get((start, name)) for name, start in zip(names, starts, strict=True)]
