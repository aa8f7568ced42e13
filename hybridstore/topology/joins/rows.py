"""Rows: the rows of both inputs of a commit as the records of the join.

    (side, row), ... ─▶ steps of its input ─▶ Records: key, (side, row), time

A row without a key has the key None: it has no partner, but moves time, and comes out alone on a side that is kept
whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress, repeat
from operator import itemgetter, not_
from typing import Any, NamedTuple

from ...clock import time_ms
from ..batch import KeyKinds, LeftOut, Records, from_rows, is_arrow
from ..plan import Plan
from ..row_columns import rows_of_arrow
from ..times import to_time_of
from .spec import Input, Join, by_name, checked_inputs


class Sides(NamedTuple):
    """The rows of both inputs of a commit as Arrow tables; None: no rows of that input."""

    of_left: Any
    of_right: Any

    @property
    def num_rows(self) -> int:
        """The number of rows of both inputs."""
        return sum(0 if table is None else table.num_rows for table in self)

    def tagged(self) -> list[tuple[int, Any]]:
        """Return the rows, each with its side. O(rows)."""
        return [(side, row) for side, table in enumerate(self) if table is not None for row in rows_of_arrow(table)]


def input_plan(plan: Plan, source: Input) -> Plan:
    """Return the plan of an input by itself, by which its rows become records."""
    return Plan(source.key, source.timestamp, steps=source.steps, null_keys=plan.null_keys, stepped=plan.stepped)


def tagged(join: Join, inputs: object) -> list[tuple[int, Any]]:
    """Return rows given by the name of their input, each with its side. Raises TypeError or ValueError. O(rows)."""
    rows: list[tuple[int, Any]] = []
    for name, given in checked_inputs(join, inputs).items():
        side = by_name(join, name)
        listed = rows_of_arrow(given) if is_arrow(given) else [given] if isinstance(given, Mapping) else given
        rows += [(side, row) for row in listed]
    return rows


def from_tagged(plan: Plan, rows: Iterable[tuple[int, Any]], kinds: KeyKinds | None = None) -> Records:
    """Convert rows, each with its side, to records; see `batch.from_rows`. O(rows)."""
    assert plan.joined is not None
    pairs = rows if isinstance(rows, list) else list(rows)
    sides, of_both = list(map(itemgetter(0), pairs)), list(map(itemgetter(1), pairs))
    given = list(compress(of_both, map(not_, sides))), list(compress(of_both, sides))
    kinds = kinds or KeyKinds(plan)
    keys: list[Any] = []
    values: list[Any] = []
    times: list[int] = []
    to_time, left_out = None, LeftOut()
    for side, source in enumerate(plan.joined.inputs):
        if not given[side]:
            continue
        # a row without a key on a side that is not kept whole is left out, and moves no time
        unkeyed: list[tuple[Any, Any]] | None = [] if plan.joined.alone(side) else None
        try:
            # the key of a broadcast table is another one than that of the stream
            of_key = kinds if plan.joined.on is None else None
            records = from_rows(input_plan(plan, source), given[side], kinds=of_key, unkeyed=unkeyed, copied=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"input {source.name!r}: {error}") from error
        keys += records.keys
        values += zip(repeat(side), records.values)
        times += records.times
        left_out = left_out.and_also(records.left_out)
        if records.times and to_time is None:
            to_time = records.to_time
        for row, moment in unkeyed or ():
            keys.append(None)
            values.append((side, row))
            times.append(time_ms(moment, source.timestamp))
            to_time = to_time or to_time_of(moment)
            left_out = left_out._replace(null_key=left_out.null_key - 1)
    records = Records(keys, values, times, left_out=left_out)
    return records if to_time is None else records._replace(to_time=to_time)
