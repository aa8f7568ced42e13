"""Joins by column: Arrow tables give the results, the changelog and the late rows that the same rows give as dicts."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.rows import Sides, tagged
from hybridstore.topology.joins.spec import HOWS
from tests.conftest import SEED, STRESS
from tests.tools.hooks import crash, force_cold

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")
Row = dict[str, Any]
SEEDS = range(SEED, SEED + max(STRESS, 1))
KEYS = {
    "int": lambda key: {"k": key},
    "text": lambda key: {"k": f"key {key} é"},
    "two": lambda key: {"k": key % 3, "m": f"{key}"},
}


def moment(ts: int, form: str) -> Any:
    return ts if form == "ms" else datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts, microseconds=ts % 3)


def stream_rows(rng: random.Random, kind: str, form: str, count: int) -> list[tuple[int, Row]]:
    """Return rows of both sides: some late, some of one key and time, some twice."""
    rows: list[tuple[int, Row]] = []
    newest = 0
    for number in range(count):
        ts = max(0, newest + rng.randint(-20, 8))
        newest = max(newest, ts)
        key = KEYS[kind](rng.choice((0, 0, 1, 2, 3, 4, 5)))
        side = rng.randrange(2)
        name = ("a", "b")[side]
        value = None if rng.random() < 0.03 else rng.choice((number, number % 3))
        rows.append(
            (side, {**key, ("lt", "rt")[side]: moment(ts, form), name: value, f"{name}2": f"text {number % 5}"})
        )
        if rng.random() < 0.1:
            rows.append(rows[-1])
    return rows


def topology(how: str, kind: str, select: bool) -> hs.Topology:
    key = ["k", "m"] if kind == "two" else "k"
    stream = hs.stream(name="left", key=key, timestamp="lt", columns=["a", "a2"])
    other = hs.stream(name="right", key=key, timestamp="rt", columns=["b", "b2"])
    chosen = {"key": "left.k", "text": "left.a2", "at": "result_time"} if select else None
    return stream.join(other, within=(4, 6), how=how, grace=10, select=chosen)  # type: ignore[arg-type]


def tables(rows: list[tuple[int, Row]]) -> Sides:
    return Sides(
        *(pa.Table.from_pylist(of) if (of := [row for at, row in rows if at == side]) else None for side in (0, 1))
    )


def commits(rng: random.Random, rows: list[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
    parts, at = [], 0
    while at < len(rows):
        size = rng.choice((1, 3, 40))
        parts.append(rows[at : at + size])
        at += size
    return parts


@pytest.mark.stress
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("how", HOWS)
def test_tables_give_the_results_and_the_log_of_rows(how: str, kind: str, tmp_path: Path) -> None:
    by_column = 0
    for seed in SEEDS:
        rng = random.Random(f"{seed} {how} {kind}")
        form = rng.choice(("ms", "aware"))
        shards = rng.choice((1, 2))
        join = topology(how, kind, rng.random() < 0.3)
        places = [tmp_path / f"{seed}-{name}" for name in ("rows", "tables")]
        engines = [Engine(join, place, shards=shards, durability="os") for place in places]
        for commit in commits(rng, stream_rows(rng, kind, form, 150)):
            given = tables(commit)
            parts = [engines[0].split_batch(given.tagged(), 0), engines[1].split_batch(given, 0)]
            before = sum(engines[1].by_row.values())
            for shard in range(shards):
                rows, columns = (
                    engine.table_of(shard, part[shard]) for engine, part in zip(engines, parts, strict=True)
                )
                assert list(columns.rows(dict)) == list(rows.rows(dict)), f"seed {seed}"
                for engine in engines:
                    engine.states[shard].commit()
                states = [engine.states[shard] for engine in engines]
                assert states[0].group.digest == states[1].group.digest, f"seed {seed}"
            by_column += sum(engines[1].by_row.values()) == before
            assert engines[0].dropped == engines[1].dropped
            if rng.random() < 0.1:
                for engine in engines:
                    for state in engine.states:
                        crash(state)
                engines = [Engine(join, place, shards=shards, durability="os") for place in places]
            elif rng.random() < 0.2:
                for engine in engines:
                    for state in engine.states:
                        force_cold(state)
        for shard in range(shards):
            ends = [list(engine.flush_shard(shard).rows(dict)) for engine in engines]
            assert ends[0] == ends[1], f"seed {seed}"
        for engine in engines:
            engine.close()
    assert by_column > len(SEEDS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": "float"}, "keys are null"),
        ({"null": "k"}, "keys are null"),
        ({"null": "lt"}, "times are null"),
        ({"drop": "a"}, "a column is missing"),
        ({"steps": True}, "map, filter"),
        ({"late": True}, "map, filter"),
    ],
    ids=str,
)
def test_tables_without_a_way_by_column_give_the_results_of_rows(change: Row, why: str, tmp_path: Path) -> None:
    lefts = [{"k": key, "lt": 10 * key, "a": key} for key in range(5)]
    rights = [{"k": key, "rt": 10 * key + 1, "b": key} for key in range(5)]
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    if "steps" in change:
        stream = stream.filter(lambda row: row["k"] != 2)
    join = stream.join(hs.stream(name="right", key="k", timestamp="rt", columns=["b"]), within=5, how="left")
    if "late" in change:
        join = join.late("late")
    for row in lefts:
        if "key" in change:
            row["k"] = float(row["k"])
        if change.get("null") and row["a"] == 3:
            row[change["null"]] = None
        if "drop" in change:
            del row["a"]
    if "key" in change:
        for row in rights:
            row["k"] = float(row["k"])
    with join.open(tmp_path / "rows") as rows, join.open(tmp_path / "tables") as columns:
        expected = rows.process_batch(0, rows.split_batch(tagged(join.joined, {"left": lefts, "right": rights}), 0)[0])
        sides = Sides(pa.Table.from_pylist(lefts), pa.Table.from_pylist(rights))
        (part,) = columns.split_batch(sides, 0)
        assert columns.process_batch(0, part) == expected
        assert len(expected) >= 3
        assert columns.left_out == rows.left_out
        assert [text for text in columns.by_row if text.startswith(why)]


@pytest.mark.parametrize("batches", ["table", "list", "generator"])
@pytest.mark.parametrize("commit_rows", [1, 7, 5000])
def test_a_run_over_batches_commits_the_rows_of_a_run_over_dicts(
    batches: str, commit_rows: int, tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {batches} {commit_rows}")
    ordered = sorted(stream_rows(rng, "int", "ms", 60), key=lambda row: row[1][("lt", "rt")[row[0]]])
    rows = {name: [row for at, row in ordered if at == side] for side, name in enumerate(("left", "right"))}
    join = topology("left", "int", False)
    forms = {
        "table": lambda given: given,
        "list": lambda given: given.to_batches(max_chunksize=9),
        "generator": lambda given: iter(given.to_batches(max_chunksize=9)),
    }
    sources = {name: forms[batches](pa.Table.from_pylist(of)) for name, of in rows.items()}
    whole = [(row.commit, dict(row)) for row in join.run(rows, commit_rows=commit_rows, flush=True)]
    assert [(row.commit, dict(row)) for row in join.run(sources, commit_rows=commit_rows, flush=True)] == whole
    # one input of batches, one of dicts
    mixed = {"left": forms[batches](pa.Table.from_pylist(rows["left"])), "right": rows["right"]}
    assert [(row.commit, dict(row)) for row in join.run(mixed, commit_rows=commit_rows, flush=True)] == whole
    broken = {name: forms["list"](pa.Table.from_pylist(of)) for name, of in rows.items()}
    run = join.run(broken, tmp_path / "state", commit_rows=commit_rows, flush=True)
    seen = [next(run)]
    run.close()
    rest = {name: forms["list"](pa.Table.from_pylist(of)) for name, of in rows.items()}
    again = [(row.commit, dict(row)) for row in join.run(rest, tmp_path / "state", commit_rows=commit_rows, flush=True)]
    assert (seen[0].commit, dict(seen[0])) == whole[0]
    assert again == whole
    assert [table.to_pylist() for _, table in join.run(rows, commit_rows=5000).tables()] == [
        [dict(row) for row in join.run(rows, commit_rows=5000)]
    ]


@pytest.mark.parametrize("form", [int, np.int64, "1970-01-01T00:00:00.{:03}".format, lambda ts: moment(ts, "aware")])
def test_tables_meet_stored_rows_with_times_of_any_form(form: Any, tmp_path: Path) -> None:
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    join = stream.join(hs.stream(name="right", key="k", timestamp="rt", columns=["b"]), within="30 days")
    with join.open(tmp_path / "rows") as by_row, join.open(tmp_path / "tables") as by_column:
        for engine in (by_row, by_column):
            engine.process_many([(0, {"k": key, "lt": form(key), "a": 10 * key}) for key in range(5)])
            engine.commit()
        newest = by_row.states[0].stores["left"].stream_time
        rows = [(1, {"k": key, "rt": newest + key, "b": key}) for key in range(5)]
        (part,) = by_column.split_batch(tables(rows), 0)
        assert by_column.process_batch(0, part) == by_row.process_many(rows) != []
        assert not by_column.by_row


def test_dense_batches_leave_the_stores_that_single_rows_leave(tmp_path: Path) -> None:
    """Many rows of a bucket at a time, whose keys are new, repeated, or have rows of earlier commits."""
    rng = random.Random(f"{SEED} dense")
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    join = stream.join(hs.stream(name="right", key="k", timestamp="rt", columns=["b"]), within="1 hour")
    with join.open(tmp_path / "single") as single, join.open(tmp_path / "dense") as dense:
        for commit in range(4):
            times = sorted(rng.randrange(commit * 1000, commit * 1000 + 1500) for _ in range(400))
            keys = [rng.choice((number, rng.randrange(40), 7)) for number in range(400)]
            rows = [
                (number % 2, {"k": key, ("lt", "rt")[number % 2]: ts, ("a", "b")[number % 2]: number})
                for number, (key, ts) in enumerate(zip(keys, times, strict=True))
            ]
            (part,) = dense.split_batch(tables(rows), 0)
            results = dense.process_batch(0, part)
            expected = [row for each in rows for row in single.process_many([each])]
            assert sorted(map(repr, results)) == sorted(map(repr, expected))
            dense.commit()
            single.commit()
            for name in ("left", "right"):
                first, second = (engine.states[0].stores[name] for engine in (single, dense))
                second._check()
                assert sorted(map(repr, second.all())) == sorted(map(repr, first.all()))
                assert [row[0] for row in second.all()] == [row[0] for row in first.all()]
