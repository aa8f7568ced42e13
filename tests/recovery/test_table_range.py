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
from recovery.block import ADDED, Columns, layer_of, pack_block, with_layers
from recovery.errors import CorruptCheckpointError
from recovery.layers import Layers
from recovery.table import RecordTable, Whole, look_into, pack_with_table
from recovery.table_range import STRETCH, beginning_with, between, range_of, stretch_bytes
from tests.recovery.test_table import blocks, rows
from tests.tools.hooks import force_cold
from tests.tools.vector_runner import SMALL


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table_range.STRETCH", 3)


def opened(columns: Columns, *, table: bool = True) -> RecordTable | Whole:
    return look_into((pack_with_table if table else pack_block)(columns)[0], "block", kept=True)


@settings(max_examples=80, deadline=None)
@given(block=blocks(), table=st.booleans())
def test_a_range_is_that_of_the_decoded_block(block: tuple[Columns, list[Any]], table: bool) -> None:
    columns, other = block
    lookup = opened(columns, table=table)
    edges = [None, *columns.keys[::2], *other]
    for low in edges:
        for high in edges:
            if low is None or high is None or low <= high:
                assert rows(range_of(lookup, between(low, high))) == rows(columns.between(low, high))


@settings(max_examples=40, deadline=None)
@given(keys=st.lists(st.text("ab", max_size=5), unique=True, min_size=1, max_size=30), prefix=st.text("ab", max_size=3))
def test_a_prefix_finds_the_keys_that_begin_so(keys: list[str], prefix: str) -> None:
    columns = Columns(sorted(keys), None, (), list(range(len(keys))))
    chosen = range_of(opened(columns), beginning_with(prefix))
    assert chosen.keys == [key for key in columns.keys if key.startswith(prefix)]
    assert chosen.values == [columns.values[columns.keys.index(key)] for key in chosen.keys]


_CHANGE = st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 9), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(base=st.sets(st.integers(0, 30), min_size=1), changes=st.lists(_CHANGE, max_size=4), tables=st.booleans())
def test_layers_are_merged_for_the_range_alone(
    base: set[int], changes: list[dict[int, int | None]], tables: bool
) -> None:
    parts = [Columns(sorted(base), None, (), [-key for key in sorted(base)])]
    for change in changes:
        kept = sorted(key for key, value in change.items() if value is not None)
        changed = Columns(kept, None, (), [change[key] for key in kept])
        parts.append(layer_of(changed, set(change) - set(kept)))
    whole = with_layers(parts[0], parts[1:])
    lookup = Layers([opened(part, table=tables) for part in reversed(parts)], [b""] * len(parts))
    for low, high in ((None, None), (0, 30), (7, 15), (15, 15), (None, 3), (28, None), (31, 40)):
        assert rows(range_of(lookup, between(low, high))) == rows(whole.between(low, high))


def test_rows_that_a_layer_adds_are_those_of_the_range() -> None:
    times = [array("q", column) for column in ([1, 2, 3, 9, 1, 2], [5, 6, 4])]
    base = Columns(list("abcd"), [2, 1, 1, 2], (times[0],), [1, 2, 3, 4, 5, 6])
    layer = Columns(["b", "c"], [2, 1], (times[1],), [7, 8, 9], [ADDED, 2])
    lookup, whole = Layers([opened(layer), opened(base)], [b"", b""]), with_layers(base, [layer])
    for low, high in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "z")):
        assert rows(range_of(lookup, between(low, high))) == rows(whole.between(low, high))


def test_a_first_range_compares_the_checksum_of_the_block_and_stretches_stay() -> None:
    columns = Columns(list(range(40)), None, (), [bytes(20)] * 40)
    raw = bytearray(pack_with_table(columns)[0])
    raw[250] ^= 1
    table = look_into(bytes(raw), "block 7", kept=True)
    with pytest.raises(CorruptCheckpointError, match="block 7: record checksum mismatch"):
        range_of(table, between(3, 5))
    lookup = opened(columns)
    assert stretch_bytes(lookup) == 0
    assert range_of(lookup, between(3, 5)).keys == [3, 4, 5]
    assert isinstance(lookup, RecordTable)
    assert len(lookup.stretches.firsts) == 14
    assert stretch_bytes(lookup) == stretch_bytes(Layers([opened(columns), lookup], [b"", b""])) == 14 * 80
    assert pack(range_of(lookup, between(38, None)).values) == pack([bytes(20)] * 2)
    layers = Layers([opened(columns), lookup], [b"", b""])
    assert range_of(layers, between(3, 5)).keys == [3, 4, 5]
    assert stretch_bytes(layers) == 2 * 14 * 80  # those of the layer take memory, too
    assert STRETCH > 3


def test_a_range_of_a_small_table_decodes_few_keys_beside_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.table_range.STRETCH", STRETCH)
    for count, width in ((1, 4), (16, 4), (400, 20), (5000, 64)):
        lookup = opened(Columns(list(range(count)), None, (), [None] * count))
        assert range_of(lookup, between(0, 0)).keys == [0]
        assert isinstance(lookup, RecordTable)
        assert lookup.stretches.width == width


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
