"""Packed columns: what is not as the first item is decoded, and what is wrong is nothing, not another error."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.codec import pack
from recovery.block import Columns, pack_block, seal, unpack_block
from recovery.packed import PackedItems, PackedSpans, PackedTexts, packed_block

pytest.importorskip("numpy")  # finds texts of several lengths; imported before memory is traced

# Each gives other items if every item is taken to be as long as the first, or of its type: the ends fit, and all bytes
# are UTF-8, also the header of a text of 128 bytes and more.
NOT_ALIKE: list[list[Any]] = [
    ["x" * 140, "y" * 300, "z" * 150],
    ["a", "bc", b"def"],
    ["a", "bc", None],
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


LETTERS = st.one_of(
    st.text(st.sampled_from("a\x7fé٢€\U0001f600"), max_size=80),
    # one byte of a letter, and the length of a text, may look like a header
    st.integers(0, 255).map("x".__mul__),
    st.integers(0, 127).map("٢".__mul__),
)


def texts_of(items: PackedItems) -> list[str]:
    """The texts of a column, whichever way they are read."""
    if isinstance(items, PackedSpans):
        spans = items.spans.tolist()
        return [items.data[start:end].decode() for start, end in zip(spans[1::2], spans[2::2], strict=True)]
    if isinstance(items, PackedTexts):
        data, step = bytes(items.data), items.header + items.size
        return [data[at + items.header : at + step].decode() for at in range(0, len(data), step)]
    assert isinstance(items, list)
    return items


@given(st.lists(LETTERS, min_size=1, max_size=60), st.lists(st.integers(), max_size=2))
def test_texts_of_several_lengths_are_where_they_lie(texts: list[str], times: list[int]) -> None:
    """The same texts as keys and as values, so that each column has other columns before and behind it."""
    ints = tuple(array("q", [time % 1000] * len(texts)) for time in times)
    block = packed_block(pack_block(Columns(texts, None, ints, texts))[0])
    assert block is not None
    assert [texts_of(block.keys), texts_of(block.values)] == [texts, texts]
    assert block.ints == ints


@pytest.mark.parametrize("letter", ["x", "é", "ß", "٢"])
def test_texts_of_several_lengths_are_not_decoded(letter: str) -> None:
    texts = [letter * (number % 4) for number in range(100)]
    block = packed_block(pack_block(Columns(texts, None, (), [f"{text}-{text}" for text in texts]))[0])
    assert block is not None
    for items in (block.keys, block.values):
        assert isinstance(items, PackedSpans)
        assert len(items) == 100


def test_the_number_of_texts_may_look_like_a_header() -> None:
    texts = ["x" * (number % 30) for number in range(0xD9)]
    block = packed_block(pack_block(Columns(texts, None, (), texts))[0])
    assert block is not None
    assert [texts_of(block.keys), texts_of(block.values)] == [texts, texts]
    assert isinstance(block.keys, PackedSpans)
    assert isinstance(block.values, PackedSpans)


@pytest.mark.parametrize("text", ["x", "xyz", "€"])
def test_a_forged_number_of_texts_takes_no_memory(text: str) -> None:
    payload = pack([[text, "xy"], None, [], [text, "xy"]])
    forged = payload.replace(b"\x92", b"\xdd\xff\xff\xff\xff")
    tracemalloc.start()
    try:
        assert packed_block(seal(forged)) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_texts_with_many_bytes_that_look_like_headers_are_decoded() -> None:
    texts = ["€é" * 40 + "x" * number for number in range(20)]  # two of five bytes do
    block = packed_block(pack_block(Columns(texts, None, (), texts))[0])
    assert block is not None
    assert block.keys == texts


def test_texts_of_several_lengths_are_decoded_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    block = packed_block(pack_block(Columns(["a", "bc"], None, (), [1, 2]))[0])
    assert block is not None
    assert block.keys == ["a", "bc"]


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
    ints = (array("q", [1, 2]),)
    for columns in (Columns(["ab", "cd"], None, ints, [0.5, 1.5]), Columns(["a", "bc"], None, ints, ["x" * 40, "y"])):
        payload = pack_block(columns)[0][4:]
        assert packed_block(seal(payload)) is not None
        for end in range(len(payload)):
            assert packed_block(seal(payload[:end])) is None
        assert packed_block(seal(payload + b"\x90")) is None


def test_several_records_for_a_key_are_for_the_other_reader() -> None:
    columns = Columns(["a", "b"], [2, 1], (array("q", [1, 2, 3]),), ["x", "y", "z"])
    raw = pack_block(columns)[0]
    assert packed_block(raw) is None
    assert unpack_block(raw, "here").values == columns.values
