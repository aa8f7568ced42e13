"""Events: the changes of one key, version by version, from the retained changelog and the oldest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from changelog.changes import DELETED, Change
from recovery.errors import RestoreError
from recovery.pages import PageCheckpoint

from ..markup import Labelled
from ..stores.kinds import KINDS, Row
from .changes import ChangedVersion, ChangeHistory
from .places import Place
from .versions import reach_once
from .view import open_view, retry_while_changing

# In place of a value that was written before the oldest retained version.
UNKNOWN = Labelled("?", None)
_ABSENT = DELETED


class Event(NamedTuple):
    """One change of a key: version, commit time (ms), op (put, delete, expire, evict), its times, value before and
    after.

    `old` is DELETED without a value before, and UNKNOWN if no retained version has it; `new` is DELETED without
    a value afterwards.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> (event,) = hs.inspect("state").history("users", "ann")
    >>> event.version, event.op, event.times, event.new
    (1, 'put', (), 1)
    """

    version: int
    wall_ms: int
    op: str
    times: tuple[int, ...]
    old: Any
    new: Any


class _Key:
    """The records of one key from version to version."""

    def __init__(self, kind: str, parameters: dict[str, Any]) -> None:
        self._kind = KINDS[kind]
        self._one_per_key = self._kind.one_per_key
        # those of the version in hand
        self.parameters = parameters
        self._duplicates = self._kind.keeps_equal(parameters)
        self.records: dict[Any, list[tuple[tuple[int, ...], Any]]] = {}
        """The times and values of each slot: one, or of records that may have the same times all, as they arrived."""
        self.known = False

    def _slot(self, times: tuple[int, ...]) -> Any:
        # If a key has one record, its times are part of the value and not of its identity.
        return () if self._one_per_key else times

    def start(self, rows: Iterator[Row]) -> None:
        self.known = True
        self.records = {}
        for row in rows:
            self.records.setdefault(self._slot(row.times), []).append((row.times, row.value))

    def change(self, version: int, wall_ms: int, change: Change) -> Event:
        slot = self._slot(change.times)
        before = self.records.get(slot)
        old = before[-1][1] if before is not None else _ABSENT if self.known or self._duplicates else UNKNOWN
        if change.op == "delete":
            self.records.pop(slot, None)
        else:
            stay = before if self._duplicates and before is not None else []
            self.records[slot] = [*stay, (change.times, change.value)]
        times = change.times or (before[-1][0] if before is not None else ())
        return Event(version, wall_ms, change.op, times, _ABSENT if self._duplicates else old, change.value)

    def may_have_left(self, key: Any, stream_time: int) -> bool:
        """Whether a record of the key may have been removed by the time alone, without a mutation."""
        leaves = self._kind.may_have_left
        return any(leaves(self.parameters, key, times, stream_time) for times, _ in self.rows())

    def rows(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Iterate over the times and values of all records."""
        return chain.from_iterable(self.records.values())

    def expire(self, version: int, wall_ms: int, stream_time: int) -> Iterator[Event]:
        through = self._kind.expired_through(self.parameters, stream_time)
        for slot, rows in list(self.records.items()):
            times = rows[0][0]
            if times and times[0] <= through:
                del self.records[slot]
                for times, value in rows:
                    yield Event(version, wall_ms, "expire", times, value, _ABSENT)


def history_of(place: Place, store: str, key: Any, faults: list[str]) -> list[Event]:
    """Return the events of a key in a place, oldest first; those of versions that stay, where the owner removes some.

    Raises KeyError for an unknown store. O(changelog).
    """

    def look(behind: PageCheckpoint | None = None) -> tuple[list[Event], list[str]]:
        read: list[str] = []
        return list(_history(place, store, key, read, behind)), read

    events, read = retry_while_changing(place, look, lambda seen: bool(seen[1]), look)
    faults.extend(read)
    return events


def _history(
    place: Place, store: str, key: Any, faults: list[str], behind: PageCheckpoint | None = None
) -> Iterator[Event]:
    oldest = place if behind is None else place._replace(form="checkpoint", name=str(behind.name))
    within = reach_once(oldest)  # first: of what is listed later, all may be newer than the view
    newest = open_view(place)
    view_store = newest.store(store)
    checkpoints = [version for version in within.checkpoints if version <= newest.version]
    state = _Key(view_store.kind, view_store.parameters)
    from_start = within.begins == 0
    base = 0 if from_start or not checkpoints else checkpoints[0]
    state.known = from_start
    story = ChangeHistory(place, behind)
    for logged in story.versions(0, newest.version):
        if base and logged.commit.version > base and not state.known:
            yield from _base(oldest, store, key, base, state)
        # a store that was rebuilt, as for a changed program, has another number since
        numbers = {number for number, name in story.names.items() if name == store}
        number = max(numbers & logged.commit.times.keys(), default=None)
        if number in story.parameters:
            state.parameters = story.parameters[number]
        yield from _events(place, logged, numbers, store, key, state)
    if base and not state.known:
        yield from _base(oldest, store, key, base, state)
    if story.removed:
        raise RestoreError(f"{place.where}: segments were removed while they were read (read the history again)")
    faults.extend(story.faults)


def _base(place: Place, store: str, key: Any, version: int, state: _Key) -> Iterator[Event]:
    """Begin with the key's records in the oldest checkpoint; records whose write is not retained are shown as found
    there, and those that a buffer has emitted before as evicted there.
    """
    view = open_view(place, version)
    seen = dict(state.records)
    if store in view.stores:
        state.start(view.stores[store].of_key(key))
    state.known = True
    for slot, rows in state.records.items():
        # what was seen arrived last
        for times, value in rows[: len(rows) - len(seen.get(slot, ()))]:
            yield Event(version, view.wall_ms or 0, "found", times, UNKNOWN, value)
    for slot, rows in seen.items():
        if slot not in state.records:
            for times, value in rows:
                yield Event(version, view.wall_ms or 0, "evict", times, value, _ABSENT)


def _events(
    place: Place, logged: ChangedVersion, numbers: set[int], store: str, key: Any, state: _Key
) -> Iterator[Event]:
    version, wall = logged.commit.version, logged.commit.wall_ms
    evicted = False
    for change in logged.changes:
        if change.store not in numbers:
            continue
        if change.op == "evict":
            evicted = True
        elif change.op in ("put", "delete") and change.key == key:
            yield state.change(version, wall, change)
    stream_time = max((ts for number, ts in logged.commit.times.items() if number in numbers), default=None)
    if not evicted and type(stream_time) is int:
        evicted = state.may_have_left(key, stream_time)
    # An eviction only has the place up to which records were emitted; the records follow from the buffer.
    if evicted and not state.known:
        # versions before the oldest checkpoint cannot be read, so nothing says whether the record was emitted
        state.records = {slot: [(times, UNKNOWN) for times, _ in rows] for slot, rows in state.records.items()}
    elif evicted and state.records and next(open_view(place, version).store(store).of_key(key), None) is None:
        for times, value in state.rows():
            yield Event(version, wall, "evict", times, value, _ABSENT)
        state.records.clear()
    if type(stream_time) is int:
        yield from state.expire(version, wall, stream_time)
