"""Reader: the read-only view of one state at one version, built without the lock and without the job's code.

A checkpoint is opened through `pages`, the changelog behind it is applied to separate stores, and their changes are
captured as for a next checkpoint. From then on the view is independent of kinds: blocks of the checkpoint, read one at
a time, and the changes over them.

Unlike a restore, a view never refuses: damage is listed in `faults`, and the view then shows the newest version before
it. If files appear or vanish because a writer is active, the view is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from changelog.errors import ForeignFileError, HybridStoreError, UnsupportedVersionError
from changelog.frame import CommitFrame
from changelog.identity import ID_BYTES, Identity
from changelog.journal import EMPTY_DIGEST
from changelog.outlook import Outlook
from changelog.reader import LoggedVersion, Tail
from changelog.rounds import side_by_side
from changelog.segment import Position
from changelog.storage import LocalStorage
from recovery import retrying
from recovery.apply import Host, Table, apply_version
from recovery.checkpoint import CheckpointReader
from recovery.directory import Directory
from recovery.errors import ChangelogGapError, CheckpointError, RestoreError
from recovery.ladder import checked, climb
from recovery.layout import CHANGELOG, CHECKPOINTS, LOG, PACKS, CheckpointName, damage_name, list_checkpoints
from recovery.line import EMPTY, Fault, Step, Walk
from recovery.meta import CheckpointMeta
from recovery.object_log import object_name
from recovery.pages import PageCheckpoint
from recovery.rule import ABSENT

from ..state.group import StoreGroup
from ..state.lock import loss
from ..state.policy import SPEED, Logged, commit_seconds
from ..stores.kinds import Store
from .line import SegmentLine, line_of
from .places import Place
from .store_view import StoreView

# How much is replayed before memory is freed, with a scratch folder.
ROUND_BYTES: Final = 4 << 20
# The errors of forged files.
_MADE_UP: Final = (
    HybridStoreError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
T = TypeVar("T")


def signature(place: Place) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files of a place: if two results are equal, no writer changed a file in
    between.
    """
    if place.path is None:
        # Objects never change, so their names are enough.
        folders = (CHANGELOG, LOG, CHECKPOINTS) if place.form == "directory" else ()
        return [(name, 0, 0) for folder in folders for name in place.storage.list(f"{folder}/")]
    return retrying.signature(place.path) if place.form == "directory" else retrying.signature_of([place.path])


def retry_while_changing(
    place: Place,
    look: Callable[[], T],
    failed: Callable[[T], bool],
    behind: Callable[[PageCheckpoint], T] | None = None,
) -> T:
    """Return `look()`, and try again while it fails or raises and files change meanwhile. The last failure is final.

    Where `look` raises and the checkpoints are others since, their owner removes what is older: `behind(checkpoint)`
    then looks at the newest checkpoint and what is behind it.
    """
    sign = partial(signature, place)

    def looked(behind: Callable[[PageCheckpoint], T]) -> T:
        before = list_checkpoints(place.storage)
        try:
            return look()
        except (OSError, HybridStoreError):
            names = list_checkpoints(place.storage)
            if not names or names == before:
                raise
        return behind(PageCheckpoint(place.storage, names[-1]))

    tried = look if behind is None or place.form != "directory" else partial(looked, behind)
    return retrying.retry_while_changing(place.where, tried, failed=failed, sign=sign, late=place.path is None)


def open_view(
    place: Place,
    at: int | None = None,
    *,
    below: int | None = None,
    scratch: Path | None = None,
    thorough: bool | None = None,
    rows: bool = True,
) -> View:
    """Return the view of a place at its newest version, or at version `at`.

    With `below`, only checkpoints before that version are used.

    With `thorough`, the bytes of all pages of a checkpoint's directories are checked before the checkpoint is chosen,
    so that a damaged checkpoint is skipped; otherwise pages are read when they are needed, and a damaged page raises
    then. None: it is thorough on a disk.

    With `scratch`, an empty folder that outlives the view, replayed records are written there in rounds: memory then
    depends on a round, the largest version and a bucket, and not on the state.

    Without `rows`, the versions behind the checkpoint are read and their digests checked, but nothing of them is
    applied: for a caller that asks which version is there, and on which files it depends. The stores and settings are
    then those of the checkpoint.

    Raises RestoreError when `at` is not retained, HybridStoreError or OSError when nothing can be read. O(blocks +
    tail).
    """

    def look() -> View:
        try:
            view = View(place, at, below, scratch, thorough, rows)
            view.read()
            if view.halfway:
                # Half of a version is in the stores: they are filled again with the versions before it.
                again = View(place, view.version, below, scratch, thorough, rows)
                again.read()
                again.at, again.exact, again.seen, again.faults = view.at, view.exact, view.seen, view.faults
                view = again
            view.finish()
            return view
        except (HybridStoreError, OSError):
            raise
        except Exception as error:  # a forged file may raise anything
            raise RestoreError(
                f"{place.where}: found content that no release writes: {_reason(error)} (restore the files from a copy)"
            ) from error

    return retry_while_changing(place, look, lambda view: bool(view.faults))


class _Halfway(Exception):
    """A version could be applied only in part."""


class _AloneLine:
    """The line of a checkpoint that was given by its file, whatever the file's name: nothing lies behind it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def checkpoints(self) -> list[CheckpointName]:
        return [CheckpointName(0, 0, "")]  # `open` knows its file

    def open(self, name: CheckpointName) -> PageCheckpoint:
        return PageCheckpoint(self._place.storage, self._place.name)

    def behind(self, reader: CheckpointReader | None) -> Iterator[LoggedVersion | Fault]:
        return iter(())


class _ViewLine:
    """The line of a place for the ladder: checkpoints are read without a map, and whatever is in them."""

    def __init__(
        self,
        place: Place,
        line: SegmentLine,
        checkpoints: list[CheckpointName],
        at: int | None,
        expected: Identity | None,
        *,
        thorough: bool,
    ) -> None:
        self.walk: Walk | None = None
        self.start: Position | None = None
        self.complete = False  # the walk came to the end of the line
        self._place = place
        self._line = line
        self._checkpoints = checkpoints
        self._at = at
        self._expected = expected
        self._thorough = thorough
        self._steps = line.steps()

    def checkpoints(self) -> list[CheckpointName]:
        return [name for name in self._checkpoints if self._line.takes(name)]

    def open(self, name: CheckpointName) -> PageCheckpoint:
        storage = self._place.storage
        where = f"{storage.url}/{name}"
        if storage.list(damage_name(str(name))):
            raise CheckpointError(f"{where}: its owner found a damaged block in it")
        reader = PageCheckpoint(storage, name)
        # Otherwise a damaged page would only be read later, with its store. (What a sound page says is believed then.)
        for record in reader.meta.stores if self._thorough else ():
            for page in reader.directory(record.number).pages:
                reader.check_page(record.number, page)
        try:
            checked(reader, name, self._expected)
        except ForeignFileError as error:
            # A shard of Spark continues without it, like its owner; a plain state is refused, as by its owner.
            raise (error if self._line.newest is None else CheckpointError(str(error))) from error
        if self._steps.get(name.version, reader.meta.digest) != reader.meta.digest:
            raise CheckpointError(f"{where}: belongs to another line of versions")
        return reader

    def behind(self, reader: CheckpointReader | None) -> Iterator[LoggedVersion | Fault]:
        """Yield the versions behind a checkpoint, up to the wanted one."""
        line, at, start, identity = self._line, EMPTY, None, self._expected
        if reader is not None:
            meta = reader.meta
            at, identity = Step(meta.version, meta.digest), meta.identity
            if line.newest is None and meta.position.segment:
                start = meta.position
                line = line_of(self._place, start=start)
        self.start, self.complete = start, False
        self.walk = walk = line.walk(at, start=start, identity=identity, through=self._at)
        if self._at is not None and at.version >= self._at:
            return
        for item in walk:
            if isinstance(item, LoggedVersion):
                if self._at is not None and item.commit.version > self._at:
                    return
                if walk.begins and self._place.form == "segment":
                    raise RestoreError(
                        f"{self._place.where}: a segment that continues version {walk.begins} holds no state by itself "
                        "(give the state directory, or use `log`)"
                    )
            yield item
            if isinstance(item, LoggedVersion) and item.commit.version == self._at:
                return
        self.complete = True


class View:
    """One state at one version; a shard's `seen` is the version reached, above `version` after batches without rows for
    the shard.

    `tail` is the changelog behind the checkpoint; `faults` is empty when everything could be read; `notes` are
    harmless; times in ms, sizes in bytes. `stores` are there after `finish`. `halfway`: a version could be applied only
    in part; `version` is the version before it.
    """

    def __init__(
        self, place: Place, at: int | None, below: int | None, scratch: Path | None, thorough: bool | None, rows: bool
    ) -> None:
        self.place = place
        self.at = at
        self.exact = True
        self.halfway = False
        self.seen = 0
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.stores: dict[str, StoreView] = {}
        self._below = below
        self._scratch = scratch
        self._thorough = place.path is not None if thorough is None else thorough
        self._rows = rows
        self._round = 0  # bytes replayed since the last round
        self._gap = False  # the fault is a gap in the log
        self._expected = place.identity()
        self._group = StoreGroup()
        self._began(None)

    def _began(self, reader: CheckpointReader | None) -> None:
        """The stores are those of a checkpoint, or empty."""
        self.pages = reader if isinstance(reader, PageCheckpoint) else None
        self._directories: dict[int, Directory] = {}
        self.version, self.digest = 0, EMPTY_DIGEST
        self.identity = Identity(bytes(ID_BYTES))
        self.wall_ms: int | None = None
        if reader is not None:
            meta = reader.meta
            self._directories = {record.number: reader.directory(record.number) for record in meta.stores}
            self.version, self.digest, self.identity = meta.version, meta.digest, meta.identity
            self.wall_ms = meta.wall_ms
        self.tail = Logged()
        self.cut: Tail | None = None
        self.ended: CommitFrame | None = None

    @property
    def checkpoint(self) -> CheckpointMeta | None:
        """The checkpoint in use."""
        return None if self.pages is None else self.pages.meta

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of its index."""
        return 0 if self.pages is None else self.pages.size

    @property
    def settings(self) -> dict[str, Any]:
        """The named values that were committed with the stores."""
        return dict(self._group.settings)

    @property
    def restart_seconds(self) -> float:
        """The estimated seconds of a restart to the first read, with the requests for the changelog. O(1)."""
        return SPEED.estimate(self.tail, commit_seconds(self.place.storage))

    def store(self, name: str) -> StoreView:
        """Return a store by name. Raises KeyError with the names of all stores."""
        try:
            return self.stores[name]
        except KeyError:
            raise KeyError(
                f"{self.place.where}: no store {name!r} in version {self.version} (known: "
                f"{', '.join(self.stores) or 'none'})"
            ) from None

    def finish(self) -> None:
        """Make the stores readable. Raises RestoreError if `at` is not retained."""
        if self.at is not None and (self.version != self.at if self.exact else self.faults):
            raise RestoreError(
                f"{self.place.where}: version {self.at} is not retained"
                + (f": {self.faults[0]}" if self.faults else f": the nearest below it is {self.version}")
            )
        self.seen = max(self.version, self.seen)
        self._group.reached(self.version, self.digest)
        self.stores = {name: self._store(live) for name, live in self._group.stores.items()}

    def _store(self, live: Store) -> StoreView:
        checkpoint, number = self.pages, live.number
        records = () if checkpoint is None else checkpoint.meta.stores
        record = next((record for record in records if record.number == number), None)
        directory = self._directories[number] if record is not None else None
        return StoreView(live, checkpoint, record, directory, self.faults, self.tail.records)

    def read(self) -> None:
        """Fill the stores. Raises UnsupportedVersionError, OSError, or RestoreError for an unknown version."""
        if self.place.form == "checkpoint":
            climb(_AloneLine(self.place), self._group, began=self._began, skips=())
        elif self.place.form == "segment":
            self._climb(self.place, line_of(self.place), [])
        else:
            outlook = Outlook(self.place.storage)
            try:
                self._directory(outlook)
            finally:
                outlook.end()

    def _directory(self, outlook: Outlook) -> None:
        place = self.place._replace(storage=outlook) if self.place.path is None else self.place
        outlook.begin({CHECKPOINTS: "", PACKS: "", **({} if place.shard is None else {LOG: ""})})
        checkpoints = list_checkpoints(place.storage)
        usable = [name for name in checkpoints if self._usable(name.version)]
        # On an object store only the line behind the newest checkpoint is read; the whole line if that checkpoint is
        # damaged or of another line.
        floor = max((name.version for name in usable), default=0) if place.path is None else 0
        if floor and place.shard is None:
            steps = [
                partial(outlook.extend, {CHANGELOG: object_name(floor - 1)}),
                partial(outlook.fetch, [str(usable[-1])], whole=1),
            ]
            side_by_side(lambda step: step(), steps)
        self._from(place, checkpoints, floor)
        if floor and (self.faults or self.version < floor):
            self.faults, self.notes = [], []
            self._began(None)
            self._from(place, checkpoints, 0)

    def _usable(self, version: int) -> bool:
        return (self.at is None or version <= self.at) and (self._below is None or version < self._below)

    def _from(self, place: Place, checkpoints: list[CheckpointName], floor: int) -> None:
        oldest = min((name.version for name in checkpoints), default=0)
        line = line_of(place, needed=oldest, floor=floor)
        if line.newest is not None:
            if self.at is not None and self.at > line.newest:
                raise RestoreError(
                    f"{self.place.where}: found no version {self.at}, expected at most {line.newest}, the newest"
                )
            # Batches without rows of this shard write no object: any version up to `seen` equals the step below it.
            self.exact = self.at is None
            self.seen = line.newest if self.at is None else self.at
        climbing = self._climb(place, line, [name for name in checkpoints if self._usable(name.version)])
        start, base = climbing.start, 0 if self.pages is None else self.pages.meta.version
        absent = [version for version in line.absent if base < version <= (self.at or version)]
        if absent and not self.faults:
            self.faults.append(f"{self.place.where}: {ABSENT.format(absent[0], absent[0] - 1)}")
        first = line.begin or oldest
        # below the oldest checkpoint a gap only means that the log was pruned
        if self.at and self.at < first and not self.version and (self._gap or not self.faults):
            self.faults = [f"the oldest is {first}"]
        if self.at is None and not self.faults and self.place.path is not None:
            needed = 0 if start is None else start.segment
            stale = [] if self.cut is None or self.cut.offset else [Path(self.cut.path)]
            lost = loss(self.place.path, version=self.version, needed=needed, stale=stale)
            if lost is not None:
                self.faults.append(f"{lost[0]}: {lost[1]}")

    def _climb(self, place: Place, line: SegmentLine, checkpoints: list[CheckpointName]) -> _ViewLine:
        """Fill the stores with the wanted version, or with the one before the first fault; other checkpoints are
        noted.
        """
        climbing = _ViewLine(place, line, checkpoints, self.at, self._expected, thorough=self._thorough)
        fault: Fault | None = None
        try:
            climbed = climb(
                climbing,
                self._group,
                apply=self._apply,
                began=self._began,
                applied=self._applied,
                skips=(OSError, *_MADE_UP),
            )
            fault = climbed.fault
            for name, error in climbed.skipped:
                self.notes.append(f"checkpoint {name.version} passed over: {_reason(error)}")
        except _Halfway as error:
            self.halfway = True
            self.faults.append(str(error))
        if fault is not None:
            if isinstance(fault.error, (UnsupportedVersionError, OSError)):
                raise fault.error
            if isinstance(fault.error, ForeignFileError) and self._expected is not None and not self.version:
                raise fault.error  # all of it is another shard's
            self.faults.append(str(fault.raised()))
            self._gap = isinstance(fault.error, ChangelogGapError)
        walk = climbing.walk
        if walk is not None:
            self.identity = walk.identity or self.identity
            if climbing.complete:
                self.ended, self.cut = walk.ended, walk.cut
        return climbing

    def _apply(self, version: LoggedVersion, host: Host, table: Table) -> None:
        if not self._rows:
            return
        try:
            apply_version(version, host, table)
            self._group.apply_waiting()  # waiting rows that cannot be applied must raise here
        except _MADE_UP as error:
            raise _Halfway(
                f"{self.place.where}: version {version.commit.version} cannot be applied: {_reason(error)}"
            ) from error

    def _applied(self, version: LoggedVersion) -> None:
        commit = version.commit
        self.version, self.digest, self.wall_ms = commit.version, commit.digest, commit.wall_ms
        self.tail = self.tail.plus(Logged.of(1, version.size, commit.records, self._group.kinds))
        self._round += version.size
        if self._scratch is not None and self._round > ROUND_BYTES:
            self._spill(self._scratch)

    def _spill(self, scratch: Path) -> None:
        """Write the present records into a temporary checkpoint, and continue over it."""
        from recovery.prune import collect_packs  # only here: reading needs no code that writes
        from recovery.write import write_checkpoint

        self._round = 0
        self._group.reached(self.version, self.digest)
        previous = self.pages
        storage = LocalStorage(scratch)
        report = write_checkpoint(
            storage,
            identity=self.identity,
            version=self.version,
            digest=self.digest,
            position=Position(0, 0, 0),
            settings=dict(self._group.settings),
            captures=self._group.capture(),
            previous=previous,
        )
        self.pages = reader = PageCheckpoint(storage, report.name)
        for record in reader.meta.stores:
            directory = self._directories[record.number] = reader.directory(record.number)
            self._group.stores[record.name].attach(directory, record.state)
        storage.delete(str(name) for name in list_checkpoints(storage) if str(name) != report.name)
        collect_packs(storage, below=self.version + 1)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HybridStoreError) else f"{type(error).__name__}: {error}"
