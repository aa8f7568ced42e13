"""Shard: the stores of one shard in this process's memory, at one version.

    load      from memory, by the objects behind the version in memory, or by the ladder (`recovery.ladder`)
    commit    one object, created under the name of an attempt (`log`)
    begin_checkpoint   in the background, after a commit

A shard leaves memory through the cache (`cache`); what nothing needs is removed by `pruning`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from changelog.errors import HybridStoreError
from changelog.frame import CommitFrame
from changelog.reader import LoggedVersion
from changelog.segment import Position
from changelog.storage import Storage
from recovery.attempts import Absent, AttemptLine
from recovery.checkpoint import CheckpointReader
from recovery.compaction import Sizes
from recovery.fetching import FETCHING
from recovery.ladder import climb, go_on
from recovery.layout import CHECKPOINTS, LOG, LogName, list_checkpoints, log_before
from recovery.line import EMPTY, Step
from recovery.rule import MissingParent, Runs, launch_of
from recovery.runs import Claim
from recovery.shard_log import METRICS, SINCE, encode_object

from ...state.checkpointer import Checkpointer, Target
from ...state.group import StoreGroup
from ...state.long_tail import is_long
from ...state.memory import memory_bytes
from ...state.numbers import added
from ...state.policy import CheckpointPolicy, Logged, commit_seconds
from .log import AttemptLog, Since

if TYPE_CHECKING:
    from ...reading.version import Version as OpenVersion

# Up to this distance a version in memory catches up, instead of attaching a newer checkpoint.
CATCH_UP: Final = 64
# Counting is O(keys) for some kinds of stores: a shard is measured again after so many tasks or logged records.
MEASURE_TASKS: int = 16
MEASURE_RECORDS: int = 1000
# Log objects whose parents a shard remembers: more than lie behind two checkpoints, about 400 bytes each.
KEPT_PARENTS: int = 512


class LoadedVersion(NamedTuple):
    """The place of the stores in a process's memory.

    step      the step of their newest object
    version   the version of the stores: batches after `step` changed nothing
    run_id    the run that has loaded or committed this version ("": none)
    since     the records logged behind the last checkpoint
    """

    step: Step = EMPTY
    version: int = 0
    run_id: str = ""
    since: Since = Since()


class Loaded(NamedTuple):
    """How a version was loaded: "empty", "hit", "catch-up", "checkpoint" or "changelog", with the numbers of replayed
    and skipped objects, and the checkpoint that was attached.
    """

    kind: str
    reached: LoadedVersion
    checkpoint: CheckpointReader | None = None
    replayed: Logged = Logged()
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, opened: OpenVersion) -> Loaded:
        """Return how a version was opened for reading."""
        kind = "checkpoint" if opened.reader is not None else "changelog" if opened.tail.commits else "empty"
        reached = LoadedVersion(opened.step, opened.number, since=Since(opened.tail))
        return cls(kind, reached, opened.reader, opened.tail)


class Atomic:
    """A `with` block around code that changes the stores of a shard in steps; `broken` after an exception in it.

    A method of the shard would be part of a cycle with the shard's checkpoints.
    """

    def __init__(self) -> None:
        self.broken = False

    @contextmanager
    def __call__(self, _: str) -> Iterator[None]:
        """Enclose one change."""
        self.broken = True
        yield
        self.broken = False


class _Counter:
    """Counts the versions that a load applies: how much, and the numbers of the newest one (None: none was applied)."""

    def __init__(self, group: StoreGroup) -> None:
        self._group = group
        self.began(None)

    def began(self, reader: CheckpointReader | None) -> None:
        """Begin again, behind a checkpoint."""
        self.replayed = Logged()
        self.since: Since | None = None

    def __call__(self, version: LoggedVersion) -> None:
        """A version was applied."""
        commit = version.commit
        self.replayed = self.replayed.plus(Logged.of(1, version.size, commit.records, self._group.kinds))
        self.since = Since.of(commit)


class Shard:
    """The stores of one shard at one version, and the checkpoint that their cold blocks come from; `storage` is the
    shard's.
    """

    def __init__(self, storage: Storage, policy: CheckpointPolicy, sizes: Sizes) -> None:
        self._bodies: list[bytes] = []
        self.group = StoreGroup(self._bodies.append)
        self.reached = LoadedVersion()
        # The parents of the newest log objects that this process has read or written: pruning asks for them.
        self.parents: dict[LogName, Step] = {}
        # The time that the shard's last commit in this process took, which the object of the next one tells.
        self.commit_ms = 0.0
        self.steps = Atomic()
        self.checkpoints = Checkpointer(self.group, storage.url, policy, sizes, self.steps)
        self.checkpoints.commit_seconds = partial(commit_seconds, storage)
        # An object of the owner, kept as long as the stores do not change outside of its use: through hits, not through
        # catching up.
        self.runner: Any = None
        self.checkpoint_due = False
        # True from the load of a checkpoint to the first commit, after which its packs are fetched to this host.
        self.packs_due = False
        # True when its checkpoint was pruned and changes can no longer be captured against it.
        self.is_behind = False
        # How many finished checkpoints are in use, and for how many of them old files were removed.
        self.cleared = 0
        # The batch is committed before old files are removed, so a failure does not fail the batch: the metrics count
        # it.
        self.failed_clearings = 0
        # How many versions were loaded or written of which attempts differ, and the digests that other attempts of this
        # launch have written for the version after the loaded one.
        self.differing = 0
        self._rivals: frozenset[str] = frozenset()
        self._is_loaded = False
        # What the shards of this process may take (bytes, None: no limit), as its cache says.
        self.limit: int | None = None
        # An estimate of its bytes in memory, and how many tasks and logged records ago it was made.
        self.measured = 0
        self._tasks = MEASURE_TASKS
        self._logged = 0

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, log: AttemptLog, version: int, runs: Runs, run_id: str) -> Loaded:
        """Bring the stores to a version under the runs `runs`, for an attempt of run `run_id`.

        A version that this run has in memory needs no read. Else the read takes two rounds of requests: the names of
        checkpoints and of the log; then the objects behind a version in memory, or the index of the newest sound
        checkpoint and the objects behind it. A damaged checkpoint is skipped. Raises MissingVersionError,
        SkippedBatchError, StaleAttemptError, CorruptFrameError, DigestMismatchError or ForeignFileError, and the shard
        is then unusable.
        """
        started = time.perf_counter()
        if self._is_loaded:
            self.checkpoints.finish(wait=self.reached.version != version)
            if self.reached[1:3] == (version, run_id):
                self.differing, self._rivals = 0, frozenset()
                return Loaded("hit", self.reached, seconds=time.perf_counter() - started)
        base = self.reached.step.version
        try:
            log.outlook.begin({CHECKPOINTS: "", LOG: log_before(base) if base else ""})
            with log.missing(version):
                loaded = self._catch_up(log, version, runs, run_id) if self._is_loaded else None
                if loaded is None:
                    loaded = self._climb(log, version, runs, run_id)
        finally:
            log.outlook.end()
        self._is_loaded, self.reached = True, loaded.reached
        self.group.reached(*loaded.reached.step)
        if loaded.kind != "hit":
            self.runner = None
        return loaded._replace(seconds=time.perf_counter() - started)

    def _catch_up(self, log: AttemptLog, version: int, runs: Runs, run_id: str) -> Loaded | None:
        """Replay the missing versions on the version in memory; None if that version is not of the line, or too far
        behind.
        """
        base = self.reached.step.version
        newest = max((name.version for name in list_checkpoints(log.outlook) if name.version <= version), default=0)
        behind = version - base
        if behind < 0 or (behind > CATCH_UP and newest > base):
            return None
        line, counter = log.line(version, runs, run_id), _Counter(self.group)
        try:
            tail = line.behind_step(self.reached.step)
        except (MissingParent, Absent, FileNotFoundError, HybridStoreError):
            # The missing objects may have been pruned behind a checkpoint; if not, the full load reports them.
            return None
        if tail is None:
            return None
        step, _ = go_on(tail, self.group, self.reached.step, applied=counter)
        reached = LoadedVersion(step, version, run_id, counter.since or self.reached.since)
        self._follow(line, version)
        return Loaded("catch-up" if line.line else "hit", reached, replayed=counter.replayed)

    def _climb(self, log: AttemptLog, version: int, runs: Runs, run_id: str) -> Loaded:
        """Load the newest sound checkpoint of the line, and what lies behind it."""
        line, counter = log.line(version, runs, run_id), _Counter(self.group)
        climbed = climb(line, self.group, began=counter.began, applied=counter)
        reader = climbed.reader
        if reader is not None:
            kind, since = "checkpoint", Since(wall_ms=reader.meta.wall_ms)
        else:
            kind, since = "changelog" if line.line else "empty", Since()
        self.checkpoints.reader, self.packs_due = reader, reader is not None
        self._follow(line, version)
        reached = LoadedVersion(climbed.step, version, run_id, counter.since or since)
        return Loaded(
            kind, reached, reader, counter.replayed, skipped=tuple(str(error) for _, error in climbed.skipped)
        )

    def _follow(self, line: AttemptLine, version: int) -> None:
        """Note what a line says beside the content of its objects."""
        self.differing = line.standing.differing()
        self._rivals = frozenset(name.digest8 for name in line.standing.attempts.get(version + 1, ()))
        self._remember(reversed(line.line))

    def _remember(self, line: Iterable[tuple[LogName, Step]]) -> None:
        """Remember the parents of log objects, which come oldest first. O(objects)."""
        self.parents.update(line)
        while len(self.parents) > KEPT_PARENTS:
            del self.parents[next(iter(self.parents))]

    def doubt(self) -> None:
        """Have the next load compare the version in memory with the log, although this run has committed it."""
        self.reached = self.reached._replace(run_id="")

    # --- committing ---------------------------------------------------------------------------------------------------

    def commit(
        self, log: AttemptLog, run: Claim, attempt: int, numbers: Callable[[Logged, Since], dict[str, Any]]
    ) -> None:
        """Create the object of the next version, with its numbers: `numbers` gets what the commit logs, and what is
        logged since the last checkpoint. O(changes), one create. Raises CannotCommitError.
        """
        started, wall_ms = time.perf_counter(), int(time.time() * 1000)
        group, parent, version = self.group, self.reached.step, self.reached.version + 1
        digest = group.journal.seal()
        if self._rivals - {digest[:4].hex()}:
            self.differing += 1
        counts = group.journal.records
        logged = Logged.of(1, sum(map(len, self._bodies)), counts, group.kinds)
        since = self.reached.since if self.reached.since.wall_ms else Since(wall_ms=wall_ms)
        since = since._replace(logged=since.logged.plus(logged))
        totals = since.totals
        if totals is None:
            # Only a checkpoint was read: the object of its version has the counts so far.
            totals = {} if parent == EMPTY else log.totals(parent)
        brief = numbers(logged, since)
        totals = added(totals, brief)
        since = since._replace(totals=totals)
        due = self._is_due(since)
        # The object notes that a checkpoint was begun, so that only one of many workers makes it.
        since = Since(wall_ms=wall_ms, totals=totals) if due else since
        fields = {METRICS: {"wall_ms": wall_ms, **brief, "totals": totals}, SINCE: since.plain()}
        commit = CommitFrame(version, digest, counts, wall_ms, group.stream_times(), fields)
        data = encode_object(log.identity, parent, commit, self._bodies)
        self._bodies.clear()
        name = LogName(version, run.launch, attempt, digest[:4].hex())
        log.create(name, data)
        self._remember([(name, parent)])
        self.commit_ms = round((time.perf_counter() - started) * 1000, 3)
        self.checkpoint_due = due
        self.reached = LoadedVersion(Step(version, digest), version, run.run_id, since)
        group.committed(version, digest)
        if self.packs_due and self.checkpoints.reader is not None:
            FETCHING.add(self.checkpoints.reader)
        self.packs_due = False

    def _is_due(self, since: Since) -> bool:
        checkpoints = self.checkpoints
        checkpoints.since, checkpoints.begun = since.logged, since.wall_ms / 1000 if since.wall_ms else time.time()
        due, reader = checkpoints.due() or is_long(since.logged, self.limit), checkpoints.reader
        if due and reader is not None and not reader.exists():
            # Another process has pruned the checkpoint against which changes are collected: the next load attaches a
            # newer one.
            self.is_behind = True
            return False
        return due

    # --- checkpoints, memory ------------------------------------------------------------------------------------------

    @property
    def due_at_close(self) -> bool:
        """Whether the next load would miss the policy's aim without a checkpoint."""
        return self.checkpoints.policy.due_at_close(self.checkpoints.since)

    def begin_checkpoint(self, log: AttemptLog, runs: Runs, *, wait: bool = False) -> None:
        """Begin a checkpoint of the version in memory, unless it has one. O(changed)."""
        self.checkpoint_due = False
        self.checkpoints.finish(wait=True)
        reader, step = self.checkpoints.reader, self.reached.step
        if reader is not None and (reader.meta.version == step.version or not reader.exists()):
            # Another process has pruned the file against which changes are collected: only a reload can checkpoint
            # again.
            return
        position = Position(step.version, 0, 0)
        target = Target(log.storage, log.identity, step.version, step.digest, position, launch_of(runs, step.version))
        self.checkpoints.begin(target, wait=wait)

    def measure(self) -> None:
        """Estimate the bytes in memory, from time to time: records, and the bytes logged since the checkpoint."""
        logged = self.reached.since.logged
        self._tasks += 1
        if self._tasks >= MEASURE_TASKS or abs(logged.records - self._logged) >= MEASURE_RECORDS:
            self.measured = memory_bytes(self.group) + logged.bytes
            self._tasks, self._logged = 0, logged.records

    def memory_numbers(self, limit: int) -> dict[str, Any]:
        """Return the numbers of memory under a limit, as the metrics have them, by the last count. O(1)."""
        traffic = self.checkpoints.traffic
        read = {"blocks_read": traffic.blocks, "tables_read": traffic.tables, "bytes_read": traffic.bytes}
        return {"memory_bytes": self.measured, "memory_limit_bytes": limit, **read}

    @property
    def settled(self) -> bool:
        """True when this process has no work left that only it can finish: no checkpoint is due or in progress, and the
        files behind the last checkpoint are removed.
        """
        checkpoints = self.checkpoints
        return not self.checkpoint_due and checkpoints.attempt is None and self.cleared >= checkpoints.written

    def free(self) -> None:
        """Free the records. The shard cannot be used afterwards.

        The surprise: dropping the reference is not enough. The user's program may be part of a cycle with the stores,
        and a worker's collector visits frozen objects only after they have grown by half.
        """
        self.runner = None
        for store in self.group.stores.values():
            store.clear_state()
        self.checkpoints.reader = None
