"""A checkpoint writes what changed of a block as a layer over it; readers see the block that a rewrite would give."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack as packed
from changelog.storage import LocalStorage
from hybridstore.state.opening import Tuning
from recovery import layer_index, planner
from recovery.block import (
    ADDED,
    WHOLE,
    BucketChange,
    Columns,
    Extent,
    composed,
    content_hash,
    entry_of,
    layer_of,
    pack_block,
    seal,
    unpack_block,
    with_layers,
)
from recovery.checkpoint import CheckpointReader
from recovery.errors import CorruptCheckpointError
from recovery.layers import Layers
from recovery.pack import LARGE, SMALL, _map
from recovery.planner import AT_ONCE, LAYERED_SHARE, LAYERS, MOST_LOAD, most_layered
from recovery.table import MOST_KEYS, RecordTable, Whole, look_into, pack_with_table, table_fault
from tests.conftest import STRESS
from tests.tools.checkpoints import Line, flip, own_packs, reader_of, verify
from tests.tools.sizes import SMALL_PARTS

Content = dict[str, list[tuple[int, Any]]]
_CONTENT = st.dictionaries(
    st.sampled_from("abcdefghijkl"), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3)
)


def columns(content: Content) -> Columns:
    keys = sorted(content)
    rows = [row for key in keys for row in content[key]]
    counts = [len(content[key]) for key in keys]
    several = None if all(count == 1 for count in counts) else counts
    return Columns(keys, several, (array("q", [ts for ts, _ in rows]),), [value for _, value in rows])


def content(block: Columns) -> Content:
    at, result = 0, {}
    for key, count in zip(block.keys, block.counts or [1] * len(block.keys), strict=True):
        result[key] = list(zip(block.ints[0][at : at + count], block.values[at : at + count], strict=True))
        at += count
    return result


@settings(max_examples=max(60, STRESS), deadline=None)
@given(_CONTENT.filter(bool), st.lists(st.tuples(_CONTENT, st.sets(st.sampled_from("abcdefghijkl"))), max_size=4))
def test_layers_over_a_base_are_the_block_of_a_dict(base: Content, changes: list[tuple[Content, set[str]]]) -> None:
    model, block, layers = dict(base), columns(base), list[Columns]()
    for changed, removed in changes:
        removed = removed - changed.keys()
        layer = layer_of(columns(changed), removed)
        assert layer.keys == sorted(changed.keys() | removed)
        layers.append(layer)
        block = with_layers(block, [layer])
        model = {key: rows for key, rows in (model | changed).items() if key not in removed}
        assert content(block) == model
        assert block.counts is None or block.counts.count(1) < len(block.counts)
        assert content(with_layers(columns(base), layers)) == model
        assert content(with_layers(columns(base), [composed(layers)])) == model


_ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(lambda rows: sorted(rows))
_CHANGES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(WHOLE, 10), _ROWS), min_size=1)


def changes(changed: dict[str, tuple[int, list[tuple[int, Any]]]]) -> Columns:
    rows = {key: [row for row in rows if row[0] >= since] for key, (since, rows) in changed.items()}
    layer = columns(rows)
    layer.froms = [changed[key][0] for key in sorted(changed)]
    return layer


@settings(max_examples=max(80, STRESS), deadline=None)
@given(_CONTENT.filter(bool), st.lists(_CHANGES, min_size=1, max_size=4), st.booleans())
def test_layers_of_added_rows_are_the_rows_of_a_dict(base: Content, layers: list[Any], tables: bool) -> None:
    model = {key: sorted(rows, key=lambda row: row[0]) for key, rows in base.items()}
    block = columns(model)
    pack = pack_with_table if tables else pack_block
    stored = [pack(block)[0]]
    together: list[Columns] = []
    for changed in layers:
        layer = changes(changed)
        stored.append(pack(layer)[0])
        layer = unpack_block(stored[-1], "a layer")
        assert table_fault(stored[-1], layer) is None
        together.append(layer)
        block = with_layers(block, [layer])
        for key, (since, rows) in changed.items():
            model[key] = [row for row in model.get(key, []) if row[0] < since] + [
                row for row in rows if row[0] >= since
            ]
        model = {key: rows for key, rows in model.items() if rows}
        assert content(block) == model
    base_columns = unpack_block(stored[0], "a base")
    assert content(with_layers(base_columns, together)) == model
    assert content(with_layers(base_columns, [composed(together)])) == model
    stored.reverse()
    for kept in (False, True):
        look = Layers([look_into(data, "it", kept=kept) for data in stored], list(map(content_hash, stored)))
        for key in "abcdefghijkl":
            assert content(look.rows_of(key)) == ({key: model[key]} if key in model else {})
            assert look.counts_of([key]) == [len(model.get(key, []))]
            if len(model.get(key, [])) < 2:
                assert look.record_of(key) == (model[key][0][::-1] if key in model else None)
    # all together, and those that the oldest part has, after which no other part is searched unless it deletes
    for keys in (list("abcdefghijkl"), base_columns.keys):
        assert look.present(keys) == [key in model for key in keys]


def test_rows_of_a_key_are_looked_for_in_the_layers_that_may_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"key {i:03}" for i in range(300)]
    parts = [Columns(keys, None, (array("q", range(300)),), keys)]
    for number in range(6):  # adds a row to some keys
        some = keys[number::50]
        parts.append(
            Columns(some, None, (array("q", [1000 + number] * len(some)),), [number] * len(some), [ADDED] * len(some))
        )
    tables = [look_into(pack_with_table(part)[0], "", kept=True) for part in reversed(parts)]
    asked: list[Any] = []
    search = RecordTable.slot_of
    monkeypatch.setattr(RecordTable, "slot_of", lambda self, *given: (asked.append(self), search(self, *given))[1])
    layers, whole = Layers(tables, [bytes([i]) for i in range(7)]), with_layers(parts[0], parts[1:])
    for key in [*keys, "key 300"]:
        assert packed(content(layers.rows_of(key))) == packed(content(whole.between(key, key)))
    assert len(asked) < 1.3 * len(keys)
    assert layers.bytes_in_memory > 0


@pytest.mark.parametrize("pack", [pack_block, pack_with_table])
@pytest.mark.parametrize(
    ("froms", "hide"), [(None, 2), ([WHOLE, WHOLE], 2), ([ADDED, ADDED], 0), ([ADDED, 5], 1), ([5, 5], 2)]
)
def test_a_layer_counts_the_keys_that_hide_older_records(pack: Any, froms: list[int] | None, hide: int) -> None:
    stored = [pack(Columns(["a", "b"], None, (array("q", [7, 8]),), [1, 2], each))[0] for each in (froms, None)]
    look = Layers([look_into(data, "it", kept=False) for data in stored], list(map(content_hash, stored)))
    assert look.hiding == [2, hide]  # the oldest first


@pytest.mark.parametrize("pack", [pack_block, pack_with_table])
@pytest.mark.parametrize(
    ("most", "code"), [(0, "B"), (255, "B"), (256, "H"), (65535, "H"), (65536, "I")], ids=lambda value: str(value)
)
def test_counts_are_as_narrow_as_the_greatest_allows(pack: Any, most: int, code: str) -> None:
    block = Columns(["a", "b"], [most, 2], (), [None] * (most + 2))
    data = pack(block)[0]
    stored = array(code, [most, 2]).tobytes()
    assert b"\xc4" + bytes([len(stored)]) + stored in data
    assert unpack_block(data, "it").same_as(block)


@pytest.mark.parametrize("size", [0, 1, 3, 5, 7, 16])
def test_counts_of_another_length_are_damage(size: int) -> None:
    data = seal(packed([["a", "b"], bytes(size), [], []]))
    with pytest.raises(CorruptCheckpointError, match="it: block cannot be read: "):
        unpack_block(data, "it")


@pytest.mark.parametrize(("tables", "far"), [(False, True), (True, False)])
def test_random_changes_cost_a_few_times_their_bytes_and_layers_stay_few(
    tmp_path: Path, tables: bool, far: bool
) -> None:
    r = random.Random(7)
    line = Line(None if far else LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:05d}": r.randbytes(40) for i in range(4000)}, set())
    written = changed_bytes = 0
    for number in range(60):
        changed = {f"key {r.randrange(4200):05d}": r.randbytes(40) for _ in range(200)}
        removed = set(r.sample(sorted(line.rows), 20)) - changed.keys()
        written += line.checkpoint(changed, removed).bytes_packed
        changed_bytes += sum(len(key) + len(value) + 3 for key, value in changed.items())
        assert line.reader is not None
        for entry in line.entries() if STRESS or number % 6 == 5 else ():
            block = line.reader.block(1, entry)
            assert (entry.first, entry.last, entry.records) == (block.keys[0], block.keys[-1], len(block))
            most = 10 * (1 if far else MOST_LOAD) * entry.size
            assert 8 * sum(layer.size for layer in entry.layers) * LAYERED_SHARE <= most
            assert len(entry.layers) < 3 * LAYERS
    loaded = {}
    for entry in line.entries():
        block = line.reader.block(1, entry)
        loaded.update(zip(block.keys, block.values, strict=True))
        look = line.reader.look(1, entry)
        assert isinstance(look, Layers) is bool(entry.layers)
        for key in [f"key {i:05d}" for i in range(int(entry.first[4:]), int(entry.last[4:]) + 1)]:
            assert look.rows_of(key).values == ([line.rows[key]] if key in line.rows else [])
            assert look.record_of(key) == ((line.rows[key],) if key in line.rows else None)
            assert look.counts_of([key]) == look.present([key]) == [key in line.rows]
    assert loaded == line.rows
    # a rewrite of each block with a change would write 40 times as much
    assert written < (8 if tables else 6) * changed_bytes
    assert any(entry.layers for entry in line.entries())
    assert all(type(line.reader._look_at(1, e, e.extents[0])) is RecordTable for e in line.entries()) is tables


def most_of(loads: list[float]) -> set[int]:
    """Which of blocks of one byte are rewritten where there is room for all."""
    return most_layered(loads, [1] * len(loads), len(loads))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, MOST_LOAD)))
def test_the_blocks_with_most_layers_are_rewritten_until_the_others_have_few(loads: list[float]) -> None:
    most = most_of(loads)
    rest = [load for at, load in enumerate(loads) if at not in most]
    few, at_once = (len(loads) + 1) / 2, max(1, len(loads) // AT_ONCE)
    assert bool(most) is (sum(loads) > (len(loads) + at_once) / 2)
    if most:
        assert sum(rest) <= few + 1e-9
        least = min(loads[at] for at in most)
        assert least >= max(rest, default=0)
        assert len(most) >= at_once
        assert len(most) == at_once or sum(rest) + least > few - 1e-9
        # where there is less room, fewer of the same
        for room in range(len(most)):
            fewer = most_layered(loads, [1] * len(loads), room)
            assert len(fewer) == room
            assert fewer <= most


def test_a_block_that_changes_alone_is_rewritten_at_a_load_of_one() -> None:
    assert most_of([1.0]) == set()
    assert most_of([1.01]) == {0}
    # of blocks that are rewritten three at once none is due, and then those with most layers
    assert most_of([i / 24 for i in range(2, 26)]) == set()
    assert most_of([i / 24 for i in range(3, 27)]) == set(range(21, 24))
    assert most_of([0.7] * 24) == set(range(7))
    assert most_of([i / 64 for i in range(5, 69)]) == set(range(56, 64))


@pytest.mark.parametrize(("tables", "together"), [(False, 5), (True, 64)])
def test_few_of_the_blocks_that_change_equally_much_are_rewritten_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: bool, together: int
) -> None:
    monkeypatch.setattr(planner, "TOGETHER", together)
    r = random.Random(7)
    line = Line(LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:05d}": r.randbytes(40) for i in range(24 * 256)}, set())
    before, most, rewritten = {entry.hash for entry in line.entries()}, 0, 0
    for turn in range(60):
        # deletions, too: layers of few bytes
        keys = [f"key {i:05d}" for i in range(turn % 32, 24 * 256, 32)]
        line.checkpoint({key: r.randbytes(40) for key in keys[::2]}, set(keys[1::2]))
        bases = {entry.hash for entry in line.entries()}
        most, rewritten = max(most, len(bases - before)), rewritten + len(bases - before)
        before = bases
    # all within two or three checkpoints, if each were rewritten when its layers have so much of its base
    assert rewritten >= 24
    assert most <= (4 if together > 24 else 5)
    assert line.reader is not None
    blocks = [line.reader.block(1, entry) for entry in line.entries()]
    assert {key: value for block in blocks for key, value in zip(block.keys, block.values, strict=True)} == line.rows


@pytest.mark.parametrize("tables", [False, True])
def test_layers_become_one_where_the_first_of_them_is_copied(tmp_path: Path, tables: bool) -> None:
    r = random.Random(7)
    line = Line(LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:03d}": r.randbytes(40) for i in range(200)}, set())
    copied, layers = 0, 0
    while not copied:  # until small packs are merged: fewer layers than become one otherwise
        deleted = {f"key {r.randrange(1, 199):03d}"}
        copied = line.checkpoint(
            {f"key {r.randrange(1, 199):03d}": r.randbytes(40) for _ in range(3)}, deleted
        ).bytes_copied
        assert line.reader is not None
        (entry,) = line.entries()
        assert len(entry.layers) < LAYERS
        layers, before = len(entry.layers), layers
    assert (before, layers) == (7, 2)
    assert entry.layers[0].size == copied > 4 * entry.layers[1].size
    block, look = line.reader.block(1, entry), line.reader.look(1, entry)
    assert dict(zip(block.keys, block.values, strict=True)) == line.rows
    assert all(
        look.rows_of(f"key {i:03d}").values == [*filter(None, [line.rows.get(f"key {i:03d}")])] for i in range(200)
    )
    assert [len(keys) for keys in (block.keys, set(block.keys))] == [entry.keys, entry.records]


@pytest.mark.parametrize("room", [False, True])
def test_open_tables_of_layers_stay_for_the_next_checkpoint_where_they_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    monkeypatch.setattr(SMALL, "most", SMALL.tables + 100 if room else 0)
    line = Line(LocalStorage(tmp_path), tables=True)
    line.checkpoint({f"key {i:03d}": b"x" * 300 for i in range(250)}, set())
    opened: dict[Extent, Any] = {}
    stay: list[bool] = []
    for number in range(1, 8):
        line.checkpoint({f"key {number:03d}": b"y"}, set())
        assert line.reader is not None
        (entry,) = line.entries()
        look = line.reader.look(1, entry)
        assert isinstance(look, Layers)
        layers = dict(zip(entry.layers, look._parts[-2::-1], strict=True))
        stay += [layers[place] is opened[place] for place in layers.keys() & opened.keys()]  # others have moved
        opened = layers
    assert len(stay) > 3
    assert stay == [room] * len(stay)


def test_a_new_checkpoint_enters_its_layer_into_the_index_of_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SMALL, "most", 0)  # layers may push no base out
    entered: list[tuple[int, int]] = []
    enter = layer_index._enter

    def counted(entries: bytearray, shift: int, hashes: list[int], number: int) -> None:
        entered.append((number, len(hashes)))
        enter(entries, shift, hashes, number)

    monkeypatch.setattr(layer_index, "_enter", counted)
    line = Line(LocalStorage(tmp_path), tables=True)
    line.checkpoint({f"key {i:03d}": b"x" * 300 for i in range(250)}, set())
    for number in range(1, 5):
        line.checkpoint({f"key {number:03d}": b"y"}, set())
        assert line.reader is not None
        (entry,) = line.entries()
        look = line.reader.look(1, entry)
        for key in range(6):
            assert look.record_of(f"key {key:03d}") == (b"y" if 1 <= key <= number else b"x" * 300,)
    assert entered == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("tables", [False, True])
def test_a_checkpoint_of_few_changes_decodes_no_value_of_their_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: bool
) -> None:
    line = Line(LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:03d}": b"x" * 40 for i in range(100)}, set())
    line.checkpoint({"key 020": b"y", "key 021": b"y"}, {"key 022"})
    with monkeypatch.context() as patch:
        for reading in ("block", "parts"):
            patch.setattr(CheckpointReader, reading, lambda *_: pytest.fail("the block was decoded"))
        line.checkpoint({"key 020": b"z", "key 300": b"z"}, {"key 021", "key 023"})
    (entry,) = line.entries()
    assert line.reader is not None
    block = line.reader.block(1, entry)
    assert dict(zip(block.keys, block.values, strict=True)) == line.rows
    assert (len(entry.layers), entry.keys, entry.first, entry.last) == (2, 98, "key 000", "key 300")


@pytest.mark.parametrize("tables", [False, True])
def test_keys_behind_a_block_that_is_not_small_get_a_block_of_their_own(tmp_path: Path, tables: bool) -> None:
    line = Line(LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:04d}": b"x" * 40 for i in range(200)}, set())
    before = line.entries()
    line.checkpoint({f"key {i:04d}": b"y" * 40 for i in range(200, 230)}, {"key 0300"})
    assert line.entries()[:1] == before
    line.checkpoint({"key 0007": b"z", "key 0230": b"z"}, {"key 0210"})
    assert [(len(entry.layers), entry.first, entry.last) for entry in line.entries()] == [
        (1, "key 0000", "key 0199"),
        (1, "key 0200", "key 0230"),
    ]
    written, changed_bytes, pack = 0, 0, pack_with_table if tables else pack_block
    for turn in range(60):
        changed = {f"key {1000 + 50 * turn + i}": b"x" * 40 for i in range(50)}
        written += line.checkpoint(changed, set()).bytes_packed
        changed_bytes += len(pack(Columns(list(changed), None, (), list(changed.values())))[0])
    assert written < 2.5 * changed_bytes
    assert line.reader is not None
    loaded = {}
    for entry in line.entries():
        block = line.reader.block(1, entry)
        loaded.update(zip(block.keys, block.values, strict=True))
    assert loaded == line.rows
    assert len(line.entries()) < 2 * len(line.rows) // 128


@pytest.mark.parametrize("tables", [False, True])
def test_a_block_that_loses_its_first_key_gets_a_layer(tmp_path: Path, tables: bool) -> None:
    line = Line(LocalStorage(tmp_path), tables=tables)
    line.checkpoint({f"key {i:03d}": b"x" * 40 for i in range(200)}, set())
    line.checkpoint({}, {"key 000"})
    (entry,) = line.entries()
    assert (len(entry.layers), entry.keys, entry.first) == (1, 199, "key 001")


def test_a_block_whose_last_key_loses_all_rows_is_decoded_for_its_line() -> None:
    block = columns({"a": [(5, 1)], "b": [(5, 1), (9, 1)], "c": [(5, 1)]})
    line = entry_of(1, 0, block, Extent(1, 24, 100, bytes(16)))

    def counted(key: str) -> Any:
        change = BucketChange(Columns([key], [0], (array("q"),), [], [3]), set(), False)
        return planner._counted(line, change, Whole(block))

    assert counted("a") is None
    assert counted("b") == line._replace(keys=2, records=2)
    assert counted("c") is None


def test_the_layers_of_a_far_block_are_read_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(tables=True)
    line.checkpoint({f"key {i:03d}": b"x" * 40 for i in range(200)}, set())
    for i in range(3):
        line.checkpoint({f"key {i:03d}": b"y"}, set())
    (entry,) = line.entries()
    assert len(entry.layers) == 3
    reader = line.reader
    assert reader is not None
    assert reader.far
    apart: list[str] = []
    monkeypatch.setattr("recovery.pack.StoredPack.read", lambda self, *_: apart.append(self._name) or b"")
    assert reader.block(1, entry).values[:4] == [b"y", b"y", b"y", b"x" * 40]
    assert reader.look(1, entry).rows_of("key 001").values == [b"y"]
    assert apart == []


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_what_a_base_has_of_deleted_and_shortened_records_does_not_stay(tables: bool, short: bool) -> None:
    r = random.Random(7)
    line = Line(tables=tables)
    line.checkpoint({f"key {i:04d}": r.randbytes(1000) for i in range(1000)}, set())
    keys = r.sample(sorted(line.rows), 980)
    for at in range(0, 980 * (1 + short), 49):
        some = keys[at % 980 :][:49]
        line.checkpoint(dict.fromkeys(some, b"x") if short else {}, set() if short else set(some))
    assert line.reader is not None
    size = sum(len(key) + len(value) for key, value in line.rows.items())
    assert sum(entry.bytes for entry in line.entries()) < 4 * size


def test_more_keys_than_a_table_has_are_written_and_deleted_between_two_checkpoints() -> None:
    line = Line(tables=True)
    line.checkpoint({f"key {i:05d}": b"x" for i in range(200)}, set())
    line.checkpoint({"key 00007": b"y"}, {f"key {i:05d}" for i in range(200, 201 + MOST_KEYS)})
    assert line.reader is not None
    (entry,) = line.entries()
    assert dict(zip(line.reader.block(1, entry).keys, line.reader.block(1, entry).values, strict=True)) == line.rows


@pytest.mark.parametrize("tables", [False, True])
def test_a_checkpoint_reads_a_far_block_once(monkeypatch: pytest.MonkeyPatch, tables: bool) -> None:
    line = Line(tables=tables)
    line.checkpoint({f"key {i:03d}": b"x" * 40 for i in range(200)}, set())
    (entry,) = line.entries()
    reads, get_ranges = [], line.storage.get_ranges

    def counted(name: str, ranges: Any) -> Any:
        reads.extend(ranges)
        return get_ranges(name, ranges)

    monkeypatch.setattr(line.storage, "get_ranges", counted)
    line.checkpoint({"key 100": b"y"}, set())
    assert len(line.entries()[0].layers) == 1
    assert reads.count((entry.offset, entry.size)) == 1


def test_an_emptied_block_has_no_line() -> None:
    line = Line(tables=False)
    line.checkpoint({f"key {i:03d}": b"x" * 40 for i in range(100)}, set())
    for start in range(0, 100, 10):
        line.checkpoint({}, {f"key {i:03d}" for i in range(start, start + 10)})
    assert line.entries() == []


def opened(path: Path, **options: Any) -> hs.State:
    return hs.open(path, durability="os", _tuning=Tuning(block_records=64, parts=SMALL_PARTS), **options)


@pytest.fixture
def layered(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A state whose second checkpoint has a layer, and its content."""
    rows = {f"key {i:03d}": f"value {i}" for i in range(50)}
    with opened(tmp_path) as state:
        kv = state.key_value("kv")
        for changed in (rows, {"key 007": "seven"}):
            kv.put_many(changed)
            rows = rows | changed
            state.commit()
            if len(changed) == 1:
                kv.delete("key 008")
                state.commit()
                del rows["key 008"]
            state.checkpoint(wait=True)
    return tmp_path, rows


def test_a_state_is_restored_from_layers(layered: tuple[Path, dict[str, str]]) -> None:
    path, rows = layered
    reader = reader_of(path, 3)
    (entry,) = reader.directory(1)
    reader.close()
    assert (len(entry.layers), entry.records) == (1, 49)
    assert list(verify(path, decode=True)) == []
    for options in ({}, {"lazy": False}, {"memory_limit": 1 << 40}):
        with opened(path, **options) as state:
            kv = state.key_value("kv")
            assert (kv.get("key 007"), kv.get("key 008"), kv.get("key 009")) == ("seven", None, "value 9")
            assert (len(kv), dict(kv.all())) == (49, rows)


@pytest.mark.parametrize("options", [{}, {"memory_limit": 1 << 40}])
def test_a_damaged_layer_is_met_and_verify_names_it(
    layered: tuple[Path, dict[str, str]], options: dict[str, Any]
) -> None:
    path, rows = layered
    reader = reader_of(path, 3)
    ((layer,),) = [entry.layers for entry in reader.directory(1)]
    reader.close()
    pack_file = next(file for file in own_packs(path, 3) if file.stat().st_size > layer.offset + layer.size)
    flip(pack_file, layer.offset + layer.size - 2)
    (fault, *_) = verify(path)
    assert (Path(fault.file).name, fault.offset) == (pack_file.name, layer.offset)
    with opened(path, **options) as state, pytest.raises(CorruptCheckpointError, match="checksum mismatch"):
        state.key_value("kv").get("key 009")
    with opened(path, **options) as state:
        assert state.restore_report.checkpoint_version == 1
        assert dict(state.key_value("kv").all()) == rows


def test_packs_that_keep_too_many_tables_forget_some_of_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = []
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(b"x")
        packs.append(_map(tmp_path / name, 1))
    unused, *used = packs
    monkeypatch.setattr(LARGE, "most", LARGE.tables + 60)
    monkeypatch.setattr(SMALL, "most", SMALL.tables + 60)
    layers, most = SMALL.tables, LARGE.most
    for number in range(8):
        unused.keep(number, 100, "layer")
        unused.keep(number, 1 << 20, "base of before")
    for number in range(100):
        for opened in used:
            opened.keep(number, 1 << 20, "base")
        assert LARGE.tables <= most
    # those that are read first stay, and of a pack that is not used any more none does
    assert all(opened.table(number, 1 << 20) == "base" for opened in used for number in range(20))
    assert [unused.table(number, 1 << 20) for number in range(8)] == [None] * 8
    # layers are counted apart
    assert [unused.table(number, 100) for number in range(8)] == ["layer"] * 8
    assert SMALL.tables == layers + 8
    kept = sum(table.tables for table in (SMALL, LARGE))
    of_packs = sum(len(tables) for opened in packs for tables in opened.tables)
    del opened, unused, used, packs
    assert sum(table.tables for table in (SMALL, LARGE)) == kept - of_packs
