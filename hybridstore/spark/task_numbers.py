"""Task numbers: what a task has counted in a batch, as one more row behind its results, for Spark to add up.

The numbers of a shard come with its results, in the metadata of their Arrow schema: also from a holder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from .contract import FRAME_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN: Final = "__hybridstore"
NUMBERS: Final = ("shards", "rows", "rows_out", "late", "null_key", "null_timestamp")
_METADATA: Final = b"hybridstore"


def noted(results: pa.Table, numbers: Mapping[str, int]) -> pa.Table:
    """Return the results of a shard with its numbers."""
    return results.replace_schema_metadata({_METADATA: json.dumps({"shards": 1, **numbers}).encode()})


def with_numbers(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the results of a task, `COLUMN` null behind their columns, and a row in which only that column has a value:
    the sums of the numbers of all tables. O(rows).
    """
    import pyarrow as pa

    if not tables:
        return
    # a stream has one schema, and the last row has nulls in all columns of the results
    kind = pa.struct([(name, pa.int64()) for name in NUMBERS])
    schema = pa.schema([*(pa.field(field.name, field.type) for field in tables[0].schema), (COLUMN, kind)])
    totals = dict.fromkeys(NUMBERS, 0)
    for table in tables:
        numbers = json.loads(table.schema.metadata[_METADATA])
        totals = {name: total + numbers[name] for name, total in totals.items()}
        none = pa.nulls(table.num_rows, kind)
        yield from pa.Table.from_arrays([*table.columns, none], schema=schema).to_batches(FRAME_ROWS)
    nulls = [pa.nulls(1, field.type) for field in list(schema)[:-1]]
    yield pa.RecordBatch.from_arrays([*nulls, pa.array([totals], kind)], schema=schema)
