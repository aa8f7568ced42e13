"""Several workers on one shard: late attempts, files that vanish, checkpoints that another process pruned or that
prove damaged.
"""

import os
import shutil
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.spark import MissingVersionError, SkippedBatchError
from hybridstore.spark.shard.cache import ShardCache
from tests.tools.shard_tools import (
    OFTEN,
    SHARD,
    at,
    build,
    checkpoint,
    content,
    expected,
    names,
    provider,
    put,
    restarted,
    segment,
    write,
)


def test_stale_temporary_files_are_swept(tmp_path: Path) -> None:
    build(tmp_path, 12, policy=OFTEN, retain=1)
    young = tmp_path / SHARD / "log/.young.tmp"
    old = young.with_name(".old.tmp")
    young.touch()
    old.touch()
    os.utime(old, (0, 0))
    p = provider(tmp_path, policy=OFTEN, retain=1)
    for version in range(12, 18):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True)
    assert not old.exists()
    assert young.exists()


def test_a_late_attempt_cannot_bring_a_given_up_line_back(tmp_path: Path) -> None:
    build(tmp_path, 9)
    late = provider(tmp_path).get_store(9)
    put(late, late=1)
    quiet = provider(tmp_path).get_store(9)
    new = restarted(tmp_path, 5)
    write(new, 5, other=1)
    for attempt in (late, quiet):
        attempt.commit()
    write(new, 6, more=2)
    assert at(tmp_path, 7) == expected(5) | {"other": 1, "more": 2}
    for version in (8, 10):
        with pytest.raises(SkippedBatchError):
            at(tmp_path, version)


def test_files_removed_while_a_version_is_made(tmp_path: Path) -> None:
    build(tmp_path, 2)
    p = provider(tmp_path)
    store = p.get_store(2)
    put(store, x=1)
    shutil.rmtree(tmp_path / SHARD)
    store.commit()
    # what this process has in memory is whole; any other finds the hole
    assert content(p.get_store(3)) == expected(2) | {"x": 1}
    with pytest.raises(MissingVersionError, match=r"the log object of version 2 with digest \w{8} is missing"):
        provider(tmp_path).get_store(3)


def test_a_block_found_damaged_when_it_is_touched_is_passed_over_the_next_time(tmp_path: Path) -> None:
    build(tmp_path, 7, policy=OFTEN)
    path = next((tmp_path / SHARD / "packs").glob(f"{6:020d}-*.pack"))
    data = path.read_bytes()
    at_value = data.index(b"\xa2k3")
    path.write_bytes(data[:at_value] + b"\xa2k4" + data[at_value + 3 :])
    p = provider(tmp_path)
    store = p.get_store(7)
    if store.metrics().skipped_checkpoints == 0:
        with pytest.raises(hs.HybridStoreError, match="checksum mismatch"):
            content(store)
        store.abort()
        store = p.get_store(7)
    assert store.metrics().skipped_checkpoints == 1
    assert content(store) == expected(7)


def test_a_process_whose_checkpoint_was_pruned_reloads_and_leaves_the_next_one_due(tmp_path: Path) -> None:
    old, new = (provider(tmp_path, policy=OFTEN, retain=0) for _ in range(2))
    for version, worker in enumerate((old, old, old, new, new, new, old, new, new, old, old, old)):
        write(worker, version, **{f"k{version}": version})
        worker.maintain(wait=True)
    assert not checkpoint(tmp_path, 3).exists()
    assert not checkpoint(tmp_path, 12).exists()
    write(old, 12, k12=12)
    old.maintain(wait=True)
    assert old.metrics().load == "checkpoint"
    assert checkpoint(tmp_path, 13).exists()
    assert at(tmp_path, 13) == expected(13)


def test_files_of_before_a_checkpoint_go_when_the_next_batch_finds_it_finished(tmp_path: Path) -> None:
    cache = ShardCache()
    p = provider(tmp_path, cache=cache, policy=OFTEN, retain=2)
    for version in range(30):
        write(p, version, **{f"k{version}": version})
        # as a task does: it waits for no checkpoint, which is finished before the next batch comes
        p.maintain()
        (shard,) = cache._entries.values()
        if shard.checkpoints.attempt is not None:
            shard.checkpoints.attempt.join()
    assert not segment(tmp_path, 20).exists()
    assert len(names(tmp_path)) < 10
    assert at(tmp_path, 30) == expected(30)
