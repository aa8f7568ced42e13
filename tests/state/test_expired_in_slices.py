"""Records that expire together: they are gone at once, and commits free them in slices."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import check_stores

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")


@pytest.mark.parametrize("kind", ["window", "session"])
@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_expired_records_are_gone_at_once_and_freed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, limit: int | None
) -> None:
    monkeypatch.setattr("hybridstore.state.old_maps.FREED_ENTRIES", 30)
    monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6)
    value = "a value of all records"  # its references are the records that are not freed
    with hs.open(tmp_path / "s", memory_limit=limit, checkpoints=NEVER) as state:
        store: Any = getattr(state, kind)("records", retention="1 hour")
        for i in range(1000):
            store.put(f"key {i}", value, **({"ts": i} if kind == "window" else {"start": i, "end": i}))
        state.commit()
        state.commit()  # for each record that came in before the last one, commits free two
        before = sys.getrefcount(value)
        store.advance(10_000_000)
        assert (store.num_records, list(store.all()), state._memory.count()) == (0, [], state._memory.counted)
        assert sys.getrefcount(value) == before
        state.commit()
        assert before - 200 <= sys.getrefcount(value) < before
        assert not limit or state._memory.count() > 10_000
        freed = []
        for _ in range(1000):
            state.commit()
            freed.append(sys.getrefcount(value))
        assert freed == sorted(freed, reverse=True)
        assert freed[-1] <= before - 1000
        check_stores(state)


def test_expired_records_that_no_commit_frees_are_bounded(tmp_path: Path) -> None:
    value = "a value of all records"
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store = state.window("records", retention=640)
        before = sys.getrefcount(value)
        for i in range(6400):
            store.put(i, value, i)
        assert sys.getrefcount(value) <= before + 2 * 640 + 1000


def test_expired_records_stay_while_an_iterator_reads_them(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store = state.window("records", retention="1 hour")
        for i in range(1000):
            store.put(f"key {i:04d}", i, 1000 * i)  # in several buckets, of which each is read when it is wanted
        rows = store.all()
        assert next(rows) == (("key 0000", 0), 0)
        store.advance(10_000_000)
        for _ in range(20):
            state.commit()
        assert [value for _, value in rows] == list(range(1, 1000))


def test_keys_of_a_sliding_store_go_quiet_together_and_are_removed_in_slices(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store = state.sliding("l", size=1000, aggregator=hs.Sum())
        for key in range(5000):
            store.add(key, 1, key % 10)
        state.commit()
        state.checkpoint(wait=True)
        store.advance(2000)
        remaining = [len(store._runs)]
        assert 0 < 5000 - remaining[0] <= 300
        assert [store.get(key) for key in range(5000)] == [None] * 5000
        assert (list(store.all()), list(store.aggregates())) == ([], [])
        assert store.add(7, 2, 2000) == (7, 1000, 2000, 2)
        check_stores(state)
        while store._older.due:
            state.set("commits", len(remaining))
            state.commit()
            remaining.append(len(store._runs))
            check_stores(state)
        assert (remaining[-1], len(remaining) > 3) == (1, True)
        assert all(before - after <= 2500 for before, after in pairwise(remaining))
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "s") as state:
        assert state.stores["l"].num_records == 1


def test_rows_that_go_together_remove_as_many_quiet_keys(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", checkpoints=NEVER) as state:
        store = state.sliding("l", size=1000, aggregator=hs.Sum())
        store.add_columns(list(range(20_000)), [1] * 20_000, [0] * 20_000)
        store.add_columns([*range(10_000)], [1] * 10_000, [5000] * 10_000)
        assert len(store._runs) == 10_000
        check_stores(state)
