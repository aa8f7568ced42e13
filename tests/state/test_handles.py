"""A store that the program has: it stays usable through every restore in place, unless its store was dropped, or its
definition undone for that of another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.journal import EMPTY_DIGEST
from hybridstore.state.group import StoreGroup
from tests.tools.hooks import check_stores, crash

IN_PLACE: dict[str, Callable[[hs.State], object]] = {"rollback": hs.State.rollback, "cold": hs.State._go_cold}


def pair(value: int) -> list[int]:
    return [value, -value]


@pytest.mark.parametrize("again", IN_PLACE)
def test_a_store_that_was_defined_again_stays_usable(tmp_path: Path, again: str) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("names")["ann"] = 1
        state.commit()
        names = state.key_value("names", version=1, upgrade=pair)
        state.commit()
        IN_PLACE[again](state)
        assert names["ann"] == [1, -1]
        names["bob"] = [2, -2]
        state.commit()
        assert state.key_value("names", version=1) is names
    with hs.open(tmp_path / "s") as state:
        assert dict(state.key_value("names", version=1).all()) == {"ann": [1, -1], "bob": [2, -2]}


@pytest.mark.parametrize("again", IN_PLACE)
def test_a_store_whose_bounds_were_altered_stays_usable(tmp_path: Path, again: str) -> None:
    with hs.open(tmp_path / "s") as state:
        late = state.suppression("late", max_records=1)
        late.put("ann", 1, ts=1)
        state.commit()
        state._group.alter("late", {**late.parameters, "max_records": 2})
        assert late.put("bob", 2, ts=2) == []
        state.commit()
        IN_PLACE[again](state)
        assert late.put("eve", 3, ts=3) == [("ann", 1, 1)]
        assert state._group.stores["late"] is late


def test_bounds_that_a_rollback_has_undone_are_the_ones_before(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        late = state.suppression("late", max_records=1)
        late.put("ann", 1, ts=1)
        state.commit()
        state._group.alter("late", {**late.parameters, "max_records": 2})
        state.rollback()
        assert late.parameters["max_records"] == 1
        assert late.put("bob", 2, ts=2) == [("ann", 1, 1)]


def test_a_definition_that_a_rollback_has_undone_ends_the_store(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("names")["ann"] = 1
        state.commit()
        names = state.key_value("names", version=1, upgrade=pair)
        state.rollback()
        with pytest.raises(hs.StateClosedError, match="ask for it again"):
            names.get("ann")
        assert state.key_value("names")["ann"] == 1


def test_stores_behind_one_that_a_rollback_has_undone_are_defined_again(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("names")["ann"] = 1
        state.commit()
        state.key_value("names", version=1, upgrade=pair)
        more = state.key_value("more")
        state.rollback()
        more["bob"] = 2
        third = state.key_value("third")
        third["eve"] = 3
        state.commit()
        assert state.key_value("more") is more
    with hs.open(tmp_path / "s") as state:
        rows = [dict(state.key_value(name).all()) for name in ("names", "more", "third")]
        assert rows == [{"ann": 1}, {"bob": 2}, {"eve": 3}]


def test_a_store_outlives_the_replay_of_a_dropped_one_with_its_number(tmp_path: Path) -> None:
    never = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
    with hs.open(tmp_path / "s", checkpoints=never) as state:
        state.key_value("first")["ann"] = 1
        state.key_value("dropped")["ann"] = 1
        state.commit()
        state.checkpoint(wait=True)
        state._group.drop("dropped")
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", checkpoints=never) as state:
        # the checkpoint knows one store, so the next number is that of the dropped one
        names = state.key_value("names")
        assert names.number == 2
        names["bob"] = 2
        state.commit()
        sorted((tmp_path / "s" / "checkpoints").glob("*.lmdb"))[-1].unlink()
        state.rollback()
        assert state._checkpoints.version == 1
        assert dict(names.all()) == {"bob": 2}
        assert state.key_value("names") is names


@pytest.mark.parametrize(("timer", "due"), [("first", True), ("latest", False)])
def test_a_buffer_that_is_defined_otherwise_under_its_number_is_as_defined(
    tmp_path: Path, timer: str, due: bool
) -> None:
    """As a shard that a Spark worker keeps, for the next run of a query whose program has changed."""
    with hs.open(tmp_path / "s") as state:
        parameters = state.suppression("late", time_limit=10).parameters
    assert "timer" in parameters
    group = StoreGroup(lambda body: None)
    for other in ({"first": "latest", "latest": "first"}[timer], timer):
        group.reset()
        late: Any = group.define(1, "late", "suppression", {**parameters, "timer": other})
        group.reached(0, EMPTY_DIGEST)
    assert late.put("ann", 1, ts=0) == []
    assert late.put("ann", 2, ts=5) == []
    assert late.put("bob", 3, ts=10) == ([("ann", 2, 5)] if due else [])


@pytest.mark.parametrize("limit", [None, 1])
def test_any_order_of_definitions_and_restores_keeps_stores_and_their_records(
    tmp_path: Path, seed: int, rounds: int, limit: int | None
) -> None:
    """The model: the rows by name of store as of the commit, and as of now; and which store objects must answer."""
    dice = random.Random(seed)
    for turn in range(8 * rounds):
        place = tmp_path / f"s{turn}"
        state = hs.open(place, memory_limit=limit)
        stores: dict[str, Any] = {}
        committed: dict[str, dict[str, int]] = {}
        now: dict[str, dict[str, int]] = {}
        sure: set[str] = set()  # defined by the last commit, and not dropped since
        for step in range(60):
            name = dice.choice("abc")
            action = dice.choice(["put", "put", "put", "open", "drop", "again", "commit", "check", "rollback", "cold"])
            if action == "open":
                stores[name] = state.key_value(name)
                now.setdefault(name, {})
            elif action == "put" and name in now:
                stores[name][f"k{dice.randrange(4)}"] = step
                now[name] = dict(stores[name].all())
            elif action in ("drop", "again") and name in now:
                state._group.drop(name)
                sure.discard(name)
                with pytest.raises(hs.StateClosedError):
                    stores.pop(name).get("k1")
                del now[name]
                if action == "again":
                    stores[name], now[name] = state.key_value(name), {}
            elif action == "commit":
                state.commit()
                committed, sure = {each: dict(rows) for each, rows in now.items()}, set(now)
            elif action == "check":
                state.commit()
                committed, sure = {each: dict(rows) for each, rows in now.items()}, set(now)
                state.checkpoint(wait=True)
            elif action == "rollback":
                before = {each: store for each, store in stores.items() if each in sure}
                state.rollback()
                for each, store in before.items():
                    assert dict(store.all()) == committed[each]
                # a store that the rollback has undone is defined again, and empty; one that was dropped is back
                now = {each: dict(committed.get(each, {})) for each in now.keys() | committed.keys()}
                stores = {each: before.get(each) or state.key_value(each) for each in now}
            elif action == "cold":
                state.commit()
                committed, sure = {each: dict(rows) for each, rows in now.items()}, set(now)
                state._go_cold()
            for each, rows in now.items():
                assert dict(stores[each].all()) == rows, (step, action, each)
            check_stores(state)
        state.commit()
        crash(state)
        with hs.open(place) as state:
            assert {each: dict(store.all()) for each, store in state.stores.items()} == now


def test_a_closed_state_that_is_still_named_has_no_file_of_its_directory(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("names")["ann"] = 1
        state.commit()
        state.checkpoint(wait=True)
    state = hs.open(tmp_path / "s")
    maps = Path("/proc/self/maps")
    assert str(tmp_path) in maps.read_text()
    state.close()
    assert str(tmp_path) not in maps.read_text()
