"""`store.erase(key)`: a running job erases a key; a crash leaves it erased, or ordered and done at the next opening."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from changelog.storage import LocalStorage
from hybridstore.cli import run
from hybridstore.errors import StatePoisonedError
from hybridstore.rewinding import fork as forking
from hybridstore.state import in_place
from hybridstore.state.directory import State
from hybridstore.state.registry import forks_of, kept_from_erase
from recovery.errors import RestoreError
from recovery.layout import CheckpointName, list_checkpoints
from recovery.meta import read_meta
from tests.conftest import STRESS
from tests.state.test_erase import KEEP, bytes_left, content, fill, kill_from, secrets, without
from tests.state.test_fork import Killed
from tests.state.test_rewind import SMALL
from tests.tools.faults import kill_points
from tests.tools.hooks import check_stores, crash

STORES = ("users", "clicks", "visits", "rates")


def order(state: hs.State, key: Any = "key-ann") -> None:
    for name in STORES:
        state.stores[name].erase(key)


@pytest.mark.parametrize("seed", range(4))
def test_a_running_job_erases_a_key_and_goes_on(tmp_path: Path, seed: int) -> None:
    seen = fill(tmp_path, seed)
    hs.pin(tmp_path, "good")
    with hs.open(tmp_path, checkpoints=KEEP, _tuning=SMALL) as state:
        content(state)
        users = state.key_value("users")
        users["key-ann"] = "secret-ann. before the order"
        order(state)
        users["key-ann"] = "secret-ann. behind the order"
        users["key-new"] = 1
        version = state.commit()
        expected = without(seen)
        expected["users"]["key-new"] = 1
        assert not secrets(tmp_path)
        assert content(state) == expected
        assert state.version == version
        check_stores(state)
        assert [(entry["keys"], entry["prefix"]) for entry in state.settings["erasures"]] == [(4, False)]
        # the job goes on, and may write the key again
        for number in range(5):
            users["key-ann"] = number
            users["key-bob"] = number
            state.commit()
            state.checkpoint(wait=number % 2 == 0)
        assert state.version == version + 5
        digest = state.digest
    assert run(["inspect", "verify", str(tmp_path), "--full"]) == 0
    assert run(["inspect", "verify", str(tmp_path / "pins" / "good"), "--full"]) == 0
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        assert (state.version, state.digest) == (version + 5, digest)
        expected["users"] |= {"key-ann": 4, "key-bob": 4}
        assert content(state) == expected
        check_stores(state)


def test_an_order_is_part_of_the_version(tmp_path: Path) -> None:
    seen = fill(tmp_path, 1)
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        content(state)
        version = state.version
        order(state)
        state.rollback()
        assert (state.commit(), content(state)) == (version, seen)
        with pytest.raises(TypeError, match="key"):
            state.key_value("users").erase(5)
        assert state.commit() == version
        order(state)
    # closed without a commit: as after a crash, the order is lost with its version
    with hs.open(tmp_path) as state:
        assert (state.version, content(state)) == (version, seen)
    assert secrets(tmp_path)


def killed_again(path: Path, last: int, act: Any) -> bool:
    """Whether `act` ended although every step that changes a file fails from number `last` on."""
    with pytest.MonkeyPatch.context() as patch:
        kill_from(patch, last)
        try:
            act()
        except (Killed, StatePoisonedError):
            return False
    return True


def test_whenever_it_is_killed_the_key_is_erased_at_the_next_opening(tmp_path: Path) -> None:
    seen = fill(tmp_path / "origin", 3, 6)
    hs.pin(tmp_path / "origin", "good")
    ordered = lost = 0
    for last in kill_points(4):
        path = tmp_path / f"s{last}"
        shutil.copytree(tmp_path / "origin", path)
        state = hs.open(path, checkpoints=KEEP, _tuning=SMALL)
        content(state)
        order(state)
        done = killed_again(path, last, state.commit)
        crash(state)
        # what is there says what is to be done: nothing was ordered, it is ordered, or all is erased
        with hs.open(path, at="newest") as before:
            pending = before.settings.get("erase")
            rows, entries = content(before), before.settings.get("erasures", [])
        if pending is None and not entries:
            lost += 1
            assert rows == seen
        else:
            ordered += pending is not None
            with hs.open(path, checkpoints=KEEP, _tuning=SMALL) as state:
                assert content(state) == without(seen)
                check_stores(state)
                assert state.settings["erase"] is None
                assert [entry["keys"] for entry in state.settings["erasures"]] == [4]
            with hs.open(path / "pins" / "good", at="newest") as pin:
                assert len(pin.settings["erasures"]) == 1
            assert not secrets(path)
            for place in (path, path / "pins" / "good"):
                assert run(["inspect", "verify", str(place), "--full"]) == 0
        shutil.rmtree(path)
        if done:
            assert pending is None
            assert last > 40
            assert ordered > (30 if STRESS else 6)
            assert lost
            return


def test_the_opening_that_continues_may_be_killed_too(tmp_path: Path) -> None:
    seen = fill(tmp_path / "origin", 5, 5)
    draw = random.Random(1)
    for first in range(8, 60, 7):
        path = tmp_path / f"s{first}"
        shutil.copytree(tmp_path / "origin", path)
        state = hs.open(path, checkpoints=KEEP, _tuning=SMALL)
        content(state)
        order(state)
        if killed_again(path, first, state.commit):
            break
        crash(state)
        for _ in range(6):
            if killed_again(path, draw.randrange(60), lambda path=path: hs.open(path, checkpoints=KEEP).close()):
                break
        with hs.open(path, checkpoints=KEEP, _tuning=SMALL) as state:
            rows = content(state)
            if state.settings.get("erasures"):
                assert rows == without(seen)
                assert not secrets(path)
            else:
                assert rows == seen
        assert run(["inspect", "verify", str(path), "--full"]) == 0


def test_forks_are_refused_by_choice_and_stay_unharmed(tmp_path: Path) -> None:
    seen = fill(tmp_path / "s", 2)
    hs.fork(tmp_path / "s", tmp_path / "f")
    with hs.open(tmp_path / "s", checkpoints=KEEP) as state:
        content(state)
        with pytest.raises(hs.HybridStoreError, match=f"found forks, which may have the key: {tmp_path / 'f'} "):
            order(state)
        for name in STORES:
            state.stores[name].erase("key-ann", leave_forks=True)
        state.commit()
        assert content(state) == without(seen)
    assert not secrets(tmp_path / "s")
    with hs.open(tmp_path / "f") as state:
        assert content(state) == seen


def test_an_order_of_a_killed_job_is_done_by_the_command_in_pins_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = fill(tmp_path, 3, 6)
    hs.pin(tmp_path, "good")

    def killed(*args: Any, **named: Any) -> None:
        raise Killed

    state = hs.open(tmp_path, checkpoints=KEEP)
    content(state)
    order(state)
    with monkeypatch.context() as patch:
        patch.setattr(State, "_erase", killed)
        with pytest.raises(Killed):
            state.commit()
    crash(state)
    hs.erase(tmp_path, "key-bob")
    for path in (tmp_path, tmp_path / "pins" / "good"):
        with hs.open(path, at="newest") as opened:
            assert content(opened) == without(without(seen), "key-bob")
            assert [entry["keys"] for entry in opened.settings["erasures"]] == [4, 1]
    assert not secrets(tmp_path)


def test_an_erase_waits_for_a_fork_that_is_being_made(tmp_path: Path) -> None:
    seen = fill(tmp_path, 2)
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        content(state)
        order(state)
        with kept_from_erase(tmp_path):
            state.commit()
            assert state.settings["erase"]
            assert secrets(tmp_path)
        state.commit()
        assert state.settings["erase"] is None
        assert content(state) == without(seen)
        assert not secrets(tmp_path)


@pytest.mark.parametrize("running", [False, True])
def test_what_killed_forks_and_pins_have_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    path = tmp_path / "s"
    fill(path, 2, 5)

    def killed(*args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(forking, "_copy", killed)
        patch.setattr(shutil, "rmtree", killed)
        for make in (lambda: hs.fork(path, tmp_path / "f"), lambda: hs.pin(path, "good")):
            with pytest.raises(Killed):
                make()
    assert len([*tmp_path.glob(".f.*.fork"), *path.glob("pins/.good.*.fork")]) == 2
    if running:
        with hs.open(path) as state:
            for name in STORES:
                state.stores[name].erase("key-ann", leave_forks=True)
            state.commit()
    else:
        hs.erase(path, "key-ann")
    assert not [*tmp_path.glob(".f.*.fork"), *path.glob("pins/.good.*.fork")]
    assert not secrets(tmp_path)


def test_a_key_of_a_store_that_was_written_anew_is_erased_in_the_one_of_before_too(tmp_path: Path) -> None:
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.key_value("users").put_many({"key-ann": "secret-ann.", "key-bob": "b"})
        state.key_value("others")["key-bob"] = 1
        state.commit()
        state.checkpoint(wait=True)
        users = state.key_value("users", version=1, upgrade=lambda value: [value])
        state.commit()
        state.checkpoint(wait=True)
        users.erase("key-ann")
        state.commit()
        assert not secrets(tmp_path)
        assert dict(users.all()) == {"key-bob": ["b"]}
        assert [entry["keys"] for entry in state.settings["erasures"]] == [1]
    assert hs.prove(tmp_path, "key-ann").traces == []


def test_a_fork_that_is_made_behind_the_order_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = fill(tmp_path / "s", 2)
    known = hs.fork(tmp_path / "s", tmp_path / "known")
    with hs.open(tmp_path / "s", checkpoints=KEEP) as state:
        content(state)
        for name in STORES:
            state.stores[name].erase("key-ann", leave_forks=True)
        fork = hs.fork(tmp_path / "s", tmp_path / "made-since")
        pin = hs.pin(tmp_path / "s", "since")
        state.commit()
        assert content(state) == without(seen)
    (line,) = [each.getMessage() for each in caplog.records if "forks may have what was erased" in each.getMessage()]
    assert str(fork) in line
    assert str(known) not in line
    assert not secrets(tmp_path / "s")
    assert not secrets(pin.path)
    assert secrets(fork)


def test_a_pin_of_a_topology_that_is_made_behind_the_order_keeps_it_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = fill(tmp_path, 2)
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        content(state)
        state.set("topology", {"key": ["k"]})
        state.commit()
        order(state)
        hs.pin(tmp_path, "since")
        state.commit()
        assert len(state.settings["erase"]) == len(STORES)
        assert "nothing is erased yet" in caplog.text
        hs.unpin(tmp_path, "since")
        state.commit()
        assert state.settings["erase"] is None
        assert content(state) == without(seen)
    assert not secrets(tmp_path)


def forget(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
    if row.get("forget"):
        stores["seen"].erase(row["k"])
        return []
    stores["seen"][row["k"]] = stores["seen"].get(row["k"], 0) + 1
    return [{"k": row["k"], "seen": stores["seen"][row["k"]]}]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_row_that_asks_to_be_forgotten(tmp_path: Path, shards: int) -> None:
    topology = hs.stream(key="k", timestamp="ts").process(forget, None, [hs.key_value_store("seen")])
    source = [{"k": f"key-{number % 7}", "ts": number, "forget": False} for number in range(300)]
    source += [{"k": "key-3", "ts": 300, "forget": True}]
    rest = [{"k": f"key-{number % 3}", "ts": 301 + number, "forget": False} for number in range(60)]
    rows = [dict(row) for row in topology.run(source, tmp_path, shards=shards, commit_rows=50)]
    assert {row["k"] for row in rows} == {f"key-{number}" for number in range(7)}
    assert not bytes_left(tmp_path, b"key-3")
    assert bytes_left(tmp_path, b"key-4")
    more = [dict(row) for row in topology.run(source + rest, tmp_path, shards=shards, commit_rows=50)]
    assert [row["seen"] for row in more if row["k"] == "key-1"][-1] == 43 + 20
    assert not bytes_left(tmp_path, b"key-3")


@pytest.mark.parametrize("shards", [1, 2])
def test_an_order_that_waits_is_not_ordered_again(
    tmp_path: Path, shards: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pinned(row: dict[str, Any], stores: Any) -> list[dict[str, Any]]:
        rows = forget(row, stores)
        if row["ts"] == 100:
            hs.pin(tmp_path, "behind")  # behind the order, which waits for its removal
        if row["ts"] == 500:
            hs.unpin(tmp_path, "behind")
        return rows

    topology = hs.stream(key="k", timestamp="ts").process(pinned, None, [hs.key_value_store("seen")])
    source = [{"k": f"key-{number % 7 if number < 100 else 4}", "ts": number} for number in range(600)]
    source[100] = {"k": "key-3", "ts": 100, "forget": True}
    committed, waiting = hs.State.commit, list[int]()

    def commit(state: hs.State) -> int:
        version = committed(state)
        waiting.append(len(state.settings.get("erase") or ()))
        return version

    monkeypatch.setattr(hs.State, "commit", commit)
    for _ in topology.run(source, tmp_path, shards=shards, commit_rows=50):
        pass
    # of the store and of the results; of a shard beside it those of the results
    assert set(waiting) == ({0, 2} if shards == 1 else {0, 1, 2})
    assert "nothing is erased yet" in caplog.text
    assert not bytes_left(tmp_path, b"key-3")


def test_a_run_of_several_shards_is_killed_at_any_write_of_an_erase(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").process(forget, None, [hs.key_value_store("seen")])
    source = [{"k": f"key-{number % 7}", "ts": number, "forget": number == 66} for number in range(72)]
    for _ in topology.run(source[:60], tmp_path / "origin", shards=2, commit_rows=20):
        pass
    halves = 0
    # each fourth write, so that the test is short; all were tried when it was written
    for last in itertools.count(2, 4):
        path = tmp_path / f"s{last}"
        shutil.copytree(tmp_path / "origin", path)

        def rest(path: Path = path) -> None:
            for _ in topology.run(source, path, shards=2, commit_rows=20):
                pass

        done = killed_again(path, last, rest)
        halves += not done and bool(bytes_left(path, b"key-3"))
        rest()
        assert not bytes_left(path, b"key-3")
        counts = {row.key: row.value for shard in "01" for row in hs.inspect(path / shard)["seen"]}
        assert counts == {f"key-{key}": len(range(key, 72, 7)) for key in range(7) if key != 3}
        shutil.rmtree(path)
        if done:
            break
    assert last > 40
    assert halves > 3


def test_an_erase_in_a_shard_waits_for_a_fork_of_its_topology(tmp_path: Path) -> None:
    topology = hs.stream(key="k", timestamp="ts").process(forget, None, [hs.key_value_store("seen")])
    source = [{"k": f"key-{number % 7}", "ts": number, "forget": number == 94} for number in range(100)]
    for _ in topology.run(source[:50], tmp_path, shards=2, commit_rows=25):
        pass
    with kept_from_erase(tmp_path):
        for _ in topology.run(source[:95], tmp_path, shards=2, commit_rows=25):
            pass
        assert bytes_left(tmp_path, b"key-3")
    for _ in topology.run(source[:95], tmp_path, shards=2, commit_rows=25):
        pass
    assert not bytes_left(tmp_path, b"key-3")


def test_the_packs_of_an_erase_are_as_small_as_those_of_a_limit_of_memory(tmp_path: Path) -> None:
    draw = random.Random(2)
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        state.key_value("users").put_many({f"key-{number}": draw.randbytes(2000) for number in range(4000)})
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path, checkpoints=KEEP, memory_limit=20_000_000) as state:
        users = state.key_value("users")
        users.erase("key-77")
        state.commit()
        assert state.settings["erase"] is None
        assert max(each.stat().st_size for each in (tmp_path / "packs").iterdir()) < 3_000_000
        assert users.get("key-77") is None
        assert {key for key, _ in users.all()} == {f"key-{number}" for number in range(4000) if number != 77}


@pytest.mark.parametrize("erased", [True, False])
def test_an_order_behind_an_erase_that_waits_keeps_the_entry_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, erased: bool
) -> None:
    fill(tmp_path, 2)

    def killed(*given: Any, **options: Any) -> None:
        raise Killed

    state = hs.open(tmp_path, checkpoints=KEEP)
    content(state)
    order(state)
    with monkeypatch.context() as patch:
        patch.setattr(in_place, "sweep", killed)
        assert not killed_again(tmp_path, 1 << 30, state.commit)
    crash(state)
    # of two checkpoints of a version the hash in their names decides which one opens: one alone remains here, as behind
    # a kill within the sweep, or a kill before the erased checkpoint
    storage = LocalStorage(tmp_path)
    names = list_checkpoints(storage)
    other = [name for name in names if name.version == names[-1].version and is_erased(storage, name) != erased]
    assert len(other) == 1
    storage.delete([str(name) for name in other])
    with kept_from_erase(tmp_path):
        state = hs.open(tmp_path, checkpoints=KEEP)
        assert state.settings["erase"] == (
            True if erased else [[store, "key-ann", False, False, 0, 0] for store in STORES]
        )
        state.key_value("users").erase("key-bob")
    state.commit()
    assert [entry["keys"] for entry in state.settings["erasures"]] == ([4, 1] if erased else [5])
    assert state.key_value("users").get("key-bob") is None
    state.close()
    assert not secrets(tmp_path)


def is_erased(storage: LocalStorage, name: CheckpointName) -> bool:
    """Whether a checkpoint of an erase has no trace of the keys: its settings say so."""
    return read_meta(storage, name).settings["erase"] is True


def test_a_damaged_checkpoint_of_the_version_is_not_taken_for_the_erased_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = fill(tmp_path, 2)

    def killed(*given: Any, **options: Any) -> None:
        raise Killed

    state = hs.open(tmp_path, checkpoints=KEEP)
    content(state)
    order(state)
    with monkeypatch.context() as patch:
        patch.setattr(in_place, "sweep", killed)
        assert not killed_again(tmp_path, 1 << 30, state.commit)
    crash(state)
    storage = LocalStorage(tmp_path)
    newest = list_checkpoints(storage)[-1].version
    names = [name for name in list_checkpoints(storage) if name.version == newest]
    whole = next(str(name) for name in names if type(read_meta(storage, name).settings["erase"]) is list)
    (tmp_path / whole).rename(tmp_path / str(CheckpointName(newest, 0, "f" * 32)))
    with hs.open(tmp_path, checkpoints=KEEP) as state:
        assert content(state) == without(seen)
        assert state.settings["erase"] is None
        assert [entry["keys"] for entry in state.settings["erasures"]] == [4]
    assert not secrets(tmp_path)


def test_a_fork_of_a_fork_is_named_where_the_one_in_between_was_removed_before(tmp_path: Path) -> None:
    first, second, third, fourth = (tmp_path / name for name in "abcd")
    fill(first, 4, 4)
    hs.fork(first, second)
    hs.fork(second, third)
    shutil.rmtree(second)
    hs.fork(third, fourth)
    with pytest.raises(RestoreError, match=f"found forks that have the keys: {third}, {fourth} "):
        hs.erase(first, "key-ann")
    hs.erase(first, "key-ann", forks="erase")
    for state in (first, third, fourth):
        assert hs.prove(state, "key-ann").traces == []


def test_a_place_that_is_a_fork_of_its_own_fork_is_erased_once(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    fill(first, 4, 4)
    hs.fork(first, second)
    first.rename(tmp_path / "moved")
    hs.fork(second, first)
    shutil.rmtree(first)
    (tmp_path / "moved").rename(first)
    assert hs.erase(first, "key-ann", forks="erase").places == [first, second]


def test_an_erase_leaves_a_fork_that_is_being_made_of_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, fourth = (tmp_path / name for name in "abcd")
    fill(first, 4, 4)
    hs.fork(first, second)
    hs.fork(second, third)
    shutil.rmtree(second)  # the next fork locks the third state, and not the first one
    fill_fork = forking._fill

    def filled(*given: Any) -> None:
        fill_fork(*given)
        assert hs.erase(first, "key-ann", forks="leave").holders == [third]

    monkeypatch.setattr(forking, "_fill", filled)
    hs.fork(third, fourth)
    assert secrets(fourth)
    assert hs.erase(first, "key-ann", forks="leave").holders == [third, fourth]


def test_a_look_at_forks_keeps_the_note_of_one_that_is_about_to_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, fork = tmp_path / "a", tmp_path / "b"
    fill(state, 4, 4)
    note_fork, seen = forking.note_fork, list[int]()

    def noted(origin: Path, place: Path, files: Files) -> None:
        note_fork(origin, place, files)
        if place == fork:
            seen.append(len(forks_of(state)))

    monkeypatch.setattr(forking, "note_fork", noted)
    hs.fork(state, fork)
    assert (seen, forks_of(state)) == ([1], [fork])
    assert len(list((state / "forks").iterdir())) == 1
