"""Programs for the tests of the Spark operator: small, and importable by Spark's workers."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hybridstore.clock import Watermark
from hybridstore.spark import placement
from hybridstore.state.group import StoreGroup

# Whoever imports this, a worker of Spark's too, waits for a holder that a loaded machine starts late.
placement.START_SECONDS, placement.SILENCE_SECONDS = 600.0, 60.0  # type: ignore[misc]


class RunningCount:
    """Per key, the number of rows and the sum of `v` so far; a row out per key and batch."""

    key = ("k",)

    def columns(self) -> tuple[str, ...]:
        return ("k", "v")

    def describe(self) -> dict[str, Any]:
        return {"kind": "running count", "columns": ("k", "v")}

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([schema.field("k"), ("n", pa.int64()), ("total", pa.int64())])

    def open(self, group: StoreGroup) -> "CountRunner":
        return CountRunner(group.open("counts", "key_value", {"ttl_ms": None}))


class CountRunner:
    def __init__(self, store: Any) -> None:
        self.store = store

    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        grouped = table.group_by("k", use_threads=False).aggregate([("v", "count"), ("v", "sum")])
        grouped = grouped.take(pc.sort_indices(grouped, [("k", "ascending")]))
        keys = grouped["k"].to_numpy().tolist()
        added = zip(grouped["v_count"].to_numpy().tolist(), grouped["v_sum"].to_numpy().tolist(), strict=True)
        rows = [
            [n, total] if old is None else [old[0] + n, old[1] + total]
            for old, (n, total) in zip(self.store.get_many(keys), added, strict=True)
        ]
        self.store.put_columns(keys, rows)
        return pa.table({"k": grouped["k"], "n": [n for n, _ in rows], "total": [v for _, v in rows]}, schema=output)


class Numbering(RunningCount):
    """For each row its number among those of its key, and the sum of `v` so far, however rows are cut into batches."""

    def open(self, group: StoreGroup) -> "NumberingRunner":
        return NumberingRunner(group.open("counts", "key_value", {"ttl_ms": None}))


class NumberingRunner(CountRunner):
    def process(self, table: pa.Table, output: pa.Schema, watermark: Watermark | None = None) -> pa.Table:
        rows = []
        for key, value in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True):
            n, total = self.store.get(key) or [0, 0]
            self.store.put(key, [n + 1, total + value])
            rows.append({"k": key, "n": n + 1, "total": total + value})
        return pa.Table.from_pylist(rows, schema=output)
