"""Restarts that are near at any time: checkpoints towards an aim, what they cost, and a changelog that does not grow
with history.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.spark.shard.provider import POLICY as SHARD_POLICY
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.state.checkpointer import Attempt
from hybridstore.state.policy import SPEED, Logged
from hybridstore.topology import engine as local
from tests.tools.hooks import as_reference_machine
from tests.tools.shard_tools import names
from tests.tools.shard_tools import provider as provider_of
from tests.topology.test_ends import killed_at

ROWS = 500  # of a commit
# What the records of one commit take less than, and those of two more.
TWO_COMMITS = timedelta(microseconds=750)
MEANS = (
    hs.stream(key="product", timestamp="time")
    .windowed_by(hs.SlidingWindows(2000))
    .aggregate(mean=hs.Mean("score"), n=hs.Count())
)


def run_at_once(attempt: Attempt) -> bool:
    """Write the checkpoint instead of beginning its thread."""
    attempt.run()
    return True


@pytest.fixture(autouse=True)
def steady_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record takes 1 µs, bytes and commits nothing, and a checkpoint is written when it is begun: nothing here
    depends on time.
    """
    monkeypatch.setattr("hybridstore.state.policy.KINDS", {})
    monkeypatch.setattr("hybridstore.state.policy._SECONDS_PER_OTHER_RECORD", 1e-6)
    monkeypatch.setattr("hybridstore.state.policy._SECONDS_PER_BYTE", 0.0)
    monkeypatch.setattr("hybridstore.state.policy._SECONDS_PER_COMMIT", 0.0)
    as_reference_machine(monkeypatch)
    monkeypatch.setattr(type(SPEED), "observe", lambda *_: None)
    monkeypatch.setattr(Attempt, "begin", run_at_once)
    monkeypatch.setattr("hybridstore.state.directory_log.PRUNABLE_BYTES", 4096)


def reviews(count: int) -> list[dict[str, Any]]:
    return [{"product": f"p{i * i % 97}", "score": float(i % 5), "time": 1000 + i} for i in range(count)]


def changelog_bytes(state: Path) -> int:
    return sum(file.stat().st_size for file in (state / "changelog").iterdir())


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "columns"])
def test_a_sliding_topology_restarts_over_a_few_commits_however_long_it_ran(
    arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "POLICY", hs.CheckpointPolicy(aim=TWO_COMMITS))
    rows: Any = reviews(40 * ROWS)
    if arrow:
        rows = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    behind: list[int] = []
    sizes: list[int] = []

    def look(phase: str, done: int, total: int) -> None:
        plan = hs.inspect(tmp_path).restart()
        assert plan.problem is None
        behind.append(plan.tail_records)
        sizes.append(changelog_bytes(tmp_path))

    assert sum(1 for _ in MEANS.run(rows, tmp_path, commit_rows=ROWS, progress=look)) == 40 * ROWS
    assert max(behind) <= 2 * (ROWS + 5)
    assert max(sizes[20:]) < 1.2 * max(sizes[10:20])
    # closed after a clean end: what is left is that the consumer has everything
    plan = hs.inspect(tmp_path).restart()
    assert (plan.tail_records, plan.tail_versions) == (1, 1)
    assert plan.checkpoint_records == 2001 + 2
    with MEANS.open(tmp_path) as engine:
        assert [store.name for store in engine.states[0].stores.values() if store.cold_blocks == 0] == []
        assert sum(row["n"] for row in engine.windows()) == 2001


def test_a_kill_leaves_a_few_commits_to_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "POLICY", hs.CheckpointPolicy(aim=TWO_COMMITS))
    for commits in (17, 18, 19):
        state = tmp_path / str(commits)
        with killed_at(commits):
            list(MEANS.run(reviews(40 * ROWS), state, commit_rows=ROWS))
        plan = hs.inspect(state).restart()
        assert plan.version == commits
        assert plan.tail_records <= 2 * (ROWS + 5)


def test_closing_makes_a_checkpoint_only_where_the_aim_would_be_missed(tmp_path: Path) -> None:
    for number, (policy, expected) in enumerate(
        [
            (hs.CheckpointPolicy(), None),
            (hs.CheckpointPolicy(aim=timedelta(seconds=1)), None),
            (hs.CheckpointPolicy(aim=timedelta(milliseconds=1)), 1),
        ]
    ):
        with hs.open(tmp_path / str(number), checkpoints=policy) as state:
            state.key_value("kv").put_columns(list(range(20_000)), list(range(20_000)))
            state.commit()
        assert hs.inspect(tmp_path / str(number)).restart().checkpoint_version == expected
    # nothing is committed by closing, and what is not committed is in no checkpoint
    state = hs.open(tmp_path / "uncommitted", checkpoints=hs.CheckpointPolicy(aim=timedelta(milliseconds=1)))
    state.key_value("kv").put_columns(list(range(20_000)), list(range(20_000)))
    state.commit()
    state.key_value("kv").put(5, "later")
    state.close()
    assert hs.inspect(tmp_path / "uncommitted").restart().checkpoint_version is None
    with hs.open(tmp_path / "uncommitted") as state:
        assert state.key_value("kv").get(5) == 5


def test_a_failed_checkpoint_at_closing_is_logged_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = hs.open(tmp_path, checkpoints=hs.CheckpointPolicy(aim=timedelta(milliseconds=1)))
    state.key_value("kv").put_columns(list(range(20_000)), list(range(20_000)))
    state.commit()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hybridstore.state.checkpointer.write_checkpoint", full)
        state.close()
    assert ["No space left on device" in message for message in caplog.messages] == [True]
    with hs.open(tmp_path) as again:
        assert again.restore_report.clean
        assert len(again.key_value("kv")) == 20_000


def test_an_aim_is_followed_as_long_as_little_is_written_for_it() -> None:
    policy = hs.CheckpointPolicy(aim=timedelta(milliseconds=25))
    slow = Logged(2, 0, 30_000, 0.03)
    assert policy.due(slow, 0, 0)
    assert policy.due(slow, 0, 90_000)
    assert not policy.due(slow, 0, 90_001)  # a checkpoint would write more than three times what was logged
    assert not policy.due(slow._replace(commits=1), 0, 0)  # nor after every commit
    assert not policy.due(slow._replace(seconds=0.02), 0, 0)
    assert policy.due(Logged(1, 0, 10**6, 1.1), 0, 10**9)  # the bound stands whatever it costs
    assert not hs.CheckpointPolicy().due(slow, 0, 0)
    assert policy.due_at_close(slow)
    assert not policy.due_at_close(slow._replace(seconds=0.02))


def batches(provider: StateStoreProvider, count: int, columns: bool) -> Iterator[None]:
    for version in range(count):
        store = provider.get_store(version)
        sliding = store.sliding("windows", size=2000, aggregator=hs.Sum())
        rows = [(f"p{i * i % 97}", i, 1000 + i) for i in range(version * ROWS, (version + 1) * ROWS)]
        if columns:
            sliding.add_columns(*map(list, zip(*rows, strict=True)))
        else:
            for row in rows:
                sliding.add(*row)
        store.commit()
        provider.maintain(wait=True)
        yield


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_a_shard_of_sliding_windows_replays_a_few_batches(columns: bool, tmp_path: Path) -> None:
    policy = hs.CheckpointPolicy(aim=TWO_COMMITS, every_commits=100)
    provider = provider_of(tmp_path, policy=policy, retain=2)
    behind: list[int] = []
    segments: list[int] = []
    for _ in batches(provider, 30, columns):
        metrics = provider.metrics()
        assert metrics.logged_records in (ROWS, ROWS + 1)
        behind.append(metrics.records_since_checkpoint)
        segments.append(len(names(tmp_path)))
    assert max(behind) <= 2 * ROWS + 1
    assert max(segments[10:]) <= 8
    provider.close()
    # a worker that has nothing in memory
    other = provider_of(tmp_path, policy=policy)
    store = other.get_read_store(30)
    assert store.loaded.kind == "checkpoint"
    assert store.loaded.replayed.records <= 2 * ROWS
    assert len(list(store.sliding("windows", size=2000, aggregator=hs.Sum()).all())) == 2001


def test_shards_and_topologies_have_the_same_aim() -> None:
    assert SHARD_POLICY.aim == local.POLICY.aim == timedelta(milliseconds=25)
