"""Aborts, retries, zombies and retention at the provider: scenarios that need no JVM, under their numbers."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from changelog.files import Files
from hybridstore.spark import CannotCommitError, MissingVersionError, SkippedBatchError
from hybridstore.spark.launches import begin
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.memory_storage import MemoryStorage
from tests.tools.shard_tools import (
    ATTEMPTS,
    OFTEN,
    SHARD,
    at,
    build,
    checkpoint,
    checkpoints,
    content,
    expected,
    files,
    names,
    provider,
    put,
    restarted,
    segment,
    started,
    versions,
    write,
)
from tests.tools.watched_storage import WatchedStorage


class Failing(Files):
    """A file system that refuses one step for files whose path contains `name`: creating, syncing or naming them, or
    making the name durable."""

    def __init__(self, name: str, step: str = "link") -> None:
        super().__init__()
        self.name = name
        self.step = step
        self.refuse = True

    def _fail(self, step: str, path: Path) -> None:
        if self.refuse and step == self.step and self.name in str(path):
            raise OSError(errno.EIO, f"{step} failed")

    def create(self, path: Path) -> Any:
        self._fail("create", path)
        return super().create(path)

    def link(self, temporary: Path, final: Path) -> None:
        self._fail("link", final)
        super().link(temporary, final)

    def sync_directory(self, path: Path) -> None:
        self._fail("sync", path)
        super().sync_directory(path)


@pytest.mark.parametrize("step", ["create", "link", "sync"])
@pytest.mark.scenario(21, 22)
def test_publishing_fails(tmp_path: Path, step: str) -> None:
    build(tmp_path, 10)
    failing = Failing("/log", step)
    p = provider(tmp_path, files=failing)
    store = p.get_store(10)
    put(store, x=1)
    with pytest.raises(CannotCommitError, match=f"version 11 could not be committed: {step} failed"):
        store.commit()
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]
    failing.refuse = False
    assert content(p.get_store(10)) == expected(10)
    if step != "sync":
        with pytest.raises(SkippedBatchError):
            provider(tmp_path).get_store(11)
    assert write(p, 10, y=2) == 11
    assert at(tmp_path, 11) == expected(10) | {"y": 2}


@pytest.mark.parametrize("arrived", [True, False])
def test_a_lost_answer_is_resolved_by_reading_the_object(tmp_path: Path, arrived: bool) -> None:
    losing = False

    def watch(verb: str, name: str, call: Callable[[], Any]) -> Any:
        if verb != "create" or not losing:
            return call()
        if arrived:
            call()
        raise TimeoutError("no answer")

    storage = WatchedStorage(MemoryStorage(), watch)
    mine = StateStoreProvider(
        StateStoreId(str(tmp_path), "op", 0), cache=ShardCache(), storage=storage, claim=begin(storage, 0)
    )
    write(mine, 0, a=1)
    losing = True
    if arrived:
        assert write(mine, 1, b=2) == 2
    else:
        with pytest.raises(CannotCommitError, match="version 2 could not be committed: no answer"):
            write(mine, 1, b=2)
    losing = False
    assert content(mine.get_store(2 if arrived else 1)) == ({"a": 1, "b": 2} if arrived else {"a": 1})


def test_a_name_that_somebody_else_has_taken_is_no_success(tmp_path: Path) -> None:
    storage = MemoryStorage()
    mine = StateStoreProvider(
        StateStoreId(str(tmp_path), "op", 0), cache=ShardCache(), storage=storage, claim=begin(storage, 0)
    )
    write(mine, 0, a=1)
    store = mine.get_store(1)
    put(store, b=2)
    same = {"cache": ShardCache(), "storage": storage, "claim": mine._claim, "attempts": repeat(store.attempt)}
    other = StateStoreProvider(mine.id, **same)
    assert write(other, 1, b=3) == 2
    with pytest.raises(CannotCommitError, match="another object has this name"):
        write(other, 1, b=3)
    assert store.commit() == 2


@pytest.mark.scenario(23)
def test_commit_on_top_of_an_existing_version(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    assert write(provider(tmp_path), 0, a=1) == 1
    assert len({name.digest8 for name in names(tmp_path)}) == 1
    again = provider(tmp_path)
    assert content(again.get_store(1)) == {"a": 1}
    assert again.metrics().differing_attempts == 0


@pytest.mark.parametrize("capacity", [0, 1, 2])
@pytest.mark.scenario(24)
def test_redo_after_a_global_failure(tmp_path: Path, capacity: int) -> None:
    cache = ShardCache(capacity)
    p = provider(tmp_path, cache=cache)
    write(p, 0, a=1)
    write(p, 1, b=2)
    assert write(p, 1, c=3) == 2
    for root_reader in (provider(tmp_path, cache=cache), provider(tmp_path)):
        assert content(root_reader.get_read_store(2)) == {"a": 1, "c": 3}
        store = root_reader.get_store(2)
        assert content(store) == {"a": 1, "c": 3}
        store.abort()
    assert p.metrics().differing_attempts == 1


@pytest.mark.scenario(25)
def test_read_store_aborted_after_the_write_stores_commit(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    reader, writer = p.get_read_store(1), p.get_store(1)
    put(writer, b=2)
    assert writer.commit() == 2
    reader.abort()
    assert at(tmp_path, 2) == {"a": 1, "b": 2}
    assert content(p.get_store(2)) == {"a": 1, "b": 2}


@pytest.mark.scenario(29)
def test_failure_while_opening(tmp_path: Path) -> None:
    build(tmp_path, 2)
    p = provider(tmp_path)
    place = segment(tmp_path, 1)
    hidden = place.rename(tmp_path / "hidden")
    with pytest.raises(MissingVersionError):
        p.get_store(2)
    hidden.rename(place)
    assert content(p.get_store(2)) == expected(2)


@pytest.mark.scenario(31)
def test_same_batch_evaluated_twice(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    for _ in range(3):
        store = p.get_store(1)
        assert content(store) == {"a": 1}
        put(store, b=2)
        assert store.commit() == 2
    assert at(tmp_path, 2) == {"a": 1, "b": 2}
    assert p.metrics().differing_attempts == 0


@pytest.mark.scenario(32)
def test_some_partitions_skipped(tmp_path: Path) -> None:
    p = provider(tmp_path)
    write(p, 0, a=1)
    with pytest.raises(SkippedBatchError, match=r"so batches 1 to 3 did not reach shard 0 .*limit"):
        p.get_store(4)


@pytest.mark.scenario(33)
def test_late_publish_of_a_dead_attempt(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    # attempt A stalls before its commit; B commits the version, and the query goes on
    a, b = provider(tmp_path), provider(tmp_path)
    late = a.get_store(1)
    put(late, from_a=1)
    write(b, 1, from_b=1)
    write(b, 2, c=3)
    late.commit()
    assert at(tmp_path, 2) == {"a": 1, "from_b": 1}
    assert at(tmp_path, 3) == {"a": 1, "from_b": 1, "c": 3}
    # what A has in memory is of no line
    assert content(a.get_store(3)) == {"a": 1, "from_b": 1, "c": 3}
    assert a.metrics().load == "changelog"
    assert a.metrics().differing_attempts == 1


@pytest.mark.scenario(33)
def test_late_publish_of_a_greater_attempt(tmp_path: Path) -> None:
    """A speculative attempt that comes late is the greater one: the version that names its parent has settled it."""
    write(provider(tmp_path), 0, a=1)
    b, a = provider(tmp_path), provider(tmp_path)
    first, late = b.get_store(1), a.get_store(1)
    put(first, from_b=1)
    put(late, from_a=1)
    first.commit()
    write(b, 2, c=3)
    late.commit()
    assert at(tmp_path, 2) == {"a": 1, "from_b": 1}
    assert at(tmp_path, 3) == {"a": 1, "from_b": 1, "c": 3}
    assert write(provider(tmp_path), 3, d=4) == 4
    assert at(tmp_path, 4) == {"a": 1, "from_b": 1, "c": 3, "d": 4}


@pytest.mark.scenario(33)
def test_two_attempts_of_the_newest_version(tmp_path: Path) -> None:
    # Nothing tells which of two attempts Spark counts while no later batch is committed: the greater one wins, and it
    # is counted.
    write(provider(tmp_path), 0, a=1)
    a, b = provider(tmp_path), provider(tmp_path)
    first, second = a.get_store(1), b.get_store(1)
    put(first, from_a=1)
    put(second, from_b=1)
    second.commit()
    first.commit()
    assert at(tmp_path, 2) == {"a": 1, "from_b": 1}
    again = provider(tmp_path).get_store(2)
    assert again.metrics().differing_attempts == 1
    again.abort()
    # the next batch is done where one of them is in memory: its version names that one
    write(a, 2, c=3)
    assert at(tmp_path, 3) == {"a": 1, "from_a": 1, "c": 3}
    assert at(tmp_path, 2) == {"a": 1, "from_a": 1}
    # the other one's memory is of another line and is not served
    assert content(b.get_store(3)) == {"a": 1, "from_a": 1, "c": 3}


@pytest.mark.scenario(33)
def test_late_attempt_without_rows(tmp_path: Path) -> None:
    write(provider(tmp_path), 0, a=1)
    a, b = provider(tmp_path), provider(tmp_path)
    late = a.get_store(1)
    write(b, 1, b=2)
    write(b, 2, c=3)
    late.commit()
    a.note_empty(1)
    assert at(tmp_path, 3) == {"a": 1, "b": 2, "c": 3}
    assert at(tmp_path, 2) == {"a": 1, "b": 2}


@pytest.mark.scenario(34)
def test_late_segment_of_a_failed_run(tmp_path: Path) -> None:
    build(tmp_path, 2)
    late = provider(tmp_path).get_store(2)
    put(late, late=1)
    p = restarted(tmp_path, 2)
    assert p.get_store(2).commit() == 3  # the restarted query finds nothing for this shard
    late.commit()  # and then the old object turns up
    assert at(tmp_path, 3) == expected(2)
    write(p, 3, z=1)
    assert at(tmp_path, 4) == expected(2) | {"z": 1}


@pytest.mark.scenario(35, 51)
def test_checkpoint_of_an_abandoned_line(tmp_path: Path) -> None:
    build(tmp_path, 2)
    a, late = provider(tmp_path), provider(tmp_path).get_store(2)
    write(a, 2, from_a=1)
    assert a.checkpoint()
    # a later attempt of the same run wins: the checkpoint is of no line
    put(late, from_b=1)
    late.attempt = next(ATTEMPTS)
    late.commit()
    store = provider(tmp_path).get_store(3)
    assert content(store) == expected(2) | {"from_b": 1}
    assert store.metrics().skipped_checkpoints == 1
    assert "another line" in store.loaded.skipped[0]
    store.abort()
    # that of a run that was turned back is void, and is not even opened
    b = restarted(tmp_path, 2)
    write(b, 2, from_c=1)
    write(b, 3, c=3)
    store = provider(tmp_path).get_store(4)
    assert content(store) == expected(2) | {"from_c": 1, "c": 3}
    assert store.metrics().skipped_checkpoints == 0


@pytest.mark.scenario(36)
def test_checkpoint_crosses_a_restart(tmp_path: Path) -> None:
    class Hanging(Files):
        go = threading.Event()

        def link(self, temporary: Path, final: Path) -> None:
            if final.suffix == ".lmdb":
                assert self.go.wait(600)  # a limit for a task that waits for the checkpoint
            super().link(temporary, final)

    slow = Hanging()
    old = provider(tmp_path, files=slow, policy=CheckpointPolicy(every_commits=1))
    write(old, 0, a=1)
    old.maintain()
    new = provider(tmp_path)
    write(new, 0, b=2)
    write(new, 1, c=3)
    slow.go.set()
    old.maintain(wait=True)
    assert at(tmp_path, 2) == {"b": 2, "c": 3}


@pytest.mark.parametrize("query_id", ["", "another"])
@pytest.mark.scenario(37)
def test_two_lines_with_the_same_numbers(tmp_path: Path, query_id: str) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for root, value, query in ((first, 1, ""), (second, 2, query_id)):
        p = StateStoreProvider(
            StateStoreId(str(root), "op", 0, query_id=query),
            cache=ShardCache(),
            policy=OFTEN,
            claim=started(root, 0),
            attempts=ATTEMPTS,
        )
        for version in range(10):
            write(p, version, **{f"k{version}": value})
            p.maintain(wait=True)
    assert set(at(first, 10).values()) == {1}
    # the objects of both lines in one folder: of one of them, or refused where they are another query's
    for folder in (second / SHARD).iterdir():
        shutil.copytree(folder, first / SHARD / folder.name, dirs_exist_ok=True)
    if query_id:
        with pytest.raises(hs.errors.ForeignFileError, match="another query"):
            at(first, 10)
    else:
        assert set(at(first, 10).values()) == {2}


@pytest.mark.scenario(38, 39)
def test_the_shard_moves_and_comes_back(tmp_path: Path) -> None:
    old, new = provider(tmp_path, policy=OFTEN), provider(tmp_path, policy=OFTEN)
    for version in range(5):
        write(old, version, **{f"k{version}": version})
    for version in range(5, 8):
        write(new, version, **{f"k{version}": version})
        new.maintain(wait=True)
    before = files(tmp_path)
    old.maintain(wait=True)
    assert before <= files(tmp_path)
    store = old.get_store(8)
    assert store.metrics().load == "catch-up"
    assert store.metrics().replayed_segments == 3
    assert content(store) == expected(8)
    put(store, k8=8)
    assert store.commit() == 9
    assert at(tmp_path, 9) == expected(9)


@pytest.mark.scenario(39)
def test_stale_memory_of_a_discarded_version(tmp_path: Path) -> None:
    old, new = provider(tmp_path), provider(tmp_path)
    write(old, 0, a=1)
    write(old, 1, discarded=1)
    write(new, 1, b=2)
    write(new, 2, c=3)
    store = old.get_store(3)
    assert store.metrics().load == "changelog"
    assert content(store) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.scenario(40)
def test_close_while_an_iterator_is_held(tmp_path: Path) -> None:
    build(tmp_path, 10, policy=OFTEN)
    p = provider(tmp_path)
    rows = p.get_store(10).key_value("default").all()
    first = next(rows)
    p.close()
    assert dict([first, *rows]) == expected(10)


@pytest.mark.scenario(41)
def test_a_checkpoint_does_not_block_the_task(tmp_path: Path) -> None:
    class Slow(Files):
        go = threading.Event()

        def sync_path(self, path: Path) -> None:
            if path.name.endswith(".tmp"):
                assert self.go.wait(600)  # a limit for a task that waits for the checkpoint
            super().sync_path(path)

    slow = Slow()
    p = provider(tmp_path, files=slow, policy=CheckpointPolicy(every_commits=2))
    for version in range(6):
        write(p, version, **{f"k{version}": version})
        if version == 1:
            p.maintain()
    slow.go.set()
    p.maintain(wait=True)
    assert checkpoint(tmp_path, 2).exists()
    assert at(tmp_path, 6) == expected(6)


@pytest.mark.scenario(42)
def test_close_before_and_after_maintenance(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=OFTEN)
    for version in range(3):
        write(p, version, **{f"k{version}": version})
    p.close()
    p.maintain(wait=True)
    assert at(tmp_path, 3) == expected(3)


@pytest.mark.scenario(44)
def test_restarted_query(tmp_path: Path) -> None:
    cache = ShardCache()
    run1 = provider(tmp_path, cache=cache)
    write(run1, 0, a=1)
    mine = run1.get_store(1)
    run2 = provider(tmp_path, cache=cache)
    other = run2.get_store(1)
    assert other.shard is not mine.shard
    put(mine, x=1)
    assert content(other) == {"a": 1}


@pytest.mark.scenario(45, 46, 47)
def test_spacing_of_checkpoints(tmp_path: Path) -> None:
    build(tmp_path, 2, policy=OFTEN)
    assert not list(tmp_path.rglob("*.lmdb"))
    p = provider(tmp_path, policy=OFTEN)
    write(p, 2, k2=2)
    p.maintain(wait=True)
    assert checkpoint(tmp_path, 3).exists()
    # a new process goes on counting where the last one stopped: the objects know
    for version in range(3, 7):
        fresh = provider(tmp_path, policy=OFTEN)
        write(fresh, version, **{f"k{version}": version})
        fresh.maintain(wait=True)
    assert [name.version for name in checkpoints(tmp_path)] == [3, 6]
    assert versions(tmp_path)[0] == 1
    for version in (1, 2):
        segment(tmp_path, version).unlink()
    for version in range(3, 8):
        assert at(tmp_path, version) == expected(version)


@pytest.mark.scenario(48, 49, 50)
def test_retention(tmp_path: Path) -> None:
    build(tmp_path, 20, policy=CheckpointPolicy(every_commits=2), retain=2)
    assert not segment(tmp_path, 1).exists()
    for version in (18, 19, 20):
        assert at(tmp_path, version) == expected(version)
    # packs stay for an hour: a checkpoint in the making may name them
    assert len([name for name in files(tmp_path) if not name.startswith("packs/")]) < 12
    with pytest.raises(MissingVersionError):
        at(tmp_path, 3)


def test_retention_keeps_what_the_query_may_replay(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=CheckpointPolicy(every_commits=2), retain=1)
    for version in range(30):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True, oldest_replay=min(version, 7))
    assert at(tmp_path, 7) == expected(7)
    assert not segment(tmp_path, 3).exists()


def test_files_stay_bounded_over_a_thousand_batches(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=CheckpointPolicy(every_commits=20))

    def count() -> int:
        # packs stay for an hour
        return len([name for name in files(tmp_path) if not name.startswith("packs/")])

    most = 0
    for version in range(1000):
        write(p, version, **{f"k{version % 50}": version})
        # a batch here takes no longer than a sync: on a busy machine a checkpoint may last for many, as it never does
        # for real ones
        p.maintain(wait=version % 10 == 0)
        if version % 50 == 0:
            most = max(most, count())
    p.maintain(wait=True)
    assert max(most, count()) < 80
    assert p.log.usage()[0] == len(files(tmp_path))
    assert len(at(tmp_path, 1000)) == 50


@pytest.mark.scenario(60)
def test_a_part_of_a_checkpoint_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridstore.state.checkpointer.RETRY_SECONDS", 0.0)
    for suffix in (".lmdb", ".pack"):
        root = tmp_path / suffix[1:]
        failing = Failing(f"{suffix}")
        p = provider(root, files=failing, policy=OFTEN)
        for version in range(6):
            write(p, version, **{f"k{version}": version})
            p.maintain(wait=True)
            failing.refuse = version < 4
        assert not checkpoint(root, 3).exists()
        assert checkpoint(root, 6).exists()
        assert p.metrics().failed_checkpoints > 0
        assert at(root, 6) == expected(6)


@pytest.mark.scenario(61)
def test_the_file_system_fails_on_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, 2)
    p = provider(tmp_path)

    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        p.get_store(2)
