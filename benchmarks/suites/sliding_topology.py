"""Sliding topology: what a row costs a sliding window in the plain engine, from dicts and from Arrow, to the last byte.

    rows ── stream(key, timestamp) ── sliding 30 days ── aggregate ── run(rows, directory) ── every result taken

    dicts     rows come as dicts, results are taken as rows
    arrow     rows come as Arrow batches, results are taken as rows
    tables    rows come as Arrow batches, results are taken as Arrow tables: `run(...).tables()`

    mean      count and mean of a vendor's ratings, a result for each row
    sum       count and sum of them

    whole     ratings from 1 to 5
    halves    0.5, 1.0, ... 5.0
    cents     floats of two decimals up to 5.00
    digits    floats of 17 digits

Rows are seeded: vendors of unequal size, five years, a time each, as a datetime with a zone or as whole milliseconds.
Processor time of a whole run (state opened, rows, results, commits, state closed) per row, the least of some that took
turns, and the bytes of the changelog it leaves. Every result is compared with an oracle's: a deque per vendor, and sums
that are never rounded. Then floats beside whole numbers, and both beside a bare loop over the same dicts (a deque per
vendor, a sum that rounds, a pair per row): misses of the targets are printed.
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
from functools import partial
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

Row = tuple[str, int, Any]  # vendor, time (ms), rating
Answer = tuple[str, int, int, int, Any, Any]  # vendor, start and end of the window, count, sum and mean
RATINGS: Final[dict[str, Callable[[random.Random], Any]]] = {
    "whole": lambda r: r.randint(1, 5),
    "halves": lambda r: r.randint(1, 10) / 2,
    "cents": lambda r: r.randint(1, 500) / 100,
    "digits": lambda r: 5 * r.random(),
}
# Floats beside whole numbers; dicts and Arrow beside the bare loop.
TARGETS: Final = {"whole": 1.5, "dicts": 7.0, "arrow": 3.5}
_LAST_BIT: Final = 1074  # every float is a multiple of 2**-1074


def make_rows(count: int, ratings: str = "whole", vendors: int = 2000, seed: int = 7) -> list[Row]:
    """Return rows in the order of their times. O(n log n)."""
    r, rating = random.Random(seed), RATINGS[ratings]
    times = sorted(r.sample(range(_BEGIN_MS, _BEGIN_MS + _YEARS_MS), count))
    return [(f"vendor-{int(vendors * r.random() ** 2):05}", ts, rating(r)) for ts in times]


def answers(rows: list[Row]) -> Iterator[Answer]:
    """Yield the result of each row, by a deque per vendor and whole sums of the last bits of floats. O(n)."""
    kept: dict[str, deque[tuple[int, int]]] = {}
    sums: dict[str, int] = {}
    for vendor, now, rating in rows:
        values = kept.setdefault(vendor, deque())
        n, divisor = rating.as_integer_ratio()
        values.append((now, (n << _LAST_BIT) // divisor))
        total = sums.get(vendor, 0) + values[-1][1]
        while values[0][0] < now - _SIZE_MS:
            total -= values.popleft()[1]
        sums[vendor] = total
        whole = total >> _LAST_BIT if type(rating) is int else total / (1 << _LAST_BIT)
        yield vendor, max(0, now - _SIZE_MS), now, len(values), whole, total / (len(values) << _LAST_BIT)


def bare(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Return count and mean of each row's window as a loop without state on disk computes them: a deque per vendor."""
    kept: dict[str, deque[tuple[int, Any]]] = {}
    sums: dict[str, Any] = {}
    results = []
    for row in rows:
        vendor, now, rating = row["vendor"], row["time"], row["rating"]
        values = kept.get(vendor)
        if values is None:
            values = kept[vendor] = deque()
            sums[vendor] = 0
        values.append((now, rating))
        total = sums[vendor] + rating
        low = now - _SIZE_MS
        while values[0][0] < low:
            total -= values.popleft()[1]
        sums[vendor] = total
        count = len(values)
        results.append((count, total / count))
    return results


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
    table = pa.table({"vendor": list(vendors), "time": scaled, "rating": pa.array(ratings)})
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
    run = program(aggregate).run(given, state, checkpoints=checkpoint)
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
                "of": mean if self.aggregate == "mean" else total,
            }
            for vendor, start, end, n, total, mean in answers(rows)
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


def compared(count: int, repeats: int, state: Path) -> None:
    """Print what floats cost beside whole numbers and both beside the bare loop, from dicts and Arrow with times in
    milliseconds, all in turns; and which targets are missed.
    """
    sides: dict[tuple[str, str], Callable[[], float]] = {}
    for ratings in RATINGS:
        rows = make_rows(count, ratings)
        sides["bare", ratings] = partial(_seconds, bare, dicts(rows, int))
        for case in cases(rows, "mean"):
            if case.times == "milliseconds" and not case.tables:
                spent("mean", iter(case.given), state, case.expected(rows))
                shutil.rmtree(state)
                sides[case.source, ratings] = partial(_spent_anew, case.given, state)
    least = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats):
        for side, run in sides.items():
            least[side] = min(least[side], run())
    print(f"{'mean, milliseconds':32} {'us/row':>8} {'x whole':>8} {'x bare':>8}   of {count:,} rows, results checked")
    for (source, ratings), seconds in least.items():
        beside = {"whole": seconds / least[source, "whole"], source: seconds / least["bare", ratings]}
        missed = [f"{beside[name]:.2f} > {target}" for name, target in TARGETS.items() if beside.get(name, 0) > target]
        note = "" if not missed or source == "bare" else f"   MISSED: {', '.join(missed)}"
        figures = f"{seconds / count * 1e6:8.2f} {beside['whole']:8.2f} {beside[source]:8.2f}"
        print(f"{source + ', ' + ratings:32} {figures}{note}", flush=True)


def _seconds(function: Callable[[Any], Any], given: Any) -> float:
    gc.collect()
    gc.freeze()
    began = process_time()
    function(given)
    seconds = process_time() - began
    gc.unfreeze()
    return seconds


def _spent_anew(given: list[Any], state: Path) -> float:
    seconds = spent("mean", iter(given), state, None)
    shutil.rmtree(state)
    return seconds


def main() -> None:
    """Print microseconds a row, rows a second and changelog bytes a row of every case, and what a datetime costs."""
    parser = argparse.ArgumentParser(description="Cost of a row of a sliding topology.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3, help="the cases of an aggregate take turns; the least counts")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--profile", action="store_true", help="print where the time of each case goes")
    parser.add_argument("--floats", action="store_true", help="only floats beside whole numbers and the bare loop")
    arguments = parser.parse_args()
    if arguments.floats:
        with TemporaryDirectory(prefix="hybridstore-bench-") as place:
            compared(arguments.rows, arguments.repeats, Path(place) / "state")
        return
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
        if not arguments.only:
            compared(min(arguments.rows, 200_000), arguments.repeats, state)


if __name__ == "__main__":
    main()
