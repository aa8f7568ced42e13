"""Queries that start anew, at the provider: replays, rewinds and launches, under the numbers of their scenarios."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from changelog.storage import LocalStorage
from hybridstore.spark import SkippedBatchError, SparkSetupError, StaleAttemptError
from hybridstore.spark.launches import begin, claim, new_launch
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.shard_tools import (
    ATTEMPTS,
    OFTEN,
    at,
    build,
    content,
    expected,
    operator,
    provider,
    put,
    restarted,
    versions,
    write,
)


@pytest.mark.scenario(64, 70)
def test_replay_from_the_version_before(tmp_path: Path) -> None:
    build(tmp_path, 4)
    again = provider(tmp_path)
    store = again.get_store(3)
    assert content(store) == expected(3)
    put(store, k3=3)
    assert store.commit() == 4
    assert at(tmp_path, 4) == expected(4)


@pytest.mark.scenario(66)
def test_manual_rewind(tmp_path: Path) -> None:
    build(tmp_path, 3)
    p = restarted(tmp_path, 1)
    store = p.get_store(1)
    assert content(store) == expected(1)
    put(store, other=1)
    assert store.commit() == 2
    with pytest.raises(SkippedBatchError):
        provider(tmp_path).get_store(3)
    assert at(tmp_path, 2) == {"k0": 0, "other": 1}


@pytest.mark.scenario(66)
def test_rewind_when_nothing_changes(tmp_path: Path) -> None:
    build(tmp_path, 5)
    p = restarted(tmp_path, 2)
    assert p.get_store(2).commit() == 3
    assert at(tmp_path, 3) == expected(2)
    assert provider(tmp_path).get_store(3).commit() == 4
    p.note_empty(4)
    assert at(tmp_path, 5) == expected(2)
    with pytest.raises(SkippedBatchError):
        provider(tmp_path).get_store(6)


@pytest.mark.scenario(71, 72)
def test_the_abandoned_future(tmp_path: Path) -> None:
    build(tmp_path, 6, retain=100)
    p = restarted(tmp_path, 1, policy=CheckpointPolicy(every_commits=1), retain=100)
    assert write(p, 1, other=1) == 2
    for version in range(3, 7):
        with pytest.raises(SkippedBatchError):
            provider(tmp_path).get_store(version)
    assert write(p, 2, more=2) == 3
    assert at(tmp_path, 3) == {"k0": 0, "other": 1, "more": 2}
    # what is void counts for nothing, and goes when there is clearing up
    assert versions(tmp_path) == [1, 2, 2, 3, 3, 4, 5, 6]
    p.maintain(wait=True)
    assert versions(tmp_path) == [1, 2, 3]
    assert at(tmp_path, 3) == {"k0": 0, "other": 1, "more": 2}


def test_a_run_does_not_go_back_below_its_first_batch(tmp_path: Path) -> None:
    build(tmp_path, 4)
    p = restarted(tmp_path, 3)
    with pytest.raises(
        StaleAttemptError, match="version 2 is below batch 3, with which launch 2000 of the query began"
    ):
        p.get_store(2)


@pytest.mark.parametrize("batch", [2, 4])
def test_a_late_first_task_of_an_older_launch_does_not_begin(tmp_path: Path, batch: int) -> None:
    """The driver's number decides, not when the first task arrives."""
    build(tmp_path, 4)
    storage = operator(tmp_path)
    late = new_launch(storage)
    p = restarted(tmp_path, 4)
    with pytest.raises(StaleAttemptError, match=f"run late of launch {late} is overtaken"):
        claim(storage, late, "late", batch, next(ATTEMPTS))
    write(p, 4, k4=4)
    assert at(tmp_path, 5) == expected(5)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_operators_of_one_name_in_a_query_are_refused(tmp_path: Path, order: tuple[int, int]) -> None:
    storage = operator(tmp_path)
    launches = [new_launch(storage) for _ in range(2)]
    first, second = (launches[number] for number in order)
    claim(storage, first, "query", 0, 1)
    with pytest.raises(SparkSetupError, match=r"two operators of this query are called 'op' .give each"):
        claim(storage, second, "query", 0, 2)


def test_one_applied_dataframe_may_be_started_again(tmp_path: Path) -> None:
    storage = operator(tmp_path)
    launch = new_launch(storage)
    first = claim(storage, launch, "first", 0, 1)
    assert claim(storage, launch, "first", 0, 3) == first
    zombie = 4
    p = provider(tmp_path, run=first)
    for version in range(3):
        write(p, version, **{f"k{version}": version})
    second = claim(storage, launch, "second", 2, 7)
    assert (first.launch, second.launch) == (launch, launch + 1)
    write(provider(tmp_path, run=second), 2, other=2)
    assert at(tmp_path, 3) == expected(2) | {"other": 2}
    # a task of the first run, and one of a run in between that never began, arrive now
    for run_id in ("first", "between"):
        with pytest.raises(StaleAttemptError, match=f"run {run_id} of launch {launch} is overtaken"):
            claim(storage, launch, run_id, 2, zombie)
    assert claim(storage, launch, "second", 2, 8) == second
    assert new_launch(storage) == launch + 1000


def test_a_crash_at_every_step_of_a_rewind_leaves_no_mixture(tmp_path: Path) -> None:
    class Dying(Files):
        """Dies after a number of steps: nothing is cleaned up, as after SIGKILL."""

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

        def _step(self) -> None:
            self.steps -= 1
            if self.steps < 0:
                raise KeyboardInterrupt

        def link(self, temporary: Path, final: Path) -> None:
            self._step()
            super().link(temporary, final)

        def create(self, path: Path) -> Any:
            self._step()
            return super().create(path)

        def sync_directory(self, path: Path) -> None:
            self._step()
            super().sync_directory(path)

        def remove(self, path: Path) -> None:
            self._step()
            super().remove(path)

    build(tmp_path / "base", 6, policy=OFTEN, retain=100)
    for steps in range(90):
        root = tmp_path / f"{steps}"
        shutil.copytree(tmp_path / "base", root)
        dying = LocalStorage(root / "hybridstore/op", files=Dying(steps))
        try:
            mine = StateStoreProvider(
                StateStoreId(str(root), "op", 0),
                cache=ShardCache(),
                policy=CheckpointPolicy(every_commits=1),
                storage=dying,
                claim=begin(dying, 2),
            )
            write(mine, 2, other=1)
            mine.checkpoint()
            finished = dying.files.steps >= 0
        except (KeyboardInterrupt, hs.HybridStoreError):
            finished = False
        # whatever is there now: the batch runs again, and the following one
        again = restarted(root, 2)
        write(again, 2, other=1)
        write(again, 3, more=2)
        assert at(root, 4) == expected(2) | {"other": 1, "more": 2}
        with pytest.raises(SkippedBatchError):
            provider(root).get_store(5)
        shutil.rmtree(root)
        if finished:
            break
    else:
        pytest.fail("the rewind never finished")
