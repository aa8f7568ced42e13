"""The command `fork`: another state that begins as a version of a state, beside its job, by reference.

    checkpoint, packs      the version's, by a second name for each file (a hard link): they never change
    segments               those behind the checkpoint, by a second name; the last one as a copy up to the version
    generations/           which shards count: copies
    of a Spark query       objects of its operators, and Spark's own files (`fork_query`)

A file system keeps a file as long as it has a name, so pruning or removing the one state never harms the other. A
segment that has a second name is copied before it is appended to or cut (`Files.append`). The new state is made in a
folder of another name beside its place, checked, and then renamed: whenever the command is killed, the state is there
as a whole or not at all.

The fork takes no lock, because a running writer would exclude it. A rewind of the origin meanwhile never cuts a shared
segment: the rewind removes later segments before it looks for second names, while the fork gives second names before
it opens the last segment. So either the rewind sees the second name, or the fork misses the last segment and begins
anew.
"""

from __future__ import annotations

import errno
import os
import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path
from stat import S_IMODE
from typing import Final

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files, make_folders
from changelog.segment import list_segments, segment_name
from changelog.storage import LocalStorage, is_url, local_path
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, GENERATIONS, SPARK_FOLDER
from recovery.retrying import Signature, signature

from ..inspection.options import FINE, NEGATIVE, choose
from ..inspection.rebuild import claim
from ..inspection.shards import shard_places, versions_at
from ..reading.pins import is_pin_name, pin_path, pins_of
from ..reading.places import Place, resolve
from ..reading.texts import say, size_text
from ..reading.view import View, open_view
from ..state.lock import pin_above
from ..state.registry import note_fork, note_origin, registered
from ..topology.run_state import RUN
from .command import OFFSETS, end_of, path_of
from .forked import ForkedDirectory, Origin, Share, Taken

# The errors of file systems without hard links, or without one more of them.
_NO_LINKS: Final = frozenset((errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
# The owner may remove what is about to be named, as it removes old versions, or a rewind may change the state. So often
# the fork is begun anew.
_TRIES: Final = 5


def arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `fork`."""
    where = (
        "A state directory, the state of a plain topology, or the checkpointLocation of a Spark query; with @VERSION "
        "(of several shards that of shard 0, of a query the number of batches done), or "
    )
    parser.add_argument(
        "location", metavar="STATE[@VERSION]", help=f"{where}@TIME, or @PIN. Without it the newest version."
    )
    parser.add_argument("target", metavar="NEW", help="The directory of the new state; it must be new or empty.")
    how = parser.add_argument_group("how")
    how.add_argument("--state", metavar="PLACE", help="The place of a query's state, if not STATE.")
    how.add_argument("--debug", action="store_true", help="Show tracebacks.")
    how.add_argument("-h", "--help", action="help", help="Show this help.")


def run(given: Namespace) -> int:
    """Begin another state at a version of a state. The state and its job are not touched, and the job may run.

    Files are named a second time and not copied, as long as NEW is on the same file system. Each state may be written,
    pruned, rewound and removed without the other. The new state has the same id as the old one.

    Exit codes: 0 done, 1 refused with nothing written, 2 wrong usage, 3 cannot read.
    """
    where, at = split_version(given.location)
    try:
        checkpoint, state = origin_of(where, given.state)
        if is_url(given.target):
            raise RestoreError(f"{given.target}: found a URL, expected a directory on the file system of {where}")
        parts, taken = begin(state, at, local_path(given.target), checkpoint=checkpoint)
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    # all shards of a query are at one version
    versions = ", ".join(str(part.version) for part in (parts if parts[0].segment else parts[:1]))
    files = f"files: {taken.shared} shared, {taken.copied} copied ({size_text(taken.size)})"
    print(f"{local_path(given.target)}: version {versions} of {where}: {files}")
    return FINE


def split_version(text: str) -> tuple[str, str | None]:
    """Return the location and the version, the time or the pin that `STATE@VERSION` names (None: none)."""
    path, mark, at = text.rpartition("@")
    return (path, at) if mark and path and not local_path(text).exists() else (text, None)


def check_origin(location: str | os.PathLike[str]) -> Path:
    """Return the path of a local state, topology or query, which can be forked. Raises RestoreError,
    FileNotFoundError.
    """
    if is_url(location):
        raise RestoreError(
            f"{location}: objects of an object store have one name each, so a fork would be a copy (make one: "
            f"hybridstore inspect compact {location} --at VERSION --to NEW --write)"
        )
    where = local_path(location)
    if not where.exists():
        raise FileNotFoundError(f"{where}: no such directory, expected a state")
    return where


def fork(
    location: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    at: int | str | None = None,
    state_location: str | os.PathLike[str] | None = None,
) -> Path:
    """Begin another state at a version of a state, by reference; return its directory. The job may run.

    location   a state directory, the state of a plain topology, or the checkpointLocation of a Spark query; local
    new        the directory of the new state, of a query its checkpointLocation; it must be new or empty
    at         the version (of several shards that of shard 0, of a query the number of batches done), a time (ISO,
               UTC), or the name of a pin; None: the newest version
    state_location   of a Spark query, as in `apply`; the new query has its state in `new`

    Files are named a second time and not copied, as long as `new` is on the same file system. Whatever is done to the
    one state, the other is as it was. Raises RestoreError for a version that is not retained, OccupiedError, OSError.
    O(files + bytes behind the begin of the last segment).

    >>> with hs.open("state") as state:
    ...     users = state.key_value("users")
    ...     for visits in (1, 2):
    ...         users["ann"] = visits
    ...         version = state.commit()
    >>> with hs.open(hs.fork("state", "canary", at=1)) as canary:
    ...     canary.version, canary.key_value("users")["ann"]
    (1, 1)
    """
    target = local_path(new)
    checkpoint, where = origin_of(location, state_location)
    begin(where, None if at is None else str(at), target, checkpoint=checkpoint)
    return target


def origin_of(
    location: str | os.PathLike[str], state_location: str | os.PathLike[str] | None = None
) -> tuple[Path, Path]:
    """Return the checkpoint location of a query, and where its state is; elsewhere the state, twice. Raises as
    `check_origin`.
    """
    checkpoint = check_origin(location)
    if state_location is not None and not _is_query(checkpoint):
        raise RestoreError(f"{checkpoint}: found no Spark query, expected one with a place of its state")
    return checkpoint, checkpoint if state_location is None else check_origin(state_location)


def _is_query(path: Path) -> bool:
    return any((path / name).is_dir() for name in (OFFSETS, SPARK_FOLDER))


def begin(
    where: Path, at: str | None, target: Path, *, checkpoint: Path | None = None
) -> tuple[list[ForkedDirectory], Taken]:
    """Begin the state `target` outside of the state `where`, at a version, a time or a pin of it; see `begin_at`."""
    above = pin_above(where.resolve())
    # a fork of a pin is noted at the pin's state, where it is known when the pin is removed
    origin = where if above is None else above.parent.parent
    for place in (origin, checkpoint or origin):
        if place.resolve() in target.resolve().parents:
            raise RestoreError(f"{target}: is inside of {place}, expected a directory beside it")
    with registered(origin):
        if at is None or not is_pin_name(at):
            return begin_at(where, at, target, origin=origin, checkpoint=checkpoint)
        pinned = pin_path(where, at)
        if not pinned.is_dir():
            known = ", ".join(each.name for each in pins_of(where)) or "none"
            raise RestoreError(f"{where}: found no pin {at!r}, expected a version, a time or a pin (known: {known})")
        return begin_at(pinned, None, target, origin=origin)


def begin_at(
    where: Path,
    at: str | None,
    target: Path,
    *,
    origin: Path | None = None,
    checkpoint: Path | None = None,
) -> tuple[list[ForkedDirectory], Taken]:
    """Begin the state `target` at a version of the state `where`; return what it has of it, and how many files are
    shared and copied. With `origin`, the new state is noted there as its fork. `checkpoint` has Spark's files, if
    elsewhere. Durable on return. Raises RestoreError, OccupiedError, OSError. O(files + bytes behind the last segment's
    begin).
    """
    read = _reader(where, where if checkpoint is None else checkpoint)
    places = read.places
    target = target.resolve()
    claim_place(target)
    building = target.parent / f".{target.name}.{os.urandom(8).hex()}.fork"
    for tries in range(_TRIES):
        before = _signature(places)
        try:
            parts = read.parts(at)
            files = read.files
            if origin is not None:
                note_fork(origin, building, files)  # of which a kill leaves files
            taken = _build(read, parts, building)
            if origin is not None:
                note_origin(building, origin, files)
                note_fork(origin, target, files)
            building.rename(target)
            break
        except (FileNotFoundError, HybridStoreError) as error:
            shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, HybridStoreError):
                if tries == _TRIES - 1 or _signature(places) == before:
                    raise
            elif tries == _TRIES - 1:
                raise RestoreError(
                    f"{where}: found no {error.filename}, which was there a moment ago (try again, or choose a later "
                    "version)"
                ) from error
        except Exception:
            shutil.rmtree(building, ignore_errors=True)
            raise
    REAL_FILES.sync_directory(target.parent)
    return parts, taken


def _signature(places: list[Place]) -> list[Signature]:
    return [signature(path_of(place)) for place in places]


def claim_place(target: Path) -> None:
    """Make the parents of a directory, and refuse one that has content (OccupiedError)."""
    make_folders(REAL_FILES, target.absolute().parent)
    if target.exists():
        claim(target)


def _reader(where: Path, checkpoint: Path) -> Origin:
    if not _is_query(where):
        return _DirectoryOrigin(where)
    from .fork_query import QueryOrigin  # only here: what is of Spark loads more

    return QueryOrigin(checkpoint, where)


class _DirectoryOrigin:
    """A plain state or topology; see `Origin`."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.places = shard_places(where)

    @property
    def files(self) -> Files:
        """See `Origin`: the mode of the newest segment."""
        folder = path_of(self.places[0]) / CHANGELOG
        return Files(S_IMODE((folder / segment_name(list_segments(folder)[-1])).stat().st_mode))

    def parts(self, at: str | None) -> list[ForkedDirectory]:
        """See `Origin`."""
        where, places = self.where, self.places
        views = [_sound(places[0], choose(places[0], at))]
        if len(places) > 1 and (at is not None or RUN in views[0].settings):
            versions: list[int | None] = [*versions_at(places, views[0].version)]
        else:
            versions = [None] * len(places)
        views += [_sound(place, version) for place, version in zip(places[1:], versions[1:], strict=True)]
        return [_part(where, place, view) for place, view in zip(places, views, strict=True)]

    def add(self, building: Path, share: Share, taken: Taken) -> Taken:
        """See `Origin`: which shards count."""
        storage, new = LocalStorage(self.where), LocalStorage(building, files=self.files)
        for name in storage.list(f"{GENERATIONS}/"):
            new.create(name, data := storage.get(name))
            taken = taken.copy(len(data))
        return taken


def _part(where: Path, place: Place, view: View) -> ForkedDirectory:
    source = path_of(place)
    segment, end = end_of(place, view)
    meta, pages = view.checkpoint, view.pages
    shared = [] if meta is None or pages is None else [*(record.name for record in meta.packs), pages.name]
    first = 0 if meta is None else meta.position.segment
    behind = [number for number in list_segments(source / CHANGELOG) if first <= number < segment]
    shared += [f"{CHANGELOG}/{segment_name(number)}" for number in behind]
    folder = "" if source == where else str(source.relative_to(where))
    return ForkedDirectory(source, folder, view, view.version, shared, f"{CHANGELOG}/{segment_name(segment)}", end)


def _sound(place: Place, version: int | None) -> View:
    view = open_view(place, version, thorough=True)
    if view.faults:
        raise RestoreError(f"{place.where}: {view.faults[0]} (repair it first: hybridstore inspect repair)")
    if not view.version:
        raise RestoreError(f"{place.where}: has no version yet, expected one to begin with")
    return view


def _build(origin: Origin, parts: list[ForkedDirectory], building: Path) -> Taken:
    """Write the new state into a folder that does not exist yet, durably, and read it."""
    taken, files = Taken(), origin.files

    def share(source: Path, path: Path, taken: Taken) -> Taken:
        if not path.parent.exists():
            make_folders(files, path.parent)
        return _share(source, path, files, taken)

    for part in parts:
        root = building / part.folder
        for name in (CHANGELOG, CHECKPOINTS) if part.segment else ():
            make_folders(files, root / name)
        for name in part.shared:
            # the file of an object that was written in place has a suffix
            source = LocalStorage(part.source).path(name)
            assert source is not None
            taken = share(source, (root / name).with_name(source.name), taken)
        if part.segment:
            # behind the links: who removes this segment and then cuts one before it sees the second name there
            taken = taken.copy(_copy(part.source / part.segment, root / part.segment, part.end, files))
    taken = origin.add(building, share, taken)
    for folder in (building, *(path for path in building.rglob("*") if path.is_dir())):
        REAL_FILES.sync_directory(folder)
    for part in parts:
        view = open_view(resolve(building / part.folder)[0], thorough=True)
        if view.faults or (view.version, view.digest) != (part.view.version, part.view.digest):
            raise RestoreError(
                f"{part.source}: version {part.version} cannot be forked: its copy has version {view.version} "
                f"({view.faults[0] if view.faults else 'the state changed meanwhile'}; try again)"
            )
    return taken


def _share(source: Path, path: Path, files: Files, taken: Taken) -> Taken:
    """Give a file a second name, or copy it where the file system cannot; return `taken` with this file."""
    try:
        files.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return taken.copy(_copy(source, path, None, files))
    return taken._replace(shared=taken.shared + 1)


def _copy(source: Path, path: Path, end: int | None, files: Files) -> int:
    """Copy the first `end` bytes of a file (None: all), durably; return how many."""
    with source.open("rb") as old:
        data = old.read() if end is None else old.read(end)
    file = files.create(path)
    try:
        file.write(data)
        file.sync()
    finally:
        file.close()
    return len(data)
