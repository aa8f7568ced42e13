"""`flush`: at the end of a source all results that are held back are handed out, exactly once, and later runs see their
windows closed.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from tests.topology.test_ends import Appender, Killed, killed_at, row_key
from tests.topology.test_topology import WINDOWS, declared, some_rows

HELD: dict[str, hs.Topology] = {
    **{f"{name}, close": declared(WINDOWS[name], "close") for name in ("tumbling", "hopping", "session", "kafka")},
    **{
        f"{name}, until closed": declared(WINDOWS[name]).hold("close")
        for name in ("tumbling", "hopping", "session", "kafka")
    },
}


def all_windows(topology: hs.Topology, rows: list[dict[str, Any]], state: Path) -> list[str]:
    """The results of the same windows by record, the last of each: what they are when no more records come."""
    import dataclasses

    by_record = dataclasses.replace(topology, emit="record", suppression=None)
    final: dict[Any, dict[str, Any]] = {}
    for row in by_record.run(rows, state, commit_rows=40):
        window = (row["user"], row["window_start"], row["window_end"])
        final.pop(window, None)
        if row["n"] is not None:
            final[window] = dict(row)
    return sorted(map(row_key, final.values()))


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_window_is_handed_out_at_the_end(name: str, shards: int, tmp_path: Path, seed: int) -> None:
    topology, rows = HELD[name], some_rows(seed, 150)
    rows.sort(key=lambda row: row["time"])
    plain = list(topology.run(rows, shards=shards, commit_rows=40))
    flushed = list(topology.run(rows, shards=shards, commit_rows=40, flush=True))
    assert [dict(row) for row in flushed[: len(plain)]] == [dict(row) for row in plain]
    assert sorted(map(row_key, flushed)) == all_windows(topology, rows, tmp_path)
    assert len(flushed) > len(plain)
    assert {row.commit for row in flushed[len(plain) :]} == {-(-len(rows) // 40) + 1}


def test_what_is_held_until_a_time_or_a_bound_is_handed_out_and_time_stays(tmp_path: Path) -> None:
    bounds: list[dict[str, Any]] = [{"until": 1000}, {"max_records": 50}]
    for number, bound in enumerate(bounds):
        topology = declared(hs.TumblingWindows(10)).hold(**bound)
        rows = [{"user": "a", "time": t, "n": 1} for t in (1, 2, 15)]
        state = tmp_path / str(number)
        assert [row["n"] for row in topology.run(rows, state, flush=True)] == [2, 1]
        # the windows are open: a later row updates one, and that is handed out as well
        rows.append({"user": "a", "time": 16, "n": 1})
        assert [row["n"] for row in topology.run(rows, state, flush=True)] == [2]


def test_what_has_begun_closes_and_what_begins_later_is_as_ever(tmp_path: Path) -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows(10, grace=5))
        .aggregate(n=hs.Count(), emit="close")
    )
    rows = [{"k": "a", "t": t} for t in (1, 2, 13)]
    assert [(row["window_start"], row["n"]) for row in topology.run(rows, tmp_path, flush=True)] == [(0, 2), (10, 1)]
    # 19 belongs to a window that has been handed out; 20 to one that had not begun
    rows += [{"k": "a", "t": 19}, {"k": "a", "t": 20}, {"k": "b", "t": 25}]
    again = topology.run(rows, tmp_path, flush=True)
    assert [(row["k"], row["window_start"], row["n"]) for row in again] == [("a", 20, 1), ("b", 20, 1)]
    # without new rows there is nothing to flush, and time does not creep on
    for _ in range(3):
        assert list(topology.run(rows, tmp_path, flush=True)) == []
    rows.append({"k": "a", "t": 30})
    assert [row["window_start"] for row in topology.run(rows, tmp_path, flush=True)] == [30]


def test_a_flush_by_itself_hands_out_times_as_the_rows_had_them(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows("1 minute"), "close")
    for number, zone in enumerate((UTC, None)):
        rows = [{"user": "a", "time": datetime(2026, 1, 1, 0, 0, 5, tzinfo=zone), "n": 1}]
        state = tmp_path / str(number)
        assert list(topology.run(rows, state)) == []
        (row,) = topology.run(rows, state, flush=True)
        assert row["window_start"] == datetime(2026, 1, 1, tzinfo=zone)


@pytest.mark.parametrize("emit", ["record", "commit"])
def test_where_nothing_is_held_back_a_flush_is_nothing(emit: str, tmp_path: Path) -> None:
    topology = declared(WINDOWS["sliding"], emit)
    rows = some_rows(3, 30)
    expected = [dict(row) for row in topology.run(rows)]
    assert [dict(row) for row in topology.run(rows, tmp_path, flush=True)] == expected
    with topology.open(tmp_path) as engine:
        assert engine.states[0].settings["run"]["commit"] == 1


def test_an_empty_source_has_nothing_to_flush(tmp_path: Path) -> None:
    assert list(declared(WINDOWS["tumbling"], "close").run([], tmp_path, flush=True)) == []
    assert hs.inspect(tmp_path).position is None


def test_own_logic_flushes_by_itself() -> None:
    topology = hs.stream(key="k", timestamp="t").process(lambda row, stores: [row])
    with pytest.raises(ValueError, match="flush: found with process"):
        list(topology.run([], flush=True))


def test_arrow_rows_are_flushed_alike(seed: int) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = sorted(some_rows(seed, 100), key=lambda row: row["time"])
    table = pa.Table.from_pylist([{**row, "time": row["time"]} for row in rows])
    for name in ("tumbling, close", "hopping, close"):
        by_row = [dict(row) for row in HELD[name].run(rows, flush=True)]
        assert [dict(row) for row in HELD[name].run(table, flush=True)] == by_row


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 10), st.booleans(), st.sampled_from(["end", "kill", "die"]), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
    shards=st.sampled_from([1, 3]),
    name=st.sampled_from(["tumbling, close", "session, until closed", "hopping, close"]),
)
def test_a_flush_that_is_killed_is_completed_and_handed_out_once(
    steps: list[Any], shards: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same runs without a kill are what is expected: rows, flushes and rows again."""
    topology = HELD[name]
    rows = [{**row, "time": 4 * i} for i, row in enumerate(some_rows(5, 80))]
    folder = tmp_path_factory.mktemp("flush")
    consumer, smooth, length = Appender(careful=True), Appender(careful=True), 0
    options: dict[str, Any] = {"shards": shards, "commit_rows": 4, "replay_last": True}
    for grown, flush, how, place in [*steps, (0, True, "end", 0)]:
        length += grown
        consumer.dies_before_last = how == "die"
        run = topology.run(rows[:length], folder / "state", **options, flush=flush)
        with killed_at(place) if how == "kill" else contextlib.suppress(Killed):
            consumer.take(run)
        run.close()
        # what was killed goes on with its source as it was, and so the commits end where they did
        consumer.dies_before_last = False
        consumer.take(topology.run(rows[:length], folder / "state", **options, flush=flush))
        smooth.take(topology.run(rows[:length], folder / "smooth", **options, flush=flush))
    assert consumer.written == smooth.written


@pytest.mark.parametrize("survived", [1, 2])
def test_a_flush_half_done_is_completed_before_new_rows_whether_asked_for_or_not(survived: int, tmp_path: Path) -> None:
    topology = HELD["tumbling, close"]
    rows = [{"user": user, "time": 3, "n": 1} for user in "abcdefgh"]
    smooth = list(topology.run(rows, tmp_path / "smooth", shards=3, flush=True))
    assert len(smooth) == 8
    with killed_at(3 + survived):
        assert list(topology.run(rows, tmp_path / "state", shards=3, flush=True)) == []
    more = [*rows, {"user": "a", "time": 4, "n": 1}, {"user": "a", "time": 22, "n": 1}]
    again = list(topology.run(more, tmp_path / "state", shards=3))
    assert [(row.commit, dict(row)) for row in again] == [(row.commit, dict(row)) for row in smooth]
    assert [row["n"] for row in topology.run(more, tmp_path / "state", shards=3, flush=True)] == [1]
