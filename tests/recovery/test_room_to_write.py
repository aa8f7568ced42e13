"""The room that a checkpoint has beside what changed: for blocks that are written anew, and for copies."""

import random
from pathlib import Path

import pytest

from changelog.storage import LocalStorage
from recovery import compaction, planner
from recovery.compaction import RoomToWrite, large_bytes
from tests.tools.checkpoints import Line
from tests.tools.sizes import SMALL_PARTS


def test_a_checkpoint_has_room_for_so_many_times_what_changed_of_all_stores() -> None:
    budget = RoomToWrite(1000)
    assert budget.room(0, 0) == 2000  # two large packs
    assert budget.room(200_000, 100_000) == 10 * 200_000 - 100_000
    assert budget.add(200_000, 100_000) == 10 * 200_000 - 100_000
    assert budget.add(1000, 4000) == 10 * 201_000 - 104_000


def test_blocks_that_change_together_are_written_anew_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = {}
    monkeypatch.setattr(compaction, "_ROOM", 1)
    for packs in (1000, 3):
        monkeypatch.setattr(compaction, "_LARGE_ROOM", packs)
        line = Line(LocalStorage(tmp_path / str(packs)), tables=False)
        line.checkpoint({f"key {i:05d}": b"%040d" % i for i in range(64 * 256)}, set())
        reports = [
            line.checkpoint({f"key {i:05d}": b"%040d" % turn for i in range(turn, 64 * 256, 64)}, set())
            for turn in range(50)
        ]
        # with 4 of 256 records of each block, some 200 bytes of 12,000
        most[packs] = max(report.bytes_packed - report.bytes_layered for report in reports)
        reader, loaded = line.reader, dict[str, bytes]()
        assert reader is not None
        for entry in line.entries():
            block = reader.block(1, entry)
            loaded.update(zip(block.keys, block.values, strict=True))
        assert loaded == line.rows
        room = packs * large_bytes(SMALL_PARTS, reader.meta.size)
    assert 0 < most[3] <= room < most[1000]


def test_so_many_blocks_are_written_anew_together_that_their_pack_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "TOGETHER", 5)
    monkeypatch.setattr(compaction, "LARGE_SHARE", 8)
    line, dice = Line(LocalStorage(tmp_path), tables=False), random.Random(5)
    line.checkpoint({f"key {i:05d}": b"%040d" % i for i in range(64 * 256)}, set())
    assert line.reader is not None
    large = large_bytes(SMALL_PARTS, line.reader.meta.size)
    anew = []
    for turn in range(60):
        keys = dice.sample(range(64 * 256), 256)
        report = line.checkpoint({f"key {i:05d}": b"%040d" % turn for i in keys}, set())
        anew.append(report.bytes_packed - report.bytes_layered)
    anew = [size for size in anew if size]
    assert sum(anew) > len(anew) * large / 2, anew
