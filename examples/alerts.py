"""Alerts with suppression: a host that reports errors raises one alert a minute, however many it reports.

Run as a script it writes some reports as JSON files, streams them through Spark and prints the alerts.
"""

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import hybridstore as hs
from hybridstore import spark as hsp

alerts = (
    hs.stream(key="host", timestamp="time")
    .windowed_by(hs.TumblingWindows("1 hour"))
    .aggregate(errors=hs.Count(), worst=hs.Max("severity"))
    # the first error starts a minute in which the host's later ones are gathered; at most 10,000 hosts wait at a time
    .hold("1 minute", timer="first", max_records=10_000)
)


def job(spark: SparkSession, reports: str, checkpoint: str) -> DataFrame:
    """The alerts of a folder of JSON files, one file a batch; a host called `clock` reports only that time passes."""
    schema = "host string, severity int, time timestamp"
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(reports)
    return alerts.apply(events, "alerts", location=checkpoint, shards=1).where("host <> 'clock'")


def write_reports(folder: Path) -> None:
    """A burst of errors on one host, a single one on another, and the clock that lets them out."""
    batches = [
        [("db1", severity, second) for second, severity in enumerate((2, 3, 5, 3, 2))] + [("web7", 1, 30)],
        [("db1", 4, 50), ("clock", 0, 70)],
        [("db1", 2, 75), ("clock", 0, 100)],
        [("clock", 0, 200)],
    ]
    for number, batch in enumerate(batches):
        rows = [{"host": h, "severity": v, "time": f"2026-01-01T00:{s // 60:02d}:{s % 60:02d}Z"} for h, v, s in batch]
        path = folder / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (10**9 + number, 10**9 + number))  # Spark takes files in the order of their times


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        reports, checkpoint = Path(scratch, "reports"), str(Path(scratch, "checkpoint"))
        reports.mkdir()
        write_reports(reports)
        spark = hsp.configure(SparkSession.builder.master("local[2]")).getOrCreate()
        writer = job(spark, str(reports), checkpoint).writeStream.format("memory").queryName("found")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        spark.table("found").show(truncate=False)


if __name__ == "__main__":
    main()
