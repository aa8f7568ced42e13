"""Sliding windows in both flavours, tumbling and hopping windows, sessions, and when a window is final.

Rows of docs/semantics.md.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, logged
from tests.tools.vector_runner import opened


@pytest.fixture
def state(tmp_path: Path) -> Iterator[hs.State]:
    with opened(tmp_path) as state:
        yield state


def engine(windows: Any, tmp_path: Path, emit: Any = "record", **aggregates: Any) -> hs.Engine:
    counted = aggregates or {"n": hs.Count()}
    topology = hs.stream(key="key", timestamp="ts").windowed_by(windows).aggregate(emit=emit, **counted)
    return topology.open(tmp_path / "state", durability="os")


def step(running: hs.Engine, ts: int, key: str = "k") -> list[tuple[Any, ...]]:
    """One record as a commit of its own; results as (start, end, count)."""
    rows = [*running.process({"key": key, "ts": ts}), *running.commit()]
    return [(row["window_start"], row["window_end"], row["n"]) for row in rows]


# --- sliding windows as in the text of KIP-450 ---------------------------------------------------------------------


def test_stream_time_of_sliding_windows_is_over_all_keys(state: hs.State) -> None:
    store = state.sliding("s", size=10, aggregator=hs.Sum())
    store.add("a", 1, 100)
    store.add("b", 2, 105)
    assert store.stream_time == 105
    # the window of a ends at the time that b brought
    assert store.add("a", 4, 100) == ("a", 95, 105, 5)
    assert store.add("a", 8, 94) is None


def test_a_record_is_late_only_when_it_is_older_than_the_window(state: hs.State) -> None:
    store = state.sliding("s", size=10, aggregator=hs.Sum())
    store.add("k", 1, 100)
    assert store.add("k", 2, 90) == ("k", 90, 100, 3)  # ts = stream time - size: both ends belong to the window
    assert store.add("k", 4, 89) is None
    assert store.dropped == {"expired": 1}
    assert store.add("k", 8, 101) == ("k", 91, 101, 9)  # 90 has left, exactly now


def test_a_window_never_starts_before_0(state: hs.State) -> None:
    store = state.sliding("s", size=10, aggregator=hs.Count())
    assert store.add("k", 1, 0) == ("k", 0, 0, 1)
    assert store.add("k", 1, 9) == ("k", 0, 9, 2)
    assert store.add("k", 1, 10) == ("k", 0, 10, 3)
    assert store.add("k", 1, 11) == ("k", 1, 11, 3)


def test_each_accepted_record_gives_exactly_one_result_and_time_gives_none(tmp_path: Path) -> None:
    with engine(hs.SlidingWindows(10), tmp_path) as running:
        assert step(running, 100, "a") == [(90, 100, 1)]
        assert step(running, 111, "b") == [(101, 111, 1)]  # the records of a leave, and nobody is told
        assert step(running, 100, "a") == []
        assert (running.dropped, step(running, 101, "a")) == (1, [(101, 111, 1)])


def test_records_of_one_key_and_time_all_count(state: hs.State) -> None:
    store = state.sliding("s", size=10, aggregator=hs.Sum())
    assert [store.add("k", 2, 5)[3] for _ in range(3)] == [2, 4, 6]  # type: ignore[index]  # none is late
    assert list(store.fetch("k")) == [(5, 2), (5, 2), (5, 2)]


def test_none_is_a_value_that_the_aggregator_is_given(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.sliding("s", size=10, aggregator=hs.Count())
        assert [store.add("k", None, 5), store.add("k", None, 5)] == [("k", 0, 5, 1), ("k", 0, 5, 2)]
    with engine(hs.SlidingWindows(10), tmp_path, n=hs.Count(), valued=hs.Count("v"), total=hs.Sum("v")) as running:
        rows = [running.process({"key": "k", "ts": 5, "v": value})[0] for value in (None, 3)]
        assert [(row["n"], row["valued"], row["total"]) for row in rows] == [(1, 0, 0), (2, 1, 3)]


def test_values_and_time_are_logged_and_no_aggregate_ever_is(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.sliding("s", size=10, aggregator=hs.Collect())
        for number in range(5):
            store.add("k", number, number)
        store.add("late", 9, 20)
        store.add("k", 9, 9)
        state.commit()
        assert logged(state, "s") == [*(("k", number, number) for number in range(5)), ("late", 20, 9)]
        crash(state)
    with opened(tmp_path) as state:
        store = state.sliding("s", size=10, aggregator=hs.Collect())
        assert store.add("k", 1, 10) == ("k", 10, 20, [1])


def test_values_are_applied_in_order_of_time_unless_the_aggregator_commutes(state: hs.State) -> None:
    text = hs.Aggregator(str, lambda text_so_far, value: text_so_far + value, name="text")
    store = state.sliding("s", size=10, aggregator=text)
    for value, ts in (("c", 7), ("a", 5), ("d", 7), ("b", 6)):
        result = store.add("k", value, ts)
    assert result is not None
    assert result[3] == "abcd"  # equal times in order of arrival
    assert not text.commutative


# --- sliding windows as adopted by Kafka ---------------------------------------------------------------------------


def test_in_the_kafka_flavour_a_record_has_a_window_that_ends_at_it_and_one_after_the_one_before(
    tmp_path: Path,
) -> None:
    with engine(hs.KafkaSlidingWindows(10, grace=50), tmp_path) as running:
        assert step(running, 100) == [(90, 100, 1)]
        # within the size of 100: (101, 111) begins right after it
        assert sorted(step(running, 110)) == [(100, 110, 2), (101, 111, 1)]
        assert sorted(step(running, 121)) == [(111, 121, 1)]  # 110 + 1 + 10 = 121 is the same window
        assert sorted(step(running, 5, "early")) == []
        assert running.dropped >= 1


def test_in_the_kafka_flavour_windows_of_early_records_share_the_first_window(tmp_path: Path) -> None:
    with engine(hs.KafkaSlidingWindows(10, grace=50), tmp_path) as running:
        assert step(running, 0) == [(0, 10, 1)]
        assert sorted(step(running, 5)) == [(0, 10, 2), (1, 11, 1)]


def test_in_the_kafka_flavour_a_window_changes_until_its_grace_is_over_inclusively(tmp_path: Path) -> None:
    with engine(hs.KafkaSlidingWindows(10, grace=5), tmp_path) as running:
        step(running, 100)
        step(running, 115, "other")
        assert (step(running, 99), running.dropped) == ([], 1)  # (89, 99) ended 16 before, and so did (90, 100)
    with engine(hs.KafkaSlidingWindows(10, grace=5), tmp_path / "in time") as running:
        step(running, 115, "other")
        assert step(running, 110) == [(100, 110, 1)]  # end = stream time - grace
        # (99, 109), which would end at it, has closed; the others that it belongs to have not
        assert sorted(step(running, 109)) == [(100, 110, 2), (110, 120, 1)]
        assert running.dropped == 1


# --- tumbling and hopping windows ----------------------------------------------------------------------------------


def test_a_tumbling_window_holds_its_start_and_not_its_end(tmp_path: Path) -> None:
    with engine(hs.TumblingWindows(10), tmp_path) as running:
        assert [step(running, ts) for ts in (0, 9, 10)] == [[(0, 10, 1)], [(0, 10, 2)], [(10, 20, 1)]]


def test_a_record_is_in_every_hopping_window_that_begins_within_the_size_before_it(tmp_path: Path) -> None:
    with engine(hs.HoppingWindows(10, 5, grace=100), tmp_path) as running:
        assert step(running, 4) == [(0, 10, 1)]  # none begins before 0
        assert step(running, 9) == [(0, 10, 2), (5, 15, 1)]
        assert step(running, 10) == [(5, 15, 2), (10, 20, 1)]


def test_a_window_changes_as_long_as_its_end_is_after_stream_time_less_grace(tmp_path: Path) -> None:
    with engine(hs.TumblingWindows(10, grace=5), tmp_path) as running:
        step(running, 14, "other")  # 10 > 14 - 5
        assert step(running, 3) == [(0, 10, 1)]
        step(running, 15, "other")  # 10 = 15 - 5
        assert (step(running, 3), running.dropped) == ([], 1)


# --- sessions ------------------------------------------------------------------------------------------------------


def test_records_exactly_the_gap_apart_are_one_session(tmp_path: Path) -> None:
    with engine(hs.SessionWindows(10, grace=100), tmp_path) as running:
        assert step(running, 50) == [(50, 50, 1)]
        assert step(running, 60) == [(50, 50, None), (50, 60, 2)]
        assert step(running, 71) == [(71, 71, 1)]
        assert step(running, 40) == [(50, 60, None), (40, 60, 3)]
        assert step(running, 29) == [(29, 29, 1)]


def test_sessions_that_a_record_joins_are_removed_before_the_merged_one(tmp_path: Path) -> None:
    with engine(hs.SessionWindows(10, grace=100), tmp_path) as running:
        step(running, 0)
        step(running, 20)
        assert step(running, 10) == [(0, 0, None), (20, 20, None), (0, 20, 3)]
        assert [(row["window_start"], row["window_end"]) for row in running.windows()] == [(0, 20)]


def test_a_record_inside_a_session_that_it_does_not_widen_replaces_it_too(tmp_path: Path) -> None:
    with engine(hs.SessionWindows(10, grace=100), tmp_path) as running:
        step(running, 0)
        step(running, 10)
        assert step(running, 5) == [(0, 10, None), (0, 10, 3)]
        assert step(running, 50) == [(50, 50, 1)]
        assert step(running, 50) == [(50, 50, 2)]  # a session of one moment is updated, as in Kafka


def test_a_merged_session_is_dropped_only_when_it_ends_before_stream_time_less_grace_and_gap(tmp_path: Path) -> None:
    with engine(hs.SessionWindows(10, grace=5), tmp_path) as running:
        step(running, 100, "other")
        assert step(running, 85) == [(85, 85, 1)]  # end = stream time - grace - gap
        assert (step(running, 84, "late"), running.dropped) == ([], 1)
        assert step(running, 76) == [(85, 85, None), (76, 85, 2)]  # alone it would be late; merged it is not


# --- when a window is final ----------------------------------------------------------------------------------------

CLOSING: dict[str, tuple[Any, int, int, tuple[int, int, int]]] = {
    # declaration, first record, last stream time at which the window is open, the final result
    "tumbling": (hs.TumblingWindows(10, grace=5), 3, 14, (0, 10, 1)),
    "sliding of kafka": (hs.KafkaSlidingWindows(10, grace=5), 100, 105, (90, 100, 1)),
    "session": (hs.SessionWindows(10, grace=5), 100, 115, (100, 100, 1)),
}


@pytest.mark.parametrize("way", ["emit close", "hold"])
@pytest.mark.parametrize("kind", CLOSING)
def test_a_window_is_final_when_no_record_can_change_it_any_more(kind: str, way: str, tmp_path: Path) -> None:
    windows, first, last_open, final = CLOSING[kind]
    topology = hs.stream(key="key", timestamp="ts").windowed_by(windows).aggregate(n=hs.Count(), emit="close")
    if way == "hold":
        topology = hs.stream(key="key", timestamp="ts").windowed_by(windows).aggregate(n=hs.Count())
        topology = topology.hold("close")
    with topology.open(tmp_path, durability="os") as running:
        assert step(running, first) == []
        assert step(running, last_open, "other") == []
        results = step(running, last_open + 1, "another")
        assert results == [final]
        # nothing final comes twice: the record that would have changed it is late now
        assert [row for row in step(running, first) if row[:2] == final[:2]] == []
        assert final not in step(running, last_open + 1000, "far")


def test_the_record_that_closes_a_window_is_not_in_it(tmp_path: Path) -> None:
    with engine(hs.TumblingWindows(10), tmp_path, emit="close") as running:
        assert [step(running, ts) for ts in (0, 9, 10, 20)] == [[], [], [(0, 10, 2)], [(10, 20, 1)]]


@pytest.mark.parametrize("emit", ["close", "record", "commit"])
def test_a_session_that_was_final_is_never_merged_again(emit: Any, tmp_path: Path) -> None:
    """Nor final twice: a late record that would have joined it begins a session of its own, if it is not late
    itself.
    """
    topology = hs.stream(key="key", timestamp="ts").windowed_by(hs.SessionWindows(10))
    topology = topology.aggregate(emit=emit, n=hs.Count())
    if emit != "close":
        topology = topology.hold("close")
    results = []
    for key, ts in (("k", 0), ("far", 11), ("late", 0), ("k", 5), ("k", 15), ("far", 26), ("far", 100)):
        # each is a run of its own: what was final is known from the state
        with topology.open(tmp_path / "state", durability="os") as running:
            results.append(step(running, ts, key))
    assert results == [[], [(0, 0, 1)], [], [], [], [(11, 11, 1), (5, 15, 2)], [(26, 26, 1)]]


# --- topologies ----------------------------------------------------------------------------------------------------


def test_what_a_topology_did_not_commit_is_gone_and_comes_again(tmp_path: Path) -> None:
    with engine(hs.TumblingWindows(10), tmp_path) as running:
        step(running, 1)
        running.process({"key": "k", "ts": 2})
        crash(running.states[0])
    with engine(hs.TumblingWindows(10), tmp_path) as running:
        assert step(running, 2) == [(0, 10, 2)]


@pytest.mark.parametrize(("emit", "counts"), [("record", [1, 2, 3]), ("commit", [3]), ("close", [])])
def test_a_result_comes_per_record_per_commit_or_at_the_end(emit: str, counts: list[int], tmp_path: Path) -> None:
    with engine(hs.TumblingWindows(10), tmp_path, emit=emit) as running:
        rows = running.process_many([{"key": "k", "ts": ts} for ts in (3, 1, 2)]) + running.commit()
        assert [row["n"] for row in rows] == counts
