"""Changes: what the changelog says happened, version by version, as one change per record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.codec import unpack
from changelog.errors import HybridStoreError, UnsupportedVersionError
from changelog.frame import Commit
from changelog.mutation import (
    DEFINE,
    DELETE,
    DELETE_AT,
    DELETE_SPAN,
    EVICT,
    PUT,
    PUT_AT,
    PUT_COLUMNS,
    PUT_SPAN,
    PUT_SPANS,
    SET,
    SYSTEM,
    TIME,
    Mutation,
    mutations,
)
from recovery.checkpoint import checkpoint_name, list_checkpoints
from recovery.layout import CHECKPOINTS
from recovery.line import Fault
from recovery.pages import PageCheckpoint

from .line import Line, line_of
from .places import Place


class Deleted:
    """Stands for the value of a record that is deleted."""

    def __repr__(self) -> str:
        return "DELETED"


DELETED: Final = Deleted()


class Change(NamedTuple):
    """One change of one record: store number, op (put, delete, time, evict, set, define), key, times (as in a Record), value."""

    store: int
    op: str
    key: Any
    times: tuple[int, ...]
    value: Any


class Logged(NamedTuple):
    """One committed version and where it lies: its commit, its changes, bytes of mutations, segment, and the file offset after it."""

    commit: Commit
    changes: list[Change]
    size: int
    segment: str
    offset: int


def expand(mutation: Mutation) -> Iterator[Change]:
    """Yield the changes of a mutation, one per record. Raises TypeError or ValueError when its arguments do not fit its op."""
    store, op, args = mutation
    match op:
        case _ if op == PUT:
            yield Change(store, "put", args[0], (), args[1])
        case _ if op == DELETE:
            yield Change(store, "delete", args[0], (), DELETED)
        case _ if op == PUT_AT:
            yield Change(store, "put", args[0], (args[2],), args[1])
        case _ if op == DELETE_AT:
            yield Change(store, "delete", args[0], (args[1],), DELETED)
        case _ if op == PUT_SPAN:
            yield Change(store, "put", args[0], (args[3], args[2]), args[1])
        case _ if op == DELETE_SPAN:
            yield Change(store, "delete", args[0], (args[2], args[1]), DELETED)
        case _ if op == PUT_COLUMNS:
            keys, values, times = args
            if times is None:
                for key, value in zip(keys, values, strict=True):
                    yield Change(store, "put", key, (), value)
            else:
                for key, value, ts in zip(keys, values, times, strict=True):
                    yield Change(store, "put", key, (ts,), value)
        case _ if op == PUT_SPANS:
            for key, value, start, end in zip(*args, strict=True):
                yield Change(store, "put", key, (end, start), value)
        case _ if op == TIME:
            yield Change(store, "time", None, (args[0],), None)
        case _ if op == EVICT:
            yield Change(store, "evict", args[1], (args[0],), None)
        case _ if op == SET:
            yield Change(store, "set", args[0], (), args[1])
        case _ if op == DEFINE:
            yield Change(store, "define", args[1], (), {"number": args[0], "kind": args[2], **args[3]})
        case _:
            yield Change(store, mutation.name, None, (), list(args))


def changes_of(bodies: list[bytes]) -> list[Change]:
    """Return the changes in the frame bodies of one version. Raises MutationError, TypeError or ValueError. O(n)."""
    return [change for body in bodies for mutation in mutations(unpack(body)) for change in expand(mutation)]


class Story:
    """The changelog of a place, read in order. `faults` lists what could not be read; reading goes on after it if it can."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.faults: list[str] = []
        self.names: dict[int, str] = {SYSTEM: ""}
        self.kinds: dict[int, str] = {}
        self.parameters: dict[int, dict[str, Any]] = {}
        self._oldest = 0
        if place.form == "directory":
            self._names_from_checkpoints()

    def _names_from_checkpoints(self) -> None:
        folder = self.place.path / CHECKPOINTS
        versions = list_checkpoints(folder)
        self._oldest = min(versions, default=0)
        for version in versions:
            try:
                meta = PageCheckpoint(folder / checkpoint_name(version)).meta
            except (OSError, HybridStoreError):
                continue
            for record in meta.stores:
                self._name(record.number, record.name, record.kind, record.parameters)

    def _name(self, number: int, name: str, kind: str, parameters: dict[str, Any]) -> None:
        self.names[number], self.kinds[number], self.parameters[number] = name, kind, parameters

    def versions(self, after: int = 0, through: int | None = None) -> Iterator[Logged]:
        """Yield the committed versions in after < version <= through, in order. O(bytes), also of those before."""
        line = line_of(self.place, needed=self._oldest)
        begun = [i for i, segment in enumerate(line.segments) if segment.first <= after + 1]
        before = begun[-1] if begun else 0
        if not self.kinds:
            # The names of stores are told by a segment that is passed over, unless a checkpoint told them.
            for _ in self._walked(line._replace(segments=line.segments[:before]), None):
                pass
        for logged in self._walked(line._replace(segments=line.segments[before:]), through):
            if logged.commit.version > after:
                yield logged

    def _walked(self, line: Line, through: int | None) -> Iterator[Logged]:
        walk = line.walk(None)
        for item in walk:
            if isinstance(item, Fault):
                if isinstance(item.error, UnsupportedVersionError):
                    raise item.error
                self.faults.append(str(item.raised()))
                continue
            if through is not None and item.commit.version > through:
                return
            path = self.place.path if walk.reader is None else walk.reader.path
            changes = self._changes(item.bodies, path, item.commit.version)
            yield Logged(item.commit, changes, item.size, path.name, item.position.offset)

    def _changes(self, bodies: list[bytes], path: Path, version: int) -> list[Change]:
        try:
            changes = changes_of(bodies)
        except Exception as error:  # mutations that someone made up may raise anything
            self.faults.append(f"{path}: version {version} cannot be decoded: {error}")
            return []
        for change in changes:
            if change.op == "define" and change.store == SYSTEM:
                parameters = dict(change.value)
                self._name(parameters.pop("number"), change.key, parameters.pop("kind"), parameters)
        return changes

    def name(self, number: int) -> str:
        """Return the name of a store by number, or `#number` when nothing that is retained tells it."""
        return self.names.get(number, f"#{number}")

    def number(self, name: str) -> int | None:
        """Return the number of a store by name, once a definition of it was seen."""
        return next((number for number, known in self.names.items() if known == name and number != SYSTEM), None)
