"""Columns of decimals, dates, bools and what has no place in a store: exact, or refused when the schema is seen; and
results that do not fit.
"""

import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from tests.tools.vector_runner import SMALL

pa = pytest.importorskip("pyarrow")

WINDOWS: dict[str, Any] = {
    "tumbling": hs.TumblingWindows(20, grace=10),
    "hopping": hs.HoppingWindows(20, 5),
    "session": hs.SessionWindows(4, grace=10),
    "sliding": hs.SlidingWindows(15),
    "sliding of kafka": hs.KafkaSlidingWindows(15, grace=10),
}
MONEY: dict[str, Any] = {
    "total": hs.Sum("v"),
    "mean": hs.Mean("v"),
    "least": hs.Min("v"),
    "most": hs.Max("v"),
    "all": hs.Collect("v"),
    "distinct": hs.CollectSet("v"),
    "top": hs.TopK(2, "v"),
    "days": hs.CollectSet("d"),
    "last_day": hs.Max("d"),
    "first_day": hs.First("d"),
}
PLACES = Decimal("0." + "0" * 18)


def money_rows(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows with amounts of up to 30 digits, whose sums a decimal context of 28 digits rounds, and dates."""
    big = Context(prec=60)
    return [
        {
            "k": draw.choice("ab"),
            "t": number // 2,
            "v": draw.choice([None, big.quantize(Decimal(draw.randint(-(10**29), 10**29)).scaleb(-18, big), PLACES)]),
            "d": date(2026, 1, 1) + timedelta(draw.randrange(-30_000, 30)),
        }
        for number in range(count)
    ]


def expected(values: list[Any]) -> dict[str, Any]:
    """What exact arithmetic gives for a window's amounts."""
    present = [value for value in values if value is not None]
    with localcontext(Context(prec=200)):
        total = sum(present, Decimal(0)) if present else 0
        mean = (total / len(present)).quantize(Decimal("1e-22"), rounding=ROUND_HALF_UP) if present else None
    return {
        "total": total,
        "mean": mean,
        "least": min(present, default=None),
        "most": max(present, default=None),
        "distinct": set(present),
        "top": sorted(present, reverse=True)[:2],
    }


def table_of(rows: list[dict[str, Any]]) -> Any:
    kinds = [("k", pa.string()), ("t", pa.int64()), ("v", pa.decimal128(38, 18)), ("d", pa.date32())]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))


def plain(topology: hs.Topology, rows: list[dict[str, Any]], path: Path, form: Callable[[Any], Any]) -> list[Any]:
    """The results, restored in between."""
    results: list[Any] = []
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        with hs.Engine(topology, path, durability="os", _tuning=SMALL) as engine:
            results += engine.process_many(form(part))
            results += engine.commit()
            engine.states[0].checkpoint(wait=True)
    return results


@pytest.mark.parametrize("windows", WINDOWS)
def test_decimals_and_dates_are_aggregated_exactly_and_alike_everywhere(
    windows: str, tmp_path: Path, seed: int
) -> None:
    rows = money_rows(random.Random(seed), 60)
    topology = hs.stream(key="k", timestamp="t").windowed_by(WINDOWS[windows]).aggregate(emit="commit", **MONEY)
    by_row = plain(topology, rows, tmp_path / "rows", list)
    by_table = plain(topology, rows, tmp_path / "tables", table_of)
    assert by_row == by_table
    for row in by_row:
        if row["all"] is not None:
            assert {name: row[name] for name in expected([])} == expected(row["all"])
            assert row["last_day"] == max(row["days"])
    program = TopologyProgram(topology)
    group = StoreGroup(lambda body: None)
    runner, output = program.open(group), program.output_schema(table_of(rows).schema)
    kinds = {name: str(output.field(name).type) for name in ("total", "mean", "least", "distinct", "last_day")}
    assert kinds == {
        "total": "decimal128(38, 18)",
        "mean": "decimal128(38, 22)",
        "least": "decimal128(38, 18)",
        "distinct": "list<item: decimal128(38, 18)>",
        "last_day": "date32[day]",
    }
    with localcontext(Context(prec=5)):  # whatever a user's own code does to it
        outputs = [runner.process(table_of(part), output).to_pylist() for part in (rows[:30], rows[30:])]
    by_program = outputs[0] + outputs[1]
    for result in by_program:
        for name in ("distinct", "days"):
            result[name] = None if result[name] is None else set(result[name])
    assert by_program == by_row


@given(
    st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=3), min_size=1, max_size=8), st.integers(1, 40)
)
def test_sums_and_means_do_not_depend_on_the_decimal_context(values: list[Decimal], precision: int) -> None:
    with localcontext(Context(prec=400)):
        total = sum(values)
        mean = (total / len(values)).quantize(Decimal("1e-7"), rounding=ROUND_HALF_UP)
    with localcontext(Context(prec=precision)):
        for aggregator, answer in ((hs.Sum(), total), (hs.Mean(), mean)):
            assert aggregator.of(values) == answer
            halves = [aggregator.fold(aggregator.init(), part) for part in (values[::2], values[1::2])]
            assert aggregator.merge is not None
            assert aggregator.finish(aggregator.merge(*halves)) == answer
            one_by_one = aggregator.init()
            for value in values:
                one_by_one = aggregator.add(one_by_one, value)
            assert aggregator.finish(one_by_one) == answer


def test_a_sum_of_decimals_that_cannot_be_exact_is_an_error() -> None:
    with pytest.raises(OverflowError, match="sum of decimals: found more than 100,000 digits"):
        hs.Sum().of([Decimal("1E+100001"), Decimal(1)])
    assert str(hs.Sum().of([Decimal("Infinity"), Decimal("-Infinity")])) == "NaN"
    assert str(hs.Mean().of([Decimal("Infinity"), Decimal(1)])) == "Infinity"
    assert hs.Max().of([Decimal("NaN"), Decimal(1)]) == 1


def test_decimals_may_be_no_numbers_and_rows_still_have_an_order() -> None:
    topology = (
        hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(n=hs.Max("v"), emit="commit")
    )
    rows = [{"k": "a", "t": 1, "v": Decimal(text)} for text in ("NaN", "1", "0.5")]
    assert [row["n"] for row in topology.run(rows)] == [1]


def test_decimals_in_the_store_and_whole_numbers_in_the_batch(tmp_path: Path) -> None:
    """A column may change its type from batch to batch in plain Python; nothing is rounded by it."""
    for emit in ("record", "commit"):
        topology = (
            hs.stream(key="k", timestamp="t")
            .windowed_by(hs.TumblingWindows(100))
            .aggregate(emit=emit, total=hs.Sum("v"), mean=hs.Mean("v"))
        )
        big = Decimal("1234567890123456789012345678.01")
        first = pa.table({"k": ["a"], "t": [1], "v": pa.array([big], pa.decimal128(38, 2))})
        second = pa.table({"k": ["a"], "t": [2], "v": pa.array([3], pa.int64())})
        assert [row["total"] for row in topology.run([first, second])] == [
            big,
            Decimal("1234567890123456789012345681.01"),
        ]


REFUSED: list[tuple[Any, Any, str]] = [
    (hs.Sum("v"), pa.string(), "found string, expected numbers"),
    (hs.Sum("v"), pa.date32(), r"found date32\[day\], expected numbers"),
    (hs.Mean("v"), pa.decimal128(38, 35), r"found decimal128\(38, 35\), expected decimals of 34 places at most"),
    (hs.Variance("v"), pa.decimal128(10, 2), r"found decimal128\(10, 2\), expected numbers"),
    (
        hs.Max("v"),
        pa.duration("us"),
        r"found duration\[us\], expected values that can be stored, which duration\[us\] is not",
    ),
    (hs.Last("v"), pa.time64("us"), r"found time64\[us\], expected values that can be stored"),
    (hs.Collect("v"), pa.list_(pa.duration("us")), r"which duration\[us\] is not"),
    (hs.Max("v"), pa.struct([("a", pa.int64())]), "expected values that have an order"),
    (hs.TopK(2, "v"), pa.map_(pa.string(), pa.int64()), "expected values that have an order"),
    (hs.CollectSet("v"), pa.list_(pa.int64()), "expected values that are not nested"),
]


@pytest.mark.parametrize(("aggregate", "kind", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_column_that_cannot_be_aggregated_is_refused_when_it_is_declared(
    aggregate: Any, kind: Any, message: str, tmp_path: Path
) -> None:
    topology = hs.stream(key="k", timestamp="t").windowed_by(hs.TumblingWindows(10)).aggregate(a=aggregate)
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", kind)])
    with pytest.raises(
        TypeError, match=f"aggregate 'a': column 'v': found.*{message.removeprefix('found')}.*cast it before"
    ):
        TopologyProgram(topology).output_schema(schema)
    table = pa.table([["a"], [1], pa.nulls(1, kind)], schema=schema)
    with pytest.raises(TypeError, match=f"aggregate 'a': column 'v': found.*{message.removeprefix('found')}"):
        list(topology.run(table, tmp_path / "s"))


def test_whole_rows_that_sliding_windows_keep_are_looked_at_too() -> None:
    counter = hs.Aggregator(int, lambda n, row: n + 1, name="rows")
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.duration("us"))])
    for windows, refused in ((hs.SlidingWindows(10), True), (hs.TumblingWindows(10), False)):
        topology = hs.stream(key="k", timestamp="t").windowed_by(windows).aggregate(a=counter)
        program = TopologyProgram(topology, {"a": pa.int64()})
        if refused:
            with pytest.raises(TypeError, match="aggregate 'a': column 'v': found duration"):
                program.output_schema(schema)
        else:
            assert program.output_schema(schema).field("a").type == pa.int64()


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("emit", ["record", "commit"])
def test_a_result_beyond_64_bits_is_named_with_its_aggregate_column_and_key(windows: str, emit: Any) -> None:
    topology = (
        hs.stream(key=["k", "l"], timestamp="t").windowed_by(WINDOWS[windows]).aggregate(emit=emit, total=hs.Sum("v"))
    )
    rows = [{"k": k, "l": 1, "t": t, "v": 2**62 if k == "b" else 1} for t in range(3) for k in "ab"]
    kinds = pa.schema([("k", pa.string()), ("l", pa.int32()), ("t", pa.int64()), ("v", pa.int64())])
    table = pa.Table.from_pylist(rows, schema=kinds)
    # plain Python has numbers of any size
    assert max(row["total"] for row in topology.run(table) if row["total"] is not None) == 3 * 2**62
    program = TopologyProgram(topology)
    message = (
        r"aggregate 'total': sum of column 'v': key \('b', 1\): found \d{19,20}, "
        r"expected a value that fits in bigint, 64 bits"
    )
    with pytest.raises(OverflowError, match=message):
        program.open(StoreGroup(lambda body: None)).process(table, program.output_schema(table.schema))
    wide = TopologyProgram(topology, {"total": pa.decimal128(38, 0)})
    answers = wide.open(StoreGroup(lambda body: None)).process(table, wide.output_schema(table.schema)).to_pylist()
    assert max(row["total"] for row in answers if row["total"] is not None) == Decimal(3 * 2**62)


def test_a_sum_of_bools_is_a_whole_number() -> None:
    topology = (
        hs.stream(key="k", timestamp="t")
        .windowed_by(hs.TumblingWindows(10))
        .aggregate(yes=hs.Sum("v"), share=hs.Mean("v"), emit="commit")
    )
    table = pa.table({"k": ["a"] * 3, "t": [1, 2, 3], "v": [True, False, True]})
    program = TopologyProgram(topology)
    output = program.output_schema(table.schema)
    assert (output.field("yes").type, output.field("share").type) == (pa.int64(), pa.float64())
    answers = program.open(StoreGroup(lambda body: None)).process(table, output).to_pylist()
    assert [(row["yes"], row["share"]) for row in answers] == [(2, 2 / 3)]
    assert [(row["yes"], row["share"]) for row in topology.run(table)] == [(2, 2 / 3)]
