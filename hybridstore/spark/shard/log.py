"""Attempt log: the log objects of one shard, each created once, by an attempt, under a name that says which it is.

    log/<version>-<launch>-<attempt>-<digest>    checkpoints/...    packs/...

No object is overwritten or renamed, and none has to be removed: the names of objects and the runs of the query decide
which objects count (`recovery.rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from changelog.errors import HybridStoreError
from changelog.frame import CommitFrame
from changelog.identity import Identity
from changelog.outlook import Outlook
from changelog.storage import Storage
from recovery.attempts import Absent, AttemptLine
from recovery.layout import LogName
from recovery.line import Step
from recovery.rule import NOTE, CountingObjects, MissingParent, Runs, note
from recovery.shard_log import METRICS, SINCE, ShardLog

from ...state.policy import Logged
from ..errors import CannotCommitError, MissingVersionError, SkippedBatchError, StaleAttemptError

if TYPE_CHECKING:
    from ...reading.version import Version as OpenVersion


class Since(NamedTuple):
    """The records logged since the begin of the last checkpoint, and the time of that begin (wall clock, ms; 0: never).

    `totals` are the numbers of all batches so far (`state.numbers.TOTALS`); None if no object with them was read.
    """

    logged: Logged = Logged()
    wall_ms: int = 0
    totals: dict[str, int] | None = None

    @classmethod
    def of(cls, commit: CommitFrame) -> Since:
        """Return the numbers of a commit. A commit of another writer without these numbers counts as the begin of a
        checkpoint.
        """
        fields = commit.extra.get(SINCE) or [0, 0, 0, 0.0, commit.wall_ms]
        return cls(Logged(*fields[:-1]), fields[-1], commit.extra.get(METRICS, {}).get("totals", {}))

    def plain(self) -> list[Any]:
        """Return the numbers in the form of a commit's fields."""
        return [*self.logged, self.wall_ms]  # totals are among the commit's metrics


class AttemptLog:
    """The log objects of a shard. No state is kept between calls.

    `lenient` is called when a version is absent; True means that batches without changes have left no object.
    """

    def __init__(
        self, operator: Storage, folder: str, identity: Identity, lenient: Callable[[], bool] = lambda: False
    ) -> None:
        self.operator = operator
        self.folder = folder
        self.storage = operator.below(folder)
        self.identity = identity
        self.lenient = lenient
        self.outlook = Outlook(self.storage)
        self.objects = ShardLog(self.outlook, identity)

    # --- reading ------------------------------------------------------------------------------------------------------

    def open(self, version: int, runs: Runs | None = None) -> OpenVersion:
        """Open a version for reading only, under the runs `runs` (None: those of the newest run). Raises as `missing`,
        and the errors of damaged or foreign objects. O(blocks + objects behind the checkpoint).
        """
        # at the first use: a worker writes, and opens no version to read it
        from ...reading.places import Place
        from ...reading.version import NotRetainedError, ShardSource, Version

        place = Place(self.storage, "directory", f"/{self.identity.shard}", "", self.operator, self.folder)
        with self.missing(version):
            try:
                return Version(place, version, source=ShardSource(place, self.identity, runs, self.lenient))
            except NotRetainedError as error:
                raise (error.__cause__ or error) from None

    @contextmanager
    def missing(self, version: int) -> Iterator[None]:
        """A `with` block around a load. Raises MissingVersionError and SkippedBatchError for what is not there."""
        try:
            yield
        except MissingParent as lost:
            raise MissingVersionError(f"{self.storage.url}: {lost} (restore it from a copy)") from None
        except Absent as absent:
            raise self._absent(version, absent) from None
        except FileNotFoundError as error:
            raise MissingVersionError(
                f"{error.filename or self.storage.url}: removed while it was read (try again)"
            ) from error

    # --- which objects count ------------------------------------------------------------------------------------------

    def line(self, version: int, runs: Runs, run_id: str) -> AttemptLine:
        """Return the line of a version under the runs `runs`, for an attempt of run `run_id` ("": for a reader).

        The line raises StaleAttemptError for an attempt of an older launch than the newest.
        """
        on_names = partial(self._check_run, runs, run_id)
        return AttemptLine(
            self.outlook, self.objects, runs, version, lenient=self.lenient, marks=True, on_names=on_names
        )

    def _check_run(self, runs: Runs, run_id: str, names: list[LogName]) -> None:
        """Raise StaleAttemptError if a newer launch than that of an attempt has begun."""
        newest = max((name.launch for name in names), default=0)
        if run_id and newest > runs[-1].launch:
            raise StaleAttemptError(
                f"{self.storage.url}: launch {newest} of the query has begun while an attempt of launch "
                f"{runs[-1].launch} ran (a late attempt of a query that was restarted; its output must be dropped)"
            )

    def _absent(self, version: int, absent: Absent) -> HybridStoreError:
        if not absent.newest:
            return MissingVersionError(
                f"{self.storage.url}: version {version} was never written: found no object of this "
                "shard (was the folder removed? begin with a new checkpoint location)"
            )
        return self._skipped(absent.version, absent.last, absent.newest)

    def check_reached(self, version: int, runs: Runs, run_id: str) -> None:
        """Raise SkippedBatchError unless an object or a note of the batch before a version exists. One list."""
        names = self.objects.names(version - 1)
        self._check_run(runs, run_id, names)
        if not CountingObjects(names, runs).has(version) and not self.lenient():
            raise self._skipped(version, version, version - 1)

    def was_called_twice(self, version: int) -> bool:
        """True when one attempt of Spark has left both a note and an object of a version: its task ran the operator for
        several tasks' shards. The object may be that of its holder, whose number is even and one below. One list.
        """
        names = {name for name in self.objects.names(version - 1) if name.version == version}
        return any(name.attempt != NOTE and note(version, name.launch, name.attempt | 1) in names for name in names)

    def was_called(self, version: int, launch: int, attempt: int) -> bool:
        """True when an attempt, whose number is odd, or its holder has left an object of a version. One list."""
        names = [name for name in self.objects.names(version - 1) if name.version == version and name.attempt != NOTE]
        return any(note(version, name.launch, name.attempt | 1) == note(version, launch, attempt) for name in names)

    def _skipped(self, first: int, last: int, newest: int) -> SkippedBatchError:
        what = f"batch {first - 1}" if first == last else f"batches {first - 1} to {last - 1}"
        return SkippedBatchError(
            f"{self.storage.url}: version {first} was never written, or its object is lost: the newest is {newest}, "
            f"so {what} did not reach shard {self.identity.shard} (a limit, show() or an action on a part of the "
            "output reads some shards only; write the whole output)"
        )

    def totals(self, step: Step) -> dict[str, int]:
        """Return the totals in the object of a step; none if the object no longer exists. One list and one get."""
        names = [name for name in self.objects.names(step.version - 1) if name.version == step.version]
        name = next((name for name in names if name.digest8 == step.digest[:4].hex() and name.attempt != NOTE), None)
        if name is None:
            return {}
        try:
            return Since.of(self.objects.commit_of(name)).totals or {}
        except FileNotFoundError:
            return {}

    # --- creating -----------------------------------------------------------------------------------------------------

    def create(self, name: LogName, data: bytes) -> bool:
        """Create a log object: the commit of its version. Raises CannotCommitError.

        If the answer was lost, or another request of this attempt was first, the object is read. Below a `coalesce` one
        task calls the operator for several shards, and may note a shard more than once: any note is enough. Returns
        False if the name was taken.
        """
        reason, taken = "the name is taken", False
        try:
            if self.storage.create(str(name), data):
                return True
            taken = True
        except OSError as error:
            # On a local file system a failure is not a lost answer: an existing file may not be durable.
            if self._is_local(name):
                raise CannotCommitError(self._not_committed(name, error.strerror or str(error))) from error
            reason = error.strerror or str(error)
        try:
            if self.storage.get(str(name)) == data or name.attempt == NOTE:
                return not taken
        except OSError as error:
            raise CannotCommitError(self._not_committed(name, reason)) from error
        raise CannotCommitError(self._not_committed(name, "another object has this name"))

    def _is_local(self, name: LogName) -> bool:
        try:
            return self.storage.path(str(name)) is not None
        except (FileNotFoundError, NotADirectoryError):
            return True

    def _not_committed(self, name: LogName, reason: str) -> str:
        return (
            f"{self.objects.where(name)}: version {name.version} could not be committed: {reason} (version "
            f"{name.version - 1} is intact; run the batch again)"
        )

    def usage(self) -> tuple[int, int]:
        """Return (objects, bytes) of the shard. O(objects)."""
        count = size = 0
        for name in self.storage.list():
            try:
                size += self.storage.size(name)
            except FileNotFoundError:
                continue
            count += 1
        return count, size
