"""Every sliding strategy against a full scan, and its cost in adds, counted exactly."""

import math
import random
from collections.abc import Callable, Iterator
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
    First,
    Last,
    Max,
    Mean,
    Min,
    Reduce,
    Sum,
    TopK,
    Variance,
    best_strategy,
    nearly_equal,
)
from hybridstore.aggregation.ladder import Ladder, LadderState
from hybridstore.aggregation.merge_ladder import MergeLadder
from tests.conftest import STRESS
from tests.tools.kip450 import STRATEGIES, Buckets, bucket_count, bucket_size, choose
from tests.tools.sliding_oracle import LATE, ScanningStore, StrategyStore, stream

Value = Callable[[random.Random], Any]


def small_ints(r: random.Random) -> int:
    return r.randint(-40, 60)


def numbers(r: random.Random) -> float:
    """Ints, and now and then a float, so that exact and inexact stretches alternate."""
    return r.random() * 100 if r.random() < 0.02 else r.randint(-40, 60)


def rows_of(combined: Combined) -> Value:
    """Return a maker of projected rows, some of them without a value."""
    return lambda r: combined.project({"x": None if r.random() < 0.1 else r.randint(-9, 9)})


def append(items: list[Any], value: Any) -> list[Any]:
    items.append(value)
    return items


def extend(items: list[Any], more: list[Any]) -> list[Any]:
    items.extend(more)
    return items


def pop_first(items: list[Any], value: Any) -> list[Any]:
    assert items[0] == value, "only the oldest value can be taken out"
    del items[0]
    return items


def group(groups: dict[int, list[int]], value: int) -> dict[int, list[int]]:
    groups.setdefault(value % 5, []).append(value)
    return groups


def regroup(groups: dict[int, list[int]], more: dict[int, list[int]]) -> dict[int, list[int]]:
    for remainder, values in more.items():
        groups.setdefault(remainder, []).extend(values)
    return groups


def sorted_groups(groups: dict[int, list[int]]) -> dict[int, list[int]]:
    return {remainder: sorted(values) for remainder, values in groups.items()}


# each changes its aggregate in place, so that an alias anywhere is a wrong result
LISTS = Aggregator(list, append, extend, name="lists")
LISTS_LEFT_INVERSE = Aggregator(list, append, subtract=pop_first, exact_subtract=True, name="left inverse")
INTS_IN_ORDER = Aggregator(list, append, extend, subtract=pop_first, exact_subtract=(int,), name="ints in order")
BAGS = Aggregator(list, append, extend, result=sorted, commutative=True, name="bags")
BAGS_ADD_ONLY = Aggregator(list, append, result=sorted, commutative=True, name="bags, add only")
GROUPS = Aggregator(dict, group, regroup, result=sorted_groups, commutative=True, name="groups")
TEXT = Aggregator(str, lambda text, value: f"{text}{value},", lambda a, b: a + b, name="text")
SMOOTHED = Aggregator(lambda: 0.0, lambda mean, value: mean * 0.5 + value, name="moving average")
NONE_FIRST = Aggregator(lambda: None, lambda a, v: v if a is None or v > a else a, commutative=True, name="none first")
COUNT_AND_SUM = Combined({"n": Count(), "s": Sum("x")})
COUNT_AND_MEAN = Combined({"n": Count(), "m": Mean("x")})
MEAN_AND_COUNT = Combined({"m": Mean("x"), "n": Count("x")})
MEAN = Combined({"m": Mean("x")})
MANY = Combined({"n": Count("x"), "s": Sum("x"), "top": TopK(2, "x"), "max": Max("x")})
TIMED = Combined({"n": Count(), "last": Last("x"), "all": Collect("x", limit=4)})

CASES: list[tuple[Aggregator, Value, list[str]]] = [
    (Sum(), numbers, ["subtract", "merge", "ladder", "buckets", "chunks", "recompute"]),
    (Count(), small_ints, ["subtract", "merge", "ladder", "buckets", "simple"]),
    (Mean(), numbers, ["subtract"]),
    (Max(), numbers, ["monotone", "merge", "ladder", "chunks"]),
    (Min(), small_ints, ["monotone", "ladder"]),
    (TopK(3), small_ints, ["merge", "ladder", "buckets"]),
    (Variance(), small_ints, ["merge", "ladder"]),
    (CollectSet(), small_ints, ["subtract", "merge"]),
    (First(), small_ints, ["merge", "ladder", "recompute"]),
    (Last(), small_ints, ["merge", "chunks"]),
    (Collect(), small_ints, ["recompute", "merge"]),
    (Collect(limit=3), small_ints, ["merge", "ladder"]),
    (Reduce(max, commutative=True, associative=True), small_ints, ["merge", "ladder"]),
    (LISTS, small_ints, ["chunks", "recompute"]),
    (LISTS_LEFT_INVERSE, small_ints, ["subtract"]),
    (BAGS, small_ints, ["merge", "ladder", "buckets", "simple"]),
    (BAGS_ADD_ONLY, small_ints, ["ladder"]),
    (GROUPS, small_ints, ["merge", "ladder", "chunks"]),
    (TEXT, small_ints, ["chunks"]),
    (SMOOTHED, small_ints, ["recompute"]),
    (NONE_FIRST, small_ints, ["ladder", "buckets"]),
    (COUNT_AND_SUM, rows_of(COUNT_AND_SUM), ["subtract", "ladder"]),
    (COUNT_AND_MEAN, rows_of(COUNT_AND_MEAN), ["subtract"]),
    (MEAN_AND_COUNT, rows_of(MEAN_AND_COUNT), ["subtract"]),
    (MEAN, rows_of(MEAN), ["subtract"]),
    (MANY, rows_of(MANY), ["merge", "ladder"]),
    (TIMED, rows_of(TIMED), ["merge"]),
]
PAIRS = [(a, value, strategy) for a, value, strategies in CASES for strategy in strategies]
RECORDS = 230
IDS = [f"{a.name}-{strategy}" for a, _, strategy in PAIRS]


def compare(
    aggregator: Aggregator, strategy: Any, records: Iterator[Any], size_ms: int, seed: int, *, reopen_every: int = 97
) -> int:
    """Run a stream through a strategy and a full scan; return how many results were compared."""
    oracle = ScanningStore(size_ms, aggregator)
    store = StrategyStore(size_ms, strategy)
    handed_out: list[tuple[Any, str]] = []
    compared = 0
    if aggregator.timed:
        # the store of a timed aggregator gives each value its time
        records = (record._replace(value=(record.ts, record.value)) for record in records)
    for number, record in enumerate(records):
        expected = oracle.add(record)
        result = store.add(record, fused=(seed + number // 50) % 4 != 0)
        assert nearly_equal(result, expected), f"record {number} {record}: found {result!r}, expected {expected!r}"
        handed_out.append((result, repr(result)))
        compared += 1
        if number % reopen_every == reopen_every - 1:
            for key, state in store.states.items():
                state.check()
                # an idle key still holds what the other keys' stream time has outdated
                state.expire(oracle.stream_time - size_ms)
                assert list(state) == [r for r in oracle.live(key) if r[0] >= oracle.stream_time - size_ms]
            store.reopen()
    # nothing handed out was changed by what came later
    assert all(repr(result) == text for result, text in handed_out)
    return compared


@pytest.mark.parametrize(("aggregator", "value", "strategy"), PAIRS, ids=IDS)
def test_strategies_answer_as_a_full_scan(aggregator: Aggregator, value: Value, strategy: str, seed: int) -> None:
    compared = 0
    for turn, (disorder, size_ms, step_ms) in enumerate(
        [
            (0.0, 25, 1),
            (0.0, 170, 2),
            (0.05, 60, 1),
            (0.05, 170, 1),
            (0.3, 35, 1),
            (0.6, 110, 1),
            (0.3, 9, 0),
            (0.0, 7, 3),
            (0.3, 0, 0),
        ]
    ):
        records = stream(
            seed + turn, RECORDS, size_ms=size_ms, keys=1 + turn % 4, disorder=disorder, step_ms=step_ms, value=value
        )
        compared += compare(aggregator, choose(aggregator, strategy), records, size_ms, seed + turn)
    assert compared == 9 * RECORDS


def test_all_pairs_together_compare_a_hundred_thousand_results() -> None:
    assert len(PAIRS) * 9 * RECORDS >= 100_000


@pytest.mark.parametrize("disorder", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("strategy", ["subtract", "merge", "ladder", "buckets", "chunks", "monotone", "recompute"])
def test_windows_of_many_blocks(strategy: str, disorder: float, seed: int) -> None:
    aggregator = Max() if strategy == "monotone" else Sum()
    records = stream(seed, 4000 if STRESS else 2500, size_ms=1500, keys=1, disorder=disorder, gap=0.0004)
    compare(aggregator, choose(aggregator, strategy), records, 1500, seed, reopen_every=1999)


@pytest.mark.parametrize("leaf", [1, 2, 3])
def test_a_leaf_changes_no_result(leaf: int, seed: int) -> None:
    for disorder in (0.0, 0.4):
        records = stream(seed, 1200, size_ms=200, keys=2, disorder=disorder)
        compare(GROUPS, Ladder(GROUPS, leaf=leaf), records, 200, seed)


@given(
    operations=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(-5, 5)), max_size=80),
    strategy=st.sampled_from(["ladder", "merge", "buckets", "simple", "chunks", "recompute"]),
    size_ms=st.integers(0, 40),
)
def test_nothing_handed_out_is_an_alias(operations: list[tuple[int, int, int]], strategy: str, size_ms: int) -> None:
    """Results are spoilt by whoever gets them; every later one is right all the same."""
    # no `result`, so that the aggregate itself would be handed out if it were not copied
    aggregator = Aggregator(dict, group, regroup, commutative=True)
    state = choose(aggregator, strategy).new()
    now = 0
    live: list[tuple[int, int]] = []
    for step, late, value in operations:
        now += step
        ts = max(0, now - late) if late < size_ms else now
        live = [r for r in live if r[0] >= now - size_ms] + [(ts, value)]
        actual = state.update(ts, value, now - size_ms)
        assert sorted_groups(actual) == sorted_groups(aggregator.of([v for _, v in live]))
        again = state.value()
        assert again == actual
        assert again is not actual
        for values in actual.values():
            values.append(10**6)
        actual[99] = [1]
        assert state.value() == again


# -- order


@pytest.mark.parametrize("strategy", ["ladder", "merge", "buckets"])
def test_strategies_that_reorder_refuse_an_aggregator_that_needs_order(strategy: str) -> None:
    with pytest.raises(ValueError, match="found commutative=False, expected True, since values"):
        choose(LISTS, strategy)


def test_sqrt_buckets_reorder_even_a_stream_in_order() -> None:
    """Why the adder of KIP-450's design has to be commutative, though the KIP does not say so."""
    claimed = Aggregator(list, append, commutative=True)
    state = Buckets(claimed, size=3).new()
    results = [state.update(ts, ts, 0) for ts in range(8)]
    assert sorted(results[-1]) == list(range(8))
    assert results[-1] != list(range(8))


def test_values_of_one_time_are_added_in_their_order_of_arrival() -> None:
    for strategy in ("recompute", "chunks"):
        state = choose(LISTS, strategy).new()
        for value in range(100):
            state.update(50, value, 0)
        state.update(49, "before", 0)
        assert state.value() == ["before", *range(100)]


# -- numbers


def test_a_huge_float_that_passed_leaves_no_trace() -> None:
    for aggregator, expected in ((Sum(), 10.0), (Mean(), 1.0)):
        state = choose(aggregator).new()
        state.update(0, 1e17, -9)
        for ts in range(1, 30):
            result = state.update(ts, 1.0, ts - 9)
        assert result == pytest.approx(expected, rel=1e-12)


def test_a_sum_subtracts_again_when_the_last_float_has_left() -> None:
    calls = 0

    def count_add(a: int, b: int) -> int:
        nonlocal calls
        calls += 1
        return a + b

    total = Aggregator(
        int, count_add, count_add, lambda a, b: a - b, commutative=True, exact_subtract=(int,), copy=False
    )
    state = choose(total).new()
    for ts in range(300):
        state.update(ts, 0.5 if ts == 100 else 1, ts - 99)
    calls = 0
    for ts in range(300, 400):
        assert state.update(ts, 1, ts - 99) == 100
    assert calls == 100


def test_sums_of_ints_are_exact_at_any_size() -> None:
    state = choose(Sum()).new()
    values = [10**30 + 1, -(10**30), 3**70, 1]
    for ts, value in enumerate(values):
        state.update(ts, value, ts - 1)
    assert state.value() == 3**70 + 1


@pytest.mark.parametrize("strategy", ["monotone", "merge", "ladder"])
def test_nan_is_never_the_greatest(strategy: str) -> None:
    state = choose(Max(), strategy).new()
    nan = math.nan
    results = [state.update(ts, v, ts - 2) for ts, v in enumerate([nan, 1.0, nan, nan, 3.0, nan, nan, nan, 2.0])]
    assert results == [None, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, None, 2.0]


# -- cost, counted exactly


class Adds:
    """A commutative sum that counts its calls."""

    def __init__(self, *, merge: bool = False) -> None:
        self.adds = 0
        self.merges = 0
        self.aggregator = Aggregator(
            int, self.add, self.merge if merge else None, copy=False, commutative=True, name="counting"
        )

    def add(self, total: int, value: int) -> int:
        self.adds += 1
        return total + value

    def merge(self, older: int, newer: int) -> int:
        self.merges += 1
        return older + newer


def adds_per_record(adds: Adds, state: Any, records: int) -> tuple[float, int]:
    """Return (adds per record over whole cycles of a ladder in order, most adds of one record)."""
    now = 0
    for _ in range(2 * records):
        state.update(now, 1, now - records + 1)
        now += 1
    worst = counted = since = 0
    begun = False
    cycles = 0
    while cycles < 3:
        before = adds.adds
        assert state.update(now, 1, now - records + 1) == records
        now += 1
        spent = adds.adds - before
        worst = max(worst, spent)
        if spent >= 0.9 * records:
            # the whole ladder was built anew: a cycle ends and another begins
            cycles += begun
            begun = True
            if cycles == 3:
                break
        if begun:
            counted += spent
            since += 1
    return counted / since, worst


@pytest.mark.parametrize("records", [30, 100, 1000, 5000])
@pytest.mark.parametrize("leaf", [1, 2])
def test_ladder_adds_are_at_most_log2_n(records: int, leaf: int) -> None:
    adds = Adds()
    average, worst = adds_per_record(adds, Ladder(adds.aggregator, leaf=leaf).new(), records)
    assert math.log2(records + 1) - 0.087 <= average <= math.log2(records) + 0.1 + 0.4 * (records < 64)
    assert worst <= records + math.log2(records) + 2


@pytest.mark.parametrize("records", [100, 1000, 5000])
def test_ladder_adds_with_the_default_leaf(records: int) -> None:
    adds = Adds()
    average, worst = adds_per_record(adds, choose(adds.aggregator).new(), records)
    assert average <= math.log2(records) + 1.5
    assert worst <= records + math.log2(records) + 2


@pytest.mark.parametrize("records", [100, 1000])
def test_ladder_adds_with_disorder(records: int, seed: int) -> None:
    adds = Adds()
    state = Ladder(adds.aggregator, leaf=2).new()
    rng = random.Random(seed)
    for now in range(12 * records):
        if now == 2 * records:
            adds.adds = 0
        ts = now - rng.randint(0, records - 1) if rng.random() < 0.05 else now
        state.update(max(0, ts), 1, now - records + 1)
    assert adds.adds / (10 * records) <= math.log2(records) + 2.0


def aggregates_of(state: LadderState) -> int:
    return 0 if state.lo < 0 else 1 + len(state.rungs or ())


def test_ladder_holds_few_aggregates() -> None:
    for records in (100, 1000, 5000):
        for leaf in (1, 6):
            state = Ladder(Adds().aggregator, leaf=leaf).new()
            aggregates = 0
            for now in range(3 * records):
                state.update(now, 1, now - records + 1)
                aggregates = max(aggregates, aggregates_of(state))
            assert aggregates <= math.log2(records / leaf) + 3


# the monotone list adds nothing; the simple design makes every window anew, so it is tried on few
@pytest.mark.parametrize(
    ("strategy", "records"),
    [(s, n) for s in sorted(STRATEGIES) for n in (1, 7, 40, 3000) if s != "monotone" and (s != "simple" or n <= 40)],
)
def test_a_restore_costs_exactly_n_adds(strategy: str, records: int) -> None:
    adds = Adds(merge=True)
    a = adds.aggregator
    aggregator = Aggregator(
        a.init, a.add, a.merge, lambda x, y: x - y, copy=False, commutative=True, exact_subtract=True
    )
    state = choose(aggregator, strategy).restore(range(records), [1] * records)
    assert adds.adds == 0, "nothing before the first value"
    # what a changelog replays before the first read costs nothing extra either
    state.insert(records, 1)
    state.insert(records // 2, 1)
    state.expire(1)
    assert adds.adds == 0
    expected = sum(ts >= 1 for ts in [*range(records + 1), records // 2])
    assert state.value() == expected
    assert adds.adds == (expected if strategy != "simple" else expected * (expected + 1) // 2)


def test_buckets_cost_what_the_formula_says() -> None:
    records = 2000
    costs = {}
    for size in (20, bucket_size(records), 200):
        adds = Adds()
        state = Buckets(adds.aggregator, size=size).new()
        for now in range(4 * records):
            if now == 2 * records:
                adds.adds = 0
            assert state.update(now, 1, now - records + 1) == min(now + 1, records)
        costs[size] = adds.adds / (2 * records)
        assert costs[size] == pytest.approx(records / size + size / 2, rel=0.05)
    assert min(costs, key=costs.__getitem__) == bucket_size(records)


def test_m_follows_the_cost_formula() -> None:
    assert bucket_size(10_000) == 141
    assert bucket_count(10_000) == math.ceil(10_000 / 141)
    # dear writes ask for fewer and larger buckets, dear reads for smaller ones
    assert bucket_size(10_000, write=99) == 1414
    assert bucket_size(10_000, read=99) == 14
    assert bucket_count(0) == 0


def test_subtract_adds_and_subtracts_once_a_record() -> None:
    adds = Adds()
    subtracts = 0

    def subtract(total: int, value: int) -> int:
        nonlocal subtracts
        subtracts += 1
        return total - value

    aggregator = Aggregator(
        int, adds.add, subtract=subtract, exact_subtract=True, commutative=True, copy=False, name="exact"
    )
    state = choose(aggregator).new()
    for now in range(5000):
        state.update(now, 1, now - 999)
    assert (adds.adds, subtracts) == (5000, 4000)


def test_merge_ladder_costs_one_merge_and_few_adds_a_record() -> None:
    adds = Adds(merge=True)
    state = choose(adds.aggregator, "merge").new()
    for now in range(12_000):
        if now == 4000:
            adds.adds = adds.merges = 0
        state.update(now, 1, now - 1999)
    assert adds.merges == 8000
    assert adds.adds / 8000 <= 4


def test_chunks_cost_does_not_grow_with_the_window() -> None:
    for records in (100, 1000, 10_000):
        adds = Adds(merge=True)
        state = choose(adds.aggregator, "chunks").new()
        for now in range(4 * records):
            if now == 2 * records:
                adds.adds = adds.merges = 0
            state.update(now, 1, now - records + 1)
        assert adds.adds / (2 * records) <= 3
        assert adds.merges / (2 * records) <= 4


@pytest.mark.parametrize(("left_over", "aggregates"), [(3, 0), (4, 6)])
def test_a_merge_ladder_is_not_built_anew_for_few_records(left_over: int, aggregates: int) -> None:
    state = MergeLadder(Sum()).new()  # from 8 records on
    for ts in range(9 + left_over):
        state.update(ts, 1, 0)
    state.expire(9)
    assert state.value() == left_over
    assert (0 if state.los is None else 1 + len(state.rungs)) == aggregates


def test_small_keys_hold_no_aggregates() -> None:
    """Promotion and demotion: a ladder stands between `promote` records and `demote`."""
    ladder = Ladder(Sum(), leaf=8)
    assert (ladder.promote, ladder.demote) == (16, 8)
    state = ladder.new()
    for ts in range(15):
        state.update(ts, 1, 0)
    assert aggregates_of(state) == 0
    state.update(15, 1, 0)
    assert aggregates_of(state) > 0
    # it comes down when the next rung would be due
    for lo in range(1, 14):
        state.expire(lo)
        assert state.value() == 16 - lo
    assert aggregates_of(state) == 0


# -- choice


def test_the_best_strategy_follows_from_the_powers() -> None:
    best = {
        "subtract": [
            Count(),
            Sum(),
            Mean(),
            Variance(),
            CollectSet(),
            LISTS_LEFT_INVERSE,
            COUNT_AND_SUM,
            COUNT_AND_MEAN,
        ],
        "monotone": [Min(), Max()],
        "merge": [
            First(),
            Last(),
            Collect(limit=2),
            TIMED,
            TopK(3),
            BAGS,
            MANY,
            Reduce(max, commutative=True, associative=True),
        ],
        "chunks": [LISTS, TEXT, INTS_IN_ORDER, Reduce(max, associative=True)],
        "ladder": [BAGS_ADD_ONLY, NONE_FIRST, Reduce(max, commutative=True)],
        "recompute": [Collect(), SMOOTHED, Reduce(max)],
    }
    for strategy, aggregators in best.items():
        for aggregator in aggregators:
            assert best_strategy(aggregator) == strategy, aggregator
            assert choose(aggregator).name == strategy


def test_a_subtract_that_is_not_exact_is_not_used() -> None:
    drifting = Aggregator(float, lambda a, b: a + b, subtract=lambda a, b: a - b, commutative=True)
    assert choose(drifting).name == "ladder"
    with pytest.raises(ValueError, match="found exact_subtract=False, expected True"):
        choose(drifting, "subtract")


@pytest.mark.parametrize(
    ("aggregator", "strategy", "reason"),
    [
        (Sum(), "fastest", "found 'fastest', expected one of chunks, ladder"),
        (Sum(), "monotone", "found an aggregate that is not one of the values"),
        (BAGS_ADD_ONLY, "merge", "found no merge"),
        (BAGS_ADD_ONLY, "chunks", "found no merge"),
        (BAGS_ADD_ONLY, "subtract", "found no subtract"),
    ],
)
def test_what_cannot_be_is_refused(aggregator: Aggregator, strategy: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        choose(aggregator, strategy)


def test_only_aggregators_are_served() -> None:
    with pytest.raises(TypeError, match="expected an Aggregator"):
        choose(sum)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_an_empty_window_has_the_aggregate_of_nothing(strategy: str) -> None:
    aggregator = Max() if strategy == "monotone" else Count()
    state = choose(aggregator, strategy).new()
    nothing = aggregator.of([])
    assert state.value() == nothing
    for ts in range(40):
        state.update(ts, 1, ts - 30)
    state.expire(1000)
    assert state.value() == nothing
    assert len(state) == 0
    assert state.update(1000, 1, 1000) == 1
    assert LATE is not nothing


def test_a_strategy_says_what_it_is() -> None:
    assert choose(BAGS_ADD_ONLY).describe() == ["ladder", "leaf=6"]
    assert choose(Sum()).describe() == ["subtract"]
