"""A streaming job whose shards move between executors, for tests/spark/test_moves.py. Run as a script:
python -m tests.tools.spark_moves FOLDER.

More shards than executors have cores make Spark hand a shard now to one of them, now to the other. One query with each
placement, on one cluster. Every batch leaves a JSON file in FOLDER/PLACEMENT/out: the process that each shard was
served by, and the metrics of the batch.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from hybridstore.clock import Watermark
from hybridstore.shards import shard_of
from hybridstore.state.group import StoreGroup
from tests.tools import quick_java
from tests.tools.spark_programs import CountRunner, RunningCount

PLACEMENTS = ("worker", "holder")
SHARDS = 3
BATCHES = 6
KEYS = 40


class ServedCount(RunningCount):
    """The running count, which tells by what process it was made."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return super().output_schema(schema).append(pa.field("pid", pa.int64()))

    def open(self, group: StoreGroup) -> "ServedRunner":
        return ServedRunner(group.open("counts", "key_value", {"ttl_ms": None}))


class ServedRunner(CountRunner):
    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        answer = super().process(table, pa.schema(list(output)[:-1]), watermark)
        return answer.append_column("pid", pa.array([os.getpid()] * answer.num_rows, pa.int64()))


def main(folder: Path) -> int:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from hybridstore import spark as hsp

    (folder / "scratch").mkdir()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.local.dir", str(folder / "scratch")).config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.python.daemon.module", "tests.tools.python_daemon")
    builder = builder.config("spark.executor.extraJavaOptions", quick_java.options_of_java())
    session = hsp.configure(builder.config("spark.ui.showConsoleProgress", "false")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for placement in PLACEMENTS:
        run(session, folder / placement, placement)
    session.stop()
    return 0


def run(session: Any, folder: Path, placement: Any) -> None:
    """Run one query to the end of its input."""
    from pyspark.sql import DataFrame

    from hybridstore import spark as hsp

    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    for number in range(BATCHES):
        path = folder / "in" / f"{number:05d}.json"
        path.write_text("".join(json.dumps({"k": f"k{i}", "v": number}) + "\n" for i in range(KEYS)))
        os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))
    checkpoint = str(folder / "checkpoint")

    def sink(batch: DataFrame, number: int) -> None:
        rows = [(row["k"], row["n"], row["total"], row["pid"]) for row in batch.collect()]
        record: dict[str, Any] = {
            "rows": sorted(row[:3] for row in rows),
            "pids": [sorted({pid for k, _, _, pid in rows if shard_of(k, SHARDS) == shard}) for shard in range(SHARDS)],
            "metrics": hsp.metrics(checkpoint),
        }
        (folder / "out" / str(number)).write_text(json.dumps(record))

    df = session.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    counted = hsp.apply_program(df, ServedCount(), name="op", location=checkpoint, shards=SHARDS, placement=placement)
    writer = counted.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
