"""Null keys, null times and null values: left out and counted, passed over, or handed on. Rows of docs/semantics.md."""

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from tests.tools.vector_runner import SMALL

WINDOWS: dict[str, Any] = {
    "tumbling": hs.TumblingWindows(20, grace=10),
    "hopping": hs.HoppingWindows(20, 5),
    "session": hs.SessionWindows(4, grace=10),
    "sliding": hs.SlidingWindows(15),
    "sliding of kafka": hs.KafkaSlidingWindows(15, grace=10),
}


def rows_with_nulls(draw: random.Random, count: int, key_columns: list[str]) -> list[dict[str, Any]]:
    """Rows of which some lack a part of the key, the time, both or the value; the times of those without a key lie far
    ahead.
    """
    rows = []
    for number in range(count):
        row: dict[str, Any] = {name: draw.choice(["a", "b"]) for name in key_columns}
        row |= {"t": number // 2, "v": draw.choice([None, 1, 2, -3])}
        if draw.random() < 0.2:
            row[draw.choice(key_columns)] = None
            row["t"] = 10**6
        if draw.random() < 0.2:
            row["t"] = None
        rows.append(row)
    return rows


def declared(windows: Any, keys: list[str], emit: Any) -> hs.Topology:
    aggregates: dict[str, Any] = {"n": hs.Count(), "values": hs.Count("v"), "total": hs.Sum("v"), "most": hs.Max("v")}
    if emit == "record":
        del aggregates["most"]
    return hs.stream(key=keys, timestamp="t").windowed_by(windows).aggregate(emit=emit, **aggregates)


def whole(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    return [row for row in rows if row["t"] is not None and all(row[name] is not None for name in keys)]


class Plain:
    """An engine in plain Python, given rows or Arrow tables."""

    def __init__(self, topology: hs.Topology, path: Path, shards: int, form: Callable[[Any], Any]) -> None:
        self.engine = hs.Engine(topology, path, shards=shards, durability="os", _tuning=SMALL)
        self.form = form

    def commit(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for shard, part in enumerate(self.engine.split_batch(self.form(rows), 0)):
            results += self.engine.process_batch(shard, part)
        self.engine.commit()
        return results

    @property
    def left_out(self) -> tuple[int, int]:
        return self.engine.left_out

    @property
    def digests(self) -> list[bytes]:
        return [store.digest for store in self.engine.states]


class OnSpark:
    """What a worker of Spark's runs for a shard."""

    def __init__(self, topology: hs.Topology) -> None:
        self.group = StoreGroup(lambda body: None)
        self.program = TopologyProgram(topology)
        self.runner = self.program.open(self.group)

    def commit(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        table = as_table(rows)
        answer = self.runner.process(table, self.program.output_schema(table.schema))
        self.group.reached(self.group.version + 1, self.group.journal.seal())
        results: list[dict[str, Any]] = answer.to_pylist()
        return results

    @property
    def left_out(self) -> tuple[int, int]:
        return self.runner.left_out

    @property
    def digests(self) -> list[bytes]:
        return [self.group.digest]


def as_table(rows: list[dict[str, Any]]) -> Any:
    pa = pytest.importorskip("pyarrow")
    kinds = {"t": pa.int64(), "v": pa.int64()}
    names = list(rows[0]) if rows else ["k", "l", "t", "v"]
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in names})


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("way", ["rows", "columns", "shards", "spark"])
@pytest.mark.parametrize("keys", [["k"], ["k", "l"]], ids=["a key", "a key of two parts"])
def test_a_row_without_a_key_or_a_time_is_left_out_and_counted(
    windows: str, way: str, keys: list[str], tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is done with such rows, it is as if they were not there, in results and in what is stored."""
    draw = random.Random(seed)
    topology = declared(WINDOWS[windows], keys, draw.choice(["record", "commit"]))
    makers: dict[str, Callable[[str], Any]] = {
        "rows": lambda name: Plain(topology, tmp_path / name, 1, list),
        "columns": lambda name: Plain(topology, tmp_path / name, 1, as_table),
        "shards": lambda name: Plain(topology, tmp_path / name, 2, as_table),
        "spark": lambda name: OnSpark(topology),
    }
    given, without = makers[way]("given"), makers[way]("without")
    keyless = timeless = 0
    for count in (1, 60, 5, 60):
        rows = rows_with_nulls(draw, count, keys)
        here = whole(rows, keys)
        keyless += sum(any(row[name] is None for name in keys) for row in rows)
        timeless += sum(all(row[name] is not None for name in keys) and row["t"] is None for row in rows)
        assert given.commit(rows) == without.commit(here)
        assert given.left_out == (keyless, timeless)
        assert without.left_out == (0, 0)
        assert given.digests == without.digests
    assert keyless
    assert timeless
    assert way == "spark" or any("without a key" in record.message for record in caplog.records)


def test_stream_time_does_not_move_by_a_row_that_is_left_out(tmp_path: Path) -> None:
    topology = declared(hs.TumblingWindows(10), ["k"], "record")
    with topology.open(tmp_path / "s") as engine:
        engine.process({"k": "a", "t": 5, "v": 1})
        assert engine.process({"k": None, "t": 500, "v": 1}) == []
        assert engine.process({"k": "a", "t": None, "v": 1}) == []
        assert engine.process({"k": None, "t": None, "v": 1}) == []
        assert [row["n"] for row in engine.process({"k": "a", "t": 6, "v": 1})] == [2]
        assert (engine.left_out, engine.dropped) == ((2, 1), 0)


def test_rows_that_a_map_robs_of_their_key_and_rows_of_process_are_left_out_too(tmp_path: Path) -> None:
    robbed = hs.stream(key="k", timestamp="t").map(lambda row: {**row, "k": row["k"] or None})
    counted = robbed.windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Count())
    seen = hs.stream(key=["k", "l"], timestamp="t").process(lambda row, stores: [{"v": row["v"]}])
    with counted.open(tmp_path / "map") as engine:
        assert engine.process_many([{"k": "", "t": 1}, {"k": "a", "t": 2}]) == [
            {"k": "a", "window_start": 0, "window_end": 10, "n": 1}
        ]
        assert engine.left_out == (1, 0)
    with seen.open(tmp_path / "process") as engine:
        rows = [{"k": k, "l": "x", "t": t, "v": v} for v, (k, t) in enumerate([("a", 1), (None, 1), ("a", None)])]
        assert engine.process_many(rows) == [{"v": 0}]
        assert engine.left_out == (1, 1)


def test_a_time_that_pandas_does_not_have_is_null(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    topology = declared(hs.TumblingWindows(10), ["k"], "record")
    frame = pd.DataFrame(
        {"k": ["a", "a", None], "t": [datetime(2026, 1, 1), pd.NaT, datetime(2026, 1, 1)], "v": [1, 1, 1]}
    )
    assert [row["n"] for row in topology.run(frame)] == [1]
    assert [row["n"] for row in topology.run(frame.to_dict("records")[:2])] == [1]


def test_a_null_is_passed_over_by_aggregates_of_a_column_and_handed_to_those_without(tmp_path: Path) -> None:
    whole_rows = hs.Aggregator(list, lambda rows, row: [*rows, row["v"]], name="values of whole rows")
    given: list[Any] = []
    of_a_column = hs.Aggregator(int, lambda n, value: given.append(value) or n + 1, name="of a column").on("v")
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(
            n=hs.Count(),
            of_column=of_a_column,
            rows=whole_rows,
            total=hs.Sum("v"),
            mean=hs.Mean("v"),
            last=hs.Last("v"),
        )
    )
    rows = [{"k": "a", "t": 1, "v": 5}, {"k": "a", "t": 2, "v": None}, {"k": "a", "t": 3}]
    with topology.open(tmp_path / "s") as engine:
        results = [row for given_row in rows[:2] for row in engine.process(given_row)]
    assert [(row["n"], row["of_column"], row["rows"], row["total"], row["mean"], row["last"]) for row in results] == [
        (1, 1, [5], 5, 5.0, 5),
        (2, 1, [5, None], 5, 5.0, 5),
    ]
    assert given == [5]
