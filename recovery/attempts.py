"""Attempts: the line of a shard of Spark, for the ladder: objects of attempts, of which the runs of the query choose.

    checkpoint 6 of the launch that counts    objects 7, 8, 10 that lead to the wanted version, 9 a note

Behind a checkpoint, or behind a version in memory, the objects are listed and their headers read before anything is
applied, so that a checkpoint of another line is skipped, and a lost object is noticed, at no cost to the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from changelog.errors import ForeignFileError
from changelog.outlook import Outlook
from changelog.reader import LoggedVersion
from changelog.segment import HEADER_BYTES

from .checkpoint import CheckpointReader
from .errors import CheckpointError
from .ladder import checked
from .layout import CheckpointName, LogName, list_checkpoints
from .line import EMPTY, Fault, Step
from .rule import CountingObjects, MissingParent, Runs, launch_of
from .shard_log import ShardLog

# How many log objects of a tail are in memory at once; a longer tail is fetched in groups of this size.
GROUP: Final = 256


class Absent(LookupError):
    """A batch has left no object: `version` is that of the first such batch, `last` that of the last of them, `newest`
    the newest version that has an object or a note (0: none has).
    """

    def __init__(self, version: int, last: int, newest: int) -> None:
        super().__init__(
            f"version {version} was never written, or its object is lost: batch {version - 1} did not reach this shard"
        )
        self.version = version
        self.last = last
        self.newest = newest


class AttemptLine:
    """The line of a shard at `version`, under the runs `runs`. See `ladder.Line`.

    lenient   called when a version has left no object; True means that batches without changes leave none
    marks     damage leaves a marker, as for a directory
    on_names  called with the names of objects whenever they are listed; may raise

    After `open` or `behind`, `standing` has the objects that count, and `line` those behind the checkpoint, newest
    first, each with its parent. Raises MissingParent, Absent, FileNotFoundError (removed meanwhile) and the errors of
    damaged or foreign objects.
    """

    def __init__(
        self,
        outlook: Outlook,
        log: ShardLog,
        runs: Runs,
        version: int,
        *,
        lenient: Callable[[], bool] = lambda: False,
        marks: bool = False,
        on_names: Callable[[list[LogName]], object] = lambda names: None,
    ) -> None:
        self.standing = CountingObjects((), runs)
        self.line: list[tuple[LogName, Step]] = []
        self._outlook = outlook
        self._log = log
        self._runs = runs
        self._version = version
        self._lenient = lenient
        self._marks = marks
        self._on_names = on_names

    def checkpoints(self) -> list[CheckpointName]:
        names = (name for name in list_checkpoints(self._outlook) if name.version <= self._version)
        return [name for name in names if name.launch == launch_of(self._runs, name.version)]

    def open(self, name: CheckpointName) -> CheckpointReader | None:
        """See `Line`. One round of requests: the index, and the objects behind it."""
        self._look_out(name.version, [] if self._outlook.cached(str(name)) else [str(name)])
        try:
            return checked(CheckpointReader(self._outlook, name, marks=self._marks), name, self._log.identity)
        except FileNotFoundError:
            return None  # by the process that has made a newer checkpoint
        except ForeignFileError as error:
            raise CheckpointError(str(error)) from error

    def behind(self, reader: CheckpointReader | None) -> Iterator[LoggedVersion | Fault]:
        if reader is None:
            self._look_out(0)
            return self._versions(EMPTY, joins=self._joins(EMPTY, is_counted=False))
        # `open` has listed the objects. A checkpoint of the launch that counts may be all that is left of its version.
        at = Step(reader.meta.version, reader.meta.digest)
        if not self._joins(at, is_counted=True):
            raise CheckpointError(f"{reader.where}: version {at.version} of another line")
        return self._versions(at, joins=True)

    def behind_step(self, at: Step) -> Iterator[LoggedVersion | Fault] | None:
        """Return the versions behind a step that is in memory; None if the step is not of the line."""
        self._look_out(at.version)
        return self._versions(at, joins=True) if self._joins(at, is_counted=False) else None

    def _look_out(self, base: int, others: Sequence[str] = ()) -> None:
        """List the objects from version `base` on, and read those above it, and other objects, in one round of
        requests; the rest of a long tail is read later.
        """
        names = self._log.names(max(0, base - 1))
        self._on_names(names)
        self.standing = standing = CountingObjects(names, self._runs)
        versions = sorted(version for version in standing.attempts if base < version <= self._version)
        greatest = [str(standing.attempts[version][0]) for version in versions]
        self._outlook.fetch([*others, *greatest], whole=GROUP, head=HEADER_BYTES)

    def _joins(self, at: Step, *, is_counted: bool) -> bool:
        """True when the objects behind a step begin at it. Without objects the step's own object decides; if that is
        gone, the step must be known to count.
        """
        standing = self.standing
        self.line = list(standing.line(self._version, self._log.parent, at.version))
        if self.line:
            return self.line[-1][1] == at
        top = standing.top(at.version, self._log.parent)
        if top is None:
            return is_counted or at == EMPTY
        return (top.version, top.digest8) == (at.version, at.digest[:4].hex())

    def _versions(self, at: Step, *, joins: bool) -> Iterator[LoggedVersion | Fault]:
        if not joins:
            child, parent = self.line[-1]
            raise MissingParent(parent, child)
        self._check_batches(self.line[0][0].version if self.line else at.version)
        return self._read(at, [name for name, _ in reversed(self.line)])

    def _check_batches(self, reached: int) -> None:
        """Raise unless every version from `reached` to the wanted one exists: as an object, as a note, or, if batches
        without changes leave no object, by absence.
        """
        standing = self.standing
        for version in standing.absent(reached, self._version):
            if self._lenient():
                continue
            above = min((number for number in standing.attempts if number > version), default=None)
            if above is not None:
                child = standing.attempts[above][0]
                parent = self._log.parent(child)
                if parent.version >= version:
                    raise MissingParent(parent, child)
            last = version
            while last < self._version and not standing.has(last + 1):
                last += 1
            raise Absent(version, last, max(standing.newest, reached))

    def _read(self, at: Step, names: list[LogName]) -> Iterator[LoggedVersion | Fault]:
        """Yield the content of objects, oldest first. Raises the first fault."""
        for first in range(0, len(names), GROUP):
            some = names[first : first + GROUP]
            self._outlook.fetch(map(str, some), whole=GROUP)
            for version in self._log.versions(some, at):
                yield version
                at = Step(version.commit.version, version.commit.digest)
