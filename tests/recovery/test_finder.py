"""A finder says where the records of a key-value store are: what it says is always the newest record, or that the
blocks have to be asked.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from changelog.codec import pack
from changelog.storage import LocalStorage
from recovery import finder_writer
from recovery.checkpoint import CheckpointReader
from recovery.finder import UNKNOWN, Finder, FinderMaps
from recovery.finder_writer import FinderWriter, StateFinders
from tests.conftest import STRESS
from tests.tools.checkpoints import Line, flip

# keys of one crc32
COLLISION = ("ezlydttmodth", "ffrejfwtpwrj")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a finder of small stores, too."""
    monkeypatch.setattr(finder_writer, "FEWEST_RECORDS", 1)


class Followed:
    """A line of checkpoints, some of which the finder follows, as those of the writer process."""

    def __init__(self, path: Path) -> None:
        self.line = Line(LocalStorage(path), tables=True)
        self.state = StateFinders(path / "checkpoints")
        self.maps = FinderMaps()
        self.finder: Finder | None = None
        self.rows: dict[Any, bytes] = {}  # of the checkpoint that `finder` is of
        self.reader: CheckpointReader | None = None

    def checkpoint(self, changed: dict[Any, bytes], removed: Set[Any] = frozenset(), *, follow: bool = True) -> None:
        self.line.checkpoint(changed, set(removed))
        if follow:
            self.follow()

    def follow(self) -> None:
        assert self.line.reader is not None
        files = self.state.follow(self.line.storage, self.line.reader.name, lambda: None)
        self.reader, self.rows = self.line.reader, self.line.rows
        self.finder = self.maps.finders(files, self.reader.packs).get(1)

    def enter_all(self) -> None:
        while self.state.enter_some():
            pass

    def known(self, keys: Iterable[Any]) -> int:
        """Check what the finder says of keys, and return of how many it knows the record."""
        assert self.finder is not None
        known = 0
        for key in keys:
            value = self.finder.value_of(key)
            assert value is UNKNOWN or value == self.rows.get(key), key
            known += value is not UNKNOWN
        return known


def test_a_finder_knows_the_records_of_a_checkpoint(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.checkpoint({f"key {i}": b"%d" % i for i in range(2000)})
    assert state.known([f"key {i}" for i in range(2100)]) == 2000
    assert not list((tmp_path / "checkpoints").glob(".finder*"))  # the name goes when the file is mapped


@pytest.mark.parametrize(
    "keys",
    [
        [i * 7 - 3000 for i in range(900)],
        [b"%d" % i for i in range(900)],
        [(f"shop {i % 7}", i) for i in range(900)],
        [i / 4 for i in range(900)],
    ],
    ids=["int", "bytes", "tuple", "float"],
)
def test_keys_of_all_types_are_known(tmp_path: Path, keys: list[Any]) -> None:
    state = Followed(tmp_path)
    state.checkpoint({key: b"%d" % i for i, key in enumerate(keys)})
    assert state.known(keys) == 900


def test_an_equal_key_of_other_bytes_is_asked_of_the_blocks(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.checkpoint({-0.0: b"zero", 1.0: b"one"})
    assert state.known([-0.0, 0.0, 1.0]) == 1
    state.checkpoint({0.0: b"zero"})
    assert state.known([-0.0, 0.0, 1.0]) == 3


@pytest.mark.parametrize("seed", range(30 if STRESS else 3))
def test_what_a_finder_says_is_the_newest_record_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random changes and deletions, checkpoints that were not followed, a reader that stays with the checkpoint before,
    and records that are entered late.
    """
    r = random.Random(seed)
    monkeypatch.setattr(finder_writer, "_AT_ONCE", r.choice([0, 1000, 1 << 18]))
    if seed % 3:  # many parts
        monkeypatch.setattr(finder_writer, "PART_BITS", r.choice([4, 6, 9, 11]))
        monkeypatch.setattr(finder_writer, "_LEAST_BITS", 4)
    state = Followed(tmp_path)
    keys = [f"key {i:05d}" for i in range(4200)]
    state.checkpoint({key: r.randbytes(9) for key in r.sample(keys, 3500)})
    earlier = state.line.rows
    for _ in range(25):
        changed = {key: r.randbytes(9) for key in r.sample(keys, r.choice([1, 30, 300, 2000]))}
        removed = set(r.sample(sorted(state.line.rows), min(len(state.line.rows), r.choice([0, 0, 9, 400]))))
        if r.random() < 0.2:  # of a range of keys all is written again, as it was before the last checkpoint
            part = set(keys[r.randrange(4000) :][: r.choice([100, 1000, 4200])])
            changed = {key: earlier[key] for key in part & earlier.keys()}
            removed = part & state.line.rows.keys() - earlier.keys()
        earlier = state.line.rows
        state.checkpoint(changed, removed - changed.keys(), follow=False)
        for _ in range(r.choice([0, 0, 1, 50])):
            state.state.enter_some()
        state.known(keys)
        before, rows = state.finder, state.rows
        if r.random() < 0.8:
            state.follow()
            state.known(keys)
            assert before is not None
            for key in r.sample(keys, 500):
                value = before.value_of(key)
                assert value is UNKNOWN or value == rows.get(key), key
    state.follow()
    state.enter_all()
    assert state.known(keys) == len(state.rows)


def test_a_known_state_is_entered_behind_its_checkpoints_a_part_behind_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_writer, "_AT_ONCE", 100)
    state, keys = Followed(tmp_path), [f"key {i:05d}" for i in range(20_000)]
    state.checkpoint(dict.fromkeys(keys, b"old"))
    blocks = len(state.line.entries())
    assert blocks > 4
    # one block is more than is entered at once, and no time is left between the checkpoints
    known = []
    for i in range(blocks):
        known.append(state.known(keys))
        state.checkpoint({keys[i]: b"new"})
    assert 0 < known[0] < 8_000
    assert known == sorted(set(known))
    assert state.known(keys) == 20_000


def test_a_deleted_key_of_a_block_that_was_written_anew_is_not_known(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.checkpoint({f"key {i:03d}": b"old" for i in range(200)})
    # most of the block changes, so that it is written anew, while a copy of the old one stays in a pack
    state.checkpoint({f"key {i:03d}": b"new" for i in range(200) if i != 50}, {"key 050"})
    assert not any(entry.layers for entry in state.line.entries())
    assert state.known([f"key {i:03d}" for i in range(200)]) == 199


def test_a_deleted_key_of_a_block_that_is_again_what_it_was_is_not_known(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    keys = [f"key {i:04d}" for i in range(9000)]
    state.checkpoint(dict.fromkeys(keys, b"old"))
    first = state.line.entries()[0]
    # a layer of the first block, in a pack that stays because of the last one
    state.checkpoint({"key 0050 more": b"new", "key 8999": b"new"})
    state.checkpoint({key: b"old" for key in keys if key <= first.last}, {"key 0050 more"})
    assert state.line.entries()[0].hash == first.hash
    assert state.known([*keys, "key 0050 more"]) == 9000


def test_two_keys_of_one_hash_have_one_place(tmp_path: Path) -> None:
    first, second = COLLISION
    state = Followed(tmp_path)
    state.checkpoint({first: b"1", second: b"2", "other": b"3"})
    assert state.known([first, second, "other"]) == 2
    state.checkpoint({first: b"4"})
    state.known([first, second, "other"])
    state.checkpoint({second: b"5"}, {first})
    state.known([first, second, "other"])
    state.checkpoint({first: b"6"}, {second})
    state.known([first, second, "other"])


@pytest.mark.parametrize("bits", [20, 8], ids=["one part", "many parts"])
def test_a_finder_grows_with_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(finder_writer, "PART_BITS", bits)
    monkeypatch.setattr(finder_writer, "_LEAST_BITS", 8)
    state = Followed(tmp_path)
    for begin in range(0, 24_000, 3_000):
        state.checkpoint({f"key {i:05d}": b"%d" % i for i in range(begin, begin + 3_000)})
        assert state.known([f"key {i:05d}" for i in range(begin + 3_000)]) == begin + 3_000
        assert not list((tmp_path / "checkpoints").glob(".finder*"))
    assert state.finder is not None
    parts = [part for part, _ in state.finder._parts]
    assert all(sum(1 for word in part[::2] if word) <= len(part) // 2 * 3 // 4 for part in parts)
    assert len(set(map(id, parts))) == 1 or 80 < len(set(map(id, parts))) < len(parts) == 256


def test_many_hashes_that_begin_alike_are_in_parts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_writer, "PART_BITS", 4)
    monkeypatch.setattr(finder_writer, "_LEAST_BITS", 4)
    keys = [f"key {i:06d}" for i in range(60_000)]
    alike = [key for key in keys if crc32(pack(key)) >> 26 == 5]
    state = Followed(tmp_path)
    for key in alike[:400:40], alike[:400], ["another"]:
        state.checkpoint(dict.fromkeys(key, b"1"))
    assert state.known(alike[:600]) == 400
    assert state.known(["another"]) == 1
    assert state.finder is not None
    assert len({id(part) for part, _ in state.finder._parts}) < 90


def test_keys_that_come_and_go_do_not_fill_a_finder(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    before: list[str] = []
    for turn in range(12):
        keys = [f"key {turn} {i}" for i in range(1500)]
        state.checkpoint(dict.fromkeys(keys, b"%d" % turn), set(before))
        state.enter_all()
        assert state.known(keys + before) == 1500
        before = keys
    assert state.finder is not None
    part, _ = state.finder._parts[0]
    assert len(part) <= 2 << 14  # some 18,000 keys have been


def test_a_finder_that_begins_with_many_deleted_keys_has_room_for_them(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    keys = [f"key {i:05d}" for i in range(4800)]
    state.checkpoint(dict.fromkeys(keys, b"1" * 60), follow=False)
    for at in range(0, len(keys), 256):  # of blocks that change together most would be rewritten
        state.checkpoint({}, set(keys[at + 1 : at + 122]), follow=False)
    assert all(entry.layers for entry in state.line.entries())  # the blocks have the deleted keys still
    state.follow()  # of more hashes than a file for the records that remain has places
    assert state.known(keys) == len(state.rows) < 2560


def test_a_damaged_record_is_asked_of_the_blocks(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.checkpoint({f"key {i:03d}": b"value %03d" % i for i in range(100)})
    (pack,) = tmp_path.glob("packs/*")
    flip(pack, pack.read_bytes().index(b"value 042") + 3)
    assert state.known([f"key {i:03d}" for i in range(100)]) == 99
    assert state.finder is not None
    assert state.finder.value_of("key 042") is UNKNOWN


def test_a_finder_of_another_line_is_not_continued(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.checkpoint({f"key {i:03d}": b"old" for i in range(100)})
    base, version, rows = state.line.reader, state.line.version, state.line.rows
    state.checkpoint({"key 001": b"of a checkpoint that the owner has not used"})
    # the owner continues from the one before: numbers of packs come twice
    state.line.reader, state.line.version, state.line.rows = base, version + 1, rows
    state.checkpoint({"key 002": b"new"})
    assert state.known([f"key {i:03d}" for i in range(100)]) == 100


def test_a_file_that_cannot_be_made_leaves_the_blocks(tmp_path: Path) -> None:
    state = Followed(tmp_path)
    state.state = StateFinders(tmp_path / "not there")
    state.checkpoint({"a": b"1"})
    assert state.finder is None


def test_where_the_disk_has_no_room_the_blocks_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    state = Followed(tmp_path)
    state.checkpoint({"a": b"1"})
    assert state.finder is None
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_store_of_which_a_file_has_no_name_any_more_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(64))
    assert FinderMaps().finders([(1, [str(tmp_path / "a"), str(tmp_path / "x")])], {}) == {}


@pytest.mark.parametrize("seed", range(30 if STRESS else 4))
def test_while_a_checkpoint_is_entered_no_reader_of_the_one_before_finds_an_older_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice, state = random.Random(seed), Followed(tmp_path)
    keys = [f"key {i:03d}" for i in range(250)]
    looks: list[int] = []

    def then_look(step: Any) -> Any:
        def entered(*arguments: Any) -> None:
            step(*arguments)
            if state.finder is not None:
                looks.append(state.known(keys))

        return entered

    for name in ("_enter", "_leave"):
        monkeypatch.setattr(FinderWriter, name, then_look(getattr(FinderWriter, name)))
    state.checkpoint({key: dice.randbytes(40) for key in keys})
    often = keys[100:110]
    for _ in range(80):  # layers that have the same keys, some of which are copied, and become one, with small packs
        changed = {key: dice.randbytes(40) for key in dice.sample(often, 2)}
        state.checkpoint(changed, {dice.choice(often)} - changed.keys())
    assert max(looks) > 200
