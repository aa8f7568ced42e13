"""Spark's engines as suites: what `spark` and `spark_restart` measure, as results with ratios to ours.

Needs Java and minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure.result import Line, Result, Target, line
from benchmarks.measure.timing import Spread, WrongAnswerError, check, stopwatch
from benchmarks.suites import scale_out as bench_scale_out
from benchmarks.suites import spark as bench_spark
from benchmarks.suites import spark_restart as bench_spark_restart

OURS = "hybridstore"
NAMES = {
    "hybridstore": "hybridstore",
    "hybridstore-worker": "hybridstore, shards in workers",
    "hybridstore-holder": "hybridstore, shards in holders",
    "hybridstore-tws": "hybridstore, transform_with_state",
    "hybridstore-pandas": "hybridstore, transform_with_state_in_pandas",
    "hybridstore-apws": "hybridstore, apply_in_pandas_with_state",
    "bare": "rows to Python and back, no state",
    "native": "Spark's own operator, RocksDB",
    "native-changelog": "Spark's own operator, RocksDB with changelog",
    "native-hdfs": "Spark's own operator, HDFS-backed",
    "native-v3": "Spark's own join, state format 3",
    "native-v4": "Spark's own join, state format 4",
    "tws-row": "transformWithState in Python, rows",
    "tws-pandas": "transformWithStateInPandas",
    "apws": "applyInPandasWithState",
    "rocksdb": "Spark's own operator, RocksDB",
    "rocksdb-changelog": "Spark's own operator, RocksDB with changelog",
    "hdfs": "Spark's own operator, HDFS-backed",
}


def _against(name: str, samples: list[float], ours: list[float], bound: float | None, note: str = "") -> Line:
    """Return a line with the ratio of medians to ours: engines run one after the other, so that batches do not pair
    up.
    """
    spread = Spread(tuple(samples))
    base = median(ours)
    judged = None if bound is None else Target(bound, at_least=True)
    ratios = (spread.middle / base, spread.low / base, spread.high / base)
    return Line(
        name, spread.middle, spread.low, spread.high, "ms", *ratios, "ours", judged, note, spread.percentile(0.95)
    )


def batches(
    folder: Path,
    work: str,
    keys: int,
    engines: Sequence[str],
    rows: int = 100_000,
    count: int = 8,
    rounds: int = 1,
    timeout: float = 900,
) -> Result:
    """Measure a batch of each engine, ours first, on the same input: the median after the first ones, as ratios to
    ours.

    Raises WrongAnswerError when an engine's answers differ from ours, but for the one that only stands in. An engine
    that fails, or takes longer than `timeout` seconds, is left out with a note.
    """
    result = Result("spark", {"work": work, "keys": keys, "rows": rows, "batches": count})
    with stopwatch() as clock:
        answers, result.notes = bench_spark.compare(folder, work, keys, rows, count, engines, rounds, timeout)
    if engines[0] not in answers:
        raise WrongAnswerError("; ".join(result.notes))
    ours = bench_spark.milliseconds(answers[engines[0]])
    for engine, runs in answers.items():
        check(all(run["agrees"] is not False for run in runs), f"{engine}: answers other than those of {engines[0]}")
        if engine == engines[0]:
            result.lines.append(line(NAMES[engine], Spread(tuple(ms / 1000 for ms in ours)), "ms"))
            continue
        stand_in = engine != "bare" and runs[0]["agrees"] is None
        note = "hopping windows stand in: Spark has no sliding ones" if stand_in else ""
        bound = bench_spark.target(work, keys, rows, engine)
        result.lines.append(_against(NAMES[engine], bench_spark.milliseconds(runs), ours, bound, note))
    used = bench_spark.processor(answers[engines[0]])
    for engine, runs in answers.items():
        mine = bench_spark.processor(runs)
        if used and mine:
            result.lines.append(_against(f"{NAMES[engine]}: processor time", [mine], [used], None))
    for what in ("read_ms", "process_ms", "commit_ms") if engines[0] == OURS else ():
        samples = [max((shard.get(what) or 0.0) for shard in run["shards"]) / 1000 for run in answers[OURS]]
        result.lines.append(line(f"  of ours, {what[:-3]}, the slower shard", Spread(tuple(samples)), "ms"))
    result.seconds = clock.seconds
    return result


def over_bare(
    folder: Path,
    work: str,
    keys: int,
    bound: float,
    rows: int = 100_000,
    count: int = 12,
    rounds: int = 3,
    timeout: float = 300,
) -> Result:
    """Measure a batch of ours as a multiple of one that takes its rows to Python and back and keeps nothing: the
    median of the rounds' ratios, of which each begins with the other, may be `bound`.

    Raises WrongAnswerError when one of the two fails.
    """
    result = Result("spark over bare", {"work": work, "keys": keys, "rows": rows, "batches": count, "rounds": rounds})
    with stopwatch() as clock:
        answers, notes = bench_spark.compare(folder, work, keys, rows, count, (OURS, "bare"), rounds, timeout)
    result.lines = _in_rounds(answers, (OURS, "bare"), notes, Target(bound))
    result.seconds = clock.seconds
    return result


def drop_in(
    folder: Path, keys: int, bound: float, rows: int = 100_000, count: int = 5, rounds: int = 2, timeout: float = 600
) -> Result:
    """Measure a class for transformWithState with a value, a list and a map for each key, on Spark's engine as a
    multiple of ours: the median of the rounds' ratios is to be `bound` or more.

    Raises WrongAnswerError when one of the two fails, or when their answers differ.
    """
    settings = {"work": "variables", "keys": keys, "rows": rows, "batches": count, "rounds": rounds}
    engines = bench_spark.ENGINES_OF["variables"]
    result = Result("spark drop-in", settings)
    with stopwatch() as clock:
        answers, notes = bench_spark.compare(folder, "variables", keys, rows, count, engines, rounds, timeout)
    result.lines = _in_rounds(answers, engines[::-1], notes, Target(bound, at_least=True))
    result.seconds = clock.seconds
    return result


def _in_rounds(
    answers: dict[str, list[dict[str, Any]]], engines: Sequence[str], notes: list[str], target: Target
) -> list[Line]:
    """Return the lines of two engines that ran round by round, the first one as a multiple of the second: a batch, and
    its processor time over all processes.
    """
    if notes:
        raise WrongAnswerError("; ".join(notes))
    measured, base = (answers[engine] for engine in engines)
    for engine, runs in answers.items():
        check(
            all(run["agrees"] is not False for run in runs),
            f"{engine}: answers other than those of {next(iter(answers))}",
        )
    batch, floor = (Spread(tuple(median(run["timed"]) / 1000 for run in runs)) for runs in (measured, base))
    name, other = (NAMES[engine] for engine in engines)
    lines = [line(other, floor, "ms"), line(name, batch, "ms", base=floor, against=other, target=target)]
    if all(run.get("processor_ms") for run in [*measured, *base]):
        used, least = (Spread(tuple(run["processor_ms"] / 1000 for run in runs)) for runs in (measured, base))
        lines.append(line(f"{other}: processor time", least, "ms"))
        lines.append(line(f"{name}: processor time", used, "ms", base=least, against=other))
    return lines


def restarts(
    folder: Path,
    keys: int,
    engines: Sequence[str] = tuple(bench_spark_restart.ENGINES),
    rounds: int = 2,
    timeout: float = 900,
) -> Result:
    """Measure the first batch after a restart over a state of `keys` keys, and less a warm one, for each engine.

    Raises as `batches`.
    """
    result = Result("spark restart", {"keys": keys, "rows": bench_spark_restart.SMALL, "runs": rounds})
    with stopwatch() as clock:
        answers, result.notes = bench_spark_restart.measure(folder, keys, engines, rounds, timeout)
    if engines[0] not in answers:
        raise WrongAnswerError("; ".join(result.notes))
    for what, name in (
        ("start_ms", "query start to its end after one batch"),
        ("state_ms", "first batch less a warm one"),
    ):
        ours = [max(float(run[what]), 1.0) for run in answers[engines[0]]]
        for engine, runs in answers.items():
            check(all(run["agrees"] for run in runs), f"{engine}: answers other than those of {engines[0]}")
            # noise can make a first batch no slower than a warm one
            samples = [max(float(run[what]), 1.0) for run in runs]
            if engine == engines[0]:
                result.lines.append(line(f"{OURS}: {name}", Spread(tuple(ms / 1000 for ms in samples)), "ms"))
            else:
                result.lines.append(_against(f"{NAMES[engine]}: {name}", samples, ours, None))
    if engines[0] == OURS:
        for what, meaning in (("load_ms", "loading the version"), ("process_ms", "processing, blocks loaded for it")):
            spread = Spread(tuple(ms / 1000 for ms in bench_spark_restart.inside(answers[OURS], what)))
            target = Target(50, "value") if what == "load_ms" else None
            result.lines.append(
                line(f"{OURS}: {meaning}, in the first batch, the slower shard", spread, "ms", target=target)
            )
    result.seconds = clock.seconds
    return result


def restart_fields(folder: str, keys: int) -> dict[str, Any]:
    """Return what `restarts` measures as plain values: for `python -m benchmarks restore --spark`, which runs it in
    a process of its own.
    """
    return restarts(Path(folder), keys).to_json()


# of what `scale_out` tells of a run: the names and units of a page, and how figures become them
SCALE_OUT = {
    "hits": ("loads that are hits", "%", 100),
    "segments": ("segments replayed, per shard and batch", "", 1),
    "replayed rows": ("rows replayed, per shard and batch", "", 1),
    "requests": ("requests to storage, per shard and batch", "", 1),
    "loading": ("loading, of a processor per row", "µs", 1),
    "processing": ("processing, of a processor per row", "µs", 1),
    "state work": ("state work, of a processor per row", "µs", 1),
    "python": ("all Python processes, of a processor per row", "µs", 1),
    "all": ("all processes, of a processor per row", "µs", 1),
    "copies": ("copies of the state in memory", "", 1),
    "memory": ("memory of all Python processes", "MB", 1),
    "batch ms": ("a batch, median", "ms", 1),
}


def scale_out(
    folder: Path,
    masters: Sequence[str] = bench_scale_out.MASTERS,
    engines: Sequence[str] = ("hybridstore", "native-changelog"),
    placements: Sequence[str] = ("worker", "auto"),
    work: str = "sliding",
    keys: int = 20_000,
    rows: int = 16_000,
    batches: int = 10,
    warm: int = 20,
    timeout: float = 900,
) -> Result:
    """Measure what a row costs with each master, as lines "master, who: what"; ratios are to the master that comes
    first.

    Raises WrongAnswerError when answers of two runs differ.
    """
    result = Result("scale-out", {"work": work, "keys": keys, "rows": rows, "shards": bench_scale_out.SHARDS})
    result.settings |= {"batches": batches, "warm batches before": warm}
    with stopwatch() as clock:
        entries, result.notes = bench_scale_out.measure(
            folder, work, masters, engines, placements, keys, rows, batches, warm, timeout
        )
    first: dict[tuple[str, str], float] = {}
    for entry in entries:
        who = NAMES[entry["engine"]] + (f" ({entry['placement']})" if entry["placement"] else "")
        check(entry["agrees"], f"{entry['master']}, {who}: other answers than with {masters[0]}")
        entry |= {"state work": entry["loading"] + entry["processing"], "all": entry["python"] + entry["java"]}
        for name, (what, unit, scale) in SCALE_OUT.items():
            if entry["engine"] != OURS and name not in ("all", "batch ms"):
                continue
            value = entry[name] * scale
            base = first.setdefault((who, name), value)
            ratio = value / base if base else None
            target = _goal(name, entry["master"], entry["placement"])
            low = (ratio, ratio, ratio) if target is None or target.of == "ratio" else (None, None, None)
            note = "hopping windows stand in: Spark has no sliding ones" if entry["stand-in"] and name == "all" else ""
            against = "with the first master"
            result.lines.append(
                Line(f"{entry['master']}, {who}: {what}", value, value, value, unit, *low, against, target, note)
            )
    result.seconds = clock.seconds
    return result


def _goal(name: str, master: str, placement: str) -> Target | None:
    """Return what a figure of ours is meant to reach, where shards are placed by default."""
    if placement != "auto":
        return None
    if master == "local[16]" and name == "state work":
        return Target(1.3)
    if master == "local-cluster[4,2,1024]":
        return {"hits": Target(95, "value", at_least=True), "copies": Target(1.3, "value")}.get(name)
    return None
