"""Rows of `process` against the declared schema: the same sentence in plain Python and in what Spark's workers run."""

from collections import namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridstore as hs
from hybridstore.spark.program import TopologyProgram
from hybridstore.state.group import StoreGroup
from hybridstore.topology.output_rows import OutputRows, columns_of_schema

pa = pytest.importorskip("pyarrow")

KINDS = {
    "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2), "array<bigint>": pa.list_(pa.int64()),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
    "struct<a:bigint,b:array<string>>": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
}  # fmt: skip


def rows_of(rows: Any, schema: Any) -> hs.Topology:
    return hs.stream(key="k", timestamp="t").process(lambda row, stores: rows, schema)


def plainly(rows: Any, schema: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in rows_of(rows, schema).run([{"k": "a", "t": 1}])]


def by_worker(rows: Any, schema: Any) -> list[dict[str, Any]]:
    runner = TopologyProgram(rows_of(rows, schema)).open(StoreGroup(lambda body: None))
    columns = [(column.name, KINDS.get(column.kind.name, pa.int64())) for column in columns_of_schema(schema) or []]
    answer: list[dict[str, Any]] = runner.process(pa.table({"k": ["a"], "t": [1]}), pa.schema(columns)).to_pylist()
    return answer


ENGINES: dict[str, Callable[[Any, Any], list[dict[str, Any]]]] = {"plain": plainly, "worker": by_worker}
Pair = namedtuple("Pair", "k n")

GOOD: list[tuple[str, Any]] = [
    ("bigint", 2**63 - 1), ("bigint", None), ("tinyint", -128), ("double", 1), ("double", 2**53), ("float", 0.5),
    ("date", date(2026, 1, 1)),
    ("timestamp", datetime(2026, 1, 1, tzinfo=UTC)), ("binary", b"\x00"), ("boolean", False),
    ("decimal(10,2)", Decimal("12345678.90")),
    ("decimal(10,2)", Decimal("1.500")), ("decimal(10,2)", Decimal("0E+5")), ("decimal(10,2)", 7),
    ("array<bigint>", [1, None]),
    ("map<string,int>", {"a": 1}), ("struct<a:bigint,b:array<string>>", {"b": ["x"], "a": None}), ("string", ""),
]  # fmt: skip
BAD: list[tuple[str, Any]] = [
    ("bigint", "one"), ("bigint", 1.5), ("bigint", 1.0), ("bigint", True), ("bigint", 2**63), ("int", 2**31),
    ("tinyint", -129),
    ("string", 1), ("string", b"x"), ("binary", "x"), ("boolean", 1), ("double", "1"), ("double", True),
    ("double", 2**60),
    ("double", Decimal(1)), ("date", datetime(2026, 1, 1)), ("date", 20_000), ("timestamp", 1_767_225_600_000),
    ("timestamp", date(2026, 1, 1)),
    ("decimal(10,2)", Decimal("1.234")), ("decimal(10,2)", Decimal(10) ** 8), ("decimal(10,2)", 1.5),
    ("decimal(10,2)", Decimal("NaN")),
    ("array<bigint>", [1, "x"]), ("array<bigint>", "xy"), ("map<string,int>", {"a": "b"}), ("map<string,int>", {1: 1}),
    ("map<string,int>", 3),
    ("struct<a:bigint,b:array<string>>", {"a": 1}), ("struct<a:bigint,b:array<string>>", {"a": 1, "b": [], "c": 2}),
    ("struct<a:bigint,b:array<string>>", (1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "value"), GOOD, ids=repr)
def test_a_value_of_the_type_of_its_column_passes(engine: str, kind: str, value: Any) -> None:
    (row,) = ENGINES[engine]([{"v": value, "k": "a"}], f"k string, v {kind}")
    passed = row["v"]
    assert (dict(passed) if isinstance(value, dict) else passed) == value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "value"), BAD, ids=repr)
def test_a_value_of_another_type_is_named_with_its_column(engine: str, kind: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        ENGINES[engine]([{"k": "a", "v": None}, {"k": "b", "v": value}], f"k string, v {kind}")
    assert str(raised.value) == f"process: column 'v': found {type(value).__name__} {value!r}, expected {kind}"


ROWS: list[tuple[Any, type[Exception], str]] = [
    ([("a", 1)], TypeError, "process: found a row of tuple ('a', 1), "
     "expected a dict or named tuple with the columns k, n"),
    (["a"], TypeError, "process: found a row of str 'a', expected a dict or named tuple with the columns k, n"),
    ([{"k": "a"}], ValueError, "process: column 'n' is missing: found k"),
    ([{}], ValueError, "process: column 'k' is missing: found no columns"),
    ([{"k": "a", "m": 1}], ValueError, "process: column 'n' is missing: found k, m"),
    ([{"k": "a", "n": 1, "m": 1}], ValueError, "process: column 'm' is not in the schema: expected k, n"),
    ([{"k": "a", "n": 1}, {"k": "a", "n": 1, "m": 1}], ValueError,
     "process: column 'm' is not in the schema: expected k, n"),
    ([Pair("a", "x")], TypeError, "process: column 'n': found str 'x', expected bigint"),
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("rows", "error", "message"), ROWS, ids=lambda value: str(value)[:40])
def test_a_row_with_other_columns_is_named(engine: str, rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        ENGINES[engine](rows, "k string, n bigint")
    assert str(raised.value) == message


@pytest.mark.parametrize("engine", ENGINES)
def test_dicts_in_any_order_and_named_tuples_are_rows(engine: str) -> None:
    rows = [{"n": 1, "k": "a"}, Pair("b", 2), {"k": None, "n": None}]
    answer = ENGINES[engine](rows, "k string, n bigint")
    assert answer == [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": None, "n": None}]
    assert ENGINES[engine](None, "k string, n bigint") == []


def test_numbers_of_numpy_are_taken_as_pythons() -> None:
    np = pytest.importorskip("numpy")
    rows = [{"k": np.str_("a"), "n": np.int64(5), "x": np.float64(0.5), "a": np.array([1, 2])}]
    assert OutputRows("k string, n bigint, x double, a array<bigint>").columns(rows)[1] == (np.int64(5),)
    assert plainly(rows, "k string, n bigint, x double, a array<bigint>") == [{"k": "a", "n": 5, "x": 0.5, "a": [1, 2]}]
    with pytest.raises(TypeError, match="column 'n': found float64"):
        OutputRows("n bigint").columns([{"n": np.float64(1.5)}])


def test_without_a_schema_rows_are_dicts_of_any_columns() -> None:
    assert plainly([{"a": 1}, {"b": [2]}, Pair(1, 2)], None) == [{"a": 1}, {"b": [2]}, {"k": 1, "n": 2}]
    with pytest.raises(TypeError, match=r"process: found a row of tuple \(1, 2\), expected a dict or named tuple$"):
        plainly([(1, 2)], None)


def test_rows_of_finish_are_looked_at_too(tmp_path: Path) -> None:
    class Sloppy:
        def __init__(self, stores: Any) -> None:
            pass

        def process(self, row: Any) -> None:
            pass

        def finish(self) -> Any:
            return [{"n": "x"}]

    topology = hs.stream(key="k", timestamp="t").process(Sloppy, "n bigint")
    with topology.open(tmp_path / "s") as engine, pytest.raises(TypeError, match="column 'n': found str 'x'"):
        engine.commit()


def test_a_commit_with_a_bad_row_did_not_happen(tmp_path: Path) -> None:
    def put(row: Any, stores: Any) -> Any:
        stores["s"].put(row["k"], 1)
        return [{"n": row["n"]}]

    topology = hs.stream(key="k", timestamp="t").process(put, "n bigint", [hs.key_value_store("s")])
    rows = [{"k": "a", "t": 1, "n": 1}, {"k": "b", "t": 2, "n": "two"}]
    with pytest.raises(TypeError, match="column 'n': found str 'two'"):
        list(topology.run(rows, tmp_path / "s", commit_rows=1))
    with topology.open(tmp_path / "s") as engine:
        assert list(engine.states[0].key_value("s")) == ["a"]


DDL: dict[str, list[tuple[str, str, bool]]] = {
    "k string, n long": [("k", "string", True), ("n", "bigint", True)],
    "k: STRING, n: INT NOT NULL COMMENT 'a, b > c'": [("k", "string", True), ("n", "int", False)],
    "`a b`` c` decimal, d numeric(5), e dec(5, 3)": [
        ("a b` c", "decimal(10,0)", True), ("d", "decimal(5,0)", True), ("e", "decimal(5,3)", True),
    ],
    "struct<a: array<map<string, struct<b: int>>>, c: real>":
        [("a", "array<map<string,struct<b:int>>>", True), ("c", "float", True)],
    "i interval day to second, v variant, c varchar(3), t timestamp_ntz": [
        ("i", "interval", True), ("v", "variant", True), ("c", "string", True), ("t", "timestamp_ntz", True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", DDL)
def test_the_text_of_a_schema_is_read(text: str) -> None:
    columns = columns_of_schema(text) or []
    assert [(column.name, column.kind.name, column.nullable) for column in columns] == DDL[text]


@pytest.mark.parametrize(
    "text", ["", "k", "k string,", "k string n long", "k array<int", "k string; n int", "k map<int>", "<"]
)
def test_text_that_is_no_schema_is_refused_when_it_is_declared(text: str) -> None:
    with pytest.raises(ValueError, match=r"process: output_schema: found .*, expected columns with Spark's types"):
        hs.stream(key="k", timestamp="t").process(lambda row, stores: None, text)


def test_what_is_no_schema_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="process: output_schema: found list, expected Spark's DDL text"):
        hs.stream(key="k", timestamp="t").process(lambda row, stores: None, ["k", "n"])
    with pytest.raises(ValueError, match="process: output_schema: found column 'k' twice"):
        hs.stream(key="k", timestamp="t").process(lambda row, stores: None, "k string, k int")
    with pytest.raises(TypeError, match="column 'n': found NoneType None, expected bigint, not null"):
        plainly([{"n": None}], "n bigint not null")


names = st.sampled_from(sorted(KINDS))


@given(st.lists(names, min_size=1, max_size=4))
def test_the_forms_of_a_schema_say_the_same(kinds: list[str]) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import from_arrow_schema

    text = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    arrow = pa.schema([(f"c{number}", KINDS[kind]) for number, kind in enumerate(kinds)])
    spark = from_arrow_schema(arrow)
    assert isinstance(spark, types.StructType)
    expected = [(f"c{number}", kind) for number, kind in enumerate(kinds)]
    for form in (text, arrow, spark):
        assert [(column.name, column.kind.name) for column in columns_of_schema(form) or []] == expected
