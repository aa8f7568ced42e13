"""What the state machines found at reopening, closing and going cold, small and certain."""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import SMALL


def open_small(folder: Path) -> Any:
    return hs.open(folder / "state", durability="os", _tuning=SMALL)


@pytest.mark.parametrize("written", ["aa", "b", "z"], ids=["a key of the block", "a key between", "a key behind"])
@pytest.mark.parametrize("kind", ["key_value", "window"])
def test_cold_block_that_a_checkpoint_merged_keeps_its_rows(kind: str, written: str, tmp_path: Path) -> None:
    state = open_small(tmp_path)
    params = {"retention": 100} if kind == "window" else {}
    times = (5,) if kind == "window" else ()
    store = getattr(state, kind)("x", **params)
    for key in ("a", "aa", "c"):
        store.put(key, 1, *times)
    force_cold(state)
    store.put(written, 2, *times)
    state.commit()
    state.checkpoint(wait=True)
    keys = [row[0] if kind == "key_value" else row[0][0] for row in store.all()]
    assert keys == sorted({"a", "aa", "c", written})
    state.close()


def test_checkpoint_right_after_a_clean_reopening_restores(tmp_path: Path) -> None:
    for value in range(2):
        state = open_small(tmp_path)
        state.key_value("x").put("k", value)
        state.commit()
        state.checkpoint(wait=True)
        state.key_value("x").put("later", value)
        state.commit()
        state.close()
    state = open_small(tmp_path)
    state.checkpoint(wait=True)
    crash(state)
    state = open_small(tmp_path)
    assert list(state.key_value("x").all()) == [("k", 1), ("later", 1)]
    state.close()


def test_state_reopens_while_a_cold_store_of_the_closed_one_is_held(tmp_path: Path) -> None:
    state = open_small(tmp_path)
    old = state.key_value("x")
    old.put("k", 1)
    force_cold(state)
    state.close()
    again = open_small(tmp_path)
    assert again.restore_report.skipped == []  # the checkpoint was read, not done without
    assert again.key_value("x").get("k") == 1
    with pytest.raises(hs.StateClosedError):
        old.get("k")
    again.close()


def test_segment_begun_and_not_committed_is_no_hindrance_after_a_clean_close(tmp_path: Path) -> None:
    state = open_small(tmp_path)
    state.key_value("x").put("k", 1)
    state.commit()
    state.close()
    state = open_small(tmp_path)
    for number in range(20):
        state.key_value("x").put(f"lost {number}", number)  # enough that frames are written
    crash(state)
    open_small(tmp_path).close()
    state = open_small(tmp_path)
    state.key_value("x").put("k", 2)
    state.commit()
    state.close()
    state = open_small(tmp_path)
    assert list(state.key_value("x").all()) == [("k", 2)]
    state.close()


def test_segment_on_record_may_have_been_pruned(tmp_path: Path) -> None:
    state = open_small(tmp_path)
    state.key_value("x").put("k", 0)
    state.commit()
    state.close()
    state = open_small(tmp_path)
    for number in range(1, 6):
        state.key_value("x").put("k", [number] * 200)  # a segment each
        state.commit()
        state.checkpoint(wait=True)
    crash(state)
    state = open_small(tmp_path)
    assert state.key_value("x").get("k") == [5] * 200
    state.close()


def test_a_closed_store_refuses_and_its_iterators_do_in_place_of_a_row(tmp_path: Path) -> None:
    state = open_small(tmp_path)
    store = state.window("x", retention=10)
    for key in "abc":
        store.put(key, 1, 5)
    iterators = [store.all(), store.all(reverse=True), store.fetch("a", 0, 9)]
    assert next(iterators[0]) == (("a", 5), 1)
    ended = store.fetch("b", 0, 9)
    assert next(ended) == (5, 1)
    state.close()
    for rows in iterators:
        with pytest.raises(hs.StateClosedError, match="the store is closed"):
            list(rows)
    assert list(ended) == []  # no row is missing
    for call in (lambda: store.put("d", 1, 5), lambda: store.get("a", 5), store.all, lambda: store.fetch("a", 0, 9)):
        with pytest.raises(hs.StateClosedError):
            call()


def test_a_setting_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state") as state:
        with pytest.raises(TypeError, match="setting 'offsets': found object, expected None"):
            state.set("offsets", object())
        with pytest.raises(TypeError, match="setting 5: found a name of int, expected text"):
            state.set(5, 1)  # type: ignore[arg-type]
        assert (state.settings, state.commit()) == ({}, 0)
