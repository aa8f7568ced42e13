"""A job for any version of pyspark: python -m tests.tools.spark_version_job FOLDER prints what its operators answer.

Windows by the watermark, sliding windows by stream time, and a processor of Spark's with timers, over two runs with a
restart between them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import hybridstore as hs
from hybridstore import spark as hsp
from tests.tools.spark_processors import Alarm

SCHEMA = "k string, v long, t timestamp"


def write(folder: Path, number: int) -> None:
    """Write one batch of rows, in disorder."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = [60 * number + (7 * i) % 50 for i in range(20)]
    rows = [
        {"k": f"k{i % 4}", "v": i, "t": f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"}
        for i, second in enumerate(seconds)
    ]
    path = folder / f"{number}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_760_000_000 + number, 1_760_000_000 + number))


def job(spark: SparkSession, folder: Path) -> Any:
    """Return the query's rows as text, with the kind of the operator."""
    checkpoint = str(folder / "checkpoint")
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    events = events.withWatermark("t", "5 seconds")
    rows = hs.stream(key="k", timestamp="t")
    minutes = rows.windowed_by(hs.TumblingWindows("1 minute")).aggregate(n=hs.Count(), total=hs.Sum("v"), emit="close")
    sliding = rows.windowed_by(hs.SlidingWindows("10 seconds")).aggregate(n=hs.Count(), last=hs.Max("t"))
    answers = {
        "minutes": minutes.apply(events, "minutes", location=checkpoint, shards=2, time="watermark"),
        "sliding": sliding.apply(events, "sliding", location=checkpoint, shards=2),
        "alarms": hsp.transform_with_state(
            events.groupBy("k"), Alarm(), Alarm.output, "Append", "EventTime", name="alarms", location=checkpoint
        ),
    }
    frames = [
        df.select(f.lit(kind).alias("kind"), f.to_json(f.struct("*")).alias("row")) for kind, df in answers.items()
    ]
    return frames[0].union(frames[1]).union(frames[2])


def main(folder: Path) -> None:
    """Run the job twice, and print its rows as JSON, sorted."""
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.session.timeZone", "Asia/Kolkata").config(
        "spark.local.dir", str(folder / "tmp")
    )
    spark = hsp.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    results: list[list[str]] = []

    def keep(batch: Any, number: int) -> None:
        results.extend([row["kind"], row["row"]] for row in batch.collect())

    for start in range(2):
        for number in range(2):
            write(folder / "in", 2 * start + number)
        writer = job(spark, folder).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        # with availableNow Spark 4.1 asks a source in Python once, so the last ticks come with the next run
        query = writer.start()
        query.processAllAvailable()
        query.stop()
    print(json.dumps({"version": spark.version, "rows": sorted(results)}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
