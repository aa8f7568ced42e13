"""Source: takes the rows of a commit at a time from the user's source, after the committed rows.

The skipped rows must be the committed ones: a source that ends before the committed position, or has another row there,
is another source, and skipping its rows would lose them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from recovery.errors import RestoreError

from .batch import as_row, is_arrow, time_ms

_ADVICE: Final = (
    "give the source from its beginning, or say with position= where in the source a row is: a column, or a function "
    "of the row, that rises from each row to the next, and from one run to the next"
)
# Longer keys are compared by their beginnings.
_LONGEST: Final = 200


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
        self._position = (lambda row: row[position]) if isinstance(position, str) else position
        self.at: Any = (start or 0) if position is None else start
        self.last_row = last_row
        self._columns = columns
        self._where = where
        self._rows = iter([rows] if is_arrow(rows) else rows)
        self._rest: Any = None
        if self._position is None:
            self._skip(self.at)
            self._chunks = self._rows
        else:
            self._chunks = self._behind(start)

    def _skip(self, count: int) -> None:
        """Skip the first `count` rows.

        Raises RestoreError when there are fewer, or the last one is not the one committed.
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
        """Yield the rows whose position is behind `start`.

        Raises RestoreError when the source has rows, but none from that position on.
        """
        assert self._position is not None
        newest, reached = None, start is None
        for row in self._rows:
            if is_arrow(row):
                raise ValueError(
                    "position: found with Arrow batches, expected with single rows (leave it out: rows are counted)"
                )
            at = self._position(row)
            if start is None or at > start:
                reached = True
                yield row
            elif at == start:
                reached = True
                self._compare(row, f"the row at {start!r}")
            elif newest is None or at > newest:
                newest = at
        if not reached and newest is not None:
            raise RestoreError(
                f"{self._where}: position: the source ended at {newest!r}, before {start!r}, which is committed "
                f"({_ADVICE})"
            )

    def _compare(self, row: Any, name: str) -> None:
        """Raise RestoreError unless this row was the last row of the last commit."""
        brief = self._brief(row)
        if self.last_row is not None and brief is not None and brief != self.last_row:
            raise RestoreError(
                f"{self._where}: position: {name} of the source is {brief}, committed there was {self.last_row}: "
                f"another source? ({_ADVICE})"
            )

    def _brief(self, row: Any) -> str | None:
        """Return key and time of a row as text; None for a row that has no key or time before `map`."""
        try:
            fields = row.to_pylist()[0] if is_arrow(row) else as_row(row)
            *key, moment = [fields[name] for name in self._columns]
            return ", ".join([*map(str, key), str(time_ms(moment, self._columns[-1]))])[:_LONGEST]
        except (KeyError, TypeError, ValueError):
            return None

    def take(self, limit: int, seconds: float | None, until: Any) -> Any:
        """Return the rows of the next commit (a list, or an Arrow batch), at most `limit`, or up to position `until`;
        None at the end."""
        taken = self._take(limit, seconds, until)
        if taken is not None:
            self.last_row = self._brief(taken.slice(taken.num_rows - 1, 1) if is_arrow(taken) else taken[-1])
        return taken

    def _take(self, limit: int, seconds: float | None, until: Any) -> Any:
        if until is not None:
            limit = until - self.at if self._position is None else sys.maxsize
        taken: list[Any] = []
        begun = time.monotonic()
        while len(taken) < limit:
            chunk = self._rest if self._rest is not None else next(self._chunks, None)
            self._rest = None
            if chunk is None:
                break
            if is_arrow(chunk):
                if taken:
                    self._rest = chunk
                    break
                if not chunk.num_rows:
                    continue
                if chunk.num_rows > limit:
                    self._rest, chunk = chunk.slice(limit), chunk.slice(0, limit)
                self.at += chunk.num_rows
                return chunk
            taken.append(chunk)
            if self._position is None:
                self.at += 1
            else:
                at = self._position(chunk)
                if self.at is not None and not at > self.at:
                    raise ValueError(
                        f"position: found {at!r} after {self.at!r}, expected positions that rise with every row (a "
                        "restart goes on behind the last one committed)"
                    )
                self.at = at
                if until is not None and self.at == until:
                    break
            if until is None and seconds is not None and time.monotonic() - begun >= seconds:
                break
        return taken or None
