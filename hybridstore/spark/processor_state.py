"""State variables of Spark's transformWithState on our stores: values, lists and maps with a time to live, and timers.

Each variable is a key-value store: grouping key -> content of the variable. Changes of a batch are collected in memory
and written to the store once per key, by column: a value that is updated for every row is logged once. With a ttl
(processing time, as in Spark) every element carries the time at which it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from changelog.codec import pack
from recovery.errors import CheckpointMismatchError

from ..state.group import StoreGroup
from ..state.upgrades import Upgrade
from ..stores.kinds import KEY_VALUE
from .state_times import StateTimes

_GONE: Final = object()
TIMERS: Final = "timers"


class Variable:
    """The content of one state variable, key by key; the base of the three kinds.

    `now` is the batch's processing time (ms).
    """

    kind = ""
    # the prefix of the name of the store that holds the values
    stored = ""

    def __init__(
        self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None, upgrade: Upgrade | None = None
    ) -> None:
        known = group.settings.get(f"state:{name}")
        if known is not None and upgrade is not None and known[0] == self.kind and known[1] != schema:
            self._upgrade(group, name, known[1], schema, upgrade)
            group.set(f"state:{name}", known := [self.kind, schema])
        self._store = KEY_VALUE.open(group, f"{self.kind}:{name}", {"ttl_ms": ttl_ms})
        self._ttl_ms = ttl_ms
        self._times = StateTimes(schema)
        self._changed: dict[Any, Any] = {}
        self.now = 0
        self.key: Any = None
        if known is None:
            group.set(f"state:{name}", [self.kind, schema])
        elif list(known) != [self.kind, schema]:
            raise CheckpointMismatchError(
                f"state variable {name!r}: the state has {known[0]} {known[1]}, asked for {self.kind} {schema} (say "
                f"how one becomes the other: transform_with_state(..., upgrade={{{name!r}: function}}), or use another "
                "name)"
            )

    def _upgrade(self, group: StoreGroup, name: str, old: str, new: str, upgrade: Upgrade) -> None:
        """Convert every value by a function from values of the old schema to tuples of the new one. O(values).

        Raises UpgradeError, with nothing changed, if the function raises, and CheckpointMismatchError if the keys of a
        map have another schema.
        """
        before, after = StateTimes(self._values(name, old, new)), StateTimes(new.rpartition(" -> ")[2])
        store = group.stores.get(f"{self.stored or self.kind}:{name}")
        if store is None:
            return

        def changed(value: Any) -> Any:
            return after.put(as_tuple(upgrade(before.read(value))))

        group.rebuild(store.name, store.parameters, lambda stored: self._mapped(stored, changed, store.parameters))

    @staticmethod
    def _values(name: str, old: str, new: str) -> str:
        """Return the old schema of the values."""
        (*keys, values), (*new_keys, _) = old.split(" -> ", 1), new.split(" -> ", 1)
        if keys != new_keys:
            raise CheckpointMismatchError(
                f"state variable {name!r}: the state has keys {keys[0]}, asked for {new_keys[0]} (only values can be "
                "upgraded: use another name)"
            )
        return values

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        """Return a stored value with each value in it converted; with a ttl each value stands behind its time of
        expiry.
        """
        return changed(stored) if parameters["ttl_ms"] is None else (stored[0], changed(stored[1]))

    def _load(self) -> Any:
        """Return the content for the current key, or None."""
        value = self._changed.get(self.key, _GONE)
        if value is _GONE:
            value = self._store.get(self.key)
        return value

    def _expiry(self) -> int:
        return self.now + (self._ttl_ms or 0)

    def clear(self) -> None:
        """Remove the content of the current key."""
        self._changed[self.key] = None

    def drop(self) -> None:
        """Remove the content of every key."""
        for key in [*self._store, *self._changed]:
            self._changed[key] = None

    def flush(self) -> None:
        """Write the batch's changes to the store. O(changed keys)."""
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
        value = self._load()
        if value is not None and self._ttl_ms is not None:
            value = value[1] if value[0] > self.now else None
        return None if value is None else self._times.read(value)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the value."""
        value = self._times.put(as_tuple(newValue))
        self._changed[self.key] = value if self._ttl_ms is None else (self._expiry(), value)


class ListVariable(Variable):
    """`ListState`: tuples in order."""

    kind = "list"

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        return [Variable._mapped(element, changed, parameters) for element in stored]

    def _mine(self) -> list[Any]:
        """The current key's list, a copy that this batch may change."""
        elements = self._changed.get(self.key, _GONE)
        if elements is _GONE:
            elements = list(self._store.get(self.key) or ())
            self._changed[self.key] = elements
        elif elements is None:
            elements = self._changed[self.key] = []
        if self._ttl_ms is not None:
            elements[:] = [element for element in elements if element[0] > self.now]
        mine: list[Any] = elements
        return mine

    def exists(self) -> bool:
        """Whether there is an element."""
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the elements."""
        elements = self._load() or ()
        if self._ttl_ms is not None:
            elements = [element[1] for element in elements if element[0] > self.now]
        return iter(list(map(self._times.read, elements)))

    def _element(self, value: tuple[Any, ...]) -> Any:
        kept = self._times.put(as_tuple(value))
        return kept if self._ttl_ms is None else (self._expiry(), kept)

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace all elements."""
        self._changed[self.key] = [self._element(value) for value in newState]

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Add one element."""
        self._mine().append(self._element(newState))

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Add elements."""
        self._mine().extend(self._element(value) for value in newState)

    def flush(self) -> None:
        """Write the changes; an empty list is removed."""
        for key, value in self._changed.items():
            if value == []:
                self._changed[key] = None
        super().flush()


class MapVariable(Variable):
    """`MapState`: tuple -> tuple. Each entry is a row: an update of one entry does not change the others of its key.

    The store has (grouping key..., packed entry key) -> (entry key, value), or (entry key, expiry, value) with a ttl;
    packed because an entry key may contain values that a key must not, such as a null.
    """

    kind = "map"
    stored = "entries"

    def __init__(
        self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None, upgrade: Upgrade | None = None
    ) -> None:
        super().__init__(group, name, schema, ttl_ms, upgrade)
        self._entry_times, self._times = (StateTimes(part) for part in schema.split(" -> ", 1))
        # In earlier releases the store of this name held whole maps. The store stays declared; its maps are moved to
        # the new store.
        whole, self._store = self._store, KEY_VALUE.open(group, f"entries:{name}", {"ttl_ms": ttl_ms})
        self._cleared: set[Any] = set()
        if len(whole):
            self._move(whole)

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        return (*stored[:-1], changed(stored[-1]))

    def _move(self, whole: Any) -> None:
        for key, stored in list(whole.all()):
            for entry, value in stored.items():
                row = (entry, value) if self._ttl_ms is None else (entry, *value)
                times = () if self._ttl_ms is None else (value[0] - self._ttl_ms,)
                self._store.put(_place(key, entry), row, *times)
            whole.delete(key)

    def _stored(self, key: Any) -> list[tuple[Any, Any]]:
        """The rows of a key in the store. O(log n + result)."""
        # a packed list begins with a byte below 0xff
        return list(self._store.range((*key, b""), (*key, b"\xff")))

    def _entry(self, entry: tuple[Any, ...]) -> Any:
        changed = self._changed.get(self.key)
        if changed is not None and entry in changed:
            return changed[entry]
        return None if self.key in self._cleared else self._store.get(_place(self.key, entry))

    def _visible(self, row: Any) -> tuple[Any, ...] | None:
        """The value of a row, or None if the row is absent or has expired."""
        if row is None or (self._ttl_ms is not None and row[1] <= self.now):
            return None
        return self._times.read(row[-1])

    def _live(self) -> dict[Any, Any]:
        rows = {} if self.key in self._cleared else {row[0]: row for _, row in self._stored(self.key)}
        rows.update(self._changed.get(self.key, {}))
        live = ((entry, self._visible(row)) for entry, row in rows.items())
        return {self._entry_times.read(entry): value for entry, value in live if value is not None}

    def exists(self) -> bool:
        """Whether there is an entry. O(entries of the key)."""
        return bool(self._live())

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the value of an entry, or None. O(1)."""
        return self._visible(self._entry(self._entry_times.put(as_tuple(key))))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether there is an entry. O(1)."""
        return self.getValue(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set an entry. O(1), and O(log entries) at the end of the batch."""
        entry, stored = self._entry_times.put(as_tuple(key)), self._times.put(as_tuple(value))
        row = (entry, stored) if self._ttl_ms is None else (entry, self._expiry(), stored)
        self._changed.setdefault(self.key, {})[entry] = row

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value). O(entries of the key)."""
        return iter(list(self._live().items()))

    def keys(self) -> Iterator[Any]:
        """Iterate over the keys. O(entries of the key)."""
        return iter(list(self._live()))

    def values(self) -> Iterator[Any]:
        """Iterate over the values. O(entries of the key)."""
        return iter(list(self._live().values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove an entry. O(1)."""
        self._changed.setdefault(self.key, {})[self._entry_times.put(as_tuple(key))] = None

    def clear(self) -> None:
        """Remove all entries of the current key; those in the store are deleted at the end of the batch."""
        self._cleared.add(self.key)
        self._changed[self.key] = {}

    def drop(self) -> None:
        """Remove the entries of every key."""
        self._changed, self._cleared = {}, set()
        for key in list(self._store):
            self._store.delete(key)

    def flush(self) -> None:
        """Give the batch's changes to the store. O(changed entries, and entries of the keys that were cleared)."""
        removed, places, rows = [], [], []
        for key in self._cleared:
            kept = self._changed.get(key, {})
            removed += [place for place, row in self._stored(key) if kept.get(row[0]) is None]
        for key, changed in self._changed.items():
            for entry, row in changed.items():
                if row is not None:
                    places.append(_place(key, entry))
                    rows.append(row)
                elif key not in self._cleared:
                    removed.append(_place(key, entry))
        if places:
            self._store.put_columns(places, rows, None if self._ttl_ms is None else [self.now] * len(places))
        for place in removed:
            self._store.delete(place)
        self._changed, self._cleared = {}, set()


def _place(key: tuple[Any, ...], entry: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*key, pack(list(entry)))


class Timers:
    """Timers of all keys: (expiry, key) in order, and each key's own."""

    def __init__(self, group: StoreGroup) -> None:
        self._due = KEY_VALUE.open(group, f"{TIMERS}:due", {"ttl_ms": None})
        self._of_key = KEY_VALUE.open(group, f"{TIMERS}:key", {"ttl_ms": None})

    def of(self, key: tuple[Any, ...]) -> list[int]:
        """Return a key's timers in order."""
        return list(self._of_key.get(key) or ())

    def register(self, key: tuple[Any, ...], expiry_ms: int) -> None:
        """Add a timer; adding the same timer again changes nothing."""
        mine = self.of(key)
        if expiry_ms not in mine:
            self._of_key.put(key, sorted([*mine, expiry_ms]))
            self._due.put((expiry_ms, *key), True)

    def delete(self, key: tuple[Any, ...], expiry_ms: int) -> None:
        """Remove a timer; an absent timer is no error."""
        mine = self.of(key)
        if expiry_ms in mine:
            mine.remove(expiry_ms)
            self._of_key.put(key, mine or None)
            self._due.delete((expiry_ms, *key))

    def expired(self, now_ms: int) -> list[tuple[int, tuple[Any, ...]]]:
        """Return (expiry, key) of the timers with expiry <= now, in order. O(result)."""
        return [(entry[0], entry[1:]) for entry, _ in self._due.range(None, (now_ms + 1,)) if entry[0] <= now_ms]


class Handle:
    """The `StatefulProcessorHandle` that a processor's `init` gets."""

    def __init__(self, group: StoreGroup, upgrades: Mapping[str, Upgrade] | None = None) -> None:
        self._group = group
        self._upgrades = upgrades or {}
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
        """Make this the grouping key of all variables."""
        self.key = key
        for variable in self.variables.values():
            variable.key = key

    def flush(self) -> None:
        """Write the batch's changes to the stores."""
        for variable in self.variables.values():
            variable.flush()

    def _add(self, kind: type[Variable], name: str, schema: str, ttl_ms: int | None) -> Any:
        variable = kind(self._group, name, schema, ttl_ms or None, self._upgrades.get(name))
        variable.now, variable.key = self.now, self.key
        self.variables[name] = variable
        return variable

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueVariable:
        """Return a value variable."""
        variable: ValueVariable = self._add(ValueVariable, stateName, schema_text(schema), ttlDurationMs)
        return variable

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListVariable:
        """Return a list variable."""
        variable: ListVariable = self._add(ListVariable, stateName, schema_text(schema), ttlDurationMs)
        return variable

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapVariable:
        """Return a map variable."""
        schema = f"{schema_text(userKeySchema)} -> {schema_text(valueSchema)}"
        variable: MapVariable = self._add(MapVariable, stateName, schema, ttlDurationMs)
        return variable

    @property
    def timers(self) -> Timers:
        """The timers; the first use makes their stores."""
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
    """Return a state schema as text: DDL text unchanged, a StructType by names and types."""
    return schema if isinstance(schema, str) else str(schema.simpleString())
