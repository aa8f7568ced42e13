"""Rows whose processing raises are handed out exactly once, and the others as if those rows had never come."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.directory import State
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
Row = dict[str, Any]


def parsed(row: Row) -> Row:
    """A map that cannot take some rows."""
    return {**row, "n": int(row["text"])}


def is_small(row: Row) -> bool:
    """A filter that cannot take some rows."""
    return bool(100 // row["d"] > 10)


def put(row: Row, stores: Any) -> Any:
    """Logic that cannot take some rows, and says so behind its first result."""
    stores["sums"].put(row["k"], (stores["sums"].get(row["k"]) or 0) + 0)
    yield {"k": row["k"], "d": 1}
    yield {"k": row["k"], "d": 10 // row["d"]}


STREAM = hs.stream(key="k", timestamp="t")
STEPS = STREAM.filter(is_small).map(parsed)
AGGREGATES: Row = {"n": hs.Count(), "total": hs.Sum("n"), "most": hs.Max("v")}
TOPOLOGIES: dict[str, hs.Topology] = {
    "tumbling": STEPS.windowed_by(hs.TumblingWindows(20, grace=100)).aggregate(emit="commit", **AGGREGATES),
    "each": STEPS.windowed_by(hs.TumblingWindows(20, grace=100)).aggregate(**AGGREGATES),
    "panes": STEPS.windowed_by(hs.HoppingWindows(20, 5, grace=100)).aggregate(emit="commit", **AGGREGATES),
    "sessions": STEPS.windowed_by(hs.SessionWindows(8, grace=100)).aggregate(
        emit="commit", n=hs.Count(), s=hs.Sum("n")
    ),
    "sliding": STEPS.windowed_by(hs.SlidingWindows(20)).aggregate(emit="commit", n=hs.Count(), s=hs.Sum("n")),
    "kafka": STEPS.windowed_by(hs.KafkaSlidingWindows(20, grace=100)).aggregate(emit="commit", **AGGREGATES),
    "running": STEPS.aggregate(emit="commit", **AGGREGATES),
    "one group": hs.stream(timestamp="t").filter(is_small).map(parsed).aggregate(emit="commit", **AGGREGATES),
    "where": STREAM.aggregate(emit="commit", n=hs.Count(where=is_small), total=hs.Sum("d")),
    "plain columns": STREAM.windowed_by(hs.TumblingWindows(20, grace=100)).aggregate(
        emit="commit", most=hs.Sum("text")
    ),
    "process": STREAM.process(put, "k string, d bigint", [hs.key_value_store("sums")]),
}
# What a row has to be for its processing to raise, whatever came before it.
BAD = {
    "where": lambda row: row["d"] == 0,
    "plain columns": lambda row: True,
    "process": lambda row: row["d"] == 0,
}


def bad(name: str, row: Row) -> bool:
    if name in BAD:
        return BAD[name](row)
    return row["d"] == 0 or (100 // row["d"] > 10 and row["text"] == "x")


def rows_of(r: random.Random, count: int) -> list[Row]:
    return [
        {
            "k": r.choice("ab"),
            "t": 2 * i,
            "d": r.choice([0, 1, 2, 50]),
            "text": r.choice(["1", "2", "x"]),
            "v": i,
            "i": i,
        }
        for i in range(count)
    ]


def split(results: Any) -> tuple[list[Row], list[Row]]:
    rows = [dict(row) for row in results]
    good = [{name: row[name] for name in row if name != "errors"} for row in rows if row["errors"] is None]
    return good, [row["errors"] for row in rows if row["errors"] is not None]


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.stress
def test_bad_rows_come_out_once_and_the_others_as_without_them(
    name: str, seed: int, rounds: int, tmp_path: Path
) -> None:
    plain = TOPOLOGIES[name]
    topology = plain.errors()
    for number in range(rounds):
        r = random.Random(f"{seed} {number}")
        rows, size = rows_of(r, 40), r.choice([1, 8, 40])
        expected_errors = [row for row in rows if bad(name, row)]
        # commits of the same rows without the bad ones
        batches = [[row for row in rows[at : at + size] if not bad(name, row)] for at in range(0, 40, size)]
        expected: list[Row] = []
        with plain.open(tmp_path / f"{number} plain") as engine:
            for batch in batches:
                expected += engine.process_many(batch)
                expected += engine.commit()
        tables = [pa.Table.from_pylist(rows[at : at + size]).to_batches()[0] for at in range(0, 40, size)]
        # of a table the types of all columns are known, and are refused before a row is processed
        tabled: list[Any] = [] if name == "plain columns" else [topology.run(tables)]
        state = tmp_path / str(number)
        cut = 16 // size * size
        ways: list[Any] = [
            topology.run(rows, commit_rows=size),
            *tabled,
            [*topology.run(rows[:cut], state, commit_rows=size), *topology.run(rows, state, commit_rows=size)],
        ]
        for way in ways:
            good, failed = split(way)
            assert good == expected
            assert [cell["row"] for cell in failed] == expected_errors
            assert all(": " in cell["error"] for cell in failed)
        sharded = split(topology.run(rows, commit_rows=size, shards=3))
        assert sorted(map(repr, sharded[0])) == sorted(map(repr, expected)) or name == "sliding"
        assert sorted(cell["row"]["i"] for cell in sharded[1]) == [row["i"] for row in expected_errors]


def test_an_error_that_depends_on_what_is_stored_leaves_the_aggregate_as_it_was(tmp_path: Path) -> None:
    values = [("a", 1, 3), ("a", 2, "x"), ("a", 3, 9), ("b", 4, "y")]
    rows = [{"k": k, "t": t, "v": v} for k, t, v in values]
    for windows in (hs.TumblingWindows(100), hs.SessionWindows(50), hs.HoppingWindows(100, 50), None):
        stream = STREAM if windows is None else STREAM.windowed_by(windows)
        # the count comes first, and must not count what the maximum cannot take
        topology = stream.aggregate(emit="commit", n=hs.Count(), most=hs.Max("v")).errors()
        for size in (1, 4):
            good, failed = split(topology.run(rows, commit_rows=size))
            last = {row["k"]: (row["n"], row["most"]) for row in good if row["n"] is not None}
            assert last == {"a": (2, 9), "b": (1, "y")}
            assert [cell["row"] for cell in failed] == [rows[1]]
            assert failed[0]["error"].startswith("TypeError: ")


def test_bad_rows_come_out_exactly_once_over_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, rows = TOPOLOGIES["tumbling"].errors(), rows_of(random.Random(3), 60)
    expected = [(row.commit, dict(row)) for row in topology.run(rows, commit_rows=5)]
    commit_of_store = State.commit
    remaining = 0

    def commit(store: State) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            raise KeyboardInterrupt
        return commit_of_store(store)

    monkeypatch.setattr(State, "commit", commit)
    whole: dict[int, list[Row]] = {}
    for crashes in (1, 2, 3, 1, 4, 2, 0):
        remaining, given = crashes, {}
        try:
            for row in topology.run(rows, tmp_path / "state", commit_rows=5):
                given.setdefault(row.commit, []).append(dict(row))
        except KeyboardInterrupt:
            # what follows the last row is not known to be all: the next run begins with it again
            given.pop(max(given, default=0), None)
        for number, results in given.items():
            assert whole.setdefault(number, results) == results
    assert [(number, row) for number in sorted(whole) for row in whole[number]] == expected


@pytest.mark.parametrize("name", ["tumbling", "running", "where", "process"])
def test_on_spark_the_column_is_a_struct(name: str) -> None:
    rows = rows_of(random.Random(5), 30)
    table = pa.Table.from_pylist(rows)
    topology = TOPOLOGIES[name].errors()
    if topology.custom is not None:
        topology = replace(
            topology, custom=replace(topology.custom, schema=pa.schema([("k", "string"), ("d", "int64")]))
        )
    program = TopologyProgram(topology, {"total": pa.int64()})
    if topology.custom is not None:
        pytest.importorskip("pyspark")
        from hybridstore.spark.arrow_schema import arrow_schema

        output = arrow_schema(program.output_schema(table.schema), "UTC")
    else:
        given = table.schema if name == "where" else table.schema.append(pa.field("n", pa.int64()))
        output = program.output_schema(given)
        row = pa.struct(list(table.schema))
        cell = pa.field("errors", pa.struct([("error", pa.string()), ("row", row)]))
        output = output.set(len(output) - 1, cell)
    group = StoreGroup(lambda body: None)
    results = program.open(group).process(table, output).to_pylist()
    good, failed = split(results)
    expected = split(TOPOLOGIES[name].errors().run(rows, commit_rows=100))
    assert good == expected[0]
    assert failed == expected[1]
    assert failed


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda t: t.errors(), "errors: found without an aggregate or process"),
        (lambda t: t.aggregate(n=hs.Count()).errors("n"), "'n' is the name of another column"),
        (lambda t: t.aggregate(n=hs.Count()).errors(""), "errors: column: found ''"),
        (lambda t: t.process(put, "k string").errors("k"), "'k' is the name of another column"),
        (lambda t: t.aggregate(n=hs.Count()).errors().errors(), "found a second time or beside late"),
        (lambda t: t.windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count()).late().errors(), "beside late"),
        (lambda t: t.windowed_by(hs.TumblingWindows(5)).aggregate(n=hs.Count()).errors().late(), "beside errors"),
    ],
)
def test_what_cannot_be_is_refused(declare: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        declare(STREAM)
