"""Reference stores: plain lists and dicts, O(n) a call, written to be obviously right rather than fast.

Each class has the public methods of the store that it models and follows docs/semantics.md sentence by sentence. The
conformance cases run against these classes first (`tests/stores/test_model.py`), so that the model is proved by facts
before the state machines of `tests/stores/test_stateful.py` use it to judge the real stores.

A `ModelState` stands for the state directory. Its "disk" is a dict that the caller keeps: what was committed is in
there, everything else is lost when the `ModelState` is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from hybridstore.stores import suppression

Row = tuple[Any, ...]
MAX_TIME = 2**63 - 1
# The calls that show the whole content of a store, by kind.
WHOLE = {
    "key_value": ["all", "__len__"],
    "window": ["all", "__len__"],
    "session": ["all", "__len__"],
    "suppression": ["buffered"],
    "sliding": ["all", "aggregates"],
}


class ModelBufferFullError(Exception):
    """A suppression buffer with `on_full="raise"` is over a bound; `emitted` had left it before that showed."""

    def __init__(self, emitted: list[Row]) -> None:
        super().__init__("buffer full")
        self.emitted = emitted


class Rows(Iterator[Any]):
    """The rows of one query as they were when it was asked; closing the state ends it."""

    def __init__(self, state: ModelState, rows: Iterable[Any], reverse: bool) -> None:
        self._state = state
        self._rows = list(rows)
        if not reverse:
            self._rows.reverse()

    def __next__(self) -> Any:
        if self._state.closed or not self._rows:
            raise StopIteration
        return self._rows.pop()


def checked_key(key: Any) -> Any:
    if key is None:
        raise TypeError("key: None is not a key")
    return key


def checked_time(time: Any) -> int:
    if type(time) is not int:
        raise TypeError(f"time: {time!r} is not an integer")
    if not 0 <= time <= MAX_TIME:
        raise ValueError(f"time: {time} is outside 0 to 2**63 - 1")
    return time


def within(value: Any, low: Any, high: Any) -> bool:
    """Both ends inclusive, None is open."""
    return (low is None or value >= low) and (high is None or value <= high)


class ModelStore:
    """What all stores share: stream time, counters of dropped records, and the log of effective mutations."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self.dropped: Counter[str] = Counter()
        self.stream_time = -1
        self.logged: list[Row] = []

    def observe(self, time: int) -> None:
        """A record came: its time moves that of the store, unless only `advance` does."""
        if self.state.by_records:
            self.stream_time = max(self.stream_time, time)

    def advance(self, ts: int) -> Any:
        self.stream_time = max(self.stream_time, checked_time(ts))

    def contents(self) -> dict[str, Any]:
        """Everything that is state, as a shallow copy; counters of the process are not."""
        fields = {name: value for name, value in vars(self).items() if name not in ("state", "dropped")}
        return {name: value.copy() if isinstance(value, list | dict) else value for name, value in fields.items()}

    def replace(self, contents: dict[str, Any]) -> None:
        for name, value in contents.items():
            setattr(self, name, value.copy() if isinstance(value, list | dict) else value)

    def rows(self, rows: Iterable[Any], reverse: bool) -> Iterator[Any]:
        return Rows(self.state, rows, reverse)

    def _check(self) -> None:
        """Nothing is derived here, so nothing can disagree."""


class ModelKeyValue(ModelStore):
    def __init__(self, state: ModelState, ttl: int | None = None) -> None:
        super().__init__(state)
        self.ttl = ttl
        self.entries: dict[Any, tuple[Any, int]] = {}

    def live(self) -> dict[Any, Any]:
        return {
            key: value
            for key, (value, time) in sorted(self.entries.items())
            if self.ttl is None or time > self.stream_time - self.ttl
        }

    def put(self, key: Any, value: Any, ts: int | None = None) -> None:
        checked_key(key)
        if self.ttl is not None:
            time = checked_time(ts)
            self.observe(time)
            if time <= self.stream_time - self.ttl:
                self.dropped["expired"] += 1
                return
        if value is None:
            self.delete(key)
        else:
            self.entries[key] = (value, 0 if ts is None else ts)
            self.logged.append((key, value))

    def get(self, key: Any) -> Any:
        return self.live().get(checked_key(key))

    def delete(self, key: Any) -> Any:
        old = self.get(key)
        self.entries.pop(key, None)
        if old is not None:
            self.logged.append((key, None))
        return old

    def put_if_absent(self, key: Any, value: Any, ts: int | None = None) -> Any:
        old = self.get(key)
        if old is None:
            self.put(key, value, *(() if ts is None else (ts,)))
        return old

    def put_many(self, rows: Mapping[Any, Any] | Iterable[Row]) -> None:
        entries = rows.items() if isinstance(rows, Mapping) else rows
        checked = [(checked_key(key), value, *rest) for key, value, *rest in entries]
        for entry in checked:
            self.put(*entry)

    def scan(self, low: Any = None, high: Any = None, *, prefix: Any = None, reverse: bool = False) -> Iterator[Row]:
        size = 0 if prefix is None else len(prefix)
        live = [row for row in self.live().items() if prefix is None or row[0][:size] == prefix]
        return self.rows([row for row in live if within(row[0], low, high)], reverse)

    def all(self, *, reverse: bool = False) -> Iterator[Row]:
        return self.scan(reverse=reverse)

    def __len__(self) -> int:
        return len(self.live())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.live())

    def __contains__(self, key: Any) -> bool:
        return key in self.live()

    def __getitem__(self, key: Any) -> Any:
        return self.live()[key]


class ModelWindow(ModelStore):
    def __init__(
        self,
        state: ModelState,
        retention: int,
        window_size: int | None = None,
        grace: int | None = None,
        retain_duplicates: bool = False,
    ) -> None:
        super().__init__(state)
        if retention <= 0:
            raise ValueError(f"retention: {retention} is not positive")
        if window_size is not None and window_size > retention:
            raise ValueError(f"window size {window_size} above retention {retention}")
        self.retention = retention
        self.grace = retention if grace is None else grace
        self.retain_duplicates = retain_duplicates
        self.arrivals = 0
        self.entries: list[tuple[int, Any, int, Any]] = []  # (ts, key, arrival, value)

    def put(self, key: Any, value: Any, ts: int) -> None:
        checked_key(key)
        self.observe(checked_time(ts))
        if ts <= self.stream_time - self.retention:
            self.dropped["expired"] += 1
        elif ts <= self.stream_time - self.grace:
            self.dropped["grace"] += 1
        else:
            present = [] if self.retain_duplicates else [row for row in self.entries if row[:2] == (ts, key)]
            self.entries = [row for row in self.entries if row not in present]
            if value is not None:
                self.entries.append((ts, key, self.arrivals, value))
                self.arrivals += 1
            if present or value is not None:
                self.logged.append((key, ts, value))

    def put_many(self, records: Iterable[Row]) -> None:
        for record in records:
            self.put(*record)

    def live(self) -> list[tuple[Any, int, Any]]:
        rows = sorted(self.entries, key=lambda row: row[:3])
        return [(key, ts, value) for ts, key, _, value in rows if ts > self.stream_time - self.retention]

    def get(self, key: Any, ts: int) -> Any:
        checked_key(key)
        values = [value for k, t, value in self.live() if (k, t) == (key, ts)]
        if self.retain_duplicates:
            return values
        return values[0] if values else None

    def fetch(self, key: Any, t1: int | None, t2: int | None, *, reverse: bool = False) -> Iterator[Row]:
        checked_key(key)
        return self.rows([(ts, value) for k, ts, value in self.live() if k == key and within(ts, t1, t2)], reverse)

    def scan(
        self,
        k1: Any = None,
        k2: Any = None,
        *,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        size = 0 if prefix is None else len(prefix)
        live = [row for row in self.live() if prefix is None or row[0][:size] == prefix]
        chosen = [row for row in live if within(row[0], k1, k2) and within(row[1], time_from, time_to)]
        return self.rows([((key, ts), value) for key, ts, value in chosen], reverse)

    def all(self, *, reverse: bool = False) -> Iterator[Row]:
        return self.scan(reverse=reverse)

    def __len__(self) -> int:
        return len(self.live())


class ModelSession(ModelStore):
    def __init__(self, state: ModelState, retention: int) -> None:
        super().__init__(state)
        if retention <= 0:
            raise ValueError(f"retention: {retention} is not positive")
        self.retention = retention
        self.entries: dict[tuple[Any, int, int], Any] = {}  # (key, start, end): the identity of a session

    def expired(self, end: int) -> bool:
        return end <= self.stream_time - self.retention

    def put(self, key: Any, value: Any, start: int, end: int) -> None:
        checked_key(key)
        if checked_time(start) > checked_time(end):
            raise ValueError(f"session: start {start} after end {end}")
        self.observe(end)
        if self.expired(end):
            self.dropped["expired"] += 1
        elif value is None:
            self.delete(key, start, end)
        else:
            self.entries[key, start, end] = value
            self.logged.append((key, start, end, value))

    def put_many(self, records: Iterable[Row]) -> None:
        for record in records:
            self.put(*record)

    def delete(self, key: Any, start: int, end: int) -> None:
        if self.get(key, start, end) is not None:
            del self.entries[key, start, end]
            self.logged.append((key, start, end, None))

    def live(self) -> list[Row]:
        rows = [(session, value) for session, value in self.entries.items() if not self.expired(session[2])]
        return sorted(rows, key=lambda row: (row[0][2], row[0][0], -row[0][1]))

    def get(self, key: Any, start: int, end: int) -> Any:
        live: dict[Row, Any] = dict(self.live())
        return live.get((checked_key(key), start, end))

    def find_sessions(
        self, key: Any, earliest_end: int | None, latest_start: int | None, *, reverse: bool = False
    ) -> Iterator[Row]:
        checked_key(key)
        return self.find_sessions_range(key, key, earliest_end, latest_start, reverse=reverse)

    def find_sessions_range(
        self, k1: Any, k2: Any, earliest_end: int | None, latest_start: int | None, *, reverse: bool = False
    ) -> Iterator[Row]:
        chosen = [
            row
            for row in self.live()
            if within(row[0][0], k1, k2)
            and within(row[0][2], earliest_end, None)
            and within(row[0][1], None, latest_start)
        ]
        return self.rows(chosen, reverse)

    def find_sessions_by_end(self, e1: int | None, e2: int | None, *, reverse: bool = False) -> Iterator[Row]:
        return self.rows([row for row in self.live() if within(row[0][2], e1, e2)], reverse)

    def fetch(self, key: Any, *, reverse: bool = False) -> Iterator[Row]:
        return self.find_sessions(key, None, None, reverse=reverse)

    def scan(
        self,
        k1: Any = None,
        k2: Any = None,
        *,
        prefix: Any = None,
        time_from: int | None = None,
        time_to: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        rows = self.find_sessions_range(k1, k2, time_from, time_to, reverse=reverse)
        return (row for row in rows if prefix is None or row[0][0][: len(prefix)] == prefix)

    def all(self, *, reverse: bool = False) -> Iterator[Row]:
        return self.rows(self.live(), reverse)

    def __len__(self) -> int:
        return len(self.live())


class ModelSuppression(ModelStore):
    """`until_window_closes` is the grace in ms: keys are then (key, start, end) and the end is exclusive.

    The buffer remembers nothing of what it emitted: a record of a window that has closed is emitted at once. That a
    final result is final is for the aggregation before it, which drops late records by the same boundary.
    """

    def __init__(
        self,
        state: ModelState,
        max_records: int | None = None,
        max_bytes: int | None = None,
        time_limit: int | None = None,
        timer: str = "latest",
        on_full: str = "emit",
        size_of: Callable[[Any, Any], int] | None = None,
        until_window_closes: int | None = None,
    ) -> None:
        super().__init__(state)
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.final = until_window_closes is not None
        self.limit = until_window_closes if self.final else time_limit
        self.timer = timer
        self.on_full = on_full
        self.size_of = size_of
        self.entries: dict[Any, tuple[int, Any, int]] = {}  # key: (buffer time, value, record time)

    def in_order(self) -> list[tuple[int, Any, Any, int]]:
        return sorted(((at, key, value, ts) for key, (at, value, ts) in self.entries.items()), key=lambda row: row[:2])

    def buffer_time(self, key: Any, ts: int) -> int:
        if self.final:
            end: int = key[2]
            return end
        if self.timer == "first" and key in self.entries:
            return self.entries[key][0]
        return ts

    def over_time(self, at: int) -> bool:
        return self.limit is not None and at <= self.stream_time - self.limit

    def over_bounds(self) -> bool:
        return (self.max_records is not None and self.num_records > self.max_records) or (
            self.max_bytes is not None and self.buffer_size > self.max_bytes
        )

    def put(self, key: Any, value: Any, ts: int) -> list[Row]:
        checked_key(key)
        self.observe(checked_time(ts))
        self.entries[key] = (self.buffer_time(key, ts), value, ts)
        return self.evict()

    def put_many(self, records: Iterable[Row]) -> list[Row]:
        return [row for record in records for row in self.put(*record)]

    def advance(self, ts: int) -> Iterator[list[Row]]:
        super().advance(ts)
        return iter(lambda: self.evict(suppression._PIECE), [])

    def evict(self, most: float = inf) -> list[Row]:
        emitted: list[Row] = []
        while self.entries and len(emitted) < most:
            at, key, value, ts = self.in_order()[0]
            if not self.over_time(at):
                if not self.over_bounds():
                    break
                if self.on_full == "raise":
                    raise ModelBufferFullError(emitted)
            del self.entries[key]
            if not (self.final and value is None):
                emitted.append((key, value, ts))
        return emitted

    def buffered(self) -> Iterator[Row]:
        return self.rows([(key, value, ts) for _, key, value, ts in self.in_order()], False)

    @property
    def num_records(self) -> int:
        return len(self.entries)

    @property
    def buffer_size(self) -> int:
        return 0 if self.size_of is None else sum(self.size_of(key, row[1]) for key, row in self.entries.items())

    @property
    def min_timestamp(self) -> int | None:
        return min((row[0] for row in self.entries.values()), default=None)


AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "count": len, "min": min, "max": max, "list": list}


class ModelSliding(ModelStore):
    """KIP-450's text: one result per accepted record, over [stream time - size, stream time]."""

    def __init__(self, state: ModelState, size: int, aggregator: str) -> None:
        super().__init__(state)
        self.size = size
        self.aggregate = AGGREGATES[aggregator]
        self.entries: list[tuple[int, int, Any, Any]] = []  # (ts, arrival, key, value)

    def add(self, key: Any, value: Any, ts: int) -> Row | None:
        checked_key(key)
        self.observe(checked_time(ts))
        start = self.stream_time - self.size
        if ts < start:
            self.dropped["expired"] += 1
            return None
        self.entries.append((ts, len(self.entries), key, value))
        return key, max(0, start), self.stream_time, self.aggregate(self.live()[key])

    def live(self) -> dict[Any, list[Any]]:
        """The values in the window of now, in event order, by key."""
        live: dict[Any, list[Any]] = {}
        for ts, _, key, value in sorted(self.entries, key=lambda row: (row[2], *row[:2])):
            if ts >= self.stream_time - self.size:
                live.setdefault(key, []).append(value)
        return live

    def aggregates(self) -> Iterator[Row]:
        return self.rows([(key, self.aggregate(values)) for key, values in self.live().items()], False)

    def all(self, *, reverse: bool = False) -> Iterator[Row]:
        rows = sorted(((key, ts), arrival, value) for ts, arrival, key, value in self.entries)
        low = self.stream_time - self.size
        return self.rows([(place, value) for place, _, value in rows if place[1] >= low], reverse)


KINDS: dict[str, Callable[..., ModelStore]] = {
    "key_value": ModelKeyValue,
    "window": ModelWindow,
    "session": ModelSession,
    "suppression": ModelSuppression,
    "sliding": ModelSliding,
}


class ModelState:
    """The state directory: stores that commit together. `disk` survives; this object does not."""

    def __init__(self, disk: dict[str, Any], by_records: bool = True) -> None:
        self.disk = disk
        self.by_records = by_records
        self.closed = False
        self.stores: dict[str, ModelStore] = {}
        self.fresh: dict[str, dict[str, Any]] = {}

    def _store(self, kind: str, name: str, params: dict[str, Any]) -> Any:
        if name not in self.stores:
            store = KINDS[kind](self, **params)
            self.fresh[name] = store.contents()
            self.stores[name] = store
            store.replace(self.disk.get(name, {}))
        return self.stores[name]

    def key_value(self, name: str, **params: Any) -> ModelKeyValue:
        store: ModelKeyValue = self._store("key_value", name, params)
        return store

    def window(self, name: str, **params: Any) -> ModelWindow:
        store: ModelWindow = self._store("window", name, params)
        return store

    def session(self, name: str, **params: Any) -> ModelSession:
        store: ModelSession = self._store("session", name, params)
        return store

    def suppression(self, name: str, **params: Any) -> ModelSuppression:
        store: ModelSuppression = self._store("suppression", name, params)
        return store

    def sliding(self, name: str, **params: Any) -> ModelSliding:
        store: ModelSliding = self._store("sliding", name, params)
        return store

    def commit(self) -> None:
        self.disk.update({name: store.contents() for name, store in self.stores.items()})

    def rollback(self) -> None:
        for name, store in self.stores.items():
            store.replace(self.disk.get(name, self.fresh[name]))

    def checkpoint(self, wait: bool = False) -> None:
        """A model needs none; a checkpoint never changes what a store says."""

    def close(self) -> None:
        self.closed = True
