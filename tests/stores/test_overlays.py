"""What is written over blocks that are not loaded goes into a checkpoint without loading them: the owner copies,
the writer merges.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from tests.tools.hooks import crash, force_cold
from tests.tools.vector_runner import SMALL

# A budget of memory that is never reached: no commit hydrates, so blocks stay cold until they are touched.
ROOM = 1 << 40


def opened(path: Path, kind: str, parameters: dict[str, Any]) -> tuple[hs.State, Any]:
    state = hs.open(path, durability="os", memory_limit=ROOM, _tuning=replace(SMALL, block_records=8))
    return state, getattr(state, kind)("s", retention=1000, **parameters)


def row(kind: str, key: int, length: int, at: int, value: Any) -> tuple[Any, ...]:
    return (f"k{key:02}", value, at) if kind == "window" else (f"k{key:02}", value, at - length, at)


def change(r: random.Random, kind: str, *stores: Any) -> None:
    """Put, overwrite or delete one row, in every store the same."""
    chosen = row(
        kind, r.randrange(30), r.choice([5, 5, 0]), r.randrange(200, 600), r.choice([None, r.randrange(99), "x", [1]])
    )
    for store in stores:
        store.put(*chosen)


def content(store: Any) -> Any:
    return list(store.all()), store.stream_time


@pytest.mark.parametrize(("kind", "parameters"), [
    ("window", {}),
    ("window", {"retain_duplicates": True}),
    ("session", {}),
], ids=["window", "duplicates", "session"])  # fmt: skip
@pytest.mark.stress
def test_what_lies_over_cold_blocks_is_checkpointed_as_it_is(
    kind: str, parameters: dict[str, Any], tmp_path: Path, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(rounds):
        r = random.Random(seed + number)
        twin_state, twin = opened(tmp_path / f"{number}twin", kind, parameters)
        state, store = opened(tmp_path / f"{number}", kind, parameters)
        for key in range(30):
            for at in range(200, 600, r.choice([9, 40])):
                for each in (store, twin):
                    each.put(*row(kind, key, 5, at, at))
        force_cold(state)
        for _ in range(15):
            for _ in range(r.choice([1, 5, 40])):
                change(r, kind, store, twin)
            state.commit()
            if r.random() < 0.5:  # a replay loads nothing: deletions, too, lie over the blocks
                crash(state)
                state, store = opened(tmp_path / f"{number}", kind, parameters)
            cold, act = store.cold_blocks, r.random()
            if act < 0.2 and state.metrics().checkpoint_version != state.version:
                with monkeypatch.context() as failing:
                    failing.setattr("recovery.index.encode", _full)
                    with pytest.raises(hs.errors.CheckpointError, match="No space left"):
                        state.checkpoint(wait=True)
            elif act < 0.7:
                state.checkpoint(wait=True)
            elif act < 0.8:
                force_cold(state)
            elif act < 0.9:
                assert content(store) == content(twin)
                store._check()
            # rows of one time are told apart by nothing but their order, so for duplicates the blocks are loaded
            assert act >= 0.7 or store.cold_blocks == cold or parameters
        assert content(store) == content(twin)
        state.close()
        state, store = opened(tmp_path / f"{number}", kind, parameters)
        assert content(store) == content(twin)
        store._check()
        for each in (state, twin_state):
            each.close()


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_block_of_which_everything_was_deleted_leaves_the_checkpoint_unread(tmp_path: Path) -> None:
    state, store = opened(tmp_path, "window", {})
    store.put_many([(f"k{n:02}", n, 100) for n in range(20)])
    force_cold(state)
    for n in range(20):
        store.put(f"k{n:02}", None, 100)
    state.commit()
    crash(state)
    state, store = opened(tmp_path, "window", {})
    cold = store.cold_blocks
    assert cold > 0
    state.checkpoint(wait=True)
    assert store.cold_blocks == cold
    # over blocks that no checkpoint has any more
    store.apply_put("k03", "again", 100)
    store._journal.record(store.number * 16 + 3, "k03", "again", 100)
    state.commit()
    state.checkpoint(wait=True)
    assert list(store.all()) == [(("k03", 100), "again")]
    state.close()
    state, store = opened(tmp_path, "window", {})
    assert list(store.all()) == [(("k03", 100), "again")]
    store._check()
    state.close()
