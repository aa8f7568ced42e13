"""The command `log`: the changelog as it was written, and as it is being written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

from .. import options as o
from ..parameters import Option
from ..session import Inspection
from ..show.output import Out, key_cell, say, size_cell, time_cell, value_cell
from ..view.changes import Change, Logged, Story
from ..view.places import Place
from ..view.reader import signature

_POLL_SECONDS = 0.25
_COLUMNS = ("shard", "version", "committed", "op", "store", "key", "ts", "start", "end", "value")
_COMMIT_COLUMNS = ("shard", "version", "committed", "changes", "bytes", "segment", "digest")


def change_row(story: Story, version: int, change: Change, iso: bool) -> dict[str, Any]:
    """Return a change as a row of output."""
    row: dict[str, Any] = {"version": version, "op": change.op, "store": story.name(change.store)}
    if change.op in ("put", "delete", "set", "define"):
        row["key"] = key_cell(change.key)
    if len(change.times) == 1:
        row["ts"] = time_cell(change.times[0], iso)
    elif change.times:
        row["start"], row["end"] = (time_cell(ts, iso) for ts in reversed(change.times))
    if change.op in ("put", "set", "define", "evict"):
        row["value"] = value_cell(change.value)
    return row


def log(
    path: o.Where,
    store: Annotated[str | None, Option("--store", help="Only this store.", show_default=False)] = None,
    op: Annotated[
        str | None,
        Option("--op", help="Only put, delete, time, evict, set or define.", show_default=False),
    ] = None,
    from_version: Annotated[int, Option("--from-version", help="First version.", show_default=False)] = 1,
    to_version: Annotated[
        int | None, Option("--to-version", help="Last version, inclusive.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help="Committed at or after.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, Option("--until", metavar="TIME", help="Committed at or before.", show_default=False)
    ] = None,
    commits: Annotated[bool, Option("--commits", help="One row per version instead of per change.")] = False,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on as versions are committed.")] = False,
    limit: o.Limit = None,
    shard: o.Shard = None,
    output: o.Output = None,
    iso: o.Iso = False,
    debug: o.Debug = False,
) -> int:
    """Show what the changelog holds: every change of every version, in order."""
    inspection = Inspection(path, shard=shard)
    out = Out(output)
    first = None if since is None else o.parse_time(since)
    last = None if until is None else o.parse_time(until)
    faults: list[str] = []

    def wanted(logged: Logged) -> bool:
        wall = logged.commit.wall_ms
        return (first is None or wall >= first) and (last is None or wall <= last)

    def rows() -> Iterator[dict[str, Any]]:
        reached = dict.fromkeys(inspection.places, from_version - 1)
        marks: dict[Any, Any] = {}
        seen: set[Place] = set()
        while True:
            for place in inspection.places:
                mark = signature(place)
                if marks.get(place) == mark:
                    continue
                marks[place] = mark
                story = Story(place)
                label = {"shard": place.label} if inspection.several else {}
                for logged in story.versions(reached[place], to_version):
                    if place in seen and not place.label and logged.commit.version > reached[place] + 1:
                        missed = f"versions {reached[place] + 1} to {logged.commit.version - 1}"
                        say(f"warning: {place.path}: {missed} were pruned before they were read")
                    seen.add(place)
                    reached[place] = logged.commit.version
                    if wanted(logged):
                        for row in _rows(story, logged, store, op, commits, iso):
                            yield {**label, **row}
                faults.extend(fault for fault in story.faults if fault not in faults)
            if not follow:
                return
            out.stream.flush()
            time.sleep(_POLL_SECONDS)

    every = rows()
    if follow and out.form in ("table", "json"):
        out.form = "raw" if out.form == "table" else "jsonl"
    columns = _COMMIT_COLUMNS if commits else _COLUMNS
    out.rows(every if limit is None else (row for row, _ in zip(every, range(limit), strict=False)), columns)
    return inspection.finish(o.FINE, faults)


def _rows(
    story: Story, logged: Logged, store: str | None, op: str | None, commits: bool, iso: bool
) -> Iterator[dict[str, Any]]:
    commit = logged.commit
    if commits:
        yield {
            "version": commit.version,
            "committed": time_cell(commit.wall_ms, iso),
            "changes": len(logged.changes),
            "bytes": size_cell(logged.size),
            "segment": int(logged.segment[:20]) if logged.segment[:20].isdecimal() else None,
            "digest": commit.digest.hex(),
        }
        return
    for change in logged.changes:
        if (store is None or story.name(change.store) == store) and (op is None or change.op == op):
            yield change_row(story, commit.version, change, iso)
