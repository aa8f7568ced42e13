"""Power failures: of lives of states, of topologies of several shards, of rescales and of changed programs, as their
calls to the system are, at any moment, with any of what was not synced: nothing acknowledged is lost.

A run of the tests draws some moments by its seed; `make stress` 1,050 in all.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from changelog.storage import LocalStorage
from hybridstore.state.generations import shards_there
from hybridstore.state.opening import Tuning
from hybridstore.topology.run_state import RunState
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash
from tests.tools.power import Power

TUNING = Tuning(frame_records=3, segment_bytes=900, block_records=4, bucket_divisor=8)
# A plain state is recovered in a tenth of the time of a topology.
MOMENTS, OF_TOPOLOGIES = (600, 150) if STRESS else (60, 20)
POLICY = hs.CheckpointPolicy(every_commits=None, keep=2)
SOURCE = [{"k": f"{number % 11}", "ts": number * 3} for number in range(600)]
ALLOW = "add aggregate newest from now"
Check = Callable[[Path, Any], None]


@contextmanager
def recording(root: Path) -> Iterator[Power]:
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        yield Power(root, patch)


def failures(power: Power, tmp_path: Path, seed: int, check: Check, moments: int = OF_TOPOLOGIES) -> None:
    """Let the power fail at moments that the seed draws, and look at each disk."""
    dice = random.Random(seed)
    for number in range(moments):
        moment = dice.randrange(1, len(power.history) + 1)
        disk = tmp_path / f"disk{number}"
        power.lay(moment, dice, disk)
        try:
            check(disk, power.acknowledged(moment))
        except BaseException as error:
            event = power.history[moment - 1]
            error.add_note(f"seed {seed}, disk {number}, behind event {moment}: {event.what} {event.path}")
            raise
        shutil.rmtree(disk)


def counts(**more: Any) -> Any:
    aggregates = {"n": hs.Count(), **more}
    return hs.stream(key="k", timestamp="ts").windowed_by(hs.TumblingWindows(60)).aggregate(**aggregates)


@pytest.mark.slow
@pytest.mark.stress
def test_a_plain_state_below_new_folders(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    seen: dict[int, dict[str, Any]] = {0: {}}
    with recording(tmp_path / "life") as power:
        path = power.root / "new" / "newer" / "state"
        state = hs.open(path, checkpoint=POLICY, _tuning=TUNING)
        for version in range(1, 60):
            rows = state.key_value("rows")
            for _ in range(dice.randint(1, 6)):
                rows.put(f"{dice.randrange(20)}", "v" * dice.randint(0, 80))
            if dice.random() < 0.2:
                state.rollback()
            rows.put("version", version)
            seen[version] = dict(rows.all())
            assert state.commit() == version
            power.acknowledge(version)
            after = dice.random()
            if after < 0.2:
                state.checkpoint(wait=True)
            elif after < 0.4:
                if after < 0.3:
                    state.close()
                else:
                    crash(state)
                state = hs.open(path, checkpoint=POLICY, _tuning=TUNING)
        state.close()

    def check(disk: Path, acknowledged: int | None) -> None:
        with hs.open(disk / "new" / "newer" / "state", checkpoint=POLICY, _tuning=TUNING) as state:
            assert (acknowledged or 0) <= state.version <= (acknowledged or 0) + 1
            assert dict(state.key_value("rows").all()) == seen[state.version]
            check_stores(state)
            state.key_value("rows").put("more", 1)
            state.commit()

    failures(power, tmp_path, seed, check, MOMENTS)


def results(path: Path, topology: Any, shards: int, **options: Any) -> dict[int, list[Any]]:
    """Return the rows of each commit that a run yields."""
    commits: dict[int, list[Any]] = {}
    for row in topology.run(SOURCE, path, shards=shards, commit_rows=40, **options):
        commits.setdefault(row.commit, []).append(sorted(row.items()))
    return {commit: sorted(rows) for commit, rows in commits.items()}


def commits_of(path: Path) -> list[int]:
    there = shards_there(LocalStorage(path))
    assert there is not None
    each = []
    for shard in range(there.shards):
        with hs.open(path / there.folder(shard), at="newest") as state:
            each.append(RunState.of(state).commit)
    return each


@pytest.mark.slow
@pytest.mark.stress
def test_a_topology_of_several_shards(tmp_path: Path, seed: int) -> None:
    topology = counts()
    whole = results(tmp_path / "whole", topology, 3)
    with recording(tmp_path / "life") as power:
        for row in topology.run(SOURCE, power.root / "state", shards=3, commit_rows=40, checkpoint=POLICY):
            power.acknowledge(row.commit)

    def check(disk: Path, acknowledged: int | None) -> None:
        if acknowledged is not None:
            assert min(commits_of(disk / "state")) >= acknowledged
        again = results(disk / "state", topology, 3)
        # A run that had reached its end yields nothing again.
        first = min(again, default=max(whole) + 1)
        assert again == {commit: rows for commit, rows in whole.items() if commit >= first}
        assert first <= (acknowledged or 0) + 1
        assert set(commits_of(disk / "state")) == {max(whole)}

    failures(power, tmp_path, seed, check)


@pytest.mark.slow
@pytest.mark.stress
def test_a_rescale(tmp_path: Path, seed: int) -> None:
    topology = counts()
    whole = results(tmp_path / "whole", topology, 2)
    rows = sorted(row for commit in whole.values() for row in commit)
    with recording(tmp_path / "life") as power:
        first = results(power.root / "state", topology, 2, checkpoint=POLICY)
        assert first == whole
        power.acknowledge((max(whole), 2))
        hs.rescale(power.root / "state", shards=4)
        power.acknowledge((max(whole), 4))

    def check(disk: Path, acknowledged: tuple[int, int] | None) -> None:
        there = shards_there(LocalStorage(disk / "state")) if (disk / "state").exists() else None
        shards = 2 if there is None else there.shards
        if acknowledged is not None:
            assert min(commits_of(disk / "state")) == acknowledged[0]
            assert shards in (acknowledged[1], 4)
        again = results(disk / "state", topology, shards)
        assert all(row in rows for commit in again.values() for row in commit)
        with topology.open(disk / "state", shards=shards) as engine, topology.open(
            tmp_path / "whole", shards=2
        ) as expected:  # fmt: skip
            assert windows(engine) == windows(expected)

    failures(power, tmp_path, seed, check)


def windows(engine: Any) -> list[str]:
    return sorted(repr(item) for state in engine.states for item in state.stores["windows"].all())


@pytest.mark.slow
@pytest.mark.stress
def test_a_changed_program(tmp_path: Path, seed: int) -> None:
    first, second = counts(), counts(newest=hs.Max("ts"))
    middle = SOURCE[:300]
    with recording(tmp_path / "life") as power:
        path = power.root / "state"
        list(first.run(middle, path, shards=2, commit_rows=40, checkpoint=POLICY))
        power.acknowledge("first")
        list(second.run(SOURCE, path, shards=2, commit_rows=40, checkpoint=POLICY, allow=ALLOW))
        power.acknowledge("second")
        done = commits_of(path)
        with second.open(path, shards=2) as engine:
            expected = windows(engine)

    def check(disk: Path, acknowledged: str | None) -> None:
        if acknowledged is None:  # the first program may be in the middle of its rows
            list(first.run(middle, disk / "state", shards=2, commit_rows=40, checkpoint=POLICY))
        list(second.run(SOURCE, disk / "state", shards=2, commit_rows=40, checkpoint=POLICY, allow=ALLOW))
        assert commits_of(disk / "state") == done
        with second.open(disk / "state", shards=2) as engine:
            assert windows(engine) == expected

    failures(power, tmp_path, seed, check)


def test_it_would_be_noticed_if_a_sync_were_missing(tmp_path: Path, seed: int) -> None:
    for attempt in count():
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        with recording(folder / "life") as power, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Files, "sync_directory", lambda files, path: None)
            with hs.open(power.root / "new" / "state") as state:
                for version in range(1, 4):
                    state.key_value("rows").put("a", version)
                    state.commit()
                    power.acknowledge(version)

        def check(disk: Path, acknowledged: int | None) -> None:
            with hs.open(disk / "new" / "state") as state:
                assert state.version >= (acknowledged or 0)

        try:
            failures(power, folder, seed + attempt, check)
        except (AssertionError, hs.HybridStoreError):
            return
        assert attempt < 20
