"""How long `hybridstore.rescale` takes, beside Spark's own repartition of its state where the installed pyspark has it.

    python -m benchmarks.suites.rescale [--keys 1000000] [--shards 4] [--into 16] [--spark]

A window with one number for each key. Ours is in one process, checked and durable; Spark's is a batch on local[2] over
the state of a streaming aggregation with RocksDB. Both are told in wall seconds, ours also in processor seconds, which
a busy machine does not change. Neither reads a source.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import hybridstore as hs
from hybridstore.shards import shard_of
from hybridstore.spark.launches import begin
from hybridstore.spark.operator_file import append_operator, operator_storage, plain
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId

HOUR_MS = 3_600_000
TOPOLOGY = hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(HOUR_MS)).aggregate(total=hs.Sum("n"))


def make(location: Path, keys: list[str], shards: int) -> None:
    """Make the state of a Spark operator after one committed batch, with a checkpoint of every shard."""
    storage = operator_storage(location, "totals")
    description = {"shards": shards, "query_id": "q", "time": "stream", "program": plain(TOPOLOGY.describe())}
    append_operator(storage, [], 1, description, [])
    run = begin(storage, 0)
    mine: list[list[str]] = [[] for _ in range(shards)]
    for key in keys:
        mine[shard_of(key, shards)].append(key)
    parameters = {"retention_ms": HOUR_MS, "window_size_ms": HOUR_MS, "grace_ms": HOUR_MS, "retain_duplicates": False}
    for shard, part in enumerate(mine):
        identity = StateStoreId(str(location), "totals", shard, "q")
        provider = StateStoreProvider(identity, claim=run, attempts=count(1), cache=ShardCache())
        store = provider.get_store(0)
        store.open("windows", "window", parameters).put_columns(part, list(range(len(part))), [HOUR_MS] * len(part))
        store.commit()
        provider.checkpoint()
        provider.close()
    for folder in ("offsets", "commits"):
        (location / folder).mkdir()
        (location / folder / "0").write_text('v1\n{"batchWatermarkMs": 0, "batchTimestampMs": 0}\n')


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Do something and return its wall and processor seconds."""
    wall, processor = perf_counter(), process_time()
    work()
    return {"seconds": round(perf_counter() - wall, 2), "processor_seconds": round(process_time() - processor, 2)}


def measure(folder: Path, keys: int, shards: int, into: int) -> dict[str, float]:
    """Rescale a state with so many keys and return how long it took."""
    make(folder, [f"user-{number:08d}" for number in range(keys)], shards)
    return timed(lambda: hs.rescale(folder, "totals", shards=into))


def measure_spark(folder: Path, keys: int, shards: int, into: int) -> dict[str, float] | str:
    """Let Spark repartition the state of an aggregation with as many keys; a text says why it could not."""
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {
        "spark.sql.shuffle.partitions": str(shards),
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
    }
    builder = SparkSession.builder.master("local[2]").appName("rescale")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    manager = getattr(session, "_streamingCheckpointManager", None)
    if manager is None:
        session.stop()
        return f"pyspark {pyspark.__version__} has no repartition of its own"
    source, checkpoint = str(folder / "in"), str(folder / "checkpoint")
    rows = session.range(keys).select(f.format_string("user-%08d", "id").alias("k"), f.col("id").alias("n"))
    rows.write.parquet(source)
    totals = session.readStream.schema(rows.schema).parquet(source).groupBy("k").agg(f.sum("n"))
    writer = totals.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    try:
        return timed(lambda: manager.repartition(checkpoint, into))
    except Exception as error:
        return str(error).splitlines()[0]
    finally:
        session.stop()


def main() -> None:
    """Measure, and print a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--into", type=int, default=16)
    parser.add_argument("--spark", action="store_true", help="Spark's own repartition, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rescale-") as scratch:
        ours = Path(scratch, "ours")
        ours.mkdir()
        sizes = (asked.keys, asked.shards, asked.into)
        print(json.dumps({"hybridstore": measure(ours, *sizes)}), flush=True)
        if asked.spark:
            print(json.dumps({"spark": measure_spark(Path(scratch, "spark"), *sizes)}), flush=True)


if __name__ == "__main__":
    main()
