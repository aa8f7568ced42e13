"""State variables with a time to live: when their values expire, and when the store frees them."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import hybridstore as hs
from hybridstore.spark.processor_state import Handle, ListVariable
from tests.tools.shard_tools import provider


def handle_at(store: Any, now: int) -> Handle:
    handle = Handle(store.group)
    handle.begin(now)
    return handle


def test_time_to_live(tmp_path: Path) -> None:
    p = provider(tmp_path)
    for batch, now in enumerate((1000, 1050, 1099, 1100, 1160)):
        store = p.get_store(batch)
        handle = handle_at(store, now)
        value = handle.getValueState("v", "n long", 100)
        items = handle.getListState("l", "n long", 100)
        entries = handle.getMapState("m", "k long", "n long", 100)
        handle.select(("a",))
        assert value.exists() == (1000 < now < 1100)
        assert [entry[0] for entry in items.get()] == [t for t in (1000, 1050) if t < now < t + 100]
        assert sorted(entry[0] for entry, _ in entries.iterator()) == [t for t in (1000, 1050) if t < now < t + 100]
        if now == 1000:
            value.update((1,))
        if now in (1000, 1050):
            items.appendValue((now,))
            entries.updateValue((now,), (1,))
        handle.flush()
        store.commit()


def test_another_time_to_live_is_that_of_new_values(tmp_path: Path) -> None:
    p = provider(tmp_path)
    # the batch's time, the ttl that its program asks for, and the times of the values that are there before its own
    steps = [(1000, 100, []), (1050, 1000, [1000]), (1120, 50, [1050]), (1171, 50, [1050]), (2100, 300, [])]
    for batch, (now, ttl, before) in enumerate(steps):
        store = p.get_store(batch)
        handle = handle_at(store, now)
        value = handle.getValueState("v", "n long", ttl)
        items = handle.getListState("l", "n long", ttl)
        entries = handle.getMapState("m", "k long", "n long", ttl)
        handle.select(("a",))
        for key in ("a", "b"):
            handle.select((key,))
            assert [n for (n,) in items.get()] == before
            assert sorted(n for (n,), _ in entries.iterator()) == before
        assert value.get() == ((before[-1],) if before else None)
        if now != 1120:
            value.update((now,))
        for key in ("a", "b"):
            handle.select((key,))
            if now != 1171:
                items.appendList([(now,)])
                entries.updateValue((now,), (1,))
        handle.flush()
        store.commit()
    with pytest.raises(hs.ProgramMismatchError, match="the state has ttl_ms 1000, asked for ttl_ms None"):
        Handle(p.get_store(len(steps)).group).getValueState("v", "n long")


def test_values_of_a_shorter_time_to_live_are_freed_when_they_expire(tmp_path: Path) -> None:
    p = provider(tmp_path)
    long = [5000] * (ListVariable.WHOLE + 1)
    # the batch's time, its ttl, the first key's list before it, and the records of each variable behind it
    steps = [
        (5000, 1000, [], 1),
        (5100, 50, long, 2),
        (5149, 50, [*long, 5100], 3),
        (5150, 50, long, 3),
        (6100, 50, [], 1),
    ]
    for batch, (now, ttl, before, records) in enumerate(steps):
        store = p.get_store(batch)
        handle = handle_at(store, now)
        value = handle.getValueState("v", "n long", ttl)
        items = handle.getListState("l", "n long", ttl)
        entries = handle.getMapState("m", "k long", "n long", ttl)
        handle.select(("key 0",))
        assert [n for (n,) in items.get()] == before
        if batch == 1:
            items.appendValue((now,))
        handle.select((f"key {batch}",))
        value.update((now,))
        items.appendList([(n,) for n in ([now] if batch else long)])
        entries.updateValue((now,), (1,))
        handle.flush()
        store.commit()
        stores = store.group.stores
        assert [len(stores[name]) for name in ("value:v", "entries:m", "list:l")] == [records] * 3
