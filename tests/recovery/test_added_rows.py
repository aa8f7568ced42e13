"""A checkpoint writes the rows that were added to a key, not all its rows; under a limit it reads no block for that."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import BY_ADVANCE
from hybridstore.state.opening import Tuning
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError
from tests.conftest import STRESS
from tests.tools.checkpoints import reader_of, verify
from tests.tools.hooks import crash

HOUR = 3_600_000
NO_CHECKPOINTS = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
LIMITS = pytest.mark.parametrize("limit", [None, 1 << 40], ids=["decoded", "tables"])
KINDS = pytest.mark.parametrize("kind", ["window", "duplicates", "session", "sliding"])


def opened(path: Path, limit: int | None) -> hs.State:
    tuning = Tuning(block_records=256)
    return hs.open(path, durability="os", memory_limit=limit, checkpoints=NO_CHECKPOINTS, _tuning=tuning)


def store_of(state: hs.State, kind: str) -> Any:
    if kind == "session":
        return state.session("it", retention="64 hours")
    if kind == "sliding":
        return state.sliding("it", size="1 hour", aggregator=hs.Sum())
    return state.window("it", retention="64 hours", retain_duplicates=kind == "duplicates")


def put(store: Any, kind: str, key: str, value: Any, ts: int) -> None:
    if kind == "session":
        store.put(key, value, start=max(0, ts - 7), end=ts)
    elif kind == "sliding":
        store.add(key, value, ts)
    else:
        store.put(key, value, ts)


@LIMITS
@KINDS
def test_a_row_added_to_a_key_with_many_rows_is_what_a_checkpoint_writes(
    tmp_path: Path, kind: str, limit: int | None
) -> None:
    with opened(tmp_path, limit) as state:
        store = store_of(state, kind)
        for i in range(8000):
            put(store, kind, f"key {i % 20:02}", i, 10 * i)
        state.commit()
        state.checkpoint(wait=True)
        whole = state._checkpoints.last
        assert whole is not None
        for turn in range(3):
            for i in range(20):
                put(store, kind, f"key {i:02}", i, 80_000 + 100 * turn + i)
            state.commit()
            state.checkpoint(wait=True)
            last = state._checkpoints.last
            assert last is not None
            assert last.bytes_packed < whole.bytes_packed / 20, (turn, last.bytes_packed, whole.bytes_packed)
        right = list(store.all())
    assert list(verify(tmp_path, decode=True)) == []
    with opened(tmp_path, limit) as state:
        assert list(store_of(state, kind).all()) == right


@LIMITS
@KINDS
@pytest.mark.parametrize("seed", range(2 if STRESS else 1))
def test_rows_added_late_deleted_and_over_unloaded_blocks_are_those_of_a_twin(
    tmp_path: Path, kind: str, limit: int | None, seed: int
) -> None:
    r = random.Random(seed)
    now = 0
    with opened(tmp_path / "twin", None) as twin:
        state = opened(tmp_path / "state", limit)
        for step in range(24):
            stores = [store_of(each, kind) for each in (state, twin)]
            for _ in range(r.choice((1, 5, 120))):
                key, value = f"key {r.randrange(30):02}", r.randrange(1000)
                now += r.choice((0, 1, 1, 1000))
                ts = max(0, now - r.choice((0, 0, 0, 0, 3, 50_000)))
                if kind in ("window", "session") and r.random() < 0.1:
                    ((_, *at), _) = r.choice(list(stores[1].all()) or [((key, ts, ts), None)])
                    for store in stores:
                        store.delete(key, *at)
                    continue
                for store in stores:
                    put(store, kind, key, value, ts)
            state.commit()
            twin.commit()
            if step % 4 == 3:  # a checkpoint fails: what it had is in the next one
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("hybridstore.state.checkpointer.write_checkpoint", fail)
                    with suppress(CheckpointError):  # none is made where nothing has changed
                        state.checkpoint(wait=True)
            else:
                state.checkpoint(wait=True)
            if step % 5 == 4:
                state.close()
                assert list(verify(tmp_path / "state", decode=True)) == []
                state = opened(tmp_path / "state", limit)
            if step % 6 == 5:
                store_of(state, kind)._check()
                assert list(store_of(state, kind).all()) == list(stores[1].all())
        state.close()
        with opened(tmp_path / "state", limit) as state:
            assert list(store_of(state, kind).all()) == list(stores[1].all())


@LIMITS
@pytest.mark.parametrize("kind", ["window", "session"])
def test_rows_put_and_deleted_over_an_unloaded_block_are_nothing_to_write(
    tmp_path: Path, kind: str, limit: int | None
) -> None:
    with opened(tmp_path, limit) as state:
        store = store_of(state, kind)
        for i in range(200):
            put(store, kind, f"key {i:03}", i, 10 * i)
        right = list(store.all())
        state.commit()
        state.checkpoint(wait=True)
        put(store, kind, "key 050 and a half", 1, 5000)
        store.delete("key 050 and a half", *((4993, 5000) if kind == "session" else (5000,)))
        state.commit()
        crash(state)
    with opened(tmp_path, limit) as state:  # the replay deletes over the block, which stays unloaded
        state.checkpoint(wait=True)
        assert state.metrics().failed_checkpoints == 0
    assert list(verify(tmp_path, decode=True)) == []
    with opened(tmp_path, limit) as state:
        assert list(store_of(state, kind).all()) == right


@LIMITS
@pytest.mark.parametrize("kind", ["window", "duplicates", "session"])
def test_late_batches_of_a_store_timed_by_advance_are_in_the_next_checkpoint(
    tmp_path: Path, kind: str, limit: int | None
) -> None:
    with opened(tmp_path, limit) as state:
        parameters = store_of(state, kind).parameters | BY_ADVANCE
        name = "session" if kind == "session" else "window"
        store = state._open_store("advanced", name, parameters)
        store.advance(10_000)
        for first in (5000, 1000):  # the second batch is earlier than all rows of the checkpoint
            keys, times = [f"key {first + i}" for i in range(50)], list(range(first, first + 50))
            store.put_columns(keys, *([times, times, times] if kind == "session" else [times, times]))
            state.commit()
            state.checkpoint(wait=True)
        right = list(store.all())
        assert len(right) == 100
    with opened(tmp_path, limit) as state:
        assert list(state.stores["advanced"].all()) == right


def fail(*_: Any, **__: Any) -> None:
    raise OSError("no space left")


def test_under_a_limit_no_block_is_decoded_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, 1 << 40) as state:
        for kind in ("window", "session"):
            store = state.window(kind, retention="64 hours") if kind == "window" else store_of(state, kind)
            for i in range(4000):
                put(store, kind, f"key {i % 40:02}", i, 10 * i)
        state.commit()
        state.checkpoint(wait=True)
    with opened(tmp_path, 1 << 40) as state:
        window, session = state.window("window", retention="64 hours"), store_of(state, "session")
        window.put("key 07", -7, 39_670)  # over a row of a block that is not loaded
        window.put("key 08", 8, 40_000)
        session.put("key 09", 9, start=39_000, end=40_000)
        state.commit()
        with monkeypatch.context() as patch:
            for name in ("parts", "block"):
                patch.setattr(CheckpointReader, name, lambda *_: pytest.fail("a block is decoded"))
            state.checkpoint(wait=True)
        assert window.get("key 07", 39_670) == -7
        assert window.get("key 07", 470) == 47
        assert window.get("key 08", 40_000) == 8
        assert session.get("key 09", 39_000, 40_000) == 9
    assert list(verify(tmp_path, decode=True)) == []


@pytest.mark.parametrize("kind", ["window", "session"])
def test_rows_of_a_bucket_that_was_emptied_twice_around_a_failed_checkpoint_do_not_return(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, None) as state:
        store = store_of(state, kind)
        for turn in range(2):
            put(store, kind, f"key {turn}", turn, 10)
            state.commit()
            if turn:
                with monkeypatch.context() as patch:
                    patch.setattr("hybridstore.state.checkpointer.write_checkpoint", fail)
                    with pytest.raises(CheckpointError):
                        state.checkpoint(wait=True)
            else:
                state.checkpoint(wait=True)
            store.delete(f"key {turn}", *((3, 10) if kind == "session" else (10,)))
            state.commit()
        assert list(store.all()) == []
        state.checkpoint(wait=True)
    with opened(tmp_path, None) as state:
        assert list(store_of(state, kind).all()) == []


@LIMITS
def test_a_block_that_only_grows_is_written_again_when_it_is_divided(tmp_path: Path, limit: int | None) -> None:
    bases: list[set[bytes]] = []
    with opened(tmp_path, limit) as state:
        store = store_of(state, "window")
        for turn in range(7):
            first = 0 if turn == 0 else 160 + 40 * turn
            for i in range(first, 200 + 40 * turn):
                put(store, "window", f"key {i % 4}", b"%080d" % i, 1000 * i)
            state.commit()
            state.checkpoint(wait=True)
            with closing(reader_of(tmp_path, turn + 1)) as reader:
                bases.append({line.hash for line in reader.directory(1)})
        right = list(store.all())
    # 240 to 360 records are layers over the base of 200, and 400 are too many for one block
    assert bases[:5] == bases[:1] * 5
    assert len(bases[5]) == 2
    assert bases[5].isdisjoint(bases[0])
    assert list(verify(tmp_path, decode=True)) == []
    with opened(tmp_path, limit) as state:
        assert list(store_of(state, "window").all()) == right


def test_blocks_that_change_equally_much_are_not_all_written_anew_at_one_checkpoint(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    blocks, every = 48, 32
    with opened(tmp_path, 1 << 40) as state:
        store = state.key_value("it")
        written = []
        for turn in range(-1, 24):
            numbers = range(256 * blocks) if turn < 0 else range(turn % every, 256 * blocks, every)
            store.put_many((i, dice.randbytes(20)) for i in numbers)
            state.commit()
            state.checkpoint(wait=True)
            assert state._checkpoints.last is not None
            written.append(state._checkpoints.last.bytes_packed)
    whole, *later = written
    # the layers of all blocks have a third of the bytes of their bases at the eleventh
    assert whole / 2 < sum(later[10:]) < 4 * whole
    assert max(later) < 0.3 * whole
