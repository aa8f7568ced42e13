"""Restore benchmark: how long a restart takes, by phase, against a full replay and against other engines with the same
records.

    open          `hybridstore.open`: everything below, and the changelog made ready for writing
      attach      the checkpoint mapped and its directory read        tail   the changelog behind it replayed
    first read    one value, from a block that nobody touched         first write   one put
    ready         open + first read + first write
    full load     every block, one after the other; `slice` is the longest single one, in processor time (others share
                  the machine) (of a window store; for key-value stores see `full_load`)
    derived       the aggregates of a sliding store rebuilt from its values, at the first touch of each key

Each run is a process of its own, which has imported its modules; engines take turns. What was loaded is compared with
what was put, or there is no figure.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final

import hybridstore
from benchmarks.measure import fresh_process
from benchmarks.measure.content import columns_of, fingerprint, per_key
from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.state import NEVER, evict_from_cache, fill, open_state, scratch, size_of, window_of
from benchmarks.measure.timing import Spread, check, stopwatch
from benchmarks.measure.workload import Stream
from benchmarks.suites import full_load, peers
from hybridstore.stores.kinds import KINDS

PHASES: Final = ("open", "attach", "tail", "first_read", "first_write", "ready", "load", "slice", "derived")
KEYS: Final = 1000
_DERIVED: Final = 50_000


def stream_of(records: int, value_size: int, store: int = 0) -> Stream:
    """Return the stream of one store of the benchmark."""
    return Stream(records, keys=min(KEYS, records), value_size=value_size, late=0.05, seed=store + 1)


def build(folder: Path, records: int, value_size: int, tail: int, stores: int, derived: int) -> None:
    """Make a state of `records` in `stores` window stores and a checkpoint; the last `tail` records are only in the
    changelog.
    """
    streams = [stream_of(records // stores, value_size, i) for i in range(stores)]
    with open_state(folder) as state:
        later = []
        for i, stream in enumerate(streams):
            rows = stream.rows()
            split = len(rows.keys) - tail // stores
            store = window_of(state, stream, f"events-{i}")
            fill(store, rows.part(0, split), state)
            later.append((store, rows.part(split, len(rows.keys))))
        if derived:
            sliding = state.sliding("load", size=derived, aggregator=hybridstore.Sum())
            rows = Stream(derived, keys=min(100, derived), shape="sparse", seed=99).rows()
            sliding.add_columns(rows.keys, list(range(derived)), rows.times)
            state.commit()
        state.checkpoint(wait=True)
        for store, rows in later:
            # one by one, so that the tail holds a mutation for each
            for row in zip(*rows, strict=True):
                store.put(*row)
            state.commit()
        # no end mark: a restart after a crash
        state._abandon()


def restart(folder: str, stores: int, key: str, ts: int, derived: int) -> dict[str, Any]:
    """Open a state, read, write, load all; return the seconds of each phase and what was found. For a fresh process."""
    for kind in KINDS.values():
        kind.store_class()
    gc.collect()
    before, read_before = fresh_process.peak_bytes(), fresh_process.bytes_read()
    started = perf_counter()
    state = hybridstore.open(folder, durability="os", checkpoints=NEVER, progress=lambda *_: None)
    opened = perf_counter()
    group = state.stores
    first = group["events-0"]
    value = first.get(key, ts)
    read = perf_counter()
    first.put(key, b"written after the restart", ts)
    ready = perf_counter()
    first.put(key, value, ts)  # as it was: what is loaded is compared with what was put
    longest = 0.0
    loading = perf_counter()
    gc.disable()
    for store in group.values():
        while True:
            started_block = thread_time()
            if not store.warm():
                break
            longest = max(longest, thread_time() - started_block)
    loaded = perf_counter()
    gc.enable()
    asked, disk = (b - a for a, b in zip(read_before, fresh_process.bytes_read(), strict=True))
    peak = fresh_process.peak_bytes() - before
    rebuilt = 0.0
    if derived:
        sliding = state.sliding("load", size=derived, aggregator=hybridstore.Sum())
        with stopwatch() as clock:
            sums = dict(sliding.aggregates())
        rebuilt = clock.seconds
        check(len(sums) > 0, "no aggregate came back")
    total = 0
    for i in range(stores):
        store = group[f"events-{i}"]
        names = {name for (name, _), _ in store.all()}
        total += fingerprint(columns_of({name: list(store.fetch(name)) for name in names}))
    report = state.restore_report
    state._abandon()
    return {
        "open": opened - started,
        "attach": report.attach_ms / 1000,
        "tail": report.tail_ms / 1000,
        "first_read": read - opened,
        "first_write": ready - read,
        "ready": ready - started,
        "load": loaded - loading,
        "slice": longest,
        "derived": rebuilt,
        "total": loaded - started,
        "peak": peak,
        "asked": asked,
        "disk": disk,
        "fingerprint": total % 2**64,
        "value": value.hex(),
        "version": report.version,
    }


def _replay(folder: str, stores: int, key: str, ts: int) -> dict[str, Any]:
    """The same after the checkpoints are gone: the changelog alone. For a fresh process."""
    return restart(folder, stores, key, ts, 0)


def _sum_of(records: int, value_size: int, stores: int) -> int:
    total = 0
    for i in range(stores):
        state = per_key(stream_of(records // stores, value_size, i).rows())
        total += fingerprint((key, times, values) for key, (times, values) in state.items())
    return total % 2**64


def measure(
    folder: Path,
    *,
    records: int,
    value_size: int = 16,
    tail: int = 20_000,
    stores: int = 1,
    cold: bool = False,
    baselines: bool = True,
    repeats: int = 5,
    derived: bool = True,
) -> Result:
    """Measure one size. Raises WrongAnswerError when any engine restores something else than was put."""
    tail = min(tail, records // 2)
    settings = {
        "records": records,
        "value_size": value_size,
        "tail": tail,
        "stores": stores,
        "cache": "cold" if cold else "warm",
        "runs": repeats,
    }
    result = Result("restore", settings)
    with scratch(folder) as place, stopwatch() as clock:
        _measure(result, place, records, value_size, tail, stores, cold, baselines, repeats, derived)
        if stores == 1 and value_size == 16 and not cold:
            result.lines += full_load.lines(place, records, repeats)
    result.seconds = clock.seconds
    return result


def _measure(
    result: Result,
    place: Path,
    records: int,
    value_size: int,
    tail: int,
    stores: int,
    cold: bool,
    baselines: bool,
    repeats: int,
    derived: bool,
) -> None:
    state, log = place / "state", place / "log"
    extra = min(_DERIVED, records) if derived else 0
    build(state, records, value_size, tail, stores, extra)
    expected = _sum_of(records, value_size, stores)
    rows = stream_of(records // stores, value_size, 0).rows()
    # the record to read first: in the checkpoint, and the last that was put under its key and time
    at = max(0, (len(rows.keys) - tail) // 3)
    key, ts = rows.keys[at], rows.times[at]
    value = dict(zip(zip(rows.keys, rows.times, strict=True), rows.values, strict=True))[key, ts].hex()
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "hybridstore": lambda: fresh_process.call(
            f"{__name__}:restart", folder=str(state), stores=stores, key=key, ts=ts, derived=extra
        )
    }
    places = {"hybridstore": state}
    if baselines:
        build(log, records, value_size, tail, stores, 0)
        for file in (log / "checkpoints").iterdir():
            file.unlink()
        places["replay"] = log
        runs["replay"] = lambda: fresh_process.call(
            f"{__name__}:_replay", folder=str(log), stores=stores, key=key, ts=ts
        )
        for peer in peers.PEERS:
            if why := peers.missing(peer):
                result.notes.append(why)
                continue
            if cold and peer in peers.CRASHED:
                continue  # its files are copied before each run, which warms them
            if stores > 1:
                result.notes.append(f"{peer} is left out: its files are built for one store")
                continue
            places[peer] = place / peer
            peers.build(peer, places[peer], stream_of(records, value_size), tail)
            runs[peer] = partial(_restart_peer, peer, places[peer], key, ts)
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if cold and not evict_from_cache(places[name]):
                result.notes.append("the cache cannot be emptied on this system: figures are warm")
                cold = False
            answer = run()
            check(answer["value"] == value, f"{name}: the first read")
            check(answer["fingerprint"] == expected, f"{name}: what was loaded is not what was put")
            answers[name].append(answer)
    _add_lines(result, answers, {name: size_of(path) for name, path in places.items()}, records)


def _restart_peer(peer: str, folder: Path, key: str, ts: int) -> Any:
    modules = ["rocksdict"] if peer.startswith("rocksdb") else []
    place = folder
    if peer in peers.CRASHED:
        place = folder.with_name(f"{folder.name}-run")
        shutil.copytree(folder, place)
    try:
        return fresh_process.call(
            "benchmarks.suites.peers:restart", peer=peer, folder=str(place), key=key, ts=ts, modules=modules
        )
    finally:
        if place != folder:
            shutil.rmtree(place)


def _spread(runs: list[dict[str, Any]], phase: str) -> Spread:
    return Spread(tuple(float(run[phase]) for run in runs))


def _add_lines(result: Result, answers: dict[str, list[dict[str, Any]]], sizes: dict[str, int], records: int) -> None:
    ours = answers["hybridstore"]
    lines = result.lines
    # what the targets speak of: small values, files in the kernel's cache
    usual = result.settings["value_size"] == 16 and result.settings["cache"] == "warm"
    for phase in PHASES:
        spread = _spread(ours, phase)
        if phase == "derived" and not any(spread.samples):
            continue
        target = {"ready": Target(25, "value"), "attach": Target(3, "value"), "slice": Target(5, "value")}.get(phase)
        if phase == "ready" and not usual:
            target = None
        lines.append(line(f"hybridstore: {phase.replace('_', ' ')}", spread, "ms", target=target))
    load = _spread(ours, "load")
    # the tail is in memory before
    loaded = records - result.settings["tail"]
    speed = Spread(tuple(loaded / seconds / 1e6 for seconds in load.samples))
    bound = Target(8, "value", at_least=True) if usual and records >= 100_000 else None
    lines.append(line("hybridstore: full load", speed, "M records/s", target=bound))
    for name, runs in answers.items():
        if name != "hybridstore":
            lines.append(_peer(name, runs, ours, "ready", "to the first read and write"))
            lines.append(_peer(name, runs, ours, "total", "to everything in memory"))
        peak, disk = _spread(runs, "peak").scaled(1e-6), _spread(runs, "disk").scaled(1e-6)
        lines.append(line(f"{name}: peak memory beyond a bare start", peak, "MB"))
        # what is mapped comes without a call, so that this is not all that was looked at
        lines.append(line(f"{name}: read by calls", _spread(runs, "asked").scaled(1e-6), "MB"))
        if result.settings["cache"] == "cold":
            lines.append(line(f"{name}: read from disk", disk, "MB"))
        lines.append(line(f"{name}: files", Spread((sizes[name] / 1e6,)), "MB"))


def _peer(name: str, runs: list[dict[str, Any]], ours: list[dict[str, Any]], phase: str, what: str) -> Line:
    return line(f"{name}: {what}", _spread(runs, phase), "ms", base=_spread(ours, phase), against="ours")
