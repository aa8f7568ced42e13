"""Object costs: what state on an object store costs in requests, bytes and money a day, beside Spark's own provider.

Arithmetic over three kinds of numbers, all of them here: list prices, requests of ours as a test counts them on a local
S3 server (`tests/benchmarks/test_object_costs.py`), and files of Spark's RocksDB provider as its source says.
docs/scale.md has the result.
"""

from __future__ import annotations

from dataclasses import dataclass

DAY: int = 86_400
# List prices in USD of S3 Standard, us-east-1, as published tables had them in November 2026 (not read from Amazon
# itself): a PUT or a list, and a GET or HEAD. Deletions and bytes into the store are free.
PRICES_OF = "S3 Standard in us-east-1, November 2026"
PER_PUT = 0.005 / 1000
PER_GET = 0.0004 / 1000
# What is assumed of a query, beside shards and batches: checkpoints of a shard a day at least, and a checkpoint in so
# many batches that change it (`provider.POLICY`).
CHECKPOINTS_A_DAY = 24
CHECKPOINT_BATCHES = 100
ROWS_PER_SECOND = 10_000
RECORD_BYTES = 100
# An object of a shard without its records: header, commit and metrics. Measured by the same test.
OBJECT_BYTES = 700
SHARDS = (10, 200, 1000)
BATCHES = (1, 10, 60)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind; of bytes, those that are written."""

    puts: float = 0
    lists: float = 0
    gets: float = 0
    bytes: float = 0

    def times(self, count: float) -> Requests:
        """Return so many of the same."""
        return Requests(self.puts * count, self.lists * count, self.gets * count, self.bytes * count)

    def plus(self, other: Requests) -> Requests:
        """Return both together."""
        return Requests(
            self.puts + other.puts, self.lists + other.lists, self.gets + other.gets, self.bytes + other.bytes
        )

    @property
    def dollars(self) -> float:
        """What they cost at list prices, in USD."""
        return (self.puts + self.lists) * PER_PUT + self.gets * PER_GET


# What a batch is to a shard that is in memory, also to one without rows; what a checkpoint is with what it clears away.
BATCH = Requests(puts=1)
CHECKPOINT = Requests(puts=2, lists=4, gets=2)
# Spark, at the least: a file is one PUT. (Hadoop's connector asks whether there is one, and a rename is a copy;
# checksum files, where they are on, double the files.)
SPARK_CHANGELOG = Requests(puts=1)
SPARK_SNAPSHOT = Requests(puts=2)
# Its maintenance: a list of the shard's files each minute, and, with changelogs, a snapshot where ten versions passed.
MAINTENANCE_SECONDS = 60
SPARK_DELTAS = 10


def ours(shards: int, batch_seconds: float) -> Requests:
    """Return the requests and bytes of a day, the state being where `state_location=` says."""
    batches = DAY / batch_seconds
    objects = BATCH.times(shards * batches)
    kept = CHECKPOINT.times(shards * max(CHECKPOINTS_A_DAY, batches / CHECKPOINT_BATCHES))
    written = ROWS_PER_SECOND * DAY * RECORD_BYTES * 2 + objects.puts * OBJECT_BYTES
    return objects.plus(kept).plus(Requests(bytes=written))


def sparks(shards: int, batch_seconds: float, *, changelog: bool) -> Requests:
    """Return the same of Spark's RocksDB provider: with changelog checkpoints, or, as by default, a snapshot a batch.

    Its bytes are those of the records alone, once more for snapshots: what compaction writes again is not known here.
    """
    batches = DAY / batch_seconds
    lists = Requests(lists=shards * DAY / MAINTENANCE_SECONDS)
    records = ROWS_PER_SECOND * DAY * RECORD_BYTES
    if not changelog:
        return SPARK_SNAPSHOT.times(shards * batches).plus(lists).plus(Requests(bytes=records))
    snapshots = DAY / max(MAINTENANCE_SECONDS, SPARK_DELTAS * batch_seconds)
    files = SPARK_CHANGELOG.times(shards * batches).plus(SPARK_SNAPSHOT.times(shards * snapshots))
    return files.plus(lists).plus(Requests(bytes=2 * records))


def _count(number: float) -> str:
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number:,.0f}"


def section() -> list[str]:
    """Return the section of docs/scale.md, line by line."""
    lines = [
        "## What state on an object store costs a day",
        "",
        f"Calculated (`benchmarks/suites/object_costs.py`): list prices of {PRICES_OF} ({PER_PUT * 1e6:g} USD for a "
        f"million PUTs or lists, {PER_GET * 1e6:g} USD for a million GETs; deletions and bytes into the store are "
        f"free). Counted by a test on a local S3 server: {BATCH.puts:g} PUT for each shard and batch; "
        f"{CHECKPOINT.puts:g} PUTs, {CHECKPOINT.lists:g} lists and {CHECKPOINT.gets:g} GETs for a checkpoint and what "
        f"it clears away, by the process that has written the log. Assumed: a checkpoint of a shard after "
        f"{CHECKPOINT_BATCHES} batches that change it, and at least {CHECKPOINTS_A_DAY} a day, {ROWS_PER_SECOND:,} "
        f"rows a second that each change a record of {RECORD_BYTES} bytes (written twice, to the log and to a "
        f"checkpoint), {OBJECT_BYTES} bytes an object beside its records.",
        "",
        "Spark's RocksDB provider, in the same way: a PUT for each file, which is the least (Hadoop's connector asks "
        "first, and where it renames that is a copy). With a changelog: a file a batch and shard, also without rows, "
        f"and a snapshot of at least two files where {SPARK_DELTAS} versions passed, at most each minute; by default: "
        "a snapshot a batch. A list of each shard's files every minute.",
        "",
        "| shards | batches of | requests | GB written | USD | Spark, changelog, USD | Spark, default, USD |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for shards in SHARDS:
        for seconds in BATCHES:
            mine = ours(shards, seconds)
            costs = (
                mine.dollars,
                sparks(shards, seconds, changelog=True).dollars,
                sparks(shards, seconds, changelog=False).dollars,
            )
            cells = (
                f"{shards:,}",
                f"{seconds:g} s",
                _count(mine.puts + mine.lists + mine.gets),
                f"{mine.bytes / 1e9:,.0f}",
                *(f"{cost:,.2f}" for cost in costs),
            )
            lines.append(f"| {' | '.join(cells)} |")
    most = ours(SHARDS[-1], BATCHES[0])
    batch_puts = BATCH.times(SHARDS[-1] * DAY / BATCHES[0]).dollars
    lines += [
        "",
        f"* What costs is PUTs, and these are shards x batches: {batch_puts / most.dollars:.1%} of the largest sum. "
        "Longer batches and fewer shards save in proportion; `tasks=` gives parallelism without more shards.",
        "* Where `location=` itself is a URL, each Python process reads `offsets/<batch>` once a batch: at most "
        f"{PER_GET / PER_PUT:.0%} more, were every shard in a process of its own. Spark's own offsets and commits are "
        "the same files with either provider, and are not counted.",
        "* How many packs wait to be merged is nothing to a checkpoint, and to a cold start only behind its first "
        "read. Counted after 120 checkpoints of 1 % of 20,000 records, with 14 packs and with 37: a state opens with "
        "3 requests, 2 of which follow each other, and has a record after 13, 4 of which do; all records are there "
        "after 27 and 50, 5 of which do.",
        "* Storage itself, and traffic to another region, cost the same with either, and are not counted.",
        "",
    ]
    return lines
