"""Checkpointer: the checkpoints of one group of stores, written in the background.

    owner    begin: seal the changes                   finish: changes count from the new checkpoint on
    work                  write the checkpoint, prune

The work is done in a thread, of a copy of the changes; or, in a directory and after many changes, by the writer process
(`writer_process`), which reads the changes from the changelog, so that the owner copies nothing and has the interpreter
to itself.

An open state directory and a shard of a Spark operator use the same class. A failed checkpoint fails no commit, because
the changelog holds every version. The failure is logged, counted, and raised only to a caller that waits for the
checkpoint; the sealed changes count as changed again, and the policy begins no other checkpoint for `RETRY_SECONDS`
(under a limit of memory for a second at first), but at once in the thread where the process has failed.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from changelog.errors import HybridStoreError
from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import Storage
from recovery.block import StoreCapture
from recovery.checkpoint import CheckpointReader
from recovery.compaction import Sizes
from recovery.directory import Traffic
from recovery.errors import CheckpointError
from recovery.finder import FinderMaps
from recovery.write import CheckpointReport, write_checkpoint

from ..collector import SHORT_PAUSES
from .checkpoint_job import PIECE_RECORDS, Job, Outcome, opened, outcome_of, words
from .group import StoreGroup
from .hydration import pass_on
from .log_lines import info, warn
from .memory_budget import BUDGET, pack_bytes
from .policy import RECORD_BYTES, CheckpointPolicy, Logged

if TYPE_CHECKING:
    from ..stores.buckets import Sealed
    from .writer_process import Pending

RETRY_SECONDS: Final = 30.0
# Under a limit of memory, which a late checkpoint breaks, the first time of waiting is so long, and each further one
# twice as long, up to that.
_FIRST_RETRY_SECONDS: Final = 1.0
# The changes that the writer process is for: a thread is done with fewer records in milliseconds. The process takes
# 30 MB, and more at work (`checkpoint_job`).
BESIDE_RECORDS: Final = 4096
# Under a limit of memory the process is there, and makes smaller ones, too, of one for so many of these: what a thread
# takes, blocks, tables and packs, would be beside the limit, and each step of a commit waits for the interpreter.
_LIMITED_SHARE: Final = 8
_MOST_RECORDS: Final = 1_000_000
_MOST_BYTES: Final = 64 << 20
# Under a limit a thread makes those of more records than the process has in memory at a time, where one in so many is
# of another key: it copies little, and the process would replay them all, piece by piece.
_OF_A_KEY: Final = 4
# After so many failures of the process, one after the other, a state does without it.
_MOST_FAILURES: Final = 3
# How long the first checkpoint is expected to take for each record, and by how much of its time a late one is expected
# to be later.
_RECORD_SECONDS: Final = 20e-6
_LATER: Final = 0.25
# While the process starts, a thread makes the checkpoints of fewer records than it is for without a limit, if they have
# no more bytes than these in the log.
_MOST_HERE: Final = 1 << 20
# How long the writer process takes to start: 0.15 s of processor time at best.
_START_SECONDS: Final = 0.25
# So many blocks were read whole for a record each, because they have no table: a checkpoint is due that writes blocks
# anew with tables, up to so many bytes of them; and so many in a thread of the owner.
_TABLELESS_READS: Final = 64
_TABLELESS_BYTES: Final = 16 << 20
_TABLELESS_HERE: Final = 1 << 20
# How long a caller that waits for the process waits between two looks at it.
_LOOK_SECONDS: Final = 1.0

Step = Callable[[], object]
StepMarker = Callable[[str], AbstractContextManager[None]]


class Target(NamedTuple):
    """The subject and the place of a checkpoint: a version, its place in the changelog, the launch of a Spark query."""

    storage: Storage
    identity: Identity
    version: int
    digest: bytes
    position: Position
    launch: int = 0


def _beside_records() -> int:
    """Return how many changed records at least the writer process is for. O(1)."""
    return BESIDE_RECORDS if BUDGET.limit is None else BESIDE_RECORDS // _LIMITED_SHARE


def _worth(logged: Logged) -> int:
    """Return how many records determine how long a checkpoint takes: few take as long as some thousands. O(1)."""
    return max(1, logged.records, BESIDE_RECORDS)


class Attempt:
    """One checkpoint in progress: its input, what to take back if it fails, and its outcome (None until it has ended).

    The work is done by a thread of the owner, or by the caller of `run`. The checkpoint is opened there, too, so that
    the commit that takes it over waits for no file.
    """

    # Whether its copy of the changes is in the memory of the owner's process.
    copies = True
    # How long what does the work takes to start (s of work).
    start = 0.0

    def __init__(self, target: Target, sealed: list[Sealed], since: Logged, work: Callable[[], Outcome]) -> None:
        self.target = target
        self.sealed = sealed
        self.since = since
        self.outcome: Outcome | None = None
        self._work = work
        # None until it begins: a thread that was never started would be part of a cycle with the attempt.
        self._thread: threading.Thread | None = None
        self._begun = time.process_time()
        self._waited = 0.0

    @property
    def seconds(self) -> float:
        """How long this process has worked, or has waited for the attempt, since it was begun (s). O(1).

        Records come in only in this time, and not while the process waits for its input, for the disk, or for a machine
        that others use: how many more come in until a checkpoint has been made depends on the time that work takes.
        """
        return time.process_time() - self._begun + self._waited

    @property
    def running(self) -> bool:
        """True while it is in progress in the background."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> bool:
        """Begin in the background; False if the system gives no thread: the attempt has then failed."""
        self._thread = threading.Thread(target=self.run, name="hybridstore-checkpoint", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread, self.outcome = None, Outcome(None, error)
            return False
        return True

    def wait(self, seconds: float) -> float:
        """Return when it has ended, or was never begun, or after `seconds`, which count as time of work; the answer is
        how long the call took (s).
        """
        begun = time.monotonic()
        self.join(seconds)
        waited = min(seconds, time.monotonic() - begun)
        self._waited += waited
        return waited

    def join(self, seconds: float | None = None) -> None:
        """Return when it has ended, or was never begun, or after `seconds`; at once where the interpreter ends, whose
        threads work no more.
        """
        if self._thread is not None and self._thread.ident is not None and not sys.is_finalizing():
            self._thread.join(seconds)

    def run(self) -> None:
        """Do the work, and keep its outcome. Raises nothing: the owner reads the outcome."""
        self.outcome = opened(self.target.storage, self._work())


class AttemptBeside(Attempt):
    """An attempt whose work is done by the writer process: it was given the job `pending`."""

    copies = False

    def __init__(self, target: Target, sealed: list[Sealed], since: Logged, pending: Pending) -> None:
        super().__init__(target, sealed, since, partial(Outcome, None))
        self._pending = pending
        if not pending.process.ready:
            self.start = _START_SECONDS

    @property
    def running(self) -> bool:
        """True until the process has answered or has ended. A process that says nothing any more is ended here."""
        pending = self._pending
        if not pending.done.is_set() and pending.process.silent():
            pending.process.kill("said nothing, and was ended")
        return not pending.done.is_set()

    def begin(self) -> bool:
        """See `Attempt`: the process works already."""
        return True

    def join(self, seconds: float | None = None) -> None:
        """See `Attempt`."""
        done = self._pending.done
        if seconds is not None:
            done.wait(seconds)
        else:
            while self.running and not sys.is_finalizing():
                done.wait(_LOOK_SECONDS)
        self.outcome = self._pending.outcome


class Checkpointer:
    """Makes the checkpoints of `group`, one at a time, and keeps the newest one, against which changes are collected.

    where    the place that messages name
    sizes    bounds of the parts of a checkpoint
    apart    a `with` block around code that changes the stores in steps; after an exception in it they are
             unusable
    """

    def __init__(
        self, group: StoreGroup, where: object, policy: CheckpointPolicy, sizes: Sizes, apart: StepMarker
    ) -> None:
        self.policy = policy
        # what was read of the blocks of all checkpoints that were in use
        self.traffic = Traffic()
        self._reader: CheckpointReader | None = None
        # The records logged since the begin of the last checkpoint, and the time of that begin (s, wall clock).
        self.since = Logged()
        self.begun = time.time()
        self.attempt: Attempt | None = None
        # The error for a caller that waited for the last attempt; None unless the attempt has failed.
        self.failure: CheckpointError | None = None
        self.written = 0
        self.failed = 0
        # of these, the checkpoints and failures of the writer process
        self.written_beside = 0
        self.failed_beside = 0
        self.failed_clearings = 0
        # Of all checkpoints that were in use, as long as stores may load blocks from them.
        self._readers: weakref.WeakSet[CheckpointReader] = weakref.WeakSet()
        self.last: CheckpointReport | None = None
        self.pause_ms: float | None = None
        # How long a restart waits for a commit of the changelog, besides the replay.
        self.commit_seconds: Callable[[], float] = lambda: 0.0
        # Raises unless this process is the owner, as far as it is to be one.
        self._check_owner: Callable[[], None] = lambda: None
        # Whether the writer process can make the checkpoints.
        self.can_beside: Callable[[], bool] = lambda: False
        self._group = group
        # where records are, as the writer process says it
        self._maps = FinderMaps()
        self._where = where
        self._sizes = sizes
        self.apart = apart
        self._retry_at = self._warned_at = 0.0
        # failures since the last checkpoint
        self._failures = 0
        # The last attempt of the writer process has failed: the next one is made here.
        self._alone = False
        # No process could be started, or took the job, or it failed again and again: it is not tried again.
        self._refused = False
        self._failed_in_a_row = 0
        self._expected = False
        # how long checkpoints took for each record of theirs (s of work), the last ones most
        self._record_seconds = _RECORD_SECONDS
        # of the blocks that were read whole for a record, those before the begin of the last checkpoint
        self._tableless = 0

    @property
    def reader(self) -> CheckpointReader | None:
        """The checkpoint in use, None if none exists."""
        return self._reader

    @reader.setter
    def reader(self, reader: CheckpointReader | None) -> None:
        if reader is not None:
            reader.traffic, reader.check_owner = self.traffic, self._check_owner
            self._readers.add(reader)
            before = self._reader
            attached = before is not None and before.name == reader.name
            if attached and before is not None:
                reader.finders = before.finders
            for store in self._group.stores.values():
                store.use_finder(reader.finders.get(store.number), attached=attached)
        self._reader = reader

    def owned(self, check_owner: Callable[[], None]) -> None:
        """This process is the owner of the state from now on: `check_owner` raises when it is so no more. O(1)."""
        self._check_owner = check_owner
        if self._reader is not None:
            self._reader.check_owner = check_owner

    @property
    def version(self) -> int:
        """The version of the checkpoint in use; 0 if none exists."""
        return 0 if self.reader is None else self.reader.meta.version

    @property
    def weight(self) -> float:
        """How many records one that is read from the checkpoint in use counts as where memory is short. O(1)."""
        meta = None if self._reader is None else self._reader.meta
        return max(1.0, meta.size / max(1, meta.records) / RECORD_BYTES) if meta is not None else 1.0

    @property
    def behind(self) -> Logged:
        """The records logged behind the checkpoint in use; a checkpoint in progress does not count. O(1)."""
        return self.since if self.attempt is None else self.since.plus(self.attempt.since)

    @property
    def changes(self) -> Logged:
        """As `since`, with a record for each changed key at least: one eviction removes many records. O(stores)."""
        keys = sum(store.changed_keys[0] for store in self._group.stores.values())
        return self.since._replace(records=max(self.since.records, keys))

    def due(self) -> bool:
        """True when the policy asks for a checkpoint now. O(1)."""
        if not self.ready():
            return False
        records = 0 if self.reader is None else self.reader.meta.records
        now = time.time()
        self.begun = min(self.begun, now)  # a clock that was set back puts off no checkpoint
        if self.policy.due(self.since, now - self.begun, records, self.commit_seconds()):
            return True
        return self.since.commits > 0 and self._tableless_reads >= _TABLELESS_READS

    @property
    def _tableless_reads(self) -> int:
        """How many blocks were read whole for a record each since the begin of the last checkpoint, which can be
        written anew with tables. O(1) without such reads.
        """
        reads = self.traffic.tableless - self._tableless
        # whether packs are far is asked last, since that is asked of each pack
        return 0 if not reads or BUDGET.limit is None or self._reader is None or self._reader.far else reads

    def estimate(self, logged: Logged) -> float:
        """Return the estimated seconds of a restart with this much changelog behind the checkpoint. O(1)."""
        return self.policy.estimate(logged, self.commit_seconds())

    def ready(self) -> bool:
        """True when no checkpoint is in progress, and none has failed a moment ago. O(1)."""
        return self.attempt is None and (self.failure is None or time.monotonic() >= self._retry_at)

    def late(self, records: int, room: float, each: float) -> bool:
        """Return whether a checkpoint that begins with the next commit, of so many `records`, is expected to be made
        only when commits of as many, which take `each` (s), have used the `room` (records). O(stores).
        """
        changes = self.changes
        changes = changes._replace(records=changes.records + records)
        seconds = (1 + _LATER) * _worth(changes) * self._record_seconds
        return seconds > (room - changes.records) / records * each

    def remaining(self) -> float:
        """Return how long the checkpoint in progress is expected to take from now on (s of work, as `Attempt.seconds`),
        by those before it; 0 without one. O(1).
        """
        attempt = self.attempt
        if attempt is None:
            return 0.0
        passed = attempt.seconds
        return max(attempt.start + _worth(attempt.since) * self._record_seconds - passed, _LATER * passed)

    def begin(
        self,
        target: Target,
        *,
        before: Step | None = None,
        prune: Step | None = None,
        beside: Callable[[int], Job | None] | None = None,
        wait: bool = False,
    ) -> None:
        """Seal the changes, and make a checkpoint in the background; `wait` returns when the checkpoint is durable.

        `before` runs first in the same thread, and `prune` last, which removes files that the new checkpoint replaces.
        `beside` returns the same as a job for the writer process, which writes up to so many bytes of blocks without
        tables anew, or None. Call `finish` first. A failure is logged and
        counted, see `failure`. O(changed), and O(buckets) where the writer process does the work.
        """
        started = time.perf_counter()
        self.failure = None
        try:
            previous = None if self.reader is None else self.reader.twin()
        except (OSError, HybridStoreError) as error:
            self.fail(target.version, error)
            return
        tableless = _TABLELESS_BYTES if self._tableless_reads else 0
        self._tableless = self.traffic.tableless
        pending = None if wait or beside is None else self._given(target.storage, beside, tableless)
        with self.apart("the beginning of a checkpoint"):
            attempt: Attempt
            if pending is not None:
                attempt = AttemptBeside(target, self._group.seal(), self.since, pending)
                SHORT_PAUSES.sealed()  # not with copies, which it would visit
            else:
                captures, settings = self._group.capture(), dict(self._group.settings)
                here = min(tableless, _TABLELESS_HERE)
                # under a limit single records are read
                write = partial(
                    self._write, target, captures, previous, settings, before, BUDGET.limit is not None, here
                )
                attempt = Attempt(target, self._group.seal(), self.since, partial(outcome_of, write, prune))
            self.attempt = attempt
            self.since = Logged()
        self.begun = time.time()
        self.pause_ms = (time.perf_counter() - started) * 1000
        if wait:
            attempt.run()
        if wait or not attempt.begin():
            self.finish(wait=True)

    def expect(self, *, soon: bool) -> None:
        """Prepare for large checkpoints, because memory is limited: load the code of the writer process, which takes 6
        ms, and, when the first of them is due `soon`, start the process, so that it waits for the job. Once.
        """
        if self._expected or self._refused or not self.can_beside():
            return
        from .writer_process import WRITER

        if soon and self.since.weight >= _beside_records() // 4:
            self._expected = True
            try:
                WRITER.start(self)
            except OSError as error:
                self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        self._refused = True
        self.failed_beside += 1
        self._warn(f"{self._where}: checkpoints are made in a thread, because no process starts: {error}", error)

    def _given(self, storage: Storage, beside: Callable[[int], Job | None], tableless: int) -> Pending | None:
        """Give a checkpoint to the writer process; None if the owner has to make it."""
        records = self.changes.records
        weight = records if BUDGET.limit is None else self.changes.weight
        large = tableless and self._reader is not None and self._reader.meta.size > _TABLELESS_HERE
        fits = (large or _beside_records() <= weight) and records <= _MOST_RECORDS and self.since.bytes <= _MOST_BYTES
        if BUDGET.limit is not None and records > PIECE_RECORDS:
            fits = fits and records < _OF_A_KEY * sum(store.changed_keys[0] for store in self._group.stores.values())
        if not fits or self._alone or self._refused:
            return None
        from .writer_process import WRITER  # only here: few programs need it

        few = not tableless and records < BESIDE_RECORDS and self.since.bytes <= _MOST_HERE
        job = None if few and WRITER.starting else beside(tableless)
        if job is None:
            return None
        try:
            return WRITER.give(job, self, partial(opened, storage, maps=self._maps))
        except OSError as error:
            self._refuse(error)
            return None

    def _write(
        self,
        target: Target,
        captures: list[StoreCapture],
        previous: CheckpointReader | None,
        settings: dict[str, Any],
        before: Step | None,
        tables: bool,
        tableless: int,
    ) -> CheckpointReport:
        """Run in the thread: nothing of the live stores is touched."""
        if before is not None:
            before()
        return write_checkpoint(
            target.storage,
            identity=target.identity,
            version=target.version,
            digest=target.digest,
            position=target.position,
            settings=settings,
            captures=captures,
            previous=previous,
            launch=target.launch,
            sizes=self._sizes,
            pack_bytes=pack_bytes(),
            tables=tables,
            tableless=tableless,
        )

    def close(self) -> None:
        """No checkpoint is begun or read any more: the writer process may end, and packs are released, although a
        program may name the closed state, whose stores refuse calls. O(checkpoints whose blocks were not all loaded).
        """
        if (module := sys.modules.get(f"{__package__}.writer_process")) is not None:
            module.WRITER.leave(self)
        for reader in self._readers:
            reader.finders = {}
            reader.close()
        for store in self._group.stores.values():
            store.use_finder(None, attached=True)
        self._maps.clear()

    def finish(self, *, wait: bool) -> CheckpointReport | None:
        """Use a finished checkpoint: changes are collected against it from now on. Returns its report, once.

        None without a finished checkpoint: no attempt, an attempt in progress (unless `wait`), or a failed one. Cold
        blocks are still read from the packs of the checkpoint before, which stay open for that. O(1) unless it fails.
        """
        attempt = self.attempt
        if attempt is None or (attempt.running and not wait):
            return None
        attempt.join()
        with self.apart("the end of a checkpoint"):
            return self._take_over(attempt)

    def _take_over(self, attempt: Attempt) -> CheckpointReport | None:
        self.attempt = None
        beside = isinstance(attempt, AttemptBeside)
        report, error, prune_error, reader, _, busy = attempt.outcome or Outcome(None)
        if report is None or reader is None:
            self._group.unseal(attempt.sealed)
            self.since = self.since.plus(attempt.since)
            self._alone = beside
            self.failed_beside += beside
            self.fail(attempt.target.version, error or CheckpointError("the checkpoint ended without a report"))
            if beside:
                self._retry_at = 0.0  # at once: under a limit, memory would grow until then
                self._failed_in_a_row += 1
                self._refused = self._refused or self._failed_in_a_row >= _MOST_FAILURES
            return None
        pass_on(self.reader, reader)
        self.reader = reader
        self.last = report
        # where few records came in meanwhile, the processor time of the work says how long it would take beside many
        took = max(attempt.seconds - attempt.start, busy) / _worth(attempt.since)
        # a late one costs more than one that was expected to be
        self._record_seconds = max(took, (self._record_seconds + took) / 2)
        self.written += 1
        self.written_beside += beside
        self._alone = False
        self._failures = 0
        if beside:
            self._failed_in_a_row = 0
        info(
            "%s: checkpoint of version %d made: %d bytes in %.3f s",
            self._where, report.version, report.bytes_written, report.seconds,
        )  # fmt: skip
        if prune_error is not None:
            self.failed_clearings += 1
            self._warn(
                f"{self._where}: files that nothing needs could not be removed: {prune_error} (they are "
                "removed behind the next checkpoint)",
                prune_error,
            )
        return report

    def fail(self, version: int, error: Exception) -> None:
        """Note that the checkpoint of `version` was not made: log, count, and wait with the next one. O(1)."""
        self.failed += 1
        now, seconds = time.monotonic(), RETRY_SECONDS
        if BUDGET.limit is not None:
            seconds = min(seconds, _FIRST_RETRY_SECONDS * 2 ** min(self._failures, 10))
        self._failures += 1
        self._retry_at = now + seconds
        shown = now >= self._warned_at
        # what has changed is only freed when a checkpoint has it
        memory = "" if BUDGET.limit is None else "; until one is made, memory may grow beyond memory_limit"
        self.failure = CheckpointError(
            f"{self._where}: the checkpoint of version {version} failed: {words(error)} (no commit is lost: the "
            f"changelog holds every version; a later checkpoint tries again{memory})"
        )
        self.failure.__cause__ = error
        if shown:  # at most once in RETRY_SECONDS, however often a checkpoint is tried
            self._warned_at = now + RETRY_SECONDS
            self._warn(str(self.failure), error)

    def _warn(self, message: str, error: Exception) -> None:
        foreseen = isinstance(error, OSError | HybridStoreError | RuntimeError)
        warn("%s", message, error=None if foreseen else error)
