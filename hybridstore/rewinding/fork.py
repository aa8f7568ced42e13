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
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from stat import S_IMODE
from typing import Any, Final

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files, make_folders
from changelog.rounds import side_by_side
from changelog.segment import list_segments, segment_name
from changelog.storage import LocalStorage, Storage, is_url, local_path, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS

from ..inspection.options import FINE, NEGATIVE, last_options
from ..inspection.rebuild import OccupiedError, claim
from ..inspection.shards import counting_places
from ..reading.pins import has_pin, is_pin_name, pin_names, pin_path
from ..reading.places import Place, resolve
from ..reading.texts import say, size_text
from ..reading.view import View, open_view
from ..state.generations import above, levels_of_pin, location_of
from ..state.lock import pin_above
from ..state.registry import note_fork, note_origin, registered
from .command import end_of, is_of_query, is_query, path_of
from .fork_bucket import BucketOrigin, BucketSite
from .forked import ForkedPart, Origin, Site, Taken, checkpoint_names, descriptions, views_at
from .makers import Maker, at_work

# The errors of file systems without hard links, or without one more of them.
_NO_LINKS: Final = frozenset((errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
# The owner may remove what is about to be named, as it removes old versions, or a rewind may change the state. So often
# the fork is begun anew.
_TRIES: Final = 5


def arguments(parser: ArgumentParser) -> None:
    where = (
        "A state directory, the state of a plain topology, or the checkpointLocation of a Spark query; with @VERSION "
        "(of several shards that of shard 0, of a query the number of batches done), or "
    )
    parser.add_argument(
        "location", metavar="STATE[@VERSION]", help=f"{where}@TIME, or @PIN. Without it the newest version."
    )
    parser.add_argument(
        "target", metavar="NEW", help="The place of the new state, a directory or a URL; it must be new or empty."
    )
    how = parser.add_argument_group("how")
    how.add_argument("--state", metavar="PLACE", help="The place of a query's state, if not STATE.")
    last_options(how)


def run(given: Namespace) -> int:
    """Begin another state at a version of a state. The state and its job are not touched, and the job may run.

    Files are named a second time and not copied, as long as NEW is on the same file system. On an object store, where
    NEW is a URL, the store copies the objects by itself. Each state may be written,
    pruned, rewound and removed without the other. The new state has the same id as the old one.

    Exit codes: 0 done, 1 refused with nothing written, 2 wrong usage, 3 cannot read.
    """
    where, at = split_version(given.location)
    try:
        checkpoint, state = origin_of(where, given.state)
        parts, taken = begin(state, at, _place(given.target), checkpoint=checkpoint)
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    # all shards of a query are at one version
    versions = ", ".join(str(part.version) for part in (parts if parts[0].segment else parts[:1]))
    if is_url(given.target):
        files = f"objects: {taken.shared} copied by the store, {taken.copied} from here ({size_text(taken.size)})"
    else:
        files = f"files: {taken.shared} shared, {taken.copied} copied ({size_text(taken.size)})"
    print(f"{_place(given.target)}: version {versions} of {where}: {files}")
    return FINE


def _place(location: str | os.PathLike[str]) -> Path | str:
    """Return a URL as it is, with its settings, and a path as one."""
    return location if isinstance(location, str) and is_url(location) else local_path(location)


def split_version(text: str) -> tuple[str, str | None]:
    """Return the location and the version, the time or the pin that `STATE@VERSION` names (None: none)."""
    path, mark, at = text.rpartition("@")
    return (path, at) if mark and path and "/" not in at and not local_path(text).exists() else (text, None)


def check_origin(location: str | os.PathLike[str]) -> Path | str:
    """Return the path or the URL of a state, topology or query, which can be forked. Raises RestoreError,
    FileNotFoundError.
    """
    if is_url(location):
        return location if isinstance(location, str) else os.fspath(location)
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
) -> Path | str:
    """Begin another state at a version of a state, by reference; return its directory or URL. The job may run.

    location   a state directory, the state of a plain topology, or the checkpointLocation of a Spark query: a path, or
               the URL of an object store
    new        the place of the new state, of a query its checkpointLocation; it must be new or empty, and a URL if the
               state is at one
    at         the version (of several shards that of shard 0, of a query the number of batches done), a time (ISO,
               UTC), or the name of a pin; None: the newest version
    state_location   of a Spark query, as in `apply`; the new query has its state in `new`

    Files are named a second time and not copied, as long as `new` is on the same file system. On an object store the
    store copies the objects by itself, as long as both are in one bucket with the same settings. Whatever is done to
    the one state, the other is as it was. Raises RestoreError for a version that is not retained, OccupiedError,
    OSError. O(files + bytes behind the begin of the last segment).

    >>> with hs.open("state") as state:
    ...     users = state.key_value("users")
    ...     for visits in (1, 2):
    ...         users["ann"] = visits
    ...         version = state.commit()
    >>> with hs.open(hs.fork("state", "canary", at=1)) as canary:
    ...     canary.version, canary.key_value("users")["ann"]
    (1, 1)
    """
    target = _place(new)
    checkpoint, where = origin_of(location, state_location)
    begin(where, None if at is None else str(at), target, checkpoint=checkpoint)
    return target


def origin_of(
    location: str | os.PathLike[str], state_location: str | os.PathLike[str] | None = None
) -> tuple[Path | str, Path | str]:
    """Return the checkpoint location of a query, and where its state is; elsewhere the state, twice. Raises as
    `check_origin`.
    """
    checkpoint = check_origin(location)
    if state_location is not None and not is_query(checkpoint):
        raise RestoreError(f"{checkpoint}: found no Spark query, expected one with a place of its state")
    return checkpoint, checkpoint if state_location is None else check_origin(state_location)


def begin(
    where: Path | str, at: str | None, target: Path | str, *, checkpoint: Path | str | None = None
) -> tuple[list[ForkedPart], Taken]:
    """Begin the state `target` outside of the state `where`, at a version, a time or a pin of it; see `begin_at`."""
    if is_url(where) != is_url(target):
        raise RestoreError(
            f"{target}: found {_kind(target)}, expected {_kind(where)}, as {where} is (a copy elsewhere: hybridstore "
            f"inspect compact {where} --at VERSION --to {target} --write)"
        )
    # a fork of a pin is noted at the pin's state, where it is known when the pin is removed
    origin = pinned_state(where)
    for place in (origin, checkpoint or origin):
        if is_url(place) == is_url(target) and f"{_absolute(target)}/".startswith(f"{_absolute(place)}/"):
            raise RestoreError(f"{target}: is inside of {place}, expected a place beside it")
    with registered(origin):
        if at is None or not is_pin_name(at):
            return begin_at(where, at, target, origin=origin, checkpoint=checkpoint)
        pinned = pin_path(where, at)
        if not has_pin(where, at):
            known = ", ".join(pin_names(where)) or "none"
            raise RestoreError(f"{where}: found no pin {at!r}, expected a version, a time or a pin (known: {known})")
        return begin_at(pinned, None, target, origin=origin)


def _kind(place: Path | str) -> str:
    return "a URL" if is_url(place) else "a directory"


def _absolute(place: Path | str) -> str:
    return str(place).rstrip("/") if is_url(place) else str(Path(place).resolve())


def pinned_state(where: Path | str) -> Path | str:
    """Return the state of a pin; of what is no pin itself."""
    if is_url(where):
        storage = storage_at(where)
        levels = levels_of_pin(storage)
        return where if levels is None else location_of(above(storage, levels + 1))
    pinned = pin_above(Path(where).resolve())
    return where if pinned is None else pinned.parent.parent


def begin_at(
    where: Path | str,
    at: str | None,
    target: Path | str,
    *,
    origin: Path | str | None = None,
    checkpoint: Path | str | None = None,
) -> tuple[list[ForkedPart], Taken]:
    """Begin the state `target` at a version of the state `where`; return what it has of it, and how many files are
    shared and copied. With `origin`, the new state is noted there as its fork. `checkpoint` has Spark's files, if
    elsewhere. Durable on return. Raises RestoreError, OccupiedError, OSError. O(files + bytes behind the last segment's
    begin).
    """
    reader = partial(_reader, where, where if checkpoint is None else checkpoint)
    with at_work() as maker:
        read, site = _open(reader, target, maker)
        for tries in range(_TRIES):
            before = read.signature()
            try:
                parts = read.parts(at)
                site.begin(read, origin)
                _fill(read, parts, site)
                site.end(read, parts, origin)
                return parts, site.taken
            except (FileNotFoundError, HybridStoreError) as error:
                site.undo()
                if isinstance(error, HybridStoreError):
                    if tries == _TRIES - 1 or read.signature() == before:
                        raise
                elif tries == _TRIES - 1:
                    raise RestoreError(
                        f"{where}: found no {error.filename}, which was there a moment ago (try again, or choose a "
                        "later version)"
                    ) from error
                read = reader()  # a rescale may have ended
            except Exception:
                site.undo()
                raise
    raise AssertionError


def _open(reader: Callable[[], Origin], target: Path | str, maker: Maker) -> tuple[Origin, Site]:
    """Return the origin and the place of the fork; on an object store both are looked at side by side."""
    if not is_url(target):
        return reader(), _DirectorySite(Path(target))
    looks: list[Callable[[], Any]] = [reader, storage_at(target).list]
    read, names = side_by_side(lambda look: look(), looks)
    return read, BucketSite(target, maker, names)


def _reader(where: Path | str, checkpoint: Path | str) -> Origin:
    folders = storage_at(where).folders()
    if is_of_query(folders):
        from .fork_query import QueryOrigin  # only here: what is of Spark loads more

        return QueryOrigin(checkpoint, where)
    return BucketOrigin(where, folders) if is_url(where) else _DirectoryOrigin(Path(where))


def _fill(origin: Origin, parts: list[ForkedPart], site: Site) -> None:
    """Write the new state."""
    for part in parts:
        for name in (CHANGELOG, CHECKPOINTS) if part.segment else ():
            site.folder(part.name(name))
        sizes = part.sizes
        for name in part.shared:
            site.share(part.source, name, part.name(name), sizes.get(name))
        if part.segment:
            # behind the links: who removes this segment and then cuts one before it sees the second name there
            site.copy(part.source, part.segment, part.name(part.segment), part.end)
    origin.add(site, parts)


class _DirectoryOrigin(Origin):
    """A plain state or topology; see `Origin`."""

    def __init__(self, where: Path) -> None:
        self.where: Path | str = where
        self._path = where
        self.places, self._counting = counting_places(where)

    @property
    def files(self) -> Files:
        """See `Origin`: the mode of the newest segment."""
        folder = path_of(self.places[0]) / CHANGELOG
        return Files(S_IMODE((folder / segment_name(list_segments(folder)[-1])).stat().st_mode))

    def parts(self, at: str | None) -> list[ForkedPart]:
        return [self._part(place, view) for place, view in views_at(self.places, at, thorough=True)]

    def _part(self, place: Place, view: View) -> ForkedPart:
        source = path_of(place)
        segment, end = end_of(place, view)
        meta = view.checkpoint
        first = 0 if meta is None else meta.position.segment
        behind = [number for number in list_segments(source / CHANGELOG) if first <= number < segment]
        shared = [*checkpoint_names(view), *(f"{CHANGELOG}/{segment_name(number)}" for number in behind)]
        folder = "" if source == self._path else str(source.relative_to(self._path))
        last = f"{CHANGELOG}/{segment_name(segment)}"
        return ForkedPart(place.storage, folder, view, view.version, shared, last, end)

    def add(self, site: Site, parts: list[ForkedPart]) -> None:
        """See `Origin`: which shards count."""
        storage = LocalStorage(self._path)
        for name in descriptions(storage, self._counting):
            site.create(name, storage.get(name))


class _DirectorySite:
    """See `Site`: a folder of another name beside the place, which is renamed at the end."""

    def __init__(self, target: Path) -> None:
        self.taken = Taken()
        self._target = target.resolve()
        self._files = REAL_FILES
        # whether all packs and indexes are files of the origin, which it has read
        self._linked = True
        claim_place(self._target)
        self._building = self._target.parent / f".{self._target.name}.{os.urandom(8).hex()}.fork"

    def begin(self, origin: Origin, noted: Path | str | None) -> None:
        """See `Site`. A kill leaves files in the noted folder."""
        self.taken, self._files, self._linked = Taken(), origin.files, True
        if noted is not None:
            note_fork(noted, self._building, self._files)

    def folder(self, name: str) -> None:
        make_folders(self._files, self._building / name)

    def share(self, source: Storage, name: str, to: str, size: int | None = None) -> None:
        """See `Site`: by a second name."""
        # the file of an object that was written in place has a suffix
        path = source.path(name)
        if path is None:  # Spark's own files may be on an object store, while the state is here
            self._place(to)
            self.create(to, source.get(name))
            return
        before = self.taken
        self.taken = _share(path, self._place(to).with_name(path.name), self._files, before)
        self._linked = self._linked and self.taken.copied == before.copied

    def _place(self, to: str) -> Path:
        path = self._building / to
        if not path.parent.exists():
            make_folders(self._files, path.parent)
        return path

    def copy(self, source: Storage, name: str, to: str, end: int) -> None:
        assert isinstance(source, LocalStorage)
        self.taken = self.taken.copy(_copy(source.root / name, self._place(to), end, self._files))

    def create(self, name: str, data: bytes) -> None:
        LocalStorage(self._building, files=self._files).create(name, data)
        self.taken = self.taken.copy(len(data))

    def end(self, origin: Origin, parts: list[ForkedPart], noted: Path | str | None) -> None:
        building = self._building
        for folder in (building, *(path for path in building.rglob("*") if path.is_dir())):
            REAL_FILES.sync_directory(folder)
        for part in parts:
            view = open_view(resolve(building / part.folder)[0], thorough=not self._linked, rows=False)
            if view.faults or (view.version, view.digest) != (part.view.version, part.view.digest):
                raise RestoreError(
                    f"{part.source.url}: version {part.version} cannot be forked: its copy has version {view.version} "
                    f"({view.faults[0] if view.faults else 'the state changed meanwhile'}; try again)"
                )
        if noted is not None:
            note_origin(building, noted, self._files)
            note_fork(noted, self._target, self._files)
        try:
            building.rename(self._target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise OccupiedError(f"{self._target}: another command has made it meanwhile (give a new place)") from None
        REAL_FILES.sync_directory(self._target.parent)

    def undo(self) -> None:
        shutil.rmtree(self._building, ignore_errors=True)


def claim_place(target: Path) -> None:
    """Make the parents of a directory, and refuse one that has content (OccupiedError)."""
    make_folders(REAL_FILES, target.absolute().parent)
    if target.exists():
        claim(target)


def _share(source: Path, path: Path, files: Files, taken: Taken) -> Taken:
    """Give a file a second name, or copy it where the file system cannot; return `taken` with this file."""
    try:
        files.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return taken.copy(_copy(source, path, None, files))
    return taken.share()


def _copy(source: Path, path: Path, end: int | None, files: Files) -> int:
    """Copy the first `end` bytes of a file (None: all), durably; return how many."""
    with source.open("rb") as old:
        data = old.read() if end is None else old.read(end)
    with closing(files.create(path)) as file:
        file.write(data)
        file.sync()
    return len(data)
