"""Ladder: the one way to open a version: the newest sound checkpoint that joins its line, attached, and the versions
behind it, applied; else the checkpoint before it, and at last the line from its beginning.

    checkpoint 9    damaged                     skipped
    checkpoint 7    of another line             skipped
    checkpoint 4    attached, then versions 5, 6, ... 12 applied

    DirectoryLine   a state directory: segments of many versions
    ObjectLine      a plain state on an object store: an object for each version
    AttemptLine     a shard of Spark: objects of attempts, of which the runs of the query choose (`attempts`)

A line says which checkpoints may be on the way, opens them, and gives the versions behind them. `climb` is the only
code that attaches a checkpoint; restore, plan, shards, followers and inspection call it. Nothing on disk is changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from changelog.errors import ForeignFileError, UnsupportedVersionError
from changelog.files import REAL_FILES, Files
from changelog.identity import Identity
from changelog.reader import LoggedVersion
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage

from .apply import Host, Table, apply_version
from .checkpoint import CheckpointReader
from .errors import CheckpointError
from .layout import CHANGELOG, CheckpointName, list_checkpoints
from .line import EMPTY, Fault, Step, Walk, foreign, log_walk
from .object_log import object_walk

Apply = Callable[[LoggedVersion, Host, Table], None]
# Whether so many records and bytes of a log are enough at a time.
Enough = Callable[[int, int], bool]


def never(records: int, size: int) -> bool:
    """Return False: a line is read to its end."""
    return False


class Line(Protocol):
    """See the module. One for each climb."""

    def checkpoints(self) -> Sequence[CheckpointName]:
        """Return the checkpoints that may be on the way to the wanted version, oldest first."""

    def open(self, name: CheckpointName) -> CheckpointReader | None:
        """Open a checkpoint; None if it was removed meanwhile. Raises CheckpointError for one to be skipped."""

    def behind(self, reader: CheckpointReader | None) -> Iterator[LoggedVersion | Fault]:
        """Return the versions behind a checkpoint (None: behind nothing), up to the wanted one, and faults. Raises
        CheckpointError if the checkpoint does not join the line.
        """


class Climbed(NamedTuple):
    """The end of a climb: the checkpoint in use (None: none), the step reached, the fault that ended it (None: the end
    of the line), and the checkpoints that were skipped, with their errors.
    """

    reader: CheckpointReader | None
    step: Step
    fault: Fault | None
    skipped: list[tuple[CheckpointName, Exception]]


def attach(reader: CheckpointReader, host: Host) -> None:
    """Make the settings and stores of `host` those of a checkpoint: only top records are read, pages and blocks stay
    cold until they are touched. What `host` had before is forgotten; `climb` alone calls it.

    Raises CorruptCheckpointError for a directory that is damaged, and what `Host.define` raises. O(pages).
    """
    host.reset()
    host.settings.update(reader.meta.settings)
    for record in reader.meta.stores:
        store = host.define(record.number, record.name, record.kind, record.parameters)
        store.attach(reader.directory(record.number), record.state)


def climb(
    line: Line,
    host: Host,
    *,
    apply: Apply = apply_version,
    began: Callable[[CheckpointReader | None], object] = lambda reader: None,
    applied: Callable[[LoggedVersion], object] = lambda version: None,
    skips: tuple[type[Exception], ...] = (CheckpointError,),
) -> Climbed:
    """Fill `host` with the wanted version of a line, or with the version before the first fault.

    `began` is called when a checkpoint is attached (None: when the line begins from nothing), again for the next one if
    that checkpoint proves damaged; `applied` for each version behind it. `skips` are the errors for which a checkpoint
    is skipped. A fault is returned and not raised. Raises UnsupportedVersionError, ForeignFileError, and what the line
    and `apply` raise. O(pages + tail).
    """
    skipped: list[tuple[CheckpointName, Exception]] = []
    for name in reversed(line.checkpoints()):
        reader: CheckpointReader | None = None
        try:
            reader = line.open(name)
            if reader is None:
                continue
            versions = line.behind(reader)
            attach(reader, host)
            began(reader)
            at = Step(reader.meta.version, reader.meta.digest)
            return Climbed(reader, *go_on(versions, host, at, apply=apply, applied=applied), skipped)
        except (UnsupportedVersionError, ForeignFileError):
            raise
        except skips as error:
            # A damaged checkpoint is not needed: the checkpoint before it and a longer tail hold the same state.
            skipped.append((name, error))
            if reader is not None:
                reader.close()
    versions = line.behind(None)
    host.reset()
    began(None)
    return Climbed(None, *go_on(versions, host, EMPTY, apply=apply, applied=applied), skipped)


def go_on(
    versions: Iterable[LoggedVersion | Fault],
    host: Host,
    at: Step,
    *,
    apply: Apply = apply_version,
    applied: Callable[[LoggedVersion], object] = lambda version: None,
) -> tuple[Step, Fault | None]:
    """Apply versions that continue step `at`, which `host` has; return the step reached, and the fault that ended it.
    O(tail).
    """
    table = Table()
    for item in versions:
        if isinstance(item, Fault):
            return at, item
        apply(item, host, table)
        at = Step(item.commit.version, item.commit.digest)
        applied(item)
    return at, None


def checked(reader: CheckpointReader, name: CheckpointName, identity: Identity | None) -> CheckpointReader:
    """Return an open checkpoint. Raises CheckpointError if it is not of the version in its name, ForeignFileError if it
    belongs to another state or shard.
    """
    meta = reader.meta
    if meta.version != name.version:
        raise CheckpointError(f"{reader.where}: holds version {meta.version}, its name says {name.version}")
    if identity is not None and not identity.fits(meta.identity):
        raise foreign(reader.where, meta.identity, identity)
    return reader


class _PlainLine(ABC):
    """The line of a plain state, up to version `at` (None: the newest). `walk` is the walk behind the last checkpoint
    that was opened, None if nothing is to be read; `start` is where that checkpoint ends in the log.

    With `enough` it is a piece of the line that ends before the version with which it is enough, but not before the
    first one: `at` is then its last version, and `reached` the place of that in the log, None where nothing was cut.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        at: int | None = None,
        identity: Identity | None = None,
        marks: bool = False,
        enough: Enough = never,
    ) -> None:
        self.storage = storage
        self.at = at
        self.walk: Walk | None = None
        self.start: Position | None = None
        self.reached: Position | None = None
        self._identity = identity
        self._marks = marks
        self._enough = enough

    def checkpoints(self) -> list[CheckpointName]:
        return [name for name in list_checkpoints(self.storage) if self.at is None or name.version <= self.at]

    def open(self, name: CheckpointName) -> CheckpointReader:
        """See `Line`. Raises FileNotFoundError for a checkpoint that was removed meanwhile."""
        return checked(CheckpointReader(self.storage, name, marks=self._marks), name, self._identity)

    def behind(self, reader: CheckpointReader | None) -> Iterator[LoggedVersion | Fault]:
        at, identity = EMPTY, self._identity
        self.start = self.walk = self.reached = None
        if reader is not None:
            meta = reader.meta
            at, self.start, identity = Step(meta.version, meta.digest), meta.position, meta.identity
            if at.version == self.at:
                return
        self.walk = self._walk(at, self.start, identity)
        if self.at is not None and at.version >= self.at:
            return
        records = size = 0
        before: LoggedVersion | None = None
        for item in self.walk:
            if isinstance(item, LoggedVersion):
                records += sum(item.commit.records.values())
                size += item.size
                if before is not None and self._enough(records, size):
                    self.at, self.reached = before.commit.version, before.position
                    return
                before = item
            yield item
            if isinstance(item, LoggedVersion) and item.commit.version == self.at:
                return

    @abstractmethod
    def _walk(self, at: Step, start: Position | None, identity: Identity | None) -> Walk:
        """Return the walk along the versions behind a step; `start` is its place in a log."""


class DirectoryLine(_PlainLine):
    """The line of a state directory.

    With `files`, a block that proves damaged when it is touched later marks its checkpoint, so that the next restore
    falls back to the checkpoint before; without (for readers that may not write) the block only raises.
    """

    def __init__(
        self,
        path: Path,
        *,
        at: int | None = None,
        identity: Identity | None = None,
        files: Files | None = None,
        enough: Enough = never,
    ) -> None:
        storage = LocalStorage(path, files=files or REAL_FILES)
        super().__init__(storage, at=at, identity=identity, marks=files is not None, enough=enough)
        self._changelog = path / CHANGELOG

    def _walk(self, at: Step, start: Position | None, identity: Identity | None) -> Walk:
        return log_walk(self._changelog, at, start=start, identity=identity)


class ObjectLine(_PlainLine):
    """The line of a plain state on an object store. `marks`: damage leaves a marker, as for a directory."""

    def _walk(self, at: Step, start: Position | None, identity: Identity | None) -> Walk:
        return object_walk(self.storage, at, identity=identity, through=self.at)


PlainLine = DirectoryLine | ObjectLine
