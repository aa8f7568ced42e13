"""Random streams for Spark's own windows and ours side by side: rows, the queries of both, and what our workers run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hybridstore as hs
from hybridstore.shards import shard_of
from tests.tools.modes import patiently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, id string, v long, t timestamp"
DELAY, SIZE, HOP, UNEVEN, GAP = 30, 20, 5, 8, 10
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RESULT = ("kind", "k", "start", "end", "n", "total")
Answer = tuple[str, str, datetime, datetime, int, int]


class Event(NamedTuple):
    """A row of a stream; `second` counts from `BEGIN`."""

    k: str
    id: str
    v: int
    second: int


def random_stream(r: random.Random, batches: int, keys: int, shards: int, first_id: int = 0) -> list[list[Event]]:
    """Batches of rows in disorder within the delay and beyond it, some without rows; the last has one for each shard,
    much later.

    Times are whole seconds, so that many rows stand exactly where windows end. No id comes twice for a key within a
    batch, of which Spark would keep any; so streams that are put together have ids of their own, from `first_id` on.
    """
    stream: list[list[Event]] = []
    now = 0
    for _ in range(batches - 1):
        rows: dict[tuple[str, str], Event] = {}
        for _ in range(r.choice([0, 1, 3, 15, 40])):
            now += r.choice([0, 0, 1, 1, 2, 5]) if r.random() < 0.95 else r.randint(20, 90)
            late = 0 if r.random() < 0.5 else r.randint(0, DELAY) if r.random() < 0.8 else r.randint(DELAY, 4 * DELAY)
            event = Event(
                f"k{r.randrange(keys)}", f"{first_id + r.randrange(6)}", r.randint(-50, 50), max(0, now - late)
            )
            rows[event.k, event.id] = event
        stream.append(r.sample(list(rows.values()), len(rows)))
    places = {shard_of(f"last{i}", shards): f"last{i}" for i in range(20 * shards)}
    # twice: what one batch brings the next one closes
    for _ in range(2):
        now += 1000
        stream.append([Event(places[shard], f"{first_id}", 0, now) for shard in range(shards)])
    return stream


def write(folder: Path, batches: Iterable[list[Event]], first: int = 0) -> None:
    """Write each batch as a JSON file, which Spark takes in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, first):
        hidden = folder / f".{number:05d}.json"
        rows = [event._asdict() | {"t": (BEGIN + timedelta(seconds=event.second)).isoformat()} for event in batch]
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_760_000_000 + number, 1_760_000_000 + number))
        hidden.rename(folder / f"{number:05d}.json")


def read(spark: SparkSession, folder: Path, delay: int) -> DataFrame:
    """Return a stream of one file a batch, with a watermark."""
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    return files.withWatermark("t", f"{delay} seconds")


# --- Spark's own ----------------------------------------------------------------------------------------------------


def spark_final(df: DataFrame, kinds: Iterable[str]) -> DataFrame:
    """Return what Spark's operators give in append mode: tumbling, hopping and session windows, and deduplication, as
    asked for.
    """
    from pyspark.sql import functions as f

    def counted(kind: str, window: Any) -> DataFrame:
        grouped = df.groupBy("k", window.alias("w")).agg(f.count("*").alias("n"), f.sum("v").alias("total"))
        return grouped.select(f.lit(kind).alias("kind"), "k", "w.start", "w.end", "n", "total")

    def answer_of(kind: str) -> DataFrame:
        if kind == "unique":
            unique = df.dropDuplicatesWithinWatermark(["k", "id"])
            return unique.select(f.lit(kind).alias("kind"), "k", "t", "t", f.lit(1), f.col("id").cast("long"))
        if kind == "chained":
            first = df.groupBy("k", f.window("t", f"{SIZE} seconds")).agg(
                f.count("*").alias("n"), f.sum("v").alias("total")
            )
            second = first.groupBy("k", f.window(f.window_time("window"), f"{3 * SIZE} seconds").alias("w"))
            counts = second.agg(f.sum("n").alias("n"), f.sum("total").alias("total"))
            return counts.select(f.lit(kind).alias("kind"), "k", "w.start", "w.end", "n", "total")
        if kind == "session":
            return counted(kind, f.session_window("t", f"{GAP} seconds"))
        hop = {"tumbling": SIZE, "hopping": HOP, "uneven": UNEVEN}[kind]
        return counted(kind, f.window("t", f"{SIZE} seconds", f"{hop} seconds"))

    return reduce(lambda frame, other: frame.union(other), map(answer_of, kinds))


def spark_updates(df: DataFrame, hop: int) -> DataFrame:
    """Return what Spark's windows give in update mode; `hop` in seconds."""
    from pyspark.sql import functions as f

    window = f.window("t", f"{SIZE} seconds", f"{hop} seconds").alias("w")
    counts = df.groupBy("k", window).agg(f.count("*").alias("n"), f.sum("v").alias("total"))
    return counts.select(f.lit(f"updates {hop}").alias("kind"), "k", "w.start", "w.end", "n", "total")


# --- ours -----------------------------------------------------------------------------------------------------------


def unique(row: dict[str, Any], stores: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Pass on a row unless it is late, or one with its id came within the delay."""
    seen = stores["seen"]
    ts = round(row["t"].timestamp() * 1000)
    if ts <= seen.stream_time or (row["k"], row["id"]) in seen:
        return
    seen.put((row["k"], row["id"]), 1, ts)
    yield {"k": row["k"], "id": row["id"], "t": row["t"]}


def ours(df: DataFrame, checkpoint: Path, shards: int, kinds: Iterable[str]) -> DataFrame:
    """Return what our operators give with `time="watermark"`, in the columns of Spark's answers.

    "held" is what a suppression buffer makes of each record's result; "chained" windows of windows.
    """
    from pyspark.sql import functions as f

    rows = hs.stream(key="k", timestamp="t")
    windows: dict[str, hs.Windows] = {
        "tumbling": hs.TumblingWindows(SIZE * 1000),
        "hopping": hs.HoppingWindows(SIZE * 1000, HOP * 1000),
        "uneven": hs.HoppingWindows(SIZE * 1000, UNEVEN * 1000),
        "session": hs.SessionWindows(GAP * 1000),
        "chained": hs.TumblingWindows(SIZE * 1000),
        f"updates {SIZE}": hs.TumblingWindows(SIZE * 1000),
        f"updates {HOP}": hs.HoppingWindows(SIZE * 1000, HOP * 1000),
    }
    union: DataFrame | None = None
    for kind in kinds:
        of = windows[kind.removeprefix("held ")] if kind != "unique" else None
        if of is None:
            topology = rows.process(
                unique, "k string, id string, t timestamp", [hs.key_value_store("seen", ttl=DELAY * 1000)]
            )
        else:
            emit: Any = "commit" if kind.startswith("updates") else "record" if kind.startswith("held") else "close"
            topology = rows.windowed_by(of).aggregate(emit=emit, n=hs.Count(), total=hs.Sum("v"))
            if kind.startswith("held"):
                topology = topology.hold("close")
        name = kind.replace(" ", "-")
        out = topology.apply(df, name, location=str(checkpoint), shards=shards, time="watermark")
        if kind == "chained":
            longer = rows.windowed_by(hs.TumblingWindows(3 * SIZE * 1000))
            both = longer.aggregate(emit="close", n=hs.Sum("n"), total=hs.Sum("total"))
            inner = out.select("k", f.expr("window_end - interval 1 millisecond").alias("t"), "n", "total")
            out = both.apply(inner, "longer", location=str(checkpoint), shards=shards, time="watermark")
        if of is None:
            out = out.select(f.lit(kind).alias("kind"), "k", "t", "t", f.lit(1), f.col("id").cast("long"))
        else:
            end = f.col("window_end")
            if isinstance(of, hs.SessionWindows):
                # ours ends at its last record, Spark's a gap later
                end = end + f.expr(f"interval {GAP} seconds")
            out = out.select(f.lit(kind).alias("kind"), "k", "window_start", end.alias("window_end"), "n", "total")
        union = out if union is None else union.union(out)
    assert union is not None
    return union


# --- running --------------------------------------------------------------------------------------------------------


def answers(df: DataFrame, checkpoint: Path, mode: str, results: dict[int, list[Answer]]) -> None:
    """Run a query to the end of what is there, and add what it gives to `results`, batch by batch."""

    def keep(batch: DataFrame, number: int) -> None:
        results[number] = sorted(tuple(row) for row in batch.collect())

    writer = df.writeStream.foreachBatch(keep).outputMode(mode).option("checkpointLocation", str(checkpoint))
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())


def of_kind(results: dict[int, list[Answer]], kind: str, named: str | None = None) -> dict[int, list[Answer]]:
    """Return the answers of a kind, batch by batch, under another name if one is given."""
    return {number: [(named or kind, *row[1:]) for row in rows if row[0] == kind] for number, rows in results.items()}
