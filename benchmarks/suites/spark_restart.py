"""Restart of a streaming query over a large state: from the start of the query to the end of its first batch.

    python -m benchmarks.suites.spark_restart --keys 1000000 --rounds 3

Each engine counts rows per key until every key has state, stops, and is started again in a new process and JVM, which
runs a small query first so that Spark itself is warm. What is left after taking off a warm batch is the price of the
state. Of ours it is also told what the state took in the first batch: loading the version, and processing, which loads
the blocks of the keys that came. Every engine's rows of a last batch are compared with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.suites.spark import ANSWER, settings_of, spark_process

ROOT = Path(__file__).resolve().parent.parent.parent
# the names of this benchmark, and how `spark` calls the same provider
ENGINES = {
    "hybridstore": "hybridstore",
    "rocksdb": "native",
    "rocksdb-changelog": "native-changelog",
    "hdfs": "native-hdfs",
}
ROWS = 100_000
SMALL = 1_000
# small batches of a restart: the first, warm ones, and one whose rows are compared
AFTER = 6


def write_input(folder: Path, keys: int, rounds: int) -> None:
    """The batches that fill the state in `fill`, and small ones of keys from all over it in `more`, some for every
    round.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    filling = -(-keys // ROWS)
    for batch in range(filling + AFTER * rounds):
        part, numbers = "fill", range(batch * ROWS, min(keys, (batch + 1) * ROWS))
        if batch >= filling:
            part, numbers = "more", range(batch - filling, keys, max(1, keys // SMALL))
        table = pa.table({"k": [f"key{i}" for i in numbers], "v": pa.array([1] * len(numbers), pa.int64())})
        path = folder / part / f"{batch:05d}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)
        os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))


def run(folder: Path, engine: str, turn: int) -> dict[str, Any]:
    """Fill the state (turn -1), or restart over it: what the first batch took, what warm ones take, and the rows of
    one in brief.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from hybridstore import spark as hsp

    sys.path.insert(0, str(ROOT))
    from tests.tools.spark_programs import RunningCount

    builder = SparkSession.builder.master("local[2]")
    for name, value in settings_of(ENGINES[engine]).items():
        builder = builder.config(name, value)
    session = (hsp.configure(builder) if engine == "hybridstore" else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    answer: list[str] = []

    def tell(batch: Any, number: int) -> None:
        answer[:] = [str(part) for part in batch.selectExpr(*ANSWER).first()]

    def query(source: Path, checkpoint: str, files: Sequence[Path], timed: bool = True) -> list[int]:
        source.mkdir(exist_ok=True)
        for path in files:
            os.link(path, source / path.name)
        df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).parquet(str(source))
        if engine == "hybridstore":
            frame, mode = hsp.apply_program(df, RunningCount(), name="count", location=checkpoint, shards=2), "append"
        else:
            frame, mode = df.groupBy("k").agg(f.count("v").alias("n"), f.sum("v").alias("total")), "update"
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
        writer = writer.format("noop") if timed else writer.foreachBatch(tell)
        started = writer.trigger(availableNow=True).start()
        started.awaitTermination()
        return [
            progress["durationMs"]["triggerExecution"]
            for progress in started.recentProgress
            if progress["numInputRows"]
        ]

    source, checkpoint = folder / f"in-{engine}", str(folder / f"checkpoint-{engine}")
    figures: dict[str, Any] = {"engine": engine}
    if turn < 0:
        query(source, checkpoint, sorted((folder / "fill").iterdir()))
    else:
        files = sorted((folder / "more").iterdir())[turn * AFTER :][:AFTER]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            query(Path(scratch, "in"), f"{scratch}/warm", files)
        begun = time.perf_counter()
        figures["first_ms"] = query(source, checkpoint, files[:1])[0]
        figures["start_ms"] = round((time.perf_counter() - begun) * 1000)
        figures["shards"] = hsp.metrics(checkpoint) if engine == "hybridstore" else []
        figures["warm_ms"] = query(source, checkpoint, files[1:-1])
        query(source, checkpoint, files[-1:], timed=False)
        figures["answer"] = answer
    session.stop()
    return figures


def measure(
    folder: Path, keys: int, engines: Sequence[str], rounds: int, timeout: float
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Fill every engine's state, then restart them in turn.

    Returns their restarts, each with "agrees", and sentences on those left out.
    """
    left_out: list[str] = []
    answers: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write_input(Path(scratch), keys, rounds)

        def once(engine: str, turn: int) -> dict[str, Any]:
            command = [sys.executable, "-m", "benchmarks.suites.spark_restart", "--one", engine, "--folder", scratch]
            return spark_process([*command, "--turn", str(turn)], engine, timeout)

        for turn in range(-1, rounds):
            expected: list[str] | None = None
            for engine in engines if turn < 0 else list(answers):
                try:
                    run = once(engine, turn)
                except (RuntimeError, TimeoutError) as error:
                    left_out.append(f"restart over {keys:,} keys: {error}")
                    answers.pop(engine, None)
                    continue
                answers.setdefault(engine, [])
                if turn >= 0:
                    expected = expected or run["answer"]
                    run["agrees"] = run["answer"] == expected
                    run["state_ms"] = run["first_ms"] - statistics.median(run["warm_ms"])
                    answers[engine].append(run)
    return {engine: runs for engine, runs in answers.items() if runs}, left_out


def inside(runs: Sequence[dict[str, Any]], what: str) -> list[float]:
    """Return, for each restart of ours, the ms that its slowest shard spent on `what` in the first batch: "load_ms"
    or "process_ms".
    """
    return [max(float(shard[what]) for shard in run["shards"]) for run in runs]


def main() -> int:
    """Run from the command line; exit code 1 when an engine's answers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=1, help="how often each engine is restarted, in turn")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one engine")
    for hidden in ("--one", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(Path(asked.folder), asked.one, asked.turn)))
        return 0
    engines = asked.engines.split(",")
    for engine in engines:
        if engine not in ENGINES:
            parser.error(f"{engine!r}: expected some of {', '.join(ENGINES)}")
    engines_runs, left_out = measure(Path(tempfile.gettempdir()), asked.keys, engines, asked.rounds, asked.timeout)
    print(
        f"{asked.keys:,} keys, 2 shards, ms: from the start of the query to its end after one batch of {SMALL:,} rows;"
    )
    print("that batch; a warm one; what lies between; medians of the restarts")
    for engine, runs in engines_runs.items():
        middle = {
            name: statistics.median(entry[name] for entry in runs) for name in ("start_ms", "first_ms", "state_ms")
        }
        warm = statistics.median(ms for entry in runs for ms in entry["warm_ms"])
        note = "agrees" if all(entry["agrees"] for entry in runs) else "DIFFERS"
        print(
            f"  {engine:<18} {middle['start_ms']:>7,.0f} {middle['first_ms']:>7,.0f} {warm:>7,.0f} "
            f"{middle['state_ms']:>7,.0f}  {note}"
        )
        if engine == "hybridstore":
            kinds = sorted({shard["load"] for entry in runs for shard in entry["shards"]})
            print(
                f"    in the state, of the slower shard: load {inside(runs, 'load_ms')} ({', '.join(kinds)}), process "
                f"{inside(runs, 'process_ms')}"
            )
    for sentence in left_out:
        print(f"  left out: {sentence}")
    return 1 if any(not entry["agrees"] for runs in engines_runs.values() for entry in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
