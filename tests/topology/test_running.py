"""Aggregates without windows, streams without a key, and topologies of map and filter alone."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.ways import went_by_column

RUNNING = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), total=hs.Sum("v"), most=hs.Max("v"), emit="commit")
ONE_GROUP = hs.stream(timestamp="t")


def rows_of(r: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows in any order of time, over spans that every window would drop as late."""
    return [{"k": r.choice("abc"), "t": r.randrange(10**7), "v": r.randrange(-50, 50)} for _ in range(count)]


def full_scan(rows: list[dict[str, Any]], size: int) -> list[tuple[int, dict[str, Any]]]:
    """The values of each key that a commit has touched, of all rows up to that commit."""
    results = []
    for commit, at in enumerate(range(0, len(rows), size), 1):
        for key in sorted({row["k"] for row in rows[at : at + size]}):
            values = [row["v"] for row in rows[: at + size] if row["k"] == key]
            results.append((commit, {"k": key, "n": len(values), "total": sum(values), "most": max(values)}))
    return results


def by_commit(results: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(row.commit, dict(row)) for row in results]


@pytest.mark.stress
def test_running_aggregates_are_full_scans_over_restarts(tmp_path: Path, seed: int, rounds: int) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        rows, size, state = rows_of(r, 60), r.choice([1, 7, 20]), tmp_path / str(number)
        results: list[tuple[int, dict[str, Any]]] = []
        for stop in (20, 40, 60):  # a commit ends with each run, so that runs are of whole commits
            results += by_commit(RUNNING.run(rows[: stop // size * size if stop < 60 else 60], state, commit_rows=size))
        assert results == full_scan(rows, size)


def test_running_aggregates_go_by_column(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    rows = rows_of(random.Random(1), 50)
    tables = [pa.Table.from_pylist(rows[at : at + 10]) for at in range(0, 50, 10)]
    batches = [table.to_batches()[0] for table in tables]
    assert by_commit(RUNNING.run(batches)) == full_scan(rows, 10)
    with RUNNING.open(tmp_path) as engine:
        for table in tables:
            engine.process_batch(0, engine.split_batch(table, 0)[0])
            assert went_by_column(engine, table)


@pytest.mark.parametrize("kind", ["batches", "rows then batches", "rows"])
def test_a_source_is_read_no_farther_than_its_commit(kind: str) -> None:
    """A source may hand out a whole year of batches, or wait for its next row."""
    pa = pytest.importorskip("pyarrow")
    rows, read = rows_of(random.Random(2), 60), 0

    def source() -> Any:
        nonlocal read
        for at in range(0, 60, 10):
            if kind == "rows" or (kind == "rows then batches" and at < 20):
                for row in rows[at : at + 10]:
                    read += 1
                    yield row
            else:
                read += 10
                yield pa.RecordBatch.from_pylist(rows[at : at + 10])

    results: list[tuple[int, dict[str, Any]]] = []
    for row in RUNNING.run(source(), commit_rows=10):
        results.append((row.commit, dict(row)))
        # a batch behind rows shows itself only when it is read
        assert read <= 10 * row.commit + (10 if kind == "rows then batches" else 0)
    assert results == full_scan(rows, 10)


def test_results_without_windows_have_no_bounds(tmp_path: Path) -> None:
    rows = [{"k": "a", "t": 5, "v": 1}, {"k": "a", "t": 1, "v": 2}]
    each = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count())
    assert [dict(row) for row in each.run(rows, commit_rows=1)] == [{"k": "a", "n": 1}, {"k": "a", "n": 2}]
    with each.open(tmp_path) as engine:
        assert engine.process(rows[0]) == [{"k": "a", "n": 1}]
        assert engine.windows() == [{"k": "a", "n": 1}]
    assert str(each).splitlines()[1:] == ["└─ aggregate   n=Count(); emit record", "└─ stores      windows (window)"]


def test_a_stream_without_a_key_is_one_group_for_every_number_of_shards() -> None:
    pa = pytest.importorskip("pyarrow")
    rows = rows_of(random.Random(2), 40)
    rows.sort(key=lambda row: row["t"])
    for windows in (None, hs.TumblingWindows(10**6), hs.HoppingWindows(10**6, 10**5), hs.SessionWindows(10**5)):
        topology = ONE_GROUP if windows is None else ONE_GROUP.windowed_by(windows)
        topology = topology.aggregate(n=hs.Count(), total=hs.Sum("v"), emit="commit")
        alike = hs.stream(key="all", timestamp="t")
        alike = alike if windows is None else alike.windowed_by(windows)
        alike = alike.aggregate(n=hs.Count(), total=hs.Sum("v"), emit="commit")
        expected = [
            (commit, {name: value for name, value in row.items() if name != "all"})
            for commit, row in by_commit(alike.run([{**row, "all": "x"} for row in rows], commit_rows=9))
        ]
        tables = [pa.Table.from_pylist(rows[at : at + 9]).to_batches()[0] for at in range(0, 40, 9)]
        for shards in (1, 3):
            assert by_commit(topology.run(rows, commit_rows=9, shards=shards)) == expected
            assert by_commit(topology.run(tables, shards=shards)) == expected


def test_late_rows_of_a_stream_without_a_key_are_handed_out() -> None:
    minutes = ONE_GROUP.windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count()).late()
    rows = [{"t": 50}, {"t": 1}]
    expected = [
        {"window_start": 50, "window_end": 60, "n": 1, "late": None},
        {"window_start": None, "window_end": None, "n": None, "late": {"t": 1}},
    ]
    assert [dict(row) for row in minutes.run(rows, commit_rows=1)] == expected


def test_a_stream_without_a_key_takes_steps() -> None:
    rows = rows_of(random.Random(3), 20)
    loud = ONE_GROUP.filter(lambda row: row["v"] > 0).map(lambda row: {"t": row["t"], "v": -row["v"]})
    (result,) = loud.aggregate(emit="commit", total=hs.Sum("v")).run(rows)
    assert result["total"] == -sum(row["v"] for row in rows if row["v"] > 0)


def test_map_and_filter_alone_run_and_go_on(tmp_path: Path) -> None:
    doubled = (
        hs.stream(key="k", timestamp="t")
        .filter(lambda row: row["v"] > 0)
        .map(lambda row: {**row, "v": 2 * row["v"]}, "k string, t bigint, v bigint")
    )
    rows = [{"k": "a", "t": 1, "v": 1}, {"k": "a", "t": 2, "v": -1}, {"k": "b", "t": 3, "v": 3}]
    assert [row["v"] for row in doubled.run(rows[:1], tmp_path, flush=True)] == [2]
    assert [row["v"] for row in doubled.run(rows, tmp_path, flush=True)] == [6]
    with pytest.raises(ValueError, match="found no aggregate and no process"):
        hs.stream(key="k", timestamp="t").run(rows)


def test_suppression_holds_running_results_for_a_time() -> None:
    waiting = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count()).hold(10)
    rows = [{"k": "a", "t": 0}, {"k": "a", "t": 5}, {"k": "b", "t": 20}]
    assert [dict(row) for row in waiting.run(rows, flush=True)] == [{"k": "a", "n": 2}, {"k": "b", "n": 1}]


def test_an_aggregate_that_is_new_begins_empty(tmp_path: Path) -> None:
    rows = [{"k": "a", "t": 1, "v": 5}, {"k": "a", "t": 2, "v": 7}]
    before = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count())
    after = hs.stream(key="k", timestamp="t").aggregate(n=hs.Count(), total=hs.Sum("v"))
    list(before.run(rows[:1], tmp_path))
    (change,) = after.compare(tmp_path)
    assert change.note == "it begins empty: rows before the change are not in it"
    results = list(after.run(rows, tmp_path, allow=change.consent))
    assert [dict(row) for row in results] == [{"k": "a", "n": 2, "total": 7}]
    windowed = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    assert [change.verdict for change in windowed.compare(tmp_path)] == ["refused"]


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda t: t.aggregate(n=hs.Count(), emit="close"), 'emit: found "close" without windows'),
        (lambda t: t.aggregate(n=hs.Count()).late(), "late: found without windows"),
        (lambda t: t.aggregate(n=hs.Count()).hold("close"), 'hold: until: found "close" without'),
        (lambda t: t.aggregate(n=hs.Count()).windowed_by(hs.TumblingWindows(5)), "windowed_by: found a second time"),
        (lambda t: t.aggregate(n=hs.Count(), strategy="ladder"), "strategy: found 'ladder'"),
        (lambda t: t.aggregate(n=hs.Count()).process(print), "process: found after windowed_by or aggregate"),
        (lambda t: t.process(print).aggregate(n=hs.Count()), "aggregate: found after process"),
        (lambda t: t.map(print, "k string,,"), "map: output_schema: found 'k string,,'"),
        (
            lambda t: hs.stream(timestamp="t", null_keys="group"),
            'null_keys: found "group" without a key.*key=, the same',
        ),
        (lambda t: t.aggregate(n=hs.Count(), emit="update"), r"found 'update', .* \(Spark's update is .commit.\)"),
        (lambda t: t.aggregate(n=hs.Count(), emit="append"), r"found 'append', .* \(Spark's append is .close.\)"),
        (lambda t: t.aggregate(n=hs.Count("*")), r"count: column: found '\*', .*, or Count\(\) for all rows"),
    ],
)
def test_what_cannot_be_without_windows_is_refused_when_it_is_declared(declare: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        declare(hs.stream(key="k", timestamp="t"))


@pytest.mark.parametrize("aggregate", [hs.Last("n"), hs.Collect("n"), hs.Max("n")])
def test_what_an_aggregate_cannot_keep_is_told_by_column_and_type(aggregate: Any) -> None:
    topology = (
        hs.stream(key="user", timestamp="time")
        .windowed_by(hs.TumblingWindows(5))
        .aggregate(m=hs.Sum("m"), newest=aggregate, emit="commit")
    )
    rows = [{"user": "a", "time": n, "n": None if not n else timedelta(n), "m": 1} for n in range(3)]
    with pytest.raises(TypeError) as raised:
        list(topology.run(rows))
    assert str(raised.value).startswith(f"aggregate 'newest': {aggregate.name} of column 'n': key 'a', time 1: found ")
    assert "timedelta datetime.timedelta(days=1), which it cannot keep (store 'windows'" in str(raised.value)
