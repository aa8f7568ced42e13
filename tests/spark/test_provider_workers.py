"""Several workers on one shard: late attempts, files that vanish, checkpoints that another process pruned or that prove damaged."""

import os
import shutil
from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.spark import StaleAttemptError
from hybridstore.spark.loaded import ShardCache
from tests.tools.shard_tools import OFTEN, at, build, checkpoint, content, expected, provider, put, segment, write


def test_stale_temporary_files_are_swept(tmp_path: Path) -> None:
    build(tmp_path, 1)
    young = tmp_path / "hybridstore/op/0/changelog/.young.tmp"
    old = young.with_name(".old.tmp")
    young.touch()
    old.touch()
    os.utime(old, (0, 0))
    assert provider(tmp_path).shard_files.sweep() == [old]
    assert young.exists()


def test_a_late_attempt_cannot_bring_a_given_up_line_back(tmp_path: Path) -> None:
    build(tmp_path, 9)
    late = provider(tmp_path).get_store(9)
    put(late, late=1)
    quiet = provider(tmp_path).get_store(9)
    new = provider(tmp_path)
    write(new, 5, other=1)
    for attempt in (late, quiet):
        with pytest.raises(StaleAttemptError, match="of a line that was given up"):
            attempt.commit()
    write(new, 6, more=2)
    assert at(tmp_path, 7) == expected(5) | {"other": 1, "more": 2}


def test_files_removed_while_a_version_is_made(tmp_path: Path) -> None:
    build(tmp_path, 2)
    store = provider(tmp_path).get_store(2)
    put(store, x=1)
    shutil.rmtree(tmp_path / "hybridstore")
    with pytest.raises(StaleAttemptError, match="removed"):
        store.commit()


def test_a_block_found_damaged_when_it_is_touched_is_passed_over_the_next_time(tmp_path: Path) -> None:
    build(tmp_path, 7, policy=OFTEN)
    path = next((tmp_path / "hybridstore/op/0/packs").glob(f"{6:020d}-*.pack"))
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
    assert len(list((tmp_path / "hybridstore/op/0/changelog").iterdir())) < 10
    assert at(tmp_path, 30) == expected(30)
