"""Errors that only a state kept for Spark can have; all are HybridStoreErrors and importable from
`hybridstore.spark`.
"""

from __future__ import annotations

from changelog.errors import HybridStoreError
from recovery.errors import RestoreError


class MissingVersionError(RestoreError):
    """The version asked for was never written, or a file that holds it is gone. Never answered with an empty store."""


class SkippedBatchError(RestoreError):
    """A version of the shard is not there, and no later object names it: something downstream (a `limit`, `show`) read
    only a part of the output of its batch, or its object is lost."""


class StaleAttemptError(HybridStoreError):
    """This attempt is of a run that a newer one has overtaken.

    What it writes does not count; its output must be dropped.
    """


class CannotCommitError(HybridStoreError):
    """A version could not be committed. What was committed before is intact; run the batch again."""


class SparkSetupError(HybridStoreError):
    """The session, the query or the checkpoint location does not let the operator keep its promises; the message
    names the setting.
    """
