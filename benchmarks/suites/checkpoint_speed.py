"""Checkpoint benchmark: the first one, an incremental one, the owner's pause, and what puts feel while one is written.

The floors are a kernel copy of the file and a bare write of as many bytes.
"""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from time import perf_counter, thread_time

from benchmarks.measure.content import columns_of, fingerprint, per_key
from benchmarks.measure.result import Result, Target, line
from benchmarks.measure.state import fill, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, stopwatch
from benchmarks.measure.workload import Rows, Stream


def _once(folder: Path, stream: Stream, rows: Rows, changes: int) -> dict[str, float]:
    """Fill, checkpoint, change, checkpoint in the background while putting; return what each step took."""
    total = len(rows.keys)
    first = rows.part(0, total - 2 * changes)
    figures: dict[str, float] = {}
    with scratch(folder) as place, open_state(place / "state") as state:
        store = window_of(state, stream)
        fill(store, first, state)
        with stopwatch() as clock:
            state.checkpoint(wait=True)
        figures["full"] = clock.seconds
        pause = state.metrics().last_checkpoint_pause_ms
        figures["full_pause"] = (pause or 0.0) / 1000
        (file,) = (place / "state" / "packs").iterdir()
        figures["size"] = file.stat().st_size / len(first.keys)
        with stopwatch() as clock:
            shutil.copyfile(file, place / "copy")
        figures["copy"] = clock.seconds
        data = file.read_bytes()
        with stopwatch() as clock:
            (place / "raw").write_bytes(data)
            fd = os.open(place / "raw", os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        figures["raw"] = clock.seconds
        del data
        fill(store, rows.part(total - 2 * changes, total - changes), state)
        gc.collect()
        gc.freeze()  # the benchmark's own rows are not to be walked in the middle of a put
        started = perf_counter()
        state.checkpoint()
        figures["pause"] = perf_counter() - started
        # puts go on beside the background thread: the longest one shows what they feel
        longest = longest_own = 0.0
        for row in zip(*rows.part(total - changes, total), strict=True):
            processor, elapsed = thread_time(), perf_counter()
            store.put(*row)
            elapsed, processor = perf_counter() - elapsed, thread_time() - processor
            longest, longest_own = max(longest, elapsed), max(longest_own, processor)
        state.commit()
        gc.unfreeze()
        attempt = state._checkpoints.attempt
        if attempt is not None:
            attempt.join()
        figures["longest_put"], figures["longest_own"] = longest, longest_own
        state.commit()
        state._checkpoints.finish(wait=True)
        spent_ms = state.metrics().last_checkpoint_ms
        check(
            spent_ms is not None and state.metrics().checkpoints_written == 2,
            "the background checkpoint was not taken over",
        )
        figures["incremental"] = (spent_ms or 0.0) / 1000
        state._abandon()
        expected = fingerprint((key, times, values) for key, (times, values) in per_key(rows).items())
        with open_state(place / "state") as again:
            events = again.stores["events"]
            restored: dict[str, list[tuple[int, bytes]]] = {name: list(events.fetch(name)) for name in set(rows.keys)}
            check(fingerprint(columns_of(restored)) == expected, "what was restored from the checkpoint")
    return figures


def measure(folder: Path, *, records: int = 300_000, changes: int = 100_000, repeats: int = 3) -> Result:
    """Measure checkpoints of a window store of `records` with `changes` mutations (5 % late) between them."""
    changes = min(changes, records // 4)
    stream = Stream(records + 2 * changes, late=0.05)
    result = Result("checkpoint", {"records": records, "changes": changes, "runs": repeats})
    with stopwatch() as clock:
        rows = stream.rows()
        runs = [_once(folder, stream, rows, changes) for _ in range(repeats)]
    result.seconds = clock.seconds

    def spread(name: str) -> Spread:
        return Spread(tuple(run[name] for run in runs))

    result.lines += [
        line("bare write and sync of as many bytes", spread("raw"), "ms"),
        line("first checkpoint, written whole", spread("full"), "ms", base=spread("raw"), against="bare write"),
        line("size in the checkpoint", spread("size"), "B/record"),
        line("bare kernel copy of the file", spread("copy"), "ms"),
        line(
            f"incremental checkpoint of {changes:,} mutations, in the background",
            spread("incremental"),
            "ms",
            base=spread("copy"),
            against="bare copy",
        ),
        line("owner's pause, first checkpoint", spread("full_pause"), "ms"),
        line("owner's pause, incremental", spread("pause"), "ms", target=Target(60, "value")),
        line("longest put beside it, processor time", spread("longest_own"), "ms"),
        line(
            "longest put beside it, by the clock",
            spread("longest_put"),
            "ms",
            note="the two threads share Python's lock (5 ms switch interval), and this machine its processors",
        ),
    ]
    return result
