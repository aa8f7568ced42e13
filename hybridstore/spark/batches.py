"""Batches: rows of Python as the batches of a streaming query, and the rows that come out of it; for tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def rows_of_query(session: Any, topology: Any, batches: Sequence[Sequence[dict[str, Any]]], shards: int) -> list[Any]:
    """Return the results of a topology for batches of rows, as dicts in the order of the batches. A query reads a file
    for each batch; it is gone afterwards.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row for batch in batches for row in batch]
    schema = pa.Table.from_pylist(rows).schema
    results: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True) as folder:
        source = Path(folder, "rows")
        source.mkdir()
        for number, batch in enumerate(batches):
            path = source / f"{number:06}.parquet"
            pq.write_table(pa.Table.from_pylist(list(batch), schema=schema), path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # by which the source orders files
        frame = session.read.parquet(str(source))
        reader = session.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
        checkpoint = str(Path(folder, "checkpoint"))
        answers = topology.apply(reader.parquet(str(source)), "tested", location=checkpoint, shards=shards)

        def keep(batch: Any, number: int) -> None:
            results[number] = [row.asDict(recursive=True) for row in batch.collect()]

        writer = answers.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    return [row for _, batch in sorted(results.items()) for row in batch]
