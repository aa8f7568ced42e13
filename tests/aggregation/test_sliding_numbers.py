"""The states that plain sums and counts have, and where candidates run out: beside the oracle, what it seldom meets."""

import random
from bisect import insort

import pytest

from hybridstore.aggregation import Aggregator, Combined, Count, Max, Mean, Min, Sum
from hybridstore.aggregation.subtract import CountState, NumbersState, Subtract, SubtractState
from tests.tools.kip450 import STRATEGIES, choose


def test_sums_and_counts_switch_to_other_numbers_and_back() -> None:
    for other in (Mean(), Sum(), Sum("a").on("b"), Count(), Count("a")):
        assert type(choose(other).new()) is (CountState if other.name == "count" else SubtractState)
    r = random.Random(5)
    for aggregator in (Sum(), Count()):
        state = choose(aggregator).new()
        live: list[tuple[int, int, float]] = []
        now = 0
        for number in range(3000):
            # a stretch of floats and bools now and then, gaps, and late records
            value = r.choice([0.5, True]) if number % 700 > 600 else r.randint(-9, 9)
            now += r.choice([0, 1, 1, 200 if number % 500 == 499 else 2])
            ts = max(0, now - r.randint(0, 80)) if r.random() < 0.02 else now
            insort(live, (ts, number, value))
            while live[0][0] < now - 80:
                del live[0]
            assert state.update(ts, value, now - 80) == aggregator.of([value for _, _, value in live])
            assert len(state) == len(live)
            state.check()


def test_what_is_not_a_number_follows_the_last_candidate_out_of_the_window() -> None:
    for aggregator in (Max(), Min()):
        state = choose(aggregator).new()
        for ts in range(8):
            assert state.update(ts, 5, ts - 10) == 5
        nan = float("nan")
        assert [state.update(ts, nan, ts - 10) for ts in (16, 17)] == [5, 5]
        assert [state.update(ts, nan, ts - 10) for ts in (18, 19)] == [None, None]
        assert state.update(20, 3, 10) == 3
        assert len(state) == 5


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_records_that_are_held_count_in_the_next_result(strategy: str, seed: int) -> None:
    aggregator: Aggregator = Max() if strategy == "monotone" else Sum()
    for number in range(4):
        r = random.Random(seed + number)
        state = choose(aggregator, strategy).new()
        live: list[tuple[int, int, int]] = []
        now = 0
        for i in range(1500):
            now += r.choice([0, 1, 1, 2, 150 if r.random() < 0.01 else 1])
            ts = max(0, now - r.randint(0, 100)) if r.random() < 0.1 * number else now
            value = r.randint(-9, 99)
            insort(live, (ts, i, value))
            while live[0][0] < now - 100:
                del live[0]
            if r.random() < 0.9:
                state.hold(ts, value, now - 100)
            else:
                assert state.update(ts, value, now - 100) == aggregator.of([value for _, _, value in live])
        state.expire(now - 100)
        assert state.value() == aggregator.of([value for _, _, value in live])
        state.check()


NUMBERS: dict[str, dict[str, Aggregator]] = {
    "count, sum": {"n": Count(), "total": Sum("v")},
    "sum, count": {"total": Sum("v"), "n": Count()},
    "count of values, sum": {"n": Count("v"), "total": Sum("v")},
    "sum": {"total": Sum("v")},
    "mean": {"mean": Mean("v")},
    "count, mean": {"n": Count(), "mean": Mean("v")},
    "mean, count": {"mean": Mean("v"), "n": Count()},
}


def test_only_a_sum_or_a_mean_of_one_column_and_a_count_have_their_state() -> None:
    for numbers in NUMBERS.values():
        assert type(choose(Combined(numbers)).new()) is NumbersState
    others: list[dict[str, Aggregator]] = [
        {"n": Count(), "total": Sum("v"), "more": Sum("v")},
        {"n": Count("u"), "total": Sum("v")},
        {"a": Sum("v"), "b": Sum("v")},
        {"a": Sum("v"), "b": Mean("v")},
        {"a": Count("v"), "b": Count()},
    ]
    for parts in others:
        assert type(choose(Combined(parts)).new()) is SubtractState


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_of_a_column_are_what_their_functions_make_of_them(numbers: str, seed: int) -> None:
    r = random.Random(seed)
    strategy = choose(Combined(NUMBERS[numbers]))
    assert isinstance(strategy, Subtract)
    for _ in range(60):
        special, general = strategy.new(), SubtractState(strategy)
        odd = r.choice([[], [None], [None, True], [None, True, 1.5], [2**70, None]])
        size, now = r.choice([1, 10, 100, 700]), 0
        for _ in range(r.choice([30, 300, 1500])):
            now += 3 * size if r.random() < 0.005 else r.choice([0, 1, 1, 2])
            ts = now - (r.randint(0, min(now, size)) if r.random() < 0.1 else 0)
            value = r.choice(odd) if odd and r.random() < 0.05 else r.randint(-9, 9)
            if r.random() < 0.05:
                for state in (special, general):
                    state.insert(ts, value)
                    state.expire(now - size)
                actual = special.value(), general.value()
            else:
                actual = special.update(ts, value, now - size), general.update(ts, value, now - size)
            assert actual[0] == actual[1]
            assert list(map(type, actual[0])) == list(map(type, actual[1]))
            if r.random() < 0.01:  # as a restart leaves it
                special = strategy.restore(*special.columns())
        special.check()
        assert list(special) == list(general)
