"""Sessions of users: clicks at most 30 seconds apart are one session, which comes out once, when it is final.

Run as a script it writes some clicks as JSON files, streams them through Spark and prints the sessions.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import hybridstore as hs
from hybridstore import spark as hsp

sessions = (
    hs.stream(key="user", timestamp="time")
    .windowed_by(hs.SessionWindows("30 seconds", grace="10 seconds"))
    .aggregate(emit="close", clicks=hs.Count(), pages=hs.CollectSet("page"), last=hs.Last("page"))
)


def job(spark: SparkSession, clicks: str, checkpoint: str) -> DataFrame:
    """The sessions of a folder of JSON files, one file a batch."""
    schema = "user string, page string, time timestamp"
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(clicks)
    return sessions.apply(events, "sessions", location=checkpoint, shards=2)


def write_clicks(folder: Path) -> list[dict[str, Any]]:
    """Three batches of clicks: ann has two sessions, bob one over two batches, and time moves on at the end."""
    batches = [
        [("ann", "/", 0), ("ann", "/news", 20), ("bob", "/", 25)],
        [("bob", "/shop", 50), ("bob", "/cart", 55), ("ann", "/", 100)],
        [(user, "/", 300) for user in ("ann", "bob", "eve", "joe")],
    ]
    rows = [
        [{"user": u, "page": p, "time": f"2026-01-01T00:{s // 60:02d}:{s % 60:02d}Z"} for u, p, s in b] for b in batches
    ]
    for number, batch in enumerate(rows):
        (path := folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in batch))
        os.utime(path, (10**9 + number, 10**9 + number))  # Spark takes files in the order of their times
    return [row for batch in rows for row in batch]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        clicks, checkpoint = Path(scratch, "clicks"), str(Path(scratch, "checkpoint"))
        clicks.mkdir()
        write_clicks(clicks)
        spark = hsp.configure(SparkSession.builder.master("local[2]")).getOrCreate()
        writer = job(spark, str(clicks), checkpoint).writeStream.format("memory").queryName("found")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        spark.table("found").orderBy("user", "window_start").show(truncate=False)


if __name__ == "__main__":
    main()
