"""Stores whose values change their shape: `version` and `upgrade=`, in plain stores and in stores of `process`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.topology.engine import Engine
from tests.tools.faults import QuickFiles, Recorder, disks
from tests.tools.hooks import check_stores, crash

KEYS = [f"k{i:03d}" for i in range(60)]


def first(state: hs.State) -> None:
    """Write values of version 0: in a checkpoint, in the changelog behind it, over cold blocks, and deletions."""
    names, clicks, visits = (
        state.key_value("names"),
        state.window("clicks", retention=500),
        state.session("visits", retention=500),
    )
    for i, key in enumerate(KEYS):
        names.put(key, i)
        clicks.put(key, i, 10 * i)
        visits.put(key, i, start=10 * i, end=10 * i + 5)
    state.commit()
    state.checkpoint(wait=True)
    names.put(KEYS[3], 300)
    names.delete(KEYS[4])
    clicks.put(KEYS[50], 500, 500)
    visits.delete(KEYS[51], 510, 515)
    state.commit()


def pair(value: int) -> list[int]:
    return [value, -value]


def named(value: list[int]) -> dict[str, int]:
    return {"n": value[0], "minus": value[1]}


def stores(state: hs.State, version: int = 0, upgrade: Any = None) -> dict[str, Any]:
    given: dict[str, Any] = {"version": version, "upgrade": upgrade}
    return {
        "names": state.key_value("names", **given),
        "clicks": state.window("clicks", retention=500, **given),
        "visits": state.session("visits", retention=500, **given),
    }


def contents(opened: dict[str, Any]) -> dict[str, Any]:
    return {name: (list(store.all()), store.stream_time) for name, store in opened.items()}


def expected(tmp_path: Path, change: Callable[[Any], Any]) -> dict[str, Any]:
    with hs.open(tmp_path / "expected") as state:
        first(state)
        plain = contents(stores(state))
    return {name: ([(key, change(value)) for key, value in rows], time) for name, (rows, time) in plain.items()}


@pytest.mark.parametrize("lazy", [True, False])
def test_every_value_goes_through_the_function_once(tmp_path: Path, lazy: bool) -> None:
    wanted = expected(tmp_path, pair)
    with hs.open(tmp_path / "s") as state:
        first(state)
    with hs.open(tmp_path / "s", lazy=lazy) as state:
        assert contents(stores(state, 1, pair)) == wanted
        state.commit()
        check_stores(state)
    # From the log, from a checkpoint of the new values, and with the function still given.
    for _ in range(2):
        with hs.open(tmp_path / "s") as state:
            assert contents(stores(state, 1, pair)) == wanted
            state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", at="newest") as state:
        assert contents(stores(state, 1)) == wanted


def test_a_state_from_further_back_goes_through_all_functions(tmp_path: Path) -> None:
    wanted = expected(tmp_path, lambda value: named(pair(value)))
    with hs.open(tmp_path / "s") as state:
        first(state)
    with hs.open(tmp_path / "s") as state:
        with pytest.raises(hs.ProgramMismatchError, match=r"values of version 0, .* cannot make those of version 1"):
            stores(state, 2, named)
        assert contents(stores(state, 2, {1: pair, 2: named})) == wanted
        state.commit()
    with hs.open(tmp_path / "s") as state:
        with pytest.raises(hs.ProgramMismatchError, match="has values of version 2, the program is at version 1"):
            stores(state, 1, pair)
        with pytest.raises(hs.ProgramMismatchError, match="has values of version 2, the program is at version 0"):
            stores(state)


def test_a_function_that_raises_says_where_and_nothing_is_lost(tmp_path: Path) -> None:
    def broken(value: int) -> int:
        return 100 // (value - 17)

    with hs.open(tmp_path / "s") as state:
        first(state)
        before, version = contents(stores(state)), state.version
    with hs.open(tmp_path / "s") as state:
        with pytest.raises(
            hs.UpgradeError, match=r"store 'names': .* key 'k017' .*: ZeroDivisionError.*nothing was changed"
        ):
            stores(state, 1, broken)
        with pytest.raises(hs.UpgradeError, match=r"key 'k000' .*found None, expected a value"):
            stores(state, 1, lambda value: None)
        assert contents(stores(state)) == before
        state.commit()
        assert state.version == version


def test_what_is_rolled_back_is_of_the_version_before(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        first(state)
        before = contents(stores(state))
        upgraded = stores(state, 1, pair)
        state.rollback()
        assert contents(stores(state)) == before
        with pytest.raises(hs.StateClosedError, match="ask for it again"):
            upgraded["names"].get(KEYS[0])


@pytest.mark.parametrize(
    ("version", "upgrade", "match"),
    [
        (-1, None, "version: found -1"),
        (1, {2: pair}, "upgrade: found a function for version 2, expected versions 1 to 1"),
        (0, pair, "upgrade: found a function for version 0"),
    ],
)
def test_a_version_that_cannot_be(tmp_path: Path, version: int, upgrade: Any, match: str) -> None:
    with hs.open(tmp_path / "s") as state, pytest.raises(ValueError, match=match):
        state.key_value("names", version=version, upgrade=upgrade)


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_moment_leaves_values_of_one_version(tmp_path: Path, seed: int) -> None:
    """Every disk that a crash during an upgrade, its commit or the checkpoint behind it may leave opens as the state
    before or behind it, and the upgrade goes on from there."""
    wanted = expected(tmp_path, pair)
    path = tmp_path / "s"
    recorder = Recorder(path)
    state = hs.open(path, _files=recorder)
    first(state)
    state.close()
    began = len(recorder.history)
    state = hs.open(path, _files=recorder)
    stores(state, 1, pair)
    state.commit()
    state.checkpoint(wait=True)
    crash(state)
    versions: set[int] = set()
    for number, disk in enumerate(disks(recorder.history, seed)):
        if disk.moment < began or number % 4 != seed % 4:
            continue
        copy = tmp_path / f"d{number}"
        disk.write(copy)
        with hs.open(copy, _files=QuickFiles()) as opened:
            versions.add(opened.stores["names"].parameters.get("version", 0))
            assert contents(stores(opened, 1, pair)) == wanted
            opened.commit()
    assert versions == {0, 1}


# --- stores of `process` ----------------------------------------------------------------------------------------------


def total(row: dict[str, Any], opened: Any) -> list[dict[str, Any]]:
    """Version 0: a number by user."""
    n = (opened["totals"].get(row["user"]) or 0) + row["x"]
    opened["totals"].put(row["user"], n)
    return [{"user": row["user"], "n": n}]


def both(row: dict[str, Any], opened: Any) -> list[dict[str, Any]]:
    """Version 1: a number and its opposite."""
    n = (opened["totals"].get(row["user"]) or [0, 0])[0] + row["x"]
    opened["totals"].put(row["user"], pair(n))
    return [{"user": row["user"], "n": n}]


ROWS = [{"user": f"u{i % 7}", "ts": i, "x": i} for i in range(60)]


def topology(function: Any, **version: Any) -> hs.Topology:
    stores = [hs.key_value_store("totals", **version)]
    return hs.stream(key="user", timestamp="ts").process(function, stores=stores)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_store_of_process_is_upgraded_with_the_first_commit(tmp_path: Path, shards: int) -> None:
    new = topology(both, version=1, upgrade=pair)
    with Engine(topology(total), tmp_path / "s", shards=shards) as engine:
        engine.process_many(ROWS[:30])
        engine.commit()
    assert [change.verdict for change in new.compare(tmp_path / "s")] == ["taken"]
    (change,) = topology(both, version=1).compare(tmp_path / "s")
    assert (change.verdict, change.note) == ("refused", "pass upgrade= to convert values to version 1")
    with pytest.raises(hs.ProgramMismatchError, match=r"store totals: values of version 0 .*upgrade="):
        Engine(topology(both, version=1), tmp_path / "s", shards=shards)
    with Engine(new, tmp_path / "s", shards=shards) as engine:
        results = engine.process_many(ROWS[30:])
        engine.commit()
    with Engine(new, tmp_path / "always", shards=shards) as engine:
        engine.process_many(ROWS[:30])
        engine.commit()
        assert engine.process_many(ROWS[30:]) == results
    assert new.compare(tmp_path / "s") == []


def test_a_function_of_process_that_raises_leaves_the_job_to_the_old_program(tmp_path: Path) -> None:
    list(topology(total).run(ROWS[:30], tmp_path / "s"))
    with pytest.raises(hs.UpgradeError, match="store 'totals': the value of key 'u0' cannot be upgraded"):
        list(topology(both, version=1, upgrade=lambda value: value["n"]).run(ROWS, tmp_path / "s"))
    results = list(topology(total).run(ROWS, tmp_path / "s"))
    assert results[-30:] == list(topology(total).run(ROWS))[-30:]
