"""Scenarios of timers, rows, keys, variables, initial state and later programs. See `processor_scenarios`."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Row

from tests.tools.processor_scenarios import (
    THREE,
    Scenario,
    add,
    attempt,
    no_state,
    row,
    value,
)

# --- timers -----------------------------------------------------------------------------------------------------------


def timer_at(*seconds: float) -> Callable[..., Iterator[str]]:
    def rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
        for each in seconds:
            p.handle.registerTimer(int(each * 1000))
        yield f"{sorted(p.handle.listTimers())} {tv.getCurrentWatermarkInMs()} {tv.getCurrentProcessingTimeInMs() > 0}"

    return rows


def fired(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[str]:
    yield f"fired {expiry} at {tv.getCurrentWatermarkInMs()}"


def again(p: Any, key: Any, expiry: int, tv: Any) -> Iterator[str]:
    yield f"fired {expiry} {sorted(p.handle.listTimers())}"
    if expiry < 20_000:
        p.handle.registerTimer(expiry + 5_000)


def moved(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    for timer in list(p.handle.listTimers()):
        p.handle.deleteTimer(timer)
    p.handle.registerTimer(rows[0].v * 1000)
    yield str(list(p.handle.listTimers()))


MOVES = ([row("a", 2, 1), row("b", 9, 1)], [row("z", 50, 3)], [row("z", 50, 10)], [row("z", 50, 20)])
add("timers of event time", no_state, timer_at(3, 2), mode="EventTime", timer=fired, batches=MOVES)
add("timers that come twice", no_state, timer_at(3, 3), mode="EventTime", timer=fired, batches=MOVES)
add("timers registered when one expires", no_state, timer_at(1), mode="EventTime", timer=again, batches=MOVES)
add("timers that are moved", no_state, moved, mode="EventTime", timer=fired, batches=MOVES)
add(
    "a timer that is deleted when it expires",
    no_state,
    timer_at(2, 9),
    mode="EventTime",
    batches=MOVES,
    timer=lambda p, k, e, t: [f"fired {e}", p.handle.deleteTimer(9000), list(p.handle.listTimers())],
)
add(
    "state in a timer",
    value(),
    lambda p, k, r, t: [p.handle.registerTimer(2000), p.s.update((r[0].v,))],
    mode="EventTime",
    batches=MOVES,
    timer=lambda p, k, e, t: [p.s.get(), p.s.clear(), p.s.exists()],
)
add("a timer in mode None", no_state, lambda p, k, r, t: [attempt(lambda: p.handle.registerTimer(5))])
add("a timer deleted in mode None", no_state, lambda p, k, r, t: [attempt(lambda: p.handle.deleteTimer(5))])
add("timers listed in mode None", no_state, lambda p, k, r, t: [attempt(lambda: list(p.handle.listTimers()))])
add(
    "times in mode None", no_state, lambda p, k, r, t: [(t.getCurrentProcessingTimeInMs(), t.getCurrentWatermarkInMs())]
)
add(
    "times in mode EventTime",
    no_state,
    lambda p, k, r, t: [(t.getCurrentProcessingTimeInMs() > 0, t.getCurrentWatermarkInMs())],
    mode="EventTime",
    batches=MOVES,
)


# --- rows -------------------------------------------------------------------------------------------------------------


def seen(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    yield str([(each.v, each.t and each.t.timestamp()) for each in rows])


LATE = (
    [row(v=1, t=10)],
    [row(v=2, t=30)],
    [row(v=3, t=10), row(v=4, t=30), row(v=5, t=31)],
    [row(v=6, t=30)],
    [row(v=7, t=5), row(v=8, t=40)],
)
add(
    "rows of a key in their order",
    no_state,
    seen,
    batches=[[row(v=n, t=n) for n in (3, 1, 2, 1)], [row(v=n, t=9) for n in (5, 4)]],
)
add("late rows", no_state, seen, batches=LATE, mode="EventTime")
add("late rows with a delay", no_state, seen, batches=LATE, mode="EventTime", delay="15 seconds")
add("rows that no mode calls late", no_state, seen, batches=LATE)
add(
    "rows without a time",
    no_state,
    seen,
    mode="EventTime",
    batches=[[row(v=1, t=10)], [row(v=2, t=30)], [row(v=3, t=None), row(v=4, t=40)], [row(v=5, t=None)]],
)
add("rows at the epoch", no_state, seen, mode="EventTime", batches=[[row(v=1, t=0), row(v=2, t=1)], [row(v=3, t=0)]])
add(
    "null keys",
    value(),
    lambda p, k, r, t: [k, p.s.get(), p.s.update((len(r),))],
    batches=[[row(None), row("a"), row(None)], [row(None)]],
)
add(
    "keys with a null part",
    value(),
    lambda p, k, r, t: [tuple(k), p.s.get(), p.s.update((len(r),))],
    key=("k", "v"),
    batches=[
        [row(None, 1), row("a", None), row(None, None), row("a", 1)],
        [row(None, 1), row("a", None), row(None, None)],
    ],
)
KEYS = "k string, v long, t timestamp, d date, n timestamp_ntz, s struct<p:int,q:string>, e double, x binary, b boolean"
OF_KINDS = [
    [row(v=1, d="2024-02-03", n="2024-01-02T03:04:05.5", s={"p": 1, "q": 'x"y'}, e=1.5, x="QUI=", b=True)],
    [
        row(v=2, t=3, d="2024-02-03", n="2024-01-02T03:04:05.5", s={"p": 1, "q": 'x"y'}, e=1.5, x="QUI=", b=True),
        row(v=3, t=9),
    ],
    [row(v=4, t=20, d="1969-12-31", n="1969-12-31T00:00:00", s={"p": None, "q": None}, e=-0.0, x="", b=False)],
    [
        row(v=5, t=30, d="1969-12-31", n="1969-12-31T00:00:00", s={"p": None, "q": None}, e=0.0, x="", b=False),
        row(v=6, t=31),
    ],
]


def remembered(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    yield f"{p.s.get()} {[each.v for each in rows]}"
    p.s.update(((p.s.get() or (0,))[0] + 1,))
    p.handle.registerTimer(10_000)


for column in ("t", "d", "n", "s", "e", "x", "b"):
    add(
        f"keys of column {column}",
        value(),
        remembered,
        key=(column,),
        schema=KEYS,
        batches=OF_KINDS,
        mode="EventTime",
        timer=lambda p, k, e, t: [f"fired {e} {p.s.get()}"],
    )

CENTS = [[row(c=1.5), row(c=0.0000001)], [row(c=1.50, t=9), row(t=9), row(c=-12345.25, t=20)], [row(c=1e-7, t=31)]]
for kind in ("c decimal(14,2)", "c decimal(20,10)"):
    add(
        f"keys of {kind[2:]}",
        value(),
        remembered,
        key=("c",),
        schema=f"k string, v long, t timestamp, {kind}",
        batches=CENTS,
        mode="EventTime",
        timer=lambda p, k, e, t: [f"fired {k!r} {e} {p.s.get()}"],
    )

add("output fields in another order", no_state, lambda p, k, r, t: [Row(k="a", a="1"), Row(a="2", k="b")])
add("an output row without a field", no_state, lambda p, k, r, t: [Row(k="a", a="1"), Row(k="b"), Row(a="3")])
add("an output row with more fields", no_state, lambda p, k, r, t: [Row(k="a", a="1", z=5), Row(z=1, a="2", k="b")])
add(
    "nested output",
    no_state,
    lambda p, k, r, t: [Row(k="a", a=Row(y=[1], x=Row(q="b", p=1)))],
    output="k string, a struct<x:struct<p:int,q:string>,y:array<int>>",
)
add(
    "nested rows",
    no_state,
    lambda p, k, r, t: [repr(r[0].s), repr(r[0].l)],
    schema="k string, v long, t timestamp, s struct<p:int,q:array<string>>, l array<struct<p:int>>",
    batches=[[row(s={"p": 1, "q": ["a"]}, l=[{"p": 1}])]],
)
add(
    "keys do not share state",
    value(),
    lambda p, k, r, t: [p.s.get(), p.s.update((r[0].v,))],
    batches=[[row("a", 1), row("b", 2)], [row("b", 3), row("c", 4)], [row("a", 5), row("c", 6)]],
)


def counts_calls(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.calls += 1
    yield str(p.calls)


add("attributes do not survive a batch", no_state, counts_calls, batches=THREE)

# --- variables --------------------------------------------------------------------------------------------------------


def opens(action: Callable[[Any], Any], **more: Any) -> tuple[Any, Any]:
    def init(p: Any, h: Any) -> None:
        p.opened = attempt(lambda: action(h)).split(" <")[0]

    return init, lambda p, k, r, t: [p.opened]


def used_after(action: Callable[[Any], Any]) -> Callable[..., list[str]]:
    return lambda p, k, r, t: [attempt(lambda: action(p))]


def twice(h: Any) -> None:
    h.getValueState("s", "n long")
    h.getValueState("s", "n long")


add("two variables of one name", *opens(twice))
add("a variable asked for with its rows", no_state, used_after(lambda p: p.handle.getValueState("s", "n long")))
add("a variable deleted with its rows", value(), used_after(lambda p: p.handle.deleteIfExists("s")))


# --- initial state ----------------------------------------------------------------------------------------------------


def begin_with(p: Any, key: Any, initial: Any, tv: Any) -> None:
    p.s.update(((p.s.get() or (0,))[0] + initial.init,))


def add_up(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    p.s.update(((p.s.get() or (0,))[0] + sum(each.v for each in rows),))
    yield str(p.s.get())


def begin_timer(p: Any, key: Any, initial: Any, tv: Any) -> None:
    p.handle.registerTimer(initial.init)
    p.s.update((initial.init,))


NINE = tuple((str(n), n * 100) for n in range(9))
add(
    "initial state",
    value(),
    add_up,
    initial=NINE,
    initially=begin_with,
    batches=[[row("0")], [row(str(n)) for n in range(1, 10)]],
)
add(
    "several initial rows of a key",
    value(),
    add_up,
    initial=(("a", 1), ("b", 5), ("a", 2)),
    initially=begin_with,
    batches=[[row("a")], [row("b")]],
)
without = Scenario("", value(), add_up)
add(
    "initial state and a start without",
    value(),
    add_up,
    initial=NINE,
    initially=begin_with,
    batches=[[row("0")], [row(str(n)) for n in range(1, 9)]],
    starts=((1, without),),
)
other = Scenario("", value(), add_up, initial=tuple((str(n), 7) for n in range(12)), initially=begin_with)
add(
    "initial state that has changed",
    value(),
    add_up,
    initial=NINE,
    initially=begin_with,
    batches=[[row("0")], [row(str(n)) for n in range(1, 12)]],
    starts=((1, other),),
)
add(
    "timers of the initial state",
    value(),
    add_up,
    mode="EventTime",
    initial=(("a", 0), ("b", 4000), ("c", 12_000)),
    initially=begin_timer,
    timer=lambda p, k, e, t: [f"fired {e} {p.s.get()}"],
    batches=MOVES,
)


# --- another program --------------------------------------------------------------------------------------------------


def remember(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
    yield str(p.s.get())
    p.s.update((rows[0].v,))


def deletes(p: Any, h: Any) -> None:
    h.deleteIfExists("s")
    h.deleteIfExists("never")


add(
    "a variable that a later program deletes",
    value(),
    remember,
    batches=[*THREE, [row("b", 4, 4), row("a", 5, 4)]],
    starts=((1, Scenario("", deletes, lambda p, k, r, t: ["deleted"])), (2, Scenario("", value(), remember))),
)
add(
    "a restart goes on",
    value(),
    remember,
    batches=THREE,
    starts=((1, Scenario("", value(), remember)), (2, Scenario("", value(), remember))),
)
