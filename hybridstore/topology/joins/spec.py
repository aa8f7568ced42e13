"""Spec: a join as frozen data: its two inputs, which rows meet, and the columns of its results.

left  (stream)           ─┐
                          ├─ how, within, grace ─▶ key columns, columns of left, columns of right, result_time
right (stream or table)  ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

How = Literal["inner", "left", "right", "full", "semi", "anti"]
HOWS: Final = get_args(How)
LEFT: Final = 0
RIGHT: Final = 1
# The column of results that has the later of the two times.
RESULT_TIME: Final = "result_time"


@dataclass(frozen=True, slots=True)
class Input:
    """A named input of a join.

    name        by which rows are given, and the name of the input's store
    key         the columns by which rows meet
    timestamp   the column with the time of a row
    steps       functions on the rows of this input (`plan.Step`), before anything else
    columns     the columns that are kept, besides key and timestamp; None: all columns of a row
    table       whether the input is a table: of each key the newest row counts
    history_ms  how far back the versions of a table can be read; None: only the newest row is kept
    delete      the column whose true value deletes the key of a table; None: no row deletes
    """

    name: str
    key: tuple[str, ...]
    timestamp: str
    steps: tuple[Any, ...] = ()
    columns: tuple[str, ...] | None = None
    table: bool = False
    history_ms: int | None = None
    delete: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return a stable, plain description."""
        return {
            "name": self.name,
            "key": list(self.key),
            "timestamp": self.timestamp,
            "steps": [[step.kind, step.name] for step in self.steps],
            "columns": None if self.columns is None else list(self.columns),
            **({"table": self.history_ms, "delete": self.delete} if self.table else {}),
        }


@dataclass(frozen=True, slots=True)
class Join:
    """Which rows of two inputs meet, and what comes out.

    before_ms, after_ms  left meets right when left - before <= right <= left + after (ms); None for a table
    how                  the rows without a partner that come out, or (semi, anti) which rows of the left side
    grace_ms             how long after the newest time rows may arrive (ms); None for a table that is asked at once
    as_of                a table is asked for the version that is valid at the time of the row, not for the newest
    on                   the column of the left row that names the key of a broadcast table; None: the key
    select               column of results -> (side, column); None: the key, and all other columns of both sides
    prefixes             put before the columns of the left and the right side, but for the key
    late                 the column of results with late rows; None: late rows are counted only
    behind               functions on the results (`plan.Step`); the state does not depend on them
    without              the name of the input that is not given yet; None: both are given
    """

    left_side: Input
    right_side: Input
    how: How = "inner"
    before_ms: int | None = None
    after_ms: int | None = None
    grace_ms: int | None = None
    as_of: bool = False
    on: str | None = None
    select: tuple[tuple[str, int, str], ...] | None = None
    prefixes: tuple[str, str] = ("", "")
    late: str | None = None
    behind: tuple[Any, ...] = ()
    without: str | None = None

    @property
    def inputs(self) -> tuple[Input, Input]:
        """Left and right."""
        return self.left_side, self.right_side

    @property
    def interval(self) -> bool:
        """Whether two streams are joined by their times."""
        return not self.right_side.table

    def kept_whole(self, side: int) -> bool:
        """Whether rows of a side that have no partner come out."""
        return self.how == "full" or self.how == ("left", "right")[side]

    def alone(self, side: int) -> bool:
        """Whether a row of a side whose key is null comes out."""
        return (side == LEFT and (self.on is not None or self.how == "anti")) or self.kept_whole(side)

    @property
    def one_sided(self) -> bool:
        """Whether results have columns of the left side only."""
        return self.how in ("semi", "anti")

    def retention_ms(self, side: int) -> int:
        """Return how long a row of a side of an interval join is kept, in ms of time that passes behind it.

        A row is kept while a partner may still arrive. Where rows of the other side must know later whether they had a
        partner, the row is kept until the last of them has come out: whether a row had a partner is never stored.
        """
        assert self.before_ms is not None
        assert self.after_ms is not None
        assert self.grace_ms is not None
        if self.kept_whole(1 - side) or (side == RIGHT and self.one_sided):
            return self.before_ms + self.after_ms + self.grace_ms + 1
        return (self.after_ms if side == LEFT else self.before_ms) + self.grace_ms + 1

    def due_ms(self, side: int) -> int:
        """Return after how long (ms) no partner of a row can arrive any more: the row is due when T > ts + this."""
        assert self.before_ms is not None
        assert self.after_ms is not None
        assert self.grace_ms is not None
        return (self.after_ms if side == LEFT else self.before_ms) + self.grace_ms

    def __str__(self) -> str:
        lines = [
            f"{'table' if source.table else 'stream':<11} {source.name}; key {', '.join(source.key)}; time "
            f"{source.timestamp}"
            for source in self.inputs
        ]
        meets = (
            f"within {self.before_ms} ms before to {self.after_ms} ms after"
            if self.interval
            else "row of its time"
            if self.as_of
            else "newest row"
            if self.on is None
            else f"newest row of {self.on}, the table in every shard"
        )
        grace = "" if not self.grace_ms else f"; grace {self.grace_ms} ms"
        behind = [f"   {step.kind:<11} {step.name}" for step in self.behind]
        return "\n".join([*lines, f"└─ join        {self.how}; {meets}{grace}", *behind])

    def describe(self) -> dict[str, Any]:
        """Return a stable, plain description, with which the stored one is compared."""
        return {
            "inputs": [side.describe() for side in self.inputs],
            "how": self.how,
            "within": None if self.before_ms is None else [self.before_ms, self.after_ms],
            "grace_ms": self.grace_ms,
            "as_of": self.as_of,
            "on": self.on,
            **({} if self.without is None else {"without": self.without}),
        }


def by_name(join: Join, name: object) -> int:
    """Return the side of a named input. Raises ValueError for another name."""
    for side, source in enumerate(join.inputs):
        if source.name == name:
            return side
    raise ValueError(
        f"input {name!r}: found no such input, expected {join.left_side.name!r} or {join.right_side.name!r}"
    )


def checked_inputs(join: Join, inputs: object) -> Mapping[str, Any]:
    """Return inputs by name. Raises TypeError unless they are a mapping, ValueError unless both are there."""
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"rows: found {type(inputs).__name__}, expected a dict of the inputs of the join: "
            f"{{{join.left_side.name!r}: rows, {join.right_side.name!r}: rows}}"
        )
    for name in inputs:
        by_name(join, name)
    return inputs


def given_inputs(join: Join, inputs: object) -> Join:
    """Return the join with these inputs: the other one is not given yet. Raises as `checked_inputs`, and ValueError
    for none.
    """
    given = checked_inputs(join, inputs)
    absent = [source.name for source in join.inputs if source.name not in given]
    if len(absent) > 1:
        raise ValueError(f"rows: found no input, expected {absent[0]!r}, {absent[1]!r} or both")
    return replace(join, without=absent[0] if absent else None)
