"""State variables of Spark's transformWithState on our stores: values, lists and maps with a time to live, and timers.

Each variable is a key-value store: text of the grouping key (`grouping_keys`) -> content of the variable. Changes of a
batch are collected in memory and written to the store once per key, by column: a value that is updated for every row is
logged once. With a ttl (processing time, as in Spark) every element carries the time at which it expires. A list has a
record for each batch that appended to it, so that an append writes the new elements, and not the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import index, itemgetter
from typing import Any, Final

from changelog.codec import INT64_MAX, INT64_MIN
from recovery.errors import ProgramMismatchError

from ..state.group import StoreGroup
from ..state.upgrades import Upgrade
from ..stores.key_value import KeyValueStore
from ..stores.kinds import KEY_VALUE
from ..topology.timers import TIMERS, Timers
from .grouping_keys import GroupingKeys
from .state_refusals import TIMER_ERRORS, WITHOUT, differing, invalid_state, refusal
from .state_values import StateValues, evolution, schema_text

_GONE: Final = object()
# The time modes as Spark's callers write them, in whatever case.
MODES: Final = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
MODE_NAMES: Final = ", ".join(map(repr, MODES.values()))


class Variable:
    """The content of one state variable, key by key; the base of the three kinds.

    `now` is the batch's processing time (ms), `key` the text of the grouping key.
    """

    kind = ""
    # the prefix of the name of the store that holds the values, and of other stores of the variable
    stored = ""
    also: tuple[str, ...] = ()

    def __init__(
        self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None, upgrade: Upgrade | None = None
    ) -> None:
        known = group.settings.get(_setting(name))
        if known is not None and known[0] == self.kind and known[1] != schema:
            self._upgrade(group, name, known[1], schema, upgrade)
            group.set(_setting(name), known := [self.kind, schema])
        self.name = name
        self._store = _opened(group, f"{self.stored or self.kind}:{name}", ttl_ms)
        self._ttl_ms = ttl_ms
        self._values = StateValues(schema.rpartition(" -> ")[2])
        self._changed: dict[Any, Any] = {}
        self.now = 0
        self.key = ""
        if known is None:
            group.set(_setting(name), [self.kind, schema])
        elif list(known) != [self.kind, schema]:
            raise differing(name, known, self.kind, schema)

    def _upgrade(self, group: StoreGroup, name: str, old: str, new: str, upgrade: Upgrade | None) -> None:
        """Convert every value to the new schema: by the user's function, from values of the old schema to tuples of the
        new one, or else by the rules of Avro. O(values).

        Raises UpgradeError, with nothing changed, if the function raises, and ProgramMismatchError if the keys of a
        map have another schema, or without a function if the rules do not allow the change.
        """
        values = self._schema_of_values(name, old, new)
        after = new.rpartition(" -> ")[2]
        change = evolution(values, after)
        if upgrade is not None:
            read, put, given = StateValues(values).read, StateValues(after).put, upgrade

            def change(value: Any) -> Any:
                return put(given(read(value)))

        if change is None:
            raise differing(name, [self.kind, old], self.kind, new)
        changed = change
        for prefix in (self.stored or self.kind, *self.also):
            store = group.stores.get(f"{prefix}:{name}")
            if store is not None:
                mapped = partial(self._mapped, changed=changed, parameters=store.parameters)
                group.rebuild(store.name, store.parameters, mapped)

    @staticmethod
    def _schema_of_values(name: str, old: str, new: str) -> str:
        """Return the old schema of the values."""
        (*keys, values), (*new_keys, _) = old.split(" -> ", 1), new.split(" -> ", 1)
        if keys != new_keys:
            raise ProgramMismatchError(
                f"state variable {name!r}: the state has keys {keys[0]}, asked for {new_keys[0]} (only values can be "
                "upgraded: use another name)"
            )
        return values

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        """Return a stored value with each value in it converted; with a ttl each value follows its time of
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

    def end(self) -> None:
        """Let every operation do what it does on Spark when the variable was deleted: iterators are empty, and other
        operations raise Spark's error.
        """
        for operation, words in WITHOUT[self.kind].items():
            setattr(self, operation, partial(self._without, words))

    def _without(self, words: str, *_: Any, **__: Any) -> Iterator[Any]:
        if words:
            raise refusal(f"Error {words}: {self.kind.title()} state {self.name} is not initialized.")
        return iter(())

    def flush(self) -> None:
        """Write the batch's changes to the store. O(changed keys)."""
        changed = self._changed
        if not changed:
            return
        keys = [key for key, value in changed.items() if value is not None]
        if keys:
            self._put(self._store, keys, [changed[key] for key in keys])
        for key, value in changed.items():
            if value is None:
                self._store.delete(key)
        self._changed = {}

    def _put(self, store: KeyValueStore, keys: list[Any], records: list[Any]) -> None:
        """Put records into a store, which frees each of them when its last value has expired. O(records)."""
        times = None if self._ttl_ms is None else [self.now] * len(keys)
        if times is not None and store.ttl_ms is not None and store.ttl_ms != self._ttl_ms:
            # times that are as much earlier as the store's ttl is longer; these alone would leave stream time behind
            store.advance(self.now)
            times = [max(0, self._last(record) - store.ttl_ms) for record in records]
        store.put_columns(keys, records, times)

    # when the last value of a record expires
    _last: Callable[[Any], int] = staticmethod(itemgetter(0))


def _opened(group: StoreGroup, name: str, ttl_ms: int | None) -> KeyValueStore:
    """Open a store of a variable. O(1), and O(values) where the ttl is longer than any before.

    Every value has its own time of expiry, so another ttl is that of new values, as in Spark. The store keeps the
    longest ttl so far.
    """
    store = group.stores.get(name)
    longest = None if store is None else store.parameters["ttl_ms"]
    if ttl_ms is not None and longest is not None:
        if ttl_ms > longest:
            group.rebuild(name, {"ttl_ms": ttl_ms})
        ttl_ms = max(ttl_ms, longest)
    return KEY_VALUE.open(group, name, {"ttl_ms": ttl_ms})


def _setting(name: str) -> str:
    """Return the name of the setting that holds the kind and schema of a variable; None in it: deleted."""
    return f"state:{name}"


class ValueVariable(Variable):
    """`ValueState`: one tuple per key."""

    kind = "value"

    def exists(self) -> bool:
        """Whether a value exists."""
        return self._stored() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, or None. What is returned is the caller's: a change of it does not change the state."""
        value = self._stored()
        return None if value is None else self._values.read(value)

    def _stored(self) -> tuple[Any, ...] | None:
        value: Any = self._load()
        if value is not None and self._ttl_ms is not None:
            value = value[1] if value[0] > self.now else None
        stored: tuple[Any, ...] | None = value
        return stored

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the value."""
        value = self._values.put(newValue)
        self._changed[self.key] = value if self._ttl_ms is None else (self._expiry(), value)


class ListVariable(Variable):
    """`ListState`: tuples in order.

    A list is a record of the store `list:name`. What is appended to a list of more than `WHOLE` elements lies behind it
    in `tail:name`, (key, number) -> elements, a record for each batch. A record that is not longer than the next one is
    joined with it: the number of records is O(log elements), and so is the number of times that an element is written.
    """

    kind = "list"
    also = ("tail",)
    WHOLE = 64

    def __init__(
        self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None, upgrade: Upgrade | None = None
    ) -> None:
        super().__init__(group, name, schema, ttl_ms, upgrade)
        self._tail = _opened(group, f"tail:{name}", ttl_ms)
        self._added: dict[str, list[Any]] = {}

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        return [Variable._mapped(element, changed, parameters) for element in stored]

    def _records(self, key: str, whole: list[Any]) -> list[tuple[Any, list[Any]]]:
        """Return the records behind a key's list, whose stored record is `whole`, with their keys."""
        # A record comes behind a list that is longer than it, where both are more than WHOLE. With a ttl the list may
        # have expired before the record.
        if self._ttl_ms is None and len(whole) <= self.WHOLE // 2:
            return []
        return list(self._tail.scan((key, 0), (key, INT64_MAX)))

    def _live(self, elements: Iterable[Any]) -> Iterable[Any]:
        """Return the elements that have not expired, as they are stored."""
        if self._ttl_ms is None:
            return elements
        return [element for element in elements if element[0] > self.now]

    def _elements(self) -> Iterable[Any]:
        """Return the current key's elements, as they are stored. O(elements)."""
        changed = self._changed.get(self.key, _GONE)
        if changed is not _GONE:
            return self._live(changed or ())
        whole = self._store.get(self.key) or []
        stored = (elements for _, elements in self._records(self.key, whole))
        return self._live(chain(whole, *stored, self._added.get(self.key, ())))

    def exists(self) -> bool:
        """Whether an element exists."""
        return next(iter(self._elements()), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the elements, as they are when the first is asked for."""
        elements = self._elements()
        if self._ttl_ms is not None:
            elements = [element[1] for element in elements]
        yield from list(map(self._values.read, elements))

    def _element(self, value: tuple[Any, ...]) -> Any:
        kept = self._values.put(value)
        return kept if self._ttl_ms is None else (self._expiry(), kept)

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace all elements. Raises Spark's error for an empty list."""
        elements = [self._element(value) for value in self._some(newState)]
        self._added.pop(self.key, None)
        self._changed[self.key] = elements

    def _some(self, elements: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        some = list(elements)
        if not some:
            raise refusal(
                "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to "
                f"the State Store Cannot write empty list values to State Store for StateName {self.name}."
            )
        return some

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Add one element. O(element), and O(log elements) at the end of the batch."""
        self._extend([self._element(newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Add elements. Raises Spark's error for an empty list."""
        self._extend([self._element(value) for value in self._some(newState)])

    def _extend(self, elements: list[Any]) -> None:
        changed = self._changed.get(self.key, _GONE)
        if changed is _GONE:
            self._added.setdefault(self.key, []).extend(elements)
        elif changed is None:
            self._changed[self.key] = elements
        else:
            changed.extend(elements)

    def clear(self) -> None:
        self._added.pop(self.key, None)
        super().clear()

    def flush(self) -> None:
        """Write the changes. O(changed lists, and elements appended, times log elements)."""
        keys: list[Any] = []
        records: list[Any] = []
        for key in self._changed:
            for place, _ in self._records(key, self._store.get(key) or []):
                self._tail.delete(place)
        for key, added in self._added.items():
            whole = self._store.get(key) or []
            behind = self._records(key, whole)
            number = 0
            if behind or len(whole) + len(added) > self.WHOLE:
                number = behind[-1][0][1] + 1 if behind else 1
                while behind and len(behind[-1][1]) <= len(added):
                    place, elements = behind.pop()
                    added, number = [*self._live(elements), *added], place[1]
                    self._tail.delete(place)
                if not behind and len(whole) <= len(added):
                    number = 0
            if number:
                keys.append((key, number))
                records.append(added)
            else:
                self._changed[key] = [*self._live(whole), *added]
        if keys:
            self._put(self._tail, keys, records)
        self._added = {}
        super().flush()

    _last = staticmethod(lambda record: max(expiry for expiry, _ in record))


class MapVariable(Variable):
    """`MapState`: tuple -> tuple. Each entry is a row: an update of one entry does not change the others of its key.

    The store has (grouping key, packed entry key) -> (entry key, value), or (entry key, expiry, value) with a ttl;
    packed because an entry key may contain values that a key must not, such as a null or a list.
    """

    kind = "map"
    stored = "entries"

    def __init__(
        self, group: StoreGroup, name: str, schema: str, ttl_ms: int | None, upgrade: Upgrade | None = None
    ) -> None:
        super().__init__(group, name, schema, ttl_ms, upgrade)
        self._entry_keys = StateValues(schema.partition(" -> ")[0])
        self._cleared: set[Any] = set()

    @staticmethod
    def _mapped(stored: Any, changed: Callable[[Any], Any], parameters: dict[str, Any]) -> Any:
        return (*stored[:-1], changed(stored[-1]))

    def _stored(self, key: str) -> list[tuple[Any, Any]]:
        """The rows of a key in the store. O(log n + result)."""
        # a packed list begins with a byte below 0xff
        return list(self._store.scan((key, b""), (key, b"\xff")))

    def _entry(self, packed: bytes) -> Any:
        changed = self._changed.get(self.key)
        if changed is not None and packed in changed:
            return changed[packed]
        return None if self.key in self._cleared else self._store.get((self.key, packed))

    def _visible(self, row: Any) -> bool:
        """Whether a row is there and has not expired."""
        return row is not None and (self._ttl_ms is None or row[1] > self.now)

    def _live(self) -> list[Any]:
        """The rows of the current key, in the order of packed entry keys; those of this batch come last."""
        rows = {} if self.key in self._cleared else {place[1]: row for place, row in self._stored(self.key)}
        rows.update(self._changed.get(self.key, {}))
        return [row for row in rows.values() if self._visible(row)]

    def exists(self) -> bool:
        """Whether an entry exists. O(entries of the key)."""
        return bool(self._live())

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the value of an entry as a Row, or None. O(1)."""
        row = self._entry(self._entry_keys.packed(key)[0])
        return self._values.row(row[-1]) if self._visible(row) else None

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether an entry exists. O(1)."""
        return self._visible(self._entry(self._entry_keys.packed(key)[0]))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set an entry. O(1), and O(log entries) at the end of the batch."""
        (packed, entry), stored = self._entry_keys.packed(key), self._values.put(value)
        row = (entry, stored) if self._ttl_ms is None else (entry, self._expiry(), stored)
        self._changed.setdefault(self.key, {})[packed] = row

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over (key, value), as they are when the first is asked for. O(entries of the key)."""
        yield from [(self._entry_keys.read(row[0]), self._values.read(row[-1])) for row in self._live()]

    def keys(self) -> Iterator[Any]:
        """Iterate over the keys, as `iterator`. O(entries of the key)."""
        yield from [self._entry_keys.read(row[0]) for row in self._live()]

    def values(self) -> Iterator[Any]:
        """Iterate over the values, as `iterator`. O(entries of the key)."""
        yield from [self._values.read(row[-1]) for row in self._live()]

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove an entry. O(1)."""
        self._changed.setdefault(self.key, {})[self._entry_keys.packed(key)[0]] = None

    def clear(self) -> None:
        """Remove all entries of the current key; those in the store are deleted at the end of the batch."""
        self._cleared.add(self.key)
        self._changed[self.key] = {}

    def flush(self) -> None:
        """Give the batch's changes to the store. O(changed entries, and entries of the keys that were cleared)."""
        removed, places, rows = [], [], []
        for key in self._cleared:
            kept = self._changed.get(key, {})
            removed += [place for place, _ in self._stored(key) if kept.get(place[1]) is None]
        for key, changed in self._changed.items():
            for packed, row in changed.items():
                if row is not None:
                    places.append((key, packed))
                    rows.append(row)
                elif key not in self._cleared:
                    removed.append((key, packed))
        if places:
            self._put(self._store, places, rows)
        for place in removed:
            self._store.delete(place)
        self._changed, self._cleared = {}, set()

    _last = staticmethod(itemgetter(1))


class Handle:
    """The `StatefulProcessorHandle` that a processor's `init` gets.

    `keys` turns grouping keys into text and back. `mode` is the time mode: without one, timers are refused, and a
    ttl unless it is ProcessingTime, as by Spark. After `ready`, no variable can be asked for.
    """

    def __init__(
        self,
        group: StoreGroup,
        upgrades: Mapping[str, Upgrade] | None = None,
        keys: GroupingKeys | None = None,
        mode: str = "ProcessingTime",
    ) -> None:
        self._group = group
        self._upgrades = upgrades or {}
        self.keys = keys or GroupingKeys()
        self._mode = mode
        self._ready = False
        self._timers: Timers | None = None
        self.variables: dict[str, Variable] = {}
        self.key = ""
        self.now = 0

    def begin(self, now: int) -> None:
        """Set the processing time of the batch."""
        self.now = now
        for variable in self.variables.values():
            variable.now = now

    def ready(self) -> None:
        """End the processor's `init`."""
        self._ready = True

    def select(self, key: tuple[Any, ...]) -> None:
        """Make this the grouping key of all variables."""
        self.select_stored(self.keys.stored(key))

    def select_stored(self, key: str) -> None:
        """Make the grouping key with this text that of all variables."""
        self.key = key
        for variable in self.variables.values():
            variable.key = key

    def flush(self) -> None:
        """Write the batch's changes to the stores."""
        for variable in self.variables.values():
            variable.flush()

    def _add(self, kind: type[Variable], name: str, schema: str, ttl_ms: int | None) -> Any:
        if self._ready:
            raise refusal(f"Error initializing {kind.kind} state: {invalid_state(f'get_{kind.kind}_state')}")
        if name in self.variables:
            raise refusal(f"Error initializing {kind.kind} state: {kind.kind.title()} state {name} already exists")
        if ttl_ms and self._mode != "ProcessingTime":
            mode = "NoTime" if self._mode == "None" else self._mode
            raise refusal(
                f"[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for state={name} in "
                f"timeMode={mode}, use TimeMode.ProcessingTime() instead."
            )
        if ttl_ms is not None and ttl_ms < 0:
            raise refusal(
                f"[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero for State "
                f"store operation=update on state={name}."
            )
        variable = kind(self._group, name, schema, ttl_ms or None, self._upgrades.get(name))
        variable.now, variable.key = self.now, self.key
        self.variables[name] = variable
        return variable

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueVariable:
        """Return a value variable."""
        variable: ValueVariable = self._add(ValueVariable, stateName, schema_text(schema, stateName), ttlDurationMs)
        return variable

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListVariable:
        """Return a list variable."""
        variable: ListVariable = self._add(ListVariable, stateName, schema_text(schema, stateName), ttlDurationMs)
        return variable

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapVariable:
        """Return a map variable."""
        schema = f"{schema_text(userKeySchema, stateName)} -> {schema_text(valueSchema, stateName)}"
        variable: MapVariable = self._add(MapVariable, stateName, schema, ttlDurationMs)
        return variable

    def _timed(self, operation: str) -> None:
        """Raise Spark's error for a use of timers without a time mode, or in `init`, without a grouping key."""
        begin = TIMER_ERRORS.get(operation, "")
        if self._mode == "None":
            raise refusal(
                f"{begin}[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to perform "
                f"stateful processor operation={operation} with invalid timeMode=NoTime"
            )
        if not self.key:
            raise refusal(begin + invalid_state(operation, "CREATED"))

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
        self._timed("register_timer")
        self.timers.register(self.key, _timer_ms("registerTimer", expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of the current key."""
        self._timed("delete_timer")
        self.timers.delete(self.key, _timer_ms("deleteTimer", expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Iterate over the current key's timers, as they are when the first is asked for."""
        self._timed("list_timers")
        yield from self.timers.of(self.key) if self.has_timers else ()

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a variable and its state of all keys, also a variable that only an older program has asked for. O(1).

        What was asked for before raises Spark's error at its next use.
        """
        if self._ready:
            raise refusal(f"Error deleting state: {invalid_state('delete_if_exists')}")
        variable = self.variables.pop(stateName, None)
        if variable is not None:
            variable.end()
        known = self._group.settings.get(_setting(stateName))
        if known is not None:
            kind = next(kind for kind in (ValueVariable, ListVariable, MapVariable) if kind.kind == known[0])
            for prefix in (kind.stored or kind.kind, *kind.also):
                if f"{prefix}:{stateName}" in self._group.stores:
                    self._group.drop(f"{prefix}:{stateName}")
            self._group.set(_setting(stateName), None)


def _timer_ms(operation: str, given: Any) -> int:
    """Return the time of a timer as Python's int. Raises TypeError and ValueError for what Spark's message refuses."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{operation}: found {type(given).__name__} {given!r}, expected a whole number of ms (int)")
    if not INT64_MIN <= (expiry_ms := index(given)) <= INT64_MAX:
        raise ValueError(f"{operation}: found {given!r}, expected a whole number of ms in 64 bits")
    return expiry_ms
