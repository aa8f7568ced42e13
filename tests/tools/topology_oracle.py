"""What topologies must answer, by full scans: every result is computed from all the records that were accepted before
it.

An oracle takes records one by one, in the order in which they count, and returns rows of (key, start, end, values or
None); `values` are those in the window in event order: by time, then by packed bytes. Stream time is the oracle's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from changelog.codec import pack

Row = tuple[Any, int, int, list[Any] | None]
Record = tuple[int, Any, Any]  # time, key, value: sorted, the canonical order
Pair = tuple[int, Any]  # time, value


def in_event_order(pairs: list[Pair]) -> list[Any]:
    """The values of (time, value), by time and then by packed bytes."""
    return [value for _, value in sorted(pairs, key=lambda pair: (pair[0], pack(pair[1])))]


@dataclass
class TimeOracle:
    """Tumbling and hopping windows."""

    size: int
    advance: int
    grace: int
    now: int = -1
    dropped: int = 0
    windows: dict[tuple[int, Any], list[Pair]] = field(default_factory=dict)

    def process(self, ts: int, key: Any, value: Any) -> list[Row]:
        self.now = max(self.now, ts)
        rows: list[Row] = []
        for start in range(0, ts + 1, self.advance):
            if not start <= ts < start + self.size:
                continue
            if start + self.size <= self.now - self.grace:
                self.dropped += 1
                continue
            values = self.windows.setdefault((start, key), [])
            values.append((ts, value))
            rows.append((key, start, start + self.size, in_event_order(values)))
        return rows

    def closed(self, now: int) -> list[Row]:
        return [row for row in self.all() if row[2] <= now - self.grace]

    def all(self) -> list[Row]:
        windows = sorted((window, in_event_order(values)) for window, values in self.windows.items())
        return [(key, start, start + self.size, values) for (start, key), values in windows]

    def live(self) -> list[Row]:
        return [row for row in self.all() if row[2] > self.now - self.grace]


@dataclass
class SessionOracle:
    """Sessions that merge; with `final`, those that have closed do not."""

    gap: int
    grace: int
    final: bool = False
    now: int = -1
    dropped: int = 0
    sessions: dict[Any, list[tuple[int, int, list[Pair]]]] = field(default_factory=dict)

    def process(self, ts: int, key: Any, value: Any) -> list[Row]:
        expired = self.now - (2 * self.gap + self.grace + 1)
        self.now = max(self.now, ts)
        closed = self.now - self.gap - self.grace - 1
        sessions = self.sessions.setdefault(key, [])
        joined = [
            (start, end, values)
            for start, end, values in sessions
            if end >= ts - self.gap and start <= ts + self.gap and end > (closed if self.final else expired)
        ]
        start, end = min([ts, *(s for s, _, _ in joined)]), max([ts, *(e for _, e, _ in joined)])
        if end <= closed:
            self.dropped += 1
            return []
        values = [v for _, _, values in joined for v in values] + [(ts, value)]
        self.sessions[key] = sorted(
            [s for s in sessions if s not in joined] + [(start, end, values)], key=lambda s: s[:2]
        )
        removed: list[Row] = [(key, s, e, None) for s, e, _ in sorted(joined)] if start < end else []
        return [*removed, (key, start, end, in_event_order(values))]

    def all(self) -> list[Row]:
        rows: list[Row] = [
            (key, start, end, in_event_order(values))
            for key, sessions in self.sessions.items()
            for start, end, values in sessions
        ]
        return sorted(rows, key=lambda row: (row[2], row[0], -row[1]))

    def closed(self, now: int) -> list[Row]:
        return [row for row in self.all() if row[2] < now - self.gap - self.grace]

    def live(self) -> list[Row]:
        return [row for row in self.all() if row[2] > self.now - (2 * self.gap + self.grace + 1)]


@dataclass
class SlidingOracle:
    """Sliding windows of KIP-450: the window ends at stream time."""

    size: int
    now: int = -1
    dropped: int = 0
    records: list[tuple[int, int, Any, Any]] = field(default_factory=list)  # time, number, key, value

    def process(self, ts: int, key: Any, value: Any) -> list[Row]:
        self.now = max(self.now, ts)
        if ts < self.now - self.size:
            self.dropped += 1
            return []
        self.records.append((ts, len(self.records), key, value))
        return [self.window(key)]

    def window(self, key: Any) -> Row:
        low = max(0, self.now - self.size)
        return (
            key,
            low,
            self.now,
            in_event_order([(ts, v) for ts, _, k, v in self.records if k == key and ts >= low]),
        )

    def live(self) -> list[Row]:
        keys = sorted({key for ts, _, key, _ in self.records if ts >= self.now - self.size})
        return [self.window(key) for key in keys]


@dataclass
class KafkaSlidingOracle:
    """Sliding windows of Kafka where nothing is late: one that ends at each record, one that begins after it unless
    empty.
    """

    size: int
    records: list[tuple[Any, int, Any]] = field(default_factory=list)

    def process(self, ts: int, key: Any, value: Any) -> list[Row]:
        before = {row[:2]: row for row in self.all() if row[0] == key}
        self.records.append((key, ts, value))
        return [row for row in self.all() if row[0] == key and before.get(row[:2]) != row]

    def all(self) -> list[Row]:
        rows: list[Row] = []
        for key in {key for key, _, _ in self.records}:
            of_key = [(ts, value) for k, ts, value in self.records if k == key]
            starts = {max(0, ts - self.size) for ts, _ in of_key} | {ts + 1 for ts, _ in of_key}
            for start in starts:
                values = [(ts, value) for ts, value in of_key if start <= ts <= start + self.size]
                if values:
                    rows.append((key, start, start + self.size, in_event_order(values)))
        return sorted(rows, key=lambda row: (row[1], row[0]))

    def closed(self, now: int) -> list[Row]:
        return [row for row in self.all() if row[2] < now]
