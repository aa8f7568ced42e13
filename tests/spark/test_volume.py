"""A shard on a mounted object store that can neither link nor rename, as the volumes of Databricks: the whole provider,
with checkpoints, pruning, restarts and turning back, and what a writer leaves there that dies half-way."""

import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.storage import WHOLE_SUFFIX
from hybridstore.spark import SkippedBatchError
from hybridstore.state.policy import CheckpointPolicy
from tests.tools.faults import Volume
from tests.tools.shard_tools import content, provider, write

BATCHES = 30


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "volume"
    root.mkdir()
    with Volume(root):
        yield root


def fill(root: Path, first: int, last: int) -> dict[str, int]:
    """A run of a query: batches `first` to `last` - 1, each with a key of its own and one that all have."""
    writer = provider(root, policy=CheckpointPolicy(every_commits=4, keep=2), retain=5)
    for batch in range(first, last):
        write(writer, batch, **{f"k{batch}": batch, "last": batch})
        writer.maintain(wait=True)
        assert writer.metrics().failed_clearings == 0
    return {**{f"k{batch}": batch for batch in range(last)}, "last": last - 1}


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_the_volume_refuses_what_volumes_refuse(volume: Path) -> None:
    (volume / "a").write_bytes(b"one")
    for call in (os.link, os.rename, os.replace):
        with pytest.raises(OSError, match="not implemented") as refused:
            call(volume / "a", volume / "b")
        assert refused.value.errno == errno.ENOSYS
    with (volume / "a").open("rb") as file, pytest.raises(OSError, match="No such device"):
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with pytest.raises(OSError, match="Illegal seek"):
        os.open(volume / "a", os.O_WRONLY | os.O_APPEND)


def test_a_shard_lives_on_a_volume(volume: Path) -> None:
    fill(volume, 0, 10)
    expected = fill(volume, 10, BATCHES)
    assert content(provider(volume).get_store(BATCHES)) == expected
    assert content(provider(volume).get_read_store(BATCHES - 2))["last"] == BATCHES - 3
    assert {name for name in names(volume) if not name.endswith(WHOLE_SUFFIX)} == set()
    assert any("/checkpoints/" in name for name in names(volume))
    assert len(names(volume)) < BATCHES, "nothing was pruned"


def test_a_query_on_a_volume_can_be_turned_back(volume: Path) -> None:
    fill(volume, 0, 12)
    expected = fill(volume, 9, 11)
    assert content(provider(volume).get_store(11)) == expected


def test_what_a_writer_left_half_written_does_not_exist(volume: Path) -> None:
    expected = fill(volume, 0, 6)
    before = names(volume)
    fill(volume, 6, 7)
    (newest,) = [name for name in names(volume) if name not in before and "/log/" in name]
    cut = (volume / newest).read_bytes()[:-1]
    (volume / newest).unlink()
    (volume / newest).write_bytes(cut)
    with pytest.raises(SkippedBatchError):
        provider(volume).get_store(7)
    assert content(provider(volume).get_store(6)) == expected
    expected = fill(volume, 6, 8)
    assert content(provider(volume).get_store(8)) == expected


def test_a_state_moves_from_a_volume_to_a_disk_and_back(volume: Path, tmp_path: Path) -> None:
    fill(volume, 0, 7)
    disk, back = tmp_path / "disk", volume / "back"
    shutil.copytree(volume, disk)
    fill(disk, 7, 15)
    shutil.copytree(disk, back)
    expected = fill(back, 15, 20)
    assert content(provider(back).get_store(20)) == expected
