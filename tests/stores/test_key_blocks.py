"""Blocks of the stores of one dict by key that are read in but not yet in the dict: `lazy=False`, and what happens
over them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.opening import Tuning
from recovery.checkpoint import CheckpointReader
from tests.conftest import STRESS
from tests.tools.checkpoints import flip, own_packs
from tests.tools.hooks import crash
from tests.tools.sizes import SMALL_PARTS

_TUNING = Tuning(block_records=8, frame_records=10, parts=SMALL_PARTS)


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path, durability="os", _tuning=_TUNING, **options)


def stores_of(state: hs.State) -> tuple[Any, Any, Any, Any]:
    return (
        state.key_value("plain"),
        state.key_value("timed", ttl=1000),
        state.sliding("sliding", size=1000, aggregator=hs.Sum()),
        state.suppression("held", time_limit=1000),
    )


def content(state: hs.State) -> list[list[Any]]:
    plain, timed, sliding, buffer = stores_of(state)
    return [list(plain.all()), list(timed.all()), list(sliding.all()), list(buffer.buffered())]


def filled(path: Path, rows: int = 200) -> list[list[Any]]:
    with opened(path) as state:
        plain, timed, sliding, buffer = stores_of(state)
        for i in range(rows):
            key = f"{i * 7 % rows:04d}"
            plain.put(key, i)
            timed.put(key, i, i)
            sliding.add(key, i, i)
            buffer.put(key, i, i)
        state.commit()
        state.checkpoint(wait=True)
        return content(state)


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read: list[int] = []
    block = CheckpointReader.block

    def counted(self: CheckpointReader, store: int, entry: Any) -> Any:
        read.append(entry.block)
        return block(self, store, entry)

    monkeypatch.setattr(CheckpointReader, "block", counted)
    return read


def test_what_was_read_in_is_never_read_again(tmp_path: Path, blocks_read: list[int]) -> None:
    expected = filled(tmp_path)
    with opened(tmp_path, lazy=False) as state:
        read = len(blocks_read)
        assert read > 80
        stores = stores_of(state)
        for store in stores:
            assert store.cold_blocks == store.cold_records == 0
            assert store.decoded_blocks > 20
            assert store.num_records == 200
            store._check()
        assert content(state) == expected
        assert [store.decoded_blocks for store in stores] == [0] * 4
        assert len(blocks_read) == read


def test_commits_put_what_was_read_in_into_the_dict(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    with opened(tmp_path, lazy=False) as state:
        commits = 0
        while any(store.decoded_blocks for store in stores_of(state)):
            state.set("count", commits)
            state.commit()
            commits += 1
            assert commits < 200
        assert content(state) == expected
    with opened(tmp_path, lazy=False) as state:
        assert state.hydrate(0) > 80
        assert state.hydrate(60_000) == 0
        assert content(state) == expected


def test_a_damaged_block_is_found_when_it_is_read_in(tmp_path: Path) -> None:
    filling = "x" * 1000
    with opened(tmp_path) as state:
        state.key_value("plain").put_many([(f"{i:04d}", f"value {i} {filling}") for i in range(200)])
        state.commit()
        state.checkpoint(wait=True)
    (file,) = own_packs(tmp_path, 1)
    flip(file, file.read_bytes().rindex(b"value 150"))
    with pytest.raises(hs.errors.CorruptCheckpointError, match="block checksum mismatch"):
        opened(tmp_path, lazy=False)
    with opened(tmp_path, lazy=False) as state:
        assert len(state.key_value("plain")) == 200


@pytest.mark.parametrize("seed", range(8 if STRESS else 4))
def test_changes_over_what_was_read_in(tmp_path: Path, seed: int) -> None:
    """The same changes to a state that is read in at every restart, and to one that never restarts."""
    dice = random.Random(seed)
    first, second = tmp_path / "left", tmp_path / "right"
    filled(first)
    filled(second)
    a, b = opened(first, lazy=False), opened(second)
    now = 200
    for _ in range(120):
        choice = dice.random()
        key = f"{dice.randrange(220):04d}"
        now += dice.choice([0, 1, 1, 40])
        if choice < 0.1:
            a.commit()
            crash(a)
            a = opened(first, lazy=False)
            b.commit()
        elif choice < 0.2:
            for state in (a, b):
                state.commit()
                state.checkpoint(wait=True)
        elif choice < 0.25:
            for state in (a, b):
                state.rollback()
        elif choice < 0.4:
            assert stores_of(a)[0].delete(key) == stores_of(b)[0].delete(key)
        elif choice < 0.5:
            assert stores_of(a)[1].delete(key) == stores_of(b)[1].delete(key)
        elif choice < 0.55:
            assert [len(store) for store in stores_of(a)[:2]] == [len(store) for store in stores_of(b)[:2]]
        else:
            for state in (a, b):
                plain, timed, _, _ = stores_of(state)
                plain.put(key, now)
                timed.put(key, now, now)
            assert stores_of(a)[2].add(key, now, now) == stores_of(b)[2].add(key, now, now)
            assert stores_of(a)[3].put(key, now, now) == stores_of(b)[3].put(key, now, now)
        for store in stores_of(a):
            store._check()
    assert content(a) == content(b)
    a.close()
    b.close()


def test_rows_of_a_loaded_block_expire_behind_many_that_were_overwritten(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("timed", ttl=1000)
        store.put_many([(f"{i:04d}", i, 100) for i in range(20)])
        state.commit()
        state.checkpoint(wait=True)
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("timed", ttl=1000)
        for ts in range(200, 265):
            store.put("0000", ts, ts)
        assert store.get("0003") == 3
        store._check()
        store.put("0019", "new", 1150)
        assert list(store.all()) == [("0000", 264), ("0019", "new")]


def test_a_new_key_that_is_deleted_over_a_cold_block_leaves_the_order(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("plain")
        store.put_many([(f"{i:04d}", i) for i in range(40)])
        state.commit()
        state.checkpoint(wait=True)
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("plain")
        store.put("0030x", "new")
        assert list(store.scan("0000", "0002")) == [("0000", 0), ("0001", 1), ("0002", 2)]
        assert store.delete("0030x") == "new"
        store._check()
        assert len(list(store.scan("0000", "0002"))) == 3
        store.put("0030x", "again")
        store._check()
        store.delete("0030x")
        assert len(list(store.scan("0000", "0002"))) == 3
        store.put_many([("0030x", "and again"), ("0030y", "new")])
        store._check()
        assert [key for key, _ in store.scan("0030", "0031")] == ["0030", "0030x", "0030y", "0031"]
        assert len(list(store.all())) == 42
        store._check()


@pytest.mark.parametrize("tuples", [False, True])
def test_a_range_or_a_prefix_loads_only_the_blocks_that_can_hold_it(
    tmp_path: Path, blocks_read: list[int], tuples: bool
) -> None:
    keys: list[Any] = [(f"{i // 20:02d}", i % 20) if tuples else f"{i // 20:02d}{i % 20:02d}" for i in range(400)]
    with opened(tmp_path) as state:
        state.key_value("plain").put_columns(keys, list(range(400)))
        state.commit()
        state.checkpoint(wait=True)
    for reverse in (False, True):
        with opened(tmp_path) as state:
            store: Any = state.key_value("plain")
            blocks = store.cold_blocks
            assert blocks > 40
            blocks_read.clear()
            prefix = ("07",) if tuples else "07"
            actual = list(store.scan(prefix=prefix, reverse=reverse))
            assert actual == list(zip(keys, range(400), strict=True))[140:160][:: -1 if reverse else 1]
            # twenty rows lie in blocks of eight, and the first and the last hold others, too
            assert 3 <= len(blocks_read) <= 4
            assert store.cold_blocks == blocks - len(blocks_read)
            assert list(store.scan(prefix=("99",) if tuples else "99")) == []
            assert (
                list(store.scan(keys[200], keys[203], reverse=reverse))
                == [(keys[i], i) for i in range(200, 204)][:: -1 if reverse else 1]
            )
            assert len(blocks_read) <= 6
            store._check()


@pytest.mark.parametrize("ttl", [None, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_many_are_got_as_one_by_one(tmp_path: Path, blocks_read: list[int], ttl: int | None, seed: int) -> None:
    random_ = random.Random(seed)
    with opened(tmp_path) as state:
        store: Any = state.key_value("plain", ttl=ttl)
        for i in range(0, 400, 2):
            store.put(f"{i:04d}", i, None if ttl is None else i)
        state.commit()
        state.checkpoint(wait=True)
    with opened(tmp_path) as state:
        store = state.key_value("plain", ttl=ttl)
        blocks = store.cold_blocks
        assert store.get_many([]) == store.get_many(["a", "b", "a"][:0]) == []
        assert store.get_many(["0002", "0002", "0003", "zzzz"]) == [2, 2, None, None]
        assert len(blocks_read) == 1
        assert store.cold_blocks == blocks - 1
        for _ in range(30):
            key, ts = f"{random_.randrange(400):04d}", None if ttl is None else 400
            if random_.random() < 0.5:
                store.delete(key)
            else:
                store.put(key, [key], ts)
            wanted = [f"{random_.randrange(400):04d}" for _ in range(random_.randrange(12))]
            assert store.get_many(wanted) == [store.get(wanted_key) for wanted_key in wanted]
        store._check()
        with pytest.raises(TypeError, match="key 3: found int, expected str"):
            store.get_many(["0002", 3])


@pytest.mark.parametrize(
    ("keys", "bad", "message"),
    [
        ([1, 2, 2**63 - 1], 2**63, "found an int beyond 64 bits"),
        ([1, 2, 3], True, "found bool, expected int as in"),
        ([b"a", b"b", b"c"], "a", "found str, expected bytes as in"),
        ([0.5, 1.5, -1.0], float("nan"), "key nan: found a float without order"),
        ([("a", 1), ("a", 2), ("b", 1)], ("a", "1"), "element 1: found str"),
        ([("a", 1), ("a", 2), ("b", 1)], "a", "found str, expected tuple as in"),
    ],
)
def test_many_are_refused_as_one_is(tmp_path: Path, keys: list[Any], bad: Any, message: str) -> None:
    with opened(tmp_path) as state:
        store: Any = state.key_value("plain")
        # an empty store has no type yet, and asking gives it none
        assert store.get_many(keys) == [None] * 3
        assert not store._keys.known
        store.put_columns(keys, [1, 2, 3])
        assert store.get_many(keys[::-1]) == [3, 2, 1]
        for ask in (store.get, lambda key: store.get_many([keys[0], key]), lambda key: store.get_many([key])):
            with pytest.raises((TypeError, ValueError), match=message):
                ask(bad)
        known = store._keys.describe()
        if type(keys[0]) is tuple:
            assert store.get_many([("a", 1, 0.5)]) == [None]
        assert store._keys.describe() == known
    with pytest.raises(hs.HybridStoreError):
        store.get_many(keys)
