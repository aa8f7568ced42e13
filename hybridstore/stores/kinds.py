"""Kinds: everything that the rest of the project needs to know about each kind of store, in one place.

    KINDS[name] ─▶ Kind: its class, the columns and the order of its records, when they expire, what a replay costs

The state opens stores, the inspection reads blocks, and a topology knows the types of stores by this table. A sixth
kind is a module beside the five and an entry here. The surprise: a kind's class is imported only when a state has such
a store, so that a look at a state does not pay for absent kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from changelog.journal import Journal
from changelog.mutation import DELETE, DELETE_AT, DELETE_SPAN, EVICT, PUT, PUT_AT, PUT_COLUMNS, PUT_SPAN, PUT_SPANS

from ..clock import NO_TIME, due_through, expired_through, slid_out_through
from .edge import Edge

if TYPE_CHECKING:
    from .key_value import KeyValueStore
    from .session import SessionStore
    from .sliding import SlidingStore
    from .suppression import SuppressionBuffer
    from .window import WindowStore


# What the owner of stores calls of a store, of whatever kind.
Store = Edge


class Row(NamedTuple):
    """One record of a store, as everybody who reads a state gets it.

    key     its key
    times   the times that are part of the record (ms), in the order of its kind's `columns`: the end and the start of a
            session, the time of a window, the place and the time of a buffered record, the time of a value with a ttl
    value   its value

    `start` and `end` are the bounds of a session, else its time twice; None for a record of a key-value store.

    >>> with hs.open("state") as state:
    ...     state.session("visits", retention="1 hour").put("ann", "3 pages", start=500, end=700)
    ...     state.commit()
    1
    >>> (row,) = hs.inspect("state")["visits"]
    >>> row
    Row(key='ann', times=(700, 500), value='3 pages')
    >>> row.start, row.end
    (500, 700)
    """

    key: Any
    times: tuple[int, ...]
    value: Any

    @property
    def start(self) -> int | None:
        """The begin of a session, else the time of the record (ms); None without one."""
        return None

    @property
    def end(self) -> int | None:
        """The end of a session, else the time of the record (ms); None without one."""
        return None

    def __repr__(self) -> str:
        return f"Row(key={self.key!r}, times={self.times!r}, value={self.value!r})"


class TimedRow(Row):
    """A record with a time."""

    __slots__ = ()

    @property
    def start(self) -> int | None:
        """Its time (ms)."""
        return self.times[-1]

    end = start


class SpanRow(Row):
    """A session."""

    __slots__ = ()

    @property
    def start(self) -> int | None:
        """The begin of the session (ms)."""
        return self.times[1]

    @property
    def end(self) -> int | None:
        """The end of the session (ms)."""
        return self.times[0]


S = TypeVar("S", bound=Store)
Copied = tuple[list[Any], ...]


class Opens(Protocol):
    """An owner that opens stores: a group of stores, or a shard's state."""

    def open(self, name: str, kind: str, parameters: dict[str, Any]) -> Store: ...


# The class of a record, by the number of its times in a mutation.
ROWS: Final = (Row, TimedRow, SpanRow)


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[S]):
    """A kind of store.

    name            its name in the state (the op `define`)
    class_name      the name of its class, in the module of the kind's name
    columns         the names of the integer columns of its blocks (ms); the first decides what has expired
    order           of its records: by key, or by time and then key
    row             the class of its records
    rows            its records in that order
    of_key          the records of one key, in that order
    between         the records of a range of keys and times (inclusive, None is open), in that order; records outside
                    of the times may be among them
    holds           whether a store still has this very object as the value of a key, at the times a `put` gave
    copied          its live records by column, keys and values first, in the order in which a new store takes them
    refill          puts such columns into an empty store
    seconds         the time of a restart for one record, by op, on the machine that `state.policy` refers to
    span            the parameter that says how long a record lives (ms), and its rule of `clock`;
                    None: records do not expire
    one_per_key     a key has one record, which is identified by the key alone
    may_have_left   whether a record (key, times) may have been removed by the stream time alone, without a mutation
    by_advance      `advance` alone may move its time (`clock.BY_ADVANCE`), as where a watermark is the time
    keeps_equal     two records of a key may have the same times
    bucketed        kept in buckets by time, whose number a state may choose
    """

    name: str
    class_name: str
    columns: tuple[str, ...]
    order: Literal["key", "time"]
    row: type[Row]
    rows: Callable[[S], Iterator[Row]]
    of_key: Callable[[S, Any], Iterator[Row]]
    between: Callable[[S, Any, Any, int | None, int | None], Iterator[Row]]
    holds: Callable[[S, Any, tuple[Any, ...], Any], bool]
    seconds: Mapping[int, float]
    copied: Callable[[S], Copied]
    refill: Callable[[S, Copied], object]
    span: tuple[str, Callable[[int, int], int]] | None = None
    one_per_key: bool = False
    may_have_left: Callable[[Mapping[str, Any], Any, tuple[int, ...], int], bool] = field(default=lambda *_: False)
    by_advance: bool = True
    keeps_equal: Callable[[Mapping[str, Any]], bool] = field(default=lambda parameters: False)
    bucketed: bool = False

    def store_class(self) -> type[S]:
        """Return the class of its stores, and import its module."""
        return cast("type[S]", getattr(import_module(f".{self.name}", __package__), self.class_name))

    def make(self, name: str, number: int, parameters: dict[str, Any], journal: Journal, divisor: int) -> S:
        """Return a new, empty store that logs to `journal`. A bucket of time is 1/`divisor` of the retention wide, or
        1/`buckets` of its parameters.
        """
        maker: Callable[..., S] = self.store_class()
        more = {"divisor": min(divisor, parameters.get("buckets", divisor))} if self.bucketed else {}
        return maker(name, number, parameters, journal, **more)

    def open(self, group: Opens, name: str, parameters: dict[str, Any]) -> S:
        """Return the store of this kind and name, of its own type. Raises what `group.open` does."""
        return cast(S, group.open(name, self.name, parameters))

    def timed(self, parameters: Mapping[str, Any]) -> bool:
        """Whether a store with these parameters has a stream time: only then can time be moved, and only then do blocks
        have the columns.
        """
        return self.span is None or type(parameters.get(self.span[0])) is int

    def expired_through(self, parameters: Mapping[str, Any], stream_time: int) -> int:
        """Return the newest time (ms) that has expired in a store; NO_TIME if nothing has, or can. O(1)."""
        if self.span is None or stream_time < 0:
            return NO_TIME
        parameter, rule = self.span
        length = parameters.get(parameter)
        return rule(stream_time, length) if type(length) is int else NO_TIME


def _rows_by_time(store: WindowStore | SlidingStore) -> Iterator[Row]:
    return (TimedRow(key, (ts,), value) for (key, ts), value in store.all())


def _rows_of_key(store: WindowStore | SlidingStore, key: Any) -> Iterator[Row]:
    return (TimedRow(key, (ts,), value) for ts, value in store.fetch(key))


def _rows_between(rows: Callable[[S], Iterator[Row]]) -> Callable[[S, Any, Any, int | None, int | None], Iterator[Row]]:
    """Return `between` of a kind that finds no range of keys faster than by looking at all records."""

    def between(store: S, first: Any, last: Any, earliest: int | None, latest: int | None) -> Iterator[Row]:
        for row in rows(store):
            if (first is None or row.key >= first) and (last is None or row.key <= last):
                yield row

    return between


def _session_row(place: tuple[Any, int, int], value: Any) -> Row:
    key, start, end = place
    return SpanRow(key, (end, start), value)


def _values(store: KeyValueStore, first: Any = None, last: Any = None) -> Iterator[Row]:
    rows = store.rows(first, last)
    if store.ttl_ms is None:
        return (Row(key, (), value) for key, value in rows)
    return (Row(key, (row[1],), row[0]) for key, row in rows)


def _value_of_key(store: KeyValueStore, key: Any) -> Iterator[Row]:
    value = store.get(key)
    if value is not None:
        yield Row(key, store.times_of(key), value)


def _buffered(store: SuppressionBuffer) -> Iterator[Row]:
    return (TimedRow(key, (at, ts), value) for at, key, value, ts in store.rows())


def _emitted_or_buffered(store: SuppressionBuffer, key: Any, place: tuple[Any, ...], value: Any) -> bool:
    # the emissions of a buffer are part of the version, too
    rows = [*store.buffered(), *(row[1:] for row in store.emitted())]
    return any(stored is value for other, stored, _ in rows if other == key)


def _may_be_due(parameters: Mapping[str, Any], key: Any, times: tuple[int, ...], stream_time: int) -> bool:
    final = parameters["final"]
    limit = parameters["grace_ms"] if final else parameters["time_limit_ms"]
    if limit is None:
        return False
    # with the timer "first" only the key's first record determines when the record is due
    return parameters["timer"] == "first" or (key[-1] if final else min(times)) <= due_through(stream_time, limit)


def _by_column(rows: Iterable[tuple[Any, ...]], width: int) -> Copied:
    columns = list(map(list, zip(*rows, strict=True)))
    return tuple(columns or [[] for _ in range(width)])


def _key_values(store: KeyValueStore) -> Copied:
    return _by_column(store.all(), 2) if store.ttl_ms is None else _by_column(store.by_time(), 3)


def _timed_values(store: WindowStore | SlidingStore) -> Copied:
    rows = [(key, value, ts) for (key, ts), value in store.all()]
    return _by_column(sorted(rows, key=itemgetter(2)), 3)


def _sessions(store: SessionStore) -> Copied:
    rows = [(key, value, start, end) for (key, start, end), value in store.all()]
    return _by_column(sorted(rows, key=itemgetter(3)), 4)


def _never(store: SuppressionBuffer, columns: Copied = ()) -> Copied:
    raise TypeError(f"store {store.name!r}: what a suppression buffer holds back cannot be put into another one")


KEY_VALUE: Final[Kind[KeyValueStore]] = Kind(
    "key_value",
    "KeyValueStore",
    ("ts",),
    "key",
    Row,
    rows=_values,
    of_key=_value_of_key,
    between=lambda store, first, last, earliest, latest: _values(store, first, last),
    holds=lambda store, key, place, value: store.get(key) is value,
    seconds={PUT: 0.04e-6, PUT_AT: 0.04e-6, PUT_COLUMNS: 0.03e-6, DELETE: 1.4e-6},
    copied=_key_values,
    refill=lambda store, columns: store.put_columns(*columns),
    span=("ttl_ms", expired_through),
    one_per_key=True,
)
WINDOW: Final[Kind[WindowStore]] = Kind(
    "window",
    "WindowStore",
    ("ts",),
    "time",
    TimedRow,
    rows=_rows_by_time,
    of_key=_rows_of_key,
    between=lambda store, *bounds: (
        TimedRow(key, (ts,), value)
        for (key, ts), value in store.scan(*bounds[:2], time_from=bounds[2], time_to=bounds[3])
    ),
    holds=lambda store, key, place, value: any(stored is value for _, stored in store.fetch(key, *place, *place)),
    seconds={PUT_AT: 0.04e-6, PUT_COLUMNS: 0.03e-6, DELETE_AT: 1.4e-6},
    copied=_timed_values,
    refill=lambda store, columns: store.put_columns(*columns),
    span=("retention_ms", expired_through),
    keeps_equal=lambda parameters: bool(parameters.get("retain_duplicates")),
    bucketed=True,
)
SESSION: Final[Kind[SessionStore]] = Kind(
    "session",
    "SessionStore",
    ("end", "start"),
    "time",
    SpanRow,
    rows=lambda store: (_session_row(*row) for row in store.all()),
    of_key=lambda store, key: (_session_row(*row) for row in store.find_sessions(key)),
    between=lambda store, *bounds: (_session_row(*row) for row in store.find_sessions_range(*bounds)),
    holds=lambda store, key, place, value: store.get(key, *place) is value,
    seconds={PUT_SPAN: 0.04e-6, PUT_SPANS: 0.03e-6, DELETE_SPAN: 1.3e-6},
    copied=_sessions,
    refill=lambda store, columns: store.put_columns(*columns),
    span=("retention_ms", expired_through),
    bucketed=True,
)
SLIDING: Final[Kind[SlidingStore]] = Kind(
    "sliding",
    "SlidingStore",
    ("ts",),
    "key",
    TimedRow,
    rows=_rows_by_time,
    of_key=_rows_of_key,
    between=_rows_between(_rows_by_time),
    holds=lambda store, key, place, value: any(stored is value for _, stored in store.fetch(key)),
    seconds={PUT_AT: 0.04e-6, PUT_COLUMNS: 0.03e-6},
    copied=_timed_values,
    refill=lambda store, columns: store.hold_columns(*columns),
    span=("size_ms", slid_out_through),
    by_advance=False,
    keeps_equal=lambda parameters: True,
)
SUPPRESSION: Final[Kind[SuppressionBuffer]] = Kind(
    "suppression",
    "SuppressionBuffer",
    ("buffered", "ts"),
    "time",
    TimedRow,
    rows=_buffered,
    of_key=lambda store, key: (row for row in _buffered(store) if row.key == key),
    between=_rows_between(_buffered),
    holds=_emitted_or_buffered,
    seconds={PUT_AT: 0.2e-6, PUT_COLUMNS: 0.2e-6, EVICT: 0.6e-6},
    copied=_never,
    refill=_never,
    one_per_key=True,
    may_have_left=_may_be_due,
)

KINDS: Final[dict[str, Kind[Any]]] = {kind.name: kind for kind in (KEY_VALUE, WINDOW, SESSION, SLIDING, SUPPRESSION)}
