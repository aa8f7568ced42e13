"""The objects of one shard: loaded along the line that counts, committed by one create, pruned.

    log/<version>-<launch>-<attempt>-<digest>    checkpoints/...    packs/...

No object is overwritten or renamed, and none has to be removed: the names of objects and the runs of the query decide
which objects count (`recovery.rule`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from changelog.errors import ForeignFileError, HybridStoreError
from changelog.frame import Commit
from changelog.identity import Identity
from changelog.outlook import Outlook
from changelog.reader import Version
from changelog.segment import HEADER_BYTES
from changelog.storage import Storage
from recovery.attempts import Absent, AttemptLine
from recovery.checkpoint import CheckpointReader
from recovery.errors import CheckpointError
from recovery.ladder import checked, climb, go_on
from recovery.layout import CHECKPOINTS, LOG, PACKS, LogName, damage_name, list_checkpoints, log_before
from recovery.line import EMPTY, Step
from recovery.prune import collect_packs
from recovery.rule import NOTE, Lost, Runs, Standing, counts, launch_of, note, note_of
from recovery.runs import newest_claim
from recovery.shard_log import METRICS, SINCE, ShardLog, encode_note

from ...state.group import StoreGroup
from ...state.policy import Logged
from ..errors import CannotCommitError, MissingVersionError, SkippedBatchError, StaleAttemptError

# Up to this distance a version in memory catches up, instead of attaching a newer checkpoint.
CATCH_UP: Final = 64


class Since(NamedTuple):
    """The records logged since the begin of the last checkpoint, and the time of that begin (wall clock, ms; 0: never).

    `totals` are the numbers of all batches so far (`state.numbers.TOTALS`); None if no object with them was read.
    """

    logged: Logged = Logged()
    wall_ms: int = 0
    totals: dict[str, int] | None = None

    @classmethod
    def of(cls, commit: Commit) -> Since:
        """Return the numbers of a commit. A commit of another writer without these numbers counts as the begin of a
        checkpoint.
        """
        fields = commit.extra.get(SINCE) or [0, 0, 0, 0.0, commit.wall_ms]
        return cls(Logged(*fields[:-1]), fields[-1], commit.extra.get(METRICS, {}).get("totals", {}))

    def plain(self) -> list[Any]:
        """Return the numbers in the form of a commit's fields."""
        return [*self.logged, self.wall_ms]  # totals are among the commit's metrics


class Reached(NamedTuple):
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
    and skipped objects.

    `line` are the objects that lie behind the state in memory or the checkpoint, newest first, each with its parent.
    `differing` counts versions with attempts of different digests; `rivals` are the digests that other attempts of this
    launch have written for the version after the loaded one.
    """

    kind: str
    reached: Reached
    checkpoint: CheckpointReader | None = None
    replayed: Logged = Logged()
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    line: Sequence[tuple[LogName, Step]] = ()
    differing: int = 0
    rivals: frozenset[str] = frozenset()


class _Counter:
    """Counts the versions that a load applies: how much, and the numbers of the newest one (None: none was applied)."""

    def __init__(self, group: StoreGroup) -> None:
        self._group = group
        self.began(None)

    def began(self, reader: CheckpointReader | None) -> None:
        """Begin again, behind a checkpoint."""
        self.replayed = Logged()
        self.since: Since | None = None

    def __call__(self, version: Version) -> None:
        """A version was applied."""
        commit = version.commit
        self.replayed = self.replayed.plus(Logged.of(1, version.size, commit.records, self._group.kinds))
        self.since = Since.of(commit)


class Wanted(NamedTuple):
    """A request to load: a version, under the runs `runs`, for an attempt of run `run_id` ("": for a reader).

    `lenient` is called when a version is absent; True means that batches without changes have left no object.
    """

    version: int
    runs: Runs
    run_id: str
    lenient: Callable[[], bool]


class ShardFiles:
    """The objects of a shard, for loading, committing and pruning. No state is kept between calls."""

    def __init__(self, operator: Storage, folder: str, identity: Identity) -> None:
        self.operator = operator
        self.storage = operator.below(folder)
        self.identity = identity
        self.shard = identity.shard
        self._outlook = Outlook(self.storage)
        self.log = ShardLog(self._outlook, identity)

    # --- loading --------------------------------------------------------------------------------------------------

    def load(self, wanted: Wanted, group: StoreGroup, reached: Reached | None) -> Loaded:
        """Load a version into `group`; `held` is the place of its present content (None: fill it from nothing).

        A version that this run has in memory needs no read. Else there are two rounds of requests: the names of
        checkpoints and of the log; then the objects behind a version in memory, or the index of the newest sound
        checkpoint and the objects behind it. A damaged checkpoint is skipped. Raises MissingVersionError,
        SkippedBatchError, StaleAttemptError, CorruptFrameError, DigestMismatchError or ForeignFileError, and the group
        is then unusable.
        """
        started = time.perf_counter()
        if reached is not None and reached[1:3] == (wanted.version, wanted.run_id):
            return Loaded("hit", reached, seconds=time.perf_counter() - started)
        try:
            after = "" if reached is None or not reached.step.version else log_before(reached.step.version)
            self._outlook.begin({CHECKPOINTS: "", LOG: after})
            loaded = None if reached is None else self._catch_up(wanted, group, reached)
            if loaded is None:
                loaded = self._anew(wanted, group)
        except Lost as lost:
            raise MissingVersionError(
                f"{self.storage.url}: the log object of version {lost.step.version} with digest "
                f"{lost.step.digest[:4].hex()} is missing, though {lost.child} continues it (restore it from a copy)"
            ) from None
        except Absent as absent:
            raise self._absent(wanted, absent) from None
        except FileNotFoundError as error:
            raise MissingVersionError(
                f"{error.filename or self.storage.url}: removed while it was read (try again)"
            ) from error
        finally:
            self._outlook.end()
        group.reached(*loaded.reached.step)
        return loaded._replace(seconds=time.perf_counter() - started)

    def _line(self, wanted: Wanted) -> AttemptLine:
        return AttemptLine(
            self._outlook,
            self.log,
            wanted.runs,
            wanted.version,
            lenient=wanted.lenient,
            marks=True,
            on_names=partial(self._check_run, wanted),
        )

    def _check_run(self, wanted: Wanted, names: list[LogName]) -> None:
        """Raise StaleAttemptError if a newer launch than that of an attempt has begun."""
        newest = max((name.launch for name in names), default=0)
        if wanted.run_id and newest > wanted.runs[-1].launch:
            raise StaleAttemptError(
                f"{self.storage.url}: launch {newest} of the query has begun while an attempt of launch "
                f"{wanted.runs[-1].launch} ran "
                "(a late attempt of a query that was started anew; its output must be dropped)"
            )

    def _catch_up(self, wanted: Wanted, group: StoreGroup, reached: Reached) -> Loaded | None:
        """Replay the missing versions on the version in memory; None if that version is not of the line, or too far
        behind.
        """
        base = reached.step.version
        newest = max(
            (name.version for name in list_checkpoints(self._outlook) if name.version <= wanted.version), default=0
        )
        behind = wanted.version - base
        if behind < 0 or (behind > CATCH_UP and newest > base):
            return None
        line, counter = self._line(wanted), _Counter(group)
        try:
            tail = line.behind_step(reached.step)
        except (Lost, Absent, FileNotFoundError, HybridStoreError):
            # The missing objects may have been pruned behind a checkpoint; if not, the full load reports them.
            return None
        if tail is None:
            return None
        step, _ = go_on(tail, group, reached.step, applied=counter)
        return self._loaded("catch-up" if line.line else "hit", wanted, line, step, counter, reached.since)

    def _anew(self, wanted: Wanted, group: StoreGroup) -> Loaded:
        line, counter = self._line(wanted), _Counter(group)
        climbed = climb(line, group, began=counter.began, applied=counter)
        reader = climbed.reader
        if reader is not None:
            kind, since = "checkpoint", Since(wall_ms=reader.meta.wall_ms)
        else:
            kind, since = "changelog" if line.line else "empty", Since()
        loaded = self._loaded(kind, wanted, line, climbed.step, counter, since)
        skipped = tuple(str(error) for _, error in climbed.skipped)
        return loaded._replace(checkpoint=reader, skipped=skipped)

    def _loaded(
        self, kind: str, wanted: Wanted, line: AttemptLine, step: Step, counter: _Counter, since: Since
    ) -> Loaded:
        standing = line.standing
        reached = Reached(step, wanted.version, wanted.run_id, counter.since or since)
        rivals = frozenset(name.digest8 for name in standing.attempts.get(wanted.version + 1, ()))
        return Loaded(
            kind, reached, replayed=counter.replayed, line=line.line, differing=standing.differing(), rivals=rivals
        )

    def _absent(self, wanted: Wanted, absent: Absent) -> HybridStoreError:
        if not absent.newest:
            return MissingVersionError(
                f"{self.storage.url}: version {wanted.version} was never written: there is no object of this "
                "shard (was the folder removed? begin with a new checkpoint location)"
            )
        return self._skipped(absent.version, absent.last, absent.newest)

    def check_reached(self, wanted: Wanted) -> None:
        """Raise SkippedBatchError unless an object or a note of the batch before a version exists. One list."""
        version, names = wanted.version, self.log.names(wanted.version - 1)
        self._check_run(wanted, names)
        if not Standing(names, wanted.runs).has(version) and not wanted.lenient():
            raise self._skipped(version, version, version - 1)

    def was_called_twice(self, version: int) -> bool:
        """True when one attempt of Spark has left both a note and an object of a version: its task ran the operator for
        several tasks' shards. The object may be that of its holder, whose number is even and one below. One list.
        """
        names = {name for name in self.log.names(version - 1) if name.version == version}
        return any(name.attempt != NOTE and note(version, name.launch, name.attempt | 1) in names for name in names)

    def _skipped(self, first: int, last: int, newest: int) -> SkippedBatchError:
        what = f"batch {first - 1}" if first == last else f"batches {first - 1} to {last - 1}"
        return SkippedBatchError(
            f"{self.storage.url}: version {first} was never written, or its object is lost: the newest is {newest}, "
            f"so {what} did not reach shard {self.shard} (a limit, show() or an action on a part of the output reads "
            "some shards only; write the whole output)"
        )

    def totals(self, step: Step) -> dict[str, int]:
        """Return the totals in the object of a step; none if the object no longer exists. One list and one get."""
        names = [name for name in self.log.names(step.version - 1) if name.version == step.version]
        name = next((name for name in names if name.digest8 == step.digest[:4].hex() and name.attempt != NOTE), None)
        if name is None:
            return {}
        try:
            return Since.of(self.log.commit(name)).totals or {}
        except FileNotFoundError:
            return {}

    # --- committing -----------------------------------------------------------------------------------------------

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
            f"{self.log.where(name)}: version {name.version} could not be committed: {reason} (version "
            f"{name.version - 1} is intact; run the batch again)"
        )

    # --- clearing away --------------------------------------------------------------------------------------------

    def prune(
        self,
        keep: int,
        retain: int,
        oldest_replay: int | None,
        runs: Runs,
        lenient: Callable[[], bool],
        parents: dict[LogName, Step],
    ) -> list[str]:
        """Remove objects on which neither the newest `keep` checkpoints nor loadable versions depend, and void objects;
        return the removed names.

        Loadable versions are `retain` versions below the newest, and `oldest_replay` and later. Nothing is removed if
        the line cannot be followed down to them (the query was turned back below the kept versions, or an object is
        damaged), or if a newer run has begun. A checkpoint that is damaged or of another line does not count as kept. A
        crash in the middle leaves extra objects.

        `parents` has the parents of objects that were read or written before: their headers are not read again. Those
        that are read are added to it, and those of objects that are gone leave it. O(objects).
        """

        def parent_of(name: LogName) -> Step:
            if name not in parents:
                parents[name] = self.log.parent(name)
            return parents[name]

        try:
            self._outlook.begin({LOG: "", PACKS: ""})
            claim = newest_claim(self.operator)
            names = self.log.names()
            if claim is None or claim.launch != runs[-1].launch or any(name.launch > claim.launch for name in names):
                return []
            standing = Standing(names, runs)
            needed = max(0, standing.newest - retain)
            if oldest_replay is not None:
                needed = max(0, min(needed, oldest_replay))
            greatest = [tried[0] for tried in standing.attempts.values()]
            self._outlook.fetch([str(name) for name in greatest if name not in parents], whole=0, head=HEADER_BYTES)
            line = self._line_down(standing, parent_of)
            reached = max((version for version in line if version <= needed), default=0)
            if not reached and standing.top(needed, parent_of) is not None:
                return []
            # Behind the packs: a checkpoint that was finished meanwhile is seen, and so are the packs that it names.
            self._outlook.extend({CHECKPOINTS: ""})
            checkpoints, oldest, newest = self._superfluous(line, reached, keep, runs)
            removed = [name for name in names if name.version < oldest or not counts(runs, name)]
            removed += self._quiet(standing, reached, needed, runs, lenient)
            superfluous = [*checkpoints, *(str(name) for name in dict.fromkeys(removed))]
            if superfluous:
                self._outlook.delete(superfluous)
            for name in parents.keys() - set(names).difference(removed):
                del parents[name]
            return superfluous + collect_packs(self._outlook, through=newest)
        finally:
            self._outlook.end()

    def _line_down(self, standing: Standing, parent_of: Callable[[LogName], Step]) -> dict[int, str]:
        """Return the digests of the line that counts, by version, from the newest down to the first gap."""
        line: dict[int, str] = {}
        try:
            for name, _ in standing.line(standing.newest, parent_of):
                line[name.version] = name.digest8
        except (Lost, FileNotFoundError, HybridStoreError):
            return line
        return line

    def _superfluous(self, line: dict[int, str], reached: int, keep: int, runs: Runs) -> tuple[list[str], int, int]:
        """Return the checkpoints that are not needed, the version of the oldest needed one (0: every object is needed),
        and that of the newest sound one.

        The object of the oldest version stays, too, because it has the digest of the version.
        """
        removed: list[str] = []
        sound: list[int] = []
        for name in reversed(list_checkpoints(self._outlook)):
            if (len(sound) >= keep and sound[-1] <= reached) or name.launch != launch_of(runs, name.version):
                removed += [str(name), damage_name(str(name))]
            elif name.version in line:
                with suppress(CheckpointError, ForeignFileError, FileNotFoundError):
                    reader = checked(CheckpointReader(self._outlook, name), name, self.identity)
                    if reader.meta.digest[:4].hex() == line[name.version]:
                        sound.append(name.version)
        oldest = sound[-1] if len(sound) >= keep and sound[-1] <= reached else 0
        return removed, oldest, max(sound, default=0)

    def _quiet(
        self, standing: Standing, reached: int, needed: int, runs: Runs, lenient: Callable[[], bool]
    ) -> list[LogName]:
        """Return the notes that are not needed: those below an object that lies below every loadable version, and those
        up to `needed`, which one new note then spans.
        """
        removed = [name for version, name in standing.notes.items() if version < reached]
        quiet = [name for version, name in standing.notes.items() if reached < version <= needed]
        if len(quiet) > 1 and lenient():
            return removed + quiet
        if len(quiet) > 1 and all(standing.has(version) for version in range(reached + 1, needed + 1)):
            whole = note_of(needed, launch_of(runs, needed), needed - reached)
            self.storage.create(str(whole), encode_note(self.identity, needed, int(time.time() * 1000), {}))
            removed += [name for name in quiet if name != whole]
        return removed

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
