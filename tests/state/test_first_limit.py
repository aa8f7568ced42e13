"""A state that gets a limit of memory for the first time: its blocks have no tables, so that each record that is read
alone costs a whole block, until checkpoints have written these blocks anew.
"""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state import checkpointer
from hybridstore.state.opening import Tuning
from tests.tools.hooks import check_stores, crash

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
TUNING = Tuning(block_records=100)
LIMIT = 20_000
KEYS = 600


def stores_of(state: hs.State) -> dict[str, Any]:
    """Return a store of each kind whose records are read alone."""
    return {
        "k": state.key_value("k"),
        "t": state.key_value("t", ttl="10 days"),
        "w": state.window("w", retention="1 hour"),
        "s": state.session("s", retention="1 hour"),
        "l": state.sliding("l", size="1 hour", aggregator=hs.Sum()),
        "b": state.suppression("b", time_limit="10 days"),
    }


def put(stores: dict[str, Any], key: int, value: int, ts: int) -> Any:
    """Put a record of a key into each store; return what the sliding store says of it."""
    stores["k"].put(key, (value, value / 8))
    stores["t"].put(key, value, ts)
    stores["w"].put(key, value, ts)
    stores["s"].put(key, value, start=ts, end=ts)
    stores["b"].put(key, value, ts)
    return stores["l"].add(key, value, ts)


def read(stores: dict[str, Any], key: int) -> list[Any]:
    """Return what the stores say of a key."""
    return [
        stores["k"].get(key),
        stores["t"].get(key),
        list(stores["w"].fetch(key, 0, 10**9)),
        list(stores["s"].fetch(key)),
    ]


def written_without_limit(path: Path) -> None:
    with hs.open(path, checkpoints=NEVER, _tuning=TUNING) as state:
        stores = stores_of(state)
        for key in range(KEYS):
            put(stores, key, key, 1000 + key)
        state.commit()
        state.checkpoint(wait=True)


def lacks_tables(state: hs.State) -> int:
    """Return how many blocks of the checkpoint in use have no table."""
    reader = state._checkpoints.reader
    assert reader is not None
    lines = [line for record in reader.meta.stores for line in reader.directory(record.number)]
    return sum(not reader.has_tables(line) for line in lines)


def settle(state: hs.State) -> None:
    """Wait for the checkpoint in progress, and use it."""
    if state._checkpoints.attempt is not None:
        state._checkpoints.attempt.join()
        state._checkpoints.finish(wait=True)


@pytest.mark.parametrize("beside", [True, False])
def test_blocks_get_tables_at_checkpoints_that_begin_because_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.setattr(checkpointer, "_TABLELESS_HERE", 1 if beside else 1 << 20)
    monkeypatch.setattr(checkpointer, "_TABLELESS_READS", 20)
    written_without_limit(tmp_path / "limited")
    written_without_limit(tmp_path / "free")
    dice = random.Random(1)
    with hs.open(tmp_path / "limited", checkpoints=NEVER, memory_limit=LIMIT, _tuning=TUNING) as limited:
        before, ours = lacks_tables(limited), stores_of(limited)
        assert before > 20
        with hs.open(tmp_path / "free", checkpoints=NEVER, _tuning=TUNING) as free:
            theirs = stores_of(free)
            for step in range(40):
                # the first keys of each store are never changed
                keys = [dice.randrange(KEYS) for _ in range(20)]
                assert [read(ours, key) for key in keys] == [read(theirs, key) for key in keys]
                record = (KEYS - 1 - keys[0] % 100, -step, 10_000 + step)
                assert put(ours, *record) == put(theirs, *record)
                limited.commit(), free.commit()
                settle(limited)
                check_stores(limited)
            assert lacks_tables(limited) == 0
            assert (limited._checkpoints.written_beside > 0) == beside
            # no block is read whole any more
            tableless = limited._checkpoints.traffic.tableless
            for step in range(40):
                key = dice.randrange(KEYS)
                assert read(ours, key) == read(theirs, key)
                ours["k"].put(0, step)
                limited.commit()
            assert limited._checkpoints.traffic.tableless == tableless
            crash(limited)
        with hs.open(tmp_path / "limited", checkpoints=NEVER, memory_limit=LIMIT, _tuning=TUNING) as again:
            with hs.open(tmp_path / "free", checkpoints=NEVER, _tuning=TUNING) as free:
                ours, theirs = stores_of(again), stores_of(free)
                for key in range(1, KEYS):
                    assert read(ours, key) == read(theirs, key)
                assert list(ours["b"].buffered()) == list(theirs["b"].buffered())
            assert again._checkpoints.traffic.tableless == 0


def test_a_checkpoint_writes_few_blocks_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "_TABLELESS_BYTES", 2000)
    written_without_limit(tmp_path)
    dice = random.Random(2)
    with hs.open(tmp_path, checkpoints=NEVER, memory_limit=LIMIT, _tuning=TUNING) as state:
        stores, lacking = stores_of(state), [lacks_tables(state)]
        while lacking[-1] and len(lacking) < 100:
            for _ in range(10):
                read(stores, dice.randrange(KEYS))
            put(stores, KEYS - 1, -1, 10_000)
            state.commit()
            settle(state)
            lacking.append(lacks_tables(state))
        assert lacking[-1] < lacking[0] / 2  # of the others no record was read
        assert max(before - after for before, after in pairwise(lacking)) < lacking[0] / 3
        check_stores(state)


def test_a_state_that_reads_no_record_alone_keeps_its_blocks(tmp_path: Path) -> None:
    written_without_limit(tmp_path)
    with hs.open(tmp_path, checkpoints=NEVER, memory_limit=1 << 30, _tuning=TUNING) as state:
        before, stores = lacks_tables(state), stores_of(state)
        stores["k"].put(KEYS + 1, 1)
        state.commit()
        state.checkpoint(wait=True)
        assert lacks_tables(state) >= before - 1
