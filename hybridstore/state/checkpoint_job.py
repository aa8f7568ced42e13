"""Checkpoint job: makes a checkpoint of a state directory from its files alone, as another process than the owner can.

    the owner's thread     writes what the owner has copied                      state of any place
    the writer process     restores the version from checkpoint and changelog,   a directory, after many changes
                           copies what changed, and writes that

The process bounds its memory: behind each `PIECE_RECORDS` records or `PIECE_BYTES` it writes a checkpoint of a version
in between, and continues from that one. Both write with `recovery.write` and end with an `Outcome`. The process
(`writer_process`) holds no lock: before each change of a name it looks whether its owner still does, and the names that
it creates are new.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

from changelog.files import Files
from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage
from recovery.checkpoint import CheckpointReader
from recovery.compaction import Sizes
from recovery.errors import CheckpointError
from recovery.finder import FinderMaps, StoreFiles
from recovery.finder_writer import StateFinders
from recovery.ladder import DirectoryLine
from recovery.layout import CHANGELOG, CHECKPOINTS
from recovery.prune import prune
from recovery.restore import restore_line
from recovery.write import CheckpointReport, write_checkpoint

from ..collector import collector_held
from ..stores.cold_blocks import SPARING
from .directory_log import sync_log
from .group import StoreGroup
from .lock import LockHolder, check_holder
from .own_files import OwnFiles

# The changes that the process has in memory at a time, but for a commit that has more: some 300 to 650 bytes for a
# record, by its kind, and its value, beside the 30 MB that the process takes.
PIECE_RECORDS: Final = 150_000
PIECE_BYTES: Final = 12 << 20
# The process cuts packs off at so many bytes: it has a pack in memory until it is whole. A piece that changes blocks
# everywhere writes many times the bytes of its changes.
MOST_PACK_BYTES: Final = 16 << 20
# Of so many states the process knows where records are.
_MOST_FINDERS: Final = 16


def can_start() -> bool:
    """True where this interpreter can start another one: not in a program that has swallowed its interpreter."""
    return Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)


class Job(NamedTuple):
    """A checkpoint to be made: the directory `path` with files of `mode`, who holds its lock, the version and its place
    in the changelog, the bounds of the checkpoint's parts (see `write_checkpoint`, also for `pack_bytes`, `tables` and
    `tableless`), the parts of a retention that a bucket is (`divisor`), how many checkpoints to keep, whether commits
    have synced the changelog, and the name of the checkpoint that the owner reads (`used`, None without one), which
    stays, too.
    """

    path: str
    mode: int
    holder: LockHolder
    identity: Identity
    version: int
    digest: bytes
    position: Position
    sizes: Sizes
    divisor: int
    keep: int
    synced: bool
    pack_bytes: int | None
    tables: bool
    tableless: int
    used: str | None

    def packed(self) -> list[Any]:
        """Return the fields as plain lists."""
        return [list(field) if isinstance(field, tuple) else field for field in self]

    @classmethod
    def of(cls, fields: list[Any]) -> Job:
        """Return the job with these fields, as unpacked."""
        job = cls(*fields)
        return job._replace(
            holder=LockHolder(*job.holder),
            identity=Identity(*job.identity),
            position=Position(*job.position),
            sizes=Sizes(*job.sizes),
        )


def words(error: Exception) -> str:
    """Return an error as text; the name of its type where it says nothing, as a MemoryError."""
    return str(error) or type(error).__name__


class Outcome(NamedTuple):
    """The end of an attempt: the report of the checkpoint or the error, the error of the pruning behind it, and, in the
    owner's process, the open checkpoint. `finders`: the files that say where the records of stores are, by the store's
    number. `busy`: the processor time that the writer process took (s), 0 for another one.
    """

    report: CheckpointReport | None
    error: Exception | None = None
    prune_error: Exception | None = None
    reader: CheckpointReader | None = None
    finders: Sequence[StoreFiles] = ()
    busy: float = 0.0

    def packed(self) -> list[Any]:
        """Return what another process needs of it: errors as text."""
        errors = [None if error is None else words(error) for error in self[1:3]]
        return [None if self.report is None else list(self.report), *errors, self.finders, self.busy]

    @classmethod
    def of(cls, fields: list[Any]) -> Outcome:
        """Return the outcome with these fields, as unpacked."""
        report, *errors, finders, busy = fields
        error, prune_error = (None if text is None else CheckpointError(text) for text in errors)
        written = None if report is None else CheckpointReport(*report)
        return cls(written, error, prune_error, finders=finders, busy=busy)


def outcome_of(write: Callable[[], CheckpointReport], prune: Callable[[], object] | None) -> Outcome:
    """Write a checkpoint, then prune, and return the outcome of both. Raises nothing: the owner reads the outcome."""
    try:
        report = write()
    except Exception as error:
        return Outcome(None, error)
    try:
        if prune is not None:
            prune()
    except Exception as error:
        return Outcome(report, None, error)
    return Outcome(report)


def opened(storage: Storage, outcome: Outcome, maps: FinderMaps | None = None) -> Outcome:
    """Return the outcome with its checkpoint open, or with the error of that; `maps` are the maps of files of finders
    that the owner has. Raises nothing. O(index + packs).
    """
    if outcome.report is None:
        return outcome
    try:
        reader = CheckpointReader(storage, outcome.report.name, marks=True)
        if maps is not None:
            reader.finders = maps.finders(outcome.finders, reader.packs)
        return outcome._replace(reader=reader)
    except Exception as error:
        # Whatever the error is, the changelog has the sealed records.
        return Outcome(None, error)


class _WriterFiles(OwnFiles):
    """Files of a process that holds no lock: temporary files may be those of the next owner, so they are checked for,
    too. Those in `spared` are needed: they say where records are.
    """

    spared: Set[str] = frozenset()

    def remove(self, path: Path) -> None:
        self._check()
        if str(path) not in self.spared:
            self._files.remove(path)


class KeptPacks:
    """What a process keeps from one job to the next: the checkpoint before, so that its packs stay open, with the
    tables whose checksums were compared, since most packs of the next one are the same; and where records are, of the
    states that had the last jobs.
    """

    def __init__(self) -> None:
        self.reader: CheckpointReader | None = None
        self._finders: dict[str, tuple[LockHolder, StateFinders]] = {}

    def finders(self, job: Job, name: str, alive: Callable[[], None]) -> Sequence[StoreFiles]:
        """Enter where the records of a job's checkpoint are, and return the files that say so. O(records written)."""
        holder, finders = self._finders.pop(job.path, (None, None))
        if finders is not None and holder != job.holder:  # who opens the state again has none of its files
            finders.clear()
            finders = None
        if finders is None:
            finders = StateFinders(Path(job.path) / CHECKPOINTS)
        self._finders[job.path] = job.holder, finders
        if len(self._finders) > _MOST_FINDERS:
            self._finders.pop(next(iter(self._finders)))[1].clear()
        return finders.follow(LocalStorage(Path(job.path)), name, alive)

    def files(self, job: Job) -> Set[str]:
        """Return the files that say where the records of a job's state are. O(files)."""
        holder, finders = self._finders.get(job.path, (None, None))
        return finders.paths if finders is not None and holder == job.holder else frozenset()

    def enter_some(self) -> bool:
        """Enter where some more records are; False when nothing is left to do. O(block)."""
        return any(finders.enter_some() for _, finders in self._finders.values())


def make(job: Job, alive: Callable[[], None], opened: KeptPacks | None = None) -> Outcome:
    """Make the checkpoint of a job, then prune. `alive` is called again and again meanwhile. Raises nothing.
    O(tail + changed blocks + pages).
    """
    path, begun = Path(job.path), time.process_time()

    def check() -> None:
        alive()
        check_holder(path, job.holder)

    files, kept = _WriterFiles(Files(job.mode), check), opened or KeptPacks()
    pieces: list[CheckpointReport] = []

    def write() -> CheckpointReport:
        # A changelog that ends before the place to which a checkpoint refers counts as damaged, so the log is synced
        # first.
        if not job.synced:
            sync_log(path / CHANGELOG, files)
        while not pieces or pieces[-1].version < job.version:
            pieces.append(_write(job, path, files, alive, kept))
        return _together(pieces)

    def tidy() -> object:
        files.spared = kept.files(job)
        # what the owner reads is kept, in case that it never hears of the checkpoints that replace it
        return prune(path, keep=job.keep, files=files, used=job.used)

    with collector_held():
        outcome = outcome_of(write, tidy)
        if outcome.report is not None and job.tables:
            # behind `tidy`, which removes temporary files
            outcome = outcome._replace(finders=kept.finders(job, outcome.report.name, alive))
    return outcome._replace(busy=time.process_time() - begun)


def _together(pieces: list[CheckpointReport]) -> CheckpointReport:
    """Return the report of the last piece, with what all of them have written."""
    packed, copied, written = (sum(column) for column in list(zip(*pieces, strict=True))[3:6])
    return pieces[-1]._replace(
        bytes_packed=packed,
        bytes_copied=copied,
        bytes_written=written,
        seconds=sum(piece.seconds for piece in pieces),
    )


def _enough(records: int, size: int) -> bool:
    return records > PIECE_RECORDS or size > PIECE_BYTES


def _write(job: Job, path: Path, files: Files, alive: Callable[[], None], opened: KeptPacks) -> CheckpointReport:
    """Write the checkpoint of the job's version, or of an earlier one: a piece."""
    group = StoreGroup(_logged, bucket_divisor=job.divisor)
    SPARING.on = job.tables  # single records are read where blocks have tables
    line = DirectoryLine(path, at=job.version, identity=job.identity, enough=_enough)
    reached = restore_line(line, group, progress=lambda *_: alive())
    opened.reader = reached.checkpoint
    report = reached.report
    if report.version == job.version and report.digest != job.digest:
        raise CheckpointError(
            f"{path}: found version {job.version} with digest {report.digest.hex()}, expected {job.digest.hex()} (the "
            "changelog is of another line)"
        )
    group.reached(report.version, report.digest)
    captures, settings = group.capture(), dict(group.settings)
    del group  # the maps: the captures have the records
    return write_checkpoint(
        LocalStorage(path, files=files),
        identity=job.identity,
        version=report.version,
        digest=report.digest,
        position=line.reached or job.position,
        settings=settings,
        captures=captures,
        previous=reached.checkpoint,
        sizes=job.sizes,
        pack_bytes=min(job.pack_bytes or MOST_PACK_BYTES, MOST_PACK_BYTES),
        tables=job.tables,
        tableless=job.tableless,
    )


def _logged(body: bytes) -> None:
    raise CheckpointError(f"a restore has logged {len(body)} bytes, expected no change")
