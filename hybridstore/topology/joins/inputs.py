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
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Any, Final

from ...clock import time_ms
from ...collector import collector_held
from ...stores.columns import in_order
from ..batch import as_row, is_arrow
from ..row_columns import rows_of_arrow
from ..source import Source, joined_batches, position_of_row, source_of
from ..times import arrow_times
from .rows import Sides
from .spec import Input, Join

Position = str | Callable[[Any], Any] | None
# So many rows of a list are taken at a time.
_STRETCH: Final = 1000
_STRETCH_OF_BATCHES: Final = 10_000


def _of(setting: Any, name: str) -> Any:
    """Return the setting of an input: settings are by the names of the inputs, or one is for both."""
    return setting.get(name) if isinstance(setting, Mapping) else setting


def sources_of(
    inputs: Mapping[str, Any],
    columns: Mapping[str, Sequence[str]] | Sequence[str] | None,
    position: Position | Mapping[str, Position],
) -> dict[str, Callable[[Any], Iterable[Any]]]:
    """Return for each input the function that gives its rows behind a position; raises as `source_of`."""
    return {name: source_of(rows, _of(columns, name), _of(position, name)) for name, rows in inputs.items()}


class Inputs:
    """The rows of a run of a join, from `sources_of`; the interface of `Source`.

    Positions are dicts by the names of the inputs.
    """

    def __init__(
        self,
        join: Join,
        given: Mapping[str, Callable[[Any], Iterable[Any]]],
        position: Position | Mapping[str, Position],
        start: Mapping[str, Any] | None,
        last_row: Mapping[str, str | None] | None,
        where: object,
    ) -> None:
        self._heads: list[_Head] = []
        for side, source in enumerate(join.inputs):
            name = source.name
            of_input = _of(position, name)
            at, last = (start or {}).get(name), (last_row or {}).get(name)
            rows = given[name](at) if name in given else ()
            behind = (at, last) if name in given else (None, None)
            described = f"{where}: input {name!r}"
            reader = Source(rows, of_input, *behind, (*source.key, source.timestamp), described)
            stretch = _STRETCH if isinstance(rows, (list, tuple)) or is_arrow(rows) else 1
            head = _Head(source, side, reader, of_input, stretch)
            if name not in given:
                head.stay(at, last)
            self._heads.append(head)
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
        """Return the rows of the next commit, at most `limit`, or up to position `until`: as `Sides` if all are Arrow
        tables, else each with its side; None at the end.
        """
        if until is not None:
            return _rows_of_both([head.up_to(until[head.source.name]) for head in self._heads])
        taken = 0
        parts: tuple[list[Any], list[Any]] = [], []
        begun = time.monotonic()
        while (room := limit - taken) > 0:
            if seconds is not None and taken:
                rest = seconds - (time.monotonic() - begun) - taken * self.row_seconds
                if rest <= 0:
                    break
                if self.row_seconds > 0:
                    room = min(room, 1 + int(rest / self.row_seconds))
            counts = self._next(room)
            if not any(counts):
                break
            for head, count in zip(self._heads, counts, strict=True):
                if count:
                    parts[head.side].append(head.take(count))
            taken += sum(counts)
        return _rows_of_both(parts)

    def _next(self, room: int) -> tuple[int, int]:
        """Return how many rows of each input are next, at most `room`: as far as both inputs are read, by time."""
        first, second = (head.ready() for head in self._heads)
        if not (len(first) and len(second)):
            return min(len(first), room), min(len(second), room)
        if first[-1] <= second[-1]:
            counts = len(first), bisect_left(second, first[-1])
        else:
            counts = bisect_right(first, second[-1]), len(second)
        if sum(counts) <= room:
            return counts
        # of rows at one time those of the first input are next
        last = _time_of(first, second, room)
        before = bisect_left(first, last), bisect_left(second, last)
        of_first = min(room - before[1], bisect_right(first, last))
        return of_first, room - of_first


def _time_of(first: Any, second: Any, count: int) -> int:
    """Return the first time up to which both columns of times, each in order, have so many rows together. O(log n)."""
    low, high = min(int(first[0]), int(second[0])), max(int(first[-1]), int(second[-1]))
    while low < high:
        middle = (low + high) // 2
        if bisect_right(first, middle) + bisect_right(second, middle) < count:
            low = middle + 1
        else:
            high = middle
    return low


class _Head:
    """The next rows of one input."""

    def __init__(self, source: Input, side: int, reader: Source, position: Position, stretch: int) -> None:
        self.source = source
        self.side = side
        self.at = reader.at
        self._last_row = reader.last_row
        self._last: Any = None
        self._reader = reader
        self._position = position_of_row(position)
        self._stretch = stretch
        self._newest_taken = -1
        self._rows: Any = []
        # of each row the newest time (ms) of all rows so far: a list, or an array of numpy
        self._newest: Any = []

    def stay(self, at: Any, last_row: str | None) -> None:
        """Keep the position of an input that is not given."""
        self.at, self._last_row = at, last_row

    def ready(self) -> Any:
        """Return the newest time so far (ms) at each of the next rows, as a list or an array; empty at the end. Waits
        for a row of the input.
        """
        if not len(self._newest):
            rows = self._reader.take(self._stretch, None, None)
            if rows is None:
                return []
            before = self._newest_taken
            self._rows = rows
            if is_arrow(rows):
                self._stretch = _STRETCH_OF_BATCHES  # the rest of a batch is here
            self._newest = self._newest_of(rows, before)
            self._newest_taken = int(self._newest[-1])
        return self._newest

    def _newest_of(self, rows: Any, before: int) -> Any:
        """Return of each row the newest time (ms) of all rows up to it, the newest of earlier rows being `before`."""
        name = self.source.timestamp
        if is_arrow(rows) and find_spec("numpy") is not None:
            import numpy as np

            from ..columns.arrow import times_of

            times = times_of(rows.column(name)) if name in rows.schema.names else None
            if times is not None:
                return np.maximum(np.maximum.accumulate(times), before)
        in_turn = self._times(rows)
        if in_turn[0] >= before and in_order(in_turn):
            return in_turn
        return list(accumulate(in_turn, max, initial=before))[1:]

    def _times(self, rows: Any) -> list[int]:
        """Return the times of rows; -1 where only a step gives one, or the row has none."""
        name = self.source.timestamp
        try:
            if is_arrow(rows) and not rows.column(name).null_count:
                return arrow_times(rows.column(name), name)
            times = list(map(itemgetter(name), rows))
            if set(map(type, times)) == {int}:
                return times
        except (KeyError, TypeError, ValueError):
            pass  # a row at a time
        return list(map(self._time, rows_of_arrow(rows) if is_arrow(rows) else rows))

    def _time(self, row: Any) -> int:
        try:
            moment = as_row(row)[self.source.timestamp]
            return moment if type(moment) is int else time_ms(moment, self.source.timestamp)
        except (KeyError, TypeError, ValueError):
            return -1  # the row is refused, or left out, when the commit takes it

    def take(self, count: int) -> Any:
        """Return the next rows, so many (1 or more) of those that are ready: a list, or an Arrow table."""
        self._newest = self._newest[count:]
        if is_arrow(self._rows):
            taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
            self._last = taken.slice(count - 1)
        else:
            taken, self._rows = self._rows[:count], self._rows[count:]
            self._last = taken[-1]
        if self._position is None:
            self.at += count
        else:
            (last,) = rows_of_arrow(self._last) if is_arrow(self._last) else [self._last]
            self.at = self._position(last)
        return taken

    @property
    def last_row(self) -> str | None:
        """Key and time of the last row that was taken, as text."""
        if self._last is not None:
            self._last_row, self._last = self._reader.brief(self._last), None
        return self._last_row

    def up_to(self, position: Any) -> list[Any]:
        """Return the rows up to a position: nothing, or a list or an Arrow table. Only before the first `take`."""
        if position == self.at:
            return []
        rows = self._reader.take(sys.maxsize, None, position)
        self.at, self._last_row = self._reader.at, self._reader.last_row
        return [] if rows is None else [rows]


def _rows_of_both(parts: Sequence[list[Any]]) -> Any:
    """Return the rows of both inputs, given as lists and Arrow tables; None for none."""
    if all(is_arrow(part) for of_side in parts for part in of_side):
        sides = Sides(*map(joined_batches, parts))
        if not any(isinstance(side, list) for side in sides):
            return sides if any(parts) else None
    rows: list[tuple[int, Any]] = []
    with collector_held():
        for side, of_side in enumerate(parts):
            for part in of_side:
                rows += zip(repeat(side), rows_of_arrow(part) if is_arrow(part) else part)
    return rows
