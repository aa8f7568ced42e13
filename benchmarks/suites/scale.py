"""Scale: what a record costs as the state grows, on one machine. Each size is a process of its own.

python -m benchmarks.suites.scale [--sizes 10000,100000,1000000]
"""

from __future__ import annotations

import argparse
import gc
import random
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter, process_time

from benchmarks.measure import fresh_process
from benchmarks.measure.result import Result, line, show
from benchmarks.measure.state import fill, open_state, scratch, window_of
from benchmarks.measure.timing import Spread, check, stopwatch
from benchmarks.measure.workload import START_MS, Stream
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import operator_storage
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId

_PUTS = 20_000
_FETCHES = 200


def one_size(folder: str, records: int) -> dict[str, float]:
    """Hold `records` and measure one more put, a fetch of 10 rows, checkpoints and a restart. For a fresh process."""
    stream = Stream(records + _PUTS, keys=max(10, records // 100))
    rows = stream.rows()
    figures: dict[str, float] = {}
    with scratch(Path(folder)) as place:
        with open_state(place / "state") as state:
            store = window_of(state, stream)
            gc.collect()
            before = fresh_process.resident_bytes()
            fill(store, rows.part(0, records), state)
            gc.collect()
            figures["memory"] = (fresh_process.resident_bytes() - before) / records
            gc.freeze()
            started = perf_counter()
            state.checkpoint(wait=True)
            figures["full checkpoint"] = (perf_counter() - started) / records
            # As from a source, records come warm: those made first would have to be fetched from memory grown cold
            # meanwhile. Processor time: a put and a fetch wait for nothing of their own, only for other users of the
            # machine.
            arriving = list(zip(*rows.part(records, records + _PUTS), strict=True))
            started = process_time()
            for row in arriving:
                store.put(*row)
            state.commit()
            figures["put"] = (process_time() - started) / _PUTS
            dice = random.Random(1)
            tenth = max(1, stream.span_ms // 10)
            moments = [(dice.choice(rows.keys), START_MS + dice.randrange(stream.span_ms)) for _ in range(_FETCHES)]
            started = process_time()
            fetched = sum(len(list(store.fetch(key, ts, ts + tenth))) for key, ts in moments)
            figures["fetch"] = (process_time() - started) / _FETCHES
            check(fetched > 0, "fetch found nothing")
            started = perf_counter()
            state.checkpoint(wait=True)
            figures["incremental checkpoint"] = (perf_counter() - started) / _PUTS
        gc.unfreeze()
        started = perf_counter()
        state = open_state(place / "state")
        check(state.stores["events"].get(rows.keys[0], rows.times[0]) == rows.values[0], "the first read")
        figures["restart"] = perf_counter() - started
        check(len(state.stores["events"]) == records + _PUTS, "records after the restart")
        state.close()
    return figures


def shard_commit(folder: str, rows: int, commits: int) -> float:
    """Return the seconds that a shard of a Spark operator takes to publish a version of `rows` changes.

    For a fresh process.
    """
    with scratch(Path(folder)) as place:
        provider = StateStoreProvider(
            StateStoreId(str(place), "bench", 0), claim=begin(operator_storage(place, "bench"), 0)
        )
        version, spent = 0, 0.0
        for turn in range(commits + 1):
            store = provider.get_store(version)
            state = store.key_value("state")
            for i in range(rows):
                state.put(f"key-{i:06d}", turn.to_bytes(16, "big"))
            started = perf_counter()
            version = store.commit()
            if turn:
                spent += perf_counter() - started
        provider.close()
    return spent / commits


def measure(folder: Path, sizes: list[int], repeats: int = 3) -> Result:
    """Measure all sizes in turn."""
    result = Result("scale", {"sizes": ", ".join(f"{size:,}" for size in sizes), "runs": repeats})
    units = {
        "put": "ns",
        "fetch": "µs",
        "memory": "B/record",
        "full checkpoint": "ns",
        "incremental checkpoint": "µs",
        "restart": "ms",
    }
    with stopwatch() as clock:
        runs: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for _ in range(repeats):
            for size in sizes:
                runs[size].append(
                    fresh_process.call("benchmarks.suites.scale:one_size", folder=str(folder), records=size)
                )
        for name, unit in units.items():
            base = Spread(tuple(run[name] for run in runs[sizes[0]]))
            for size in sizes:
                spread = Spread(tuple(run[name] for run in runs[size]))
                result.lines.append(line(f"{name}, {size:,} records", spread, unit, base=base, against=f"{sizes[0]:,}"))
        commits = [
            fresh_process.call("benchmarks.suites.scale:shard_commit", folder=str(folder), rows=100, commits=50)
            for _ in range(repeats)
        ]
        result.lines.append(line("commit of a Spark shard, 100 rows", Spread(tuple(commits)), "ms"))
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What a record costs as the state grows.")
    parser.add_argument("--sizes", default="10000,100000,1000000")
    asked = parser.parse_args()
    show(measure(Path(gettempdir()), [int(size) for size in asked.sizes.split(",")]))


if __name__ == "__main__":
    main()
