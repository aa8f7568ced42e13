"""Laws: checks whether an aggregator keeps its declared powers. Call `check_laws` for custom aggregators in a test.

The surprise: equality is `==`, with floats inside compared to 9 digits, except for `exact_subtract`, where a law that
holds only approximately is broken.
"""

from __future__ import annotations

import copy as copying
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .aggregator import Aggregator


def nearly_equal(a: Any, b: Any) -> bool:
    """Return whether two results are equal, with floats anywhere inside compared to 9 digits."""
    if isinstance(a, float) or isinstance(b, float):
        try:
            return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (a != a and b != b)
        except TypeError:
            return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(nearly_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(nearly_equal(a[k], b[k]) for k in a)
    return bool(a == b)


def _orders(samples: Sequence[Any]) -> Iterator[list[Any]]:
    """A few other orders: backwards, halves exchanged, neighbours exchanged, interleaved."""
    values = list(samples)
    half = len(values) // 2
    yield values[::-1]
    yield values[half:] + values[:half]
    for i in range(min(len(values) - 1, 8)):
        yield [*values[:i], values[i + 1], values[i], *values[i + 2 :]]
    yield values[::2] + values[1::2]


def check_laws(aggregator: Aggregator, samples: Sequence[Any]) -> None:
    """Test an aggregator's declared powers on sample values; raise ValueError that lists the laws it breaks.

    Give at least three different values, among them the difficult ones: more kinds of values find more faults. If the
    aggregator is timed, their places are their times. Passing proves nothing. An aggregator that changes a sample
    breaks a law, too. Cost: some tens of passes over the samples.

    >>> hs.check_laws(hs.Sum(), [1, -2, 3])
    >>> joined = hs.Reduce(lambda before, text: before + text, commutative=True, name="joined")
    >>> hs.check_laws(joined, ["a", "b", "c"])
    Traceback (most recent call last):
        ...
    ValueError: aggregator reduce: breaks 1 of its laws:
      commutative: ['c', 'b', 'a'] gives what ['a', 'b', 'c'] gives: found 'cba', expected 'abc'
    """
    values: list[Any] = list(enumerate(samples)) if aggregator.timed else list(samples)
    if len(values) < 3:
        raise ValueError(f"check_laws: samples: found {len(values)}, expected at least 3 values")
    broken = [f"{law}: {problem}" for law, problem in _violations(aggregator, values)]
    if broken:
        raise ValueError(f"aggregator {aggregator.name}: breaks {len(broken)} of its laws:\n  " + "\n  ".join(broken))


def _violations(aggregator: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    pristine = copying.deepcopy(values)
    checks: list[Callable[[Aggregator, list[Any]], Iterator[tuple[str, str]]]] = [_adding, _copying]
    if aggregator.commutative:
        checks.append(_commuting)
    if aggregator.merge is not None:
        checks.append(_merging)
    if aggregator.exact_subtract:
        checks.append(_subtracting)
    for check in checks:
        yield from check(aggregator, values)
    if not nearly_equal(values, pristine):
        yield "values are not changed", f"found {values!r}, were {pristine!r}"


def _differs(result: Any, expected: Any) -> str:
    return f"found {result!r}, expected {expected!r}"


def _build(a: Aggregator, values: Sequence[Any]) -> Any:
    aggregate = a.init()
    for value in values:
        aggregate = a.add(aggregate, value)
    return aggregate


def _adding(a: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    expected = a.finish(_build(a, values))
    again = a.finish(_build(a, values))
    if not nearly_equal(again, expected):
        yield "init is new each time, and add depends on its arguments only", _differs(again, expected)
    if a.add_many is not None:
        for cut in (0, 1, len(values)):
            result = a.finish(a.add_many(_build(a, values[:cut]), values[cut:]))
            if not nearly_equal(result, expected):
                yield f"add_many after {cut} values agrees with add", _differs(result, expected)


def _copying(a: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    for cut in range(len(values)):
        original = _build(a, values[:cut])
        expected = a.finish(_build(a, values[:cut]))
        handed_out = a.finish(original)
        derived = original if a.copy is None else a.copy(original)
        for value in values[cut:]:
            derived = a.add(derived, value)
        if not nearly_equal(a.finish(original), expected):
            yield "adding to a copy leaves the original as it was", _differs(a.finish(original), expected)
            return
        original = a.add(original, values[cut])
        if not nearly_equal(handed_out, expected):
            yield "a result handed out does not change with the aggregate", _differs(handed_out, expected)
            return


def _commuting(a: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    expected = a.finish(_build(a, values))
    for order in _orders(values):
        result = a.finish(_build(a, order))
        if not nearly_equal(result, expected):
            yield f"commutative: {order!r} gives what {values!r} gives", _differs(result, expected)
            return


def _merging(a: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    assert a.merge is not None
    expected = a.finish(_build(a, values))
    for cut in range(len(values) + 1):
        newer = _build(a, values[cut:])
        before = a.finish(_build(a, values[cut:]))
        merged = a.merge(_build(a, values[:cut]), newer)
        if not nearly_equal(a.finish(merged), expected):
            yield f"merge of {cut} and {len(values) - cut} values agrees with add", _differs(a.finish(merged), expected)
            return
        for value in values:
            merged = a.add(merged, value)
        if not nearly_equal(a.finish(newer), before):
            yield "merge neither changes nor keeps parts of its second argument", _differs(a.finish(newer), before)
            return
        if a.commutative:
            result = a.finish(a.merge(_build(a, values[cut:]), _build(a, values[:cut])))
            if not nearly_equal(result, expected):
                yield "commutative: merge gives the same both ways round", _differs(result, expected)
                return


def _subtracting(a: Aggregator, values: list[Any]) -> Iterator[tuple[str, str]]:
    assert a.subtract is not None
    exact = [v for v in values if a.exact_for(v)]
    for cut in range(len(exact) + 1):
        aggregate = _build(a, exact)
        for value in exact[:cut]:
            aggregate = a.subtract(aggregate, value)
        result, expected = a.finish(aggregate), a.finish(_build(a, exact[cut:]))
        if result != expected:
            yield f"subtract of the oldest {cut} of {len(exact)} values leaves no trace", _differs(result, expected)
            return
