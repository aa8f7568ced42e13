"""Programs for the tests of the Spark operator: small, and importable by Spark's workers."""

from operator import add
from typing import Any

import numpy as np
import pyarrow as pa

from hybridstore.clock import Watermark
from hybridstore.spark import placement
from hybridstore.state.group import StoreGroup
from hybridstore.topology.columns.buffers import array_of, taken_at

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
        # Without `group_by` and `array` of pyarrow, which import all of pandas: in a process that does little else that
        # takes half of its processor time.
        keys = table["k"].to_pylist()
        added: dict[Any, list[int]] = {}
        for key, value in zip(keys, table["v"].to_pylist(), strict=True):
            n, total = added.get(key, (0, 0))
            added[key] = [n + 1, total + value]
        chosen = sorted(added)
        before = [old or [0, 0] for old in self.store.get_many(chosen)]
        rows = [[*map(add, old, added[key])] for key, old in zip(chosen, before, strict=True)]
        self.store.put_columns(chosen, rows)
        firsts = taken_at(table.select(["k"]), list(map(keys.index, chosen)))
        counts = [array_of(np.array(column, np.int64)) for column in zip(*rows, strict=True)]
        return pa.Table.from_arrays([*firsts.columns, *counts], schema=output) if rows else output.empty_table()


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
