"""What emits many records emits them piece by piece: what was not taken stays, a commit between two pieces divides
them, and under a limit of memory few records are in memory.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.stores import suppression
from hybridstore.stores.cold_blocks import SPARING, ColdBlock
from recovery.block import Columns
from recovery.errors import CorruptCheckpointError
from tests.tools.hooks import crash, drained, force_cold
from tests.tools.vector_runner import SMALL, opened

Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def ten_in_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppression, "_PIECE", 10)


def rows_of(number: int) -> list[tuple[str, int, int]]:
    return [(f"k{i:03}", i, i) for i in range(number)]


def test_a_piece_belongs_to_the_version_that_is_committed_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=50)
        buffer.put_many(rows_of(50))
        state.commit()
        taken: list[tuple[int, Row]] = []
        for piece in buffer.advance(84):
            version = state.commit()
            assert buffer.emitted() == [(version, *row) for row in piece]
            taken += [(version, row) for row in piece]
            if version == 3:
                break
        crash(state)
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=50)
        assert buffer.emitted() == [(3, *row) for row in rows_of(20)[10:]]
        assert [row for _, row in taken] == rows_of(20)
        # what was not taken is due, and leaves with the next call
        assert (buffer.stream_time, list(buffer.buffered())) == (84, rows_of(50)[20:])
        assert buffer.put("new", 0, 84) == rows_of(35)[20:]


def test_what_was_not_taken_of_a_flush_stays(state: hs.State) -> None:
    buffer = state.suppression("b")
    buffer.put_many(rows_of(25))
    buffer.flush()
    assert len(buffer) == 25
    pieces = buffer.flush()
    assert next(pieces) == rows_of(10)
    buffer.put("k000", "again", 0)
    assert [len(piece) for piece in pieces] == [10, 6]
    assert list(buffer.flush()) == []


def test_time_that_went_back_makes_nothing_due(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=10)
    buffer.put_many(rows_of(10))
    state.commit()
    pieces = buffer.advance(100)
    state.rollback()
    assert list(pieces) == []
    assert list(buffer.buffered()) == rows_of(10)


def test_an_iterator_of_pieces_ends_with_its_state(tmp_path: Path) -> None:
    state = opened(tmp_path)
    buffer = state.suppression("b")
    buffer.put_many(rows_of(25))
    pieces = buffer.flush()
    next(pieces)
    state.close()
    with pytest.raises(hs.StateClosedError):
        next(pieces)


def test_records_beyond_a_bound_leave_by_the_piece_too(state: hs.State) -> None:
    buffer = state.suppression("b", max_bytes=1000, size_of=lambda key, value: 10)
    assert buffer.put_many(rows_of(100)) == []
    buffer.bind(lambda key, value: 20)
    assert list(map(len, buffer.advance(100))) == [10] * 5
    assert list(buffer.buffered()) == rows_of(100)[50:]


def test_tombstones_of_windows_are_dropped_on_the_way_to_a_full_piece(state: hs.State) -> None:
    buffer = state.suppression("b", until_window_closes=0)
    for i in range(100):
        buffer.put((f"k{i:02}", 0, 200), None if i % 3 else i, 5)
    assert [[key[0] for key, _, _ in piece] for piece in buffer.advance(200)] == [
        [f"k{i:02}" for i in range(first, last, 3)] for first, last in ((0, 30), (30, 60), (60, 90), (90, 100))
    ]
    assert len(buffer) == 0


@pytest.mark.parametrize("order", ["keys in order of time", "all of one time", "at random"])
@pytest.mark.parametrize("call", ["advance", "flush"])
def test_under_a_limit_few_records_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, call: str, order: str
) -> None:
    dice = random.Random(seed)
    at = {
        "keys in order of time": lambda i: i,
        "all of one time": lambda i: 7,
        "at random": lambda i: dice.randrange(400),
    }[order]
    rows = [(f"k{i:03}", i, at(i)) for i in range(400)]
    in_order = sorted(rows, key=lambda row: (row[2], row[0]))
    with hs.open(tmp_path, memory_limit=1 << 40, _tuning=SMALL) as state:
        buffer = state.suppression("b", time_limit=1000)
        buffer.put_many(rows)
        force_cold(state)
        for name, value in (("on", True), ("room", 0)):
            monkeypatch.setattr(SPARING, name, value)
        read: list[ColdBlock] = []
        columns = ColdBlock.columns
        monkeypatch.setattr(ColdBlock, "columns", lambda block: (read.append(block), columns(block))[1])
        pieces = buffer.flush() if call == "flush" else buffer.advance(1400)
        emitted: list[Row] = []
        # blocks have four records: of those that overlap a share is loaded, one of each at least
        most = 10 + (100 if order == "at random" else 8)
        for piece in pieces:
            assert buffer.records_in_memory + len(piece) <= most
            buffer._check()
            state.commit()
            emitted += piece
        assert emitted == in_order
        assert order == "at random" or len(read) == 100
        crash(state)
    monkeypatch.undo()
    with hs.open(tmp_path, _tuning=SMALL) as state:
        assert len(state.suppression("b", time_limit=1000)) == 0


def test_the_error_of_a_damaged_block_comes_behind_the_records_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        buffer.put_many(rows_of(40)[:10])
        buffer.put_many([(key, value, 9) for key, value, _ in rows_of(40)[10:]])
        force_cold(state)
        columns = ColdBlock.columns

        def damaged(block: ColdBlock) -> Columns:
            if block.entry.last >= "k018":
                raise CorruptCheckpointError("a damaged block")
            return columns(block)

        taken: list[list[Row]] = []
        with monkeypatch.context() as patched:
            patched.setattr(ColdBlock, "columns", damaged)
            pieces = buffer.advance(50)
            with pytest.raises(CorruptCheckpointError):
                taken.extend(pieces)  # what comes before the error stays
        state.commit()
        buffer._check()
        assert 1 < len(taken) < 4
        assert drained(taken) == [row[1:] for row in buffer.emitted()]
        assert [key for key, _, _ in drained([*taken, *buffer.advance(51)])] == [key for key, _, _ in rows_of(40)]
