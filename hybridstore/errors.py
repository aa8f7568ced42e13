"""The errors of states in one place. Those that a program catches are in `hybridstore`, too (marked *); those of Spark
alone are in `hybridstore.spark`.

HybridStoreError *
├── UnsupportedVersionError       a file of a newer format
├── ForeignFileError              not one of our files, or another store's
├── DamageError *                 files are damaged or lost
│   ├── ChangelogError            a mutation cannot be decoded or applied
│   │   └── CorruptFrameError     path, offset, reason
│   ├── CorruptCheckpointError    a CheckpointError, too
│   ├── ChangelogGapError         a RestoreError, too
│   └── DigestMismatchError       a RestoreError, too
├── CheckpointError
├── RestoreError
├── ProgramMismatchError *        a store or topology asked for with other parameters
├── StateDirectoryError           the operating system refused the opening
├── StateLockedError *            open for writing elsewhere
├── StorageUnreachableError *     an object store did not answer, or refused a request
├── BufferFullError *             suppression at its bound with on_full="raise"
├── UpgradeError *                an upgrade function failed on a stored value
├── ValueChangedInPlaceError      debug=True: a stored value was changed in place
├── StateInUseError               another thread's state, or a call in the middle of a call
├── StatePoisonedError *          a write, a sync or a rollback failed, or was interrupted; reopen
├── StateClosedError *
├── RescaleError *                in rescaling/report.py
└── ImportRefusedError *          in importing/report.py
"""

from __future__ import annotations

from typing import Any

from changelog.errors import (
    ChangelogError,
    CorruptFrameError,
    DamageError,
    ForeignFileError,
    HybridStoreError,
    StateInUseError,
    StatePoisonedError,
    StorageUnreachableError,
    UnsupportedVersionError,
)
from recovery.errors import (
    ChangelogGapError,
    CheckpointError,
    CorruptCheckpointError,
    DigestMismatchError,
    ProgramMismatchError,
    RestoreError,
)


class StateLockedError(HybridStoreError):
    """The state directory is open for writing elsewhere, as a rule in another process; close it there, or read with
    `hybridstore inspect`.

    >>> state = hs.open("state")
    >>> hs.open("state")
    Traceback (most recent call last):
    ...
    hybridstore.StateLockedError: state: in use by ... (this one: close what opened it first; ...)
    """

    __module__ = "hybridstore"


class StateDirectoryError(HybridStoreError):
    """The operating system refused something while a state directory was opened; `__cause__` is its OSError.

    Nothing was lost. The usual causes are rights, too many open files, and a file system without `flock`.

    >>> hs.open("a" * 300)
    Traceback (most recent call last):
    ...
    hybridstore.errors.StateDirectoryError: aaa...: cannot be opened: [Errno 36] File name too long: ...
    """

    __module__ = "hybridstore.errors"


class StateClosedError(HybridStoreError):
    """The store was closed, dropped by a change of the program, or inherited through a fork; open it again.

    >>> with hs.open("state") as state:
    ...     users = state.key_value("users")
    >>> users.get("ann")
    Traceback (most recent call last):
    ...
    hybridstore.StateClosedError: state: the store is closed (open it again)
    """

    __module__ = "hybridstore"


class BufferFullError(HybridStoreError):
    """A suppression buffer is over its bound and was made with on_full="raise". The offending record is in the buffer.

    `emitted` is what left the buffer by time in the same call: `(key, value, ts)`, as the call would have returned it.

    >>> held = hs.open("state").suppression("held", time_limit="1 minute", max_records=1, on_full="raise")
    >>> held.put("ann", 1, ts=0)
    []
    >>> held.put("bob", 1, ts=0)
    Traceback (most recent call last):
    ...
    hybridstore.BufferFullError: store 'held': buffer full: found 2 records, expected at most 1 (raise ...)
    """

    __module__ = "hybridstore"

    def __init__(self, message: str, emitted: list[tuple[Any, Any, int]] | None = None) -> None:
        super().__init__(message)
        self.emitted = emitted or []


class UpgradeError(HybridStoreError):
    """The `upgrade=` function of a store failed on a stored value; `__cause__` is what it raised. Nothing was changed:
    fix the function and open the state again.

    >>> with hs.open("state") as state:
    ...     state.key_value("users")["ann"] = 1
    ...     version = state.commit()
    >>> with hs.open("state") as state:
    ...     users = state.key_value("users", version=1, upgrade=lambda visits: visits["count"])
    Traceback (most recent call last):
    ...
    hybridstore.UpgradeError: store 'users': the value of key 'ann' cannot be upgraded: TypeError: ...
    """

    __module__ = "hybridstore"


class ValueChangedInPlaceError(HybridStoreError):
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
    hybridstore.errors.ValueChangedInPlaceError: store 'users': the value of key 'ann' was changed in place ...
    """

    __module__ = "hybridstore.errors"


__all__ = [
    "BufferFullError",
    "ChangelogError",
    "ChangelogGapError",
    "CheckpointError",
    "CorruptCheckpointError",
    "CorruptFrameError",
    "DamageError",
    "DigestMismatchError",
    "ForeignFileError",
    "HybridStoreError",
    "ProgramMismatchError",
    "RestoreError",
    "StateClosedError",
    "StateDirectoryError",
    "StateInUseError",
    "StateLockedError",
    "StatePoisonedError",
    "StorageUnreachableError",
    "UnsupportedVersionError",
    "UpgradeError",
    "ValueChangedInPlaceError",
]
