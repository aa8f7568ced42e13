"""Frames beside the conversions of Spark's own Python workers, which need no JVM: every kind of column, both ways."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Row, conversion
from pyspark.sql import types as t

from hybridstore.spark.arrow_schema import arrow_schema
from hybridstore.spark.frames import FrameReader, FrameSettings
from tests.tools.frame_tables import to_table

TO_PANDAS: Any = getattr(conversion, "ArrowBatchTransformer", None)
TO_ARROW: Any = getattr(conversion, "PandasToArrowConversion", None)
pytestmark = pytest.mark.skipif(TO_PANDAS is None or TO_ARROW is None, reason="Spark 4.3 has the conversions")

PAIR = t.StructType().add("a", "integer").add("b", "string")
MOMENT = datetime(2024, 7, 2, 3, 4, 5, 6, tzinfo=UTC)
# a type, and values of it
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "boolean": (t.BooleanType(), [True, False]),
    "tinyint": (t.ByteType(), [1, -2]),
    "int": (t.IntegerType(), [1, 2]),
    "bigint": (t.LongType(), [1, 1 << 60]),
    "float": (t.FloatType(), [0.1, float("nan")]),
    "double": (t.DoubleType(), [0.1, float("inf")]),
    "string": (t.StringType(), ["a", ""]),
    "binary": (t.BinaryType(), [b"a", b""]),
    "date": (t.DateType(), [date(2024, 1, 2), date(1, 1, 1)]),
    "timestamp": (t.TimestampType(), [MOMENT, datetime(1969, 1, 1, tzinfo=UTC)]),
    "timestamp_ntz": (t.TimestampNTZType(), [MOMENT.replace(tzinfo=None), datetime(1700, 1, 1)]),
    "decimal": (t.DecimalType(10, 2), [Decimal("1.50"), Decimal("-3.00")]),
    "array": (t.ArrayType(t.IntegerType()), [[1, 2], [None, 3]]),
    "array of texts": (t.ArrayType(t.StringType()), [["a", None], []]),
    "array of moments": (t.ArrayType(t.TimestampType()), [[MOMENT], [None]]),
    "array of structs": (t.ArrayType(PAIR), [[{"a": 1, "b": "x"}], [None]]),
    "map": (t.MapType(t.StringType(), t.IntegerType()), [{"a": 1}, {}]),
    "map of structs": (t.MapType(t.StringType(), PAIR), [{"q": {"a": None, "b": "z"}}, {}]),
    "struct": (PAIR, [{"a": 1, "b": "x"}, {"a": None, "b": None}]),
    "struct of moments": (
        t.StructType().add("p", "timestamp").add("q", t.ArrayType(t.IntegerType())),
        [{"p": MOMENT, "q": [1]}, {"p": None, "q": None}],
    ),
}
# columns that a function may give, whatever the type of the output
GIVEN: dict[str, Callable[[], Any]] = {
    "whole": lambda: [1, 300],
    "large": lambda: [1 << 40, -1],
    "whole or null": lambda: pd.Series([1, None], dtype=object),
    "real": lambda: [1.5, float("nan")],
    "infinite": lambda: [float("inf"), 1.0],
    "flags": lambda: [True, None],
    "text": lambda: ["a", None],
    "numbers as text": lambda: ["1", "2.5"],
    "bytes": lambda: [b"a", bytearray(b"b")],
    "dates": lambda: [date(2024, 1, 2), None],
    "times": lambda: [MOMENT.replace(tzinfo=None), None],
    "moments": lambda: [MOMENT, None],
    "times of numpy": lambda: pd.Series(np.array(["2024-01-02", "NaT"], "datetime64[s]")),
    "times of a zone": lambda: pd.Series(pd.to_datetime(["2024-07-02", "2024-01-01"])).dt.tz_localize("Europe/Oslo"),
    "decimals": lambda: [Decimal("1.555"), None],
    "large decimals": lambda: [Decimal("123456789012.5"), Decimal(1)],
    "lists": lambda: [[1, None], []],
    "arrays of numpy": lambda: [np.array([1, 2]), np.array([3.5])],
    "tuples": lambda: [(1, 2), None],
    "dicts": lambda: [{"a": 1, "z": 2}, {"b": "y"}],
    "rows": lambda: [Row(a=1, b="x"), Row(b="y", a=2)],
    "pairs": lambda: [[("p", 1)], []],
    "lists of rows": lambda: [[Row(a=1, b="x")], None],
    "categories": lambda: pd.Series(["p", "q"], dtype="category"),
    "Int8": lambda: pd.array([1, None], "Int8"),
    "boolean": lambda: pd.array([True, None], "boolean"),
    "Arrow's text": lambda: pd.Series(["a", None], dtype="string[pyarrow]"),
    "without a sign": lambda: pd.Series([1, 1 << 63], dtype="uint64"),
    "mixed": lambda: [1, "a"],
    "nothing": lambda: [None, None],
    "nothing of pandas": lambda: [pd.NA, pd.NaT],
    "numbers of numpy": lambda: pd.Series([np.float64(5.5), np.float32(1)], dtype=object),
}


def shown(value: Any) -> Any:
    """A value with the types in it."""
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), [shown(part) for part in value]
    if isinstance(value, list | tuple):
        return type(value).__name__, [shown(part) for part in value]
    if isinstance(value, dict):
        return "dict", [(shown(key), shown(part)) for key, part in value.items()]
    return type(value).__name__, repr(value)


def described(frame: Any) -> Any:
    columns = [(name, str(frame[name].dtype), [shown(cell) for cell in frame[name]]) for name in frame.columns]
    return list(frame.index), columns


def answer(action: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return action()
    except PySparkException as error:
        # where Spark has objects, because it joins the frames, a whole number's type may stay
        return type(error).__name__, re.sub("with type '(object|u?int[0-9]+)'", "", str(error))
    except LookupError as error:
        return type(error).__name__, str(error)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_is_given_the_frames_of_sparks_workers(kind: str, zone: str, extension: bool) -> None:
    settings = FrameSettings(zone=zone, extension=extension)
    wanted, values = KINDS[kind]
    schema = t.StructType().add("k", "string").add("c", wanted)
    asked: Any = {"timezone": zone, "prefer_int_ext_dtype": extension}
    nested: Any = {"struct_in_pandas": "dict", "ndarray_as_list": False, "df_for_struct": False}
    for places in ([0], [0, 1], [None], [None, None], [1, None], [None, 0, 1]):
        cells = [None if place is None else values[place] for place in places]
        table = pa.table([["a"] * len(cells), cells], schema=arrow_schema(schema, zone))
        (batch,) = table.to_batches()
        of_groups = pd.concat(TO_PANDAS.to_pandas(batch, **asked, **nested), axis=1)
        rows = pd.concat(TO_PANDAS.to_pandas(batch, **asked), axis=1).itertuples(index=False)
        for widened, expected in ((False, of_groups), (True, pd.DataFrame(list(rows)))):
            given = FrameReader(table, schema, settings, widened=widened).slice(0, len(cells))
            assert described(given) == described(expected), (widened, cells)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("safely", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_results_are_those_of_sparks_workers(kind: str, safely: bool, joined: bool) -> None:
    zone = "America/New_York"
    schema = t.StructType().add("c", KINDS[kind][0])
    output, wrapped = arrow_schema(schema, zone), t.StructType([t.StructField("_0", schema)])
    asked: Any = {"timezone": zone, "safecheck": safely, "arrow_cast": True, "assign_cols_by_name": True}
    asked["int_to_decimal_coercion_enabled"] = False

    def theirs(column: Any) -> Any:
        frame = pd.DataFrame({"c": column})
        if joined:
            # as applyInPandasWithState in Spark's workers joins the frames of a task
            frame = pd.concat([frame, pd.DataFrame({"c": None}, index=[])], ignore_index=True)
        batch = TO_ARROW.convert([frame], wrapped, **asked)
        return repr(batch.column(0).field(0).cast(output.types[0]).to_pylist())

    def ours(column: Any) -> Any:
        frames = [pd.DataFrame({"c": column})]
        settings = FrameSettings(zone=zone, safely=safely)
        return repr(to_table(frames, schema, output, settings, joined=joined).column(0).to_pylist())

    for name, make in GIVEN.items():
        expected = answer(lambda make=make: theirs(make()))
        if name == "Arrow's text" and not str(expected).startswith("["):
            # an error of Arrow: Spark has the column in chunks, or with older pandas in a type of Arrow
            continue
        assert answer(lambda make=make: ours(make())) == expected, name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if " " not in kind and kind not in ("array", "map", "struct")])
@pytest.mark.parametrize("nothing", [[float("nan")], [pd.NaT], [float("nan"), None], [None], [pd.NaT, None]])
def test_a_column_of_nothing_in_the_results_of_groups_is_null(kind: str, nothing: list[Any]) -> None:
    schema = t.StructType().add("c", KINDS[kind][0])
    output, wrapped = arrow_schema(schema, "UTC"), t.StructType([t.StructField("_0", schema)])
    frame = pd.DataFrame({"c": nothing})
    # as applyInPandasWithState in Spark's workers joins the frames of a task
    joined = pd.concat([frame, pd.DataFrame({"c": None}, index=[])], ignore_index=True)
    asked: Any = {"timezone": "UTC", "safecheck": True, "arrow_cast": True, "assign_cols_by_name": True}
    batch = TO_ARROW.convert([joined], wrapped, int_to_decimal_coercion_enabled=False, **asked)
    expected = batch.column(0).field(0).cast(output.types[0]).to_pylist()
    known = pd.DataFrame({"c": pd.Series([KINDS[kind][1][0]], dtype=object)})
    results = to_table([frame, known, frame], schema, output, FrameSettings(), joined=True).column(0).to_pylist()
    assert repr([results[: len(nothing)], results[len(nothing) + 1 :]]) == repr([expected, expected])


NAMED: dict[str, Callable[[], Any]] = {
    "the names": lambda: pd.DataFrame({"k": ["a"], "n": [1]}),
    "another order": lambda: pd.DataFrame({"n": [1], "k": ["a"]}),
    "a name is missing": lambda: pd.DataFrame({"k": ["a"], "x": [1]}),
    "all are missing": lambda: pd.DataFrame({"K": ["a"], "N": [1]}),
    "no names": lambda: pd.DataFrame([["a", 1]]),
    "a name and a number": lambda: pd.DataFrame([["a", 1]], columns=["k", 1]),
    "pairs": lambda: pd.DataFrame([["a", 1]], columns=pd.MultiIndex.from_tuples([("k", ""), ("n", "")])),
    "no columns": lambda: pd.DataFrame(index=[0, 1]),
    "neither": pd.DataFrame,
    "no rows": lambda: pd.DataFrame({"k": [], "n": []}, dtype=object),
    "no rows, other names": lambda: pd.DataFrame({"x": [], "y": []}, dtype=object),
    "more than the output": lambda: pd.DataFrame({"k": ["a"], "n": [1], "x": [2]}),
    "more, no names": lambda: pd.DataFrame([["a", 1, 2]]),
    "fewer, no names": lambda: pd.DataFrame([["a"]]),
}


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("case", NAMED)
def test_names_of_results_are_read_as_by_sparks_workers(case: str, by_name: bool, joined: bool) -> None:
    schema = t.StructType().add("k", "string").add("n", "long")
    output, wrapped = arrow_schema(schema, "UTC"), t.StructType([t.StructField("_0", schema)])
    asked: Any = {"timezone": "UTC", "safecheck": True, "arrow_cast": True, "assign_cols_by_name": by_name}

    def theirs() -> Any:
        frame = NAMED[case]()
        if joined:
            frame = pd.concat([frame] * (len(frame) > 0) + [pd.DataFrame({"k": None, "n": None}, index=[])])
        batch = TO_ARROW.convert([frame], wrapped, int_to_decimal_coercion_enabled=False, **asked)
        return [batch.column(0).field(place).to_pylist() for place in range(2)]

    def ours() -> Any:
        table = to_table([NAMED[case]()], schema, output, FrameSettings(by_name=by_name), joined=joined)
        return [column.to_pylist() for column in table.columns]

    assert answer(ours) == answer(theirs)


def test_names_that_are_no_words_are_those_of_their_places_in_frames_of_classes() -> None:
    schema = t.StructType()
    for name in ("k", "my col", "class", "_x", "a-b", "ä", "1a"):
        schema.add(name, "integer")
    table = pa.table([[1, None]] * len(schema), schema=arrow_schema(schema, "UTC"))
    (batch,) = table.to_batches()
    columns = TO_PANDAS.to_pandas(batch, timezone="UTC", prefer_int_ext_dtype=False)
    expected = pd.DataFrame(list(pd.concat(columns, axis=1).itertuples(index=False)))
    reader = FrameReader(table, schema, FrameSettings(), widened=True)
    assert list(reader.slice(0, 2).columns) == list(expected.columns) == ["k", "_1", "_2", "_3", "_4", "ä", "_6"]
    assert reader.values(["my col", "1a"], [0]) == [(1, 1)]
    assert list(FrameReader(table, schema, FrameSettings()).slice(0, 2).columns) == schema.names
