"""The command `rewind`: existing state returns to an older version, and its job continues from there.

    a state directory      under its lock: later checkpoints, later segments, and what is behind the version in its own
                           segment are removed, newest first
    a plain topology       the same for each shard, at the version of the same commit
    a Spark query          Spark's later commits/ and offsets/ are moved aside; what later batches left in our shards is
                           void by the rule of runs (`recovery.rule`), so nothing of it is removed

Whenever the command is killed, the state opens at a version between both, and the command can be run again. On an
object store the names of later versions are what stops earlier owners, so nothing is removed there: a copy is made
instead.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from changelog.files import REAL_FILES
from changelog.segment import list_segments, segment_name
from changelog.storage import LocalStorage, Storage, is_url, local_path, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, SPARK_FOLDER, list_checkpoints
from recovery.line import Fault, Step

from ..inspection.options import FINE, NEGATIVE, at_least, last_options
from ..inspection.shards import shard_places, versions_at
from ..inspection.show.output import counted
from ..reading.line import line_of
from ..reading.places import Place, operator_chain, resolve
from ..reading.texts import say
from ..reading.view import View, open_view
from ..rescaling.report import RescaleError
from ..state.lock import claim, refuse_pin

# Spark's logs of a query, by batch, in the order in which they are moved aside: a batch whose commit is gone is done
# again, while a commit without its offsets would be an error.
COMMITS: Final = "commits"
OFFSETS: Final = "offsets"
_LOGS: Final = (COMMITS, OFFSETS)
# Where they are moved to, below the checkpoint location.
ASIDE: Final = "rewound"


def arguments(parser: ArgumentParser) -> None:
    where = "A state directory, the state of a plain topology, or the checkpointLocation of a Spark query; a path."
    parser.add_argument("location", metavar="LOCATION", help=where)
    text = "The version to go back to; of several shards that of shard 0; of a query the number of batches done."
    parser.add_argument("--to", metavar="VERSION", type=at_least(0), required=True, help=text)
    parser.add_argument("--write", action="store_true", help="Do it. Without --write, only show what would be done.")
    how = parser.add_argument_group("how")
    how.add_argument("--state", metavar="PLACE", help="The place of a query's state, if not LOCATION.")
    text = "Confirm that the query is stopped, although the process of its driver is alive."
    how.add_argument("--stopped", action="store_true", help=text)
    last_options(how)


def run(given: Namespace) -> int:
    """Go back to an older version of a state whose job is stopped, so that the job continues from there.

    Without --write nothing is changed. What is later than the version is removed: copy the state before if you may want
    it back. The source has to give the rows behind that version again. Of a Spark query only Spark's logs are moved
    aside (to rewound/), and the batches are done again.

    Exit codes: 0 done, 1 refused with nothing changed, 2 wrong usage, 3 cannot read.
    """
    if is_url(given.location):
        say(
            f"refused: {given.location}: on an object store later versions stop earlier owners, so they are not "
            f"removed (make a copy: hybridstore inspect compact {given.location} --at {given.to} --to NEW --write, and "
            "open NEW; of a Spark query move the later objects of commits/ and then offsets/ aside by hand, newest "
            "first)"
        )
        return NEGATIVE
    path = local_path(given.location)
    try:
        if (path / OFFSETS).is_dir() or (path / SPARK_FOLDER).is_dir():
            return _rewind_query(path, given)
        return _rewind_states(path, given)
    except (RestoreError, RescaleError) as error:
        say(f"refused: {error}")
        return NEGATIVE


# --- plain states -------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """What a state directory loses: the files to remove, in order, and where its last segment is cut."""

    path: Path
    newest: int
    version: int
    removed: list[Path]
    segment: Path
    end: int


def _rewind_states(path: Path, given: Namespace) -> int:
    places = shard_places(path)
    with ExitStack() as stack:
        if given.write:
            for place in places:
                lock = claim(path_of(place), REAL_FILES, read_only=False)
                assert lock is not None
                stack.callback(lock.release)
                # The note of a clean close would forbid an earlier end.
                lock.hold()
        cuts = [_cut_of(place, version) for place, version in zip(places, versions_at(places, given.to), strict=True)]
        for cut in cuts:
            print(
                f"{cut.path}: from version {cut.newest} back to {cut.version}: {counted(len(cut.removed), 'file')} "
                f"removed, {cut.segment.name} cut at byte {cut.end}"
            )
            if given.write:
                _apply(cut)
    print("done: give the source's rows behind this version again" if given.write else "nothing was written (--write)")
    return FINE


def path_of(place: Place) -> Path:
    """Return the directory of a place on a disk."""
    assert place.path is not None
    return place.path


def _cut_of(place: Place, version: int) -> Cut:
    """Return what going back to a version removes. Raises RestoreError when the version is not retained."""
    root, view = path_of(place), open_view(place, version, thorough=True)
    newest = max(version, open_view(place, rows=False).version)
    segment, end = end_of(place, view)
    later = [str(name) for name in list_checkpoints(place.storage) if name.version > version]
    # the file of an object that was written in place has a suffix
    checkpoints = [LocalStorage(root).path(name) or root / name for name in later]
    segments = [root / CHANGELOG / segment_name(first) for first in list_segments(root / CHANGELOG) if first > segment]
    return Cut(
        root,
        newest,
        version,
        [*reversed(checkpoints), *reversed(segments)],
        root / CHANGELOG / segment_name(segment),
        end,
    )


def end_of(place: Place, view: View) -> tuple[int, int]:
    """Return the segment (its first version) and the byte behind the commit of the view's version. Raises RestoreError
    when the changelog does not have it. O(tail).
    """
    meta = view.checkpoint
    start = meta.position if meta is not None and meta.position.segment else None
    if start is not None and meta is not None and meta.version == view.version:
        return start.segment, start.offset
    at = None if start is None or meta is None else Step(meta.version, meta.digest)
    for item in line_of(place, start=start).walk(at, start=start, identity=view.identity):
        if not isinstance(item, Fault) and item.commit.version == view.version:
            return item.position.segment, item.position.offset
    raise RestoreError(f"{place.where}: version {view.version} is not retained: its end is not in the changelog")


def _apply(cut: Cut) -> None:
    """Remove what is later, newest first, so that every moment leaves a state; then cut. Durable on return."""
    for path in cut.removed:
        REAL_FILES.remove(path)
        REAL_FILES.sync_directory(path.parent)
    with closing(REAL_FILES.append(cut.segment)) as file:
        if file.size > cut.end:
            file.truncate(cut.end)
            file.sync()


# --- Spark queries ------------------------------------------------------------------------------------------------


def _rewind_query(path: Path, given: Namespace) -> int:
    from ..rescaling.spark import check_stopped  # only here: Spark's modules load much

    refuse_pin(path)
    places = resolve(given.state or path)
    version = given.to
    for place in {place.operator: place for place in places}.values():
        chain = operator_chain(place)
        if place.operator_storage is not None and chain:
            check_stopped(place.operator_storage, chain[-1], stopped=given.stopped)
    storage = LocalStorage(path)
    logs = {log: sorted(batches_of(storage, log)) for log in _LOGS}
    newest = max(logs[OFFSETS], default=-1) + 1
    if version >= newest or (version and version - 1 not in logs[COMMITS]):
        kept = [batch + 1 for batch in logs[COMMITS] if batch + 1 < newest]
        known = f"{kept[0]} to {kept[-1]}" if kept else "none"
        raise RestoreError(f"{path}: version {version} is none that the query can go back to (known: {known})")
    for place in places:
        view = open_view(place, version, thorough=True)
        print(f"{place.label}: version {view.version} is sound")
    names = [f"{log}/{batch}" for log in _LOGS for batch in reversed(logs[log]) if batch >= version]
    print(
        f"{path}: {len(names)} files of {COMMITS}/ and {OFFSETS}/ are moved to {ASIDE}/: batches {version} to "
        f"{newest - 1}"
    )
    if not given.write:
        print("nothing was written (--write)")
        return FINE
    for name in names:
        _move_aside(storage, name)
    print(
        f"done: the next start does batch {version} again, with the rows behind batch {version - 1}; a sink that skips "
        "batches which it has already (Spark's file sink: _spark_metadata) has to be turned back, too"
    )
    return FINE


def is_query(location: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL is the checkpoint location, or the place of the state, of a Spark query."""
    return is_of_query(storage_at(location).folders())


def is_of_query(folders: Collection[str]) -> bool:
    """Return whether a place with these folders is one, as `is_query`."""
    return OFFSETS in folders or SPARK_FOLDER in folders


def batches_of(storage: Storage, log: str) -> Iterator[int]:
    """Yield the batches of one of Spark's logs."""
    for name in storage.list(f"{log}/"):
        batch = name.removeprefix(f"{log}/")
        if batch.isdecimal():
            yield int(batch)


def _move_aside(storage: LocalStorage, name: str) -> None:
    number = 0
    while not storage.create(f"{ASIDE}/{number}/{name}", data := storage.get(name)):
        if storage.get(f"{ASIDE}/{number}/{name}") == data:
            break  # a rewind before ended between its two steps
        number += 1
    folder, _, batch = name.partition("/")
    storage.delete([name])
    REAL_FILES.remove(storage.root / folder / f".{batch}.crc")
    storage.sync_folder(name)
