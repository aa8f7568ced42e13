"""Report: docs/performance.md, docs/performance-tables.md and docs/scale.md, written from raw results.

Sentences are here; every number comes from a result.
"""

# sentences of a page, one to a line

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks import brief
from benchmarks.findings import ABOUT, LONG, SPARK, Figures, left_out, line_of, restart, wall
from benchmarks.measure import plots
from benchmarks.measure.result import Line, Result, number, thousands
from benchmarks.raw import Earlier, file_of, read_all, source
from benchmarks.suites import scale_model

ENGINES = ("replay", "rocksdb", "rocksdb-log", "lmdb", "sqlite", "sqlite-log", "pickle")


DOCS = Path(__file__).resolve().parent.parent / "docs"

# the engines of the table in docs/spark.md, as `spark_suite.NAMES` has them
SPARK_COLUMNS = {
    "Spark's own, RocksDB": "Spark's own operator, RocksDB with changelog",
    "Spark's own, HDFS-backed": "Spark's own operator, HDFS-backed",
    "transformWithState (Row)": "transformWithState in Python, rows",
    "applyInPandasWithState": "applyInPandasWithState",
    "transformWithStateInPandas": "transformWithStateInPandas",
}
SPEED = ("<!-- speed: written by make bench -->", "<!-- end of speed -->")


def spark_speed(measured: Earlier) -> str:
    """Return the table of docs/spark.md: a batch of each work, and a restart, with each engine's time as a multiple
    of ours.
    """
    rows = []
    for _, result in measured:
        cells = []
        if result.suite == "spark":
            settings = result.settings
            work = {"count": "count and sum per key", "tumbling": "tumbling count", "sliding": "sliding count and sum"}
            title = (
                f"{work.get(settings['work'], settings['work'])}, {settings['keys']:,} keys, {settings['rows']:,} "
                "rows a batch"
            )
            ours = line_of(result, "hybridstore")
            cells = [line_of(result, name) for name in SPARK_COLUMNS.values()]
        elif result.suite == "spark restart":
            title, what = (
                f"restart over {result.settings['keys']:,} keys: first batch less a warm one",
                "first batch less a warm one",
            )
            ours = line_of(result, f"hybridstore: {what}")
            cells = [line_of(result, f"{name}: {what}") for name in SPARK_COLUMNS.values()]
        if not cells or ours is None:
            continue
        texts = ["" if cell is None else f"{number(cell.value)} ({number(cell.ratio or 1)}x)" for cell in cells]
        rows.append(f"| {title} | {number(ours.value)} | " + " | ".join(texts) + " |")
    columns = ["median ms", "hybridstore", *SPARK_COLUMNS]
    return "\n".join(
        [
            machine(measured[0][0]),
            "",
            f"| {' | '.join(columns)} |",
            "| --- " + "| ---: " * (len(columns) - 1) + "|",
            *rows,
        ]
    )


def write_speed(page: Path, text: str) -> None:
    """Put the table between its marks in docs/spark.md, where there is such a page."""
    if page.exists():
        before, _, rest = page.read_text(encoding="utf-8").partition(SPEED[0])
        _, mark, after = rest.partition(SPEED[1])
        if mark:
            page.write_text(f"{before}{SPEED[0]}\n{text}\n{SPEED[1]}{after}", encoding="utf-8")


def write(docs: Path, raw: Path) -> None:
    """Write the pages and the plots into `docs`."""
    head, results, earlier = read_all(raw)
    measured = [*((head, result) for result in results), *earlier]
    if spark := [(of, result) for of, result in measured if result.suite in SPARK]:
        write_speed(docs / "spark.md", spark_speed(spark))
    docs.mkdir(parents=True, exist_ok=True)
    if not plots.missing():
        for _, result in measured:
            if result.suite == "scale-out":
                plots.workers(result, docs / "scale-out.png")
            elif result.suite == "state by limit":
                plots.limits(result, docs / "state-by-limit.png")
            elif result.suite == "commit latency":
                plots.latencies(result, docs / "commit-latency.png")
            elif result.suite == "scale":
                plots.growth(result, docs / "scale.png")
        results = [result for _, result in measured]
        if engines := [result for result in results if result.suite == "peer engines"]:
            plots.engines(engines, docs / "peer-engines.png")
        if warm(results):
            plots.restart_times(warm(results), docs / "restart.png")
    for name, text in texts(docs, raw).items():
        (docs / name).write_text(text, encoding="utf-8")


def refresh(docs: Path) -> None:
    """Write the pages in `docs` anew from the run that they are made from, with what was measured since. Raises
    ValueError where no page names a run.
    """
    raw = source(docs)
    if raw is None:
        raise ValueError(f"{docs}: no page of figures there (make bench writes the first ones)")
    write(docs, raw)


def texts(docs: Path, raw: Path) -> dict[str, str]:
    """Return the pages by name; the plots that they show are those that are in `docs`."""
    head, results, earlier = read_all(raw)
    measured = [*((head, result) for result in results), *earlier]
    every = [result for _, result in measured]
    shown = {picture.name for picture in docs.glob("*.png")}
    pages = {
        "performance-tables.md": tables(head, results, raw.name, shown, earlier),
        "performance.md": brief.page(every, raw.name, shown, machine(head)),
    }
    for of, scale in [entry for entry in measured if entry[1].suite == "scale"][-1:]:
        pages["scale.md"] = scale_model.page(of, scale, every, machine(of), file_of(of), "scale.png" in shown)
    return pages


def warm(results: Sequence[Result]) -> list[Result]:
    """Return the restarts of small values from a warm cache, by size."""
    rows = [
        r for r in results if r.suite == "restore" and r.settings["cache"] == "warm" and r.settings["value_size"] == 16
    ]
    return sorted(rows, key=lambda result: int(result.settings["records"]))


def machine(head: dict[str, Any]) -> str:
    """Return the machine as a block of text."""
    about = head["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return "\n".join(
        [
            "```",
            f"measured   {head['started']}Z at commit {about['commit']}{', long run' if head['full'] else ''}",
            f"machine    {about['processor']}, {about['cores']} cores, load average {about['load_average']} at the "
            f"start, {about['file_system']}",
            f"system     {about['system']}",
            f"python     {about['python']}",
            f"packages   {packages}",
            "```",
        ]
    )


def verdicts(results: Sequence[Result]) -> tuple[list[tuple[Result, Line]], int]:
    """Return the lines that missed their target, and how many have one."""
    judged = [(result, line) for result in results for line in result.lines if line.met is not None]
    return [(result, line) for result, line in judged if not line.met], len(judged)


def where(result: Result) -> str:
    """Return what tells results of one suite apart."""
    settings = result.settings
    return (
        f" of {settings['records']:,} x {settings['value_size']} bytes, {settings['cache']}"
        if result.suite == "restore"
        else f", {settings['work']}"
        if result.suite == "peer engines"
        else f" {settings_text(result)}"
        if result.suite in SPARK
        else ""
    )


def restart_table(results: Sequence[Result]) -> str:
    """Return milliseconds to the first read and write, and to everything in memory: an engine a row, a size a
    column.
    """
    sizes = [f"{result.settings['records']:,}" for result in results]
    rows = []
    for what, ours in (("to the first read and write", "ready"), ("to everything in memory", "")):
        for engine in ("hybridstore", *ENGINES):
            cells = []
            for result in results:
                if engine == "hybridstore":
                    value = result.find("hybridstore: ready").value + (
                        0 if ours else result.find("hybridstore: load").value
                    )
                    cells.append(number(value))
                    continue
                try:
                    cells.append(number(result.find(f"{engine}: {what}").value))
                except KeyError:
                    cells.append("left out")
            if set(cells) != {"left out"}:
                rows.append(f"| {engine}, {what} | " + " | ".join(cells) + " |")
    head = "| ms, median | " + " | ".join(sizes) + " |\n| --- " + "| ---: " * len(sizes) + "|"
    return "\n".join([head, *rows])


SUITES = {
    "stores": (
        "Stores",
        "Bare is a dict put and a reused msgpack Packer on the same records in the same run: it keeps no order, no "
        "times, no log. Ours includes the changelog and a commit for each 10,000 records. Python's collector is on; "
        "what the benchmark itself holds is frozen, so that it is not walked.",
    ),
    "changelog": (
        "Changelog",
        "Writing, making durable and reading mutations, against the bare steps. The digest chain is blake2b over the "
        "packed bytes.",
    ),
    "changelog bytes": (
        "Changelog bytes",
        "What a record of a windowed aggregation costs in the changelog. Counted, not timed. `python -m "
        "benchmarks.suites.changelog_bytes` prints it.",
    ),
    "catching up": (
        "Catching up",
        "Processor time for a row of the changelog that a worker with an older version in memory meets: *untouched*, "
        "with a batch on keys of which it says nothing, and *touched*, with a batch on all of its keys, less what the "
        "batch costs by itself. Restarts: by the clock up to an open store, in processor time up to an open store, and "
        "up to every row in its place. A worker applies the rows of a key when the key is touched (docs/design.md). "
        "`python -m benchmarks.suites.catching_up` prints it.",
    ),
    "checkpoint": ("Checkpoints", "A window store in order of time, 5 % late, durable to disk."),
    "checkpoint bytes": (
        "Bytes of checkpoints",
        "What is written for each byte of the changelog, itself included, over a checkpoint after each minute of "
        "windows, or of changes to a key-value store; range: the checkpoint with the least and the most. Counted, not "
        "timed. `python -m benchmarks checkpoint-bytes` prints it.",
    ),
    "commit latency": (
        "Latency of commits",
        "A commit is 10 puts of random keys and `commit`, alone and beside checkpoints in the background, in a loop as "
        "fast as possible and in one paced at half of that rate. The ratio is to the loop without checkpoints. "
        "`python -m benchmarks commit-latency` prints it.",
    ),
    "beyond memory": (
        "State beyond memory",
        "A store under a limit of a fifth of the memory that its records take, beside RocksDB with a cache of the "
        "limit, and LMDB. Each in a process of its own, whose anonymous memory is read from outside, beyond what it "
        "had before it opened the state. An operation of the distributions is a read-modify-write; YCSB's workloads "
        "are as published; a durable commit each 1,000 operations belongs to the last of them. Every read is checked: "
        "outside the measured time, as keys and values of the key-value store and of the engines are made (until 29 "
        "November 2026 both took 1.5 µs of each operation's time). The key-value store and the engines beside it work "
        "in turn, and those that wait are stopped. `python -m benchmarks beyond-memory` prints it.",
    ),
    "state by limit": (
        "State against its limit",
        "Read-modify-writes a second of a key-value store whose state, as it would be in memory without a limit, is "
        "each of the shares of its limit; beside RocksDB with a cache of the limit. Each in a process of its own; "
        "every read is checked. `python -m benchmarks state-by-limit` prints it.",
    ),
    "joins": (
        "Joins",
        "Two streams with one partner for each row, within an hour, beside a bare loop over two dicts that joins the "
        "same dicts and never forgets a row: rows a second of processor time of whole runs, every result compared. "
        "Then the changelog beside the msgpack of the values, a restart of a left join whose rows wait, its anonymous "
        "memory read from outside, and an as-of join beside those of DuckDB and Pathway, which have both tables whole "
        "and keep no state. "
        "`python -m benchmarks joins` prints it.",
    ),
    "sliding": (
        "Sliding windows",
        "Adds per record are counted exactly; times are ratios to a bare dict and deque. `python -m "
        "benchmarks.suites.sliding` prints it as a table.",
    ),
    "spark": (
        "Spark",
        "Milliseconds of a batch, each engine in a JVM of its own on the same input, with durable commits; the first "
        "batches are not counted. Every engine's answers are equal.",
    ),
    "spark over bare": (
        "What state adds to a batch on Spark",
        "A batch of ours as a multiple of one whose rows go to Python and back and leave nothing: both run in turn, "
        "the ratio is the median of the rounds.",
    ),
    "spark drop-in": (
        "A class for transformWithState, on Spark's engine and on ours",
        "The same class with a value, a list and a map for each key, unchanged: `GroupedData.transformWithState` over "
        "RocksDB with changelog, and `hybridstore.spark.transform_with_state`. Equal answers.",
    ),
    "spark restart": (
        "Restart of a Spark query",
        "The first batch of a query that is started again in a new JVM over a large state, and the same less a warm "
        "batch: what the state costs.",
    ),
    "peer engines": (
        "Beside other engines",
        "Count and sum per key and window of a file of JSON lines, each engine in a process of its own with the "
        "program that its documentation would have one write (`benchmarks/suites/peer_programs.py`). Every result is "
        "compared with a dict's. A ratio is a peer's figure over that of ours that reads the file in the same way, by "
        "`json.loads` or by native code: above 1x ours is better, and that is the target. Imports are left out.\n\n"
        "Bytewax and Pathway make a snapshot each second, ours and DuckDB a durable commit each 50,000 events; where "
        "it says so, a commit each 1,000. *Written* is what the process caused to be written to the disk, results "
        "included. Pathway takes a file as one batch, and keeps its inputs (`PERSISTING`): to keep its state instead "
        "needs a licence key. *Killed*: signal 9 when 60 % of the file are read (Pathway: at 60 % of its processor "
        "time), then a new start, timed from its beginning, imports included; each result is there afterwards, and "
        "those that are there twice are counted.",
    ),
    "nexmark": (
        "Nexmark, beside Flink",
        "Queries of the benchmark that keep state, over its bids: ours in one process, Flink with one slot, RocksDB "
        "and a checkpoint each 2 s. The rate counts processor time from the first row to the last result, without "
        "reading rows; a ratio is our rate over Flink's. *Killed*: signal 9 at 60 % of the rows, then a new start, "
        "timed from its beginning to the next result, imports included, and Flink's from its last checkpoint. "
        "`HYBRIDSTORE_FLINK=PYTHON python -m benchmarks nexmark` prints it (`benchmarks/nexmark/oracles.py` says how "
        "Flink is installed).",
    ),
    "nexmark on spark": (
        "Nexmark on Spark, beside Spark's own operators",
        "The queries that Spark's streaming SQL can express, on `local[2]`: ours in Python, two shards, Spark's own in "
        "its JVM, RocksDB with changelog. The rate counts batches behind the first ones, by the clock and by the "
        "processor of all processes; a ratio is our figure over Spark's own. *Killed*: signal 9 for all processes at "
        "60 % of the batches, then a new start, timed from its beginning, with that of Java, to the next result. "
        "`python -m benchmarks spark-nexmark` prints it; `benchmarks/suites/nexmark_spark.py` says which queries Spark "
        "has not.",
    ),
    "shuffle bench": (
        "ShuffleBench, with kills",
        "The workload of ShuffleBench (records of 1,024 bytes, 1,000 rules) at a constant load of half of what each "
        "engine sustains here, and a kill with signal 9: of the process, of a Spark executor (*worker*), of a process "
        "that has shards (*holder*), of Spark's driver with all of its processes. The load stays the same. *First "
        "output* and *p95 back* count from the kill, with the start of what was killed; *∞* is what was not seen "
        "before the end. Windows of outputs are late when their p95 is beyond that of before: how many were so before "
        "the kill, and behind the catching up. Medians of the repeats, of which lost and double outputs are the sum. "
        "`python -m benchmarks shuffle` prints it.",
    ),
    "scale-out": (
        "Spark with more workers",
        "What a row costs as workers are added, over the same shards and batches, all of them on this machine: "
        "processor times and counts tell what a wall clock with so few cores cannot. "
        "*Worker* keeps shards in Spark's Python workers, *auto* in holders once that pays (docs/spark.md, Where a "
        "shard is kept). State work is loading and processing; requests are objects created, read and removed, and "
        "lists; copies are records in all processes over records of the state. The answers of every batch are equal in "
        "all runs.",
    ),
}


def settings_text(result: Result) -> str:
    """Return what a suite ran with."""
    return ", ".join(f"{key} {thousands(value)}" for key, value in result.settings.items())


def of_a_run(head: dict[str, Any] | None) -> str:
    """Return when, at which commit and on which processor a result of another run was measured."""
    if head is None:
        return ""
    return (
        f" (measured {head['started']}Z at commit {head['machine']['commit']}, load average "
        f"{head['machine']['load_average']} at the start, {head['machine']['processor']})"
    )


def verdict(met: bool) -> str:
    """Return whether a target was reached."""
    return "reached" if met else "missed"


def bullets(sentences: Sequence[str]) -> list[str]:
    """Return sentences as the lines of a list, with an empty line before."""
    return ["", *(f"* {sentence}" for sentence in sentences)] if sentences else []


def restart_section(
    runs: list[Result], others: list[Result], figures: Figures, picture: bool, runs_of: dict[int, dict[str, Any]]
) -> list[str]:
    """Return the section about restarts; `runs_of` has the heads of results that are of other runs."""
    largest = runs[-1]
    text = [
        "",
        "## Restart",
        "",
        "From `hybridstore.open` to the first value read and the first one written, after a crash, with a tail of "
        "mutations behind the checkpoint; and to every record in memory. Imports are left out for every engine. The "
        "peers had everything flushed, which is the best case for them; those named *-log* have the same tail as ours "
        "in their own write-ahead log, as after a crash. What each engine restored was compared with what was put.",
        "",
        restart_table(runs),
    ]
    if picture:
        text += [
            "",
            "![milliseconds from start to the first read and write, against records; both axes "
            "logarithmic](restart.png)",
        ]
    replay = line_of(largest, "replay: to the first read and write")
    if replay and replay.ratio:
        large = largest.settings["records"] >= 5_000_000
        asked = f" (target ≥ 200x: {verdict(replay.ratio >= 200)})" if large else ""
        text += [
            "",
            f"At {largest.settings['records']:,} records a full replay takes {number(replay.ratio)}x as long as our "
            f"restart{asked}.",
        ]
    before = runs[-2] if len(runs) > 1 else None
    if before and largest.settings["records"] == 5 * before.settings["records"]:
        times = largest.find("hybridstore: ready").value / before.find("hybridstore: ready").value
        text += [
            "",
            f"Five times the records, {before.settings['records']:,} to {largest.settings['records']:,}, make our "
            f"restart {number(times)}x as long (target ≤ 1.3x: {verdict(times <= 1.3)}).",
        ]
    text += [
        "",
        f"By phase, {largest.settings['records']:,} records, tail of {largest.settings['tail']:,}, "
        f"{largest.settings['runs']} runs{of_a_run(runs_of.get(id(largest)))}:",
        "",
        largest.markdown(lambda line: line.name.startswith("hybridstore")),
    ]
    if surprises := restart(figures):
        text += ["", "What is surprising here:", *bullets(surprises)]
    for result in others:
        settings = result.settings
        title = f"{settings['records']:,} records of {settings['value_size']} bytes, {settings['cache']} cache"
        title += of_a_run(runs_of.get(id(result)))
        text += ["", f"### {title}", "", result.markdown(), *bullets(result.notes)]
    return text


# suites whose lines are "subject: what", and whether the ratio of a line stands in its cell
SUBJECTS = {
    "scale-out": False,
    "peer engines": True,
    "nexmark": True,
    "nexmark on spark": True,
    "beyond memory": True,
    "commit latency": True,
    "state by limit": True,
    "shuffle bench": False,
}


# of these suites a result is a part of one table, measured by itself
GATHERED = ("nexmark on spark", "shuffle bench")


def subjects_table(*results: Result) -> str:
    """Return the lines "subject: what" as a table with a row for each subject and a column for each what."""
    rows: dict[str, dict[str, Line]] = {}
    for entry in (entry for result in results for entry in result.lines):
        subject, _, what = entry.name.rpartition(": ")
        rows.setdefault(subject, {})[what] = entry
    columns = list(dict.fromkeys(what for cells in rows.values() for what in cells))
    text = ["| | " + " | ".join(columns) + " |", "| --- " + "| ---: " * len(columns) + "|"]
    for subject, cells in rows.items():
        texts = []
        for what in columns:
            cell = cells.get(what)
            notes = [cell.spread()] if cell is not None and len(results) > 1 and cell.low < cell.high else []
            if cell is not None and SUBJECTS[results[0].suite]:
                notes += [cell.ratio_text()] if cell.ratio is not None else []
            elif cell is not None and cell.target is not None:
                notes += [cell.verdict()]
            texts.append("" if cell is None else cell.figure() + "".join(f" ({note})" for note in notes))
        text.append(f"| {subject} | " + " | ".join(texts) + " |")
    return "\n".join(text)


def changes_section(result: Result, of: dict[str, Any] | None) -> list[str]:
    """Return what changed since another version, measured in turns with it; `of`: the head of the run if it is another
    one.
    """
    rows = [
        f"| {line.name} | {number(line.value / (line.ratio or 1))} {line.unit} | {line.figure()} | "
        f"{number(line.ratio or 1)}x | {number(line.ratio_low or 1)} - {number(line.ratio_high or 1)} | {line.note} |"
        for line in result.lines
    ]
    return [
        "",
        "## Before and after",
        "",
        f"`python -m benchmarks compare {result.settings['before']}`: both versions in turns, "
        f"{result.settings['runs']} runs each{of_a_run(of)}, in processor time. A change counts when the 95 % interval "
        "of the ratio of medians leaves out 1 and it is more than 2 %; slower is what a second measurement calls "
        "slower, too.",
        "",
        "| | before | after | ratio | 95 % | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *rows,
    ]


def tables(
    head: dict[str, Any],
    results: list[Result],
    source: str,
    pictures: Collection[str],
    earlier: Earlier | None = None,
) -> str:
    """Return docs/performance-tables.md; `pictures` are the files of plots that are beside it, and `earlier` is results
    of Spark's and other engines that are of other runs.
    """
    anew = [result for _, result in earlier or () if result.suite not in LONG]
    measured = sum(result.seconds for result in [*results, *anew])
    runs_of = {id(result): head for head, result in earlier or ()}
    results = [*results, *(result for _, result in earlier or ())]
    missed, judged = verdicts(results)
    runs, figures = warm(results), Figures(results)
    busy = head["machine"]["load_average"] > head["machine"]["cores"] / 2
    text = [
        "# Performance: all tables",
        "",
        "The figures that decide are in [performance.md](performance.md). "
        "This page is written by `make bench`; no number in it is typed by hand. Every figure is a median, with the "
        "lowest and highest run beside it; cases that are compared run in turn in one go, and every run checks its "
        "answer first. "
        + ("The machine was busy with other work: trust the ratios, " if busy else "Trust the ratios, ")
        + f"which are taken within a run, more than the times. Raw results: `benchmarks/results/{source}`.",
        "",
        machine(head),
        "",
        f"The suites took {number(measured / 60)} minutes. "
        f"{judged - len(missed)} of {judged} targets were reached." + (" Missed:" if missed else ""),
        "",
        *(
            f"* {result.suite}{where(result)}, {line.name}: {line.figure()} {line.ratio_text()}".rstrip()
            + f" (target {line.target.text(line.unit)})"
            for result, line in missed
            if line.target
        ),
    ]
    if runs:
        text += restart_section(
            runs,
            [r for r in results if r.suite == "restore" and r not in runs],
            figures,
            "restart.png" in pictures,
            runs_of,
        )
    for suite, (title, about) in SUITES.items():
        chosen = [result for result in results if result.suite == suite]
        text += ["", f"## {title}", "", about] if chosen else []
        if chosen and suite in GATHERED:
            text += ["", subjects_table(*chosen)]
            text += bullets([f"{settings_text(result)}{of_a_run(runs_of.get(id(result)))}" for result in chosen])
        for result in chosen:
            if suite not in GATHERED:
                text += [
                    "",
                    f"{settings_text(result).capitalize()}{of_a_run(runs_of.get(id(result)))}:",
                    "",
                    result.markdown() if suite not in SUBJECTS else subjects_table(result),
                ]
            if suite == "scale-out" and "scale-out.png" in pictures:
                text += [
                    "",
                    "![processor time per row against workers: flat is good; both axes logarithmic](scale-out.png)",
                ]
            text += bullets([f"{line.name}: {line.note}" for line in result.lines if line.note])
        if chosen and suite == "peer engines" and "peer-engines.png" in pictures:
            text += [
                "",
                "![a point for each engine, ours in black, by powers of ten: left is better](peer-engines.png)",
            ]
        if chosen and suite in ABOUT:
            text += bullets(ABOUT[suite](figures))
    for result in results:
        if result.suite == "changes":
            text += changes_section(result, runs_of.get(id(result)))
    text += ["", "## Where Python is the wall", "", "\n\n".join(wall(figures))]
    for result in results:
        if result.suite == "walls":
            text += ["", f"{settings_text(result).capitalize()}{of_a_run(runs_of.get(id(result)))}:"]
            text += ["", result.markdown()]
    text += [
        "",
        "## What is left out",
        *bullets(left_out(results, bool(head["full"]))),
        "",
        "See also [scale.md](scale.md): cost per record as state grows, and a calculation to 10,000 shards.",
        "",
    ]
    return "\n".join(text)
