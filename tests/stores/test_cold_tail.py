"""What a replay leaves to wait: rows go to their places when their keys are touched, and nobody can tell when
that was.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from changelog.mutation import PUT_AT, PUT_COLUMNS
from hybridstore.stores import cold_tail
from hybridstore.stores.buckets import TOMBSTONE
from hybridstore.stores.cold_tail import ColdTail
from tests.tools.hooks import crash
from tests.tools.shard_tools import provider
from tests.tools.vector_runner import SMALL, SMALL_RUNS, SMALL_TAIL

KEYS = [f"k{i}" for i in range(8)]
OPEN: dict[str, Callable[[Any], Any]] = {
    "key_value": lambda state: state.key_value("s"),
    "key_value with a ttl": lambda state: state.key_value("s", ttl=40),
    "window": lambda state: state.window("s", retention=40, grace=30),
    "window of duplicates": lambda state: state.window("s", retention=40, retain_duplicates=True),
    "session": lambda state: state.session("s", retention=40),
    "sliding": lambda state: state.sliding("s", size=40, aggregator=hs.Collect()),
}


def rows_of(given: Any) -> Any:
    return list(given) if isinstance(given, Iterator) else given


class Twins:
    """The same calls on several stores, which must answer alike."""

    def __init__(self, kind: str, dice: random.Random) -> None:
        self.kind, self.dice = kind, dice
        self.now = 50

    def time(self) -> int:
        """A time near the boundary of what is live, now and then later than all before."""
        self.now += self.dice.choice([0, 0, 0, 1, 2, 5, 30])
        return max(0, self.now - self.dice.choice([0, 0, 1, 5, 25, 39, 41]))

    def row(self, key: str) -> tuple[Any, ...]:
        value = self.dice.randrange(1000)
        if self.kind == "key_value":
            return key, value
        if self.kind == "session":
            end = self.time()
            return key, value, max(0, end - self.dice.randrange(6)), end
        return key, value, self.time()

    def some(self) -> list[str]:
        return self.dice.choices(KEYS, k=self.dice.choice([1, 2, 3, 9]))

    def write(self) -> Callable[[Any], Any]:
        rows = [self.row(key) for key in self.some()]
        act = self.dice.random()
        key = rows[0][0]
        if act < 0.5:
            return lambda store: rows_of((store.add_many if self.kind == "sliding" else store.put_many)(rows))
        if act < 0.75 or self.kind == "sliding":
            return lambda store: (store.add if self.kind == "sliding" else store.put)(*rows[0])
        if self.kind.startswith("key_value"):
            return lambda store: store.delete(key)
        if self.kind == "session":
            return lambda store: store.delete(key, *rows[0][2:])
        return lambda store: store.delete(key, rows[0][2])

    def read(self) -> Callable[[Any], Any]:
        keys, ts = self.some(), max(0, self.now - self.dice.randrange(45))
        key, act = keys[0], self.dice.random()
        if self.kind.startswith("key_value"):
            if act < 0.5:
                return lambda store: store.get(key)
            return (lambda store: store.get_many(keys)) if act < 0.95 else (lambda store: len(store))
        if self.kind.startswith("window") and act < 0.5:
            return (lambda store: store.get(key, ts)) if act < 0.3 else (lambda store: store.get_many(keys, ts))
        if self.kind == "session" and act < 0.3:
            return lambda store: list(store.find_sessions(key, ts - 20, ts))
        if self.kind == "sliding" and act < 0.5:
            return lambda store: store.get(key)
        return lambda store: list(store.fetch(key))


def same(stores: list[Any], call: Callable[[Any], Any]) -> None:
    answers = [call(store) for store in stores]
    assert all(answer == answers[0] for answer in answers), answers
    for store in stores:
        store._check()


def content(store: Any) -> list[Any]:
    return list(store.all())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, bound in (SMALL_RUNS | SMALL_TAIL).items():
        monkeypatch.setattr(place, bound)


@pytest.mark.stress
@pytest.mark.parametrize("kind", OPEN)
def test_a_row_that_waited_is_as_one_that_was_applied(
    kind: str, tmp_path: Path, seed: int, rounds: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    for number in range(20 * rounds):
        folder = tmp_path / str(number)
        twins = Twins(kind, dice)
        with hs.open(folder / "waits", durability="os", _tuning=SMALL) as state:
            store = OPEN[kind](state)
            for step in range(dice.randrange(1, 25)):
                twins.write()(store)
                if dice.random() < 0.5:
                    state.commit()
                if step and dice.random() < 0.1:
                    state.commit()
                    state.checkpoint(wait=True)
            state.commit()
            expected = content(store)
            crash(state)
        shutil.copytree(folder / "waits", folder / "applied")
        monkeypatch.setattr(cold_tail, "FREE_LOOKS", dice.choice([0, 2, 10**9]))
        states = [hs.open(folder / name, durability="os", _tuning=SMALL) for name in ("waits", "applied")]
        try:
            stores = [OPEN[kind](state) for state in states]
            stores[1].apply_waiting()
            assert stores[1].waiting_rows == 0
            assert content(stores[1]) == expected
            assert stores[0].stream_time == stores[1].stream_time
            for _ in range(dice.randrange(12)):
                same(stores, twins.write() if dice.random() < 0.5 else twins.read())
                if dice.random() < 0.1:
                    assert states[0].commit() == states[1].commit()
            same(stores, content)
            assert states[0].commit() == states[1].commit()
            assert states[0].digest == states[1].digest
            states[0].checkpoint(wait=True)
            crash(states[0])
            with hs.open(folder / "waits", durability="os", _tuning=SMALL) as state:
                assert content(OPEN[kind](state)) == content(stores[1])
        finally:
            for state in states:
                crash(state)


@pytest.mark.parametrize("kind", OPEN)
def test_a_worker_that_catches_up_answers_as_the_one_that_was_there(
    kind: str, tmp_path: Path, seed: int, small: None
) -> None:
    dice = random.Random(seed)
    twins = Twins(kind, dice)
    here, there = (provider(tmp_path) for _ in range(2))
    version = 0
    for _ in range(12):
        # one of them commits a few versions, while the other sees none of them
        for _ in range(dice.randrange(1, 4)):
            state = here.get_store(version)
            for _ in range(3):
                twins.write()(OPEN[kind](state))
            version = state.commit()
        last = here.get_store(version)
        state = there.get_store(version)
        stores = [OPEN[kind](loaded) for loaded in (last, state)]
        for _ in range(dice.randrange(5)):
            same(stores, twins.read())
        if dice.random() < 0.3:
            same(stores, content)
        last.abort()
        twins.write()(stores[1])
        version = state.commit()
        here, there = there, here


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9)), max_size=40),
    st.lists(st.one_of(st.sets(st.sampled_from(KEYS), min_size=1), st.integers(1, 9)), max_size=8),
)
def test_a_tail_gives_each_row_once_and_those_of_a_key_in_order(
    rows: list[tuple[str, int]], asked: list[set[str] | int]
) -> None:
    tail = ColdTail(2)
    for key, value in rows[:5]:
        tail.add(key, value)
    tail.extend([key for key, _ in rows[5:]], [value for _, value in rows[5:]])
    remaining = rows[:]
    for what in asked:
        positions = tail.oldest(what) if isinstance(what, int) else tail.find(what)
        taken = list(zip(*tail.rows(positions), strict=True)) if positions else []
        if isinstance(what, int):
            assert taken == remaining[:what]
        elif len(taken) < len(remaining):
            assert taken == [row for row in remaining if row[0] in what]
        else:
            assert taken == remaining
        if not positions:
            continue
        if len(taken) == len(remaining):
            remaining = []
        elif isinstance(what, int):
            remaining = remaining[what:]
        else:
            remaining = [row for row in remaining if row[0] not in what]
        tail.drop(positions)
        tail._check()
        assert len(tail) == len(remaining)
        assert list(tail.keys()) == [key for key, _ in remaining]


def opened(path: Path) -> hs.State:
    return hs.open(path, durability="os")


def test_one_key_is_read_and_the_rows_of_the_others_go_on_waiting(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.window("s", retention=10_000)
        store.put_columns([f"k{i % 500}" for i in range(5000)], list(range(5000)), list(range(5000)))
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.window("s", retention=10_000)
        assert (store.waiting_rows, store.stream_time) == (5000, 4999)
        assert list(store.fetch("k7")) == [(ts, ts) for ts in range(7, 5000, 500)]
        assert store.waiting_rows == 4990
        assert list(store.fetch("none")) == []
        assert store.get_many(["k8", "k9", "k10"], 8) == [8, None, None]
        assert store.waiting_rows == 4960
        # asked again, nobody looks again
        looks = store._tail.looks
        assert store.get("k7", 7) == 7
        assert store._tail.looks == looks
        assert len(list(store.all())) == 5000
        assert store.waiting_rows == 0


def test_whoever_looks_often_has_everything_applied(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("s")
        store.put_columns([f"k{i}" for i in range(50_000)], list(range(50_000)))
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("s")
        waiting = []
        for i in range(20):
            assert store.get(f"k{i}") == i
            waiting.append(store.waiting_rows)
        assert waiting[0] == 49_999
        assert waiting == sorted(waiting, reverse=True)
        assert waiting[-1] == 0
        assert type(store._keys) is not cold_tail.TailKeys


def test_commits_apply_what_waits_bit_by_bit(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        state.key_value("s").put_columns([f"k{i}" for i in range(5000)], list(range(5000)))
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("s")
        assert store.waiting_rows == 5000
        assert state.hydrate(0) == 1
        assert 0 < store.waiting_rows < 5000
        assert store.get("k4999") == 4999  # a key that is asked for does not go on waiting
        while state.hydrate(0):
            pass
        assert store.waiting_rows == 0
        assert len(store) == 5000


def test_what_expires_while_it_waits_is_never_applied(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        window, sliding = state.window("w", retention=100), state.sliding("s", size=100, aggregator=hs.Count())
        for ts in range(0, 50):
            window.put("a", ts, ts)
            sliding.add("a", ts, ts)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        window, sliding = state.window("w", retention=100), state.sliding("s", size=100, aggregator=hs.Count())
        for store in (window, sliding):
            assert store.waiting_rows == 50
            store.advance(10_000)
            assert store.waiting_rows == 50
            store.apply_waiting()
            assert (store.waiting_rows, store.num_records) == (0, 0)
            store._check()


def test_a_row_that_was_overwritten_by_one_that_expired_does_not_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("s", ttl=100)
        store.put("a", "long", 90)
        state.commit()
        state.checkpoint(wait=True)
        store.put("a", "short", 20)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("s", ttl=100)
        store.put("b", 1, 130)
        assert store.waiting_rows == 1
        assert store.get("a") is None
        assert list(store.all()) == [("b", 1)]


def test_a_replay_tells_the_frames_of_several_stores_apart(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        windows = [state.window(f"w{i}", retention=10_000) for i in range(3)]
        profiles = state.key_value("k")
        for ts in range(600):
            for i, window in enumerate(windows):
                window.put(f"k{ts % 7}", (i, ts), ts)
            if ts > 500:
                # no code, though it stands where one would
                profiles.put(f"k{ts % 7}", 16 * windows[1].number + PUT_AT)
        state.commit()
        expected = {name: list(store.all()) for name, store in state.stores.items()}
        crash(state)
    with opened(tmp_path) as state:
        assert {name: list(store.all()) for name, store in state.stores.items()} == expected


def test_columns_of_different_lengths_are_named_at_opening(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.window("s", retention=100)
        state.group.journal.record(store.number * 16 + PUT_COLUMNS, ["a", "b"], [1, 2], [5])
        state.commit()
        crash(state)
    with pytest.raises(hs.errors.ChangelogError, match=r"cannot be applied: columns of different lengths: 2, 2, 1"):
        opened(tmp_path)


def test_a_row_that_cannot_be_applied_is_named_when_it_is_touched(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.window("s", retention=100)
        store.put("a", 1, 5)
        state.group.journal.record(store.number * 16 + PUT_AT, "b", 1, "no time")
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.window("s", retention=100)
        assert store.get("a", 5) == 1
        with pytest.raises(
            hs.errors.ChangelogError, match=r"store 's': mutations of the changelog cannot be applied: TypeError"
        ):
            store.get("b", 5)
        with pytest.raises(hs.StatePoisonedError, match="was cut short by TypeError"):
            store.get("b", 5)


def test_a_check_of_a_tail_finds_what_is_wrong() -> None:
    tail = ColdTail(2)
    tail.add("a", TOMBSTONE)
    with pytest.raises(AssertionError, match="deletion not noted"):
        tail._check()
    tail.deletes = True
    tail._check()
    tail.columns[1].clear()
    with pytest.raises(AssertionError, match="lengths"):
        tail._check()
