"""Changes put into a block: few of them are spliced in, many sorted in, and both give what plain dicts do."""

from array import array
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from recovery import block
from recovery.block import Columns, lay_over, merge

Rows = dict[int, list[tuple[int, str]]]
rows = st.lists(st.tuples(st.integers(0, 9), st.text("ab", max_size=2)), min_size=1, max_size=3)
parts = st.dictionaries(st.integers(0, 60), rows, max_size=40)


def columns(part: Rows, *, timed: bool) -> Columns:
    keys = sorted(part)
    flat = [row for key in keys for row in part[key]]
    counts = None if len(flat) == len(keys) else [len(part[key]) for key in keys]
    ints = (array("q", [ts for ts, _ in flat]),) if timed else ()
    return Columns(keys, counts, ints, [value for _, value in flat])


def same(first: Columns, other: Columns) -> bool:
    return (first.keys, first.counts, first.ints, first.values) == (other.keys, other.counts, other.ints, other.values)


@given(parts, parts, st.sets(st.integers(0, 60), max_size=8), st.booleans(), st.booleans())
def test_merging_puts_changes_in_place(old: Rows, changed: Rows, removed: set[int], timed: bool, single: bool) -> None:
    if single:
        old, changed = ({key: rows[:1] for key, rows in part.items()} for part in (old, changed))
    expected = {key: rows for key, rows in (old | changed).items() if key not in removed}
    older, newer = columns(old, timed=timed), columns(changed, timed=timed)
    assert same(merge(older, newer, removed), columns(expected, timed=timed))
    assert same(block._spliced(older, newer, removed), columns(expected, timed=timed))


def newer_first(older: Any, newer: Any) -> Any:
    """By time, the newer row of a time wins, and "" is no row."""
    merged = dict(zip(older[0][0], older[1], strict=True)) | dict(zip(newer[0][0], newer[1], strict=True))
    times = sorted(ts for ts, value in merged.items() if value)
    return (times,), [merged[ts] for ts in times]


@given(parts, parts)
def test_laying_over_combines_the_rows_of_a_key(old: Rows, over: Rows) -> None:
    expected = dict(old)
    for key, newer in over.items():
        merged = dict(old.get(key, [])) | dict(newer)
        expected[key] = [(ts, merged[ts]) for ts in sorted(merged) if merged[ts]]
    expected = {key: merged for key, merged in expected.items() if merged}
    result = lay_over(columns(old, timed=True), columns(over, timed=True), newer_first)
    assert same(result, columns(expected, timed=True))


@given(parts, st.integers(0, 60) | st.none(), st.integers(0, 60) | st.none())
@example({0: [(0, "")], 1: [(0, ""), (0, "")]}, 2, 0)
def test_only_cuts_to_a_range_of_keys(part: Rows, low: int | None, high: int | None) -> None:
    expected = {
        key: rows for key, rows in part.items() if (low is None or key >= low) and (high is None or key <= high)
    }
    rows = columns(part, timed=True).between(low, high)
    assert same(rows, columns(expected, timed=True))
