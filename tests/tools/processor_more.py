"""Scenarios of several things at once: containers, nested rows, sessions, initial state, later programs. See
`processor_scenarios`.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from pyspark.sql import Row

from tests.tools.processor_scenarios import THREE, Scenario, add, listed, mapped, no_state, puts, row, value
from tests.tools.processor_times import MOVES

NOON = datetime(2024, 7, 2, 12, 4, 5, 6)

# --- containers -------------------------------------------------------------------------------------------------------


def nulls_in_a_list(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.appendValue((None, None))
    p.s.appendList([(1, None), (None, "x")])
    yield list(p.s.get()), p.s.exists()
    p.s.put([(None, None)])
    yield list(p.s.get()), p.s.exists()


def tuples_in_a_map(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.updateValue((rows[0].v, "x"), (None, [None, 1.5]))
    p.s.updateValue([rows[0].v, None], (2, None))
    p.s.updateValue(Row(b=7, a="y"), Row(x=None, y=[]))
    p.s.updateValue((np.int64(5), np.str_("z")), (np.float64(1.0), [1, 2]))
    yield sorted(map(repr, p.s.iterator()))
    yield [type(part).__name__ for pair in list(p.s.iterator())[:1] for part in (pair, *pair)]
    entry = p.s.getValue((7, "y"))
    yield type(entry).__name__, entry.b, p.s.getValue((7, "z")), p.s.containsKey([5, "z"])
    p.s.removeKey((7, "y"))
    p.s.updateValue((7, "y"), (1, [0.1]))
    p.s.updateValue((7, "y"), (2, [0.1]))
    yield repr(p.s.getValue((7, "y")))


def changed_while_iterating(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    entries = p.s.iterator()
    p.s.updateValue(("a",), (rows[0].v,))
    p.s.updateValue(("b",), (rows[0].v,))
    for name, number in entries:
        p.s.updateValue((name[0] + "x",), number)
    yield sorted(p.s.iterator())
    p.s.clear()
    p.s.updateValue(("c",), (1,))
    p.s.removeKey(("c",))
    yield p.s.exists(), list(p.s.keys())
    p.s.updateValue(("d",), (rows[0].v,))
    if rows[0].v == 2:
        p.s.clear()


def two_iterators(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.s.put([(number,) for number in range(4)])
    first, second = p.s.get(), p.s.get()
    yield [next(first), next(second), next(first), next(second)], list(first), list(second), next(first, None)
    for (number,) in p.s.get():
        if number < 2:
            p.s.appendValue((number + 10,))
    yield list(p.s.get())


def other_containers(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for given in ((None,), [None], Row(n=4), "7", iter([8]), {9}, {"n": 5}):
        p.s.update(given)
        yield p.s.exists(), p.s.get()


def with_a_date(schema: str, *given: Any) -> tuple[Any, Any]:
    def rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
        p.s.update(given)
        yield p.s.get()

    return value(schema), rows


add("nulls in a list", listed("n long, w string"), nulls_in_a_list, batches=THREE)
add("tuples in a map", mapped("n long, w string", "a double, b array<float>"), tuples_in_a_map, batches=THREE)
add("a map changed while it is read", mapped(), changed_while_iterating, batches=THREE)
add("two iterators of a list", listed(), two_iterators)
add("values in other containers", value(), other_containers)
add("arrays of moments", *puts("array<timestamp>", [NOON, None], [NOON.replace(tzinfo=UTC)]))
add(
    "structs of moments",
    *puts("struct<t:timestamp,d:date>", (NOON, date(2024, 1, 2)), (None, None), Row(t=NOON, d=None), {"t": NOON}),
)
add("maps of arrays of structs", *puts("map<string,array<struct<a:int>>>", {"a": [(1,), None]}))
add("a value beyond a schema with a date", *with_a_date("d date, n long", date(2024, 1, 1), 1, 2))
add("a value beyond a struct with a date", *with_a_date("s struct<d:date,n:long>", (date(2024, 1, 1), 1, 2)))
add("text with a collation", *puts("string collate UNICODE_CI", "a", "A"))


# --- rows -------------------------------------------------------------------------------------------------------------

WIDE = (
    "k string, v long, t timestamp, a array<struct<p:int,q:string>>, m map<string,int>, d decimal(10,2), y date, "
    "b binary, f float, s struct<x:struct<z:int>,w:array<date>>, bo boolean, ti tinyint, n timestamp_ntz"
)
FULL = {
    "a": [{"p": 1, "q": "x"}, {"p": None}],
    "m": {"a": 1, "b": 2},
    "d": 1.5,
    "y": "2024-01-02",
    "b": "QUI=",
    "f": 0.1,
    "s": {"x": {"z": 1}, "w": ["2024-01-02"]},
    "bo": True,
    "ti": 3,
    "n": "2024-01-02T03:04:05",
}


def rows_in_full(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for each in rows:
        yield repr(each)
        yield each.asDict(), each.asDict(True)
        yield [type(part).__name__ for part in each], len(each), each["v"], each[0], "v" in each, each[1:3]


def rows_into_state(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield p.s.get()
    (each,) = rows
    p.s.update((each.s, each.a, each.d, each.y, each.b, each.f, each.bo, each.n, each.t))
    yield p.s.get()


def growing(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    numbers: list[int] = []
    for number in (1, 2, 3):
        numbers.append(number)
        yield Row(k="a", a=numbers)


def given(output: str, *values: Any) -> dict[str, Any]:
    def rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
        for number, each in enumerate(values):
            yield Row(k=str(number), a=each)

    return {"init": no_state, "rows": rows, "output": f"k string, a {output}"}


add("rows of all types", no_state, rows_in_full, schema=WIDE, batches=[[row(**FULL), row(v=2)], [row(v=None, t=None)]])
add(
    "nested parts of a row into state",
    value(
        "s struct<x:struct<z:int>,w:array<date>>, a array<struct<p:int,q:string>>, d decimal(10,2), y date, b binary, "
        "f float, bo boolean, n timestamp_ntz, t timestamp"
    ),
    rows_into_state,
    schema=WIDE,
    batches=[[row(**FULL)], [row(**FULL)]],
)
add("a list that grows behind its row", no_state, growing, output="k string, a array<long>")
add("maps of the output", **given("map<string,int>", {"a": 1}, [("b", 2)], {}))
add(
    "arrays of structs of the output",
    **given("array<struct<p:int,q:string>>", [Row(p=1, q="x")], [{"p": 2}], [Row(q="z", p=3), None]),
)
add(
    "structs in structs of the output",
    **given("struct<p:struct<x:int,y:array<struct<z:int>>>>", Row(p=Row(y=[Row(z=1)], x=2))),
)
TEXTS = ("", " ", "a\0b", "\U0001f600", "a/b", "%s", "null", "None", "[null]", "x" * 3000)
add(
    "keys of unusual text",
    value(),
    lambda p, k, r, t: [(k, p.s.get()), p.s.update((len(r),))],
    batches=[[row(text) for text in TEXTS]] * 2,
)

# --- timers -----------------------------------------------------------------------------------------------------------


def registers(*times: int) -> Callable[..., Iterator[Any]]:
    def rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
        for each in times:
            p.handle.registerTimer(each)
        yield sorted(p.handle.listTimers())

    return rows


def session_rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    for each in rows:
        p.s.appendValue((each.v,))
    for timer in list(p.handle.listTimers()):
        p.handle.deleteTimer(timer)
    p.handle.registerTimer(int(max(each.t.timestamp() for each in rows) * 1000) + 3000)
    yield "open", len(list(p.s.get()))


def session_ends(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[Any]:
    numbers = [number for (number,) in p.s.get()]
    p.s.clear()
    yield "closed", expiry, numbers, p.s.exists(), sorted(p.handle.listTimers())


def history_rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    p.handle.registerTimer(2000)
    p.s.appendValue((f"rows {len(rows)}",))
    yield list(p.s.get())


def history_timer(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[Any]:
    p.s.appendValue((f"timer {expiry}",))
    yield list(p.s.get())
    if expiry < 9000:
        p.handle.registerTimer(expiry * 2)


def late_rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield p.s.get(), [each.v for each in rows]
    p.s.update((len(rows),))
    p.handle.registerTimer(25_000)


SESSIONS = (
    [row("a", 1, 1), row("b", 5, 1), row("a", 2, 2)],
    [row("a", 3, 4)],
    [row("b", 6, 9)],
    [row("a", 7, 3), row("b", 8, 10), row("c", 1, 30)],
    [row("a", 1, 40)],
)
add(
    "a timer deletes the others",
    no_state,
    registers(1500, 2000, 2500),
    mode="EventTime",
    batches=MOVES,
    timer=lambda p, k, e, t: [e, p.handle.deleteTimer(2000), p.handle.deleteTimer(2500), sorted(p.handle.listTimers())],
)
add(
    "a timer registers its own time",
    no_state,
    registers(1500, 2000),
    mode="EventTime",
    batches=MOVES,
    timer=lambda p, k, e, t: [e, p.handle.registerTimer(e), sorted(p.handle.listTimers())],
)
add("sessions", listed(), session_rows, mode="EventTime", batches=SESSIONS, timer=session_ends)
add(
    "sessions and late rows",
    listed(),
    session_rows,
    mode="EventTime",
    batches=SESSIONS,
    timer=session_ends,
    delay="4 seconds",
)
add(
    "rows and timers of one batch",
    listed("w string"),
    history_rows,
    mode="EventTime",
    batches=([row("a", 1, 1)], [row("a", 1, 5), row("b", 1, 6)], [row("a", 1, 20)], [row("a", 1, 30)]),
    timer=history_timer,
)
add(
    "late rows beside timers",
    value(),
    late_rows,
    mode="EventTime",
    timer=lambda p, k, e, t: [("timer", p.s.get(), e)],
    batches=(
        [row(v=1, t=10), row("b", v=1, t=10)],
        [row(v=2, t=30)],
        [row(v=3, t=9), row("b", v=4, t=31), row(v=5, t=29.9995)],
        [row(v=6, t=30), row(v=7, t=30.001)],
        [row(v=7, t=31), row("b", v=8, t=40)],
    ),
)

# --- initial state, and other programs --------------------------------------------------------------------------------


def begins_due(p: Any, key: Any, initial: Any, tv: Any) -> None:
    p.s.update((initial.init,))
    p.handle.registerTimer(tv.getCurrentWatermarkInMs())
    p.handle.registerTimer(5000)


def begins_with_digits(p: Any, key: Any, initial: Any, tv: Any) -> None:
    p.s.update(((p.s.get() or (0,))[0] * 10 + initial.init,))


def asks_for_more(p: Any, h: Any) -> None:
    p.s = h.getValueState("s", "n long")
    p.words = h.getListState("words", "w string")


def remembers(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[Any]:
    yield p.s.get()
    p.s.update((rows[0].v,))


add(
    "initial state of null keys",
    value(),
    lambda p, k, r, t: [p.s.get()],
    initial=((None, 1), ("a", 2), ("", 4), (None, 3), ("never", 9)),  # type: ignore[arg-type]
    initially=begins_with_digits,
    batches=([row(None), row("a")], [row(""), row(None)]),
)
add(
    "timers of the initial state that are due",
    value(),
    lambda p, k, r, t: [p.s.get(), sorted(p.handle.listTimers()), p.s.update((0,))],
    initial=(("a", 1), ("b", 2), (None, 3)),  # type: ignore[arg-type]
    initially=begins_due,
    mode="EventTime",
    batches=MOVES,
    timer=lambda p, k, e, t: [(tuple(k), e, p.s.get())],
)
deleted = Scenario("", lambda p, h: h.deleteIfExists("s"), lambda p, k, r, t: ["deleted"])
add(
    "a value is deleted, and a list has its name",
    value(),
    remembers,
    batches=THREE,
    starts=((1, deleted), (2, Scenario("", listed(), lambda p, k, r, t: [list(p.s.get())]))),
)
add(
    "a variable is added",
    value(),
    remembers,
    batches=THREE,
    starts=(
        (
            1,
            Scenario(
                "",
                asks_for_more,
                lambda p, k, r, t: [p.s.get(), list(p.words.get()), p.words.appendValue(("x",))],
            ),
        ),
    ),
)
add(
    "a variable is not asked for in between",
    value(),
    remembers,
    batches=THREE,
    starts=((1, Scenario("", no_state, lambda p, k, r, t: ["other"])), (2, Scenario("", value(), remembers))),
)
