"""Peer programs: one job, written for each engine in the way of its own documentation, in a process of its own.

    events.jsonl ── {"k": key, "t": ms, "v": int} ── count and sum per key and window ── a result for each

    tumbling    windows of 60 s                     hopping    windows of 60 s, one each second

    reading, reading-arrow          the lines alone, by json.loads and by pyarrow: what no engine can be faster than
    hybridstore, hybridstore-arrow  `Topology.run`, from dicts and from Arrow batches, a commit each `commit_rows`
    bytewax     a snapshot each second, or (`each_batch`) after each batch of 1,000 lines
    pathway     its inputs persisted (PERSISTING), a snapshot each second; to keep operators' state needs a licence key
    duckdb      an upsert of `commit_rows` events and their offset in a transaction: why not a database

Results are lines of JSON, one for each key and window. Each engine syncs the results of a commit to the disk if it is
its way: ours and DuckDB's programs do, Bytewax does for every batch of results, Pathway leaves it to the system.
`python -m benchmarks.suites.peer_programs '{"engine": ...}'` runs a job (`Job`) and prints what it took.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.fresh_process import bytes_written, peak_bytes

SIZE_MS: Final = 60_000
HOP_MS: Final = {"tumbling": SIZE_MS, "hopping": 1000}
# Lines that are parsed at once where a program reads into Arrow.
CHUNK: Final = 50_000
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """What a program is to do: `commit_rows` events a commit for ours and DuckDB; others make one each second, or
    with `each_batch` as often as they can.
    """

    engine: str
    work: str
    events: str
    folder: str
    commit_rows: int
    each_batch: bool = False

    @property
    def state(self) -> Path:
        """Where the engine keeps its state."""
        return Path(self.folder, "state")

    @property
    def results(self) -> Path:
        """The file of results."""
        return Path(self.folder, "results.jsonl")


class Commits:
    """The longest time between two commits of this process (seconds)."""

    def __init__(self) -> None:
        self.longest, self._last = 0.0, time.monotonic()

    def __call__(self, *_: object) -> None:
        """Note that a commit was made."""
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now


def rows_of(path: str, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events behind byte `start` of a file as dicts, each with the byte behind its line ("at")."""
    with open(path, "rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            row = json.loads(line)
            row["at"] = start
            yield row


def batches_of(path: str, start: int = 0, rows: int = CHUNK) -> Iterator[Any]:
    """Yield the events behind byte `start` of a file as Arrow batches of at most `rows`, each with the byte behind its
    line ("at").
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.json as pj

    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
    parsing = pj.ParseOptions(explicit_schema=schema)
    with open(path, "rb") as file:
        file.seek(start)
        while lines := list(islice(file, CHUNK)):
            ends = start + np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
            options = pj.ReadOptions(use_threads=False, block_size=int(ends[-1]) - start)
            table = pj.read_json(io.BytesIO(b"".join(lines)), options, parsing)
            # pa.array would import pandas, into the start of those that do without
            at = pa.Array.from_buffers(pa.int64(), len(lines), [None, pa.py_buffer(ends)])
            (batch,) = table.append_column("at", at).combine_chunks().to_batches()
            for first in range(0, len(lines), rows):
                yield batch.slice(first, rows)
            start = int(ends[-1])


def reading(job: Job, _commits: Commits) -> None:
    """Parse the lines into dicts, and nothing else."""
    for _ in rows_of(job.events):
        pass


def reading_arrow(job: Job, _commits: Commits) -> None:
    """Parse the lines into Arrow batches, and nothing else."""
    for _ in batches_of(job.events):
        pass


# --- ours -------------------------------------------------------------------------------------------------------------


def hybridstore(job: Job, commits: Commits) -> None:
    """Run our plain engine from dicts; a restart goes on behind the committed byte of the file."""
    _run(job, rows_of, commits)


def hybridstore_arrow(job: Job, commits: Commits) -> None:
    """Run our plain engine from Arrow batches; a restart goes on behind the committed byte of the file."""
    _run(job, batches_of, commits)


def _run(job: Job, rows_behind: Callable[[str, int], Iterable[Any]], commits: Commits) -> None:
    """Run the topology over rows and keep each commit's results once: a restart leaves out those that are complete."""
    import hybridstore as hs

    size, hop = (timedelta(milliseconds=ms) for ms in (SIZE_MS, HOP_MS[job.work]))
    windows = hs.TumblingWindows(size) if job.work == "tumbling" else hs.HoppingWindows(size, hop)
    counts = hs.stream(key="k", timestamp="t").windowed_by(windows)
    topology = counts.aggregate(emit="close", n=hs.Count(), total=hs.Sum("v"))
    with open(job.results, "a+b") as file:
        newest = _drop_newest_commit(file)
        position = hs.inspect(job.state).position if job.state.exists() else None
        rows = rows_behind(job.events, position or 0)
        results = topology.run(
            rows, job.state, position="at", commit_rows=job.commit_rows, flush=True, progress=commits
        )
        commit = newest
        for row in results:
            if row.commit < newest:
                continue
            if row.commit != commit:
                _sync(file)
                commit = row.commit
            line = json.dumps([row["k"], row["window_start"], row["n"], row["total"], commit])
            file.write(line.encode() + b"\n")
        _sync(file)


def _drop_newest_commit(file: Any) -> int:
    """Cut off the results of the newest commit, which may be in part only, and return its number; 0: there is none.

    They are handed out once more.
    """
    file.seek(0)
    text = file.read()
    last = text[: text.rfind(b"\n") + 1].rpartition(b",")[2]
    # numbers of commits rise, and only they stand at the end of a line
    begin = text.rfind(b"\n", 0, text.find(b"," + last)) + 1 if last else 0
    file.truncate(begin)
    file.seek(begin)
    return int(last.strip().removesuffix(b"]") or 0)


def _sync(file: Any) -> None:
    """Make what was written durable."""
    file.flush()
    os.fsync(file.fileno())


# --- Bytewax ----------------------------------------------------------------------------------------------------------


def bytewax(job: Job, _commits: Commits) -> None:
    """Run a Bytewax dataflow with recovery. Its clock is held still, so that only events move it: with a clock of the
    system a pause of the machine would make events late.
    """
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.connectors.files import FileSink, FileSource
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    begin = datetime(1970, 1, 1, tzinfo=UTC)
    length, hop_ms = timedelta(milliseconds=SIZE_MS), HOP_MS[job.work]
    clock = win.EventClock(
        lambda event: begin + timedelta(milliseconds=event["t"]),
        wait_for_system_duration=timedelta(0),
        now_getter=lambda: begin,
        to_system_utc=lambda _: None,
    )
    windows: Any = win.TumblingWindower(length=length, align_to=begin)
    if job.work == "hopping":
        windows = win.SlidingWindower(length=length, offset=timedelta(milliseconds=hop_ms), align_to=begin)

    def parse(line: str) -> tuple[str, dict[str, Any]]:
        event = json.loads(line)
        return event["k"], event

    def written(result: Any) -> tuple[str, str]:
        key, (window, (n, total)) = result
        return key, json.dumps([key, window * hop_ms, n, total])

    flow = Dataflow(job.work)
    events = op.map("parse", op.input("read", flow, FileSource(job.events, batch_size=_BATCH)), parse)
    counts = win.fold_window(
        "count",
        events,
        clock,
        windows,
        lambda: (0, 0),
        lambda sums, event: (sums[0] + 1, sums[1] + event["v"]),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
    )
    op.output("write", op.map("format", counts.down, written), FileSink(job.results))
    if not job.state.exists():
        job.state.mkdir()
        init_db_dir(job.state, 1)
    interval = timedelta(0 if job.each_batch else 1)
    run_main(flow, epoch_interval=interval, recovery_config=RecoveryConfig(job.state, timedelta(0)))


# --- Pathway ----------------------------------------------------------------------------------------------------------


def pathway(job: Job, _commits: Commits) -> None:
    """Run a Pathway program with its inputs persisted. A static file is one batch, so that each result is written once,
    at the end; to have them as windows close (`exactly_once_behavior`) cost twice the time, with the same results.
    """
    import pathway as pw

    hop = HOP_MS[job.work]
    window = pw.temporal.tumbling(SIZE_MS) if job.work == "tumbling" else pw.temporal.sliding(hop, SIZE_MS)
    schema = pw.schema_from_types(k=str, t=int, v=int)
    events = pw.io.jsonlines.read(job.events, schema=schema, mode="static")
    counts = events.windowby(pw.this.t, window=window, instance=pw.this.k).reduce(
        k=pw.this._pw_instance,
        start=pw.this._pw_window_start,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.v),
    )
    pw.io.jsonlines.write(counts, job.results)
    backend = pw.persistence.Backend.filesystem(job.state)
    config = pw.persistence.Config(backend, snapshot_interval_ms=1000)
    pw.run(persistence_config=config, monitoring_level=pw.MonitoringLevel.NONE)


# --- DuckDB -----------------------------------------------------------------------------------------------------------

_TABLES: Final = """
create table if not exists sums (k varchar, t bigint, n bigint, total bigint, primary key (k, t));
create table if not exists done (position bigint, written bigint, closed bigint);
insert into done select 0, 0, null where not exists (from done)
"""
_ADD: Final = """
insert into sums select k, t // $hop * $hop, count(*), sum(v) from batch group by all
on conflict do update set n = n + excluded.n, total = total + excluded.total
"""
# A row of sums is a tumbling window; a hopping one is put together from the rows of each second in it.
_CLOSED: Final = {
    "tumbling": "select k, t, n, total from sums where t <= $last",
    "hopping": """
        with starts as (select unnest(range(
            (select coalesce(closed, (select min(t) from sums) - 60000) + 1000 from done), $last + 1, 1000)) as start)
        select k, start, sum(n)::bigint, sum(total)::bigint
        from sums join starts on t >= start and t < start + 60000 group by all
        """,
}


def duckdb(job: Job, commits: Commits) -> None:
    """Keep sums in a table: each transaction adds events, writes what has closed, deletes it, and keeps the offsets of
    both files, so that each result is there once.
    """
    import duckdb as engine
    import pyarrow as pa

    database = engine.connect(str(job.state))
    for statement in _TABLES.split(";"):
        database.execute(statement)
    position, written, _ = database.execute("from done").fetchone()
    hop = HOP_MS[job.work]

    def close(last: int | None, behind: int) -> None:
        for result in database.execute(_CLOSED[job.work], {"last": last}).fetchall():
            file.write(json.dumps(result).encode() + b"\n")
        database.execute("delete from sums where t <= ?", [last])
        _sync(file)
        database.execute("update done set position = ?, written = ?, closed = ?", [behind, file.tell(), last])
        database.commit()
        commits()

    with open(job.results, "ab") as file:
        file.truncate(written)
        for batch in batches_of(job.events, position, job.commit_rows):
            database.begin()
            database.register("batch", pa.Table.from_batches([batch]))
            database.execute(_ADD, {"hop": hop})
            position = batch.column("at")[-1].as_py()
            close((batch.column("t")[-1].as_py() - SIZE_MS) // hop * hop, position)
        database.begin()
        close(database.execute("select max(t) from sums").fetchone()[0], position)
    database.close()


_ARROW: Final = ("hybridstore.topology.columns.time_windows", "pyarrow.json")
# Each engine's program, and what is imported before its time begins.
PROGRAMS: Final[dict[str, tuple[Callable[[Job, Commits], None], tuple[str, ...]]]] = {
    "reading": (reading, ()),
    "reading-arrow": (reading_arrow, ("pyarrow.json",)),
    "hybridstore": (hybridstore, ("hybridstore.topology.run",)),
    "hybridstore-arrow": (hybridstore_arrow, ("hybridstore.topology.run", *_ARROW)),
    "bytewax": (bytewax, ("bytewax.operators.windowing", "bytewax.connectors.files", "bytewax.testing")),
    "pathway": (pathway, ("pathway",)),
    "duckdb": (duckdb, ("duckdb", "pyarrow.json")),
}


def main() -> None:
    """Run the job that the command line names, and print what it took, its imports left out, as a line of JSON."""
    job = Job(**json.loads(sys.argv[1]))
    program, modules = PROGRAMS[job.engine]
    for module in modules:
        if find_spec(module):
            import_module(module)
    imported, spent, before, commits = time.monotonic(), time.process_time(), bytes_written(), Commits()
    program(job, commits)
    answer = {
        "imported": imported,
        "processor_before": spent,
        "wall": time.monotonic() - imported,
        "processor": time.process_time() - spent,
        "written": bytes_written() - before,
        "memory": peak_bytes(),
        "longest_commit": commits.longest,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
