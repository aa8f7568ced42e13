"""Sliding topology: what a row costs a sliding window in the plain engine, from dicts and from Arrow, to the last byte.

    rows ── stream(key, timestamp) ── sliding 30 days ── aggregate ── run(rows, directory) ── every result taken

    dicts     rows come as dicts, results are taken as rows
    arrow     rows come as Arrow batches, results are taken as rows
    tables    rows come as Arrow batches, results are taken as Arrow tables: `run(...).tables()`

    mean      count and mean of a vendor's ratings (whole numbers), a result for each row
    sum       count and sum of them

Rows are seeded: vendors of unequal size, five years, a time each, as a datetime with a zone or as whole milliseconds.
Processor time of a whole run (state opened, rows, results, commits, state closed) per row, the least of some that took
turns, and the bytes of the changelog it leaves. Every result is compared with an oracle's: a deque per vendor.
`python -m benchmarks.suites.sliding_topology [--rows 500000] [--repeats 3]`; it runs on older versions, too:
`PYTHONPATH=<their checkout> python -P <this file>`.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Final, NamedTuple

import hybridstore as hs

SIZE: Final = timedelta(days=30)
_SIZE_MS: Final = SIZE // timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEGIN_MS: Final = 1_600_000_000_000
_YEARS_MS: Final = 5 * 365 * 86_400_000
_ARROW_ROWS: Final = 10_000
# The changelog stays whole, so that its bytes can be counted.
_NEVER: Final = hs.CheckpointPolicy(max_restore=timedelta(days=1))

Row = tuple[str, int, int]  # vendor, time (ms), rating
Answer = tuple[str, int, int, int, int]  # vendor, start and end of the window, count and sum


def make_rows(count: int, vendors: int = 2000, seed: int = 7) -> list[Row]:
    """Return rows in the order of their times. O(n log n)."""
    r = random.Random(seed)
    times = sorted(r.sample(range(_BEGIN_MS, _BEGIN_MS + _YEARS_MS), count))
    return [(f"vendor-{int(vendors * r.random() ** 2):05}", ts, r.randint(1, 5)) for ts in times]


def answers(rows: list[Row]) -> Iterator[Answer]:
    """Yield the result of each row, by a deque per vendor. O(n)."""
    kept: dict[str, deque[tuple[int, int]]] = {}
    sums: dict[str, int] = {}
    for vendor, now, rating in rows:
        values = kept.setdefault(vendor, deque())
        values.append((now, rating))
        total = sums.get(vendor, 0) + rating
        while values[0][0] < now - _SIZE_MS:
            total -= values.popleft()[1]
        sums[vendor] = total
        yield vendor, max(0, now - _SIZE_MS), now, len(values), total


def zoned(ts: int) -> datetime:
    """Return a time (ms) as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ts)


def program(aggregate: str) -> Any:
    """Return the topology of a case."""
    of = hs.Mean("rating") if aggregate == "mean" else hs.Sum("rating")
    return hs.stream(key="vendor", timestamp="time").windowed_by(hs.SlidingWindows(SIZE)).aggregate(n=hs.Count(), of=of)


def dicts(rows: list[Row], moment: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return rows as dicts, with times as `moment` gives them."""
    return [{"vendor": vendor, "time": moment(ts), "rating": rating} for vendor, ts, rating in rows]


def arrow(rows: list[Row], unit: str | None) -> list[Any]:
    """Return rows as Arrow batches, with times in UTC of this unit, or (None) as whole milliseconds."""
    import pyarrow as pa

    vendors, times, ratings = zip(*rows, strict=True)
    kind = pa.int64() if unit is None else pa.timestamp(unit, "UTC")
    scaled = pa.array(times, pa.int64() if unit is None else pa.timestamp("ms", "UTC")).cast(kind)
    table = pa.table({"vendor": list(vendors), "time": scaled, "rating": pa.array(ratings, pa.int64())})
    return list(table.to_batches(max_chunksize=_ARROW_ROWS))


def spent(
    aggregate: str,
    given: Iterable[Any],
    state: Path,
    expected: list[dict[str, Any]] | None,
    checkpoint: hs.CheckpointPolicy | None = None,
    *,
    tables: bool = False,
) -> float:
    """Return the seconds of processor time that a run takes; results are compared with `expected` outside of them."""
    gc.collect()
    gc.freeze()
    began = process_time()
    results: list[Any] | None = [] if expected is not None else None
    run = program(aggregate).run(given, state, checkpoint=checkpoint)
    for row in run.tables() if tables else run:
        if results is not None:
            results.append(row)
    seconds = process_time() - began
    gc.unfreeze()
    if results is not None and tables:
        results = [row for _, table in results for row in table.to_pylist()]
    if results is not None and results != expected:
        place = next((i for i, pair in enumerate(zip(results, expected or [], strict=False)) if pair[0] != pair[1]), -1)
        raise AssertionError(f"wrong answer: {aggregate}: {len(results)} results, the first that differs is {place}")
    return seconds


class Case(NamedTuple):
    """What is measured: an aggregate, rows as they come, and how their times are handed out."""

    aggregate: str
    source: str
    times: str
    given: list[Any]
    moment: Callable[[int], Any]

    @property
    def name(self) -> str:
        """Return what the case is called."""
        return f"{self.aggregate}, {self.source}, {self.times}"

    @property
    def tables(self) -> bool:
        """Return whether results are taken as tables."""
        return self.source == "tables"

    def expected(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Return the results that an oracle has. O(n)."""
        return [
            {
                "vendor": vendor,
                "window_start": self.moment(start),
                "window_end": self.moment(end),
                "n": n,
                "of": total / n if self.aggregate == "mean" else total,
            }
            for vendor, start, end, n, total in answers(rows)
        ]


def cases(rows: list[Row], aggregate: str) -> list[Case]:
    """Return the cases of an aggregate: those with datetimes before the ones with milliseconds."""
    return [
        Case(aggregate, "dicts", "zoned datetimes", dicts(rows, zoned), zoned),
        Case(aggregate, "dicts", "milliseconds", dicts(rows, int), int),
        Case(aggregate, "arrow", "zoned datetimes", arrow(rows, "us"), zoned),
        Case(aggregate, "arrow", "milliseconds", arrow(rows, None), int),
        Case(aggregate, "tables", "zoned datetimes", arrow(rows, "us"), zoned),
        Case(aggregate, "tables", "milliseconds", arrow(rows, None), int),
    ]


def main() -> None:
    """Print microseconds a row, rows a second and changelog bytes a row of every case, and what a datetime costs."""
    parser = argparse.ArgumentParser(description="Cost of a row of a sliding topology.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3, help="the cases of an aggregate take turns; the least counts")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--profile", action="store_true", help="print where the time of each case goes")
    arguments = parser.parse_args()
    rows = make_rows(arguments.rows)
    print(f"{'case':32} {'us/row':>8} {'rows/s':>10} {'bytes/row':>10}   of {arguments.rows:,} rows, results checked")
    with TemporaryDirectory(prefix="hybridstore-bench-") as place:
        state = Path(place) / "state"
        for aggregate in ("mean", "sum"):
            chosen = [case for case in cases(rows, aggregate) if arguments.only in case.name]
            sizes = []
            for case in chosen:
                spent(aggregate, iter(case.given), state, case.expected(rows), _NEVER, tables=case.tables)
                sizes.append(sum(file.stat().st_size for file in (state / "changelog").iterdir()))
                shutil.rmtree(state)
            least = [float("inf")] * len(chosen)
            for _ in range(arguments.repeats):
                for i, case in enumerate(chosen):
                    seconds = spent(aggregate, iter(case.given), state, None, tables=case.tables)
                    least[i] = min(least[i], seconds)
                    shutil.rmtree(state)
            cost = {case.name: seconds / len(rows) * 1e6 for case, seconds in zip(chosen, least, strict=True)}
            for (name, microseconds), size in zip(cost.items(), sizes, strict=True):
                print(f"{name:32} {microseconds:8.2f} {1e6 / microseconds:10,.0f} {size / len(rows):10.1f}", flush=True)
            for name, microseconds in cost.items():
                plain = cost.get(name.replace("zoned datetimes", "milliseconds"), microseconds)
                if plain != microseconds:
                    print(f"{name}: {microseconds - plain:+.2f} us a row beside milliseconds")
            for case in chosen if arguments.profile else ():
                profiler = cProfile.Profile()
                profiler.runcall(spent, aggregate, iter(case.given), state, None, tables=case.tables)
                pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
                shutil.rmtree(state)


if __name__ == "__main__":
    main()
