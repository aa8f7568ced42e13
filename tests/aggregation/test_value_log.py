"""The value log against a plain sorted list, and its size."""

import gc
import random
import tracemalloc
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import pytest

from hybridstore.aggregation import Count, Max, Sum, TimeLog, choose
from hybridstore.aggregation.value_log import BLOCK


@pytest.mark.parametrize("window", [0, 5, 70, 3000])
@pytest.mark.parametrize("disorder", [0.0, 0.05, 0.6])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_log_is_a_sorted_list_that_forgets(window: int, disorder: float, step: int, seed: int) -> None:
    rng = random.Random(seed)
    log = TimeLog()
    model: list[tuple[int, int]] = []
    now = 0
    for number in range(4 * BLOCK):
        now += rng.randint(0, step) if rng.random() < 0.999 else 2 * window
        ts = max(0, now - rng.randint(0, window)) if rng.random() < disorder else now
        at = bisect_right(model, (ts, number))
        model.insert(at, (ts, number))
        assert log.insert(ts, number) - log.start == at
        expired = bisect_left(model, (now - window, -1))
        assert log.expire(now - window) == expired
        del model[:expired]
        assert len(log) == len(model)
        if number % 61 == 0:
            log.check()
            assert list(log) == model
            first = rng.randint(0, len(model))
            stop = rng.randint(first, len(model))
            actual = log.slice(log.start + first, log.start + stop)
            assert list(actual) == [value for _, value in model[first:stop]]


def test_push_is_insert_and_expire(seed: int) -> None:
    rng = random.Random(seed)
    first, other = TimeLog(), TimeLog()
    now = 0
    for number in range(3 * BLOCK):
        now += rng.choice([0, 1, 1, 1, 2, 90])
        ts = now - rng.choice([0, 0, 0, 7])
        in_order = first.push(max(ts, 0), number, now - 40)
        assert in_order == (other.newest <= max(ts, 0))
        other.insert(max(ts, 0), number)
        other.expire(now - 40)
        assert list(first) == list(other)
        first.check()


def test_extend_is_many_inserts_and_before_is_what_expires_next(seed: int) -> None:
    rng = random.Random(seed)
    log = TimeLog()
    model: list[tuple[int, int]] = []
    now = number = 0
    for _ in range(60):
        rows = []
        for _ in range(rng.choice([1, 1, 5, 64, BLOCK, 3 * BLOCK])):
            now += rng.choice([0, 0, 1, 2])
            rows.append((now, number))
            number += 1
        log.extend(array("q", [ts for ts, _ in rows]), [value for _, value in rows])
        log.check()
        model += rows
        for _ in range(rng.choice([0, 1, 100])):  # and the log goes on one by one
            late = max(0, now - rng.choice([0, 0, 30]))
            log.insert(late, number)
            model.insert(bisect_right(model, (late, number)), (late, number))
            number += 1
        log.check()
        lo = now - rng.randint(0, 2 * BLOCK)
        expired = bisect_left(model, (lo, -1))
        assert list(zip(*log.before(lo), strict=True)) == model[:expired]
        assert list(zip(*log.since(lo), strict=True)) == model[expired:]
        if rng.random() < 0.7:
            assert log.expire(lo) == expired
            del model[:expired]
        assert list(log) == model


def test_equal_times_keep_their_order_of_arrival() -> None:
    log = TimeLog()
    for ts, value in [(5, "a"), (7, "b"), (5, "c"), (7, "d"), (5, "e")]:
        log.insert(ts, value)
    assert list(log) == [(5, "a"), (5, "c"), (5, "e"), (7, "b"), (7, "d")]


def test_expiry_keeps_the_record_at_the_bound() -> None:
    log = TimeLog()
    for ts in (1, 2, 2, 3):
        log.insert(ts, ts)
    assert log.expire(2) == 1
    assert list(log) == [(2, 2), (2, 2), (3, 3)]
    assert log.expire(4) == 3
    assert list(log) == []
    assert log.newest == -1


def test_a_leap_drops_whole_blocks() -> None:
    log = TimeLog()
    for ts in range(20 * BLOCK):
        log.insert(ts, ts)
    assert log.expire(17 * BLOCK + 3) == 17 * BLOCK + 3
    log.check()
    assert len(log) == 3 * BLOCK - 3
    assert next(iter(log)) == (17 * BLOCK + 3, 17 * BLOCK + 3)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 1])
def test_columns_go_out_and_back(count: int) -> None:
    log = TimeLog()
    log.load(range(count), [f"v{i}" for i in range(count)])
    log.check()
    times, values = log.columns()
    assert list(times) == list(range(count))
    assert values == [f"v{i}" for i in range(count)]
    # and the log goes on from there
    for ts in range(count, count + 3 * BLOCK):
        log.insert(ts, None)
        log.insert(max(0, ts - 100), None)
    log.check()


@pytest.mark.parametrize(
    ("times", "values", "reason"),
    [([1, 2], ["a"], "differ in length: 2 times and 1 values"), ([2, 1], ["a", "b"], "not sorted")],
)
def test_columns_that_are_no_log_are_refused(times: list[int], values: list[str], reason: str) -> None:
    log = TimeLog()
    log.insert(9, "kept")
    with pytest.raises(ValueError, match=reason):
        log.load(times, values)
    assert list(log) == [(9, "kept")]


def test_no_expired_value_is_kept_alive_for_long() -> None:
    class Value:
        pass

    log = TimeLog()
    for ts in range(10_000):
        log.push(ts, Value(), ts - 9)
    alive = sum(type(o) is Value for o in gc.get_objects())
    assert 10 <= alive <= 10 + 32


def test_the_checker_finds_a_broken_log() -> None:
    log = TimeLog()
    for ts in range(10):
        log.insert(ts, ts)
    log.times[3] = 99
    with pytest.raises(AssertionError):
        log.check()


def _bytes_per(build: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    kept = build()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


@pytest.mark.parametrize("aggregator", [Sum(), Count(), Max()], ids=repr)
@pytest.mark.parametrize("strategy", [None, "ladder", "recompute"])
def test_memory_of_a_record_and_of_a_key(aggregator: Sum | Count | Max, strategy: str | None) -> None:
    chosen = choose(aggregator, strategy)

    def window_of(records: int) -> Callable[[], object]:
        def build() -> object:
            state = chosen.new()
            for i in range(2 * records):
                # values of their own, as a job has them
                state.insert(10**12 + i, 10**6 + i % 1000)
                state.expire(10**12 + i - records)
                if i % 64 == 0 or i > 2 * records - 10:
                    state.value()
            return state

        return build

    keys = 1000

    def small() -> object:
        states = {}
        for i in range(keys):
            # with the key itself and its place in the dict
            state = states[f"key-{i:06}"] = chosen.new()
            state.update(10**12 + i, 10**6 + i, 10**12 - 10**6)
        return states

    assert _bytes_per(window_of(4000)) / 4000 <= 60
    assert _bytes_per(small) / keys <= 600


def test_what_has_come_since_a_time_is_without_what_has_expired() -> None:
    log = TimeLog()
    for ts in (1, 2, 2, 5):
        log.insert(ts, f"at {ts}")
    log.expire(2)
    assert [list(map(list, log.since(lo))) for lo in (0, 2, 3, 6)] == [
        [[2, 2, 5], ["at 2", "at 2", "at 5"]],
        [[2, 2, 5], ["at 2", "at 2", "at 5"]],
        [[5], ["at 5"]],
        [[], []],
    ]
