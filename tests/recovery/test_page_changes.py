"""Changes over pages of a directory: few lines are written where few changed, and what is read is as if all were."""

import random
from pathlib import Path

import pytest

from changelog.storage import LocalStorage
from recovery import directory
from recovery.block import BlockEntry, Extent, content_hash
from recovery.errors import CorruptCheckpointError
from recovery.pages import PageCheckpoint
from recovery.verify import Verifier
from tests.recovery.test_packs import check
from tests.tools.memory_storage import MemoryStorage
from tests.tools.window_line import Line


def filled(storage: LocalStorage | MemoryStorage) -> Line:
    """A store of one page of some 60 lines."""
    line = Line(storage, page_lines=128, most_packs=1000)
    for i in range(500):
        line.put(0, f"k{i:03d}", i, "x" * 100)
    line.checkpoint()
    return line


def test_random_changes_over_pages_leave_what_they_should(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    line = filled(LocalStorage(tmp_path))
    seen = 0
    for turn in range(60):
        for _ in range(dice.choice([0, 1, 4, 30])):
            key = f"k{dice.randrange(600):03d}"
            line.remove(0, key) if dice.random() < 0.1 else line.put(int(dice.random() < 0.05), key, turn, turn)
        line.checkpoint()
        check(line)
        assert line.reader is not None
        seen += sum(bool(page.below) for page in line.reader.directory(1).pages)
        other = PageCheckpoint(line.storage, line.reader.name)
        assert list(other.directory(1)) == list(line.reader.directory(1))
        assert list(Verifier(decode=True).checkpoint(line.storage, line.reader.name, line.version)) == []
    assert seen > 10


def test_a_page_of_which_one_line_changed_is_written_as_its_changes_for_so_many_times(tmp_path: Path) -> None:
    line = filled(LocalStorage(tmp_path))
    sizes = []
    for turn in range(30):
        line.put(0, f"k{16 * turn % 500:03d}", turn, turn)
        sizes.append(line.checkpoint().page_bytes)
        check(line)
        assert line.reader is not None
        (page,) = line.reader.directory(1).pages
        assert len(page.extents) <= 1 + 24
    whole = max(sizes)
    assert sum(size == whole for size in sizes) == 1
    assert all(10 * size < whole for size in sizes if size != whole)


def test_a_page_that_is_far_is_one_request() -> None:
    line = filled(MemoryStorage())
    line.put(0, "k000", 1, 1)
    line.checkpoint()
    assert line.reader is not None
    assert [page.below for page in line.reader.directory(1).pages] == [[]]


def test_damaged_changes_are_found(tmp_path: Path) -> None:
    line = filled(LocalStorage(tmp_path))
    for turn in range(2):
        line.put(0, f"k{turn:03d}", turn, turn)
        line.checkpoint()
    assert line.reader is not None
    (page,) = line.reader.directory(1).pages
    _, older, _ = page.extents
    (name,) = (record.name for record in line.reader.meta.packs if record.number == older.pack)
    path = tmp_path / name
    raw = bytearray(path.read_bytes())
    raw[older.offset + 10] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpointError, match="page of the directory: checksum mismatch"):
        line.content()
    faults = list(Verifier().checkpoint(line.storage, line.reader.name, line.version))
    assert any("page of the directory" in fault.what for fault in faults)


def entry(block: int, first: str, *layers: Extent) -> BlockEntry:
    return BlockEntry(block, 0, first, first + "z", 2, 2, 16, 5, 6, bytes([block]) * 16, 1, 24 + block, layers)


def test_changes_have_what_differs() -> None:
    layers = [Extent(2, 24 + i, 16, bytes([i]) * 16) for i in range(4)]
    before = [entry(1, "a", *layers[:3]), entry(2, "c"), entry(3, "e", layers[0])]
    now = [entry(4, "a", layers[0], layers[3]), before[1], entry(3, "d", layers[0])]
    data = directory.encode_changes(before, now)
    assert data is not None
    assert directory.decode_changes(data, "it", content_hash(data[4:]), before) == now
    assert directory.encode_changes(before, list(before)) is None
    assert sorted(directory.page_keys(data, "it")) == ["d", "dz"]
    assert b"cz" not in data
    with pytest.raises(CorruptCheckpointError, match=r"^it: page of the directory"):
        directory.decode_changes(data, "it", content_hash(data[4:]), before[:1])
