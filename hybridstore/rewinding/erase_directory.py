"""Erase of a state directory: of a plain state, of a shard of a topology, of a pin.

the job's opening   what a run has kept for its consumer is written without the key; an entry "erasures" in the
                    settings is committed, which the chain of digests covers; a checkpoint, and a clean close
the files           a checkpoint of the same version, whose packs have no trace of the key, and an empty segment
                    behind it; then all older files are removed
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from changelog.files import REAL_FILES
from changelog.mutation import SYSTEM
from changelog.segment import HEADER_BYTES, Position, list_segments, segment_name
from changelog.storage import LocalStorage
from recovery.checkpoint import CheckpointReader, read_meta
from recovery.erase import ERASURES
from recovery.errors import RestoreError
from recovery.layout import CHANGELOG, CHECKPOINTS, PACKS, PINS, list_checkpoints
from recovery.prune import prune

from ..inspection.rebuild import write_segment
from ..reading.changes import ChangeHistory
from ..reading.pins import is_pin_name
from ..reading.places import resolve
from ..state.directory import State
from ..state.erasing import sweep, write_erased
from ..state.generations import current_shards, existing_shards, parse_shard_name
from ..state.given_keys import GivenKeys
from ..state.home import home_of
from ..state.lock import claim
from ..state.opening import TUNING, Opening
from ..state.policy import CheckpointPolicy
from ..topology.run_state import RESULTS, leave_out
from .parts import ErasedCounts
from .traces import grouped, traces_in_packs, traces_of, wanted

OPENING: Final = Opening(
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


class DirectoryPart:
    """See `ErasePart`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = LocalStorage(path)
        self.places = [path]

    def check(self) -> None:
        """Raise HybridStoreError if a job has the state, or it cannot be opened."""
        State.at_home(home_of(self.path, OPENING), OPENING).close()

    def erase(self, keys: GivenKeys, now: int) -> ErasedCounts:
        """See `ErasePart`."""
        path = self.path
        with State.at_home(home_of(path, OPENING), OPENING) as state:
            program = program_of(state.settings)
            chosen = grouped(keys, program)
            leave_out(state, chosen.take, program)
            entry = {"wall_ms": now, "keys": len(keys.keys), "prefix": keys.prefix}
            state.set(ERASURES, [*state.settings.get(ERASURES, []), entry])
            state.commit()
            state.checkpoint(wait=True)
            version, digest = state.version, state.digest
        lock = claim(path, REAL_FILES, read_only=False, erasing=True)
        assert lock is not None
        try:
            lock.hold()
            before = _bytes_of(path)
            storage = self.storage
            reader = CheckpointReader(storage, list_checkpoints(storage)[-1])
            meta = reader.meta
            if (meta.version, meta.digest) != (version, digest):
                raise RestoreError(
                    f"{path}: found a checkpoint of version {meta.version}, expected one of {version} (try again)"
                )
            for first in list_segments(path / CHANGELOG):
                if first > version:  # an erase before was killed
                    REAL_FILES.remove(path / CHANGELOG / segment_name(first))
            write_segment(path, meta.identity, version, digest)
            position = Position(version + 1, HEADER_BYTES, 0)
            report = write_erased(storage, reader, position, meta.settings, traces_of(reader, chosen, program))
            records = sum(each.records for each in meta.stores if each.name != RESULTS)
            reader.close()
            sweep(storage, report.name, lambda keep: prune(path, keep=keep))
            new = CheckpointReader(storage, report.name)
            records -= sum(each.records for each in new.meta.stores if each.name != RESULTS)
            new.close()
            return ErasedCounts(records, before + report.bytes_written - _bytes_of(path), report.bytes_written)
        finally:
            lock.release({"version": version, "digest": digest.hex()})

    def traces(self, keys: GivenKeys) -> Iterator[str]:
        """See `ErasePart`: in the packs of every checkpoint, and in the changelog."""
        names = list_checkpoints(self.storage)
        program = program_of(read_meta(self.storage, names[-1]).settings) if names else None
        keys = grouped(keys, program)
        yield from traces_in_packs(self.storage, keys, program)
        yield from traces_in_changelog(ChangeHistory(resolve(self.path)[0]), keys, program)


def traces_in_changelog(story: ChangeHistory, keys: GivenKeys, program: dict[str, Any] | None) -> Iterator[str]:
    """Yield where keys are keys in the changelog of a place. O(bytes)."""
    for logged in story.versions():
        for change in logged.changes:
            if change.store != SYSTEM and wanted(story.name(change.store), keys, program).takes(change.key):
                where = story.place.where
                yield f"{where}, {logged.segment}: a record of a key in version {logged.commit.version}"
    yield from story.faults


def program_of(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the description of the topology that settings name; None without one."""
    program = settings.get("topology")
    return program if isinstance(program, dict) else None


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


def _bytes_of(place: Path) -> int:
    """Return the bytes of the files of a state directory, without those of its pins. O(files)."""
    folders = (place, *(place / name for name in (CHANGELOG, CHECKPOINTS, PACKS)))
    return sum(
        path.stat().st_size for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()
    )
