"""Places: the meaning of a location on the command line: one state, one shard, a file, or all of a Spark checkpoint.

    state/                         a state directory, or every shard of a plain topology (`inspection.shards`)
    state/checkpoints/N-H.lmdb     one checkpoint
    state/changelog/N.log          one segment
    <checkpointLocation>/          every operator and shard below hybridstore/
    .../hybridstore/op/            every shard of an operator
    .../hybridstore/op/G/N/        one shard
    state.zip                      what `pack` made of one of these

Each may be on a disk or on an object store (`s3://...`): a place is a storage, and its readers need not know the kind.
Only an archive is always a local file: an archive on an object store is copied first.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from changelog.bucket import Bucket, same_settings
from changelog.identity import Identity, of_operator
from changelog.outlook import behind
from changelog.segment import MAGIC, SUFFIX
from changelog.storage import LocalStorage, Storage, is_url, local_path, storage_at
from recovery.layout import (
    CHANGELOG,
    CHECKPOINT_SUFFIX,
    CHECKPOINTS,
    LOCK,
    LOG,
    OPERATOR,
    SPARK_FOLDER,
    generation_folder,
    list_operators,
    operator_name,
    parse_shard_folder,
)

from ..errors import ForeignFileError
from ..shards import shard_of
from ..state.generations import above, identity_at, newest_generation
from . import archive

_DEPTH: Final = 4
_STATE: Final = frozenset((CHANGELOG, LOG, CHECKPOINTS))
_EXPECTED: Final = (
    "give a state directory, a shard, a checkpoint or segment file, or a Spark checkpoint location; or the URL of one"
)


class Place(NamedTuple):
    """One state, shard or file to inspect.

    storage   for a state, its folder; for a checkpoint, the folder of its state; for a segment, the folder with the
              segment
    form      its kind
    label     `operator/shard` inside a Spark checkpoint, `shard` for one of several of a plain topology, else empty
    name      for a file, its name in `storage`
    operator_storage, folder   for a shard, its operator's folder, and the shard's folder in the operator's folder
    of        for a shard of a plain topology, how many shards it has
    """

    storage: Storage
    form: Literal["directory", "checkpoint", "segment"]
    label: str
    name: str = ""
    operator_storage: Storage | None = None
    folder: str = ""
    of: int = 0

    @property
    def where(self) -> str:
        """Its name in messages: a path or a URL."""
        return f"{self.storage.url}/{self.name}" if self.name else self.storage.url

    @property
    def path(self) -> Path | None:
        """The directory or file, None on an object store. No request."""
        return self.storage.root / self.name if isinstance(self.storage, LocalStorage) else None

    @property
    def operator(self) -> str:
        """The operator's name, or an empty text."""
        return "" if self.of else self.label.partition("/")[0]

    @property
    def shard(self) -> int | None:
        """The shard's number, or None outside of Spark."""
        number = self.label.partition("/")[2].partition("/")[0]
        return int(number) if number.isdecimal() and len(number) < 10 else None

    @property
    def number(self) -> int | None:
        """The shard's number, of Spark or of a plain topology; None for a state of one shard."""
        return int(self.label) if self.of else self.shard

    def identity(self) -> Identity | None:
        """Return what is known of the state that belongs here; None: nothing. Raises ForeignFileError. A list and a
        get for each description of a shard's operator or topology.
        """
        if self.form != "directory" or self.shard is None:
            return identity_at(behind(self.storage)) if self.form == "directory" else None
        generation, _ = parse_shard_folder(self.folder) or (0, 0)
        described = [each for each in operator_chain(self) or () if each.get("generation", 0) == generation]
        if not described:
            return Identity(b"", generation, self.shard, 0)
        query_id, shards = described[-1].get("query_id", ""), described[-1].get("shards", 0)
        return of_operator(str(query_id), self.operator, generation, self.shard, shards if type(shards) is int else 0)

    def holds(self, key: Any) -> bool:
        """False when the key belongs to another shard of the operator or topology, by the hash and the number of shards
        on record.
        """
        if self.of:
            return shard_of(key, self.of) == self.number
        if self.shard is None or self.operator_storage is None:
            return True
        fields = read_json(self.operator_storage, operator_file(self.operator_storage))
        shards = fields.get("shards") if isinstance(fields, dict) else None
        return type(shards) is not int or shards < 1 or shard_of(key, shards) == self.shard


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (1 << 32, name)


def _is_state(folders: set[str], storage: Storage) -> bool:
    """True if a folder with these subfolders has the form of a state directory or of a shard."""
    alone = isinstance(storage, LocalStorage) and (storage.root / LOCK).exists()
    return SPARK_FOLDER not in folders and (alone or not _STATE.isdisjoint(folders))


def _below(
    storage: Storage, names: tuple[str, ...], prefix: str, depth: int, operator: Storage | None = None
) -> list[Place]:
    """Return the states below a folder; `names` are the last names of its location, `operator` is its operator."""
    places: list[Place] = []
    children = list(storage.folders())
    if OPERATOR in children:
        operator = storage
        # Only the recorded generation of an operator's shards counts; an older one is kept for a while.
        fields = read_json(storage, operator_file(storage))
        if isinstance(fields, dict):
            counted = generation_folder(fields.get("generation", 0))
            children = [name for name in children if name == counted]
    for name in sorted(children, key=_natural):
        inner, inner_names = storage.below(name), (*names, name)
        # An object store has no empty folders, so no request per shard is needed.
        named = (
            operator is not None and not isinstance(storage, LocalStorage) and parse_shard_folder(_shard(inner_names))
        )
        if named or _is_state(set(inner.folders()), inner):
            places.append(_state(inner, inner_names, f"{prefix}{name}", operator))
        elif depth > 1:
            places += _below(inner, inner_names, f"{prefix}{name}/", depth - 1, operator)
    return places


def _shard(names: tuple[str, ...]) -> str:
    return "/".join(names[-2:])


def _state(storage: Storage, names: tuple[str, ...], label: str = "", operator: Storage | None = None) -> Place:
    """Return the place of a state or a shard; `names` are the last names of its location."""
    parsed = parse_shard_folder(_shard(names)) if len(names) > 2 else None
    # A rescaled topology names the folders of its shards as Spark's are named.
    if parsed is None or (operator is None and CHANGELOG in storage.folders()):
        return Place(storage, "directory", label)
    operator = operator or above(storage, 2)
    return Place(storage, "directory", f"{names[-3]}/{parsed[1]}", "", operator, _shard(names))


def operator_chain(place: Place) -> list[dict[str, Any]] | None:
    """Return the descriptions of a shard's operator, the oldest first; None outside of Spark, and if none can be read.
    O(descriptions), a request each.
    """
    operator = place.operator_storage
    if place.shard is None or operator is None:
        return None
    chain = [(number, read_json(operator, operator_name(number))) for number in list_operators(operator)]
    return [{"number": number, "from": 1, **fields} for number, fields in chain if isinstance(fields, dict)] or None


def operator_file(operator: Storage) -> str:
    """Return the name of an operator's newest description; of the first one if none exists. O(descriptions)."""
    return operator_name(max(list_operators(operator), default=1))


def resolve(location: str | os.PathLike[str], folders: Collection[str] | None = None) -> list[Place]:
    """Return the places of a location, in order. `folders` are those of a URL, where they are known.

    Raises FileNotFoundError, or ForeignFileError for a location without a state. Only names are read; on an object
    store with a request for each folder on the way.
    """
    if is_url(location):
        return _of_bucket(location if isinstance(location, Bucket) else Bucket(os.fspath(location)), folders)
    path = local_path(location)
    if path.is_file():
        return _of_file(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory ({_EXPECTED})")
    places = _of_folder(LocalStorage(path), path.absolute().parts)
    if not places:
        raise _no_state(path, LocalStorage(path))
    return places


def _no_state(location: str | Path, storage: Storage) -> ForeignFileError:
    """Return the error for a folder that is no state, with what to give instead."""
    there = newest_generation(storage)
    if there is None:
        shards = sorted(name for name in storage.folders() if name.isdigit())
    else:
        shards = [folder for shard in range(there.shards) if (folder := there.folder(shard))]
    if shards:
        return ForeignFileError(
            f"{location}: found {len(shards)} folders of shards, expected one state (give one of them, such as "
            f"{location}/{shards[0]})"
        )
    return ForeignFileError(
        f"{location}: found neither {CHANGELOG}/ nor {CHECKPOINTS}/ in it, nor {SPARK_FOLDER}/ with shards "
        f"({_EXPECTED})"
    )


def _of_folder(storage: Storage, names: tuple[str, ...], known: Collection[str] | None = None) -> list[Place]:
    folders = set(storage.folders() if known is None else known)
    if _is_state(folders, storage):
        return [_state(storage, names)]
    if SPARK_FOLDER in folders:
        return _below(storage.below(SPARK_FOLDER), (*names, SPARK_FOLDER), "", _DEPTH)
    if names[-1] == SPARK_FOLDER:
        return _below(storage, names, "", _DEPTH)
    if names[-2:-1] == (SPARK_FOLDER,):
        return _below(storage, names, f"{names[-1]}/", _DEPTH)
    return []


def _of_bucket(bucket: Bucket, folders: Collection[str] | None) -> list[Place]:
    storage = storage_at(bucket)
    folder, _, name = bucket.rpartition("/")
    if name.endswith((SUFFIX, CHECKPOINT_SUFFIX, archive.SUFFIX)):
        beside = storage_at(same_settings(bucket, folder))
        beside.size(name)  # raises FileNotFoundError
        if name.endswith(archive.SUFFIX):
            return _of_file(archive.copied(beside, name))
        if name.endswith(CHECKPOINT_SUFFIX):
            root, _, inner = folder.rpartition("/")
            return [Place(storage_at(same_settings(bucket, root)), "checkpoint", "", f"{inner}/{name}")]
        return [Place(beside, "segment", "", name)]
    places = _of_folder(storage, tuple(bucket.split("/")), folders)
    if not places:
        raise _no_state(bucket, storage)
    return places


def _of_file(path: Path) -> list[Place]:
    with path.open("rb") as file:
        start = file.read(8)
    if start == MAGIC or path.suffix == SUFFIX:
        return [Place(LocalStorage(path.parent), "segment", "", path.name)]
    if path.suffix == CHECKPOINT_SUFFIX:
        path = path if path.parent.name else path.absolute()
        return [Place(LocalStorage(path.parent.parent), "checkpoint", "", f"{path.parent.name}/{path.name}")]
    if start[:4] == archive.MAGIC:
        folder = archive.unpacked(path)
        if (folder / CHANGELOG).is_dir():
            return resolve(folder)
        files = [*folder.iterdir(), *(folder / CHECKPOINTS).glob("*")]
        alone = [file for file in files if file.suffix in (SUFFIX, CHECKPOINT_SUFFIX)]
        return _of_file(alone[0]) if len(alone) == 1 else resolve(folder)
    raise ForeignFileError(
        f"{path}: found a file that starts with {start!r}, expected a checkpoint ({CHECKPOINT_SUFFIX}), a changelog "
        f"segment ({SUFFIX}) or an archive of `pack`"
    )


def read_json(storage: Storage, name: str) -> Any:
    """Return the content of a small JSON object, or None when it is absent or unreadable."""
    import json

    try:
        return json.loads(storage.get_ranges(name, [(0, 1 << 20)])[0])
    except (OSError, ValueError, RecursionError):
        return None
