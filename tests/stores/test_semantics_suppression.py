"""Suppression buffer (KIP-328), boundary by boundary.

Rows of docs/semantics.md; the KIP's tables are in test_design_examples.py.
"""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, drained
from tests.tools.vector_runner import opened


def characters(key: Any, value: Any) -> int:
    return len(value or "")


def test_any_subset_of_bounds_may_be_given(state: hs.State) -> None:
    rows = [("a", "xxx", 10), ("b", "xx", 20), ("c", "xx", 30), ("d", "x", 31)]
    expected = {
        "none": ({}, []),
        "records": ({"max_records": 2}, ["a", "b"]),
        "bytes": ({"max_bytes": 5}, ["a"]),
        "time": ({"time_limit": 11}, ["a", "b"]),
        "records and bytes": ({"max_records": 3, "max_bytes": 4}, ["a", "b"]),
        "all": ({"max_records": 3, "max_bytes": 100, "time_limit": 21}, ["a"]),
    }
    for name, (bounds, keys) in expected.items():
        options: Any = bounds
        assert [row[0] for row in state.suppression(name, size_of=characters, **options).put_many(rows)] == keys, name


def test_a_bound_holds_exactly(state: hs.State) -> None:
    records = state.suppression("r", max_records=2)
    assert [records.put("a", 1, 1), records.put("b", 1, 2), records.put("c", 1, 3)] == [[], [], [("a", 1, 1)]]
    sizes = state.suppression("b", max_bytes=4, size_of=characters)
    assert [sizes.put("a", "xx", 1), sizes.put("b", "xx", 2)] == [[], []]
    assert sizes.put("b", "xxx", 2) == [("a", "xx", 1)]
    nothing = state.suppression("n", max_records=0)
    assert nothing.put("a", 1, 1) == [("a", 1, 1)]


def test_what_is_due_by_time_leaves_first_and_then_the_oldest_until_all_bounds_hold(state: hs.State) -> None:
    buffer = state.suppression("b", max_records=2, time_limit=10)
    buffer.put("old", 1, 5)
    buffer.put("kept", 2, 12)
    # by time "old" leaves, and then no bound is passed any more
    assert buffer.put("new", 3, 15) == [("old", 1, 5)]
    assert buffer.put("newer", 4, 16) == [("kept", 2, 12)]
    assert [key for key, _, _ in buffer.buffered()] == ["new", "newer"]


def test_a_late_record_may_leave_at_once(state: hs.State) -> None:
    timed, bounded = state.suppression("t", time_limit=10), state.suppression("b", max_records=1)
    timed.put("a", 1, 20)
    assert timed.put("late", 2, 10) == [("late", 2, 10)]
    assert timed.put("not so late", 2, 11) == []
    bounded.put("a", 1, 20)
    assert bounded.put("older", 2, 19) == [("older", 2, 19)]


def test_a_record_that_fits_nowhere_pushes_out_all_older_ones_and_then_itself(state: hs.State) -> None:
    buffer = state.suppression("b", max_bytes=3, size_of=characters)
    buffer.put("a", "x", 1)
    buffer.put("b", "x", 3)
    buffer.put("newer", "x", 9)
    assert buffer.put("big", "x" * 4, 5) == [("a", "x", 1), ("b", "x", 3), ("big", "xxxx", 5)]
    assert list(buffer.buffered()) == [("newer", "x", 9)]


def test_a_record_is_due_exactly_at_the_time_limit(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=10)
    buffer.put("a", 1, 5)
    assert buffer.put("b", 2, 14) == []
    assert buffer.put("c", 3, 15) == [("a", 1, 5)]
    at_once = state.suppression("z", time_limit=0)
    assert at_once.put("a", 1, 5) == [("a", 1, 5)]


@pytest.mark.parametrize(("timer", "first_out"), [("latest", ("b", 2, 6)), ("first", ("a", 3, 9))])
def test_an_update_moves_its_key_or_leaves_it_where_it_was_first_seen(
    timer: Any, first_out: tuple[str, int, int], state: hs.State
) -> None:
    buffer = state.suppression("b", time_limit=10, timer=timer)
    buffer.put("a", 1, 5)
    buffer.put("b", 2, 6)
    buffer.put("a", 3, 9)
    assert buffer.min_timestamp == (5 if timer == "first" else 6)
    rows = drained(buffer.advance(15)) + drained(buffer.advance(16))
    assert rows[0] == first_out
    # with "first" both have left by 16: at the latest the limit after they were first seen
    assert len(rows) == (2 if timer == "first" else 1)


def test_an_update_from_an_earlier_time_replaces_the_value_all_the_same(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=10)
    buffer.put("a", "newer", 9)
    buffer.put("a", "arrived last", 5)
    assert list(buffer.buffered()) == [("a", "arrived last", 5)]
    assert drained(buffer.advance(15)) == [("a", "arrived last", 5)]


def test_a_key_seen_again_after_it_left_begins_anew(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=10, timer="first")
    buffer.put("a", 1, 5)
    assert buffer.put("a", 2, 15) == [("a", 2, 15)]
    buffer.put("a", 3, 16)
    assert drained(buffer.advance(25)) == []
    assert drained(buffer.advance(26)) == [("a", 3, 16)]


def test_ties_in_time_leave_by_key(state: hs.State) -> None:
    buffer = state.suppression("b", time_limit=10)
    for key in "cab":
        buffer.put(key, 1, 5)
    assert [key for key, _, _ in buffer.buffered()] == ["a", "b", "c"]
    assert [key for key, _, _ in drained(buffer.advance(15))] == ["a", "b", "c"]


def test_a_full_buffer_raises_when_asked_to_and_keeps_the_record_that_was_too_much(state: hs.State) -> None:
    buffer = state.suppression("b", max_records=1, on_full="raise")
    buffer.put("a", 1, 1)
    buffer.put("a", 2, 2)  # an update takes no room
    with pytest.raises(hs.BufferFullError):
        buffer.put("b", 3, 3)
    assert [key for key, _, _ in buffer.buffered()] == ["a", "b"]
    emits = state.suppression("e", max_records=1)
    emits.put("a", 1, 1)
    assert emits.put("b", 3, 3) == [("a", 1, 1)]


def test_until_windows_close_nothing_leaves_early(state: hs.State) -> None:
    with pytest.raises(ValueError, match="on_full"):
        state.suppression("b", until_window_closes=5, max_records=1)
    bounded = state.suppression("b", until_window_closes=5, max_records=1, on_full="raise")
    bounded.put(("a", 0, 10), 1, 1)
    with pytest.raises(hs.BufferFullError):
        bounded.put(("b", 0, 10), 1, 1)


def test_a_window_with_an_exclusive_end_closes_at_its_end_and_grace(state: hs.State) -> None:
    buffer = state.suppression("b", until_window_closes=5)
    buffer.put(("k", 0, 10), "r", 3)
    assert drained(buffer.advance(14)) == []
    assert drained(buffer.advance(15)) == [(("k", 0, 10), "r", 3)]
    # what comes when it has closed leaves at once: refusing late records is for the aggregation before
    assert buffer.put(("k", 5, 10), "late", 9) == [(("k", 5, 10), "late", 9)]


def test_a_tombstone_of_a_window_is_dropped_when_it_would_leave(state: hs.State) -> None:
    buffer = state.suppression("b", until_window_closes=0)
    buffer.put(("k", 0, 10), "r", 3)
    buffer.put(("k", 0, 10), None, 4)
    assert buffer.num_records == 1
    assert drained(buffer.advance(10)) == []
    assert buffer.num_records == 0


@pytest.mark.parametrize("way", ["changelog", "checkpoint"])
def test_stream_time_and_what_is_due_are_restored(way: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        buffer.put("a", 1, 5)
        assert list(buffer.advance(12)) == []
        state.commit()
        if way == "checkpoint":
            state.checkpoint(wait=True)
        crash(state)
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        assert buffer.stream_time == 12
        assert buffer.put("late", 2, 2) == [("late", 2, 2)]  # 2 <= 12 - 10, as it was before the crash
        assert list(buffer.buffered()) == [("a", 1, 5)]


def test_advance_lets_go_without_a_record_and_is_logged(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        buffer.put("a", 1, 5)
        version = state.commit()
        assert (drained(buffer.advance(15)), drained(buffer.advance(3))) == ([("a", 1, 5)], [])
        assert (state.commit(), buffer.stream_time) == (version + 1, 15)
        crash(state)
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        assert (buffer.stream_time, buffer.num_records, buffer.emitted()) == (15, 0, [(2, "a", 1, 5)])


def test_an_emission_that_was_not_committed_is_emitted_again(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        buffer.put("a", 1, 5)
        state.commit()
        assert drained(buffer.advance(15)) == [("a", 1, 5)]
        state.rollback()
        assert (buffer.emitted(), list(buffer.buffered())) == ([], [("a", 1, 5)])
        assert drained(buffer.advance(15)) == [("a", 1, 5)]
        crash(state)
    with opened(tmp_path) as state:
        buffer = state.suppression("b", time_limit=10)
        assert drained(buffer.advance(15)) == [("a", 1, 5)]
        state.commit()
        assert buffer.emitted() == [(2, "a", 1, 5)]
