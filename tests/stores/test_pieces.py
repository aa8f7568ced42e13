"""Scans where memory is short: a piece at a time, in order, with nothing that stays in memory."""

from __future__ import annotations

import errno
import random
import tempfile
from array import array
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.stores.cold_blocks import SPARING, ColdBlock
from hybridstore.stores.pieces import by_place
from recovery.block import Columns, Extent, entry_of
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import SMALL

PLACE = itemgetter(0, 1)


class Block:
    """A cold block of rows `(time, key, value)`, and how often it was read."""

    def __init__(self, rows: list[tuple[int, int, int]]) -> None:
        self.rows = sorted(rows, key=itemgetter(1, 0))
        keys = sorted({key for _, key, _ in rows})
        counts = [sum(key == each for _, key, _ in rows) for each in keys]
        times = array("q", [ts for ts, _, _ in self.rows])
        self.columns = Columns(keys, counts, (times,), [value for _, _, value in self.rows])
        self.read = 0
        entry = entry_of(0, 0, self.columns, Extent(0, 0, len(rows), b""))
        self.cold = ColdBlock(entry, lambda _: self.load(), lambda _: pytest.fail("a look for single records"))

    def load(self) -> Columns:
        self.read += 1
        return self.columns


def scanned(
    memory: list[tuple[int, int, int]], blocks: list[Block], low: int, high: int, *, reverse: bool
) -> list[list[tuple[Any, ...]]]:
    def rows_of(block: ColdBlock, low: int, high: int) -> list[tuple[int, int, int]]:
        return [(ts, key, value) for key, (ts,), value in block.columns().rows() if low <= ts <= high]

    return [
        list(piece)
        for piece in by_place(
            lambda low, high: [row for row in memory if low <= row[0] <= high],
            lambda: [block.cold for block in blocks],
            rows_of,
            PLACE,
            low,
            high,
            reverse=reverse,
        )
    ]


rows_by_key = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 15), st.integers(0, 99)), max_size=60)


@given(rows=rows_by_key, memory=rows_by_key, size=st.integers(1, 6), piece=st.integers(1, 30), reverse=st.booleans())
def test_pieces_in_a_row_are_all_rows_in_order(
    rows: list[tuple[int, int, int]], memory: list[tuple[int, int, int]], size: int, piece: int, reverse: bool
) -> None:
    parts = [[row for row in rows if row[1] // size == part] for part in range(16)]
    blocks = [Block(part) for part in parts if part]
    stored = [row for block in blocks for row in block.rows]
    for low, high in ((0, 6), (2, 4)):
        # of equal places rows of blocks come first
        expected = sorted([row for row in [*stored, *memory] if low <= row[0] <= high], key=PLACE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SPARING, "piece", piece)
            pieces = scanned(memory, blocks, low, high, reverse=reverse)
        assert [row for each in pieces for row in each] == (expected[::-1] if reverse else expected)
        assert all(pieces)


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_of_one_time_are_read_once_and_pieces_have_few_rows(
    monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    blocks = [Block([(7, 10 * i + j, j) for j in range(10)]) for i in range(40)]
    monkeypatch.setattr(SPARING, "piece", 10)
    pieces = scanned([], blocks, 0, 9, reverse=reverse)
    assert sum(map(len, pieces)) == 400
    # a row more than twice a piece is never there
    assert max(map(len, pieces)) <= 20
    assert max(block.read for block in blocks) <= 3


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_that_overlap_are_read_once_and_pieces_have_few_rows(
    monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    blocks = [Block([(j * 10 + i % 7, 10 * i + j, j) for j in range(10)]) for i in range(40)]
    memory = [(j, 1000 + j, j) for j in range(0, 100, 9)]
    monkeypatch.setattr(SPARING, "piece", 10)
    pieces = scanned(memory, blocks, 0, 200, reverse=reverse)
    expected = sorted([*memory, *(row for block in blocks for row in block.rows)], key=PLACE, reverse=reverse)
    assert [row for piece in pieces for row in piece] == expected
    assert max(map(len, pieces)) <= 20
    assert [block.read for block in blocks] == [1] * 40


@pytest.mark.parametrize("fault", ["no file", "no room"])
def test_blocks_that_overlap_are_read_for_each_piece_where_no_file_has_room(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    class Full(BytesIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

    def file(dir: Path | None) -> BytesIO:  # as it is called
        if fault == "no file":
            raise OSError(errno.EROFS, "read-only file system")
        return Full()

    monkeypatch.setattr(tempfile, "TemporaryFile", file)
    monkeypatch.setattr(SPARING, "piece", 10)
    blocks = [Block([(j * 10 + i % 7, 10 * i + j, j) for j in range(10)]) for i in range(40)]
    pieces = scanned([], blocks, 0, 200, reverse=False)
    assert [row for piece in pieces for row in piece] == sorted(
        (row for block in blocks for row in block.rows), key=PLACE
    )
    assert max(block.read for block in blocks) > 2


class Windows:
    """A window store, and what its scans have to give."""

    def __init__(self, state: hs.State) -> None:
        self.store: Any = state.window("w", retention=1000)

    def fill(self) -> None:
        self.store.put_many((f"k{i % 97:02}", i, i * 7 % 400) for i in range(600))

    def change(self) -> None:
        """Replace, add and delete rows of blocks, and make some late or expired."""
        for i in range(0, 97, 5):
            self.store.put(f"k{i:02}", "new", 400 - i)
            self.store.put(f"k{i:02}", -i, i * 7 % 400)
        for (key, ts), _ in islice(self.rows(), 0, 400, 9):
            self.store.delete(key, ts)
        self.store.put("k03", "later", 1005)

    def touch(self) -> None:
        """Take records of further keys out of blocks."""
        for i in range(1, 97, 5):
            list(self.store.fetch(f"k{i:02}"))

    def rows(self, reverse: bool = False) -> Iterator[Any]:
        rows: Iterator[Any] = self.store.all(reverse=reverse)
        return rows


class Duplicates(Windows):
    """A window store that keeps rows of one key and time."""

    def __init__(self, state: hs.State) -> None:
        self.store = state.window("w", retention=1000, retain_duplicates=True)


class Sessions(Windows):
    def __init__(self, state: hs.State) -> None:
        self.store = state.session("s", retention=1000)

    def fill(self) -> None:
        self.store.put_many((f"k{i % 97:02}", i, i * 7 % 400, i * 7 % 400 + i % 3) for i in range(600))

    def change(self) -> None:
        for i in range(0, 97, 5):
            self.store.put(f"k{i:02}", "new", 3, 400 - i)
        for (key, start, end), _ in islice(self.rows(), 0, 400, 9):
            self.store.delete(key, start, end)
        self.store.put("k03", "later", 1000, 1005)


class Slides(Windows):
    def __init__(self, state: hs.State) -> None:
        self.store = state.sliding("l", size=1000, aggregator=hs.Sum())

    def fill(self) -> None:
        self.store.add_many((f"k{i % 97:02}", i, i * 7 % 400) for i in range(600))

    def change(self) -> None:
        self.store.add_many([(f"k{i:02}", 1, 100 + i) for i in range(0, 97, 5)])
        self.store.add("k03", 5, 1005)


class Sums(Slides):
    """The aggregates of a sliding store, which have one order."""

    def rows(self, reverse: bool = False) -> Iterator[Any]:
        rows: Iterator[Any] = self.store.aggregates()
        return rows


class Buffered(Windows):
    def __init__(self, state: hs.State) -> None:
        self.store = state.suppression("b", max_records=500)

    def fill(self) -> None:
        self.store.put_many((f"k{i:03}", i, i * 7 % 400) for i in range(450))

    def change(self) -> None:
        self.store.put_many([(f"k{i:03}", None, 100 + i) for i in range(0, 97, 5)])
        # as old as records in blocks, and before these in order
        self.store.put_many([(f"a{i:03}", i, i * 7 % 400) for i in range(60)])
        self.store.put_many([(f"n{i:03}", i, 500 + i) for i in range(80)])

    def touch(self) -> None:
        self.store.put_many([(f"k{i:03}", i, 400) for i in range(101, 450, 5)])

    def rows(self, reverse: bool = False) -> Iterator[Any]:
        rows: Iterator[Any] = self.store.buffered()
        return rows


KINDS: list[Callable[[hs.State], Windows]] = [Windows, Duplicates, Sessions, Slides, Sums, Buffered]


@pytest.mark.parametrize("kind", [Windows, Duplicates, Sessions, Buffered])
def test_what_goes_through_a_file_is_in_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[hs.State], Windows]
) -> None:
    folders: list[Any] = []
    new = tempfile.TemporaryFile

    def file(dir: Path | None) -> Any:  # as it is called
        folders.append(dir)
        return new(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", file)
    with hs.open(tmp_path / "s", _tuning=SMALL) as state:
        subject = kind(state)
        subject.fill()
        expected = list(subject.rows())
        force_cold(state)
        for name, value in (("on", True), ("room", 0), ("piece", 300)):
            monkeypatch.setattr(SPARING, name, value)
        names = sorted(tmp_path.rglob("*"))
        rows = subject.rows()
        assert [next(rows) for _ in range(50)] == expected[:50]
        assert folders
        assert set(folders) == {tmp_path / "s"}
        assert sorted(tmp_path.rglob("*")) == names
        assert list(rows) == expected[50:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_where_memory_is_short_keeps_nothing_and_shows_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[hs.State], Windows], reverse: bool
) -> None:
    with hs.open(tmp_path / "plain", _tuning=SMALL) as state:
        plain = kind(state)
        plain.fill()
        before = list(plain.rows(reverse))
        plain.change()
        after = list(plain.rows(reverse))
    monkeypatch.setattr("hybridstore.state.memory_budget.LEAST_PIECE", 500)
    with hs.open(tmp_path / "short", memory_limit=1, _tuning=SMALL) as state:
        short = kind(state)
        short.fill()
        force_cold(state)
        monkeypatch.setattr(SPARING, "room", 0)
        in_memory = short.store.records_in_memory
        rows = short.rows(reverse)
        assert list(islice(rows, 50)) == before[:50]
        assert list(short.rows(reverse)) == before
        assert short.store.records_in_memory == in_memory
        assert short.store.cold_blocks > 1
        short.change()
        changed = short.rows(reverse)
        assert list(islice(changed, 20)) == after[:20]
        assert list(short.rows(reverse)) == after
        if hasattr(short.store, "__len__") and kind is not Buffered:
            assert len(short.store) == len(after)
        short.store._check()
        short.touch()
        for _ in range(3):  # the checkpoint that the iterators read is deleted
            force_cold(state)
            short.store.advance(1200)
        monkeypatch.setattr(SPARING, "room", 0)
        assert list(rows) == before[50:]
        assert list(changed) == after[20:]
        shut = short.rows(reverse)
        next(shut)
    with pytest.raises(hs.StateClosedError):
        list(shut)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_behind_a_restart_merges_blocks_and_the_rows_of_the_changelog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[hs.State], Windows], reverse: bool
) -> None:
    monkeypatch.setattr("hybridstore.state.memory_budget.LEAST_PIECE", 500)
    state = hs.open(tmp_path / "s", _tuning=SMALL)
    before = kind(state)
    before.fill()
    force_cold(state)
    before.change()
    expected = list(before.rows(reverse))
    state.commit()
    crash(state)
    with hs.open(tmp_path / "s", memory_limit=1, _tuning=SMALL) as state:
        behind = kind(state)
        monkeypatch.setattr(SPARING, "room", 0)
        assert list(behind.rows(reverse)) == expected
        assert behind.store.cold_blocks > 1
        behind.store._check()


@pytest.mark.parametrize("measured", [None, lambda key, value: 7 + len(key) + (value or 0) % 50])
@pytest.mark.parametrize("final", [False, True])
def test_a_buffer_with_a_bound_of_bytes_is_measured_without_its_blocks_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, final: bool, measured: Callable[[Any, Any], int] | None
) -> None:
    r = random.Random(seed)
    bounds: dict[str, Any] = {"time_limit": 300, "max_bytes": 4000}
    if final:
        bounds = {"until_window_closes": 50, "max_bytes": 10**6, "on_full": "raise"}
    with hs.open(tmp_path / "plain") as plain, hs.open(tmp_path / "short", _tuning=SMALL) as short:
        buffers = [state.suppression("b", size_of=measured, **bounds) for state in (plain, short)]
        now = 0
        for turn in range(900):
            now += r.randrange(3)
            name, value = f"k{r.randrange(300):03}", r.choice([None, r.randrange(1000)])
            key = (name, now, now + r.randrange(200)) if final else name
            ts = max(0, now - r.randrange(20))
            both = [buffer.put(key, value, ts) for buffer in buffers]
            assert both[0] == both[1]
            if turn % 97 == 0:
                assert list(buffers[0].advance(now)) == list(buffers[1].advance(now))
            if turn % 150 == 120:
                plain.commit()
                force_cold(short)
                for attribute, given_value in (("on", True), ("room", 0), ("piece", 300)):
                    monkeypatch.setattr(SPARING, attribute, given_value)
                if turn > 300:  # all is measured again
                    for function in (lambda key, value: 1, measured):
                        buffers[1].bind(function)
                assert buffers[1].buffer_size == buffers[0].buffer_size
                assert buffers[1].records_in_memory < len(buffers[1]) / 2
            buffers[1]._check()
        assert list(buffers[0].flush()) == list(buffers[1].flush())
        assert buffers[1].buffer_size == 0
