"""Grouping keys of `transform_with_state`: the tuple that a processor is called with, as the text that stores have.

    ("a",) ─▶ "a"      (None,) ─▶ null      ("a", 5) ─▶ ["a",5]      (Row(p=1, q="x"),) ─▶ [1,"x"]
    ([1, 2],) ─▶ [1,2]

The text is that of `hybridstore.topology.null_keys`: null is a key like others, and Spark makes the same text in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from ..aggregation.exact import DECIMALS
from ..topology.null_keys import given_key, stored_key
from ..topology.output_rows import Column
from .state_values import row_of


class GroupingKeys:
    """The keys of one processor. `columns` are the grouping columns; without them a key has no struct in it."""

    def __init__(self, columns: Sequence[Column] = ()) -> None:
        self._columns = columns
        self._single = len(columns) == 1

    def stored(self, key: tuple[Any, ...]) -> str:
        """Return the text of a key. O(length)."""
        return stored_key(key[0] if len(key) == 1 else key)

    def given(self, text: str) -> Any:
        """Return the key of a text, as a Row if the columns are known. Moments are in UTC. O(length)."""
        key = given_key(text)
        if not self._columns:
            return key if type(key) is tuple else (key,)
        parts = (list(key) if type(key) is tuple else key,) if self._single else key
        return _row(parts, self._columns)

    def of_timer(self, text: str) -> Any:
        """Return the key of a text as Spark gives it with an expired timer: moments are in local time, without a zone.
        O(length).
        """
        key = self.given(text)
        if not any(isinstance(part, datetime) and part.tzinfo for part in key):
            return key
        parts = [
            part.astimezone().replace(tzinfo=None) if isinstance(part, datetime) and part.tzinfo else part
            for part in key
        ]
        return row_of([column.name for column in self._columns], parts) if self._columns else tuple(parts)


def _given(part: Any, column: Column) -> Any:
    if type(part) is Decimal:  # the text has no zeros at the end
        scale = int(column.kind.name[:-1].partition(",")[2])
        return part.quantize(Decimal((0, (1,), -scale)), context=DECIMALS)
    if type(part) is not list:
        return part
    if column.kind.name.startswith("array"):
        return [_given(element, column.kind.parts[0]) for element in part]
    return _row(part, column.kind.parts)


def _row(parts: Sequence[Any], columns: Sequence[Column]) -> Any:
    given = [_given(part, column) for part, column in zip(parts, columns, strict=True)]
    return row_of([column.name for column in columns], given)
