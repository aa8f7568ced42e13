"""Prune removes what no checkpoint names, and nothing that another process may need meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from changelog.errors import StorageUnreachableError
from changelog.storage import LocalStorage, Storage
from recovery import layout, prune
from recovery.checkpoint import CheckpointReader
from recovery.meta import read_meta
from tests.tools.memory_storage import MemoryStorage
from tests.tools.window_line import Line


def test_only_packs_that_nobody_may_be_about_to_name_are_collected() -> None:
    # Whatever the clock of their writer: the last one is of 1970.
    storage = MemoryStorage()
    names = [str(layout.PackName(version, 10**12 * (version < 4), f"{version:016x}")) for version in (1, 2, 3, 4)]
    for name in names:
        storage.create(name, b"x")
    storage.create("packs/note.txt", b"x")
    assert prune.collect_packs(storage, below=3) == names[:2]
    assert storage.list() == [*names[2:], "packs/note.txt"]


def test_a_pack_that_another_process_is_about_to_name_in_a_checkpoint_of_the_newest_version_stays(
    tmp_path: Path,
) -> None:
    line, other = Line(LocalStorage(tmp_path / "a")), Line(LocalStorage(tmp_path / "b"))
    for each in (line, other):
        each.put(0, "k", 1, "x")
        each.checkpoint()
    (name,) = layout.list_checkpoints(other.storage)
    for file in other.storage.list(f"{layout.PACKS}/"):
        line.storage.create(file, other.storage.get(file))
    prune.prune_checkpoints(line.storage, keep=1)
    line.storage.create(str(name), other.storage.get(str(name)))
    reader = CheckpointReader(line.storage, name)
    assert [reader.block(1, cold).keys for cold in reader.directory(1)] == [["k"]]


def test_packs_of_a_checkpoint_that_cannot_be_reached_now_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(LocalStorage(tmp_path))
    for turn in range(3):
        line.put(0, "k", 1, turn)
        line.checkpoint()
    before = line.storage.list()

    def unreachable(storage: Storage, name: layout.CheckpointName) -> Any:
        if name.version == 1:
            raise StorageUnreachableError("no answer")
        return read_meta(storage, name)

    monkeypatch.setattr(prune, "read_meta", unreachable)
    with pytest.raises(StorageUnreachableError):
        prune.collect_packs(line.storage, below=3)
    assert line.storage.list() == before


def test_a_marker_of_damage_stays_as_long_as_its_checkpoint() -> None:
    storage = MemoryStorage()
    kept, deleted = (str(layout.CheckpointName(version, 0, "ab")) for version in (1, 2))
    for name in (kept, layout.damage_name(kept), layout.damage_name(deleted)):
        storage.create(name, b"x")
    assert prune.stray_markers(storage) == [layout.damage_name(deleted)]


def test_packs_of_a_checkpoint_that_another_process_has_replaced_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that was stopped prunes late: the checkpoints that it has listed are gone, and a newer one has packs of
    theirs.
    """
    line = Line(LocalStorage(tmp_path))
    for turn in range(200):
        line.put(0, f"k{turn:03d}", 1, turn)
    line.checkpoint()
    for turn in range(3):
        line.put(0, f"k{turn:03d}", 1, "x")
        line.checkpoint()

    def listed(storage: Storage) -> list[layout.CheckpointName]:
        names = layout.list_checkpoints(storage)
        line.put(0, "k100", 1, "y")
        line.checkpoint()
        storage.delete(map(str, names))
        return names

    monkeypatch.setattr(prune, "list_checkpoints", listed)
    assert prune.collect_packs(line.storage, below=4) == []
    assert line.content() == line.rows
    monkeypatch.undo()
    assert len(prune.collect_packs(line.storage, below=5)) < 4
    assert line.content() == line.rows
