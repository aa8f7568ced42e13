"""A suppression buffer that was replayed is the one that was there: what it holds, what it emitted, and all it does
from then on. The witness is a buffer that lives through it all.
"""

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.mutation import EVICT
from hybridstore.stores import suppression, suppression_maps, suppression_tail
from tests.tools.hooks import crash, drained
from tests.tools.vector_runner import SMALL

KEYS = [f"k{i}" for i in range(9)]
BUFFERS: dict[str, dict[str, Any]] = {
    "a time limit": {"time_limit": 20},
    "no time to wait": {"time_limit": 0},
    "first seen": {"time_limit": 20, "timer": "first"},
    "three records": {"max_records": 3},
    "three records and a time limit": {"max_records": 3, "time_limit": 20},
    "three records, first seen": {"max_records": 3, "time_limit": 20, "timer": "first"},
    "bytes": {"max_bytes": 25},
    "no bound": {},
    "until windows close": {"until_window_closes": 5},
    "until windows close, or it is full": {"until_window_closes": 5, "max_records": 5, "on_full": "raise"},
}


class Life:
    """Random calls on a buffer near the boundary of what is due."""

    def __init__(self, final: bool, dice: random.Random) -> None:
        self.final, self.dice = final, dice
        self.now = 30

    def row(self) -> tuple[Any, Any, int]:
        dice = self.dice
        self.now += dice.choice([0, 0, 0, 1, 1, 2, 7, 25])
        ts = max(0, self.now - dice.choice([0, 0, 0, 1, 5, 19, 20, 21]))
        key: Any = dice.choice(KEYS)
        if self.final:
            start = ts - ts % 10
            key = key, start, start + 10
        return key, dice.choice([None, 1, "two", [3]]), ts

    def call(self) -> Callable[[Any], Any]:
        act = self.dice.random()
        if act < 0.45:
            row = self.row()
            return lambda buffer: buffer.put(*row)
        if act < 0.8:
            rows = [self.row() for _ in range(self.dice.choice([1, 3, 12, 30]))]
            return lambda buffer: buffer.put_many(rows)
        if act < 0.98 or self.final:
            ts = self.now = self.now + self.dice.choice([0, 1, 5, 21])
            if self.dice.random() < 0.5:
                pieces = self.dice.choice([None, None, 0, 1, 2])
                return lambda buffer: list(islice(buffer.advance(ts), pieces))
            return lambda buffer: buffer.move_time(ts)
        pieces = self.dice.choice([None, 1])
        return lambda buffer: list(islice(buffer.flush(), pieces))


def answer(buffer: Any, call: Callable[[Any], Any]) -> Any:
    try:
        return call(buffer)
    except hs.BufferFullError as error:
        return "full", error.emitted


@pytest.mark.stress
@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_that_was_replayed_is_the_one_that_was_there(
    name: str, tmp_path: Path, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(suppression_tail, "_STRIDE", 2)
    monkeypatch.setattr(suppression, "_PIECE", 2)
    for number in range(6 * rounds):
        life = Life("until_window_closes" in BUFFERS[name], dice)
        # rows one by one, or at C speed, whatever the buffer holds
        monkeypatch.setattr(suppression_maps, "_SPARSE", dice.choice([0, 10**9]))
        live = hs.open(tmp_path / f"{number}-live", durability="os", _tuning=SMALL)
        replayed = hs.open(tmp_path / f"{number}-replayed", durability="os", _tuning=SMALL)
        buffers = [state.suppression("b", **BUFFERS[name]) for state in (live, replayed)]
        for step in range(25):
            call = life.call()
            answers = [answer(buffer, call) for buffer in buffers]
            assert answers[0] == answers[1], (number, step)
            if dice.random() < 0.3:
                continue
            other = dice.random() < 0.1
            for state in (live, replayed):
                if other:
                    state.key_value("other").put("k", step)
                state.commit()
            if dice.random() < 0.1:
                replayed.checkpoint(wait=True)
            if dice.random() < 0.5:
                crash(replayed)
                replayed = hs.open(tmp_path / f"{number}-replayed", durability="os", _tuning=SMALL)
                buffers[1] = replayed.suppression("b", **BUFFERS[name])
                looks: list[Callable[[Any], Any]] = [
                    lambda buffer: list(buffer.buffered()),
                    lambda buffer: buffer.emitted(),
                    lambda buffer: (buffer.num_records, buffer.stream_time, buffer.min_timestamp),
                ]
                dice.shuffle(looks)
                for look in looks[: dice.randrange(4)]:
                    assert look(buffers[0]) == look(buffers[1]), (number, step)
                    buffers[1]._check()
        assert live.digest == replayed.digest
        assert list(buffers[0].buffered()) == list(buffers[1].buffered())
        assert buffers[0].emitted() == buffers[1].emitted()
        crash(live)
        crash(replayed)


def test_what_time_makes_due_is_not_logged(tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os") as state:
        buffer = state.suppression("b", time_limit=10)
        assert buffer.put_many([("a", 1, 0), ("b", 2, 5), ("c", 3, 15)]) == [("a", 1, 0), ("b", 2, 5)]
        state.commit()
        assert not any(code & 15 == EVICT for code in state.group.journal.records)
        assert drained(buffer.advance(25)) == [("c", 3, 15)]
        state.commit()
        assert state.restore_report.created
    with hs.open(tmp_path, durability="os") as state:
        assert state.suppression("b", time_limit=10).emitted() == [(2, "c", 3, 15)]


def test_time_that_moved_by_itself_lets_nothing_leave_in_a_replay_either(tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os") as state:
        buffer = state.suppression("b", time_limit=10)
        buffer.put("a", 1, 0)
        state.commit()
        buffer.move_time(50)
        state.commit()
        crash(state)
    with hs.open(tmp_path, durability="os") as state:
        buffer = state.suppression("b", time_limit=10)
        assert list(buffer.buffered()) == [("a", 1, 0)]
        assert buffer.put("b", 2, 50) == [("a", 1, 0)]


def test_other_bounds_do_not_change_what_a_version_emitted(tmp_path: Path) -> None:
    rows = [(f"k{i % 7}", i, i) for i in range(200)]
    with hs.open(tmp_path, durability="os") as state:
        emitted = state.suppression("b", time_limit=3).put_many(rows)
        state.commit()
        crash(state)
    with hs.open(tmp_path, durability="os") as state:
        buffer = state.suppression("b", time_limit=3)
        state.group.alter("b", {**buffer.parameters, "time_limit_ms": 100})
        assert emitted
        assert buffer.emitted() == [(1, *row) for row in emitted]
