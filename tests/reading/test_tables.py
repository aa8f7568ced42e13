"""Records as Arrow batches: what `records` gives, typed where the rows allow it, and nothing is lost in silence."""

from __future__ import annotations

import gc
import json
import random
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridstore as hs
from changelog.codec import pack
from hybridstore.cli import run
from hybridstore.inspection.api import InspectedState, InspectedStore
from hybridstore.reading.differences import compare
from hybridstore.reading.selection import EVERYTHING
from hybridstore.reading.tables import laid_piece, named, piece_of, stream_of
from hybridstore.reading.tally import tallies
from hybridstore.reading.texts import format_key, plain, to_json
from hybridstore.state.opening import Tuning
from hybridstore.stores.kinds import Row
from recovery.block import composed, pack_block, seal, with_layers
from recovery.checkpoint import CheckpointReader
from recovery.columns import Columns
from recovery.packed import packed_block
from tests.conftest import STRESS
from tests.reading.test_version import TUNING, one_commit


def look(path: Path, store: str, at: int | None = None) -> InspectedStore:
    state = hs.inspect(path, at)
    assert isinstance(state, InspectedState)
    return state[store]


@pytest.mark.parametrize("rows_per_batch", [1, 7, 65_536])
def test_batches_have_the_records_of_every_kind(tmp_path: Path, rows_per_batch: int) -> None:
    often = hs.CheckpointPolicy(every_commits=2)
    with hs.open(tmp_path, checkpoints=often) as state:
        users = state.key_value("users")
        clicks = state.window("clicks", retention="1 day")
        visits = state.session("visits", retention="1 day")
        for number in range(40):
            users[f"user-{number:02}"] = {"n": number, "tags": ["a"] * (number % 3)}
            clicks.put(number % 5, number / 4, number * 1000)
            visits.put(number % 5, None if number % 7 == 0 else "x", start=number * 1000, end=number * 1000 + 10)
            state.commit()
        state.checkpoint(wait=True)
        del users["user-07"]
        state.commit()
    for name, more in (
        ("users", {"prefix": "user-1"}),
        ("clicks", {"key_from": 2, "time_from": 9000}),
        ("visits", {}),
    ):
        store = look(tmp_path, name)
        rows = list(store.scan(**more))
        read = store.arrow(rows_per_batch=rows_per_batch, **more).read_all().to_pylist()
        assert read == [{"key": row.key, **times(store, row), "value": row.value} for row in rows]
        assert len(rows) > 5
    assert look(tmp_path, "clicks").arrow(["value", "ts"]).schema == pa.schema(
        [("value", pa.float64()), ("ts", pa.int64())]
    )


def times(store: InspectedStore, row: Row) -> dict[str, int]:
    at = dict(zip(store.columns, row.times, strict=True))
    return {name: at[name] for name in sorted(at, key=lambda name: name == "end")}


def test_a_store_as_pandas_in_a_line(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("users").put_many({"ann": 1, "bob": 2})
        state.commit()
    assert look(tmp_path, "users").arrow().read_pandas()["value"].sum() == 3


def test_an_empty_store_has_its_columns(tmp_path: Path) -> None:
    with hs.open(tmp_path) as state:
        state.session("visits", retention="1 day")
        state.commit()
    assert look(tmp_path, "visits").arrow().read_all().column_names == ["key", "start", "end", "value"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5], pa.string()),
        ([(1, 2), (3, 4)], pa.string()),
        ([2**70, 1], pa.string()),
        (["a", "\ud800"], pa.string()),
        ([["", b"\x80"]], pa.string()),
        ([{"a": b""}, {"a": ""}], pa.string()),
        ([{"a": b"x", "b": ["y"]}], pa.struct([("a", pa.binary()), ("b", pa.list_(pa.string()))])),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([None, 1], pa.int64()),
        ([[1], [], None], pa.list_(pa.int64())),
    ],
)
def test_types_of_a_first_batch(values: list[Any], kind: pa.DataType) -> None:
    table = stream_of((), (Row("k", (), value) for value in values)).read_all()
    assert table.schema.field("value").type == kind
    if kind == pa.string():
        assert table["value"].to_pylist() == [to_json(plain(value)) for value in values]


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2.5), (1, "a"), ({"a": 1}, {"b": 2}), ([1], ["x"]), (1, 2**70), ([{"a": 1}], [{"b": 1}]), ("a", 1)],
)
def test_a_later_row_of_another_type_is_refused_and_not_cut(first: Any, second: Any) -> None:
    rows = [Row("k", (), first), Row("l", (), second)]
    with pytest.raises(ValueError, match=r"expected .* as in the rows before \(text=True"):
        stream_of((), iter(rows), rows_per_batch=1).read_all()
    texts = stream_of((), iter(rows), text=True, rows_per_batch=1).read_all()
    assert [json.loads(text) for text in texts["value"].to_pylist()] == [first, second]


def test_text_of_a_first_batch_of_several_types_is_json_in_every_batch() -> None:
    rows = [Row(key, (), value) for key, value in [("a", 1), (2, "x"), ("b", "y"), ("c", "z"), (3, 4), (4, None)]]
    table = stream_of((), iter(rows), rows_per_batch=2).read_all()
    assert table["value"].to_pylist() == [to_json(row.value) for row in rows]
    assert table["key"].to_pylist() == [format_key(row.key) for row in rows]


def test_text_with_nulls_is_text_in_every_batch() -> None:
    values = ["a", None, "b", None, None, "c"]
    table = stream_of((), (Row("k", (), value) for value in values), rows_per_batch=2).read_all()
    assert table["value"].to_pylist() == values


def test_the_collector_does_not_visit_the_objects_of_a_batch() -> None:
    seen = list[bool]()

    def rows() -> Iterator[Row]:
        for number in range(4):
            seen.append(gc.isenabled())
            yield Row(number, (), [number])

    for batch in stream_of((), rows(), rows_per_batch=2):
        assert gc.isenabled()
        assert batch.num_rows == 2
    assert seen == [False] * 4


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ValueError, match="columns: found 'time', expected some of key, ts, value"):
        stream_of(("ts",), iter(()), ["time"])
    with pytest.raises(ValueError, match="rows_per_batch: found 0"):
        stream_of(("ts",), iter(()), rows_per_batch=0)


ITEMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(ITEMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner))


@settings(max_examples=max(60, STRESS), deadline=None)
@given(st.lists(VALUES, max_size=6), st.integers(1, 3))
def test_whatever_is_stored_is_a_row_or_an_error(values: list[Any], size: int) -> None:
    rows = [Row(number, (), value) for number, value in enumerate(values)]
    texts = stream_of((), iter(rows), text=True, rows_per_batch=size).read_all()
    assert texts["key"].to_pylist() == [format_key(row.key) for row in rows]
    try:
        table = stream_of((), iter(rows), rows_per_batch=size).read_all()
    except ValueError:
        return
    assert table.num_rows == len(rows)
    if table.schema.field("value").type != pa.string():
        for got, row in zip(table["value"].to_pylist(), rows, strict=True):
            assert without_nulls(got) == without_nulls(row.value)


def without_nulls(value: Any) -> Any:
    """A struct has every field; those that a dict does not have are null."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if without_nulls(item) not in (None, {})}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_a_commit_is_shown_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("users").put_many({"ann": 1, "bob": 2})
        state.commit()
    (commit,) = hs.inspect(tmp_path).versions
    shown = repr(commit._replace(wall_ms=0))
    assert shown.startswith("<Commit 1, 1970-01-01T00:00:00.000Z, 3 mutations, ")  # with the declaration of the store
    assert shown.endswith(f"segment 1, digest {commit.digest.hex()[:8]}>")


def test_bytes_of_a_store_without_a_checkpoint_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("users")["ann"] = 1
        state.commit()
        assert run(["inspect", "stat", str(tmp_path), "-o", "jsonl"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["bytes"] is None
        state.checkpoint(wait=True)
        assert run(["inspect", "stat", str(tmp_path), "-o", "jsonl"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["bytes"] > 0


TEXTS = st.sampled_from(["", "a", "é", "\ud800", "x" * 31, "x" * 32, "é" * 16, "x" * 255, "x" * 300]) | st.text(
    max_size=3
)
SHAPES = st.one_of(
    TEXTS.map(lambda text: lambda _: text),
    TEXTS.map(lambda text: lambda number: f"{number % 7}{text}"),
    TEXTS.map(lambda text: lambda number: text * (number % 7)),
    st.just(float),
    st.just(lambda number: number / 3),
    st.just(lambda number: number**9 - 50),
    st.just(lambda number: number / 3 if number % 5 else float("inf")),
    st.just(lambda number: None if number % 50 == 3 else "x"),
    st.just(lambda number: number if number < 150 else "x" * (number % 3)),
    st.just(lambda number: number / 2 if number != 77 else 3),
    st.just(lambda number: f"{number:03}" if number != 140 else b"140"),
    st.just(lambda number: f"{number:03}" if number != 140 else "\ud800"),
    st.just(lambda number: bool(number % 2)),
    st.just(lambda number: (number, "a")),
    st.just(lambda number: [number, "a"]),
    st.just(lambda number: 2**63 - 1 + number % 2),
    TEXTS.map(lambda text: lambda number: {"text": text * (number % 3), "n": number * 99, "of": {"x": number / 3}}),
    st.just(lambda number: {"n": number, "note": "x" if number % 7 == 3 else None, "no": None}),
    st.just(lambda number: {"n": number, "note": "x" if number > 140 else None}),
    st.just(lambda number: {"n": number, "note": "x"} if number % 7 else {"note": "x", "m": number}),
    st.just(lambda number: {"n": number} if number != 70 else {"n": number, "m": 1}),
    st.just(lambda number: {"n": number, "of": {"x": number} if number % 3 else {}}),
    st.just(lambda number: {"n": number if number != 140 else 0.5}),
    st.sampled_from([0, 7, 8, 15, 16, 31, 32, 62, 63]).map(
        lambda bits: lambda number: {"n": (1 << bits) + number, "of": number - (1 << bits), "x": 5 * number}
    ),
    st.just(lambda number: {"n": [number], "of": [{"x": 1}, {}][: number % 3]}),
)


@settings(max_examples=40, deadline=None)
@given(
    SHAPES,
    st.sampled_from(
        [lambda n: f"{n:05}", lambda n: f"{n}", int, lambda n: n / 4, lambda n: ("a", n), lambda n: b"%d" % n]
    ),
    st.sampled_from([64, 65_536]),
    st.sets(st.integers(0, 199), max_size=3),
    st.booleans(),
)
def test_blocks_of_any_shape_are_what_their_rows_are(
    value: Any, key: Any, size: int, changed: set[int], limited: bool
) -> None:
    """Blocks that are read as they are packed give what the same rows give one by one: values, types and refusals."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        limit = 1 << 20 if limited else None  # blocks then have tables
        with hs.open(path, memory_limit=limit, _tuning=Tuning(block_records=64)) as state:
            store = state.key_value("kv", ttl="1 day") if size == 64 else state.key_value("kv")
            times = {"ts": 5} if size == 64 else {}
            for number in range(200):
                if value(number) is not None:
                    store.put(key(number), value(number), **times)
            state.commit()
            state.checkpoint(wait=True)
            for number in changed:
                store.put(key(number), "changed", **times)
            store.put(key(201), [], **times)
            store.delete(key(201))
            state.commit()
        read = look(path, "kv")
        rows = list(read.scan())
        assert len(rows) > 150
        for text in (False, True):
            how: dict[str, Any] = {"text": text, "rows_per_batch": size}
            assert table_or_error(read.arrow, **how) == table_or_error(stream_of, read.columns, iter(rows), **how)


KEYS: dict[str, Callable[[int], Any]] = {
    "texts": lambda number: f"{number:03}",
    "texts of several lengths": lambda number: "ä" * (number % 5) + f"{number}",
    "bytes": lambda number: b"%d" % number,
    "numbers": lambda number: number * 2**40 - 2**45,
    "tuples": lambda number: ("a", number),
    "floats": lambda number: number / 4,
}
LAYERS = st.lists(st.dictionaries(st.integers(0, 40), st.booleans(), min_size=1, max_size=12), min_size=1, max_size=3)


@settings(deadline=None)
@given(
    st.sets(st.integers(0, 40), min_size=1),
    LAYERS,
    st.sampled_from(sorted(KEYS)),
    st.sampled_from([str, float, int, lambda n: [n], lambda n: "y" * n, lambda n: {"n": n, "x": f"{n}"}]),
    st.sampled_from([str, float, lambda n: {"n": n, "x": ""}, lambda n: {"n": n} if n % 3 else {"n": n, "x": "y"}]),
    st.integers(0, 2),
)
def test_a_piece_with_layers_over_it_is_the_block_with_these_layers(
    base: set[int], layers: list[dict[int, bool]], key: str, value: Any, other: Any, times: int
) -> None:
    def columns(records: dict[int, bool], value: Any) -> Columns:
        keys = sorted(KEYS[key](number) for number in records)
        by_key = {KEYS[key](number): number for number in records}
        live = [by_key[each] for each in keys if records[by_key[each]]]
        counts = [int(records[by_key[each]]) for each in keys]
        ints = tuple(array("q", [column - number for number in live]) for column in range(times))
        return Columns(keys, None if all(counts) else counts, ints, [value(number) for number in live])

    block = columns(dict.fromkeys(base, True), value)
    packed = packed_block(pack_block(block)[0])
    assert packed is not None
    piece = piece_of(packed)
    assert piece is not None
    laid = [columns(layer, value if number else other) for number, layer in enumerate(layers)]
    expected = with_layers(block, laid)
    read = laid_piece(piece, composed(laid))
    assert read is not None
    rows = [each if type(each) is list else each.to_pylist() for each in (read[0], read[2])]
    assert [*map(repr, rows)] == [repr(expected.keys), repr(expected.values)]
    assert [*read[1]] == [*expected.ints]


def test_layers_with_several_records_for_a_key_are_for_the_other_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = ["a", "b"], [array("q", [1, 2])], ["x", "y"]
    layer = Columns(["b"], None, (array("q", [3]),), ["z"])
    several = Columns(["b"], [2], (array("q", [3, 4]),), ["z", "z"])
    added = Columns(["b"], None, (array("q", [3]),), ["z"], [0])
    assert laid_piece(piece, several) is None
    assert laid_piece(piece, added) is None
    assert laid_piece((pa.array([1, 2]), *piece[1:]), layer) is None  # keys of two types
    assert laid_piece(piece, layer) is not None
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert laid_piece(piece, layer) is None


@pytest.mark.parametrize("limit", [None, 1 << 20], ids=["all in memory", "limit"])
def test_blocks_with_layers_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    """Incremental checkpoints lay a few records over older blocks, and so does the changelog behind a checkpoint."""
    with hs.open(tmp_path, memory_limit=limit, checkpoints=hs.CheckpointPolicy(every_commits=None)) as state:
        store, days = state.key_value("kv"), state.key_value("days", ttl="1 day")
        for number in range(5_000):
            store[f"{number:06}"] = "x" * (number % 40)
            days.put(number * 7, number / 2, ts=number)
        state.commit()
        state.checkpoint(wait=True)
        for step in range(3):
            for number in range(step, 5_000, 500):
                store[f"{number:06}"] = f"changed {step}"
                store[f"{number:06} new"] = ""
                store.delete(f"{number + 9:06}")
                days.put(number * 7 + step, -1.5, ts=6_000)
                days.delete((number + 9) * 7)
            state.commit()
            if step < 2:
                state.checkpoint(wait=True)
    for name in ("kv", "days"):
        seen = look(tmp_path, name)
        assert any(entry.layers for entry in seen._store.entries)
        expected = [list(named(row, seen.columns).values()) for row in seen.scan()]
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointReader, "block", None)
            read = seen.arrow().read_all()
        assert [list(row.values()) for row in read.to_pylist()] == expected
        text = look(tmp_path, name).arrow(text=True).read_all().to_pylist()
        assert [row["key"] for row in text] == [format_key(row[0]) for row in expected]


@pytest.mark.parametrize(
    "answer",
    [seal(pack([None, None, [], []])), seal(pack(5)), b"", OSError("no disk")],
    ids=["no keys", "no block", "no bytes", "no disk"],
)
def test_a_block_that_cannot_be_read_is_a_fault_as_in_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | OSError
) -> None:
    with hs.open(tmp_path) as state:
        state.key_value("kv").put_many({f"{number:03}": number / 2 for number in range(100)})
        state.commit()
        state.checkpoint(wait=True)
        state.key_value("kv")["later"] = 1.5
        state.commit()
    scanned, read = hs.inspect(tmp_path), hs.inspect(tmp_path)
    assert isinstance(scanned, InspectedState)
    assert isinstance(read, InspectedState)
    assert len(scanned["kv"].arrow().read_all()) == len(list(read["kv"].scan())) == 101  # the directory is in memory

    def given_bytes(*_: Any) -> bytes:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(CheckpointReader, "_bytes", given_bytes)
    assert [row.key for row in scanned["kv"].scan()] == ["later"]
    assert read["kv"].arrow().read_all().to_pylist() == [{"key": "later", "value": 1.5}]
    assert len(read.faults) == 1
    assert read.faults == scanned.faults


def table_or_error(stream: Callable[..., pa.RecordBatchReader], *given: Any, **more: Any) -> Any:
    try:
        table = stream(*given, **more).read_all()
    except ValueError as error:
        return str(error)
    return table.schema, [batch.num_rows for batch in table.to_batches()], repr(table.to_pylist())


@pytest.mark.stress
def test_arrow_is_a_scan_at_every_version(tmp_path: Path, seed: int, rounds: int) -> None:
    """Stores of every kind with blocks, layers and a tail over them, at random versions, within random bounds."""
    for number in range(rounds):
        dice, path = random.Random(f"{seed} {number}"), tmp_path / str(number)
        with hs.open(path, checkpoints=hs.CheckpointPolicy(every_commits=None, keep=100), _tuning=TUNING) as state:
            for clock in range(0, 600, 10):
                one_commit(state, dice, clock)
                if dice.random() < 0.3:
                    state.key_value("kv").delete(f"k{dice.randrange(12)}")
                if dice.random() < 0.15:
                    state.commit()
                    state.checkpoint(wait=True)
            newest = state.commit()
        for version in dice.sample(range(1, newest + 1), 50):
            look = hs.inspect(path).at(version)
            assert isinstance(look, InspectedState)
            for store in look.values():
                bounds: dict[str, Any] = {}
                if dice.random() < 0.6:
                    bounds["key_from"], bounds["key_to"] = sorted(f"k{dice.randrange(12)}" for _ in range(2))
                elif dice.random() < 0.5:
                    bounds["prefix"] = "k1"
                if dice.random() < 0.4:
                    bounds["time_from"] = dice.randrange(600)
                if dice.random() < 0.4:
                    bounds["time_to"] = dice.randrange(600)
                expected = [list(named(row, store.columns).values()) for row in store.scan(**bounds)]
                table = store.arrow(rows_per_batch=dice.choice([1, 5, 1000]), **bounds).read_all()
                assert [list(row.values()) for row in table.to_pylist()] == expected
            assert look.faults == []


def test_rows_with_duplicates_written_behind_a_checkpoint_hide_none_of_their_block(tmp_path: Path) -> None:
    """Such rows are captured as added to those of the block, since all of these have to stay."""
    with hs.open(tmp_path, _tuning=Tuning(bucket_divisor=4)) as state:
        clicks = state.window("clicks", retention=1000, retain_duplicates=True)
        clicks.put_many([("a", 1, 1800), ("b", 2, 1810)])
        state.commit()
        state.checkpoint(wait=True)
        clicks.put_many([("a", 3, 1805), ("a", 4, 1805), ("c", 5, 1805)])
        state.commit()
        rows = [(key, (ts,), value) for (key, ts), value in clicks.all()]
    store = look(tmp_path, "clicks")
    assert [tuple(row) for row in store] == [tuple(row) for row in list(store.scan(reverse=True))[::-1]] == rows
    assert len(store) == store.arrow().read_all().num_rows == 5
    assert [row.value for row in store.get("a")] == [row.value for row in store.scan(prefix="a")] == [1, 3, 4]
    assert [row.value for row in store.scan(time_from=1801)] == [3, 4, 5, 2]
    assert [tally.records for tally in tallies(store._store)] == [3, 1, 1]
    assert [tally.key for tally in tallies(store._store, EVERYTHING._replace(reverse=True))] == ["c", "b", "a"]
    differences = compare(look(tmp_path, "clicks", at=1)._store, store._store)
    assert [(each.change, each.key, each.new) for each in differences] == [("added", "a", [3, 4]), ("added", "c", 5)]


@pytest.mark.parametrize("value", [lambda n: {"n": n, "text": "x" * 100}, lambda n: ["x" * 100, f"{n}"]])
def test_the_memory_of_a_table_is_that_of_a_batch(tmp_path: Path, value: Callable[[int], Any]) -> None:
    with hs.open(tmp_path, _tuning=Tuning(block_records=500)) as state:
        state.key_value("users").put_many({f"{number:06}": value(number) for number in range(40_000)})
        state.commit()
        state.checkpoint(wait=True)
    most, before = 0, pa.total_allocated_bytes()
    tracemalloc.start()
    for batch in look(tmp_path, "users").arrow(rows_per_batch=1000):
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    objects = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = look(tmp_path, "users").arrow().read_all().nbytes
    assert most < whole / 8
    assert objects < whole / 4


def test_a_range_of_keys_reads_its_blocks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.open(tmp_path, _tuning=Tuning(block_records=64)) as state:
        users = state.key_value("users")
        users.put_many({f"{number:06}": number for number in range(50_000)})
        state.commit()
        state.checkpoint(wait=True)
        users["000000"] = -1
        state.commit()
    store, read = look(tmp_path, "users"), dict[int, int]()
    for reading in (CheckpointReader.block, CheckpointReader.packed):

        def noted(*given: Any, reading: Callable[..., Any] = reading) -> Any:
            read[given[2].block] = given[2].bytes
            return reading(*given)

        monkeypatch.setattr(CheckpointReader, reading.__name__, noted)
    assert len(store.arrow(key_from="025000", key_to="025499").read_all()) == 500
    of_range = sum(read.values())
    read.clear()
    assert len(store.arrow().read_all()) == 50_000
    assert of_range <= 0.02 * sum(read.values())
