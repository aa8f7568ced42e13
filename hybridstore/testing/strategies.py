"""Strategies: rows for property tests, by Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..clock import Duration, duration_ms

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "hybridstore.testing.rows: found no hypothesis, expected it to be installed (pip install hypothesis)"
    ) from error


def rows(
    *,
    key: str = "user",
    timestamp: str = "ts",
    keys: Sequence[Any] = ("a", "b", "c"),
    within: Duration = 0,
    size: Duration = "1 minute",
    start: int = 0,
    min_size: int = 0,
    max_size: int = 50,
    **columns: st.SearchStrategy[Any],
) -> st.SearchStrategy[list[dict[str, Any]]]:
    """A strategy of lists of rows in the order of arrival.

    key, timestamp, keys  the names of the columns of the key and the time, and what the key is
    within                how far a row may be behind the newest row before it
    size                  times are near multiples of it: use the size of the windows, whose boundaries are there
    start                 the earliest time (ms)
    min_size, max_size    how many rows
    columns               strategies of the other columns, by name

    Needs `pip install hypothesis`.

    >>> from hypothesis import strategies as st
    >>> from hybridstore import testing as ht
    >>> for row in ht.rows(price=st.just(3), keys=["ann"], min_size=2, max_size=2).example():  # doctest: +SKIP
    ...     print(row)
    {'user': 'ann', 'ts': 60000, 'price': 3}
    {'user': 'ann', 'ts': 60001, 'price': 3}
    """
    reach, size_ms = duration_ms(within, "rows: within", zero=True), duration_ms(size, "rows: size")
    step = st.one_of(
        st.just(0), st.integers(0, 3), st.sampled_from([size_ms - 1, size_ms, size_ms + 1]), st.integers(0, 3 * size_ms)
    )
    delay = st.one_of(st.just(0), st.sampled_from([0, reach]), st.integers(0, reach))
    others = st.fixed_dictionaries(columns)
    drawn = st.lists(st.tuples(step, delay, st.sampled_from(list(keys)), others), min_size=min_size, max_size=max_size)

    def timed(parts: list[tuple[int, int, Any, dict[str, Any]]]) -> list[dict[str, Any]]:
        newest, result = start, []
        for forth, back, key_of_row, more in parts:
            newest += forth
            result.append({key: key_of_row, timestamp: max(start, newest - back), **more})
        return result

    return drawn.map(timed)
