"""Nexmark: the plain engine over an auction house's events: rate, bytes, and a kill -9 at 60 % of the rows.

    python -m benchmarks nexmark --events 200000 --queries q11,q17
    HYBRIDSTORE_FLINK=FLINK/bin/python python -m benchmarks nexmark      beside Flink (benchmarks/nexmark/oracles.py)

Each query of one stage runs from dicts, and from Arrow batches where its rows are bids, in processes of its own: as a
whole, and killed at 60 % and started again, whose results must be those of the whole run, commit by commit. The rate is
counted in seconds of the processor, from the first row to the last result, which are kept in memory until then, as
Flink's go into nothing; reading and making rows, and writing results, are not in it. A restart is counted from the
start of the process, in which the program is imported, to the next result; both engines read their rows from files.
Answers are compared with DuckDB's, where it is installed. Where Flink is, the same queries run there as streams, with
RocksDB and checkpoints; of its processor time that of reading the same bids is taken off, as ours is counted without.
Both make checkpoints while their rate is counted, Flink each 2 s, ours as a topology does by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.measure import fresh_process
from benchmarks.measure.result import Line, Result, Target
from benchmarks.measure.state import COMMIT_ROWS, scratch
from benchmarks.measure.timing import check, stopwatch
from benchmarks.nexmark import flink_peer, job
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.oracles import flink_python, write_json
from benchmarks.nexmark.queries import QUERIES, answer_of, digest_of

# Events of event time in a second: as the benchmark has them.
RATE: Final = 10_000
KILLED_AT: Final = 0.6
# of Flink's events a second and core; by how much sooner the next result is there behind a kill
TARGETS: Final = {False: Target(0.5, "ratio", True), True: Target(1, "ratio", True)}
SOONER: Final = Target(20, "ratio", True)
# A query of Flink's that costs less than this share more than reading its rows has no rate: the difference is noise.
_SEEN: Final = 0.2
# Queries of one stage whose rows have a position: those of bids.
NAMES: Final = tuple(name for name, query in QUERIES.items() if query.by_column and len(query.stages) == 1)
# Those whose restart behind a kill is also Flink's: each takes it half a minute. Results come all the time in them.
RESTARTED: Final = ("q12", "q16", "q18", "q19")
# Those of them that have state, which the page has.
STATEFUL: Final = ("q7", "q11", "q12", "q15", "q16", "q17", "q18", "q19")


def _flink(folder: Path, count: int, queries: Sequence[str]) -> dict[str, float]:
    """Return Flink's events a second and core by query, where they can be told from reading, and its silence behind a
    kill of those of `RESTARTED` (s).
    """
    seconds = flink_peer.seconds_of(folder, queries)
    read = seconds["read"]
    rates = {name: count / (seconds[name] - read) for name in queries if seconds[name] > (1 + _SEEN) * read}
    silences = {
        f"{name}, silent": flink_peer.silent_behind_a_kill(folder, name, int(KILLED_AT * count))
        for name in queries
        if name in RESTARTED
    }
    return {**rates, **silences}


def _results(folder: Path) -> list[Any]:
    return [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]


def measure(folder: Path, *, events: int = 200_000, queries: Sequence[str] = NAMES) -> Result:
    """Run queries over the bids of so many events. Raises WrongAnswerError when results of one are wrong."""
    result = Result("nexmark", {"events": events, "commit rows": COMMIT_ROWS, "events a second": RATE})
    if tuple(queries) != STATEFUL:
        result.settings["queries"] = ", ".join(queries)
    all_events = generate(events, rate=RATE)
    count = all_events.bids.num_rows
    oracle = find_spec("duckdb") is not None
    with stopwatch() as clock, scratch(folder) as place:
        source = place / "bids.arrow"
        with pa.ipc.new_file(str(source), all_events.bids.schema) as file:
            file.write_table(all_events.bids)
        lines = place / "json"
        write_json(all_events, lines)
        peer = _flink(lines, count, queries) if flink_python() else {}
        unseen = [query for query in queries if peer and query not in peer]
        if unseen:
            names = ", ".join(unseen)
            result.notes.append(f"Nexmark: what Flink takes for {names} was not seen beside reading the rows")
        for query in queries:
            answers = []
            for arrow in (False, True):
                name = f"{query}, {'Arrow' if arrow else 'dicts'}"
                whole, broken = place / f"{name} whole", place / f"{name} broken"
                for each in (whole, broken):
                    each.mkdir()
                rows = str(source if arrow else lines / "bids" / "rows.json")
                # a few commits come before the kill, also of few events
                arguments: dict[str, Any] = {"query": query, "events": rows, "arrow": arrow}
                arguments["commit_rows"] = max(1, min(COMMIT_ROWS, count // 20))
                taken = _run(**arguments, folder=whole, for_rate=True)
                try:
                    _run(**arguments, folder=broken, kill_at=int(KILLED_AT * count))
                    check(False, f"{name}: the run that kills itself ended")
                except RuntimeError:
                    check((broken / "state").exists(), f"{name}: the killed run left no state")
                again = _run(**arguments, folder=broken)
                check(_results(whole) == _results(broken), f"{name}: the results differ behind a kill")
                given = [row for _, part in _results(whole) for row in part]
                answers.append(digest_of(answer_of(QUERIES[query], given)))
                figures = {
                    "events/s and core": (count / max(taken["processor"], 1e-9), ""),
                    "bytes logged per event": (taken["logged"] / count, "B"),
                    "state after the restart": (again["stored"] / 1e6, "MB"),
                    "kill -9 to the next result": (again["first"] * 1000, "ms"),
                    "the same with the start of the process": (again["silent"], "s"),
                    "processor until then": (again["spent"], "s"),
                }
                theirs = {
                    "events/s and core": (peer.get(query), TARGETS[arrow], False),
                    "the same with the start of the process": (peer.get(f"{query}, silent"), SOONER, True),
                }
                for what, (value, unit) in figures.items():
                    entry = Line(f"{name}: {what}", value, value, value, unit)
                    other, target, less = theirs.get(what, (None, None, False))
                    if other:
                        ratio = other / value if less else value / other
                        about = {"ratio": ratio, "ratio_low": ratio, "ratio_high": ratio, "target": target}
                        entry = replace(entry, against="sooner than Flink" if less else "Flink", **about)
                    result.lines.append(entry)
            if oracle:
                from benchmarks.nexmark.oracles import by_duckdb

                answers.append(digest_of(by_duckdb(query, all_events)))
            check(len(set(answers)) == 1, f"{query}: answers differ: {', '.join(answers)}")
    by = "as DuckDB's" if oracle else "alike from dicts and Arrow (DuckDB is not installed)"
    result.notes.append(f"Nexmark: answers are {by}; results behind a kill are those of a whole run, commit by commit")
    result.notes.append("Nexmark: one run each; rates are by processor time, which a busy machine changes, too")
    result.seconds = clock.seconds
    return result


def _run(folder: Path, *, kill_at: int | None = None, for_rate: bool = False, **arguments: Any) -> dict[str, float]:
    target = f"{job.__name__}:run"
    answer: dict[str, float] = fresh_process.call(
        target, **arguments, folder=str(folder), kill_at=kill_at, for_rate=for_rate, started=time.time()
    )
    return answer
