"""The states that plain sums and counts have, and where candidates run out: beside the oracle, what it seldom meets."""

import random
from bisect import insort

import pytest

from hybridstore.aggregation import STRATEGIES, Aggregator, Combined, Count, Max, Mean, Min, Sum, choose
from hybridstore.aggregation.subtract import CountState, SubtractState, SumState


def test_sums_and_counts_have_states_of_their_own_and_go_over_and_back() -> None:
    assert type(choose(Sum()).new()) is SumState
    assert type(choose(Count()).new()) is CountState
    for other in (Mean(), Sum("a").on("b"), Count("a"), Combined({"s": Sum("x")})):
        expected = {"sum": SumState, "count": CountState}.get(other.name, SubtractState)
        assert type(choose(other).new()) is expected
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
