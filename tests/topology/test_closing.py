"""Windows that close: their results where memory is short, and what these results take."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybridstore as hs
from hybridstore.state.directory import open_store
from hybridstore.stores.cold_blocks import SPARING, ColdBlock
from hybridstore.topology.results import Result, ResultColumns, ResultTable, arrow_of, by_column
from hybridstore.topology.run_state import RESULTS, Keeping
from tests.tools.hooks import force_cold
from tests.tools.vector_runner import SMALL
from tests.tools.ways import aggregating, two_in_a_piece

WINDOWS: dict[str, Any] = {
    "tumbling": hs.TumblingWindows(20, grace=5),
    "hopping": hs.HoppingWindows(20, 5, grace=5),
    "days": hs.TumblingWindows("1 day", time_zone="Europe/Berlin", grace=5),
    "sessions": hs.SessionWindows(7, grace=5),
    "kafka": hs.KafkaSlidingWindows(10, grace=5),
}
KEYS: dict[str, tuple[str, ...]] = {"one": ("k",), "pair": ("k", "j"), "none": (), "null": ("k",), "nulls": ("k", "j")}


def declared(windows: str, keys: str) -> hs.Topology:
    nulls = {"null_keys": "group"} if keys.startswith("null") else {}
    stream = hs.stream(key=KEYS[keys], timestamp="ts", **nulls) if KEYS[keys] else hs.stream(timestamp="ts")
    return stream.windowed_by(WINDOWS[windows]).aggregate(emit="close", n=hs.Count(), top=hs.Max("v"))


def rows_of(r: random.Random, windows: str, keys: str) -> list[dict[str, Any]]:
    step = 200_000_000 if windows == "days" else 400
    names = [None, "a", "b", "c", "d", "e"] if keys.startswith("null") else ["a", "b", "c", "d", "e"]
    return [
        {"k": r.choice(names), "j": r.choice(["x", "y"]), "ts": step * i // 40 + r.randrange(8), "v": r.randrange(9)}
        for i in range(120)
    ]


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_windows_that_close_are_the_same_where_memory_is_short(
    windows: str, keys: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(seed)
    topology, rows = declared(windows, keys), rows_of(r, windows, keys)
    closed: list[list[dict[str, Any]]] = []
    for short in (False, True):
        for name, value in (("on", short), ("piece", 30)):
            monkeypatch.setattr(SPARING, name, value)
        results: list[dict[str, Any]] = []
        with hs.Engine(topology, tmp_path / str(short), durability="os", _tuning=SMALL) as engine:
            for first in range(0, len(rows), 30):
                if short and first:
                    force_cold(engine.states[0])
                    for name, value in (("on", True), ("room", 0)):
                        monkeypatch.setattr(SPARING, name, value)
                    assert engine.states[0].group.stores["windows"].cold_blocks
                for row in rows[first : first + 30]:
                    assert engine.process(row) == []
                results += engine.commit()
        closed.append(results)
    with hs.Engine(topology, tmp_path / "one commit", durability="os") as engine:
        for row in rows:
            engine.process(row)
        at_once = engine.commit()
    assert closed[0] == closed[1]
    assert sorted(map(repr, closed[0])) == sorted(map(repr, at_once)) != []


@pytest.mark.parametrize("windows", ["tumbling", "hopping", "sessions", "kafka"])
def test_the_first_of_many_closed_windows_is_there_before_all_blocks_were_read(
    windows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ColdBlock] = []
    columns = ColdBlock.columns
    monkeypatch.setattr(ColdBlock, "columns", lambda block: (read.append(block), columns(block))[1])
    with hs.Engine(declared(windows, "one"), tmp_path / "s", durability="os", _tuning=SMALL) as engine:
        for i in range(200):
            engine.process({"k": f"{i:03}", "ts": 0, "v": i})
        assert engine.commit() == []
        force_cold(engine.states[0])
        for name, value in (("on", True), ("piece", 1), ("room", 0)):
            monkeypatch.setattr(SPARING, name, value)
        results = aggregating(engine).windowed.ended(-1, 24)  # one window of each key
        first, before = next(results), len(read)
        assert [first.key, *(result.key for result in results)] == [f"{i:03}" for i in range(200)]
        assert 0 < before < len(read) / 4


@pytest.mark.parametrize("windows", ["tumbling", "hopping", "sessions"])
def test_windows_in_blocks_and_in_the_commit_in_progress_come_once(
    windows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.Engine(declared(windows, "one"), tmp_path / "s", durability="os", _tuning=SMALL) as engine:
        for turn in range(2):
            for i in range(turn, 200, turn + 1):
                engine.process({"k": f"{i:03}", "ts": 5 * turn, "v": i})
            if not turn:
                engine.commit()
                force_cold(engine.states[0])
                for name, value in (("on", True), ("piece", 1), ("room", 0)):
                    monkeypatch.setattr(SPARING, name, value)
        results = [(result.key, result.aggregates) for result in aggregating(engine).windowed.ended(-1, 24)]
        assert sorted(results) == [(f"{i:03}", (1 + i % 2, i)) for i in range(200)]


def test_equal_times_of_results_by_column_are_one_object() -> None:
    topology = declared("tumbling", "pair")
    results = (Result(("a", str(i)), 10**6 + i // 400, 10**7 + i // 400, (i, 9), -1) for i in range(800))
    columns = by_column(topology, results)
    assert isinstance(columns, ResultColumns)
    assert columns.keys == [["a"] * 800, list(map(str, range(800)))]
    assert columns.aggregates == [list(range(800)), [9] * 800]
    for times in (columns.starts, columns.ends):
        assert [times[i + 1] - times[i] for i in range(799)] == [int(i == 399) for i in range(799)]
        assert len(set(map(id, times))) < 8
    assert by_column(topology, iter(())) == []


@pytest.mark.usefixtures(two_in_a_piece.__name__)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("windows", WINDOWS)
def test_results_in_pieces_are_the_results_of_the_commit_and_come_again(
    windows: str, keys: str, shards: int, seed: int, tmp_path: Path
) -> None:
    topology, rows = declared(windows, keys).late("late"), rows_of(random.Random(seed), windows, keys)
    rows.append(rows[0])  # late
    with hs.Engine(topology, tmp_path / "at once", shards=shards, durability="os") as engine:
        expected = [
            engine.table_of(shard, part)
            for first in (0, 60, 120)
            for shard, part in enumerate(engine.split_batch(rows[first : first + 60], first))
        ]
    given = list(topology.run(rows, tmp_path / "state", shards=shards, commit_rows=60))
    assert [dict(row) for row in given] == [row for table in expected for row in table.rows(dict)]
    with open_store(tmp_path / "state" / "0" if shards == 2 else tmp_path / "state") as store:
        assert keys == "none" or shards > 1 or max(piece for _, piece in store.key_value(RESULTS)) > 0
    again = list(topology.run(rows, tmp_path / "state", shards=shards, commit_rows=60, replay_last=True))
    newest = sorted({row.commit for row in given})[-2:]
    assert [(row.commit, dict(row)) for row in again] == [
        (row.commit, dict(row)) for row in given if row.commit in newest
    ]
    tables = list(topology.run(rows, tmp_path / "other", shards=shards, commit_rows=60).tables())
    assert [table for _, table in tables] == [table.arrow() for table in expected if table]


def test_a_piece_is_a_part_of_the_table_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []
    arrow = ResultTable.arrow

    def pieces() -> Iterator[ResultTable]:
        for values in ([None, None], [1, 2], [], [2.5]):
            acts.append("read")
            yield ResultTable(["n"], None, [values])

    monkeypatch.setattr(ResultTable, "arrow", lambda table: (acts.append("made"), arrow(table))[1])
    table = arrow_of(pieces())
    assert table == pa.table({"n": [None, None, 1, 2, 2.5]})
    assert acts == ["read", "made", "read", "made", "read", "read", "made"]
    assert arrow_of([ResultTable(["n"], None, [[]])]) is None


def test_rows_that_differ_in_their_columns_have_those_of_the_first() -> None:
    pieces = [ResultTable(None, None, [{"a": 1}]), ResultTable(None, None, [{"b": 2, "a": 3}])]
    assert arrow_of(pieces) == pa.table({"a": [1, 3]})


@pytest.mark.parametrize("windows", ["tumbling", "hopping", "sessions"])
@pytest.mark.parametrize("arrow", [False, True], ids=["dicts", "arrow"])
def test_the_first_results_are_kept_before_all_windows_that_closed_were_read(
    windows: str, arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ColdBlock] = []
    kept: list[tuple[int, int]] = []
    columns, put = ColdBlock.columns, Keeping._put

    def put_and_note(keeping: Keeping, table: ResultTable) -> None:
        kept.append((len(read), table.results))
        put(keeping, table)

    monkeypatch.setattr("hybridstore.topology.run_state._FIRST_ROWS", 256)
    monkeypatch.setattr(ColdBlock, "columns", lambda block: (read.append(block), columns(block))[1])
    with hs.Engine(declared(windows, "one"), tmp_path, durability="os", _tuning=SMALL) as engine:
        engine.process_many([{"k": f"{i:04}", "ts": 0, "v": i} for i in range(1200)])
        engine.commit()
        force_cold(engine.states[0])
        for name, value in (("on", True), ("piece", 1), ("room", 0)):
            monkeypatch.setattr(SPARING, name, value)
        keeping = engine.keeping(0, 1, 0)
        monkeypatch.setattr(Keeping, "_put", put_and_note)
        rows = [{"k": "last", "ts": 29, "v": 0}]
        (part,) = engine.split_batch(pa.Table.from_pylist(rows) if arrow else rows, 0)
        keeping.keep(engine.table_of(0, part))
        assert [results for _, results in kept] == [256, 944]
        assert kept[0][0] < kept[-1][0] / 2
        assert (keeping.size, keeping.pieces) == (1200, 2)
        assert aggregating(engine).windowed.taker is None
