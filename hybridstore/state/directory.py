"""HybridStore: a state directory, one version sequence, and the named stores that commit together.

    DIR/LOCK   DIR/changelog/<first version>.log   DIR/checkpoints/<version>.lmdb

This is the only file that joins the three packages: it restores on opening, writes the changelog on commit, makes
checkpoints in a background thread and prunes what no retained checkpoint needs. One thread owns a HybridStore.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from changelog.files import REAL_FILES, Files
from changelog.frame import Commit
from changelog.segment import Position, list_segments, segment_name
from changelog.writer import PRUNABLE_BYTES, SEGMENT_BYTES, ChangelogWriter
from recovery.block import BLOCK_RECORDS, StoreCapture
from recovery.checkpoint import Ahead, CheckpointReader, checkpoint_name
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS
from recovery.prune import prune
from recovery.restore import RestoreReport, restore
from recovery.write import CheckpointReport, write_checkpoint

from ..collector import collector_held
from ..errors import ForeignFileError, HybridStoreError, StateDirectoryError, StoreClosedError, StorePoisonedError
from . import fork
from .checkpointer import Checkpointer
from .group import StoreGroup
from .hydration import COMMIT_BUDGET_MS, Progress, RestoreBar, hydrate, load_all, read_ahead, stop_ahead
from .lock import DirectoryLock
from .logged import logged_rows
from .memory_budget import BUDGET, CHECK_COMMITS, CHECK_RECORDS, PLACE_BYTES, check_limit
from .metrics import Metrics
from .named_stores import NamedStores
from .own_files import OwnFiles
from .policy import SPEED, CheckpointPolicy, Logged
from .state_directory import check_for_loss, prepare
from .usable import Apart, Usable

Durability = Literal["commit", "os"]
At = int | Literal["newest"] | None
# A writer looks at most so often whether its directory is still its own: nobody opens a state and commits in less.
_OWN_SECONDS: Final = 0.0002
_TUNING: Final = {
    "frame_records": 1000,
    "segment_bytes": SEGMENT_BYTES,
    "block_records": BLOCK_RECORDS,
    "bucket_divisor": 64,
}


class HybridStore(Usable, NamedStores):
    """A state directory that is open. Made by `hybridstore.open`; also a context manager, which closes it.

    Changes are visible at once, durable when `commit()` returns, and gone after `rollback()` or a crash. Not for use by several
    threads at once, nor in a forked child. After a write, a rollback or a change that did not come to its end, whatever
    stopped it, everything but `close()` raises StorePoisonedError: reopening shows the last commit.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "commit",
        lazy: bool = True,
        checkpoint: CheckpointPolicy | None = None,
        memory_limit: int | None = None,
        debug: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
        at: At = None,
        files: Files = REAL_FILES,
        tuning: dict[str, int] | None = None,
    ) -> None:
        if durability not in ("commit", "os"):
            raise ValueError(f'durability: found {durability!r}, expected "commit" or "os"')
        if checkpoint is not None and not isinstance(checkpoint, CheckpointPolicy):
            raise TypeError(f"checkpoint: found {type(checkpoint).__name__}, expected CheckpointPolicy or None")
        if at not in (None, "newest") and type(at) is not int:
            raise TypeError(f'at: found {type(at).__name__}, expected int (a version), "newest" or None')
        limits = _TUNING | (tuning or {})
        self.path = path
        self._files = files
        self._block_records = limits["block_records"]
        self._debug = debug
        self.memory_limit = check_limit(memory_limit)
        self._unchecked = Logged()  # since the memory budget was looked at
        self._read_only = at is not None
        self._synced = durability == "commit"
        super().__init__()
        self._cold = False
        self._written = 0  # by the writer, when the last version ended
        self._lock: DirectoryLock | None = None
        self._owned_at = 0.0
        try:
            self._lock = prepare(path, files, read_only=self._read_only)
            if self._lock is not None:
                self._files = OwnFiles(files, self._lock.check)
            self._group = StoreGroup(
                self._frame,
                debug=debug,
                # read-only: every change is handed over at once, and so refused before it is applied
                frame_records=0 if self._read_only else limits["frame_records"],
                bucket_divisor=limits["bucket_divisor"],
            )
            self._group.journal.on_failure = lambda error: self._broke("a change", error)
            self._checkpoints = Checkpointer(
                self._group, path, checkpoint or CheckpointPolicy(), self._open_checkpoint, partial(Apart, self)
            )
            with RestoreBar(path) as bar, collector_held():
                shown = progress or bar
                self.restore_report = self._restore(
                    None if at == "newest" else at, shown, durability, limits["segment_bytes"]
                )
                if not lazy:
                    load_all(self._group.stores.values(), shown)
            self._cold = not self._read_only
            fork.watch(self)
            BUDGET.join(self)
            read_ahead(self._checkpoints.reader, self._group)
        except OSError as error:
            self._abandon()
            raise StateDirectoryError(
                f"{path}: cannot be opened: {error} (mend the cause and open it again: nothing was lost)"
            ) from error
        except BaseException:
            self._abandon()
            raise

    # --- opening ----------------------------------------------------------------------------------------------

    def _restore(self, at: int | None, progress: Progress, durability: Durability, segment_bytes: int) -> RestoreReport:
        reached = restore(
            self.path, self._group, at=at, progress=progress, files=None if self._read_only else self._files
        )
        report = reached.report
        if self._lock is not None:
            check_for_loss(self.path, self._lock, reached)
        self._checkpoints.reader = reached.checkpoint
        if not any(report.store_id):
            report.store_id = os.urandom(16)
            report.created = report.version == 0
        self._store_id = report.store_id
        self._group.reached(report.version, report.digest)
        self._checkpoints.since = since = Logged.of(
            report.tail_versions, report.tail_bytes, report.tail_counts, self._group.kinds
        )
        SPEED.observe(report.attach_seconds, report.tail_seconds, since)
        # Not where the writer goes on: after a clean close that is a segment which does not exist before the next commit.
        self._position = reached.resume.reached or Position(0, 0, 0)
        if self._lock is None:
            return report
        # What was closed was synced; a segment that a killed process left may be in the kernel's cache only.
        self._lock.hold(self._position.segment if self._lock.closed else self._lock.segment)
        self._writer = ChangelogWriter(
            self.path / CHANGELOG,
            self._store_id,
            sync=durability == "commit",
            segment_bytes=segment_bytes,
            files=self._files,
            on_segment=self._lock.hold,
        )
        for path in reached.resume.stale:
            self._files.remove(path)
        if reached.resume.position is not None:
            self._writer.resume(reached.resume.position, reached.resume.header, report.version, report.digest)
        else:
            self._writer.begin(report.version, report.digest)
        return report

    def _frame(self, body: bytes) -> None:
        self._writable()
        self._own()
        self._writer.mutations(body)

    def _own(self) -> None:
        """Raise ForeignFileError unless the directory is still ours: before a frame is written, but not more often than
        is of use."""
        now = time.monotonic()
        if self._lock is not None and now - self._owned_at > _OWN_SECONDS:
            self._lock.check()
            self._owned_at = now

    # --- stores -----------------------------------------------------------------------------------------------

    def _open_store(self, name: str, kind: str, parameters: dict[str, Any]) -> Any:
        if self._read_only:
            store = self._group.stores.get(name)
            if store is None:
                raise KeyError(
                    f"{self.path}: no store {name!r} in version {self._group.version} (there are: {', '.join(self._group.stores) or 'none'})"
                )
            self._group.match(store, kind, parameters)
            return store
        self._usable()
        return self._group.open(name, kind, parameters)

    @property
    def stores(self) -> dict[str, Any]:
        """The stores of this state by name, whatever their kind."""
        return dict(self._group.stores)

    @property
    def group(self) -> StoreGroup:
        """The stores and their journal, as topologies use them."""
        return self._group

    @property
    def settings(self) -> dict[str, Any]:
        """Named values that are committed with the stores (a topology keeps its source position here)."""
        return dict(self._group.settings)

    def set(self, name: str, value: Any) -> None:
        """Set a named value as part of the version in progress. Raises TypeError for what cannot be stored. O(value)."""
        self._usable()
        self._group.set(name, value)

    # --- versions ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the last commit; 0 is the empty state."""
        return self._group.version

    @property
    def digest(self) -> bytes:
        """The digest of the last commit: 16 bytes over everything that was ever committed, in order."""
        return self._group.digest

    def commit(self) -> int:
        """Make everything since the last commit durable and return its version; with no changes, the version stays.

        Raises StorePoisonedError when a write or sync fails: the store then accepts nothing more, and reopening
        shows the last commit. Raises MutatedValueError with debug. A checkpoint in the background that has failed fails
        no commit: it is logged, and counted in the metrics. O(changes).
        """
        self._usable()
        checkpoints, group = self._checkpoints, self._group
        checkpoints.finish(wait=False)
        if self._cold and BUDGET.limit is None:
            self._hydrate(COMMIT_BUDGET_MS, None if checkpoints.reader is None else checkpoints.reader.ahead)
        if self._debug:
            group.check_watched()
        if group.journal.empty:
            self._writer.check()
            return group.version
        self._apart = "a commit"
        try:
            digest = group.journal.seal()
            counts = group.journal.records
            commit = Commit(group.version + 1, digest, counts, int(time.time() * 1000), group.stream_times(), {})
            self._writer.commit(commit)
            group.committed(commit.version, digest)
            self._position = self._writer.position
            logged = Logged.of(1, self._writer.bytes_written - self._written, counts, group.kinds)
            checkpoints.since = checkpoints.since.plus(logged)
            self._written += logged.bytes
        except ForeignFileError as error:
            self._broke("a commit", error)
            raise self._refusal("a commit", error) from error
        except BaseException as error:
            self._broke("a commit", error)
            raise
        self._apart = None
        try:
            if checkpoints.due():
                self._checkpoint(wait=False)
            self._relieve(logged)
        except Exception as error:  # the version is durable: whoever caught this would commit it again
            checkpoints.fail(group.version, error)
        return group.version

    def _relieve(self, logged: Logged) -> None:
        """Let everything go cold if the memory budget of the process is exceeded."""
        if BUDGET.limit is None:
            return
        unchecked = self._unchecked = self._unchecked.plus(logged)
        if unchecked.records < CHECK_RECORDS and unchecked.commits < CHECK_COMMITS:
            return
        self._unchecked = Logged()
        if BUDGET.exceeded():
            self._go_cold()

    def _go_cold(self) -> None:
        """Write a checkpoint and keep nothing in memory that it holds; if it cannot be written, keep everything."""
        self._checkpoints.finish(wait=True)
        self._checkpoint(wait=True)
        reader = self._checkpoints.reader
        if reader is None or reader.meta.version != self._group.version:
            return
        stop_ahead(reader)
        bases = {store.number: reader.directory(store.number) for store in self._group.stores.values()}
        with Apart(self, "letting memory go"):
            for store in self._group.stores.values():
                store.chill(reader.loader(store.number), bases[store.number])

    def held_bytes(self) -> int:
        """Return an estimate of the memory that the stores hold, in bytes; see `hybridstore.state.memory_budget`. O(keys) at worst."""
        stores = self._group.stores.values()
        held = sum(store.num_records - store.cold_records for store in stores)
        packed = self._writer.bytes_written / held if held and self._lock is not None else 0.0
        reader = self._checkpoints.reader
        if reader is not None and (records := reader.meta.records):
            packed = sum(record.size for record in reader.meta.stores) / records
        return int(held * (PLACE_BYTES + 2 * packed))

    def hydrate(self, budget_ms: float = 5.0) -> int:
        """Load blocks that are still only in the checkpoint for about `budget_ms`, and return how many are left.

        A thread decodes blocks meanwhile, and every commit takes what is ready, for 2 ms; call this when there is time and
        nothing to commit. Raises CorruptCheckpointError for a damaged block: reopening falls back to the checkpoint before.
        O(blocks loaded).
        """
        self._usable()
        return self._hydrate(budget_ms, None)

    def _hydrate(self, budget_ms: float, ahead: Ahead | None) -> int:
        self._cold = False  # until it succeeds: a damaged block is not to fail every commit
        left = hydrate(self._group.stores.values(), budget_ms, ahead)
        self._cold = left > 0
        return left

    def rollback(self) -> None:
        """Throw away everything since the last commit: the stores are restored as they were then. O(restore).

        Raises StorePoisonedError when the last commit cannot be read: the store then accepts nothing more, and
        reopening shows it.
        """
        self._usable()
        try:
            with Apart(self, "a rollback"):
                self._checkpoints.finish(wait=True)
                self._own()
                self._group.journal.restart(self._group.digest)
                self._writer.rollback()
                self._written = self._writer.bytes_written
                reached = restore(self.path, self._group, files=self._files)
                self._let_go()  # the old map is unmapped when iterators opened earlier are gone, too
                self._checkpoints.reader = reached.checkpoint
                if reached.report.version != self._group.version:
                    raise RestoreError(
                        f"{self.path}: version {self._group.version} was committed, but {reached.report.version} is "
                        "what can be read"
                    )
                self._group.reached(reached.report.version, reached.report.digest)
                self._group.redefine_lost()
                self._cold = True
                read_ahead(self._checkpoints.reader, self._group)
        except StorePoisonedError:
            raise
        except (OSError, HybridStoreError) as error:
            raise self._refusal("a rollback", error) from error

    def checkpoint(self, *, wait: bool = False) -> None:
        """Begin a checkpoint of the last commit in the background; `wait` returns when it is durable.

        Nothing may be uncommitted. The owner's pause is the copying of what changed since the last checkpoint. Raises
        CheckpointError when the checkpoint cannot be begun, or with `wait` cannot be made; a failure in the background
        is logged and counted in the metrics. O(changed).
        """
        self._usable()
        if not self._group.journal.empty:
            raise HybridStoreError(
                f"{self.path}: there are uncommitted changes (commit or roll back before a checkpoint)"
            )
        self._checkpoints.finish(wait=True)
        if self._checkpoint(wait=wait) and self._checkpoints.failure is not None:
            raise self._checkpoints.failure

    def _checkpoint(self, *, wait: bool) -> bool:
        """Begin a checkpoint of the last commit; False where there is one, or nothing to write."""
        group, checkpoints = self._group, self._checkpoints
        if group.version == checkpoints.version:
            return False
        with Apart(self, "the beginning of a checkpoint"):
            self._writer.leave(PRUNABLE_BYTES)  # what lies before the checkpoint is pruned once newer ones are kept
        write = partial(self._write_checkpoint, group.version, group.digest, self._position, dict(group.settings))
        tidy = partial(prune, self.path, keep=checkpoints.policy.keep, files=self._files)
        checkpoints.begin(group.version, write, tidy, wait=wait)
        return True

    def _write_checkpoint(
        self,
        version: int,
        digest: bytes,
        position: Position,
        settings: dict[str, Any],
        captures: list[StoreCapture],
        previous: CheckpointReader | None,
    ) -> CheckpointReport:
        """Run in the thread of a checkpoint."""
        if not self._synced:
            # A changelog shorter than what a checkpoint refers to is damage, so it must be on disk first.
            for first in list_segments(self.path / CHANGELOG):
                self._files.sync_path(self.path / CHANGELOG / segment_name(first))
            self._files.sync_directory(self.path / CHANGELOG)
        return write_checkpoint(
            self.path / CHECKPOINTS,
            store_id=self._store_id,
            version=version,
            digest=digest,
            position=position,
            settings=settings,
            captures=captures,
            previous=previous,
            block_records=self._block_records,
            files=self._files,
        )

    def _open_checkpoint(self, report: CheckpointReport) -> CheckpointReader:
        return CheckpointReader(self.path / CHECKPOINTS / checkpoint_name(report.version), files=self._files)

    # --- looking, closing -------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Return the numbers of this store as of now. O(stores)."""
        stores = self._group.stores.values()
        checkpoints = self._checkpoints
        behind, last = checkpoints.behind, checkpoints.last
        return Metrics(
            version=self._group.version,
            records={store.name: store.num_records for store in stores},
            dropped={store.name: dict(store.dropped) for store in stores},
            stream_time_ms={store.name: store.stream_time for store in stores},
            cold_blocks=sum(store.cold_blocks for store in stores),
            changelog_bytes_written=self._writer.bytes_written if self._lock is not None else 0,
            bytes_since_checkpoint=behind.bytes,
            records_since_checkpoint=behind.records,
            checkpoint_version=checkpoints.version or None,
            checkpoints_written=checkpoints.written,
            last_checkpoint_seconds=None if last is None else last.seconds,
            last_checkpoint_pause_seconds=checkpoints.pause_seconds,
            failed_checkpoints=checkpoints.failed,
            failed_prunes=checkpoints.failed_prunes,
            estimated_restore_seconds=checkpoints.policy.estimate(behind),
        )

    def close(self) -> None:
        """Commit nothing, finish the checkpoint in progress, write a synced end mark, and release the directory.

        What was not committed is gone. Closing twice is harmless.
        """
        if os.getpid() != self._pid:
            return
        try:
            if self._closed or (self._lock is not None and not self._lock.held):
                return  # once more: an earlier call may have been interrupted before it had let go of everything
            if self._apart is not None or (self._lock is not None and self._writer.poisoned):
                if self._checkpoints.attempt is not None:
                    self._checkpoints.attempt.join()
                return  # whoever saw the failure knows; what is on disk is the last commit
            if self._lock is not None:
                self._checkpoints.finish(wait=True)
                self._lock.check()
                group = self._group
                if not group.journal.empty:
                    group.journal.restart(group.digest)
                    self._writer.rollback()
                elif self._checkpoints.policy.due_at_close(self._checkpoints.since):
                    self._checkpoint(wait=True)
                self._writer.close(
                    Commit(group.version, group.digest, {}, int(time.time() * 1000), group.stream_times(), {})
                )
                self._lock.release({"version": group.version, "digest": group.digest.hex()} if group.version else None)
        finally:
            self._abandon()

    def _let_go(self) -> None:
        """Read the checkpoint in use no longer."""
        stop_ahead(self._checkpoints.reader)
        self._checkpoints.reader = None

    def _abandon(self) -> None:
        self._closed = True
        BUDGET.leave(self)
        if getattr(self, "_writer", None) is not None:
            self._writer.close(None)
        if self._lock is not None:
            self._lock.release()
        if getattr(self, "_checkpoints", None) is not None:
            self._let_go()
        if getattr(self, "_group", None) is not None:
            self._group.shut(StoreClosedError(f"{self.path}: the store is closed (open it again)"))

    def _inherited(self) -> None:
        """In a forked child: every store refuses, and the files stay the parent's."""
        self._group.shut(StoreClosedError(self._not_here()))
        if self._lock is not None:
            self._writer.close(None)
            self._lock.release()

    def _crash(self) -> None:
        """For tests: lose everything in memory as a killed process would, without flushing, closing or committing."""
        self._checkpoints.finish(wait=True)
        self._abandon()

    def _force_cold(self) -> None:
        """For tests: commit, checkpoint, and let every block go cold."""
        self.commit()
        self._go_cold()

    def _check(self) -> None:
        """Assert the invariants of every store."""
        for store in self._group.stores.values():
            store._check()

    def _logged(self, name: str) -> list[tuple[Any, ...]]:
        """For tests: the rows of one store in the changelog, uncommitted ones too; see `logged_rows`."""
        self._group.journal.spill()
        return list(logged_rows(self.path / CHANGELOG, self._group.stores[name].number))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"version {self._group.version}"
        return f"<HybridStore {str(self.path)!r}, {state}, stores: {', '.join(self._group.stores) or 'none'}>"
