"""Few large records under a limit of memory: they are counted, waited for and freed by their bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.checkpointer import Attempt

LIMIT, RECORD, COUNT, KEYS = 3 << 20, 100_000, 60, 8
DAY = 86_400_000
Put = Callable[[Any, int, bytes], None]
KINDS: dict[str, tuple[dict[str, Any], Put]] = {
    "key_value": ({}, lambda store, i, value: store.put(i, value)),
    "window": ({"retention": DAY}, lambda store, i, value: store.put(i % KEYS, value, i)),
    "session": ({"retention": DAY}, lambda store, i, value: store.put(i % KEYS, value, i, i)),
    "suppression": ({"time_limit": DAY}, lambda store, i, value: store.put(i, value, i)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_commits_of_a_large_record_each_keep_the_limit(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(attempt: Attempt, seconds: float) -> float:
        """Wait as long as it takes: on a busy machine a checkpoint is late, and memory grows for it."""
        attempt.join(None if seconds > 0 else seconds)
        return seconds

    monkeypatch.setattr(Attempt, "wait", wait)
    options, put = KINDS[kind]
    counted = []
    with hs.open(tmp_path / "state", memory_limit=LIMIT) as state:
        store = getattr(state, kind)("it", **options)
        for i in range(COUNT):
            put(store, i, random.randbytes(RECORD))
            state.commit()
            counted.append(state._memory.count())
        assert state.metrics().failed_checkpoints == 0
        assert max(counted) < LIMIT < COUNT * RECORD / 1.5


def test_large_records_that_are_read_keep_the_limit_too(tmp_path: Path) -> None:
    with hs.open(tmp_path / "state", memory_limit=LIMIT) as state:
        state.key_value("it").put_many({i: random.randbytes(RECORD) for i in range(COUNT)})
        state.commit()
        state.checkpoint(wait=True)
    counted = []
    with hs.open(tmp_path / "state", memory_limit=LIMIT) as state:
        for i in range(COUNT):
            assert len(state.key_value("it").get(i) or b"") == RECORD
            state.commit()
            counted.append(state._memory.count())
    assert max(counted) < LIMIT


def test_a_scan_in_order_of_time_has_few_large_records_in_memory(tmp_path: Path) -> None:
    values = random.Random(1)
    with hs.open(tmp_path / "state") as state:
        state.window("it", retention=DAY).put_many([(i % KEYS, values.randbytes(RECORD), i) for i in range(COUNT)])
        state.commit()
        state.checkpoint(wait=True)
    with hs.open(tmp_path / "state", memory_limit=LIMIT) as state:
        right, seen = random.Random(1), 0
        tracemalloc.start()
        for (_, ts), value in state.window("it", retention=DAY).all():
            assert (ts, value) == (seen, right.randbytes(RECORD))
            seen += 1
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == COUNT
        # the records of one key are a block, which is read, packed and written at once
        assert peak < 3 * COUNT // KEYS * RECORD
