"""The public errors of states in one place; users import them from `hybridstore`. Those of a rescale are in
`rescaling/report.py`, those of Spark in `spark/errors.py`.

HybridStoreError
├── UnsupportedVersionError       a file of a newer format
├── ForeignFileError              not one of our files, or another store's
├── ChangelogError
│   ├── CorruptFrameError         path, offset, reason
│   └── MutationError
├── CheckpointError
│   ├── CorruptCheckpointError
│   └── CheckpointMismatchError   a store or topology asked for with other parameters
├── RestoreError
│   ├── ChangelogGapError
│   └── DigestMismatchError
├── StateDirectoryError           the operating system refused the opening
├── StateDirectoryLockedError     path, holder
├── StorageUnreachableError       an object store did not answer, or refused a request
├── BufferFullError               suppression at its bound with on_full="raise"
├── UpgradeError                  an upgrade function failed on a stored value
├── MutatedValueError             debug=True: a stored value was changed in place
├── StoreInUseError               another thread's state, or a call in the middle of a call
├── StorePoisonedError            a write, a sync or a rollback failed, or was interrupted; reopen
└── StoreClosedError
"""

from __future__ import annotations

from typing import Any

from changelog.errors import (
    ChangelogError,
    CorruptFrameError,
    ForeignFileError,
    HybridStoreError,
    MutationError,
    StorageUnreachableError,
    StoreInUseError,
    StorePoisonedError,
    UnsupportedVersionError,
)
from recovery.errors import (
    ChangelogGapError,
    CheckpointError,
    CheckpointMismatchError,
    CorruptCheckpointError,
    DigestMismatchError,
    RestoreError,
)


class StateDirectoryLockedError(HybridStoreError):
    """The state directory is open for writing elsewhere, as a rule in another process; close it there, or read with
    `hybridstore inspect`.

    >>> state = hs.open("state")
    >>> hs.open("state")
    Traceback (most recent call last):
    ...
    hybridstore.errors.StateDirectoryLockedError: state: in use by ... (this one: close what opened it first; ...)
    """


class StateDirectoryError(HybridStoreError):
    """The operating system refused something while a state directory was opened; `__cause__` is its OSError.

    Nothing was lost. The usual causes are rights, too many open files, and a file system without `flock`.

    >>> hs.open("a" * 300)
    Traceback (most recent call last):
    ...
    hybridstore.errors.StateDirectoryError: aaa...: cannot be opened: [Errno 36] File name too long: ...
    """


class StoreClosedError(HybridStoreError):
    """The store was closed, dropped by a change of the program, or inherited through a fork; open it again.

    >>> with hs.open("state") as state:
    ...     users = state.key_value("users")
    >>> users.get("ann")
    Traceback (most recent call last):
    ...
    hybridstore.errors.StoreClosedError: state: the store is closed (open it again)
    """


class BufferFullError(HybridStoreError):
    """A suppression buffer is over its bound and was made with on_full="raise". The offending record is in the buffer.

    `emitted` is what left the buffer by time in the same call: `(key, value, ts)`, as the call would have returned it.

    >>> held = hs.open("state").suppression("held", time_limit="1 minute", max_records=1, on_full="raise")
    >>> held.put("ann", 1, ts=0)
    []
    >>> held.put("bob", 1, ts=0)
    Traceback (most recent call last):
    ...
    hybridstore.errors.BufferFullError: store 'held': buffer full: found 2 records, expected at most 1 (raise ...)
    """

    def __init__(self, message: str, emitted: list[tuple[Any, Any, int]] | None = None) -> None:
        super().__init__(message)
        self.emitted = emitted or []


class UpgradeError(HybridStoreError):
    """The `upgrade=` function of a store failed on a stored value; `__cause__` is what it raised. Nothing was changed:
    mend the function and open the state again.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    >>> with hs.open("state") as state:
    ...     users = state.key_value("users", version=1, upgrade=lambda visits: visits["count"])
    Traceback (most recent call last):
    ...
    hybridstore.errors.UpgradeError: store 'users': the value of key 'ann' cannot be upgraded: TypeError: ...
    """


class MutatedValueError(HybridStoreError):
    """A value was changed in place after it was put, so the changelog does not hold the change; put it again
    instead.

    Only `debug=True` looks for such values, at each commit.

    >>> with hs.open("state", debug=True) as state:
    ...     users, visits = state.key_value("users"), ["monday"]
    ...     users["ann"] = visits
    ...     visits.append("tuesday")
    ...     state.commit()
    Traceback (most recent call last):
    ...
    hybridstore.errors.MutatedValueError: store 'users': the value of key 'ann' was changed in place after it was ...
    """


__all__ = [
    "BufferFullError",
    "ChangelogError",
    "ChangelogGapError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CorruptCheckpointError",
    "CorruptFrameError",
    "DigestMismatchError",
    "ForeignFileError",
    "HybridStoreError",
    "MutatedValueError",
    "MutationError",
    "RestoreError",
    "StateDirectoryError",
    "StateDirectoryLockedError",
    "StorageUnreachableError",
    "StoreClosedError",
    "StoreInUseError",
    "StorePoisonedError",
    "UnsupportedVersionError",
    "UpgradeError",
]
