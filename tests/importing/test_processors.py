"""State variables of Spark's processors, whose values have maps, structs and lists inside."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from hybridstore.importing.processors import EXPIRY, _fill
from hybridstore.spark.processor_state import Handle
from hybridstore.state.group import StoreGroup

COUNTS = MapType(StringType(), LongType())
INSIDE = StructType([StructField("counts", COUNTS)])
VALUE = StructType(
    [StructField("m", COUNTS), StructField("s", INSIDE), StructField("l", ArrayType(INSIDE)), StructField("n", COUNTS)]
)
ARROW_COUNTS = pa.map_(pa.string(), pa.int64())
ARROW_INSIDE = pa.struct([("counts", ARROW_COUNTS)])
ARROW = pa.struct([("m", ARROW_COUNTS), ("s", ARROW_INSIDE), ("l", pa.list_(ARROW_INSIDE)), ("n", ARROW_COUNTS)])
SPARKS: dict[str, Any] = {
    "m": [("a", 1), ("b", 2)],
    "s": {"counts": [("c", 3)]},
    "l": [{"counts": []}, None],
    "n": None,
}
OURS = Row(m={"a": 1, "b": 2}, s=Row(counts={"c": 3}), l=[Row(counts={}), None], n=None)


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_maps_inside_of_values_are_moved_whole(kind: str) -> None:
    handle = Handle(StoreGroup(lambda body: None))
    asked: dict[str, Any] = {
        "value": lambda: handle.getValueState("v", VALUE),
        "list": lambda: handle.getListState("v", VALUE),
        "map": lambda: handle.getMapState("v", VALUE, VALUE),
    }
    variable = asked[kind]()
    handle.begin(0)
    whole = pa.list_(ARROW) if kind == "list" else ARROW
    columns = {"s0": pa.array([[SPARKS, SPARKS] if kind == "list" else SPARKS], whole), EXPIRY: pa.array([None])}
    if kind == "map":
        columns["m0"] = pa.array([{"m": None, "s": None, "l": None, "n": None}], ARROW)
    _fill(variable, ['"ann"'], pa.table(columns), 0)
    variable.key = '"ann"'
    if kind == "value":
        assert variable.get() == OURS
    elif kind == "list":
        assert list(variable.get()) == [OURS, OURS]
    else:
        assert list(variable.values()) == [OURS]
