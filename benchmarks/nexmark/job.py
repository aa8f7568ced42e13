"""Job: one query of Nexmark as a user's program has it: a file of bids, a state, results as lines of a file.

The file has JSON lines, which Flink reads, too, or Arrow batches. The program seeks in it, and imports what such a
program needs and nothing else, since a restart behind a kill begins with its imports.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .queries import QUERIES


def batches_of(events: str, rows: int, behind: int | None) -> Iterator[Any]:
    """Yield the bids of an Arrow file behind the one with this number."""
    import pyarrow as pa  # only here: rows of JSON need no Arrow

    with pa.memory_map(events) as file:
        bids = pa.ipc.open_file(file).read_all()
        # A search by single scalars: to_numpy() and computations beside a number of Python import pandas.
        first = 0 if behind is None else bisect_right(bids["number"], behind, key=lambda number: number.as_py())
        yield from bids.slice(first).to_batches(rows)


def lines_of(events: str, behind: int | None) -> Iterator[dict[str, Any]]:
    """Yield the bids of a file of JSON lines behind a byte, each with the byte at which its line ends."""
    at = behind or 0
    with open(events, "rb") as file:
        file.seek(at)
        for line in file:
            at += len(line)
            row: dict[str, Any] = json.loads(line)
            row["at"] = at
            yield row


def killing(rows: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield rows or batches of rows, and end this process where `count` rows were given."""
    for row in rows:
        if count <= 0:
            print("killed itself", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        count -= 1 if isinstance(row, dict) else len(row)
        yield row


def _complete(output: Path) -> int:
    """Return the last commit whose results the file has (0: none)."""
    if not output.exists():
        return 0
    with output.open() as file:
        last = deque(file, maxlen=1)
    return int(json.loads(last[0])[0]) if last else 0


def _processor() -> float:
    """Return the processor time of this process, and of those that it has started and that have ended (s)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def run(
    query: str,
    events: str,
    arrow: bool,
    commit_rows: int,
    folder: str,
    kill_at: int | None,
    for_rate: bool,
    started: float,
) -> dict[str, float]:
    """Run a query on its state, and write each commit's results as a line to the folder; return what it took. `events`
    is the file of bids. With `kill_at` the process ends at this row. `started` is when the process was (seconds since
    1970). In a run `for_rate` rows are read before, and results written behind its end.
    """
    place, output = Path(folder), Path(folder, "results.jsonl")
    complete = _complete(output)
    topology = QUERIES[query].stages[0]

    def source(behind: int | None) -> Iterator[Any]:
        rows = batches_of(events, commit_rows, behind) if arrow else lines_of(events, behind)
        return rows if kill_at is None else killing(rows, kill_at)

    rows: Any = list(source(None)) if for_rate else source
    options: dict[str, Any] = {"position": "number" if arrow else "at", "commit_rows": commit_rows}
    options["replay_last"] = not for_rate
    flush = topology.complete().custom is None
    begun, processor = time.perf_counter(), _processor()
    first = silent = spent = 0.0
    results: Any = topology.run(rows, place / "state", flush=flush, **options)
    taken = 0.0, 0.0
    if for_rate:
        results = list(results)
        taken = _processor() - processor, time.perf_counter() - begun
    commit, pending = 0, list[dict[str, Any]]()
    with output.open("a") as file:

        def write() -> None:
            if pending and commit > complete:
                file.write(json.dumps([commit, pending]) + "\n")
                file.flush()

        for row in results:
            if not first and row.commit > complete:
                first, silent, spent = time.perf_counter() - begun, time.time() - started, time.process_time()
            if row.commit != commit:
                write()
                commit, pending = row.commit, []
            pending.append(dict(row))
        write()
    sizes = {path: path.stat().st_size for path in (place / "state").rglob("*") if path.is_file()}
    return {
        "processor": taken[0],
        "seconds": taken[1],
        "first": first,
        "silent": silent,
        "spent": spent,
        "logged": sum(size for path, size in sizes.items() if path.parent.name == "changelog"),
        "stored": sum(sizes.values()),
    }
