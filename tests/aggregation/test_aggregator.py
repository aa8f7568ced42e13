"""Aggregators: what the built-in ones answer, what powers they declare, and how a user's own are tested."""

import copy
import math
import statistics
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridstore.aggregation import (
    Aggregator,
    Collect,
    CollectSet,
    Combined,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Reduce,
    Sum,
    TopK,
    Variance,
    check_laws,
    independent_copy,
    laws,
    nearly_equal,
)

SAMPLES = [3, 1, 4, 1, 5, 9, 2, 6]
BUILT_IN: list[tuple[Aggregator, Any, Any]] = [
    # aggregator, result of SAMPLES, result of nothing
    (Count(), 8, 0),
    (Sum(), 31, 0),
    (Mean(), 31 / 8, None),
    (Min(), 1, None),
    (Max(), 9, None),
    (First(), 3, None),
    (Last(), 6, None),
    (Collect(), SAMPLES, []),
    (CollectSet(), {1, 2, 3, 4, 5, 6, 9}, set()),
    (TopK(3), [9, 6, 5], []),
    (CountDistinct(), 7, 0),
    (Variance(), statistics.pvariance(SAMPLES), None),
    (Variance(ddof=1), statistics.variance(SAMPLES), None),
    (Reduce(math.gcd, associative=True, commutative=True), 1, None),
]


@pytest.mark.parametrize(("aggregator", "expected", "nothing"), BUILT_IN, ids=lambda a: repr(a)[:24])
def test_built_in_results(aggregator: Aggregator, expected: Any, nothing: Any) -> None:
    assert nearly_equal(aggregator.of(SAMPLES), expected)
    assert aggregator.of([]) == nothing


@pytest.mark.parametrize("aggregator", [a for a, _, _ in BUILT_IN], ids=repr)
def test_built_ins_keep_the_laws_they_declare(aggregator: Aggregator) -> None:
    check_laws(aggregator, SAMPLES)
    if aggregator.name not in ("reduce", "collect_set"):
        check_laws(aggregator, [0.5, -2.25, 1e9, 3.0, 7])


@given(st.lists(st.floats(allow_infinity=False, width=32) | st.integers(-1000, 1000), min_size=3, max_size=20))
def test_selections_keep_their_laws_with_nan(values: list[float]) -> None:
    for aggregator in (Min(), Max(), TopK(3)):
        check_laws(aggregator, values)


def test_declared_powers() -> None:
    assert Count().powers() == ["commutative", "merge", "subtract", "exact subtract"]
    assert Sum().powers() == ["commutative", "merge", "subtract", "exact subtract of int, bool, float"]
    assert Max().powers() == ["commutative", "merge", "selection"]
    assert First().powers() == Last().powers() == Collect().powers() == ["commutative", "merge"]
    assert Reduce(max).powers() == []


def test_an_aggregator_is_commutative_only_if_it_says_so() -> None:
    assert not Aggregator(int, lambda a, v: a + v).commutative


# -- columns and descriptions


def test_a_column_is_bound_when_made_or_by_on() -> None:
    plain = Sum()
    assert plain.on("bytes").describe() == Sum("bytes").describe() == ["sum", "bytes"]
    assert plain.column is None
    assert Sum("bytes").value_of({"bytes": 7, "ip": "a"}) == 7
    assert Sum("bytes").value_of({"ip": "a"}) is None
    assert plain.value_of(12) == 12


def test_own_aggregators_are_bound_too() -> None:
    longest = Aggregator(int, lambda a, v: max(a, len(v)), commutative=True, name="longest")
    assert longest.on("url").describe() == ["longest", "url"]
    assert type(longest.on("url")) is Aggregator


@pytest.mark.parametrize("aggregator", [a for a, _, _ in BUILT_IN], ids=repr)
def test_a_description_is_stable_and_plain(aggregator: Aggregator) -> None:
    described = aggregator.on("x").describe()
    assert described == copy.deepcopy(aggregator).on("x").describe()
    assert described[1] == "x"
    assert all(isinstance(part, str | int) for part in described)


def test_descriptions_tell_aggregators_apart() -> None:
    aggregators = [*(a for a, _, _ in BUILT_IN), TopK(4), Sum("x"), Sum("y"), Reduce(max), Reduce(min)]
    described = [repr(a.describe()) for a in aggregators]
    assert len(set(described)) == len(described)


def test_an_own_aggregator_is_described_by_its_functions() -> None:
    def zero() -> int:
        return 0

    def plus(a: int, b: int) -> int:
        return a + b

    name, column, init, add, merge, *_ = Aggregator(zero, plus, plus).describe()
    assert (name, column) == ("aggregator", None)
    assert init.endswith("zero")
    assert add == merge
    assert Aggregator(zero, plus, name="ours").describe() == ["ours", None]


# -- refused arguments


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: Aggregator(0, max), TypeError, r"init: found int, expected a function \(init makes a new aggregate"),
        (lambda: Aggregator(list, []), TypeError, "add: found list"),
        (lambda: Aggregator(list, max, merge=3), TypeError, "merge: found int"),
        (lambda: Aggregator(list, max, copy=True), TypeError, "copy: found bool"),
        (lambda: Aggregator(list, max, exact_subtract=True), ValueError, "exact_subtract: found without subtract"),
        (lambda: TopK(0), ValueError, "k: found 0"),
        (lambda: TopK("3"), ValueError, "k: found '3'"),
        (lambda: Variance(ddof=-1), ValueError, "ddof: found -1"),
        (lambda: Reduce(3), TypeError, "function: found int"),
        (lambda: Sum(3), TypeError, "sum: column: found int"),
        (lambda: Sum().on(3), TypeError, "column: found int"),
        (lambda: Combined({}), ValueError, "found no aggregators"),
        (lambda: Combined({"n": Count}), TypeError, "n: found the class Count"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make()


# -- copies


class Counter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __repr__(self) -> str:
        return "Counter()"  # without an address: the name of a test is the same in all processes


@pytest.mark.parametrize(
    "aggregate",
    [[1, 2], {1: 2}, {1, 2}, [[1], [2]], {"a": [1]}, ([1],), {"a": {"b": [1]}}, bytearray(b"x"), Counter(), [(1, [2])]],
    ids=repr,
)
def test_a_copy_shares_nothing_that_changes(aggregate: Any) -> None:
    def mutable_parts(container: Any) -> set[int]:
        inner: list[Any] = []
        if isinstance(container, dict):
            inner = list(container.values())
        elif isinstance(container, list | tuple | set):
            inner = list(container)
        elif isinstance(container, Counter):
            inner = [container.seen]
        parts = set() if isinstance(container, int | str | tuple) else {id(container)}
        return parts.union(*map(mutable_parts, inner))

    copied = independent_copy(aggregate)
    assert type(copied) is type(aggregate)
    assert not mutable_parts(copied) & mutable_parts(aggregate)


def test_atoms_are_not_copied() -> None:
    for atom in (10**40, "text" * 9, b"bytes", 1.5, None, (1, "a", None), frozenset({1})):
        assert independent_copy(atom) is atom


def test_a_reduction_leaves_the_values_alone() -> None:
    first: dict[str, int] = {"a": 1}
    total = Reduce(lambda a, b: a.update(b) or a)
    assert total.of([first, {"b": 2}]) == {"a": 1, "b": 2}
    assert first == {"a": 1}


def test_top_k_by_hand() -> None:
    assert TopK(2).of([5]) == [5]
    assert TopK(2).of(["b", "c", "a"]) == ["c", "b"]
    assert TopK(2).of([math.nan, 1.0, math.nan]) == [1.0]


# -- several at once


def test_combined_results_in_the_order_of_names() -> None:
    both = Combined({"requests": Count(), "bytes": Sum("bytes"), "peak": Max("bytes"), "last": Last("path")})
    rows = [{"bytes": 3, "path": "/a"}, {"bytes": None, "path": "/b"}, {"bytes": 5}]
    assert both.names == ("requests", "bytes", "peak", "last")
    # a column is kept once, and a count needs none
    assert both.columns == ("bytes", "path")
    assert both.timed
    assert both.of([both.project(row) for row in rows]) == (3, 8, 5, "/b")


def test_combined_has_the_powers_that_all_have() -> None:
    assert Combined({"a": Count(), "b": Sum("x")}).powers() == Sum().powers()
    assert Combined({"a": Count(), "b": Max("x")}).powers() == ["commutative", "merge"]
    assert Combined({"a": Sum("x"), "b": First("x")}).powers() == ["commutative", "merge"]
    assert Combined({"a": Sum("x"), "b": Reduce(max, "x", associative=True)}).powers() == ["merge"]
    assert Combined({"a": Sum("x"), "b": Reduce(max, "x")}).powers() == []


def test_event_order_decides_and_of_equal_times_the_packed_bytes() -> None:
    first, last, both = First(), Last(), Collect(limit=2)
    pairs: list[Any] = [(5, "b"), (3, "late"), (9, None), (3, "early"), (9, 1), (5, "a")]
    for order in permutations(pairs):
        assert first.finish(first.fold(first.init(), order)) == "late"
        assert last.finish(last.fold(last.init(), order)) is None
        assert both.finish(both.fold(both.init(), order)) == ["late", "early"]
    everything = Collect()
    assert everything.finish(everything.fold([], pairs)) == ["late", "early", "a", "b", 1, None]


def test_a_limit_bounds_what_is_kept() -> None:
    kept = Collect(limit=3)
    items = kept.init()
    for ts in range(1000, 0, -1):
        items = kept.add(items, (ts, "x" * ts))
        assert len(items) <= 12
    assert kept.finish(items) == ["x", "xx", "xxx"]
    assert len(kept.merge(items, kept.fold(kept.init(), [(ts, "y") for ts in range(50)]))) <= 12
    assert Collect("v", limit=3).describe() == ["collect", "v", 3]
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=r"^collect: limit: found .*, expected an int of at least 1"):
            Collect(limit=limit)  # type: ignore[arg-type]


def test_an_aggregator_of_ones_own_may_be_timed() -> None:
    """How long the newest value has been the greatest: the time in the state decides."""
    span = Aggregator(
        lambda: (None, None),
        lambda state, pair: (min(pair[0], state[0] or pair[0]), max(pair[0], state[1] or pair[0])),
        lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        result=lambda state: state[1] - state[0],
        copy=False,
        commutative=True,
        timed=True,
        name="span",
    )
    both = Combined({"n": Count(), "span": span.on("x")})
    pairs = [(30, 1), (10, 2), (25, None)]
    assert both.finish(both.fold(both.init(), pairs)) == (3, 20)


def test_combined_keeps_the_laws() -> None:
    both = Combined({"n": Count("x"), "rows": Count(), "sum": Sum("x"), "set": CollectSet("y")})
    rows = [(1, "a"), (None, "b"), (2, "a"), (5, None), (True, "b")]
    check_laws(both, [both.project({"x": x, "y": y}) for x, y in rows])
    one_column = Combined({"n": Count(), "sum": Sum("x")})
    check_laws(one_column, [one_column.project({"x": x}) for x in (1, None, 2, 3)])


def test_combined_gives_the_row_to_aggregators_without_a_column() -> None:
    rows = Combined({"rows": Collect(), "n": Count()})
    assert rows.columns == (None,)
    assert rows.of([rows.project({"a": 1}), rows.project({"a": 2})]) == ([{"a": 1}, {"a": 2}], 2)


def test_combined_describes_its_parts() -> None:
    both = Combined({"n": Count(), "s": Sum("x")})
    assert both.describe() == ["combined", None, ["n", "count", None], ["s", "sum", "x"]]


# -- laws


def _keep(items: list[Any], value: Any) -> list[Any]:
    items.append(value)
    return items


BROKEN: list[tuple[str, Aggregator, str]] = [
    ("order matters", Aggregator(list, _keep, commutative=True), "commutative"),
    ("one init for all", Aggregator(lambda shared=[]: shared, _keep), "init is new each time"),
    ("shallow copy", Aggregator(lambda: [[]], lambda a, v: (a[0].append(v), a)[1], copy=list.copy), "adding to a copy"),
    ("promised not to change", Aggregator(list, _keep, copy=False), "adding to a copy"),
    ("merge forgets", Aggregator(int, lambda a, v: a + v, lambda a, b: a, commutative=True), "merge of"),
    (
        "merge keeps parts",
        Aggregator(lambda: [[]], lambda a, v: (a[0].append(v), a)[1], lambda a, b: b if not a[0] else [a[0] + b[0]]),
        "merge neither changes nor keeps",
    ),
    (
        "merge has sides",
        Aggregator(list, _keep, lambda a, b: a + b if not a or 0.1 in a else b, result=sorted, commutative=True),
        "merge gives the same both ways round",
    ),
    (
        "subtract leaves rounding",
        Aggregator(float, lambda a, v: a + v, subtract=lambda a, v: a - v, exact_subtract=True, commutative=True),
        "leaves no trace",
    ),
    ("add_many differs", Aggregator(int, lambda a, v: a + v, add_many=lambda a, vs: sum(vs)), "add_many after"),
    ("values changed", Aggregator(list, lambda a, v: v.append(1) or [*a, len(v)]), "values are not changed"),
    (
        "result is the aggregate",
        Aggregator(list, _keep, result=lambda a: a),
        "a result handed out does not change",
    ),
]


@pytest.mark.parametrize(("aggregator", "law"), [(a, law) for _, a, law in BROKEN], ids=[name for name, _, _ in BROKEN])
def test_a_broken_law_is_found(aggregator: Aggregator, law: str) -> None:
    samples: list[Any] = [[1], [2], [3]] if law.startswith("values") else [0.1, 1e17, 3, 0.2]
    with pytest.raises(ValueError, match=law):
        check_laws(aggregator, samples)


def test_laws_hold_for_values_of_several_types_in_their_order() -> None:
    samples = [0.5, 1, "a"]
    check_laws(Aggregator(list, lambda items, value: [*items, value], lambda items, more: items + more), samples)
    newest = Reduce(lambda _, value: value, commutative=True, name="newest")
    with pytest.raises(ValueError, match=r"commutative: .*: found 0.5, expected 'a'"):
        check_laws(newest, samples)


def test_the_orders_that_laws_are_tried_in_exchange_halves_and_neighbours() -> None:
    orders = ["".join(order) for order in laws._orders("abcd")]
    assert orders == ["dcba", "cdab", "bacd", "acbd", "abdc", "acbd"]


def test_laws_need_samples() -> None:
    with pytest.raises(ValueError, match="found 2, expected at least 3"):
        check_laws(Sum(), [1, 2])


def test_an_aggregator_shows_its_column_and_the_name_that_it_was_given() -> None:
    named = Aggregator(int, lambda n, value: n + 1, name="vendors")
    assert repr(named) == "Aggregator(name='vendors')"
    assert repr(named.on("vendorId")) == "Aggregator('vendorId', name='vendors')"
    assert repr(TopK(3, "bytes")) == "TopK('bytes', 3)"
