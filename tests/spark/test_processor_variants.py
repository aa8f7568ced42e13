"""What Spark's processors may do, and Spark's operator allows: rows, keys of the initial state, iterators, a ttl."""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as t

from changelog.codec import pack, unpack
from hybridstore.spark.arrow_schema import arrow_schema
from hybridstore.spark.connect import grouping
from hybridstore.spark.contract import Batch
from hybridstore.spark.frame_processor import FrameProgram
from hybridstore.spark.frames import FrameReader, FrameSettings
from hybridstore.spark.processor_state import Handle
from hybridstore.spark.state_values import StateValues, schema_text
from hybridstore.spark.stateful_processor import ProcessorProgram, in_groups, rows_by_key
from hybridstore.state.group import StoreGroup
from tests.tools.frame_tables import to_table

OUTPUT = pa.schema([("k", pa.string()), ("a", pa.string())])
NONE: Any = None
# the type code of an array of text, by its later name where Python warns of the earlier one
TEXT: Any = "w" if sys.version_info >= (3, 13) else "u"


class Processor:
    """A class of functions: of a row of the initial state, and of the rows of a key."""

    def __init__(self, rows: Callable[[Any, Any], Iterator[Any]], initial: Callable[..., Any] = print) -> None:
        self.rows, self.initial = rows, initial

    def init(self, handle: Any) -> None:
        self.words = handle.getListState("words", "w string")

    def handleInitialState(self, key: Any, initial: Any, timers: Any) -> None:
        self.initial(self, key, initial)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        return self.rows(self, key)

    def close(self) -> None:
        """Nothing is open."""


def processed(program: ProcessorProgram, keys: list[Any], output: Any = OUTPUT) -> list[dict[str, Any]]:
    runner = program.open(StoreGroup(lambda body: None))
    runner.begin(Batch(0, "", "", 0, 0, 1000, NONE, 1), 0, 1, NONE)
    table = pa.table({"k": pa.array(keys, pa.string())})
    rows: list[dict[str, Any]] = runner.process(table, output).to_pylist()
    return rows


def test_a_list_that_is_changed_behind_its_row_is_in_the_row_as_it_was() -> None:
    def rows(processor: Processor, key: Any) -> Iterator[Any]:
        numbers: list[int] = []
        entries: dict[str, list[int]] = {}
        for number in (1, 2):
            numbers.append(number)
            entries["n"] = numbers
            yield Row(k=key[0], a=numbers, m=entries, s=Row(a=numbers))

    whole = pa.list_(pa.int64())
    output = pa.schema(
        [("k", pa.string()), ("a", whole), ("m", pa.map_(pa.string(), whole)), ("s", pa.struct([("a", whole)]))]
    )
    answers = processed(ProcessorProgram(Processor(rows), ("k",), None, "None", None, {}), ["a"], output)
    expected = ([1], [1, 2])
    assert answers == [{"k": "a", "a": each, "m": [("n", each)], "s": {"a": each}} for each in expected]


def test_a_struct_of_a_row_may_lack_the_last_fields() -> None:
    def rows(processor: Processor, key: Any) -> Iterator[Any]:
        yield Row(k=key[0], s=Row("p", "q")(1))

    output = pa.schema([("k", pa.string()), ("s", pa.struct([("p", pa.int64()), ("q", pa.string())]))])
    answers = processed(ProcessorProgram(Processor(rows), ("k",), None, "None", None, {}), ["a"], output)
    assert answers == [{"k": "a", "s": {"p": 1, "q": None}}]


def test_a_row_with_more_fields_than_values_lacks_the_last() -> None:
    of_key = Row("k", "a")

    def rows(p: Any, key: Any) -> Iterator[Any]:
        yield of_key(key[0])
        if key[0] == "b":
            yield of_key("b", "x")
            yield Row("a", "k")("y")

    processor: Any = Processor(rows)
    program = ProcessorProgram(processor, ("k",), NONE, "None", None, {})
    assert processed(program, ["a"]) == [{"k": "a", "a": None}]
    expected = [{"k": "b", "a": None}, {"k": "b", "a": "x"}, {"k": None, "a": "y"}]
    assert processed(program, ["b"]) == expected


def test_the_key_of_initial_state_is_a_tuple_of_its_own_columns() -> None:
    def initially(p: Any, key: Any, initial: Any) -> None:
        p.words.appendValue((f"{type(key).__name__} {key!r} {initial['n']}",))

    def rows(p: Any, key: Any) -> Iterator[Any]:
        yield Row(k=str(key), a=str([word for (word,) in p.words.get()]))

    processor: Any = Processor(rows, initially)
    initial = rows_by_key([Row(other=key, n=n) for n, key in enumerate(("a", None, "a"), 1)], [("a",), (None,), ("a",)])
    program = ProcessorProgram(processor, ("k",), NONE, "None", None, initial)
    program.initial_key = ("other",)
    assert processed(program, ["a", None]) == [
        {"k": "(None,)", "a": str(["tuple (None,) 2"])},
        {"k": "('a',)", "a": str(["tuple ('a',) 1", "tuple ('a',) 3"])},
    ]


def test_the_key_of_initial_state_of_frames_is_that_of_a_frame() -> None:
    def initially(p: Any, key: Any, initial: Any) -> None:
        p.words.appendValue((f"{key!r} {initial['n'].tolist()}",))

    def rows(p: Any, key: Any) -> Iterator[Any]:
        yield pd.DataFrame({"k": [str(key)], "a": [str([word for (word,) in p.words.get()])]})

    processor: Any = Processor(rows, initially)
    initial = rows_by_key([Row(other="a", n=1), Row(other="a", n=3)], [("a",), ("a",)])
    output = t.StructType().add("k", "string").add("a", "string")
    program = FrameProgram(processor, ("k",), output, "None", None, initial)
    program.schema = t.StructType().add("k", "string")
    program.initial_schema, program.initial_key = t.StructType().add("other", "string").add("n", "long"), ("other",)
    assert processed(program, ["a"]) == [{"k": "('a',)", "a": str(["('a',) [1, 3]"])}]


def test_iterators_read_the_state_when_the_first_is_asked_for() -> None:
    handle = Handle(StoreGroup(lambda body: None))
    handle.begin(0)
    items, entries = handle.getListState("l", "n long"), handle.getMapState("m", "k string", "n long")
    handle.ready()
    handle.select(("a",))
    every = [items.get(), entries.iterator(), entries.keys(), entries.values(), handle.listTimers()]
    items.appendValue((1,))
    entries.updateValue(("x",), (2,))
    handle.registerTimer(3)
    assert [list(each) for each in every] == [[(1,)], [(("x",), (2,))], [("x",)], [(2,)], [3]]
    behind = [items.get(), entries.iterator()]
    assert [next(each) for each in behind] == [(1,), (("x",), (2,))]
    items.appendValue((4,))
    entries.updateValue(("y",), (5,))
    assert [list(each) for each in behind] == [[], []]


@pytest.mark.parametrize("mode", ["None", "EventTime", "ProcessingTime"])
def test_a_ttl_needs_the_mode_processing_time(mode: str) -> None:
    handle = Handle(StoreGroup(lambda body: None), mode=mode)
    handle.getValueState("never", "n long", 0)
    if mode == "ProcessingTime":
        handle.getValueState("v", "n long", 1000)
        return
    word = "NoTime" if mode == "None" else mode
    with pytest.raises(PySparkRuntimeError, match=f"TO_ASSIGN_TTL.*timeMode={word},"):
        handle.getValueState("v", "n long", 1000)


def test_frames_may_have_numbers_and_texts_of_numbers() -> None:
    frames = [pd.DataFrame({"n": pd.Series([value], dtype=object)}) for value in ("7", 8)]
    schema, output = t.StructType().add("n", "long"), pa.schema([("n", pa.int64())])
    assert to_table(frames, schema, output, FrameSettings()).to_pylist() == [{"n": 7}, {"n": 8}]
    with pytest.raises(ValueError, match="Failed to convert the value of the column 'n'"):
        to_table([*frames, pd.DataFrame({"n": ["x"]})], schema, output, FrameSettings())


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_moments_of_object_columns_are_those_that_spark_makes_of_them(
    zone: str, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments without a zone are in UTC as objects, and in the zone of the session as datetime64, in frames of one type
    and of several, with pandas' private way to columns and without it.
    """
    from pyspark.sql.conversion import PandasToArrowConversion

    moment = datetime(2024, 6, 1, 12, 30)
    columns = [pd.Series([moment, None], dtype=object), pd.Series([pd.Timestamp(moment)], dtype=object)]
    columns.append(pd.Series([moment], dtype="datetime64[ns]"))
    schema, output = t.StructType().add("t", "timestamp"), pa.schema([("t", pa.timestamp("us", zone))])
    expected = []
    for column in columns:
        whole = t.StructType().add("_0", schema)
        of_spark = PandasToArrowConversion.convert([column.to_frame("t")], whole, timezone=zone, arrow_cast=True)
        expected.append([row["_0"] for row in of_spark.to_pylist()])
    assert (expected[0][0] == expected[2][0]) == (zone == "UTC")
    if not private:
        monkeypatch.delattr(pd.DataFrame, "_iter_column_arrays")
    for places in ([0], [0, 1], [2], [0, 2, 1]):
        frames = [columns[place].to_frame("t") for place in places]
        given = to_table(frames, schema, output, FrameSettings(zone=zone)).to_pylist()
        assert given == [row for place in places for row in expected[place]]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            t.StructType().add("a", t.IntegerType()).add("b", t.StringType()),
            [{"a": 1, "b": "x"}, None, {"a": None, "b": "x"}],
        ),
        (t.ArrayType(t.LongType()), [[1, None], [1], None, [None], []]),
        (t.ArrayType(t.StructType().add("a", t.IntegerType())), [[{"a": 1}, {"a": None}, None], [None], None]),
        (t.MapType(t.StringType(), t.IntegerType()), [{"q": 1, "r": None}, None, {"q": 1}]),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, t.DataType) else "",
)
def test_whole_numbers_in_nested_columns_of_frames_are_those_of_spark(kind: t.DataType, values: list[Any]) -> None:
    """They stay whole beside nulls, whichever rows a frame has."""
    from pyspark.sql.conversion import ArrowArrayToPandasConversion

    table = pa.table({"v": pa.array(values, arrow_schema(t.StructType().add("v", kind), "UTC").field("v").type)})
    reader = FrameReader(table, t.StructType().add("v", kind), FrameSettings())
    for start in range(len(values)):
        for end in range(start + 1, len(values) + 1):
            part = table.column("v").slice(start, end - start).combine_chunks()
            expected = ArrowArrayToPandasConversion.convert(part, kind, timezone="UTC")
            assert repr(reader.slice(start, end)["v"].tolist()) == repr(expected.tolist())
            if end == start + 1:
                assert repr(reader.values(["v"], [start])) == repr([(expected.tolist()[0],)])


def test_a_frame_that_is_changed_leaves_the_others_as_they_are() -> None:
    schema = t.StructType().add("k", "string").add("a", "long").add("b", "long").add("t", "timestamp")
    moments = pa.array(range(6)).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"k": list("aabbcc"), "a": range(6), "b": range(6), "t": moments})
    expected = [FrameReader(table, schema, FrameSettings()).slice(start, start + 2) for start in (0, 2, 4)]
    reader = FrameReader(table, schema, FrameSettings())
    for start, frame in zip((0, 2, 4), expected, strict=True):
        part = reader.slice(start, start + 2)
        pd.testing.assert_frame_equal(part, frame)
        assert part.index.equals(pd.RangeIndex(2))
        # what moves columns between the blocks of pandas, and what changes values, or what they are called, in place
        part.columns.name = part.index.name = "named"
        part["a"] = ["text", None]
        part["t"] = part["t"] + pd.Timedelta(1, "D")
        part.insert(0, "new", 1.5)
        part.loc[:, "b"] = -1
        del part["k"]
        part.loc[7] = [0.5, None, 3, part["t"].iloc[0]]
        assert len(part) == 3


ORDERED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["b", None, "a", "", "b", "\U0001f600", "ä", None, "a"]),
    "whole": (pa.int64(), [3, None, -(2**63), 2**63 - 1, 3, 0, None, -1, 0]),
    "float": (pa.float64(), [0.5, None, float("nan"), -0.0, 0.0, float("-inf"), None, float("nan"), -1.5]),
    "decimal": (
        pa.decimal128(5, 1),
        [Decimal("1.5"), None, Decimal(-2), Decimal(7), *[Decimal(1)] * 3, None, Decimal(0)],
    ),
    "date": (pa.date32(), [date(2026, 1, 2), None, date(1960, 1, 1), *[date(2026, 1, 1)] * 5, None]),
    "boolean": (pa.bool_(), [True, None, False, True, False, None, True, True, False]),
    "bytes": (pa.binary(), [b"b", None, b"\xff", b"", b"a", b"b", None, b"\x00", b"a"]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": n % 2, "b": "xyz"[n % 3]} for n in range(9)]),
    "list": (pa.list_(pa.int32()), [[1], None, [1, 2], [], [0, 5], [1], None, [None], [1, 2]]),
}


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("names", [[name] for name in ORDERED] + [["boolean", "text"], ["list", "whole", "float"]])
def test_groups_come_in_the_order_of_their_keys_with_rows_as_they_arrived(names: list[str], chunks: int) -> None:
    arrays = {name: pa.array(ORDERED[name][1], ORDERED[name][0]) for name in names}
    whole = pa.table(arrays | {"place": pa.array(range(9))})
    table = pa.concat_tables([whole.slice(start, 9 // chunks) for start in range(0, 9, 9 // chunks)])
    ordered, keys, places = in_groups(table, names)

    def rank(value: Any) -> Any:
        if isinstance(value, dict):
            return tuple(map(rank, value.values()))
        if isinstance(value, list):
            return (1, [*map(rank, value)])
        return (0,) if value is None else (2,) if value != value else (1, value)

    rows = [tuple(rank(ORDERED[name][1][place]) for name in names) for place in range(9)]
    expected = sorted(range(9), key=lambda place: (rows[place], place))
    assert ordered.column("place").to_pylist() == expected
    assert len(places) == len(keys) + 1
    ranked = [rows[place] for place in expected]
    assert places[:-1] == [place for place in range(9) if not place or ranked[place] != ranked[place - 1]]


def test_fields_of_structs_may_have_names_that_are_no_words() -> None:
    inner = t.StructType().add("p-q", "integer").add("a`b", "string").add("ä", t.ArrayType(t.DateType()))
    named = t.StructType().add("a b", t.ArrayType(inner)).add("m", t.MapType(t.StringType(), inner))
    text = schema_text(named.add("c", t.VarcharType(9)).add("d", t.CharType(9)).add("v", t.VariantType()))
    assert text == schema_text(text)
    values = StateValues(text)
    stored = values.put(([{"p-q": 1, "a`b": "x"}], {"k": (2, None, None)}, "x", "y", 1))
    places, by_name, *others = values.read(stored)
    assert others == ["x", "y", 1]
    assert places[0]["p-q"] == 1
    assert places[0]["a`b"] == "x"
    assert by_name["k"].asDict() == {"p-q": 2, "a`b": None, "ä": None}


@pytest.mark.parametrize("kind", ["date", "array<timestamp>", "map<string,struct<a:int>>", "struct<a:int>"])
def test_values_beyond_the_schema_are_left_out_where_pyspark_converts_a_field(kind: str) -> None:
    for schema, wrap in ((f"n int, x {kind}", tuple), (f"s struct<n:int,x:{kind}>", lambda given: (given,))):
        values: Any = wrap((1, None, 2))
        assert StateValues(schema).put(values) == wrap((1, None))
        with pytest.raises(PySparkRuntimeError, match="STRUCT_ARRAY_LENGTH_MISMATCH"):
            StateValues(schema).put(wrap((1,)))


@pytest.mark.parametrize("schema", ["n int, x long", "s struct<n:int,x:array<int>>"])
def test_values_beyond_other_schemas_are_an_error(schema: str) -> None:
    with pytest.raises(PySparkRuntimeError, match="STRUCT_ARRAY_LENGTH_MISMATCH"):
        StateValues(schema).put((1, 2, 3) if schema.startswith("n") else ((1, [2], 3),))


def test_a_column_of_nothing_is_null_and_text_may_have_a_collation() -> None:
    values = StateValues("n void, t string collate UNICODE_CI, a array<string collate UTF8_LCASE>")
    assert values.put((1, "x", ["y"])) == (None, "x", ["y"])


@pytest.mark.parametrize(("schema", "entries"), [("m map<string,int>", {None: 1}), ("m map<int,int>", {"text": 1})])
def test_a_map_has_no_null_key(schema: str, entries: dict[Any, int]) -> None:
    with pytest.raises(PySparkRuntimeError, match="NULL_MAP_KEY"):
        StateValues(schema).put((entries,))


@pytest.mark.parametrize(
    ("schema", "given", "stored"),
    [
        ("a array<int>", array("i", [1, -2]), [1, -2]),
        ("a array<bigint>", array("q", [2**40]), [2**40]),
        ("a array<double>", array("d", [0.5]), [0.5]),
        ("a array<string>", array(TEXT, "ab"), ["a", "b"]),
        ("a array<int>", array("b"), []),
        # Java's bytes have a sign
        ("a array<int>", b"ab\xff", [97, 98, -1]),
        ("a array<tinyint>", bytearray(b"\x80"), [-128]),
        ("a array<string>", b"a", ["97"]),
        ("a array<int>", "ab", None),
    ],
)
def test_an_array_of_state_may_be_given_as_an_array_or_as_bytes(schema: str, given: Any, stored: Any) -> None:
    assert StateValues(schema).put((given,)) == (stored,)


class Level(IntEnum):
    LOW = 1


class Plain:
    pass


@pytest.mark.parametrize("schema", ["a array<int>", "a map<int,int>", "a int", "a double", "a boolean", "a binary"])
@pytest.mark.parametrize(
    "given",
    [
        *(range(2), deque([1]), Level.LOW, Fraction(1, 2), Path("a"), slice(1)),
        # what no pickle holds
        *(lambda: 1, Lock(), (each for each in "ab"), math, pd.DataFrame({"a": [1]})),
        *(pd.NaT, pd.Period("2026-01"), pd.Interval(0, 1), pd.offsets.Day(1)),
    ],
)
def test_a_value_that_spark_cannot_read_is_an_error_and_not_null(schema: str, given: Any) -> None:
    with pytest.raises(PySparkRuntimeError, match=f"found {type(given).__name__}, which Spark cannot read, expected"):
        StateValues(schema).put((given,))


@pytest.mark.parametrize("schema", ["a array<int>", "a map<int,int>", "a int", "a double", "a boolean", "a binary"])
@pytest.mark.parametrize(
    "given",
    [
        *({1}, frozenset("a"), 1j, timedelta(1), clock_time(1), date(2026, 1, 2), Plain(), UUID(int=1), Level),
        *(pd.NA, pd.Timestamp(0), pd.Timedelta(1)),
    ],
)
def test_a_value_of_another_type_that_spark_reads_is_null(schema: str, given: Any) -> None:
    assert StateValues(schema).put((given,)) == (None,)


@pytest.mark.parametrize("schema", ["a map<int,int>", "a binary", "a array<int>", "a boolean"])
@pytest.mark.parametrize("given", [np.int64(1), np.float32(1.5)])
def test_a_number_of_numpy_is_as_null_in_another_column_as_pythons(schema: str, given: Any) -> None:
    assert StateValues(schema).put((given,)) == (None,)


@pytest.mark.parametrize("schema", ["a map<int,int>", "a int", "a double", "a boolean", "a binary", "a decimal(5,1)"])
@pytest.mark.parametrize(
    "given", [np.array([1, 2]), np.array(5), pd.Series([1]), pd.Index([1]), pd.array([1]), pd.DatetimeIndex([0])]
)
def test_an_array_of_numpy_or_pandas_is_no_null(schema: str, given: Any) -> None:
    with pytest.raises(PySparkRuntimeError, match=f"found {type(given).__name__}, which Spark cannot read, expected"):
        StateValues(schema).put((given,))
    assert StateValues("a array<int>").put((np.array([1, 2]),)) == ([1, 2],)


@pytest.mark.parametrize("schema", ["a decimal(5,2)", "a double", "a long", "a string", "a array<decimal(5,2)>"])
@pytest.mark.parametrize("given", [Decimal("Infinity"), Decimal("-Infinity"), Decimal("sNaN")])
def test_a_decimal_that_java_lacks_is_an_error_and_not_null(schema: str, given: Decimal) -> None:
    with pytest.raises(PySparkRuntimeError, match="found Decimal, which Spark cannot read, expected"):
        StateValues(schema).put(([given] if "array" in schema else given,))


@pytest.mark.parametrize("given", ["-0", "-0.001", "-0E+5"])
def test_a_decimal_has_no_negative_zero(given: str) -> None:
    (stored,) = StateValues("d decimal(5,2)").put((Decimal(given),))
    assert str(stored) == "0.00"


@pytest.mark.parametrize("unit", ["interval day to second", "interval hour to minute", "interval day"])
@pytest.mark.parametrize("given", [timedelta(1, 2, 3), timedelta(microseconds=-1), pd.Timedelta("1h"), timedelta.max])
def test_state_has_intervals(unit: str, given: timedelta) -> None:
    values = StateValues(f"i {unit}, l array<{unit}>")
    stored = values.put((given, [given, None], "beyond"))
    assert unpack(pack(stored)) == stored
    read = values.read(stored)
    assert read == (given, [given, None])
    assert type(read[0]) is timedelta
    with pytest.raises(AttributeError, match="state value: found int 5, expected a timedelta"):
        values.put((5, []))


@pytest.mark.parametrize("schema", ["a date", "a timestamp", "a timestamp_ntz"])
def test_no_time_of_pandas_is_an_error_in_columns_of_times_as_in_spark(schema: str) -> None:
    with pytest.raises(AttributeError, match="state value: found NaTType NaT, expected a date"):
        StateValues(schema).put((pd.NaT,))


def opened_handle() -> Handle:
    return Handle(StoreGroup(lambda body: None))


@pytest.mark.parametrize("given", ["2000", 2000.7, 2000.0, True, None, 2**63, -(2**63) - 1])
def test_the_time_of_a_timer_is_a_whole_number_of_64_bits(given: Any) -> None:
    handle = opened_handle()
    handle.ready()
    handle.select(("a",))
    for operation, name in ((handle.registerTimer, "registerTimer"), (handle.deleteTimer, "deleteTimer")):
        with pytest.raises(
            (TypeError, ValueError), match=rf"^{name}: found .*{given!r}, expected a whole number of ms"
        ):
            operation(given)
    assert list(handle.listTimers()) == []
    handle.registerTimer(np.int64(5))
    assert [type(each) for each in handle.listTimers()] == [int]


@pytest.mark.parametrize("kind", ["Value", "List", "Map"])
def test_a_column_that_may_not_be_null_is_an_error_in_sparks_words(kind: str) -> None:
    schema = t.StructType().add("n", t.LongType(), nullable=False)
    with pytest.raises(
        PySparkRuntimeError, match=r"\[TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE\].*column family s must be nullable"
    ):
        getattr(opened_handle(), f"get{kind}State")("s", *([schema] * (1 + (kind == "Map"))))


DELETED: dict[str, tuple[Callable[[Any], Any], dict[str, str]]] = {
    "value": (
        lambda handle: handle.getValueState("s", "n long"),
        {
            "exists": "checking value state exists",
            "get": "getting value state",
            "update": "updating value state",
            "clear": "clearing value state",
        },
    ),
    "list": (
        lambda handle: handle.getListState("s", "n long"),
        {
            "exists": "checking value state exists",
            "put": "updating value state",
            "appendValue": "updating value state",
            "appendList": "updating value state",
            "clear": "clearing value state",
        },
    ),
    "map": (
        lambda handle: handle.getMapState("s", "k string", "n long"),
        {
            "exists": "checking map state exists",
            "getValue": "getting value",
            "containsKey": "checking if map state contains key",
            "updateValue": "updating map state value",
            "removeKey": "removing key from map state",
            "clear": "clearing map state",
        },
    ),
}


@pytest.mark.parametrize("kind", DELETED)
def test_a_variable_that_was_deleted_says_what_it_says_on_spark(kind: str) -> None:
    asked, errors = DELETED[kind]
    handle = opened_handle()
    variable = asked(handle)
    handle.deleteIfExists("s")
    handle.ready()
    handle.select(("a",))
    for operation, words in errors.items():
        arguments = [("a",), (1,)][: {"get": 0, "exists": 0, "clear": 0, "updateValue": 2}.get(operation, 1)]
        with pytest.raises(PySparkRuntimeError) as caught:
            getattr(variable, operation)(*arguments)
        assert str(caught.value) == f"Error {words}: {kind.title()} state s is not initialized."
    # Spark's iterators take every answer but an element for their end
    for operation in {"list": ["get"], "map": ["iterator", "keys", "values"]}.get(kind, []):
        assert list(getattr(variable, operation)()) == []


def test_no_timer_is_registered_before_a_key_is_in_hand() -> None:
    handle = opened_handle()
    operations: list[tuple[Callable[[], Any], str]] = [
        (lambda: handle.registerTimer(5), "Error register timer: "),
        (lambda: handle.deleteTimer(5), "Error deleting timer: "),
        (lambda: list(handle.listTimers()), ""),
    ]
    for operation, begin in operations:
        words = rf"^{begin}\[.*operation=\w+_timers? with invalid handle state=CREATED"
        with pytest.raises(PySparkRuntimeError, match=words):
            operation()
    handle.ready()
    handle.select(("a",))
    handle.registerTimer(5)
    assert list(handle.listTimers()) == [5]


class Counted:
    """What `groupBy(...).count()` is, by its columns and its grouping in the analyzed plan and the one before."""

    def __init__(self, columns: list[str], groups: str, parsed: str = "['x]") -> None:
        self.columns, self._groups, self._parsed = columns, groups, parsed

    def count(self) -> Counted:
        return self

    def explain(self, mode: str) -> None:
        print(f"== Parsed Logical Plan ==\n'Aggregate {self._parsed}\n+- x\n")
        print(f"== Analyzed Logical Plan ==\n~Aggregate {self._groups}\n+- x")


@pytest.mark.parametrize(
    ("names", "groups", "columns"),
    [
        (["k", "v"], "[k#0, v#1L], [k#0, v#1L, count(1) AS count#6L]", ("k", "v")),
        (["K"], "[K#0], [K#0, count(1) AS count#16L]", ("k",)),
        (["k"], "[k#0], [k#0 AS k#53, count(1) AS count#54L]", ("k",)),
        (["t"], "[t#2-T0ms], [t#2-T0ms, count(1) AS count#110L]", ("t",)),
        (["a.b", "k"], "[a.b#4, k#0], [a.b#4, k#0, count(1) AS count#100L]", ("a.b", "k")),
        (["x\ny"], "[x\ny#8], [x\ny#8, count(1) AS count#10L]", ("x\ny",)),
        (["k"], "[s#3.k], [s#3.k AS k#36, count(1) AS count#26L]", None),
        (["k"], "[upper(k#0)], [upper(k#0) AS k#46, count(1) AS count#47L]", None),
        (["v"], "[k#0], [k#0 AS v#64, count(1) AS count#65L]", None),
        (["(v % 2)"], "[(v#1L % cast(2 as bigint))], [(v#1L % cast(2 as bigint)) AS (v % 2)#84L]", None),
    ],
)
def test_groups_are_by_columns_and_not_by_expressions_of_their_names(
    names: list[str], groups: str, columns: tuple[str, ...] | None
) -> None:
    grouped, df = Counted([*names, "count"], groups), Counted(["k", "v", "t", "s", "a.b"], "")
    if columns is not None:
        assert grouping(grouped, df) == columns  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=r"groupBy: found an expression called .*, expected columns of the DataFrame"):
        grouping(grouped, df)  # type: ignore[arg-type]


def test_groups_have_a_column() -> None:
    with pytest.raises(ValueError, match="groupBy: found no column, expected those of the key"):
        grouping(Counted(["count"], "[count(1) AS count#11L]"), Counted(["k"], ""))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["window", "session_window"])
def test_a_window_is_no_column_of_its_name(name: str) -> None:
    df: Any = Counted(["k", name], "")
    columns, analyzed = ["k", name, "count"], f"[k#0, {name}#7-T10ms], [k#0, {name}#7-T10ms, count(1) AS count#9L]"
    assert grouping(Counted(columns, analyzed, f"['k, '{name}], ['k, '{name}, 'count(1)]"), df) == ("k", name)
    windows = f"['k, '{name}('t, 1 minute)], ['k, unresolvedalias('{name}('t, 1 minute)), 'count(1)]"
    with pytest.raises(ValueError, match=f"found an expression called k, {name}, expected columns"):
        grouping(Counted(columns, analyzed, windows), df)
