"""Sizes: how many bytes of memory a value takes, by its parts or, where it is long, by some of them."""

from collections.abc import Callable
from sys import getsizeof
from typing import Any

import pytest

from hybridstore.stores import sizes
from hybridstore.stores.sizes import deep


@pytest.mark.parametrize("make", [
    lambda items: items,
    tuple,
    set,
    frozenset,
    lambda items: dict.fromkeys(items, 3.5),
    lambda items: [items, {"counts": dict.fromkeys(items, 1)}],
])  # fmt: skip
def test_a_long_value_is_estimated_as_large_as_it_is(
    make: Callable[[list[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [f"user {'x' * (n % 40)}{n}" for n in range(3000)]
    value = make(items)
    estimated = deep(value)
    monkeypatch.setattr(sizes, "_LONG", len(items))
    assert deep(value) == pytest.approx(estimated, rel=0.1)
    assert estimated > sum(map(getsizeof, items))


def test_a_long_value_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []

    def counted(value: Any) -> int:
        looks.append(value)
        return deep(value)

    monkeypatch.setattr(sizes, "deep", counted)
    for long in (list(range(1000, 9000)), dict.fromkeys(range(1000, 9000), 0.5)):
        looks.clear()
        assert deep(long) > 8 * 8000
        assert len(looks) <= 2 * sizes.SAMPLE
