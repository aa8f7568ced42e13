"""Frames are cut and taken by pandas' blocks: as pandas' public methods give them, to a function and from it."""

from __future__ import annotations

import random
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as t

from hybridstore.spark.arrow_schema import arrow_schema
from hybridstore.spark.frames import FrameReader, FrameSettings
from tests.tools.frame_tables import to_table

TYPES: dict[str, tuple[Any, Any]] = {
    "text": (t.StringType(), lambda n: f"k{n}"),
    "whole": (t.LongType(), lambda n: n * 3),
    "short": (t.ShortType(), lambda n: n),
    "real": (t.DoubleType(), lambda n: n / 2),
    "flag": (t.BooleanType(), lambda n: n % 2 == 0),
    "time": (t.TimestampType(), lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)),
    "day": (t.DateType(), lambda n: date(2026, 1, 1) + timedelta(days=n)),
    "money": (t.DecimalType(10, 2), lambda n: Decimal(n).scaleb(-2)),
    "list": (t.ArrayType(t.LongType()), lambda n: [n, n + 1]),
}
ROWS = 12


def table_of(names: list[str], nulls: float, draw: random.Random) -> tuple[Any, Any]:
    schema = t.StructType([t.StructField(name, TYPES[name][0]) for name in names])
    columns = {
        name: [None if draw.random() < nulls else TYPES[name][1](number) for number in range(ROWS)] for name in names
    }
    return pa.table(columns, schema=arrow_schema(schema, "UTC")), schema


@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize("extension", [False, True])
def test_frames_are_those_of_a_slice_and_a_change_reaches_no_other(nulls: float, extension: bool) -> None:
    draw = random.Random(7)
    for _ in range(30):
        names = draw.sample(list(TYPES), draw.randint(1, len(TYPES)))
        table, schema = table_of(names, nulls, draw)
        settings = FrameSettings(extension=extension)
        reader = FrameReader(table, schema, settings, widened=draw.random() < 0.5)
        first, last = sorted(draw.sample(range(ROWS + 1), 2))
        # each slice as a table of its own: the same rows by pandas' public constructor
        expected = FrameReader(table.slice(first, last - first), schema, settings, widened=reader._widened)._whole
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame, before = reader.slice(first, last), reader.slice(0, ROWS)
            pd.testing.assert_frame_equal(frame.reset_index(drop=True), frame)
            pd.testing.assert_frame_equal(frame, expected.reset_index(drop=True), check_index_type="exact")
            assert pd.concat([frame]).equals(frame)
            assert repr(list(frame.itertuples())) == repr(list(expected.reset_index(drop=True).itertuples()))
            other = reader.slice(first, last)
            frame["more"] = 1
            frame.insert(0, "first", range(last - first))
            del frame[names[-1]]
            frame.loc[0, "more"] = 2
            frame.index.name = frame.columns.name = "renamed"
            frame.sort_index(ascending=False, inplace=True)
        assert list(frame.columns) == ["first", *names[:-1], "more"]
        pd.testing.assert_frame_equal(other, expected.reset_index(drop=True))
        pd.testing.assert_frame_equal(reader.slice(0, ROWS), before)


def taken(frames: Any, output: t.StructType, *, joined: bool = False, **settings: Any) -> list[dict[str, Any]]:
    table = to_table(frames, output, arrow_schema(output, "UTC"), FrameSettings(**settings), joined=joined)
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


OUTPUT = t.StructType().add("k", "string").add("n", "long").add("x", "double").add("t", "timestamp")
TIME = pd.Timestamp("2026-01-01T00:00:01", tz="UTC")


def row(k: str, n: int, x: float) -> dict[str, Any]:
    return {"k": k, "n": n, "x": x, "t": TIME}


@pytest.mark.parametrize("joined", [False, True])
def test_a_frame_that_is_changed_and_given_again_is_another_frame(joined: bool) -> None:
    def given() -> Any:
        frame = pd.DataFrame([row("a", 1, 0.5)])
        yield frame
        frame.loc[0, "n"] = 2
        yield frame
        frame["k"] = "b"
        yield frame
        frame["x"] += 1
        yield frame.iloc[:0]
        yield frame

    expected = [row("a", 1, 0.5), row("a", 2, 0.5), row("b", 2, 0.5), row("b", 2, 1.5)]
    assert taken(given(), OUTPUT, joined=joined) == expected


def test_lists_and_the_like_may_be_changed_behind_their_frame() -> None:
    inner = t.StructType().add("a", "long")
    output = t.StructType().add("k", "string").add("h", t.ArrayType(t.LongType()))
    output = output.add("m", t.MapType(t.StringType(), t.LongType())).add("s", inner)

    def given() -> Any:
        history: list[int] = []
        counts: dict[str, int] = {}
        newest: dict[str, int] = {}
        for number, key in enumerate("aab"):
            history.append(number)
            counts[key] = newest["a"] = number
            yield pd.DataFrame({"k": [key], "h": [history], "m": [counts], "s": [newest]})
        yield pd.DataFrame({"k": ["c"], "h": [None], "m": [None], "s": [None]})

    assert [(row["k"], row["h"], row["m"], row["s"]) for row in taken(given(), output)] == [
        ("a", [0], [("a", 0)], {"a": 0}),
        ("a", [0, 1], [("a", 1)], {"a": 1}),
        ("b", [0, 1, 2], [("a", 1), ("b", 2)], {"a": 2}),
        ("c", None, None, None),
    ]


def test_columns_are_matched_by_name_in_every_frame() -> None:
    frames = [
        pd.DataFrame([row("a", 1, 0.5)]),
        pd.DataFrame([row("b", 2, 1.5)])[["t", "x", "k", "n"]],
        pd.DataFrame({"other": [[]], **{name: [value] for name, value in row("c", 3, 2.5).items()}}),
        pd.DataFrame([["d", 4, 3.5, TIME]]),
        pd.DataFrame([row("e", 5, 4.5)]).astype({"n": "Int64", "k": "category", "x": "float32"}),
        pd.DataFrame([row("f", 6, 5.5)]).astype(object),
        pd.DataFrame(),
    ]
    assert taken(frames, OUTPUT) == [row(key, n, n - 0.5) for n, key in enumerate("abcdef", 1)]
    with pytest.raises(KeyError, match="'x'"):
        taken([frames[0], frames[0].drop(columns="x")], OUTPUT)
    by_place = [pd.DataFrame([["a", 1, 0.5, TIME]], columns=["x", "k", "n", "t"])]
    assert taken(by_place, OUTPUT, by_name=False) == [row("a", 1, 0.5)]


def test_frames_of_one_and_of_several_rows_are_in_turn() -> None:
    draw = random.Random(3)
    rows = [row(f"k{number}", number, number / 4) for number in range(200)]
    frames, start = [], 0
    while start < len(rows):
        end = start + draw.choice([1, 1, 2, 7])
        frame = pd.DataFrame(rows[start:end], index=range(5, 5 + len(rows[start:end])))
        # several blocks of one type, as a frame has them to which columns were added
        for name in draw.sample(list(OUTPUT.names), 2):
            frame[name] = frame.pop(name)
        frames.append(frame)
        start = end
    assert taken(iter(frames), OUTPUT) == rows
    assert taken([], OUTPUT) == []


def test_frames_are_joined_whose_columns_lie_in_any_way(seed: int) -> None:
    draw = random.Random(seed)
    output = t.StructType().add("k", "string").add("n", "long").add("m", "long").add("x", "double")
    output = output.add("t", "timestamp").add("l", t.ArrayType(t.LongType()))
    zoned, kept = TIME.tz_convert("Europe/Berlin"), [0]
    forms: list[Any] = [
        lambda frame: frame,
        lambda frame: frame[["x", "k", "t", "n", "l", "m"]],
        # a column between two of its block, and blocks of one type that were not joined
        lambda frame: frame[["n", "x", "m", "k", "t", "l"]],
        lambda frame: frame.assign(n=frame["n"] + 0, more=1)[["n", "m", "more", "l", "k", "x", "t"]],
        lambda frame: frame.assign(t=frame["t"].dt.tz_localize(None)),
        lambda frame: frame.assign(t=zoned),
        lambda frame: frame.astype({"n": "float64", "k": "category"}),
        lambda frame: frame.astype({"n": "Int64"}),
        lambda frame: frame.rename(columns={"n": "m", "m": "n"}).assign(n=frame["n"], m=frame["m"]),
        # blocks of the same types in the same turn, with other columns
        lambda frame: frame[["k", "n", "x", "m", "t", "l"]].astype({"x": "float64", "m": "int64"}).copy(),
        lambda frame: frame[["k", "n", "x", "m", "t", "l"]].astype({"x": "int64", "m": "float64"}).copy(),
        lambda frame: frame.iloc[:0],
    ]
    expected: list[dict[str, Any]] = []

    def given() -> Any:
        for _ in range(200):
            form = draw.choice(draw.choice([forms[:2], forms[-3:], forms]))
            rows = [
                {"k": f"k{number}", "n": number, "m": -number, "x": float(number), "t": TIME, "l": kept}
                for number in range(len(expected), len(expected) + draw.choice([1, 1, 3]))
            ]
            frame = form(pd.DataFrame(rows))
            expected.extend({**row, "l": list(kept)} for row in rows[: len(frame)])
            yield frame
            kept.append(len(expected))
            del kept[:-2]

    assert taken(given(), output) == expected


def test_frames_of_classes_have_at_most_the_bytes_of_the_setting() -> None:
    table = pa.table({"k": [1] * 5, "v": range(5)})  # 16 bytes a row
    schema = t.StructType().add("k", t.LongType()).add("v", t.LongType())
    for given, lengths in ((2, [1] * 5), (32, [2, 2, 1]), (33, [3, 2]), (2**31 - 1, [5])):
        settings = FrameSettings(bytes=given)
        reader = FrameReader(table, schema, settings, widened=True)
        assert [len(frame) for frame in reader.chunks(0, 5)] == lengths
        # the writer of applyInPandasWithState counts rows alone
        assert [len(frame) for frame in FrameReader(table, schema, settings).chunks(0, 5)] == [5]


@pytest.mark.parametrize(("text", "lengths"), [("1", [1] * 5), ("3", [3, 2]), ("0", [5]), ("-1", [5]), ("", [5])])
def test_frames_have_at_most_the_rows_of_the_setting(text: str, lengths: list[int]) -> None:
    given = {"spark.sql.execution.arrow.maxRecordsPerBatch": text}
    settings = FrameSettings.of(SimpleNamespace(conf=given))  # type: ignore[arg-type]  # has a session's conf.get
    table, schema = pa.table({"v": range(5)}), t.StructType().add("v", t.LongType())
    for widened in (False, True):
        frames = FrameReader(table, schema, settings, widened=widened).chunks(0, 5)
        assert [len(frame) for frame in frames] == lengths


@pytest.mark.parametrize(
    ("text", "expected"), [("", 2**31 - 1), ("2", 2), ("64MB", 2**26), ("64m", 2**26), ("100b", 100), ("1k", 1024)]
)
def test_a_setting_of_bytes_is_read_as_spark_writes_it(text: str, expected: int) -> None:
    given = {"spark.sql.execution.arrow.maxBytesPerBatch": text}
    assert FrameSettings.of(SimpleNamespace(conf=given)).bytes == expected  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("numbers", [[12345, 0], pd.array([5, None], "Int64"), np.array([1, 2], np.uint64)])
def test_whole_numbers_are_decimals_if_the_session_says_so(numbers: Any) -> None:
    schema = t.StructType().add("d", t.DecimalType(10, 2))
    output, frame = pa.schema([("d", pa.decimal128(10, 2))]), pd.DataFrame({"d": numbers})
    given = to_table([frame], schema, output, FrameSettings(decimals=True)).column("d").to_pylist()
    assert given == [None if number is pd.NA else Decimal(int(number)) for number in numbers]
    with pytest.raises(ValueError, match="Failed to convert the value of the column 'd'"):
        to_table([frame], schema, output, FrameSettings())
