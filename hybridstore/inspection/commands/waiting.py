"""The command `waiting`: the rows of a join that wait for rows of its other input."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ...reading.selection import Selection
from ...reading.texts import say
from ...reading.view import View
from ...topology.joins.former import former_times
from .. import options as o
from ..look import Look, selection
from ..show.output import key_cell
from .get import typed

_COLUMNS = ("input", "key", "since", "waits_for", "from", "to", "until", "partners")


class Wait(NamedTuple):
    """The rows of an input of a join that wait: the other input, how far before and behind a row its partners are, and
    how long after the row the join's time lets one arrive (ms).

    before_ms is None where the newest row before it is the partner.
    """

    name: str
    other: str
    before_ms: int | None
    after_ms: int
    due_ms: int


def arguments(parser: ArgumentParser) -> None:
    o.path(parser)
    parser.add_argument("--input", metavar="NAME", help="Only rows of this input.")
    parser.add_argument("--alone", action="store_true", help="Only rows that had no partner so far.")
    o.keys(parser)
    o.looking(parser, at=True, iso=True)


def run(look: Look, given: Namespace) -> int:
    """Show the rows of a join that wait: since which time, for rows of which input with times from when to when, until
    the time of the join has passed which time, and how many partners each has so far. The number is null where a
    partner may have expired, and such a row is not `--alone`.

    A row of a join of two streams waits as long as a partner may arrive. In a left, right, full or anti join a row
    without a partner comes out behind `until`. A row of an as-of join with a grace waits for the versions of its time.
    Exit code 1 for a state without a join.
    """
    joins = 0

    def every() -> Iterator[dict[str, Any]]:
        nonlocal joins
        for view in look.views():
            join = (view.settings.get("topology") or {}).get("join")
            if join is None:
                continue
            joins += 1
            for wait in waits_of(join):
                if given.input in (None, wait.name):
                    yield from _rows(look, view, wait, selection(given), alone=given.alone)

    rows = islice(every(), given.limit)
    if given.count_only:
        look.out.rows([{"rows": sum(1 for _ in rows)}], ["rows"])
    else:
        look.out.rows(rows, ["key"] if look.out.form == "raw" else ("shard", *_COLUMNS))
    if not joins:
        say(f"{look.location}: found no join in the state")
    return look.finish(o.FINE if joins else o.NEGATIVE)


def waits_of(join: Mapping[str, Any]) -> list[Wait]:
    """Return which inputs of a join have rows that wait, from the description that its state keeps."""
    first, second = (source["name"] for source in join["inputs"])
    grace = join["grace_ms"] or 0
    if join["within"] is not None:
        before, after = join["within"]
        return [Wait(first, second, before, after, after + grace), Wait(second, first, after, before, before + grace)]
    return [Wait(first, second, None, 0, grace)] if join["as_of"] and join["grace_ms"] is not None else []


def _rows(look: Look, view: View, wait: Wait, chosen: Selection, *, alone: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of an input that wait. O(rows), and a look into the other store for each."""
    store, other = view.stores.get(wait.name), view.stores.get(wait.other)
    if store is None:
        return
    now = store.stream_time
    # a row up to here has come out, or can have no further partner
    chosen = chosen._replace(time_from=max(0, now - wait.due_ms))
    former = former_times(view.settings)
    for record in typed(store, chosen, store.records(chosen)):
        (ts,) = record.times
        if former and ts < former.of(record.key) - wait.due_ms:
            continue
        low = partners = None
        if wait.before_ms is not None:
            low = max(0, ts - wait.before_ms)
            if other is None:
                partners = 0
            # else a partner may have expired: only where such rows come out alone is it kept so long
            elif low > other.expired_through:
                near = Selection(record.key, record.key, time_from=low, time_to=ts + wait.after_ms)
                partners = sum(1 for _ in other.records(near))
            if alone and partners != 0:
                continue
        yield {
            **look.label(view.place),
            "input": wait.name,
            "key": key_cell(record.key),
            "since": look.time(ts),
            "waits_for": wait.other,
            "from": look.time(low),
            "to": look.time(ts + wait.after_ms),
            "until": look.time(ts + wait.due_ms),
            "partners": partners,
        }
