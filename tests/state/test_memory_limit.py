"""One memory budget for the states of a process: past it, what a commit finds in memory goes cold, and nothing is
lost.
"""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.errors import ValueChangedInPlaceError
from hybridstore.state import memory_budget as memory
from hybridstore.state.checkpointer import AttemptBeside
from hybridstore.state.opening import Tuning
from hybridstore.state.policy import Logged
from hybridstore.stores.cold_blocks import OFTEN_KEYS
from recovery.table import RecordTable
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL


@pytest.fixture(autouse=True)
def looked_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.memory.CHECK_COMMITS", 1)


NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
KINDS = ("k", "w", "s", "l", "b")


def fill(s: hs.State, first: int) -> None:
    for i in range(first, first + 50):
        s.key_value("k").put(f"key {i}", i)
        s.window("w", retention="1 hour").put(f"key {i % 5}", i, 1000 * i)
        s.session("s", retention="1 hour").put(f"key {i % 7}", i, start=1000 * i, end=1000 * i)
        s.sliding("l", size="1 hour", aggregator=hs.Sum()).add(f"key {i % 5}", i, 1000 * i)
        s.suppression("b", time_limit="1 hour").put(f"key {i % 70}", i, 1000 * i)
    s.commit()


def contents(s: hs.State) -> list[list[Any]]:
    buffered = list(s.suppression("b", time_limit="1 hour").buffered())
    return [*(list(s.stores[name].all()) for name in ("k", "w", "s", "l")), buffered]


def test_state_may_exceed_memory(tmp_path: Path) -> None:
    with (
        hs.open(tmp_path / "small", memory_limit=60_000, _tuning=SMALL) as small,
        hs.open(tmp_path / "free", _tuning=SMALL) as free,
    ):
        cold = []
        for first in range(0, 1000, 50):
            fill(small, first)
            if small._checkpoints.attempt is not None:
                small._checkpoints.attempt.join()
            cold.append(small.metrics().cold_blocks)
            check_stores(small)
        assert max(cold) > 0
        assert small.metrics().failed_checkpoints == 0
        memory.BUDGET.leave(small._memory)
        for first in range(0, 1000, 50):
            fill(free, first)
        assert free._memory.count() > 60_000
        assert contents(small) == contents(free)
        assert small.sliding("l", size="1 hour", aggregator=hs.Sum()).add("key 1", 1, 1_000_000) == free.sliding(
            "l", size="1 hour", aggregator=hs.Sum()
        ).add("key 1", 1, 1_000_000)


def test_the_smallest_limit_of_any_open_state_governs(tmp_path: Path) -> None:
    with hs.open(tmp_path / "a", memory_limit=1 << 40), hs.open(tmp_path / "b", _tuning=SMALL) as b:
        fill(b, 0)
        b.checkpoint(wait=True)
        b.commit()
        assert b.metrics().cold_blocks == 0
        with hs.open(tmp_path / "c", memory_limit=1000):
            fill(b, 50)
            assert b._checkpoints.attempt is not None
            b._checkpoints.attempt.join()
            b.commit()
            assert b.metrics().cold_blocks > 0
        assert memory.BUDGET.limit == 1 << 40
    assert memory.BUDGET.limit is None


@pytest.mark.parametrize("room", [True, False])
def test_a_block_whose_keys_are_touched_more_often_than_others_is_loaded_whole(tmp_path: Path, room: bool) -> None:
    tuning = Tuning(block_records=200)
    with hs.open(tmp_path / "s", checkpoints=NEVER, memory_limit=1 << 40, _tuning=tuning) as state:  # with tables
        state.key_value("k").put_many({i: -i for i in range(6000)})
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", checkpoints=NEVER, memory_limit=1 << 40 if room else 1, _tuning=tuning) as state:
        users = state.key_value("k")
        assert users.cold_blocks == 30
        # of every block one key after the other: none is touched more often than the others
        touched = [200 * block + key for key in range(OFTEN_KEYS + 6) for block in range(20)]
        assert [users.get(i) for i in touched] == [-i for i in touched]
        assert (users.cold_blocks, users.cold_records) == (30, 6000 - len(touched))
        assert memory.SPARING.room == (1 << 40) // memory.BLOCK_SHARE * room
        del users[5000]
        hot = range(5001, 5190)
        few = [users.get(i) for i in hot[:99]]
        # as many as half of the keys bring the rest in any case
        assert users.cold_blocks == 29 + (not room)
        users[5188] = "new"
        few += [users.get(i) for i in hot[99:]]
        assert few == [-i if i != 5188 else "new" for i in hot]
        assert users.cold_blocks == 29
        assert users.get(5000) is None
        assert len(users) == 5999
        check_stores(state)
        assert list(users.all()) == [(i, -i if i != 5188 else "new") for i in range(6000) if i != 5000]


def of_100_blocks(path: Path, limit: int) -> hs.State:
    """Return a state under a limit, with nothing in memory, of 20,000 records in blocks of 200."""
    tuning = Tuning(block_records=200)
    with hs.open(path, checkpoints=NEVER, _tuning=tuning) as state:
        state.key_value("k").put_many({i: -i for i in range(20_000)})
        state.commit()
        state.checkpoint(wait=True)
    return hs.open(path, checkpoints=NEVER, memory_limit=limit, _tuning=tuning)


def test_until_a_commit_blocks_of_a_part_of_the_limit_are_loaded_whole(tmp_path: Path) -> None:
    with of_100_blocks(tmp_path / "s", limit := 64 * memory.BLOCK_SHARE * 200) as state:
        users = state.key_value("k")
        block = next(iter(users._bucket.cold[0].open())).entry.bytes  # type: ignore[union-attr]
        some = limit // memory.BLOCK_SHARE // block
        assert some < 20
        # two fifths of each block, one block after the other: each is touched more often than those before
        for turn in range(2):
            blocks = users.cold_blocks
            touched = [200 * each + key for each in range(50 * turn, 50 * turn + 50) for key in range(80)]
            assert [users.get(i) for i in touched] == [-i for i in touched]
            assert 1 < blocks - users.cold_blocks <= some
            assert memory.SPARING.room >= 0
            users[-1 - turn] = turn
            state.commit()
        check_stores(state)
        assert len(users) == 20_002


@pytest.mark.parametrize("records", [1, 6000])
def test_a_scan_loads_blocks_only_while_little_of_the_limit_is_used(tmp_path: Path, records: int) -> None:
    with of_100_blocks(tmp_path / "s", 64 * memory.BLOCK_SHARE * 200) as state:
        users = state.key_value("k")
        users.put_many({-1 - i: i for i in range(records)})
        state.commit()
        assert memory.SPARING.full == (records > 1)
        blocks = users.cold_blocks
        assert list(users.scan(90, 4100)) == [(i, -i) for i in range(90, 4101)]
        assert (users.cold_blocks < blocks) == (records == 1)
    assert not memory.SPARING.full


def test_a_touched_key_is_taken_alone_while_memory_is_limited(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", _tuning=SMALL) as state:
        fill(state, 0)
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, _tuning=SMALL) as state:
        users = state.key_value("k")
        blocks, records = users.cold_blocks, users.cold_records
        assert users.get("key 7") == 7
        assert (users.cold_blocks, users.cold_records) == (blocks, records - 1)
        # an absent key is looked for, and nothing is kept of it
        assert users.get("key 77") is None
        assert (users.cold_blocks, users.cold_records) == (blocks, records - 1)
        users["key 7"] = 70
        del users["key 8"]
        buffer = state.suppression("b", time_limit="1 hour")
        buffered = len(buffer)
        buffer.put("key 7", 1, 60_000)
        buffer.put("key 7 is new", 1, 60_000)
        assert len(buffer) == buffered + 1
        check_stores(state)
        state.commit()
        state.checkpoint(wait=True)
        right = contents(state)
        assert dict(right[0]) == {f"key {i}": i for i in range(50) if i != 8} | {"key 7": 70}
        check_stores(state)
    with hs.open(tmp_path / "s") as state:
        assert contents(state) == right


@pytest.mark.stress
def test_an_emission_loads_the_records_that_are_due_and_few_others(tmp_path: Path, seed: int, rounds: int) -> None:
    for turn in range(rounds):
        dice, path = random.Random(seed + turn), tmp_path / str(turn)
        keys = [f"key {i:04}" for i in range(2000)]
        dice.shuffle(keys)
        with hs.open(path, checkpoints=NEVER, memory_limit=1 << 40) as state:
            buffer = state.suppression("b", time_limit=2000)
            for ts, key in enumerate(keys):
                buffer.put(key, ts, ts)
            state.commit()
            state.checkpoint(wait=True)
        with hs.open(path, checkpoints=NEVER, memory_limit=1 << 40) as state:
            buffer = state.suppression("b", time_limit=2000)
            right = list(zip(keys, range(2000), range(2000), strict=True))
            # records that are put again, and so are emitted later
            for key in dice.sample(keys[100:1999], 50):
                right.remove((key, keys.index(key), keys.index(key)))
                buffer.put(key, -1, 1999)
            emitted: list[Any] = []
            for now in sorted(dice.sample(range(2000, 2500), 60)):
                emitted += buffer.put("new", now, now)
                due = now - 2000 + 1
                assert emitted == [row for row in right if row[2] < due]
                assert buffer.records_in_memory <= 51 + 2000 // 8 + 1
                check_stores(state)
            assert buffer.cold_records > 0
            state.commit()
            crash(state)
        with hs.open(path) as state:
            buffer = state.suppression("b", time_limit=2000)
            rest = right[len(emitted) : -1]  # the last one is as late as those that were put again
            assert list(buffer.buffered())[: len(rest)] == rest


def test_counting_loads_no_block_while_memory_is_limited(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", _tuning=SMALL) as state:
        fill(state, 0)
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, _tuning=SMALL) as state:
        users = state.key_value("k")
        users["key 7"], users["key 7 is new"], users["key 8"] = 1, 2, None
        users["key 9 is new"] = 3
        del users["key 9 is new"]
        blocks = users.cold_blocks
        assert len(users) == 50
        check_stores(state)
        assert (users.cold_blocks, len(users)) == (blocks, 50)
        assert (users.get("key 8"), users.get("key 9 is new"), users["key 7"]) == (None, None, 1)
        state.commit()
        state.checkpoint(wait=True)
        check_stores(state)
        assert len(dict(users.all())) == 50


def test_what_was_put_and_deleted_over_a_block_without_it_is_not_read(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        for key in ("a", "c"):
            state.session("s", retention="1 hour").put(key, key, start=1, end=2)
            state.window("w", retention="1 hour").put(key, key, 2)
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", memory_limit=1 << 40) as state:
        sessions, rows = state.session("s", retention="1 hour"), state.window("w", retention="1 hour")
        sessions.put("b", "b", start=1, end=2)
        rows.put("b", "b", 2)
        sessions.delete("b", 1, 2)
        rows.delete("b", 2)
        assert (list(sessions.find_sessions("b")), list(rows.fetch("b"))) == ([], [])
        check_stores(state)
        assert ([key for (key, *_), _ in sessions.all()], [key for (key, _), _ in rows.all()]) == (["a", "c"],) * 2


def test_a_snapshot_keeps_what_is_taken_out_of_its_blocks_later(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", _tuning=SMALL) as state:
        for i in range(40):
            state.window("w", retention="1 hour").put(f"key {i}", i, 1)
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s", memory_limit=1 << 40) as state:
        store = state.window("w", retention="1 hour")
        rows = store.scan("key 0", "key 9")
        assert store.get("key 5", 1) == 5
        store.put("key 5", 50, 1)
        assert store.get("key 6", 1) == 6
        store.put("key 6", 60, 1)
        assert [value for _, value in rows] == sorted(range(40), key=lambda i: f"key {i}")[: len(range(40))]
        assert store.get("key 5", 1) == 50


def test_what_was_in_memory_is_freed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.old_maps.FREED_ENTRIES", 3)
    monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6)
    with hs.open(tmp_path / "s", memory_limit=1 << 40) as state:
        fill(state, 0)
        state.checkpoint(wait=True)
        before = state._memory.count()
        state.commit()  # what came in before is not counted below
        state._go_cold()
        counts = [state._memory.count()]
        entries = sum(map(len, state._memory._old.maps))
        assert entries > 50
        for _ in range(entries):
            state.commit()
            if not state._memory._old.maps:
                break
            counts.append(state._memory.count())
        assert state._memory._old.maps == []
        assert len(counts) > 10
        assert counts == sorted(counts, reverse=True)
        assert before > 0
        assert contents(state)


def test_after_records_were_freed_no_commit_waits_for_a_checkpoint_by_the_count_before(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1000) as state:
        state.key_value("k").put("a", "x" * 2000)
        state.commit()
        assert state._memory._waiting(1) > 0
        state.checkpoint(wait=True)
        state._go_cold()
        assert state._memory._waiting(1) == 0


def test_commits_wait_for_a_checkpoint_before_the_next_one_has_many_records_to_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.memory._CUT_RECORDS", 100)
    monkeypatch.setattr("hybridstore.state.memory._PRESSED", 1.0)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        memory, store = state._memory, state.key_value("k")
        # half as many again as begin a checkpoint
        for records, filled, expected in ((148, True, 0.0), (1, False, 0.0), (1, True, 0.025)):
            memory._filling = filled
            store.put_many((i, i) for i in range(records))
            state.commit()
            memory._filling = filled
            assert memory._waiting(99) == pytest.approx(expected / 1000 * 99)
            assert memory._waiting(1000) == pytest.approx(4 * expected)
        assert memory._waiting(100_000) == 1.0
        state.checkpoint(wait=True)
        assert memory._waiting(1000) == 0


def test_a_checkpoint_begins_where_a_part_of_the_limit_has_changed_and_not_where_it_is_in_memory(
    tmp_path: Path,
) -> None:
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        store = state.key_value("k")
        for changed in (10, 1, 2, 10):  # of ten records, which are three tenths of what the limit has for them
            store.put_many((i, "x" * 29_000) for i in range(changed))
            state.commit()
            assert (state._checkpoints.attempt is not None) == (changed == 10)
            state.checkpoint(wait=True)


def test_a_checkpoint_begins_where_a_flush_has_removed_a_part_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.stores.suppression._PIECE", 100)
    monkeypatch.setattr("hybridstore.state.checkpointer._MOST_HERE", -1)  # of the process, also while it starts
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        buffer, removed = state.suppression("b"), 0
        buffer.put_many((f"key {i:04}", i, i) for i in range(2500))  # seven tenths of what the limit has for them
        state.commit()
        state.checkpoint(wait=True)
        for piece in buffer.flush():
            removed += len(piece)
            state.commit()
            if state._checkpoints.attempt is not None:
                break
        # the log has a record for each piece, and the process reads that
        assert 200 < removed < 1500
        assert isinstance(state._checkpoints.attempt, AttemptBeside)


def test_far_beyond_the_limit_a_commit_waits_until_the_checkpoint_has_been_made(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=3_000_000, checkpoints=NEVER) as state:
        memory, store = state._memory, state.key_value("k")
        waits = ((0, 0.0), (5, 0.0), (6, None), (7, None), (8, 25e-6), (9, 100e-6), (14, 100e-6), (24, 5e-3))
        for records, each in waits:
            while len(store) < records:
                store.put(len(store), "x" * 140_000)
            memory.relief(Logged(1, 1, 2000), renewed=True)
            if each is None:  # from nothing at 80 % to 25 µs at 100 %
                each = 25e-6 * (memory.counted - 800_000) / 200_000
                assert 0 < each < 25e-6
            assert memory._waiting(10) == pytest.approx(10 * each), (records, memory.counted)
        assert memory._waiting(10**6) == 5.0


def test_a_checkpoint_begins_before_there_is_too_much_for_the_writer_process(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        state.key_value("k")["a"] = 1
        state.commit()
        state.checkpoint(wait=True)
        memory, checkpoints = state._memory, state._checkpoints
        for records, enough in ((1, 10_000), (4_000_000, 62_500), (5_000_000, 75_000), (10**9, 75_000)):
            meta = checkpoints.reader.meta
            checkpoints.reader.meta = meta._replace(stores=[meta.stores[0]._replace(records=records)])
            assert not memory._many(Logged(1, 1 << 20, enough - 1))
            assert memory._many(Logged(1, 1 << 20, enough))
            # of large records fewer
            assert memory._many(Logged(1, 6 << 20, 10_000))
            assert not memory._many(Logged(1, 6 << 20, 9_999))


def test_a_commit_that_has_waited_for_a_checkpoint_uses_it(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store = state.key_value("k")
        store.put_many((i, i) for i in range(1000))
        state.commit()
        state.checkpoint()
        state._memory._wait = (1.0, 600.0)
        store.put_many((i, i) for i in range(600))
        state.commit()
        assert state._checkpoints.attempt is None
        assert state.metrics().checkpoint_version == 1


def test_a_commit_that_has_waited_for_a_checkpoint_leaves_it_to_the_next_to_become_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.memory._RENEWED", 0)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store, cold = state.key_value("k"), []
        monkeypatch.setattr(state, "_go_cold", lambda _: cold.append(state.version))
        store.put_many((i, i) for i in range(1000))
        state.commit()
        state.checkpoint()
        state._memory._wait = (600.0, 600.0)
        finish, asked = state._checkpoints.finish, []

        def in_progress_at_first(**how: Any) -> Any:
            asked.append(how)
            return None if len(asked) == 1 else finish(**how)

        monkeypatch.setattr(state._checkpoints, "finish", in_progress_at_first)
        for i in range(3):
            store[i] = -1
            state.commit()
        # version 2 has waited
        assert state.metrics().checkpoint_version == 1
        assert cold == [3]


def test_old_maps_are_freed_as_fast_as_records_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.old_maps.FREED_ENTRIES", 3)
    monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6)
    with hs.open(tmp_path / "s", memory_limit=1 << 40) as state:
        fill(state, 0)
        state.checkpoint(wait=True)
        state._go_cold()
        before = sum(map(len, state._memory._old.maps))
        assert before > 50
        assert contents(state)  # loads more records than the old maps have entries
        state.commit()
        assert state._memory._old.maps == []


@pytest.mark.parametrize("ttl", [None, "1 hour"])
def test_records_of_before_are_not_read_again_until_they_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ttl: str | None
) -> None:
    read: list[Any] = []
    record_of = RecordTable.record_of
    monkeypatch.setattr(RecordTable, "record_of", lambda table, key: [read.append(key), record_of(table, key)][1])
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store = state.key_value("k", ttl=ttl)
        time = () if ttl is None else (1,)
        for i in range(1000):
            store.put(i, i, *time)
        state.commit()
        state.checkpoint(wait=True)
        for i in range(100, 200):
            store.put(i, -i, *time)
        store.delete(200)
        state.commit()
        state._go_cold()
        state.commit()  # without rows that wait for their keys
        store.delete(1)
        store.put(2, "new", *time)
        assert [store.get(i) for i in (0, 1, 2, 3, 100, 199, 200, 201, 999, 1000)] == [
            0, None, "new", 3, -100, -199, None, 201, 999, None
        ]  # fmt: skip
        assert store.get_many([4, 1, 5, 200, 150]) == [4, None, 5, None, -150]
        assert read == []
        store.put(3, "newer", *time)
        store.delete(5)
        assert [store.get(i) for i in (3, 5, 6)] == ["newer", None, 6]
        assert store.get_many(range(600, 700)) == list(range(600, 700))
        before = sum(map(len, store._older))
        assert store.free(10) == 10
        assert sum(map(len, store._older)) == before - 10
        assert store.free(before) == before - 10
        assert store._older == []
        assert store.get(7) == 7
        assert store.get(8) == 8
        assert read == [7, 8]
        assert len(store) == 1000 - 3
        store._check()


def whole_size(item: Any, seen: set[int]) -> int:
    """Return the bytes of an object and all that it refers to, each once, as Python's allocator rounds them."""
    if id(item) in seen or (type(item) is int and -5 <= item < 257):
        return 0
    seen.add(id(item))
    size = -(-sys.getsizeof(item) // 16) * 16
    if isinstance(item, dict):
        return size + sum(whole_size(part, seen) for pair in item.items() for part in pair)
    if isinstance(item, (list, tuple)):
        return size + sum(whole_size(part, seen) for part in item)
    return size


@pytest.mark.parametrize("value", [float, lambda i: [i + 0.5, f"text {i:06}"], lambda i: f"value {i:020}"])
@pytest.mark.parametrize("key", [lambda i: f"key {i:06}", lambda i: i])
def test_the_estimate_is_near_what_a_walk_of_all_objects_counts(tmp_path: Path, key: Any, value: Any) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store, rows = state.key_value("k"), state.window("w", retention="1 hour")
        for i in range(20_000):
            store.put(key(i), value(i))
            rows.put(key(i % 2000), value(i), i)
        state.commit()
        exact = whole_size(store._runs, set()) + sys.getsizeof(store._dirty or ())
        assert 0.85 * exact < store.bytes_in_memory < 1.15 * exact
        seen: set[int] = set()
        exact = sum(whole_size(bucket.runs, seen) for bucket in rows._buckets.values())
        assert 0.85 * exact < rows.bytes_in_memory < 1.25 * exact


def test_a_table_of_an_old_map_counts_until_its_last_entry_is_freed(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store = state.key_value("k")
        for i in range(10_000):
            store.put(i, 1.5)
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        (old,) = store._older
        table = sys.getsizeof(old)
        for _ in range(9_999):
            old.popitem()
        assert sys.getsizeof(old) == table > 200_000
        assert store.spare[0] >= table


def test_a_state_that_becomes_cold_counts_no_record_twice(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store, memory = state.key_value("k"), state._memory
        store.put_many((f"key {i}", f"value {i}") for i in range(20_000))
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        while memory._old.maps:
            memory._old.free(0, 0)
        assert store.free(30_000) == 20_000
        for i in range(0, 20_000, 4):  # taken out of their blocks, which know the keys, too
            assert store.get(f"key {i}") == f"value {i}"
        before = memory.count()
        assert before > 5000 * 100
        state._go_cold()
        assert 0.9 * before < memory.count() <= before
        while memory._old.maps:
            memory._old.free(0, 0)
        (older,) = store._older
        assert (len(older), memory.count() > before // 2) == (5000, True)


def test_values_that_debug_watches_are_freed_with_the_records(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER, debug=True) as state:
        store, watching = state.key_value("k"), state._group._watching
        assert watching is not None
        store.put_many((i, [i]) for i in range(100))
        state.commit()
        state.checkpoint(wait=True)
        assert len(watching._watched) == 100
        state._go_cold()
        assert not watching._watched
        changed = [1]
        store.put(1, changed)
        changed.append(2)
        with pytest.raises(ValueChangedInPlaceError):
            state.commit()


def test_the_bytes_of_each_kind_are_estimated_from_its_records(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", _tuning=SMALL) as state:
        sizes = []
        for first in range(0, 2000, 50):
            fill(state, first)
            sizes.append({name: state.stores[name].bytes_in_memory for name in KINDS})
        for name in KINDS:
            assert 0 < sizes[0][name] < sizes[-1][name]
        # a dict, its keys and its numbers: about 200 bytes a record, whatever Python's release
        assert 90 < sizes[-1]["k"] / 2000 < 300  # 98 from Python 3.12 on
        big = state.key_value("big")
        for i in range(100):
            big.put(i, {"text": "x" * 1000, "list": list(range(1000, 1100))})
        # 1,049 bytes of text, 100 places and 100 numbers
        assert 100 * 4000 < big.bytes_in_memory < 100 * 8000


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="memory_limit: found"):
        hs.open(tmp_path / "s", memory_limit=limit)
    assert not (tmp_path / "s").exists()
