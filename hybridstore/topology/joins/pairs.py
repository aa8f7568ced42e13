"""Pairs: the results of a join by column, before they have names.

keys          [ann,  bob]    or an array of numpy or Arrow
left_times    [500,  None]   None: no row of that side; an array of numpy where each result has both rows
left_values   [[3],  None]   as they are stored (`shapes`)
left_columns  None           or, in place of the values, the values by column as arrays of Arrow
right_times, right_values, right_columns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..times import listed


@dataclass(slots=True)
class Pairs:
    """Results of a join by column: the key, and time (ms) and stored value of the row of each side."""

    keys: Any = field(default_factory=list)
    left_times: Any = field(default_factory=list)
    left_values: list[Any] = field(default_factory=list)
    right_times: Any = field(default_factory=list)
    right_values: list[Any] = field(default_factory=list)
    left_columns: list[Any] | None = None
    right_columns: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: Any, left_ts: int | None, left_value: Any, right_ts: int | None, right_value: Any) -> None:
        """Add one result. O(1)."""
        self.keys.append(key)
        self.left_times.append(left_ts)
        self.left_values.append(left_value)
        self.right_times.append(right_ts)
        self.right_values.append(right_value)


def together(parts: Sequence[Pairs]) -> Pairs:
    """Return the results of several as those of one, in turn. O(results)."""
    if len(parts) == 1:
        return parts[0]
    whole = Pairs()
    for part in parts:
        for column, more in zip(_by_row(whole), _by_row(part), strict=True):
            column += listed(more)
    return whole


def by_value(pairs: Pairs) -> tuple[list[Any], list[Any]]:
    """Return the stored values of the left and of the right rows of results. O(results)."""
    sides = (pairs.left_values, pairs.left_columns), (pairs.right_values, pairs.right_columns)
    first, second = (
        values if columns is None else values_of(list(map(listed, columns)), len(pairs)) for values, columns in sides
    )
    return first, second


def values_of(columns: list[list[Any]], rows: int) -> list[Any]:
    """Return stored values by the columns of their names. O(rows)."""
    if len(columns) == 1:
        return [[value] for value in columns[0]]
    return [[*row] for row in zip(*columns, strict=True)] if columns else [[] for _ in range(rows)]


def _by_row(pairs: Pairs) -> tuple[Any, ...]:
    first, second = by_value(pairs)
    return pairs.keys, pairs.left_times, first, pairs.right_times, second
