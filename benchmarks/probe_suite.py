"""A suite as a probe: run a suite of the benchmarks that are on the path, and print its figures in seconds as JSON.

Each of two trees that are compared is measured by the benchmarks of its own commit, which use the names of that commit.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure.timing import WrongAnswerError

_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
# Ops that had another name once, as figures name them.
_RENAMED = {"get_column": "get_many"}
_KEYS, _BATCHES = 1000, 8  # of a query on Spark


def catching_up(folder: Path, rows: int) -> dict[str, float]:
    """What a row costs a worker, or a restart, that catches up, by kind of store and op."""
    from benchmarks.suites.catching_up import measure

    result = measure(folder, rows=rows, segments=4, repeats=1, tail=rows, columns=rows)
    figures = {line.name: line.value * _UNITS[line.unit] for line in result.lines}
    for before, now in _RENAMED.items():
        figures = {name.replace(before, now): value for name, value in figures.items()}
    return figures


def spark(folder: Path, rows: int) -> dict[str, float]:
    """A batch of a running query on Spark, by the clock and of processor.

    Raises WrongAnswerError if the query failed.
    """
    from benchmarks.suites.spark import compare, milliseconds, processor

    answers, reasons = compare(folder, "count", _KEYS, rows, _BATCHES, ["hybridstore"], 1, 300)
    if not answers:
        raise WrongAnswerError("; ".join(reasons))
    runs = answers["hybridstore"]
    figures = {"count, a batch": statistics.median(milliseconds(runs)) / 1000}
    used = processor(runs)
    return figures if used is None else {**figures, "count, a batch, processor": used / 1000}


SUITES = {"catching-up": catching_up, "spark": spark}


def main() -> None:
    """Measure the suite and the number of rows on the command line."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(SUITES[sys.argv[1]](Path(folder), int(sys.argv[2]))))


if __name__ == "__main__":
    main()
