"""Shard rows: the numbers of the last batch, shard by shard, from the shards' own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..state.numbers import shard_row
from .errors import MissingVersionError
from .location import Location
from .reading import operators, shards


def metrics(location: str | Path | Location, operator: str | None = None) -> list[dict[str, Any]]:
    """Return one dict per operator and shard with the numbers of its last batch; readable while the query runs.

    Every dict has every column (`state.numbers.COLUMNS`); None is an unknown number.

    operator, shard            which shard
    version                    the version that it has reached (last batch + 1)
    batch, rows, rows_out      the last batch that reached it, rows in and out
    run, placement             the run of the query, and where the batch was processed: "worker" or "holder" (None
                               without rows)
    wall_ms                    when the batch was committed (ms since the epoch)
    event_time_ms              the newest event time that the shard has seen
    late                       rows that the program dropped as late in that batch
    null_key, null_timestamp   rows of that batch without a key, and without a time: a topology leaves them out; a
                               processor of `transform_with_state` gets them, and only those without a time are counted
    by_row                     why the rows of that batch were processed one by one; None if by column
    records, dropped           by store: records held, and rows dropped as late in that batch, by reason
    load, load_ms              how the state was loaded: hit, catch-up, checkpoint, changelog, empty, none (no rows);
                               and how long that took
    replayed_segments, replayed_records  what the load replayed: log objects, and records in them
    skipped_checkpoints        damaged checkpoints that the load has passed over
    read_ms, process_ms        how long the rows took to arrive, and to be processed
    load_cpu_ms, process_cpu_ms   processor time of loading and processing, which other work on the machine does not
                               change
    commit_ms                  how long the commit before this one took, if the same process did it (else 0): an object
                               cannot say how long it takes to create it
    segment_bytes, logged_records  what that batch has logged: bytes, and records
    commits_since_checkpoint, bytes_since_checkpoint, records_since_checkpoint  what a restart would replay
    restore_estimate_ms        how long a restart would take, estimated
    checkpoint_age_ms          how long ago the last checkpoint was begun; before the first one, the first commit
    differing_attempts         versions of which several attempts wrote different objects
    failed_checkpoints, failed_clearings  failures of the process since it loaded the shard
    files, bytes               objects in the shard's directory, and their size
    memory_bytes, memory_limit_bytes  under a limit of memory: what the shard takes in the process, and what all shards
                               may take
    blocks_read, tables_read, bytes_read  under a limit: what was read of blocks since the process loaded the shard
    hits, misses, read_amplification, records_in_memory  of a plain state (docs/metrics.md); None on Spark, where a
                               limit frees whole shards
    dirty_keys, dirty_bytes, freed_records, freed_bytes  of a plain state, too
    total_rows, total_rows_out, total_late  of all batches since the query began, over all its runs
    total_null_key, total_null_timestamp, total_segment_bytes, total_logged_records  of all batches, too

    `pandas.DataFrame(metrics(...))` or `spark.createDataFrame(...)` make a table of it. Raises MissingVersionError
    without a state.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> results = minutes.aggregate(n=hs.Count()).apply(events, "counts", location=location, shards=1)
    >>> query = results.writeStream.format("noop").option("checkpointLocation", location)
    >>> query.trigger(availableNow=True).start().awaitTermination()
    >>> [(row["shard"], row["version"], row["total_rows"]) for row in hsp.metrics(location)]
    [(0, 1, 2)]
    """
    rows: list[dict[str, Any]] = []
    for name in operators(location) if operator is None else [operator]:
        for state in shards(location, name):
            files, size = state.files.usage()
            known = {"operator": name, "shard": state.shard, "version": state.version, "files": files, "bytes": size}
            try:
                rows.append(shard_row(state.files.objects, state.newest, state.changed, known))
            except FileNotFoundError as error:
                raise MissingVersionError(
                    f"{state.files.storage.url}: an object was removed while it was read (read again)"
                ) from error
    return rows
