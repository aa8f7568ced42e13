"""A row that is put and deleted while its bucket is cold leaves nothing, also where the cold block never held its
key.
"""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.opening import Tuning
from tests.tools.hooks import check_stores, crash, force_cold
from tests.tools.vector_runner import opened


def put_window(store: Any, key: str, value: int | None) -> None:
    store.put(key, value, 5)


def put_session(store: Any, key: str, value: int | None) -> None:
    store.put(key, value, start=3, end=5)


@pytest.mark.parametrize(("kind", "put"), [("window", put_window), ("session", put_session)], ids=["window", "session"])
def test_put_and_deleted_over_a_cold_block(kind: str, put: Any, tmp_path: Path) -> None:
    with hs.open(tmp_path, durability="os") as s:
        store = getattr(s, kind)("rows", retention=1000)
        put(store, "a", 1)
        put(store, "z", 1)
        s.commit()
        s.checkpoint(wait=True)
        put(store, "m", 2)  # between the keys of the block
        put(store, "z", 3)
        put(store, "m", None)
        s.commit()
    with hs.open(tmp_path, durability="os") as s:
        store = getattr(s, kind)("rows", retention=1000)
        assert [(key[0], value) for key, value in store.all()] == [("a", 1), ("z", 3)]
        check_stores(s)
        assert len(store) == 2
        s.checkpoint(wait=True)
    with hs.open(tmp_path, durability="os") as s:
        store = getattr(s, kind)("rows", retention=1000)
        assert [(key[0], value) for key, value in store.all()] == [("a", 1), ("z", 3)]


@pytest.mark.parametrize("kind", ["session", "window"])
def test_a_bucket_whose_last_record_was_removed_while_it_was_cold_is_gone_once_its_block_is_loaded(
    tmp_path: Path, kind: str
) -> None:
    def opened() -> tuple[hs.State, Any]:
        state = hs.open(tmp_path, durability="os", _tuning=Tuning(bucket_divisor=4, block_records=1))
        return state, state.session("s", retention=100) if kind == "session" else state.window("s", retention=100)

    def put(store: Any, key: str, at: int, value: int | None) -> None:
        store.put(key, value, start=at, end=at) if kind == "session" else store.put(key, value, at)

    state, store = opened()
    put(store, "a", 5, 1)
    put(store, "b", 60, 1)
    state.commit()
    state.checkpoint(wait=True)
    put(store, "a", 5, None)
    state.commit()
    crash(state)
    state, store = opened()  # the removal is replayed over a block that is not loaded
    put(store, "c", 61, 1)
    state.commit()
    state.checkpoint(wait=True)
    assert [row[0][0] for row in store.all()] == ["b", "c"]
    check_stores(state)
    put(store, "d", 6, 2)
    state.commit()
    state.checkpoint(wait=True)
    expected = list(store.all())
    crash(state)
    state, store = opened()
    assert list(store.all()) == expected
    check_stores(state)
    state.close()


@pytest.mark.parametrize("key", ["a", "m", "z"], ids=["before", "among", "behind"])
def test_a_row_that_is_put_and_deleted_beside_cold_ones_leaves_these(key: str, tmp_path: Path) -> None:
    with opened(tmp_path) as state:
        stores: list[Any] = [state.window("w", retention=100), state.session("s", retention=100)]
        for store in stores:
            for older in ("c", "p"):
                store.put(older, older, *[5] * store.ints)
        force_cold(state)
        for store in stores:
            times = [5] * store.ints
            store.put(key, key, *times)
            store.put(key, None, *times)
            assert [value for _, value in store.all()] == ["c", "p"]
            assert store.get("c", *times) == "c"
