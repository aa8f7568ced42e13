"""Nexmark on Spark: queries by our operator and by Spark's own, on the same events, answers compared.

    python -m benchmarks spark-nexmark --queries q11,q12
    python -m benchmarks --full --only spark-nexmark

The queries are those that Spark's own streaming SQL can express: without state (q0 to q2), windows (q7, q8, q12), a
window behind a window (q5), sessions (q11), running aggregates (q17, q18). Of the others it has no distinct counts
(q15, q16) and no ranks (q19), and what joins without an end in time (q3, q4, q6, q9, q20) it never forgets. Both
engines read a file of events for each batch on `local[2]`, with two shards or partitions; Spark's own keeps its state
in RocksDB with changelog.

Each query runs three times in a process and a JVM of its own: for its rate, which counts from the batches behind the
first ones, by the clock and by the processor of all its processes; then until it is killed with all of them by signal 9
at 60 % of the batches; and again, until the next result and to its end. A restart counts from the start of the process,
with that of Java and Spark. Answers of the third run are compared with those of the plain engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure.result import Line, Result
from benchmarks.measure.timing import check, stopwatch
from benchmarks.suites.spark import processor_ms, settings_of, spark_process

if TYPE_CHECKING:
    from benchmarks.nexmark.queries import Query

# Events of event time in a second: two windows of 10 s end with each batch of 50,000 events.
RATE: Final = 2_500
EVENTS: Final = 500_000
BATCHES: Final = 10
WARM: Final = 3
KILLED_AT: Final = 0.6
ENGINES: Final = {"hybridstore": "hybridstore", "native": "native-changelog"}
# Figures of a run: the name, unit and scale of a page, and what a ratio of Spark's own to ours is called; without that
# a ratio is ours to theirs.
FIGURES: Final = {
    "rate": ("events/s", "", 1.0, ""),
    "of a core": ("events/s and core", "", 1.0, ""),
    "stored": ("state", "MB", 1e-6, "smaller than"),
    "silent": ("kill -9 to the next result, with the start of the process", "s", 1.0, "sooner than"),
    "spent": ("processor until then", "s", 1e-3, "less than"),
}
# The types of aggregates that are no built-in ones.
TYPES: Final = {"q5": {"best": "array<array<long>>"}}
DAY_MS: Final = 86_400_000
_KEYS: Final = ("key", "auction", "bidder")


def closing(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of many keys of their own, so late that every shard closes all windows before them. On Spark nothing is
    flushed.
    """
    late = {**row, "number": 10**9, "time": row["time"] + DAY_MS}
    return [late | {name: 10**9 + key for name in _KEYS if name in row} for key in range(64)]


# --- the queries of Spark's own ---------------------------------------------------------------------------------------


def _windows(df: Any, size: str, *by: str, time: str = "time", session: bool = False, slide: str | None = None) -> Any:
    from pyspark.sql import functions as f

    moments = df.withColumn("t", f.timestamp_millis(f.expr(time))).withWatermark("t", "0 seconds")
    window = f.session_window("t", size) if session else f.window("t", size, slide or size)
    return moments.groupBy(window.alias("window"), *by)


def _most(bids: Any) -> Any:
    """q5: of each window the auctions with the most bids."""
    from pyspark.sql import functions as f

    counts = _windows(bids, "10 seconds", "auction", slide="2 seconds").agg(f.count("*").alias("n"))
    pairs = counts.groupBy("window").agg(f.collect_list(f.array("auction", "n")).alias("pairs"))
    most = "array_max(transform(pairs, pair -> pair[1]))"
    best = f"array_sort(filter(pairs, pair -> pair[1] = {most})) best"
    return pairs.selectExpr("unix_millis(window.start) start", best)


def _new_sellers(rows: Any) -> Any:
    """q8: people who came and opened an auction in the same window."""
    from pyspark.sql import functions as f

    counts = [f.expr(f"count_if(kind = '{name}') {name}") for name in ("persons", "auctions")]
    return _windows(rows, "10 seconds", "key").agg(f.max("name").alias("name"), *counts)


def _shown(grouped: Any, *columns: str) -> Any:
    return grouped.selectExpr("unix_millis(window.start) window_start", *columns)


def _agg(grouped: Any, *expressions: str) -> Any:
    from pyspark.sql import functions as f

    return grouped.agg(*map(f.expr, expressions))


_RANKS: Final = ("price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000")
# Queries whose results change with each batch, where those of the others are told once, when a window ends.
UPDATED: Final = ("q17", "q18")
NATIVE: Final[dict[str, Callable[[Any], Any]]] = {
    "q0": lambda bids: bids.select("auction", "bidder", "price", "channel", "url", "time", "extra"),
    "q1": lambda bids: bids.selectExpr("auction", "bidder", "0.908D * price price", "time"),
    "q2": lambda bids: bids.where("auction % 123 = 0").select("auction", "price"),
    "q5": _most,
    "q7": lambda bids: _shown(
        _agg(
            _windows(bids, "10 seconds"), "max_by(struct(auction, bidder, price), struct(price, -time, -number)) best"
        ),
        "best",
    ),
    "q8": lambda rows: _shown(_new_sellers(rows), "key", "name", "persons", "auctions"),
    "q11": lambda bids: _shown(
        _agg(_windows(bids, "10 seconds", "bidder", session=True), "count(*) n", "max(time) window_end"),
        "bidder",
        "n",
        "window_end",
    ),
    "q12": lambda bids: _shown(
        _agg(_windows(bids, "10 seconds", "bidder", time="1704067200000 + 20 * number"), "count(*) n"), "bidder", "n"
    ),
    "q17": lambda bids: _shown(
        _agg(
            _windows(bids, "1 day", "auction"),
            "count(*) total_bids",
            *(f"count_if({rank}) rank{n}_bids" for n, rank in enumerate(_RANKS, 1)),
            *(f"{what}(price) {what}_price" for what in ("min", "max", "avg", "sum")),
        ),
        "auction",
        "total_bids",
        *(f"rank{n}_bids" for n in (1, 2, 3)),
        *(f"{what}_price" for what in ("min", "max", "avg", "sum")),
    ),
    "q18": lambda bids: _agg(
        bids.groupBy("bidder", "auction"),
        "max_by(struct(price, channel, time), struct(time, price, length(channel), channel)) last",
    ),
}


# --- one run, in a process of its own ---------------------------------------------------------------------------------


def _ours(query: Query, name: str, df: Any, checkpoint: str) -> Any:
    for number, stage in enumerate(query.stages):
        types = TYPES.get(name) if number else None
        df = stage.apply(df, f"stage{number}", location=checkpoint, shards=2, types=types)
    return df


def run(folder: Path, name: str, engine: str, mode: str, started: float) -> dict[str, Any]:
    """Run a query over the files of a folder: "rate", "broken" (until it kills itself) or "again", behind that one."""
    from pyspark.sql import SparkSession

    from benchmarks.nexmark.queries import QUERIES
    from hybridstore import spark as hsp

    builder = SparkSession.builder.master("local[2]")
    for key, value in settings_of(ENGINES[engine]).items():
        builder = builder.config(key, value)
    session = (hsp.configure(builder) if engine == "hybridstore" else builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    source, sink = folder / ("in" if mode == "rate" else "all"), folder / f"out-{engine}"
    checkpoint = folder / f"checkpoint-{engine}-{'rate' if mode == 'rate' else 'kill'}"
    marks: dict[int, tuple[float, float]] = {}

    def write(batch: Any, number: int) -> None:
        if mode == "broken" and number == int(KILLED_AT * BATCHES):
            os.killpg(0, signal.SIGKILL)
        writer = batch.write.mode("overwrite")
        if mode == "rate":
            writer.format("noop").save()
        else:
            writer.parquet(str(sink / f"{number:04}"))
        marks[number] = time.time(), processor_ms()

    schema = session.read.parquet(str(source)).schema
    df = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    answers = _ours(QUERIES[name], name, df, str(checkpoint)) if engine == "hybridstore" else NATIVE[name](df)
    output = "update" if engine == "native" and name in UPDATED else "append"
    writer = answers.writeStream.outputMode(output).foreachBatch(write)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    # a batch without rows moves Spark's watermark
    rows = {each["batchId"]: each["numInputRows"] for each in query.recentProgress if each["numInputRows"]}
    session.stop()
    state = checkpoint / ("hybridstore" if engine == "hybridstore" else "state")
    figures: dict[str, Any] = {"stored": sum(path.stat().st_size for path in state.rglob("*") if path.is_file())}
    if mode == "rate":
        _, *timed = sorted(rows)[WARM - 1 :]
        first, last = marks[sorted(rows)[WARM - 1]], marks[timed[-1]]
        count = sum(rows[number] for number in timed)
        figures["rate"] = count / (last[0] - first[0])
        figures["of a core"] = count / max(1e-3, (last[1] - first[1]) / 1000)
    else:
        moment, figures["spent"] = next(marks[number] for number in sorted(marks) if _results(sink, [number]))
        figures["silent"] = moment - started
    return figures


def _results(sink: Path, numbers: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """Return the results of some batches, or of all in their order."""
    import pyarrow.parquet as pq

    folders = sorted(sink.iterdir()) if numbers is None else [sink / f"{number:04}" for number in numbers]
    rows: list[dict[str, Any]] = []
    for folder in folders:
        for path in sorted(folder.glob("*.parquet")):
            rows += pq.read_table(path).to_pylist()
    return rows


# --- the suite --------------------------------------------------------------------------------------------------------


def _in_a_process(folder: Path, name: str, engine: str, mode: str, timeout: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.suites.nexmark_spark", mode, str(folder), name, engine]
    figures = spark_process([*command, str(time.time())], engine, timeout)
    shown = ", ".join(f"{FIGURES[what][0]} {value * FIGURES[what][2]:,.2f}" for what, value in figures.items())
    print(f"  {name}, {engine}, {mode}: {shown}", file=sys.stderr, flush=True)
    return figures


def measured(folder: Path, name: str, engine: str, timeout: float) -> dict[str, Any]:
    """Return the figures of a query by an engine. Raises RuntimeError or TimeoutError if it fails."""
    figures = _in_a_process(folder, name, engine, "rate", timeout)
    try:
        _in_a_process(folder, name, engine, "broken", timeout)
    except RuntimeError:
        check((folder / f"checkpoint-{engine}-kill").exists(), f"{name}, {engine}: the killed run left no state")
    else:
        check(False, f"{name}, {engine}: the run that kills itself ended")
    return figures | _in_a_process(folder, name, engine, "again", timeout)


def write_input(folder: Path, query: Query, rows: list[dict[str, Any]]) -> None:
    """Write a file of rows for each batch into `in`, and the same with rows that close windows into `all`."""
    from hybridstore.spark.batches import write_batches

    size = -(-len(rows) // BATCHES)
    parts = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    write_batches(folder / "in", parts)
    plan = query.stages[0].complete()
    closes = plan.aggregates is not None and plan.final
    write_batches(folder / "all", [*parts, closing(rows[-1])] if closes else parts)


def measure(
    folder: Path, query: str, *, events: int = EVENTS, engines: Sequence[str] = tuple(ENGINES), timeout: float = 600
) -> Result:
    """Measure a query by both engines. Raises WrongAnswerError when an answer is wrong; an engine that fails, or takes
    longer than `timeout` seconds for a run, is left out with a note.
    """
    from benchmarks.nexmark.generator import generate
    from benchmarks.nexmark.queries import QUERIES, answer_of, digest_of, results_of

    settings = {"query": query, "events": events, "batches": BATCHES, "events a second": RATE}
    result = Result("nexmark on spark", settings)
    definition, all_events = QUERIES[query], generate(events, rate=RATE)
    rows = definition.rows(all_events)
    figures: dict[str, dict[str, Any]] = {}
    with stopwatch() as clock, tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
        place = Path(scratch)
        expected = digest_of(answer_of(definition, results_of(definition, all_events)))
        write_input(place, definition, rows if isinstance(rows, list) else rows.to_pylist())
        for engine in engines:
            try:
                figures[engine] = measured(place, query, engine, timeout)
            except (RuntimeError, TimeoutError) as error:
                result.notes.append(f"Nexmark on Spark, {query}: {error}")
                continue
            answer = digest_of(answer_of(definition, _results(place / f"out-{engine}")))
            check(answer == expected, f"{query}, {engine}: {answer}, expected {expected}")
    for engine, given in figures.items():
        subject = query if engine == "hybridstore" else f"{query}, Spark's own"
        for what, (text, unit, scale, better) in FIGURES.items():
            value = given[what] * scale
            base = figures["native"][what] * scale if engine == "hybridstore" and "native" in figures else 0
            ratio = None if not base else base / value if better else value / base
            against = f"{better} Spark's own".strip() if ratio else ""
            result.lines.append(Line(f"{subject}: {text}", value, value, value, unit, ratio, ratio, ratio, against))
    result.notes.append("Nexmark on Spark: one run each; answers of both are those of the plain engine")
    result.seconds = clock.seconds
    return result


def main() -> int:
    """Run one query once in this process: MODE FOLDER QUERY ENGINE STARTED."""
    mode, folder, query, engine, started = sys.argv[1:]
    print(json.dumps(run(Path(folder), query, engine, mode, float(started))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
