"""Provider: the state of one shard by version, with the contract of Spark's StateStoreProvider. It needs no Spark.

    batch N:  get_store(N) -> change -> commit() -> N + 1

A commit creates one object below `<checkpoint root>/hybridstore/<operator>/<generation>/<shard>/log/`, also when
nothing changed. A version that was never written is an error, never an empty store; a replayed batch loads the version
before it and creates another object; late objects of a dead run do not count (`recovery.rule`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files
from changelog.storage import LocalStorage, Storage
from recovery.compaction import Sizes
from recovery.rule import Runs, note
from recovery.runs import Claim
from recovery.shard_log import encode_note

from ...errors import StateClosedError
from ...state.group import StoreGroup
from ...state.named_stores import NamedStores
from ...state.numbers import ShardMetrics
from ...state.policy import CheckpointPolicy, Logged, commit_seconds
from ...state.upgrades import Upgrades
from ..errors import MissingVersionError, StaleAttemptError
from .cache import CACHE, ShardCache
from .log import AttemptLog, Since
from .pruning import Kept, prune
from .shard import Loaded, Shard
from .shard_id import StateStoreId

# A checkpoint at least every so many segments bounds the number of files, and the replay of a worker without the shard
# in memory.
POLICY = CheckpointPolicy(max_restore=timedelta(milliseconds=500), every_commits=100, aim=timedelta(milliseconds=25))
# A worker reads the few keys of its batch from a state that it has just attached, and each key loads a block: with
# these small blocks a first batch of 500 random keys over 500,000 is four times cheaper than with the 4,096 records of
# a plain state.
SHARD_SIZES = Sizes(block_records=256)
# How many versions below the newest stay loadable, for a query that is rewound by hand.
RETAIN_VERSIONS = 10
# After so many batches the notes of a shard without rows are removed; checkpoints remove no notes.
QUIET_BATCHES = 64


class StateStore(NamedStores):
    """One version of a shard, for reading or for writing the next. Made by `StateStoreProvider`; for one thread.

    The stores are opened as with a `State`: by `key_value`, `window`, and the other kinds, or by `open(name,
    kind, parameters)`.
    """

    def __init__(
        self,
        provider: StateStoreProvider,
        group: StoreGroup,
        version: int,
        loaded: Loaded,
        shard: Shard | None = None,
        attempt: int = 0,
    ) -> None:
        self.version = version
        self.loaded = loaded
        # The stores by name, and their journal.
        self.group = group
        self.attempt = attempt
        self.read_only = shard is None
        self._shard = shard
        self.committed: int | None = None
        self._provider = provider
        self._ended = False
        self._dropped = {each.name: dict(each.dropped) for each in group.stores.values()}

    @property
    def shard(self) -> Shard:
        """The shard that is written. Raises HybridStoreError for a read store."""
        if self._shard is None:
            raise HybridStoreError(f"{self._provider.path}: commit: found a read store, expected a store of get_store")
        return self._shard

    def open(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> Any:
        """Return the store of this name, defining it if missing; a read store raises KeyError for a missing
        store.
        """
        self.usable()
        if self.read_only:
            store = self.group.stores.get(name)
            if store is None:
                raise KeyError(f"{self._provider.path}: no store {name!r} in version {self.version}")
            self.group.match(store, kind, parameters)
            return store
        return self.group.open(name, kind, parameters, upgrades)

    def _open_store(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> Any:
        return self.open(name, kind, parameters, upgrades)

    def usable(self) -> None:
        """Raise StateClosedError after commit or abort."""
        if self._ended:
            raise StateClosedError(
                f"{self._provider.path}: version {self.version} was committed or aborted (get the store again)"
            )

    def commit(self, metrics: dict[str, Any] | None = None) -> int:
        """Commit version + 1, durably, and return it; `metrics` are kept in its commit. O(changes), one create.

        Raises CannotCommitError when the object could not be created, StateClosedError after a commit or abort.
        """
        self.usable()
        shard = self.shard
        try:
            self._provider._commit(self, shard, metrics or {})
        finally:
            self._end()
        self.committed = self.version + 1
        return self.committed

    def _end(self) -> None:
        self._ended = True
        self._provider._ended(self)

    def abort(self) -> None:
        """Discard the changes. Harmless after a commit, twice, and after the provider was closed."""
        if not self._ended:
            self._end()
            if self._shard is not None:
                self._shard.checkpoints.finish(wait=True)

    def dropped_by(self, store: Any) -> dict[str, int]:
        """Return how many records a store has dropped since this version was loaded, by reason."""
        before = self._dropped.get(store.name, {})
        return {reason: count - before.get(reason, 0) for reason, count in store.dropped.items()}

    def metrics(self) -> ShardMetrics:
        """Return the numbers as of now; after a commit those of the commit."""
        return self._provider._metrics(self)

    def __repr__(self) -> str:
        return f"<StateStore {self._provider.id.operator!r} shard {self._provider.id.shard}, version {self.version}>"


class StateStoreProvider:
    """The state of one shard. One thread and one write store at a time; read stores may be open beside it.

    policy    when to checkpoint (in the background, after a commit)
    retain    versions below the newest that stay loadable; versions that the query may still replay stay in any case
    claim     the run of the query for which versions are written (`launches`); None: for reading only
    attempts  the numbers of the attempts, one for each `get_store`, each new in the run (default: 1, 2, ...)
    lenient   called when a version is absent; True means that batches without changes have left no object
    cache     where loaded shards are kept between tasks; None: this process's

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> from hybridstore.spark.launches import begin
    >>> shard = StateStoreId("checkpoint", "visits", 0)
    >>> run = begin(StateStoreProvider(shard).operator, batch=0)
    >>> provider = StateStoreProvider(shard, claim=run)
    >>> store = provider.get_store(0)
    >>> store.key_value("users").put("ann", 1)
    >>> store.commit()
    1
    >>> provider.get_read_store(1).key_value("users").get("ann")
    1
    """

    def __init__(
        self,
        store_id: StateStoreId,
        *,
        policy: CheckpointPolicy = POLICY,
        retain: int = RETAIN_VERSIONS,
        claim: Claim | None = None,
        attempts: Iterator[int] | None = None,
        lenient: Callable[[], bool] = lambda: False,
        cache: ShardCache | None = None,
        sizes: Sizes = SHARD_SIZES,
        files: Files = REAL_FILES,
        storage: Storage | None = None,
    ) -> None:
        self.id = store_id
        self.operator = LocalStorage(store_id.operator_path, files=files) if storage is None else storage
        self.log = AttemptLog(self.operator, store_id.folder, store_id.identity, lenient)
        # the place of the shard, for messages and for the cache
        self.path = self.log.storage.url
        self._policy = policy
        self._retain = retain
        self._claim = claim
        self._attempts = count(1) if attempts is None else attempts
        self._cache = CACHE if cache is None else cache
        self._sizes = sizes
        self._open: StateStore | None = None
        self._closed = False
        self._last = ShardMetrics()
        # the version that was noted last; 0: none
        self._noted = 0

    # --- loading --------------------------------------------------------------------------------------------------

    def _usable(self, version: int) -> None:
        if self._closed:
            raise StateClosedError(f"{self.path}: the provider is closed (make a new one)")
        if type(version) is not int or version < 0:
            raise MissingVersionError(f"{self.path}: version: found {version!r}, expected 0 or more")

    def _claimed(self, version: int) -> Claim:
        """Return the run that writes versions. Raises StaleAttemptError for a version below its first batch."""
        if self._claim is None:
            raise HybridStoreError(f"{self.path}: found no claim, expected the run that is written for (claim=)")
        if version < self._claim.first:
            raise StaleAttemptError(
                f"{self.path}: version {version} is below batch {self._claim.first}, with which launch "
                f"{self._claim.launch} of the query began (to rewind a query, start it again)"
            )
        return self._claim

    def get_store(self, version: int) -> StateStore:
        """Load exactly `version`, to write the next. An older open write store is aborted.

        Raises MissingVersionError (never written, or its objects are gone), SkippedBatchError, StaleAttemptError,
        CorruptFrameError, DigestMismatchError, ForeignFileError. From memory O(1), else O(blocks + objects behind the
        checkpoint).
        """
        self._usable(version)
        self.abort()
        run = self._claimed(version)
        shard = self._cache.take(self.path, self.id.identity)
        if shard is None or not shard.group.journal.empty:
            # In the second case a store was changed after its commit or abort: that change belongs to no version.
            shard = Shard(self.log.storage, self._policy, self._sizes)
        shard.limit = self._cache.limit
        loaded = shard.load(self.log, version, run.runs, run.run_id)
        self._open = StateStore(self, shard.group, version, loaded, shard, next(self._attempts))
        return self._open

    def get_read_store(self, version: int) -> StateStore:
        """Load `version` for reading only, beside other open stores. Raises as `get_store`."""
        self._usable(version)
        started = time.perf_counter()
        opened = self.log.open(version, self._runs or None)
        loaded = Loaded.of(opened)._replace(seconds=time.perf_counter() - started)
        return StateStore(self, opened.group, version, loaded)

    def check_reached(self, version: int) -> None:
        """Raise SkippedBatchError unless the batch before `version` reached the shard; nothing is loaded. One list."""
        run = self._claimed(version)
        if version > run.first:
            self.log.check_reached(version, run.runs, run.run_id)

    def was_called_twice(self, version: int) -> bool:
        """True when one task ran the operator more than once in the batch before `version`: for this shard without
        rows, and with rows. One list.
        """
        return self.log.was_called_twice(version)

    def was_called(self, version: int) -> bool:
        """True when this provider's attempt has left an object of the batch `version`, for rows or without. One list.
        Takes an attempt's number.
        """
        return self.log.was_called(version + 1, self._claimed(version).launch, next(self._attempts))

    def _ended(self, store: StateStore) -> None:
        if self._open is store:
            self._open = None

    # --- committing -----------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Abort the open write store, if any."""
        if self._open is not None:
            self._open.abort()

    def _commit(self, store: StateStore, shard: Shard, extra: dict[str, Any]) -> None:
        version = store.version + 1

        def numbers(logged: Logged, since: Since) -> dict[str, Any]:
            self._last = self._numbers(store, version, logged, since)
            known = self._last.known()
            del known["version"]  # the commit has it
            return {**known, **extra}

        shard.commit(self.log, self._claimed(store.version), store.attempt, numbers)
        self._last = replace(self._last, commit_ms=shard.commit_ms)
        if not shard.is_behind:
            self._cache.give(self.path, self.id.identity, shard)

    def note_empty(self, version: int, metrics: dict[str, Any] | None = None) -> bool:
        """Note that batch `version` brought this shard no rows, without loading it. O(1), one create.

        A note counts if no attempt has committed the batch. Returns False if this attempt has noted the batch before.
        Raises StaleAttemptError, CannotCommitError.
        """
        self._usable(version)
        run = self._claimed(version)
        wall_ms = int(time.time() * 1000)
        numbers = {"wall_ms": wall_ms, **(metrics or {}), "load": "none"}
        name = note(version + 1, run.launch, next(self._attempts))
        self._noted = version + 1
        return self.log.create(name, encode_note(self.id.identity, version + 1, wall_ms, numbers))

    # --- checkpoints, retention -----------------------------------------------------------------------------------

    def maintain(self, *, wait: bool = False, oldest_replay: int | None = None, closing: bool = False) -> list[str]:
        """Begin a checkpoint if one is due, use a finished one, and remove files that are not needed.

        `oldest_replay` is the oldest version that the query may still load. `closing`: this process leaves the shard,
        so a checkpoint is due, too, if the next load would miss the policy's aim without it. Returns the removed names.
        Failures never raise, because the batch is committed: the metrics count them (`failed_checkpoints`,
        `failed_clearings`). The task copies the changes since the last checkpoint; the rest runs in the background
        unless `wait` is set.
        """
        shard = self._cache.take(self.path, self.id.identity)
        try:
            # Not every shard of a task in the same batch.
            if self._noted and (self._noted + self.id.shard) % QUIET_BATCHES == 0:
                return self._prune(oldest_replay, shard)
            if shard is not None and (shard.checkpoint_due or (closing and shard.due_at_close)):
                shard.begin_checkpoint(self.log, self._runs)
            if shard is not None:
                # the next batch's load may already use the checkpoint
                shard.checkpoints.finish(wait=wait)
                if shard.cleared < shard.checkpoints.written:
                    shard.cleared = shard.checkpoints.written
                    return self._prune(oldest_replay, shard)
        except (OSError, HybridStoreError):
            # The batch is committed: files that could not be removed now are removed after the next checkpoint, and a
            # load reports damage.
            if shard is not None:
                shard.failed_clearings += 1
        finally:
            if shard is not None:
                self._cache.give(self.path, self.id.identity, shard)
        return []

    def checkpoint(self) -> bool:
        """Make a checkpoint of the last commit now, if this process has it in memory; True after a new checkpoint.

        For tools and tests. Raises CheckpointError when the checkpoint cannot be made.
        """
        shard = self._cache.take(self.path, self.id.identity)
        if shard is None:
            return False
        shard.checkpoints.finish(wait=True)
        written = shard.checkpoints.written
        try:
            shard.begin_checkpoint(self.log, self._runs, wait=True)
            shard.cleared = shard.checkpoints.written
        finally:
            self._cache.give(self.path, self.id.identity, shard)
        if shard.checkpoints.failure is not None:
            raise shard.checkpoints.failure
        self._prune(None, shard)
        return shard.checkpoints.written > written

    @property
    def _runs(self) -> Runs:
        return () if self._claim is None else self._claim.runs

    def _prune(self, oldest_replay: int | None, shard: Shard | None) -> list[str]:
        if not self._runs:
            return []
        kept = Kept(self._policy.keep, self._retain, oldest_replay)
        return prune(self.log, self._runs, kept, {} if shard is None else shard.parents)

    # --- looking, closing -----------------------------------------------------------------------------------------

    def _numbers(self, store: StateStore, version: int, logged: Logged, since: Since) -> ShardMetrics:
        stores, loaded, shard = store.group.stores.values(), store.loaded, store._shard
        return ShardMetrics(
            version=version,
            records={each.name: each.num_records for each in stores},
            dropped={each.name: store.dropped_by(each) for each in stores},
            load=loaded.kind,
            load_ms=round(loaded.seconds * 1000, 3),
            replayed_segments=loaded.replayed.commits,
            replayed_records=loaded.replayed.records,
            skipped_checkpoints=len(loaded.skipped),
            commit_ms=0.0 if shard is None else shard.commit_ms,
            segment_bytes=logged.bytes,
            logged_records=logged.records,
            commits_since_checkpoint=since.logged.commits,
            bytes_since_checkpoint=since.logged.bytes,
            records_since_checkpoint=since.logged.records,
            restore_estimate_ms=round(self._policy.estimate(since.logged, commit_seconds(self.log.storage)) * 1000, 3),
            differing_attempts=0 if shard is None else shard.differing,
            failed_checkpoints=0 if shard is None else shard.checkpoints.failed,
            failed_clearings=0 if shard is None else shard.failed_clearings,
            **({} if shard is None or self._cache.limit is None else shard.memory_numbers(self._cache.limit)),
        )

    def _metrics(self, store: StateStore) -> ShardMetrics:
        if store.committed is not None:
            return self._last
        reached = store.loaded.reached if store.read_only else store.shard.reached
        return self._numbers(store, store.version, Logged(), reached.since)

    def metrics(self) -> ShardMetrics:
        """Return the numbers of the open write store, or those of the last commit."""
        return self._last if self._open is None else self._metrics(self._open)

    def close(self) -> None:
        """Abort the open store, wait for a checkpoint in progress, and forget the shard. Closing twice is harmless."""
        self.abort()
        self._closed = True
        shard = self._cache.take(self.path, self.id.identity)
        if shard is not None:
            shard.checkpoints.finish(wait=True)

    def __repr__(self) -> str:
        return f"<StateStoreProvider {self.path!r}>"
