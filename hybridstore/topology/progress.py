"""Progress of a run: one line on standard error, overwritten on a terminal, repeated every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from ..progress import is_open

if TYPE_CHECKING:
    from .engine import Engine

_TERMINAL_SECONDS: Final = 0.5
_FILE_SECONDS: Final = 10.0


class RunProgress:
    """Called with the number of every commit; shows rows, rows a second, event time and late rows. O(shards) a line."""

    def __init__(self, engine: Engine, stream: TextIO | None = None) -> None:
        self._engine = engine
        self._stream = sys.stderr if stream is None else stream
        self._terminal = is_open(self._stream) and self._stream.isatty()
        self._interval = _TERMINAL_SECONDS if self._terminal else _FILE_SECONDS
        self._begun = self._shown = time.monotonic()
        self._before = 0
        self._width = 0
        self._commit = 0

    def __call__(self, phase: str, commit: int, total: int) -> None:
        """Show the line if the last one is old enough."""
        self._commit = commit
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._show(now, now - self._shown)

    def end(self) -> None:
        """Show the line of the whole run."""
        self._before = 0
        now = time.monotonic()
        self._show(now, now - self._begun)
        if self._terminal and is_open(self._stream):
            self._stream.write("\n")

    def _show(self, now: float, seconds: float) -> None:
        if not is_open(self._stream):
            return
        rows = sum(row["total_rows"] for row in self._engine.metrics())
        line = self.line(rows, (rows - self._before) / seconds if seconds else 0.0)
        self._shown, self._before = now, rows
        if self._terminal:
            self._stream.write(f"\r{line:<{self._width}}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def line(self, rows: int, rate: float) -> str:
        """Return the line: commit, rows, rows a second, event time, late rows."""
        numbers = self._engine.metrics()
        newest = max((row["event_time_ms"] for row in numbers if row["event_time_ms"] is not None), default=None)
        late = sum(row["total_late"] for row in numbers)
        parts = [f"commit {self._commit:,}", f"{rows:,} rows", f"{rate:,.0f}/s"]
        if newest is not None:
            parts.append(f"event time {_time(newest)}")
        return ", ".join([*parts, f"{late:,} late"])


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return f"{ms} ms"
