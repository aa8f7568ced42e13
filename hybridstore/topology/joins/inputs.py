"""Inputs: the rows of both inputs of a join as the source of one run: merged by time, each input with its own position.

    orders   ─▶ Source ─┐
                        ├─ the input whose newest time is smaller is next ─▶ (side, row), ...
    payments ─▶ Source ─┘

The order in which inputs are merged decides only which rows come into a commit together. The surprise: a list is taken
in stretches, a generator row by row, because a generator may wait for a row that comes much later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ...clock import time_ms
from ..batch import arrow_rows, as_row, is_arrow, named_rows
from ..source import Source
from .spec import Input, Join, checked_inputs

Position = str | Callable[[Any], Any] | None
# So many rows of a list are taken at a time.
_STRETCH: Final = 1000


class Inputs:
    """The rows of a run of a join; the interface of `Source`. Positions are dicts by the names of the inputs."""

    def __init__(
        self,
        join: Join,
        inputs: Any,
        position: Position | Mapping[str, Position],
        start: Mapping[str, Any] | None,
        last_row: Mapping[str, str | None] | None,
        columns: Mapping[str, Sequence[str]] | Sequence[str] | None,
        where: object,
    ) -> None:
        given = checked_inputs(join, inputs)
        self._heads: list[_Head] = []
        for side, source in enumerate(join.inputs):
            name = source.name
            of_input = position.get(name) if isinstance(position, Mapping) else position
            named = columns.get(name) if isinstance(columns, Mapping) else columns
            rows = named_rows(given.get(name, ()), named)
            reader = Source(
                rows,
                of_input,
                (start or {}).get(name),
                (last_row or {}).get(name),
                (*source.key, source.timestamp),
                f"{where}: input {name!r}",
            )
            stretch = _STRETCH if isinstance(rows, (list, tuple)) or is_arrow(rows) else 1
            self._heads.append(_Head(source, side, reader, of_input, stretch))
        self.row_seconds = 0.0
        """How long it takes to process a row, as far as is known."""

    @property
    def at(self) -> dict[str, Any]:
        """The position behind the rows that were taken, of each input."""
        return {head.source.name: head.at for head in self._heads}

    @property
    def last_row(self) -> dict[str, str | None]:
        """Key and time of the last row that was taken, of each input."""
        return {head.source.name: head.last_row for head in self._heads}

    def take(self, limit: int, seconds: float | None, until: Mapping[str, Any] | None) -> Any:
        """Return the rows of the next commit as (side, row), at most `limit`, or up to position `until`; None at the
        end.
        """
        if until is not None:
            rows = [(head.side, row) for head in self._heads for row in head.up_to(until[head.source.name])]
            return rows or None
        taken: list[tuple[int, Any]] = []
        begun = time.monotonic()
        first, second = self._heads
        while len(taken) < limit:
            more, other = first.ready(), second.ready()
            if not (more or other):
                break
            head = first if more and (not other or first.newest <= second.newest) else second
            taken.append((head.side, head.take()))
            if seconds is not None and time.monotonic() - begun + len(taken) * self.row_seconds >= seconds:
                break
        return taken or None


class _Head:
    """The next rows of one input."""

    def __init__(self, source: Input, side: int, reader: Source, position: Position, stretch: int) -> None:
        self.source = source
        self.side = side
        self.at = reader.at
        self._last_row = reader.last_row
        self._last: Any = None
        self.newest = -1
        """The newest time (ms) of all rows so far, the next row included."""
        self._reader = reader
        self._position = (lambda row: row[position]) if isinstance(position, str) else position
        self._stretch = stretch
        self._rows: list[Any] = []
        self._next = 0
        self._looked = False

    def ready(self) -> bool:
        """Whether a row is next; then `newest` counts it. Waits for a row of the input."""
        if self._looked:
            return True
        if self._next == len(self._rows):
            rows = self._reader.take(self._stretch, None, None)
            if rows is None:
                return False
            self._rows = arrow_rows(rows) if is_arrow(rows) else rows
            self._next = 0
        self._looked = True
        self.newest = max(self.newest, self._time(self._rows[self._next]))
        return True

    def _time(self, row: Any) -> int:
        """Return the time of a row; -1 if only a step gives it one, or it has none."""
        try:
            moment = as_row(row)[self.source.timestamp]
            return moment if type(moment) is int else time_ms(moment, self.source.timestamp)
        except (KeyError, TypeError, ValueError):
            return -1  # the row is refused, or left out, when the commit takes it

    def take(self) -> Any:
        """Return the next row."""
        row = self._rows[self._next]
        self._next += 1
        self._looked = False
        self.at = self.at + 1 if self._position is None else self._position(row)
        self._last = row
        return row

    @property
    def last_row(self) -> str | None:
        """Key and time of the last row that was taken, as text."""
        if self._last is not None:
            self._last_row, self._last = self._reader.brief(self._last), None
        return self._last_row

    def up_to(self, position: Any) -> Iterable[Any]:
        """Return the rows up to a position. Only before the first `take`."""
        if position == self.at:
            return ()
        rows = self._reader.take(sys.maxsize, None, position)
        self.at, self._last_row = self._reader.at, self._reader.last_row
        return () if rows is None else arrow_rows(rows) if is_arrow(rows) else rows
