"""Where records are, as the writer process enters it between two jobs, and as its owner knows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.state.checkpoint_job import Job, KeptPacks, Outcome, make
from hybridstore.state.writer_process import Pending, WriterProcess
from recovery import finder_writer

NEVER = hs.CheckpointPolicy(max_restore="1 day")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptPacks:
    """What the process keeps, which makes each checkpoint at once, and has finders of small stores, too."""
    kept = KeptPacks()

    def give(self: WriterProcess, job: Job, user: object, then: Callable[[Outcome], Outcome]) -> Pending:
        pending = Pending(self, then)
        pending.end(make(job, lambda: None, kept))
        return pending

    monkeypatch.setattr(WriterProcess, "give", give)
    monkeypatch.setattr(finder_writer, "FEWEST_RECORDS", 1)
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 0)
    return kept


@pytest.mark.parametrize("waits", [False, True], ids=["by the process", "by a thread"])
def test_the_owner_knows_where_records_are_after_parts_were_divided_between_two_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: KeptPacks, waits: bool
) -> None:
    """The files of such parts have no map yet when a checkpoint removes temporary files, whoever makes it."""
    for name, value in {"_AT_ONCE": 0, "PART_BITS": 6, "_LEAST_BITS": 6, "_EARLIER": 0.5}.items():
        monkeypatch.setattr(finder_writer, name, value)

    def enter_all() -> None:
        while kept.enter_some():
            pass

    with hs.open(tmp_path, memory_limit=1 << 40, checkpoints=NEVER) as state:
        store = state.key_value("kv")
        store.put_many((f"k{i}", i) for i in range(2000))
        state.commit()
        state.checkpoint()
        state._checkpoints.finish(wait=True)
        ((_, finders),) = kept._finders.values()
        files = finders.paths
        enter_all()
        assert not files >= finders.paths
        if waits:
            store["k1"] = -1
            state.commit()
            state.checkpoint(wait=True)
        for value in (-2, -3):  # files that a thread has removed are made again
            store["k1"] = value
            state.commit()
            state.checkpoint()
            assert state._checkpoints.finish(wait=True) is not None
            enter_all()
        reader = state._checkpoints.reader
        assert reader is not None
        known = [reader.finders[1].value_of(f"k{i}") for i in range(2000)]
        assert known == [0, -3, *range(2, 2000)]


@pytest.mark.usefixtures("kept")
def test_a_pack_that_gets_the_number_of_one_that_is_no_more_is_not_taken_for_it(tmp_path: Path) -> None:
    """The store is cold over a checkpoint whose last pack is of another store, with the same keys in the same places.
    All records of that store are deleted, and the next pack, of this store, has the number.
    """
    keys = range(1000, 1100)
    with hs.open(tmp_path, memory_limit=1 << 40, checkpoints=NEVER) as state:
        store, other = state.key_value("kv"), state.key_value("other")

        def checkpoint() -> list[int]:
            state.commit()
            state.checkpoint()
            state._checkpoints.finish(wait=True)
            assert state._checkpoints.reader is not None
            return [record.number for record in state._checkpoints.reader.meta.packs]

        store.put_many((key, ("kv", key)) for key in keys)
        checkpoint()
        other.put_many((key, ("of", key)) for key in keys)
        assert checkpoint() == [1, 2]
        state._go_cold()
        store.free(10**9)
        for key in keys:
            other.delete(key)
        assert checkpoint() == [1]
        store.put_many((key, ("kv", -key)) for key in keys[:80])
        assert checkpoint() == [2]
        assert [store[key] for key in keys[80:]] == [("kv", key) for key in keys[80:]]
