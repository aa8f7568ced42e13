"""Brief: docs/performance.md, the page of two minutes: ten figures and four plots at most, what is slower than what.

Every figure is a line of a result; all of them stand in docs/performance-tables.md (pages.py).
"""

# sentences of a page, one to a line

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.findings import line_of
from benchmarks.measure.result import Line, Result, number, thousands

PLOTS: Final = {
    "restart.png": "milliseconds from start to the first read and write, against records; both axes logarithmic",
    "peer-engines.png": "a point for each engine, ours in black, by powers of ten: left is better",
    "state-by-limit.png": "operations per second of a key-value store against its state over its memory limit, beside "
    "RocksDB with a cache of the limit; both axes logarithmic",
    "commit-latency.png": "latency of a commit against the percentile of commits, with and without checkpoints, paced "
    "and unpaced; both axes logarithmic",
}
_READY: Final = "to the first read and write"
_OWN: Final = "Spark's own operator, RocksDB with changelog"
# What a peer may take of ours before it is called faster.
_NOISE: Final = 0.95
# What a ratio below that is against where a peer was faster: a peer's figure over ours, or our rate over the peer's.
_PEERS: Final = ("ours", "Flink", "sooner than Flink", "RocksDB")
_PEERS_ON_SPARK: Final = tuple(f"{better}Spark's own" for better in ("", "sooner than ", "smaller than ", "less than "))


def _largest(results: Sequence[Result]) -> Result | None:
    warm = [
        r for r in results if r.suite == "restore" and (r.settings["cache"], r.settings["value_size"]) == ("warm", 16)
    ]
    return max(warm, key=lambda result: int(result.settings["records"]), default=None)


def _chosen(results: Sequence[Result], suite: str, **settings: Any) -> Result | None:
    """Return the result of a suite with the most keys among those with these settings."""
    matching = [
        result
        for result in results
        if result.suite == suite and all(result.settings.get(name) == value for name, value in settings.items())
    ]
    return max(matching, key=lambda result: int(result.settings.get("keys", 0)), default=None)


def _line(result: Result | None, name: str) -> Line | None:
    return None if result is None else line_of(result, name)


def _times(entry: Line | None, who: str) -> str:
    return "" if entry is None or entry.ratio is None else f"{who} {number(entry.ratio)}x"


def figures(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """Return (what, our figure, others beside it), at most ten; what was not measured is not there."""
    rows: list[tuple[str, Line | None, list[str]]] = []
    largest = _largest(results)
    if largest is not None:
        records = f"{largest.settings['records']:,} records"
        peers = [("a replay", "replay"), ("RocksDB", "rocksdb"), ("SQLite", "sqlite")]
        beside = [_times(line_of(largest, f"{peer}: {_READY}"), who) for who, peer in peers]
        rows.append((f"restart after a crash, {records}, {_READY}", line_of(largest, "hybridstore: ready"), beside))
    stores = _chosen(results, "stores")
    entry = _line(stores, "window, sparse: put + changelog")
    bare = [f"{number(entry.ratio)} times a dict and a msgpack Packer"] if entry and entry.ratio else []
    rows.append(("a put of a window store, logged", entry, bare))
    changelog = _chosen(results, "changelog")
    rows.append(("durable commits of 10 puts", _line(changelog, "durable commits of 10 puts"), []))
    entry = _line(_chosen(results, "state by limit"), "hybridstore, uniform: state 5x the limit")
    title = "read-modify-writes of random keys, a state of five times its memory limit"
    rows.append((title, entry, [_times(entry, "RocksDB")]))
    batch = _chosen(results, "spark", work="count", rows=100_000) or _chosen(results, "spark", work="count")
    if batch is not None:
        peers = [("Spark's own aggregation", _OWN), ("transformWithState (Row)", "transformWithState in Python, rows")]
        title = f"a batch on Spark, {batch.settings['rows']:,} rows over {batch.settings['keys']:,} keys"
        beside = [_times(line_of(batch, peer), who) for who, peer in peers]
        rows.append((title, line_of(batch, "hybridstore"), beside))
    processor = _chosen(results, "spark drop-in")
    if processor is not None:
        entry = line_of(processor, "transformWithState in Python, rows")
        title = f"a class for transformWithState, {processor.settings['rows']:,} rows a batch"
        ours = line_of(processor, "hybridstore, transform_with_state")
        rows.append((title, ours, [_times(entry, "Spark's operator")]))
    restart, what = _chosen(results, "spark restart"), "first batch less a warm one"
    if restart is not None:
        title = f"restart of a Spark query, {restart.settings['keys']:,} keys, {what}"
        beside = [_times(line_of(restart, f"{_OWN}: {what}"), "Spark's own, RocksDB")]
        rows.append((title, line_of(restart, f"hybridstore: {what}"), beside))
    killed, what = _chosen(results, "peer engines", work="tumbling, killed"), "to the first new result"
    if killed is not None:
        beside = [_times(line_of(killed, f"{who}: {what}"), who) for who in ("Bytewax", "Pathway", "DuckDB")]
        title = f"kill -9 of a plain program, from its new start {what}"
        rows.append((title, line_of(killed, f"hybridstore, dicts: {what}"), beside))
    back = {
        who: _line(_chosen(results, "shuffle bench", work=f"{who}, process"), f"{name}, process killed: p95 back")
        for who, name in (("plain", "plain"), ("flink", "Flink"))
    }
    ours, theirs = back["plain"], back["flink"]
    title = "ShuffleBench, kill -9 of the process under half of what it sustains, until the p95 of latency is back"
    rows.append((title, ours, [f"Flink {number(theirs.value / ours.value)}x"] if ours and theirs else []))
    rows.append(_nexmark(_chosen(results, "nexmark")))
    return [(title, entry.figure(), ", ".join(filter(None, beside))) for title, entry, beside in rows if entry]


def _nexmark(result: Result | None) -> tuple[str, Line | None, list[str]]:
    """Return the median query of Nexmark, from dicts."""
    rates = [] if result is None else [line for line in result.lines if line.name.endswith("dicts: events/s and core")]
    title = f"Nexmark from dicts, the median of {len(rates)} queries with state, events a second and core"
    if not rates:
        return title, None, []
    ratios = sorted(line.ratio for line in rates if line.ratio)
    beside = [f"Flink {number(median(ratios))}x ({number(ratios[0])}x to {number(ratios[-1])}x)"] if ratios else []
    value = median(line.value for line in rates)
    return title, Line(title, value, value, value, ""), beside


def slower(results: Sequence[Result]) -> list[str]:
    """Return where a peer takes less than ours, a sentence for each measurement: all of them, largest restart only."""
    sentences = []
    for result in results:
        if result.suite == "restore" and result is not _largest(results):
            continue
        peers = (*_PEERS, *_PEERS_ON_SPARK)
        less = [entry for entry in result.lines if entry.against in peers and entry.ratio and entry.ratio < _NOISE]
        less = [entry for entry in less if not entry.name.endswith("processor time")]
        if less:
            texts = "; ".join(
                f"{entry.name} {entry.figure()} ({entry.ratio_text().removesuffix(' ours')})" for entry in less
            )
            sentences.append(f"{_title(result)}: {texts}.")
    for victim in ("worker", "driver"):
        ours, theirs = (
            _line(_chosen(results, "shuffle bench", work=f"{who}, {victim}"), f"{name}, {victim} killed: p95 back")
            for who, name in (("hybridstore", "Spark with ours"), ("native", "Spark's own"))
        )
        if ours and theirs and theirs.value < _NOISE * ours.value:
            sentences.append(
                f"ShuffleBench, a {victim} killed: p95 back after {ours.figure()}, with Spark's own operator "
                f"{theirs.figure()}."
            )
    return sentences


def _title(result: Result) -> str:
    names = ("work", "query", "records", "keys", "rows", "events", "limit")
    settings = [(name, result.settings[name]) for name in names if name in result.settings]
    texts = [
        str(value)
        if name in ("work", "query")
        else f"{value:,} {name}"
        if name != "limit"
        else f"limit {thousands(value)}"
        for name, value in settings
    ]
    return f"{'restart' if result.suite == 'restore' else result.suite}, {', '.join(texts)}"


def page(results: Sequence[Result], source: str, pictures: Collection[str], about: str) -> str:
    """Return docs/performance.md; `about` is the machine as text, `pictures` the plots that are beside the page."""
    judged = [entry.met for result in results for entry in result.lines if entry.met is not None]
    text = [
        "# Performance",
        "",
        "The figures that decide, in two minutes; [all tables](performance-tables.md) have the rest: every size, the "
        "spread of the runs, targets that were missed, what was left out. Both pages are written by `make bench`; no "
        f"number is typed by hand. Raw results: `benchmarks/results/{source}`; what takes long, and what was measured "
        "anew, is of other runs, whose dates, loads and processors the tables have.",
        "",
        about,
        "",
        "## The figures",
        "",
        "Medians. A figure with an x is what another takes over what ours takes: above 1x ours takes less.",
        "",
        "| | hybridstore | beside it |",
        "| --- | ---: | --- |",
        *(f"| {title} | {ours} | {beside} |" for title, ours, beside in figures(results)),
        "",
        f"{sum(judged)} of {len(judged)} targets were reached; the tables name the others.",
    ]
    shown = [name for name in PLOTS if name in pictures]
    if shown:
        text += ["", "## Plots"]
        for name in shown:
            text += ["", f"![{PLOTS[name]}]({name})"]
    text += ["", "## What is slower than what", ""]
    sentences = slower(results)
    if sentences:
        text += [
            "Everything in which another engine took less than ours in the same run: a figure with an x is what it "
            "took over what ours took. A store that reads from its file is ready sooner than one that has a tail to "
            "replay, and pays at each read; a batch whose rows go to Python and back without any state is the least "
            "that Python on Spark can take.",
            "",
            *(f"* {sentence}" for sentence in sentences),
        ]
    else:
        text += ["Nothing that was measured in this run."]
    text += [
        "",
        "See also [scale.md](scale.md): cost per record as state grows, and a calculation to 10,000 shards.",
        "",
    ]
    return "\n".join(text)
