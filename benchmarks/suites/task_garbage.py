"""Task garbage: what a Spark worker pays after each task for freeing the task's garbage, beside a state that is never
walked.

    python -m benchmarks.suites.task_garbage [--records 500000]

The worker's own function runs batch after batch in this process, without Spark; processor time of the freeing alone,
per task.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from tempfile import gettempdir
from time import process_time
from typing import Any

import pyarrow as pa

from benchmarks.measure import fresh_process
from benchmarks.measure.result import Result, Target, line, show
from benchmarks.measure.state import scratch
from benchmarks.measure.timing import Spread, check, stopwatch
from hybridstore.spark import shipped, worker
from hybridstore.spark.contract import Batch, whole_program
from hybridstore.spark.launches import STARTS
from hybridstore.spark.location import locate
from hybridstore.spark.shard.provider import POLICY
from hybridstore.spark.sharding import SHARD_COLUMN
from recovery.rule import Run
from recovery.runs import Claim
from tests.tools.spark_programs import RunningCount

LARGEST_MS = 5.0


def tasks(folder: str, records: int, touched: int, count: int) -> dict[str, list[float]]:
    """Fill a state of `records` keys with one task, then run `count` tasks of `touched` rows; ms for each. For a fresh
    process.
    """
    freed: list[float] = []
    whole: list[float] = []
    free = worker._tasks._freeze

    def timed() -> None:
        started = process_time()
        free()
        freed.append((process_time() - started) * 1000)

    worker._tasks._freeze = timed  # type: ignore[method-assign]
    output = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
    with scratch(Path(folder)) as place:
        program = whole_program(RunningCount())
        operator = shipped.Operator(program, "op", locate(place), 1, ("int64",), "stream", output, POLICY)
        function, run = worker.ShardFunction(operator), Claim("r", 1, (Run(STARTS, 0),))
        rows = 0
        for number in range(count + 1):
            keys = [i * 997 % records for i in range(touched)] if number else list(range(records))
            rows += len(keys)
            columns: dict[str, Any] = {"k": keys, "v": [1] * len(keys)}
            batch = pa.record_batch({**columns, SHARD_COLUMN: pa.array([0] * len(keys), pa.int32())})
            worker.this_batch = lambda _, number=number: Batch(  # type: ignore[misc]
                number, "q", "r", 0, 0, 0, run, 1
            )
            started = process_time()
            result = list(worker.run_shards(function, iter([batch])))
            whole.append((process_time() - started) * 1000)
            gc.collect()  # as PySpark's worker does after a task
        check(max(max(batch["n"].to_pylist()) for batch in result) == 1 + count, "rows counted")
    return {"free": freed[1:], "task": whole[1:]}


def measure(folder: Path, records: int = 500_000, count: int = 60) -> Result:
    """Measure tasks of 500 and of 5,000 rows in fresh processes. Raises WrongAnswerError when the rows were counted
    wrongly.
    """
    result = Result("task garbage", {"records": records, "tasks": count})
    with stopwatch() as clock:
        for touched in (min(records, 500), min(records, 5000)):
            target = f"{__name__}:tasks" if __name__ != "__main__" else "benchmarks.suites.task_garbage:tasks"
            took = fresh_process.call(target, folder=str(folder), records=records, touched=touched, count=count)
            bound = Target(LARGEST_MS, "value")
            free, task = (Spread(tuple(ms / 1000 for ms in took[name])) for name in ("free", "task"))
            result.lines.append(line(f"freeing the garbage of a task of {touched:,} rows", free, "ms", target=bound))
            result.lines.append(line(f"the task of {touched:,} rows", task, "ms"))
    result.seconds = clock.seconds
    return result


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What freeing the garbage of a task costs beside a large state.")
    parser.add_argument("--records", type=int, default=500_000)
    show(measure(Path(gettempdir()), parser.parse_args().records))


if __name__ == "__main__":
    main()
