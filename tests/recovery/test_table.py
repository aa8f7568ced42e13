"""The table of a block finds what decoding the block finds, and no damaged bit makes a key absent."""

from __future__ import annotations

import itertools
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack
from recovery.block import (
    Columns,
    content_hash,
    pack_block,
    unpack_block,
    unpack_block_in_slices,
    unpack_keys,
    unseal,
)
from recovery.errors import CorruptCheckpointError
from recovery.packed import packed_block
from recovery.table import MOST_KEYS, RecordTable, Whole, look_into, pack_with_table, table_fault
from tests.tools.checkpoints import flip, own_packs, reader_of

_TIMES = st.integers(-(2**63), 2**63 - 1)
_FLOATS = st.floats(allow_nan=False)
_KINDS_OF_KEYS: list[st.SearchStrategy[Any]] = [
    st.text(st.characters(exclude_categories=[]), max_size=40),
    st.binary(max_size=40),
    _TIMES,
    _FLOATS,
    st.booleans(),
    st.tuples(st.text(max_size=3), _FLOATS, st.integers(-3, 3)),
]
_VALUES = st.one_of(
    st.none(), st.text(max_size=20), st.integers(), st.lists(st.integers(), max_size=3), st.tuples(_TIMES)
)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Columns, list[Any]]:
    """A block, and keys that it may have or not."""
    some = st.lists(draw(st.sampled_from(_KINDS_OF_KEYS)), unique=True, min_size=1, max_size=20)
    keys = sorted(draw(some))
    counted, width = draw(st.booleans()), draw(st.integers(0, 2))
    counts = draw(st.lists(st.integers(1, 4), min_size=len(keys), max_size=len(keys))) if counted else None
    records = len(keys) if counts is None else sum(counts)
    ints = tuple(array("q", draw(st.lists(_TIMES, min_size=records, max_size=records))) for _ in range(width))
    return Columns(keys, counts, ints, draw(st.lists(_VALUES, min_size=records, max_size=records))), draw(some)


def rows(columns: Columns) -> Any:
    """The content of columns in a form that tells -0.0 from 0.0."""
    counts = columns.counts or [1] * len(columns.keys)
    return pack([columns.keys, counts, [list(column) for column in columns.ints], columns.values])


@settings(max_examples=80, deadline=None)
@given(blocks())
def test_a_key_has_the_records_of_the_decoded_block(block: tuple[Columns, list[Any]]) -> None:
    columns, other = block
    raw, hashed = pack_with_table(columns)
    assert hashed == content_hash(raw[4:])
    for decoded in (unpack_block(raw, ""), unpack_block_in_slices(raw, "", lambda: None)):
        assert rows(decoded) == rows(columns)
    table = look_into(raw, "", kept=True)
    assert isinstance(table, RecordTable)
    assert (table.kept, len(table)) == (True, len(columns.keys))
    for key in [*columns.keys, *other]:
        got, expected = table.rows_of(key), columns.between(key, key)
        assert rows(got) == rows(expected)
        assert table.counts_of([key]) == [len(expected)]
        assert table.present([key]) == [len(expected) > 0]
        if len(expected) < 2:
            record = (*expected.values, *(column[0] for column in expected.ints)) if expected.values else None
            assert pack(table.record_of(key)) == pack(record)
    assert table_fault(raw, columns) is None


def test_zeros_of_both_signs_are_one_key() -> None:
    for stored, asked in ((0.0, -0.0), (-0.0, 0.0)):
        table = look_into(pack_with_table(Columns([stored], None, (), [1]))[0], "", kept=False)
        (key,) = table.rows_of(asked).keys
        assert str(key) == str(stored)
        pairs = look_into(pack_with_table(Columns([("a", stored)], None, (), [1]))[0], "", kept=False)
        assert pairs.rows_of(("a", asked)).values == [1]


def test_keys_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table.zlib.crc32", lambda data, start=0: 7)
    columns = Columns(["a", "b", "c"], None, (), [1, 2, 3])
    table = look_into(pack_with_table(columns)[0], "", kept=False)
    assert [table.rows_of(key).values for key in "abcd"] == [[1], [2], [3], []]


def test_keys_of_one_hash_may_be_the_beginnings_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table.zlib.crc32", lambda data, start=0: 7)
    keys = [b"", b"a", b"a" * 40, b"a" * 300, b"a" * 5000]
    table = look_into(pack_with_table(Columns(keys, None, (), [1, 2, 3, 4, 5]))[0], "", kept=False)
    assert table.counts_of([*keys, b"aa", b"a" * 41, b"a" * 6000]) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert [table.record_of(key) for key in (*keys, b"aa")] == [(1,), (2,), (3,), (4,), (5,), None]


@pytest.mark.parametrize(
    ("count", "shift"),
    [*itertools.product([1, 2, 15, 60, 255, 256, 3000], [0, 12]), (1, 30), (2, 30), (60, 30), (600, 30)],
)
def test_a_hash_is_where_a_search_of_all_hashes_finds_it(
    count: int, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crc32 = zlib.crc32
    monkeypatch.setattr("recovery.table.zlib.crc32", lambda data, start=0: crc32(data, start) >> shift)
    keys = list(range(count))
    raw = pack_with_table(Columns(keys, None, (), keys))[0]
    table, kept = look_into(raw, "", kept=False), look_into(raw, "", kept=True)
    assert isinstance(table, RecordTable)
    hashes = list(table.hashes)
    assert hashes == sorted(hashes)
    for wanted in {0, 2**32 - 1, *hashes, *(each + 1 for each in hashes), *(max(0, each - 1) for each in hashes)}:
        assert table.first_of(wanted) == bisect_left(hashes, wanted)
    assert table.counts_of([*keys, -1, count]) == [*[1] * count, 0, 0]
    for each in (table, kept):
        assert list(map(each.record_of, [*keys, -1, count])) == [*((key,) for key in keys), None, None]


@pytest.mark.parametrize("keys", [["ann", "bob", "cid", "dan"], [-1.5, -0.0, 2.0, 3.0]])
@pytest.mark.parametrize("counts", [None, [2, 1, 1, 1]])
@pytest.mark.parametrize("times", [True, False])
def test_no_flipped_bit_changes_what_is_read(keys: list[Any], counts: list[int] | None, times: bool) -> None:
    records = 4 if counts is None else 5
    ints = (array("q", range(records)),) if times else ()
    columns = Columns(keys, counts, ints, [f"value {i}" for i in range(records)])
    raw, _ = pack_with_table(columns)
    sound = look_into(raw, "here", kept=False)
    asked = [*keys, "absent" if keys[0] == "ann" else 0.5]
    right = [rows(sound.rows_of(key)) for key in asked]
    record_right = [None if counts and i == 0 else sound.record_of(key) for i, key in enumerate(asked)]
    opened = named = 0
    for place in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptCheckpointError, match="here"):
                unpack_block(bytes(flipped), "here")
            try:
                table = look_into(bytes(flipped), "here", kept=False)
            except CorruptCheckpointError:
                continue
            opened += 1
            for i, key in enumerate(asked):
                try:
                    assert rows(table.rows_of(key)) == right[i], (place, bit, key)
                    if not (counts and i == 0):
                        assert pack(table.record_of(key)) == pack(record_right[i]), (place, bit, key)
                except CorruptCheckpointError:
                    named += 1
    assert opened > 0
    # a bit of a record, or of its key, is met by the key alone
    assert named >= 8 * (sum(map(len, map(pack, [*keys, *columns.values]))) + 8 * records * times)


def test_a_damaged_record_is_named_and_a_restart_falls_back(tmp_path: Path) -> None:
    limit = 1 << 40
    with hs.open(tmp_path, memory_limit=limit) as state:
        state.key_value("kv").put_many({f"key {i:03d}": f"value {i:03d}" for i in range(100)})
        state.commit()
        state.checkpoint(wait=True)
    reader = reader_of(tmp_path, 1)
    (entry,) = reader.directory(1)
    raw = bytes(reader.raw_block(entry))
    reader.close()
    (pack_file,) = own_packs(tmp_path, 1)
    flip(pack_file, entry.offset + raw.index(b"value 007"))
    with hs.open(tmp_path, memory_limit=limit) as state:
        store = state.key_value("kv")
        assert store.get("key 008") == "value 008"
        with pytest.raises(CorruptCheckpointError, match="checksum mismatch"):
            store.get("key 007")
        assert store.get("key 009") == "value 009"
    with hs.open(tmp_path, memory_limit=limit) as state:
        assert state.restore_report.checkpoint_version is None
        assert dict(state.key_value("kv").all()) == {f"key {i:03d}": f"value {i:03d}" for i in range(100)}


def test_a_forged_table_is_an_error_and_verify_names_it() -> None:
    columns = Columns(["a", "b"], None, (), [1, 2])
    other = Columns(["a", "b"], None, (), [1, 300])
    raw, forged = pack_with_table(columns)[0], pack_with_table(other)[0]
    assert table_fault(raw, columns) is None
    assert table_fault(forged, columns) == "its table says something else of key 'b' than its records"
    assert table_fault(raw, Columns(["a"], None, (), [1])) == "its table has 2 keys, the block 1"


def test_a_block_without_a_table_is_decoded_and_not_kept() -> None:
    columns = Columns(["a", "b"], None, (), [1, 2])
    whole = look_into(pack_block(columns)[0], "", kept=True)
    assert isinstance(whole, Whole)
    assert not whole.kept
    assert (whole.rows_of("b").values, whole.rows_of("c").keys) == ([2], [])
    assert table_fault(pack_block(columns)[0], columns) is None


@pytest.mark.parametrize("data", [b"", bytes(3), bytes(4)])
def test_bytes_without_content_are_no_block_though_their_checksum_fits(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [
        lambda data: unpack_block(data, "here"),
        lambda data: unpack_keys(data, "here"),
        lambda data: unpack_block_in_slices(data, "here", lambda: None),
        lambda data: look_into(data, "here", kept=False),
    ]
    for read in readers:
        with pytest.raises(CorruptCheckpointError, match="here: block checksum mismatch"):
            read(data)
    assert packed_block(data) is None
    with pytest.raises(ValueError, match="checksum mismatch"):
        unseal(data)


@pytest.mark.parametrize(("content", "what"), [([], "0 parts"), ([[1], None, []], "3 parts"), ([1] * 6, "6 parts")])
def test_a_block_of_other_parts_says_how_many_it_has(content: list[Any], what: str) -> None:
    payload = pack(content)
    data = zlib.crc32(payload).to_bytes(4, "little") + payload
    readers: list[Callable[[bytes], object]] = [
        lambda data: unpack_block(data, "here"),
        lambda data: unpack_keys(data, "here"),
        lambda data: unpack_block_in_slices(data, "here", lambda: None),
    ]
    for read in readers:
        with pytest.raises(CorruptCheckpointError) as refused:
            read(data)
        assert str(refused.value) == f"here: block cannot be read: found {what}, expected 4 parts, or 5"


def test_a_table_of_too_many_keys_is_refused() -> None:
    keys = list(range(MOST_KEYS + 1))
    with pytest.raises(ValueError, match="65537 keys in a block, expected 65536 or fewer"):
        pack_with_table(Columns(keys, None, (), keys))


def test_the_first_key_that_is_read_meets_a_damaged_block_and_a_restart_falls_back(tmp_path: Path) -> None:
    limit = 1 << 40
    with hs.open(tmp_path, memory_limit=limit) as state:
        state.key_value("kv").put_many({f"key {i:03d}": i for i in range(100)})
        state.commit()
        state.checkpoint(wait=True)
    reader = reader_of(tmp_path, 1)
    (entry,) = reader.directory(1)
    reader.close()
    (pack_file,) = own_packs(tmp_path, 1)
    flip(pack_file, entry.offset + entry.size - 30)
    with (
        hs.open(tmp_path, memory_limit=limit) as state,
        pytest.raises(CorruptCheckpointError, match="checksum mismatch"),
    ):
        state.key_value("kv").get("key 007")
    with hs.open(tmp_path, memory_limit=limit) as state:
        assert state.restore_report.checkpoint_version is None
        assert dict(state.key_value("kv").all()) == {f"key {i:03d}": i for i in range(100)}
