"""Late rows are results like all others: with what windows took they account for every row, whichever way rows come
in and however often the run is killed.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.state.directory import State
from hybridstore.topology.plan import Emit
from tests.tools.hooks import crash
from tests.topology.test_every_way import WINDOWS, Runners, batches_of

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

CASES = [
    (windows, emit)
    for windows, emit in product(WINDOWS, ("record", "commit", "close"))
    # without windows no row is late, and between windows a row is neither late nor in one
    if windows not in ("no windows", "hopping with gaps") and not (windows == "sliding" and emit == "close")
]
SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.string()), ("time", pa.int64()), ("n", pa.int64())])


def some_rows(r: random.Random, count: int = 40) -> list[dict[str, Any]]:
    """Rows of which a third is behind, some far behind; row i has the bit i, so that a sum says which are in it."""
    now, rows = 100, []
    for number in range(count):
        now += r.choice([0, 0, 1, 2, 5]) if r.random() < 0.9 else r.randint(20, 60)
        time = max(0, now - r.randint(0, 90)) if r.random() < 0.35 else now
        rows.append({"id": number, "user": r.choice("abc"), "time": time, "n": 1 << number})
    return rows


def declared(windows: str, emit: Emit) -> hs.Topology:
    shape, options = WINDOWS[windows]
    stream = hs.stream(key="user", timestamp="time").windowed_by(shape, **options)
    return stream.aggregate(emit=emit, n=hs.Sum("n"))


def results_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of windows, without the column of late rows."""
    return [{name: row[name] for name in row if name != "late"} for row in rows if row["late"] is None]


def late_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row["late"] for row in rows if row["late"] is not None]


@pytest.mark.parametrize(("windows", "emit"), CASES)
@pytest.mark.stress
def test_every_row_is_in_a_window_or_late_and_never_both(windows: str, emit: Emit, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows, shards, size = some_rows(r), r.choice([1, 2]), r.choice([1, 7, 40])
        topology, flush = declared(windows, emit), emit == "close"
        options: dict[str, Any] = {"commit_rows": size, "shards": shards, "flush": flush}
        given = [dict(row) for row in topology.late().run(rows, **options)]
        assert results_of(given) == [dict(row) for row in topology.run(rows, **options)]
        late = late_of(given)
        assert all(row == rows[row["id"]] for row in late)
        taken = 0
        for row in given:
            taken |= row["n"] or 0
        missed = {row["id"] for row in rows if not taken >> row["id"] & 1}
        lost = {row["id"] for row in late}
        assert len(lost) == len(late)
        if windows == "sliding" and emit == "commit":
            # the last result of a key need not show the rows before it
            assert lost <= missed
        elif emit != "close" or "kept" not in windows:
            assert lost == missed
        # whoever asks for no late rows is not told apart by the state
        assert topology.late().describe() == topology.describe()


@pytest.mark.parametrize(("windows", "emit"), CASES)
@pytest.mark.stress
def test_every_way_gives_the_same_late_rows(windows: str, emit: Emit, seed: int, rounds: int) -> None:
    for number, clocked in product(range(rounds), (False, True)):
        r = random.Random(f"{seed} {number}")
        rows, topology, size = some_rows(r), declared(windows, emit).late(), r.choice([1, 7, 40])
        batches = batches_of(rows, size)
        tables = [pa.RecordBatch.from_pylist(batch, schema=SCHEMA) for batch in batches]
        sides = [Runners(topology, 1, clocked=clocked), Runners(topology, 1, clocked=clocked, by_row=True)]
        by_side: list[list[dict[str, Any]]] = [[], []]
        now = newest = 0
        for table, batch in zip(tables, batches, strict=True):
            clock = Watermark(now, max(now, newest - 20)) if clocked else None
            now, newest = 0 if clock is None else clock.now_ms, max(newest, *(row["time"] for row in batch))
            for side, given in zip(sides, by_side, strict=True):
                whole = pa.Table.from_batches([table])
                runner = side.runners[0]
                given += runner.process(whole, side.program.output_schema(whole.schema), clock).to_pylist()
                side.groups[0].reached(side.groups[0].version + 1, side.groups[0].journal.seal())
        assert by_side[0] == by_side[1]
        assert sides[0].state == sides[1].state
        if not clocked:
            expected = [dict(row) for row in topology.run(rows, commit_rows=size)]
            assert by_side[0] == expected
            assert [dict(row) for row in topology.run(tables)] == expected
            two = [dict(row) for row in topology.run(tables, shards=2)]
            assert two == [dict(row) for row in topology.run(rows, commit_rows=size, shards=2)]


@pytest.mark.parametrize("emit", ["record", "commit", "close"])
def test_a_row_between_windows_is_never_late(emit: Emit) -> None:
    # windows of 6 begin at 0, 15, 30, ...
    times = [[300] * 40, [*range(6, 15), *range(36, 45)] * 3]
    batches = [[{"id": 0, "user": "a", "time": time, "n": 1} for time in part] for part in times]
    topology = declared("hopping with gaps", emit).late()
    assert late_of([dict(row) for row in topology.run(chain.from_iterable(batches), commit_rows=40)]) == []
    tables = [pa.RecordBatch.from_pylist(batch, schema=SCHEMA) for batch in batches]
    assert late_of([dict(row) for row in topology.run(tables)]) == []


@pytest.mark.parametrize(
    ("windows", "emit"), [("tumbling", "close"), ("hopping", "commit"), ("sessions", "record"), ("sliding", "record")]
)
@pytest.mark.parametrize("arrow", [False, True])
def test_late_rows_come_once_however_often_the_run_is_killed(
    windows: str, emit: Emit, arrow: bool, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(seed)
    topology = declared(windows, emit).late()
    options: dict[str, Any] = {"commit_rows": 5, "shards": 2}
    expected: list[dict[str, Any]] = []
    while not late_of(expected):  # some seeds have no late row
        rows = some_rows(r)
        source: Any = pa.Table.from_pylist(rows, schema=SCHEMA) if arrow else rows
        expected = [dict(row) for row in topology.run(source, **options)]
    commit = State.commit

    class Killed(Exception):
        pass

    survived = iter([1, 2, 4, 3, 1, 2, 1, 3])
    budget = [0]

    def killed(store: State) -> int:
        if not budget[0]:
            raise Killed
        budget[0] -= 1
        return commit(store)

    commits: dict[int, list[dict[str, Any]]] = {}
    newest = 0
    done = False
    while not done:
        budget[0] = next(survived, 1000)
        received: dict[int, list[dict[str, Any]]] = {}
        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            patched.setattr(State, "commit", killed)
            patched.setattr(State, "close", crash)  # nothing is closed by what is killed
            for row in topology.run(source, tmp_path, replay_last=True, **options):
                received.setdefault(row.commit, []).append(dict(row))
            done = True
        # what a consumer does that writes a commit down when the first result of the next arrives
        complete = sorted(received) if done else sorted(received)[:-1]
        for number in complete:
            if number > newest:
                commits[number] = received[number]
        newest = max([newest, *complete])
    assert [row for number in sorted(commits) for row in commits[number]] == expected


def test_a_late_row_comes_as_it_came(tmp_path: Path) -> None:
    """All its columns, before map, with values of every type that a state can keep."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    extra = {"tags": ["x", None], "price": Decimal("1.10"), "day": date(2026, 1, 2), "raw": b"\x00"}
    rows = [{"a": "k", "b": 1, "at": moment.replace(hour=5)}, {"a": "k", "b": 1, "at": moment, **extra}]
    stream = hs.stream(key=("key", "b"), timestamp="at").map(lambda row: {"key": row["a"], **row})
    topology = stream.windowed_by(hs.TumblingWindows("1 hour")).aggregate(n=hs.Count(), emit="commit").late("too_late")
    assert "late        column too_late" in str(topology)
    for _ in range(2):  # replayed
        *_, last = topology.run(rows, tmp_path, commit_rows=1, replay_last=True)
        assert dict(last) == {
            "key": "k", "b": 1, "window_start": None, "window_end": None, "n": None, "too_late": rows[1]
        }  # fmt: skip


def test_late_rows_may_be_asked_for_at_any_start(tmp_path: Path) -> None:
    topology = declared("tumbling", "commit")
    rows = [{"user": "a", "time": 100, "n": 1}, {"user": "a", "time": 1, "n": 1}]
    before = [dict(row) for row in topology.run(rows, tmp_path, commit_rows=1)]
    after = [dict(row) for row in topology.late().run(rows, tmp_path, commit_rows=1, replay_last=True)]
    assert after == [{**row, "late": None} for row in before]
    more = [*rows, {"user": "b", "time": 2, "n": 1}]
    assert [row["late"] for row in topology.late().run(more, tmp_path, commit_rows=1)] == [more[2]]
    again = [dict(row) for row in topology.run(more, tmp_path, commit_rows=1, replay_last=True)]
    assert again == before


def test_row_by_row_a_late_row_comes_at_once(tmp_path: Path) -> None:
    with declared("tumbling", "record").late().open(tmp_path, shards=2) as engine:
        assert [row["late"] for row in engine.process({"user": "a", "time": 100, "n": 1})] == [None]
        late = {"user": "a", "time": 1, "n": 1, "more": "x"}
        assert [row["late"] for row in engine.process(late)] == [late]
        assert engine.commit() == []
        given = engine.process_many([late, {"user": "a", "time": 120, "n": 1}, late])
        assert Counter(row["late"] is None for row in given) == {True: 1, False: 2}
        assert engine.dropped == 3


def test_late_rows_are_not_held_back_by_suppression() -> None:
    topology = declared("tumbling", "record").hold("close").late()
    rows = [{"user": "a", "time": 100, "n": 1}, {"user": "a", "time": 1, "n": 2}]
    assert late_of([dict(row) for row in topology.run(rows)]) == []  # of one commit: it came in order
    assert late_of([dict(row) for row in topology.run(rows, commit_rows=1)]) == [rows[1]]


def test_late_is_refused_where_it_has_no_meaning() -> None:
    stream = hs.stream(key="user", timestamp="time")
    with pytest.raises(ValueError, match=r"^late: found without an aggregate"):
        stream.late()
    with pytest.raises(ValueError, match=r"^late: found without an aggregate"):
        stream.process(lambda row, stores: None).late()
    topology = declared("tumbling", "record")
    with pytest.raises(ValueError, match=r"^late: found a second time"):
        topology.late().late("again")
    for taken in ("user", "window_end", "n"):
        with pytest.raises(ValueError, match="is the name of another column"):
            topology.late(taken)
    with pytest.raises(ValueError, match=r"^late: column: found ''"):
        topology.late("")
