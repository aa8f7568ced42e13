"""Run all suites, keep the raw results, and write docs/performance.md, its tables and docs/scale.md from them.

    make bench              under 10 minutes on two cores
    make bench FULL=1       the long ones too: 5 M records, Spark's peers
    python -m benchmarks [--quick] [--full] [--only restore,stores] [--before REF] [--report FILE.jsonl] [--docs DIR]
    python -m benchmarks restore|stores|changelog|checkpoint|... --help    one suite (commands.py)

`--report` measures nothing and writes the pages anew from a file of results, or from that which they are made from.
With `--only` the results take the place of those of the same measurements (raw.py), and the pages say of when they are;
so do those of Spark's and other engines, which most runs have not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from benchmarks import commands, compare, pages
from benchmarks.measure.result import Line, Result, Target, show
from benchmarks.measure.timing import WrongAnswerError, stopwatch
from benchmarks.nexmark.oracles import flink_python
from benchmarks.raw import RESULTS, keeper
from benchmarks.suites import (
    beyond_memory,
    catching_up,
    changelog_bytes,
    changelog_speed,
    checkpoint_bytes,
    checkpoint_speed,
    commit_latency,
    joins,
    nexmark,
    nexmark_spark,
    peer_engines,
    profile,
    restore,
    scale,
    shuffle_bench,
    spark_suite,
    state_by_limit,
    stores,
    walls,
)

ROOT = Path(__file__).resolve().parent.parent
# What `make bench` compares with: the version that the first page of figures was made from.
BEFORE = "b4b4599"
# Engines of the Spark suites, in the order in which they run; the slow ones take seconds to a minute a batch.
FAST = ["hybridstore", "bare", "native", "native-changelog", "native-hdfs"]
SLOW = ["tws-row", "apws", "tws-pandas"]

# What catching up is measured with in a quick run, and in a usual one.
TINY: dict[str, Any] = {"rows": 2000, "segments": 2, "repeats": 1, "tail": 200, "columns": 2000, "keys": 1000}
TINY["kinds"] = ["window", "sliding", "suppression"]
# state beyond memory in a full run
LARGE: dict[str, Any] = {"records": 5_000_000, "limit": 100_000_000, "operations": 60_000, "turns": 5}
LARGE |= {"kinds": ["key-value"]}
SHORT: dict[str, Any] = {"rows": 32_000, "segments": 4, "repeats": 2, "tail": 20_000, "columns": 100_000}


def suites(folder: Path, full: bool, quick: bool, before: str) -> dict[str, list[Callable[[], Result]]]:
    """Return the suites by name, each a list of calls that give one result."""

    def restart(records: int, **options: Any) -> Callable[[], Result]:
        repeats = 1 if quick else 3 if records > 1_000_000 or "cold" in options else 5
        return lambda: restore.measure(folder, records=records, repeats=repeats, **options)

    if quick:
        return {
            "restore": [restart(2000, tail=200), restart(2000, tail=200, cold=True)],
            "stores": [lambda: stores.measure(folder, records=2000, stored=5000, sessions=2000, repeats=1)],
            "changelog": [lambda: changelog_speed.measure(folder, records=5000, repeats=2)],
            "checkpoint": [lambda: checkpoint_speed.measure(folder, records=5000, changes=500, repeats=1)],
            "checkpoint-bytes": [lambda: checkpoint_bytes.measure(folder, checkpoints=5, changes=100, records=2000)],
            "commit-latency": [lambda: commit_latency.measure(folder, records=2000, commits=300)],
            # windows and sessions have a test each
            "beyond-memory": [
                partial(
                    beyond_memory.measure,
                    folder,
                    records=500,
                    operations=100,
                    kinds=["key-value", "sliding", "suppression"],
                )
            ],
            "state-by-limit": [
                lambda: state_by_limit.measure(
                    folder, limit=400_000, operations=300, shares=(0.5, 2), works=["zipf"], sample=2000
                )
            ],
            "scale": [lambda: scale.measure(folder, [2000, 5000], 1)],
            "bytes": [lambda: changelog_bytes.measure(2000)],
            "catching-up": [lambda: catching_up.measure(folder, **TINY)],
            "joins": [lambda: joins.measure(folder, rows=2000, waiting=2000, repeats=1)],
            "walls": [lambda: walls.measure(folder, records=5000, repeats=1)],
            "profile": [lambda: profile.measure(folder, records=2000)],
            "changes": [lambda: changes(before, runs=2, records=500)],
            **peer_suites(folder, full, quick),
            **spark_suites(folder, full, quick),
        }
    sizes = [10_000, 100_000, 1_000_000, *([5_000_000] if full else [])]
    commits: list[dict[str, Any]] = [{"records": size, "commits": 100_000} for size in sizes[2:]] if full else [{}]
    return {
        "restore": [
            *(restart(size) for size in sizes),
            restart(1_000_000, cold=True),
            restart(100_000, value_size=1000),
        ],
        "stores": [lambda: stores.measure(folder)],
        "changelog": [lambda: changelog_speed.measure(folder)],
        "checkpoint": [lambda: checkpoint_speed.measure(folder, records=1_000_000)],
        "checkpoint-bytes": [
            lambda: checkpoint_bytes.measure(folder, **({"checkpoints": 400, "changes": 5000} if full else {}))
        ],
        "commit-latency": [partial(commit_latency.measure, folder, **options) for options in commits],
        "beyond-memory": [
            lambda: beyond_memory.measure(folder),
            *([lambda: beyond_memory.measure(folder, **LARGE)] if full else []),
        ],
        # in a full run alone, and the pages take the newest over: a state of 50 times a sensible limit takes minutes
        **({"state-by-limit": [lambda: state_by_limit.measure(folder)]} if full else {}),
        "scale": [lambda: scale.measure(folder, [10_000, 100_000, 1_000_000, *([10_000_000] if full else [])])],
        "sliding": [lambda: sliding(quick=not full)],
        "bytes": [changelog_bytes.measure],
        "catching-up": [lambda: catching_up.measure(folder, **({} if full else SHORT))],
        "joins": [lambda: joins.measure(folder, **({"waiting": 5_000_000} if full else {}))],
        "walls": [lambda: walls.measure(folder)],
        "profile": [lambda: profile.measure(folder)],
        "changes": [lambda: changes(before, runs=10, records=100_000)],
        **peer_suites(folder, full, quick),
        **spark_suites(folder, full, quick),
    }


def peer_suites(folder: Path, full: bool, quick: bool) -> dict[str, list[Callable[[], Result]]]:
    """Return the suites of other engines beside the plain one, if everything is to be run; that with Flink where it is
    installed.
    """
    if not full:
        return {}
    # Pathway holds every event of a file 60 times, once for each hopping window, and the whole file in one batch
    tumbling, hopping = (20_000, 2000) if quick else (1_000_000, 30_000)
    runs = 1 if quick else 3
    events = 5000 if quick else 200_000
    tiny: dict[str, Any] = {"minute": 0.1, "after": 0.1, "runs": 1, "rate": 20_000} if quick else {}
    beside_flink = [lambda: nexmark.measure(folder, events=events, queries=nexmark.STATEFUL)]
    return {
        "peer-engines": [
            lambda: peer_engines.measure(folder, "tumbling", events=tumbling, keys=10_000, runs=runs),
            lambda: peer_engines.measure(folder, "hopping", events=hopping, keys=50, per_second=300, runs=runs),
            lambda: peer_engines.killed(folder, events=tumbling, keys=10_000, runs=runs),
        ],
        **({"nexmark": beside_flink} if flink_python() else {}),
        "shuffle": [
            partial(shuffle_bench.measure, folder, engine, "process", **tiny)
            for engine in ("plain", *(["flink"] if flink_python() and not quick else []))
        ],
    }


def spark_suites(folder: Path, full: bool, quick: bool) -> dict[str, list[Callable[[], Result]]]:
    """Return the suites that need Spark, if everything is to be run."""
    if not full:
        return {}
    if quick:
        few, restarted = ["hybridstore", "native"], ["hybridstore", "rocksdb"]
        return {
            "spark": [lambda: spark_suite.batches(folder, "count", 500, few, rows=2000, count=6)],
            "spark-over-bare": [
                lambda: spark_suite.over_bare(folder, "count", 500, 1.2, rows=2000, count=6, rounds=1),
                lambda: spark_suite.drop_in(folder, 200, 5, rows=1000, count=3, rounds=1),
            ],
            "spark-restart": [lambda: spark_suite.restarts(folder, 20_000, restarted)],
            "spark-scale-out": [
                lambda: spark_suite.scale_out(folder, ["local[1]", "local[2]"], rows=800, batches=3, warm=3)
            ],
            "spark-nexmark": [lambda: nexmark_spark.measure(folder, "q11", events=5000)],
        }
    return {
        "spark": [
            lambda: spark_suite.batches(folder, "count", 10_000, [*FAST, *SLOW]),
            lambda: spark_suite.batches(folder, "count", 100_000, [*FAST, *SLOW]),
        ],
        "spark-tumbling": [lambda: spark_suite.batches(folder, "tumbling", 10_000, [*FAST, "tws-row"])],
        "spark-sliding": [
            lambda: spark_suite.batches(folder, "sliding", 10_000, [*FAST, *SLOW]),
            lambda: spark_suite.batches(folder, "sliding", 100_000, [*FAST, *SLOW]),
        ],
        # what a small batch costs
        "spark-latency": [lambda: spark_suite.batches(folder, "count", 10_000, [*FAST, *SLOW], rows=1000, count=30)],
        # what state adds to a batch that goes to Python in any case, and a class for Spark's own engine on ours
        "spark-over-bare": [
            # 1.0, as two digits show it
            lambda: spark_suite.over_bare(folder, "count", 10_000, 1.05),
            lambda: spark_suite.over_bare(folder, "count", 100_000, 1.2),
            lambda: spark_suite.over_bare(folder, "sliding", 10_000, 1.25),
            lambda: spark_suite.over_bare(folder, "sliding", 100_000, 1.7),
            lambda: spark_suite.over_bare(folder, "count", 10_000, 1.1, rows=1000, count=30),
            lambda: spark_suite.drop_in(folder, 10_000, 5),
        ],
        "spark-restart": [lambda: spark_suite.restarts(folder, 1_000_000)],
        "spark-scale-out": [lambda: spark_suite.scale_out(folder)],
        "spark-nexmark": [partial(nexmark_spark.measure, folder, name) for name in nexmark_spark.NATIVE],
        "spark-shuffle": [
            partial(shuffle_bench.measure, folder, engine, victim)
            for engine in ("hybridstore", "native")
            for victim in shuffle_bench.VICTIMS[engine]
        ],
    }


def changes(before: str, runs: int, records: int) -> Result:
    """Compare with an earlier version, in turns: the figures are ours, the ratios to what they were."""
    result = Result("changes", {"before": before, "runs": runs, "records": records})
    with stopwatch() as clock:
        try:
            differences = compare.compare_refs(before, runs=runs, records=records)
        except ValueError as error:
            # an archive has no history, and a copy may have another one
            result.notes.append(f"no comparison with an earlier version: {error}")
            differences = []
    for change in differences:
        unit, scale = change.unit()
        after = change.after * scale
        result.lines.append(
            Line(
                change.name,
                after,
                after,
                after,
                unit,
                change.ratio,
                change.low,
                change.high,
                "before",
                note=change.text,
            )
        )
    result.seconds = clock.seconds
    return result


def sliding(quick: bool) -> Result:
    """Run the suite of sliding windows, which prints its own figures, and take them over."""
    with stopwatch() as clock:
        command = [sys.executable, "-m", "benchmarks.suites.sliding", "--json", *(["--quick"] if quick else [])]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if answer.returncode:
            raise WrongAnswerError((answer.stderr.strip().splitlines() or ["the suite of sliding windows failed"])[-1])
    result = Result("sliding", {"windows": "10 to 1,000" if quick else "10 to 100,000"}, seconds=clock.seconds)
    for text in answer.stdout.splitlines():
        figure = json.loads(text)
        target = None if figure["target"] is None else Target(figure["target"], "value", figure["better"] == "more")
        name = f"{figure['measure']}, window of {figure['window']:,}"
        result.lines.append(Line(name, figure["reached"], figure["reached"], figure["reached"], "", target=target))
    return result


def main() -> int:
    """Run from the command line; exit code 1 when a suite fails or has a wrong answer, of which no figure is kept."""
    if sys.argv[1:2] and sys.argv[1] in commands.COMMANDS:
        return commands.run(sys.argv[1:])
    also = f"One suite alone, or two versions in turn: python -m benchmarks {'|'.join(commands.COMMANDS)} --help"
    parser = argparse.ArgumentParser(description="Run the benchmarks and write the pages of figures.", epilog=also)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, and no more")
    parser.add_argument("--only", default="", help="suites, separated by commas")
    report = "write the pages from this file of results (default: the one they are from); nothing is measured"
    parser.add_argument("--report", type=Path, nargs="?", const=Path(), help=report)
    parser.add_argument("--docs", type=Path, help="where the pages go (default: docs; of a quick run nowhere)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where raw results go")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()), help="where states are made")
    parser.add_argument("--full", action="store_true", help="the long ones too, as FULL=1")
    parser.add_argument("--before", default=BEFORE, help="the version that is compared with, in turns")
    asked = parser.parse_args()
    docs = asked.docs or pages.DOCS
    if asked.report is not None:
        if asked.report == Path():
            pages.refresh(docs)
        else:
            pages.write(docs, asked.report)
        return 0
    full = asked.full or os.environ.get("FULL", "0") not in ("", "0")
    chosen = suites(asked.folder, full, asked.quick, asked.before)
    names = asked.only.split(",") if asked.only else list(chosen)
    for name in names:
        if name not in chosen:
            parser.error(f"suite {name!r}: expected some of {', '.join(chosen)}")
    keep = keeper(asked.results, asked.folder, full=full, quick=asked.quick)
    raw, failed = None, False
    for name in names:
        for measure in chosen[name]:
            try:
                result = measure()
            except WrongAnswerError as error:
                print(f"{name}: {error}\n(results before it: {raw})", file=sys.stderr)
                return 1
            except RuntimeError as error:  # an engine that failed: the others are measured
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
                continue
            show(result)
            raw = keep(result)
    print(f"raw results: {raw}")
    if asked.quick and asked.docs is None:
        pass  # its figures say nothing
    elif names == list(chosen) and raw is not None:
        pages.write(docs, raw)
    elif not asked.quick and asked.results == RESULTS:
        pages.refresh(docs)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
