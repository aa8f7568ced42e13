"""Version: one state or shard at a committed version, in memory, beside its writer: the one way to read a state.

    version = Version(place)            the newest version; Version(place, 42): version 42
    version.rows("counts")              records, from memory and from blocks of the checkpoint
    version.refresh()                   the commits since are read and applied; nothing new: one small read

Stores are attached as at a restart, by the same ladder, and then apply the owner's commits through the same `apply`. No
lock is taken and nothing is written. A Version opens what an owner would open: damage raises, and `view` shows what is
left. The surprise: a slow reader loses nothing, because versions that were pruned before they were read are in a newer
checkpoint, which is attached instead.

    _Plain        a state directory or a place on an object store: opened by its `Home`, as by `hs.open(at=)`
    ShardSource   a shard of Spark: objects of attempts
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Final, Protocol

from changelog.errors import HybridStoreError
from changelog.identity import Identity
from changelog.outlook import Outlook
from changelog.reader import LoggedVersion as Committed
from changelog.segment import Position, segment_name
from recovery.attempts import Absent, AttemptLine
from recovery.checkpoint import CheckpointReader
from recovery.errors import RestoreError
from recovery.ladder import climb, go_on
from recovery.layout import CHANGELOG, CHECKPOINTS, LOG, MOVED, list_checkpoints
from recovery.line import EMPTY, Fault, Step, log_walk
from recovery.object_log import object_walk
from recovery.rule import MissingParent, Runs
from recovery.runs import newest_claim
from recovery.shard_log import ShardLog

from ..state.group import StoreGroup
from ..state.home import BucketHome, DirectoryHome
from ..state.opening import reading
from ..state.policy import Logged
from ..stores.kinds import KINDS, Row, Store
from .places import Place
from .selection import EVERYTHING, Selection

# A writer may prune files while they are read; the newer files are then read.
ATTEMPTS: Final = 5
# How many versions are applied to an attached checkpoint before a newer one is attached, which frees their memory.
_LONG: Final = 1000


class NotRetainedError(RestoreError):
    """A version of a shard is not there any more, was never written, or was lost."""


class VersionSource(Protocol):
    """Where the versions of a place come from."""

    def open(self, into: Version, at: int | None) -> None:
        """Fill `into` with version `at` (None: the newest)."""

    def advance(self, into: Version, at: int | None) -> None:
        """Apply the versions up to `at` (None: the newest) that were committed since. Raises if they do not continue
        the version in memory.
        """


class Version:
    """One state or shard at one version. Not for several threads at once; also a context manager, which closes it.

    place    where it is
    number   the version; of a shard, batches without rows count
    step     the newest version that changed anything, with its digest
    group    the stores, and the settings that were committed with them
    reader   the checkpoint in use, None without one
    tail     what was applied behind it

    Raises RestoreError when the version is not retained, and as a restore. O(pages + tail).

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> from hybridstore.reading.places import resolve
    >>> from hybridstore.reading.version import Version
    >>> with Version(*resolve("state")) as version:
    ...     print(version.number, list(version.stores), list(version.rows("users")))
    1 ['users'] [Row(key='ann', times=(), value=1)]
    """

    def __init__(self, place: Place, at: int | None = None, *, source: VersionSource | None = None) -> None:
        self.place = place
        self.group, self.step, self.number, self.tail = _empty()
        self.reader: CheckpointReader | None = None
        self._source = source or (_Plain(place) if place.shard is None else ShardSource(place, place.identity()))
        self._anew(at)

    # --- the sources fill it ----------------------------------------------------------------------------------------

    def reached(self, step: Step, number: int) -> None:
        """The stores are at a step; `number` is the version, above the step after batches without rows."""
        self.step, self.number = step, number
        self.group.reached(*step)

    def apply(self, versions: Iterable[Committed | Fault], number: int | None = None) -> None:
        """Apply versions that continue `step`; the version is then `number` (None: the last of them). Raises the first
        fault.
        """
        step, fault = go_on(versions, self.group, self.step, applied=self.applied)
        if fault is not None:
            raise fault.raised()
        self.reached(step, step.version if number is None else number)

    def applied(self, version: Committed) -> None:
        """A version was applied. Noted at once: an exception in a later version leaves the earlier ones applied."""
        commit = version.commit
        self.step = Step(commit.version, commit.digest)
        self.tail = self.tail.plus(Logged.of(1, version.size, commit.records, self.group.kinds))

    def _anew(self, at: int | None) -> None:
        reader, group, step, tail = self.reader, self.group, self.step, self.tail
        number = max(self.number, step.version)  # above the number after a refresh that failed half-way
        for attempt in range(ATTEMPTS):
            self.reader = None
            self.group, self.step, self.number, self.tail = _empty()
            try:
                self._source.open(self, at)
                if number > self.number == 0:  # a place that is away looks like a state without versions
                    raise RestoreError(f"{self.place.where}: found no version, expected version {number} or another")
            except BaseException as error:
                self.close()
                self.reader, self.group, self.step, self.number, self.tail = reader, group, step, number, tail
                if attempt == ATTEMPTS - 1 or not isinstance(error, HybridStoreError | FileNotFoundError):
                    raise
            else:
                if reader is not None:
                    reader.close()
                return

    # --- reading ----------------------------------------------------------------------------------------------------

    def refresh(self, at: int | None = None) -> bool:
        """Move on to version `at` (None: the newest); True when the version changed.

        Versions that do not continue this one (a rewind, or they were pruned) are attached instead. Raises as opening;
        the version is then the one before, or one between, and another `refresh` continues.
        """
        before = self.step, self.number
        try:
            self._source.advance(self, at)
            if self.tail.commits > _LONG and self._has_newer_checkpoint():
                self._anew(at)
        except (HybridStoreError, FileNotFoundError):
            self._anew(at)
        return (self.step, self.number) != before

    def _has_newer_checkpoint(self) -> bool:
        newest = max((name.version for name in list_checkpoints(self.place.storage)), default=0)
        return newest > (0 if self.reader is None else self.reader.meta.version)

    @property
    def stores(self) -> Mapping[str, Store]:
        """The stores by name. They may be read, and not written to."""
        return self.group.stores

    @property
    def settings(self) -> Mapping[str, Any]:
        """The named values committed with the stores."""
        return self.group.settings

    def rows(self, store: str, chosen: Selection = EVERYTHING) -> Iterator[Row]:
        """Yield the chosen records of a store in its order. Raises KeyError; TypeError for bounds of another type than
        the keys; CheckpointError or FileNotFoundError if the owner has removed a block since (`refresh`, and read
        again). O(records within the bounds of the keys, if the store is ordered by key, else of the times).
        """
        live = self.group.stores[store]
        kind = KINDS[live.kind]
        if chosen.everything:
            return kind.rows(live)
        first = chosen.key_from
        if kind.order == "key" and first is None:
            first = chosen.prefix  # keys with this prefix begin here, and lie together
        rows = kind.between(live, first, chosen.key_to, chosen.time_from, chosen.time_to)
        if chosen.prefix is None:
            return (row for row in rows if chosen.within(row.times))
        if kind.order == "key":
            size = len(chosen.prefix)
            rows = takewhile(lambda row: row.key[:size] <= chosen.prefix, rows)
        return (row for row in rows if chosen.picks(row.key, row.times))

    def of_key(self, store: str, key: Any) -> Iterator[Row]:
        """Yield the records of a key in the store's order. Raises as `rows`, and TypeError for a key of another type.
        O(a block for each bucket that holds the key); of a suppression buffer O(records).
        """
        live = self.group.stores[store]
        return KINDS[live.kind].of_key(live, key)

    def close(self) -> None:
        """Close the checkpoint. Blocks that were not read are then out of reach."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def __enter__(self) -> Version:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Version {self.number} of {self.place.where!r}>"


# A commit is shorter: so many bytes, and so many for each store, whose times and counts are behind the digest.
_END_BYTES: Final = 256
_STORE_BYTES: Final = 128


class _Plain:
    """A plain state: a log of segments, to whose end its owner appends, or an object for each version."""

    def __init__(self, place: Place) -> None:
        self._storage = place.storage
        self._path = place.path
        self._identity: Identity | None = None
        self._position: Position | None = None
        # bytes of the segment in hand when it was read
        self._size = -1
        # the end of the newest version in it, by which a version of another line is known after a rewind
        self._end = b""
        self._end_bytes = _END_BYTES

    def open(self, into: Version, at: int | None) -> None:
        self._position, self._size = None, -1
        asked = reading("newest" if at is None else at)
        home = BucketHome(self._storage, asked) if self._path is None else DirectoryHome(self._path, asked)
        restored = home.restore(into.group, at, None)
        report = restored.report
        into.reader, self._identity = restored.checkpoint, report.identity
        kinds = into.group.kinds
        into.tail = Logged.of(report.tail_versions, report.tail_bytes, report.tail_counts, kinds)
        self._position = restored.resume.reached
        self._note_end(into)
        into.reached(Step(report.version, report.digest), report.version)

    def advance(self, into: Version, at: int | None) -> None:
        if at != into.number:
            self._advance(into, at)
        if at not in (None, into.number):
            raise RestoreError(f"{into.place.where}: version {at} does not continue version {into.number}")

    def _advance(self, into: Version, at: int | None) -> None:
        if at is not None and at < into.number:
            return
        if self._path is None:
            into.apply(object_walk(self._storage, into.step, identity=self._identity, through=at))
            return
        log, size = self._path / CHANGELOG, self._segment_size()
        # The segment after an ended one is named after the next version.
        same = size == self._size >= 0 and self._end_of_version() == self._end
        if same and not (log / segment_name(into.number + 1)).exists():
            return
        if self._position is None:
            raise RestoreError(f"{into.place.where}: found no version before")  # is attached instead
        if self._end_of_version() != self._end:
            raise RestoreError(f"{into.place.where}: version {into.number} is of another line")  # is attached instead
        segment = self._position.segment
        walk = log_walk(log, into.step, start=self._position, identity=self._identity)
        into.apply(walk if at is None else _through(walk, at))
        self._position = walk.position or self._position
        self._note_end(into)
        # A segment that grew during the read is larger than the size asked before.
        self._size = size if self._position.segment == segment and at is None else -1

    def _note_end(self, into: Version) -> None:
        self._end_bytes = _END_BYTES + _STORE_BYTES * len(into.group.stores)
        self._end = self._end_of_version()

    def _end_of_version(self) -> bytes:
        """Return the last bytes of the newest version in the segment, with its digest; b"" if they are not there."""
        if self._position is None or self._path is None:
            return b""
        first = max(0, self._position.offset - self._end_bytes)
        try:
            with open(self._path / CHANGELOG / segment_name(self._position.segment), "rb", buffering=0) as file:
                return os.pread(file.fileno(), self._position.offset - first, first)
        except FileNotFoundError:
            return b""

    def _segment_size(self) -> int:
        """Return the bytes of the present segment, -1 if it does not exist."""
        if self._position is None or self._path is None:
            return -1
        try:
            return os.stat(self._path / CHANGELOG / segment_name(self._position.segment)).st_size
        except FileNotFoundError:
            return -1


class ShardSource:
    """A shard of a Spark operator: one object for each version.

    identity   what the shard's objects must say they belong to; None: what the first one says
    runs       the runs that decide which objects count; None: those that the newest run of the operator knows
    lenient    as of `AttemptLine`; None: asks the operator's objects
    """

    def __init__(
        self,
        place: Place,
        identity: Identity | None,
        runs: Runs | None = None,
        lenient: Callable[[], bool] | None = None,
    ) -> None:
        self._place = place
        self._operator = place.operator_storage
        self._asked = runs
        self._lenient = lenient or self._has_moved
        self._outlook = Outlook(place.storage)
        self._objects = ShardLog(self._outlook, identity)
        # the runs by which the version in memory was read
        self._seen: Runs | None = None

    def _runs(self) -> Runs:
        if self._asked is not None:
            return self._asked
        claim = None if self._operator is None else newest_claim(self._operator)
        return () if claim is None else claim.runs

    def _has_moved(self) -> bool:
        return self._operator is not None and bool(self._operator.list(MOVED))

    def newest(self) -> int:
        """Return the newest version that the shard has reached. One list."""
        return self._objects.standing(self._runs()).newest

    def open(self, into: Version, at: int | None) -> None:
        at = self.newest() if at is None else at
        self._seen = self._runs()
        with self._line(at) as line:
            climbed = climb(line, into.group, applied=into.applied)
        into.reader = climbed.reader
        into.reached(climbed.step, at)

    def advance(self, into: Version, at: int | None) -> None:
        at = self.newest() if at is None else at
        runs = self._runs()
        if at == into.number and runs == self._seen:
            return
        with self._line(at) as line:
            versions = None if at < into.step.version else line.behind_step(into.step)
            if versions is None:
                raise RestoreError(f"{self._place.where}: version {at} does not continue version {into.number}")
            into.apply(versions, at)
        self._seen = runs

    @contextmanager
    def _line(self, at: int) -> Iterator[AttemptLine]:
        """Give the line to a version. What is not there raises RestoreError."""
        try:
            self._outlook.begin({CHECKPOINTS: "", LOG: ""})
            yield AttemptLine(self._outlook, self._objects, self._runs(), at, lenient=self._lenient)
        except (MissingParent, Absent) as error:
            raise NotRetainedError(f"{self._place.where}: version {at} cannot be read: {error}") from error
        finally:
            self._outlook.end()


def newest_of(shard: Place) -> int:
    """Return the newest version that a shard has reached; nothing is opened. A list of its names and its runs."""
    return ShardSource(shard, None).newest()


def _through(walk: Iterable[Committed | Fault], at: int) -> Iterator[Committed | Fault]:
    """Yield the items of a walk up to version `at`."""
    for item in walk:
        yield item
        if isinstance(item, Committed) and item.commit.version >= at:
            return


def _empty() -> tuple[StoreGroup, Step, int, Logged]:
    return StoreGroup(), EMPTY, 0, Logged()
