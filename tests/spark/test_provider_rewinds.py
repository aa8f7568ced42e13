"""A query that was turned back: files of another version in the place of its own, late attempts of before, clearing up
after it.
"""

import errno
import shutil
from pathlib import Path

import pytest

import hybridstore as hs
from changelog.files import Files
from hybridstore.spark import MissingVersionError, SkippedBatchError, StaleAttemptError
from hybridstore.spark.shard.cache import ShardCache
from hybridstore.state.policy import CheckpointPolicy
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
    started,
    versions,
    write,
)


def answer(root: Path, version: int) -> dict[str, int] | str:
    """What a new process finds, or what it says instead."""
    try:
        return at(root, version)
    except hs.HybridStoreError as error:
        return str(error)


@pytest.mark.parametrize("source", [3, 6, 9])
@pytest.mark.parametrize("target", [8, 10, 11, 12])
def test_a_segment_in_the_place_of_another_is_named_or_not_needed(tmp_path: Path, source: int, target: int) -> None:
    build(tmp_path, 12, policy=OFTEN)
    shutil.copy(segment(tmp_path, source), segment(tmp_path, target))
    for wanted in range(6, 13):
        answered = answer(tmp_path, wanted)
        assert answered == expected(wanted) or segment(tmp_path, target).name in answered
    # the newest version is attached from its checkpoint
    assert answer(tmp_path, 12) == expected(12)


def test_a_segment_of_a_line_that_was_given_up_is_named_or_not_needed(tmp_path: Path) -> None:
    build(tmp_path, 8)
    given_up = {version: segment(tmp_path, version).read_bytes() for version in (6, 7, 8)}
    p = restarted(tmp_path, 5)
    for version in range(5, 8):
        write(p, version, **{f"other{version}": version})
    want = {version: at(tmp_path, version) for version in range(4, 9)}
    for version, data in given_up.items():
        place = segment(tmp_path, version)
        mine = place.read_bytes()
        place.write_bytes(data)
        for wanted in want:
            answered = answer(tmp_path, wanted)
            assert answered == want[wanted] or place.name in answered
        place.write_bytes(mine)


def test_an_object_of_a_later_version_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    p = provider(tmp_path)
    for version in range(8):
        write(p, version, **{f"k{version}": version})
    shutil.copy(segment(tmp_path, 5), segment(tmp_path, 8))
    with pytest.raises(hs.HybridStoreError, match=segment(tmp_path, 8).name):
        provider(tmp_path).get_store(8)
    # what is in memory needs no object
    assert content(p.get_store(8)) == expected(8)


def test_a_late_attempt_is_void_when_the_query_came_back_to_where_it_began(tmp_path: Path) -> None:
    first, other = provider(tmp_path), provider(tmp_path)
    for version in range(8):
        write(first, version, **{f"k{version}": version})
    late = other.get_store(4)
    put(late, late=4)
    new = restarted(tmp_path, 4, cache=first._cache)
    for version in range(4, 8):
        write(new, version, **{f"k{version}": version})
    late.commit()
    for version in range(9):
        assert at(tmp_path, version) == expected(version)
    # nor does the process of the late attempt serve what it has in memory
    assert content(provider(tmp_path, cache=other._cache).get_store(5)) == expected(5)


@pytest.mark.parametrize("batch", [7, 8])
def test_a_late_attempt_does_not_take_the_place_of_the_batch_that_was_done_again(tmp_path: Path, batch: int) -> None:
    """The line is the same up to the late attempt's batch, and that batch has other rows now."""
    first, other = provider(tmp_path), provider(tmp_path)
    for version in range(8):
        write(first, version, **{f"k{version}": version})
    late = other.get_store(batch)
    put(late, late=1)
    new = restarted(tmp_path, 4)
    for version in range(4, batch):
        write(new, version, **{f"k{version}": version})
    write(new, batch, new=1)
    late.commit()
    assert at(tmp_path, batch + 1) == expected(batch) | {"new": 1}


def test_a_late_attempt_of_batches_without_rows_is_void_too(tmp_path: Path) -> None:
    first, other = provider(tmp_path), provider(tmp_path)
    for version in range(6):
        write(first, version)
    late = other.get_store(3)
    put(late, late=1)
    new = restarted(tmp_path, 3)
    for version in range(3, 6):
        new.note_empty(version)
    late.commit()
    assert at(tmp_path, 6) == at(tmp_path, 4) == {}


def test_an_attempt_of_an_older_run_is_refused_when_it_has_to_look(tmp_path: Path) -> None:
    first, other = provider(tmp_path), provider(tmp_path)
    for version in range(8):
        write(first, version, **{f"k{version}": version})
    late = other.get_store(4)
    new = restarted(tmp_path, 4)
    write(new, 4, k4=4)
    late.commit()
    with pytest.raises(
        StaleAttemptError, match="launch 2000 of the query has begun while an attempt of launch 1000 ran"
    ):
        other.get_store(8)
    again = provider(tmp_path, cache=other._cache)
    for version in range(5, 12):
        write(again, version, **{f"k{version}": version})
    assert at(tmp_path, 12) == expected(12)


@pytest.mark.parametrize("back", [1, 6, 10])
@pytest.mark.parametrize("every", [1, 5])
def test_clearing_up_after_a_rewind_fails_no_batch(tmp_path: Path, every: int, back: int) -> None:
    p = provider(tmp_path, policy=CheckpointPolicy(every_commits=every))

    def batch(version: int) -> None:
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True, oldest_replay=version)

    for version in range(20):
        batch(version)
    p = restarted(tmp_path, 20 - back, policy=CheckpointPolicy(every_commits=every))
    for version in range(20 - back, 32):
        batch(version)
    assert at(tmp_path, 32) == expected(32)
    assert at(tmp_path, 22) == expected(22)
    # clearing up goes on, and has removed what is void
    assert min(versions(tmp_path)) > 10
    assert len(set(versions(tmp_path))) == len(names(tmp_path))
    assert p.metrics().failed_clearings == 0


class Refusing(Files):
    """A file system that removes nothing."""

    def remove(self, path: Path) -> None:
        if path.suffix != ".tmp":
            raise OSError(errno.EACCES, "not allowed")
        super().remove(path)


def test_files_that_cannot_be_removed_fail_no_batch(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=OFTEN, retain=0, files=Refusing())
    for version in range(12):
        write(p, version, **{f"k{version}": version})
        p.maintain(wait=True)
    assert p.metrics().failed_clearings > 0
    assert at(tmp_path, 12) == expected(12)
    assert segment(tmp_path, 1).exists()


def test_a_run_object_that_is_damaged_while_clearing_up_fails_no_batch(tmp_path: Path) -> None:
    p = provider(tmp_path, policy=OFTEN)
    for version in range(3):
        write(p, version, **{f"k{version}": version})
    (run,) = (tmp_path / "hybridstore/op/runs").iterdir()
    run.write_bytes(run.read_bytes()[:-1])
    assert p.maintain(wait=True) == []
    assert checkpoint(tmp_path, 3).exists()
    # the next run of the query finds the damage
    with pytest.raises(hs.errors.CorruptFrameError, match="run object cannot be read"):
        started(tmp_path, 3)


def test_a_damaged_segment_stops_clearing_up_and_nothing_is_removed(tmp_path: Path) -> None:
    build(tmp_path, 20, policy=CheckpointPolicy(every_commits=100))
    data = segment(tmp_path, 15).read_bytes()
    segment(tmp_path, 15).write_bytes(data[:20] + b"\xff" + data[21:])
    p = provider(tmp_path, policy=OFTEN, retain=10)
    shutil.copy(segment(tmp_path, 20), tmp_path / "kept")
    store = None
    try:
        store = p.get_store(20)
    except hs.HybridStoreError:
        assert store is None
    segment(tmp_path, 15).write_bytes(data)
    store = p.get_store(20)
    put(store, k20=20)
    store.commit()
    segment(tmp_path, 15).write_bytes(data[:20] + b"\xff" + data[21:])
    p.maintain(wait=True)
    assert segment(tmp_path, 10).exists()
    segment(tmp_path, 15).write_bytes(data)
    assert at(tmp_path, 21) == expected(21)
    assert content(provider(tmp_path).get_read_store(15)) == expected(15)


def test_a_shard_whose_folder_is_gone_is_named(tmp_path: Path) -> None:
    build(tmp_path, 2)
    shutil.rmtree(tmp_path / SHARD)
    with pytest.raises(MissingVersionError, match="found no object of this shard"):
        provider(tmp_path).get_store(2)
    # a batch without rows looks at nothing: the next one with rows does
    provider(tmp_path).note_empty(2)
    with pytest.raises(SkippedBatchError, match=r"version 1 .* so batches 0 to 1 did not reach shard 0"):
        provider(tmp_path).get_store(3)


def test_a_batch_that_brings_no_rows_after_a_rewind_leaves_nothing_of_what_it_had_before(tmp_path: Path) -> None:
    build(tmp_path, 6)
    p = restarted(tmp_path, 3)
    p.note_empty(3)
    assert at(tmp_path, 4) == expected(3)
    write(p, 4, new=4)
    assert at(tmp_path, 5) == expected(3) | {"new": 4}


def test_a_batch_that_brings_no_rows_after_a_rewind_below_a_union_leaves_nothing_either(tmp_path: Path) -> None:
    """Where tasks do not run under their shard's number, nobody notes the batch for this shard."""
    build(tmp_path, 6)
    cache = ShardCache()
    p = restarted(tmp_path, 3, cache=cache, lenient=lambda: True)
    assert content(p.get_read_store(6)) == expected(3)
    write(p, 5, new=5)
    assert content(p.get_read_store(6)) == expected(3) | {"new": 5}
    # what its worker had in memory of before is not served
    other = provider(tmp_path, lenient=lambda: True)
    assert content(other.get_store(6)) == expected(3) | {"new": 5}


def test_a_late_task_without_rows_takes_nothing_back(tmp_path: Path) -> None:
    build(tmp_path, 3)
    late, p = provider(tmp_path), provider(tmp_path)
    for version in range(3, 6):
        write(p, version, **{f"k{version}": version})
    late.note_empty(3)
    assert at(tmp_path, 6) == expected(6)
    assert at(tmp_path, 4) == expected(4)


def test_a_task_under_another_shards_number_takes_nothing_back(tmp_path: Path) -> None:
    """Below a union, the partition of this number is not the shard: the shard's rows came to another task."""
    build(tmp_path, 3)
    provider(tmp_path).note_empty(2)
    assert at(tmp_path, 3) == expected(3)
    assert content(provider(tmp_path).get_store(3)) == expected(3)
    late = provider(tmp_path)
    late.note_empty(3)
    write(provider(tmp_path), 3, k3=3)
    assert at(tmp_path, 4) == expected(4)


def test_memory_does_not_outlive_the_line_that_it_is_of(tmp_path: Path) -> None:
    """One process, one cache, the query started again and again: from memory exactly when that is the version."""
    cache = ShardCache()
    p = provider(tmp_path, cache=cache)
    for version in range(6):
        write(p, version, **{f"k{version}": version})
    p = restarted(tmp_path, 6, cache=cache)
    assert content(p.get_store(6)) == expected(6)
    assert p.metrics().load == "hit"
    write(p, 6, k6=6)
    p = restarted(tmp_path, 4, cache=cache)
    assert content(p.get_store(4)) == expected(4)
    assert p.metrics().load == "changelog"
    p.abort()
    p.note_empty(4)
    write(p, 5, other=5)
    p = restarted(tmp_path, 5, cache=cache)
    assert content(p.get_store(5)) == expected(4)
    write(p, 5, third=5)
    assert at(tmp_path, 6) == expected(4) | {"third": 5}


def test_a_query_turned_back_goes_on_with_the_greatest_attempt_whichever_the_later_batches_continued(
    tmp_path: Path,
) -> None:
    run = started(tmp_path, 0)
    often = provider(tmp_path, run=run, policy=CheckpointPolicy(every_commits=1, keep=1), retain=2)
    other = provider(tmp_path, run=run, policy=CheckpointPolicy(every_commits=100), retain=2)
    for version in range(5):
        write(often, version, a=version)
        often.maintain(wait=True)
    write(other, 4, a=40)  # the batch again, in another worker: the greater attempt
    for version in (5, 6):  # a worker goes on with its own attempt
        write(often, version, b=version)
        often.maintain(wait=True)
    assert at(tmp_path, 7) == {"a": 4, "b": 6}
    again = restarted(tmp_path, 5, retain=2)
    write(again, 5, c=5)
    assert at(tmp_path, 5) == {"a": 40}
    assert at(tmp_path, 6) == {"a": 40, "c": 5}
