"""What topologies must answer, by full scans: every result is computed from all the records that were accepted before
it.

An oracle takes records one by one, in the order in which they count, and returns rows of (key, start, end, values or
None); `values` are those in the window, in their order. Stream time is the oracle's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, int, int, list[Any] | None]
Record = tuple[int, Any, Any]  # time, key, value: sorted, the canonical order


@dataclass
class TimeOracle:
    """Tumbling and hopping windows."""

    size: int
    advance: int
    grace: int
    now: int = -1
    dropped: int = 0
    windows: dict[tuple[int, Any], list[Any]] = field(default_factory=dict)

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
            values.append(value)
            rows.append((key, start, start + self.size, list(values)))
        return rows

    def closed(self, now: int) -> list[Row]:
        return [row for row in self.all() if row[2] <= now - self.grace]

    def all(self) -> list[Row]:
        return [(key, start, start + self.size, values) for (start, key), values in sorted(self.windows.items())]

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
    sessions: dict[Any, list[tuple[int, int, list[Any]]]] = field(default_factory=dict)

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
        values = [v for _, _, values in joined for v in values] + [value]
        self.sessions[key] = sorted(
            [s for s in sessions if s not in joined] + [(start, end, values)], key=lambda s: s[:2]
        )
        removed: list[Row] = [(key, s, e, None) for s, e, _ in sorted(joined)] if start < end else []
        return [*removed, (key, start, end, list(values))]

    def all(self) -> list[Row]:
        rows = [(key, start, end, values) for key, sessions in self.sessions.items() for start, end, values in sessions]
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
            [v for ts, _, k, v in sorted(self.records, key=lambda r: r[:2]) if k == key and ts >= low],
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
                values = [value for ts, value in of_key if start <= ts <= start + self.size]
                if values:
                    rows.append((key, start, start + self.size, values))
        return sorted(rows, key=lambda row: (row[1], row[0]))

    def closed(self, now: int) -> list[Row]:
        return [row for row in self.all() if row[2] < now]
