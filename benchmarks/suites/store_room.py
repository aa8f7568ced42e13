"""Store room: what a window store costs in memory, and what expiry costs in the steady state."""

from __future__ import annotations

import gc
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from benchmarks.measure import fresh_process
from benchmarks.measure.result import Line, Target, line
from benchmarks.measure.state import COMMIT_ROWS, fill, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check
from benchmarks.measure.workload import START_MS, Stream, values_of


def window_memory(folder: str, records: int, shape: str) -> float:
    """Return the bytes a record that a window store adds to keys and values which exist already.

    For a fresh process.
    """
    stream = Stream(records, shape=shape)
    keys, values, times = stream.rows()
    times_copy = list(times)
    with scratch(Path(folder)) as place, open_state(place / "state") as state:
        store = window_of(state, stream)
        gc.collect()
        before = fresh_process.resident_bytes()
        for at in range(0, records, COMMIT_ROWS):
            for row in zip(
                keys[at : at + COMMIT_ROWS],
                values[at : at + COMMIT_ROWS],
                times_copy[at : at + COMMIT_ROWS],
                strict=True,
            ):
                # each record brings a timestamp object of its own, as it does in a job
                store.put(row[0], row[1], row[2] + 1 - 1)
            state.commit()
        gc.collect()
        used = fresh_process.resident_bytes() - before
        check(len(store) == records, "records in the window store")
        return used / records


def memory_lines(folder: Path, records: int) -> list[Line]:
    """Measure the memory of the structure alone: keys and values are shared with the program."""
    lines = []
    for shape, bound in (("sparse", 60.0), ("dense", 45.0)):
        used = fresh_process.call(f"{__name__}:window_memory", folder=str(folder), records=records, shape=shape)
        lines.append(
            line(
                f"window, {shape}: memory of the structure", Spread((used,)), "B/record", target=Target(bound, "value")
            )
        )
    return lines


def steady_state(folder: str, records: int, steps: int) -> dict[str, float]:
    """Hold `records` records and put `steps` more, one expiring for each; return the longest put by wall and processor
    time.

    For a fresh process. The collector runs as it does in a job that called `gc.freeze()` once after filling the store.
    """
    stream = Stream(records)
    rows = stream.rows()
    with scratch(Path(folder)) as place, open_state(place / "state") as state:
        store: Any = state.window("events", retention=records)
        fill(store, rows, state)
        gc.collect()
        gc.freeze()
        more = values_of(steps, 16, 2)
        names = rows.keys
        longest_wall = longest_cpu = total = 0.0
        for i in range(steps):
            key, value, ts = names[i % len(names)], more[i], START_MS + records + i
            cpu, wall = thread_time(), perf_counter()
            store.put(key, value, ts)
            wall, cpu = perf_counter() - wall, thread_time() - cpu
            total += wall
            longest_wall, longest_cpu = max(longest_wall, wall), max(longest_cpu, cpu)
            if i % COMMIT_ROWS == 0:
                state.commit()
        check(len(store) == records, "live records in the steady state")
        return {"wall": longest_wall, "cpu": longest_cpu, "mean": total / steps}


def expiry_lines(folder: Path, records: int, repeats: int) -> list[Line]:
    """Measure the longest put while records expire at the rate they come."""
    runs = [
        fresh_process.call(
            f"{__name__}:steady_state", folder=str(folder), records=records, steps=max(1000, records // 5)
        )
        for _ in range(max(1, min(3, repeats)))
    ]
    return [
        line(
            "window: longest put in the steady state, processor time",
            Spread(tuple(run["cpu"] for run in runs)),
            "ms",
            target=Target(5, "value"),
            note="the longest by the clock also holds what other processes took from this one: "
            f"{max(run['wall'] for run in runs) * 1000:.1f} ms here",
        ),
        line(
            "window: mean put in the steady state, two clock reads included",
            Spread(tuple(run["mean"] for run in runs)),
            "ns",
        ),
    ]
