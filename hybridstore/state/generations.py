"""Generations: the places of the shards of a plain topology's state.

    state/            one shard
    state/0, state/1  several
    state/G/0 ...     those that a rescale made

`generations/<n>.json` says which shards count, the greatest n, and the id of their state; one shard alone needs no
description. A rescale keeps the old shards in their place, and makes the new shards count by one create.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from changelog.bucket import Bucket
from changelog.cached_storage import bare
from changelog.errors import ForeignFileError, UnsupportedVersionError
from changelog.identity import Identity
from changelog.storage import LocalStorage, Storage, exists, storage_at
from recovery.errors import ProgramMismatchError
from recovery.layout import (
    CHANGELOG,
    CHECKPOINTS,
    ERASING_SHARDS,
    FORKS,
    GENERATIONS,
    PINS,
    SPARK_FOLDER,
    generation_folder,
    generation_name,
    parse_generation_name,
    parse_shard_folder,
    shard_folder,
)

from ..errors import StateDirectoryError

FORMAT_VERSION = 1
# that of the descriptions of an operator of Spark's (`spark.operator_file`), which tools read, too
OPERATOR_FORMAT = 1
T = TypeVar("T")
# At a fork: where its origin is.
ORIGIN: Final = f"{FORKS}/origin"
# What a state, a topology or a query has below its place.
_OF_STATES: Final = frozenset((CHANGELOG, CHECKPOINTS, GENERATIONS, SPARK_FOLDER))


class Generation(NamedTuple):
    """The shards that count: the number of the description that says so (0: none does), the generation, their
    count, the id of their state (b"": that of its only shard), and what a rescale made them of (None: none did)."""

    number: int
    generation: int
    shards: int
    store: bytes = b""
    rescaled: dict[str, int] | None = None

    def folder(self, shard: int) -> str:
        """Return the folder of a shard below the state; "" for the state itself."""
        if self.generation:
            return shard_folder(self.generation, shard)
        return "" if self.shards == 1 else str(shard)

    def identity(self, shard: int) -> Identity | None:
        """Return the identity of a shard, None for a state without a description: its own files say it."""
        return Identity(self.store, self.generation, shard, self.shards) if self.store else None


def newest_generation(place: Storage, *, writing: bool = False) -> Generation | None:
    """Return the newest description; None if none exists. Raises ForeignFileError or UnsupportedVersionError, and, for
    `writing`, StateDirectoryError where an erase of the shards has not ended. One list, one get.
    """
    numbers = _numbers(place, writing=writing)
    return _read(place, max(numbers)) if numbers else None


def _numbers(place: Storage, *, writing: bool = False) -> list[int]:
    names = place.list(f"{GENERATIONS}/")
    if writing and ERASING_SHARDS in names:
        raise unended_erase(place.url)
    return sorted(number for name in names if (number := parse_generation_name(name)) is not None)


def unended_erase(where: object) -> StateDirectoryError:
    """Return the error of a writer where an erase has begun and has not ended."""
    return StateDirectoryError(
        f"{where}: an erase has begun here and has not ended, so that some files may still have what it erases (run "
        "the same `hybridstore erase` again)"
    )


def _read(place: Storage, number: int) -> Generation:
    def generation(fields: dict[str, Any]) -> Generation:
        store = bytes.fromhex(fields["id"])
        return Generation(number, fields["generation"], fields["shards"], store, fields.get("rescaled"))

    return read_description(place, generation_name(number), FORMAT_VERSION, generation)


def read_description(place: Storage, name: str, newest: int, make: Callable[[dict[str, Any]], T]) -> T:
    """Return what `make` makes of the fields of a description, a JSON object of a format up to `newest`. Raises
    ForeignFileError for content that is none, UnsupportedVersionError for a newer format.
    """
    where = f"{place.url}/{name}"
    try:
        fields = json.loads(place.get(name))
        if fields["format"] > newest:
            raise UnsupportedVersionError(
                f"{where}: format {fields['format']}, this release reads {newest} (upgrade hybridstore)"
            )
        return make(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignFileError(f"{where}: cannot be read: {error} (restore it from a copy)") from error


def describe(place: Storage, number: int, generation: Generation) -> bool:
    """Create the description `number` of the shards that count; False if the name is taken."""
    fields: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "shards": generation.shards,
        "generation": generation.generation,
        "id": generation.store.hex(),
    }
    if generation.rescaled is not None:
        fields["rescaled"] = generation.rescaled
    return place.create(generation_name(number), (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode())


def has_folder(place: Storage, folder: str) -> bool:
    """Return whether a folder is there; of an object store whether it has objects. One request."""
    if isinstance(place, LocalStorage):
        return (place.root / folder).is_dir()
    return bool(place.list(f"{folder}/"))


def current_shards(place: Storage, *, writing: bool = False) -> Generation | None:
    """Return the shards that count; None without a state. Raises ForeignFileError for shards without a
    description, and for half a fork; and as `newest_generation`.
    """
    newest = newest_generation(place, writing=writing)
    if newest is not None or has_folder(place, CHANGELOG):
        return newest or Generation(0, 0, 1)
    folders = place.folders() if not isinstance(place, LocalStorage) or place.root.is_dir() else ()
    if CHECKPOINTS in folders and not isinstance(place, LocalStorage):
        return Generation(0, 0, 1)  # a fork or a pin of the version of a checkpoint has no log yet
    shards = [
        name for name in folders if parse_shard_name(name) is not None and has_folder(place.below(name), CHANGELOG)
    ]
    if shards:
        raise ForeignFileError(
            f"{place.url}: found shards {', '.join(shards)} without {generation_name(1)}, expected the description of "
            "them (restore it from a copy)"
        )
    # queries have no shards here
    if FORKS in folders and SPARK_FOLDER not in folders:
        _refuse_half_fork(place)
    return None


def _refuse_half_fork(place: Storage) -> None:
    """Raise ForeignFileError for what a killed maker of a fork or a pin has left on an object store."""
    if exists(place, ORIGIN):
        raise ForeignFileError(
            f"{place.url}: is a fork or a pin that is being made, or whose maker was killed (make it again; or remove "
            "the objects below it, those of a pin with hybridstore unpin)"
        )


def begin_shards(place: Storage, shards: int, store: bytes) -> Generation:
    """Describe the first shards of a new state; return the description that counts, which another process may have
    created.
    """
    first = Generation(1, 0, shards, store)
    while not describe(place, first.number, first):
        there = newest_generation(place)
        if there is not None:
            return there
        # Where a file system has no links, a name may be taken by a writer that died half-way.
        first = first._replace(number=first.number + 1)
    return first


def identity_at(storage: Storage, *, writing: bool = False) -> Identity | None:
    """Return what is known of the plain state at a place: a shard's is described above it. None: nothing.

    Raises as `newest_generation`. O(1), and on an object store no request, unless the folder has
    the name of a shard; then one list and a get for each description.
    """
    generation, shard = _shard_at(storage)
    if shard is None:
        return None
    place = above(storage, 2 if generation else 1)
    if isinstance(place, LocalStorage) and not (place.root / GENERATIONS).is_dir():
        return None
    described = [_read(place, number) for number in _numbers(place, writing=writing)]
    if not described:
        return None
    shards = next((each.shards for each in reversed(described) if each.generation == generation), 0)
    return Identity(described[-1].store, generation, shard, shards)


def _shard_at(storage: Storage) -> tuple[int, int | None]:
    """Return the generation and the number of a shard by the name of its folder; None for a state that is no shard."""
    names = storage.root.absolute().parts if isinstance(storage, LocalStorage) else _names_of(storage)
    return parse_shard_folder("/".join(names[-2:])) or (0, parse_shard_name(names[-1]) if names else None)


def describing(storage: Storage) -> Storage:
    """Return the place whose `generations/` says which shards of a plain state count: its own, of a shard above it."""
    generation, shard = _shard_at(storage)
    return storage if shard is None else above(storage, 2 if generation else 1)


def _names_of(storage: Storage) -> tuple[str, ...]:
    """Return the folders to a place on an object store, from its bucket on, whose own name is that of no folder."""
    address, mark, path = storage.url.partition("://")
    return tuple(path.split("/")[1:] if mark else address.split("/"))


def parse_shard_name(name: str) -> int | None:
    """Return the number of a shard that no rescale made, by the name of its folder; None for another name. A
    generation's folder has leading zeros.
    """
    return int(name) if name.isdecimal() and name.isascii() and len(name) < 10 and name == str(int(name)) else None


def above(storage: Storage, levels: int) -> Storage:
    """Return the storage this many folders above."""
    storage = bare(storage)
    if isinstance(storage, LocalStorage):
        root = storage.root
        return LocalStorage(
            root.absolute().parents[levels - 1] if len(root.parts) <= levels else root.parents[levels - 1]
        )
    return storage_at(_reached_as(storage, storage.url.rsplit("/", levels)[0]))


def location_of(storage: Storage) -> Path | str:
    """Return the path or the URL of a storage, with its settings."""
    storage = bare(storage)
    return storage.root if isinstance(storage, LocalStorage) else _reached_as(storage, storage.url)


def _reached_as(storage: Storage, url: str) -> str:
    settings = getattr(storage, "options", {})
    return Bucket(url, **settings) if settings else url


def levels_of_pin(storage: Storage) -> int | None:
    """Return how many folders above the name of the folder of pins is, for what is a pin on an object store, or belongs
    to a pin; None for anything else. No request, but for a place below a folder of that name.
    """
    names = _names_of(storage)
    for levels in (1, 2, 3):
        pinned = len(names) > levels and names[-1 - levels] == PINS
        if pinned and not _OF_STATES.isdisjoint(above(storage, levels + 1).folders()):
            return levels
    return None


def check_generation(place: LocalStorage) -> None:
    """Raise ProgramMismatchError if a rescale has moved the state of a directory into other shards: writes to the
    old one would be lost to the job. One look for a directory.
    """
    if not (place.root / GENERATIONS).is_dir():
        return
    newest = newest_generation(place)
    if newest is not None and newest.generation:
        raise ProgramMismatchError(
            f"{place.url}: the state was rescaled to {newest.shards} shards, found an opening of the shard before that "
            f"(open it by its topology, or a shard of {place.url}/{generation_folder(newest.generation)}; "
            f"`hybridstore rescale {place.url} --back` returns to the shards before)"
        )


def place_below(state: str | os.PathLike[str], folder: str) -> str | os.PathLike[str]:
    """Return the place of a folder ("": the state itself) below a state; that of a bucket has its settings."""
    if not folder:
        return state
    return state / folder if isinstance(state, Path | Bucket) else f"{os.fspath(state).rstrip('/')}/{folder}"


def existing_shards(place: Storage, there: Generation) -> set[int]:
    """Return the shards that have a folder. One request."""
    above, names = "", [there.folder(shard).rpartition("/")[2] for shard in range(there.shards)]
    if there.generation:
        above = there.folder(0).rpartition("/")[0]
    elif there.shards == 1:
        return {0}
    if isinstance(place, LocalStorage) and not (place.root / above).is_dir():
        return set()
    folders = set(place.folders(above))
    return {shard for shard, name in enumerate(names) if name in folders}
