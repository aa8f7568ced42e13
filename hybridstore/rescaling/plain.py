"""Plain: new shards for a plain topology's state, in another number, beside the old ones.

    state/0, state/1 ─▶ state/<generation>/0 ... ─▶ generations/<n>.json   one create: from it on the new ones count

The old shards are open during a rescale, as by a job, so that no job can run. The kept results of a run's last commits
go to the first new shard.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from os import PathLike
from typing import Any, Final

from changelog.errors import HybridStoreError
from changelog.identity import Identity
from changelog.journal import chain
from changelog.segment import HEADER_BYTES, Position, SegmentHeader, segment_name
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.block import Columns
from recovery.checkpoint import CheckpointReader
from recovery.layout import (
    CHANGELOG,
    GENERATIONS,
    RESCALES,
    generation_folder,
    list_checkpoints,
    parse_generation_name,
    parse_rescale_name,
    rescale_name,
    shard_folder,
)
from recovery.object_log import all_but_claims
from recovery.write import FreshCheckpoint

from ..state.directory import HybridStore, open_store
from ..state.generations import FORMAT_VERSION, Generation, describe, shards_there
from ..state.policy import CheckpointPolicy
from ..topology.run_state import RESULTS, RUN, RunState, joined_results
from .report import RescaleError, RescaleReport, check_late
from .routes import Route, Routes, closing_ms
from .sharing import Compared, Family, Nowhere, Parent, blocks_of, check_certain, families

_TOPOLOGY: Final = "topology"
_WINDOWS: Final = "windows"
OnStep = Callable[[str, int, int], None]


def there_at(place: Storage) -> Generation:
    """Return the shards that count. Raises RescaleError if there is no state."""
    there = shards_there(place)
    if there is None:
        raise RescaleError(
            f"{place.url}: found no state of a topology, expected the location that was given to run or open"
        )
    return there


class PlainRescaling:
    """One rescale of a plain topology's state in progress. `states` are its open shards."""

    def __init__(
        self,
        place: Storage,
        there: Generation,
        states: list[HybridStore],
        into: int,
        routes: Mapping[str, Route | str],
        on_step: OnStep,
    ) -> None:
        self._place = place
        self._there = there
        self._into = into
        self._on_step = on_step
        runs = [RunState.of(state) for state in states]
        if len({run.commit for run in runs}) > 1:
            raise RescaleError(
                f"{place.url}: shards are at commits {min(run.commit for run in runs)} and "
                f"{max(run.commit for run in runs)}: the last one came to no end (run the job once more, and end it)"
            )
        if any(not state.version for state in states):
            raise RescaleError(f"{place.url}: nothing was committed yet (begin with shards={into} in a new directory)")
        description = states[0].settings.get(_TOPOLOGY)
        if description is None:
            raise RescaleError(
                f"{place.url}: found a state of stores alone, whose shards are not known, expected the state of a "
                "topology"
            )
        self._closing = closing_ms(description, clocked=False)
        newest = max(runs, key=lambda run: run.delivered)
        same = {RUN: newest._asdict()} if newest.commit else {}
        self._versions: dict[int, int] = {}
        self._parents = [self._parent(shard, state) for shard, state in enumerate(states)]
        self._store = self._parents[0].content.meta.identity.store  # the new shards belong to the state of the old ones
        self._routes = Routes(description, routes)
        version = max(state.version for state in states)
        self.report = RescaleReport(place.url, "", there.shards, into, version)
        self._families = [
            Family(
                [self._parents[shard] for shard in numbers],
                children,
                there.shards,
                into,
                self._routes,
                same=same,
                apart=(RESULTS,),
            )
            for numbers, children in families(there.shards, into)
        ]
        self._records = sum(parent.content.meta.records for parent in self._parents)
        self._done = 0

    def _parent(self, shard: int, state: HybridStore) -> Parent:
        state.checkpoint(wait=True)
        folder = self._there.folder(shard)
        storage = self._place.below(folder) if folder else self._place
        return Parent(shard, CheckpointReader(storage, list_checkpoints(storage)[-1]))

    def _on_block(self, phase: str) -> Callable[[int], None]:
        def advance(records: int) -> None:
            self._done += records
            self._on_step(phase, self._done, self._records)

        return advance

    def survey(self) -> RescaleReport:
        """Return the report of the planned rescale. O(records) for a merge, or with stores of custom logic. Raises
        RescaleError.
        """
        check_certain([family.check_own_stores() for family in self._families], self._there.shards)
        for family in self._families:
            family.count_times(self.report)
            if self._closing is not None:
                self.report.unseen += family.closing(self._closing, _WINDOWS)
            if self.report.exact:
                family.count_records(self.report)
            else:
                sinks = {child: Nowhere() for child in family.children}
                family.share(sinks, self.report, self._on_block("surveying"))
        self._done = 0
        return self.report

    def make(self) -> RescaleReport:
        """Make and check the new shards, and make them count. Raises RescaleError; the old shards then still count."""
        generation = self._take_generation()
        for family in self._families:
            self._write(family, generation)
        self._done = 0
        for family in self._families:
            self._compare(family, generation)
        origin = {"from_shards": self._there.shards, "from_generation": self._there.generation}
        rescaled = {**origin, "version": self.report.version}
        _describe(
            self._place,
            self._there,
            Generation(self._there.number + 1, generation, self._into, self._store, rescaled),
        )
        self.report.generation, self.report.done = generation, True
        return self.report

    def _take_generation(self) -> int:
        taken = [n for name in self._place.list(f"{RESCALES}/") if (n := parse_rescale_name(name)) is not None]
        generation = max([self._there.generation, *taken])
        entry = {
            "format": FORMAT_VERSION,
            "follows": self._there.number,
            "from_shards": self._there.shards,
            "from_generation": self._there.generation,
            "shards": self._into,
            "version": self.report.version,
        }
        while True:
            generation += 1
            if self._place.create(rescale_name(generation), _text(entry)):
                return generation

    def _write(self, family: Family, generation: int) -> None:
        version = max(parent.content.meta.version for parent in family.parents)
        storages = {child: self._place.below(shard_folder(generation, child)) for child in family.children}
        sinks = {child: FreshCheckpoint(storage, version) for child, storage in storages.items()}
        family.share(sinks, RescaleReport("", "", self._there.shards, self._into, 0), self._on_block("writing"))
        for child, sink in sinks.items():
            if not child:
                self._keep_results(family, sink)
            identity = Identity(self._store, generation, child, self._into)
            origin = b"".join(parent.content.meta.digest for parent in family.parents) + str(child).encode()
            digest = chain(blake2b(origin, digest_size=16).digest(), [])
            position = Position(version, 0, 0)
            if isinstance(self._place, LocalStorage):
                # The log continues behind the checkpoint. On an object store the next owner's claim begins the log.
                header = SegmentHeader(identity, version + 1, version, digest).encode()
                storages[child].create(f"{CHANGELOG}/{segment_name(version + 1)}", header)
                position = Position(version + 1, HEADER_BYTES, 0)
            sink.finish(identity, digest, family.settings, position)

    def _kept_results(self) -> Columns | None:
        kept: dict[int, list[Any]] = {}
        for parent in self._parents:
            for record in parent.content.meta.stores:
                if record.name == RESULTS:
                    for columns in blocks_of(parent.content, record.number):
                        for commit, value in zip(columns.keys, columns.values, strict=True):
                            kept.setdefault(commit, []).append(value)
        if not kept:
            return None
        commits = sorted(kept)
        times: tuple[array[int], ...] = ()
        return Columns(commits, None, times, [joined_results(kept[commit]) for commit in commits])

    def _keep_results(self, family: Family, sink: FreshCheckpoint | Compared) -> None:
        columns = self._kept_results()
        if columns is not None:
            number = family.free_number
            sink.define(number, RESULTS, "key_value", {"ttl_ms": None}, {"stream_time": -1, "key": ["int"]})
            sink.add(number, 0, columns)

    def _compare(self, family: Family, generation: int) -> None:
        sinks = {}
        for child in family.children:
            storage = self._place.below(shard_folder(generation, child))
            sinks[child] = Compared(CheckpointReader(storage, list_checkpoints(storage)[-1]))
        family.share(sinks, RescaleReport("", "", self._there.shards, self._into, 0), self._on_block("checking"))
        for child, sink in sinks.items():
            if not child:
                self._keep_results(family, sink)
            sink.finish()
        different = [sink.different for sink in sinks.values() if sink.different]
        if different:
            raise RescaleError(
                f"{self._place.url}: the new shards differ, and the old ones count: {different[0]} "
                "(run the command again; if they differ again, report it)"
            )


def _text(entry: dict[str, Any]) -> bytes:
    return (json.dumps(entry, indent=1, sort_keys=True) + "\n").encode()


def _describe(place: Storage, there: Generation, new: Generation) -> None:
    """Create the next description of the shards that count. Raises RescaleError if another process has created one
    first.
    """
    number = there.number + 1
    while not describe(place, number, new):
        names = place.list(f"{GENERATIONS}/")
        if any((parse_generation_name(name) or 0) > there.number for name in names):
            raise RescaleError(
                f"{place.url}: another process has changed the shards meanwhile, and its description counts (look at "
                "it, and run the command again if it is still wanted)"
            )
        # Where a file system has no links, a name may be taken by a writer that died half-way.
        number += 1


def _opened(
    stack: ExitStack,
    location: str | PathLike[str],
    place: Storage,
    there: Generation,
    options: Mapping[str, Any] | None,
) -> list[HybridStore]:
    """Open the shards that count as a job does. Raises RescaleError, also while a job has them open."""
    states = []
    for shard in range(there.shards):
        folder = there.folder(shard)
        where = f"{os.fspath(location).rstrip('/')}/{folder}" if folder else location
        try:
            state = open_store(
                where,
                checkpoint=CheckpointPolicy(),
                storage_options=options,
                _rescaled=True,
                _identity=there.identity(shard),
            )
        except (HybridStoreError, OSError) as error:
            raise RescaleError(
                f"{place.url}: shard {shard} cannot be opened, so nothing was changed: {error}"
            ) from error
        states.append(stack.enter_context(state))
    return states


def rescale_state(
    location: str | PathLike[str],
    shards: int,
    *,
    routes: Mapping[str, Route | str],
    storage_options: Mapping[str, Any] | None,
    dry_run: bool,
    late: bool,
    on_step: OnStep,
    on_report: Callable[[RescaleReport], None],
) -> RescaleReport:
    """See `hybridstore.rescale`. The old shards are opened as by a job, which may claim them and write a checkpoint."""
    place = storage_at(location, storage_options)
    there = there_at(place)
    if there.shards == shards:
        raise RescaleError(f"{place.url}: has {shards} shards already (nothing was done)")
    with ExitStack() as stack:
        states = _opened(stack, location, place, there, storage_options)
        try:
            rescaling = PlainRescaling(place, there, states, shards, routes, on_step)
            report = rescaling.survey()
            on_report(report)
            if dry_run:
                return report
            check_late(report, late=late)
            return rescaling.make()
        except (HybridStoreError, OSError) as error:
            if isinstance(error, RescaleError):
                raise
            raise RescaleError(
                f"{place.url}: the new shards could not be made, and the old ones count: {error}"
            ) from error


def go_back_state(location: str | PathLike[str], storage_options: Mapping[str, Any] | None) -> RescaleReport:
    """Make the shards from before the last rescale count again. Raises RescaleError once a commit was made since."""
    place = storage_at(location, storage_options)
    there = there_at(place)
    origin = there.rescaled
    if origin is None:
        raise RescaleError(f"{place.url}: there is no rescale to go back from (nothing was done)")
    old = Generation(there.number + 1, origin["from_generation"], origin["from_shards"], there.store)
    with ExitStack() as stack:
        commits = [
            {RunState.of(state).commit for state in _opened(stack, location, place, which, storage_options)}
            for which in (there, old)
        ]
        if commits[0] != commits[1]:
            raise RescaleError(
                f"{place.url}: a commit was made with {there.shards} shards, so that the old ones are behind (rescale "
                f"to {old.shards} instead)"
            )
        _describe(place, there, old)
    report = RescaleReport(place.url, "", there.shards, old.shards, origin["version"])
    report.generation, report.done = old.generation, True
    return report


def remove_old_state(location: str | PathLike[str], storage_options: Mapping[str, Any] | None) -> int:
    """Remove the later generations of shards that do not count, and return the number of objects. Shards that no
    rescale made stay: their folder is the state's own. O(their objects)."""
    place = storage_at(location, storage_options)
    there = there_at(place)
    taken = [number for name in place.list(f"{RESCALES}/") if (number := parse_rescale_name(name)) is not None]
    removed = 0
    for generation in set(taken) - {there.generation, (there.rescaled or {}).get("from_generation")}:
        folder = generation_folder(generation)
        for shard in place.folders(folder):
            inside = place.below(f"{folder}/{shard}")
            # An owner of these shards that sleeps may still wake up: the names that stop it are never freed.
            names = all_but_claims(inside)
            inside.delete(names)
            removed += len(names)
    return removed
