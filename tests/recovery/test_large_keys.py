"""Keys that are larger than a block: a checkpoint has them little more than once, and a later one writes few of them
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from recovery import planner, write

NEVER = hs.CheckpointPolicy(max_restore="1 hour", keep=1)
# A hundredth of the real ones: a block of 10 kB and keys as large.
BLOCK, KEY, KEYS = 10_000, 10_000, 200
PUTS = {
    "key_value": ({}, lambda store, key, i: store.put(key, i)),
    "window": ({"retention": 10**9}, lambda store, key, i: store.put(key, i, 1000)),
    "session": ({"retention": 10**9}, lambda store, key, i: store.put(key, i, start=1000, end=2000)),
    "suppression": ({"time_limit": "1 day"}, lambda store, key, i: store.put(key, i, 1000)),
}


def packed(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "packs").iterdir())


@pytest.mark.parametrize("kind", PUTS)
@pytest.mark.parametrize("alike", [True, False], ids=["long common beginning", "differ at the begin"])
def test_keys_are_written_little_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, alike: bool
) -> None:
    monkeypatch.setattr(planner, "BLOCK_BYTES", BLOCK)
    options, put = PUTS[kind]
    rest = "x" * (KEY - 4)
    keys = [f"{rest}{i:04}" if alike else f"{i:04}{rest}" for i in range(KEYS)]
    path = tmp_path / "state"
    with hs.open(path, checkpoints=NEVER) as state:
        store: Any = getattr(state, kind)("store", **options)
        for i, key in enumerate(keys):
            put(store, key, i)
        state.commit()
        state.checkpoint(wait=True)
        first = packed(path)
        # each block has 16 to 32 keys, and the directory two keys of each
        assert KEYS * KEY < first < KEYS * KEY * (1 + 2 / 16 + 0.05)
        put(store, keys[KEYS // 2], -1)
        state.commit()
        state.checkpoint(wait=True)
        # a block, and the page that has its line
        assert packed(path) - first < (32 + 1) * KEY + KEYS * KEY * (2 / 16 + 0.05)
    with hs.open(path) as state:
        assert state.stores["store"].num_records == KEYS


def test_large_values_are_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with each half of the blocks that they would be too large for."""
    packed: list[Any] = []
    pack = planner.pack_block
    monkeypatch.setattr(planner, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(write, "pack_block", lambda columns: (packed.extend(columns.values), pack(columns))[1])
    with hs.open(tmp_path / "state", checkpoints=NEVER) as state:
        state.key_value("store").put_many({number: bytes(BLOCK // 10) for number in range(100)})
        state.commit()
        state.checkpoint(wait=True)
        assert len(packed) == 100
