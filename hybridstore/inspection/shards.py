"""Shards: the state of a plain topology as one thing: its shards, and the versions of them that belong together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from changelog.identity import ID_BYTES, Identity
from changelog.storage import LocalStorage, Storage, storage_at
from recovery.errors import RestoreError

from ..reading.places import Place, resolve
from ..reading.versions import reach
from ..reading.view import View, open_view
from ..state.generations import Generation, current_shards, describe, place_below
from .rebuild import write_state

_FIRST: Final = 1


def shard_places(location: str | os.PathLike[str]) -> list[Place]:
    """Return the places of the shards that count of a plain state or topology; elsewhere those that `resolve` returns.
    Raises FileNotFoundError, ForeignFileError.
    """
    return counting_places(location)[0]


def counting_places(location: str | os.PathLike[str]) -> tuple[list[Place], int]:
    """Return the places of `shard_places`, and the number of the description that makes these shards count (0: none
    does). Raises as `shard_places`.
    """
    there = _counting(location)
    places = [place for each in _locations(location, there) for place in resolve(each)]
    if there is not None and len(places) > 1:
        places = [place._replace(label=str(shard), of=there.shards) for shard, place in enumerate(places)]
    return places, 0 if there is None else there.number


def shard_locations(location: str | os.PathLike[str]) -> list[str]:
    """Return the paths or URLs of the shards that count of a plain topology; elsewhere `location` alone. Raises
    ForeignFileError.
    """
    return _locations(location, _counting(location))


def _counting(location: str | os.PathLike[str]) -> Generation | None:
    storage = storage_at(location)
    return current_shards(storage) if not isinstance(storage, LocalStorage) or storage.root.is_dir() else None


def _locations(location: str | os.PathLike[str], there: Generation | None) -> list[str]:
    if there is None or (there.shards == 1 and not there.generation):
        return [os.fspath(location)]
    return [os.fspath(place_below(location, there.folder(shard))) for shard in range(there.shards)]


def versions_at(places: list[Place], version: int) -> list[int]:
    """Return the version of each shard that belongs to `version` of the first one: that of the same commit of the run.

    Raises RestoreError when a version is not retained, or the shards do not say which versions belong together.
    O(shards * log(versions)) openings.
    """
    if len(places) == 1:
        return [version]
    commit = commit_of(open_view(places[0], version))
    return [version, *(version_of(place, commit) for place in places[1:])]


def position_of(views: Sequence[View]) -> Any:
    """Return the position in the source that a run has committed in all of its shards; None without a run. Raises
    RestoreError for a damaged shard.
    """
    from ..topology.run_state import RUN, RunState  # only here: topologies load much

    faults = [fault for view in views for fault in view.faults]
    if faults:
        raise RestoreError(faults[0])
    runs = [RunState(**view.settings.get(RUN, {})) for view in views]
    return min(runs, key=lambda run: run.commit).position if runs else None


def commit_of(view: View) -> int:
    """Return the commit of the run that a shard's version is of. Raises RestoreError."""
    from ..topology.run_state import RUN, RunState

    if RUN not in view.settings:
        raise RestoreError(
            f"{view.place.where}: version {view.version} says nothing of a run, so the versions of the other shards "
            "that belong to it are not known (only the shards of a `run` are taken together)"
        )
    return RunState(**view.settings[RUN]).commit


def version_of(place: Place, commit: int) -> int:
    """Return the newest version of a shard up to this commit of the run. Raises RestoreError."""
    within = reach(place)
    versions = sorted(
        {*within.checkpoints, *(each.version for each in within.commits if each.version >= within.oldest)}
    )
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        if commit_of(open_view(place, versions[middle])) <= commit:
            low = middle + 1
        else:
            high = middle
    # A shard that is a commit behind had not done it yet when the run ended.
    if not low or commit_of(open_view(place, versions[low - 1])) < commit - 1:
        raise RestoreError(f"{place.where}: commit {commit} is not retained (choose a later version)")
    return versions[low - 1]


def write_shards(views: list[View], target: Storage) -> None:
    """Write one version of each shard into a new place, as a topology's state without a rescale. Raises OSError or
    CheckpointError. O(records).
    """
    store = os.urandom(ID_BYTES)
    there = Generation(_FIRST, 0, len(views), store)
    describe(target, there.number, there)
    for shard, view in enumerate(views):
        folder = there.folder(shard)
        write_state(
            target.below(folder) if folder else target,
            version=view.version,
            digest=view.digest,
            settings=view.settings,
            captures=[each.capture for each in view.stores.values()],
            previous=view.pages,
            identity=Identity(store, 0, shard, len(views)),
        )
