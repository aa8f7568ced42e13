"""Mutations are applied in their order, whether they are taken out of a frame one by one or by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.codec import pack
from changelog.errors import ChangelogError
from changelog.frame import CommitFrame
from changelog.mutation import ARITY, DELETE, EVICT, PUT, PUT_AT, PUT_COLUMNS, SET, TIME, mutations
from changelog.reader import LoggedVersion
from changelog.segment import Position
from recovery.apply import apply_version


class Noting:
    """A store that notes what it is given; PUT_AT, PUT and DELETE it takes by column, too."""

    def __init__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []
        self.times: list[int] = []

    def attach(self, *_: Any) -> None: ...

    def appliers(self) -> dict[int, Callable[..., None]]:
        ops = (TIME, PUT, DELETE, PUT_AT, PUT_COLUMNS, EVICT)
        return {op: lambda *arguments, op=op: self.noted.append((op, arguments)) for op in ops}

    def batch_appliers(self) -> dict[int, Callable[..., None]]:
        def by_column(op: int) -> Callable[..., None]:
            return lambda *columns: self.noted.extend((op, row) for row in zip(*columns, strict=True))

        return {op: by_column(op) for op in (PUT, DELETE, PUT_AT)}

    def end_version(self, ts: int, version: int) -> None:
        self.times.append(ts)


class Host:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.stores = {number: Noting() for number in (1, 2, 3)}

    def reset(self) -> None: ...

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> Noting:
        raise AssertionError("no store is defined here")

    def restorable(self, number: int) -> Noting:
        return self.stores[number]


def version_of(flat: list[Any]) -> LoggedVersion:
    body = b"\xdd" + len(flat).to_bytes(4, "big") + b"".join(map(pack, flat))
    return LoggedVersion(CommitFrame(1, bytes(16), {}, 0, {1: 5}, {}), [body], len(body), 0, Position(1, 0, 0))


# a mutation, how often it stands there in a row, and whether another store's stands between
RUNS = st.lists(
    st.tuples(
        st.sampled_from([TIME, PUT, DELETE, PUT_AT, PUT_COLUMNS, EVICT, SET]),
        st.integers(1, 3),
        st.sampled_from([1, 2, 7, 8, 9, 20]),
        st.booleans(),
    ),
    max_size=8,
)


@given(RUNS)
def test_every_store_gets_its_mutations_in_order(runs: list[tuple[int, int, int, bool]]) -> None:
    flat: list[Any] = []
    for op, store, times, between in runs:
        for i in range(times):
            for number in (store, store % 3 + 1) if between else (store,):
                # arguments that look like codes
                flat += [
                    op if op == SET else number * 16 + op,
                    *(str(i) if op == SET else 16 + op + j for j in range(ARITY[op])),
                ]
    host = Host()
    apply_version(version_of(flat), host, {})
    for number, store in host.stores.items():
        assert store.noted == [(op, args) for at, op, args in mutations(flat) if at == number]
    assert host.stores[1].times == [5]


@pytest.mark.parametrize("rows", [3, 8, 30])
def test_a_frame_that_ends_in_the_middle_of_a_mutation_is_refused(rows: int) -> None:
    flat = [16 + PUT_AT, "k", 1, 5] * rows
    for missing in (1, 2, 3):
        with pytest.raises(ChangelogError):
            apply_version(version_of(flat[:-missing]), Host(), {})


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-16, "mutation code: found -16, expected a whole number"),
        ("k", "mutation code: found 'k', expected a whole number"),
        (DELETE, f"op {DELETE} of store 0: expected set or define"),
        (9 * 16 + PUT, f"op {PUT} of store 9: no such store or op"),
        (16 + SET, f"op {SET} of store 1: no such store or op"),
    ],
)
def test_a_mutation_of_nothing_that_there_is_is_refused(code: Any, words: str) -> None:
    host = Host()
    with pytest.raises(ChangelogError, match=f"^{words}"):
        apply_version(version_of([16 + PUT, "k", 1, code, "k", 1, 5]), host, {})


def test_a_time_of_a_store_that_there_is_not_is_refused() -> None:
    version = version_of([])
    with pytest.raises(ChangelogError, match="time 5 of store 9 in a commit cannot be applied"):
        apply_version(version._replace(commit=version.commit._replace(times={9: 5})), Host(), {})
