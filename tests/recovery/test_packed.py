"""Packed columns: what is not as the first item is decoded, and what is wrong is nothing, not another error."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.codec import pack
from recovery.block import Columns, pack_block, seal, unpack_block
from recovery.packed import PackedItems, PackedSpans, PackedTexts, packed_block
from recovery.packed_fields import PackedFields

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
        assert isinstance(block.keys, list)
        assert isinstance(block.values, list)
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


def dicts_of(packed: PackedFields) -> list[dict[str, Any]]:
    """The dicts of a column that was read by key."""
    columns = list[list[Any]]()
    for field in packed.fields.values():
        items = field.items
        if items is None:
            values: list[Any] = [None] * len(packed)
        elif isinstance(items, PackedFields):
            values = dicts_of(items)
        else:
            values = texts_of(items) if isinstance(items, PackedSpans) else items.tolist()
        nulls = [False] * len(packed) if field.nulls is None else field.nulls.tolist()
        columns.append([None if null else value for value, null in zip(values, nulls, strict=True)])
    return [dict(zip(packed.fields, row, strict=True)) for row in zip(*columns, strict=True)]


def read_dicts(items: list[Any], times: int = 0) -> PackedItems | None:
    """The values of a block of these items, with a table behind them if they are read under a limit."""
    ints = tuple(array("q", range(len(items))) for _ in range(times))
    block = packed_block(pack_block(Columns(list(range(len(items))), None, ints, items))[0])
    assert block is not None
    assert len(block.values) == len(items)
    return block.values


EDGES = [0, 1, -1, 127, 128, 255, 256, -32, -33, -128, -129, 2**15, 2**16 - 1, 2**16, -(2**15) - 1, 2**31, 2**32 - 1]
EDGES += [2**32, -(2**31) - 1, 2**63 - 1, -(2**63)]
OF_A_KEY: list[st.SearchStrategy[Any]] = [
    st.booleans(),
    st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    LETTERS | st.sampled_from(["x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65_535]),
    st.none(),
]


@st.composite
def alike(draw: st.DrawFn, levels: int = 2) -> list[dict[str, Any]]:
    """Dicts with the same keys, and for each key values of one type, or null."""
    count = draw(st.integers(1, 12))

    def dicts(levels: int) -> list[dict[str, Any]]:
        columns = dict[str, list[Any]]()
        for key in draw(st.lists(st.text(max_size=40), min_size=1, max_size=4, unique=True)):
            if levels and draw(st.booleans()):
                columns[key] = dicts(levels - 1)
            else:
                kind = draw(st.sampled_from(OF_A_KEY))
                columns[key] = draw(st.lists(kind | st.none(), min_size=count, max_size=count))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    return dicts(levels)


@settings(deadline=None)
@given(alike(), st.integers(0, 2))
def test_dicts_with_the_same_keys_are_read_by_key(items: list[dict[str, Any]], times: int) -> None:
    read = read_dicts(items, times)
    if isinstance(read, PackedFields):  # else bytes of a value look like a beginning
        read = dicts_of(read)
    assert repr(read) == repr(items)


def test_dicts_with_the_same_keys_are_not_decoded() -> None:
    items = [
        {"name": "x" * number, "n": number**9, "of": {"ok": number > 3, "at": number / 3, "": None}, "long": "y" * 300}
        for number in range(50)
    ]
    assert isinstance(read_dicts(items), PackedFields)
    wide = [{f"key {key}": number * key for key in range(15)} for number in range(3)]
    assert isinstance(read_dicts(wide), PackedFields)


@pytest.mark.parametrize(
    "items",
    [
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"a": 1}, {"a": 1.5}],
        [{"a": True}, {"a": 1}],
        [{"a": "x"}, {"a": b"x"}],
        [{"a": 2**63}, {"a": 1}],
        [{"a": [1]}, {"a": [2]}],
        [{"a": {"b": 1}}, {"a": None}],
        [{"a": {"b": 1}}, {"a": {"c": 1}}],
        [{"a": (1, 2)}],
        [{1: "x"}, {1: "y"}],
        [{}, {}],
        [{}, {"a": 1}],
        [{"a": 1}, 5],
        [{"a": "メa", "b": 1, "c": 2}, {"a": "x", "b": 1, "c": 2}],  # bytes of the text are those of the beginning
        [{str(key): key for key in range(16)}],
        [{"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}}],
    ],
    ids=str,
)
def test_dicts_that_are_not_alike_are_decoded(items: list[Any]) -> None:
    assert repr(read_dicts(items)) == repr(items)


def test_a_dict_with_a_key_twice_is_decoded() -> None:
    twice = pack([["k"], None, [], [{"a": 1, "b": 2}]]).replace(b"\xa1b", b"\xa1a")
    block = packed_block(seal(twice))
    assert block is not None
    assert block.values == [{"a": 2}]


def test_dicts_are_decoded_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert read_dicts([{"a": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("letter", ["x", "ß"])
def test_texts_of_several_lengths_are_not_decoded(letter: str) -> None:
    texts = [letter * (number % 40) for number in range(100)]
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


@pytest.mark.parametrize("item", ["x", "xyz", "€", {"x": 1}, {"x": "y"}], ids=str)
def test_a_forged_number_of_items_takes_no_memory(item: Any) -> None:
    payload = pack([[item, "xy"], None, [], [item, "xy"]])
    forged = payload.replace(b"\x92", b"\xdd\xff\xff\xff\xff")
    tracemalloc.start()
    try:
        assert packed_block(seal(forged)) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["é", "x" * 250])
def test_texts_with_bytes_like_headers_and_long_texts_are_decoded(text: str) -> None:
    texts = [text + "x" * (number % 5) for number in range(20)]
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


DICTS = [{"a": 1.5, "b": "xy", "c": 300}, {"a": -0.5, "b": "", "c": 2**40}]


def test_a_block_that_was_cut_is_nothing() -> None:
    ints = (array("q", [1, 2]),)
    for keys, values in ((["ab", "cd"], [0.5, 1.5]), (["a", "bc"], ["x" * 40, "y"]), (["a", "b"], DICTS)):
        payload = pack_block(Columns(keys, None, ints, values))[0][4:]
        assert packed_block(seal(payload)) is not None
        for end in range(len(payload)):
            assert packed_block(seal(payload[:end])) is None
        assert packed_block(seal(payload + b"\x90")) is None


def test_several_records_for_a_key_are_for_the_other_reader() -> None:
    columns = Columns(["a", "b"], [2, 1], (array("q", [1, 2, 3]),), ["x", "y", "z"])
    raw = pack_block(columns)[0]
    assert packed_block(raw) is None
    assert unpack_block(raw, "here").values == columns.values
