"""A query that runs for long: latency, memory and files of a thousand small batches stay flat.

    python -m benchmarks.suites.soak --batches 1000 --master "local[8]" --placement auto

Prints a line for every hundred batches and a verdict: the last hundred against the third (until then files gather). The
answers of the last batch are compared with a count in plain Python. A machine that does other work besides makes
latencies of no use: memory and files still tell.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.suites.scale_out import MARK, memory
from benchmarks.suites.spark import settings_of

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = 2_000
STEP = 100
# what the last hundred batches may be of the third hundred
FLAT = 1.25


def write_input(folder: Path, batches: int, rows: int) -> Counter[str]:
    """Write a file for each batch, and return how often every key comes."""
    choose, total = random.Random(1), Counter[str]()
    for number in range(batches):
        keys = [f"key{choose.randrange(KEYS)}" for _ in range(rows)]
        total.update(keys)
        path = folder / f"{number:05d}.json"
        path.write_text("".join(json.dumps({"k": k, "v": 1}) + "\n" for k in keys), encoding="utf-8")
        os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
    return total


def soak(folder: Path, master: str, placement: Any, batches: int, rows: int, shards: int) -> dict[str, list[float]]:
    """Run the query and return, for every hundred batches, latency (ms), memory of Python and of the JVM (MB), files
    and loads.
    """
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    os.environ[MARK] = str(os.getpid())
    sys.path.insert(0, str(ROOT))
    from tests.tools.spark_programs import RunningCount

    (folder / "in").mkdir()
    expected = write_input(folder / "in", batches, rows)
    builder = SparkSession.builder.master(master).config("spark.local.dir", str(folder))
    for name, value in settings_of("hybridstore").items():
        builder = builder.config(name, value)
    session = hsp.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    checkpoint = folder / "checkpoint"
    series: dict[str, list[float]] = {"memory": [], "files": [], "hits": []}
    answer: dict[str, int] = {}
    kinds: Counter[str] = Counter()

    def sink(batch: Any, number: int) -> None:
        for row in batch.collect():
            answer[row["k"]] = row["n"]
        kinds.update(shard["load"] for shard in hsp.metrics(checkpoint))
        if (number + 1) % STEP == 0:
            series["memory"].append(memory())
            series["files"].append(sum(len(files) for _, _, files in os.walk(checkpoint / "hybridstore")))
            worked = sum(kinds.values()) - kinds["none"]
            series["hits"].append(100 * kinds["hit"] / worked)
            kinds.clear()
            print(
                f"  {number + 1} batches: { ({name: round(all_[-1], 1) for name, all_ in series.items()}) }", flush=True
            )

    df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    answers = hsp.apply_program(
        df, RunningCount(), name="soak", checkpoint=str(checkpoint), shards=shards, placement=placement
    )
    writer = answers.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    times = [
        float(progress["durationMs"]["triggerExecution"])
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    session.stop()
    if answer != dict(expected):
        raise SystemExit("WRONG: the counts of the last batch of each key are not those of a plain count")
    # Spark keeps the progress of so many batches; the first few may be missing.
    hundreds = [times[max(0, end - STEP) : end] for end in range(len(times), 0, -STEP)]
    series["latency"] = [statistics.median(part) for part in reversed(hundreds) if 2 * len(part) > STEP]
    return series


def main() -> int:
    """Run from the command line; exit code 1 when something grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--master", default="local[8]")
    parser.add_argument("--placement", default="auto")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=500, help="rows of a batch")
    parser.add_argument("--shards", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        series = soak(Path(folder), asked.master, asked.placement, asked.batches, asked.rows, asked.shards)
    growing = 0
    for name, unit in (
        ("latency", "ms of a batch, median"),
        ("memory", "MB, all Python processes"),
        ("files", "files"),
    ):
        values = series[name]
        ratio = values[-1] / values[min(2, len(values) - 1)]
        growing += ratio > FLAT
        print(
            f"{unit}: {' '.join(f'{value:,.0f}' for value in values)}; "
            f"the last to the third: {ratio:.2f} (flat: at most {FLAT})"
        )
    print(f"loads that are hits, %: {' '.join(f'{value:.0f}' for value in series['hits'])}")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
