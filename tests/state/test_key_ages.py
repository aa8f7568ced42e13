"""Key ages: a key-value store beside a dict, in random orders of what moves, frees and reads its records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.storage import Storage
from hybridstore.state import checkpoint_job
from hybridstore.state.checkpoint_job import Outcome
from hybridstore.stores import expiries, key_blocks
from hybridstore.stores.cold_blocks import SPARING
from recovery import finder_writer
from recovery.finder import UNKNOWN, Finder, FinderMaps
from recovery.finder_writer import StateFinders
from tests.conftest import STRESS
from tests.state.test_interrupts import Interrupt
from tests.tools.hooks import check_stores
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
KEYS = 60
TTL = 20


class Life:
    """A state with one store, and the dict that it must be equal to."""

    def __init__(self, path: Path, ttl: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = hs.open(path, memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL, durability="os")
        self.store: Any = self.state.key_value("k", ttl=ttl)
        self.rows: dict[Any, Any] = {}
        self.timed, self.monkeypatch, self.now = ttl is not None, monkeypatch, 100
        self.times: dict[int, int] = {}  # of a row with a ttl
        # scans that are not at their end, with the rows to come
        self.scans: list[tuple[Iterator[Any], list[Any]]] = []
        self.placed = 0  # how many records were read by a finder

    def use_finder(self, dice: random.Random) -> None:
        """Have the finders of most checkpoints, as if the writer process made these."""
        monkeypatch, finders, maps = self.monkeypatch, StateFinders(self.state.path / "checkpoints"), FinderMaps()
        monkeypatch.setattr(finder_writer, "FEWEST_RECORDS", 1)
        monkeypatch.setattr(finder_writer, "_AT_ONCE", dice.choice([0, 1000]))
        value_of = Finder.value_of

        def counted(self_: Finder, key: Any) -> Any:
            value = value_of(self_, key)
            self.placed += value is not UNKNOWN
            return value

        def opened(storage: Storage, outcome: Outcome) -> Outcome:
            if outcome.report is not None and dice.random() < 0.8:
                files = finders.follow(storage, outcome.report.name, lambda: None)
                while dice.random() < 0.9 and finders.enter_some():
                    pass
                return checkpoint_job.opened(storage, outcome._replace(finders=files), maps)
            return checkpoint_job.opened(storage, outcome)

        monkeypatch.setattr(Finder, "value_of", counted)
        monkeypatch.setattr("hybridstore.state.checkpointer.opened", opened)

    def time(self, dice: random.Random) -> list[int]:
        """Draw the time of a row with a ttl, which may be late, or too late."""
        return [self.now + dice.randrange(-TTL - 2, 3)] if self.timed else []

    def add(self, key: int, value: Any, *time: int) -> None:
        if time and time[0] <= self.now - TTL:
            return
        self.rows[key] = value
        if time:
            self.times[key], self.now = time[0], max(self.now, *time)
            for other in [each for each, ts in self.times.items() if ts <= self.now - TTL]:
                del self.times[other]
                self.rows.pop(other, None)

    def put(self, dice: random.Random) -> None:
        row = dice.randrange(KEYS), dice.random(), *self.time(dice)
        self.store.put(*row)
        self.add(*row)

    def put_many(self, dice: random.Random) -> None:
        rows = [(dice.randrange(KEYS), dice.random(), *self.time(dice)) for _ in range(dice.randrange(30))]
        self.store.put_many(rows)
        for row in rows:
            self.add(*row)

    def get(self, dice: random.Random) -> None:
        key = dice.randrange(KEYS)
        assert self.store.get(key) == self.rows.get(key)

    def get_many(self, dice: random.Random) -> None:
        keys = [dice.randrange(KEYS) for _ in range(dice.randrange(20))]
        assert self.store.get_many(keys) == [self.rows.get(key) for key in keys]

    def delete(self, dice: random.Random) -> None:
        key = dice.randrange(KEYS)
        assert self.store.delete(key) == self.rows.pop(key, None)

    def scan(self, dice: random.Random) -> None:
        """Begin one where blocks have room in memory, or none."""
        (first, last), reverse = sorted(dice.sample(range(KEYS), 2)), dice.random() < 0.5
        self.monkeypatch.setattr(SPARING, "room", dice.choice([0, 1 << 40]))
        rows = self.store.scan(first, last, reverse=reverse)
        expected = sorted(((key, self.rows[key]) for key in self.rows if first <= key <= last), reverse=reverse)
        count = dice.randrange(KEYS)
        assert list(islice(rows, count)) == expected[:count]
        self.scans.append((rows, expected[count:]))

    def read_on(self, dice: random.Random) -> None:
        if self.scans:
            rows, expected = self.scans.pop(dice.randrange(len(self.scans)))
            assert list(rows) == expected

    def length(self, _: random.Random) -> None:
        assert len(self.store) == len(self.rows)

    def commit(self, _: random.Random) -> None:
        self.state.commit()

    def begin(self, dice: random.Random) -> None:
        """Begin a checkpoint, which sometimes fails."""
        state, memory = self.state, self.state._memory
        state.commit()
        state._checkpoints.finish(wait=True)
        memory._filled = dice.random() < 0.8
        with self.monkeypatch.context() as patch:
            if dice.random() < 0.3:
                patch.setattr("hybridstore.state.checkpointer.write_checkpoint", _fails)
            state._begin_checkpoint(state._usable())
            if state._checkpoints.attempt is not None:
                state._checkpoints.attempt.join()

    def finish(self, _: random.Random) -> None:
        """Use it, and become cold."""
        self.state.commit()
        if self.state._checkpoints.finish(wait=True) is not None:
            self.state._go_cold()

    def use(self, _: random.Random) -> None:
        """Use it, and stay as it is."""
        self.state.commit()
        self.state._checkpoints.finish(wait=True)

    def turn(self, _: random.Random) -> None:
        """Become cold over the same checkpoint."""
        if self.state._checkpoints.attempt is None and self.state._checkpoints.reader is not None:
            self.state.commit()
            self.state._go_cold()

    def free(self, dice: random.Random) -> None:
        store: Any = self.store
        before, count = sum(map(len, store._older[store._older.fresh :])), dice.randrange(40)
        assert store.free(count) == min(before, count)
        assert sum(map(len, store._older[store._older.fresh :])) == max(0, before - count)


def _fails(*_: Any, **__: Any) -> None:
    raise OSError("no space")


@pytest.mark.parametrize("ttl", [None, TTL])
@pytest.mark.parametrize("seed", range(18 if STRESS else 6))
def test_a_store_with_generations_equals_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ttl: int | None
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(expiries, "_MOST", dice.choice([8, 4096]))
    life = Life(tmp_path / "s", ttl, monkeypatch)
    if life.timed:
        life.store.put(0, "first", life.now)
        life.add(0, "first", life.now)
    if seed % 3:
        life.use_finder(dice)
    steps = [life.put, life.get, life.delete] * 4
    steps += [life.put_many, life.get_many, life.commit, life.begin, life.finish, life.use, life.turn, life.free]
    # few scans: some load whole blocks
    steps += [life.scan, life.read_on, life.length] if seed % 2 else []
    parted = 0
    with life.state:
        for _ in range(400):
            dice.choice(steps)(dice)
            parted += life.store.parted
            check_stores(life.state)
        assert dict(life.store.all()) == life.rows
        while life.scans:
            life.read_on(dice)
        life.state.commit()
    assert parted
    assert seed % 2 or bool(life.placed) is bool(seed % 3)
    with hs.open(tmp_path / "s") as state:
        assert dict(state.key_value("k", ttl=ttl).all()) == life.rows


def test_a_store_has_no_more_attributes_than_python_keeps_in_one_place(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        assert len(vars(state.key_value("k"))) <= 30


def test_a_block_that_is_loaded_whole_has_no_row_in_place_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "s", None, monkeypatch)
    with life.state as state:
        store = life.store
        store.put_many((i, "old") for i in range(40))
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        assert store.free(40) == 40
        store.put_many((i, "new") for i in (4, 5))
        store.delete(7)
        state.commit()
        state._memory._filled = True
        state._begin_checkpoint(state._usable())
        assert (store.parted, store.get(4)) == (True, "new")  # moves into the dict
        store.delete(8)
        while store._bucket.cold:
            store._load(0)
        check_stores(state)
        expected = ["old", "new", "new", "old", None, None, "old"]
        assert store.get_many(range(3, 10)) == expected
        assert state._checkpoints.finish(wait=True) is not None
        state._go_cold()
        check_stores(state)
        assert store.get_many(range(3, 10)) == expected
        assert len(store) == 38


def _parted(life: Life, value: str, ts: int) -> Any:
    """Return the store while a checkpoint is made of a row that it has in memory, over a block with an older one."""
    state, store = life.state, life.store
    store.put("a", "first", 100)
    state.commit()
    state.checkpoint(wait=True)
    state._go_cold()
    store.free(10)
    store.put("a", value, ts)
    state.commit()
    state._memory._filled = True
    state._begin_checkpoint(state._usable())
    assert store.parted
    return store


def test_a_row_that_was_put_apart_and_expires_leaves_no_older_row_with_a_later_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "s", TTL, monkeypatch)
    with life.state as state:
        store = _parted(life, "late", 95)
        store.put("b", 1, 116)  # 95 has expired, and 100 has not
        assert [store.get("a"), store.get("a")] == [None, None]
        state.commit()
        state._checkpoints.finish(wait=True)
        state._go_cold()
        assert store.get("a") is None
        check_stores(state)
    with hs.open(tmp_path / "s") as state:
        assert dict(state.key_value("k", ttl=TTL).all()) == {"b": 1}


@pytest.mark.parametrize("scan", [False, True])
def test_a_deleted_row_that_was_put_apart_stays_deleted_when_the_block_below_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan: bool
) -> None:
    life = Life(tmp_path / "s", TTL, monkeypatch)
    with life.state as state:
        store = _parted(life, "newer", 115)
        assert store.delete("a") == "newer"
        store.put("b", 1, 121)  # all rows of the block have expired
        assert store.get("a") is None
        if scan:
            assert dict(store.all()) == {"b": 1}
            check_stores(state)
        state._checkpoints.finish(wait=True)  # of a version that has the row
        state._go_cold()
        check_stores(state)
        assert store.get("a") is None
        assert dict(store.all()) == {"b": 1}


def test_a_far_block_is_not_read_for_what_an_older_dict_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life, asked = Life(tmp_path / "s", None, monkeypatch), list[list[int]]()
    store = life.store
    with life.state as state:
        store.put_many((i, i) for i in range(40))
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        assert store.get(7) == 7  # in the dict
        store.delete(9)
        assert store.free(4) == 4
        freed = [i for i in range(40) if i not in (7, 9) and not any(i in older for older in store._older)]
        monkeypatch.setattr(type(store), "far", property(lambda _: True))
        monkeypatch.setattr(key_blocks, "prefetch", lambda _, wanted: asked.extend(list(keys) for _, keys in wanted))
        assert store.get_many(range(40)) == [*range(9), None, *range(10, 40)]
    assert asked == [freed]
    assert len(freed) == 4


def test_a_count_that_is_interrupted_at_any_line_leaves_no_deleted_key_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on = 0
    for nth in count(1):
        life = Life(tmp_path / str(nth), None, monkeypatch)
        store, state = life.store, life.state
        with state:
            store.put_many((i, i) for i in range(20))
            state.commit()
            state._memory._filled = True
            state._begin_checkpoint(state._usable())
            store.delete(3)
            assert store.parted
            interrupt = Interrupt(nth, KeyboardInterrupt)
            with suppress(KeyboardInterrupt), interrupt:
                len(store)
            with suppress(hs.StatePoisonedError):
                assert (len(store), store.get_many([3, 4])) == (19, [None, 4])
                went_on += 1
        if interrupt.seen < nth:
            break
    assert 10 < went_on < nth


def test_records_that_were_not_used_for_long_are_freed_as_others_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.memory.FREED_ENTRIES", 10)
    monkeypatch.setattr("hybridstore.state.memory._KEPT", 0.0)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        store, memory = state.key_value("k"), state._memory
        store.put_many((i, i) for i in range(1000))
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        assert store.get_many(range(700, 1000)) == list(range(700, 1000))
        state.commit()
        state._go_cold()
        memory._sure = False  # counted at the next commit
        store.put(0, "new")
        state.commit()
        assert list(map(len, store._older)) == [300, 700]
        assert store.bytes_in_memory > 1000 * 60  # the older dicts, too
        for i in range(2000, 2200):
            store.put(i, i)
            if i % 20 == 19:
                state.commit()
        assert list(map(len, store._older)) == [300, 700 - 181]  # those of the last commit are still to come
        assert memory.numbers()["freed_records"] == 181
        assert memory.numbers()["freed_bytes"] > 181 * 40


def test_more_records_are_freed_for_each_that_comes_in_the_more_memory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = []
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        state.key_value("k").put_many((i, i) for i in range(100))
        state.commit()
        memory = state._memory
        used = memory.count()
        for share in (0.5, 0.75, 0.9, 1.1):
            monkeypatch.setattr("hybridstore.state.memory.usable", lambda _, share=share: round(used / share))
            memory.needed()
            freed.append(memory._freeing)
    assert freed == [0, 1, 2, 4]


@pytest.mark.parametrize("ttl", [None, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_where_memory_is_short_keeps_no_row_and_reads_a_checkpoint_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ttl: int | None, reverse: bool
) -> None:
    life = Life(tmp_path / "s", ttl, monkeypatch)
    with life.state as state:
        store: Any = state.key_value("pairs", ttl=ttl)
        rows = {(f"{i // 10:02}", i): i * 0.5 for i in range(400)}
        # of those with a time every fourth expires, in memory and in blocks
        store.put_many((key, value, *([key[1] % 4] if ttl else [])) for key, value in rows.items())
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        store.free(400)
        store.delete(("03", 33))
        store.put(("03", 34), -1.0, *([4] if ttl else []))
        store.put(("99", 0), 1.0, *([100] if ttl else []))
        del rows["03", 33]
        rows |= {("03", 34): -1.0, ("99", 0): 1.0}
        if ttl:
            rows = {key: value for key, value in rows.items() if key[1] % 4 or key == ("99", 0)}
        monkeypatch.setattr(SPARING, "room", 0)
        before = store.records_in_memory

        def between(first: tuple[str, int], last: tuple[str, int]) -> list[Any]:
            return sorted(((key, rows[key]) for key in rows if first <= key <= last), reverse=reverse)

        for prefix in ("00", "03", "39", "40", "99"):
            expected = between((prefix, 0), (prefix, 400))
            assert list(store.scan(prefix=(prefix,), reverse=reverse)) == expected
        assert list(store.scan(("02", 25), ("05", 51), reverse=reverse)) == between(("02", 25), ("05", 51))
        scan, expected = store.all(reverse=reverse), between(("00", 0), ("99", 0))
        assert list(islice(scan, 20)) == expected[:20]
        assert store.records_in_memory == before
        if ttl:
            by_time = store.by_time()
            assert {key: value for key, value, _ in by_time} == rows
            assert [ts for _, _, ts in by_time] == sorted(ts for _, _, ts in by_time)
        for key in list(rows):
            store.put(key, "new", *([100] if ttl else []))
        for _ in range(3):
            state.commit()
            state.checkpoint(wait=True)
            state._go_cold()
        assert list(scan) == expected[20:]
        scan = store.all(reverse=reverse)
        monkeypatch.setattr(SPARING, "room", 0)
        assert next(scan)[1] == "new"
    with pytest.raises(hs.StateClosedError):
        list(scan)
