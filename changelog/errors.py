"""The root of every error of the project, and the errors of the changelog.

All errors derive from `HybridStoreError`. Users import them from `hybridstore`.
"""

from __future__ import annotations


class HybridStoreError(Exception):
    """Root of every error that hybridstore raises on purpose (bad arguments stay ValueError and TypeError)."""


class UnsupportedVersionError(HybridStoreError):
    """A file was written by a newer format than this release can read; upgrade hybridstore to read it."""


class ForeignFileError(HybridStoreError):
    """A file or directory is not hybridstore's, or belongs to another store. Nothing was read or written."""


class ChangelogError(HybridStoreError):
    """Root of the errors about segments and frames."""


class CorruptFrameError(ChangelogError):
    """A frame that committed data depends on is damaged: the state is refused rather than shortened.

    Raised when a checksum, a length, a sequence number or a digest does not fit and committed data follows.
    Restore the file from a copy, or rebuild from an older checkpoint with `hybridstore inspect repair`.
    """

    def __init__(self, path: object, offset: int, reason: str) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = str(path)
        self.offset = offset
        self.reason = reason


class StorePoisonedError(HybridStoreError):
    """A write, a sync, a rollback or a change in memory failed or was interrupted, so this store accepts no further
    call.

    Reopen the state: the last commit is intact. Uncommitted changes are lost, as after a crash.
    """


class MutationError(ChangelogError):
    """A mutation in the log cannot be decoded or names an operation or a store that does not exist."""
