"""Joins of odd rows: keys with nan or a part that is null, batches of different columns, a reach beyond 64 bits."""

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.due import Due
from hybridstore.topology.joins.rows import Sides
from hybridstore.topology.joins.spec import HOWS
from tests.conftest import SEED
from tests.tools.hooks import crash

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")
Row = dict[str, Any]


def join_of(how: str, key: Any = "k", within: Any = 5, grace: int = 0) -> hs.Topology:
    stream = hs.stream(name="left", key=key, timestamp="lt", columns=["a"])
    right = hs.stream(name="right", key=key, timestamp="rt", columns=["b"])
    return stream.join(right, within=within, how=how, grace=grace)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["rows", "tables"])
@pytest.mark.parametrize("how", HOWS)
def test_a_row_with_nan_as_key_comes_out_alone_as_one_with_null(how: str, form: str) -> None:
    lefts = [{"k": math.nan, "lt": 1, "a": 1}, {"k": None, "lt": 1, "a": 2}, {"k": 1.0, "lt": 1, "a": 3}]
    rights = [{"k": math.nan, "rt": 1, "b": 1}, {"k": None, "rt": 1, "b": 2}, {"k": 1.0, "rt": 1, "b": 3}]
    inputs: Any = {"left": lefts, "right": rights}
    if form == "tables":
        inputs = {name: pa.Table.from_pylist(rows) for name, rows in inputs.items()}
    results = list(join_of(how).run(inputs, flush=True))
    lonely = [row.get("a") or -row["b"] for row in results if not (row.get("a") == 3 or row.get("b") == 3)]
    expected = {"left": [1, 2], "anti": [1, 2], "right": [-2, -1], "full": [-2, -1, 1, 2]}
    assert sorted(lonely) == expected.get(how, [])


@pytest.mark.parametrize("clocked", [False, True])
def test_a_row_without_a_key_keeps_the_other_columns_of_its_key(clocked: bool, tmp_path: Path) -> None:
    join = join_of("full", ["k", "m"])
    engine = Engine(join, tmp_path / "state", durability="os")
    rows = [(0, {"k": 5, "m": None, "lt": 10, "a": 1}), (1, {"k": None, "m": 6, "rt": 10, "b": 2})]
    clock = Watermark(late_ms=0, now_ms=0) if clocked else None
    results = list(engine.table_of(0, engine.split_batch(rows, 0)[0], clock).rows(dict))
    assert len(results) == (0 if clocked else 2)
    engine.states[0].commit()
    crash(engine.states[0])
    engine = Engine(join, tmp_path / "state", durability="os")
    results += engine.flush_shard(0).rows(dict)
    engine.close()
    assert [(row["k"], row["m"], row["a"], row["b"]) for row in results] == [(5, None, 1, None), (None, 6, None, 2)]


def test_times_are_datetimes_where_all_rows_of_a_commit_are_without_a_key(tmp_path: Path) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with Engine(join_of("full"), tmp_path / "state", durability="os") as engine:
        engine.process_many({"left": [{"k": 1, "lt": begin, "a": 1}], "right": []})
        late = begin + timedelta(hours=1)
        rows = engine.process_many({"left": [], "right": [{"k": None, "rt": late, "b": 1}]})
    assert [row["result_time"] for row in rows] == [late, begin]


@pytest.mark.parametrize("form", ["rows", "tables"])
@pytest.mark.parametrize("how", [how for how in HOWS if how != "full"])  # a full join leaves no row out
def test_a_row_without_a_key_that_is_left_out_makes_nothing_late(how: str, form: str, tmp_path: Path) -> None:
    ahead: list[Any] = [
        {"left": [{"k": None, "lt": 1000, "a": 1}], "right": []} if how in ("inner", "right", "semi") else {},
        {"left": [], "right": [{"k": None, "rt": 1000, "b": 1}]} if how != "right" else {},
    ]
    pair = {"left": [{"k": 1, "lt": 5, "a": 2}], "right": [{"k": 1, "rt": 5, "b": 2}]}
    with Engine(join_of(how), tmp_path / "state", durability="os") as engine:
        for inputs in filter(None, [*ahead, pair]):
            given: Any = inputs
            if form == "tables":
                given = {name: pa.Table.from_pylist(rows) for name, rows in inputs.items() if rows}
            results = engine.process_many(given)
        assert engine.dropped == 0
        assert engine.left_out.null_key == len(list(filter(None, ahead)))
    assert [row.get("a") for row in results] == ([] if how == "anti" else [2])


@pytest.mark.parametrize(
    ("how", "expected"), [("inner", [(2, "x")]), ("left", [(0, None), (1, None), (2, "x"), (3, None)])]
)
def test_nan_asks_a_broadcast_table_for_nothing_as_null_does(how: Any, expected: list[Any]) -> None:
    rates = hs.table(name="rates", key="rate", timestamp="t", columns=["name"])
    sales = hs.stream(name="sales", key="k", timestamp="t")
    joined = sales.join(rates, how=how, broadcast=True, on="rate", select={"n": "sales.n", "name": "rates.name"})
    asked = [{"k": 1, "t": 5, "n": n, "rate": rate} for n, rate in enumerate([math.nan, None, 1.5])]
    asked.append({"k": None, "t": 5, "n": 3, "rate": None})
    results = joined.run({"rates": [{"rate": 1.5, "t": 0, "name": "x"}], "sales": asked})
    assert sorted((row["n"], row["name"]) for row in results) == expected


def test_batches_of_different_columns_are_committed_together() -> None:
    lefts = [
        pa.RecordBatch.from_pylist([{"k": 1, "lt": 1, "a": 1}]),
        pa.RecordBatch.from_pylist([{"k": 1, "lt": 2, "a": None}]),
        pa.RecordBatch.from_pylist([{"k": 1, "lt": 3, "a": 1.5}]),
        pa.RecordBatch.from_pylist([{"k": 1, "lt": 4}]),
    ]
    rights = [pa.RecordBatch.from_pylist([{"k": 1, "rt": 5, "b": 7}])]
    results = list(join_of("left").run({"left": lefts, "right": rights}, flush=True))
    assert [row["a"] for row in results] == [1, None, 1.5, None]
    assert [type(row["a"]) for row in results[::2]] == [int, float]
    assert {row.commit for row in results} == {1}


@pytest.mark.parametrize("within", [(0, 2**63 - 20), (2**63 - 20, 0), (2**62 - 10, 2**62 - 10)])
def test_a_reach_as_far_as_64_bits_joins_all_rows(within: tuple[int, int]) -> None:
    lefts = [{"k": 1, "lt": ts, "a": ts} for ts in (10, 100, 5000)]
    rights = [{"k": 1, "rt": ts, "b": ts} for ts in (10, 100, 5000)]
    tables = {"left": pa.Table.from_pylist(lefts), "right": pa.Table.from_pylist(rights)}
    join = join_of("inner", within=within)
    rows = list(join.run({"left": lefts, "right": rights}))
    assert len(rows) == sum(a["lt"] - within[0] <= b["rt"] <= a["lt"] + within[1] for a in lefts for b in rights)
    assert list(join.run(tables)) == rows


@pytest.mark.parametrize(
    "values", [[1.0, math.nan, -1.0, 2.0], [1.0, -0.0, 0.0, None], [[1, 2], [], None], [b"", b"x"]]
)
@pytest.mark.parametrize("how", HOWS)
def test_tables_of_odd_values_give_the_log_and_the_counts_of_rows(how: str, values: list[Any], tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int8(), pa.float64(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))):
        rng = random.Random(f"{SEED} {how} {number} {values}")
        keys = [0, 1, 2] if number == 0 else [0.0, -0.0, 1.5, math.nan] if number == 1 else ["", "a", "é"]
        shards = rng.choice((1, 2))
        engines = [
            Engine(join_of(how, grace=9), tmp_path / f"{number}-{form}", shards=shards, durability="os")
            for form in ("rows", "tables")
        ]
        for _ in range(4):
            sides = []
            count = rng.choice((1, 20))
            for ts, value in (("lt", "a"), ("rt", "b")):
                rows = [
                    {"k": rng.choice(keys), ts: rng.randrange(12), value: rng.choice(values)}
                    for _ in range(rng.choice((0, 20)) or (count if value == "b" else 0))
                ]
                kinds = pa.Table.from_pylist([{value: part} for part in values]).schema.field(value)
                schema = pa.schema([("k", kind), (ts, pa.int64()), kinds])
                sides.append(pa.Table.from_pylist(rows, schema=schema) if rows else None)
            given = Sides(*sides)
            parts = [engines[0].split_batch(given.tagged(), 0), engines[1].split_batch(given, 0)]
            for shard in range(shards):
                whole = [engine.table_of(shard, part[shard]) for engine, part in zip(engines, parts, strict=True)]
                assert repr(list(whole[0].rows(dict))) == repr(list(whole[1].rows(dict)))
                for engine in engines:
                    engine.states[shard].commit()
                assert engines[0].states[shard].group.digest == engines[1].states[shard].group.digest
        assert engines[0].left_out == engines[1].left_out
        assert engines[0].dropped == engines[1].dropped
        for engine in engines:
            engine.close()


def test_rows_at_times_of_numpy_whose_values_have_no_order_are_joined() -> None:
    np = pytest.importorskip("numpy")
    stream = hs.stream(name="left", key="k", timestamp="lt", columns=["a"])
    join = stream.join(hs.stream(name="right", key="k", timestamp="rt", columns=["b"]), within="1 hour")
    lefts = [{"k": 1, "lt": np.int64(5), "a": value} for value in (None, 3, "tea")]
    results = list(join.run({"left": lefts, "right": [{"k": 1, "rt": 6, "b": 1}]}))
    assert [(row["a"], row["lt"], type(row["lt"])) for row in results] == [(3, 5, int), ("tea", 5, int), (None, 5, int)]


def test_a_late_row_comes_with_the_call_that_takes_it_and_not_with_the_commit_again(tmp_path: Path) -> None:
    engine = Engine(join_of("inner").late(), tmp_path / "s", durability="os")
    engine.process_many({"left": [{"k": 1, "lt": 1000, "a": 0}], "right": []})
    assert engine.commit() == []
    late = {"k": 1, "rt": 0, "b": 1}
    for process in (engine.process, lambda row: engine.process_many({side: [row] for side, row in row.items()})):
        assert [row["late"] for row in process({"right": late})] == [{"input": "right", **late}]
        assert engine.commit() == []
    engine.close()


def test_rows_of_one_time_are_due_in_the_order_of_their_keys_as_after_a_restart(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        store = state.window("rows", retention=1000)
        due = Due(store, 0)
        due.take(5)
        for key, value in (("b", 1), ("a", 2)):
            store.put(key, value, 10)
            due.add([key], [10], [value])
        assert due.take(10) == Due(store, 5).take(10) == [(10, "a", 2), (10, "b", 1)]
