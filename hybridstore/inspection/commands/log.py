"""The command `log`: the changelog in the order of writing; with `--follow` also new versions as they are committed."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any

from changelog.changes import Change

from ...reading.changes import ChangedVersion, ChangeHistory
from ...reading.places import Place
from ...reading.texts import say
from ...reading.view import signature
from .. import options as o
from ..look import Look
from ..show.output import key_cell, size_cell, time_cell, value_cell

_POLL_SECONDS = 0.25
_OPS = ("put", "delete", "time", "evict", "set", "define")
_COLUMNS = ("shard", "version", "committed", "op", "store", "key", "ts", "start", "end", "value")
_COMMIT_COLUMNS = ("shard", "version", "committed", "changes", "bytes", "segment", "digest")


def change_row(story: ChangeHistory, version: int, change: Change, iso: bool) -> dict[str, Any]:
    """Return a change as a row of output."""
    row: dict[str, Any] = {"version": version, "op": change.op, "store": story.name(change.store)}
    if change.op in ("put", "delete", "set", "define"):
        row["key"] = key_cell(change.key)
    if len(change.times) == 1:
        row["ts"] = time_cell(change.times[0], iso)
    elif change.times:
        row["start"], row["end"] = (time_cell(ts, iso) for ts in reversed(change.times))
    if change.op in ("put", "set", "define"):
        row["value"] = value_cell(change.value)
    return row


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    parser.add_argument("--store", help="Only this store.")
    parser.add_argument("--op", metavar="OP", choices=_OPS, help=f"Only one of {', '.join(_OPS)}.")
    parser.add_argument("--from-version", metavar="N", type=o.at_least(0), default=1, help="First version.")
    parser.add_argument("--to-version", metavar="N", type=o.at_least(0), help="Last version, inclusive.")
    o.committed(parser)
    parser.add_argument("--commits", action="store_true", help="One row per version instead of per change.")
    parser.add_argument("-f", "--follow", action="store_true", help="Also show new versions as they are committed.")
    o.limit(parser)
    o.looking(parser, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show the changelog: every change of every version, in order."""
    out = look.out
    first, last = o.maybe_time(given.since), o.maybe_time(given.until)
    faults: list[str] = []
    known: dict[str, None] = {}

    def wanted(logged: ChangedVersion) -> bool:
        wall = logged.commit.wall_ms
        return (first is None or wall >= first) and (last is None or wall <= last)

    def rows() -> Iterator[dict[str, Any]]:
        reached = dict.fromkeys(look.places, given.from_version - 1)
        marks: dict[Any, Any] = {}
        seen: set[Place] = set()
        while True:
            for place in look.places:
                mark = signature(place)
                if marks.get(place) == mark:
                    continue
                marks[place] = mark
                story = ChangeHistory(place)
                label = look.label(place)
                for logged in story.versions(reached[place], given.to_version):
                    if place in seen and not place.label and logged.commit.version > reached[place] + 1:
                        missed = f"versions {reached[place] + 1} to {logged.commit.version - 1}"
                        say(f"warning: {place.where}: {missed} were pruned before they were read")
                    seen.add(place)
                    reached[place] = logged.commit.version
                    if wanted(logged):
                        for row in _rows(story, logged, given, look.iso):
                            yield {**label, **row}
                known.update(dict.fromkeys(filter(None, story.names.values())))
                faults.extend(fault for fault in story.faults if fault not in faults)
            if not given.follow:
                return
            out.stream.flush()
            time.sleep(_POLL_SECONDS)

    every = rows()
    if given.follow and out.form in ("table", "json"):
        out.form = "raw" if out.form == "table" else "jsonl"
    columns = _COMMIT_COLUMNS if given.commits else _COLUMNS
    shown = out.rows(every if given.limit is None else islice(every, given.limit), columns)
    if not shown and given.store not in (None, *known):
        raise o.UsageError(f"{look.location}: no store {given.store!r} (known: {', '.join(known) or 'none'})")
    return look.finish(o.FINE, faults)


def _rows(story: ChangeHistory, logged: ChangedVersion, given: Namespace, iso: bool) -> Iterator[dict[str, Any]]:
    commit = logged.commit
    if given.commits:
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
        if given.store in (None, story.name(change.store)) and given.op in (None, change.op):
            yield change_row(story, commit.version, change, iso)
