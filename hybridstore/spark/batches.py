"""Batches: rows of Python as the batches of a streaming query, and the rows that come out of it; for tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]


def rows_of_query(
    session: Any,
    topology: Any,
    batches: Sequence[Rows | Mapping[str, Rows]],
    shards: int,
    types: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the results of a topology for batches of rows, as dicts in the order of the batches; a batch of a join has
    rows by the names of its inputs, and `types` are as in `apply`. A query reads a file of each input for each batch;
    the files are gone afterwards.
    """
    results: dict[int, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="hybridstore-", ignore_cleanup_errors=True) as folder:
        checkpoint = str(Path(folder, "checkpoint"))

        def stream(name: str, parts: Sequence[Rows]) -> Any:
            source = Path(folder, "rows", name)
            write_batches(source, parts)
            schema = session.read.parquet(str(source)).schema
            return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))

        sides = [batch for batch in batches if isinstance(batch, Mapping)]
        given: Any = {name: stream(name, [side[name] for side in sides]) for name in (sides[0] if sides else ())}
        if not sides:
            given = stream("rows", [batch for batch in batches if not isinstance(batch, Mapping)])
        answers = topology.apply(given, "tested", location=checkpoint, shards=shards, types=types)

        def keep(batch: Any, number: int) -> None:
            results[number] = [row.asDict(recursive=True) for row in batch.collect()]

        writer = answers.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    return [row for _, batch in sorted(results.items()) for row in batch]


def write_batches(source: Path, parts: Sequence[Rows]) -> None:
    """Write a file for each part, also for one without rows, so that inputs keep step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source.mkdir(parents=True)
    rows = [row for part in parts for row in part]
    # Arrow takes the columns of the first row for those of all
    names = dict.fromkeys(name for row in rows for name in row)
    schema = pa.Table.from_pylist([names | row for row in rows]).schema
    for number, part in enumerate(parts):
        path = source / f"{number:06}.parquet"
        pq.write_table(pa.Table.from_pylist(list(part), schema=schema), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # by which the source orders files
