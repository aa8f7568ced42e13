"""Home: the place of one state, on a local disk or on an object store. An open state knows no files, only its home.

claim      become the only writer, or refuse         restore   checkpoint and changelog, into the stores
begin      the log that commits go to                prune     what no kept checkpoint needs
check      still the only writer?                    release   another process may write

DirectoryHome    a directory: LOCK, segments that grow (directory_log.py)
BucketHome       an object store: a version claims it, an object for each commit (bucket_log.py)
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from changelog.bucket import Bucket
from changelog.cached_storage import Cache, CachedStorage
from changelog.files import Files, hold_standard
from changelog.identity import Identity
from changelog.outlook import Outlook
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.apply import Table, apply_version
from recovery.block import BLOCK_RECORDS
from recovery.compaction import Sizes
from recovery.ladder import Enough, ObjectLine, never
from recovery.layout import CHANGELOG, CHECKPOINTS, DAMAGE_SUFFIX, FENCES, PACKS, list_checkpoints
from recovery.line import Fault, Step
from recovery.object_log import object_name, object_walk, prune_objects, versions_after
from recovery.prune import prune, prune_checkpoints
from recovery.restore import Progress, Reached, RestoreReport, restore, restore_line
from recovery.retrying import Signature, signature

from ..errors import ForeignFileError
from .bucket_log import BucketLog, Pace
from .checkpoint_job import Job, can_start
from .checkpointer import Target
from .directory_log import DirectoryLog, sync_log
from .generations import check_generation, identity_at
from .group import StoreGroup
from .lock import DirectoryLock, check_for_loss, claim, refuse_pinned
from .log import Log
from .memory_budget import BUDGET, pack_bytes
from .opening import Opening
from .own_files import OwnFiles
from .policy import commit_seconds

# Records of a block on an object store: touching a single key loads this many.
BUCKET_BLOCK_RECORDS: Final = 256


class Home(Protocol):
    """See the module. `where` names it in messages; `storage` has the checkpoints, whose parts are bound by `sizes`;
    `locks`: while a writer has the state, no other process writes to it.
    """

    where: Path | str
    storage: Storage
    sizes: Sizes
    locks: bool

    @property
    def identity(self) -> Identity | None:
        """What is known of the state that belongs here (None: nothing). Raises ForeignFileError, OSError."""

    def again(self, asked: Opening) -> Home:
        """Return the home of the same state for another opening."""

    def claim(self) -> None:
        """Become the only writer of the state, and create it if none exists; a reader checks that the state exists.

        Raises ForeignFileError, StateLockedError, OSError.
        """

    @property
    def claimed(self) -> bool:
        """True from `claim` to `release`, for a writer."""

    def restore(self, group: StoreGroup, at: int | None, progress: Progress | None, enough: Enough = never) -> Reached:
        """Fill `group`; `enough` as in `recovery.ladder`. Raises what a restore raises. O(pages + tail)."""

    def sync(self) -> None:
        """Return when the changelog is durable that this process has restored, whoever wrote it: objects are when they
        exist. O(segments).
        """
        return

    def begin(self, group: StoreGroup, reached: Reached) -> Log:
        """Return the log behind the restored version.

        Raises RestoreError if the last owner had more versions, and OSError.
        """

    def prune(self, keep: int) -> object:
        """Delete what the newest `keep` checkpoints do not need. Raises OSError, HybridStoreError. O(files)."""

    @property
    def beside(self) -> bool:
        """Whether another process can make the checkpoints: one that has the commits without requests. O(1)."""
        return False

    def job(self, target: Target, used: str | None, tableless: int = 0) -> Job | None:
        """Return what another process needs to know to make a checkpoint, while the owner reads the one that is named
        `used`, `tableless` as of `write_checkpoint`; None where the owner has to make it. O(1).
        """
        return None

    def check(self) -> None:
        """Raise unless this process is still the writer, as far as it can know without a request."""
        return

    def release(self, closed: StoreGroup | None = None) -> None:
        """Allow other writers; `closed` is a state with a clean end. Releasing twice is harmless."""

    def commit_seconds(self) -> float:
        """Return how long a restart waits for a commit of the changelog, besides its replay. O(1)."""

    def signature(self) -> Signature:
        """Return a value that is equal at two times if no writer changed the state in between. O(files)."""


class DirectoryHome(Home):
    """A state directory."""

    locks = True

    def __init__(self, path: Path, asked: Opening) -> None:
        self.where: Path | str = path
        self.sizes = asked.tuning.sizes(BLOCK_RECORDS)
        self.storage: Storage = LocalStorage(path, files=asked.files)
        self._path = path
        self._asked = asked
        self._files = asked.files
        self._lock: DirectoryLock | None = None

    @cached_property
    def identity(self) -> Identity | None:
        return self._asked.identity or identity_at(LocalStorage(self._path))

    def again(self, asked: Opening) -> DirectoryHome:
        return DirectoryHome(self._path, asked)

    def claim(self) -> None:
        if not self._asked.read_only and not self._asked.rescaled:
            check_generation(LocalStorage(self._path, files=self._files))
        self._lock = claim(self._path, self._files, read_only=self._asked.read_only, erasing=self._asked.erasing)
        if self._lock is not None:
            self._files = OwnFiles(self._asked.files, self._lock.check)
            self.storage = LocalStorage(self._path, files=self._files)

    @property
    def claimed(self) -> bool:
        return self._lock is not None and self._lock.locked

    def restore(self, group: StoreGroup, at: int | None, progress: Progress | None, enough: Enough = never) -> Reached:
        read_only = self._asked.read_only
        files = None if read_only else self._files
        reached = restore(
            self._path, group, at=at, progress=progress, files=files, identity=self.identity, enough=enough
        )
        if read_only and at is None:
            check_for_loss(self._path, reached)  # as an owner does before it begins
        return reached

    def sync(self) -> None:
        sync_log(self._path / CHANGELOG, self._files)

    def begin(self, group: StoreGroup, reached: Reached) -> DirectoryLog:
        assert self._lock is not None
        check_for_loss(self._path, reached)
        return DirectoryLog(
            self._path / CHANGELOG,
            self._lock,
            self._files,
            reached,
            synced=self._asked.synced,
            segment_bytes=self._asked.tuning.segment_bytes,
        )

    def prune(self, keep: int) -> object:
        return prune(self._path, keep=keep, files=self._files)

    @property
    def beside(self) -> bool:
        """See `Home`. Other files than real ones are only here. Where one checkpoint is to be kept, the process would
        keep two: it does not remove the one that the owner reads.
        """
        asked = self._asked
        return self._lock is not None and type(asked.files) is Files and asked.checkpoints.keep >= 2 and can_start()

    def job(self, target: Target, used: str | None, tableless: int = 0) -> Job | None:
        asked = self._asked
        if self._lock is None or not self.beside:
            return None
        return Job(
            os.path.abspath(self._path),
            asked.files.mode,
            self._lock.holder,
            target.identity,
            target.version,
            target.digest,
            target.position,
            self.sizes,
            asked.tuning.bucket_divisor,
            asked.checkpoints.keep,
            asked.synced,
            pack_bytes(),
            BUDGET.limit is not None,
            tableless,
            used,
        )

    def check(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def release(self, closed: StoreGroup | None = None) -> None:
        if self._lock is not None:
            note = {"version": closed.version, "digest": closed.digest.hex()} if closed and closed.version else None
            self._lock.release(note)

    def commit_seconds(self) -> float:
        return commit_seconds(self.storage)

    def signature(self) -> Signature:
        return signature(self._path)


class BucketHome(Home):
    """A state below a prefix of an object store.

    Two owners may open the state at the same time: the later one owns it, and the next commit of the other fails.
    """

    locks = False

    def __init__(self, storage: Storage, asked: Opening) -> None:
        self.where: Path | str = storage.url
        self.sizes = asked.tuning.sizes(BUCKET_BLOCK_RECORDS)
        self.storage = storage
        self._asked = asked
        self._claimed = False
        self._outlook = Outlook(storage)
        self._pace = Pace()

    @cached_property
    def identity(self) -> Identity | None:
        """See `Home`. Requests for a folder that is named as a shard's only, and not by a topology."""
        writing = not (self._asked.read_only or self._asked.erasing)
        return self._asked.identity or identity_at(self.storage, writing=writing)

    def again(self, asked: Opening) -> BucketHome:
        return BucketHome(self.storage, asked)

    def claim(self) -> None:
        """See `Home`. Nothing is written: the log claims the state after the restore. One round of requests, whose
        answers the restore uses too.
        """
        if not (self._asked.read_only or self._asked.erasing):
            refuse_pinned(self.storage)
        if not self._outlook.begun:
            self._outlook.begin(_LISTED)
        if not (self._outlook.list(f"{CHANGELOG}/") or self._outlook.list(f"{CHECKPOINTS}/")):
            if self._asked.read_only:
                raise ForeignFileError(
                    f"{self.where}: found no object of a state below it, expected a state "
                    "(correct the location, or open it without `at` to begin one)"
                )
            # The note of an owner that died before its first version, or begins at this moment, is no foreign object.
            ours = (CHANGELOG, CHECKPOINTS, PACKS, FENCES)
            names = [name for name in self.storage.list() if name.partition("/")[0] not in ours]
            if names:
                raise ForeignFileError(
                    f"{self.where}: no state, and not empty: found {names[0]!r} below it, expected a location of its "
                    "own (a state below another one's location would be mixed up with it)"
                )
        self._claimed = not self._asked.read_only

    @property
    def claimed(self) -> bool:
        return self._claimed

    def restore(self, group: StoreGroup, at: int | None, progress: Progress | None, enough: Enough = never) -> Reached:
        """See `Home`. One round of requests: the newest index and the tail; two, where nothing was listed before."""

        marks = not self._asked.read_only
        line = ObjectLine(self._outlook, at=at, identity=self.identity, marks=marks, enough=enough)
        try:
            self._look_out(at)
            return restore_line(line, group, progress=progress)
        finally:
            self._outlook.end()

    def _look_out(self, at: int | None) -> None:
        """Read the first objects of a restore side by side: the tail, and the newest index unless it is cached."""
        if not self._outlook.begun:
            self._outlook.begin(_LISTED)
        checkpoints = [name for name in list_checkpoints(self._outlook) if at is None or name.version <= at]
        newest = checkpoints[-1] if checkpoints else None
        versions = versions_after(self._outlook, newest.version if newest else 0)
        names = [object_name(version) for version in versions if at is None or version <= at]
        if newest is not None and not self._outlook.cached(str(newest)):
            names.append(str(newest))
        self._outlook.fetch(names, whole=len(names))

    def begin(self, group: StoreGroup, reached: Reached) -> BucketLog:
        """See `Home`. Creates a version that changes nothing, which claims the state. Three requests.

        While another owner commits, its versions are applied and the next version is tried.
        """
        table, log = Table(), BucketLog(self.storage, reached, self._pace)
        try:
            while not log.claim(group):
                self._take_in(group, reached.report, table)
        finally:
            log.withdraw()
        return log

    def _take_in(self, group: StoreGroup, report: RestoreReport, table: Table) -> None:
        # If two owners begin a state at the same time, the first one determines the id.
        identity = report.identity if group.version else self.identity
        walk = object_walk(self.storage, Step(group.version, group.digest), identity=identity)
        for item in walk:
            if isinstance(item, Fault):
                raise item.raised()
            apply_version(item, group, table)
            report.version, report.digest = item.commit.version, item.commit.digest
            report.tail_versions += 1
            report.tail_bytes += item.size
            report.tail_counts.update(item.commit.records)
            group.reached(report.version, report.digest)
        report.identity = walk.identity or report.identity

    def prune(self, keep: int) -> object:
        deleted, oldest = prune_checkpoints(self.storage, keep=keep)
        return deleted + ([] if oldest is None else prune_objects(self.storage, oldest))

    def release(self, closed: StoreGroup | None = None) -> None:
        """See `Home`. Nothing is written: a state without an owner is one without commits."""
        self._claimed = False

    def commit_seconds(self) -> float:
        """See `Home`. The requests of this process show how long a request takes."""
        return commit_seconds(self.storage, self._pace.request_seconds)

    def signature(self) -> Signature:
        """See `Home`. The next restore begins with the names read here."""
        self._outlook.begin(_LISTED)
        names = [*self._outlook.list(f"{CHANGELOG}/"), *self._outlook.list(f"{CHECKPOINTS}/")]
        return [(name, 0, 0) for name in names]


# The folders that a restore lists, each from a first name on.
_LISTED: Final = {CHANGELOG: "", CHECKPOINTS: ""}


def _worth_keeping(name: str) -> bool:
    """True for an object of a checkpoint, of a plain store or of a shard; a commit is read only once."""
    return not {CHECKPOINTS, PACKS}.isdisjoint(name.split("/")) and not name.endswith(DAMAGE_SUFFIX)


def with_cache(
    storage: Storage, cache: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
) -> CachedStorage:
    """Return a bucket whose checkpoints are kept in a folder of this host. No request, and nothing is written yet."""
    return CachedStorage(storage, Cache(None if cache is None else Path(cache), cache_bytes), _worth_keeping)


def home_of(location: str | os.PathLike[str], asked: Opening) -> Home:
    """Return the home of the state at `location`, a path or a bucket. Raises HybridStoreError for a location that
    cannot be one.
    """
    hold_standard()  # before any file or connection
    storage = storage_at(location, files=asked.files)
    if isinstance(storage, LocalStorage):
        return DirectoryHome(storage.root, asked)
    kept = (location.cache, location.cache_bytes) if isinstance(location, Bucket) else ()
    return BucketHome(with_cache(storage, *kept), asked)
