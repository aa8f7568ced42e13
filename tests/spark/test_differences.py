"""What differs from Spark's own operators, without Spark: the tables of docs/spark.md name these tests."""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("pandas")

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as t

from changelog.codec import pack, unpack
from hybridstore.spark.contract import Batch
from hybridstore.spark.frame_processor import FrameProgram
from hybridstore.spark.frames import FrameReader, FrameSettings
from hybridstore.spark.group_state import GroupProgram
from hybridstore.spark.processor_state import Handle
from hybridstore.spark.sharding import check_key
from hybridstore.spark.state_values import StateValues
from hybridstore.spark.stateful_processor import ProcessorProgram, _rows
from hybridstore.state.group import StoreGroup
from tests.tools.frame_tables import to_table

ROWS = t.StructType().add("k", t.LongType()).add("v", t.LongType())
OUTPUT = pa.schema([("k", pa.string())])


def group() -> StoreGroup:
    return StoreGroup(lambda body: None)


def handle(mode: str = "None") -> Handle:
    opened = Handle(group(), mode=mode)
    opened.begin(0)
    opened.select(("a",))
    return opened


def batch() -> Batch:
    none: Any = None
    return Batch(0, "", "", 0, 0, 1000, none, 1)


def test_the_entries_of_a_map_come_by_packed_key_and_changes_of_the_batch_last() -> None:
    opened = handle()
    entries = opened.getMapState("m", "n long", "v long")
    opened.ready()
    for number in (3, 1, 2):
        entries.updateValue((number,), (number,))
    opened.flush()
    opened.select(("a",))
    entries.updateValue((0,), (0,))
    assert [key for ((key,), _) in entries.iterator()] == [1, 2, 3, 0]


def test_the_timers_of_a_key_come_by_time() -> None:
    opened = handle("EventTime")
    opened.ready()
    for moment in (3000, -5000, 1000, 256, 255, 0, -1):
        opened.registerTimer(moment)
    assert list(opened.listTimers()) == [-5000, -1, 0, 255, 256, 1000, 3000]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_variable_that_was_deleted_may_be_asked_for_again(kind: str) -> None:
    stores = group()
    before = Handle(stores)
    value = before.getValueState("s", "n long")
    before.select(("a",))
    value.update((1,))
    before.flush()
    after = Handle(stores)
    after.getValueState("s", "n long")
    after.deleteIfExists("s")
    asked: dict[str, Any] = {
        "value": lambda: after.getValueState("s", "n long"),
        "list": lambda: after.getListState("s", "n long"),
        "map": lambda: after.getMapState("s", "k long", "n long"),
    }
    variable = asked[kind]()
    after.select(("a",))
    assert not variable.exists()
    variable.clear() if kind == "map" else getattr(variable, {"value": "update", "list": "appendValue"}[kind])((2,))
    assert variable.exists() == (kind != "map")


def test_values_of_subclasses_are_taken_as_what_they_derive_from() -> None:
    class Name(str):
        pass

    values = StateValues("m map<string,int>, c map<string,int>, a array<int>, t string, o string")
    given = (defaultdict(int, a=1), Counter("b"), type("Numbers", (list,), {})([3]), Name("x"), range(2))
    assert values.put(given) == ({"a": 1}, {"b": 1}, [3], "x", "range(0, 2)")


def test_arrays_of_state_have_nulls() -> None:
    opened = handle()
    value = opened.getValueState("s", "a array<int>")
    opened.ready()
    value.update(([1, None],))
    assert value.get() == ([1, None],)


def test_the_fields_of_a_row_are_a_list() -> None:
    (row,) = _rows(pa.table({"k": ["a"], "v": [1]}))
    assert row.__fields__ == ["k", "v"]
    assert row == Row(k="a", v=1)


def test_an_object_is_no_map() -> None:
    assert StateValues("m map<string,string>").put((SimpleNamespace(a=1),)) == (None,)


def test_dates_that_javas_calendar_lacks_come_back_as_they_are() -> None:
    opened = handle()
    value = opened.getValueState("s", "d date")
    opened.ready()
    for day in range(4, 16):
        value.update((date(1582, 10, day),))
        assert value.get() == (date(1582, 10, day),)


def test_the_text_of_other_values_in_a_text_column() -> None:
    opened = handle()
    value = opened.getValueState("s", "s string")
    opened.ready()
    texts: list[tuple[Any, str]] = [([(1, 2)], "[[1, 2]]"), (b"ab", "b'ab'"), (date(2026, 1, 2), "2026-01-02")]
    for given, text in texts:
        value.update((given,))
        assert value.get() == (text,)


def test_keys_of_some_types_are_refused() -> None:
    kinds = t.MapType(t.StringType(), t.LongType())
    with pytest.raises(TypeError, match=re.escape("key column 'parts[]': found map<string,bigint>")):
        check_key(t.ArrayType(kinds), "parts", wide=True)


def test_an_error_of_state_can_be_caught() -> None:
    opened = handle()
    value = opened.getValueState("v", "n long")
    opened.ready()
    with pytest.raises(PySparkRuntimeError):
        opened.registerTimer(5)
    value.update((1,))
    assert value.get() == (1,)


def test_a_field_that_was_removed_is_null_where_it_is_added_again() -> None:
    values, opened = [], group()
    for schema in ("a int, b string", "a int", "a int, b string"):
        state = Handle(opened)
        state.begin(0)
        state.select(("a",))
        value = state.getValueState("v", schema)
        state.ready()
        if not values:
            value.update((1, "t"))
        values.append(value.get())
        state.flush()
    assert values == [(1, "t"), (1,), (1, None)]


class Renamed:
    """Other names of arguments than Spark's."""

    def init(self, handle: Handle) -> None:
        self.handle = handle

    def handleInputRows(self, k: Any, r: Any, t: Any) -> Any:
        self.handle.registerTimer(t.getCurrentProcessingTimeInMs() - 1)
        return iter(())

    def handleExpiredTimer(self, k: Any, t: Any, e: Any) -> Any:
        yield Row(k=f"{k[0]} {e.getExpiryTimeInMs()}")

    def close(self) -> None:
        pass


def test_maps_inside_of_a_value_may_have_keys_of_any_type() -> None:
    values = StateValues("n map<int,boolean>, s map<struct<p:int,q:string>,int>, l array<map<date,int>>")
    day = date(2024, 1, 2)
    stored = values.put(({3: True, 2**33: None}, {Row(p=1, q="a"): 3, (2, None): None}, [{day: 7}, None]))
    logged = unpack(pack(stored))
    assert logged == stored
    numbers, structs, days = values.read(logged)
    assert numbers == {3: True, 0: None}
    assert structs == {Row(p=1, q="a"): 3, Row(p=2, q=None): None}
    assert [key.q for key in structs] == ["a", None]
    assert days == [{day: 7}, None]


def test_state_has_times_of_day() -> None:
    values = StateValues("t time(6), m map<string,time(0)>")
    stored = values.put((time(1, 2, 3, 4), {"a": time(23, 59, 59), "b": None}))
    assert unpack(pack(stored)) == stored
    assert values.read(stored) == (time(1, 2, 3, 4), {"a": time(23, 59, 59), "b": None})
    with pytest.raises(AttributeError, match="state value: found int 5, expected a time"):
        values.put((5, None))


def test_a_map_inside_of_a_value_has_the_order_in_which_it_was_given() -> None:
    values = StateValues("m map<string,int>")
    (entries,) = values.read(values.put(({"d": 1, "banana": 2, "a": 3},)))
    assert [*entries] == ["d", "banana", "a"]


def test_an_expired_timer_is_handed_over_by_position() -> None:
    program = ProcessorProgram(Renamed(), ("k",), None, "ProcessingTime", None, {})  # type: ignore[arg-type]
    runner = program.open(group())
    runner.begin(batch(), 0, 1, None)  # type: ignore[arg-type]
    assert runner.process(pa.table({"k": [7], "v": [1]}), OUTPUT).to_pylist() == [{"k": "7 999"}]


def test_rows_of_a_key_that_is_not_a_number_come_in_one_call() -> None:
    seen: list[Any] = []

    class Totals:
        def init(self, handle: Handle) -> None:
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            values = [row.v for row in rows]
            before = self.total.get() or (0,)
            self.total.update((before[0] + sum(values),))
            seen.append((str(key[0]), values, before[0]))
            return iter(())

        def close(self) -> None:
            pass

    program = ProcessorProgram(Totals(), ("k",), None, "None", None, {})  # type: ignore[arg-type]
    opened = group()
    for values in ([1, 2, 3], [4]):
        runner = program.open(opened)
        runner.begin(batch(), 0, 1, None)  # type: ignore[arg-type]
        keys = [float("nan"), 0.5, float("nan")][: len(values)]
        runner.process(pa.table({"k": keys, "v": values}), OUTPUT)
    assert seen == [("0.5", [2], 0), ("nan", [1, 3], 0), ("nan", [4], 4)]


def test_rows_beside_initial_state_come_in_one_call() -> None:
    calls: list[tuple[Any, list[int]]] = []

    class Both(Renamed):
        def handleInitialState(self, key: Any, initial: Any, timers: Any) -> None:
            calls.append(("initial", [initial.v]))

        def handleInputRows(self, k: Any, r: Any, t: Any) -> Any:
            calls.append((k[0], [row.v for row in r]))
            return iter(())

    count = 10_001  # Spark's parts have 10,000
    initial = {"a": [Row(k="a", v=-1)]}
    program = ProcessorProgram(Both(), ("k",), None, "None", None, initial)  # type: ignore[arg-type]
    runner = program.open(group())
    runner.begin(batch(), 0, 1, None)  # type: ignore[arg-type]
    runner.process(pa.table({"k": ["a"] * count, "v": range(count)}), OUTPUT)
    assert calls == [("initial", [-1]), ("a", [*range(count)])]


@pytest.mark.parametrize(
    ("mode", "watermark_ms", "seen"),
    # of a query without a watermark it is 0
    [("ProcessingTime", 400, (1000, 400)), ("ProcessingTime", 0, (1000, 0)), ("None", 400, (-1, -1))],
)
def test_a_class_with_timers_of_the_clock_is_given_the_watermark_of_its_query(
    mode: str, watermark_ms: int, seen: tuple[int, int]
) -> None:
    times: list[tuple[int, int]] = []

    class Times(Renamed):
        def handleInputRows(self, k: Any, r: Any, t: Any) -> Any:
            times.append((t.getCurrentProcessingTimeInMs(), t.getCurrentWatermarkInMs()))
            return iter(())

    program = ProcessorProgram(Times(), ("k",), None, mode, None, {})  # type: ignore[arg-type]
    runner = program.open(group())
    runner.begin(replace(batch(), watermark_ms=watermark_ms), 0, 1, None)  # type: ignore[arg-type]
    runner.process(pa.table({"k": [7], "v": [1]}), OUTPUT)
    assert times == [seen]


def test_frames_of_a_key_have_at_most_the_rows_of_the_setting() -> None:
    table = pa.table({"k": [1] * 5 + [2], "v": range(6)})
    reader = FrameReader(table, ROWS, FrameSettings(rows=2))
    assert [len(frame) for frame in reader.chunks(0, 5)] == [2, 2, 1]


def test_the_type_of_a_column_follows_from_the_nulls_of_its_frame() -> None:
    table = pa.table({"k": [1, 2], "v": pa.array([1, None], pa.int64())})
    reader = FrameReader(table, ROWS, FrameSettings(), widened=True)
    first, second = reader.slice(0, 1), reader.slice(1, 2)
    assert (str(first["v"].dtype), str(second["v"].dtype)) == ("int64", "float64")


def test_whole_numbers_of_a_group_stay_beside_floats_of_another() -> None:
    import pandas as pd

    schema, output = t.StructType().add("n", "long"), pa.schema([("n", pa.int64())])
    frames = [pd.DataFrame({"n": numbers}) for numbers in ([2**63 - 1], [1.0, None], [2**53 + 1])]
    given = to_table(frames, schema, output, FrameSettings(), joined=True).column("n").to_pylist()
    assert given == [2**63 - 1, 1, None, 2**53 + 1]


def test_a_frame_without_rows_and_types_is_no_row() -> None:
    import pandas as pd
    from pyspark.sql.conversion import PandasToArrowConversion

    schema, empty = t.StructType().add("k", t.StringType()), pd.DataFrame({"k": []})
    assert to_table([empty], schema, OUTPUT, FrameSettings()).num_rows == 0
    with pytest.raises(TypeError, match=r"Cannot convert .*ChunkedArray"):
        PandasToArrowConversion.convert([empty], t.StructType().add("_0", schema), arrow_cast=True)


def test_the_state_of_groups_can_have_arrays_maps_and_capital_letters() -> None:
    kept = t.StructType().add("List", t.ArrayType(t.LongType())).add("byName", t.MapType(t.StringType(), t.LongType()))
    seen: list[Any] = []

    def function(key: Any, frames: Any, state: Any) -> Any:
        seen.append(state.getOption)
        state.update(([len(frame) for frame in frames], {"a": 1}))
        return []

    output = t.StructType().add("k", t.StringType())
    program = GroupProgram(function, ("k",), output, kept, "NoTimeout", None, ROWS, FrameSettings())
    opened = group()
    for _ in range(2):
        runner = program.open(opened)
        runner.begin(batch(), 0, 1, None)  # type: ignore[arg-type]
        runner.process(pa.table({"k": [7, 7], "v": [1, 2]}), OUTPUT)
    assert seen == [None, ([2], {"a": 1})]


def test_a_null_whole_number_is_one_key_of_a_class_of_frames() -> None:
    seen: list[Any] = []

    class Keys:
        def init(self, handle: Handle) -> None:
            pass

        def handleInputRows(self, key: Any, frames: Any, timers: Any) -> Any:
            seen.append((key, sum(map(len, frames))))
            return iter(())

        def close(self) -> None:
            pass

    output = t.StructType().add("k", t.StringType())
    program = FrameProgram(Keys(), ("k",), output, "None", None, {})  # type: ignore[arg-type]
    program.schema = ROWS
    runner = program.open(group())
    runner.begin(batch(), 0, 1, None)  # type: ignore[arg-type]
    runner.process(pa.table({"k": pa.array([None, 1, None], pa.int64()), "v": [1, 2, 3]}), OUTPUT)
    assert seen == [((None,), 2), ((1,), 1)]


def test_the_sentence_of_modes_without_offsets_names_the_plain_engine(tmp_path: Path) -> None:
    from changelog.storage import LocalStorage
    from hybridstore.spark import SparkSetupError
    from hybridstore.spark.query_log import batch_time

    with pytest.raises(SparkSetupError, match=r"real-time mode.*in the plain engine: topology.open"):
        batch_time(LocalStorage(tmp_path), 0)
