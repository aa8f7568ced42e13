"""Restart of a streaming query over a large state: from the start of the query to the end of its first batch.

    python benchmarks/bench_spark_restart.py --keys 1000000

Each engine counts rows per key until every key has state, stops, and is started again in a new process and JVM, which runs a
small query first so that Spark itself is warm. What is left after taking off a warm batch is the price of the state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("hybridstore", "rocksdb", "rocksdb-changelog", "hdfs")
ROWS = 100_000
SMALL = 1_000


def write_input(folder: Path, keys: int) -> tuple[int, int]:
    """The batches that fill the state, then six small ones in `more`; returns the number of the former and the latter."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filling = -(-keys // ROWS)
    for batch in range(filling + 6):
        if batch < filling:
            numbers = range(batch * ROWS, min(keys, (batch + 1) * ROWS))
        else:
            numbers = range(batch, keys, max(1, keys // SMALL))
        table = pa.table({"k": [f"key{i}" for i in numbers], "v": pa.array([1] * len(numbers), pa.int64())})
        path = folder / ("in" if batch < filling else "more") / f"{batch:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_760_000_000 + batch, 1_760_000_000 + batch))
    return filling, 6


def run(folder: Path, engine: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from hybridstore import spark as hsp

    sys.path.insert(0, str(ROOT))
    from tests.spark_programs import RunningCount

    store = "HDFSBackedStateStoreProvider" if engine == "hdfs" else "RocksDBStateStoreProvider"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": f"org.apache.spark.sql.execution.streaming.state.{store}",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": str(
            engine.endswith("changelog")
        ).lower(),
    }.items():
        builder = builder.config(name, value)
    session = (hsp.configure(builder) if engine == "hybridstore" else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")

    def query(source: str, checkpoint: str) -> list[int]:
        df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).parquet(source)
        if engine == "hybridstore":
            made, mode = hsp.apply_program(df, RunningCount(), name="count", checkpoint=checkpoint, shards=2), "append"
        else:
            made, mode = df.groupBy("k").agg(f.count("v"), f.sum("v")), "update"
        writer = made.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)
        started = writer.trigger(availableNow=True).start()
        started.awaitTermination()
        return [one["durationMs"]["triggerExecution"] for one in started.recentProgress if one["numInputRows"]]

    with tempfile.TemporaryDirectory() as scratch:
        query(str(folder / "more"), f"{scratch}/warm")
    times = query(str(folder / "in"), str(folder / f"checkpoint-{engine}"))
    loads: list[Any] = []
    if engine == "hybridstore":
        loads = [[one["load"], one["load_ms"]] for one in hsp.metrics(folder / f"checkpoint-{engine}")]
    session.stop()
    return {"engine": engine, "ms": times, "last_loads": loads}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(Path(asked.folder), asked.one)))
        return 0
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("in", "more"):
            (folder / name).mkdir()
        write_input(folder, asked.keys)

        def once(engine: str) -> dict[str, Any]:
            command = [sys.executable, __file__, "--one", engine, "--folder", scratch]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                raise SystemExit(f"{engine}: {done.stderr[-2000:]}")
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found

        engines = asked.engines.split(",")
        for engine in engines:
            once(engine)
        for path in sorted((folder / "more").iterdir()):
            os.link(path, folder / "in" / path.name)
        print(
            f"{asked.keys:,} keys, 2 shards: first batch of {SMALL:,} rows after a restart, a warm batch, and what lies between (ms)"
        )
        for engine in engines:
            found = once(engine)
            warm = statistics.median(found["ms"][2:])
            first = found["ms"][0]
            print(
                f"  {engine:<18} {first:>7,} {warm:>7,.0f} {first - warm:>7,.0f}   {found['ms']} {found['last_loads'] or ''}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
