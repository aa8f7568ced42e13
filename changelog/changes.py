"""Changes: mutations as one change per record, for readers of a changelog that do not apply the mutations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from .codec import unpack
from .mutation import (
    DEFINE,
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
    mutations,
)


class Deleted:
    """The mark in place of the value of a deleted record."""

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Final = Deleted()


class Change(NamedTuple):
    """One change of one record: store number, op (put, delete, time, evict, set, define), key, times (ms; of a
    session end and start), value.
    """

    store: int
    op: str
    key: Any
    times: tuple[int, ...]
    value: Any


def expand(mutation: Mutation) -> Iterator[Change]:
    """Yield the changes of a mutation, one per record.

    Raises TypeError or ValueError when its arguments do not fit its op.
    """
    store, op, args = mutation
    match op:
        case _ if op == PUT:
            yield Change(store, "put", args[0], (), args[1])
        case _ if op == DELETE:
            yield Change(store, "delete", args[0], (), DELETED)
        case _ if op == PUT_AT:
            yield Change(store, "put", args[0], (args[2],), args[1])
        case _ if op == DELETE_AT:
            yield Change(store, "delete", args[0], (args[1],), DELETED)
        case _ if op == PUT_SPAN:
            yield Change(store, "put", args[0], (args[3], args[2]), args[1])
        case _ if op == DELETE_SPAN:
            yield Change(store, "delete", args[0], (args[2], args[1]), DELETED)
        case _ if op == PUT_COLUMNS:
            keys, values, times = args
            if times is None:
                for key, value in zip(keys, values, strict=True):
                    yield Change(store, "put", key, (), value)
            else:
                for key, value, ts in zip(keys, values, times, strict=True):
                    yield Change(store, "put", key, (ts,), value)
        case _ if op == PUT_SPANS:
            for key, value, start, end in zip(*args, strict=True):
                yield Change(store, "put", key, (end, start), value)
        case _ if op == TIME:
            yield Change(store, "time", None, (args[0],), None)
        case _ if op == EVICT:
            yield Change(store, "evict", args[1], (args[0],), None)
        case _ if op == SET:
            yield Change(store, "set", args[0], (), args[1])
        case _ if op == DEFINE:
            yield Change(store, "define", args[1], (), {"number": args[0], "kind": args[2], **args[3]})
        case _:
            yield Change(store, mutation.name, None, (), list(args))


def changes_of(bodies: list[bytes]) -> list[Change]:
    """Return the changes in the frame bodies of one version. Raises ChangelogError, TypeError or ValueError. O(n)."""
    return [change for body in bodies for mutation in mutations(unpack(body)) for change in expand(mutation)]
