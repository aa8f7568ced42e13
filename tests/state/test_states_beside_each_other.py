"""States beside each other in one process, each used by a thread of its own, as is allowed: none changes another one,
whatever memory limits they have.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.memory import Relief
from hybridstore.state.memory_budget import BUDGET
from hybridstore.stores.cold_blocks import SPARING
from recovery.write import write_checkpoint
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL

# The tail of a killed state waits in memory, as no checkpoint is due.
NEVER = hs.CheckpointPolicy(max_restore="1 hour")
SEEDS = 50 if STRESS else 1
THREADS = 3
# bytes; all states have a few thousand
LIMITS = (None, 1, 2_000, 1 << 40)


@pytest.fixture(autouse=True)
def counted_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("hybridstore.state.memory.CHECK_COMMITS", 2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Stores:
    """The five kinds in one state."""

    def __init__(self, state: hs.State) -> None:
        self.kv = state.key_value("kv")
        self.window = state.window("window", retention=500, retain_duplicates=True)
        self.session = state.session("session", retention=500)
        self.sliding = state.sliding("sliding", size=300, aggregator=hs.Sum())
        self.buffer = state.suppression("buffer", time_limit=200)

    def put(self, key: str, value: int, ts: int) -> list[Any]:
        self.kv[key] = value
        self.window.put(key, value, ts)
        self.session.put(key, value, start=ts, end=ts + 5)
        return [self.sliding.add(key, value, ts), self.buffer.put(key, value, ts)]

    def read(self, key: str) -> list[Any]:
        return [
            self.kv.get(key),
            list(self.window.fetch(key, 0, 10**6)),
            list(self.session.fetch(key)),
            self.sliding.get(key),
            self.buffer.min_timestamp,
        ]

    def contents(self) -> list[Any]:
        keys = [key for key, _ in self.kv.all()]
        return [
            list(self.kv.all()),
            list(self.window.all()),
            [list(self.session.fetch(key)) for key in keys],
            [self.sliding.get(key) for key in keys],
            list(self.buffer.buffered()),
        ]


def life(path: Path, seed: int, limit: int | None) -> list[Any]:
    """Use a state, with kills in between, and return every answer that it gave."""
    draw, answers, now = random.Random(seed), list[Any](), 0
    state = hs.open(path, durability="os", checkpoints=NEVER, memory_limit=limit, _tuning=SMALL)
    stores = Stores(state)
    for step in range(80):
        for _ in range(draw.randrange(6)):
            now += draw.randrange(8)
            answers.append(stores.put(f"k{draw.randrange(40)}", step, now))
        answers.append(stores.read(f"k{draw.randrange(40)}"))
        state.commit()
        if draw.random() < 0.1:
            check_stores(state)
            crash(state)
            state = hs.open(path, durability="os", checkpoints=NEVER, memory_limit=limit, _tuning=SMALL)
            stores = Stores(state)
        if draw.random() < 0.1:
            answers.append(stores.contents())
    answers.append(stores.contents())
    check_stores(state)
    state.close()
    return answers


def test_states_in_threads_of_their_own_answer_as_each_does_alone(tmp_path: Path, seed: int) -> None:
    for number in range(SEEDS):
        draw = random.Random(seed + number)
        limits = [draw.choice(LIMITS) for _ in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as threads:
            together = [
                threads.submit(life, tmp_path / f"{number}-{thread}", seed + number + thread, limits[thread])
                for thread in range(THREADS)
            ]
        for thread in range(THREADS):
            alone = life(tmp_path / f"{number}-{thread}-alone", seed + number + thread, None)
            assert together[thread].result() == alone, (number, thread, limits)


def test_counting_for_the_budget_changes_nothing_in_another_state(tmp_path: Path) -> None:
    with hs.open(tmp_path / "b", checkpoints=NEVER) as state:
        stores = Stores(state)
        for i in range(100):
            stores.put(f"k{i % 9}", i, i)
        state.commit()
        expected = stores.contents()
        crash(state)
    b = hs.open(tmp_path / "b", checkpoints=NEVER)
    waiting = {name: store.waiting_rows for name, store in b.stores.items()}
    assert all(waiting.values())

    def commit_often() -> None:
        with hs.open(tmp_path / "a", memory_limit=1 << 40, durability="os") as a:
            for i in range(5):
                a.key_value("kv")["x"] = i
                a.commit()

    thread = threading.Thread(target=commit_often)
    thread.start()
    thread.join()
    assert {name: store.waiting_rows for name, store in b.stores.items()} == waiting
    assert Stores(b).contents() == expected
    b.close()


def test_each_state_counts_its_records_without_applying_those_that_wait(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        stores = Stores(state)
        for i in range(100):
            stores.put(f"k{i % 9}", i, i)
        state.commit()
        live = {name: store.records_in_memory for name, store in state.stores.items()}
        crash(state)
    # bytes are estimated at an opening under a limit alone
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        assert state._memory.counted > 0
        for name, store in state.stores.items():
            # rows that overwrite each other wait, too
            assert store.records_in_memory == store.waiting_rows >= live[name]
            store.apply_waiting()
            assert store.records_in_memory == live[name], name


def test_a_state_that_was_read_whole_frees_that_at_its_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.old_maps.FREED_ENTRIES", 3)
    monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6)
    with hs.open(tmp_path / "s", memory_limit=1 << 40, checkpoints=NEVER) as state:
        stores = Stores(state)
        for i in range(600):
            stores.put(f"key {i}", i, i)
        state.commit()
        state.checkpoint(wait=True)
        state._go_cold()
        state._memory._free_spare(1200)
        while state._memory._old.maps:
            state.commit()
        cold, whole, loaded = state._memory.count(), stores.contents(), state._memory.count()
        monkeypatch.setattr(type(state._memory), "relief", lambda *_, **__: Relief.COLD)
        state.commit()  # and no further commit
        assert (state._memory._old.maps, [store.ages for store in state.stores.values()]) == ([], [0] * 5)
        assert state._memory.count() < (cold + loaded) / 2
        assert stores.contents() == whole


def test_states_that_share_a_limit_make_their_checkpoints_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def waits(*args: Any, **given: Any) -> Any:
        may_end.wait()
        return write_checkpoint(*args, **given)

    monkeypatch.setattr("hybridstore.state.checkpointer.write_checkpoint", waits)
    monkeypatch.setattr("hybridstore.state.memory._WAIT_SECONDS", (0.0, 0.0))
    with ExitStack() as stack:
        states = [stack.enter_context(hs.open(tmp_path / str(i), memory_limit=3_000_000)) for i in range(4)]
        stack.callback(may_end.set)

        def commit(records: int) -> list[bool]:
            for state in states:
                state.key_value("s").put_many((f"key {i}", "x" * 10_000) for i in range(records))
                state.commit()
            return [state._checkpoints.attempt is not None for state in states]

        # of the part of 1 MB: all four take 0.9 MB, one begins; beyond 1 MB one more; far beyond each of them
        assert commit(22).count(True) == 1
        assert commit(30).count(True) == 2
        assert len(BUDGET.copying()) == 2
        assert commit(150) == [True] * 4
        may_end.set()
        for state in states:
            state._checkpoints.finish(wait=True)
        assert BUDGET.copying() == []


def test_the_more_states_share_a_limit_the_more_often_each_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridstore.state.memory.CHECK_COMMITS", 10**9)
    monkeypatch.setattr("hybridstore.state.memory.CHECK_RECORDS", 80)
    with ExitStack() as stack:
        states = [stack.enter_context(hs.open(tmp_path / str(i), memory_limit=1 << 40)) for i in range(4)]
        for turn in range(30):
            for state in states:
                state.key_value("s").put_many((10 * turn + i, i) for i in range(10))
                state.commit()
                # counted behind each second commit; one state alone behind each eighth
                assert state._memory._unchecked.records < 80 // 4


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_that_an_earlier_test_abandoned_takes_no_memory_of_the_next(tmp_path: Path, number: int) -> None:
    assert BUDGET.states == 1
    assert BUDGET.limit is None
    assert not SPARING.on
    abandoned = hs.open(tmp_path / "s", memory_limit=1 << 40)
    abandoned.key_value("k")["a"] = number
    assert BUDGET.limit == 1 << 40
    assert SPARING.on
    circle: list[object] = [abandoned]
    circle.append(circle)  # as an error and its frames do: only the collector frees it
