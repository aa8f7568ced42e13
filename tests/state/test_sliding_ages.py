"""Ages of a sliding store: a store beside lists of values, in random orders of what moves and frees them."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.stores.ages import Older
from hybridstore.stores.buckets import SealedBucket
from hybridstore.stores.cold_blocks import SPARING
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
KEYS = 40
SIZE = 300


def _added(total: int, value: int) -> int:
    if value < 0:
        raise ValueError("a value below 0")
    return total + value


AGGREGATORS: dict[str, tuple[Callable[[], hs.Aggregator[Any, Any]], Callable[[list[int]], Any]]] = {
    "sum": (hs.Sum, sum),
    "max": (hs.Max, max),
    "collect": (hs.Collect, list),
    "last": (hs.Last, lambda values: values[-1]),
    "raising": (lambda: hs.Aggregator(lambda: 0, _added, name="raising"), sum),
}


class Life:
    """A state with one store, and the values that it must have."""

    def __init__(self, path: Path, aggregator: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.name, self.monkeypatch = path, aggregator, monkeypatch
        self.make, self.aggregate = AGGREGATORS[aggregator]
        self.values: dict[int, list[tuple[int, int]]] = {}
        self.now, self.number = 0, 0
        self.written = 0  # checkpoints of the writer process
        # scans that are not at their end, with the rows to come
        self.scans: list[tuple[Iterator[Any], list[Any]]] = []
        self.committed: tuple[dict[int, list[tuple[int, int]]], int] = {}, -1
        self.open()

    def open(self) -> None:
        self.state = hs.open(self.path, memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL, durability="os")
        self.store: Any = self.state.sliding("l", size=SIZE, aggregator=self.make())

    def live(self, key: int) -> list[tuple[int, int]]:
        values = self.values.get(key, [])
        return values[bisect_left(values, self.now - SIZE, key=itemgetter(0)) :]

    def all(self) -> list[Any]:
        return [((key, ts), value) for key in sorted(self.values) for ts, value in self.live(key)]

    def drawn(self, dice: random.Random) -> tuple[int, int, int]:
        self.number += 1
        ts = self.now + (dice.randrange(8) if dice.random() < 0.8 else -dice.randrange(SIZE + 5))
        return dice.randrange(KEYS), self.number, ts

    def note(self, key: int, value: int, ts: int) -> bool:
        if ts < self.now - SIZE:
            return False
        self.now = max(self.now, ts)
        insort(self.values.setdefault(key, []), (ts, value), key=itemgetter(0))
        return True

    def expected(self, key: int) -> Any:
        return self.aggregate([value for _, value in self.live(key)])

    def add(self, dice: random.Random) -> None:
        key, value, ts = self.drawn(dice)
        if self.name == "raising" and dice.random() < 0.1 and ts >= self.now - SIZE:
            with pytest.raises(ValueError, match="below 0"):
                self.store.add(key, -1, ts)
            self.now = max(self.now, ts)
            return
        window = self.store.add(key, value, ts)
        if self.note(key, value, ts):
            assert window == (key, self.now - SIZE, self.now, self.expected(key))
        else:
            assert window is None

    def add_many(self, dice: random.Random) -> None:
        rows = [self.drawn(dice) for _ in range(dice.randrange(20))]
        if self.name == "raising" and rows and dice.random() < 0.3:
            at = dice.randrange(len(rows))
            newest = max([self.now, *(ts for _, _, ts in rows[:at])])
            rows[at] = (rows[at][0], -1, newest)
            with pytest.raises(ValueError, match="below 0"):
                self.store.add_many(rows)
            for row in rows[:at]:
                self.note(*row)
            self.now = newest
            return
        for window, row in zip(self.store.add_many(rows), rows, strict=True):
            assert self.note(*row) is (window is not None)
            assert window is None or window[3] == self.expected(row[0])

    def add_columns(self, dice: random.Random) -> None:
        """Add so many rows in order that they are added together, where the aggregator can."""
        times = sorted(self.now + dice.randrange(SIZE // 4) for _ in range(700))
        rows = [(dice.randrange(KEYS), self.number + i, ts) for i, ts in enumerate(times, 1)]
        self.number += 700
        aggregates = self.store.add_columns(*map(list, zip(*rows, strict=True)))
        for aggregate, row in zip(aggregates, rows, strict=True):
            assert self.note(*row)
            assert aggregate == self.expected(row[0])

    def get(self, dice: random.Random) -> None:
        key = dice.randrange(KEYS)
        window = self.store.get(key)
        assert (window is None) is (not self.live(key))
        assert window is None or window == (key, self.now - SIZE, self.now, self.expected(key))

    def fetch(self, dice: random.Random) -> None:
        key = dice.randrange(KEYS)
        assert list(self.store.fetch(key)) == self.live(key)

    def advance(self, dice: random.Random, by: int = 0) -> None:
        self.now += by or dice.randrange(SIZE // 2)
        self.store.advance(self.now)

    def scan(self, dice: random.Random) -> None:
        """Begin one where blocks have room in memory, or none."""
        self.monkeypatch.setattr(SPARING, "room", dice.choice([0, 1 << 40]))
        if dice.random() < 0.5:
            rows, expected = self.store.all(), self.all()
        else:
            rows = self.store.aggregates()
            expected = [(key, self.expected(key)) for key in sorted(self.values) if self.live(key)]
        count = dice.randrange(KEYS)
        assert list(islice(rows, count)) == expected[:count]
        self.scans.append((rows, expected[count:]))

    def read_on(self, dice: random.Random) -> None:
        if self.scans:
            rows, expected = self.scans.pop(dice.randrange(len(self.scans)))
            assert list(rows) == expected

    def load(self, dice: random.Random) -> None:
        """Load a block whole."""
        if self.store._bucket.cold:
            self.store._load(dice.randrange(len(self.store._bucket.cold)))

    def commit(self, _: random.Random) -> None:
        self.state.commit()
        self.committed = {key: list(values) for key, values in self.values.items()}, self.now

    def rollback(self, _: random.Random) -> None:
        self.state.rollback()
        self.scans.clear()
        self.values = {key: list(values) for key, values in self.committed[0].items()}
        self.now = self.committed[1]

    def crash(self, _: random.Random) -> None:
        """End without a close, as a killed process, and open the state again."""
        self.written += self.state.metrics().checkpoints_by_writer_process
        crash(self.state)
        self.scans.clear()
        self.values = {key: list(values) for key, values in self.committed[0].items()}
        self.now = self.committed[1]
        self.open()

    def reopen(self, dice: random.Random) -> None:
        self.commit(dice)
        self.written += self.state.metrics().checkpoints_by_writer_process
        self.state.close()
        self.scans.clear()
        self.open()

    def begin(self, dice: random.Random) -> None:
        """Begin a checkpoint, which sometimes fails."""
        self.commit(dice)
        state = self.state
        state._checkpoints.finish(wait=True)
        with self.monkeypatch.context() as patch:
            if dice.random() < 0.3:
                patch.setattr("hybridstore.state.checkpointer.write_checkpoint", _fails)
            state._begin_checkpoint(state._usable())
            if state._checkpoints.attempt is not None:
                state._checkpoints.attempt.join()

    def finish(self, dice: random.Random) -> None:
        """Use it, and become cold."""
        self.commit(dice)
        if self.state._checkpoints.finish(wait=True) is not None:
            self.state._go_cold()

    def use(self, dice: random.Random) -> None:
        """Use it, and stay as it is."""
        self.commit(dice)
        self.state._checkpoints.finish(wait=True)

    def turn(self, dice: random.Random) -> None:
        """Become cold over the same checkpoint."""
        if self.state._checkpoints.attempt is None and self.state._checkpoints.reader is not None:
            self.commit(dice)
            self.state._go_cold()

    def age(self, _: random.Random) -> None:
        """Let what is in use be freed, as a commit does where memory is short."""
        self.store.age()

    def free(self, dice: random.Random) -> None:
        older, count = self.store._older, dice.choice([5, 50, 10_000])
        before, keys = self.store.spare[1], sum(map(len, older))
        freed = self.store.free(count)
        assert min(before, count) <= freed <= before
        assert sum(map(len, older)) <= keys


def _fails(*_: Any, **__: Any) -> None:
    raise OSError("no space")


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("seed", [22, 30, 44] if STRESS else [22])
def test_a_store_with_generations_equals_lists_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, aggregator: str, beside: bool
) -> None:
    """`beside`: the writer process makes the checkpoints, so that nothing is put together for a copy."""
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0 if beside else 10**9)
    monkeypatch.setattr("hybridstore.stores.sliding_runs.SEALS", 2)
    dice = random.Random(f"{seed} {aggregator} {beside}")
    life = Life(tmp_path / "s", aggregator, monkeypatch)
    life.advance(dice, 1000)
    life.commit(dice)
    steps = [life.add] * 8 + [life.get, life.fetch] * 2
    steps += [
        life.add_many,
        life.commit,
        life.begin,
        life.begin,
        life.finish,
        life.use,
        life.turn,
        life.age,
        life.age,
        life.free,
        life.free,
    ]
    steps += [life.advance, life.load] if dice.random() < 0.5 else []
    steps += [life.scan, life.read_on] if dice.random() < 0.5 else []
    rare = [life.rollback, life.reopen, life.crash, life.add_columns]
    freed = 0
    for _ in range(300):
        (dice.choice(steps) if dice.random() < 0.98 else dice.choice(rare))(dice)
        freed += bool(life.store.ages)
        check_stores(life.state)
    assert list(life.store.all()) == life.all()
    while life.scans:
        life.read_on(dice)
    assert freed
    life.reopen(dice)
    assert not beside or life.written
    assert list(life.store.all()) == life.all()
    life.state.close()


def test_what_changed_before_the_first_of_two_checkpoints_is_not_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    dice, life = random.Random(1), Life(tmp_path / "s", "collect", monkeypatch)
    for number, ts in enumerate((1, 2, 3)):
        life.store.add(0, number, ts)
        life.note(0, number, ts)
        if ts == 1:
            life.begin(dice)
            life.finish(dice)
    life.turn(dice)  # over a checkpoint without the last two values
    for ts in (4, 5):
        life.store.add(1, ts, ts)
        life.note(1, ts, ts)
        life.begin(dice)
        life.use(dice)
    assert life.store.free(1000) == 3
    assert list(life.store.fetch(0)) == life.live(0)
    check_stores(life.state)
    life.state.close()


def _over_a_checkpoint(path: Path) -> hs.State:
    """Return a state that is cold over a checkpoint of 20 keys with four values each, the last one at 79."""
    state = hs.open(path, memory_limit=1 << 40, checkpoints=NEVER, _tuning=SMALL)
    store = state.sliding("l", size=1000, aggregator=hs.Sum())
    for i in range(80):
        store.add(i % 20, i, i)
    state.commit()
    state.checkpoint(wait=True)
    state._go_cold()
    store.free(1000)
    return state


def test_what_has_changed_is_cut_before_a_checkpoint_has_it(tmp_path: Path) -> None:
    with _over_a_checkpoint(tmp_path / "s") as state:
        store: Any = state.sliding("l", size=1000, aggregator=hs.Sum())
        assert store.add(3, 1000, 100)[3] == 3 + 23 + 43 + 63 + 1000
        store.get(4)
        state.commit()
        store.age()
        assert store.free(1000) == 5 + 4
        assert (store._runs, store._older, store._older.cut) == ({}, [], {3: (100, 1000)})
        state._begin_checkpoint(state._usable())
        store.add(3, 2000, 101)  # behind a checkpoint that is in progress
        state.commit()
        store.age()
        assert store.free(1000) == 6
        assert store._older.cut == {3: (100, 101, 1000, 2000)}
        state._checkpoints.finish(wait=True)
        state._go_cold()
        check_stores(state)
        assert store.get(3)[3] == 3 + 23 + 43 + 63 + 3000  # the first of the two is in the blocks now
        assert store.get(4)[3] == 4 + 24 + 44 + 64


def test_a_checkpoint_that_fails_frees_nothing_that_changed_before_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _over_a_checkpoint(tmp_path / "s") as state:
        store: Any = state.sliding("l", size=1000, aggregator=hs.Sum())
        for key, write, seals in ((3, _fails, 0), (3, None, 1), (4, _fails, 1)):
            store.add(key, 1000, 100)
            state.commit()
            with monkeypatch.context() as patch:
                if write:
                    patch.setattr("hybridstore.state.checkpointer.write_checkpoint", write)
                state._begin_checkpoint(state._usable())
                state._checkpoints.finish(wait=True)
            assert len(store._older.seals) == seals
        store.age()
        store.free(1000)
        check_stores(state)
        assert [store.get(key)[3] for key in (3, 4)] == [3 + 23 + 43 + 63 + 2000, 4 + 24 + 44 + 64 + 1000]


def test_what_came_with_a_whole_block_is_not_cut(tmp_path: Path) -> None:
    with _over_a_checkpoint(tmp_path / "s") as state:
        store: Any = state.sliding("l", size=1000, aggregator=hs.Sum())
        for i in range(20):
            store.get(i)
        while store._bucket.cold:
            store._load(0)
        store.age()
        assert (store.free(1000), len(store._runs)) == (0, 20)
        assert store.get(3)[3] == 3 + 23 + 43 + 63


def test_a_commit_beyond_a_quarter_of_the_limit_lets_what_was_used_be_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _over_a_checkpoint(tmp_path / "s") as state:
        store: Any = state.sliding("l", size=1000, aggregator=hs.Sum())
        for filled in (False, True):
            monkeypatch.setattr(state._memory, "_filled", filled)
            store.add(3, 1, 100)
            state.commit()
            assert len(store._older) == filled


@pytest.mark.parametrize("cold", [False, True])
def test_a_store_that_does_not_become_cold_keeps_no_keys_for_each_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)  # nothing is put together for a copy
    with _over_a_checkpoint(tmp_path / "s") if cold else hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store: Any = state.sliding("l", size=1000, aggregator=hs.Sum())
        for number in range(20):
            store.add(number, 1, 100)
            state.commit()
            if number == 0:  # where it is cold, key 0 is cut
                store.age()
                store.free(1000)
            state._begin_checkpoint(state._usable())
            state._checkpoints.finish(wait=True)
        assert sum(len(seal.dirty or ()) for seal in store._older.seals) <= 8
        check_stores(state)
        assert [store.get(key)[3] for key in (0, 3)] == ([121, 133] if cold else [1, 1])


def test_a_failed_checkpoint_leaves_what_is_noted_of_those_before_it() -> None:
    def seal(*keys: int) -> SealedBucket:
        return SealedBucket(set(keys), 0, {})

    older, first, second = Older(), seal(1), seal(2)
    older.note_seal(first)
    older.wide = 1  # the checkpoints are noted one by one
    older.note_seal(second)
    older.forget_seal(second)
    assert older.seals == [first]
    older.wide = 0
    older.note_seal(second)  # and now together
    assert [each.dirty for each in older.seals] == [None]
    older.forget_seal(second)
    assert [each.dirty for each in older.seals] == [None]
    older.seals.clear()
    older.note_seal(new := SealedBucket(None, 0, {}))
    older.newer = 1
    older.forget_seal(new)
    assert (older.seals, older.newer) == ([], 0)


def test_a_store_has_no_more_attributes_than_python_keeps_in_one_place(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        assert len(vars(state.sliding("l", size=SIZE, aggregator=hs.Sum()))) <= 30
