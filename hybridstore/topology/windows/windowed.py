"""Windowed: the interface of every kind of windows, and the one place where results are emitted.

    records ── process ──▶ windows of the commit, in memory ── finish ──▶ results, then the store

    emit="record"   `process` returns a result for each window that a record changed
    emit="commit"   `finish` returns the windows that changed in the commit
    emit="close"    `finish` returns the windows that closed in the commit

Windows of the commit in progress change in memory and are written at its end: one changelog record per key and changed
window, however many records it had. Nothing is lost by that, because uncommitted changes would not survive a crash
anyway. The surprise: the store is written last, so that windows that close in this commit can still be read at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from ...clock import BY_ADVANCE, INT64_MAX, NO_TIME, Watermark, closed_through
from ...state.group import StoreGroup
from ...stores.kinds import WINDOW
from ...stores.window import WindowStore
from ..batch import Records
from ..failures import Failure, tried
from ..plan import Plan
from ..results import Result, Results, Taker, by_column
from .stored import StoredForm

WINDOWS: Final = "windows"
# Orders results.
BY_START_AND_KEY: Final = itemgetter(1, 0)


class OpenWindow:
    """A window of the commit in progress.

    newest    its largest record time, -1 if that is not kept
    owned     its aggregate may be changed, because the store does not refer to the object
    changed   the window must be written
    """

    __slots__ = ("aggregate", "changed", "newest", "owned")

    def __init__(self, newest: int, aggregate: Any, *, fresh: bool) -> None:
        self.newest = newest
        self.aggregate = aggregate
        self.owned = self.changed = fresh

    def make_changeable(self, copy: Callable[[Any], Any] | None) -> None:
        """Copy the aggregate if it must not be changed."""
        if not self.owned:
            self.aggregate = self.aggregate if copy is None else copy(self.aggregate)
            self.owned = True


class Timed(Protocol):
    """A store whose time can be moved, and which may be in a checkpoint on another machine."""

    def advance(self, ts: int) -> object: ...
    @property
    def far(self) -> bool: ...
    def prefetch(self, keys: Collection[Any], time_from: int = ..., time_to: int = ...) -> None: ...


S = TypeVar("S", bound=Timed)


class Windowed(ABC, Generic[S]):
    """The state of one shard's windows of one kind.

    `store` has the windows, `open` those that the commit in progress has changed or loaded.
    """

    def __init__(self, plan: Plan, store: S, stream_time: int, *, clocked: bool) -> None:
        assert plan.windows is not None
        self.store = store
        self.aggregates = plan.combined
        self.emit = plan.emit
        self.form = StoredForm(plan.combined, plan.dates_results)
        self.retention_ms = plan.kept_ms
        self.closing_ms = plan.windows.closing_ms(clocked=clocked)
        # How far from a record's time its windows in the store can be; None: anywhere.
        self.reach_ms: int | None = getattr(plan.windows, "longest_ms", getattr(plan.windows, "size_ms", None))
        self.open: dict[Any, Any] = {}
        self.stream_time = self.committed = stream_time
        """The largest record time seen, or the watermark (ms), -1 at first; and as of the last commit."""
        self.floor = -INT64_MAX
        """The largest end that had closed when the grace last changed: no such window opens again."""
        self.closed_before = closed_through(stream_time, self.closing_ms)
        """The largest end that had closed when the commit in progress began."""
        self.dropped = 0
        """Late records since the windows were opened; one counts once for each of its windows that had closed."""
        self.late: list[int] | None = None if plan.late_column is None else []
        """Where late rows are handed out, the places of the records that no window took, among those of the last
        `process`."""
        self.failed: list[Failure] | None = None if plan.errors_column is None else []
        """Where rows that raised are handed out, the places and errors of those of the last `process`."""
        if self.failed is not None:
            self.aggregates = tried(plan.combined, self._raised)
        self.taker: Taker | None = None
        """Takes the first results of windows that close while the others are read; None: they are returned together."""
        self._at = 0
        self._plan, self._timed = plan, plan.dates_results

    # --- a commit ---------------------------------------------------------------------------------------------

    def process(self, records: Records, clock: Watermark | None = None) -> list[Result]:
        """Process records in order and return the results due at once. `clock` replaces stream time, if given."""
        now = self.stream_time if clock is None else max(self.stream_time, clock.late_ms)
        results: list[Result] = []
        if self.store.far and records.keys:
            self.prefetch(records.keys, min(records.times), max(records.times))
        now = self.add(records, now, clock, results)
        self.stream_time = now if clock is None else max(now, clock.now_ms)
        return results

    def process_batch(self, records: Records, clock: Watermark | None = None) -> Results:
        """Process the records of a whole commit, in order, end it, and return its results: `process` and `finish` in
        one.
        """
        at_once, at_end = self.process(records, clock), self.finish()
        return at_once or at_end  # results come out at one of both

    def rows(self, records: Records) -> Iterator[tuple[Any, Any, int]]:
        """Yield (key, value, time) of the records for `add`, which calls `too_late` for a record that no window
        accepts. A value is (time, value) if the aggregators are timed.
        """
        rows = records.rows() if self.late is None and self.failed is None else self._counted(records)
        return ((key, (ts, value), ts) for key, value, ts in rows) if self.aggregates.timed else rows

    def _counted(self, records: Records) -> Iterator[tuple[Any, Any, int]]:
        for self._at, row in enumerate(records.rows()):
            yield row

    def too_late(self) -> None:
        """Note that no window accepts the present record."""
        if self.late is not None:
            self.late.append(self._at)

    def _raised(self, text: str) -> None:
        """Note that an aggregator could not add the present record."""
        assert self.failed is not None
        self.failed.append((self._at, text))

    def finish(self) -> Results:
        """End the commit and return the results due at its end. O(changed + closed)."""
        results = self.due()
        self.write()
        self.written()
        return results

    def due(self) -> Results:
        """Return the results due at the end of the commit: of closed windows by column, where no result knows its
        record time, and without those that the taker has.
        """
        if self.emit == "commit":
            return self.changed()
        if self.emit == "close":
            closed = self.closed(self.stream_time)
            if closed >= 0 and closed > self.closed_before:
                ended = self.ended(self.closed_before, closed)
                return list(ended) if self._timed else by_column(self._plan, ended, self.taker)
        return []

    def written(self) -> None:
        """End the commit: the store has everything but the stream time."""
        self.open = {}
        self.taker = None  # it refers to what refers to this object
        if self.stream_time >= 0:
            self.move()
        self.committed = self.stream_time
        self.closed_before = self.closed(self.stream_time)

    def closed(self, now: int) -> int:
        """Return the largest end that has closed as of `now` (ms)."""
        return max(closed_through(now, self.closing_ms), self.floor)

    @property
    def busy(self) -> bool:
        """True while windows of a commit are in memory."""
        return bool(self.open)

    def prefetch(self, keys: list[Any], first: int, last: int) -> None:
        """Read the far blocks that records of these keys and of times `first` to `last` will touch, side by side. Does
        nothing if the checkpoint is local.
        """
        if self.reach_ms is None:
            self.store.prefetch(keys)
        else:
            self.store.prefetch(keys, first - self.reach_ms, last + self.reach_ms)

    # --- a kind of windows ------------------------------------------------------------------------------------

    @abstractmethod
    def add(self, records: Records, now: int, clock: Watermark | None, results: list[Result]) -> int:
        """Add records, in order, to their windows as of stream time `now`; return what stream time is then.

        With `emit="record"` their results are appended to `results`.
        """

    @abstractmethod
    def changed(self) -> list[Result]:
        """Return the windows changed in this commit, with their present values."""

    @abstractmethod
    def ended(self, after: int, through: int | None) -> Iterator[Result]:
        """Iterate over the windows with an end in (after, through] (None: open), with their present values, in the
        order of ends; to be read before anything changes. Where memory is short, stored windows are read a piece at a
        time.
        """

    @abstractmethod
    def write(self) -> None:
        """Write the changed windows to the store. O(changed)."""

    def move(self) -> None:
        """Move the store's time to stream time, so that old windows expire."""
        self.store.advance(self.stream_time)

    def live(self) -> list[Result]:
        """Return the windows stored now. O(windows)."""
        return list(self.ended(NO_TIME, None))


def at_least(group: StoreGroup, name: str, retention_ms: int) -> int:
    """Return the retention (ms) of the store of this name if it is there and keeps longer, else `retention_ms`."""
    store = group.stores.get(name)
    stored: int = 0 if store is None else store.parameters.get("retention_ms", 0)
    return max(retention_ms, stored)


def window_store(
    group: StoreGroup,
    name: str,
    retention_ms: int,
    *,
    size_ms: int | None = None,
    duplicates: bool = False,
    clocked: bool = False,
) -> WindowStore:
    """Open a window store that takes every record it keeps; one that is there may keep them longer. `clocked`: a
    watermark moves its time.
    """
    retention_ms = at_least(group, name, retention_ms)
    parameters = {
        "retention_ms": retention_ms,
        "window_size_ms": size_ms,
        "grace_ms": retention_ms,
        "retain_duplicates": duplicates,
        **(BY_ADVANCE if clocked else {}),
    }
    return WINDOW.open(group, name, parameters)
