"""Types at the door: a column of each of Spark's types, as a key and under each aggregate, goes through a batch, a
second one and a null, or is refused when the operator is declared. The table is in docs/spark.md.

No query is started: rows go through Spark's conversion of schemas and the program that its workers run.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import hybridstore as hs
from hybridstore.spark.arrow_schema import arrow_schema
from hybridstore.spark.operator import spark_schema
from hybridstore.spark.program import TopologyProgram
from hybridstore.spark.sharding import check_key
from hybridstore.state.group import StoreGroup

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

NUMBERS = {"sum", "mean", "variance"}
ORDER = {"min", "max", "topk"}
EVERY = NUMBERS | ORDER | {"count", "first", "last", "collect", "collect_set"}
WHOLE = EVERY - ORDER - NUMBERS - {"collect_set"}
MOMENT = datetime(2026, 1, 1, 1, 2, 3, 456789)

# DDL text: what its columns may be, as a key and as a value: aggregates that take it; and values of it
TYPES: dict[str, tuple[bool, set[str], list[Any]]] = {
    "string": (True, EVERY - NUMBERS, ["b", ""]),
    "binary": (True, EVERY - NUMBERS, [b"\xff", b""]),
    "boolean": (True, EVERY, [True, False]),
    "byte": (True, EVERY, [127, -128]),
    "short": (True, EVERY, [2**15 - 1, -(2**15)]),
    "int": (True, EVERY, [2**31 - 1, -(2**31)]),
    "long": (True, EVERY, [2**62, -(2**63)]),
    "float": (True, EVERY, [0.5, -2.25]),
    "double": (True, EVERY, [0.1, -1e300]),
    "decimal(10,2)": (False, EVERY - {"variance"}, [Decimal("1.10"), Decimal("-3.00")]),
    "date": (False, EVERY - NUMBERS, [date(2026, 1, 1), date(1969, 12, 31)]),
    "timestamp": (
        False,
        EVERY - NUMBERS,
        [MOMENT.replace(tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)],
    ),
    "timestamp_ntz": (False, EVERY - NUMBERS, [MOMENT, datetime(1969, 1, 1)]),
    "struct<a:int,b:string>": (False, WHOLE, [{"a": 1, "b": "x"}, {"a": None, "b": None}]),
    "array<int>": (False, WHOLE, [[1, 2], [1, None]]),
    "array<struct<a:date>>": (False, WHOLE, [[{"a": date(2026, 1, 1)}], [{"a": None}]]),
    "map<string,bigint>": (False, WHOLE, [[("a", 1)], [("a", None), ("b", 2)]]),
    "interval day to second": (False, {"count"}, [timedelta(1), timedelta(2)]),
    "time(6)": (False, {"count"}, [time(1), time(2)]),
}
AGGREGATES: dict[str, Any] = {
    "count": hs.Count(),
    "sum": hs.Sum("v"),
    "mean": hs.Mean("v"),
    "variance": hs.Variance("v"),
    "min": hs.Min("v"),
    "max": hs.Max("v"),
    "topk": hs.TopK(2, "v"),
    "first": hs.First("v"),
    "last": hs.Last("v"),
    "collect": hs.Collect("v"),
    "collect_set": hs.CollectSet("v"),
}
WINDOWS: list[Any] = [hs.TumblingWindows(20), hs.HoppingWindows(20, 5), hs.SessionWindows(4), hs.SlidingWindows(15)]


def spark_type(ddl: str) -> Any:
    """A type of Spark's (a session alone could read its text)."""
    if ddl.startswith("time("):
        if not hasattr(types, "TimeType"):
            pytest.skip("Spark before 4.1 has no times of day")
        return types.TimeType(6)
    structs = {
        "decimal(10,2)": types.DecimalType(10, 2),
        "struct<a:int,b:string>": types.StructType().add("a", types.IntegerType()).add("b", types.StringType()),
        "array<int>": types.ArrayType(types.IntegerType()),
        "array<struct<a:date>>": types.ArrayType(types.StructType().add("a", types.DateType())),
        "map<string,bigint>": types.MapType(types.StringType(), types.LongType()),
        "interval day to second": types.DayTimeIntervalType(),
        "int": types.IntegerType(),
        "timestamp_ntz": types.TimestampNTZType(),
    }
    return structs.get(ddl) or getattr(types, f"{ddl.capitalize()}Type")()


def arrow(ddl: str) -> Any:
    """The type of a column as a Spark worker is given it."""
    return arrow_schema(types.StructType().add("v", spark_type(ddl)), "UTC").field("v").type


def batches_of(topology: hs.Topology, schema: Any, *batches: list[tuple[Any, ...]]) -> list[Any]:
    """Declare a topology for a schema, and return the results of each batch. Raises what the declaration raises."""
    program = TopologyProgram(topology.complete())
    output = arrow_schema(spark_schema(program.output_schema(schema)), "UTC")
    runner = program.open(StoreGroup(lambda body: None))
    results = []
    for rows in batches:
        columns = [pa.array([row[i] for row in rows], type=schema.field(i).type) for i in range(len(schema))]
        answer = runner.process(pa.Table.from_arrays(columns, schema=schema), output)
        assert answer.schema == output
        results.append(answer.to_pylist())
    return results


@pytest.mark.parametrize("ddl", TYPES)
def test_a_column_under_each_aggregate(ddl: str) -> None:
    kind, (_, taken, (first, second)) = arrow(ddl), TYPES[ddl]
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", kind)])
    for name, aggregate in AGGREGATES.items():
        for windows in WINDOWS:
            for emit in ("record", "commit"):
                topology = hs.stream(key="k", timestamp="t").windowed_by(windows).aggregate(emit=emit, x=aggregate)
                # of the same time, whose order the values decide; and nulls
                rows = [("a", 1, first), ("a", 1, second), ("a", 1, None)], [("a", 2, first), ("a", 2, None)]
                if name not in taken:
                    with pytest.raises(TypeError, match=r"aggregate 'x': column 'v': found .*, expected .*\(cast it"):
                        batches_of(topology, schema, *rows)
                    continue
                results = batches_of(topology, schema, *rows)
                assert results[0]
                assert results[1]
                if name == "max":
                    assert results[1][-1]["x"] == max(first, second)


@pytest.mark.parametrize("ddl", TYPES)
def test_a_column_as_the_key(ddl: str) -> None:
    kind = spark_type(ddl)
    taken, _, (first, second) = TYPES[ddl]
    if not taken:
        with pytest.raises(TypeError, match=r"key column 'v': found .*, expected a string, binary, integer, float or"):
            check_key(kind, "v")
        return
    check_key(kind, "v")
    schema = pa.schema([("v", arrow(ddl)), ("t", pa.int64())])
    for windows in WINDOWS:
        topology = hs.stream(key="v", timestamp="t").windowed_by(windows).aggregate(emit="commit", n=hs.Count())
        rows = [(first, 1), (second, 1), (None, 1)], [(first, 1)]
        results = batches_of(topology, schema, *rows)
        assert {row["v"] for row in results[0]} == {first, second}
        assert [(row["v"], row["n"]) for row in results[1]][-1:] == [(first, 2)]


def test_the_page_has_a_row_for_each_type() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/spark.md").read_text().split("## Types of columns")[1]
    rows = [line.split("|")[1:3] for line in page.split("\n## ")[0].splitlines() if line.startswith("| `")]
    keys = {name: key.strip()[:3].strip() for names, key in rows for name in re.findall("`([^`]+)`", names)}
    assert keys == {ddl: "yes" if key else "no" for ddl, (key, _, _) in TYPES.items()}
