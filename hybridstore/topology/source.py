"""Source: takes the rows of a commit at a time from the user's source, after the committed rows.

The skipped rows must be the committed ones: a source that ends before the committed position, or has another row there,
is another source, and skipping its rows would lose them.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from recovery.errors import RestoreError

from ..clock import time_ms
from .batch import as_row, is_arrow, named_rows
from .python_values import python_value
from .row_columns import rows_of_arrow
from .times import arrow_times, without_nanoseconds

_ADVICE: Final = (
    "give the source from its beginning, or say with position= where in the source a row is: a column, or a function "
    "of the row, that rises from each row to the next, and from one run to the next"
)
# Longer keys are compared by their beginnings.
_LONGEST: Final = 200


def source_of(rows: Any, columns: Sequence[str] | None, position: object) -> Callable[[Any], Iterable[Any]]:
    """Return a function that gives the rows of a source behind a position, with names: a source that is a function is
    asked for them, another one gives all its rows.

    Raises TypeError as `named_rows`, and ValueError for a function without `position`: nothing would show whether the
    rows begin behind the committed ones.
    """
    if not callable(rows) or hasattr(rows, "__iter__"):
        named = named_rows(rows, columns)
        return lambda start: named
    if position is None:
        raise ValueError(
            "rows: found a function and no position=, expected where in the source a row is: a column or a function of "
            "the row (the function is called with the committed position; for all rows give what it returns)"
        )
    return lambda start: named_rows(rows(start), columns)


class Source:
    """The rows of a run after `start`, the committed position; `last_row` describes the row at that position.

    `columns` are the key columns and, last, the time: by them a row is recognised.
    """

    def __init__(
        self,
        rows: Iterable[Any],
        position: str | Callable[[Any], Any] | None,
        start: Any,
        last_row: str | None,
        columns: tuple[str, ...],
        where: object,
    ) -> None:
        self._column = position if isinstance(position, str) else None
        self._position = position_of_row(position)
        self.at: Any = (start or 0) if position is None else start
        self.last_row = last_row
        self.row_seconds = 0.0
        """How long it takes to process a row, as far as is known."""
        self._columns = columns
        self._where = where
        self._rows = iter([rows] if is_arrow(rows) else rows)
        self._rest: Any = None
        if self._position is None:
            self._skip(self.at)
        self._chunks = self._rows if self._position is None or start is None else self._behind(start)

    def _skip(self, count: int) -> None:
        """Skip the first `count` rows.

        Raises RestoreError for fewer rows, or when the last one is not the one committed.
        """
        remaining, last = count, None
        while remaining:
            row = next(self._rows, None)
            if row is None:
                ended = f"{count - remaining:,} row{'' if count - remaining == 1 else 's'}"
                raise RestoreError(
                    f"{self._where}: position: the source ended after {ended}, of which {count:,} are committed: rows "
                    f"are counted ({_ADVICE})"
                )
            if not is_arrow(row):
                remaining, last = remaining - 1, row
                continue
            taken = min(remaining, row.num_rows)
            remaining -= taken
            if not remaining and taken:
                last = row.slice(taken - 1, 1)
                self._rest = row.slice(taken) if taken < row.num_rows else None
        if count:
            self._compare(last, f"row {count:,}")

    def _behind(self, start: Any) -> Iterator[Any]:
        """Yield the rows whose position is behind `start`, also as the rest of an Arrow batch.

        Raises RestoreError when the source has rows, but none from that position on.
        """
        assert self._position is not None
        newest, reached = None, False
        for row in self._rows:
            if is_arrow(row):
                positions = self._positions(row)
                skipped = _up_to(positions, start)
                if skipped:
                    at, last = positions[skipped - 1].as_py(), row.slice(skipped - 1, 1)
                behind = row.slice(skipped) if skipped < row.num_rows else None
            else:
                at, last = self._position(row), row
                skipped = not _rises(start, at)
                behind = None if skipped else row
            if skipped and at == start:
                reached = True
                self._compare(last, f"the row at {start!r}")
            elif skipped and (newest is None or at > newest):
                newest = at
            if behind is not None:
                reached = True
                yield behind
        if not reached and newest is not None:
            raise RestoreError(
                f"{self._where}: position: the source ended at {newest!r}, before {start!r}, which is committed "
                f"({_ADVICE})"
            )

    def _positions(self, batch: Any) -> Any:
        """Return the positions of an Arrow batch or table, as a column. Raises ValueError unless they rise. O(rows)."""
        name = self._column
        if name is None:
            raise ValueError("position: found a function with Arrow batches, expected the name of a column")
        if name not in batch.column_names:
            raise ValueError(f"position: column {name!r} is missing: found {', '.join(batch.column_names)}")
        import pyarrow.compute as pc

        positions = without_nanoseconds(batch.column(name))
        if positions.null_count:
            raise ValueError(f"position: found a null in column {name!r}, expected positions that rise with every row")
        rises = pc.greater(positions.slice(1), positions.slice(0, max(0, len(positions) - 1)))
        if not pc.all(rises, min_count=0).as_py():
            place = rises.to_pylist().index(False)
            raise _not_risen(positions[place].as_py(), positions[place + 1].as_py())
        return positions

    def _compare(self, row: Any, name: str) -> None:
        """Raise RestoreError unless this row was the last row of the last commit."""
        brief = self.brief(row)
        if self.last_row is not None and brief is not None and brief != self.last_row:
            raise RestoreError(
                f"{self._where}: position: {name} of the source is {brief}, the committed row is {self.last_row}: "
                f"another source? ({_ADVICE})"
            )

    def brief(self, row: Any) -> str | None:
        """Return key and time of a row as text; None for a row that has no key or time before `map`."""
        try:
            *names, timestamp = self._columns
            if is_arrow(row):
                key = [row.column(name)[0].as_py() for name in names]
                (ms,) = arrow_times(row.column(timestamp), timestamp)
            else:
                fields = as_row(row)
                key, ms = [fields[name] for name in names], time_ms(fields[timestamp], timestamp)
            return ", ".join(map(str, [*key, ms]))[:_LONGEST]
        except (KeyError, TypeError, ValueError):
            return None

    def take(self, limit: int, seconds: float | None, until: Any) -> Any:
        """Return the rows of the next commit (a list, or an Arrow batch), at most `limit`, or up to position `until`;
        None at the end."""
        taken = self._take(limit, seconds, until)
        if taken is not None:
            self.last_row = self.brief(taken.slice(taken.num_rows - 1, 1) if is_arrow(taken) else taken[-1])
        return taken

    def _take(self, limit: int, seconds: float | None, until: Any) -> Any:
        if until is not None:
            limit = until - self.at if self._position is None else sys.maxsize
        taken: list[Any] = []
        begun = time.monotonic()
        row = self._next()
        if self._position is None and until is None and seconds is None and row is not None and not is_arrow(row):
            row = self._take_alike(row, limit, taken)
        while row is not None:
            if is_arrow(row):
                if not row.num_rows:
                    row = next(self._chunks, None)
                    continue
                self._rest = row
                if taken:
                    break
                return self._take_batches(limit, until)
            taken.append(row)
            if self._position is None:
                self.at += 1
            else:
                at = self._position(row)
                self._check_rise(at)
                self.at = at
                if until is not None and at == until:
                    break
            if len(taken) >= limit:
                break
            if (
                until is None
                and seconds is not None
                # rows are processed before the next commit, so that their processing counts
                and time.monotonic() - begun + len(taken) * self.row_seconds >= seconds
            ):
                break
            row = next(self._chunks, None)
        return taken or None

    def _take_alike(self, row: Any, limit: int, taken: list[Any]) -> Any:
        """Take a row and those of its type behind it, `limit` at most. Return the row behind them, if it has another
        type; else None. O(rows).

        No row behind these is read: a source may wait for its next row, or hand out Arrow batches.
        """
        kind = type(row)
        taken.append(row)
        other = None
        for following in islice(self._chunks, min(limit, sys.maxsize) - 1):
            if type(following) is not kind:
                other = following
                break
            taken.append(following)
        self.at += len(taken)
        return other

    def _take_batches(self, limit: int, until: Any) -> Any:
        """Return one batch, or with `until` all batches up to there as one table; at most `limit` rows."""
        taken: list[Any] = []
        while limit and (batch := self._next()) is not None:
            if not is_arrow(batch):
                self._rest = batch
                break
            part = batch.slice(0, limit)
            if self._position is None:
                self.at += part.num_rows
            else:
                positions = self._positions(part)
                if until is not None:
                    part = part.slice(0, _up_to(positions, until))
                if part.num_rows:
                    self._check_rise(positions[0].as_py())
                    self.at = positions[part.num_rows - 1].as_py()
            if part.num_rows < batch.num_rows:
                self._rest = batch.slice(part.num_rows)
            if part.num_rows:
                taken.append(part)
                limit -= part.num_rows
            elif self._rest is not None:
                break
            if until is None or self.at == until:
                break
        return joined_batches(taken)

    def _next(self) -> Any:
        """Return the next row or batch; None at the end."""
        rest, self._rest = self._rest, None
        return next(self._chunks, None) if rest is None else rest

    def _check_rise(self, at: Any) -> None:
        """Raise ValueError unless a position is behind the last one taken."""
        if not _rises(self.at, at):
            raise _not_risen(self.at, at)


def position_of_row(position: str | Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Return the function that gives the position of a row, of a column by its name; None where rows are counted. A
    state can keep what it gives.
    """
    if position is None:
        return None
    if not isinstance(position, str):
        of_row = position
        return lambda row: python_value(of_row(row))

    def of_column(row: Any) -> Any:
        cells = as_row(row)
        try:
            return python_value(cells[position])
        except KeyError:
            raise ValueError(f"position: column {position!r} is missing: found {', '.join(map(str, cells))}") from None

    return of_column


def _rises(before: Any, at: Any) -> bool:
    """Return whether a position is behind another one. Raises ValueError for None and what cannot be compared."""
    try:
        if at is not None:
            return before is None or bool(at > before)
    except TypeError:
        pass
    raise _not_risen(before, at)


def _not_risen(before: Any, at: Any) -> ValueError:
    return ValueError(
        f"position: found {at!r}{'' if before is None else f' after {before!r}'}, expected positions that rise with "
        "every row (a restart continues behind the last one committed)"
    )


def _up_to(positions: Any, at: Any) -> int:
    """Return how many positions of an Arrow column are not behind this one. O(log n)."""
    return bisect_right(range(len(positions)), at, key=lambda place: positions[place].as_py())


def joined_batches(batches: list[Any]) -> Any:
    """Return Arrow batches as one, or as rows if they have different columns; None for none. O(batches)."""
    if len(batches) < 2:
        return batches[0] if batches else None
    if any(not batch.schema.equals(batches[0].schema) for batch in batches):
        return [row for batch in batches for row in rows_of_arrow(batch)]
    import pyarrow as pa

    return pa.concat_tables([part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in batches])
