"""Window store (KIP-428) and session store (KIP-445), boundary by boundary. Rows of docs/semantics.md."""

from pathlib import Path

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import opened

# --- window store --------------------------------------------------------------------------------------------------


def test_a_row_expires_when_it_is_exactly_the_retention_old(state: hs.State) -> None:
    store = state.window("w", retention=10)
    store.put("a", 1, 5)
    store.put("b", 2, 14)  # stream time - retention = 4: a lives
    assert (store.get("a", 5), len(store)) == (1, 2)
    store.advance(15)  # = 5: a is expired
    assert (store.get("a", 5), list(store.fetch("a", 0, 99)), list(store.all()), len(store)) == (
        None,
        [],
        [(("b", 14), 2)],
        1,
    )
    store.put("a", 3, 5)
    assert (store.get("a", 5), store.dropped) == (None, {"expired": 1, "grace": 0})
    store.put("a", 4, 6)
    assert store.get("a", 6) == 4


def test_what_expired_is_freed_as_whole_buckets_when_time_advances(state: hs.State) -> None:
    store = state.window("w", retention=80)  # buckets of 10 ms with these thresholds
    store.put_many([("k", ts, ts) for ts in range(0, 80)])
    records = store.num_records
    store.advance(80 + 9)  # the millisecond 9 is the last of the first bucket
    assert records - store.num_records == 10
    store.advance(1000)
    assert (store.num_records, len(store._buckets)) == (0, 0)


def test_a_put_moves_time_before_it_is_judged_and_drops_what_expired(state: hs.State) -> None:
    store = state.window("w", retention=1)
    store.put("k", 1, 5)
    store.put("k", 2, 6)
    assert list(store.all()) == [(("k", 6), 2)]
    assert store.dropped == {"expired": 0, "grace": 0}


def test_grace_refuses_exactly_at_its_length_and_reads_are_bound_by_retention(state: hs.State) -> None:
    store = state.window("w", retention=10, grace=3)
    store.put("k", 1, 17)
    store.put("k", 1, 18)
    store.put("k", 2, 20)
    store.put("k", 9, 17)  # 17 <= 20 - 3
    store.put("k", None, 17)
    store.delete("k", 17)
    assert (store.get("k", 17), store.dropped["grace"]) == (1, 3)
    store.put("k", 3, 18)
    assert (store.get("k", 18), store.dropped["grace"]) == (3, 3)
    store.advance(26)
    assert store.get("k", 17) == 1  # too old to write, not to read
    store.advance(27)
    assert store.get("k", 17) is None


def test_grace_is_the_retention_unless_given(state: hs.State) -> None:
    store = state.window("w", retention=10)
    assert store.parameters["grace_ms"] == 10
    store.put("k", 1, 20)
    store.put("k", 2, 11)
    store.put("k", 3, 10)
    assert (store.get("k", 11), store.dropped) == (2, {"expired": 1, "grace": 0})


def test_beyond_the_retention_a_record_counts_as_expired_whatever_the_grace(state: hs.State) -> None:
    store = state.window("w", retention=10, grace=50)
    store.put("k", 1, 20)
    store.put("k", 2, 10)
    assert (list(store.all()), store.dropped) == ([(("k", 20), 1)], {"expired": 1, "grace": 0})


def test_without_any_grace_every_write_is_refused_and_moves_time(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.window("w", retention=10, grace=0)
        store.put("k", 1, 5)
        store.put_many([("k", 2, 7), ("k", None, 8)])
        assert (list(store.all()), store.stream_time, store.dropped["grace"]) == ([], 8, 3)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.window("w", retention=10, grace=0)
        assert store.stream_time == 8
        store.put("k", 1, 9)
        assert (list(store.all()), store.stream_time) == ([], 9)


def test_duplicates_are_kept_in_order_of_arrival_and_a_point_get_returns_them(state: hs.State) -> None:
    store = state.window("w", retention=10, retain_duplicates=True)
    for value in ("b", "a", "b"):
        store.put("k", value, 5)
    store.put("k", "earlier", 4)
    assert store.get("k", 5) == ["b", "a", "b"]
    assert store.get("k", 6) == []
    assert list(store.fetch("k")) == [(4, "earlier"), (5, "b"), (5, "a"), (5, "b")]
    assert list(store.fetch("k", reverse=True)) == [(5, "b"), (5, "a"), (5, "b"), (4, "earlier")]


def test_with_duplicates_a_none_is_ignored_but_moves_time(state: hs.State) -> None:
    store = state.window("w", retention=10, retain_duplicates=True)
    store.put("k", 1, 5)
    store.put("k", None, 5)
    store.put("k", None, 14)
    assert (store.get("k", 5), store.stream_time) == ([1], 14)
    store.put("other", None, 15)
    assert (store.get("k", 5), store.stream_time) == ([], 15)


@pytest.mark.parametrize("way", ["changelog", "checkpoint", "cold"])
def test_the_order_of_arrival_goes_on_after_a_restart(way: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.window("w", retention=10, retain_duplicates=True)
        store.put("k", "z", 5)
        store.put("k", "y", 5)
        state.commit()
        if way == "cold":
            force_cold(state)
            store.put("k", "x", 5)
            assert store.get("k", 5) == ["z", "y", "x"]
        elif way == "checkpoint":
            state.checkpoint(wait=True)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.window("w", retention=10, retain_duplicates=True)
        if way != "cold":
            store.put("k", "x", 5)
        assert store.get("k", 5) == ["z", "y", "x"]


def test_rows_are_in_order_of_time_then_key_then_arrival(state: hs.State) -> None:
    store = state.window("w", retention=100, retain_duplicates=True)
    for row in (("b", 1, 5), ("a", 2, 6), ("a", 3, 5), ("b", 4, 4), ("a", 5, 5)):
        store.put(*row)
    assert list(store.all()) == [(("b", 4), 4), (("a", 5), 3), (("a", 5), 5), (("b", 5), 1), (("a", 6), 2)]


@pytest.mark.parametrize("retention", [0, -1])
def test_a_retention_of_0_or_less_is_refused(retention: int, state: hs.State) -> None:
    for opening in (state.window, state.session):
        with pytest.raises(ValueError, match=f"retention: found {retention}"):
            opening("x", retention=retention)


def test_a_window_may_be_as_long_as_the_retention_and_no_longer(state: hs.State) -> None:
    state.window("w", retention=10, window_size=10)
    with pytest.raises(ValueError, match="window_size: found 11 ms, expected at most the retention of 10 ms"):
        state.window("x", retention=10, window_size=11)


# --- session store -------------------------------------------------------------------------------------------------


def test_a_session_is_known_by_key_start_and_end_and_nothing_is_merged(state: hs.State) -> None:
    store = state.session("s", retention=100)
    store.put("k", "outer", start=0, end=10)
    store.put("k", "inner", start=2, end=8)
    store.put("k", "same start", start=0, end=8)
    store.put("k", "outer again", start=0, end=10)
    assert list(store.fetch("k")) == [
        (("k", 2, 8), "inner"),
        (("k", 0, 8), "same start"),
        (("k", 0, 10), "outer again"),
    ]


def test_a_session_may_start_at_its_end_and_not_after_it(state: hs.State) -> None:
    store = state.session("s", retention=100)
    store.put("k", "a moment", start=5, end=5)
    assert store.get("k", 5, 5) == "a moment"
    for call in (
        lambda: store.put("k", 1, start=6, end=5),
        lambda: store.get("k", 6, 5),
        lambda: store.delete("k", 6, 5),
    ):
        with pytest.raises(ValueError, match="start: found 6, expected at most the end, 5"):
            call()


def test_a_session_expires_by_its_end_exactly_at_the_retention(state: hs.State) -> None:
    store = state.session("s", retention=10)
    store.put("k", "short", start=0, end=5)
    store.put("k", "long", start=0, end=14)  # 14 - 10 = 4
    assert [value for _, value in store.all()] == ["short", "long"]
    store.put("k", "longer", start=0, end=15)
    assert [value for _, value in store.all()] == ["long", "longer"]  # they began at 0 too
    store.put("k", "late", start=5, end=5)
    assert (store.get("k", 5, 5), store.dropped) == (None, {"expired": 1})
    store.put("k", "in time", start=0, end=6)
    assert store.get("k", 0, 6) == "in time"


def test_find_sessions_includes_both_bounds(state: hs.State) -> None:
    store = state.session("s", retention=100)
    store.put("k", 1, start=10, end=20)
    for earliest_end, latest_start, count in ((20, 10, 1), (21, 10, 0), (20, 9, 0), (None, 10, 1), (20, None, 1)):
        assert len(list(store.find_sessions("k", earliest_end, latest_start))) == count
        assert len(list(store.find_sessions_range("k", "k", earliest_end, latest_start))) == count
    assert [len(list(store.find_sessions_by_end(*ends))) for ends in ((20, 20), (21, None), (None, 19))] == [1, 0, 0]


def test_removing_what_is_not_there_is_no_error_and_moves_no_time(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.session("s", retention=10)
        store.put("k", 1, start=0, end=5)
        store.delete("k", 0, 99)
        store.delete("other", 0, 5)
        assert (store.stream_time, store.get("k", 0, 5)) == (5, 1)
        store.put("k", 2, start=0, end=20)
        store.delete("k", 0, 20)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.session("s", retention=10)
        store.delete("k", 0, 99)
        # the removal of the session that ended at 20 does not move time; its put had
        assert (store.stream_time, list(store.all())) == (20, [])
        store.put("k", 3, start=0, end=11)
        assert store.get("k", 0, 11) == 3


def test_a_restored_remove_moves_no_time(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.session("s", retention=1000)
        store.put("k", 1, start=0, end=5)
        store.put("k", 1, start=0, end=6)
        state.commit()
        state.checkpoint(wait=True)
        store.delete("k", 0, 6)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        store = state.session("s", retention=1000)
        assert (store.stream_time, list(store.all())) == (6, [(("k", 0, 5), 1)])


def test_many_keys_are_fetched_or_refused_as_one_is(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        pages = state.window("pages", retention=1000)
        for rule in ("not known yet", "known"):
            for keys in ([["a", "b"]], ["a", {}, "a"]):
                with pytest.raises(TypeError, match=r"store 'pages': key .*found (list|dict), expected str"):
                    pages.fetch_many(keys)
            pages.put_many([("a", rule, 1), ("b", rule, 2), ("a", rule, 3)])
        assert pages.fetch_many(["b", "a", "b"]) == {"a": ([1, 3], ["known"] * 2), "b": ([2], ["known"])}
