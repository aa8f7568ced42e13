"""Packs: what an incremental checkpoint and an attach cost as the state grows, beside another tree of this project.

    python -m benchmarks.suites.packs [--sizes 100000,1000000] [--beside DIR]
                                      [--only incremental,attach,simulated,random,ready]

`--beside` names a checkout (of the old format, say); the same workload then runs there, too, in a process of its own.
This file therefore uses what both have: `hybridstore.open` and the files that it leaves. Times are processor time
unless said.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import hybridstore as hs

CHANGED = 100_000
ROUNDS = 4
BATCH = 10_000
NEVER = hs.CheckpointPolicy(every_commits=None)


def opened(path: Path, block_records: int = 4096, **options: Any) -> Any:
    """Open a state that makes no checkpoint of its own accord, in either tree."""
    try:
        from hybridstore.state.opening import Tuning
    except ImportError:
        tuning: Any = {"block_records": block_records}
    else:
        tuning = Tuning(block_records=block_records)
    if "at" not in options:
        options |= {"checkpoints": NEVER, "durability": "os"}
    return hs.open(path, _tuning=tuning, **options)


def put(store: Any, state: Any, first: int, last: int, keys: int) -> None:
    """Put records `first` to `last` in time order, each key in its turn, 16 bytes a value."""
    for start in range(first, last, BATCH):
        numbers = range(start, min(start + BATCH, last))
        store.put_columns([f"key-{i % keys:08d}" for i in numbers], [b"%016d" % i for i in numbers], list(numbers))
        state.commit()


def sizes(path: Path) -> dict[tuple[str, int, int], int]:
    """Return the bytes of the files of checkpoints, by what changes when one is written anew."""
    files = [file for name in ("checkpoints", "packs") for file in (path / name).glob("*")]
    return {(file.name, file.stat().st_ino, file.stat().st_mtime_ns): file.stat().st_size for file in files}


def packed_bytes(state: Any) -> int:
    """Return the bytes of the blocks that the last checkpoint packed."""
    checkpoints = getattr(state, "_checkpoints", None)
    report = state._last_checkpoint if checkpoints is None else checkpoints.last
    return int(report.bytes_packed)


def incremental(folder: Path, records: int) -> dict[str, float]:
    """Hold `records` by time, and checkpoint 100,000 more, several times over."""
    path = folder / "state"
    keys = max(10, records // 100)
    seconds, clock, written, packed = [], [], [], []
    with opened(path) as state:
        store = state.window("events", retention=records + ROUNDS * CHANGED)
        put(store, state, 0, records, keys)
        state.checkpoint(wait=True)
        for turn in range(ROUNDS):
            put(store, state, records + turn * CHANGED, records + (turn + 1) * CHANGED, keys)
            before = sizes(path)
            started, wall = process_time(), perf_counter()
            state.checkpoint(wait=True)
            seconds.append(process_time() - started)
            clock.append(perf_counter() - wall)
            written.append(sum(size for file, size in sizes(path).items() if file not in before))
            packed.append(packed_bytes(state))
    return {
        "processor ns for each changed record": statistics.median(seconds) / CHANGED * 1e9,
        "ms by the clock": statistics.median(clock) * 1e3,
        "MB written": statistics.median(written) / 1e6,
        "bytes written / bytes of changed blocks": sum(written) / sum(packed),
    }


def attach(folder: Path, records: int, block_records: int) -> dict[str, float]:
    """Hold `records` by time, in blocks of so many, and open the state again and again."""
    path = folder / "state"
    with opened(path, block_records) as state:
        put(state.window("events", retention=2 * records), state, 0, records, max(10, records // 100))
        state.checkpoint(wait=True)
        state.close()
    seconds, cpu = [], []
    for _ in range(15):
        started = process_time()
        with opened(path, at="newest") as state:
            cpu.append(process_time() - started)
            seconds.append(state.restore_report.attach_ms / 1000)
    return {
        "ms, median": statistics.median(seconds) * 1e3,
        "ms, best": min(seconds) * 1e3,
        "processor ms of the whole opening": statistics.median(cpu) * 1e3,
        "bytes of the index / of the state": index_share(path),
    }


def index_share(path: Path) -> float:
    """Return the share of the newest index, where the format has packs; else 0."""
    newest = max((path / "checkpoints").glob("*.lmdb"))
    packs = sum(file.stat().st_size for file in (path / "packs").glob("*"))
    return newest.stat().st_size / packs if packs else 0.0


def ready(folder: Path, records: int) -> dict[str, float]:
    """Hold `records`, and a tail of 20,000; open, get one record and put one."""
    path = folder / "state"
    state = opened(path)
    store = state.window("events", retention=2 * records)
    put(store, state, 0, records, records // 100)
    state.checkpoint(wait=True)
    put(store, state, records, records + 20_000, records // 100)
    state.close()
    clock, cpu = [], []
    for _ in range(7):
        copy = folder / "copy"
        shutil.copytree(path, copy)
        started, wall = process_time(), perf_counter()
        with opened(copy) as state:
            store = state.stores["events"]
            if store.get("key-00000000", 0) != b"%016d" % 0:
                raise AssertionError("the first read")
            store.put("key-00000000", b"new", records + 20_000)
            cpu.append(process_time() - started)
            clock.append(perf_counter() - wall)
        shutil.rmtree(copy)
    return {
        "ms by the clock, median": statistics.median(clock) * 1e3,
        "ms by the clock, best": min(clock) * 1e3,
        "processor ms": statistics.median(cpu) * 1e3,
    }


def random_updates(folder: Path, records: int) -> dict[str, float]:
    """Update 1 % of the keys of a key-value store, anywhere, between checkpoints: the worst there is for blocks."""
    path = folder / "state"
    dice = random.Random(1)
    written = 0
    with opened(path) as state:
        store = state.key_value("keys")
        for start in range(0, records, BATCH):
            part = range(start, start + BATCH)
            store.put_columns([f"key-{i:08d}" for i in part], [b"%016d" % i for i in part])
            state.commit()
        state.checkpoint(wait=True)
        whole = sum(sizes(path).values())
        for turn in range(20):
            keys = dice.sample(range(records), records // 100)
            store.put_columns([f"key-{i:08d}" for i in keys], [b"%016d" % turn] * len(keys))
            state.commit()
            before = sizes(path)
            state.checkpoint(wait=True)
            written += sum(size for file, size in sizes(path).items() if file not in before)
    return {
        "bytes written / bytes of changed records": written / (20 * whole / 100),
        "bytes written / bytes of the state, each checkpoint": written / 20 / whole,
        "files of packs": len(list((path / "packs").glob("*"))),
        "bytes on disk / bytes of the state": sum(sizes(path).values()) / whole,
    }


def simulated(folder: Path, records: int) -> dict[str, float]:
    """Attach a directory of as many blocks of 256 as `records` would take, in a window store of 64 buckets and 60
    packs.
    """
    from changelog.identity import Identity
    from changelog.segment import Position
    from changelog.storage import LocalStorage
    from hybridstore.state.group import StoreGroup
    from recovery import index
    from recovery.block import BlockEntry
    from recovery.checkpoint import CheckpointReader
    from recovery.directory import PAGE_LINES, encode_top, page_entry
    from recovery.ladder import attach as attach_stores
    from recovery.layout import CheckpointName
    from recovery.meta import CheckpointMeta, StoreRecord, encode_meta, index_hash
    from recovery.pack import PackWriter

    storage = LocalStorage(folder)
    writer = PackWriter(storage, 1, 1)
    for _ in range(60):
        writer.add(1, 1, bytes(100))
        writer.finish()
    group = StoreGroup(lambda body: None)
    store = group.open("events", "window", _window_parameters(folder))
    blocks = records // 256
    in_bucket = -(-blocks // 64)
    pages = []
    for bucket in range(64):
        for start in range(0, in_bucket, PAGE_LINES):
            lines = [
                BlockEntry(
                    i,
                    bucket,
                    f"key-{i:09d}",
                    f"key-{i + 1:09d}",
                    256,
                    256,
                    8000,
                    bucket,
                    bucket,
                    bytes(16),
                    1 + i % 60,
                    i,
                )
                for i in range(start, min(start + PAGE_LINES, in_bucket))
            ]
            pages.append(page_entry(lines, 1, 16, 40_000, bytes(16)))
    state = {"stream_time": 100, "key": ["str"], "width_ms": 1 << 30}
    record = StoreRecord(1, "events", "window", store.parameters, state, blocks, records, records * 30)
    meta = CheckpointMeta(Identity(bytes(16)), 1, bytes(16), Position(0, 0, 0), 0, {}, [record], writer.packs)
    data = index.encode({index.META_KEY: encode_meta(meta), index.top_key(1): encode_top(pages)})
    name = CheckpointName(1, 0, index_hash(data))
    storage.create(str(name), data)
    seconds = []
    for _ in range(15):
        started = process_time()
        attach_stores(CheckpointReader(storage, name), group)
        seconds.append(process_time() - started)
    return {
        "processor ms, median": statistics.median(seconds) * 1e3,
        "processor ms, best": min(seconds) * 1e3,
        "pages": len(pages),
        "KB of the index": len(data) / 1e3,
    }


def _window_parameters(folder: Path) -> dict[str, Any]:
    with hs.open(folder / "parameters") as state:
        parameters: dict[str, Any] = state.window("events", retention=1 << 36).parameters
        return parameters


FUNCTIONS = {f.__name__: f for f in (incremental, attach, ready, random_updates, simulated)}


def in_tree(tree: Path, function: str, *arguments: int) -> dict[str, float]:
    """Run one of the functions in a process of its own that has `tree` first on its path."""
    with tempfile.TemporaryDirectory(prefix="hybridstore-bench-") as folder:
        answer = subprocess.run(
            [sys.executable, __file__, "--run", function, folder, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(tree)},
            cwd=tree,
            capture_output=True,
            text=True,
        )
    if answer.returncode:
        raise RuntimeError(f"{function}{arguments} in {tree}: {answer.stderr.strip().splitlines()[-1:]}")
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What checkpoints in packs cost, beside another tree.")
    parser.add_argument("--run", nargs=argparse.REMAINDER)
    parser.add_argument("--sizes", default="100000,1000000,10000000")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--only", default="incremental,attach,ready,random_updates,simulated")
    asked = parser.parse_args()
    if asked.run:
        function, folder, *arguments = asked.run
        print(json.dumps(FUNCTIONS[function](Path(folder), *map(int, arguments))))
        return
    numbers = [int(size) for size in asked.sizes.split(",")]
    largest = max(numbers)
    cases: list[tuple[str, tuple[int, ...]]] = [("incremental", (size,)) for size in numbers]
    cases += [("attach", (largest, 256)), ("attach", (largest, 4096)), ("ready", (largest // 2,))]
    cases += [("random_updates", (min(largest, 1_000_000),)), ("simulated", (100_000_000,))]
    here = Path(__file__).resolve().parents[2]
    print("| | here | beside | |\n| --- | ---: | ---: | ---: |")
    for function, arguments in cases:
        if function not in asked.only.split(","):
            continue
        mine = in_tree(here, function, *arguments)
        other = in_tree(asked.beside, function, *arguments) if asked.beside and function != "simulated" else {}
        for what, figure in mine.items():
            beside = other.get(what)
            ratio = f"{figure / beside:.3g}x" if beside else ""
            shown = "" if beside is None else f"{beside:,.3g}"
            print(f"| {function} {arguments}: {what} | {figure:,.3g} | {shown} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
