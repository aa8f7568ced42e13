"""Job: one query of Nexmark as a user's program has it: a file of bids, a state, results as lines of a file.

The program imports what such a program needs and nothing else, since a restart behind a kill begins with its imports.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import hybridstore as hs
from benchmarks.measure.state import COMMIT_ROWS, NEVER
from hybridstore.topology.engine import POLICY

from .queries import QUERIES

KILLED_AT: Final = 0.6


def commit_rows_of(bids: pa.Table) -> int:
    """Return the rows of a commit: a few commits come before the kill, also of few events."""
    return max(1, min(COMMIT_ROWS, int(bids.num_rows) // 20))


def _given(bids: pa.Table, *, arrow: bool, behind: int, kill: bool) -> Iterator[Any]:
    """Yield the bids behind a position, as a source that seeks does; with `kill`, end this process at 60 % of all."""
    # A search by single scalars: to_numpy() and computations beside a number of Python import pandas.
    first = bisect_right(bids["number"], behind, key=lambda number: number.as_py())
    last = int(bids.num_rows * KILLED_AT)
    for batch in bids.slice(first).to_batches(commit_rows_of(bids)):
        for row in [batch] if arrow else batch.to_pylist():
            if kill and first >= last:
                print("killed itself", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            first += len(row) if arrow else 1
            yield row


def _complete(output: Path) -> int:
    """Return the last commit whose results the file has (0: none)."""
    if not output.exists():
        return 0
    with output.open() as file:
        last = deque(file, maxlen=1)
    return int(json.loads(last[0])[0]) if last else 0


def run(
    query: str, events: str, arrow: bool, folder: str, kill: bool, checkpoints: bool, started: float
) -> dict[str, float]:
    """Run a query on its state, and write each commit's results as a line to the folder; return what it took. `events`
    is the file of bids. `started` is when the process was (seconds since 1970). Without `checkpoints`, which is a run
    for its rate, the results are written behind its end.
    """
    place, output = Path(folder), Path(folder, "results.jsonl")
    with pa.memory_map(events) as bytes_of_bids:
        bids = pa.ipc.open_file(bytes_of_bids).read_all()
    complete = _complete(output)
    behind = hs.inspect(place / "state").position if (place / "state").exists() else None
    policy = POLICY if checkpoints else NEVER
    topology = QUERIES[query].stages[0]
    source = _given(bids, arrow=arrow, behind=-1 if behind is None else behind, kill=kill)
    rows: Any = source if kill else list(source)
    options: dict[str, Any] = {"position": "number", "commit_rows": commit_rows_of(bids)}
    options["replay_last"] = checkpoints
    flush = topology.complete().custom is None
    begun, processor, first, silent = time.perf_counter(), time.process_time(), 0.0, 0.0
    results: Any = topology.run(rows, place / "state", flush=flush, checkpoints=policy, **options)
    taken = 0.0, 0.0
    if not checkpoints:
        results = list(results)
        taken = time.process_time() - processor, time.perf_counter() - begun
    commit, pending = 0, list[dict[str, Any]]()
    with output.open("a") as file:

        def write() -> None:
            if pending and commit > complete:
                file.write(json.dumps([commit, pending]) + "\n")
                file.flush()

        for row in results:
            if not first and row.commit > complete:
                first, silent = time.perf_counter() - begun, time.time() - started
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
        "logged": sum(size for path, size in sizes.items() if path.parent.name == "changelog"),
        "stored": sum(sizes.values()),
    }
