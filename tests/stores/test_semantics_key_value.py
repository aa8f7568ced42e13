"""Key-value store, call by call, and the time to live by event time. Rows of docs/semantics.md."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash
from tests.tools.vector_runner import opened


def test_delete_and_put_if_absent_return_what_was_there(state: hs.State) -> None:
    store = state.key_value("k")
    assert (store.delete("a"), store.put_if_absent("a", 1), store.put_if_absent("a", 2)) == (None, None, 1)
    assert (store.get("a"), store.delete("a"), store.delete("a"), store.get("a")) == (1, 1, None, None)
    assert (store.put_if_absent("a", None), len(store)) == (None, 0)
    # falsy values are there
    assert (store.put_if_absent("a", 0), store.put_if_absent("a", 1), store.delete("a")) == (None, 0, 0)


BAD_ENTRIES: dict[str, tuple[type[Exception], Any]] = {
    "value": (TypeError, [("b", 1), ("c", object())]),
    "key": (TypeError, [("b", 1), (None, 2)]),
    "another type of key": (TypeError, [("b", 1), (3, 2)]),
    "length": (ValueError, [("b", 1), ("c",)]),
}


@pytest.mark.parametrize("bad", BAD_ENTRIES)
def test_put_many_is_all_or_nothing(bad: str, state: hs.State) -> None:
    store = state.key_value("k")
    store.put_many({"a": 0, "z": 1})
    error, entries = BAD_ENTRIES[bad]
    with pytest.raises(error):
        store.put_many(entries)
    assert list(store.all()) == [("a", 0), ("z", 1)]
    store.put_many([("b", 2), ("a", None), ("b", 3)])
    assert list(store.all()) == [("b", 3), ("z", 1)]


def test_a_prefix_is_text_bytes_or_the_leading_elements_of_a_tuple(state: hs.State) -> None:
    text, raw, pairs = state.key_value("t"), state.key_value("b"), state.key_value("p")
    for key in ("a", "ab", "abc", "b", "a\U0010ffff"):
        text.put(key, 1)
    assert [key for key, _ in text.scan(prefix="ab")] == ["ab", "abc"]
    assert [key for key, _ in text.scan(prefix="a")] == ["a", "ab", "abc", "a\U0010ffff"]
    assert [key for key, _ in text.scan(prefix="")] == sorted(text)
    for octets in (b"\xff", b"\xff\xff", b"\xfe"):
        raw.put(octets, 1)
    assert [key for key, _ in raw.scan(prefix=b"\xff")] == [b"\xff", b"\xff\xff"]
    for pair in (("a", 1), ("a", 2), ("ab", 1)):
        pairs.put(pair, 1)
    assert [key for key, _ in pairs.scan(prefix=("a",))] == [("a", 1), ("a", 2)]
    assert [key for key, _ in pairs.scan(prefix=("a", 2))] == [("a", 2)]
    numbers = state.key_value("n")
    numbers.put(1, 1)
    with pytest.raises(TypeError, match="expected str, bytes or tuple"):
        numbers.scan(prefix=1)


def test_it_is_a_mapping(state: hs.State) -> None:
    store = state.key_value("k")
    store["b"] = 1
    store.update({"a": 2, "c": 3})
    assert (store["a"], store.get("x", "none"), "b" in store, "x" in store, len(store)) == (2, "none", True, False, 3)
    assert (list(store), list(store.values()), list(store.items())) == (["a", "b", "c"], [2, 1, 3], list(store.all()))
    assert (store.pop("c"), store.pop("c", None), store.setdefault("d", 4)) == (3, None, 4)
    del store["a"]
    for call in (lambda: store["a"], lambda: store.pop("a"), lambda: store.__delitem__("a")):
        with pytest.raises(KeyError):
            call()
    store.clear()
    assert (len(store), dict(store)) == (0, {})


def test_a_row_with_a_time_to_live_dies_exactly_at_it(state: hs.State) -> None:
    store = state.key_value("k", ttl=10)
    store.put("a", 1, 5)
    store.put("b", 2, 14)  # 14 - 10 = 4
    assert (store.get("a"), len(store), "a" in store) == (1, 2, True)
    store.put("c", 3, 15)
    assert (store.get("a"), len(store), "a" in store, [key for key, _ in store.all()]) == (None, 2, False, ["b", "c"])
    store.put("a", 4, 5)
    assert (store.get("a"), store.dropped) == (None, {"expired": 1})
    store.put("a", 5, 6)
    assert store.get("a") == 5


def test_a_new_put_gives_a_row_its_own_time_also_an_earlier_one(state: hs.State) -> None:
    store = state.key_value("k", ttl=10)
    store.put("later", 1, 5)
    store.put("later", 2, 9)
    store.put("earlier", 1, 9)
    store.put("earlier", 2, 5)
    store.put("now", 0, 15)
    assert dict(store.all()) == {"later": 2, "now": 0}


def test_with_a_time_to_live_the_time_is_required_and_without_one_refused(state: hs.State) -> None:
    with pytest.raises(ValueError, match="ts: found None, expected a time in ms"):
        state.key_value("k", ttl=10).put("a", 1)
    with pytest.raises(ValueError, match="ts: found 5, but the store has no ttl"):
        state.key_value("n").put("a", 1, 5)
    with pytest.raises(ValueError, match="ttl: found 0"):
        state.key_value("z", ttl=0)


@pytest.mark.parametrize("way", ["changelog", "checkpoint"])
def test_advance_moves_time_without_a_record_and_is_logged(way: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("k", ttl=10)
        store.put("a", 1, 5)
        store.advance(14)
        store.advance(3)
        store.advance(-1)
        assert (store.get("a"), store.stream_time) == (1, 14)
        state.commit()
        store.advance(15)
        assert (store.get("a"), len(store), store.stream_time) == (None, 0, 15)
        state.rollback()
        assert (store.get("a"), store.stream_time) == (1, 14)
        store.advance(16)
        assert state.commit() == 2
        if way == "checkpoint":
            state.checkpoint(wait=True)
        with pytest.raises(TypeError, match="ts: found datetime, expected int"):
            store.advance(datetime(2026, 1, 1))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="advance: found no ttl, expected one"):
            state.key_value("n").advance(5)
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("k", ttl=10)
        assert (store.stream_time, store.get("a")) == (16, None)
        store.put("b", 1, 6)
        assert store.dropped == {"expired": 1}


@pytest.mark.parametrize("way", ["changelog", "checkpoint"])
def test_the_changelog_carries_the_time_of_a_row(way: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        store = state.key_value("k", ttl=10)
        store.put("a", 1, 5)
        store.put("b", 2, 8)
        state.commit()
        if way == "checkpoint":
            state.checkpoint(wait=True)
        crash(state)
    with opened(tmp_path) as state:
        store = state.key_value("k", ttl=10)
        assert store.stream_time == 8
        store.put("c", 3, 15)
        assert [key for key, _ in store.all()] == ["b", "c"]
        store.put("c", 3, 18)
        assert [key for key, _ in store.all()] == ["c"]
