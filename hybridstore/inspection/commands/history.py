"""The command `history`: every retained change of one key, with the value before and after."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from changelog.changes import DELETED

from ...reading.events import UNKNOWN, Event, history_of
from ...reading.texts import say
from .. import options as o
from ..look import Look
from ..show.output import time_cell, value_cell
from .get import in_any_form


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    o.store(parser)
    o.key(parser)
    o.committed(parser)
    o.limit(parser)
    o.looking(parser, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show every retained change of one key: version, time, old and new value. Exit code 1 when no change is retained.

    A value that is older than the changelog is shown as `found` in the oldest checkpoint.
    """
    first, last = o.maybe_time(given.since), o.maybe_time(given.until)
    faults: list[str] = []
    count = 0

    def events(key: Any) -> Iterator[dict[str, Any]]:
        nonlocal count
        for place in [view.place for view, _ in look.stores(given.store, key)]:
            for event in history_of(place, given.store, key, faults):
                if (first is not None and event.wall_ms < first) or (last is not None and event.wall_ms > last):
                    continue
                if given.limit is not None and count >= given.limit:
                    return
                count += 1
                yield look.label(place) | event_row(event, look.iso)

    rows = in_any_form(o.typed_key(given.key), events)
    look.out.rows(rows, ("shard", "version", "committed", "op", "ts", "start", "end", "old", "new"))
    if not count:
        say(f"{given.store}: no retained change of key {given.key}")
    return look.finish(o.FINE if count else o.NEGATIVE, faults)


def event_row(event: Event, iso: bool) -> dict[str, Any]:
    """Return an event as a row of output. `old` or `new` is left out if the value does not exist."""
    row: dict[str, Any] = {"version": event.version, "committed": time_cell(event.wall_ms, iso), "op": event.op}
    if len(event.times) == 1:
        row["ts"] = time_cell(event.times[0], iso)
    elif event.times:
        row["start"], row["end"] = (time_cell(ts, iso) for ts in reversed(event.times))
    for name, value in (("old", event.old), ("new", event.new)):
        if value is not DELETED:
            row[name] = value if value is UNKNOWN else value_cell(value)
    return row
