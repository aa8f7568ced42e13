"""What holds for every store: keys, values, times, stream time, iterators, bounds, commits.

Rows of docs/semantics.md.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, drained, force_cold, logged
from tests.tools.vector_runner import opened

LAST = 2**63 - 1


class Kind(NamedTuple):
    """How a kind of store is opened, given a row, and read."""

    open: Callable[[hs.State], Any]
    put: Callable[[Any, Any, Any, int], Any]  # store, key, value, time
    rows: Callable[[Any], list[tuple[Any, Any]]]  # (key, value) of every row, in order


KINDS = {
    "key_value": Kind(
        lambda s: s.key_value("x"), lambda t, k, v, ts: t.put(k, v), lambda t: [(k, v) for k, v in t.all()]
    ),
    "key_value with a ttl": Kind(
        lambda s: s.key_value("x", ttl=10), lambda t, k, v, ts: t.put(k, v, ts), lambda t: [(k, v) for k, v in t.all()]
    ),
    "window": Kind(
        lambda s: s.window("x", retention=10),
        lambda t, k, v, ts: t.put(k, v, ts),
        lambda t: [(k, v) for (k, _), v in t.all()],
    ),
    "session": Kind(
        lambda s: s.session("x", retention=10),
        lambda t, k, v, ts: t.put(k, v, start=ts, end=ts),
        lambda t: [(k, v) for (k, _, _), v in t.all()],
    ),
    "suppression": Kind(
        lambda s: s.suppression("x", time_limit=10),
        lambda t, k, v, ts: t.put(k, v, ts),
        lambda t: [(k, v) for k, v, _ in t.buffered()],
    ),
    "sliding": Kind(
        lambda s: s.sliding("x", size=9, aggregator=hs.Collect()),
        lambda t, k, v, ts: t.add(k, v, ts),
        lambda t: [(k, v) for (k, _), v in t.all()],
    ),
}
TIMED = [name for name in KINDS if name != "key_value"]


# --- keys and values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_int_keys_reach_to_the_ends_of_int64_and_are_in_order_of_number(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    for key in (0, LAST, -1, -LAST - 1):
        KINDS[kind].put(store, key, "v", 5)
    for key in (LAST + 1, -LAST - 2):
        with pytest.raises(ValueError, match="64 bits"):
            KINDS[kind].put(store, key, "v", 5)
    assert [key for key, _ in KINDS[kind].rows(store)] == [-LAST - 1, -1, 0, LAST]


NO_KEYS: list[tuple[Any, type[Exception]]] = [
    (None, TypeError),
    (bytearray(b"k"), TypeError),
    ((("k",),), TypeError),
    (float("nan"), ValueError),
    (("k", float("nan")), ValueError),
]


@pytest.mark.parametrize(("key", "error"), NO_KEYS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_key_is_refused_and_nothing_changes(
    kind: str, key: Any, error: type[Exception], state: hs.State
) -> None:
    store = KINDS[kind].open(state)
    with pytest.raises(error):
        KINDS[kind].put(store, key, "v", 5)
    assert (KINDS[kind].rows(store), store.stream_time, logged(state, "x")) == ([], -1, [])


VALUES = {
    "tuple": (1, (2,)),
    "list": [1, [2]],
    "set": {1, 2},
    "frozenset": frozenset({1}),
    "datetime": datetime(2026, 1, 2, tzinfo=UTC),
    "int of 65 bits": 2**64,
    "lone surrogate": "a\udcff",
    "dict": {1: {"a": (None,)}},
    "True": True,
    "1": 1,
    "1.0": 1.0,
    "empty text": "",
    "zero": 0,
    "False": False,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_restored_with_its_type(kind: str, value: Any, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        KINDS[kind].put(KINDS[kind].open(state), "k", value, 5)
        state.commit()
        crash(state)
    with opened(tmp_path) as state:
        ((key, stored),) = KINDS[kind].rows(KINDS[kind].open(state))
        assert (key, stored, type(stored), repr(stored)) == ("k", value, type(value), repr(value))


def test_not_a_number_is_a_value(tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        state.key_value("x").put("k", [float("nan")])
        state.commit()
    with opened(tmp_path) as state:
        (value,) = state.key_value("x").get("k")
        assert value != value


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_cannot_be_stored_is_named_with_its_key(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    with pytest.raises(TypeError, match=r"'the key'.*complex"):
        KINDS[kind].put(store, "the key", [1j], 5)
    assert (KINDS[kind].rows(store), store.stream_time, logged(state, "x")) == ([], -1, [])


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("suppression", "sliding")])
def test_none_deletes(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    KINDS[kind].put(store, "k", 1, 5)
    KINDS[kind].put(store, "k", None, 5)
    assert KINDS[kind].rows(store) == []


def test_none_is_a_buffered_tombstone_under_suppression(state: hs.State) -> None:
    buffer = state.suppression("x", time_limit=10)
    buffer.put("k", 1, 5)
    buffer.put("k", None, 6)
    assert list(buffer.buffered()) == [("k", None, 6)]
    assert drained(buffer.advance(16)) == [("k", None, 6)]


# --- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ts", [True, 1.0, -1, LAST + 1, None, "1"], ids=repr)
@pytest.mark.parametrize("kind", TIMED)
def test_what_is_no_time_is_refused_and_nothing_changes(kind: str, ts: Any, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    with pytest.raises(ValueError if type(ts) is int or (ts is None and "ttl" in kind) else TypeError):
        KINDS[kind].put(store, "k", "v", ts)
    assert (KINDS[kind].rows(store), store.stream_time, logged(state, "x")) == ([], -1, [])


@pytest.mark.parametrize("kind", TIMED)
def test_times_reach_from_0_to_the_end_of_int64(kind: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        KINDS[kind].put(store, "first", 1, 0)
        assert (KINDS[kind].rows(store), store.stream_time) == ([("first", 1)], 0)
        KINDS[kind].put(store, "last", 2, LAST)
        state.commit()
        state.checkpoint(wait=True)
        crash(state)
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        assert (KINDS[kind].rows(store), store.stream_time) == ([("last", 2)], LAST)


@pytest.mark.parametrize("bound", [True, 1.0, "1"], ids=repr)
def test_bounds_of_a_time_range_are_ints(bound: Any, state: hs.State) -> None:
    window, session = state.window("w", retention=10), state.session("s", retention=10)
    for read in (
        lambda: window.fetch("k", bound, None),
        lambda: window.fetch("k", None, bound),
        lambda: window.scan(time_from=bound, time_to=None),
        lambda: session.find_sessions("k", bound, None),
        lambda: session.find_sessions_by_end(None, bound),
    ):
        with pytest.raises(TypeError, match="bound of a time range"):
            read()


# --- stream time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIMED)
def test_stream_time_is_the_largest_ever_put_and_begins_at_minus_1(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    assert store.stream_time == -1
    for ts, expected in ((5, 5), (3, 5), (0, 5), (6, 6)):
        KINDS[kind].put(store, "k", "v", ts)
        assert store.stream_time == expected


@pytest.mark.parametrize("kind", ["key_value with a ttl", "window", "session", "suppression"])
def test_a_delete_moves_stream_time_too(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    KINDS[kind].put(store, "absent", None, 7)
    assert store.stream_time == 7


def test_reads_and_remove_never_move_stream_time(state: hs.State) -> None:
    window, session = state.window("w", retention=10), state.session("s", retention=10)
    profiles, load = state.key_value("k", ttl=10), state.sliding("l", size=10, aggregator=hs.Sum())
    window.put("k", 1, 5)
    session.put("k", 1, start=5, end=5)
    profiles.put("k", 1, 5)
    load.add("k", 1, 5)
    assert (window.get("k", 99), list(window.fetch("k", 50, 99))) == (None, [])
    session.delete("k", 90, 99)
    assert (session.get("k", 90, 99), list(session.find_sessions("k", 99, 99))) == (None, [])
    assert (profiles.delete("k"), profiles.get("k")) == (1, None)
    assert load.get("k") == ("k", 0, 5, 1)
    assert [store.stream_time for store in (window, session, profiles, load)] == [5, 5, 5, 5]


@pytest.mark.parametrize("way", ["changelog", "checkpoint"])
@pytest.mark.parametrize("kind", TIMED)
def test_stream_time_is_restored_and_expires_what_it_did(kind: str, way: str, tmp_path: Path) -> None:
    """A record that only moved time, committed: after a crash the same rows are there and the same record is late."""
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        KINDS[kind].put(store, "old", 1, 5)
        KINDS[kind].put(store, "new", 2, 14)
        list(store.advance(15) or ()) if hasattr(store, "advance") else KINDS[kind].put(store, "absent", None, 15)
        state.commit()
        if way == "checkpoint":
            state.checkpoint(wait=True)
        before = KINDS[kind].rows(store)
        assert before == [("new", 2)]
        crash(state)
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        assert (KINDS[kind].rows(store), store.stream_time) == (before, 15)
        KINDS[kind].put(store, "late", 3, 5)
        assert KINDS[kind].rows(store) == before


def test_what_changes_stream_time_alone_is_logged_and_what_changes_nothing_is_not(state: hs.State) -> None:
    stores = {name: KINDS[name].open for name in ("window", "session", "key_value with a ttl")}
    for name, opening in stores.items():
        with hs.open(state.path.parent / name, durability="os") as other:
            store = opening(other)
            KINDS[name].put(store, "k", 1, 20)
            version = other.commit()
            KINDS[name].put(store, "absent", None, 15)  # deletes nothing
            KINDS[name].put(store, "k", 1, 10)  # expired: dropped and counted
            assert (other.commit(), store.dropped["expired"]) == (version, 1), name
            KINDS[name].put(store, "absent", None, 21)  # deletes nothing, but moves time
            assert other.commit() == version + 1, name


def test_an_overwrite_with_an_equal_value_is_a_change_and_is_logged(state: hs.State) -> None:
    """1, 1.0 and True are equal: whether a value differs is not asked."""
    store = state.window("x", retention=10)
    store.put("k", 1, 5)
    store.put("k", 1.0, 5)
    state.commit()
    assert repr(logged(state, "x")) == "[('k', 5, 1), ('k', 5, 1.0)]"
    assert repr(store.get("k", 5)) == "1.0"


def test_dropped_records_are_counted_by_reason_and_neither_raised_nor_logged(state: hs.State) -> None:
    window = state.window("w", retention=10, grace=5)
    window.put("k", 1, 20)
    window.put("k", 2, 15)
    window.put("k", 3, 10)
    window.put("k", None, 10)
    assert window.dropped == {"expired": 2, "grace": 1}
    session, profiles = state.session("s", retention=10), state.key_value("p", ttl=10)
    load = state.sliding("l", size=9, aggregator=hs.Sum())
    stores: dict[str, Any] = {"session": session, "key_value with a ttl": profiles, "sliding": load}
    for name, store in stores.items():
        KINDS[name].put(store, "k", 1, 20)
        KINDS[name].put(store, "k", 2, 10)
        assert store.dropped == {"expired": 1}, name
    state.commit()
    assert logged(state, "w") == [("k", 20, 1)]
    assert logged(state, "s") == [("k", 20, 20, 1)]
    assert logged(state, "l") == [("k", 20, 1)]


# --- iterators, bounds, direction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_is_a_snapshot_of_the_moment_of_the_call(kind: str, state: hs.State) -> None:
    """Later puts, overwrites, deletes and expiry are not seen, and nothing has to be closed."""
    store = KINDS[kind].open(state)
    for key, ts in (("a", 1), ("b", 2), ("c", 3)):
        KINDS[kind].put(store, key, ts, ts)
    read = store.buffered if kind == "suppression" else store.all
    before = list(read())
    begun, untouched = read(), read()
    first = next(begun)
    KINDS[kind].put(store, "bb", 9, 2)
    if kind not in ("suppression", "sliding"):
        KINDS[kind].put(store, "b", None, 2)
        KINDS[kind].put(store, "c", 33, 3)
    KINDS[kind].put(store, "z", 4, 500)  # everything else expires, or leaves
    state.commit()
    assert [first, *begun] == before
    assert list(untouched) == before
    assert list(read()) != before


@pytest.mark.parametrize("end", ["rollback", "checkpoint", "cold"])
def test_an_open_iterator_outlives_what_happens_to_the_state(end: str, state: hs.State) -> None:
    store = state.window("w", retention=1000)
    store.put_many([(f"k{i:02}", i, i) for i in range(50)])
    state.commit()
    rows = store.all()
    first = next(rows)
    if end == "rollback":
        store.put("more", 1, 60)
        state.rollback()
    elif end == "cold":
        force_cold(state)
    else:
        store.put("k01", "other", 1)
        state.commit()
        state.checkpoint(wait=True)
    assert [first, *rows] == [((f"k{i:02}", i), i) for i in range(50)]


def filled(state: hs.State) -> dict[str, Callable[..., Iterator[Any]]]:
    """Reads over the times or keys 1 to 5 by their bounds; the last element of what each yields is that number."""
    window, session, profiles = (
        state.window("w", retention=100),
        state.session("s", retention=100),
        state.key_value("k"),
    )
    for i in range(1, 6):
        window.put("k", i, i)
        window.put(f"k{i}", i, i)
        session.put("k", i, start=i, end=i)
        session.put(f"k{i}", i, start=i, end=i)
        profiles.put(i, i)
    return {
        "kv.scan": profiles.scan,
        "window.fetch": lambda a, b, **o: window.fetch("k", a, b, **o),
        "window.scan": lambda a, b, **o: (row for row in window.scan(time_from=a, time_to=b, **o) if row[0][0] == "k"),
        "session.find_sessions_by_end": lambda a, b, **o: (
            row for row in session.find_sessions_by_end(a, b, **o) if row[0][0] == "k"
        ),
        "session.find_sessions": lambda a, b, **o: session.find_sessions("k", a, b, **o),
    }


READS = [
    "kv.scan",
    "window.fetch",
    "window.scan",
    "session.find_sessions_by_end",
    "session.find_sessions",
]


@pytest.mark.parametrize("read", READS)
def test_bounds_are_inclusive_none_is_open_and_an_inverted_range_is_empty(read: str, state: hs.State) -> None:
    rows = filled(state)[read]
    for low, high, expected in (
        (2, 4, [2, 3, 4]),
        (3, 3, [3]),
        (None, 2, [1, 2]),
        (4, None, [4, 5]),
        (None, None, [1, 2, 3, 4, 5]),
        (4, 2, []),
        (6, None, []),
    ):
        assert [row[-1] for row in rows(low, high)] == expected, (low, high)
        assert [row[-1] for row in rows(low, high, reverse=True)] == expected[::-1], (low, high)


@pytest.mark.parametrize("kind", ["window", "session"])
def test_bounds_of_keys_are_inclusive_too(kind: str, state: hs.State) -> None:
    store = KINDS[kind].open(state)
    for key in "abcd":
        KINDS[kind].put(store, key, key, 5)
    for low, high, expected in (
        ("b", "c", "bc"),
        ("c", "c", "c"),
        (None, "b", "ab"),
        ("c", None, "cd"),
        ("c", "b", ""),
    ):
        assert [row[1] for row in store.scan(low, high)] == list(expected), (low, high)
        assert [row[1] for row in store.scan(low, high, reverse=True)] == list(expected)[::-1], (low, high)


def test_reverse_is_the_exact_mirror_also_among_ties(state: hs.State) -> None:
    window = state.window("w", retention=100, retain_duplicates=True)
    session, profiles, load = (
        state.session("s", retention=100),
        state.key_value("k"),
        state.sliding("l", size=9, aggregator=hs.Sum()),
    )
    for number, (key, ts) in enumerate([("b", 2), ("a", 2), ("a", 2), ("b", 1), ("a", 1), ("a", 2)]):
        window.put(key, number, ts)
        session.put(key, number, start=ts, end=5)
        session.put(key, number, start=ts, end=6)
        profiles.put((key, ts), number)
        load.add(key, number, ts)
    for read in (
        window.all,
        lambda **o: window.fetch("a", **o),
        session.all,
        lambda **o: session.fetch("a", **o),
        profiles.all,
        lambda **o: profiles.scan(prefix=("a",), **o),
        load.all,
        lambda **o: load.fetch("a", **o),
    ):
        forward = list(read())
        assert len(forward) > 1
        assert list(read(reverse=True)) == forward[::-1]


# --- commits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_uncommitted_changes_are_visible_to_the_owner_and_gone_after_a_rollback_or_crash(
    kind: str, tmp_path: Path
) -> None:
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        KINDS[kind].put(store, "a", 1, 5)
        state.commit()
        KINDS[kind].put(store, "b", 2, 6)
        assert [key for key, _ in KINDS[kind].rows(store)] == ["a", "b"]
        state.rollback()
        assert KINDS[kind].rows(store) == [("a", 1)]
        assert store.stream_time in (5, -1)
        KINDS[kind].put(store, "c", 3, 7)
        crash(state)
    with opened(tmp_path) as state:
        store = KINDS[kind].open(state)
        assert KINDS[kind].rows(store) == [("a", 1)]
        assert state.version == 1


def test_a_commit_is_durable_when_it_returns(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s") as state:
        state.key_value("k").put("a", 1)
        assert state.commit() == 1
        crash(state)
    with hs.open(tmp_path / "s", at=1) as state:
        assert state.key_value("k").get("a") == 1


def test_a_commit_without_changes_makes_no_version(state: hs.State) -> None:
    state.key_value("k").put("a", 1)
    assert (state.commit(), state.commit()) == (1, 1)


# --- batches -------------------------------------------------------------------------------------------------------

BATCHES: dict[str, Callable[[Any, list[tuple[Any, Any, Any]]], Any]] = {
    "key_value": lambda t, rows: t.put_many([(k, v) for k, v, _ in rows]),
    "key_value with a ttl": lambda t, rows: t.put_many(rows),
    "window": lambda t, rows: t.put_many(rows),
    "session": lambda t, rows: t.put_many([(k, v, ts, ts) for k, v, ts in rows]),
    "suppression": lambda t, rows: t.put_many(rows),
    "sliding": lambda t, rows: t.add_many(rows),
}
BAD_ROWS: dict[str, tuple[type[Exception], tuple[Any, Any, Any]]] = {
    "key of another type": (TypeError, (3, 1, 6)),
    "no key": (TypeError, (None, 1, 6)),
    "value": (TypeError, ("b", object(), 6)),
    "time of another type": (TypeError, ("b", 1, True)),
    "time out of range": (ValueError, ("b", 1, -1)),
}


@pytest.mark.parametrize(("kind", "bad"), [(k, b) for k in KINDS for b in BAD_ROWS if k in TIMED or "time" not in b])
def test_a_batch_with_a_bad_row_changes_nothing_and_decides_no_type_of_key(
    kind: str, bad: str, state: hs.State
) -> None:
    store = KINDS[kind].open(state)
    error, row = BAD_ROWS[bad]
    with pytest.raises(error):
        BATCHES[kind](store, [("a", 1, 5), row])
    assert (KINDS[kind].rows(store), store.stream_time, logged(state, "x")) == ([], -1, [])
    BATCHES[kind](store, [(7, 1, 5)])
    assert KINDS[kind].rows(store) == [(7, 1)]
