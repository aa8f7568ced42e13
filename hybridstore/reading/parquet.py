"""Parquet: the rows of a store as a file with typed columns, for DuckDB, Polars, pandas and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from changelog.installed import installed

from ..stores.kinds import Row
from .tables import stream_of
from .texts import say

Labelled = Callable[[], Iterator[tuple[str, Row]]]


def write_parquet(to: Path, times: Sequence[str], rows: Labelled, *, several: bool) -> int:
    """Write rows, each with the label of its shard, to a new file, and return their number.

    rows     makes the iterator, twice if needed
    several  writes the labels, too, as the column `shard`

    Times are timestamps of milliseconds in UTC. `key` and `value` have the type of their rows (a dict is a struct);
    where rows differ in type, or Parquet has no such type, both columns are text (values as JSON), and a line of the
    log says so. Raises HybridStoreError without pyarrow, and OSError. O(rows), memory O(a batch).
    """
    pa = installed(to, "pyarrow", "pip install pyarrow, or export to .jsonl")
    try:
        return _written(to, times, rows, several=several, text=False)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        to.unlink(missing_ok=True)  # no row may have been read yet
        say(f"{to}: keys and values are text: {error}")
        return _written(to, times, rows, several=several, text=True)


def _written(to: Path, times: Sequence[str], rows: Labelled, *, several: bool, text: bool) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels: list[str] = []

    def unlabelled() -> Iterator[Row]:
        for label, row in rows():
            labels.append(label)
            yield row

    stream = stream_of(times, unlabelled(), text=text)
    instant, count = pa.timestamp("ms", "UTC"), 0
    fields = [pa.field(field.name, instant) if field.name in times else field for field in stream.schema]
    schema = pa.schema([pa.field("shard", pa.string()), *fields] if several else fields)
    with pq.ParquetWriter(to, schema) as writer:
        for batch in stream:
            of_batch, labels[:] = labels[: len(batch)], labels[len(batch) :]
            columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
            columns = [pa.array(of_batch, pa.string()), *columns] if several else columns
            writer.write_batch(pa.record_batch(columns, schema=schema))
            count += len(batch)
    return count
