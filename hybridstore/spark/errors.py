"""Errors that only a state kept for Spark can have; all are HybridStoreErrors and importable from `hybridstore.spark`."""

from __future__ import annotations

from changelog.errors import HybridStoreError
from recovery.errors import RestoreError


class MissingVersionError(RestoreError):
    """The version asked for was never written, or a file that holds it is gone. Never answered with an empty store."""


class SkippedBatchError(RestoreError):
    """A batch ended without this shard being called: something downstream (a `limit`, `show`) read only a part of the output."""


class StaleAttemptError(HybridStoreError):
    """This attempt was overtaken: a later batch is committed already. Nothing was published; the attempt's output must be dropped."""


class CannotCommitError(HybridStoreError):
    """A version could not be published. What was committed before is intact; run the batch again."""


class SparkSetupError(HybridStoreError):
    """The session, the query or the checkpoint location does not let the operator keep its promises; the message names the setting."""
