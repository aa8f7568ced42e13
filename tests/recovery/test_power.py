"""Power failures: of lives of states, of topologies of several shards, of rescales, of changed programs and of shards
of Spark, as their calls to the system are, at any moment, with any of what was not synced: nothing acknowledged is
lost, and every retained version opens.

A run of the tests draws some moments by its seed; `make stress` 1,500 in all.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from changelog.storage import LocalStorage
from hybridstore.state.generations import current_shards
from hybridstore.state.opening import Tuning
from hybridstore.topology.run_state import RunState
from recovery.layout import list_checkpoints
from tests.conftest import STRESS
from tests.tools.hooks import check_stores, crash
from tests.tools.power import Power
from tests.tools.sizes import SMALL_PARTS

TUNING = Tuning(frame_records=3, segment_bytes=900, block_records=4, bucket_divisor=8, parts=SMALL_PARTS)
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
        state = hs.open(path, checkpoints=POLICY, _tuning=TUNING)
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
                state = hs.open(path, checkpoints=POLICY, _tuning=TUNING)
        state.close()

    def check(disk: Path, acknowledged: int | None) -> None:
        with hs.open(disk / "new" / "newer" / "state", checkpoints=POLICY, _tuning=TUNING) as state:
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
    there = current_shards(LocalStorage(path))
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
        for row in topology.run(SOURCE, power.root / "state", shards=3, commit_rows=40, checkpoints=POLICY):
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
        first = results(power.root / "state", topology, 2, checkpoints=POLICY)
        assert first == whole
        power.acknowledge((max(whole), 2))
        hs.rescale(power.root / "state", shards=4)
        power.acknowledge((max(whole), 4))

    def check(disk: Path, acknowledged: tuple[int, int] | None) -> None:
        there = current_shards(LocalStorage(disk / "state")) if (disk / "state").exists() else None
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
        list(first.run(middle, path, shards=2, commit_rows=40, checkpoints=POLICY))
        power.acknowledge("first")
        list(second.run(SOURCE, path, shards=2, commit_rows=40, checkpoints=POLICY, allow=ALLOW))
        power.acknowledge("second")
        done = commits_of(path)
        with second.open(path, shards=2) as engine:
            expected = windows(engine)

    def check(disk: Path, acknowledged: str | None) -> None:
        if acknowledged is None:  # the first program may be in the middle of its rows
            list(first.run(middle, disk / "state", shards=2, commit_rows=40, checkpoints=POLICY))
        list(second.run(SOURCE, disk / "state", shards=2, commit_rows=40, checkpoints=POLICY, allow=ALLOW))
        assert commits_of(disk / "state") == done
        with second.open(disk / "state", shards=2) as engine:
            assert windows(engine) == expected

    failures(power, tmp_path, seed, check)


@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.parametrize("keep", [1, 3])
def test_every_retained_version_of_a_plain_state(tmp_path: Path, seed: int, keep: int) -> None:
    """`keep` checkpoints with the changelog behind them: each version from the oldest of them on opens with `at=`."""
    dice, policy = random.Random(seed), replace(POLICY, keep=keep)
    seen: dict[int, dict[str, Any]] = {0: {}}
    promises: list[tuple[int, int]] = []  # a version, and the oldest one that opens
    with recording(tmp_path / "life") as power:

        def promise() -> None:
            promises.append((version, retained(path, keep)))
            power.acknowledge(len(promises))

        path = power.root / "state"
        state = hs.open(path, checkpoints=policy, _tuning=TUNING)
        for version in range(1, 40):
            rows = state.key_value("rows")
            for _ in range(dice.randint(1, 4)):
                rows.put(f"{dice.randrange(20)}", "v" * dice.randint(0, 80))
            rows.put("version", version)
            seen[version] = dict(rows.all())
            state.commit()
            promise()
            if dice.random() < 0.3:
                state.checkpoint(wait=True)
                promise()
            if dice.random() < 0.1:
                state.close() if dice.random() < 0.5 else crash(state)
                state = hs.open(path, checkpoints=policy, _tuning=TUNING)
                promise()
        state.close()
        promise()

    def check(disk: Path, acknowledged: int | None) -> None:
        number = acknowledged or 0
        version = promises[number - 1][0] if number else 0
        # what the next promise no longer has may be removed already
        oldest = promises[min(number, len(promises) - 1)][1]
        with hs.open(disk / "state", checkpoints=policy, _tuning=TUNING) as state:
            newest = state.version
            assert version <= newest <= version + 1
        for each in {newest, *(dice.randint(min(oldest, newest), newest) for _ in range(6)), oldest}:
            if 0 < each <= newest:
                with hs.open(disk / "state", at=each) as state:
                    assert dict(state.key_value("rows").all()) == seen[each] == dict(state.key_value("rows").scan())

    failures(power, tmp_path, seed, check)


def retained(path: Path, keep: int) -> int:
    """Return the oldest version that `at=` opens."""
    checkpoints = list_checkpoints(LocalStorage(path))
    return checkpoints[-1].version if len(checkpoints) == keep else min((1, *(c.version for c in checkpoints)))


@pytest.mark.slow
@pytest.mark.stress
def test_every_loadable_version_of_a_shard_of_spark(tmp_path: Path, seed: int) -> None:
    """A shard of a query: commits, checkpoints, prunes and new launches; `retain` versions below the newest load."""
    pytest.importorskip("pyarrow")
    from tests.tools import shard_tools

    dice, retain, versions = random.Random(seed), 4, 30
    options: dict[str, Any] = {"policy": hs.CheckpointPolicy(every_commits=3), "retain": retain}
    seen: dict[int, dict[str, int]] = {0: {}}
    with recording(tmp_path / "life") as power:
        shard = shard_tools.provider(power.root, **options)
        for version in range(versions):
            pairs = {f"k{dice.randrange(12)}": dice.randrange(100) for _ in range(dice.randint(1, 4))}
            seen[version + 1] = seen[version] | pairs
            assert shard_tools.write(shard, version, **pairs) == version + 1
            power.acknowledge(version + 1)
            if dice.random() < 0.8:
                shard.maintain(oldest_replay=version + 1, wait=True)
            if dice.random() < 0.15:
                shard = shard_tools.restarted(power.root, version + 1, **options)

    def check(disk: Path, acknowledged: int | None) -> None:
        newest = acknowledged or 0
        # a prune keeps what the query may replay, the newest version of its checkpoint log among it
        for version in range(max(0, newest - retain), newest + 1):
            assert shard_tools.at(disk, version) == seen[version], version
        again = shard_tools.restarted(disk, newest, **options)
        for version in range(newest, versions):
            pairs = {key: value for key, value in seen[version + 1].items() if seen[version].get(key) != value}
            assert shard_tools.write(again, version, **pairs) == version + 1
            again.maintain(oldest_replay=version + 1, wait=True)
        for version in range(max(0, versions - retain), versions + 1):
            assert shard_tools.at(disk, version) == seen[version], version

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
