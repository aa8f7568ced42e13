"""The command `erase`: a key, and all that a stopped job's state has of it, is removed from every file.

    the job's opening   what a run has kept for its consumer is written without the key; an entry "erasures" in the
                        settings is committed, which the chain of digests covers; a checkpoint, and a clean close
    the files           a checkpoint of the same version, whose packs have no trace of the key, and an empty segment
                        behind it; then all older files are removed

Shards and pins follow one another. A note, `erasing`, is in each of them from before the first write until the last
file is removed, and keeps jobs out: killed at any moment, the state is as it was, erased, or says that the erase has
not ended, and the command can be run again.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES
from changelog.mutation import SYSTEM
from changelog.segment import HEADER_BYTES, Position, list_segments, segment_name
from changelog.storage import LocalStorage, is_url
from recovery.checkpoint import CheckpointReader
from recovery.erase import ERASURES, Erasure, Wanted, find_traces
from recovery.errors import CorruptCheckpointError, RestoreError
from recovery.layout import (
    CHANGELOG,
    CHECKPOINTS,
    ERASING,
    PACKS,
    PINS,
    SPARK_FOLDER,
    list_checkpoints,
    parse_pack_name,
)
from recovery.pack import PackRecord
from recovery.prune import prune

from ..inspection.options import FINE, NEGATIVE, UsageError, typed_key
from ..inspection.rebuild import write_segment
from ..inspection.show.output import Out
from ..reading.changes import ChangeHistory
from ..reading.pins import is_pin_name
from ..reading.places import resolve
from ..reading.texts import say
from ..rescaling.routes import Routes, by_key
from ..state.directory import State
from ..state.erasing import sweep, write_erased
from ..state.generations import current_shards, existing_shards, identity_at, parse_shard_name
from ..state.given_keys import GivenKeys
from ..state.home import home_of
from ..state.lock import claim, pin_above
from ..state.opening import TUNING, Opening
from ..state.policy import CheckpointPolicy
from ..state.registry import forks_of, kept_from_erase, origins_of
from ..topology.null_keys import stored_key
from ..topology.run_state import RESULTS, leave_out
from .command import OFFSETS

# The folder in which a fork is made, which a kill leaves behind.
_UNFINISHED: Final = re.compile(r"\..*\.[0-9a-f]{16}\.fork", re.DOTALL)
Forks = Literal["refuse", "erase", "leave"]
_OPENING: Final = Opening(
    "commit",
    True,
    CheckpointPolicy(every_commits=None),
    None,
    False,
    False,
    None,
    REAL_FILES,
    TUNING,
    rescaled=True,
    erasing=True,
)


class Erased(NamedTuple):
    """What `erase` has done.

    records   how many records are gone, over all stores, shards, pins and forks; expired ones count, too
    places    the state directories that were written: shards, pins, forks
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
    places: list[Path]
    removed: int
    written: int
    holders: list[Path]


def erase(location: str | os.PathLike[str], *keys: Any, prefix: bool = False, forks: Forks = "refuse") -> Erased:
    """Remove keys, and all that the state of a stopped job has of them, from every file; return what was done.

    location  a state directory, or the state of a plain topology; local. Its pins are part of it
    keys      the keys, in every store whose keys they are; of a topology those of its rows
    prefix    all keys that begin with one of these: text, bytes, or the leading parts of a tuple
    forks     what becomes of states that began as versions of this one and have the keys: "refuse" if one has, "erase"
              there, too, or "leave" them, so that they are named among the holders

    The state continues at its next version. Older versions are removed, and so are those of a pin but the pinned one,
    which continues at its next version, too. Raises RestoreError where nothing can be erased, and nothing was written;
    StateLockedError while a job has the state. O(bytes of the packs) to search, and to write what the packs with the
    keys have besides.

    >>> with hs.open("state") as state:
    ...     state.key_value("users").put_many({"ann": 1, "bob": 2})
    ...     state.commit()
    1
    >>> hs.erase("state", "ann").records
    1
    >>> with hs.open("state") as state:
    ...     state.version, dict(state.key_value("users").all())
    (2, {'bob': 2})
    """
    chosen = GivenKeys(keys, prefix=prefix)
    path = _checked(location)
    _check_whole(path)
    with ExitStack() as stack:
        noted = _locked(path, stack)  # before its forks are looked at, so that none is being made
        unfinished = [fork for fork in noted if _UNFINISHED.fullmatch(fork.name)]
        others = [fork for fork in noted if fork not in unfinished and _may_have(fork, chosen)]
        if others and forks == "refuse":
            names = ", ".join(map(str, others))
            raise RestoreError(
                f"{path}: found forks that have the keys: {names} (erase there, too: --forks; or leave them: "
                "--leave-forks)"
            )
        states = [path, *(others if forks == "erase" else [])]
        for state in states[1:]:
            _locked(state, stack)
        places = [place for state in states for place in places_of(state)]
        for place in places:
            _check_note(place, chosen)
            # all can be opened before the first is written
            State.at_home(home_of(place, _OPENING), _OPENING).close()
        note = chosen.note()
        for place in places:
            LocalStorage(place).create(ERASING, note)
        now = int(time.time() * 1000)
        done = [_erase_in(place, chosen, now) for place in places]
        for folder in [*unfinished, *(pin for state in states for pin in (state / PINS).glob(".*.fork"))]:
            shutil.rmtree(folder)  # of forks and pins that were killed: none is at work now
        for place in places:
            LocalStorage(place).delete([ERASING])
    origins = [origin for origin in origins_of(path) if _may_have(origin, chosen)]
    holders = [*([] if forks == "erase" else others), *origins]
    records, removed, written = (sum(each[at] for each in done) for at in range(3))
    return Erased(records, places, removed, written, holders)


def _locked(state: Path, stack: ExitStack) -> list[Path]:
    """Keep forks and pins of a state, and of each shard, from being made; return the forks that are noted there."""
    folders = sorted({state, *places_of(state)})
    for folder in folders:
        stack.enter_context(kept_from_erase(folder, erasing=True))
    return sorted({fork for folder in folders for fork in forks_of(folder)})


def _check_whole(path: Path) -> None:
    """Raise RestoreError for a pin, and for a shard: the rest of the state would keep the keys."""
    pinned = pin_above(path)
    if pinned is not None:
        raise RestoreError(
            f"{path}: belongs to the pin {pinned.name}, expected the state {pinned.parent.parent} (its pins are erased "
            "with it)"
        )
    if identity_at(LocalStorage(path)) is not None:
        raise RestoreError(f"{path}: is a shard, expected the folder of the state with all of its shards")


def _check_note(place: Path, keys: GivenKeys) -> None:
    """Raise RestoreError where an erase of other keys has begun and has not ended."""
    storage = LocalStorage(place)
    if ERASING in storage.list() and not keys.same_as(storage.get(ERASING)):
        raise RestoreError(
            f"{place}: an erase of other keys has begun here and has not ended, so that some files may still have them "
            "(run that one again first)"
        )


def _may_have(state: Path, keys: GivenKeys) -> bool:
    """Return whether a fork has a trace of the keys, or cannot be read. O(bytes)."""
    try:
        return any(True for place in places_of(state) for _ in _traces_in(place, keys))
    except (HybridStoreError, OSError):
        return True


def _checked(location: str | os.PathLike[str]) -> Path:
    if is_url(location):
        raise RestoreError(
            f"{location}: found a URL, expected a state on a local disk (copy the state, erase there, and copy it back)"
        )
    path = Path(location)
    if (path / OFFSETS).is_dir() or (path / SPARK_FOLDER).is_dir():
        raise RestoreError(
            f"{path}: is of a Spark query, expected a plain state or topology (delete the key in the query, and wait "
            "until its older versions are pruned)"
        )
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such directory, expected a state")
    return path


def places_of(state: Path) -> list[Path]:
    """Return the state directories of a state: its shards, and those of its pins. Raises RestoreError for shards of an
    earlier generation, which may have the keys, too.
    """
    there = current_shards(LocalStorage(state))
    if there is None:
        raise RestoreError(f"{state}: found no state, expected the directory of one")
    folders = [there.folder(shard) for shard in sorted(existing_shards(LocalStorage(state), there))]
    places = [state / folder if folder else state for folder in folders]
    earlier = [
        name
        for name in sorted(os.listdir(state))
        if (parse_shard_name(name) is not None or (name.isdecimal() and len(name) == 6))
        and all(folder.partition("/")[0] != name for folder in folders)
    ]
    if there.generation and (state / CHANGELOG).is_dir():
        earlier.append(CHANGELOG)
    if earlier:
        raise RestoreError(
            f"{state}: found {', '.join(earlier)}, of shards before a rescale, which may have the keys (remove these "
            "folders; the state cannot go back behind the rescale then)"
        )
    homes = [each / PINS for each in {state: None, **dict.fromkeys(places)}]  # a shard may have pins of its own
    pins = [home / name for home in homes if home.is_dir() for name in sorted(os.listdir(home)) if is_pin_name(name)]
    return [*(place for pin in pins for place in places_of(pin)), *places]


def _erase_in(place: Path, keys: GivenKeys, now: int) -> tuple[int, int, int]:
    """Erase keys in one state directory at a time (ms); return the records, the bytes removed and the bytes written."""
    with State.at_home(home_of(place, _OPENING), _OPENING) as state:
        program = state.settings.get("topology")
        chosen = _grouped(keys, program)
        leave_out(state, chosen.take, program)
        entry = {"wall_ms": now, "keys": len(keys.keys), "prefix": keys.prefix}
        state.set(ERASURES, [*state.settings.get(ERASURES, []), entry])
        state.commit()
        state.checkpoint(wait=True)
        version, digest = state.version, state.digest
    lock = claim(place, REAL_FILES, read_only=False, erasing=True)
    assert lock is not None
    try:
        lock.hold()
        before = _bytes_of(place)
        storage = LocalStorage(place)
        reader = CheckpointReader(storage, list_checkpoints(storage)[-1])
        meta = reader.meta
        if (meta.version, meta.digest) != (version, digest):
            raise RestoreError(
                f"{place}: found a checkpoint of version {meta.version}, expected one of {version} (try again)"
            )
        for first in list_segments(place / CHANGELOG):
            if first > version:  # an erase before was killed
                REAL_FILES.remove(place / CHANGELOG / segment_name(first))
        write_segment(place, meta.identity, version, digest)
        position = Position(version + 1, HEADER_BYTES, 0)
        report = write_erased(storage, reader, position, meta.settings, _traces(reader, chosen))
        records = sum(each.records for each in meta.stores if each.name != RESULTS)
        reader.close()
        sweep(storage, report.name, lambda keep: prune(place, keep=keep))
        new = CheckpointReader(storage, report.name)
        records -= sum(each.records for each in new.meta.stores if each.name != RESULTS)
        new.close()
        return records, before + report.bytes_written - _bytes_of(place), report.bytes_written
    finally:
        lock.release({"version": version, "digest": digest.hex()})


def _grouped(keys: GivenKeys, program: dict[str, Any] | None) -> GivenKeys:
    """Return keys and, where null is a key, the texts under which the program stores them."""
    if program is None or program.get("null_keys") != "group":
        return keys
    texts = map(_stored_prefixes, keys.keys) if keys.prefix else ([stored_key(key)] for key in keys.keys)
    return GivenKeys([*keys.keys, *(text for each in texts for text in each)], prefix=keys.prefix)


def _stored_prefixes(prefix: Any) -> list[str]:
    """Return what the texts begin with under which keys with a prefix are stored where null is a key."""
    text = stored_key(prefix)
    if type(prefix) is tuple:
        return [text, f"{text[:-1]},"]
    return [text[:-1] if type(prefix) is str else text[:-2]]


def _wanted(store: str, keys: GivenKeys, settings: dict[str, Any], *, certain: bool = False) -> Wanted:
    """Return what is erased of a store. `certain`: only what is no accident counts, in place of what may be a trace."""
    needles = keys.needles()
    if store == RESULTS:
        return Wanted(lambda key: False, keys.parts(), values=not certain or bool(keys.texts()))
    program = settings.get("topology")
    route = (Routes(program, {}).of(store) if isinstance(program, dict) else None) or by_key
    return Wanted(lambda key: keys.take(route(key) if type(key) is tuple else key), needles)


def _traces(reader: CheckpointReader, keys: GivenKeys, *, certain: bool = False) -> Erasure:
    settings = reader.meta.settings
    stores = {each.number: _wanted(each.name, keys, settings, certain=certain) for each in reader.meta.stores}
    return find_traces(reader.storage, reader.meta.packs, stores, _wanted("", keys, {}))


def _bytes_of(place: Path) -> int:
    """Return the bytes of the files of a state directory, without those of its pins. O(files)."""
    folders = (place, *(place / name for name in (CHANGELOG, CHECKPOINTS, PACKS)))
    return sum(
        path.stat().st_size for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()
    )


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


def prove(location: str | os.PathLike[str], *keys: Any, prefix: bool = False) -> Proof:
    """Read every byte of a state and of its pins, and return where keys still are: as keys in blocks and directories
    and, if they are text or bytes of 4 bytes or more, anywhere in any file. Nothing is changed.

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
    path, chosen = _checked(location), GivenKeys(keys, prefix=prefix)
    traces = [trace for place in places_of(path) for trace in _traces_in(place, chosen)]
    files = size = 0
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.is_symlink():
            data = file.read_bytes()
            files, size = files + 1, size + len(data)
            for text in chosen.texts():
                at = data.find(text)
                if at >= 0:
                    traces.append(f"{file} at byte {at}: the bytes of a key")
    return Proof(files, size, traces)


def _traces_in(place: Path, keys: GivenKeys) -> Iterator[str]:
    """Yield where keys are keys in one state directory: in the packs of every checkpoint, and in the changelog."""
    storage = LocalStorage(place)
    if (place / ERASING).exists():
        yield f"{place}: an erase has begun and has not ended"
    settings: dict[str, Any] = {}
    # listed before the checkpoints that name them
    unnamed = {name for name in storage.list(f"{PACKS}/") if parse_pack_name(name) is not None}
    for name in list_checkpoints(storage):
        reader = CheckpointReader(storage, name)
        settings = reader.meta.settings
        program = settings.get("topology")
        traces = _traces(reader, _grouped(keys, program if isinstance(program, dict) else None), certain=True)
        names = {record.number: record.name for record in reader.meta.packs}
        unnamed -= {*names.values()}
        yield from (f"{place}/{names[number]} at byte {at}: a record of a key" for number, at in sorted(traces.blocks))
        bare = traces.packs - {number for number, _ in traces.blocks}
        yield from (f"{place}/{names[number]}: a directory with a key" for number in sorted(bare))
        reader.close()
    for pack_name in sorted(unnamed):  # of versions that a rewind has taken back, or of a checkpoint in progress
        with suppress(FileNotFoundError, CorruptCheckpointError):
            record = PackRecord(1, pack_name, storage.size(pack_name))
            if find_traces(storage, [record], {}, _wanted("", keys, settings)).packs:
                yield f"{place}/{pack_name}: a record of a key, in a pack of no checkpoint"
    story = ChangeHistory(resolve(place)[0])
    for logged in story.versions():
        for change in logged.changes:
            if change.store != SYSTEM and _wanted(story.name(change.store), keys, settings).takes(change.key):
                yield f"{place}/{CHANGELOG}/{logged.segment}: a record of a key in version {logged.commit.version}"
    yield from story.faults


# --- the command --------------------------------------------------------------------------------------------------


def arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `erase`."""
    parser.add_argument("location", metavar="STATE", help="A state directory, or the state of a plain topology.")
    typed = 'Typed: text, int:5, float:1.5, bool:true, hex:00ff, json:["a", 5] for a tuple.'
    parser.add_argument("keys", metavar="KEY", nargs="+", help=f"In every store whose key it is. {typed}")
    what = parser.add_argument_group("what")
    what.add_argument("--prefix", action="store_true", help="All keys that begin with KEY.")
    what.add_argument("--forks", action="store_true", help="Erase in the forks of the state, too.")
    what.add_argument("--leave-forks", action="store_true", help="Go on although forks may have the keys; name them.")
    what.add_argument("--prove", action="store_true", help="Then read every byte of what remains.")
    how = parser.add_argument_group("how")
    how.add_argument("--debug", action="store_true", help="Show tracebacks.")
    how.add_argument("-h", "--help", action="help", help="Show this help.")


def run(given: Namespace) -> int:
    """Remove a key, and all that the state of a stopped job has of it, from every file: changelog, checkpoints, kept
    results, older versions, pins. It cannot be undone.

    The state continues at its next version, and versions before it are gone. The settings have an entry "erasures",
    without the key. Forks of the state are named: nothing is done until --forks or --leave-forks says what becomes of
    them. Killed at any moment, the state is as it was, erased, or refuses its job until the command was run again.

    Exit codes: 0 done, 1 refused with nothing written, or --prove has found a trace, 2 wrong usage, 3 cannot read.
    """
    if given.forks and given.leave_forks:
        raise UsageError("erase: found --forks and --leave-forks, expected one of them")
    keys = [typed_key(text) for text in given.keys]
    forks: Forks = "erase" if given.forks else "leave" if given.leave_forks else "refuse"
    out = Out("raw")
    try:
        done = erase(given.location, *keys, prefix=given.prefix, forks=forks)
        proof = prove(given.location, *keys, prefix=given.prefix) if given.prove else None
    except RestoreError as error:
        say(f"refused: {error}")
        return NEGATIVE
    places = f"{len(done.places)} place{'s' * (len(done.places) != 1)}"
    out.line(f"{given.location}: {done.records} record{'s' * (done.records != 1)} erased in {places}")
    for holder in done.holders:
        out.line(f"still has the keys: {holder}")
    if proof is None:
        return FINE
    for trace in proof.traces:
        out.line(f"found: {trace}")
    verdict = "the keys are in none" if not proof.traces else f"{len(proof.traces)} traces"
    out.line(f"read: {proof.files} files, {proof.bytes} bytes: {verdict}")
    return NEGATIVE if proof.traces else FINE
