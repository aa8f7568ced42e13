"""What a sliding window must answer, by a full scan: the reference for every strategy, and the streams to try it on."""

import random
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hybridstore.aggregation import Aggregator


class Record(NamedTuple):
    key: str
    value: Any
    ts: int


@dataclass
class ScanningStore:
    """One window per record as KIP-450's text says, by keeping everything and adding up what counts."""

    size_ms: int
    aggregator: Aggregator
    stream_time: int = -1
    dropped: int = 0
    rows: dict[str, list[tuple[int, int, Any]]] = field(default_factory=dict)
    arrivals: int = 0

    def add(self, record: Record) -> Any:
        """Return the expected aggregate, or `LATE`."""
        self.stream_time = max(self.stream_time, record.ts)
        lo = self.stream_time - self.size_ms
        if record.ts < lo:
            self.dropped += 1
            return LATE
        rows = self.rows.setdefault(record.key, [])
        self.arrivals += 1
        # the number of arrival is unique, so values are never compared
        insort(rows, (record.ts, self.arrivals, record.value))
        while rows[0][0] < lo:
            del rows[0]
        aggregator = self.aggregator
        return aggregator.finish(aggregator.fold(aggregator.init(), [value for _, _, value in rows]))

    def live(self, key: str) -> list[tuple[int, Any]]:
        return [(ts, value) for ts, _, value in self.rows[key]]


class _Late:
    def __repr__(self) -> str:
        return "LATE"


LATE = _Late()


class StrategyStore:
    """The smallest owner of window states: stream time, the late drop, and a state per key."""

    def __init__(self, size_ms: int, strategy: Any) -> None:
        self.size_ms = size_ms
        self.strategy = strategy
        self.stream_time = -1
        self.states: dict[str, Any] = {}

    def add(self, record: Record, *, fused: bool = True) -> Any:
        self.stream_time = max(self.stream_time, record.ts)
        lo = self.stream_time - self.size_ms
        if record.ts < lo:
            return LATE
        state = self.states.get(record.key)
        if state is None:
            state = self.states[record.key] = self.strategy.new()
        if fused:
            return state.update(record.ts, record.value, lo)
        state.insert(record.ts, record.value)
        state.expire(lo)
        return state.value()

    def reopen(self) -> None:
        """Keep values only, and build everything anew from them."""
        self.states = {key: self.strategy.restore(*state.columns()) for key, state in self.states.items()}


def stream(
    seed: int,
    records: int,
    *,
    size_ms: int,
    keys: int = 3,
    disorder: float = 0.0,
    step_ms: int = 1,
    gap: float = 0.002,
    value: Callable[[random.Random], Any] = lambda r: r.randint(-50, 50),
) -> Iterator[Record]:
    """Yield a random stream: ties (steps of 0), gaps wider than the window, late records, keys behind stream time.

    A share `disorder` of the records comes up to 1.2 windows late, so some of them are too late.
    """
    r = random.Random(seed)
    now = r.randint(0, 2 * size_ms)
    for _ in range(records):
        now += size_ms * r.randint(1, 2) if r.random() < gap else r.randint(0, step_ms)
        ts = max(0, now - r.randint(0, size_ms + size_ms // 5)) if r.random() < disorder else now
        # squared, so that the last keys are seldom seen and lie far behind
        key = "abcdefghij"[int(r.random() ** 2 * keys)]
        yield Record(key, value(r), ts)
