"""A range of keys of a block with a table has the records of the decoded block, with layers over it, too."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack
from hybridstore.stores.cold_blocks import SPARING
from recovery.block import Columns, layer_of, pack_block, with_layers
from recovery.errors import CorruptCheckpointError
from recovery.layers import Layers, Lookup
from recovery.table import RecordTable, Whole, look_into, pack_with_table
from recovery.table_range import STRETCH, beginning_with, between, range_of, stretch_bytes
from tests.recovery.test_table import blocks
from tests.tools.hooks import force_cold
from tests.tools.vector_runner import SMALL


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table_range.STRETCH", 3)


def opened(columns: Columns, *, table: bool = True) -> RecordTable | Whole:
    return look_into((pack_with_table if table else pack_block)(columns)[0], "block", kept=True)


def by_key(columns: Columns, low: Any, high: Any) -> bytes:
    """The records of a range of decoded columns, in a form that tells types and the order of keys."""
    return pack([(key, (value, *ints) if ints else value) for key, ints, value in columns.between(low, high).rows()])


def in_range(lookup: Lookup, low: Any, high: Any) -> bytes:
    return pack(list(range_of(lookup, between(low, high)).items()))


@settings(max_examples=80, deadline=None)
@given(block=blocks(), table=st.booleans())
def test_a_range_is_that_of_the_decoded_block(block: tuple[Columns, list[Any]], table: bool) -> None:
    columns, other = block
    columns = Columns(columns.keys, None, tuple(each[: len(columns.keys)] for each in columns.ints), columns.values)
    del columns.values[len(columns.keys) :]
    lookup = opened(columns, table=table)
    edges = [None, *columns.keys[::2], *other]
    for low in edges:
        for high in edges:
            if low is None or high is None or low <= high:
                assert in_range(lookup, low, high) == by_key(columns, low, high)


@settings(max_examples=40, deadline=None)
@given(keys=st.lists(st.text("ab", max_size=5), unique=True, min_size=1, max_size=30), prefix=st.text("ab", max_size=3))
def test_a_prefix_finds_the_keys_that_begin_so(keys: list[str], prefix: str) -> None:
    columns = Columns(sorted(keys), None, (), list(range(len(keys))))
    chosen = range_of(opened(columns), beginning_with(prefix))
    assert [*chosen.items()] == [(key, at) for at, key in enumerate(columns.keys) if key.startswith(prefix)]


_CHANGE = st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 9), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(base=st.sets(st.integers(0, 30), min_size=1), changes=st.lists(_CHANGE, max_size=4), timed=st.booleans())
def test_layers_are_merged_for_the_range_alone(
    base: set[int], changes: list[dict[int, int | None]], timed: bool
) -> None:
    parts = []
    for number, change in enumerate([{key: -key for key in base}, *changes]):
        kept = sorted(key for key, value in change.items() if value is not None)
        times = (array("q", [number] * len(kept)),) if timed else ()
        changed = Columns(kept, None, times, [change[key] for key in kept])
        parts.append(layer_of(changed, set(change) - set(kept)))
    whole = with_layers(parts[0], parts[1:])
    lookup = Layers([opened(part) for part in reversed(parts)], [b""] * len(parts))
    for low, high in ((None, None), (0, 30), (7, 15), (15, 15), (None, 3), (28, None), (31, 40)):
        assert in_range(lookup, low, high) == by_key(whole, low, high)


def test_the_stretches_of_a_layer_are_those_of_its_base() -> None:
    layer, new = ({7: "a", 50: "b"}, {-1: "d", 8: "c"})
    tables = [opened(Columns([*each], None, (), [*each.values()])) for each in (layer, new)]
    bases = [opened(Columns(list(range(40)), None, (), list(range(first, first + 40)))) for first in (0, 5)]
    for base in bases:  # a block that was written anew, as it is with layers over it that stay
        lookup = Layers([tables[1], tables[0], base], [b""] * 3)
        assert range_of(lookup, between(None, 0)) == {-1: "d", 0: base.rows_of(0).values[0]}
        assert range_of(lookup, between(6, 9)) == {**range_of(base, between(6, 9)), 7: "a", 8: "c"}
        assert range_of(lookup, between(39, None)) == {39: base.rows_of(39).values[0], 50: "b"}
        assert all(table.stretches.firsts is base.stretches.firsts for table in tables)  # type: ignore[union-attr]


def test_a_first_range_compares_the_checksum_of_the_block_and_stretches_stay() -> None:
    columns = Columns(list(range(40)), None, (), [bytes(20)] * 40)
    raw = bytearray(pack_with_table(columns)[0])
    raw[250] ^= 1
    table = look_into(bytes(raw), "block 7", kept=True)
    with pytest.raises(CorruptCheckpointError, match="block 7: record checksum mismatch"):
        range_of(table, between(3, 5))
    lookup = opened(columns)
    assert stretch_bytes(lookup) == 0
    assert list(range_of(lookup, between(3, 5))) == [3, 4, 5]
    assert isinstance(lookup, RecordTable)
    assert len(lookup.stretches.firsts) == 14
    assert stretch_bytes(lookup) == stretch_bytes(Layers([opened(columns), lookup], [b"", b""])) == 14 * (72 + 12)
    assert range_of(lookup, between(38, None)) == {38: bytes(20), 39: bytes(20)}
    layers = Layers([opened(columns), lookup], [b"", b""])
    assert list(range_of(layers, between(3, 5))) == [3, 4, 5]
    assert stretch_bytes(layers) == 14 * (72 + 2 * 12)  # the places of the layer take memory, too
    assert STRETCH > 3


def test_a_range_of_a_small_table_decodes_few_keys_beside_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table_range.STRETCH", STRETCH)
    for count, width in ((1, 4), (16, 4), (400, 20), (5000, 64)):
        lookup = opened(Columns(list(range(count)), None, (), [None] * count))
        assert range_of(lookup, between(0, 0)) == {0: None}
        assert isinstance(lookup, RecordTable)
        assert lookup.stretches.starts[1] == min(count, width)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_short_scan_reads_no_whole_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool) -> None:
    with hs.open(tmp_path / "s", memory_limit=1, _tuning=replace(SMALL, block_records=50)) as state:
        store: Any = state.key_value("k")
        rows_of = {i: i * 0.5 for i in range(300)}
        store.put_many(rows_of)
        force_cold(state)
        store.free(300)
        store.put(151, "new")
        store.delete(153)
        rows_of[151] = "new"  # type: ignore[assignment]
        del rows_of[153]
        monkeypatch.setattr(SPARING, "room", 0)
        before = state.metrics().blocks_read
        block = next(block for block in store._bucket.cold if block.entry.first > 150)
        for low, high in ((149, 155), (0, 1), (299, 400), (block.first + 1, block.entry.last - 1)):
            expected = sorted(((i, rows_of[i]) for i in rows_of if low <= i <= high), reverse=reverse)
            assert list(store.scan(low, high, reverse=reverse)) == expected
        assert state.metrics().blocks_read == before
