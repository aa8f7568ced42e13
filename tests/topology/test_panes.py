"""Hopping windows kept as panes against a full scan: in any order of arrival, and what they log."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.group import StoreGroup
from hybridstore.topology.aggregating import Aggregating
from hybridstore.topology.batch import Records
from hybridstore.topology.windows.panes import PanedWindowed
from recovery.errors import ProgramMismatchError
from tests.conftest import STRESS
from tests.tools.topology_oracle import Row, TimeOracle
from tests.tools.ways import aggregating
from tests.topology.test_windows_models import Reopening, as_rows, batches, last_of_each

BAGS = hs.Aggregator(
    list,
    lambda items, value: [*items, value] if len(items) % 2 else (items.append(value), items)[1],
    lambda older, newer: older.extend(newer) or older,
    result=sorted,
    commutative=True,
    name="bags",
)
"""Now changes its aggregate in place and now returns another: an alias anywhere is a wrong result."""
AGGREGATES: dict[str, hs.Aggregator] = {
    "n": hs.Count(),
    "total": hs.Sum("n"),
    "least": hs.Min("n"),
    "mean": hs.Mean("n"),
    "some": hs.CollectSet("n"),
    "bag": BAGS.on("n"),
}
ONE: dict[str, hs.Aggregator] = {"n": hs.Count()}
WINDOWS = [
    hs.HoppingWindows(10, 5, grace=7),
    hs.HoppingWindows(10, 3),
    hs.HoppingWindows(60, 10, grace=20),
    hs.HoppingWindows(30, 29, grace=3),
    hs.HoppingWindows(7, 1, grace=100),
]


def declared(
    windows: hs.HoppingWindows, emit: Any, aggregates: dict[str, hs.Aggregator], **options: Any
) -> hs.Topology:
    return hs.stream(key="user", timestamp="time").windowed_by(windows, **options).aggregate(emit=emit, **aggregates)


def answers(rows: list[Row], aggregates: dict[str, hs.Aggregator]) -> list[dict[str, Any]]:
    return [
        {"user": key, "window_start": start, "window_end": end}
        | {name: aggregator.of(values or []) for name, aggregator in aggregates.items()}
        for key, start, end, values in rows
    ]


# aggregates, and whether rows come in order of arrival; in `make stress` each with each
PAIRS = [(AGGREGATES, False), (ONE, True), *([(AGGREGATES, True), (ONE, False)] if STRESS else [])]
NAMES = [f"{'one' if each is ONE else 'many'}-{'stepping' if stepping else 'canonical'}" for each, stepping in PAIRS]


@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
@pytest.mark.parametrize("emit", ["record", "commit", "close"])
@pytest.mark.parametrize(("aggregates", "stepping"), PAIRS, ids=NAMES)
@pytest.mark.stress
def test_panes_answer_as_a_full_scan(
    windows: hs.HoppingWindows,
    emit: str,
    aggregates: dict[str, hs.Aggregator],
    stepping: bool,
    tmp_path: Path,
    seed: int,
    rounds: int,
) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        oracle = TimeOracle(windows.size_ms, windows.advance_ms, windows.grace_ms)
        run = Reopening(declared(windows, emit, aggregates), tmp_path / f"{number}", r)
        for batch in batches(r, 250 if STRESS else 120, 60):
            rows: list[Row] = []
            final: list[Row] = []
            if stepping:
                # in order of arrival: a window may close, and a later record of the same commit come late
                r.shuffle(batch)
            else:
                batch.sort()
            for record in batch:
                before = oracle.now
                oracle.now = max(oracle.now, record[0])
                # what a window holds when it closes
                final += [row for row in oracle.closed(oracle.now) if row[2] > before - oracle.grace]
                rows += oracle.process(*record)
            final.sort(key=lambda row: (row[1], row[0]))
            if stepping:
                at_once = [row for given in as_rows(batch) for row in run.engine.process(given)]
                at_end = run.commit([])[1]
            else:
                at_once, at_end = run.commit(batch)
            expected: list[Row] = {"record": [], "commit": last_of_each(rows), "close": final}[emit]
            assert at_once == (answers(rows, aggregates) if emit == "record" else [])
            assert at_end == answers(expected, aggregates)
            assert run.engine.windows() == answers(oracle.live(), aggregates)
        assert run.dropped == oracle.dropped
        assert isinstance(aggregating(run.engine).windowed, PanedWindowed)
        run.engine.close()


def test_windows_that_cannot_be_combined_or_are_read_when_closed_are_kept_whole() -> None:
    hopping = hs.HoppingWindows(60, 10, grace=20)
    assert declared(hopping, "commit", ONE).paned
    assert declared(hopping, "commit", ONE, retention=80).paned
    assert not declared(hopping, "commit", ONE, retention=81).paned
    assert not declared(hs.HoppingWindows(60, 60), "commit", ONE).paned
    for timed in (hs.First("n"), hs.Last("n"), hs.Collect("n")):
        assert declared(hopping, "commit", ONE | {"other": timed}).paned
    for ordered in (hs.Reduce(max, "n", associative=True), hs.Aggregator(int, lambda a, v: a + v, commutative=True)):
        assert not declared(hopping, "commit", ONE | {"other": ordered}).paned
    assert str(declared(hopping, "commit", ONE)).endswith("windows (window, as panes)")


def test_a_state_with_whole_windows_keeps_them_whole(tmp_path: Path) -> None:
    windows = hs.HoppingWindows(60, 10)
    rows = [{"user": "ab"[i % 2], "time": 7 * i, "n": i} for i in range(120)]
    ordered = ONE | {"other": hs.Reduce(max, "n", associative=True)}
    first = list(declared(windows, "commit", ordered).run(rows[:60], tmp_path / "s", commit_rows=20))
    assert first
    with declared(windows, "commit", ONE).open(tmp_path / "s", allow="drop aggregate other") as engine:
        assert not isinstance(aggregating(engine).windowed, PanedWindowed)
    topology = declared(windows, "commit", ONE)
    again = list(topology.run(rows, tmp_path / "s", commit_rows=20, allow="drop aggregate other"))
    assert [row for row in again if row.commit > 3] == [
        row for row in topology.run(rows, commit_rows=20) if row.commit > 3
    ]
    list(topology.run(rows, tmp_path / "panes"))
    with pytest.raises(ProgramMismatchError, match=r"panes in the state, whole in the program .*keep both"):
        declared(windows, "commit", ordered).open(tmp_path / "panes", allow="add aggregate other from now")


@pytest.mark.parametrize("emit", ["record", "commit", "close"])
def test_an_accepted_record_logs_one_row_however_many_windows_overlap(emit: str) -> None:
    logged: dict[int, int] = {}
    for advance in (60, 20, 6, 1):
        frames: list[bytes] = []
        group = StoreGroup(frames.append)
        logic = Aggregating(declared(hs.HoppingWindows(60, advance), emit, ONE), group)
        group.reached(1, group.journal.seal())
        frames.clear()
        for ts in range(0, 600, 7):
            logic.process(Records(["a"], [0], [ts]))
            logic.finish()
            group.reached(group.version + 1, group.journal.seal())
        logged[advance] = sum(map(len, frames))
    # windows that do not overlap are the measure
    assert max(logged.values()) == logged[60]
