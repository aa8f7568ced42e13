"""Scenarios of `transformWithState` (Row): numbered processors with their input, batch by batch.

The scenarios are the behaviours that Spark's own tests of `transformWithState` in Python check, and small processors
for what these leave out. A scenario's rows are (key, text); texts show what state, timers and rows were.
`processor_cases` and `processor_times` have the scenarios, `processor_runs` runs them.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

SCHEMA = "k string, v long, t timestamp"
OUTPUT = "k string, a string"
Rows = list[tuple[Any, ...]]


def second(number: float) -> str:
    """A time of the input, a number of seconds after the epoch."""
    return datetime.fromtimestamp(number, UTC).isoformat().replace("+00:00", "Z")


def row(k: Any = "a", v: Any = 1, t: float | None = 1, **more: Any) -> dict[str, Any]:
    """A row of the input."""
    return {"k": k, "v": v, "t": None if t is None else second(t), **more}


ONE: tuple[list[dict[str, Any]], ...] = ([row()],)
THREE = ([row(v=1, t=1)], [row(v=2, t=2)], [row(v=3, t=3)])


def attempt(action: Callable[[], Any]) -> str:
    """Return what an action answers, or the error: its type, and its condition if it has one in brackets."""
    try:
        return f"answer {action()!r}"
    except Exception as error:
        text = str(error)
        condition = text[text.index("[") : text.index("]") + 1] if "[" in text and "]" in text else ""
        return f"error {type(error).__name__} {condition}".strip()


class Small(StatefulProcessor):
    """A processor of functions: `init` opens variables as attributes, `rows` yields texts for a key's rows."""

    def __init__(self, of: "Scenario") -> None:
        self.of = of

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.calls = 0
        self.of.init(self, handle)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _answers(self, key: Any, texts: Iterable[Any] | None) -> Iterator[Any]:
        for text in texts or ():
            yield text if isinstance(text, Row) else Row(k=shown(key), a=str(text))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from self._answers(key, self.of.rows(self, key, list(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        texts = self.of.timer(self, key, expiredTimerInfo.getExpiryTimeInMs(), timerValues)
        yield from self._answers(key, texts)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.of.initially(self, key, initialState, timerValues)

    def close(self) -> None:
        """Nothing is open."""


def shown(key: Sequence[Any]) -> str:
    """A key as text; a struct as its values, because Spark gives a dict with rows and a Row with a timer."""
    parts = [tuple(part.values()) if isinstance(part, dict) else part for part in key]
    return "|".join(str(tuple(part) if isinstance(part, tuple) else part) for part in parts)


def nothing(*_: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Scenario:
    """One scenario. `starts` are later starts of the query: another processor, and how many batches come before it."""

    name: str
    init: Callable[[Any, Any], Any]
    rows: Callable[[Any, Any, list[Any], Any], Iterable[Any] | None]
    batches: Sequence[list[dict[str, Any]]] = ONE
    mode: str = "None"
    timer: Callable[..., Iterable[Any] | None] = nothing
    initial: tuple[tuple[str, int], ...] = ()
    initially: Callable[..., Any] = nothing
    key: tuple[str, ...] = ("k",)
    schema: str = SCHEMA
    output: str = OUTPUT
    delay: str = "0 seconds"
    starts: tuple[tuple[int, "Scenario"], ...] = ()
    # whether it needs a query of its own on Spark: what it does ends the server of Spark's state, or its rows show the
    # key or are no texts
    alone: bool = False
    number: int = field(default=0)

    def processor(self) -> Any:
        return Small(self)

    def parts(self) -> "list[tuple[Scenario, list[list[dict[str, Any]]]]]":
        """Return each start with its batches."""
        cuts = [0, *(before for before, _ in self.starts), len(self.batches)]
        programs = [self, *(scenario for _, scenario in self.starts)]
        return [(program, list(self.batches[a:b])) for program, a, b in zip(programs, cuts[:-1], cuts[1:], strict=True)]


def no_state(p: Any, h: Any) -> None:
    """A processor without variables."""


SCENARIOS: list[Scenario] = []


# Scenarios that need a query of their own on Spark.
ALONE = frozenset(
    {
        "a struct without its fields",
        "too few fields of a struct",
        "too many values",
        "too few values",
        "no value",
        "a decimal beyond its type",
        "text for a date",
        "an empty list is put",
        "an empty list is appended",
        "no list is put",
        "no key of a map",
        "a timer in mode None",
        "a timer deleted in mode None",
        "null keys",
        "output fields in another order",
        "an output row without a field",
        "an output row with more fields",
        "two variables of one name",
        "a variable asked for with its rows",
        "a variable deleted with its rows",
        "timers listed in mode None",
    }
)


def add(name: str, init: Any, rows: Any, **more: Any) -> Scenario:
    scenario = Scenario(name, init, rows, number=len(SCENARIOS) + 1, alone=name in ALONE, **more)
    SCENARIOS.append(scenario)
    return scenario


def value(schema: str = "n long") -> Callable[[Any, Any], None]:
    def init(p: Any, h: Any) -> None:
        p.s = h.getValueState("s", schema)

    return init


def listed(schema: str = "n long") -> Callable[[Any, Any], None]:
    def init(p: Any, h: Any) -> None:
        p.s = h.getListState("s", schema)

    return init


def mapped(keys: str = "k string", values: str = "n long") -> Callable[[Any, Any], None]:
    def init(p: Any, h: Any) -> None:
        p.s = h.getMapState("s", keys, values)

    return init


def puts(schema: str, *values: Any) -> tuple[Any, Any]:
    """Put each value into a value state of one column, and show what comes back."""

    def rows(p: Any, key: Any, rows: Any, tv: Any) -> Iterator[str]:
        for each in values:
            p.s.update((each,))
            got = p.s.get()
            yield f"{type(got).__name__} {type(got[0]).__name__} {got!r}"

    return value(f"c {schema}"), rows


Address = collections.namedtuple("Address", "p q")


# --- many in one query ------------------------------------------------------------------------------------------------


def plain_row(values: Iterable[Any]) -> tuple[Any, ...]:
    """A row as JSON gives it back."""
    return tuple(repr(each) if isinstance(each, tuple | float) else each for each in values)


def in_order(rows: Iterable[Iterable[Any]]) -> Rows:
    """Rows of a batch in an order of their own: Spark promises none between keys."""
    return sorted(map(plain_row, rows), key=lambda each: tuple(map(str, each)))


class Named:
    """A handle whose variables have the number of a scenario in their names."""

    def __init__(self, handle: Any, number: int) -> None:
        self._handle, self._number = handle, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def getValueState(self, name: str, *more: Any) -> Any:
        return self._handle.getValueState(f"{name}{self._number}", *more)

    def getListState(self, name: str, *more: Any) -> Any:
        return self._handle.getListState(f"{name}{self._number}", *more)

    def getMapState(self, name: str, *more: Any) -> Any:
        return self._handle.getMapState(f"{name}{self._number}", *more)


class Many(StatefulProcessor):
    """Several scenarios in one query, whose keys begin with their number."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self.parts = {scenario.number: Small(scenario) for scenario in scenarios}

    def init(self, handle: Any) -> None:
        for number, part in self.parts.items():
            part.init(Named(handle, number))

    def _of(self, key: Any) -> tuple[Small, str, tuple[str]]:
        number, _, rest = key[0].partition("/")
        return self.parts[int(number)], number, (rest,)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        part, number, rest = self._of(key)
        for each in part.handleInputRows(rest, rows, timerValues):
            yield Row(k=f"{number}/{each.k}", a=each.a)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        part, number, rest = self._of(key)
        for each in part.handleExpiredTimer(rest, timerValues, expiredTimerInfo):
            yield Row(k=f"{number}/{each.k}", a=each.a)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Together(Scenario):
    """Scenarios that run in one query: without a time mode, or with the same batches."""

    members: tuple[Scenario, ...] = ()

    def processor(self) -> Any:
        return Many(self.members)

    def apart(self, batches: list[Rows]) -> dict[str, list[Rows]]:
        """Return the rows of each member, batch by batch."""
        result: dict[str, list[Rows]] = {}
        for member in self.members:
            start = f"{member.number}/"
            mine = [[(k[len(start) :], a) for k, a in rows if k.startswith(start)] for rows in batches]
            result[member.name] = [in_order(rows) for rows in mine if rows]
        return result


def together(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return the scenarios, those that can run in one query as one."""
    groups: dict[str, list[Scenario]] = {}
    for each in scenarios:
        alone = each.alone or each.initial or each.starts or each.key != ("k",) or each.schema != SCHEMA
        if alone or each.output != OUTPUT:
            groups[each.name] = [each]
        else:
            groups.setdefault("" if each.mode == "None" else f"{each.mode}{each.delay}{each.batches}", []).append(each)
    return [members[0] if len(members) == 1 else _joined(tuple(members)) for members in groups.values()]


def _joined(members: tuple[Scenario, ...]) -> Together:
    batches = []
    for number in range(max(len(member.batches) for member in members)):
        rows = [(m, each) for m in members if number < len(m.batches) for each in m.batches[number]]
        batches.append([{**each, "k": f"{m.number}/{each['k']}"} for m, each in rows])
    name = f"together {members[0].number}"
    first = members[0]
    return Together(name, no_state, nothing, batches, first.mode, delay=first.delay, members=members)
