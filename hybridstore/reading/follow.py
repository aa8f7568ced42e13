"""Follow: a read-only view that stays at the newest committed version of a running job, beside its writer.

    follow = hs.inspect("checkpoint").follow()
    follow.refresh()                 what was committed since is read and applied; nothing new: one small read
    follow.get("counts", "alice")    from memory, or one block

Stores are attached as at a restart and then apply the owner's commits, version by version and through the same `apply`.
All shards of a query are at the same version: that of the newest finished batch. The surprise: a slow view loses
nothing, because versions that were pruned before they were read are in a newer checkpoint, which is attached instead.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from changelog.errors import HybridStoreError
from changelog.outlook import Outlook
from changelog.reader import Version
from changelog.segment import Position, segment_name
from recovery.attempts import Absent, AttemptLine
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError, RestoreError
from recovery.ladder import climb, go_on
from recovery.layout import CHANGELOG, CHECKPOINTS, LOG, MOVED, SPARK_FOLDER, list_checkpoints
from recovery.line import EMPTY, Fault, Step, log_walk
from recovery.restore import restore
from recovery.rule import Lost, Runs
from recovery.runs import newest_claim
from recovery.shard_log import ShardLog

from ..shards import shard_of
from ..state.generations import above
from ..state.group import StoreGroup
from ..state.lock import check_for_loss
from ..stores.kinds import KINDS, Row, Store
from .places import Place, operator_file, read_json

# A writer may prune files while they are read; the newer files are then read.
_ATTEMPTS: Final = 5
# How many versions are applied to an attached checkpoint before a newer one is attached, which frees their memory.
_LONG: Final = 1000


class _State(ABC):
    """One state or shard in memory, at the version of `step`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.group = StoreGroup(_nowhere)
        self.step = EMPTY
        self.reader: CheckpointReader | None = None
        self.applied = 0

    @abstractmethod
    def open(self, target: int | None) -> None:
        """Attach the newest checkpoint and apply what is behind it, up to version `target` (None: the newest)."""

    @abstractmethod
    def advance(self, target: int | None) -> bool:
        """Apply the versions committed since; True when there were any. Raises if they do not continue `step`."""

    def apply(self, versions: Iterable[Version | Fault]) -> None:
        """Apply versions that continue `step`. Raises the first fault."""
        self.step, fault = go_on(versions, self.group, self.step, applied=self._applied)
        self.group.reached(*self.step)
        if fault is not None:
            raise fault.raised()

    def _applied(self, version: Version) -> None:
        # Noted at once: an exception in a later version leaves the earlier ones applied.
        self.step = Step(version.commit.version, version.commit.digest)
        self.applied += 1

    def anew(self, target: int | None) -> None:
        """Begin again with the present content of the storage."""
        for attempt in range(_ATTEMPTS):
            self.close()
            self.group, self.step, self.applied = StoreGroup(_nowhere), EMPTY, 0
            try:
                return self.open(target)
            except (HybridStoreError, FileNotFoundError):
                if attempt == _ATTEMPTS - 1:
                    raise

    def close(self) -> None:
        """Close the checkpoint."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class _Directory(_State):
    """A plain store: a log of segments, to whose end its owner appends."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._path = place.path or Path()
        self._log = self._path / CHANGELOG
        self._identity = place.identity()
        self._position: Position | None = None
        # bytes of the segment in hand when it was read
        self._size = -1

    def open(self, target: int | None) -> None:
        reached = restore(self._path, self.group, at=target, identity=self.place.identity())
        check_for_loss(self._path, reached)
        report = reached.report
        self.reader, self.step = reached.checkpoint, Step(report.version, report.digest)
        self._identity = report.identity
        self._position, self._size = reached.resume.reached, -1
        self.group.reached(*self.step)

    def _segment_size(self) -> int:
        """Return the bytes of the present segment, -1 if it does not exist."""
        if self._position is None:
            return -1
        try:
            return os.stat(self._log / segment_name(self._position.segment)).st_size
        except FileNotFoundError:
            return -1

    def advance(self, target: int | None) -> bool:
        size = self._segment_size()
        # The segment after an ended one is named after the next version.
        if size == self._size >= 0 and not (self._log / segment_name(self.step.version + 1)).exists():
            return False
        before = self.step
        if self._position is None:
            self.anew(None)
            return self.step != before
        segment = self._position.segment
        walk = log_walk(self._log, self.step, start=self._position, identity=self._identity)
        self.apply(walk)
        self._position = walk.position or self._position
        # A segment that grew during the read is larger than the size asked before.
        self._size = size if self._position.segment == segment else -1
        return self.step != before


class _Shard(_State):
    """A shard of a Spark operator: one object for each version."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._outlook = Outlook(place.storage)
        self._objects = ShardLog(self._outlook, place.identity())
        # Batches without rows for this shard do not change it, but count as later versions.
        self.version = 0

    def _runs(self) -> Runs:
        operator = self.place.operator_storage
        claim = None if operator is None else newest_claim(operator)
        return () if claim is None else claim.runs

    def newest(self) -> int:
        """Return the newest version that the shard has reached."""
        return self._objects.standing(self._runs()).newest

    def open(self, target: int | None) -> None:
        with self._line(target) as line:
            climbed = climb(line, self.group, applied=self._applied)
            self.reader, self.step = climbed.reader, climbed.step
            self.group.reached(*self.step)

    def advance(self, target: int | None) -> bool:
        target = self.newest() if target is None else target
        if target == self.version:
            return False
        before = self.version
        with self._line(target) as line:
            versions = None if target < self.step.version else line.behind_step(self.step)
            if versions is None:
                raise RestoreError(f"{self.place.where}: version {target} does not continue version {before}")
            self.apply(versions)
        return True

    @contextmanager
    def _line(self, target: int | None) -> Iterator[AttemptLine]:
        """Give the line to a version, which the view has afterwards. What is not there raises RestoreError."""
        target = self.newest() if target is None else target
        operator = self.place.operator_storage
        try:
            self._outlook.begin({CHECKPOINTS: "", LOG: ""})
            yield AttemptLine(
                self._outlook,
                self._objects,
                self._runs(),
                target,
                lenient=lambda: operator is not None and bool(operator.list(MOVED)),
            )
        except (Lost, Absent) as error:
            raise RestoreError(f"{self.place.where}: version {target} cannot be read: {error}") from error
        finally:
            self._outlook.end()
        self.version = target


def _nowhere(body: bytes) -> None:
    """A view logs nothing."""


class FollowedStore:
    """One store of all shards, at the version of its view: `view["users"]`. Iterating yields all rows.

    name  the store's name
    kind  its kind, such as `window`

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> users = hs.inspect("state").follow()["users"]
    >>> users.kind, len(users), list(users)
    ('key_value', 1, [Row(key='ann', start=None, end=None, value=1)])
    """

    def __init__(self, view: Followed, name: str) -> None:
        self._view = view
        self.name = name

    @property
    def kind(self) -> str:
        """The store's kind, such as `window`."""
        return self._view._stores(self.name)[0].kind

    def get(self, key: Any) -> list[Row]:
        """Return the rows of one key; see `Followed.get`.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> hs.inspect("state").follow()["users"].get("ann")
        [Row(key='ann', start=None, end=None, value=1)]
        """
        return self._view.get(self.name, key)

    def __iter__(self) -> Iterator[Row]:
        """Yield all records, shard by shard, in the store's order. Reads every block."""
        for store in self._view._stores(self.name):
            yield from KINDS[store.kind].rows(store)

    def __len__(self) -> int:
        """Return how many records there are; an estimate while a long changelog waits to be applied."""
        return sum(store.num_records for store in self._view._stores(self.name))

    def __repr__(self) -> str:
        return f"<FollowedStore {self.name!r}, {self.kind}, version {self._view.version}>"


class Followed:
    """A mapping of the stores of a running job by name, at its newest committed version as of the last `refresh`.

    Made by `hybridstore.inspect(path).follow()`. The view takes no lock, writes nothing, and keeps in memory the
    records committed since the newest checkpoint, and the blocks that were read. `version` is the version of all
    stores: on Spark the number of the newest finished batch, plus 1. A context manager, which closes the view. Not for
    several threads at once.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    ...     with hs.inspect("state").follow() as view:
    ...         print(view.version, list(view))
    1 ['users']
    """

    def __init__(self, places: list[Place]) -> None:
        first = places[0]
        self._operator = first.operator_storage
        self._states: list[_Shard | _Directory] = [
            _Directory(place) if place.shard is None else _Shard(place) for place in places
        ]
        self._target: int | None = None
        self._shards = 0
        self._begin()

    def _begin(self) -> None:
        if self._operator is not None:
            fields = read_json(self._operator, operator_file(self._operator))
            self._shards = fields.get("shards", 0) if isinstance(fields, dict) else 0
        self._target = self._wanted()
        for state in self._states:
            state.anew(self._target)

    def _wanted(self) -> int | None:
        """Return the version of the newest finished batch, from Spark's commits/, else the newest version that all
        shards have; None for a plain store, which has its own.
        """
        if self._operator is None:
            return None
        query = above(self._operator, 2) if self._operator.url.split("/")[-2:-1] == [SPARK_FOLDER] else self._operator
        names = (name.removeprefix("commits/") for name in query.list("commits/"))
        batches = [int(name) for name in names if name.isdigit()]
        if batches:
            return max(batches) + 1
        return min(state.newest() for state in self._states if isinstance(state, _Shard))

    @property
    def version(self) -> int:
        """The version of all stores: on Spark the number of the newest finished batch, plus 1."""
        return self._states[0].step.version if self._target is None else self._target

    def refresh(self) -> bool:
        """Apply the commits since the last call; True when the version changed.

        Without new commits this is one small read: of Spark's commits/, or of a segment's size. Raises as opening does;
        the view is then at an older version, or at none, and another `refresh` continues.

        >>> with hs.open("state") as state:
        ...     users = state.key_value("users")
        ...     users["ann"] = 1
        ...     version = state.commit()
        ...     view = hs.inspect("state").follow()
        ...     users["ann"] = 2
        ...     version = state.commit()
        ...     print(view.get("users", "ann")[0].value, view.refresh(), view.get("users", "ann")[0].value)
        1 True 2
        """
        before, target = self.version, self._wanted()
        if target is not None and target == self._target:
            return False
        for state in self._states:
            try:
                state.advance(target)
                if state.applied > _LONG and self._has_newer(state):
                    state.anew(target)
            except (HybridStoreError, FileNotFoundError):
                state.anew(target)
        self._target = target
        return self.version != before

    @staticmethod
    def _has_newer(state: _State) -> bool:
        newest = max((name.version for name in list_checkpoints(state.place.storage)), default=0)
        return newest > (0 if state.reader is None else state.reader.meta.version)

    def get(self, store: str, key: Any) -> list[Row]:
        """Return the records of a key as (key, start, end, value), in the store's order; [] if there are none.

        `start` and `end` are ms: twice the time of a window or value, the bounds of a session, None without times. With
        several shards only that of the key is read. Raises KeyError for an unknown store and TypeError for a key of
        another type. O(a block for each bucket that holds the key); of a suppression buffer O(records).

        >>> with hs.open("state") as state:
        ...     state.window("clicks", retention="1 hour").put("ann", 1, ts=500)
        ...     state.commit()
        1
        >>> hs.inspect("state").follow().get("clicks", "ann")
        [Row(key='ann', start=500, end=500, value=1)]
        """
        for attempt in range(_ATTEMPTS):
            try:
                stores = self._stores(store, key)
                return [row for each in stores for row in KINDS[each.kind].of_key(each, key)]
            except (CheckpointError, FileNotFoundError):
                # The owner has removed the needed block since.
                if attempt == _ATTEMPTS - 1:
                    raise
                self._begin()
        raise AssertionError("unreachable")  # pragma: no cover

    def _stores(self, name: str, key: Any = None) -> list[Store]:
        states: list[_Shard | _Directory] = self._states
        if key is not None and self._shards > 1:
            shard = shard_of(key, self._shards)
            states = [state for state in states if state.place.shard == shard]
        stores = [state.group.stores[name] for state in states if name in state.group.stores]
        if not stores and name not in set(self):
            raise KeyError(f"no store {name!r} (there are: {', '.join(self) or 'none'})")
        return stores

    def __getitem__(self, name: str) -> FollowedStore:
        self._stores(name)
        return FollowedStore(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for state in self._states for name in state.group.stores))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def close(self) -> None:
        """Close the checkpoints; the view cannot be used afterwards.

        >>> with hs.open("state") as state:
        ...     state.key_value("users")["ann"] = 1
        ...     state.commit()
        1
        >>> view = hs.inspect("state").follow()
        >>> view.close()
        """
        for state in self._states:
            state.close()

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Followed {(self._operator or self._states[0].place.storage).url!r}, version {self.version}>"


def follow(places: list[Place], operator: str | None) -> Followed:
    """Return the view of a state, or of all shards of an operator (None: the only one). Raises ValueError."""
    operators = sorted({place.operator for place in places})
    if operator is None and len(operators) > 1:
        raise ValueError(f"follow: operator: found None, expected one of {', '.join(operators)}")
    chosen = [place for place in places if operator is None or place.operator == operator]
    if not chosen:
        raise ValueError(f"follow: operator: found {operator!r}, expected one of {', '.join(operators)}")
    if any(place.form != "directory" for place in chosen):
        raise ValueError(f"follow: {chosen[0].where}: found a file, which does not change (give the state it is of)")
    if any(place.path is None and place.shard is None for place in chosen):
        raise ValueError(
            f"follow: {chosen[0].where}: found a plain store on an object store, expected a directory or the location "
            "of a query (inspect it again to see later versions)"
        )
    return Followed(chosen)
