"""What a processor gives, in the form of its call or of the other: rows and frames that are no results are named."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pandas")

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql import types as t

from hybridstore.spark.frames import FrameSettings
from hybridstore.spark.row_table import RowTable
from tests.tools.frame_tables import to_table

OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int32())])
SCHEMA = t.StructType([t.StructField("k", t.StringType()), t.StructField("n", t.IntegerType())])


def table_of(*rows: Any) -> list[dict[str, Any]]:
    results = RowTable(OUTPUT)
    results.extend(rows)
    answers: list[dict[str, Any]] = results.table().to_pylist()
    return answers


def test_rows_are_matched_by_name() -> None:
    assert table_of(Row(n=1, k="a", more=2), Row(k="b")) == [{"k": "a", "n": 1}, {"k": "b", "n": None}]


@pytest.mark.parametrize(("row", "error"), [(Row(k="a", n="1"), pa.ArrowInvalid), (Row(k="a", n=2**40), Exception)])
def test_a_value_that_its_column_cannot_have_is_an_error_with_the_column(row: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        table_of(Row(k="a", n=1), row)
    assert raised.value.__notes__ == ["processor: column 'n': expected int32"]


def test_a_class_in_the_call_of_the_other_form_is_told_its_own() -> None:
    with pytest.raises(
        TypeError, match=r"found a frame of pandas, expected Rows \(transform_with_state_in_pandas takes"
    ):
        table_of(pd.DataFrame({"k": ["a"], "n": [1]}))
    with pytest.raises(TypeError, match=r"found a row of tuple \('a', 1\), expected a Row with names"):
        table_of(("a", 1))
    for given, words in (
        (Row(k="a", n=1), r"\(found Row; transform_with_state takes Rows\)"),
        ({"k": 1}, "found dict"),
    ):
        with pytest.raises(PySparkValueError, match=f"Invalid return type.*{words}"):
            to_table([given], SCHEMA, OUTPUT, FrameSettings())
