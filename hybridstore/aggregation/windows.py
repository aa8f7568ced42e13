"""Declarations of windows: the windows of a record, and the time until which windows may change. No state, no stores.

    TumblingWindows(size)            [0, size) [size, 2 size) ...                 each record in one
    HoppingWindows(size, advance)    [0, size) [advance, advance + size) ...      each record in up to size / advance
    SlidingWindows(size)             [stream time - size, stream time]            one per record, both ends inclusive
    SessionWindows(gap)              records of a key at most `gap` apart
    Forever()                        one window that never closes: aggregates without windows

Durations are integer milliseconds, `timedelta`, or text such as "5 minutes". Attributes have milliseconds.

The surprise: the end of a sliding window or a session is inclusive; the end of a tumbling or hopping window is
exclusive.

Every rule about the time in which windows may change is defined here, once for each declaration, in milliseconds:

    closing_ms(clocked)     a window closes when its end + closing_ms <= stream time; `clocked`: a watermark is the time
    latest_end(ts)          the largest end of a window that has begun by `ts`
    needed_retention_ms     the least time that a store has to keep windows, counted from the time they are stored by
    default_retention_ms    the time that a store keeps them unless it is asked for more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from hybridstore.clock import Duration, duration_ms

from .grid import Align, Grid, Span, aligned_ms, check_zone, described

Flavour = Literal["kip450", "kafka"]
# The size of the window that never closes (ms): no time is beyond it, and the sum of two such times is an int64.
FOREVER: Final = 2**61


def _set_ms(windows: object, *arguments: str, zero: bool = False) -> None:
    """Set the attributes in milliseconds of durations that were given; 0 without a grace, which may be 0."""
    for argument in arguments:
        value, grace = getattr(windows, argument), argument == "grace"
        given = 0 if value is None and grace else value
        ms = duration_ms(given, f"{type(windows).__name__}: {argument}", zero=zero or grace)
        object.__setattr__(windows, f"{argument}_ms", ms)


# Each record is in size / advance windows; a thousand windows take about 10 ms.
MOST_WINDOWS: Final = 100_000


class _Sized:
    """The time in which windows [s, s + size) may change."""

    __slots__ = ()

    size_ms: int
    grace_ms: int

    def closing_ms(self, *, clocked: bool = False) -> int:
        """Return how long (ms) after its exclusive end a window may still change."""
        return self.grace_ms

    @property
    def longest_ms(self) -> int:
        """The length that no window exceeds (ms)."""
        return self.size_ms

    def latest_end(self, ts: int) -> int:
        """Return the largest end of a window that has begun by `ts`, or a later time."""
        return ts + self.longest_ms

    @property
    def needed_retention_ms(self) -> int:
        """A window is stored by its start, and may change while start > stream time - size - grace."""
        return self.longest_ms + self.grace_ms

    @property
    def default_retention_ms(self) -> int:
        """The time in which windows may change."""
        return self.needed_retention_ms


@dataclass(frozen=True, slots=True, repr=False)
class OnGrid(_Sized):
    """Windows on a grid: at multiples of the advance, or aligned to another time or to the days of a zone."""

    size: Duration = field(compare=False)
    grace: Duration | None = field(default=None, kw_only=True, compare=False)
    align_to: Align | None = field(default=None, kw_only=True, compare=False)
    time_zone: str | None = field(default=None, kw_only=True, compare=False)
    size_ms: int = field(init=False)
    grace_ms: int = field(init=False)
    grid: Grid = field(init=False)

    def _lay_grid(self, advance_ms: int) -> None:
        name = type(self).__name__
        zone = check_zone(name, self.time_zone, (self.size_ms, advance_ms))
        align_ms = aligned_ms(name, self.align_to, zone, advance_ms)
        object.__setattr__(self, "grid", Grid(self.size_ms, advance_ms, align_ms, zone))

    @property
    def regular(self) -> bool:
        """Whether windows begin at multiples of `advance_ms`, are all as long, and leave no gaps."""
        return self.grid.regular

    @property
    def longest_ms(self) -> int:
        """The length that no window exceeds (ms): with a time zone a day more than the size."""
        return self.grid.longest_ms

    def end_of(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""
        return start + self.size_ms if self.regular else self.grid.end_of(start)

    def spans_of(self, ts: int) -> list[Span]:
        """Return the windows that contain `ts`, in ascending order."""
        return self.grid.spans(ts, ts)

    def _shown(self, *given: tuple[str, Any]) -> str:
        aligned = [(name, getattr(self, name)) for name in ("align_to", "time_zone")]
        shown = [*given, *((name, value) for name, value in aligned if value is not None)]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class TumblingWindows(OnGrid):
    """Windows [s, s + size) at every multiple of `size`.

    A window may change while `end > stream time - grace`; `grace` is 0 by default. `align_to` is a time at which a
    window begins: a datetime or date, or a duration after 1970-01-01. `time_zone`, the name of a zone, makes windows of
    whole days on its clock: a day there may have 23 or 25 hours. Raises ValueError or TypeError for an invalid
    duration, a size of 0, a negative grace, and for an unknown zone or one with another size than whole days.

    >>> hs.TumblingWindows("1 minute").windows_for(75_000)  # the starts of the windows of a record at 75,000 ms
    [60000]
    >>> hs.TumblingWindows("1 minute", align_to="15 s").windows_for(70_000)
    [15000]
    >>> hs.TumblingWindows("1 day", time_zone="Europe/Berlin").windows_for(90_000_000)
    [82800000]
    """

    def __post_init__(self) -> None:
        _set_ms(self, "size", "grace")
        self._lay_grid(self.size_ms)

    @property
    def advance_ms(self) -> int:
        """The distance between the starts of two windows: the size."""
        return self.size_ms

    def windows_for(self, ts: int) -> list[int]:
        """Return the start of the window that contains `ts`, as a list."""
        return [ts - ts % self.size_ms] if self.regular else [span.start for span in self.spans_of(ts)]

    def describe(self) -> list[Any]:
        """Return a stable description of plain text and numbers."""
        return ["tumbling", self.size_ms, self.grace_ms, *self.grid.describe()]

    def __repr__(self) -> str:
        return self._shown(("size", self.size), ("grace", self.grace))


@dataclass(frozen=True, slots=True, repr=False)
class HoppingWindows(OnGrid):
    """Windows [s, s + size) at every multiple of `advance`. No window starts before 0. With an advance above the size
    a record between two windows is in none: it has no result, and is not late.

    A window may change while `end > stream time - grace`; `grace` is 0 by default. `align_to` and `time_zone` are those
    of `TumblingWindows`; with them the last window that would start before 0 starts at 0. Raises ValueError or
    TypeError for an invalid duration, an advance of 0, a negative grace, more than 100,000 windows for each record, and
    for an unknown zone or one with other spans than whole days.

    >>> hs.HoppingWindows("1 minute", "30 seconds").windows_for(75_000)
    [30000, 60000]
    """

    advance: Duration = field(compare=False)
    advance_ms: int = field(init=False)

    def __post_init__(self) -> None:
        _set_ms(self, "size", "advance", "grace")
        if -(-self.size_ms // self.advance_ms) > MOST_WINDOWS:
            raise ValueError(
                f"HoppingWindows: found {-(-self.size_ms // self.advance_ms)} windows for each record (size / "
                f"advance), expected at most {MOST_WINDOWS} (take a longer advance, or SlidingWindows)"
            )
        self._lay_grid(self.advance_ms)

    def windows_for(self, ts: int) -> list[int]:
        """Return the starts of the windows that contain `ts`, in ascending order."""
        if not self.regular:
            return [span.start for span in self.spans_of(ts)]
        return list(range(self.first_holding(ts), ts + 1, self.advance_ms))

    def first_holding(self, ts: int) -> int:
        """Return the start of the first window that contains `ts`. The last window starts at the last multiple of
        `advance` at or before `ts`.
        """
        return max(0, ts - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms

    def first_open(self, closed: int) -> int:
        """Return the first start (a multiple of `advance`, which may be below 0) of a window that ends after
        `closed`.
        """
        return ((closed - self.size_ms) // self.advance_ms + 1) * self.advance_ms

    def describe(self) -> list[Any]:
        """Return a stable description of plain text and numbers."""
        return ["hopping", self.size_ms, self.advance_ms, self.grace_ms, *self.grid.describe()]

    def __repr__(self) -> str:
        return self._shown(("size", self.size), ("advance", self.advance), ("grace", self.grace))


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of the last `size`: one for each record, which ends at stream time and moves with it. Both ends are
    inclusive, so a window of 10 ms has 11 distinct times and a window of 0 ms has one.

    A record is late if `ts < stream time - size`. `KafkaSlidingWindows` stay where they are instead, and close. Raises
    ValueError or TypeError for an invalid duration.

    >>> clicks = hs.stream(key="user", timestamp="ts")
    >>> counts = clicks.windowed_by(hs.SlidingWindows("1 minute")).aggregate(n=hs.Count())
    >>> rows = [{"user": "ann", "ts": ts} for ts in (0, 60_000, 60_001)]
    >>> [(row["window_start"], row["window_end"], row["n"]) for row in counts.run(rows)]
    [(0, 0, 1), (0, 60000, 2), (1, 60001, 2)]
    """

    flavour: ClassVar[Flavour] = "kip450"
    size: Duration = field(compare=False)
    size_ms: int = field(init=False, repr=False)
    grace_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _set_ms(self, "size", zero=True)
        object.__setattr__(self, "grace_ms", 0)

    def windows_for(self, ts: int) -> list[int]:
        """Return the start of the window that ends at `ts`, at least 0."""
        return [max(0, ts - self.size_ms)]

    def closing_ms(self, *, clocked: bool = False) -> int:
        """Return how long (ms) after its inclusive end a window that closes may still change."""
        return self.grace_ms + 1

    def latest_end(self, ts: int) -> int:
        """Return the largest end of a window that has begun by `ts`."""
        return ts + self.size_ms

    @property
    def needed_retention_ms(self) -> int:
        """The smallest retention that Kafka allows."""
        return 2 * self.size_ms + self.grace_ms

    @property
    def default_retention_ms(self) -> int:
        """A record is accepted while it is at most size + grace late, and needs windows that start up to 2 sizes
        earlier.
        """
        return 3 * self.size_ms + self.grace_ms + 1

    def describe(self) -> list[Any]:
        """Return a stable description of plain text and numbers."""
        return ["sliding", self.flavour, self.size_ms, self.grace_ms]


@dataclass(frozen=True, slots=True)
class KafkaSlidingWindows(SlidingWindows):
    """The sliding windows of Kafka 2.7, which have a fixed place: two for each record, of which the first ends at the
    record, and the second begins after it. Both ends are inclusive. A window changes for `grace` (0 by default) after
    its end, and closes.

    Raises ValueError or TypeError for an invalid duration or a negative grace.

    >>> clicks = hs.stream(key="user", timestamp="ts")
    >>> counts = clicks.windowed_by(hs.KafkaSlidingWindows("1 minute")).aggregate(n=hs.Count(), emit="close")
    >>> rows = [{"user": "ann", "ts": ts} for ts in (60_000, 60_001, 180_000)]
    >>> [(row["window_start"], row["window_end"], row["n"]) for row in counts.run(rows)]
    [(0, 60000, 1), (1, 60001, 2), (60001, 120001, 1)]
    """

    flavour: ClassVar[Flavour] = "kafka"
    grace: Duration | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        _set_ms(self, "size", "grace", zero=True)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions: records of a key that are at most `gap` apart. The start and end of a session are the times of its
    first and last record.

    A session closes when it ends before `stream time - grace - gap`. With `emit="close"` its result is emitted then,
    and no later record joins it; with `"record"` and `"commit"` a record that joins an open session may still merge a
    closed one with it, as in Kafka. A record whose session would be closed is late. `grace` is 0 by default.
    Raises ValueError or TypeError for an invalid duration, a gap of 0 or a negative grace.

    >>> clicks = hs.stream(key="user", timestamp="ts")
    >>> visits = clicks.windowed_by(hs.SessionWindows("1 minute")).aggregate(emit="commit", n=hs.Count())
    >>> rows = [{"user": "ann", "ts": ts} for ts in (0, 60_000, 120_001)]
    >>> [(row["window_start"], row["window_end"], row["n"]) for row in visits.run(rows)]
    [(0, 60000, 2), (120001, 120001, 1)]
    """

    gap: Duration = field(compare=False)
    grace: Duration | None = field(default=None, kw_only=True, compare=False)
    gap_ms: int = field(init=False, repr=False)
    grace_ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _set_ms(self, "gap", "grace")

    def windows_for(self, ts: int) -> list[int]:
        """Return the start of a session with a single record at `ts`."""
        return [ts]

    def closing_ms(self, *, clocked: bool = False) -> int:
        """Return how long (ms) after its inclusive end a session may still grow.

        With a watermark a session closes one millisecond earlier, as Spark's `session_window` does.
        """
        return self.gap_ms + self.grace_ms + (not clocked)

    def latest_end(self, ts: int) -> int:
        """Return the largest end of a session that has begun by `ts`."""
        return ts

    @property
    def needed_retention_ms(self) -> int:
        """A session is stored by its end: while the session may grow, at least stream time - grace - 2 gap."""
        return 2 * self.gap_ms + self.grace_ms + 1

    @property
    def default_retention_ms(self) -> int:
        """The time in which sessions may grow."""
        return self.needed_retention_ms

    def describe(self) -> list[Any]:
        """Return a stable description of plain text and numbers."""
        return ["session", self.gap_ms, self.grace_ms]


@dataclass(frozen=True, slots=True)
class Forever(_Sized):
    """One window, from 0 on, that never closes: what a topology without `windowed_by` aggregates. Results have no
    bounds, and no record is late.
    """

    size_ms: int = field(default=FOREVER, init=False, repr=False)
    grace_ms: int = field(default=0, init=False, repr=False)

    @property
    def advance_ms(self) -> int:
        """The distance between the starts of two windows: the size."""
        return self.size_ms

    @property
    def regular(self) -> bool:
        """Whether windows begin at multiples of `advance_ms`, as this one does."""
        return True

    def windows_for(self, ts: int) -> list[int]:
        """Return 0, the start of the window, as a list."""
        return [0]

    def end_of(self, start: int) -> int:
        """Return the end of the window, which no time reaches."""
        return start + self.size_ms

    def describe(self) -> list[Any]:
        """Return a stable description of plain text and numbers."""
        return ["forever", 0]


Windows = TumblingWindows | HoppingWindows | SlidingWindows | SessionWindows | Forever
"""Any declaration of windows."""


def windows_of(description: Sequence[Any]) -> Windows:
    """Return the windows of a description: the inverse of `describe`. Other marks behind it ("panes") are passed over.

    Raises ValueError for a description of no windows, or with a time zone that this machine does not know. O(1).

    >>> from hybridstore.aggregation.windows import windows_of
    >>> windows_of(["hopping", 60_000, 30_000, 0])
    HoppingWindows(size=60000, advance=30000, grace=0)
    """
    kind, *rest = description
    numbers = [part for part in rest if type(part) is int]
    grid = dict(part.split(" ", 1) for part in described(rest))
    align = int(grid["align"]) if "align" in grid else None
    match kind, *numbers:
        case "tumbling", size, grace:
            return TumblingWindows(size, grace=grace, align_to=align, time_zone=grid.get("zone"))
        case "hopping", size, advance, grace:
            return HoppingWindows(size, advance, grace=grace, align_to=align, time_zone=grid.get("zone"))
        case "sliding", size, grace:
            return KafkaSlidingWindows(size, grace=grace) if rest[0] == "kafka" else SlidingWindows(size)
        case "session", gap, grace:
            return SessionWindows(gap, grace=grace)
        case "forever", 0:
            return Forever()
    raise ValueError(f"windows: found {list(description)!r}, expected a description of windows")
