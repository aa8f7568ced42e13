"""The monotone list against a full scan: values of every shape, windows of a record to many blocks, disorder,
pauses and restores.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from hybridstore.aggregation import Aggregator, Max, Min, choose
from hybridstore.aggregation.monotone import MonotoneState
from tests.conftest import STRESS

SHAPES: dict[str, Callable[[random.Random, int], float]] = {
    "random": lambda r, _: r.randint(0, 1000),
    "falling": lambda _, i: -i,
    "rising": lambda _, i: i,
    "constant": lambda _, i: 7,
    "saw": lambda _, i: i % 97,
    "saw back": lambda _, i: -(i % 97),
    "few values": lambda r, _: r.randint(0, 2),
    "half NaN": lambda r, _: math.nan if r.random() < 0.5 else r.random(),
    "nearly all NaN": lambda r, _: math.nan if r.random() < 0.98 else r.random(),
    "stretches": lambda r, i: -i if i // 150 % 2 else r.randint(-i, 0),
}


def best(aggregator: Aggregator, values: list[Any]) -> Any:
    """Return what a full scan finds."""
    numbers = [value for value in values if value == value]
    return (max if isinstance(aggregator, Max) else min)(numbers, default=None)


@pytest.mark.stress
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("aggregator", "disorder"),
    [(Max(), 0.0), (Max(), 0.05), (Max(), 0.5), (Min(), 0.05), *([(Min(), 0.0), (Min(), 0.5)] if STRESS else [])],
    ids=lambda value: value if isinstance(value, float) else value.name,
)
def test_every_shape_of_values_in_every_size_of_window(
    aggregator: Aggregator, shape: str, disorder: float, seed: int
) -> None:
    r = random.Random(seed)
    strategy = choose(aggregator)
    make = SHAPES[shape]
    for size in (0, 1, 3, 10, 47, 60, 130, 900):
        state: MonotoneState = strategy.new()
        live: list[tuple[int, int, Any]] = []
        now = 0
        # in `make stress` twice as many
        for i in range((700 if size < 900 else 2400) // (1 if STRESS else 2)):
            now += 3 * size if r.random() < 0.002 else 1 if r.random() < 0.9 else 0
            ts = now - r.randint(0, min(now, size)) if r.random() < disorder else now
            value = make(r, i)
            live = [row for row in live if row[0] >= now - size]
            live.append((ts, i, value))
            way = r.random()
            if way < 0.1:
                state.hold(ts, value, now - size)
                continue
            if way < 0.2:
                state.insert(ts, value)
                state.expire(now - size)
                actual = state.value()
            else:
                actual = state.update(ts, value, now - size)
            assert actual == best(aggregator, [row[2] for row in live]), (size, i)
            if way > 0.99:
                state.check()
                assert repr(list(state)) == repr(
                    [(ts, value) for ts, _, value in sorted(live, key=lambda row: row[:2])]
                )
            if way > 0.995:
                state = strategy.restore(*state.columns())


def test_a_result_made_of_the_value() -> None:
    aggregator = Aggregator(lambda: None, Max().add, copy=False, result=repr, commutative=True)
    aggregator.better = Max().better
    state = choose(aggregator, "monotone").new()
    assert [state.update(ts, value, ts - 1) for ts, value in enumerate([5, 3, 1, 2])] == ["5", "5", "3", "2"]
    state.expire(9)
    assert state.value() == "None"


@pytest.mark.parametrize("size", [30, 300])
def test_falling_values_are_not_looked_through_for_each_record(size: int) -> None:
    compared = 0

    class Compared(int):
        def __gt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) > int(other)

        def __ge__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) >= int(other)

        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

    state = choose(Max()).new()
    for ts in range(4 * size):
        if ts == 2 * size:
            compared = 0
        assert state.update(ts, Compared(-ts), ts - size + 1) == -max(0, ts - size + 1)
    assert compared <= 2 * 2 * size
