"""Forks and pins of a Spark query: its operators' shards at a version, and Spark's own files up to the batch before.

    hybridstore/<operator>/   of each shard the checkpoint of the version and the log objects behind it, by a second
                              name; the descriptions up to the version, and the newest run
    Spark's files             by a second name, but `offsets/` and `commits/` of later batches

All of these are created once and never changed, so nothing is copied where the file system has links. The launches stay
behind, because they name the origin's driver. The query's id stays: it is part of every object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Final

from changelog.files import TEMPORARY_SUFFIX, Files
from changelog.storage import LocalStorage
from recovery.errors import RestoreError
from recovery.layout import ERASING, FORKS, MOVED, PINS, SPARK_FOLDER, operator_name, run_name
from recovery.rule import CountingObjects, counts, launch_of, note_of
from recovery.runs import Claim, newest_claim
from recovery.shard_log import ShardLog, encode_note

from ..inspection.options import choose
from ..reading.places import Place, operator_chain, resolve
from ..reading.view import open_view
from .command import ASIDE, COMMITS, OFFSETS, batches_of, path_of
from .forked import ForkedDirectory, Share, Taken

# What is in a checkpoint location and not Spark's.
_OURS: Final = frozenset((SPARK_FOLDER, PINS, FORKS, ASIDE, ERASING))


class QueryOrigin:
    """See `Origin`. `checkpoint` has Spark's files, `state` the operators' objects; they may be one place."""

    def __init__(self, checkpoint: Path, state: Path) -> None:
        self.where = state
        self.places = resolve(state)
        self._checkpoint = checkpoint
        self._version = 0

    @property
    def files(self) -> Files:
        """Files of the mode of the origin's."""
        operator = self.places[0].operator_storage
        assert isinstance(operator, LocalStorage)
        first = next(name for name in operator.list() if name.endswith(".json"))
        path = operator.path(first)
        assert path is not None
        return Files(S_IMODE(path.stat().st_mode))

    def parts(self, at: str | None) -> list[ForkedDirectory]:
        """See `Origin`. Raises RestoreError for a version that the query cannot go on from."""
        done = sorted(batch + 1 for batch in batches_of(LocalStorage(self._checkpoint), COMMITS))
        version = choose(self.places[0], at)
        if version is None:
            version = done[-1] if done else max(open_view(place).seen for place in self.places)
        if not version or (done and version not in done):
            known = f"{done[0]} to {done[-1]}" if done else "none"
            raise RestoreError(
                f"{self._checkpoint}: version {version} is none that the query can continue from (known: {known})"
            )
        self._version = version
        return [self._part(place, version) for place in self.places]

    def _part(self, place: Place, version: int) -> ForkedDirectory:
        view, source = open_view(place, version, thorough=True), path_of(place)
        if view.faults:
            raise RestoreError(f"{place.where}: {view.faults[0]} (repair it first: hybridstore inspect repair)")
        meta, pages = view.checkpoint, view.pages
        shared = [] if meta is None or pages is None else [*(record.name for record in meta.packs), pages.name]
        first = 0 if meta is None else meta.version
        names = ShardLog(place.storage).names(max(0, first - 1))
        runs = _claim_of(place).runs
        shared += [str(name) for name in names if name.version <= version and counts(runs, name)]
        return ForkedDirectory(source, str(source.relative_to(self.where)), view, version, shared, "", 0)

    def add(self, building: Path, share: Share, taken: Taken) -> Taken:
        """See `Origin`."""
        for operator in {place.operator: place for place in self.places}.values():
            taken = self._describe(operator, building, share, taken)
        for place in self.places:
            self._note(place, LocalStorage(building / path_of(place).relative_to(self.where), files=self.files))
        for path in self._spark_files(self._checkpoint):
            taken = share(path, building / path.relative_to(self._checkpoint), taken)
        return taken

    def _describe(self, place: Place, building: Path, share: Share, taken: Taken) -> Taken:
        """Share what an operator has beside its shards, as of the version."""
        operator = place.operator_storage
        assert isinstance(operator, LocalStorage)
        chain = operator_chain(place) or []
        names = [operator_name(each["number"]) for each in chain if each["from"] <= max(1, self._version)]
        names += [run_name(_claim_of(place).launch), *operator.list(MOVED)]
        for name in names:
            path = operator.path(name)
            assert path is not None
            taken = share(path, building / path.relative_to(self.where), taken)
        return taken

    def _note(self, place: Place, new: LocalStorage) -> None:
        """Note the batches without rows behind the last object, where a note of a later version says them."""
        version, runs = self._version, _claim_of(place).runs
        there = CountingObjects(ShardLog(new).names(), runs)
        if there.has(version) or not CountingObjects(ShardLog(place.storage).names(), runs).has(version):
            return
        since = max((number for number in there.attempts if number <= version), default=0)
        identity = place.identity()
        assert identity is not None
        name = note_of(version, launch_of(runs, version), version - since)
        new.create(str(name), encode_note(identity, version, 0, {}))

    def _spark_files(self, folder: Path) -> Iterator[Path]:
        """Yield Spark's files, but those of later batches, and those that are being written."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if folder == self._checkpoint and entry.name in _OURS:
                continue
            if entry.is_dir() and path != self.where:
                yield from self._spark_files(path)
            elif entry.is_file() and not entry.name.endswith(TEMPORARY_SUFFIX) and not self._is_later(path):
                yield path

    def _is_later(self, path: Path) -> bool:
        batch = path.name.removeprefix(".").removesuffix(".crc")
        of_batches = path.parent.name in (OFFSETS, COMMITS) and path.parent.parent == self._checkpoint
        return of_batches and batch.isdecimal() and int(batch) >= self._version


def _claim_of(place: Place) -> Claim:
    claim: Claim | None = None if place.operator_storage is None else newest_claim(place.operator_storage)
    if claim is None:
        raise RestoreError(f"{place.where}: found no run, expected an operator that has done a batch")
    return claim
