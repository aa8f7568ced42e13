"""Checkpointer: the checkpoints of one group of stores, written in the background.

    owner    begin: copy the changes                   finish: changes count from the new checkpoint on
    thread                write the checkpoint, prune

An open state directory and a shard of a Spark operator use the same class. A failed checkpoint fails no commit, because
the changelog holds every version. The failure is logged, counted, and raised only to a caller that waits for the
checkpoint; the copied records count as changed again, and the policy begins no other checkpoint for `RETRY_SECONDS`.
"""

from __future__ import annotations

import threading
import time
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
from recovery.errors import CheckpointError
from recovery.write import CheckpointReport, write_checkpoint

from .group import StoreGroup
from .hydration import pass_on
from .log_lines import info, warn
from .memory_budget import BUDGET, pack_bytes
from .policy import CheckpointPolicy, Logged

if TYPE_CHECKING:
    from ..stores.buckets import Sealed

RETRY_SECONDS: Final = 30.0

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


class Attempt:
    """One checkpoint in progress: the thread, its input, and its outcome."""

    def __init__(
        self,
        target: Target,
        sealed: list[Sealed],
        since: Logged,
        write: Callable[[], CheckpointReport],
        prune: Step | None,
    ) -> None:
        self.target = target
        self.sealed = sealed
        self.since = since
        self.report: CheckpointReport | None = None
        self.error: Exception | None = None
        self.prune_error: Exception | None = None
        self._write = write
        self._prune = prune
        # None until it begins: a thread that was never started would be part of a cycle with the attempt.
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """True while the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> bool:
        """Run in the thread; False if the system gives no thread: the attempt has then failed."""
        self._thread = threading.Thread(target=self.run, name="hybridstore-checkpoint", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread, self.error = None, error
            return False
        return True

    def join(self, seconds: float | None = None) -> None:
        """Return when the thread has ended, or was never begun, or after `seconds`."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(seconds)

    def run(self) -> None:
        """Write the checkpoint, then prune, and keep the outcome of both.

        Raises nothing: the owner reads the outcome.
        """
        try:
            self.report = self._write()
        except Exception as error:
            self.error = error
            return
        try:
            if self._prune is not None:
                self._prune()
        except Exception as error:
            self.prune_error = error


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
        self.reader: CheckpointReader | None = None
        # The records logged since the begin of the last checkpoint, and the time of that begin (s, wall clock).
        self.since = Logged()
        self.begun = time.time()
        self.attempt: Attempt | None = None
        # The error for a caller that waited for the last attempt; None unless the attempt has failed.
        self.failure: CheckpointError | None = None
        self.written = 0
        self.failed = 0
        self.failed_clearings = 0
        self.last: CheckpointReport | None = None
        self.pause_ms: float | None = None
        # How long a restart waits for a commit of the changelog, besides the replay.
        self.commit_seconds: Callable[[], float] = lambda: 0.0
        self._group = group
        self._where = where
        self._sizes = sizes
        self.apart = apart
        self._retry_at = 0.0

    @property
    def version(self) -> int:
        """The version of the checkpoint in use; 0 if none exists."""
        return 0 if self.reader is None else self.reader.meta.version

    @property
    def behind(self) -> Logged:
        """The records logged behind the checkpoint in use; a checkpoint in progress does not count. O(1)."""
        return self.since if self.attempt is None else self.since.plus(self.attempt.since)

    def due(self) -> bool:
        """True when the policy asks for a checkpoint now. O(1)."""
        if not self.ready():
            return False
        records = 0 if self.reader is None else self.reader.meta.records
        return self.policy.due(self.since, time.time() - self.begun, records, self.commit_seconds())

    def estimate(self, logged: Logged) -> float:
        """Return the estimated seconds of a restart with this much changelog behind the checkpoint. O(1)."""
        return self.policy.estimate(logged, self.commit_seconds())

    def ready(self) -> bool:
        """True when no checkpoint is in progress, and none has failed a moment ago. O(1)."""
        return self.attempt is None and (self.failure is None or time.monotonic() >= self._retry_at)

    def begin(
        self, target: Target, *, before: Step | None = None, prune: Step | None = None, wait: bool = False
    ) -> None:
        """Copy the changes, and make a checkpoint in the background; `wait` returns when the checkpoint is durable.

        `before` runs first in the same thread, and `prune` last, which removes files that the new checkpoint replaces.
        Call `finish` first. A failure is logged and counted, see `failure`. O(changed).
        """
        started = time.perf_counter()
        self.failure = None
        try:
            previous = None if self.reader is None else self.reader.twin()
        except (OSError, HybridStoreError) as error:
            self.fail(target.version, error)
            return
        with self.apart("the beginning of a checkpoint"):
            captures, settings = self._group.capture(), dict(self._group.settings)
            # under a limit single records are read
            write = partial(self._write, target, captures, previous, settings, before, BUDGET.limit is not None)
            attempt = Attempt(target, self._group.seal(), self.since, write, prune)
            self.attempt = attempt
            self.since = Logged()
        self.begun = time.time()
        self.pause_ms = (time.perf_counter() - started) * 1000
        if wait:
            attempt.run()
        if wait or not attempt.begin():
            self.finish(wait=True)

    def _write(
        self,
        target: Target,
        captures: list[StoreCapture],
        previous: CheckpointReader | None,
        settings: dict[str, Any],
        before: Step | None,
        tables: bool,
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
        )

    def finish(self, *, wait: bool) -> CheckpointReport | None:
        """Use a finished checkpoint: changes are collected against it from now on. Returns its report, once.

        None without a finished checkpoint: no attempt, an attempt in progress (unless `wait`), or a failed one. Cold
        blocks are still read from the packs of the checkpoint before, which stay open for that. O(packs).
        """
        attempt = self.attempt
        if attempt is None or (attempt.running and not wait):
            return None
        attempt.join()
        with self.apart("the end of a checkpoint"):
            return self._take_over(attempt)

    def _take_over(self, attempt: Attempt) -> CheckpointReport | None:
        self.attempt = None
        report = attempt.report
        try:
            if report is None:
                raise attempt.error or CheckpointError("the checkpoint ended without a report")
            reader = CheckpointReader(attempt.target.storage, report.name, marks=True)
        except Exception as error:
            # Whatever the error is, the changelog has the captured records.
            self._group.unseal(attempt.sealed)
            self.since = self.since.plus(attempt.since)
            self.fail(attempt.target.version, error)
            return None
        pass_on(self.reader, reader)
        self.reader = reader
        self.last = report
        self.written += 1
        info(
            "%s: checkpoint of version %d made: %d bytes in %.3f s",
            self._where, report.version, report.bytes_written, report.seconds,
        )  # fmt: skip
        if attempt.prune_error is not None:
            self.failed_clearings += 1
            self._warn(
                f"{self._where}: files that nothing needs could not be removed: {attempt.prune_error} (they are "
                "removed behind the next checkpoint)",
                attempt.prune_error,
            )
        return report

    def fail(self, version: int, error: Exception) -> None:
        """Note that the checkpoint of `version` was not made: log, count, and wait with the next one. O(1)."""
        self.failed += 1
        now = time.monotonic()
        shown, self._retry_at = now >= self._retry_at, now + RETRY_SECONDS
        self.failure = CheckpointError(
            f"{self._where}: the checkpoint of version {version} failed: {error} (no commit is lost: the changelog "
            "holds every version; a later checkpoint tries again)"
        )
        self.failure.__cause__ = error
        if shown:  # at most once in RETRY_SECONDS, however often a checkpoint is tried
            self._warn(str(self.failure), error)

    def _warn(self, message: str, error: Exception) -> None:
        foreseen = isinstance(error, OSError | HybridStoreError | RuntimeError)
        warn("%s", message, error=None if foreseen else error)
