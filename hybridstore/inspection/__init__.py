"""Inspection: shows the content of a state, offline or beside a live writer, without the job's code, the lock, or trust
in the files.

`hybridstore inspect` (docs/inspect.md) and `hybridstore.inspect(path)` are its two interfaces; a module has one command
or a few.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import InspectedState


def inspect(location: str | os.PathLike[str], at: int | str | None = None) -> InspectedState:
    """Look into a state directory, checkpoint file, segment or shard, or into all shards of a Spark checkpoint
    location; or into a place on an object store (`s3://`, `gs://`, `az://`, `abfss://`), of which only the needed parts
    are read (with settings: a `hybridstore.Bucket`).

    Needs neither the lock nor the job's code and changes nothing. `at` is a version or an ISO time (UTC). The result
    has stores by name, `versions`, `at`, `history` and `diff`, and is shown as a table in a notebook. Of a location
    with several shards `shards` has such a result for each, by `operator/shard` (a plain topology: by number). Raises
    FileNotFoundError, ForeignFileError, RestoreError, and StorageUnreachableError if an object store does not answer.
    O(blocks + tail).

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     state.commit()
    1
    >>> look = hs.inspect("state")
    >>> look.version, look["users"].get("ann")
    (1, [Row(key='ann', times=(), value=1)])
    """
    from .api import inspect as look  # imported at the first use: a job that never inspects does not pay for it

    return look(location, at)
