"""Listener: the numbers of the shards with each progress that Spark reports of a query.

    spark.streams.addListener(hsp.metrics_listener(checkpoint))             a line of the log for each batch
    spark.streams.addListener(hsp.metrics_listener(checkpoint, publish))    publish(progress, rows)

The listener runs on the driver, in the thread in which Spark calls its listeners, after the batch: a batch never waits
for the listener.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from changelog.errors import HybridStoreError

from ..state.log_lines import SPARK, info, warn
from .location import Location
from .shard_rows import metrics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.listener import StreamingQueryListener

Publish = Callable[[dict[str, Any], list[dict[str, Any]]], object]


def metrics_listener(
    location: str | Path | Location, publish: Publish | None = None, *, name: str | None = None
) -> StreamingQueryListener:
    """Return a listener for Spark that publishes the numbers of a location's shards with each progress of its query.

    location   the query's checkpointLocation, or where its state is, as `metrics` takes it
    publish    called with Spark's progress (a dict, as its JSON) and the rows of `metrics`; None: a line of the log
    name       the query's name, if the session runs several; None: every query

    Errors of reading or of `publish` are warnings in the log, and never end a query. With Spark Connect, remove the
    listener when the query has ended and `onQueryTerminated` was called: Spark's client can wait for ever if an event
    arrives while its last listener is removed (`spark.stop()` removes listeners too).

    >>> listener = hsp.metrics_listener(location, lambda progress, rows: print(progress["batchId"], len(rows)))
    >>> spark.streams.addListener(listener)
    >>> spark.streams.removeListener(listener)
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            """Nothing is known yet."""

        def onQueryProgress(self, event: Any) -> None:
            """Publish the numbers of the batch that ended."""
            progress: dict[str, Any] = json.loads(event.progress.json)
            if name is not None and progress.get("name") != name:
                return
            batch = progress.get("batchId")
            try:
                (publish or _log)(progress, metrics(location))
            except (HybridStoreError, OSError) as error:
                warn("%s: the numbers of batch %s cannot be read: %s", location, batch, error, logger=SPARK)
            except Exception as error:
                warn("%s: the numbers of batch %s were not published", location, batch, logger=SPARK, error=error)

        def onQueryIdle(self, event: Any) -> None:
            """Nothing has changed."""

        def onQueryTerminated(self, event: Any) -> None:
            """Nothing is left to publish."""

    return Listener()


def _log(progress: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    total = {name: sum(row[name] or 0 for row in rows) for name in ("rows", "rows_out", "late", "bytes", "total_rows")}
    slowest = max((row["process_ms"] or 0 for row in rows), default=0)
    restart = max((row["restore_estimate_ms"] or 0 for row in rows), default=0)
    info(
        "batch %s: %d rows in, %d out, %d late; %.1f rows/s; slowest shard %.1f ms, restart %.0f ms; %d bytes; "
        "%d rows in all",
        progress.get("batchId"), total["rows"], total["rows_out"], total["late"],
        progress.get("processedRowsPerSecond") or 0.0, slowest, restart, total["bytes"], total["total_rows"],
        logger=SPARK,
    )  # fmt: skip
