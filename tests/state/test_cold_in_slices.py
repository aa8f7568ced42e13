"""A state becomes cold in slices: a bucket or a store behind each commit. In between it answers as ever, and another
checkpoint, a rollback or a restart may come.
"""

from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.state.memory import Relief
from hybridstore.stores.cold_blocks import copied, taken_sets
from tests.tools.hooks import check_stores, crash
from tests.tools.vector_runner import SMALL

NEVER = hs.CheckpointPolicy(every_commits=10**9, max_restore="1 hour")
GIVEN: dict[str, Any] = {"memory_limit": 1 << 40, "checkpoints": NEVER, "_tuning": SMALL}


@pytest.fixture(autouse=True)
def a_step_for_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.memory.COMMIT_BUDGET_MS", 1e-6)
    monkeypatch.setattr("hybridstore.state.memory._COOLED_MS", 0)
    monkeypatch.setattr("hybridstore.state.checkpointer.BESIDE_RECORDS", 1 << 40)  # threads of this process


class Both:
    """A state with a window store and a session store, and their contents as they have to be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, int], Any] = {}
        self.open()

    def open(self) -> None:
        self.state = hs.open(self.path, **GIVEN)
        self.windows, self.sessions = (
            self.state.window("w", retention=1000),
            self.state.session("s", retention=1000),
        )

    def put(self, key: str, value: Any, ts: int) -> None:
        self.windows.put(key, value, ts)
        self.sessions.put(key, value, start=ts, end=ts)
        self.rows[key, ts] = value

    def delete(self, key: str, ts: int) -> None:
        self.windows.delete(key, ts)
        self.sessions.delete(key, ts, ts)
        self.rows.pop((key, ts), None)

    def check(self) -> None:
        """Compare single reads with what was put, without loading more than they touch, and the invariants."""
        for key, ts in list(self.rows)[::7]:
            assert self.windows.get(key, ts) == self.sessions.get(key, ts, ts) == self.rows[key, ts]
        check_stores(self.state)

    def contents(self) -> list[dict[Any, Any]]:
        return [
            dict(self.windows.all()),
            {(key, end): value for (key, _, end), value in self.sessions.all()},
        ]


def begun(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill a state, and begin to make it cold, behind a commit, with changes since its checkpoint."""
    state = both.state
    for i in range(400):
        both.put(f"key {i % 40:02}", i, i)
    state.commit()
    state.checkpoint(wait=True)
    change(both, "first")
    with monkeypatch.context() as patch:
        patch.setattr(type(state._memory), "relief", lambda *_, **__: Relief.COLD)
        state.commit()
    assert state._memory.cooling


def change(both: Both, mark: str) -> None:
    """Change and delete rows of all buckets."""
    for i in range(3, 400, 20):
        both.put(f"key {i % 40:02}", mark, i)
        both.put(f"{mark} {i}", i, i)
        both.delete(f"key {(i + 1) % 40:02}", i + 1)


def test_every_commit_makes_a_part_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(tmp_path / "s")
    begun(both, monkeypatch)
    state, commits = both.state, 0
    memory, records = state._memory, [state._memory._in_memory()]
    while memory.cooling:
        both.put("new", commits, commits)
        state.commit()
        check_stores(state)
        records.append(memory._in_memory())
        commits += 1
    assert commits >= len(both.windows._buckets)
    assert records[-1] < records[0] // 3
    both.check()
    assert memory._floor == (memory.counted - memory._old.remaining() - memory._spare) * 5 // 4
    assert both.contents() == [both.rows, both.rows]
    state.close()
    both.open()
    assert both.contents() == [both.rows, both.rows]
    both.state.close()


@pytest.mark.parametrize("commits", [0, 1, 5, 40])
@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_between_slices_leaves_the_rest_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int, fails: bool
) -> None:
    both = Both(tmp_path / "s")
    begun(both, monkeypatch)
    state = both.state
    for i in range(commits):
        change(both, f"slice {i}")
        state.commit()
    assert state._memory.cooling == (commits < 40)
    if fails:
        monkeypatch.setattr(
            "hybridstore.state.checkpointer.write_checkpoint", lambda *_, **__: (_ for _ in ()).throw(OSError("full"))
        )
    before = state.metrics().checkpoint_version
    state._checkpoint(state._usable(), wait=False)
    attempt = state._checkpoints.attempt
    assert attempt is not None
    change(both, "beside")
    state.commit()  # a slice, as far as it knows, would take these changes for those behind the checkpoint in use
    attempt.join()
    for _ in range(3):
        change(both, "behind")
        state.commit()
        both.check()
    assert fails or not state._memory.cooling
    assert (state.metrics().checkpoint_version == before) == fails
    state._go_cold()
    both.check()
    assert both.contents() == [both.rows, both.rows]
    crash(state)
    both.open()
    assert both.contents() == [both.rows, both.rows]
    both.state.close()


@pytest.mark.parametrize("commits", [0, 3])
def test_a_rollback_or_a_crash_between_slices_is_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    both = Both(tmp_path / "s")
    begun(both, monkeypatch)
    for i in range(commits):
        change(both, f"slice {i}")
        both.state.commit()
    before = both.rows.copy()
    change(both, "taken back")
    both.state.rollback()
    both.rows = before
    change(both, "again")
    both.state.commit()
    both.check()
    assert not both.state._memory.cooling
    assert both.contents() == [both.rows, both.rows]
    crash(both.state)
    both.open()
    assert both.contents() == [both.rows, both.rows]
    both.state.close()


def test_without_a_limit_nothing_more_becomes_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(tmp_path / "s")
    begun(both, monkeypatch)
    both.state._memory.limit = None
    both.state.commit()
    assert not both.state._memory.cooling
    assert both.contents() == [both.rows, both.rows]
    both.state.close()


def test_keys_that_blocks_share_are_counted_and_copied_once(tmp_path: Path) -> None:
    with hs.open(tmp_path / "s", **GIVEN) as state:
        buffer, windows, memory = (
            state.suppression("b", max_records=10**6),
            state.window("w", retention=10**6),
            state._memory,
        )
        for i in range(3000):
            buffer.put(f"key {i:04}", i, i)
            windows.put(f"key {i:04}", i, i)
        state.commit()
        state.checkpoint(wait=True)
        for i in range(0, 3000, 2):
            buffer.put(f"key {i:04}", -i, i)
            windows.put(f"key {i:04}", -i, i)
        state.commit()
        before = memory.count()
        for _ in range(2):  # the second time the sets are in maps to be emptied
            state._go_cold()
            assert min(buffer.cold_blocks, windows.cold_blocks) > 50
            blocks = 5000 * (buffer.cold_blocks + windows.cold_blocks)
            assert memory.count() - memory._old.remaining() - memory._old.ended_bytes() < before + blocks
            assert memory._old.remaining() + memory._old.ended_bytes() < before
        (bucket,) = windows._buckets.values()
        for blocks in (copied(buffer._bucket.cold), bucket.clone(0).cold):
            assert (len(taken_sets(blocks)), len(blocks) > 50) == (1, True)
        rows = iter(buffer.buffered())
        assert buffer.put("key 0001", "later", 1) == []
        windows.delete("key 0001", 1)
        right = [(f"key {i:04}", i if i % 2 else -i) for i in range(3000)]
        assert [(key, value) for key, value, _ in rows] == right
        assert [(key, value) for (key, _), value in windows.all()] == [right[0], *right[2:]]
        check_stores(state)
