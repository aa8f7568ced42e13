"""A suppression buffer that was replayed is the one that was there: what it holds, what it emitted, and all it does
from then on. The witness is a buffer that lives through it all.
"""

import random
from array import array
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.codec import pack
from changelog.mutation import EVICT
from hybridstore.state.opening import Tuning
from hybridstore.stores import suppression, suppression_maps, suppression_tail
from hybridstore.stores.cold_blocks import ColdBlock
from recovery.block import Columns, Extent, entry_of
from recovery.table import look_into, pack_with_table
from tests.tools.hooks import crash, drained
from tests.tools.vector_runner import SMALL

LIMIT = 1 << 40  # far away, but memory counts as short
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


@pytest.mark.parametrize("timer", ["first", "latest"])
def test_a_replay_looks_once_into_each_block_and_takes_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timer: Any, seed: int
) -> None:
    tuning, dice = Tuning(block_records=50), random.Random(seed)
    stored = {f"k{i:04}": (i, i) for i in range(0, 2000, 2)}
    changed = [f"k{i:04}" for i in dice.choices(range(2000), k=100)]  # every other key is new
    with hs.open(tmp_path, memory_limit=LIMIT, _tuning=tuning) as state:
        buffer = state.suppression("b", time_limit="1 day", timer=timer)
        buffer.put_many([(key, *row) for key, row in stored.items()])
        state.commit()
        state.checkpoint(wait=True)
        for key in changed:
            buffer.put(key, "new", 5000)
        state.commit()
        crash(state)
    looks: dict[Any, int] = {}
    records_of = ColdBlock.records_of

    def counted(block: ColdBlock, keys: Any) -> Any:
        assert block.first not in looks
        looks[block.first] = len(keys)
        return records_of(block, keys)

    monkeypatch.setattr(ColdBlock, "records_of", counted)
    with hs.open(tmp_path, memory_limit=LIMIT, _tuning=tuning) as state:
        buffer = state.suppression("b", time_limit="1 day", timer=timer)
        assert len(buffer) == len(stored.keys() | set(changed))
        assert buffer.lookups.missed == sum(looks.values()) > 2 * len(looks) > 20
        assert buffer.records_in_memory == len(set(changed))
        buffer._check()
        places = {key: (ts, key, value, ts) for key, (value, ts) in stored.items()}
        for key in changed:
            at = places[key][0] if timer == "first" and key in places else 5000
            places[key] = at, key, "new", 5000
        assert list(buffer.rows()) == sorted(places.values())


def test_of_a_damaged_record_the_decoded_block_is_asked() -> None:
    columns = Columns(["a", "b", "c"], None, (array("q", [1, 2, 3]), array("q", [4, 5, 6])), ["x", "y", "z"])
    raw, _ = pack_with_table(columns)
    damaged = bytearray(raw)
    damaged[raw.index(pack("y"), 4) + 1] ^= 1
    entry = entry_of(1, 0, columns, Extent(1, 0, len(raw), b""))
    decoded: list[Any] = []

    def load(_: Any) -> Columns:
        decoded.append(1)
        return columns

    block = ColdBlock(entry, load, lambda _: look_into(bytes(damaged), "here", kept=True))
    assert (block.records_of(["a", "c"]), decoded) == ([("x", 1, 4), ("z", 3, 6)], [])
    assert (block.records_of(["a", "b", "d"]), decoded) == ([("x", 1, 4), ("y", 2, 5), None], [1])
