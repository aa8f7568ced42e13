"""Spark's part of a run of hours: a query whose Python processes are killed, rescaled and changed by quarter.

    python -m benchmarks.suites.soak_spark --seconds 2400

Batches are files that are written as the query takes them. At moments drawn from the seed one process of Python ends by
signal 9. Between quarters the query stops; its state gets 2 shards in place of 4, an aggregate more, 4 shards again.
At the end of each quarter the counts and sums of all keys are compared with those of numpy. soak_hours.py starts this
(`make soak HOURS=`), and gives the verdict on the quarters, which are the last line.
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
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

import hybridstore as hs
from benchmarks.suites.scale_out import MARK, memory, our_processes
from benchmarks.suites.soak_hours import QUARTERS, keys_of
from benchmarks.suites.spark import settings_of
from hybridstore.rescaling.api import remove_old_shards

NAME: Final = "soak"
# Files that wait for the query at most.
AHEAD: Final = 2
# How often the query may fail: by a kill that Spark does not survive, or on a machine that does much besides.
FAILURES: Final = 3
CONSENT: Final = "add aggregate least from now"
# The shards, and whether the program has an aggregate more, in each quarter.
FORMS: Final = ((4, False), (2, False), (2, True), (4, True))


def topology(changed: bool) -> hs.Topology:
    """Return the job; `changed` has an aggregate more."""
    more: dict[str, Any] = {"least": hs.Min("v")} if changed else {}
    return hs.stream(key="k", timestamp="i").aggregate(emit="commit", n=hs.Count(), total=hs.Sum("v"), **more)


def expected_of(rows: int, keys: int) -> dict[int, tuple[int, int]]:
    """Return the count and the sum of each key behind so many rows."""
    numbers = np.arange(rows, dtype=np.int64)
    chosen = np.asarray(keys_of(numbers, keys))
    counts, sums = np.bincount(chosen), np.bincount(chosen, weights=numbers % 1000)
    return {int(key): (int(counts[key]), int(sums[key])) for key in np.flatnonzero(counts)}


class Soak:
    """A query on its state, and what was done to it."""

    def __init__(self, folder: Path, asked: argparse.Namespace, session: Any) -> None:
        self.folder, self.asked, self.session = folder, asked, session
        self.checkpoint, self.dice = folder / "checkpoint", random.Random(asked.seed)
        self.written, self.batches, self.moments = 0, 0, list[float]()
        self.answer: dict[int, tuple[int, int]] = {}
        self.done: Counter[str] = Counter()
        self.memory = 0.0
        (folder / "in").mkdir()

    def write(self) -> None:
        """Write the next batch: a file that comes into the folder as a whole."""
        size = self.asked.rows
        numbers = range(self.written * size, (self.written + 1) * size)
        lines = [{"k": int(keys_of(i, self.asked.keys)), "v": i % 1000, "i": i} for i in numbers]
        path = self.folder / f".{self.written}"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        path.rename(self.folder / "in" / f"{self.written:07}.json")
        self.written += 1

    def sink(self, batch: Any, number: int) -> None:
        """Keep the last answer of each key, and the moment of the batch."""
        self.answer |= {row["k"]: (row["n"], row["total"]) for row in batch.collect()}
        self.moments.append(time.perf_counter())
        self.batches = number + 1

    def started(self, shards: int, changed: bool) -> Any:
        """Return the query, which runs."""
        reader = self.session.readStream.schema("k long, v long, i long").option("maxFilesPerTrigger", 1)
        answers = topology(changed).apply(
            reader.json(str(self.folder / "in")),
            NAME,
            location=str(self.checkpoint),
            shards=shards,
            allow=[CONSENT] if changed else [],
            memory_limit=self.asked.memory_limit,
        )
        writer = answers.writeStream.foreachBatch(self.sink).outputMode("update")
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def started_again(self, query: Any, shards: int, changed: bool) -> Any:
        """Return a query that continues one that failed, as whoever runs it would start it again; the reason is
        printed. Raises SystemExit behind too many of them.
        """
        fault = query.exception()
        reason = [line for line in f"{fault}\n{getattr(fault, 'stackTrace', '')}".splitlines() if line.strip()]
        print("\n".join(["spark: the query failed:", *reason[:4], "...", *reason[-25:]]), flush=True)
        self.done["failures"] += 1
        if self.done["failures"] > FAILURES:
            raise SystemExit(f"WRONG: the query failed {FAILURES + 1} times")
        return self.started(shards, changed)

    def finished(self, query: Any, shards: int, changed: bool) -> None:
        """Stop the query behind all that was written. A query that fails before is started again, as in `quarter`."""
        from pyspark.errors import StreamingQueryException

        while True:
            try:
                query.processAllAvailable()
                break
            except StreamingQueryException:
                # printed and counted there
                query = self.started_again(query, shards, changed)
        query.stop()

    def kill(self) -> None:
        """End one of the query's Python processes by signal 9."""
        if victims := sorted(pid for pid, kind in our_processes().items() if kind == "python"):
            with suppress(ProcessLookupError):  # one that has just ended
                os.kill(self.dice.choice(victims), signal.SIGKILL)
                self.done["kills"] += 1

    def quarter(self, number: int, seconds: float) -> dict[str, float]:
        """Run the query for so long, stop it behind its last batch, compare the answers, and return the figures. Raises
        SystemExit if the query fails or an answer is wrong.
        """
        shards, changed = FORMS[number]
        if number and shards != FORMS[number - 1][0]:
            # the query has committed since the rescale before, whose old shards are then of no use
            remove_old_shards(str(self.checkpoint), NAME)
            hs.rescale(str(self.checkpoint), NAME, shards=shards, stopped=True)
            self.done["rescales"] += 1
        if number and changed != FORMS[number - 1][1]:
            self.done["programs"] += 1
        self.moments, self.memory = [time.perf_counter()], 0.0
        ends, kills_at = time.monotonic() + seconds, time.monotonic() + self.asked.kill_every
        query = self.started(shards, changed)
        while time.monotonic() < ends or len(self.moments) < 3:
            while self.written - self.batches < AHEAD:
                self.write()
            if not query.isActive:
                query = self.started_again(query, shards, changed)
            if time.monotonic() > kills_at:
                self.kill()
                kills_at = time.monotonic() + self.dice.uniform(0.5, 1.5) * self.asked.kill_every
            self.memory = max(self.memory, memory("Pss_Anon"))
            time.sleep(1)
        self.finished(query, shards, changed)
        rows = self.written * self.asked.rows
        expected = expected_of(rows, self.asked.keys)
        if self.answer != expected:
            wrong = [key for key in expected.keys() | self.answer.keys() if expected.get(key) != self.answer.get(key)]
            raise SystemExit(f"WRONG: {len(wrong)} of {len(expected)} keys differ behind {rows} rows: {wrong[:5]}")
        taken = sorted(1000 * (behind - ahead) for ahead, behind in pairwise(self.moments[1:])) or [0.0]
        return {
            "rows": rows,
            "batches": self.written,
            "memory MB": self.memory,
            # a rescale changes how many shards there are
            "files a shard": sum(len(files) for _, _, files in os.walk(self.checkpoint / "hybridstore")) / shards,
            "batch p50 ms": statistics.median(taken),
            "batch p99 ms": taken[len(taken) * 99 // 100],
        }


def main() -> int:
    """Run from the command line; an exception or SystemExit where an answer is wrong."""
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2400)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--rows", type=int, default=200, help="rows of a batch")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument(
        "--memory-limit", type=int, default=1_000_000, help="bytes that the shards of a process may hold"
    )
    parser.add_argument("--kill-every", type=float, default=60, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ[MARK] = str(os.getpid())
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master(asked.master).config("spark.local.dir", folder)
        for name, value in settings_of("hybridstore").items():
            builder = builder.config(name, value)
        session = hsp.configure(builder.config(f"spark.executorEnv.{MARK}", os.environ[MARK])).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        soak, quarters = Soak(Path(folder), asked, session), []
        for number in range(QUARTERS):
            figures = soak.quarter(number, asked.seconds / QUARTERS)
            quarters.append(figures)
            shown = ", ".join(f"{what} {value:,.1f}" for what, value in figures.items())
            print(f"spark, quarter {number + 1}: {shown}; answers equal; {dict(soak.done)}", flush=True)
        session.stop()
    print(json.dumps(quarters))
    return 0


if __name__ == "__main__":
    sys.exit(main())
