"""One suite with options of one's own, and two versions in turn: `python -m benchmarks
restore|stores|changelog|checkpoint|checkpoint-bytes|commit-latency|beyond-memory|state-by-limit|joins|nexmark|
spark-nexmark|shuffle|compare`.

Each prints a table, or JSON with --json; a wrong answer prints no figure and exits with 1. With --keep the results are
kept in benchmarks/results, and the pages are written anew with them.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from benchmarks import compare, pages
from benchmarks.measure import fresh_process, machine, plots
from benchmarks.measure.result import Result, show
from benchmarks.measure.timing import WrongAnswerError
from benchmarks.nexmark.oracles import flink_python
from benchmarks.raw import RESULTS, keeper
from benchmarks.suites import (
    beyond_memory,
    changelog_speed,
    checkpoint_bytes,
    checkpoint_speed,
    commit_latency,
    far_restart,
    joins,
    nexmark,
    nexmark_spark,
    restore,
    shuffle_bench,
    state_by_limit,
    stores,
)
from benchmarks.suites.beyond_memory_work import WORKS
from hybridstore.state.home import BUCKET_BLOCK_RECORDS

_Suites = list[Callable[[], Result]]


def _some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """Return what reads some of these names, separated by commas; a text without a name is none of them."""

    def read(text: str) -> list[str]:
        chosen = text.split(",") if text else []
        for name in chosen:
            if name not in names:
                raise ArgumentTypeError(f"found {name!r}, expected some of {', '.join(names)}")
        return chosen

    return read


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks", description="Run one suite, or compare two versions.")
    commands = parser.add_subparsers(dest="command", required=True)

    def suite(name: str, summary: str, runs: int) -> ArgumentParser:
        suite_parser = commands.add_parser(name, help=summary, description=summary)
        suite_parser.add_argument("--runs", type=int, default=runs, help=f"how often each case runs (default: {runs})")
        suite_parser.add_argument(
            "--json", action="store_true", help="print JSON, with the machine, instead of a table"
        )
        suite_parser.add_argument("--keep", action="store_true", help="keep the results, and write the pages anew")
        place = "where to make the states (default: the system's temporary folder)"
        suite_parser.add_argument("--folder", type=Path, default=Path(gettempdir()), help=place)
        return suite_parser

    command = suite("restore", "A restart by phase, against a full replay, RocksDB, LMDB, SQLite and pickle.", 5)
    records = "records in the state; may be given several times (default: 100000 and 1000000)"
    command.add_argument("--records", type=int, action="append", help=records)
    command.add_argument("--value-size", type=int, default=16, help="bytes of each value (default: 16)")
    command.add_argument("--tail", type=int, default=20_000, help="mutations behind the checkpoint (default: 20000)")
    command.add_argument(
        "--stores", type=int, default=1, help="over how many stores the records are spread (default: 1)"
    )
    command.add_argument("--cold", action="store_true", help="drop the files from the kernel's cache before each run")
    command.add_argument(
        "--baselines", action=BooleanOptionalAction, default=True, help="also measure the other engines"
    )
    command.add_argument("--spark", action="store_true", help="also restart a query on Spark's engines (Java; minutes)")
    command.add_argument("--plot", type=Path, help="draw time against records into this file")
    storage = "where the state is: on a disk, or on an object store that a process of our own stands for"
    command.add_argument("--storage", choices=("disk", "s3"), default="disk", help=storage)
    latency = "s3: how long each answer takes, in ms (default: 20)"
    command.add_argument("--latency", type=float, default=20.0, help=latency)
    bandwidth = "s3: what the link carries, in MB/s (default: 0, no limit)"
    command.add_argument("--bandwidth", type=float, default=0.0, help=bandwidth)
    block = f"s3: records in a block (default: {BUCKET_BLOCK_RECORDS})"
    command.add_argument("--block", type=int, default=BUCKET_BLOCK_RECORDS, help=block)
    command = suite("stores", "Puts, batches, reads, memory and expiry, as ratios to what one would write by hand.", 5)
    command.add_argument("--records", type=int, default=200_000, help="records that are put (default: 200000)")
    command.add_argument(
        "--stored", type=int, default=1_000_000, help="records in the stores that are read and weighed"
    )
    command.add_argument("--sessions", type=int, default=300_000, help="sessions in the store that is searched")
    command = suite("changelog", "Packing, writing, syncing and reading the changelog, against the bare steps.", 5)
    command.add_argument("--records", type=int, default=200_000, help="mutations that are logged and read")
    command = suite("checkpoint", "A first and an incremental checkpoint, the owner's pause, and what puts feel.", 3)
    command.add_argument("--records", type=int, default=1_000_000, help="records in the store (default: 1000000)")
    command.add_argument("--changes", type=int, default=100_000, help="mutations between two checkpoints")
    command = suite("checkpoint-bytes", "What checkpoints write for each byte that changed, counted.", 1)
    command.add_argument("--checkpoints", type=int, default=400, help="checkpoints of each case (default: 400)")
    command.add_argument("--changes", type=int, default=5000, help="rows between two checkpoints (default: 5000)")
    command.add_argument("--records", type=int, default=100_000, help="records of the key-value store")
    command = suite("commit-latency", "Percentiles of commits with and without checkpoints, paced and not.", 1)
    command.add_argument("--records", type=int, default=1_000_000, help="records in the store (default: 1000000)")
    command.add_argument("--commits", type=int, default=50_000, help="commits of a loop (default: 50000)")
    command.add_argument("--checkpoints", type=int, default=4, help="checkpoints beside a loop (default: 4)")
    kept = "commit: a commit is on the disk when it returns; os: the kernel has it (default: os)"
    command.add_argument("--durability", choices=("commit", "os"), default="os", help=kept)
    command = suite("beyond-memory", "Stores larger than their memory limit, beside RocksDB and LMDB.", 1)
    command.add_argument("--records", type=int, default=1_000_000, help="records in a store (default: 1000000)")
    command.add_argument("--operations", type=int, default=100_000, help="operations of each work (default: 100000)")
    limit = f"bytes (default: 1/{beyond_memory.SHARE} of what the store takes without a limit)"
    command.add_argument("--limit", type=int, help=limit)
    names = "kinds of stores, separated by commas (default: all five)"
    command.add_argument("--kinds", default=list(beyond_memory.KINDS), type=_some_of(beyond_memory.KINDS), help=names)
    names = "works, separated by commas (default: all)"
    command.add_argument("--works", default=list(WORKS), type=_some_of(WORKS), help=names)
    names = "engines beside the key-value store, separated by commas (default: all)"
    command.add_argument("--peers", default=list(beyond_memory.PEERS), type=_some_of(beyond_memory.PEERS), help=names)
    command.add_argument("--no-peers", dest="peers", action="store_const", const=[], help="no other engine")
    turns = "turns of so many operations that our store and each engine have of each work (default: 1)"
    command.add_argument("--turns", type=int, default=1, help=turns)
    command.add_argument("--storage", choices=("disk", "s3"), default="disk", help=storage)
    command = suite("state-by-limit", "Operations of a store as its state outgrows its limit, beside RocksDB.", 1)
    limit = f"bytes (default: {state_by_limit.LIMIT})"
    command.add_argument("--limit", type=int, default=state_by_limit.LIMIT, help=limit)
    command.add_argument("--operations", type=int, default=50_000, help="operations of each work (default: 50000)")
    texts = ",".join(f"{share:g}" for share in state_by_limit.SHARES)
    command.add_argument("--shares", default=texts, help=f"the state over its limit (default: {texts})")
    command.add_argument("--peers", action=BooleanOptionalAction, default=True, help="also measure RocksDB")
    command = suite("joins", "Joins of two streams from dicts and Arrow: rows, logged bytes, a restart.", 3)
    command.add_argument("--rows", type=int, default=200_000, help="rows of both inputs (default: 200000)")
    command.add_argument("--waiting", type=int, default=1_000_000, help="rows that wait at a restart")
    command = suite("nexmark", "Nexmark's queries over bids: rate, bytes, a kill -9, answers compared.", 1)
    command.add_argument("--events", type=int, default=200_000, help="events of all kinds (default: 200000)")
    names = f"queries, separated by commas (default: {','.join(nexmark.NAMES)})"
    command.add_argument("--queries", default=list(nexmark.NAMES), type=_some_of(nexmark.NAMES), help=names)
    command = suite("spark-nexmark", "Nexmark's queries on Spark, by ours and by Spark's own (Java; minutes).", 1)
    command.add_argument("--events", type=int, default=nexmark_spark.EVENTS, help="events of all kinds")
    names = f"queries, separated by commas, some of {','.join(nexmark_spark.NATIVE)} (default: q12)"
    command.add_argument("--queries", default=["q12"], type=_some_of(nexmark_spark.NATIVE), help=names)
    names = f"engines, separated by commas (default: {','.join(nexmark_spark.ENGINES)})"
    some = _some_of(nexmark_spark.ENGINES)
    command.add_argument("--engines", default=list(nexmark_spark.ENGINES), type=some, help=names)
    command.add_argument("--timeout", type=float, default=600, help="seconds for one run (default: 600)")
    command = suite("shuffle", "ShuffleBench with kills: a constant load, and the seconds until latency is back.", 3)
    names = f"engines, separated by commas (default: {','.join(shuffle_bench.VICTIMS)})"
    some = _some_of(shuffle_bench.VICTIMS)
    command.add_argument("--engines", default=list(shuffle_bench.VICTIMS), type=some, help=names)
    names = "what is killed, separated by commas (default: process,worker,holder,driver)"
    victims = list(dict.fromkeys(victim for victims in shuffle_bench.VICTIMS.values() for victim in victims))
    command.add_argument("--victims", default=victims, type=_some_of(victims), help=names)
    command.add_argument("--minute", type=float, default=2, help="minutes of load before the kill (default: 2)")
    command.add_argument("--after", type=float, default=2, help="minutes of load behind the kill (default: 2)")
    command.add_argument("--load", type=float, default=0.5, help="of what an engine sustains (default: 0.5)")
    command.add_argument("--rate", type=float, default=0, help="load in records/s (default: what --load says)")
    command.add_argument("--floor", type=float, default=20, help="ms beyond the p95 that count as back (default: 20)")
    measured = "records by which it is measured what an engine sustains (default: 1000000)"
    command.add_argument("--sustained", type=int, default=1_000_000, help=measured)
    command = suite(
        "compare",
        "Two versions in turn, and what changed beyond noise. When a figure is slower, everything is measured a second "
        "time; a figure is slower only if both measurements say so. Exit code 1: something is slower.",
        10,
    )
    command.add_argument("ref", help="a commit, branch or tag to compare with")
    command.add_argument(
        "other", nargs="?", default="", help="what to compare: another ref (default: the files as they are)"
    )
    sizes = ", ".join(f"{suite} {size}" for suite, size in compare.SUITES.items())
    command.add_argument("--records", type=int, default=0, help=f"records of each measurement (default: {sizes})")
    what = "what is measured: stores, checkpoints and restarts; catching up; a query on Spark (Java) (default: stores)"
    command.add_argument("--suite", choices=tuple(compare.SUITES), default="stores", help=what)
    return parser


def _restore(given: Namespace) -> _Suites:
    options: dict[str, Any] = {
        name: getattr(given, name) for name in ("value_size", "tail", "stores", "cold", "baselines")
    }
    sizes = given.records or [100_000, 1_000_000]
    if given.storage == "s3":
        link = {"latency_ms": given.latency, "bandwidth_mb": given.bandwidth}
        return [lambda: far_restart.measure(records=sizes, **link, block=given.block, repeats=given.runs)]

    def measured(records: int) -> Callable[[], Result]:
        return lambda: restore.measure(given.folder, records=records, repeats=given.runs, **options)

    suites = [measured(records) for records in sizes]
    return [*suites, lambda: _spark_restart(given.folder, max(sizes))] if given.spark else suites


def _spark_restart(folder: Path, keys: int) -> Result:
    fields = fresh_process.call("benchmarks.suites.spark_suite:restart_fields", folder=str(folder), keys=keys)
    return Result.from_json(fields)


def _stores(given: Namespace) -> _Suites:
    sizes = {"records": given.records, "stored": given.stored, "sessions": given.sessions}
    return [lambda: stores.measure(given.folder, repeats=given.runs, **sizes)]


def _changelog(given: Namespace) -> _Suites:
    return [lambda: changelog_speed.measure(given.folder, records=given.records, repeats=given.runs)]


def _checkpoint(given: Namespace) -> _Suites:
    sizes = {"records": given.records, "changes": given.changes}
    return [lambda: checkpoint_speed.measure(given.folder, repeats=given.runs, **sizes)]


def _checkpoint_bytes(given: Namespace) -> _Suites:
    sizes = {"checkpoints": given.checkpoints, "changes": given.changes, "records": given.records}
    return [lambda: checkpoint_bytes.measure(given.folder, **sizes)] * given.runs


def _commit_latency(given: Namespace) -> _Suites:
    sizes = {name: getattr(given, name) for name in ("records", "commits", "checkpoints", "durability")}
    return [lambda: commit_latency.measure(given.folder, **sizes)] * given.runs


def _beyond_memory(given: Namespace) -> _Suites:
    sizes = ("records", "operations", "limit", "turns", "storage")
    options = {name: getattr(given, name) for name in (*sizes, "kinds", "works", "peers")}
    return [lambda: beyond_memory.measure(given.folder, **options)] * given.runs


def _state_by_limit(given: Namespace) -> _Suites:
    options = {name: getattr(given, name) for name in ("limit", "operations", "peers")}
    shares = [float(share) for share in given.shares.split(",")]
    return [lambda: state_by_limit.measure(given.folder, **options, shares=shares)] * given.runs


def _joins(given: Namespace) -> _Suites:
    return [lambda: joins.measure(given.folder, rows=given.rows, waiting=given.waiting, repeats=given.runs)]


def _nexmark(given: Namespace) -> _Suites:
    return [lambda: nexmark.measure(given.folder, events=given.events, queries=given.queries)] * given.runs


def _spark_nexmark(given: Namespace) -> _Suites:
    options = {"events": given.events, "engines": given.engines, "timeout": given.timeout}
    return [partial(nexmark_spark.measure, given.folder, name, **options) for name in given.queries]


def _shuffle(given: Namespace) -> _Suites:
    options = {name: getattr(given, name) for name in ("minute", "after", "runs", "load", "rate", "floor", "sustained")}
    if "flink" in given.engines and not flink_python():
        print("flink is left out: HYBRIDSTORE_FLINK names no Python that has it", file=sys.stderr)
    return [
        partial(shuffle_bench.measure, given.folder, engine, victim, **options)
        for engine in given.engines
        if engine != "flink" or flink_python()
        for victim in shuffle_bench.VICTIMS[engine]
        if victim in given.victims
    ]


_SUITES: Final[dict[str, Callable[[Namespace], _Suites]]] = {
    "restore": _restore,
    "stores": _stores,
    "changelog": _changelog,
    "checkpoint": _checkpoint,
    "checkpoint-bytes": _checkpoint_bytes,
    "commit-latency": _commit_latency,
    "beyond-memory": _beyond_memory,
    "state-by-limit": _state_by_limit,
    "joins": _joins,
    "nexmark": _nexmark,
    "spark-nexmark": _spark_nexmark,
    "shuffle": _shuffle,
}
COMMANDS: Final = (*_SUITES, "compare")


def run(words: list[str]) -> int:
    """Run a command and return its exit code: 1 after a wrong answer, or when `compare` says that something became
    slower.
    """
    given = _parser().parse_args(words)
    if given.command == "compare":
        return _compare(given)
    keep = keeper(RESULTS, given.folder, full=True) if given.keep else None
    results: list[Result] = []
    failed = False
    for measure in _SUITES[given.command](given):
        try:
            results.append(measure())
        except (WrongAnswerError, RuntimeError) as error:  # the latter when a fresh process failed
            print(error, file=sys.stderr)
            failed = True
            continue
        # what ShuffleBench has lost or counted twice is a figure, and a failure
        failed = failed or any(entry.unit == "outputs" and entry.value for entry in results[-1].lines)
        if keep is not None:
            keep(results[-1])
        if not given.json:
            show(results[-1])
    if keep is not None and results:
        pages.refresh(pages.DOCS)
    if given.json:
        fields = [result.to_json() for result in results]
        print(json.dumps({"machine": machine.describe(given.folder), "results": fields}, indent=2))
    if vars(given).get("plot") is not None:
        if why := plots.missing():
            print(why, file=sys.stderr)
            return 1
        plots.restart_times([result for result in results if result.suite == "restore"], given.plot)
    return int(failed)


def _compare(given: Namespace) -> int:
    changes = compare.compare_refs(given.ref, given.other, runs=given.runs, records=given.records, suite=given.suite)
    if given.json:
        print(json.dumps([change.to_json() for change in changes], indent=2))
    else:
        compare.show_changes(changes, given.ref, given.other)
    return int(any(change.verdict == "slower" for change in changes))
