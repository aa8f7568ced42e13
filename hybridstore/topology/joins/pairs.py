"""Pairs: the results of a join by column, before they have names.

keys         [ann,  bob]     or an array of numpy
left_times   [500,  None]    None: no row of that side; an array of numpy where each result has both rows
left_values  [[3],  None]    as they are stored (`shapes`)
right_times, right_values
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
        for column, more in zip(_columns(whole), _columns(part), strict=True):
            column += listed(more)
    return whole


def _columns(pairs: Pairs) -> tuple[list[Any], ...]:
    return pairs.keys, pairs.left_times, pairs.left_values, pairs.right_times, pairs.right_values
