"""Traffic of a web server, from its logs: per client over a sliding 5 minutes, and per path and hour.

The job below is all that one needs to copy. Run as a script it shows what it is for: it is killed in the middle,
restarted, and its results are compared with those of a run that nobody interrupted (`examples/interrupted.py`); see
`--help`.
"""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weblog import parse_column

import hybridstore as hs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

clients = (
    hs.stream(key="ip", timestamp="time")
    .windowed_by(hs.SlidingWindows("5 minutes"))
    .aggregate(requests=hs.Count(), bytes=hs.Sum("bytes"))
)
paths = (
    hs.stream(key="path", timestamp="time")
    .windowed_by(hs.TumblingWindows("1 hour", grace="1 minute"))
    .aggregate(emit="commit", requests=hs.Count(), bytes=hs.Sum("bytes"))
)
TOPOLOGIES = {"clients": clients, "paths": paths}


def job(
    spark: "SparkSession", logs: str, results: str, checkpoints: str, shards: int, states: str | None = None
) -> Iterator["StreamingQuery"]:
    """Start a query per topology over the log files in a folder, one file a batch, and write Parquet.

    The state is with the query's checkpoint, or below `states`: a folder that all workers share, or a bucket.
    """
    from pyspark.sql import functions as F

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(logs)
    requests = lines.select(parse_column(lines.value).alias("row")).where("row is not null").select("row.*")
    requests = requests.withColumn("time", F.timestamp_millis("time"))
    for name, topology in TOPOLOGIES.items():
        checkpoint = os.path.join(checkpoints, name)
        # so often that a log of this size shows checkpoints; leave the policy out and a restart takes under a second
        policy = hs.CheckpointPolicy(every_commits=4)
        state = states and f"{states}/{name}"
        counted = topology.apply(
            requests, name, location=checkpoint, shards=shards, checkpoints=policy, state_location=state
        )
        writer = counted.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        yield writer.trigger(availableNow=True).start(os.path.join(results, name))


if __name__ == "__main__":
    import interrupted

    sys.exit(interrupted.main())
