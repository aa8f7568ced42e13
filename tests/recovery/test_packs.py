"""Packs and their index: whatever changes, a checkpoint holds what it should, in few packs that are mostly alive."""

import random
from pathlib import Path
from typing import Any

import pytest

from changelog.cached_storage import Cache, CachedStorage
from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import LocalStorage
from hybridstore.rescaling.sharing import blocks_of
from hybridstore.stores.cold_blocks import Cold, ColdBlock, ColdPage, chosen, covering, unexpired
from recovery import compaction, directory, layout, pack, prune
from recovery.block import BlockEntry, Columns
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError, CorruptCheckpointError
from recovery.pack import PAGE, PackWriter, StoredPack, read_footer
from recovery.pages import PageCheckpoint
from recovery.verify import Verifier
from recovery.write import FreshCheckpoint, _joined
from tests.tools.checkpoints import is_whole
from tests.tools.memory_storage import MemoryStorage
from tests.tools.sizes import SMALL_PARTS
from tests.tools.window_line import Line


def content_bytes(line: Line) -> tuple[int, int]:
    """Return the bytes of blocks and pages that the checkpoint refers to, and of all in its packs."""
    reader = line.reader
    assert reader is not None
    packs = [StoredPack(line.storage, each.name, each.size) for each in reader.meta.packs]
    footers = [read_footer(pack, pack.size, "it") for pack in packs]
    return compaction.live_bytes(reader.directory(1).pages).total(), sum(
        each.size for footer in footers for each in footer
    )


def check(line: Line) -> None:
    """What the checkpoint says of its packs is what is in them."""
    reader = line.reader
    assert reader is not None
    assert line.content() == {bucket: rows for bucket, rows in line.rows.items() if rows}
    live = dict.fromkeys((record.number for record in reader.meta.packs), 0)
    for page in reader.directory(1).pages:
        lines = reader.page(1, page)
        assert directory.page_entry(lines, page.pack, page.offset, page.size, page.hash, page.below) == page
        assert len(lines) <= line.sizes.page_lines
        for place in page.extents:
            live[place.pack] += place.size
        for entry in lines:
            for place in entry.extents:
                live[place.pack] += place.size
    assert live == compaction.live_bytes(reader.directory(1).pages)
    for record in reader.meta.packs:
        opened = StoredPack(line.storage, record.name, record.size)
        for footer_line in read_footer(opened, record.size, record.name):
            assert is_whole(opened, footer_line)
        assert live[record.number]


@pytest.mark.stress
def test_random_changes_leave_what_they_should_in_few_packs(seed: int, rounds: int) -> None:
    for turn in range(3 * rounds):
        dice = random.Random(f"{seed} {turn}")
        line = Line(MemoryStorage())
        most = 0
        for _ in range(40):
            for _ in range(dice.choice([0, 1, 5, 60])):
                bucket, key = dice.randrange(4), f"k{dice.randrange(200):03d}"
                act = dice.random()
                if act < 0.7:
                    line.put(bucket, key, dice.randrange(1000), "x" * dice.choice([1, 20, 300]))
                elif act < 0.97:
                    line.remove(bucket, key)
                else:
                    line.drop(bucket)
            report = line.checkpoint()
            check(line)
            most = max(most, report.packs)
            # without the footers, which are most of a state of a few bytes; with what this checkpoint has written
            live, stored = content_bytes(line)
            assert stored <= (compaction.MOST_SPARSE_SHARE + 1) * live
            if dice.random() < 0.5:
                prune.collect_packs(line.storage, below=line.version + 1)
        assert most <= SMALL_PARTS.most_packs + compaction.LARGE_SHARE


def test_a_change_in_time_order_writes_what_changed_and_its_pages() -> None:
    line = Line(MemoryStorage(), most_packs=1000)
    for bucket in range(50):
        for i in range(100):
            line.put(bucket, f"k{i:03d}", bucket, "x" * 200)
    line.checkpoint()
    before = line.reader
    assert before is not None
    for bucket in range(50, 53):
        for i in range(100):
            line.put(bucket, f"k{i:03d}", bucket, "x" * 200)
    report = line.checkpoint()
    check(line)
    assert report.bytes_written - report.index_bytes <= 1.3 * report.bytes_packed
    assert report.bytes_copied == 0
    pages = {page for page in map(tuple_of, before.directory(1).pages)}
    assert line.reader is not None
    assert pages < {tuple_of(page) for page in line.reader.directory(1).pages}
    assert not report.whole


def tuple_of(page: directory.PageEntry) -> tuple[Any, ...]:
    return (page._replace(packs=[], below=[])[:-3], tuple(page.packs), page.extents)


def test_expired_pages_are_dropped_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(MemoryStorage())
    for i in range(1000):
        line.put(0, f"k{i:04d}", i, i)
    line.checkpoint()
    opened: list[int] = []
    page = CheckpointReader.page

    def counted(self: CheckpointReader, store: int, entry: directory.PageEntry) -> Any:
        opened.append(entry.high)
        return page(self, store, entry)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointReader, "page", counted)
        line.checkpoint(expired_through=500)
    # at most the page in which the boundary lies, and those that it was joined with
    assert all(high > 500 for high in opened)
    assert min(row[0] for row in line.content()[0].values()) > 500 - 8
    assert len(line.content()[0]) < 510


def test_sparse_packs_are_written_again_and_then_gone() -> None:
    line = Line(MemoryStorage())
    for i in range(400):
        line.put(0, f"k{i:03d}", i, "x" * 50)
    line.checkpoint()
    assert line.reader is not None
    (first,) = line.reader.meta.packs
    copied = 0
    for end in (360, 320, 280):
        for i in range(end):
            line.put(0, f"k{i:03d}", i, f"{end:050d}")
        copied += line.checkpoint().bytes_copied
        check(line)
    # what was still alive of the first pack moved along, when less than half of all bytes was in use
    assert first.name not in {record.name for record in line.reader.meta.packs}
    assert copied > 0
    assert first.name not in prune.collect_packs(line.storage, below=3)  # the first checkpoint names it
    line.storage.delete([str(name) for name in layout.list_checkpoints(line.storage)[:-1]])
    assert first.name in prune.collect_packs(line.storage, below=5)
    check(line)


def test_garbage_does_not_pile_up_where_each_pack_has_a_little_that_lives() -> None:
    line = Line(MemoryStorage(), most_packs=1000)
    for turn in range(60):
        for i in range(80):
            line.put(0, f"k{i:03d}", turn, "x" * 50)
        for i in range(8):
            line.put(1 + turn, f"k{i}", turn, "x" * 50)
        line.checkpoint()
        live, stored = content_bytes(line)
        # what this checkpoint has replaced is copied by the next ones
        assert stored <= (compaction.MOST_SPARSE_SHARE + 1) * live
    check(line)


def test_a_checkpoint_copies_a_part_of_a_sparse_pack_and_the_next_ones_the_rest() -> None:
    dice = random.Random(7)
    line = Line(MemoryStorage(), most_packs=1000, page_lines=64, block_records=64)
    for i in range(2000):
        line.put(0, f"k{i:04d}", i, dice.randbytes(50))
    whole = line.checkpoint().bytes_packed
    assert line.reader is not None
    (first,) = line.reader.meta.packs
    named = True
    copied: list[int] = []
    for turn in range(60):
        # three quarters of the keys again and again: the rest of the first pack stays in use
        for i in range(turn % 30, 1500, 30):
            line.put(0, f"k{i:04d}", 2000 + turn, dice.randbytes(50))
        report = line.checkpoint()
        if turn % 6 == 5:
            check(line)
        room = max(report.bytes_packed, line.reader.meta.size // compaction.LARGE_SHARE)
        assert report.bytes_copied < room + 5000  # the last block
        assert report.live_share > 1 / (compaction.MOST_SPARSE_SHARE + 0.5)
        named = first.name in {record.name for record in line.reader.meta.packs}
        copied.append(report.bytes_copied)
    assert not named
    assert sum(copied) > whole / 5
    assert len([size for size in copied if size]) > 3


def _packs_and_lines(sizes: list[tuple[int, int]]) -> tuple[list[pack.PackRecord], list[compaction.Item]]:
    """Packs of (bytes, bytes in use), each with one block."""
    packs = [pack.PackRecord(number, f"pack {number}", size) for number, (size, _) in enumerate(sizes, 1)]
    lines = [
        BlockEntry(number, 0, number, number, 1, 1, used, -1, -1, bytes(16), number, 0)
        for number, (_, used) in enumerate(sizes, 1)
    ]
    return packs, [lines]


@pytest.mark.parametrize(
    ("sizes", "packed", "rewritten"),
    [
        # half in use: nothing
        ([(1000, 500), (1000, 500)], 0, (set(), 0)),
        # one is as sparse as it gets, and small: wholly; the other one, too, while it has room
        ([(1000, 10), (1000, 900)], 10, ({1}, 0)),
        ([(1000, 300), (1000, 400), (100, 100)], 1000, ({1}, 0)),
        # less than what it may copy: a part
        ([(1000, 450), (1000, 500)], 10, (set(), 1)),
        # less than two fifths in use: at once, as far as that, and then a part
        ([(1000, 200), (1000, 200), (1000, 600)], 10, ({1}, 2)),
        ([(2000, 400), (1500, 500), (900, 800)], 10, ({1}, 0)),
    ],
)
def test_sparse_packs_are_copied_by_parts_as_long_as_they_are_not_too_sparse(
    sizes: list[tuple[int, int]], packed: int, rewritten: tuple[set[int], int]
) -> None:
    packs, lines = _packs_and_lines(sizes)
    rewrites = compaction.packs_to_rewrite(packs, lines, packed, compaction.SIZES)
    assert (rewrites.packs, rewrites.partly) == rewritten


@pytest.mark.parametrize(
    ("small", "large", "merged"),
    [
        (40, 71, set[int]()),
        (29, 83, set(range(1, 30))),  # as many as are merged, and some 3 % of the bytes
        (28, 84, set(range(2, 31))),  # two large ones: none is copied for the sake of tiny ones
        (0, 113, set(range(1, 31))),
    ],
)
def test_the_small_packs_that_are_merged_have_few_bytes_in_use(small: int, large: int, merged: set[int]) -> None:
    packs, lines = _packs_and_lines([(40_000, 900)] * small + [(40_000, 36_000)] * large)
    assert compaction.packs_to_rewrite(packs, lines, 0, compaction.SIZES).packs == merged


@pytest.mark.parametrize(
    ("small", "large", "merged"),
    [
        (112, 0, {1, 2, 3, 4}),
        (111, 0, set[int]()),
        (60, 52, {1, 2, 3, 4}),
        (60, 51, set[int]()),
        (48, 70, {1, 2, 3, 4}),
        (47, 70, set[int]()),
    ],
)
def test_small_packs_are_merged_until_they_are_a_large_one(small: int, large: int, merged: set[int]) -> None:
    packs, lines = _packs_and_lines([(300_000, 290_000)] * small + [(600_000, 590_000)] * large)
    assert compaction.packs_to_rewrite(packs, lines, 0, compaction.SIZES).packs == merged


@pytest.mark.parametrize("rows", [1, 20, 90])
def test_no_checkpoint_copies_as_much_as_two_large_packs(rows: int) -> None:
    line = Line(MemoryStorage(), most_packs=16, large_bytes=20_000, page_lines=64)
    copied: list[int] = []
    for turn in range(400):
        for i in range(rows):
            line.put(turn, f"k{i}", turn, "x" * 30)
        report = line.checkpoint()
        assert line.reader is not None
        large = compaction.large_bytes(line.sizes, line.reader.meta.size)
        assert report.bytes_copied < 2.1 * large  # the size is without the directory
        assert report.packs <= 16 + compaction.LARGE_SHARE
        copied.append(report.bytes_copied)
    check(line)
    assert max(copied) > 0
    assert sum(copied) < 3 * line.reader.meta.size


def test_small_packs_are_merged_by_size_and_stay_few() -> None:
    line = Line(MemoryStorage(), large_bytes=1 << 20)
    written = 0
    for turn in range(200):
        for i in range(20):
            line.put(turn, f"k{i}", turn, "x" * 30)
        report = line.checkpoint()
        written += report.bytes_written - report.index_bytes
        assert report.packs <= SMALL_PARTS.most_packs
    check(line)
    assert line.reader is not None
    # each byte once, and once more for each class of sizes that it rose through
    assert written < 7 * line.reader.meta.size
    assert line.reader.meta.written == written
    assert line.reader.meta.packed == line.reader.meta.size


def test_a_page_of_few_lines_takes_in_what_changed_behind_it() -> None:
    def line(number: int, bucket: int = 0) -> BlockEntry:
        return BlockEntry(number, bucket, number, number, 1, 1, 100, -1, -1, bytes(16), 1, 24, ())

    lines = list(map(line, range(1, 5)))
    few, many = (directory.page_entry(lines[:n], 1, 0, 100, bytes(16)) for n in (2, 3))
    opened: list[directory.PageEntry] = []

    def joined(*items: compaction.Item) -> list[compaction.Item]:
        return _joined([*items], 3, lambda page: opened.append(page) or lines[: page.blocks])

    assert joined(many, lines[3:]) == [many, lines[3:]]
    assert joined(lines[3:], many) == [lines[3:], many]
    assert joined(few, [line(9, bucket=1)]) == [few, [line(9, bucket=1)]]
    assert opened == []
    assert joined(few, lines[2:]) == [lines]
    assert joined([line(0)], few, lines[2:]) == [[line(0), *lines]]
    assert opened == [few, few]


def test_a_large_checkpoint_is_several_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PACK_BYTES", 2000)
    line = Line(MemoryStorage())
    for i in range(500):
        line.put(0, f"k{i:03d}", i, "x" * 50)
    report = line.checkpoint()
    check(line)
    assert 5 < report.packs < 20


def test_packs_that_a_limit_of_memory_cuts_off_are_not_merged_again_and_again() -> None:
    line = Line(MemoryStorage())
    line.pack_bytes = 4000
    for i in range(1000):
        line.put(0, f"k{i:03d}", i, "x" * 50)
    first = line.checkpoint()
    assert first.packs > 10
    state = first.bytes_written
    written = 0
    for turn in range(40):
        for i in range(30):  # more than the smallest size class of packs
            line.put(0, f"k{(turn * 30 + i) % 1000:03d}", 1000 + turn, "y" * 50)
        report = line.checkpoint()
        written += report.bytes_written - report.index_bytes
        check(line)
        assert report.packs < 3 * first.packs
    # of 1.2 times the state that has changed: blocks at the ends of a stretch, and sparse packs, are written again
    assert written < 5 * state


def test_packs_of_a_rescaled_state_are_cut_off_in_a_directory_so_that_none_is_small(tmp_path: Path) -> None:
    sizes = compaction.SIZES._replace(large_bytes=100_000, block_records=64)
    records = {f"{i:05}": random.Random(i).randbytes(2000) for i in range(2000)}
    packs = {}
    for storage in (LocalStorage(tmp_path), MemoryStorage()):
        content = FreshCheckpoint(storage, 1, sizes=sizes, state=4_000_000)
        content.define(1, "records", "key_value", {"ttl_ms": None}, {"stream_time": -1, "key": ["str"]})
        content.add(1, 0, Columns(list(records), None, (), list(records.values())))
        name = content.finish(Identity(b"s" * 16), b"d" * 16, {}, Position(1, 0, 0)).name
        reader = CheckpointReader(storage, name)
        assert {key: value for block in blocks_of(reader, 1) for key, _, value in block.rows()} == records
        packs[type(storage)] = [record.size for record in reader.meta.packs]
    assert len(packs[MemoryStorage]) == 1
    cut = compaction.first_cut(sizes, 4_000_000)
    assert 3 <= len(packs[LocalStorage]) < 40
    assert all(compaction.large_bytes(sizes, 4_000_000) < size < cut + 10_000 for size in packs[LocalStorage][:-1])


def test_a_state_far_beyond_its_limit_has_no_more_packs_than_a_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 5 GB under 100 MB: packs of 3 MB were 1600 open files of each reader
    assert compaction.bounded(3 << 20, 5 << 30) == 20 << 20
    assert compaction.bounded(3 << 20, 5 << 27) == 3 << 20
    assert compaction.bounded(3 << 20, 1 << 50) == pack.PACK_BYTES
    assert compaction.bounded(None, 5 << 30) is None
    monkeypatch.setattr(compaction, "CUT_SHARE", 20)
    line = Line(MemoryStorage())
    line.pack_bytes = 500
    for i in range(1000):
        line.put(0, f"k{i:03d}", i, "x" * 50)
    assert line.checkpoint().packs > 100
    for turn in range(30):
        for i in range(20):
            line.put(0, f"k{(turn * 20 + i) * 37 % 1000:03d}", 1000 + turn, "y" * 50)
        report = line.checkpoint()
    check(line)
    assert report.packs < 60


def test_a_checkpoint_into_another_place_takes_everything_with_it(tmp_path: Path) -> None:
    line = Line(LocalStorage(tmp_path / "old"))
    for i in range(100):
        line.put(i % 3, f"k{i:03d}", i, i)
    line.checkpoint()
    line.storage = LocalStorage(tmp_path / "new")
    line.put(0, "k000", 0, "changed")
    line.checkpoint()
    check(line)
    assert list(Verifier().checkpoint(LocalStorage(tmp_path / "new"), line.reader.name, 2)) == []


def test_readers_of_storage_that_is_not_local_read_ranges() -> None:
    line = Line(MemoryStorage())
    for i in range(100):
        line.put(0, f"k{i:03d}", i, i)
    report = line.checkpoint()
    reader = CheckpointReader(line.storage, report.name)
    entry = next(iter(reader.directory(1)))
    assert isinstance(reader.raw_block(entry), bytes)
    twin = reader.twin()
    reader.close()
    assert twin.block(1, entry).keys[0] == entry.first
    with pytest.raises(CheckpointError, match="which is not in its list"):
        reader.block(1, entry)


def test_what_is_read_range_by_range_is_not_collected_under_its_reader() -> None:
    line = Line(MemoryStorage())
    for turn in range(4):
        for i in range(100):
            line.put(0, f"k{i:03d}", i, (turn, i))
        name = line.checkpoint().name
        if turn == 0:
            cold = list(CheckpointReader(line.storage, name, marks=True).directory(1))
            first = CheckpointReader(line.storage, name, marks=True)
    line.storage.delete([str(index) for index in layout.list_checkpoints(line.storage)[:-1]])
    (pack_name,) = [record.name for record in first.meta.packs]
    collected = prune.collect_packs(line.storage, below=5)
    assert collected
    assert pack_name not in collected
    assert first.block(1, cold[0]).values[0] == (0, 0)
    line.storage.delete([pack_name])
    with pytest.raises(CorruptCheckpointError, match="the pack is missing"):
        first.block(1, cold[0])
    assert line.storage.list(layout.damage_name(first.name))


def test_damage_counts_against_the_newest_checkpoint_that_shares_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    line = Line(storage)
    for i in range(100):
        line.put(0, f"k{i:03d}", i, i)
    first = CheckpointReader(storage, line.checkpoint().name, marks=True)
    lines = list(first.directory(1))
    shared, layered, replaced = lines[0], lines[1], lines[-1]
    line.put(0, layered.first, 0, "changed")
    for i in range(int(replaced.first[1:]), 100):
        line.put(0, f"k{i:03d}", i, "changed")
    second = CheckpointReader(storage, line.checkpoint().name, marks=True)
    first.succeeded_by(second)
    assert [len(entry.layers) for entry in second.directory(1)] == [0, 1] + [0] * (len(lines) - 2)
    assert first._names(layered.extents[0])
    assert first._names(shared.extents[0])
    (record, *_) = first.meta.packs
    path = tmp_path / record.name
    raw = bytearray(path.read_bytes())
    for entry in (shared, replaced):
        raw[entry.offset + 6] ^= 1
    path.write_bytes(raw)
    first = CheckpointReader(storage, first.name, marks=True)
    first.succeeded_by(second)
    marks = [tmp_path / layout.damage_name(reader.name) for reader in (first, second)]
    with pytest.raises(CorruptCheckpointError, match="block checksum mismatch"):
        first.block(1, replaced)
    assert [mark.exists() for mark in marks] == [True, False]
    with pytest.raises(CorruptCheckpointError, match="block checksum mismatch"):
        first.block(1, shared)
    assert [mark.exists() for mark in marks] == [True, True]


def test_a_page_stands_for_its_blocks_until_one_of_its_keys_is_touched() -> None:
    line = Line(MemoryStorage())
    for i in range(200):
        line.put(0, f"k{i:03d}", i, i)
    line.checkpoint()
    assert line.reader is not None
    lines = line.reader.directory(1)

    def fresh() -> list[Cold]:
        return [ColdPage(page, lines) for page in lines.pages]

    everything = list(lines)
    assert list(reversed(lines)) == everything[::-1]
    assert len(lines) == len(everything) == sum(element.blocks for element in fresh())
    for i in range(0, 200, 7):
        cold = fresh()
        at = covering(cold, f"k{i:03d}")
        assert isinstance(cold[at], ColdBlock)
        assert cold[at].entry.first <= f"k{i:03d}" <= cold[at].entry.last
        assert sum(type(element) is ColdPage for element in cold) == len(lines.pages) - 1
        assert sum(element.entry.records for element in cold) == 200
    assert covering(fresh(), "a") == covering(fresh(), "z") == -1
    cold = fresh()
    assert [cold[i].entry for i in chosen(cold, lambda entry: entry.low <= 20)] == [
        entry for entry in reversed(everything) if entry.low <= 20
    ]
    for through in (-1, 3, 50, 120, 198):
        kept = unexpired(fresh(), through)
        blocks = [
            inner.entry
            for element in (fresh() if kept is None else kept)
            for inner in (element.open() if isinstance(element, ColdPage) else [element])
        ]
        assert blocks == [entry for entry in everything if entry.high > through]
    assert unexpired(fresh(), -1) is None


def test_pages_read_by_range_are_those_that_are_mapped(tmp_path: Path) -> None:
    line = Line(LocalStorage(tmp_path))
    for i in range(300):
        line.put(i % 2, f"k{i:03d}", i, i)
    line.checkpoint()
    assert line.reader is not None
    other = PageCheckpoint(LocalStorage(tmp_path), line.reader.name)
    assert other.meta == line.reader.meta
    assert list(other.directory(1)) == list(line.reader.directory(1))
    for record in other.meta.packs:
        lines = read_footer(StoredPack(line.storage, record.name, record.size), record.size, "it")
        assert any(footer_line.number == PAGE for footer_line in lines)


def test_a_copy_in_the_cache_that_is_another_pack_is_dropped(tmp_path: Path) -> None:
    storage = CachedStorage(MemoryStorage(), Cache(tmp_path))
    writer = PackWriter(storage, version=1, first=1)
    for data in (b"one", b"two"):
        _, at = writer.add(1, 1, data)
        writer.finish()
    first, second = writer.packs
    here, other = storage.path(first.name), storage.path(second.name)
    assert here is not None
    assert other is not None
    here.write_bytes(other.read_bytes())
    opened = StoredPack(storage, first.name, first.size)
    assert opened.far
    assert storage.path(first.name) is None
    assert opened.read(at, 3) == b"one"
