"""Stored: the form in which an aggregate is kept as the value of a store.

[newest, a, b, ...]     with suppression, which needs the largest record time of a window
[a, b, ...]             without
a                       a single count or sum: a number, which costs a third of the memory and of the packing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...aggregation import Combined

_NUMBERS: Final = frozenset({"count", "sum"})


def bare(kinds: Sequence[str], timed: bool) -> bool:
    """Whether the stored value is the bare aggregate of these kinds of aggregators."""
    return not timed and len(kinds) == 1 and kinds[0] in _NUMBERS


class StoredForm:
    """Turns (largest record time, aggregate) into a stored value and back. A stored value is never changed."""

    def __init__(self, aggregates: Combined, timed: bool) -> None:
        self._copy = aggregates.copy
        self.timed = timed
        # only an aggregate that is never None may stand alone, because None deletes
        self.bare = bare([part.name for part in aggregates.parts], timed)

    def value(self, newest: int, aggregate: list[Any]) -> Any:
        """Return the value to be stored. The value refers to `aggregate`, which must not change from then on."""
        if self.bare:
            return aggregate[0]
        return [newest, *aggregate] if self.timed else aggregate

    def shared(self, value: Any) -> tuple[int, list[Any]]:
        """Return (newest, or -1 if it is not kept; aggregate, to be read only)."""
        if self.bare:
            return -1, [value]
        return (value[0], value[1:]) if self.timed else (-1, value)

    def changeable(self, value: Any) -> tuple[int, list[Any]]:
        """Return (newest, aggregate) that may be changed."""
        newest, aggregate = self.shared(value)
        return newest, aggregate if self._copy is None else self._copy(aggregate)
