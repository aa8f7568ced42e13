"""Scenarios of values, lists and maps. See `processor_scenarios`."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from pyspark.sql import Row

from tests.tools.processor_scenarios import (
    THREE,
    Address,
    add,
    attempt,
    listed,
    mapped,
    puts,
    row,
    value,
)

# --- values by their schema -------------------------------------------------------------------------------------------

add("floats of 32 bits", *puts("float", 0.1, 1e39, -1e39, float("nan"), 3, None, "1.5"))
add("doubles", *puts("double", 0.1, 5, True, "x", Decimal("NaN"), None))
add("integers of 8 bits wrap", *puts("tinyint", 1, 127, 128, 300, -129, 2**40, 2**70, True, 1.5, "7"))
add("integers of 16 bits wrap", *puts("smallint", 32767, 32768, -32769, 2**40))
add("integers of 32 bits wrap", *puts("int", 2**31 - 1, 2**31, 2**40, -(2**31) - 1, 1.0, "text"))
add("integers of 64 bits", *puts("long", 2**63 - 1, -(2**63), 2**63, 2**70, "text", b"1", False))
add("booleans", *puts("boolean", True, False, 1, 0, "true", None))
add("anything is text", *puts("string", "a", 1, True, 1.5, 0.1, 1e10, 1e-5, 123456.0, float("inf"), [1, "x", None]))
add("maps and decimals as text", *puts("string", {"a": 1}, Decimal("1.50"), 2**70, -0.0, 100000000.0, 1.5e-7))
add("bytes", *puts("binary", b"ab", bytearray(b"c"), "text", 5, None))
add("decimals are rounded", *puts("decimal(5,2)", Decimal("1.5"), Decimal("1.005"), Decimal("-1.005"), 7, 1.5, "1.5"))
add("decimals without a fraction", *puts("decimal(20)", Decimal(12345678901234567890), Decimal("0.5"), Decimal("1.5")))
add("dates", *puts("date", date(2024, 2, 3), datetime(2024, 2, 3, 23, 59), None))
add("timestamps", *puts("timestamp", datetime(2024, 2, 3, 4, 5, 6, 7), datetime(2024, 2, 3, tzinfo=UTC)))
add("times without a zone", *puts("timestamp_ntz", datetime(2024, 2, 3, 4, 5, 6, 7), None))
add("arrays", *puts("array<int>", [1, 2], (1, 2), [1, None, "x", 2**40], [], 5, None))
add("arrays of text", *puts("array<string>", ["a", 1, None, 2.5], [["b"]]))
add("maps", *puts("map<string,int>", {"a": 1}, {1: "x"}, {}, [1], None))
add("numpy scalars", *puts("long", np.int64(5), np.int8(-1), np.float64(1.5)))
add("numpy floats", *puts("double", np.float64(1.5), np.float32(0.1), np.int64(2)))
add("structs", *puts("struct<p:int,q:string>", Row(p=1, q="x"), (2, "y"), [3, "z"], {"q": "by name", "p": 4}))
add("structs by name", *puts("struct<p:int,q:string>", {"q": "only"}, {"p": 1, "other": 2}, {}, None))
add("named tuples", *puts("struct<p:int,q:string>", Address(1, "Seattle"), Address(None, None)))
add("fields of a struct convert", *puts("struct<p:int,q:float>", (2**40, 0.1), ("x", 1)))
add(
    "arrays of structs",
    *puts("array<struct<p:int,q:string>>", [Address(1, "a")], [(2, "b"), {"p": 3}], [Row(p=4, q="c")]),
)
add("maps of structs", *puts("map<string,struct<p:int,q:float>>", {"a": (1, 0.1)}, {"b": Row(p=2, q=0.5)}))
add(
    "structs in structs",
    *puts("struct<z:struct<p:int,q:string>,w:array<float>>", ((1, "a"), [0.1]), Row(z=None, w=None)),
)


def fields_of(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.update(([Address(1, "Seattle")], {"home": (2, "Oslo")}))
    places, by_name = p.s.get()
    yield f"{places[0].q} {by_name['home'].p} {type(places[0]).__name__} {places[0].asDict()}"


add(
    "fields of structs by their names",
    value("at array<struct<p:int,q:string>>, by map<string,struct<p:int,q:string>>"),
    fields_of,
)
add(
    "a struct without its fields",
    value("r struct<p:int,q:string>"),
    lambda p, k, r, t: [attempt(lambda: p.s.update((5,)))],
)
add(
    "too few fields of a struct",
    value("r struct<p:int,q:string>"),
    lambda p, k, r, t: [attempt(lambda: p.s.update(((1,),)))],
)
add("too many values", value(), lambda p, k, r, t: [attempt(lambda: p.s.update((1, 2)))])
add("too few values", value("a long, b long"), lambda p, k, r, t: [attempt(lambda: p.s.update((1,)))])
add("no value", value(), lambda p, k, r, t: [attempt(lambda: p.s.update(None))])
add(
    "a decimal beyond its type",
    value("d decimal(5,2)"),
    lambda p, k, r, t: [attempt(lambda: p.s.update((Decimal("123456.7"),)))],
)
add("text for a date", value("d date"), lambda p, k, r, t: [attempt(lambda: p.s.update(("2024-01-01",)))])
add(
    "the top of a value by position",
    value("a long, b string"),
    lambda p, k, r, t: [
        (p.s.update(Row(b=1, a="x")), p.s.get()),
        (p.s.update([2, "y"]), p.s.get()),
        (p.s.update({"b": 1, "a": 2}), p.s.get()),
    ],
)
add(
    "a value comes and goes",
    value(),
    lambda p, k, r, t: [
        p.s.exists(),
        p.s.get(),
        p.s.update((5,)),
        p.s.exists(),
        p.s.get(),
        p.s.clear(),
        p.s.exists(),
        p.s.get(),
    ],
)


# --- what is read is a copy -------------------------------------------------------------------------------------------


def change_without_update(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    if not p.s.exists():
        p.s.update(([0], {"a": 1}))
    numbers, by_name = p.s.get()
    numbers.extend(each.v for each in rows)
    by_name["b"] = 2
    yield str(p.s.get())


def change_after_update(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    if not p.s.exists():
        numbers, by_name = [0], {"a": 1}
        p.s.update((numbers, by_name))
        numbers.append(9)
        by_name["b"] = 2
    yield str(p.s.get())


add("a list changed and not put back", value("l array<long>, m map<string,long>"), change_without_update, batches=THREE)
add("a list changed behind its update", value("l array<long>, m map<string,long>"), change_after_update, batches=THREE)


def change_elements(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.appendValue(([rows[0].v],))
    for (numbers,) in p.s.get():
        numbers.append(99)
    yield str(list(p.s.get()))


add("elements of a list state changed", listed("l array<long>"), change_elements, batches=THREE)


def change_entries(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.updateValue((f"{rows[0].v}",), ([rows[0].v],))
    for _, (numbers,) in p.s.iterator():
        numbers.append(99)
    for (numbers,) in p.s.values():
        numbers.append(98)
    p.s.getValue(("1",))[0].append(97)
    yield str(sorted(p.s.iterator()))


add("entries of a map state changed", mapped("k string", "l array<long>"), change_entries, batches=THREE)


# --- lists ------------------------------------------------------------------------------------------------------------


def grow(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.appendValue((rows[0].v,))
    p.s.appendList([(rows[0].v * 10,), (None,)])
    yield f"{p.s.exists()} {list(p.s.get())}"


def put_and_clear(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    yield f"{p.s.exists()} {list(p.s.get())}"
    p.s.put([(rows[0].v,), (2,)])
    p.s.appendValue((3,))
    yield str(list(p.s.get()))
    if rows[0].v == 2:
        p.s.clear()
        yield f"{p.s.exists()} {list(p.s.get())}"
        p.s.appendValue((4,))


def long_list(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.appendList([(rows[0].v * 1000 + i,) for i in range(300)])
    numbers = [n for (n,) in p.s.get()]
    yield f"{len(numbers)} {sum(numbers)} {numbers[:2]} {numbers[-2:]} {numbers == sorted(numbers)}"
    if rows[0].v == 2:
        p.s.put([(n,) for n in numbers[-100:]])


add("a list grows", listed(), grow, batches=THREE)
add("a list is put and cleared", listed(), put_and_clear, batches=THREE)
add("a long list", listed(), long_list, batches=[[row(v=n, t=n)] for n in range(1, 6)])
add("an empty list is put", listed(), lambda p, k, r, t: [attempt(lambda: p.s.put([]))])
add("an empty list is appended", listed(), lambda p, k, r, t: [attempt(lambda: p.s.appendList([]))])
add("no list is put", listed(), lambda p, k, r, t: [attempt(lambda: p.s.put(None))])
add(
    "a list of structs",
    listed("r struct<p:int,q:string>"),
    lambda p, k, r, t: [
        (p.s.appendList([(Address(1, "a"),), ({"p": 2},)]), [(each[0].p, each[0].q) for each in p.s.get()])
    ],
)


# --- maps -------------------------------------------------------------------------------------------------------------


def map_entries(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    n = rows[0].v
    p.s.updateValue((f"e{n}",), (n,))
    p.s.updateValue(("all",), ((p.s.getValue(("all",)) or (0,))[0] + n,))
    yield f"{sorted(p.s.iterator())} {sorted(p.s.keys())} {sorted(p.s.values())} {p.s.containsKey(('e1',))}"
    if n == 2:
        p.s.removeKey(("e1",))
        p.s.removeKey(("never",))
        yield f"{sorted(p.s.keys())} {p.s.getValue(('e1',))} {p.s.containsKey(('e1',))} {p.s.exists()}"


def map_cleared(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    yield f"{p.s.exists()} {sorted(p.s.iterator())}"
    p.s.updateValue(("x",), (1,))
    p.s.clear()
    yield f"{p.s.exists()} {sorted(p.s.iterator())}"
    p.s.updateValue(("y",), (rows[0].v,))


def removed_while_iterating(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    for n in range(5):
        p.s.updateValue((f"{n}",), (n,))
    for entry, (n,) in p.s.iterator():
        if n % 2:
            p.s.removeKey(entry)
    yield str(sorted(p.s.keys()))


add("a map of entries", mapped(), map_entries, batches=THREE)
add("a map is cleared", mapped(), map_cleared, batches=THREE)
add("entries are removed while iterating", mapped(), removed_while_iterating, batches=THREE)
add(
    "arrays as keys of a map",
    mapped("k array<int>"),
    lambda p, k, r, t: [
        (p.s.updateValue(([1, 2],), (3,)), list(p.s.iterator()), p.s.getValue(([1, 2],)), p.s.containsKey(([2, 1],)))
    ],
)
add(
    "structs as keys of a map",
    mapped("r struct<p:int,q:string>"),
    lambda p, k, r, t: [
        (p.s.updateValue((Address(1, "a"),), (3,)), p.s.getValue(((1, "a"),)), [each[0].q for each in list(p.s.keys())])
    ],
)
add(
    "nulls in keys of a map",
    mapped("a string, b long"),
    lambda p, k, r, t: [
        (p.s.updateValue((None, 1), (3,)), p.s.updateValue((None, None), (4,)), sorted(p.s.iterator(), key=str))
    ],
)
add(
    "keys of a map convert",
    mapped("k int"),
    lambda p, k, r, t: [
        (p.s.updateValue((2**32 + 5,), (1,)), p.s.getValue((5,)), p.s.updateValue(("x",), (2,)), p.s.getValue((None,)))
    ],
)
add(
    "a value of a map by its name",
    mapped("k string", "n long, t string"),
    lambda p, k, r, t: [(p.s.updateValue(("a",), (3, "x")), p.s.getValue(("a",)).t, p.s.getValue(("a",)).asDict())],
)
add("no key of a map", mapped(), lambda p, k, r, t: [attempt(lambda: p.s.getValue(None))])
