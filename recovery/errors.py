"""Errors of checkpoints and restores."""

from __future__ import annotations

from changelog.errors import HybridStoreError


class CheckpointError(HybridStoreError):
    """Root of the errors about checkpoints."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint file is damaged.

    The previous checkpoint and the changelog still hold the state: reopen to fall back to them.
    """


class CheckpointMismatchError(CheckpointError):
    """A store, or a topology, is asked for with other parameters than the state was written with."""


class RestoreError(HybridStoreError):
    """The state cannot be restored without losing committed data; nothing was changed."""


class ChangelogGapError(RestoreError):
    """Versions are missing from the changelog between the checkpoint (or the start) and what follows."""


class DigestMismatchError(RestoreError):
    """A version's digest does not continue the one before it: the changelog has a hole or belongs to another line."""
