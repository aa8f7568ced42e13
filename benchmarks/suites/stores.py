"""Stores benchmark: writes, reads, memory and expiry of each store, as ratios to what a program would do by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure.result import Result
from benchmarks.measure.timing import stopwatch
from benchmarks.suites import store_reads, store_room, store_writes


def measure(
    folder: Path, *, records: int = 200_000, stored: int = 1_000_000, sessions: int = 300_000, repeats: int = 5
) -> Result:
    """Measure all stores: `records` are put, `held` are in the store that is read, weighed, and expired from."""
    result = Result("stores", {"records": records, "held": stored, "sessions": sessions, "runs": repeats})
    with stopwatch() as clock:
        result.lines += store_writes.lines(folder, records, repeats)
        result.lines += store_reads.window_lines(folder, stored, repeats)
        result.lines += store_reads.session_lines(folder, sessions, repeats)
        result.lines += store_reads.key_value_lines(folder, records, repeats)
        result.lines += store_room.memory_lines(folder, stored)
        result.lines += store_room.expiry_lines(folder, stored, repeats)
    result.seconds = clock.seconds
    return result
