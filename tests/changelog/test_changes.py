"""Changes: what a reader of a changelog is told of each mutation."""

from __future__ import annotations

from typing import Any

import pytest

from changelog.changes import DELETED, expand
from changelog.mutation import (
    DELETE,
    DELETE_AT,
    DELETE_SPAN,
    EVICT,
    PUT,
    PUT_AT,
    PUT_COLUMNS,
    PUT_SPAN,
    PUT_SPANS,
    SET,
    TIME,
    Mutation,
)


@pytest.mark.parametrize(
    ("op", "args", "changes"),
    [
        (PUT, ["k", 1], [("put", "k", (), 1)]),
        (DELETE, ["k"], [("delete", "k", (), DELETED)]),
        (PUT_AT, ["k", 1, 7], [("put", "k", (7,), 1)]),
        (DELETE_AT, ["k", 7], [("delete", "k", (7,), DELETED)]),
        (PUT_SPAN, ["k", 1, 7, 9], [("put", "k", (9, 7), 1)]),
        (DELETE_SPAN, ["k", 7, 9], [("delete", "k", (9, 7), DELETED)]),
        (PUT_COLUMNS, [["k", "l"], [1, 2], None], [("put", "k", (), 1), ("put", "l", (), 2)]),
        (PUT_COLUMNS, [["k", "l"], [1, 2], [7, 8]], [("put", "k", (7,), 1), ("put", "l", (8,), 2)]),
        (PUT_SPANS, [["k", "l"], [1, 2], [5, 6], [7, 8]], [("put", "k", (7, 5), 1), ("put", "l", (8, 6), 2)]),
        (TIME, [7], [("time", None, (7,), None)]),
        (EVICT, [7, "k"], [("evict", "k", (7,), None)]),
        (SET, ["name", 1], [("set", "name", (), 1)]),
    ],
)
def test_a_mutation_is_one_change_of_each_record(op: int, args: list[Any], changes: list[tuple[Any, ...]]) -> None:
    assert list(expand(Mutation(3, op, args))) == [(3, *change) for change in changes]
