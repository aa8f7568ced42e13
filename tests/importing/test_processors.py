"""State variables of Spark's processors, whose values have maps, structs and lists inside."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from hybridstore.importing.processors import EXPIRY, _fill, keep_for
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


@pytest.mark.parametrize("kind", ["value", "list", "map"])
@pytest.mark.parametrize("ttl", [50, 1000, 5000])
def test_values_expire_when_they_would_have_in_spark_whatever_the_new_ttl(kind: str, ttl: int) -> None:
    """Spark's ttl was 1000 ms: values written at 600 and 1000 expire at 1600 and 2000."""
    group = StoreGroup(lambda body: None)
    expiries = {'"a"': 1600, '"b"': 2000}

    def opened(now: int) -> tuple[Handle, Any]:
        handle = Handle(group)
        handle.begin(now)
        asked: dict[str, Any] = {
            "value": lambda: handle.getValueState("v", "n long", ttl),
            "list": lambda: handle.getListState("v", "n long", ttl),
            "map": lambda: handle.getMapState("v", "k long", "n long", ttl),
        }
        return handle, asked[kind]()

    def alive(handle: Handle, variable: Any) -> list[str]:
        keys = []
        for key in expiries:
            handle.select_stored(key)
            keys += [key] if variable.exists() else []
        return keys

    number = pa.struct([("n", pa.int64())])
    timed = pa.struct([("value", number), ("ttlExpirationMs", pa.int64())])
    rows: dict[str, Any] = {EXPIRY: pa.array([None if kind == "list" else each for each in expiries.values()])}
    if kind == "list":
        each = [[{"value": {"n": 1}, "ttlExpirationMs": expiry}] for expiry in expiries.values()]
        rows = {"s0": pa.array(each, pa.list_(timed)), EXPIRY: pa.nulls(2, pa.int64())}
    else:
        rows["s0"] = pa.array([{"n": 1}] * 2, number)
    if kind == "map":
        rows["m0"] = pa.array([{"k": 7}] * 2, pa.struct([("k", pa.int64())]))
    handle, variable = opened(1000)
    life_ms = _fill(variable, list(expiries), pa.table(rows), 0)
    assert life_ms == max(ttl, 1000)
    handle.flush()
    keep_for(group, variable, life_ms)
    for now in (1100, 1599, 1600, 1999, 2000):
        handle, variable = opened(now)
        assert alive(handle, variable) == [key for key, expiry in expiries.items() if expiry > now], now
        handle.select_stored(f'"at {now}"')
        change: dict[str, Any] = {
            "value": lambda variable: variable.update((2,)),
            "list": lambda variable: variable.appendValue((2,)),
            "map": lambda variable: variable.updateValue((8,), (2,)),
        }
        change[kind](variable)
        handle.flush()
