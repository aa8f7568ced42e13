"""Packed columns: what is not as the first item is decoded, and what is wrong is nothing, not another error."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest

from changelog.codec import pack
from recovery.block import Columns, pack_block, seal, unpack_block
from recovery.packed import PackedTexts, packed_block

# Each gives other items if every item is taken to be as long as the first, or of its type: the ends fit, and all bytes
# are UTF-8, also the header of a text of 128 bytes and more.
NOT_ALIKE: list[list[Any]] = [
    ["x" * 140, "y" * 130, "z" * 150],
    ["a", b""],
    ["ab", 0x4141],
    [1.5, "8 bytes."],
    ["8 bytes.", *struct.unpack(">d", b"8 bytes.")],
]


@pytest.mark.parametrize("items", NOT_ALIKE)
def test_items_that_begin_otherwise_than_the_first_are_decoded(items: list[Any]) -> None:
    places = list(range(len(items)))
    for keys, values in ((places, items), (items, places)):
        block = packed_block(pack_block(Columns(keys, None, (), values))[0])
        assert block is not None
        assert (block.keys, block.values) == (keys, values)
        assert list(map(type, [*block.keys, *block.values])) == list(map(type, keys + values))


def test_items_alike_are_not_decoded() -> None:
    for header, text in ((1, "é" * 15), (2, "é" * 16), (2, "x" * 255)):
        block = packed_block(pack_block(Columns([text, text], None, (array("q", [1, 2]),), [0.5, -0.0]))[0])
        assert block is not None
        assert isinstance(block.keys, PackedTexts)
        assert (block.keys.header, block.keys.size, len(block.keys)) == (header, len(text.encode()), 2)
        assert repr(block.values) == "array('d', [0.5, -0.0])"
        assert block.ints == (array("q", [1, 2]),)


@pytest.mark.parametrize(
    "parts",
    [
        [None, None, [], []],
        [["a"], None, [], None],
        [["a"], None, [], 1.5],
        [["a"], None, 5, ["b"]],
        [["a"], None, [b"123"], ["b"]],
        [["a"], None, [], ["b", "c"]],
        [["a"], None, [], ["b"], b"", b""],
        [["a"]],
        [],
    ],
)
def test_a_forged_block_is_nothing(parts: list[Any]) -> None:
    assert packed_block(seal(pack(parts))) is None


def test_a_block_that_was_cut_is_nothing() -> None:
    payload = pack_block(Columns(["ab", "cd"], None, (array("q", [1, 2]),), [0.5, 1.5]))[0][4:]
    assert packed_block(seal(payload)) is not None
    for end in range(len(payload)):
        assert packed_block(seal(payload[:end])) is None
    assert packed_block(seal(payload + b"\x90")) is None


def test_several_records_for_a_key_are_for_the_other_reader() -> None:
    columns = Columns(["a", "b"], [2, 1], (array("q", [1, 2, 3]),), ["x", "y", "z"])
    raw = pack_block(columns)[0]
    assert packed_block(raw) is None
    assert unpack_block(raw, "here").values == columns.values
