"""Results: what a task hands out, and the order in which records of a commit are taken."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import InvalidOperation
from operator import itemgetter
from typing import Any, NamedTuple

from changelog.codec import pack


class Result(NamedTuple):
    """One result: the key, the window's bounds (ms, as the window's kind says), the aggregates in order, and the largest record time.

    `aggregates` is None for a session that was merged into another.
    """

    key: Any
    start: int
    end: int
    aggregates: tuple[Any, ...] | None
    ts: int


def canonical_order(keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> list[int]:
    """Return the indices in the order in which the records of one commit are processed: by time, key, and value.

    It does not depend on the order in which they arrived, so every attempt of every engine does the same; records equal
    in all three cannot be told apart by anything that follows. O(n log n).
    """
    indices = sorted(range(len(times)), key=times.__getitem__)
    if _ascending(times, indices):
        return indices
    try:
        rows = list(zip(times, keys, values, strict=True))
        return sorted(indices, key=rows.__getitem__)
    # values that Python cannot compare, such as None beside a number or a decimal that is none, are compared packed
    except (TypeError, InvalidOperation):
        packed = [(ts, key, pack(value)) for ts, key, value in zip(times, keys, values, strict=True)]
        return sorted(indices, key=packed.__getitem__)


def _ascending(times: Sequence[int], indices: list[int]) -> bool:
    ordered = itemgetter(*indices)(times) if len(indices) > 1 else ()
    return len(set(ordered)) == len(ordered)
