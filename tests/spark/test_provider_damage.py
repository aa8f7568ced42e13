"""Objects of a shard that are damaged or missing, at the provider: scenarios that need no JVM, under their numbers."""

from pathlib import Path

import pytest

import hybridstore as hs
from hybridstore.spark import MissingVersionError
from hybridstore.spark.shard.provider import StateStoreProvider
from hybridstore.spark.shard.shard_id import StateStoreId
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
    restarted,
    segment,
    started,
    write,
)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "no pack"])
@pytest.mark.scenario(52, 53, 54)
def test_damaged_checkpoints(tmp_path: Path, damage: str) -> None:
    build(tmp_path, 7, policy=OFTEN)
    for version in (6, 3):
        path = checkpoint(tmp_path, version)
        data = bytearray(path.read_bytes())
        if damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "flip":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        else:
            next((tmp_path / SHARD / "packs").glob(f"{version:020d}-*.pack")).unlink()
        store = provider(tmp_path).get_store(7)
        assert content(store) == expected(7)
        assert store.metrics().skipped_checkpoints == {6: 1, 3: 2}[version]
        assert store.metrics().load == ("checkpoint" if version == 6 else "changelog")


@pytest.mark.parametrize("how", ["flip", "cut", "cut to nothing"])
@pytest.mark.scenario(57, 63)
def test_damaged_segment(tmp_path: Path, how: str) -> None:
    build(tmp_path, 5)
    path = segment(tmp_path, 3)
    data = bytearray(path.read_bytes())
    for offset in range(0, len(data), 7):
        if how == "flip":
            bad = bytes(data[:offset]) + bytes([data[offset] ^ 0x10]) + bytes(data[offset + 1 :])
        elif how == "cut":
            bad = bytes(data[:offset])
        else:
            bad = b""
        path.write_bytes(bad)
        for version in (3, 5):
            with pytest.raises(hs.HybridStoreError, match=path.name):
                at(tmp_path, version)
        assert at(tmp_path, 2) == expected(2)


@pytest.mark.scenario(58)
def test_missing_segment_in_the_chain(tmp_path: Path) -> None:
    build(tmp_path, 8, policy=OFTEN, retain=100)
    name = next(name for name in names(tmp_path) if name.version == 5)
    segment(tmp_path, 5).unlink()
    with pytest.raises(MissingVersionError, match=f"version 5 with digest {name.digest8} is missing"):
        at(tmp_path, 5)
    assert at(tmp_path, 8) == expected(8)
    # a checkpoint of the version itself has what the object held
    segment(tmp_path, 3).unlink()
    assert at(tmp_path, 4) == expected(4)
    assert at(tmp_path, 3) == expected(3)


@pytest.mark.scenario(59)
def test_without_checkpoints_and_with(tmp_path: Path) -> None:
    build(tmp_path, 5)
    p = provider(tmp_path, policy=CheckpointPolicy(every_commits=1))
    write(p, 5, k5=5)
    p.maintain(wait=True)
    never = provider(tmp_path)
    write(never, 6, k6=6)
    for version in range(8):
        assert at(tmp_path, version) == expected(version)


@pytest.mark.scenario(63)
def test_damaged_run_object(tmp_path: Path) -> None:
    build(tmp_path, 2)
    (path,) = (tmp_path / "hybridstore/op/runs").iterdir()
    data = path.read_bytes()
    for offset in range(0, len(data) - 1, 5):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(hs.HybridStoreError, match=f"{path.name}.*run object cannot be read"):
            at(tmp_path, 2)
        with pytest.raises(hs.HybridStoreError, match=path.name):
            started(tmp_path, 2)
    path.unlink()
    # without its runs nothing says which objects count: none does
    for mine in (StateStoreProvider(StateStoreId(str(tmp_path), "op", 0)), restarted(tmp_path, 2)):
        with pytest.raises(MissingVersionError, match="found no object of this shard"):
            mine.get_read_store(2)
