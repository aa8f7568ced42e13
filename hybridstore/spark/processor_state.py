"""State variables of Spark's transformWithState on our stores: values, lists and maps with a time to live, and timers.

Each variable is a key-value store: grouping key -> what the variable holds for it. Within a batch changes gather in memory and go to
the store once per key, in columns: a value that is updated for every row is logged once. With a ttl (processing time, as in
Spark) every element carries the time at which it expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from recovery.errors import CheckpointMismatchError

from ..store_group import StoreGroup

_GONE: Final = object()
TIMERS: Final = "timers"


class Variable:
    """What one state variable holds, key by key; the base of the three kinds. `now` is the batch's processing time (ms)."""

    kind = ""

    def __init__(self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None) -> None:
        self._store: Any = group.open(f"{self.kind}:{name}", "key_value", {"ttl_ms": ttl_ms})
        self._ttl_ms = ttl_ms
        self._changed: dict[Any, Any] = {}
        self.now = 0
        self.key: Any = None
        known = group.settings.get(f"state:{name}")
        if known is None:
            group.set(f"state:{name}", [self.kind, schema])
        elif list(known) != [self.kind, schema]:
            raise CheckpointMismatchError(
                f"state variable {name!r}: the state has {known[0]} {known[1]}, asked for {self.kind} {schema} (use another name)"
            )

    def _load(self) -> Any:
        """Return what the current key holds, or None."""
        found = self._changed.get(self.key, _GONE)
        if found is _GONE:
            found = self._store.get(self.key)
        return found

    def _expiry(self) -> int:
        return self.now + (self._ttl_ms or 0)

    def clear(self) -> None:
        """Remove what the current key holds."""
        self._changed[self.key] = None

    def drop(self) -> None:
        """Remove what every key holds."""
        for key in [*self._store, *self._changed]:
            self._changed[key] = None

    def flush(self) -> None:
        """Give the batch's changes to the store. O(changed keys)."""
        changed = self._changed
        if not changed:
            return
        keys = [key for key, value in changed.items() if value is not None]
        if keys:
            times = None if self._ttl_ms is None else [self.now] * len(keys)
            self._store.put_columns(keys, [changed[key] for key in keys], times)
        for key, value in changed.items():
            if value is None:
                self._store.delete(key)
        self._changed = {}


class ValueVariable(Variable):
    """`ValueState`: one tuple per key."""

    kind = "value"

    def exists(self) -> bool:
        """Whether there is a value."""
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, or None."""
        found = self._load()
        if found is None or self._ttl_ms is None:
            value: tuple[Any, ...] | None = found
            return value
        return found[1] if found[0] > self.now else None

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the value."""
        value = as_tuple(newValue)
        self._changed[self.key] = value if self._ttl_ms is None else (self._expiry(), value)


class ListVariable(Variable):
    """`ListState`: tuples in order."""

    kind = "list"

    def _mine(self) -> list[Any]:
        """The current key's list, of this batch's own."""
        found = self._changed.get(self.key, _GONE)
        if found is _GONE:
            found = list(self._store.get(self.key) or ())
            self._changed[self.key] = found
        elif found is None:
            found = self._changed[self.key] = []
        if self._ttl_ms is not None:
            found[:] = [element for element in found if element[0] > self.now]
        mine: list[Any] = found
        return mine

    def exists(self) -> bool:
        """Whether there is an element."""
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the elements."""
        found = self._load() or ()
        if self._ttl_ms is None:
            return iter(list(found))
        return iter([element[1] for element in found if element[0] > self.now])

    def _made(self, value: tuple[Any, ...]) -> Any:
        return as_tuple(value) if self._ttl_ms is None else (self._expiry(), as_tuple(value))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace all elements."""
        self._changed[self.key] = [self._made(value) for value in newState]

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Add one element."""
        self._mine().append(self._made(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Add elements."""
        self._mine().extend(self._made(value) for value in newState)

    def flush(self) -> None:
        """An emptied list is no list."""
        for key, value in self._changed.items():
            if value == []:
                self._changed[key] = None
        super().flush()


class MapVariable(Variable):
    """`MapState`: tuple -> tuple. A key's map is stored whole, so it suits maps of up to some hundred entries."""

    kind = "map"

    def _live(self) -> dict[Any, Any]:
        found = self._load() or {}
        if self._ttl_ms is None:
            return dict(found)
        return {key: value[1] for key, value in found.items() if value[0] > self.now}

    def _mine(self) -> dict[Any, Any]:
        found = self._changed.get(self.key, _GONE)
        if found is _GONE or found is None:
            found = dict(self._store.get(self.key) or {}) if found is _GONE else {}
            self._changed[self.key] = found
        mine: dict[Any, Any] = found
        return mine

    def exists(self) -> bool:
        """Whether there is an entry."""
        return bool(self._live())

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the value of an entry, or None."""
        found = (self._load() or {}).get(as_tuple(key))
        if found is None or self._ttl_ms is None:
            value: tuple[Any, ...] | None = found
            return value
        return found[1] if found[0] > self.now else None

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether there is an entry."""
        return self.getValue(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set an entry."""
        made = as_tuple(value)
        self._mine()[as_tuple(key)] = made if self._ttl_ms is None else (self._expiry(), made)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value)."""
        return iter(list(self._live().items()))

    def keys(self) -> Iterator[Any]:
        """Iterate over the keys."""
        return iter(list(self._live()))

    def values(self) -> Iterator[Any]:
        """Iterate over the values."""
        return iter(list(self._live().values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove an entry."""
        self._mine().pop(as_tuple(key), None)

    def flush(self) -> None:
        """An emptied map is no map; expired entries go."""
        for key, found in self._changed.items():
            if found is not None and self._ttl_ms is not None:
                found = {entry: value for entry, value in found.items() if value[0] > self.now}
                self._changed[key] = found
            if found == {}:
                self._changed[key] = None
        super().flush()


class Timers:
    """Timers of all keys: (expiry, key) in order, and each key's own."""

    def __init__(self, group: StoreGroup) -> None:
        self._due: Any = group.open(f"{TIMERS}:due", "key_value", {"ttl_ms": None})
        self._own: Any = group.open(f"{TIMERS}:key", "key_value", {"ttl_ms": None})

    def of(self, key: tuple[Any, ...]) -> list[int]:
        """Return a key's timers in order."""
        return list(self._own.get(key) or ())

    def register(self, key: tuple[Any, ...], expiry_ms: int) -> None:
        """Add a timer; one that is there stays one."""
        mine = self.of(key)
        if expiry_ms not in mine:
            self._own.put(key, sorted([*mine, expiry_ms]))
            self._due.put((expiry_ms, *key), True)

    def delete(self, key: tuple[Any, ...], expiry_ms: int) -> None:
        """Remove a timer; an absent one is fine."""
        mine = self.of(key)
        if expiry_ms in mine:
            mine.remove(expiry_ms)
            self._own.put(key, mine or None)
            self._due.delete((expiry_ms, *key))

    def expired(self, now_ms: int) -> list[tuple[int, tuple[Any, ...]]]:
        """Return (expiry, key) of the timers with expiry <= now, in order. O(result)."""
        return [(entry[0], entry[1:]) for entry, _ in self._due.range(None, (now_ms + 1,)) if entry[0] <= now_ms]


class Handle:
    """The `StatefulProcessorHandle` that a processor's `init` is given."""

    def __init__(self, group: StoreGroup) -> None:
        self._group = group
        self._timers: Timers | None = None
        self.variables: dict[str, Variable] = {}
        self.key: tuple[Any, ...] = ()
        self.now = 0

    def begin(self, now: int) -> None:
        """Set the processing time of the batch."""
        self.now = now
        for variable in self.variables.values():
            variable.now = now

    def select(self, key: tuple[Any, ...]) -> None:
        """Let all variables stand for this grouping key."""
        self.key = key
        for variable in self.variables.values():
            variable.key = key

    def flush(self) -> None:
        """Give the batch's changes to the stores."""
        for variable in self.variables.values():
            variable.flush()

    def _add(self, made: type[Variable], name: str, schema: str, ttl_ms: int | None) -> Any:
        variable = made(self._group, name, schema, ttl_ms or None)
        variable.now, variable.key = self.now, self.key
        self.variables[name] = variable
        return variable

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueVariable:
        """Return a value variable."""
        found: ValueVariable = self._add(ValueVariable, stateName, schema_text(schema), ttlDurationMs)
        return found

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListVariable:
        """Return a list variable."""
        found: ListVariable = self._add(ListVariable, stateName, schema_text(schema), ttlDurationMs)
        return found

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapVariable:
        """Return a map variable."""
        schema = f"{schema_text(userKeySchema)} -> {schema_text(valueSchema)}"
        found: MapVariable = self._add(MapVariable, stateName, schema, ttlDurationMs)
        return found

    @property
    def timers(self) -> Timers:
        """The timers, whose stores are made when first asked for."""
        if self._timers is None:
            self._timers = Timers(self._group)
        return self._timers

    @property
    def has_timers(self) -> bool:
        """True when a timer was ever registered in this shard."""
        return self._timers is not None or f"{TIMERS}:due" in self._group.stores

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key."""
        self.timers.register(self.key, int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of the current key."""
        self.timers.delete(self.key, int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Iterate over the current key's timers."""
        return iter(self.timers.of(self.key) if self.has_timers else ())

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a variable's state of all keys."""
        variable = self.variables.pop(stateName, None)
        if variable is not None:
            variable.drop()
            variable.flush()


def as_tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    """Return a value (a tuple, a Row, a list) as a plain tuple of plain values."""
    if type(value) is tuple and not any(hasattr(part, "dtype") for part in value):
        return value
    return tuple(
        part.item() if hasattr(part, "dtype") else tuple(part) if isinstance(part, tuple) else part for part in value
    )


def schema_text(schema: Any) -> str:
    """Return a state schema as text: DDL as it is, a StructType by name and type."""
    return schema if isinstance(schema, str) else str(schema.simpleString())
