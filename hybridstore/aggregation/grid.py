"""The grid of windows that are aligned to a time, or to the days of a time zone, or that lie further apart than they
are long.

    edge k        the time (ms, UTC) of `align + k * advance` on the clock of the zone
    window k      [edge k, the time of `align + k * advance + size` on that clock)

On the days on which a zone changes its clock a local day has 23 or 25 hours, and so have the windows. Where a clock
skips midnight, the day begins with the first moment after the gap; where midnight comes twice, with the first one; a
date that a zone has skipped has no window. The surprise: no window begins before 0 (1970-01-01 UTC). The last of those
that would begins at 0, so that every time is in a window if windows leave no gaps.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..clock import EPOCH, MILLISECOND, Duration, duration_ms

DAY_MS: Final = 86_400_000
Align = datetime | date | Duration
_NAIVE_EPOCH: Final = EPOCH.replace(tzinfo=None)


@lru_cache(maxsize=1 << 14)
def utc_of(local_ms: int, zone: str | None) -> int:
    """Return the time (ms, UTC) at which the clock of a zone shows so many ms after its 1970-01-01 00:00. O(1)."""
    if zone is None:
        return local_ms
    from zoneinfo import ZoneInfo

    local = _NAIVE_EPOCH + timedelta(milliseconds=local_ms)
    offset = local.replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return local_ms - offset // MILLISECOND


def check_zone(name: str, zone: object, spans: tuple[int, ...]) -> str | None:
    """Return the name of a time zone, or None. Raises TypeError or ValueError, naming the argument, for a name that is
    unknown and for windows that are not of whole days.
    """
    if zone is None:
        return None
    if not isinstance(zone, str):
        zone = getattr(zone, "key", zone)  # a ZoneInfo
    if not isinstance(zone, str):
        raise TypeError(f"{name}: time_zone: found {type(zone).__name__}, expected a name such as 'Europe/Berlin'")
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name}: time_zone: found {zone!r}, expected a name such as 'Europe/Berlin'") from error
    for span in spans:
        if span % DAY_MS:
            raise ValueError(
                f"{name}: time_zone: found with {span} ms, expected whole days (align_to moves shorter windows)"
            )
    return zone


def aligned_ms(name: str, align: Align | None, zone: str | None, advance_ms: int) -> int:
    """Return how far (ms, below `advance_ms`) the first edge is from 1970-01-01 00:00 on the clock of the zone.

    Raises TypeError or ValueError, naming the argument, for anything but a time or a duration.
    """
    if align is None:
        return 0
    if isinstance(align, datetime):
        moment = align
        if moment.tzinfo is not None:
            if zone is None:
                moment = moment.astimezone(UTC)
            else:
                from zoneinfo import ZoneInfo

                moment = moment.astimezone(ZoneInfo(zone))
        return (moment.replace(tzinfo=None) - _NAIVE_EPOCH) // MILLISECOND % advance_ms
    if isinstance(align, date):
        return (align - _NAIVE_EPOCH.date()) // timedelta(days=1) * DAY_MS % advance_ms
    return duration_ms(align, f"{name}: align_to", zero=True) % advance_ms


class Span(NamedTuple):
    """A window: its start and its exclusive end (ms)."""

    start: int
    end: int


class Grid(NamedTuple):
    """Windows of `size_ms` at every `advance_ms`, from `align_ms` on, on the clock of a zone (None: UTC)."""

    size_ms: int
    advance_ms: int
    align_ms: int
    zone: str | None

    @property
    def regular(self) -> bool:
        """Whether windows begin at multiples of `advance_ms`, are all as long, and leave no gaps."""
        return not self.align_ms and self.zone is None and self.advance_ms <= self.size_ms

    @property
    def longest_ms(self) -> int:
        """The length that no window exceeds: no clock is changed by more than a day."""
        return self.size_ms if self.zone is None else self.size_ms + DAY_MS

    def _edge(self, number: int, more: int = 0) -> int:
        return utc_of(self.align_ms + number * self.advance_ms + more, self.zone)

    def _last(self, ts: int) -> int:
        """Return the number of the last window that begins at or before `ts`."""
        number = (ts - self.align_ms + (0 if self.zone is None else DAY_MS)) // self.advance_ms
        while self._edge(number) > ts:
            number -= 1
        return number

    def end_of(self, start: int) -> int:
        """Return the end of the window that begins at `start`. O(1)."""
        return self._edge(self._last(start), self.size_ms)

    def spans(self, low: int, high: int) -> list[Span]:
        """Return the windows that contain a time of [low, high], in ascending order. O(windows)."""
        number, spans = self._last(high), []
        following = None
        while (end := self._edge(number, self.size_ms)) > low or self._edge(number) > low:
            start = max(0, self._edge(number))
            # a date that does not exist has no window, and one window begins at 0
            if start != following and end > low:
                spans.append(Span(start, end))
            following = start
            number -= 1
        return spans[::-1]

    def describe(self) -> list[str]:
        """Return what differs from windows at multiples of `advance_ms`, as plain text."""
        return [
            *([f"align {self.align_ms}"] if self.align_ms else []),
            *([] if self.zone is None else [f"zone {self.zone}"]),
        ]


def described(windows: list[Any]) -> list[str]:
    """Return the part of a description of windows that is about their grid."""
    return [part for part in windows if isinstance(part, str) and part.split()[0] in ("align", "zone")]
