"""Failures: rows whose map, filter, process or aggregator raises, as results in place of the end of the job.

    row ── raises ──▶ {"error": "ValueError: ...", "row": {the row as it arrived}}

They are results of their commit, so they are handed out exactly once, as late rows are. The surprise: an aggregator may
raise because of what is stored, and has then changed a part of an aggregate already, so each addition is tried on a
copy that is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..aggregation import Combined

Failure = tuple[int, str]


class FailedRows(NamedTuple):
    """Rows that were not processed: their keys (None, where a `map` or `filter` raised) and their cells."""

    keys: list[Any]
    cells: list[dict[str, Any]]

    def rows(self) -> list[dict[str, Any]]:
        """Return the cells of the column of errors."""
        return self.cells


def text_of(error: Exception) -> str:
    """Return an error as text: its class and its message."""
    return f"{type(error).__name__}: {error}"


def fault_of(aggregates: Combined, value: Any, ts: int) -> str | None:
    """Return why a value cannot be added to an empty aggregate, or None if it can be."""
    try:
        aggregates.add(aggregates.init(), (ts, value) if aggregates.timed else value)
    except Exception as error:  # handed out with the row
        return text_of(error)
    return None


def tried(aggregates: Combined, failed: Callable[[str], None]) -> Combined:
    """Return the aggregates with an `add` that, where it raises, calls `failed` and leaves the aggregate as it was."""
    guarded = Combined(dict(zip(aggregates.names, aggregates.parts, strict=True)))
    add, copy = guarded.add, guarded.copy

    def add_or_keep(aggregate: Any, value: Any) -> Any:
        kept = aggregate if copy is None else copy(aggregate)
        try:
            return add(aggregate, value)
        except Exception as error:  # handed out with the row
            failed(text_of(error))
            return kept

    guarded.add = add_or_keep
    return guarded
