"""A row that is put and deleted while its bucket is cold leaves nothing, also where the cold block never held its key."""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs


def put_window(store: Any, key: str, value: int | None) -> None:
    store.put(key, value, 5)


def put_session(store: Any, key: str, value: int | None) -> None:
    store.put(key, 3, 5, value)


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
        s._check()
        assert len(store) == 2
        s.checkpoint(wait=True)
    with hs.open(tmp_path, durability="os") as s:
        store = getattr(s, kind)("rows", retention=1000)
        assert [(key[0], value) for key, value in store.all()] == [("a", 1), ("z", 3)]
