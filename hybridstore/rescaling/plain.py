"""Plain: new shards for a plain topology's state, in another number, beside the old ones.

    state/0, state/1 ─▶ state/<generation>/0 ... ─▶ generations/<n>.json   one create: from it on the new ones count

The old shards are open during a rescale, as by a job, so that no job can run. The kept results of a run's last commits
go to the first new shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import blake2b
from os import PathLike
from typing import Final

from changelog.errors import HybridStoreError
from changelog.identity import Identity
from changelog.journal import chain
from changelog.segment import HEADER_BYTES, Position, SegmentHeader, segment_name
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.block import Columns
from recovery.checkpoint import CheckpointReader
from recovery.layout import CHANGELOG, generation_folder, list_checkpoints, list_generations, list_rescales
from recovery.object_log import all_but_claims
from recovery.write import FreshCheckpoint

from ..state.directory import State, open_store
from ..state.generations import Generation, current_shards, describe, place_below
from ..state.policy import CheckpointPolicy
from ..topology.run_state import RESULTS, RUN, RunState
from .engine import Old, RescaleArguments, Shards, counting, rescale
from .report import RescaleError, RescaleReport
from .sharing import OldShard, ShardGroup, Sink, blocks_of

_TOPOLOGY: Final = "topology"


def current_generation(place: Storage) -> Generation:
    """Return the shards that count. Raises RescaleError without a state, StateDirectoryError where an erase has not
    ended.
    """
    there = current_shards(place, writing=True)
    if there is None:
        raise RescaleError(
            f"{place.url}: found no state of a topology, expected the location that was given to run or open"
        )
    return there


class PlainShards(Shards):
    """The shards of a plain topology's state. `states` are the open shards that count."""

    apart = (RESULTS,)

    def __init__(self, place: Storage, there: Generation, states: list[State], into: int) -> None:
        self.where = self.location = place.url
        self._place = place
        self._there = there
        runs = [RunState.of(state) for state in states]
        if len({run.commit for run in runs}) > 1:
            raise RescaleError(
                f"{place.url}: shards are at commits {min(run.commit for run in runs)} and "
                f"{max(run.commit for run in runs)}: the last commit was interrupted (run the job once more, to "
                "completion)"
            )
        if any(not state.version for state in states):
            raise RescaleError(f"{place.url}: nothing was committed yet (begin with shards={into} in a new directory)")
        description = states[0].settings.get(_TOPOLOGY)
        if description is None:
            raise RescaleError(
                f"{place.url}: found a state of stores alone, whose shards are not known, expected the state of a "
                "topology"
            )
        self.program = description
        newest = max(runs, key=lambda run: run.delivered)
        self.same = {RUN: newest._asdict()} if newest.commit else {}
        self.old = Old(there.number, there.generation, there.shards, max(state.version for state in states))
        self._parents = [self._read(shard, state) for shard, state in enumerate(states)]
        self._store = self._parents[0].content.meta.identity.store  # the new shards belong to the state of the old ones

    @property
    def place(self) -> Storage:
        return self._place

    def _read(self, shard: int, state: State) -> OldShard:
        state.checkpoint(wait=True)
        folder = self._there.folder(shard)
        storage = self.place.below(folder) if folder else self.place
        return OldShard(shard, CheckpointReader(storage, list_checkpoints(storage)[-1]))

    def parent(self, shard: int, scratch: Storage) -> OldShard:
        return self._parents[shard]

    def version_of(self, family: ShardGroup) -> int:
        return max(parent.content.meta.version for parent in family.parents)

    def finish(self, family: ShardGroup, sinks: Mapping[int, FreshCheckpoint], generation: int, into: int) -> None:
        version = self.version_of(family)
        for child, sink in sinks.items():
            identity = Identity(self._store, generation, child, into)
            origin = b"".join(parent.content.meta.digest for parent in family.parents) + str(child).encode()
            digest = chain(blake2b(origin, digest_size=16).digest(), [])
            position = Position(version, 0, 0)
            if isinstance(self.place, LocalStorage):
                # The log continues behind the checkpoint. On an object store the next owner's claim begins the log.
                header = SegmentHeader(identity, version + 1, version, digest).encode()
                self.storage(generation, child).create(f"{CHANGELOG}/{segment_name(version + 1)}", header)
                position = Position(version + 1, HEADER_BYTES, 0)
            sink.finish(identity, digest, family.settings, position)

    def add_apart(self, family: ShardGroup, sink: Sink) -> None:
        """Give the kept results of all old shards to the first new one."""
        kept: dict[int, list[bytes]] = {}
        for parent in self._parents:
            for record in parent.content.meta.stores:
                if record.name == RESULTS:
                    for columns in blocks_of(parent.content, record.number):
                        for (commit, _), value in zip(columns.keys, columns.values, strict=True):
                            kept.setdefault(commit, []).append(value)
        if kept:
            commits, number = sorted(kept), family.free_number
            keys = [(commit, piece) for commit in commits for piece in range(len(kept[commit]))]
            values = [value for commit in commits for value in kept[commit]]
            state = {"stream_time": -1, "key": ["tuple", "int", "int"]}
            sink.define(number, RESULTS, "key_value", {"ttl_ms": None}, state)
            sink.add(number, 0, Columns(keys, None, (), values))

    def switch(self, generation: int, into: int) -> None:
        old = self.old
        origin = {"from_shards": old.shards, "from_generation": old.generation, "version": old.version}
        _describe(self.place, self._there, Generation(old.number + 1, generation, into, self._store, origin))


def _describe(place: Storage, there: Generation, new: Generation) -> None:
    """Create the next description of the shards that count. Raises RescaleError if another process has created one
    first.
    """
    number = there.number + 1
    while not describe(place, number, new):
        if any(each > there.number for each in list_generations(place)):
            raise RescaleError(
                f"{place.url}: another process has changed the shards meanwhile, and its description counts (look at "
                "it, and run the command again if it is still wanted)"
            )
        # Where a file system has no links, a name may be taken by a writer that died half-way.
        number += 1


def _opened(stack: ExitStack, location: str | PathLike[str], place: Storage, there: Generation) -> list[State]:
    """Open the shards that count as a job does. Raises RescaleError, also while a job has them open."""
    states = []
    for shard in range(there.shards):
        try:
            state = open_store(
                place_below(location, there.folder(shard)),
                checkpoints=CheckpointPolicy(),
                _rescaled=True,
                _identity=there.identity(shard),
            )
        except (HybridStoreError, OSError) as error:
            raise RescaleError(
                f"{place.url}: shard {shard} cannot be opened, so nothing was changed: {error}"
            ) from error
        states.append(stack.enter_context(state))
    return states


def rescale_state(location: str | PathLike[str], asked: RescaleArguments) -> RescaleReport:
    """See `hybridstore.rescale`. The old shards are opened as by a job, which may claim them and write a checkpoint."""
    place = storage_at(location)
    there = current_generation(place)
    asked.check(place.url, there.shards)
    with ExitStack() as stack:
        states = _opened(stack, location, place, there)
        return rescale(PlainShards(place, there, states, asked.into), asked)


def go_back_state(location: str | PathLike[str]) -> RescaleReport:
    """Make the shards from before the last rescale count again. Raises RescaleError once a commit was made since."""
    place = storage_at(location)
    there = current_generation(place)
    origin = there.rescaled
    if origin is None:
        raise RescaleError(f"{place.url}: no rescale to go back from (nothing was done)")
    old = Generation(there.number + 1, origin["from_generation"], origin["from_shards"], there.store)
    with ExitStack() as stack:
        commits = [
            {RunState.of(state).commit for state in _opened(stack, location, place, which)} for which in (there, old)
        ]
        if commits[0] != commits[1]:
            raise RescaleError(
                f"{place.url}: a commit was made with {there.shards} shards, so that the old ones are behind (rescale "
                f"to {old.shards} instead)"
            )
        _describe(place, there, old)
    return counting(RescaleReport(place.url, "", there.shards, old.shards, origin["version"]), old.generation)


def remove_old_state(location: str | PathLike[str]) -> int:
    """Remove the later generations of shards that do not count, and return the number of objects. Shards that no
    rescale made stay: their folder is the state's own. O(their objects)."""
    place = storage_at(location)
    there = current_generation(place)
    removed = 0
    for generation in {*list_rescales(place)} - {there.generation, (there.rescaled or {}).get("from_generation")}:
        folder = generation_folder(generation)
        for shard in place.folders(folder):
            inside = place.below(f"{folder}/{shard}")
            # An owner of these shards that sleeps may still wake up: the names that stop it are never freed.
            names = all_but_claims(inside)
            inside.delete(names)
            removed += len(names)
    return removed
