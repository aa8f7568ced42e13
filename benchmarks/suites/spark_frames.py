"""Where the time of the pandas door is spent: our part of a key beside the user's function, in one process.

    python -m benchmarks.suites.spark_frames --keys 5000 --rows 50000

Each line is the processor time of a key in microseconds, the least of five batches, the collector off as in tasks:

frames only      grouping, and the frames of each key, with a function that ignores them
state            the same, and a value read and updated for each key
function         the benchmark's function alone (`count` or `totals` of `spark_queries`), on frames that are there and
                 were not read before (the first read of a column costs more than the next)
all              both, with the results as columns

The user's function costs the same on Spark's operator and on ours, so its line bounds the ratio of the two.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

BATCHES = 5


def spent_us(run: Callable[[int], Any], keys: int) -> float:
    """Return the least processor time of a key (us) over some batches."""
    spent = []
    for batch in range(BATCHES):
        gc.collect()
        gc.disable()
        begun = time.process_time()
        run(batch)
        spent.append(time.process_time() - begun)
        gc.enable()
    return min(spent) * 1e6 / keys


class Grouped:
    """Takes the class that the benchmark gives to Spark."""

    processor: Any = None

    def groupBy(self, key: str) -> Grouped:
        return self

    def transformWithStateInPandas(self, processor: Any, *others: Any) -> Any:
        self.processor = processor


class Value:
    """A value of state that costs nothing."""

    def exists(self) -> bool:
        return True

    def get(self) -> tuple[int, int]:
        return 1, 2

    def update(self, value: Any) -> None: ...


def lines(work: str, keys: int, rows: int) -> Iterator[tuple[str, float]]:
    """Yield what is measured, and its microseconds for a key."""
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import types as t
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from benchmarks.suites.spark_queries import transform_with_state
    from hybridstore.spark.arrow_schema import arrow_schema
    from hybridstore.spark.contract import Batch
    from hybridstore.spark.frame_processor import FrameProgram
    from hybridstore.spark.frames import FrameReader, FrameSettings
    from hybridstore.spark.stateful_processor import in_groups
    from hybridstore.state.group import StoreGroup

    taken = Grouped()
    transform_with_state(taken, work, pandas=True)

    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("state", "n long, total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for _ in rows:
                pass
            return iter(())

        def close(self) -> None: ...

    class Stateful(Nothing):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            n, total = self.state.get() if self.state.exists() else (0, 0)
            self.state.update((n + 1, total + 1))
            return super().handleInputRows(key, rows, timerValues)

    schema = t.StructType().add("k", "string").add("v", "long").add("ms", "long").add("t", "timestamp")
    wanted = t.StructType().add("k", "string").add("n", "long").add("total", "long")
    random = np.random.default_rng(1)
    ms = 1_760_000_000_000 + random.permutation(rows)
    times = pa.array(ms).cast(pa.timestamp("ms", "UTC"))
    columns = [[f"key{i}" for i in random.integers(0, keys, rows)], random.integers(0, 100, rows), ms, times]
    table = pa.table(dict(zip(schema.names, columns, strict=True))).cast(arrow_schema(schema, "UTC"))
    table, names, places = in_groups(table, ("k",))
    output = arrow_schema(wanted, "UTC")

    def through(processor: Any) -> Callable[[int], Any]:
        group = StoreGroup(lambda body: None)

        def run(number: int) -> None:
            program = FrameProgram(processor, ("k",), wanted, "None", None, {})
            program.schema = schema
            runner = program.open(group)
            runner.begin(Batch(number, "", "", 0, 0, 1000, None, 1), 0, 1, None)  # type: ignore[arg-type]
            runner.process(table, output)

        return run

    def alone(number: int) -> None:
        for key, frame in zip(names, frames[number], strict=True):
            for _ in taken.processor.handleInputRows(key, iter([frame]), None):
                pass

    yield "frames only", spent_us(through(Nothing()), len(names))
    yield "state", spent_us(through(Stateful()), len(names))
    reader = FrameReader(table, schema, FrameSettings(), widened=True)
    frames = [[reader.slice(start, end) for start, end in pairwise(places)] for _ in range(BATCHES)]
    taken.processor.state = Value()
    yield "function", spent_us(alone, len(names))
    yield "all", spent_us(through(taken.processor), len(names))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=50_000)
    asked = parser.parse_args()
    for work in ("count", "totals"):
        known = dict(lines(work, asked.keys, asked.rows))
        print(f"{work}, {asked.keys:,} keys, {asked.rows:,} rows: us of processor time a key")
        for name, used in known.items():
            print(f"  {name:<12} {used:>8,.1f}")
        ours, share = known["all"] - known["function"], known["function"] / known["all"]
        print(f"  {'ours':<12} {ours:>8,.1f}  {share:.0%} of all is the user's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
