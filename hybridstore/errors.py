"""Every public error in one place; users import them from `hybridstore`.

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
├── BufferFullError               suppression at its bound with on_full="raise"
├── UpgradeError                  an upgrade function failed on a stored value
├── MutatedValueError             debug=True: a stored value was changed in place
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
    """Another process has the state directory open for writing; close it there, or read with `hybridstore inspect`."""


class StateDirectoryError(HybridStoreError):
    """The operating system refused something while a state directory was opened; `__cause__` is its OSError.

    Nothing was lost.
    """


class StoreClosedError(HybridStoreError):
    """The store was closed, crashed on purpose, or inherited through a fork; open it again."""


class BufferFullError(HybridStoreError):
    """A suppression buffer is over its bound and was made with on_full="raise". The offending record is in the buffer.

    `emitted` is what left the buffer by time in the same call: `(key, value, ts)`, as the call would have returned it.
    """

    def __init__(self, message: str, emitted: list[tuple[Any, Any, int]] | None = None) -> None:
        super().__init__(message)
        self.emitted = emitted or []


class UpgradeError(HybridStoreError):
    """The `upgrade=` function of a store failed on a stored value; `__cause__` is what it raised. Nothing was changed:
    mend the function and open the state again.
    """


class MutatedValueError(HybridStoreError):
    """A value was changed in place after it was put, so the changelog does not hold the change; put it again
    instead.
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
    "StoreClosedError",
    "StorePoisonedError",
    "UnsupportedVersionError",
    "UpgradeError",
]
