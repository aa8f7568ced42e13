"""Location: the places of a query's checkpoint and of an operator's state, in a form that is sent to workers.

checkpoint   Spark's checkpointLocation: offsets and commits are read from it
state        where the operators' objects are, below `hybridstore/`; by default the checkpoint's location

Both are a path that driver and workers share, or a URL of an object store. A process opens a storage at the first use,
once for each location: a worker after its fork, a holder after its start. Only text is sent.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from changelog.bucket import Bucket, settings_of
from changelog.cloud_storage import CloudStorage
from changelog.errors import HybridStoreError, StorageUnreachableError
from changelog.storage import LocalStorage, Storage, exists, is_url, local_path, storage_at
from recovery.layout import CHANGELOG, CHECKPOINTS, METADATA, SPARK_FOLDER, operator_folder

from ..state.home import with_cache
from .errors import SparkSetupError

# Other names that Spark writes there.
_SPARKS: Final = frozenset(("offsets", "commits", "sources", "state"))
# How long `apply` waits in all for an object store to answer; a log line tells of the wait.
CHECK_SECONDS: Final = 30.0
# How many folders beside a new state are searched for other states.
_LOOKED_INTO: Final = 20
# Storages of this process by location; a process has few.
_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Location:
    """See the module. The settings of each bucket are pairs, because equal texts may be buckets with other settings; no
    text shows them.
    """

    checkpoint: str
    state: str
    checkpoint_settings: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    state_settings: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    cache: str | None = None
    cache_bytes: int | None = None

    def query(self) -> Storage:
        """Return the storage of Spark's own files, without a cache: none of them is read twice."""
        return _opened(self.checkpoint, self.checkpoint_settings)

    def operator(self, operator: str) -> Storage:
        """Return the storage of an operator's objects."""
        return self.states().below(operator_folder(operator))

    def states(self) -> Storage:
        """Return the storage of all operators' objects."""
        return _cached(self) if is_url(self.state) else _opened(self.state, ())


@lru_cache(_KEPT)
def _opened(location: str, settings: tuple[tuple[str, Any], ...]) -> Storage:
    return storage_at(Bucket(location, **dict(settings))) if is_url(location) else LocalStorage(Path(location))


@lru_cache(_KEPT)
def _cached(location: Location) -> Storage:
    return with_cache(_opened(location.state, location.state_settings), location.cache, location.cache_bytes)


def locate(location: str | os.PathLike[str], state_location: str | os.PathLike[str] | None = None) -> Location:
    """Return the location for the arguments of `apply`. No request is made.

    Raises SparkSetupError for a scheme that is not supported, and a relative path.
    """
    checkpoint = _checked("location", location)
    state = checkpoint if state_location is None else _checked("state_location", state_location)
    of_checkpoint, of_state = (tuple(sorted(settings_of(place).items())) for place in (checkpoint, state))
    kept = (state.cache, state.cache_bytes) if isinstance(state, Bucket) else (None, None)
    return Location(str(checkpoint), str(state), of_checkpoint, of_state, *kept)


def located(
    location: str | os.PathLike[str] | Location, state_location: str | os.PathLike[str] | None = None
) -> Location:
    """Return the location of a query whose state is read or changed by this process: a path may be relative. Raises as
    `locate`.
    """
    if isinstance(location, Location):
        return location
    places = (location, *([] if state_location is None else [state_location]))
    return locate(*(place if is_url(place) else local_path(place).absolute() for place in places))


def _checked(name: str, location: str | os.PathLike[str]) -> str:
    if not isinstance(location, (str, os.PathLike)):
        raise SparkSetupError(f"{name}: found {type(location).__name__}, expected a path or a URL")
    text = os.fspath(location)
    try:
        if not is_url(text):
            path = local_path(text)
            if not path.is_absolute():
                raise HybridStoreError(f"found {text!r}, expected an absolute path (workers run elsewhere)")
            return str(path)
        bucket = text if isinstance(text, Bucket) else Bucket(text)
        storage_at(bucket)  # raises without obstore
    except HybridStoreError as error:
        raise SparkSetupError(f"{name}: {error}") from None
    if text.lower().startswith("memory:"):
        raise SparkSetupError(f"{name}: found {text!r}, which lives in one process, expected what all workers share")
    return bucket


def check_reachable(location: Location, operator: str) -> None:
    """Make a request to both locations, on the driver, and search for other states around a new one.

    Raises SparkSetupError if an object store refuses, does not answer within CHECK_SECONDS, or obstore is missing, and
    if the state would lie inside another state, or around one. Directories need no request. Some requests.
    """
    until = time.monotonic() + CHECK_SECONDS
    try:
        if is_url(location.checkpoint):
            with suppress(FileNotFoundError):
                _asked(location.checkpoint, location.checkpoint_settings, until).size(METADATA)
        if is_url(location.state):
            _check_alone(location, operator, until)
    except HybridStoreError as error:
        if isinstance(error, StorageUnreachableError) and time.monotonic() >= until:
            advice = "is the endpoint right, and can this machine reach it?"
            raise SparkSetupError(f"{error}: no answer ({advice})") from None
        raise error if isinstance(error, SparkSetupError) else SparkSetupError(str(error)) from None


def _asked(url: str, settings: tuple[tuple[str, Any], ...], until: float) -> Storage:
    """Return the storage of a URL for requests up to a moment of the monotonic clock."""
    storage = _opened(url, settings)
    return storage.within(until - time.monotonic()) if isinstance(storage, CloudStorage) else storage


def _check_alone(location: Location, operator: str, until: float) -> None:
    """Raise SparkSetupError if the new state of an operator would be mixed with another state.

    Above it: a state of a plain store, or the checkpoint of another query, which may be removed with all that is below.
    One folder below it: a state or a checkpoint, which may be removed with this one.
    """
    here = _asked(location.state, location.state_settings, until)
    if here.folders(operator_folder(operator)):
        return
    _check_below(here, location)
    scheme, _, rest = location.state.partition("://")
    bucket, *parts = rest.split("/")
    if SPARK_FOLDER in parts:
        above = "/".join((bucket, *parts[: parts.index(SPARK_FOLDER)]))
        raise SparkSetupError(_mixed(location.state, f"{scheme}://{above}", "the state of a query"))
    for depth in range(len(parts) + 1):
        above = f"{scheme}://{'/'.join((bucket, *parts[:depth]))}"
        storage = _asked(above, location.state_settings, until)
        # With rights to a prefix only, the folders above it cannot be listed.
        with suppress(OSError):
            if storage.list(f"{CHECKPOINTS}/") or storage.list(f"{CHANGELOG}/"):
                raise SparkSetupError(_mixed(location.state, above, "the state of a plain store"))
            if above not in (location.state, location.checkpoint) and exists(storage, METADATA):
                raise SparkSetupError(_mixed(location.state, above, "the checkpoint of a query"))


def _check_below(here: Storage, location: Location) -> None:
    folders = [name for name in here.folders() if name != SPARK_FOLDER and name not in _SPARKS]
    for name in folders[:_LOOKED_INTO]:
        inner = set(here.folders(name))
        what = "the state of a plain store" if not inner.isdisjoint((CHECKPOINTS, CHANGELOG)) else ""
        what = "the state of a query" if SPARK_FOLDER in inner else what
        what = "the checkpoint of a query" if {"offsets", "commits"} <= inner else what
        if what and not f"{location.checkpoint}/".startswith(f"{location.state}/{name}/"):
            raise SparkSetupError(
                f"{location.state}: contains {location.state}/{name}, which is {what}: expected a location of its own "
                "(deleting or copying one would affect the other)"
            )


def _mixed(state: str, above: str, what: str) -> str:
    return (
        f"{state}: lies inside {above}, which is {what}: expected a location of its own (what removes or copies the "
        "one would do so with the other)"
    )
