"""Mutation: one effective change of one store, the unit that stores emit, frames carry and restore applies.

In a frame a mutation is a code followed by its arguments, flat: `code, arg, ...`, where
`code = store number * 16 + op` and the op decides how many arguments follow (`ARITY`). Store 0 is the system: it
defines the other stores and holds named settings. The surprise: no hot path has an object per mutation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from .errors import ChangelogError

TIME: Final = 0  # (ts)                        stream time moves, nothing else does
PUT: Final = 1  # (key, value)
DELETE: Final = 2  # (key)
PUT_AT: Final = 3  # (key, value, ts)
DELETE_AT: Final = 4  # (key, ts)
PUT_SPAN: Final = 5  # (key, value, start, end)
DELETE_SPAN: Final = 6  # (key, start, end)
PUT_COLUMNS: Final = 7  # (keys, values, times)   the batch form of PUT (times nil) and PUT_AT
EVICT: Final = 8  # (through, key)             the entries of a suppression buffer up to that place leave it
PUT_SPANS: Final = 9  # (keys, values, starts, ends)
SET: Final = 14  # (name, value)               system store only
DEFINE: Final = 15  # (store number, name, kind, parameters)   system store only

ARITY: Final[tuple[int, ...]] = (1, 2, 1, 3, 2, 4, 3, 3, 2, 4, -1, -1, -1, -1, 2, 4)
OP_NAMES: Final[tuple[str, ...]] = (
    "time",
    "put",
    "delete",
    "put_at",
    "delete_at",
    "put_span",
    "delete_span",
    "put_columns",
    "evict",
    "put_spans",
    "",
    "",
    "",
    "",
    "set",
    "define",
)
SYSTEM: Final = 0
# In DEFINE these stand in the place of a kind, for a store that exists: the store is removed, or its parameters change.
# A release that does not know these words refuses them like any unknown kind.
DROPPED: Final = "dropped"
ALTERED: Final = "altered"
# Ops of which one mutation may hold several records.
MANY: Final = frozenset({PUT_COLUMNS, PUT_SPANS})


class Mutation(NamedTuple):
    """One mutation as an object, for readers that want one (inspection, tests): store number, op, arguments."""

    store: int
    op: int
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The op's name, such as `put_at`."""
        return OP_NAMES[self.op]


def records_of(op: int, argument: Any) -> int:
    """Return how many records a mutation of this op and first argument holds: a batch its rows, others one."""
    return len(argument) if op in MANY else 1


def count_records(flat: Sequence[Any], counts: dict[int, int]) -> None:
    """Add the records of the mutations in a frame to `counts`, by code; the frame's flat content is sound and not
    empty. O(n).
    """
    n, code = len(flat), flat[0]
    op = code & 15
    step = ARITY[op] + 1
    # most frames hold one kind of mutation throughout: counted at C speed
    if op not in MANY and n % step == 0 and flat[::step].count(code) * step == n:
        counts[code] = counts.get(code, 0) + n // step
        return
    i = 0
    while i < n:
        code = flat[i]
        op = code & 15
        counts[code] = counts.get(code, 0) + (1 if op not in MANY else records_of(op, flat[i + 1]))
        i += 1 + ARITY[op]


def mutations(flat: Sequence[Any]) -> Iterator[Mutation]:
    """Split the flat content of a frame into mutations.

    Raises ChangelogError on an unknown op or missing arguments. O(n).
    """
    i, n = 0, len(flat)
    while i < n:
        code = flat[i]
        if type(code) is not int or code < 0:
            raise ChangelogError(f"item {i} of a frame: mutation code: found {code!r}, expected a whole number")
        arity = ARITY[code & 15]
        if arity < 0:
            raise ChangelogError(f"item {i} of a frame: op {code & 15} is unknown")
        end = i + 1 + arity
        if end > n:
            raise ChangelogError(
                f"item {i} of a frame: op {OP_NAMES[code & 15]} has {n - i - 1} arguments, expected {arity}"
            )
        yield Mutation(code >> 4, code & 15, tuple(flat[i + 1 : end]))
        i = end
