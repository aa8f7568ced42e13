"""Preview: the changes that a start of a topology would make in an existing state. Nothing is written.

a state directory, or a place on an object store      the settings of every shard
a Spark checkpoint location                           the operator's chain of descriptions
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from changelog.storage import LocalStorage, Storage, storage_at
from recovery.layout import SPARK_FOLDER

from ..errors import ForeignFileError
from ..state.changes import Difference
from ..state.directory import State
from ..state.generations import current_shards, has_folder, place_below
from ..stores.kinds import KINDS
from ..topology.adopt import TOPOLOGY, changes_of
from ..topology.changes import Shorter
from ..topology.plan import Plan

if TYPE_CHECKING:
    from os import PathLike

Program = dict[str, Any]


def preview(
    plan: Plan,
    location: str | PathLike[str],
    of_operator: Callable[[], tuple[Program, Iterator[Mapping[str, Any]]]],
    allow: Collection[str],
) -> list[Difference]:
    """See `Topology.compare`. `of_operator` reads a Spark location: the program in force, and the stores of each
    shard."""
    place = storage_at(location)
    with ExitStack() as opened:
        if has_folder(place, SPARK_FOLDER):
            program, stores = of_operator()
            changes = changes_of(plan, {TOPOLOGY: program}, allow)
        else:
            states = [opened.enter_context(State.open(path, at="newest")) for path in _states(place, location)]
            each = [changes_of(plan, state.settings, allow) for state in states]
            changes = list(dict.fromkeys(change for of_state in each for change in of_state))
            stores = (state.stores for state in states)
        return _counted(changes, stores) if any(isinstance(change, Shorter) for change in changes) else changes


def _states(place: Storage, location: str | PathLike[str]) -> list[str | PathLike[str]]:
    """Return the place of each shard's state. Raises ForeignFileError without a state."""
    root = place.root if isinstance(place, LocalStorage) else location
    there = current_shards(place)
    if there is None:
        raise ForeignFileError(
            f"{place.url}: found no state, expected the location of a state, or Spark's checkpoint location"
        )
    return [place_below(root, there.folder(shard)) for shard in range(there.shards)]


def _counted(changes: list[Difference], stores: Iterator[Mapping[str, Any]]) -> list[Difference]:
    """Return the changes with the number of records that each makes expire. O(records of stores with a shorter
    retention).
    """
    counts = {change: [0, 0] for change in changes if isinstance(change, Shorter)}
    for of_shard in stores:
        for change, count in counts.items():
            store = of_shard.get(change.store)
            if store is None:
                continue
            kind = KINDS[store.kind]
            times = kind.copied(store)[-1]
            through = kind.span[1](store.stream_time, change.kept_ms) if kind.span else -1
            count[0] += sum(ts <= through for ts in times)
            count[1] += len(times)
    return [
        change._replace(note=f"{change.note}: {counts[change][0]} of {counts[change][1]} records now")
        if change in counts
        else change
        for change in changes
    ]
