"""The command `report`: one HTML file that needs no network and runs no script that a state may contain.

All text is escaped. The page's content security policy also allows only one script, the script of the page, which the
policy names by its hash.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ...markup import Html, join, table, tag
from ...reading.changes import ChangeHistory
from ...reading.places import Place
from ...reading.scan import written
from ...reading.store_view import StoreView
from ...reading.texts import format_key, iso, say, size_text
from ...reading.versions import Commit, reach
from ...reading.view import View
from .. import options as o
from ..look import Look
from ..query import number_of, records_of, wholes
from ..rows import FACT_NAMES, facts_of, row_of, store_rows
from ..show.output import counted, key_cell, size_cell, span_text
from ..show.page_style import SCRIPT, STYLE
from .metrics import rows_of
from .restart import restart_rows
from .stat import growth, stat_row

_BARS: Final = 48
_HOT_KEYS: Final = 15
_FACTS: Final = (
    "path", "store_id", "version", "committed", "digest", "stopped", "checkpoint", "checkpoint_bytes", "tail_versions",
    "tail_records", "tail_bytes", "estimated_restore_ms",
)  # fmt: skip


def bars(values: Sequence[tuple[str, float, str]], label: str, *, width: int = 640, height: int = 120) -> Html:
    """Return a bar chart as SVG. A bar is (name below the bar, value, text shown when the pointer is on the bar).

    Some six names are shown and, as the scale, the text of the highest bar below the chart.
    """
    top = max((value for _, value, _ in values), default=0) or 1
    count = max(len(values), 1)
    step = width / count
    drawn: list[Html] = []
    every = max(1, count // 6)
    for i, (name, value, hint) in enumerate(values):
        tall = round((height - 22) * value / top, 1)
        x, y = round(i * step, 1), round(height - 18 - tall, 1)
        size = {"width": round(max(step - 1, 0.5), 1), "height": max(tall, 0.5)}
        drawn.append(tag("rect", tag("title", hint), x=x, y=y, **size, class_="bar"))
        if i % every == 0:
            drawn.append(tag("text", name, x=x, y=height - 4))
    chart = tag("svg", *drawn, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)
    highest = max(values, key=lambda bar: bar[1], default=("", 0, ""))
    return join([chart, tag("p", f"highest bar: {highest[2]}", class_="scale")])


def over_event_time(store: StoreView) -> list[tuple[str, float, str]]:
    """Return the records per slice of event time, estimated from the directory of blocks, without a read. O(blocks)."""
    span = store.span
    if span is None:
        return []
    low, high = span
    width = max(1, (high - low + 1) // _BARS + 1)
    counts = [0.0] * ((high - low) // width + 1)

    def spread(first: int, last: int, records: float) -> None:
        # The directory has only the first and last time of a block, so the block's records are spread evenly between
        # them.
        first, last = max(first, low), min(last, high)
        for slot in range((first - low) // width, (last - low) // width + 1):
            start = low + slot * width
            inside = min(last, start + width - 1) - max(first, start) + 1
            counts[slot] += records * inside / (last - first + 1)

    for entry in store.entries:
        if entry.high >= low:
            spread(entry.low, entry.high, entry.records)
    for change in store.changed.values():
        for ts in (ts for columns in written(change) if columns.ints for ts in columns.ints[0]):
            if low <= ts <= high:
                spread(ts, ts, 1)
    starts = [low + i * width for i in range(len(counts))]
    return [
        (iso(start)[5:16].replace("T", " "), count, f"from {iso(start)}: about {counted(round(count), 'record')}")
        for start, count in zip(starts, counts, strict=True)
    ]


def over_versions(commits: list[Commit]) -> list[tuple[str, float, str]]:
    """Return the bytes of mutations per version. With many versions, one bar shows several versions."""
    step = -(-len(commits) // _BARS) or 1
    series = []
    for at in range(0, len(commits), step):
        part = commits[at : at + step]
        size = sum(commit.size for commit in part)
        label = str(part[0].version) if len(part) == 1 else f"{part[0].version}-{part[-1].version}"
        series.append(
            (str(part[0].version), float(size), f"version {label}: {size_text(size)}, {iso(part[-1].wall_ms)}")
        )
    return series


def hot_keys(place: Place, limit: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the keys with the most changes in the retained changelog, and the parts that could not be read.
    O(changelog).
    """
    story = ChangeHistory(place)
    counts: Counter[tuple[int, Any]] = Counter()
    for logged in story.versions():
        counts.update((change.store, change.key) for change in logged.changes if change.op in ("put", "delete"))
    rows = [
        {"store": story.name(store), "key": key_cell(key), "changes": count}
        for (store, key), count in counts.most_common(limit)
    ]
    return rows, story.faults


def _sample(view: View, rows: int) -> Iterator[Html]:
    for store in view.stores.values():
        records = [
            {"store": store.name, **row_of(view, store, record, iso=True, label=False)}
            for record in islice(store.records(), rows)
        ]
        if records:
            columns = ("store", "key", "buffered", "ts", "start", "end", "value")
            yield tag("h3", store.name)
            yield tag("div", table(records, columns, class_="searched"), class_="wide")


def _section(title: str, *children: Any) -> Html:
    return tag("section", tag("h2", title), *children)


def _place_sections(view: View, sample: int) -> Iterator[Html]:
    facts = facts_of(view, True, newest=True)
    rows = [(FACT_NAMES.get(name, name.replace("_", " ")), facts.get(name)) for name in _FACTS]
    definitions = join(item for name, value in rows if value for item in (tag("dt", name), tag("dd", value)))
    yield _section("Overview", tag("dl", definitions))
    stores = list(store_rows(view, True))
    columns = ("store", "kind", "keys", "records", "bytes", "stream_time", "parameters")
    dead = [
        {key: row[key] for key in ("store", "dead", "oldest", "newest")}
        for row in (stat_row(store, True) for store in view.stores.values())
    ]
    yield _section(
        "Stores", tag("div", table(stores, columns), class_="wide"), table(dead, ("store", "dead", "oldest", "newest"))
    )
    charts = [
        join([tag("h3", store.name), bars(slices, f"records of {store.name} over event time")])
        for store in view.stores.values()
        if (slices := over_event_time(store))
    ]
    if charts:
        yield _section("Records over event time", *charts)
    retained = reach(view.place)
    if retained.commits:
        grown = list(growth(view.place, True))
        yield _section(
            "Size over versions",
            bars(over_versions(retained.commits), "bytes of changelog per version"),
            table(grown, ("checkpoint", "committed", "store", "records", "bytes")) if grown else "",
        )
        hot, faults = hot_keys(view.place, _HOT_KEYS)
        for fault in faults:
            if fault not in view.faults:
                view.faults.append(fault)
        yield _section("Keys changed most in the retained changelog", table(hot, ("store", "key", "changes")))
    samples = list(_sample(view, sample))
    steps = list(restart_rows(view))
    yield _section("A restart", table(steps, ("step", "detail", "records", "bytes", "estimate_ms")))
    problems = [tag("li", fault, class_="fault") for fault in view.faults] + [tag("li", note) for note in view.notes]
    yield _section("Faults", tag("ul", *problems) if problems else tag("p", "None was met in what this page shows."))
    if samples:
        search = tag("input", type="search", id="search", placeholder="search these records", aria_label="search")
        # an input has no end tag
        yield _section("A sample of the records", Html(search.removesuffix("</input>")), *samples)


_SHARD_COLUMNS: Final = (
    "operator", "shard", "version", "records", "total_rows", "total_late", "process_ms", "commit_ms", "bytes", "logged",
    "restart_ms", "checkpoint_age_s",
)  # fmt: skip


def _query_sections(rows: list[dict[str, Any]]) -> Iterator[Html]:
    """Yield the first page of a query: first all shards together, then the shards side by side."""
    for whole in wholes(rows):
        restart = (
            f"{span_text(whole.restart_ms)} for all shards one after the other, {span_text(whole.restart_slowest_ms)}"
        )
        slowest = f"shard {whole.slowest}: {whole.slowest_ms:,} ms, and {whole.slowest_commit_ms:,} ms for its commit"
        facts = {
            "shards": whole.shards,
            "version": whole.version,
            "newest batch": whole.batch,
            "rows so far": whole.rows,
            "late so far": whole.late,
            "records held": whole.records,
            "skew": f"{whole.skew}: what the hottest shard has over the mean",
            "hottest shard": whole.hottest,
            "slowest last batch": slowest,
            "size": None if whole.bytes is None else size_text(whole.bytes),
            "changelog so far": size_text(whole.logged_bytes),
            "restart": f"{restart} for the slowest",
        }
        terms = join(
            item for name, fact in facts.items() if fact is not None for item in (tag("dt", name), tag("dd", fact))
        )
        yield _section(f"Query, operator {whole.operator}" if whole.operator else "Query", tag("dl", terms))
    shards = [
        {
            **row,
            "records": records_of(row),
            "bytes": None if row.get("bytes") is None else size_cell(int(number_of(row, "bytes"))),
            "logged": size_cell(int(number_of(row, "total_segment_bytes"))),
            "restart_ms": row.get("restore_estimate_ms"),
            "checkpoint_age_s": round(number_of(row, "checkpoint_age_ms") / 1000),
        }
        for row in rows
    ]
    counted_rows = [(str(row["shard"]), number_of(row, "total_rows") or records_of(row)) for row in rows]
    drawn = [(name, value, f"shard {name}: {value:,.0f}") for name, value in counted_rows]
    yield _section(
        "Shards", bars(drawn, "rows of each shard"), tag("div", table(shards, _SHARD_COLUMNS), class_="wide")
    )


def build_report(views: Iterator[View], title: str, sample: int, rows: list[dict[str, Any]]) -> str:
    """Return the page. `rows` are the numbers of the shards, if several. One view is in memory at a time."""
    parts: list[Html] = []
    if rows:
        parts.append(tag("article", *_query_sections(rows)))
    for view in views:
        heading = [tag("h1", f"Shard {view.place.label}")] if view.place.label else []
        parts.append(tag("article", *heading, *_place_sections(view, sample)))
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    try:
        release = version("hybridstore")
    except PackageNotFoundError:
        release = ""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"{tag('title', title)}<style>{STYLE}</style></head>"
    )
    header = tag(
        "header", tag("h1", title), tag("p", f"hybridstore {release}, read-only, times in UTC".replace(" ,", ","))
    )
    return f"{head}<body>{header}{tag('main', *parts)}<script>{SCRIPT}</script></body></html>\n"


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    page = "The HTML file to write."
    parser.add_argument("-o", "--to", metavar="FILE", type=Path, required=True, help=page)
    sample = "Records to show of each store (default: 200)."
    parser.add_argument("--sample", metavar="N", type=o.at_least(0), default=200, help=sample)
    parser.add_argument("--force", action="store_true", help="Replace the file if it exists.")
    o.looking(parser, at=True, output=False, progress=True)


def run(look: Look, given: Namespace) -> int:
    """Write one self-contained HTML page about a state: stores, sizes, hot keys, restart, faults, and a searchable
    sample.

    The page of a query begins with all shards together: skew, the hottest and the slowest shard, growth, a restart of
    the whole query. The page needs no network, and keys and values are always shown as text.
    """
    to = given.to
    if to.exists() and not given.force:
        raise o.UsageError(f"{to}: exists already (--force replaces it)")

    with look.progress("reading", len(look.places)) as progress:

        def views() -> Iterator[View]:
            for view in look.views():
                yield view
                progress.advance()

        rows = list(rows_of(look)) if look.several else []
        page = build_report(views(), f"State of {format_key(look.location)}", given.sample, rows)
    to.write_text(page, encoding="utf-8")
    say(f"{to}: {size_text(to.stat().st_size)}")
    return look.finish()
