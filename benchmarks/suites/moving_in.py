"""How long `hs.import_spark` takes: an aggregation of Spark's own with so many keys goes on as a job of ours.

    python -m benchmarks.suites.moving_in [--keys 1000000] [--shards 8] [--folder /dev/shm]

A query of Spark's counts the rows of each key and averages a number, over one batch; its state is moved, and the new
query takes a second batch of 1,000 rows. Prints the wall seconds and the processor seconds (of the JVM, its workers and
this process) of each; the rows of the second batch are compared with those that the old query would have given, and a
wrong one exits with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import hybridstore as hs
from benchmarks.suites.spark import processor_ms
from hybridstore import spark as hsp

ROWS = 1_000
TOPOLOGY = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), mean=hs.Mean("v"), emit="commit")


def timed(what: str, work: Callable[[], Any]) -> Any:
    """Print how long `work` took, and return what it returned."""
    wall, processor = perf_counter(), processor_ms()
    result = work()
    seconds, used = perf_counter() - wall, (processor_ms() - processor) / 1000
    print(f"  {what:<30} {seconds:>7.1f} s   processor {used:>7.1f} s", flush=True)
    return result


def run(folder: Path, keys: int, shards: int) -> bool:
    """Run the old query, the move and the new query; return whether the answers are right."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "8g")
    builder = builder.config("spark.sql.shuffle.partitions", str(shards)).config("spark.local.dir", str(folder / "tmp"))
    spark = hsp.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def write(number: int, numbers: Any) -> None:
        time = f.timestamp_millis(f.col("id") % 1000)
        rows = numbers.select(
            f.format_string("user-%d", "id").alias("k"), (f.col("id") / 4).alias("v"), time.alias("t")
        )
        rows.coalesce(1).write.mode("append").parquet(str(folder / "in"))
        print(f"  batch {number}: {numbers.count():,} rows")

    def events() -> Any:
        return spark.readStream.schema("k string, v double, t timestamp").parquet(str(folder / "in"))

    def run_to_end(df: Any, checkpoint: Path, sink: str, mode: str) -> None:
        writer = df.writeStream.format(sink).option("checkpointLocation", str(checkpoint)).outputMode(mode)
        if sink == "parquet":
            writer = writer.option("path", str(folder / "out"))
        writer.trigger(availableNow=True).start().awaitTermination()

    write(0, spark.range(keys))
    old = events().groupBy("k").agg(f.count("*").alias("n"), f.avg("v").alias("mean"))
    timed("Spark's query", lambda: run_to_end(old, folder / "old", "noop", "update"))
    results = TOPOLOGY.apply(events(), "totals", location=str(folder / "new"), shards=shards)
    report = timed("the move", lambda: hs.import_spark(folder / "old", results))
    for sentence in report.sentences():
        print(f"    {sentence}")
    few = min(keys, ROWS)
    write(1, spark.range(0, keys, max(1, keys // few)).limit(few))
    # Spark reads the folder of its file sink by the log of the batches, and batch 0 is the move
    (folder / "out" / "_spark_metadata").mkdir(parents=True)
    (folder / "out" / "_spark_metadata" / "0").write_text("v1")
    timed("our query's next batch", lambda: run_to_end(results, folder / "new", "parquet", "append"))
    answers = spark.read.parquet(str(folder / "out")).select("n", "mean", f.substring("k", 6, 20).alias("id"))
    right = answers.where((f.col("n") == 2) & (f.col("mean") == f.col("id") / 4)).count()
    print(f"  {right:,} of {few:,} answers are right, {report.records:,} of {keys:,} keys were moved")
    spark.stop()
    return bool(right == few and report.records == keys)


def main() -> int:
    """Run from the command line; exit code 1 for a wrong answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        return 0 if run(Path(folder), asked.keys, asked.shards) else 1


if __name__ == "__main__":
    sys.exit(main())
