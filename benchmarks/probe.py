"""Probe: the same few measurements on whatever hybridstore is imported; `compare` runs it on two versions of it.

It is run as a file and uses nothing of this package but the public API, so that an older version can be measured by a
newer probe. Prints one JSON object: name -> seconds of processor time for one record or one call; what other processes
take from the machine is then not in it.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
from datetime import timedelta
from inspect import signature
from pathlib import Path
from time import process_time
from typing import Any

import hybridstore as hs

START = 1_700_000_000_000


def _state(folder: Path) -> Any:
    # the name of the option in this tree, and before
    option = "checkpoints" if "checkpoints" in signature(hs.open).parameters else "checkpoint"
    never: dict[str, Any] = {option: hs.CheckpointPolicy(max_restore=timedelta(days=1))}
    return hs.open(folder, durability="os", progress=lambda *_: None, **never)


def measure(folder: Path, records: int) -> dict[str, float]:
    """Measure puts, batches, searches, suppression, sliding windows, a checkpoint and a restart, each once."""
    dice = random.Random(1)
    names = [f"key-{i:05d}" for i in range(1000)]
    keys = dice.choices(names, k=records)
    times = [START + i for i in range(records)]
    values = [i.to_bytes(16, "big") for i in range(records)]
    seconds: dict[str, float] = {}
    gc.collect()
    gc.freeze()

    def timed(name: str, started: float, count: int = records) -> None:
        seconds[name] = (process_time() - started) / count

    with _state(folder / "single") as state:
        window, profiles = state.window("w", retention=records + 1), state.key_value("k")
        visits = state.session("s", retention=records + 1)
        # each with its commit: what a put leaves to another thread is done when the commit returns
        started = process_time()
        for row in zip(keys, values, times, strict=True):
            window.put(*row)
        state.commit()
        timed("window.put", started)
        started = process_time()
        for key, value in zip(keys, values, strict=True):
            profiles.put(key, value)
        state.commit()
        timed("key_value.put", started)
        started = process_time()
        for key, value, ts in zip(keys, values, times, strict=True):
            visits.put(key, value=value, start=ts, end=ts)  # by name: this also runs on older versions
        state.commit()
        timed("session.put", started)
        started = process_time()
        for key, value in zip(keys[:100], values, strict=False):
            profiles.put(key, value)
            state.commit()
        timed("commit", started, 100)
        started = process_time()
        near = sum(
            len(list(visits.find_sessions(key, ts - 500, ts + 500))) for key, ts in zip(keys, times, strict=True)
        )
        timed("session.find_sessions", started)
        assert near >= records
        buffer, load = (
            state.suppression("h", time_limit=records // 10 + 1),
            state.sliding("l", size=records // 10 + 1, aggregator=hs.Sum()),
        )
        started = process_time()
        emitted = sum(len(buffer.put(key, value, ts)) for key, value, ts in zip(keys, values, times, strict=True))
        state.commit()
        timed("suppression.put", started)
        started = process_time()
        for key, ts in zip(keys, times, strict=True):
            load.add(key, 1, ts)
        state.commit()
        timed("sliding.add", started)
        assert emitted + buffer.num_records <= records
    with _state(folder / "batch") as state:
        window, profiles = state.window("w", retention=records + 1), state.key_value("k")
        started = process_time()
        window.put_columns(keys, values, times)
        state.commit()
        timed("window.put_columns", started)
        started = process_time()
        profiles.put_columns(keys, values)
        state.commit()
        timed("key_value.put_columns", started)
        ranges = [(dice.choice(names), START + dice.randrange(records)) for _ in range(500)]
        started = process_time()
        rows = sum(len(list(window.fetch(key, ts, ts + records // 10))) for key, ts in ranges)
        timed("window.fetch", started, len(ranges))
        started = process_time()
        count = sum(1 for _ in window.all())
        timed("window.all", started)
        assert count == records
        assert rows > 0
        started = process_time()
        state.checkpoint(wait=True)
        timed("checkpoint", started)
        for key, ts in ranges:
            window.put(key, b"tail", START + records + ts % 1000)
        state.commit()
    started = process_time()
    state = _state(folder / "batch")
    state.stores["k"].get(names[0])
    timed("restart", started, 1)
    started = process_time()
    for store in state.stores.values():
        while store.warm():
            pass
    timed("full load", started)
    assert dict(state.stores["k"].all()) == dict(zip(keys, values, strict=True))
    state.close()
    return seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hybridstore-bench-") as place:
        print(json.dumps(measure(Path(place), int(sys.argv[1]))))
