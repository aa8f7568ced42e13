"""Rows by column: projections take what they take of single rows, and functions of rows are given dicts."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.aggregation import Combined, Projection
from hybridstore.topology.row_columns import ArrowColumns, DictColumns, UnreadRow

pa = pytest.importorskip("pyarrow")
NAN = float("nan")
DECIDING = st.one_of(st.none(), st.floats(), st.integers(-3, 3))
ROWS = st.lists(st.fixed_dictionaries({"n": DECIDING, "id": st.text(max_size=2), "t": st.integers(0, 5)}), max_size=8)


@given(rows=ROWS, columns=st.sampled_from([None, "id", ("id",), ("n", "id", "t"), "none"]), timed=st.booleans())
@example(rows=[{"n": n, "id": "", "t": 0} for n in (NAN, 1)], columns="id", timed=False)
def test_values_by_column_are_those_of_single_rows(rows: list[dict[str, Any]], columns: Any, timed: bool) -> None:
    projection = Projection(by="n", columns=columns, time="t" if timed else None)
    values = projection.of_rows(DictColumns(rows, [row["t"] for row in rows]))
    # repr, because NaN is a value of a chosen column, too
    assert repr(values) == repr([projection.of(row) for row in rows])


def early(row: dict[str, Any]) -> bool:
    return bool(row["t"] < 3)


def known(row: dict[str, Any]) -> Any:
    return row["n"] is not None and "id" in row and row.get("id") and not row.get("none")


WHERE: dict[str, hs.Aggregator] = {
    "rows": hs.Count(),
    "early": hs.Count(where=early),
    "ids": hs.CountDistinct("id", where=early),
    "sum": hs.Sum("t", where=known),
    "best": hs.MaxBy("t", ["id", "n"], where=known),
    "whole": hs.TopK(2, by="t", where=early),
    "last": hs.Last(where=known),
    "none": hs.Count("none"),
}


@given(rows=ROWS, names=st.sets(st.sampled_from(sorted(WHERE)), min_size=1))
def test_aggregates_that_choose_rows_take_the_same_by_column(rows: list[dict[str, Any]], names: set[str]) -> None:
    combined = Combined({name: WHERE[name] for name in sorted(names)})
    rows = [{"n": None if row["n"] is None else float(row["n"]), "id": row["id"], "t": row["t"]} for row in rows]
    batch = pa.Table.from_pylist(rows, pa.schema([("n", pa.float64()), ("id", pa.string()), ("t", pa.int64())]))
    times = [row["t"] for row in rows]
    expected = repr([combined.project(row) for row in rows])
    for by_column in (DictColumns(rows, times), ArrowColumns(batch, times)):
        assert repr(combined.projected(by_column, len(rows))) == expected


def matched(row: dict[str, Any]) -> Any:
    match row:
        case {"n": n, "id": "b"}:
            return n
    return None


USES: list[Callable[[dict[str, Any]], Any]] = [
    dict,
    list,
    len,
    repr,
    sorted,
    json.dumps,
    matched,
    lambda row: {**row},
    lambda row: dict(**row),
    lambda row: list(reversed(row)),
    lambda row: [*row.keys(), *row.values(), *row.items()],
    lambda row: (row == {"n": 2, "id": "b", "t": 7}, row != {}, row == {}, isinstance(row, dict), bool(row)),
    lambda row: (row | {"x": 1}, {"x": 1} | row, list({"n": 0} | row)),
    lambda row: (row.copy(), copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))),
    lambda row: (row["t"], "t" in row, "x" in row, row.get("t"), row.get("x"), row.get("x", 3), row.get(["t"][0])),
    lambda row: (row.setdefault("n", 5), row.pop("n"), row.pop("x", 4)),
    lambda row: row["x"],
    lambda row: row["n", "t"],
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("read", [[], ["t"], ["t", "id", "n"]], ids=["nothing read", "one read", "all read"])
def test_a_row_of_a_batch_is_a_dict_to_a_function(use: Callable[[dict[str, Any]], Any], read: list[str]) -> None:
    rows = [{"n": 1, "id": "a", "t": 6}, {"n": 2, "id": "b", "t": 7}]

    def outcome(row: dict[str, Any]) -> str:
        for name in read:
            row[name]
        try:
            return repr(use(row))
        except KeyError as error:
            return repr(error)

    seen: list[str] = []
    batch = ArrowColumns(pa.Table.from_pylist([*rows, *rows]), [0] * 4)
    batch.asked(lambda row: seen.append(outcome(row)))
    assert seen == [outcome(dict(row)) for row in [*rows, *rows]]


def test_only_the_columns_that_functions_read_are_made_lists() -> None:
    batch = ArrowColumns(pa.table({"n": [1, 2, 3], "id": ["a", "b", "c"], "t": [1, 5, 2]}), [1, 5, 2])
    assert batch.asked(early) == [True, False, True]
    assert "id" not in batch._cells._columns
    assert list(batch._cells.read) == ["t"]
    asked: list[int] = []
    for _ in range(2):
        assert batch.asked(lambda row: asked.append(row["t"]) or row["n"] == 3) == [False, False, True]
    assert asked == [1, 5, 2, 1, 5, 2]
    for _ in range(2):
        batch.asked(early)
    assert list(batch._cells.read) == ["t", "n"]
    assert "id" not in batch._cells._columns


def test_rows_of_a_batch_do_not_wait_for_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        batch = ArrowColumns(pa.table({"n": [1, 2, 3], "t": [1, 5, 2]}), [1, 5, 2])
        assert batch.asked(early) == [True, False, True]
        del batch
        assert not [each for each in gc.get_objects() if isinstance(each, UnreadRow)]
    finally:
        gc.enable()


def test_a_function_of_a_row_that_raises_is_named() -> None:
    def divides(row: dict[str, Any]) -> bool:
        return bool(1 // row["n"])

    topology = hs.stream(key="id", timestamp="t").aggregate(emit="commit", n=hs.Count(where=divides))
    for rows in ([{"id": "a", "t": 1, "n": 0}], pa.table({"id": ["a"], "t": [1], "n": [0]})):
        with pytest.raises(ZeroDivisionError) as raised:
            list(topology.run(rows))
        assert any("where" in note and "divides" in note for note in raised.value.__notes__)


ALL: dict[str, hs.Aggregator] = {
    "n": hs.Count(),
    "seen": hs.Count("x", where=lambda row: row["page"] != "/a"),
    "total": hs.Sum("x"),
    "mean": hs.Mean("x"),
    "spread": hs.Variance("x"),
    "least": hs.Min("x"),
    "most": hs.Max("x", where=lambda row: row["page"] == "/a"),
    "pages": hs.CountDistinct("page"),
    "values": hs.CountDistinct("x"),
    "set": hs.CollectSet("page"),
    "all": hs.Collect("x", limit=5),
    "first": hs.First("page"),
    "last": hs.Last("x"),
    "top": hs.TopK(3, "x"),
    "rows": hs.TopK(3, by="x", columns=["page", "ts"]),
    "best": hs.MaxBy("x", "page"),
    "path": hs.Reduce(lambda before, page: before + page, "page", name="path"),
    "whole": hs.Reduce(lambda before, row: {**before, **row}, name="whole"),
}


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("windows", [hs.TumblingWindows(500, grace=100), hs.TumblingWindows(40), None])
@pytest.mark.parametrize("number", range(3))
def test_a_commit_of_many_rows_of_a_window_is_that_of_single_rows(
    windows: Any, arrow: bool, number: int, seed: int, tmp_path: Path
) -> None:
    r = random.Random(seed + number)
    kinds: list[Callable[[], Any]] = [
        lambda: r.choice([None, r.uniform(-1e9, 1e9), 0.0, -0.0, NAN, float("inf")]),
        lambda: r.choice([None, r.randint(-9, 9), 2**70]) if not arrow else r.choice([None, r.randint(-9, 9)]),
        lambda: r.choice([None, 1, 1.0, True, 2.5]) if not arrow else r.choice([None, 1.0, 2.5]),
    ]
    # in a commit rows of equal times are in order of their values
    times = sorted(r.sample(range(1000), 300))
    rows = [
        {"user": r.choice("aaaaab"), "ts": ts, "page": r.choice(["/a", "/b", "/c"]), "x": kinds[number]()}
        for ts in times
    ]
    stream = hs.stream(key="user", timestamp="ts")
    topology = (stream if windows is None else stream.windowed_by(windows)).aggregate(emit="commit", **ALL)
    single, together = (topology.open(tmp_path / name, durability="os") for name in ("single", "together"))
    with single, together:
        for start in range(0, len(rows), 60):
            part = rows[start : start + 60]
            for row in part if not arrow else pa.Table.from_pylist(part).to_pylist():
                single.process(row)
            single.commit()
            given: Any = pa.Table.from_pylist(part) if arrow else part
            for shard, piece in enumerate(together.split_batch(given, 0)):
                together.process_batch(shard, piece)
            together.commit()
        assert repr(together.windows()) == repr(single.windows())


def test_a_batch_without_rows_asks_nobody() -> None:
    batch = ArrowColumns(pa.table({"n": pa.array([], pa.int64())}), [])
    assert batch.asked(early) == batch.asked(known) == batch.column("n") == batch.rows() == []


@pytest.mark.parametrize("arrow", [False, True])
def test_rows_of_one_step_are_named_by_their_numbers(arrow: bool) -> None:
    rows = [{"user": "ann", "ts": ts} for ts in (4, 2, 1, 0)]
    stream = hs.stream(key="user", timestamp="ts")

    def fails(declared: Any, error: type[Exception]) -> str:
        given = pa.Table.from_pylist(rows) if arrow else rows
        with pytest.raises(error) as raised:
            list(declared.aggregate(emit="commit", n=hs.Count()).run(given))
        return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])

    def divides(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "part": 6 // row["ts"]}

    def late(row: dict[str, Any]) -> dict[str, Any] | None:
        return OrderedDict(row) if row["ts"] > 1 else None

    assert f"while processing row 3: {rows[3]}" in fails(stream.map(divides), ZeroDivisionError)
    assert f"while processing row 3: {rows[3]}" in fails(
        stream.filter(lambda row: 6 // row["ts"] > 0), ZeroDivisionError
    )
    assert "row 2: map returned NoneType" in fails(stream.map(late), TypeError)
    # the rows that a filter keeps keep their numbers
    alone = hs.stream(key="user", timestamp="at").filter(lambda row: row["ts"] != 4)
    assert "row 1: column 'at' is missing" in fails(alone, ValueError)
