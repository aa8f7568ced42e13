"""Report: docs/performance.md and docs/scale.md, written from raw results. Sentences are here; every number comes from a result."""

# ruff: noqa: E501  # sentences of a page, one to a line

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import scale_model
from hybridstore.benchmark import plots
from hybridstore.benchmark.result import Line, Result, number

ENGINES = ("replay", "rocksdb", "lmdb", "sqlite", "pickle")


def read(raw: Path) -> tuple[dict[str, Any], list[Result]]:
    """Return the head (machine, start) and the results of a file that `benchmarks` wrote."""
    first, *rest = raw.read_text(encoding="utf-8").splitlines()
    return json.loads(first), [Result.from_json(json.loads(text)) for text in rest]


def write(docs: Path, raw: Path) -> None:
    """Write both pages and the plot into `docs`."""
    head, results = read(raw)
    docs.mkdir(parents=True, exist_ok=True)
    picture = docs / "restart.png"
    if not plots.missing():
        plots.restart_times(warm(results), picture)
    (docs / "performance.md").write_text(performance(head, results, raw.name, picture.exists()), encoding="utf-8")
    scale = [result for result in results if result.suite == "scale"]
    if scale:
        (docs / "scale.md").write_text(
            scale_model.page(head, scale[0], results, machine(head), raw.name), encoding="utf-8"
        )


def warm(results: Sequence[Result]) -> list[Result]:
    """Return the restarts of small values from a warm cache, by size."""
    found = [
        r for r in results if r.suite == "restore" and r.settings["cache"] == "warm" and r.settings["value_size"] == 16
    ]
    return sorted(found, key=lambda result: int(result.settings["records"]))


def machine(head: dict[str, Any]) -> str:
    """Return the machine as a block of text."""
    found = head["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return "\n".join(
        [
            "```",
            f"measured   {head['started']}Z at commit {found['commit']}{', long run' if head['full'] else ''}",
            f"machine    {found['processor']}, {found['cores']} cores, load average {found['load_average']} at the start, {found['file_system']}",
            f"system     {found['system']}",
            f"python     {found['python']}",
            f"packages   {packages}",
            "```",
        ]
    )


def verdicts(results: Sequence[Result]) -> tuple[list[tuple[Result, Line]], int]:
    """Return the lines that missed their target, and how many have one."""
    judged = [(result, one) for result in results for one in result.lines if one.met is not None]
    return [(result, one) for result, one in judged if not one.met], len(judged)


def where(result: Result) -> str:
    """Return what tells results of one suite apart."""
    settings = result.settings
    return (
        f" of {settings['records']:,} x {settings['value_size']} bytes, {settings['cache']}"
        if result.suite == "restore"
        else ""
    )


def restart_table(results: Sequence[Result]) -> str:
    """Return milliseconds to the first read and write, and to everything in memory: an engine a row, a size a column."""
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
            rows.append(f"| {engine}, {what} | " + " | ".join(cells) + " |")
    head = "| ms, median | " + " | ".join(sizes) + " |\n| --- " + "| ---: " * len(sizes) + "|"
    return "\n".join([head, *rows])


def performance(head: dict[str, Any], results: list[Result], source: str, picture: bool) -> str:
    """Return docs/performance.md."""
    missed, judged = verdicts(results)
    runs = warm(results)
    text = [
        "# Performance",
        "",
        "This page is written by `make bench`; no number in it is typed by hand. Every figure is a median, with the lowest and highest run beside it; "
        "cases that are compared run in turn in one go, and every run checks its answer first. The machine was shared with other work: trust the ratios, "
        f"which are taken within a run, more than the times. Raw results: `benchmarks/results/{source}`.",
        "",
        machine(head),
        "",
        f"{judged - len(missed)} of {judged} targets were reached in this run." + (" Missed:" if missed else ""),
        "",
        *(
            f"* {result.suite}{where(result)}, {one.name}: {one.figure()} {one.ratio_text()} (target {one.target.text(one.unit)})"
            for result, one in missed
            if one.target
        ),
    ]
    if runs:
        text += [
            "",
            "## Restart",
            "",
            "From `hybridstore.open` to the first value read and the first one written, after a crash, with a tail of mutations behind the checkpoint; and to "
            "every record in memory. Imports are left out for every engine; so is the time in which the peers' data was not yet "
            "durable, because their tail is empty: they had everything flushed, which is the best case for them.",
            "",
            restart_table(runs),
        ]
        if picture:
            text += [
                "",
                "![milliseconds from start to the first read and write, against records; both axes logarithmic](restart.png)",
            ]
        largest = runs[-1]
        try:
            replay = largest.find("replay: to the first read and write")
            text += [
                "",
                f"At {largest.settings['records']:,} records a full replay takes {number(replay.ratio or 0)}x as long as our restart.",
            ]
        except KeyError:
            pass
        text += [
            "",
            f"By phase, {largest.settings['records']:,} records, tail of {largest.settings['tail']:,}:",
            "",
            largest.markdown(lambda one: one.name.startswith("hybridstore")),
            "",
            "What is surprising here:",
            "",
            "* SQLite and LMDB open faster than we do. They replay nothing: nearly all of our time is the tail, at about half a microsecond a mutation, which is "
            "what buys a commit without writing pages. After a clean checkpoint (tail 0) only the attach remains.",
            "* A pickle that is loaded whole can beat us to *everything in memory*: it makes the same objects without checksums, and its first read costs as much.",
            "* The tail's share falls as state grows, and the attach grows with the number of blocks (about 4,096 records each), not with records read.",
            "* With large values the tail costs by the byte: its digest (blake2b) and checksum each read all of it, at about a gigabyte a second. "
            "A checkpoint policy by restart time therefore counts bytes too.",
            "* From a cold cache *everything in memory* is bound by reading blocks one by one without readahead; the first read is not, which is the point.",
        ]
        others = [r for r in results if r.suite == "restore" and r not in runs]
        for result in others:
            settings = result.settings
            text += [
                "",
                f"### {settings['records']:,} records of {settings['value_size']} bytes, {settings['cache']} cache",
                "",
                result.markdown(),
                *[f"\n* {note}" for note in result.notes],
            ]
    titles = {
        "stores": (
            "Stores",
            "Bare is a dict put and a reused msgpack Packer on the same records in the same run: it keeps no order, no times, no log. Ours includes the changelog "
            "and a commit for each 10,000 records. Python's collector is on; what the benchmark itself holds is frozen, so that it is not walked.",
        ),
        "changelog": (
            "Changelog",
            "Writing, making durable and reading mutations, against the bare steps. The digest chain is blake2b over the packed bytes.",
        ),
        "checkpoint": ("Checkpoints", "A window store in order of time, 5 % late, durable to disk."),
        "sliding": (
            "Sliding windows",
            "Adds per record are counted exactly; times are ratios to a bare dict and deque. `python -m benchmarks.bench_sliding` prints it as a table.",
        ),
        "changelog bytes": (
            "Changelog bytes",
            "Bytes that each way of keeping windows logs for an input record: counted, not timed.",
        ),
    }
    for suite, (title, about) in titles.items():
        for result in results:
            if result.suite == suite:
                settings = ", ".join(
                    f"{key} {value:,}" if type(value) is int else f"{key} {value}"
                    for key, value in result.settings.items()
                )
                text += ["", f"## {title}", "", f"{about} Settings: {settings}.", "", result.markdown()]
                text += [f"\n* {one.name}: {one.note}" for one in result.lines if one.note]
    text += [
        "",
        "## Where Python is the wall",
        "",
        wall(results),
        "",
        "## What is left out",
        "",
        "* Spark's engines are not in this run: `make bench FULL=1` or `hybridstore bench spark` runs them; they need Java and minutes.",
        "* 5 M records and windows above 1,000 records of the sliding suite: `make bench FULL=1`.",
        "* Real power loss, other file systems and network disks: not available here.",
        "* Faust, Quix and Bytewax keep their state in RocksDB, SQLite or pickles: the engines above stand for them without their frameworks' overhead.",
        *sorted({f"* {note}" for result in results for note in result.notes}),
        "",
        "See also [scale.md](scale.md): cost per record as state grows, and a calculation to a thousand shards.",
        "",
    ]
    return "\n".join(text)


def wall(results: Sequence[Result]) -> str:
    """Return the sentences about what the interpreter itself costs."""
    for result in results:
        if result.suite != "stores":
            continue
        bare = result.find("window, sparse: bare dict put + Packer")
        put = result.find("window, sparse: put + changelog")
        columns = result.find("window, sparse: put_columns + changelog")
        return (
            f"A single put of a window store costs {put.figure()} where the bare loop costs {bare.figure()}. What is between them is no algorithm: it is two "
            "Python calls (the edge that decides and logs, and the apply that restore shares), a division to find the bucket, two dict look-ups and the growth of a run. "
            f"By column, where the interpreter is entered once for a thousand rows, the same work costs {columns.figure()}. A native core would take the calls and the boxed "
            "integers away, not the hashing, packing and copying, which are C already: the column figure is an upper bound of what single puts would then cost."
        )
    return "The stores were not measured in this run."
