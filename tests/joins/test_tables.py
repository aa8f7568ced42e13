"""Joins with tables, broadcast tables, rescaled joins, and what is refused."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.clock import Watermark
from hybridstore.topology.engine import Engine
from hybridstore.topology.joins.rows import tagged
from tests.joins.test_model import brute_force, cut, interval, rows_within, shape
from tests.tools.hooks import force_cold

Row = dict[str, Any]


def orders() -> hs.Topology:
    return hs.stream(name="orders", key="order", timestamp="ordered")


def countries(**more: Any) -> hs.Table:
    return hs.table(name="countries", key="code", timestamp="since", columns=["name"], **more)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_broadcast_table_is_in_every_shard(shards: int, tmp_path: Path) -> None:
    join = orders().join(countries(delete="closed"), how="left", broadcast=True, on="country")
    engine = Engine(join, tmp_path / "state", shards=shards, durability="os")
    engine.process_many({"countries": [{"code": "de", "since": 0, "name": "Germany"}]})
    rows = [{"order": number, "ordered": number, "country": "de"} for number in range(20)]
    results = engine.process_many({"orders": rows})
    assert Counter(row["name"] for row in results) == {"Germany": 20}
    engine.process({"countries": {"code": "de", "since": 30, "closed": True}})
    engine.commit()
    engine.close()
    engine = Engine(join, tmp_path / "state", shards=shards, durability="os")
    results = engine.process_many({"orders": [{**row, "ordered": 40} for row in rows]})
    assert Counter(row["name"] for row in results) == {None: 20}
    engine.close()


@pytest.mark.parametrize("code", ["d", "", 5, 2.5, None])
def test_where_null_is_a_key_a_broadcast_table_is_asked_for_null_and_all_else(code: Any) -> None:
    stream = hs.stream(name="orders", key="order", timestamp="ordered", columns=["country"], null_keys="group")
    join = stream.join(countries(), broadcast=True, on="country")
    tables = [{"code": code, "since": 0, "name": "here"}]
    rows = [{"order": order, "ordered": 1, "country": code} for order in (7, None)]
    results = list(join.run({"countries": tables, "orders": rows}))
    assert [(row["order"], row["name"]) for row in results] == [(7, "here"), (None, "here")]


def test_a_table_answers_with_its_newest_row_or_with_the_row_of_the_time(tmp_path: Path) -> None:
    prices = hs.table(name="prices", key="item", timestamp="since", history="1 hour")
    sales = hs.stream(name="sales", key="item", timestamp="sold")
    changes = [{"item": "tea", "since": 0, "price": 3}, {"item": "tea", "since": 60_000, "price": 4}]
    late_sale = {"sales": [{"item": "tea", "sold": 59_999}], "prices": []}
    for as_of, price in ((False, 4), (True, 3)):
        engine = Engine(sales.join(prices, as_of=as_of), tmp_path / str(as_of), durability="os")
        engine.process_many({"prices": changes})
        engine.commit()
        assert [row["price"] for row in engine.process_many(late_sale)] == [price]
        engine.close()


@pytest.mark.parametrize(("history", "price"), [(None, 3), ("1 day", 4)])
def test_an_older_row_that_arrives_last_counts_where_a_table_has_no_history(history: Any, price: int) -> None:
    prices = hs.table(name="prices", key="item", timestamp="since", history=history, columns=["price"])
    sales = hs.stream(name="sales", key="item", timestamp="sold")
    rows = {
        "prices": [{"item": "tea", "since": 60, "price": 4}, {"item": "tea", "since": 0, "price": 3}],
        "sales": [{"item": "tea", "sold": 90}],
    }
    assert [row["price"] for row in sales.join(prices).run(rows, commit_rows=1)] == [price]


@pytest.mark.parametrize(("shards", "into"), [(1, 3), (2, 4)])
@pytest.mark.parametrize("how", ["inner", "full", "anti"])
def test_a_join_goes_on_after_a_rescale(how: str, shards: int, into: int, tmp_path: Path) -> None:
    rng = random.Random(f"{how} {shards}")
    rows = rows_within(rng, 5, 120, 9)
    join = interval(how, 4, 6, 10)
    results: list[Row] = []
    engine = Engine(join, tmp_path / "state", shards=shards, durability="os")
    commits = list(cut(rng, rows))
    for number, commit in enumerate(commits):
        if number == len(commits) // 2:
            engine.close()
            hs.rescale(tmp_path / "state", shards=into)
            engine = Engine(join, tmp_path / "state", shards=into, durability="os")
        results += engine.process_many(commit)
        results += engine.commit()
    results += [row for shard in range(into) for row in engine.flush_shard(shard).rows(dict)]
    engine.close()
    assert Counter(map(shape, results)) == brute_force(rows, how, 4, 6)


def test_a_broadcast_table_is_not_shared_out(tmp_path: Path) -> None:
    join = orders().join(countries(), broadcast=True, on="country")
    with Engine(join, tmp_path / "broadcast") as engine:
        engine.process({"countries": {"code": "de", "since": 0, "name": "Germany"}})
        engine.commit()
    with pytest.raises(hs.RescaleError, match="broadcast table, which is whole in every shard"):
        hs.rescale(tmp_path / "broadcast", shards=2)


def test_late_rows_are_handed_out_with_their_input() -> None:
    join = interval("inner", 4, 6, 0).late("too_late")
    rows = {"left": [{"k": 1, "lt": 50, "a": 0}, {"k": 1, "lt": 3, "a": 1}], "right": []}
    assert list(join.run(rows, commit_rows=1)) == [
        {
            "k": 1,
            "too_late": {"input": "left", "k": 1, "lt": 3, "a": 1},
            "lt": None,
            "a": None,
            "rt": None,
            "b": None,
            "result_time": None,
        }
    ]


def test_results_of_a_join_are_filtered_and_mapped() -> None:
    rows = {
        "left": [{"k": 1, "lt": 5, "a": 3}, {"k": 2, "lt": 5, "a": 4}, {"k": 3, "lt": 50, "a": 5}],
        "right": [{"k": 1, "rt": 6, "b": 1}, {"k": 2, "rt": 6, "b": 9}, {"k": 3, "rt": 7, "b": 9}],
    }
    join = interval("left", 4, 6, 0).filter(lambda row: row["b"] != 1).map(lambda row: {"k": row["k"], "s": row["b"]})
    assert [dict(row) for row in join.run(rows, flush=True)] == [{"k": 2, "s": 9}, {"k": 3, "s": None}]
    assert str(join).splitlines()[-1].split()[0] == "map"
    late = {"left": rows["left"][:2], "right": [{"k": 9, "rt": 99, "b": 0}]}
    results = list(join.late().run({**late, "left": [{"k": 7, "lt": 200, "a": 0}, *late["left"]]}, commit_rows=1))
    assert {"k": 1, "late": {"input": "left", "k": 1, "lt": 5, "a": 3}} in results
    with pytest.raises(TypeError, match="map returned NoneType"):
        list(interval("inner", 4, 6, 0).map(lambda row: None).run(rows))  # type: ignore[arg-type, return-value]


def test_columns_are_chosen_or_get_prefixes() -> None:
    stream = hs.stream(name="left", key="k", timestamp="t")
    other = hs.stream(name="right", key="k", timestamp="t")
    rows = {"left": [{"k": 1, "t": 5, "v": "a"}], "right": [{"k": 1, "t": 6, "v": "b", "w": 0}]}
    with pytest.raises(ValueError, match="column 't': found in both 'left' and 'right'"):
        list(stream.join(other, within=5).run(rows))
    prefixed = stream.join(other, within=5, prefixes={"right": "r_"})
    assert list(prefixed.run(rows)) == [{"k": 1, "t": 5, "v": "a", "r_t": 6, "r_v": "b", "r_w": 0, "result_time": 6}]
    chosen = stream.join(other, within=5, how="left", select={"key": "right.k", "b": "right.v", "at": "result_time"})
    assert list(chosen.run(rows)) == [{"key": 1, "b": "b", "at": 6}]
    alone = {"left": [*rows["left"], {"k": 2, "t": 900, "v": "c"}], "right": []}
    assert list(chosen.run(alone, flush=True)) == [{"key": 1, "b": None, "at": 5}, {"key": 2, "b": None, "at": 900}]


def test_rows_of_other_columns_and_with_datetimes_come_out_as_they_came() -> None:
    from datetime import UTC, datetime

    moment = datetime(2026, 1, 1, 0, 0, 0, 250, tzinfo=UTC)  # 250 µs, which whole milliseconds lose
    stream = hs.stream(name="left", key="k", timestamp="t")
    other = hs.stream(name="right", key="k", timestamp="u")
    rows = {
        "left": [{"k": "a", "t": moment, "v": 1}, {"k": "b", "t": moment, "other": [2]}],
        "right": [{"k": "b", "u": moment}, {"k": "a", "u": moment}],
    }
    whole = moment.replace(microsecond=0)
    results = list(stream.join(other, within=0).run(rows))
    assert {row["k"]: row for row in results} == {
        "a": {"k": "a", "t": moment, "v": 1, "u": moment, "result_time": whole},
        "b": {"k": "b", "t": moment, "other": [2], "u": moment, "result_time": whole},
    }


def test_rows_without_a_key_have_no_partner() -> None:
    rows = {"left": [{"k": None, "lt": 5, "a": 0}], "right": [{"k": None, "rt": 5, "b": 1}]}
    expected = {
        "inner": [],
        "semi": [],
        "left": [(None, 0, None)],
        "right": [(None, None, 1)],
        "anti": [(None, 0, None)],
    }
    for how, results in expected.items():
        assert [shape(row) for row in interval(how, 4, 6, 0).run(rows)] == results, how
    full = interval("full", 4, 6, 0).run(rows)
    assert [shape(row) for row in full] == [(None, 0, None), (None, None, 1)]
    grouped = hs.stream(name="left", key="k", timestamp="lt", null_keys="group")
    join = grouped.join(hs.stream(name="right", key="k", timestamp="rt"), within=5)
    assert [shape(row) for row in join.run(rows)] == [(None, 0, 1)]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("how", ["left", "right", "full", "anti", "inner"])
def test_by_a_watermark_rows_without_a_key_come_out_when_their_time_has_passed(
    how: str, cold: bool, tmp_path: Path
) -> None:
    """The rule of Spark's joins: a row that no row can meet waits as long as one that none has met."""
    join = interval(how, 4, 6, 0)
    assert join.joined is not None
    with Engine(join, tmp_path / "state", durability="os") as engine:
        (run,) = engine._runs

        def batch(rows: dict[str, list[Row]], late: int, now: int) -> list[tuple[Any, ...]]:
            records = engine.records(tagged(join.joined, rows))  # type: ignore[arg-type]
            results = run.process_batch(records, Watermark(late, now))
            shapes = [shape(row) for row in run.table(results, "ms").rows(dict)]
            engine.commit()
            if cold:
                force_cold(engine.states[0])
            return shapes

        rows = {"left": [{"k": None, "lt": 20, "a": 0}], "right": [{"k": None, "rt": 20, "b": 1}]}
        assert batch(rows, 0, 10) == []
        lefts = [(None, 0, None)] if how in ("left", "full", "anti") else []
        rights = [(None, None, 1)] if how in ("right", "full") else []
        assert batch({"left": [], "right": []}, 10, 24) == []
        assert batch({"left": [], "right": []}, 24, 25) == rights
        assert batch({"left": [], "right": []}, 25, 26) == []
        assert engine.holds_back is (how in ("left", "full", "anti"))
        assert batch({"left": [], "right": []}, 26, 27) == lefts
        assert batch({"left": [], "right": []}, 27, 99) == []


def test_by_a_watermark_a_row_without_a_partner_comes_when_it_is_due_whatever_lies_beside_it(tmp_path: Path) -> None:
    join = interval("right", 5, 8, 0)
    assert join.joined is not None
    batches: list[tuple[list[int], list[int], int, list[int]]] = [
        ([66, 62], [52], 55, []),
        ([], [89, 75], 64, [52]),
        ([95, 92, 103], [], 80, []),
        ([], [], 81, [75]),  # the first watermark behind 75 + 5
        ([], [], 200, []),  # 89 had a partner
    ]
    with Engine(join, tmp_path / "state", durability="os") as engine:
        (run,) = engine._runs
        late = 0
        for lefts, rights, now, expected in batches:
            rows: dict[str, list[Row]] = {
                "left": [{"k": "a", "lt": ts, "a": ts} for ts in lefts],
                "right": [{"k": "a", "rt": ts, "b": ts} for ts in rights],
            }
            results = run.process_batch(engine.records(tagged(join.joined, rows)), Watermark(late, now))
            shapes = [shape(row) for row in run.table(results, "ms").rows(dict)]
            engine.commit()
            assert [b for _, a, b in shapes if a is None] == expected, now
            late = now


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"within": None}, "join: within: found None"),
    ({"within": 5, "how": "outer"}, "join: how: found 'outer'"),
    ({"within": 5, "how": "left"}, "the columns of 'right' are not known"),
    ({"within": 5, "as_of": True}, "expected them with a table"),
    ({"within": 5, "select": {"a": "middle.v"}}, "join: select: a: found 'middle.v'"),
    ({"within": 5, "prefixes": {"middle": "m_"}}, "join: prefixes: found 'middle'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_mistake_is_named_where_the_join_is_declared(options: dict[str, Any], message: str) -> None:
    stream = hs.stream(name="left", key="k", timestamp="t")
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        stream.join(hs.stream(name="right", key="k", timestamp="u"), **options)


OF_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"within": 5}, "join: within: found with a table, expected with a stream only"),
    ({"how": "full"}, "join: how: found 'full' with a table"),
    ({"history": None, "as_of": True}, "join: as_of: found a table without history, expected hs.table(name='right'"),
    ({"grace": 5}, "join: grace: found with the newest row of a table"),
    ({"as_of": True, "grace": 11}, "join: grace: found 11 ms, expected at most the history of the table, 10 ms"),
    ({"as_of": True, "broadcast": True}, "join: found as_of with broadcast, or on= without it"),
    ({"on": "v"}, "join: found as_of with broadcast, or on= without it"),
    ({"as_of": True, "on": "v"}, "join: found as_of with broadcast, or on= without it"),
]


@pytest.mark.parametrize(("options", "message"), OF_TABLES)
def test_a_mistake_with_a_table_is_named_where_the_join_is_declared(options: dict[str, Any], message: str) -> None:
    stream = hs.stream(name="left", key="k", timestamp="t")
    table = hs.table(name="right", key="k", timestamp="u", history=options.get("history", 10))
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        stream.join(table, **{name: value for name, value in options.items() if name != "history"})


def test_a_changed_join_is_refused(tmp_path: Path) -> None:
    rows = {"left": [{"k": 1, "lt": 5, "a": 0}], "right": []}
    list(interval("inner", 4, 6, 0).run(rows, tmp_path / "state"))
    with pytest.raises(hs.ProgramMismatchError, match="join: the state has"):
        list(interval("inner", 4, 7, 0).run(rows, tmp_path / "state"))
