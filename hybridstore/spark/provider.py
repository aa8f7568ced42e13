"""Provider: the state of one shard by version, with the contract of Spark's StateStoreProvider. It needs no Spark.

    batch N:  get_store(N) -> change -> commit() -> N + 1

Files are under `<checkpoint root>/hybridstore/<operator>/<shard>/`: a segment per version that changed something, a `head` that
says which line of versions counts, and checkpoints. A version that was never written is an error, never an empty store; a
replayed batch loads the version before it and overwrites; a dead attempt that comes late is told by the head and refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files
from changelog.frame import Commit
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.line import EMPTY, Step
from recovery.write import CheckpointReport, write_checkpoint

from ..errors import StoreClosedError
from ..shard_head import Head, Since, new_epoch
from ..state.named_stores import NamedStores
from ..state.policy import CheckpointPolicy, Logged
from .errors import CannotCommitError, MissingVersionError, SkippedBatchError, StaleAttemptError
from .loaded import CACHE, LoadedShard, ShardCache
from .shard_files import Loaded, ShardFiles
from .shard_id import StateStoreId

# A checkpoint at least every so many segments keeps the files, and what a worker without memory must replay, few.
POLICY = CheckpointPolicy(max_restore=timedelta(milliseconds=500), every_commits=100, aim=timedelta(milliseconds=25))
# A worker reads the few keys of its batch from a state that it has just attached, and any of them makes a block come in: small blocks make
# a first batch of 500 random keys over 500,000 four times cheaper than the 4,096 records of a state that one process opens once.
SHARD_BLOCK_RECORDS = 256
# How many versions below the newest stay loadable, for a query that is rewound by hand.
RETAIN_VERSIONS = 10


@dataclass(frozen=True, slots=True)
class ShardMetrics:
    """The numbers of one shard after its last commit or load. Times in milliseconds, sizes in bytes.

    `load` is "empty", "hit", "catch-up" (segments replayed on what was in memory), "checkpoint" or "changelog" (reloads).
    `failed_checkpoints` and `failed_clearings` count what this process could not do after a commit since it loaded the
    shard.
    """

    version: int = 0
    records: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    load: str = ""
    load_ms: float = 0.0
    replayed_segments: int = 0
    replayed_records: int = 0
    skipped_checkpoints: int = 0
    commit_ms: float = 0.0
    segment_bytes: int = 0
    logged_records: int = 0
    commits_since_checkpoint: int = 0
    bytes_since_checkpoint: int = 0
    records_since_checkpoint: int = 0
    restore_estimate_ms: float = 0.0
    skipped_batches: int = 0
    differing_attempts: int = 0
    failed_checkpoints: int = 0
    failed_clearings: int = 0

    @staticmethod
    def combine(parts: list[ShardMetrics]) -> dict[str, float]:
        """Add up the numbers of several shards, name by name; records and drops over all their stores."""
        total: dict[str, float] = {}
        for part in parts:
            for name in part.__slots__:
                value = getattr(part, name)
                if name == "records":
                    value = sum(value.values())
                elif name == "dropped":
                    value = sum(sum(reasons.values()) for reasons in value.values())
                if isinstance(value, (int, float)):
                    total[name] = total.get(name, 0) + value
        return total


class StateStore(NamedStores):
    """One version of a shard, for reading or for writing the next. Made by `StateStoreProvider`; made for one thread.

    Asks for its stores like a `HybridStore`: `key_value`, `window`, and the other kinds, or `open(name, kind, parameters)`.
    """

    def __init__(
        self,
        provider: StateStoreProvider,
        shard: LoadedShard,
        version: int,
        loaded: Loaded,
        base: Head | None,
        read_only: bool,
    ) -> None:
        self.version = version
        self.loaded = loaded
        self.shard = shard
        self.read_only = read_only
        self.committed: int | None = None
        self._provider = provider
        self._base = base
        self._ended = False
        self._dropped = {one.name: dict(one.dropped) for one in shard.group.stores.values()}

    @property
    def group(self) -> Any:
        """The stores by name, and their journal."""
        return self.shard.group

    @property
    def has_committed(self) -> bool:
        """True once `commit` has returned."""
        return self.committed is not None

    def open(self, name: str, kind: str, parameters: dict[str, Any]) -> Any:
        """Return the store of this name, defining it if there is none; a read store raises KeyError for one that is missing."""
        self.usable()
        if self.read_only:
            store = self.shard.group.stores.get(name)
            if store is None:
                raise KeyError(f"{self._provider.path}: no store {name!r} in version {self.version}")
            self.shard.group.match(store, kind, parameters)
            return store
        return self.shard.group.open(name, kind, parameters)

    def _open_store(self, name: str, kind: str, parameters: dict[str, Any]) -> Any:
        return self.open(name, kind, parameters)

    def usable(self) -> None:
        """Raise StoreClosedError after commit or abort."""
        if self._ended:
            raise StoreClosedError(
                f"{self._provider.path}: version {self.version} was committed or aborted (get the store again)"
            )

    @property
    def last_run(self) -> str | None:
        """The run of the query that has committed the newest version, where its metrics told."""
        run: str | None = None if self._base is None else self._base.metrics.get("run")
        return run

    def commit(self, metrics: dict[str, Any] | None = None) -> int:
        """Publish version + 1, durably, and return it. A commit without changes writes no segment: the head notes the batch as seen.

        Raises StaleAttemptError when a later batch is committed already, CannotCommitError when a file could not be published.
        """
        self.usable()
        if self.read_only:
            raise HybridStoreError(f"{self._provider.path}: a read store cannot commit")
        return self._provider._commit(self, metrics or {})

    def abort(self) -> None:
        """Throw the changes away. Harmless after a commit, twice, and after the provider was closed."""
        if not self._ended:
            self._ended = True
            self.shard.checkpoints.finish(wait=True)
        self._provider._let_go(self)

    release = abort

    def dropped_by(self, store: Any) -> dict[str, int]:
        """Return what one of the stores has dropped since this version was loaded, by reason."""
        before = self._dropped.get(store.name, {})
        return {reason: count - before.get(reason, 0) for reason, count in store.dropped.items()}

    def metrics(self) -> ShardMetrics:
        """Return the numbers as of now."""
        return self._provider._metrics(self)

    def __repr__(self) -> str:
        return f"<StateStore {self._provider.id.operator!r} shard {self._provider.id.shard}, version {self.version}>"


class StateStoreProvider:
    """The state of one shard. One thread and one write store at a time; read stores may be open beside it.

    policy   when to checkpoint (in the background, after a commit)
    retain   versions below the newest that stay loadable; versions that the query may still replay stay in any case
    strict   refuse a shard that a batch did not reach (True), or count it in `skipped_batches` (False)
    cache    where loaded shards are kept between tasks; None: this process's
    """

    def __init__(
        self,
        store_id: StateStoreId,
        *,
        policy: CheckpointPolicy = POLICY,
        retain: int = RETAIN_VERSIONS,
        strict: bool = True,
        cache: ShardCache | None = None,
        block_records: int = SHARD_BLOCK_RECORDS,
        debug: bool = False,
        files: Files = REAL_FILES,
        reached: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.id = store_id
        self.path = store_id.directory
        self.shard_files = ShardFiles(self.path, store_id.store_id, files)
        self._policy = policy
        self._retain = retain
        self._strict = strict
        self._cache = CACHE if cache is None else cache
        self._block_records = block_records
        self._debug = debug
        self._files = files
        # Asked whether no row at all came in the batches from the first to before the second number.
        self._reached = reached
        self._open: StateStore | None = None
        self._closed = False
        self._last = ShardMetrics()
        self._skipped_batches = 0
        self._differing = 0

    # --- loading --------------------------------------------------------------------------------------------------

    def _locate(self, version: int) -> tuple[Step, Head | None]:
        if self._closed:
            raise StoreClosedError(f"{self.path}: the provider is closed")
        if type(version) is not int or version < 0:
            raise MissingVersionError(f"{self.path}: version: found {version!r}, expected 0 or more")
        head = self.shard_files.head()
        if version == 0:
            return EMPTY, head
        if head is None:
            raise self._headless(version)
        self._check_seen(head, version)
        return self.shard_files.at(head, version), head

    def _headless(self, version: int) -> MissingVersionError:
        return MissingVersionError(
            f"{self.path}: version {version} was never written: there is no head file (was the folder removed? begin "
            "with a new checkpoint location)"
        )

    def _check_seen(self, head: Head, version: int) -> None:
        if head.seen < version and not (self._reached is not None and self._reached(head.seen, version)):
            self._skipped_batches += version - head.seen
            if self._strict:
                what = f"batch {head.seen}" if version - head.seen == 1 else f"batches {head.seen} to {version - 1}"
                raise SkippedBatchError(
                    f"{self.path}: version {version} was never written: the newest is {head.seen}, so {what} did not reach shard {self.id.shard} "
                    "(a limit, show() or an action on a part of the output reads some shards only; write the whole output)"
                )

    def check_reached(self, version: int) -> None:
        """Raise SkippedBatchError unless the shard has seen every batch below `version`; nothing is loaded. O(1)."""
        head = self.shard_files.head()
        if head is not None:
            self._check_seen(head, version)

    def get_store(self, version: int) -> StateStore:
        """Load exactly `version`, to write the next. An older write store that is still open is aborted.

        Raises MissingVersionError (never written, or its files are gone), SkippedBatchError, CorruptFrameError,
        DigestMismatchError, ForeignFileError. From memory O(1), else O(blocks + segments behind the checkpoint).
        """
        if self._open is not None:
            self._open.abort()
        step, head = self._locate(version)
        shard = self._cache.take(self.path, self.id.store_id)
        if shard is not None and not shard.group.journal.empty:
            # Someone changed a store after its commit or abort: that change belongs to no version.
            shard = None
        if shard is not None:
            shard.checkpoints.finish(wait=shard.step != step)
        held = shard.step if shard is not None else None
        if shard is None:
            shard = LoadedShard(self.path, self._policy, files=self._files, debug=self._debug)
        loaded = self.shard_files.load(step, shard.group, held)
        if loaded.kind != "hit":
            shard.runner = None
        if loaded.kind in ("checkpoint", "changelog", "empty"):
            shard.checkpoints.reader = loaded.checkpoint
        shard.step = step
        self._open = StateStore(self, shard, version, loaded, head, read_only=False)
        return self._open

    def get_read_store(self, version: int) -> StateStore:
        """Load `version` for reading only, beside whatever else is open. Raises as `get_store`."""
        step, head = self._locate(version)
        shard = LoadedShard(self.path, self._policy, files=self._files)
        loaded = self.shard_files.load(step, shard.group, None)
        shard.step, shard.checkpoints.reader = step, loaded.checkpoint
        return StateStore(self, shard, version, loaded, head, read_only=True)

    def _let_go(self, store: StateStore) -> None:
        if self._open is store:
            self._open = None

    # --- committing -----------------------------------------------------------------------------------------------

    def commit(self, metrics: dict[str, Any] | None = None) -> int:
        """Commit the open write store; see `StateStore.commit`."""
        if self._open is None:
            raise StoreClosedError(f"{self.path}: no store is open for writing (get_store first)")
        return self._open.commit(metrics)

    def abort(self) -> None:
        """Abort the open write store, if there is one."""
        if self._open is not None:
            self._open.abort()

    def _commit(self, store: StateStore, extra: dict[str, Any]) -> int:
        started = time.perf_counter()
        shard, group = store.shard, store.shard.group
        if self._debug:
            group.check_watched()
        step = shard.step
        changed = not group.journal.empty
        temporary: Path | None = None
        size, logged = 0, Logged()
        tip = step
        try:
            if changed:
                digest = group.journal.seal()
                counts = group.journal.records
                commit = Commit(store.version + 1, digest, counts, int(time.time() * 1000), group.stream_times(), {})
                tip = Step(commit.version, digest)
                self.shard_files.prepare()
                temporary, size = self.shard_files.write_segment(step, commit, shard.bodies)
                logged = Logged.of(1, size, counts, group.kinds)
                shard.bodies.clear()
            with self.shard_files.exclusive():
                self._publish(store, tip, temporary, logged, extra, started)
        except OSError as error:
            raise CannotCommitError(
                f"{self.path}: version {store.version + 1} could not be published: {error.strerror or error} "
                f"(version {store.version} is intact; run the batch again)"
            ) from error
        finally:
            store._ended = True
            self._let_go(store)
            if temporary is not None:
                self.shard_files.discard(temporary)
        if changed:
            group.committed(*tip)
        shard.step = tip
        store.committed = store.version + 1
        if not shard.outlived:
            self._cache.give(self.path, self.id.store_id, shard)
        return store.committed

    def _publish(
        self,
        store: StateStore,
        tip: Step,
        temporary: Path | None,
        logged: Logged,
        extra: dict[str, Any],
        started: float,
    ) -> None:
        files, step, seen = self.shard_files, store.shard.step, store.version + 1
        head = files.head()
        epoch = self._fence(store, head, tip)
        if temporary is not None:
            files.publish(temporary, tip.version)
        since = head.since if head is not None and head.tip.version <= step.version else Since()
        if not since.wall_ms:
            since = since._replace(wall_ms=int(time.time() * 1000))
        if temporary is not None:
            since = since._replace(logged=since.logged.plus(logged))
        self._last = self._numbers(store, seen, logged, since, started)
        parent: Step | None = step
        if temporary is None:
            parent = head.parent if head is not None and head.tip == step else None
        due = temporary is not None and self._due(since, store.shard)
        reader = store.shard.checkpoints.reader
        if due and reader is not None and not reader.exists():
            # Another process has pruned the file that the changes are kept against: the next load attaches a newer one.
            due, store.shard.outlived = False, True
        # The head says that a checkpoint was begun, so that of many workers one makes it.
        published = Since(wall_ms=int(time.time() * 1000)) if due else since
        metrics = {"wall_ms": int(time.time() * 1000), **self._brief(), **extra}
        files.publish_head(Head(self.id.store_id, tip, parent, seen, epoch, published, metrics))
        store.shard.checkpoint_due = due

    def _fence(self, store: StateStore, head: Head | None, tip: Step) -> int:
        """Refuse an attempt that was overtaken; take the head back to where this attempt began when it was beyond that.

        Returns the epoch of the head to publish: a new one when the head was taken back, or when there is none.
        """
        base, step, seen = store._base, store.shard.step, store.version + 1
        if head is None:
            if base is not None:
                raise StaleAttemptError(f"{self.path}: the shard's files were removed while version {seen} was made")
            return new_epoch()
        if head.seen > seen and (base is None or base.seen <= seen or head.differs(base)):
            raise StaleAttemptError(
                f"{self.path}: version {seen} is overtaken: version {head.seen} was committed while this attempt ran "
                "(a late attempt of a batch that another one finished; its output must be dropped)"
            )
        same = head.seen == seen and head.tip == tip
        turned_back = not same and (base is None or head.epoch != base.epoch)
        if turned_back or (store.version > 0 and self.shard_files.at(head, store.version) != step):
            raise StaleAttemptError(
                f"{self.path}: version {seen} continues version {store.version} of a line that was given up while this attempt ran "
                "(the query was turned back; this attempt's output must be dropped)"
            )
        if head.seen == seen and not same:
            self._differing += 1
        if head.seen <= store.version or same:
            return head.epoch
        # From here on the line ends at this attempt's base: what lies above can never be picked up again.
        epoch = new_epoch()
        self.shard_files.publish_head(Head(self.id.store_id, step, None, store.version, epoch, Since(), head.metrics))
        self.shard_files.fence(store.version)
        return epoch

    def note_empty(self, version: int, metrics: dict[str, Any] | None = None, *, base: Head | None = None) -> bool:
        """Note that batch `version` brought this shard nothing, without loading it; True when the head now says so.

        `base` is the head as the task found it when it began. A head that is still the same and says more than the
        batch before this one is of before the query was turned back: it is taken back. Without `base`, or where it
        changed meanwhile, nothing is changed then, nor where an earlier batch is missing. Raises MissingVersionError
        where the shard's head is gone, or where what the query was turned back to is not retained. O(1), and O(segments
        above `version`) where the head is taken back.
        """
        with self.shard_files.exclusive():
            head = self.shard_files.head()
            if head is None:
                if version > 0:
                    raise self._headless(version)
                head = Head(self.id.store_id, EMPTY, None, 0, new_epoch(), Since(), {})
            noted = {"wall_ms": int(time.time() * 1000), **(metrics or {}), "load": "none"}
            if head.seen == version:
                self.shard_files.publish_head(head._replace(seen=version + 1, metrics=noted))
                return True
            nothing = head.seen == version + 1 and head.tip.version <= version
            if head.seen < version or nothing or base is None or head.differs(base):
                return False
            if self._reached is not None and self._reached(version, head.seen):
                # The tasks do not run under their shard's number: another one may have done the batch for this shard
                # just now.
                return False
            step = self.shard_files.at(head, version)
            self.shard_files.publish_head(Head(self.id.store_id, step, None, version + 1, new_epoch(), Since(), noted))
            self.shard_files.fence(version)
        return True

    # --- checkpoints, retention -----------------------------------------------------------------------------------

    def _due(self, since: Since, shard: LoadedShard) -> bool:
        checkpoints = shard.checkpoints
        checkpoints.since, checkpoints.begun = since.logged, since.wall_ms / 1000 if since.wall_ms else time.time()
        return checkpoints.due()

    def maintain(self, *, wait: bool = False, oldest_replay: int | None = None) -> list[Path]:
        """Begin a checkpoint if one is due, take over one that is finished, and remove files that nothing needs.

        `oldest_replay` is the oldest version that the query may still load. Returns what was removed. Never raises for
        what it could not do, since the batch is committed: the metrics count it (`failed_checkpoints`,
        `failed_clearings`). Costs the task the copying of what changed since the last checkpoint; the rest is done in
        the background unless `wait`.
        """
        shard = self._cache.take(self.path, self.id.store_id)
        try:
            if shard is not None and shard.checkpoint_due:
                shard.checkpoint_due = False
                self._begin_checkpoint(shard)
            if shard is not None:
                # the next batch's load may have taken it over already
                shard.checkpoints.finish(wait=wait)
                if shard.cleared < shard.checkpoints.written:
                    shard.cleared = shard.checkpoints.written
                    return self._clear(oldest_replay)
        except (OSError, HybridStoreError):
            # The batch is committed: what could not be removed now is removed behind the next checkpoint, and damage is
            # named by a load.
            assert shard is not None
            shard.failed_clearings += 1
        finally:
            if shard is not None:
                self._cache.give(self.path, self.id.store_id, shard)
        return []

    def checkpoint(self) -> bool:
        """Make a checkpoint of the last commit now, if this process has it in memory; True when there is a new one.

        For tools and tests. Raises CheckpointError when it cannot be made.
        """
        shard = self._cache.take(self.path, self.id.store_id)
        if shard is None:
            return False
        shard.checkpoints.finish(wait=True)
        written = shard.checkpoints.written
        try:
            self._begin_checkpoint(shard, wait=True)
            shard.cleared = shard.checkpoints.written
        finally:
            self._cache.give(self.path, self.id.store_id, shard)
        if shard.checkpoints.failure is not None:
            raise shard.checkpoints.failure
        self._clear(None)
        return shard.checkpoints.written > written

    def _begin_checkpoint(self, shard: LoadedShard, *, wait: bool = False) -> None:
        shard.checkpoints.finish(wait=True)
        reader = shard.checkpoints.reader
        if reader is not None and (reader.meta.version == shard.step.version or not reader.exists()):
            # Another process has pruned the file that the changes are kept against: only a reload can checkpoint again.
            return
        step, settings = shard.step, dict(shard.group.settings)

        def write(captures: list[StoreCapture], previous: CheckpointReader | None) -> CheckpointReport:
            return write_checkpoint(
                self.shard_files.storage,
                store_id=self.id.store_id,
                version=step.version,
                digest=step.digest,
                position=self.shard_files.end_of(step.version),
                settings=settings,
                captures=captures,
                previous=previous,
                block_records=self._block_records,
            )

        shard.checkpoints.begin(step.version, write, wait=wait)

    def _clear(self, oldest_replay: int | None) -> list[Path]:
        head = self.shard_files.head()
        if head is None:
            return []
        needed = max(0, head.seen - self._retain)
        if oldest_replay is not None:
            needed = max(0, min(needed, oldest_replay))
        with self.shard_files.exclusive():
            return self.shard_files.prune(self._policy.keep, needed) + self.shard_files.sweep()

    # --- looking, closing -----------------------------------------------------------------------------------------

    def _numbers(
        self, store: StateStore, version: int, logged: Logged, since: Since, started: float | None
    ) -> ShardMetrics:
        stores, loaded = store.shard.group.stores.values(), store.loaded
        return ShardMetrics(
            version=version,
            records={one.name: one.num_records for one in stores},
            dropped={one.name: store.dropped_by(one) for one in stores},
            load=loaded.kind,
            load_ms=round(loaded.seconds * 1000, 3),
            replayed_segments=loaded.replayed.commits,
            replayed_records=loaded.replayed.records,
            skipped_checkpoints=len(loaded.skipped),
            commit_ms=0.0 if started is None else round((time.perf_counter() - started) * 1000, 3),
            segment_bytes=logged.bytes,
            logged_records=logged.records,
            commits_since_checkpoint=since.logged.commits,
            bytes_since_checkpoint=since.logged.bytes,
            records_since_checkpoint=since.logged.records,
            restore_estimate_ms=round(self._policy.estimate(since.logged) * 1000, 3),
            skipped_batches=self._skipped_batches,
            differing_attempts=self._differing,
            failed_checkpoints=store.shard.checkpoints.failed,
            failed_clearings=store.shard.failed_clearings,
        )

    def _brief(self) -> dict[str, Any]:
        return {name: getattr(self._last, name) for name in ShardMetrics.__slots__ if name != "version"}

    def _metrics(self, store: StateStore) -> ShardMetrics:
        if store.has_committed:
            return self._last
        head = store._base
        return self._numbers(store, store.version, Logged(), head.since if head is not None else Since(), None)

    def metrics(self) -> ShardMetrics:
        """Return the numbers of the open write store, or those of the last commit."""
        return self._last if self._open is None else self._metrics(self._open)

    def close(self) -> None:
        """Abort what is open, wait for a checkpoint in progress, and forget the shard. Closing twice is harmless."""
        self.abort()
        self._closed = True
        shard = self._cache.take(self.path, self.id.store_id)
        if shard is not None:
            shard.checkpoints.finish(wait=True)

    def __repr__(self) -> str:
        return f"<StateStoreProvider {os.fspath(self.path)!r}>"
