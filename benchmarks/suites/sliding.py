"""Sliding windows: adds per record counted exactly, and time and memory as ratios to a bare dict and deque.

    python -m benchmarks.suites.sliding [--quick] [--json] [--plot FILE.svg]

The *bare* window does what every strategy has to do as well, and nothing else: a class with one method that looks up
the key's deque, appends (time, value), and pops what has expired. A strategy is driven by the same loop, with the key
looked up in a dict and one call of `update`. Each measurement is bracketed by the bare window on the same records, in
CPU time, and the median ratio is reported: nanoseconds differ from machine to machine, ratios hardly.

Time is measured on an adder of one's own, a Python function without `merge`, `subtract` or `add_many`; the strategies
that need more have the built-in Sum and Max. Every run's answers are checked against a full scan: a fast wrong answer
prints no number.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

from hybridstore.aggregation import Aggregator, Count, Max, Mean, Strategy, Sum, TimeLog, choose
from hybridstore.aggregation.ladder import Ladder
from tests.tools.kip450 import Buckets

Record = tuple[str, int, int]
Result = dict[str, Any]


def plus(total: int, value: int) -> int:
    """An adder of one's own, in Python."""
    return total + value


ADD_ONLY = Aggregator(int, plus, copy=False, commutative=True, name="add only")


class Bare:
    """The least a sliding window has to do: keep its records per key. No aggregate."""

    def __init__(self) -> None:
        self.windows: dict[str, deque[tuple[int, int]]] = {}

    def add(self, key: str, ts: int, value: int, lo: int) -> None:
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = deque()
        window.append((ts, value))
        while window[0][0] < lo:
            window.popleft()


def make_stream(window: int, records: int, disorder: float = 0.0, *, begin: int = 0, seed: int = 1) -> list[Record]:
    """Return one key's records, one a millisecond from `begin` on; late ones lie anywhere within the window."""
    r = random.Random(seed)
    return [
        ("key", max(0, i - r.randint(0, window - 1)) if r.random() < disorder else i, r.randint(0, 1000))
        for i in range(begin, begin + records)
    ]


def time_bare(records: list[Record], size_ms: int) -> float:
    """Return nanoseconds a record of the bare window, which takes late records as if they were in order."""
    add = Bare().add
    now = -1
    lo = 0
    gc.collect()
    gc.disable()
    began = time.process_time_ns()
    for key, ts, value in records:
        if ts > now:
            now = ts
            lo = ts - size_ms
        elif ts < lo:
            continue
        add(key, ts, value, lo)
    spent = time.process_time_ns() - began
    gc.enable()
    return spent / len(records)


def time_strategy(strategy: Strategy[Any], warm: list[Record], records: list[Record], size_ms: int) -> float:
    """Return nanoseconds a record, after a warm-up that fills the window; the last answer is checked."""
    states: dict[str, Any] = {"key": strategy.restore([], [])}
    for _, ts, value in warm:
        states["key"].insert(ts, value)
    new = strategy.new
    now = warm[-1][1]
    lo = now - size_ms
    states["key"].expire(lo)
    states["key"].value()
    result = None
    # the window's records are no garbage: the collector would walk them again and again
    gc.collect()
    gc.disable()
    began = time.process_time_ns()
    for key, ts, value in records:
        if ts > now:
            now = ts
            lo = ts - size_ms
        elif ts < lo:
            continue
        state = states.get(key)
        if state is None:
            state = states[key] = new()
        result = state.update(ts, value, lo)
    spent = time.process_time_ns() - began
    gc.enable()
    live = [v for _, ts, v in [*warm, *records] if ts >= lo]
    expected = strategy.aggregator.of(live)
    if result != expected:
        raise AssertionError(f"{strategy!r}: found {result!r}, expected {expected!r}")
    return spent / len(records)


def ratio(
    strategy: Strategy[Any], window: int, records: int, *, disorder: float = 0.0, repeats: int = 5
) -> tuple[float, float]:
    """Return the median (ratio to the bare window, nanoseconds a record)."""
    warm = make_stream(window, 2 * window)
    measured = make_stream(window, records, disorder, begin=2 * window, seed=2)
    bare_records = measured if len(measured) >= 20_000 else make_stream(window, 20_000)
    times = []
    for _ in range(repeats):
        before = time_bare(bare_records, window - 1)
        spent = time_strategy(strategy, warm, measured, window - 1)
        after = time_bare(bare_records, window - 1)
        times.append((2 * spent / (before + after), spent))
    return sorted(times)[len(times) // 2]


def times_faster(fast: Strategy[Any], slow: Strategy[Any], window: int, fast_records: int, slow_records: int) -> float:
    """Return how many times less a record takes with one strategy than with another: the median of turns, taken one
    after the other.

    In turns, because what another process does to the caches between two measurements is more than the difference
    looked for.
    """
    warm = make_stream(window, 2 * window)
    measured = make_stream(window, max(fast_records, slow_records), begin=2 * window, seed=2)
    times = []
    for _ in range(5):
        few = time_strategy(slow, warm, measured[:slow_records], window - 1)
        times.append(few / time_strategy(fast, warm, measured[:fast_records], window - 1))
    return statistics.median(times)


class Counting:
    """An adder that counts its calls."""

    def __init__(self) -> None:
        self.adds = 0
        self.aggregator = Aggregator(int, self.add, copy=False, commutative=True, name="counting")

    def add(self, total: int, value: int) -> int:
        self.adds += 1
        return total + value


def count_adds(window: int, *, disorder: float = 0.0, cycles: int = 2, **options: Any) -> tuple[float, int, int]:
    """Return (adds a record over whole cycles, most adds of one record, most aggregates held) of a ladder.

    A cycle begins with each complete building of the ladder.
    """
    counting = Counting()
    state = Ladder(counting.aggregator, **options).restore(range(window), [1] * window)
    r = random.Random(3)
    now = window
    worst = kept = counted = records = built = 0
    while built <= cycles:
        before = counting.adds
        ts = now - r.randint(0, window - 1) if r.random() < disorder else now
        state.update(ts, 1, now - window + 1)
        spent = counting.adds - before
        now += 1
        if spent >= 0.9 * len(state):
            built += 1
            worst = max(worst, spent)
            if built > cycles:
                break
        if built:
            counted += spent
            records += 1
        if now % 16 == 0:
            kept = max(kept, 1 + len(state.rungs or ()))
    return counted / records, worst, kept


def restore_cost(window: int, repeats: int = 5) -> tuple[int, float]:
    """Return (adds of a restore and its first result, time as a ratio to the bare window)."""
    counting = Counting()
    Ladder(counting.aggregator).restore(range(window), [1] * window).value()
    strategy = Ladder(ADD_ONLY)
    times, values = list(range(window)), [7] * window
    records = make_stream(window, 20_000)
    rounds = max(1, 20_000 // window)
    answers = []
    for _ in range(repeats):
        bare = time_bare(records, window - 1)
        began = time.process_time_ns()
        for _ in range(rounds):
            result = strategy.restore(times, values).value()
        spent = (time.process_time_ns() - began) / rounds / window
        if result != 7 * window:
            raise AssertionError(f"restore: found {result}, expected {7 * window}")
        answers.append(spent / bare)
    return counting.adds, statistics.median(answers)


def bytes_of(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    kept = build()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size


def memory_of(strategy: Strategy[Any], window: int) -> tuple[float, float]:
    """Return bytes (a record of a full window, a key of one record with its key and its place in the dict)."""

    def full() -> object:
        state = strategy.new()
        for i in range(2 * window):
            # times and values of their own, as a job has them
            state.update(10**12 + i, 10**6 + i % 1000, 10**12 + i - window + 1)
        return state

    def keys() -> object:
        states = {}
        for i in range(2000):
            state = states[f"key-{i:06}"] = strategy.new()
            state.update(10**12 + i, 10**6 + i, 0)
        return states

    return bytes_of(full) / window, bytes_of(keys) / 2000


def late_insert(window: int) -> float:
    """Return microseconds of an insert anywhere within a log of so many records."""
    log = TimeLog()
    log.load(range(0, 2 * window, 2), [0] * window)
    r = random.Random(4)
    places = [r.randint(0, 2 * window - 3) for _ in range(5000)]
    began = time.process_time_ns()
    for ts in places:
        log.insert(ts, 1)
    spent = time.process_time_ns() - began
    log.check()
    return spent / len(places) / 1000


def run(quick: bool = False) -> list[Result]:
    """Run everything and return a dict for each figure: measure, window, reached, target (or None), better, met."""
    results: list[Result] = []

    def note(measure: str, window: int, reached: float, target: float | None, *, better: str = "less") -> None:
        if target is None:
            met = None
        else:
            met = reached <= target if better == "less" else reached >= target
        results.append(
            {
                "bench": "sliding",
                "measure": measure,
                "window": window,
                "reached": round(reached, 3),
                "target": None if target is None else round(target, 3),
                "better": better,
                "met": met,
            }
        )

    windows = [10, 100, 1000] if quick else [10, 100, 1000, 10_000, 100_000]
    records = 20_000 if quick else 60_000
    repeats = 3 if quick else 5

    for n in windows:
        log2 = math.log2(n)
        average, worst, kept = count_adds(n, leaf=2, promote=2)
        note("adds/record, least possible", n, math.log2(n + 1) - 0.0861, None)
        note("adds/record, ladder leaf 2", n, average, log2 + 0.1 + 0.4 * (n < 64))
        note("most adds of one record", n, worst, n + log2 + 2)
        note("aggregates held, leaf 2", n, kept, log2 - 1 + 3)
        average, _, _ = count_adds(n, promote=6)
        note("adds/record, ladder leaf 6", n, average, log2 + 1.5)
        average, _, _ = count_adds(n, disorder=0.05, leaf=2, promote=2)
        note("adds/record, 5 % disorder, leaf 2", n, average, log2 + 2)
        adds, spent = restore_cost(n, repeats)
        note("restore adds/record", n, adds / n, 1.0)
        note("restore time, x bare", n, spent, 0.9 if n >= 1000 else None)

    for n in windows:
        ladder = Ladder(ADD_ONLY)
        note(
            "ladder, x bare",
            n,
            ratio(ladder, n, records, repeats=repeats)[0],
            8 if n <= 100 else 10 if n <= 1000 else 12,
        )
        disordered, _ = ratio(ladder, n, records, disorder=0.05, repeats=repeats)
        note("ladder, 5 % disorder, x bare", n, disordered, 12)
        slow = max(60, min(records, 2_000_000 // n))
        faster = times_faster(ladder, choose(ADD_ONLY, "recompute"), n, records, slow)
        target: float | None = {1000: 25, 10_000: 250, 100_000: 2000}.get(n)
        note("ladder faster than recompute", n, faster, target, better="more")
        faster = times_faster(ladder, Buckets(ADD_ONLY), n, records, min(records, 20_000))
        target = {1000: 2.5, 10_000: 5, 100_000: 12}.get(n)
        note("ladder faster than sqrt buckets", n, faster, target, better="more")
        note("merge ladder, x bare", n, ratio(choose(Sum(), "merge"), n, records, repeats=repeats)[0], 6.5)
        note("subtract (sum), x bare", n, ratio(choose(Sum()), n, records, repeats=repeats)[0], 2.3)
        note("subtract (count), x bare", n, ratio(choose(Count()), n, records, repeats=repeats)[0], 2.3)
        note("subtract (mean), x bare", n, ratio(choose(Mean()), n, records, repeats=repeats)[0], None)
        note("monotone (max), x bare", n, ratio(choose(Max()), n, records, repeats=repeats)[0], 2.0)
        note("chunks, x bare", n, ratio(choose(Sum(), "chunks"), n, records, repeats=repeats)[0], None)

    n = 1000 if quick else 10_000
    for name, strategy in (("ladder", Ladder(ADD_ONLY)), ("subtract", choose(Count())), ("monotone", choose(Max()))):
        a_record, a_key = memory_of(strategy, n)
        note(f"bytes/record, {name}", n, a_record, 60)
        note(f"bytes/key of one record, {name}", 1, a_key, 600)
    n = windows[-1]
    note("late insert, microseconds", n, late_insert(n), 8)
    return results


def show(results: list[Result]) -> None:
    """Print the figures as a table, a row for each measure and a column for each window."""
    windows = sorted({r["window"] for r in results})
    rows: dict[str, dict[int, Result]] = {}
    for result in results:
        rows.setdefault(result["measure"], {})[result["window"]] = result
    print("reached (target), for windows of so many records; ! is missed\n")
    print(f"{'':36}" + "".join(f"{n:>20,}" for n in windows))
    for measure, reached in rows.items():
        cells = []
        for n in windows:
            if n not in reached:
                cells.append("")
                continue
            result = reached[n]
            sign = {"less": "<=", "more": ">="}[result["better"]]
            target = "" if result["target"] is None else f" ({sign} {result['target']:g})"
            cells.append(f"{result['reached']:.4g}{target}{'!' if result['met'] is False else ''}")
        print(f"{measure:36}" + "".join(f"{cell:>20}" for cell in cells))
    judged = [r for r in results if r["met"] is not None]
    print(f"\n{sum(r['met'] for r in judged)} of {len(judged)} targets met")


def plot(path: str, windows: list[int]) -> None:
    """Draw nanoseconds a record against the size of the window, log-log; lower is better. Needs matplotlib."""
    from matplotlib import pyplot

    strategies: list[tuple[str, Strategy[Any], int]] = [
        # name, strategy, most records a run may sum up in all
        ("recompute", choose(ADD_ONLY, "recompute"), 2_000_000),
        ("sqrt buckets (KIP-450)", Buckets(ADD_ONLY), 10**9),
        ("ladder", Ladder(ADD_ONLY), 10**9),
        ("chunks", choose(Sum(), "chunks"), 10**9),
        ("merge ladder", choose(Sum(), "merge"), 10**9),
        ("subtract", choose(Sum()), 10**9),
        ("monotone", choose(Max()), 10**9),
    ]
    figure, axes = pyplot.subplots(figsize=(7, 5))
    for name, strategy, budget in strategies:
        spent = [ratio(strategy, n, max(60, min(20_000, budget // n)), repeats=3)[1] for n in windows]
        axes.loglog(windows, spent, marker="o", label=name)
    bare = [time_bare(make_stream(n, 40_000), n - 1) for n in windows]
    axes.loglog(windows, bare, color="black", linestyle=":", label="bare dict and deque")
    axes.set_xlabel("records in the window")
    axes.set_ylabel("nanoseconds a record (lower is better)")
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of sliding windows against the targets.")
    parser.add_argument("--quick", action="store_true", help="windows up to 1,000 only")
    parser.add_argument("--json", action="store_true", help="print one JSON object per figure instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw cost against the size of the window, and nothing else")
    arguments = parser.parse_args()
    if arguments.plot:
        plot(
            arguments.plot,
            [10, 100, 1000] if arguments.quick else [10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000],
        )
        return
    results = run(arguments.quick)
    if arguments.json:
        for result in results:
            print(json.dumps(result))
    else:
        show(results)


if __name__ == "__main__":
    main()
