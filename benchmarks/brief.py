"""Brief: docs/performance.md, the page of two minutes: at most ten figures and six plots, and what is slower than what.

Every figure is a line of a result; all of them stand in docs/performance-tables.md (pages.py).
"""

# sentences of a page, one to a line

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.findings import line_of
from benchmarks.measure.result import Line, Result, number
from benchmarks.suites.scale_model import copied

PLOTS: Final = {
    "restart.png": "milliseconds from start to the first read and write, against records; both axes logarithmic",
    "scale.png": "cost against records, as a multiple of that at the smallest size; both axes logarithmic",
    "peer-engines.png": "a point for each engine, ours in black, by powers of ten: left is better",
    "scale-out.png": "processor time per row against workers: flat is good; both axes logarithmic",
    "state-by-limit.png": "operations per second of a key-value store against its state over its memory limit, beside "
    "RocksDB with a cache of the limit; both axes logarithmic",
    "commit-latency.png": "latency of a commit against the percentile of commits, with and without checkpoints, paced "
    "and unpaced; both axes logarithmic",
}
_READY: Final = "to the first read and write"
_ALL: Final = "to everything in memory"
_OWN: Final = "Spark's own operator, RocksDB with changelog"
# What a peer may take of ours before it is called faster.
_NOISE: Final = 0.95
# What a ratio below that is against where a peer was faster: a peer's figure over ours, or our rate over Flink's.
_PEERS: Final = {"ours": "", "Flink": " Flink"}


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
        ready, load = (line_of(largest, f"hybridstore: {what}") for what in ("ready", "load"))
        every = replace(load, value=ready.value + load.value) if ready and load else None
        for what, entry in ((_READY, ready), (_ALL, every)):
            peers = [("a replay", "replay"), ("RocksDB", "rocksdb"), ("SQLite", "sqlite")]
            beside = [_times(line_of(largest, f"{peer}: {what}"), who) for who, peer in peers]
            rows.append((f"restart after a crash, {records}, {what}", entry, beside))
    stores = _chosen(results, "stores")
    for title, name in (
        ("a put of a window store, logged", "window, sparse: put + changelog"),
        ("a put by column of a key-value store, logged", "key_value: put_columns + changelog"),
    ):
        entry = _line(stores, name)
        bare = [f"{number(entry.ratio)} times a dict and a msgpack Packer"] if entry and entry.ratio else []
        rows.append((title, entry, bare))
    changelog, checkpoint = _chosen(results, "changelog"), _chosen(results, "checkpoint")
    rows.append(("durable commits of 10 puts", _line(changelog, "durable commits of 10 puts"), []))
    late = "longest put beside it, by the clock"
    rows.append(("the longest put beside a checkpoint", _line(checkpoint, late), []))
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
    return [(title, entry.figure(), ", ".join(filter(None, beside))) for title, entry, beside in rows if entry]


def slower(results: Sequence[Result]) -> list[str]:
    """Return where a peer takes less than ours, a sentence for each measurement: all of them, largest restart only."""
    sentences = []
    for result in results:
        if result.suite == "restore" and result is not _largest(results):
            continue
        less = [entry for entry in result.lines if entry.against in _PEERS and entry.ratio and entry.ratio < _NOISE]
        less = [entry for entry in less if not entry.name.endswith("processor time")]
        if less:
            peers = "; ".join(
                f"{entry.name} {entry.figure()} ({number(entry.ratio or 0)}x{_PEERS[entry.against]})" for entry in less
            )
            sentences.append(f"{_title(result)}: {peers}.")
    return sentences


def _title(result: Result) -> str:
    names = ("work", "records", "keys", "rows", "events")
    sizes = [result.settings[name] for name in names if name in result.settings]
    named = [name for name in names if name in result.settings]
    texts = [str(size) if name == "work" else f"{size:,} {name}" for name, size in zip(named, sizes, strict=True)]
    return f"{'restart' if result.suite == 'restore' else result.suite}, {', '.join(texts)}"


def page(head: dict[str, Any], results: Sequence[Result], source: str, pictures: Collection[str], about: str) -> str:
    """Return docs/performance.md; `about` is the machine as text, `pictures` the plots that are beside the page."""
    judged = [entry.met for result in results for entry in result.lines if entry.met is not None]
    text = [
        "# Performance",
        "",
        "The figures that decide, in two minutes; [all tables](performance-tables.md) have the rest: every size, the "
        "spread of the runs, targets that were missed, what was left out. Both pages are written by `make bench`; no "
        f"number is typed by hand. Raw results: `benchmarks/results/{source}`; figures of Spark's and other engines "
        "may be of an earlier run, whose date the tables have.",
        "",
        about,
        "",
        "## Ten figures",
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
            if name == "scale.png" and (sentences := copied(head)):
                text += ["", *sentences]
    text += ["", "## What is slower than what", ""]
    sentences = slower(results)
    if sentences:
        text += [
            "Everything in which another engine took less than ours in the same run. A store that reads from its file "
            "is ready sooner than one that has a tail to replay, and pays at each read; a batch whose rows go to "
            "Python and back without any state is the least that Python on Spark can take.",
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
