"""State as data: forks, pins and erases of a large state, plain and of a Spark operator in four shards, and `arrow()`.

    python -m benchmarks.suites.state_as_data [--parts plain,spark,arrow] [--records 5000000] [--shapes dicts,lists]

    plain, spark    a fork, a pin, an erase of a key behind 1,000 changes, one behind a checkpoint, a proof: each in a
                    process that has done such a thing before, the first one apart (ms of the clock, of the processor)
    arrow           records for each second of processor time of `hs.inspect(state)[store].arrow()`, by shape of values

Each state is built once. Every answer is checked: what a fork has, that an erased key is absent and others are not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import hybridstore as hs
from benchmarks.measure.timing import WrongAnswerError

BATCH = 100_000
CHANGES = 1_000
TURNS = 5
SHARDS = 4
SMALL_BATCHES = 10
GOALS = {"fork ms": 50.0, "pin ms": 50.0, "erase ms": 2_000.0, "arrow records/s": 4_000_000.0}
SHAPES: dict[str, Callable[[int], Any]] = {
    "whole numbers": lambda i: i,
    "texts": lambda i: f"value {i % 1000}",
    "dicts": lambda i: {"n": i, "at": i * 0.5, "name": f"user {i % 1000}"},
    "several shapes": lambda i: {"n": i, "name": "a"} if i % 3 else {"n": i, "name": "a", "more": i * 0.5},
    "inner dict": lambda i: {**{f"f{j}": i + j for j in range(6)}, "name": "a", "inner": {"a": i, "b": 0.5}},
    "German keys": lambda i: {"größe": i, "höhe": i * 0.5, "straße": f"weg {i % 1000}"},
    "lists": lambda i: [i, i + 1, i + 2],
}
_POLICY = hs.CheckpointPolicy(every_commits=None)


def key_of(number: int) -> str:
    """Return the key of a record."""
    return f"user-{number:09d}"


def parts_of(records: int) -> Iterator[range]:
    """Yield the records of each batch."""
    yield from (range(start, min(start + BATCH, records)) for start in range(0, records, BATCH))


def build(path: Path, records: int, value_of: Callable[[int], Any]) -> None:
    """Write a state with this many records, its checkpoint, and a commit behind it, as a running job has."""
    with hs.open(path, checkpoints=_POLICY, durability="os") as state:
        users = state.key_value("users")
        for part in parts_of(records):
            users.put_columns([key_of(i) for i in part], [value_of(i) for i in part])
            state.commit()
        state.checkpoint(wait=True)
        users.put(key_of(0), value_of(0))
        state.commit()


def change(path: Path, records: int) -> None:
    """Commit 1,000 changes all over a state, and no checkpoint."""
    with hs.open(path, checkpoints=_POLICY, durability="os") as state:
        state.key_value("users").put_many({key_of(i): -i for i in range(1, records, max(1, records // CHANGES))})
        state.commit()


def fill(location: Path, records: int) -> None:
    """Run a query of Spark's that counts rows by key in four shards, until each key has state; then small batches, so
    that few rows are behind the newest checkpoint: whoever reads a version replays them, a fork and a pin, too.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    from benchmarks.suites.spark import ROOT, settings_of
    from hybridstore import spark as hsp

    sys.path.insert(0, str(ROOT))
    from tests.tools.spark_programs import RunningCount

    source = location.with_name("source")
    source.mkdir()
    many = 5 * BATCH
    filling = [range(start, min(start + many, records)) for start in range(0, records, many)]
    for number, part in enumerate([*filling, *[range(0, records, max(1, records // CHANGES))] * SMALL_BATCHES]):
        table = pa.table({"k": [key_of(i) for i in part], "v": pa.array([1] * len(part), pa.int64())})
        pq.write_table(table, source / f"{number:09d}")
        os.utime(source / f"{number:09d}", (1_760_000_000 + number,) * 2)
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings_of("hybridstore").items():
        builder = builder.config(name, value)
    session = hsp.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    policy = hs.CheckpointPolicy(every_commits=5)
    rows = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).parquet(str(source))
    frame = hsp.apply_program(
        rows, RunningCount(), name="count", location=str(location), shards=SHARDS, checkpoints=policy
    )
    writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(location)).format("noop")
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()
    shutil.rmtree(source)


def show(name: str, taken: list[tuple[float, float]], goal: float | None) -> None:
    """Print the median of some turns (ms of the clock, of the processor), and the longest; a missed goal is marked."""
    clock, cpu = ([each[at] * 1000 for each in taken] for at in (0, 1))
    missed = goal is not None and statistics.median(clock) >= goal
    text = f"{statistics.median(clock):,.1f} ms, at most {max(clock):,.1f}; processor {statistics.median(cpu):,.1f}"
    print(f"{name}: {text}{'   GOAL MISSED' if missed else ''}", flush=True)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return how long this takes, by the clock and by the processor (s)."""
    clock, cpu = perf_counter(), process_time()
    act()
    return perf_counter() - clock, process_time() - cpu


def check(what: str, answer: object, expected: object) -> None:
    """Raise WrongAnswerError unless an answer is what was expected."""
    if answer != expected:
        raise WrongAnswerError(f"{what}: found {answer!r}, expected {expected!r}")


def measure(name: str, path: Path, records: int, store: str, changing: bool) -> None:
    """Print what forks, pins and erases of a state cost."""

    def has(state: Path, number: int) -> bool:
        shards = hs.inspect(state).shards or {"": hs.inspect(state)}
        return any(shard[store].get(key_of(number)) for shard in shards.values())

    forks, unshared = [], 0
    for turn in range(TURNS):
        new = path.with_name(f"fork-{turn}")
        forks.append(timed(lambda new=new: hs.fork(path, new)))  # type: ignore[misc]
        check("fork", (has(new, 0), has(new, records - 1), has(new, records)), (True, True, False))
        unshared = sum(file.stat().st_size for file in new.rglob("*") if file.is_file() and file.stat().st_nlink == 1)
        shutil.rmtree(new)
    show(f"{name}, fork, the first", forks[:1], None)
    show(f"{name}, fork with {unshared:,} bytes of its own", forks[1:], GOALS["fork ms"])
    pins = []
    for turn in range(TURNS):
        pins.append(timed(lambda turn=turn: hs.pin(path, f"pin-{turn}")))  # type: ignore[misc]
        hs.unpin(path, f"pin-{turn}")
    show(f"{name}, pin", pins, GOALS["pin ms"])
    kinds = ("behind 1,000 changes", "behind a checkpoint") if changing else ("",)
    erased = iter(range(0, records, max(2, records // 100)))
    for kind in kinds:
        taken = []
        for _ in range(TURNS):
            number = next(erased)
            if kind == kinds[0] and changing:
                change(path, records)
            taken.append(timed(lambda number=number: hs.erase(path, key_of(number))))  # type: ignore[misc]
            check("erase", (has(path, number), has(path, number + 1)), (False, True))
        what = f"{name}, erase of a key {kind}".rstrip()
        show(f"{what}, the first", taken[:1], GOALS["erase ms"])
        show(what, taken[1:], GOALS["erase ms"])
    show(f"{name}, proof", [timed(lambda: check("prove", hs.prove(path, key_of(0)).traces, []))], None)


def measure_arrow(root: Path, records: int, shapes: Iterable[str]) -> None:
    """Print how many records `arrow()` reads."""
    for shape in shapes:
        path = root / "arrow"
        build(path, records, SHAPES[shape])
        rates, clocks = [], []
        for _ in range(3):
            count = 0

            def read() -> None:
                nonlocal count
                for batch in hs.inspect(path)["users"].arrow():  # noqa: B023
                    count += batch.num_rows

            clock, cpu = timed(read)
            check("arrow", count, records)
            rates.append(records / cpu)
            clocks.append(records / clock)
        missed = "" if max(rates) >= GOALS["arrow records/s"] else "   GOAL MISSED"
        text = f"{statistics.median(rates):,.0f} records for a second of processor ({max(rates):,.0f} at most)"
        print(f"arrow, {shape}: {text}, {statistics.median(clocks):,.0f} of the clock{missed}", flush=True)
        shutil.rmtree(path)


def main() -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--parts", default="plain,spark,arrow")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    given = parser.parse_args()
    root, parts = Path(tempfile.mkdtemp()), given.parts.split(",")
    print(f"{given.records:,} records; goals: {GOALS}; load {os.getloadavg()[0]:.1f}", flush=True)
    try:
        if "plain" in parts:
            build(root / "plain", given.records, lambda i: i)
            measure("plain", root / "plain", given.records, "users", changing=True)
            shutil.rmtree(root / "plain")
        if "spark" in parts:
            fill(root / "spark", given.records)
            measure("spark", root / "spark", given.records, "counts", changing=False)
            shutil.rmtree(root / "spark")
        if "arrow" in parts:
            measure_arrow(root, given.records, given.shapes.split(","))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
