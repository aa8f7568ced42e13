"""A query that runs for long: latency, memory and files of a thousand small batches stay flat.

    python -m benchmarks.suites.soak --batches 1000 --master "local[8]" --placement auto
    python -m benchmarks.suites.soak --batches 400 --master "local-cluster[2,1,1024]" --shards 4 --kill-every 20
    python -m benchmarks.suites.soak --batches 2000 --master "local[2]" --shards 4 --rows 100 --keys 20000 \
        --memory-limit 1000000 --cycles 200

Prints a line for every hundred batches and a verdict: the last hundred against the third (until then files gather). The
answers of the last batch are compared with a count in plain Python. A machine that does other work besides makes
latencies of no use: memory and files still tell. Memory is what Python's processes have allocated; pages of files that
they have mapped (libraries, packs) are told apart, because those depend on what else maps these files. With
`--kill-every` one of these processes ends by signal 9 now and then, at any moment of a batch (`make soak` runs this for
hours, with other jobs: soak_hours.py). With `--cycles` the program makes garbage that refers to itself, as programs of
users do, and that only Python's collector frees.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from operator import sub
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from benchmarks.suites.scale_out import MARK, memory, our_processes
from benchmarks.suites.spark import settings_of
from benchmarks.suites.wrapped import Wrapped
from hybridstore.clock import Watermark
from hybridstore.spark.contract import Runner
from hybridstore.state.group import StoreGroup

ROOT = Path(__file__).resolve().parent.parent.parent
STEP = 100
# what the last hundred batches may be of the third hundred
FLAT = 1.25


class Untidy(Wrapped):
    """`program`, whose runner leaves `cycles` objects behind after each batch that refer to themselves."""

    def __init__(self, program: Any, cycles: int) -> None:
        super().__init__(program)
        self.cycles = cycles

    def open(self, group: StoreGroup) -> UntidyRunner:
        """Open the program on a shard."""
        return UntidyRunner(self.inner.open(group), self.cycles)


class UntidyRunner(Wrapped):
    """A program's runner that leaves garbage after each batch: 10 lists each, about 1 kB."""

    def __init__(self, runner: Runner, cycles: int) -> None:
        super().__init__(runner)
        self._cycles = cycles

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        """Process, then leave garbage."""
        answer = self.inner.process(table, output, watermark)
        for _ in range(self._cycles):
            parts: list[Any] = [[] for _ in range(10)]
            for part in parts:
                part.append(parts)
        return answer


def write_input(folder: Path, batches: int, rows: int, keys: int) -> Counter[str]:
    """Write a file for each batch, and return how often every key comes."""
    choose, total = random.Random(1), Counter[str]()
    for number in range(batches):
        chosen = [f"key{choose.randrange(keys)}" for _ in range(rows)]
        total.update(chosen)
        path = folder / f"{number:05d}.json"
        path.write_text("".join(json.dumps({"k": k, "v": 1}) + "\n" for k in chosen), encoding="utf-8")
        os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
    return total


def soak(folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Run the query and return, for every hundred batches, latency (ms, median), memory (MB), files, loads that found
    the shard in memory (%).
    """
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    os.environ[MARK] = str(os.getpid())
    sys.path.insert(0, str(ROOT))
    from tests.tools.spark_programs import RunningCount

    (folder / "in").mkdir()
    expected = write_input(folder / "in", asked.batches, asked.rows, asked.keys)
    builder = SparkSession.builder.master(asked.master).config("spark.local.dir", str(folder))
    for name, value in settings_of("hybridstore").items():
        builder = builder.config(name, value)
    builder = builder.config(f"spark.executorEnv.{MARK}", os.environ[MARK])
    session = hsp.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    checkpoint = folder / "checkpoint"
    series: dict[str, list[float]] = {name: [] for name in ("latency", "memory", "mapped", "files", "hits")}
    answer: dict[str, int] = {}
    kinds: Counter[str] = Counter()
    moments = [perf_counter()]
    dice, kills = random.Random(2), list[threading.Timer]()

    def kill() -> None:
        victims = sorted(pid for pid, kind in our_processes().items() if kind == "python")
        if victims:
            with suppress(ProcessLookupError):  # one that has just ended
                os.kill(dice.choice(victims), signal.SIGKILL)

    def sink(batch: Any, number: int) -> None:
        for row in batch.collect():
            answer[row["k"]] = row["n"]
        moments.append(perf_counter())
        if asked.kill_every and (number + 1) % asked.kill_every == 0:
            kills.append(threading.Timer(dice.random(), kill))
            kills[-1].start()
        kinds.update(shard["load"] for shard in hsp.metrics(checkpoint))
        if (number + 1) % STEP == 0:
            series["latency"].append(1000 * statistics.median(map(sub, moments[-STEP:], moments[-STEP - 1 : -1])))
            series["memory"].append(memory("Pss_Anon"))
            series["mapped"].append(memory("Pss_File"))
            series["files"].append(sum(len(files) for _, _, files in os.walk(checkpoint / "hybridstore")))
            worked = sum(kinds.values()) - kinds["none"]
            series["hits"].append(100 * kinds["hit"] / worked)
            kinds.clear()
            print(
                f"  {number + 1} batches: { ({name: round(all_[-1], 1) for name, all_ in series.items()}) }", flush=True
            )

    df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    program: Any = Untidy(RunningCount(), asked.cycles) if asked.cycles else RunningCount()
    answers = hsp.apply_program(
        df,
        program,
        name="soak",
        location=str(checkpoint),
        shards=asked.shards,
        placement=asked.placement,
        memory_limit=asked.memory_limit,
    )
    writer = answers.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    for each in kills:
        each.join()
    session.stop()
    print(f"  {len(kills)} processes killed")
    if answer != dict(expected):
        raise SystemExit("WRONG: the counts of the last batch of each key are not those of a plain count")
    return series


def main() -> int:
    """Run from the command line; exit code 1 when something grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--master", default="local[8]")
    parser.add_argument("--placement", default="auto")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=500, help="rows of a batch")
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--memory-limit", type=int, help="bytes that the shards of one process may hold")
    parser.add_argument("--kill-every", type=int, default=0, help="batches between kills of a Python process; 0: none")
    parser.add_argument("--cycles", type=int, default=0, help="objects that refer to themselves, per shard and batch")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        series = soak(Path(folder), asked)
    growing = 0
    for name, unit in (
        ("latency", "ms of a batch, median"),
        ("memory", "MB that Python's processes have allocated"),
        ("files", "files"),
    ):
        values = series[name]
        ratio = values[-1] / values[min(2, len(values) - 1)]
        growing += ratio > FLAT
        print(
            f"{unit}: {' '.join(f'{value:,.0f}' for value in values)}; "
            f"the last to the third: {ratio:.2f} (flat: at most {FLAT})"
        )
    for name, unit in (("mapped", "MB of files that they have mapped"), ("hits", "loads that are hits, %")):
        print(f"{unit}: {' '.join(f'{value:.0f}' for value in series[name])}")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
