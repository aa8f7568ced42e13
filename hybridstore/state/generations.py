"""Generations: the places of the shards of a plain topology's state.

    state/            one shard
    state/0, state/1  several
    state/G/0 ...     those that a rescale made: `generations/<n>.json` says which count, the greatest n

A rescale keeps the old shards in their place, and makes the new shards count by one create.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from changelog.errors import ForeignFileError, UnsupportedVersionError
from changelog.storage import LocalStorage, Storage
from recovery.errors import CheckpointMismatchError
from recovery.layout import (
    CHANGELOG,
    GENERATIONS,
    generation_folder,
    generation_name,
    parse_generation_name,
    shard_folder,
)

FORMAT_VERSION = 1


class Generation(NamedTuple):
    """The shards that count: the number of the description that says so (0: none does), the generation, how many there
    are, and what the description says besides."""

    number: int
    generation: int
    shards: int
    fields: dict[str, Any]

    def folder(self, shard: int) -> str:
        """Return the folder of a shard below the state; "" for the state itself."""
        if self.generation:
            return shard_folder(self.generation, shard)
        return "" if self.shards == 1 else str(shard)


def newest_generation(place: Storage) -> Generation | None:
    """Return the newest description; None if there is none. Raises ForeignFileError or UnsupportedVersionError. One
    list, one get.
    """
    names = place.list(f"{GENERATIONS}/")
    numbers = [number for name in names if (number := parse_generation_name(name)) is not None]
    if not numbers:
        return None
    where = f"{place.url}/{generation_name(max(numbers))}"
    try:
        fields = json.loads(place.get(generation_name(max(numbers))))
        if fields["format"] > FORMAT_VERSION:
            raise UnsupportedVersionError(
                f"{where}: format {fields['format']}, this release reads {FORMAT_VERSION} (upgrade hybridstore)"
            )
        return Generation(max(numbers), fields["generation"], fields["shards"], fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignFileError(f"{where}: cannot be read: {error} (restore it from a copy)") from error


def first_shards(place: Storage) -> set[int | None]:
    """Return the numbers of the existing shards that no rescale made; None stands for a state without shards. O(names),
    one directory where it is a local one.
    """
    if not isinstance(place, LocalStorage):
        firsts = {name.partition("/")[0] for name in place.list()}
    elif place.root.is_dir():
        firsts = {entry.name for entry in place.root.iterdir() if entry.is_dir()}
    else:
        firsts = set()
    # a generation's folder has leading zeros
    return (
        {None} if CHANGELOG in firsts else {int(name) for name in firsts if name.isdigit() and name == str(int(name))}
    )


def shards_there(place: Storage) -> Generation | None:
    """Return the shards that count; None if there is no state. Raises as `newest_generation`."""
    newest = newest_generation(place)
    if newest is not None:
        return newest
    first = first_shards(place)
    return Generation(0, 0, len(first), {}) if first else None


def check_generation(place: LocalStorage) -> None:
    """Raise CheckpointMismatchError if a rescale has moved the state of a directory into other shards: writes to the
    old one would be lost to the job. One look for a directory.
    """
    if not (place.root / GENERATIONS).is_dir():
        return
    newest = newest_generation(place)
    if newest is not None and newest.generation:
        raise CheckpointMismatchError(
            f"{place.url}: the state was rescaled to {newest.shards} shards, found an opening of the shard before that "
            f"(open it by its topology, or a shard of {place.url}/{generation_folder(newest.generation)}; "
            f"`hybridstore rescale {place.url} --back` returns to the shards before)"
        )
