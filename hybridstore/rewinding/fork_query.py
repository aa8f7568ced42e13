"""Forks and pins of a Spark query: its operators' shards at a version, and Spark's own files up to the batch before.

    hybridstore/<operator>/   of each shard the checkpoint of the version and the log objects behind it; the
                              descriptions up to the version, and the newest run
    Spark's files             all but `offsets/` and `commits/` of later batches

All of these are created once and never changed, so nothing is copied where the file system has links. The launches stay
behind, because they name the origin's driver. The query's id stays: it is part of every object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Final

from changelog.files import REAL_FILES, TEMPORARY_SUFFIX, Files
from changelog.storage import LocalStorage, Storage, exists, storage_at
from recovery.errors import RestoreError
from recovery.layout import ERASING, FORKS, MOVED, PINS, SPARK_FOLDER, operator_name, run_name
from recovery.rule import CountingObjects, counts, launch_of, note_of
from recovery.runs import Claim, newest_claim
from recovery.shard_log import ShardLog, encode_note

from ..inspection.options import choose
from ..reading.places import Place, operator_chain, resolve
from ..reading.view import open_view
from .command import ASIDE, COMMITS, OFFSETS, batches_of
from .forked import ForkedPart, Origin, Site, checkpoint_names

# What is in a checkpoint location and not Spark's.
_OURS: Final = frozenset((SPARK_FOLDER, PINS, FORKS, ASIDE, ERASING))


class QueryOrigin(Origin):
    """See `Origin`. `checkpoint` has Spark's files, `state` the operators' objects; they may be one place."""

    def __init__(self, checkpoint: Path | str, state: Path | str) -> None:
        self.where = state
        self.places = resolve(state)
        self._state = storage_at(state)
        self._checkpoint = storage_at(checkpoint)
        self._version = 0
        self._claims: dict[str, Claim] = {}

    @property
    def files(self) -> Files:
        """Files of the mode of the origin's."""
        operator = self.places[0].operator_storage
        if not isinstance(operator, LocalStorage):
            return REAL_FILES
        first = next(name for name in operator.list() if name.endswith(".json"))
        path = operator.path(first)
        assert path is not None
        return Files(S_IMODE(path.stat().st_mode))

    def parts(self, at: str | None) -> list[ForkedPart]:
        """See `Origin`. Raises RestoreError for a version that the query cannot go on from."""
        done = sorted(batch + 1 for batch in batches_of(self._checkpoint, COMMITS))
        version = choose(self.places[0], at)
        if version is None:
            version = done[-1] if done else max(open_view(place, rows=False).seen for place in self.places)
        if not version or (done and version not in done):
            known = f"{done[0]} to {done[-1]}" if done else "none"
            raise RestoreError(
                f"{self._checkpoint.url}: version {version} is none that the query can continue from (known: {known})"
            )
        self._version = version
        self._claims = {place.operator: _claim_of(place) for place in self.places}
        return [self._part(place, version) for place in self.places]

    def _part(self, place: Place, version: int) -> ForkedPart:
        view = open_view(place, version, rows=False)
        if view.faults:
            raise RestoreError(f"{place.where}: {view.faults[0]} (repair it first: hybridstore inspect repair)")
        first = 0 if view.checkpoint is None else view.checkpoint.version
        names, runs = ShardLog(place.storage).names(max(0, first - 1)), self._claims[place.operator].runs
        shared = [str(name) for name in names if name.version <= version and counts(runs, name)]
        return ForkedPart(place.storage, self._below(place.storage), view, version, [*checkpoint_names(view), *shared])

    def _below(self, storage: Storage) -> str:
        return storage.url[len(self._state.url) + 1 :]

    def add(self, site: Site, parts: list[ForkedPart]) -> None:
        for operator in {place.operator: place for place in self.places}.values():
            self._describe(operator, site)
        for place, part in zip(self.places, parts, strict=True):
            self._note(place, part, site)
        for name in self._spark_names():
            site.share(self._checkpoint, name, name)

    def _describe(self, place: Place, site: Site) -> None:
        """Share what an operator has beside its shards, as of the version."""
        operator = place.operator_storage
        assert operator is not None
        chain = operator_chain(place) or []
        names = [operator_name(each["number"]) for each in chain if each["from"] <= max(1, self._version)]
        names += [run_name(self._claims[place.operator].launch), *operator.list(MOVED)]
        for name in names:
            site.share(operator, name, f"{self._below(operator)}/{name}")

    def _note(self, place: Place, part: ForkedPart, site: Site) -> None:
        """Note the batches without rows behind the last object, where a note of a later version says them."""
        version, runs = self._version, self._claims[place.operator].runs
        names = ShardLog(place.storage).names()
        there = CountingObjects([name for name in names if str(name) in part.shared], runs)
        if there.has(version) or not CountingObjects(names, runs).has(version):
            return
        since = max((number for number in there.attempts if number <= version), default=0)
        identity = place.identity()
        assert identity is not None
        name = note_of(version, launch_of(runs, version), version - since)
        site.create(part.name(str(name)), encode_note(identity, version, 0, {}))

    def check_no_erase(self, parts: list[ForkedPart]) -> None:
        """See `Origin`: an erase begins a run. Some requests for an operator."""
        for operator in {place.operator: place for place in self.places}.values():
            storage = operator.operator_storage
            assert storage is not None
            if exists(storage, ERASING) or _claim_of(operator) != self._claims[operator.operator]:
                raise RestoreError(f"{storage.url}: a run or an erase has begun meanwhile (try again)")

    def _spark_names(self) -> Iterator[str]:
        """Yield the names of Spark's files, but those of later batches, and those that are being written."""
        checkpoint = self._checkpoint
        if isinstance(checkpoint, LocalStorage):
            names = self._files_below(checkpoint.root, checkpoint.root)
        else:
            state = f"{self._state.url}/".removeprefix(f"{checkpoint.url}/")
            names = (each for each in checkpoint.list() if not state or not each.startswith(state))
        for name in names:
            folder, _, file = name.rpartition("/")
            batch = file.removeprefix(".").removesuffix(".crc")
            later = folder in (OFFSETS, COMMITS) and batch.isdecimal() and int(batch) >= self._version
            if not later and name.partition("/")[0] not in _OURS:
                yield name

    def _files_below(self, root: Path, folder: Path) -> Iterator[str]:
        """Yield the names of all files, those that begin with a dot, too."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if entry.is_dir() and (folder != root or entry.name not in _OURS) and str(path) != self._state.url:
                yield from self._files_below(root, path)
            elif entry.is_file() and not entry.name.endswith(TEMPORARY_SUFFIX):
                yield str(path.relative_to(root))


def _claim_of(place: Place) -> Claim:
    claim: Claim | None = None if place.operator_storage is None else newest_claim(place.operator_storage)
    if claim is None:
        raise RestoreError(f"{place.where}: found no run, expected an operator that has done a batch")
    return claim
