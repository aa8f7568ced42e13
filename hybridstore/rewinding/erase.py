"""The command `erase`: a key, and all that a stopped job's state has of it, is removed from every file.

A state has parts, which follow one another: its shards and those of its pins (`erase_state`), or the operators of a
Spark query (`erase_operator`). A note, `erasing`, is in each of them from before the first write until the last file is
removed, and keeps jobs out: killed at any moment, the state is as it was, erased, or says that the erase has not ended,
and the command can be run again.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from changelog.cached_storage import bare
from changelog.cloud_storage import CloudStorage
from changelog.errors import HybridStoreError
from changelog.storage import LocalStorage, Storage, exists, is_url, storage_at
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, ERASING, ERASING_SHARDS, PINS, SPARK_FOLDER

from ..inspection.options import FINE, NEGATIVE, UsageError, last_options, typed_key
from ..inspection.show.output import Out, counted
from ..reading.pins import pin_names, pin_path
from ..reading.texts import say
from ..state.generations import (
    current_shards,
    existing_shards,
    identity_at,
    location_of,
    newest_generation,
    place_below,
)
from ..state.given_keys import GivenKeys
from ..state.lock import pin_above
from ..state.registry import forks_of, is_unfinished, kept_from_erase, origins_of, remove_unfinished
from .command import is_query
from .erase_state import StatePart
from .makers import check_whole
from .parts import ErasedCounts, ErasePart

if TYPE_CHECKING:
    from ..spark.location import Location

Forks = Literal["refuse", "erase", "leave"]


class Erased(NamedTuple):
    """What `erase` has done.

    records   how many records are gone, over all stores, shards, pins and forks; expired ones count, too
    places    the state directories that were written: shards, pins, forks; on an object store their URLs
    removed   bytes of the files that were removed
    written   bytes of the packs and indexes that were written in their place
    holders   forks, and the states that this one began as a version of, which still have the keys, or cannot be read

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> erased = hs.erase("state", "ann")
    >>> erased.records, len(erased.places), erased.holders
    (1, 1, [])
    """

    records: int
    places: list[Path | str]
    removed: int
    written: int
    holders: list[Path | str]


def erase(
    location: str | os.PathLike[str] | Location,
    *keys: Any,
    prefix: bool = False,
    forks: Forks = "refuse",
    operator: str | None = None,
    state_location: str | os.PathLike[str] | None = None,
    stopped: bool = False,
) -> Erased:
    """Remove keys, and all that the state of a stopped job has of them, from every file; return what was done.

    location  a state directory, the state of a plain topology, or the checkpointLocation of a Spark query: a path, or
              a URL of an object store. Its pins are part of it
    keys      the keys, in every store whose keys they are; of a topology those of its rows
    prefix    all keys that begin with one of these: text, bytes, or the leading parts of a tuple
    forks     what becomes of states that began as versions of this one and have the keys: "refuse" if one has, "erase"
              there, too, or "leave" them, so that they are named among the holders
    operator  of a Spark query only this operator; None: all
    state_location   of a Spark query, as in `apply`
    stopped   the query is stopped, though the process of its driver is alive

    The state continues at a later version, and a query with its next batch, at the version of its last committed one.
    Older versions are removed, and so are those of a pin but the pinned one, which continues likewise. Raises
    RestoreError where nothing can be erased, and nothing was written; StateLockedError while a job has the state.
    O(bytes of the packs) to search, and to write what the packs with the keys have besides.

    >>> with hs.open("state") as state:
    ...     state.key_value("users").put_many({"ann": 1, "bob": 2})
    ...     state.commit()
    1
    >>> hs.erase("state", "ann").records
    1
    >>> with hs.open("state") as state:
    ...     state.version, dict(state.key_value("users").all())
    (3, {'bob': 2})
    """
    chosen = GivenKeys(keys, prefix=prefix)
    asked = _QueryNames(operator, state_location, stopped)
    target = _target(location, asked)
    with ExitStack() as stack:
        noted = target.locked(stack)  # before its forks are looked at, so that none is being made
        others = [fork for fork in noted if not is_unfinished(fork) and _may_have(fork, chosen, operator)]
        if others and forks == "refuse":
            names = ", ".join(map(str, others))
            raise RestoreError(
                f"{target.where}: found forks that have the keys: {names} (erase there, too: --forks; or leave them: "
                "--leave-forks)"
            )
        asked = _QueryNames(operator, None, stopped)  # a fork has its state beside its checkpoints
        for fork in others if forks == "erase" else []:
            if is_url(fork):
                check_whole(fork)
        targets = [target, *(_target(fork, asked) for fork in (others if forks == "erase" else []))]
        for each in targets[1:]:
            each.locked(stack)
        parts = [part for each in targets for part in each.parts]
        notes = [note for each in targets for note in each.notes]
        for note in notes:
            note.check(chosen)
        for part in parts:
            part.check()  # all can be erased before the first is written
        text, known = chosen.note(), list(map(_beside, targets))
        noted_here = [note for note in notes if note.storage.create(note.name, text)]
        # an object store has no locks: who makes a fork or a pin from now on sees the notes, and those before are here
        if list(map(_beside, targets)) != known:
            for note in noted_here:
                note.storage.delete([note.name])
            raise RestoreError(f"{target.where}: a fork or a pin is being made (try again when it has ended)")
        now, done = int(time.time() * 1000), ErasedCounts()
        for part in parts:
            done = done.plus(part.erase(chosen, now))
        for folder in chain.from_iterable(each.folders for each in targets if each.path is not None):
            remove_unfinished(Path(folder))
        for note in reversed(notes):
            note.storage.delete([note.name])
    origins = [each for folder in target.folders[:1] for each in origins_of(target.path or folder)]
    origins = [each for each in origins if _may_have(each, chosen, operator)]
    holders = [*([] if forks == "erase" else others), *origins]
    return Erased(done.records, [place for part in parts for place in part.places], done.removed, done.written, holders)


def _beside(target: _ErasedState) -> list[str]:
    """Return the forks and pins of a state on an object store. Some requests; none for a directory, which is locked."""
    if target.path is not None:
        return []
    forks = [str(fork) for folder in target.folders for fork in forks_of(folder)]
    return forks + [f"{folder}/{PINS}/{name}" for folder in target.folders for name in pin_names(folder)]


class _QueryNames(NamedTuple):
    """What is said of a Spark query; see `erase`."""

    operator: str | None = None
    state_location: str | os.PathLike[str] | None = None
    stopped: bool = False

    def __bool__(self) -> bool:
        return self != _QueryNames()


class _Note(NamedTuple):
    """Where it is noted that an erase has begun and has not ended."""

    storage: Storage
    name: str = ERASING

    def check(self, keys: GivenKeys) -> None:
        """Raise RestoreError where an erase of other keys has begun and has not ended."""
        try:
            note = self.storage.get(self.name)
        except FileNotFoundError:
            return
        if not keys.same_as(note):
            raise RestoreError(
                f"{self.storage.url}: an erase of other keys has begun here and has not ended, so that some files may "
                "still have them (run that one again first)"
            )


class _ErasedState(NamedTuple):
    """A state: its parts, the folders where its forks and pins are noted, and all of its files (`storage`). `shards`:
    it is on an object store, with a description of its shards.
    """

    where: str
    path: Path | None
    parts: Sequence[ErasePart]
    folders: Sequence[Path | str]
    storage: Storage
    shards: bool = False

    @property
    def notes(self) -> list[_Note]:
        """The notes of an erase: the first is created first and removed last. A job that opens the shards of a state on
        an object store sees that of all of them.
        """
        notes = [_Note(part.storage) for part in self.parts]
        return [_Note(self.storage, ERASING_SHARDS), *notes] if self.shards else notes

    def locked(self, stack: ExitStack) -> list[Path | str]:
        """Keep forks and pins of a state, and of each shard, from being made; return the forks noted there."""
        for folder in self.folders:
            stack.enter_context(kept_from_erase(folder, erasing=True))
        return sorted({fork for folder in self.folders for fork in forks_of(folder)}, key=str)


def _target(location: str | os.PathLike[str] | Location, asked: _QueryNames) -> _ErasedState:
    """Return the state at a location. Raises RestoreError, FileNotFoundError for what cannot be erased."""
    if not isinstance(location, str | os.PathLike) or is_query(location):
        return _query(location, asked)
    if asked:
        raise RestoreError(f"{location}: found no Spark query, expected one with an operator or a place of its state")
    storage = storage_at(location)
    path = storage.root if isinstance(storage, LocalStorage) else None
    if path is not None:
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such directory, expected a state")
        _check_pinned(path)
    if identity_at(storage) is not None:  # the rest of the state would keep the keys
        raise RestoreError(f"{storage.url}: is a shard, expected the place of the state with all of its shards")
    parts = list(map(StatePart, _places_of(location)))
    folders: list[Path | str] = [location_of(storage)]
    if path is not None:
        folders = sorted({path, *(place for part in parts for place in map(Path, part.places))}, key=str)
    shards = path is None and newest_generation(storage) is not None
    return _ErasedState(storage.url, path, parts, folders, storage, shards)


def _places_of(location: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """Return the places of a state: its shards, and those of its pins. Raises RestoreError for shards of an earlier
    generation, which may have the keys, too.
    """
    storage = storage_at(location)
    path = storage.root if isinstance(storage, LocalStorage) else None
    there = current_shards(storage)
    if there is None:
        raise RestoreError(f"{storage.url}: found no state, expected the place of one")
    folders = [there.folder(shard) for shard in sorted(existing_shards(storage, there))]
    counting = {folder.partition("/")[0] for folder in folders}
    others = [name for name in storage.folders() if name not in counting]
    earlier = sorted(name for name in others if name.isdecimal() or (there.generation and name == CHANGELOG))
    # on an object store the names of claims stay behind a rescale that was taken back
    if earlier and (there.generation or path is not None):
        raise RestoreError(
            f"{storage.url}: found folders from before a rescale, which may have the keys: {', '.join(earlier)} "
            "(remove these folders; the state cannot go back behind the rescale then)"
        )
    places = [place_below(location if path is None else path, folder) for folder in folders]
    homes = dict.fromkeys([path or location_of(storage), *(Path(each) if path else os.fspath(each) for each in places)])
    pins = [pin_path(home, name) for home in homes for name in pin_names(home)]  # a shard may have pins, too
    for pin in pins if path is None else []:
        check_whole(pin)
    return [*(place for pin in pins for place in _places_of(pin)), *places]


def _query(location: str | os.PathLike[str] | Location, asked: _QueryNames) -> _ErasedState:
    from ..spark.location import located  # only here: Spark's modules load much
    from ..spark.reading import operators_in
    from .erase_operator import OperatorPart

    at = located(location, asked.state_location)
    storage = at.states()
    path = storage.root if isinstance(storage, LocalStorage) else None
    names = operators_in(storage.below(SPARK_FOLDER))
    if not names or asked.operator not in (None, *names):
        what = "no state of an operator" if asked.operator is None else f"no operator {asked.operator!r}"
        raise RestoreError(f"{at.state}: found {what} (known: {', '.join(names) or 'none'}; or give --state)")
    chosen = names if asked.operator is None else [asked.operator]
    parts: list[ErasePart] = []
    if path is not None:
        _check_pinned(path)
    folders = [location_of(storage)] if isinstance(bare(storage), LocalStorage | CloudStorage) else []
    for pin in (pin_path(folder, name) for folder in folders for name in pin_names(folder)):
        if path is None:
            check_whole(pin)
        parts += [OperatorPart(located(pin), name, stopped=True) for name in chosen]
    parts += [OperatorPart(at, name, stopped=asked.stopped) for name in chosen]
    return _ErasedState(at.state, path, parts, folders, storage)


def _check_pinned(path: Path) -> None:
    pinned = pin_above(path)
    if pinned is not None:
        raise RestoreError(
            f"{path}: belongs to the pin {pinned.name}, expected the state {pinned.parent.parent} (its pins are erased "
            "with it)"
        )


def _may_have(state: Path | str, keys: GivenKeys, operator: str | None) -> bool:
    """Return whether a fork has a trace of the keys (in an operator, if one is named), or cannot be read. O(bytes)."""
    try:
        return any(True for _ in _traces_in(_target(state, _QueryNames(operator)), keys))
    except (HybridStoreError, OSError):
        return True


def _traces_in(target: _ErasedState, keys: GivenKeys) -> Iterator[str]:
    for note in target.notes:
        if exists(note.storage, note.name):
            yield f"{note.storage.url}: an erase has begun and has not ended"
    for part in target.parts:
        yield from part.traces(keys)


class Proof(NamedTuple):
    """What `prove` has read, and where keys still are: places in files, as text.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["anna"] = 1
    ...     state.commit()
    1
    >>> proof = hs.prove("state", "elsa")
    >>> proof.traces, proof.files > 0, proof.bytes > 0
    ([], True, True)
    """

    files: int
    bytes: int
    traces: list[str]


def prove(
    location: str | os.PathLike[str] | Location,
    *keys: Any,
    prefix: bool = False,
    operator: str | None = None,
    state_location: str | os.PathLike[str] | None = None,
) -> Proof:
    """Read every byte of a state and of its pins (of a query's `operator`, if one is named), and return where keys
    still are: as keys in blocks and directories and, if they are text or bytes of 4 bytes or more, anywhere in any
    file. Nothing is changed.

    A trace that is no record of the key is one in a value, a setting or a file that the state's user has written.
    Raises RestoreError, OSError, CorruptCheckpointError. O(bytes).

    >>> with hs.open("state") as state:
    ...     state.key_value("users").put_many({"anna": 1, "bob": 2})
    ...     state.commit()
    1
    >>> len(hs.prove("state", "anna").traces) > 0
    True
    >>> erased = hs.erase("state", "anna")
    >>> hs.prove("state", "anna").traces
    []
    """
    chosen = GivenKeys(keys, prefix=prefix)
    target = _target(location, _QueryNames(operator, state_location))
    traces = [*_traces_in(target, chosen)]
    files = size = 0
    # of a named operator the others' files may have the key
    places = [target.storage] if operator is None else [part.storage for part in target.parts]
    for name, data in chain.from_iterable(map(_files, places)):
        files, size = files + 1, size + len(data)
        for text in chosen.texts():
            at = data.find(text)
            if at >= 0:
                traces.append(f"{name} at byte {at}: the bytes of a key")
    return Proof(files, size, traces)


def _files(place: Storage) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the bytes of all files of a place, whatever they are."""
    if not isinstance(place, LocalStorage):
        yield from ((f"{place.url}/{name}", place.get(name)) for name in place.list())
        return
    for file in sorted(place.root.rglob("*")):
        if file.is_file() and not file.is_symlink():
            yield str(file), file.read_bytes()


# --- the command --------------------------------------------------------------------------------------------------


def arguments(parser: ArgumentParser) -> None:
    kinds = "A state directory, the state of a plain topology, or the checkpointLocation of a Spark query"
    where = f"{kinds}: a path or a URL."
    parser.add_argument("location", metavar="LOCATION", help=where)
    typed = 'Typed: text, int:5, float:1.5, bool:true, hex:00ff, date:2026-01-31, json:["a", 5] for a tuple.'
    parser.add_argument("keys", metavar="KEY", nargs="+", help=f"In every store whose key it is. {typed}")
    what = parser.add_argument_group("what")
    what.add_argument("--prefix", action="store_true", help="All keys that begin with KEY.")
    what.add_argument("--forks", action="store_true", help="Erase in the forks of the state, too.")
    what.add_argument("--leave-forks", action="store_true", help="Go on although forks may have the keys; name them.")
    what.add_argument("--prove", action="store_true", help="Then read every byte of what remains.")
    query = parser.add_argument_group("of a Spark query")
    query.add_argument("--operator", metavar="NAME", help="Only this operator; without it all of them.")
    query.add_argument("--state", metavar="PLACE", help="The place of the query's state, if not LOCATION.")
    text = "Confirm that the query is stopped, although the process of its driver is alive."
    query.add_argument("--stopped", action="store_true", help=text)
    how = parser.add_argument_group("how")
    last_options(how)


def run(given: Namespace) -> int:
    """Remove a key, and all that the state of a stopped job has of it, from every file: changelog, checkpoints, kept
    results, older versions, pins. It cannot be undone.

    The state continues at a later version, a query with its next batch; versions before are gone. The settings have an
    entry "erasures", without the key. Forks of the state are named: nothing is done until --forks or --leave-forks says
    what becomes of them. Killed at any moment, the state is as it was, erased, or refuses its job until the command was
    run again.

    Exit codes: 0 done, 1 refused with nothing written, or --prove has found a trace, 2 wrong usage, 3 cannot read.
    """
    if given.forks and given.leave_forks:
        raise UsageError("erase: found --forks and --leave-forks, expected one of them")
    keys = [typed_key(text) for text in given.keys]
    forks: Forks = "erase" if given.forks else "leave" if given.leave_forks else "refuse"
    out = Out("raw")
    try:
        which = {"prefix": given.prefix, "operator": given.operator, "state_location": given.state}
        done = erase(given.location, *keys, forks=forks, stopped=given.stopped, **which)
        proof = prove(given.location, *keys, **which) if given.prove else None
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    places = counted(len(done.places), "place")
    out.line(f"{given.location}: {counted(done.records, 'record')} erased in {places}")
    for holder in done.holders:
        out.line(f"still has the keys: {holder}")
    if proof is None:
        return FINE
    for trace in proof.traces:
        out.line(f"found: {trace}")
    verdict = "the keys are in none" if not proof.traces else f"{len(proof.traces)} traces"
    out.line(f"read: {proof.files} files, {proof.bytes} bytes: {verdict}")
    return NEGATIVE if proof.traces else FINE
