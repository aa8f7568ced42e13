"""Query log: Spark's own files under a checkpoint location: text, whose first line is a version, then JSON.

metadata          {"id": query id}
offsets/<batch>   written before the batch's tasks run; line 2 has batchWatermarkMs and batchTimestampMs
commits/<batch>   written after the batch
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from changelog.storage import Storage
from recovery.layout import METADATA

from ..clock import Watermark
from .errors import SparkSetupError
from .location import Location

if TYPE_CHECKING:
    from .contract import Batch

# With this setting each source of a query has a name (`DataStreamReader.name`, Spark 4.2).
NAMED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


class BatchTime(NamedTuple):
    """The times of a batch, the same in every attempt: the query's watermark and the batch's own time, in ms."""

    watermark_ms: int
    timestamp_ms: int


def batch_time(checkpoint: Storage, batch: int) -> BatchTime:
    """Read offsets/<batch>. Raises SparkSetupError when the file is absent while the batch runs, or cannot be read."""
    name = f"offsets/{batch}"
    where = f"{checkpoint.url}/{name}"
    try:
        lines = checkpoint.get(name).decode().splitlines()
    except FileNotFoundError:
        raise SparkSetupError(
            f"{where}: missing while batch {batch} runs: either location= is not the query's checkpointLocation, "
            "or the query runs with asyncProgressTrackingEnabled=true, which reuses batch numbers, or in real-time "
            "mode, which notes a batch at its end; neither is supported (turn it off; for answers within milliseconds "
            "run the topology in the plain engine: topology.open(...), engine.process(row))"
        ) from None
    try:
        fields = json.loads(lines[1])
        return BatchTime(int(fields["batchWatermarkMs"]), int(fields["batchTimestampMs"]))
    except (IndexError, KeyError, ValueError) as error:
        raise SparkSetupError(
            f"{where}: cannot be read as an offset log entry: {error} (restore Spark's file from a copy)"
        ) from error


@lru_cache(64)
def time_in_run(location: Location, run_id: str, batch: int) -> BatchTime:
    """Return the times of a batch that a run has begun or finished. The times no longer change, so each process reads
    them once.

    Raises as `batch_time`.
    """
    return batch_time(location.query(), batch)


@lru_cache(64)
def query_in_run(location: Location, run_id: str) -> str:
    """Return the id of the query from Spark's file in the location, "" if none exists; read once for each process and
    run.
    """
    try:
        return str(json.loads(location.query().get(METADATA))["id"])
    except FileNotFoundError:
        return ""
    except (KeyError, ValueError) as error:
        raise SparkSetupError(
            f"{location.checkpoint}/{METADATA}: cannot be read: {error} (restore Spark's file from a copy)"
        ) from error


def watermark_of(location: Location, batch: Batch) -> Watermark:
    """Return the watermark of a batch, and that of the batch before, which decides which rows are late (0 for the first
    batch). Raises as `batch_time`."""
    late_ms = time_in_run(location, batch.run_id, batch.number - 1).watermark_ms if batch.number else 0
    return Watermark(late_ms, batch.watermark_ms)


def next_watermark(checkpoint: Storage) -> int:
    """Return the watermark (ms) that the batch behind the newest committed one will have; 0 at first.

    Raises SparkSetupError for a file that cannot be read.
    """
    newest = committed(checkpoint)
    if newest < 0:
        return 0
    name = f"commits/{newest}"
    try:
        return int(json.loads(checkpoint.get(name).decode().splitlines()[1])["nextBatchWatermarkMs"])
    except (IndexError, KeyError, ValueError) as error:
        raise SparkSetupError(
            f"{checkpoint.url}/{name}: cannot be read as a commit log entry: {error} (restore Spark's file from a copy)"
        ) from error


def check_named(checkpoint: Storage) -> None:
    """Raise SparkSetupError for a query to which Spark adds no source and from which it drops none, because its
    sources have no names. One list and one get.
    """
    newest = planned(checkpoint)
    if newest >= 0 and checkpoint.get(f"offsets/{newest}").startswith(b"v1"):
        raise SparkSetupError(
            f"{checkpoint.url}/offsets/{newest}: found sources without names, to which Spark adds none, expected a "
            "query whose sources have had names from its first batch on (DataStreamReader.name() of Spark 4.2, with "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution=true); begin in a new location"
        )


def committed(checkpoint: Storage) -> int:
    """Return the newest batch in commits/, -1 when none exists. One list; Spark keeps some hundred names."""
    return _newest(checkpoint, "commits/")


def planned(checkpoint: Storage) -> int:
    """Return the newest batch in offsets/, which has begun; -1 when none exists. One list."""
    return _newest(checkpoint, "offsets/")


def _newest(checkpoint: Storage, folder: str) -> int:
    names = [name.removeprefix(folder) for name in checkpoint.list(folder)]
    return max((int(name) for name in names if name.isdigit()), default=-1)
