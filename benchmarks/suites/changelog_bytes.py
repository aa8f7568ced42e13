"""Changelog bytes per input record: what each way of keeping windows has to log. Counted, not timed.

python -m benchmarks.suites.changelog_bytes [--records 20000]

Sliding windows are kept in three ways: ours logs the values and nothing else; running aggregates are logged beside the
values that they are made of, as a design would that does not rebuild them; and every window that a record falls into is
logged, as Kafka's sliding windows do. Then every kind of window of a topology, committed after each record and after
10,000.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from typing import Any

import hybridstore as hs
from benchmarks.measure.result import Result, line, show
from benchmarks.measure.timing import Spread, check
from hybridstore.state.group import StoreGroup
from hybridstore.topology.aggregating import Aggregating
from hybridstore.topology.batch import Records

Record = tuple[str, int, int]  # key, value, time
SIZE_MS = 300_000
AGGREGATES: dict[str, Any] = {"requests": hs.Count(), "bytes": hs.Sum("bytes")}


def stream(records: int, per_window: int, seed: int = 1) -> list[Record]:
    """Return records of 50 keys with about `per_window` records of each in a window of 5 minutes, a tenth of them
    out of order.
    """
    r = random.Random(seed)
    step = SIZE_MS / (50 * per_window)
    rows = []
    for number in range(records):
        late = r.randrange(SIZE_MS // 10) if r.random() < 0.1 else 0
        rows.append(
            (f"10.0.0.{r.randrange(50)}", r.randrange(40_000), max(0, 1_700_000_000_000 + int(number * step) - late))
        )
    return rows


class Logged:
    """Stores whose changelog is counted."""

    def __init__(self) -> None:
        self.bytes = 0
        self.group = StoreGroup(self._count)

    def _count(self, body: bytes) -> None:
        self.bytes += len(body)

    def commit(self) -> None:
        self.group.reached(self.group.version + 1, self.group.journal.seal())


def topology(windows: Any) -> hs.Topology:
    return hs.stream(key="ip", timestamp="time").windowed_by(windows).aggregate(**AGGREGATES)


def kept(windows: Any, rows: list[Record], commit_rows: int) -> tuple[float, int]:
    """Return the bytes per record that a topology logs, and how many results it gave."""
    logged = Logged()
    logic = Aggregating(topology(windows), logged.group)
    results = 0
    logged.commit()
    logged.bytes = 0  # the definition of the stores
    for batch in batches(rows, commit_rows):
        keys, values, times = (list(column) for column in zip(*batch, strict=True))
        results += len(logic.process(Records(keys, values, times))) + len(logic.finish())
        logged.commit()
    return logged.bytes / len(rows), results


def running_aggregates(rows: list[Record], commit_rows: int) -> tuple[float, int]:
    """Log each value, and the aggregate of its key after it."""
    logged = Logged()
    logic = Aggregating(topology(hs.SlidingWindows(SIZE_MS)), logged.group)
    aggregates: Any = logged.group.open("aggregates", "key_value", {"ttl_ms": None})
    results = 0
    logged.commit()
    logged.bytes = 0
    for batch in batches(rows, commit_rows):
        for key, value, ts in batch:
            for result in logic.process(Records([key], [value], [ts])):
                aggregates.put(key, list(result.aggregates or ()))
                results += 1
        logic.finish()
        logged.commit()
    return logged.bytes / len(rows), results


def overlapping_windows(rows: list[Record], commit_rows: int) -> tuple[float, int]:
    """Log every window that a record changes, when it does."""
    logged, aside = Logged(), Logged()
    logic = Aggregating(topology(hs.KafkaSlidingWindows(SIZE_MS, grace=SIZE_MS)), aside.group)
    retention = 4 * SIZE_MS
    parameters = {"retention_ms": retention, "window_size_ms": None, "grace_ms": retention, "retain_duplicates": False}
    windows: Any = logged.group.open("windows", "window", parameters)
    results = 0
    logged.commit()
    logged.bytes = 0
    for batch in batches(rows, commit_rows):
        for key, value, ts in batch:
            for result in logic.process(Records([key], [value], [ts])):
                windows.put(key, [result.ts, *(result.aggregates or ())], result.start)
                results += 1
        logic.finish()
        logged.commit()
    return logged.bytes / len(rows), results


def batches(rows: list[Record], size: int) -> Iterator[list[Record]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def measure(records: int = 20_000) -> Result:
    """Count all cases on the same streams."""
    result = Result("changelog bytes", {"records": f"{records:,}", "keys": 50, "window": "5 minutes, sum and count"})

    def add(name: str, value: float, base: float | None = None) -> None:
        spread = Spread((value,))
        against = None if base is None else Spread((base,))
        result.lines.append(line(name, spread, "B", base=against, against="ours" if base is not None else ""))

    for per_window in (10, 100):
        rows = stream(records, per_window)
        ways: list[tuple[str, Callable[[list[Record], int], tuple[float, int]]]] = [
            ("running aggregates logged too", running_aggregates),
            ("every overlapping window logged", overlapping_windows),
        ]
        ours, results = kept(hs.SlidingWindows(SIZE_MS), rows, 1000)
        check(results == len(rows), "a result of every record")
        add(f"sliding, {per_window} records a window: ours", ours)
        for name, way in ways:
            add(f"sliding, {per_window} records a window: {name}", way(rows, 1000)[0], ours)
    rows = stream(records, 100)
    kinds = {
        "tumbling 5 min": hs.TumblingWindows(SIZE_MS),
        "hopping 5 min by 1 min": hs.HoppingWindows(SIZE_MS, SIZE_MS // 5),
        "session, gap 10 s": hs.SessionWindows(10_000),
        "sliding 5 min": hs.SlidingWindows(SIZE_MS),
    }
    for name, windows in kinds.items():
        for commit_rows in (1, 10_000):
            part = rows[: records if commit_rows > 1 else records // 10]
            add(f"{name}, {commit_rows:,} records a commit", kept(windows, part, commit_rows)[0])
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Changelog bytes per input record.")
    parser.add_argument("--records", type=int, default=20_000)
    show(measure(parser.parse_args().records))


if __name__ == "__main__":
    main()
