"""State: a state directory that is open: one sequence of versions, and the named stores that commit together.

    open       restore: newest checkpoint, then the changelog behind it
    commit     journal -> changelog (directory_log.py), then a checkpoint if one is due (checkpointer.py)
    rollback   restore again
    close      an end mark, and the lock is free

One thread owns a State (`changelog.turn`); background threads write checkpoints and decode blocks ahead.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

from changelog.files import FILE_MODE, Files
from changelog.identity import ID_BYTES, Identity
from changelog.turn import entry_of_all
from recovery.restore import RestoreReport
from recovery.retrying import retry_while_changing

from ..collector import SHORT_PAUSES, collector_held
from ..errors import ForeignFileError, HybridStoreError, StateClosedError, StateDirectoryError, StatePoisonedError
from ..progress import OnProgress, watching
from .arguments import check
from .checkpointer import Checkpointer, Target
from .group import StoreGroup
from .home import Home, home_of
from .hydration import load_all
from .in_place import InPlace
from .log import Log
from .log_lines import warn
from .memory import Memory
from .memory_budget import BUDGET
from .metrics import Metrics, metrics_of
from .named_stores import NamedStores
from .opening import TUNING, At, Durability, Opening, Tuning, as_documented
from .policy import SPEED, CheckpointPolicy, Logged
from .snapshot import Snapshot, snapshot_of
from .upgrades import Upgrades
from .usable import OPEN, MarkedStep

# The collector visits the new sets of the stores in this commit of an open state: in the first one, for which a restart
# waits, it would take 1 ms, and much later the sets have many keys.
_VISITING_COMMIT: Final = 4


class State(InPlace, NamedStores):
    """A state directory that is open. Made by `hybridstore.open`; also a context manager, which closes it.

    Changes are visible at once, durable when `commit()` returns, and lost after `rollback()` or a crash. One thread
    owns a state (see `hand_over`), and makes one call at a time; a forked child may not use it. After a write, a
    rollback or a change that failed or was interrupted, every method except `close()` raises StatePoisonedError:
    reopening restores the last commit.

    >>> state = hs.open("state")
    >>> state.key_value("users").put("ann", {"visits": 1})
    >>> state.commit()
    1
    >>> state
    <State 'state', version 1, stores: users>
    """

    @classmethod
    @as_documented
    def open(
        cls,
        location: str | os.PathLike[str],
        *,
        durability: Durability = "commit",
        lazy: bool = True,
        checkpoints: CheckpointPolicy | None = None,
        memory_limit: int | None = None,
        debug: bool = False,
        progress: OnProgress | bool | None = None,
        at: At = None,
        file_mode: int = FILE_MODE,
        _tuning: Tuning = TUNING,
        _files: Files | None = None,
        _rescaled: bool = False,
        _identity: Identity | None = None,
    ) -> Self:
        """Open the state at `location`, and create or restore it: a directory, or a place on an object store
        (`s3://bucket/path`, `gs://...`, `az://...`, `abfss://...`, with settings and a cache as a `hybridstore.Bucket`;
        needs `pip install 'hybridstore[cloud]'`).

        On an object store a commit is one request, and returns when the store has acknowledged it. It takes no lock:
        the process that opened the state last owns it, and the next commit of an earlier owner raises
        StateLockedError. Opening for writing creates a version.

        durability  "commit": commit() returns when the data is on disk, and survives power loss; "os": when the kernel
                    has it, and survives a killed process only (object stores always acknowledge)
        lazy        blocks of the checkpoint load when touched (the first read takes milliseconds); False reads, checks
                    and decodes all blocks now, so that no later read waits for the disk or a decoder
        checkpoints  when to checkpoint, by default so that a restart takes under a second
        memory_limit  bytes of memory that the stores of this process may take, 10 MB or more: a smaller limit cannot be
                      kept, since Python takes that for itself, and is logged; the smallest limit of any open state
                      governs. Before the limit is reached, records that a checkpoint holds are freed, and single
                      records are read again when they are touched: state may exceed memory (docs/operating.md)
        debug       find values that were changed in place after a put (slow)
        progress    called as progress(phase, done, total) during the restore (a total of 0 is not known); None or True
                    draws a bar on a terminal after a second, False draws none
        at          open this retained version, or the "newest", read-only and without the lock (also beside a live
                    writer)
        file_mode   the mode of new files, less the umask: with 0o644 everybody on the machine can read the state, with
                    0o600 only its owner. In directories, whoever may read may also enter; existing files keep their
                    mode

        Raises StateLockedError, ForeignFileError, UnsupportedVersionError, or a RestoreError or
        CorruptFrameError when committed data would be lost, and StateDirectoryError for errors of the operating system.
        `State.restore_report` describes the restore. O(blocks + tail).

        >>> with hs.open("state") as state:
        ...     state.window("clicks", retention="1 hour").put("ann", 1, ts=60_000)
        ...     state.commit()
        1
        >>> with hs.open("state", at="newest") as state:  # to read, also while another process writes
        ...     list(state.window("clicks", retention="1 hour").all())
        [(('ann', 60000), 1)]
        """
        check(file_mode=file_mode)
        files = Files(file_mode) if _files is None else _files
        policy = CheckpointPolicy() if checkpoints is None else checkpoints
        asked = Opening(
            durability, lazy, policy, memory_limit, debug, progress, at, files, _tuning, _rescaled, _identity
        )
        return cls.at_home(home_of(location, asked), asked)

    @classmethod
    def at_home(cls, home: Home, asked: Opening) -> Self:
        open_it = partial(cls, home, asked)
        # A writer may prune a listed file before it is read; a newer version can then be read. Where no lock keeps
        # writers apart, whoever opens the state to write reads beside a writer, too.
        beside = asked.read_only or not home.locks
        return retry_while_changing(home.where, open_it, sign=home.signature) if beside else open_it()

    def __init__(self, home: Home, asked: Opening) -> None:
        super().__init__(home.where, read_only=asked.read_only)
        self._home = home
        self._asked = asked
        self._group = StoreGroup(
            self._frame,
            debug=asked.debug,
            # read-only: every change is passed to the frame at once, and so refused before it is applied
            frame_records=0 if asked.read_only else asked.tuning.frame_records,
            bucket_divisor=asked.tuning.bucket_divisor,
        )
        self._group.journal.on_failure = lambda error: self._broke("a change", error)
        self._group.journal.on_erase = self._order_erase
        self._turn = self._group.journal.turn
        self._turn.where, self._turn.bound = home.where, True
        self._checkpoints = Checkpointer(
            self._group, home.where, asked.checkpoints, home.sizes, partial(MarkedStep, self)
        )
        self._checkpoints.commit_seconds = home.commit_seconds
        self._checkpoints.can_beside = lambda: home.beside
        self._memory = Memory(self._group, self._checkpoints, asked.memory_limit)
        SHORT_PAUSES.join()
        self._leave_pauses = weakref.finalize(self, SHORT_PAUSES.leave)  # once, also for a state that nobody closes
        try:
            home.claim()
            BUDGET.join(self._memory)
            with watching(asked.progress, f"restoring {home.where}", default=True) as progress, collector_held():
                self.restore_report = self._restore(asked, progress)
                if not asked.lazy:
                    load_all(self._group.stores.values(), progress)
                    SHORT_PAUSES.loaded()
            OPEN.add(self)
            self._memory.restored(read_only=asked.read_only, lazy=asked.lazy)
            self._erase_ordered()
        except OSError as error:
            self._abandon()
            raise StateDirectoryError(
                f"{home.where}: cannot be opened: {error} (fix the cause and reopen it; no data was lost)"
            ) from error
        except BaseException:
            self._abandon()
            raise

    def _restore(self, asked: Opening, progress: OnProgress) -> RestoreReport:
        home, group = self._home, self._group
        reached = self._climb(asked.version, progress)
        report = reached.report
        if report.identity is None:
            report.identity = home.identity or Identity(os.urandom(ID_BYTES))
            report.created = report.version == 0
        group.reached(report.version, report.digest)
        if not asked.read_only:
            self._log = home.begin(group, reached)
            self._checkpoints.owned(self._log.check_owner)
        self._identity = report.identity
        if report.skipped or report.cut is not None:
            warn("%s", report.summary())
        SPEED.observe(report.attach_ms / 1000, report.tail_ms / 1000, self._checkpoints.since)
        return report

    def _frame(self, body: bytes) -> None:
        self._writable().frame(body)

    # --- stores -----------------------------------------------------------------------------------------------

    def _open_store(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None = None) -> Any:
        unused = self._turn.thread is None
        try:
            return self._declared(name, kind, parameters, upgrades)
        finally:
            if unused:  # as a rule one thread declares the stores, and another one uses them
                self._turn.hand_over()

    @entry_of_all
    def _declared(self, name: str, kind: str, parameters: dict[str, Any], upgrades: Upgrades | None) -> Any:
        if self._read_only:
            store = self._group.stores.get(name)
            if store is None:
                raise KeyError(
                    f"{self.path}: no store {name!r} in version {self._group.version} (known: "
                    f"{', '.join(self._group.stores) or 'none'})"
                )
            self._group.match(store, kind, parameters)
            return store
        self._usable()
        return self._group.open(name, kind, parameters, upgrades)

    def hand_over(self) -> None:
        """Let another thread use this state: the next thread that uses the state or one of its stores owns it.

        A state belongs to the thread that first uses it; opening the state and asking for its stores is no use. Every
        other thread gets StateInUseError, for writes, commits and reads alike, until the owner hands the state over or
        has ended. Uncommitted changes are handed over, too. Raises StateInUseError when another thread owns the state,
        and in the middle of a call. O(1).

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> state = hs.open("state")
        >>> users = state.key_value("users")
        >>> users["ann"] = 1
        >>> state.hand_over()
        >>> with ThreadPoolExecutor(1) as thread:
        ...     thread.submit(state.commit).result()
        1
        """
        self._turn.hand_over()

    @property
    def stores(self) -> dict[str, Any]:
        """The stores of this state by name, whatever their kind.

        >>> state = hs.open("state")
        >>> users = state.key_value("users")
        >>> state.stores
        {'users': <KeyValueStore 'users'>}
        """
        return dict(self._group.stores)

    @property
    def group(self) -> StoreGroup:
        """The stores and their journal, as topologies use them."""
        return self._group

    @property
    def settings(self) -> dict[str, Any]:
        """Named values that are committed with the stores (a topology keeps its source position here).

        >>> state = hs.open("state")
        >>> state.set("offset", 42)
        >>> state.settings
        {'offset': 42}
        """
        return dict(self._group.settings)

    @entry_of_all
    def set(self, name: str, value: Any) -> None:
        """Set a named value as part of the version in progress.

        Raises TypeError for a value that cannot be stored. O(value).

        >>> with hs.open("state") as state:
        ...     state.set("offset", 42)
        ...     state.commit()
        1
        >>> hs.open("state").settings["offset"]
        42
        """
        self._usable()
        self._group.set(name, value)

    # --- versions ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the last commit; 0 is the empty state.

        >>> state = hs.open("state")
        >>> state.key_value("users")["ann"] = 1
        >>> state.version, state.commit(), state.version
        (0, 1, 1)
        """
        return self._group.version

    @property
    def digest(self) -> bytes:
        """The digest of the last commit: 16 bytes over all committed mutations, in order.

        >>> state, copy = hs.open("state"), hs.open("copy")
        >>> for each in (state, copy):
        ...     each.key_value("users")["ann"] = 1
        ...     each.commit()
        1
        1
        >>> state.digest == copy.digest
        True
        """
        return self._group.digest

    @entry_of_all
    def commit(self) -> int:
        """Make all changes since the last commit durable and return their version; without changes, the version stays.

        Raises StatePoisonedError when a write or sync fails: the store then accepts no further call, and reopening
        restores the last commit. Raises ValueChangedInPlaceError with debug. A failed background checkpoint fails no
        commit: the failure is logged, and counted in the metrics. O(changes).

        >>> state = hs.open("state")
        >>> state.key_value("users")["ann"] = 1
        >>> state.commit()
        1
        >>> state.commit()  # nothing has changed since
        1
        """
        log, checkpoints, group = self._usable(), self._checkpoints, self._group
        renewed = checkpoints.finish(wait=False) is not None
        self._memory.slice()
        group.check_watched()
        if group.journal.empty:
            log.health.check()
            self._relieve(log, Logged(), renewed=renewed)
            self._erase_ordered()
            return group.version
        self._apart = "a commit"
        try:
            logged = log.commit(group)
            checkpoints.since = checkpoints.since.plus(logged)
        except BaseException as error:
            self._broke("a commit", error)
            if isinstance(error, ForeignFileError):
                raise self._refusal("a commit", error) from error
            raise
        self._apart = None
        if group.version == self.restore_report.version + _VISITING_COMMIT:
            SHORT_PAUSES.sealed()  # the sets of the stores are nearly as new as behind a checkpoint
        try:
            if checkpoints.due():
                self._begin_checkpoint(log)
        # the version is durable: a caller that caught this error would commit the changes again
        except Exception as error:
            checkpoints.fail(group.version, error)
        self._relieve(log, logged, renewed=renewed)
        self._erase_ordered()
        return group.version

    @entry_of_all
    def hydrate(self, budget_ms: float = 5.0) -> int:
        """Load cold blocks for about `budget_ms`, and return how many cold blocks remain.

        A background thread decodes blocks, and every commit loads decoded blocks for 2 ms; call `hydrate` in idle
        time, with nothing to commit. Raises CorruptCheckpointError for a damaged block: reopening falls back to the
        checkpoint before. O(blocks loaded).

        >>> with hs.open("state") as state:
        ...     state.key_value("users").put_many({"ann": 1, "bob": 2})
        ...     state.commit()
        ...     state.checkpoint(wait=True)
        1
        >>> state = hs.open("state")
        >>> state.metrics().cold_blocks
        1
        >>> while state.hydrate(budget_ms=5):
        ...     pass  # a turn of your loop
        >>> state.metrics().cold_blocks
        0
        """
        self._usable()
        return self._memory.hydrate(budget_ms)

    @entry_of_all
    def rollback(self) -> None:
        """Discard all changes since the last commit: the stores are restored as they were then. O(restore).

        Raises StatePoisonedError when the last commit cannot be read: the store then accepts no further call, and
        reopening restores the last commit or raises the cause.

        >>> state = hs.open("state")
        >>> users = state.key_value("users")
        >>> users["ann"] = 1
        >>> state.commit()
        1
        >>> users["ann"] = 2
        >>> state.rollback()
        >>> users["ann"]
        1
        """
        log = self._usable()
        try:
            with MarkedStep(self, "a rollback"):
                self._checkpoints.finish(wait=True)
                log.rollback(self._group)
                self._restore_in_place()
        except StatePoisonedError:
            raise
        except (OSError, HybridStoreError) as error:
            raise self._refusal("a rollback", error) from error

    @entry_of_all
    def checkpoint(self, *, wait: bool = False) -> None:
        """Begin a checkpoint of the last commit in the background; `wait` returns when the checkpoint is durable.

        There must be no uncommitted change. The call copies the changes since the last checkpoint; the rest runs in the
        background. Raises CheckpointError when the checkpoint cannot be begun, or with `wait` cannot be made; a failure
        in the background is logged and counted in the metrics. O(changed).

        >>> state = hs.open("state")
        >>> state.key_value("users")["ann"] = 1
        >>> state.commit()
        1
        >>> state.checkpoint(wait=True)
        >>> state.metrics().checkpoint_version
        1
        """
        log = self._usable()
        if not self._group.journal.empty:
            raise HybridStoreError(
                f"{self.path}: checkpoint: found uncommitted changes, expected none (commit or roll back before it)"
            )
        self._checkpoints.finish(wait=True)
        if self._checkpoint(log, wait=wait) and self._checkpoints.failure is not None:
            raise self._checkpoints.failure

    def _checkpoint(self, log: Log, *, wait: bool) -> bool:
        """Begin a checkpoint of the last commit; False if that checkpoint exists, or nothing has to be written."""
        group, checkpoints = self._group, self._checkpoints
        if group.version == checkpoints.version:
            return False
        with MarkedStep(self, "the beginning of a checkpoint"):
            log.part_here()
        target = Target(self._home.storage, self._identity, group.version, group.digest, log.position)
        # A changelog that ends before the place to which a checkpoint refers is damaged, so the log is synced first.
        tidy = partial(self._home.prune, checkpoints.policy.keep)
        beside = partial(self._home.job, target, None if checkpoints.reader is None else str(checkpoints.reader.name))
        checkpoints.begin(target, before=log.sync, prune=tidy, beside=beside, wait=wait)
        return True

    @entry_of_all
    def snapshot(self) -> Snapshot:
        """Return the stores at the last commit, which every thread may read while this state changes; see `Snapshot`.

        Raises StateClosedError, StatePoisonedError, and as `open`. O(pages + tail), as `open(at=)`.

        >>> hs.open("state").snapshot()
        <Snapshot of version 0, stores: none>
        """
        if not self._read_only:
            self._usable()
        asked = replace(self._asked, at=self._group.version, lazy=True, memory_limit=None)
        opened = State.at_home(self._home.again(asked), asked)
        return snapshot_of(self._group, opened._group, opened.close, opened._memory.count)

    # --- looking, closing -------------------------------------------------------------------------------------

    @entry_of_all
    def metrics(self) -> Metrics:
        """Return the numbers of this store as of now. O(blocks), and in a sliding store O(keys).

        >>> state = hs.open("state")
        >>> state.key_value("users")["ann"] = 1
        >>> state.commit()
        1
        >>> numbers = state.metrics()
        >>> numbers.records, numbers.dropped
        ({'users': 1}, {'users': {'expired': 0}})
        """
        return self._metrics()

    def _metrics(self, *, anew: bool = True) -> Metrics:
        """Return `metrics()`; `anew` as `Memory.numbers`, for who asks at each commit."""
        written = 0 if self._log is None else self._log.bytes_written
        return metrics_of(self._group, self._checkpoints, self._memory, written, anew=anew)

    def close(self) -> None:
        """Commit nothing, finish the checkpoint in progress, write a synced end mark, and release the directory.

        Uncommitted changes are lost. Closing twice is harmless. Raises StateInUseError in another thread than the
        owner's.

        >>> state = hs.open("state")
        >>> users = state.key_value("users")
        >>> state.close()
        >>> users.get("ann")
        Traceback (most recent call last):
            ...
        hybridstore.StateClosedError: state: the store is closed (open it again)
        """
        if os.getpid() == self._pid:
            self._close()

    @entry_of_all
    def _close(self) -> None:
        log, checkpoints, group = self._log, self._checkpoints, self._group
        try:
            if self._closed or not (self._read_only or self._home.claimed):
                return  # again: an earlier call may have been interrupted before all files were released
            if self._apart is not None or (log is not None and log.health.poisoned):
                if checkpoints.attempt is not None:
                    checkpoints.attempt.join()
                return  # the caller that saw the failure knows of it; the disk has the last commit
            if log is not None:
                checkpoints.finish(wait=True)
                self._home.check()
                if not group.journal.empty:
                    log.rollback(group)
                elif checkpoints.policy.due_at_close(checkpoints.since):
                    self._checkpoint(log, wait=True)
                log.close(group)
                self._home.release(group)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Release all files and memory, and write nothing."""
        self._closed = True
        self._turn.let_all()
        BUDGET.leave(self._memory)
        self._checkpoints.close()
        self._leave_pauses()
        if self._log is not None:
            self._log.close(None)
        self._home.release()
        self._memory.forget()
        self._group.refuse_calls(StateClosedError(f"{self.path}: the store is closed (open it again)"))

    def _inherited(self) -> None:
        """In a forked child: every store refuses, and the files stay the parent's."""
        self._turn.let_all()
        self._group.refuse_calls(StateClosedError(self._not_here()))
        if self._log is not None:
            self._log.close(None)
        self._home.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"version {self._group.version}"
        return f"<State {str(self.path)!r}, {state}, stores: {', '.join(self._group.stores) or 'none'}>"


open_store = State.open
