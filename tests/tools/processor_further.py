"""Scenarios of values at the ends of their types, and of lists, maps and timers in unusual orders. See
`processor_scenarios`.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql import types as t

from tests.tools.processor_more import NOON, registers
from tests.tools.processor_scenarios import THREE, add, listed, mapped, no_state, nothing, puts, row, value

FOUR = [*THREE, [row(v=4, t=4)]]

# --- values -----------------------------------------------------------------------------------------------------------

add("numpy in arrays", *puts("array<long>", [np.int64(1), np.int8(2), None], [np.float64(2)], [np.bool_(True)]))
add("numpy in maps", *puts("map<string,double>", {np.str_("a"): np.float64(1)}, {"a": np.float32(0.1)}))
add(
    "numpy in structs",
    *puts("struct<p:long,q:string,b:boolean>", (np.int64(1), np.str_("x"), np.bool_(True)), (np.float64(1), 2, 1)),
)
add("floats in arrays", *puts("array<float>", [0.1, float("inf"), 1, None, -0.0, 1e-46, 16777217.0, 3.5e38]))
add("ends of doubles", *puts("double", float("inf"), float("-inf"), 5e-324, -0.0, float("nan"), 1.7976931348623157e308))
add(
    "decimals in arrays",
    *puts("array<decimal(5,2)>", [Decimal("1.005"), None, Decimal("-0"), Decimal("1E+2"), Decimal("1E-30"), 1]),
)
add(
    "ends of decimals",
    *puts(
        "decimal(38,18)",
        Decimal("99999999999999999999.999999999999999999"),
        Decimal("-0"),
        Decimal("1E+3"),
        Decimal("-1E-30"),
        Decimal("NaN"),
    ),
)
add("bytes in maps", *puts("map<string,binary>", {"a": b"x"}, {"b": bytearray(b"y")}, {"c": "text"}, {"d": None}))
add("what is no array", *puts("array<long>", {1}, frozenset((2,)), {"a": 1}, "ab", (3,), ((4,),)))
add("unusual text", *puts("string", "", "\x00", "é𝄞", "a" * 20, "\n\t\"'", "\u2028"))
add("unusual bytes", *puts("binary", b"", b"\x00\xff", bytes(range(20))))
add(
    "ends of timestamps",
    *puts(
        "timestamp",
        datetime(1900, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime(1, 1, 2),
        datetime(1970, 1, 1),
        NOON,
        datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
)
add("ends of dates", *puts("date", date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 4), date(1582, 10, 15)))
add(
    "ends of local times",
    *puts(
        "timestamp_ntz", datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(2024, 1, 1, tzinfo=UTC)
    ),
)
add(
    "nulls at every depth",
    *puts("struct<a:struct<b:array<struct<c:int>>>>", ((None,),), (([None, (None,)],),), (None,), None),
)
add("arrays of arrays", *puts("array<array<long>>", [[1], [], None, [None]], [(1, 2), [3]]))


def sixty(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield (p.s.get(),)
    p.s.update(tuple(range(60)))
    yield p.s.get()[59]


add("sixty columns", value(", ".join(f"c{place} long" for place in range(60))), sixty, batches=THREE)


def typed_variables(p: Any, h: Any) -> None:
    numbers = t.MapType(t.StringType(), t.ArrayType(t.DoubleType()))
    p.s = h.getValueState("s", t.StructType().add("n", "long").add("m", numbers))
    p.items = h.getListState("items", t.StructType().add("x", "double").add("s", t.StructType().add("y", "string")))
    p.entries = h.getMapState(
        "entries", t.StructType().add("k", "string"), t.StructType().add("v", t.ArrayType(t.IntegerType()))
    )


def use_typed(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield p.s.get(), list(p.items.get()), list(p.entries.iterator())
    p.s.update((rows[0].v, {"a": [1.5, None]}))
    p.items.appendValue((0.5, ("y",)))
    p.entries.updateValue(("k",), ([1, None],))
    yield p.s.get(), list(p.items.get()), list(p.entries.iterator())


def read_twice(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.update(([1], {"a": 1}, "x"))
    first, second = p.s.get(), p.s.get()
    yield first == second, first[0] is second[0], type(first).__name__
    first[0].append(2)
    yield p.s.get(), first


add("schemas as types", typed_variables, use_typed, batches=THREE)
add("a value is read twice", value("l array<int>, m map<string,int>, w string"), read_twice)


# --- lists ------------------------------------------------------------------------------------------------------------


def forms_of_lists(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.appendList(((1,), (2,)))
    yield list(p.s.get())
    p.s.appendList([Row(n=3), [4], "5"])
    yield list(p.s.get())
    p.s.put(((6,), (7,)))
    p.s.appendValue([8])
    p.s.appendValue(Row(x=9))
    yield list(p.s.get())


def put_append_clear(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    number = rows[0].v
    yield list(p.s.get()), p.s.exists()
    if number == 1:
        p.s.appendValue((1,))
        p.s.put([(2,)])
        p.s.appendList([(3,), (4,)])
        p.s.clear()
        p.s.clear()
        p.s.appendValue((5,))
    if number == 2:
        p.s.appendValue((6,))
        p.s.clear()
        yield list(p.s.get()), p.s.exists()
        p.s.put([(7,)])
        p.s.appendValue((8,))
    if number == 3:
        p.s.clear()
    yield list(p.s.get()), p.s.exists()


def long_list(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.appendList([(number,) for number in range(5000)])
    elements = list(p.s.get())
    yield len(elements), elements[0], elements[-1], elements[10_000:10_001]


def two_variables(p: Any, h: Any) -> None:
    p.first, p.second = h.getListState("first", "n long"), h.getListState("second", "n long")


def two_lists(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.first.appendList([(1,), (2,), (3,)])
    p.second.appendList([(4,), (5,)])
    some, others = p.first.get(), p.second.get()
    yield next(some), next(others), next(some), next(others), next(others, None), next(some)
    for element in p.first.get():
        p.second.appendValue(element)
    yield list(p.first.get()), list(p.second.get())


add("forms of lists", listed(), forms_of_lists)
add("a list is put, appended to and cleared", listed(), put_append_clear, batches=FOUR)
add("a list longer than Spark's parts", listed(), long_list, batches=THREE)
add("two lists at once", two_variables, two_lists, batches=THREE)


# --- maps -------------------------------------------------------------------------------------------------------------


def null_values(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.updateValue(("a",), (None,))
    yield p.s.containsKey(("a",)), p.s.getValue(("a",)), p.s.exists()
    p.s.updateValue((None,), (1,))
    yield p.s.containsKey((None,)), p.s.getValue((None,))
    p.s.removeKey(("a",))
    yield sorted(p.s.iterator(), key=str)


def float_keys(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for number, name in enumerate((0.0, -0.0, float("nan"), float("inf"), 1)):
        p.s.updateValue((name,), (number,))
    yield sorted(map(str, p.s.iterator()))
    yield p.s.getValue((0.0,)), p.s.getValue((-0.0,)), p.s.containsKey((float("nan"),))


def keyed_variables(p: Any, h: Any) -> None:
    p.times = h.getMapState("times", "k timestamp", "n long")
    p.days = h.getMapState("days", "k date, b binary", "n long")
    p.cents = h.getMapState("cents", "k decimal(10,2), o boolean", "n long")
    p.structs = h.getMapState("structs", "k struct<a:array<int>,b:struct<c:string>>", "n long")


def keys_of_types(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.times.updateValue((datetime(2024, 1, 1),), (1,))
    yield list(p.times.keys()), p.times.containsKey((datetime(2024, 1, 1, tzinfo=UTC),))
    p.days.updateValue((date(2024, 1, 1), b"x"), (1,))
    yield list(p.days.keys()), p.days.containsKey((datetime(2024, 1, 1, 5), bytearray(b"x")))
    p.cents.updateValue((Decimal("1.5"), True), (1,))
    yield list(p.cents.keys()), [p.cents.containsKey((Decimal(each), True)) for each in ("1.500", "1.504", "1.6")]
    p.structs.updateValue((([1, None], ("x",)),), (1,))
    yield list(p.structs.keys()), p.structs.containsKey((Row(a=[1, None], b=Row(c="x")),))


def large_map(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    batch = rows[0].v
    for number in range(300):
        p.s.updateValue((f"{batch}-{number}",), (number,))
    for number in range(0, 300, 2):
        p.s.removeKey((f"{batch}-{number}",))
    yield len(list(p.s.keys())), sum(number for (number,) in p.s.values())
    if batch == 2:
        for name in list(p.s.keys()):
            p.s.removeKey(name)
        yield p.s.exists(), list(p.s.iterator())


def entry_again(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield p.s.getValue(("a",)), p.s.containsKey(("a",)), p.s.exists()
    p.s.removeKey(("a",))
    yield (p.s.getValue(("a",)),)
    p.s.updateValue(("a",), (rows[0].v,))
    p.s.removeKey(("a",))
    p.s.updateValue(("a",), (rows[0].v + 10,))
    yield (p.s.getValue(("a",)),)
    if rows[0].v == 2:
        p.s.clear()
        p.s.updateValue(("b",), (1,))
        p.s.clear()
        yield p.s.exists()
    if rows[0].v == 3:
        p.s.removeKey(("a",))


def rows_of_a_map(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    entry = p.s.getValue(("a", 1))
    yield entry and (entry.x, entry.y, entry["x"], entry.asDict(), type(entry).__name__)
    p.s.updateValue(("a", 1), ("text", 1.5))
    yield [(type(name).__name__, type(part).__name__, name, part) for name, part in p.s.iterator()]


add("null values of a map", mapped(), null_values, batches=THREE)
add("floats as keys of a map", mapped("k double"), float_keys)
add("keys of many types in maps", keyed_variables, keys_of_types, batches=THREE)
add("a large map", mapped(), large_map, batches=THREE)
add("an entry comes and goes", mapped(), entry_again, batches=FOUR)
add("rows of a map", mapped("k string, n int", "x string, y double"), rows_of_a_map, batches=THREE)


# --- timers -----------------------------------------------------------------------------------------------------------

STEPS = (
    [row("a", 1, 1), row("b", 2, 2), row("c", 3, 3)],
    [row("z", 0, 10)],
    [row("a", 4, 4), row("z", 0, 20)],
    [row("b", 5, 21), row("z", 0, 40)],
    [row("z", 0, 60)],
)


def timed(name: str, rows: Any, timer: Callable[..., Any] = nothing, init: Any = no_state) -> None:
    add(name, init, rows, timer=timer, mode="EventTime", batches=STEPS)


def of_numpy(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.handle.registerTimer(np.int64(12000))
    p.handle.deleteTimer(77)
    yield list(p.handle.listTimers())


def many_timers(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for number in range(40):
        p.handle.registerTimer(5000 + number * 500)
    p.handle.deleteTimer(7000)
    yield len(list(p.handle.listTimers()))


def with_a_value(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.update((1,))
    p.handle.registerTimer(11000)
    yield p.s.get()


def deletes_itself(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[Any]:
    yield expiry, sorted(p.handle.listTimers())
    p.handle.deleteTimer(expiry)
    yield sorted(p.handle.listTimers())


def with_a_list(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.appendValue((rows[0].v,))
    p.handle.registerTimer(rows[0].v * 5000)
    yield list(p.s.get())


def drains_a_list(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[Any]:
    yield expiry, list(p.s.get())
    p.s.appendValue((expiry,))
    if expiry > 12000:
        p.s.clear()
        p.handle.registerTimer(expiry + 1)


def with_a_map(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for each in rows:
        p.s.updateValue((str(each.v),), (each.v,))
        p.handle.registerTimer(int(each.t.timestamp() * 1000) + 7000)
    yield sorted(p.s.iterator())


def drains_a_map(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[Any]:
    name, part = sorted(p.s.iterator())[0] if p.s.exists() else (None, None)
    yield expiry, name, part
    if name:
        p.s.removeKey(name)


timed("timers at the edge", registers(9999, 10000, 10001, 0), lambda p, k, e, t: [e, t.getCurrentWatermarkInMs()])
timed("timers in the past", registers(-5, 1), lambda p, k, e, t: [e])
timed("a timer far ahead", registers(2**62), lambda p, k, e, t: [e])
timed("a time of numpy", of_numpy, lambda p, k, e, t: [type(e).__name__, e])
timed("many timers of a key", many_timers, lambda p, k, e, t: [e])
timed("a timer deletes itself", with_a_value, deletes_itself, value())
timed("lists in timers", with_a_list, drains_a_list, listed())
timed("maps in timers", with_a_map, drains_a_map, mapped())


# --- large values -----------------------------------------------------------------------------------------------------

HALF_MB = 512 << 10


def several(p: Any, h: Any) -> None:
    p.value = h.getValueState("value", "text string, bytes binary")
    p.list = h.getListState("list", "text string")
    p.map = h.getMapState("map", "k string", "text string")


def large_values(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    letter, before = "abc"[rows[0].v - 1], p.value.get()
    yield before and [(len(each), each[:1]) for each in before]
    text = letter * HALF_MB
    p.value.update((text, text.encode()))
    p.list.appendList([(text,), (letter,)])
    p.map.updateValue((text,), (text + letter,))
    yield [(len(each), each[:2]) for (each,) in p.list.get()]
    yield sorted((len(name), name[:1], len(each)) for (name,), (each,) in p.map.iterator())
    yield p.map.containsKey((text,)), p.map.containsKey((text[1:],)), len(text) == len(p.value.get()[0])


add("values of 512 KB", several, large_values, batches=THREE)
