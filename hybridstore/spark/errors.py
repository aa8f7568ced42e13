"""Errors that only a state kept for Spark can have; all are HybridStoreErrors and importable from
`hybridstore.spark`.
"""

from __future__ import annotations

from changelog.errors import HybridStoreError
from recovery.errors import RestoreError


class MissingVersionError(RestoreError):
    """The version asked for was never written, or a file that holds it is gone. Never answered with an empty store.

    Bring the files back, or rewind the query to the batch that the message names.

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> StateStoreProvider(StateStoreId("checkpoint", "visits", 0)).get_read_store(3)
    Traceback (most recent call last):
    ...
    hybridstore.spark.MissingVersionError: ...: version 3 was never written: found no object of this shard ...
    """

    __module__ = "hybridstore.spark"


class SkippedBatchError(RestoreError):
    """A version of the shard is not there, and no later object names it: something downstream (a `limit`, `show`) read
    only a part of the output of its batch, or its object is lost.

    Write the whole output of the operator, and do the batch again.

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> from hybridstore.spark.launches import begin
    >>> shard = StateStoreId("checkpoint", "visits", 0)
    >>> run = begin(StateStoreProvider(shard).operator, batch=0)
    >>> provider = StateStoreProvider(shard, claim=run)
    >>> provider.get_store(0).commit()
    1
    >>> provider.get_store(2)
    Traceback (most recent call last):
    ...
    hybridstore.spark.SkippedBatchError: ...: version 2 was never written, or its object is lost: ...
    """

    __module__ = "hybridstore.spark"


class StaleAttemptError(HybridStoreError):
    """This attempt is of a run that a newer one has overtaken.

    What it writes does not count; its output must be dropped.

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> from hybridstore.spark.launches import begin
    >>> shard = StateStoreId("checkpoint", "visits", 0)
    >>> old, new = (begin(StateStoreProvider(shard).operator, batch=0) for _ in range(2))
    >>> StateStoreProvider(shard, claim=new).get_store(0).commit()
    1
    >>> StateStoreProvider(shard, claim=old).get_store(0)
    Traceback (most recent call last):
    ...
    hybridstore.spark.StaleAttemptError: ...: launch ... of the query has begun while an attempt of launch ...
    """

    __module__ = "hybridstore.spark"


class CannotCommitError(HybridStoreError):
    """A version could not be committed. What was committed before is intact; run the batch again.

    >>> from hybridstore.spark.shard.provider import StateStoreId, StateStoreProvider
    >>> import pathlib
    >>> from hybridstore.spark.launches import begin
    >>> shard = StateStoreId("checkpoint", "visits", 0)
    >>> provider = StateStoreProvider(shard, claim=begin(StateStoreProvider(shard).operator, batch=0))
    >>> store = provider.get_store(0)
    >>> folder = pathlib.Path(provider.path)
    >>> folder.mkdir(parents=True, exist_ok=True)
    >>> size = (folder / "log").write_text("a file where the folder of the log should be")
    >>> store.commit()
    Traceback (most recent call last):
    ...
    hybridstore.spark.CannotCommitError: ...: version 1 could not be committed: Not a directory ...
    """

    __module__ = "hybridstore.spark"


class SparkSetupError(HybridStoreError):
    """The session, the query or the checkpoint location does not let the operator keep its promises; the message
    names the setting.

    >>> minutes = hs.stream(key="user", timestamp="ts").windowed_by(hs.TumblingWindows("1 minute"))
    >>> minutes.aggregate(n=hs.Count()).apply(events, "minutes", location="relative", shards=2)
    Traceback (most recent call last):
    ...
    hybridstore.spark.SparkSetupError: location: found 'relative', expected an absolute path (workers run ...)
    """

    __module__ = "hybridstore.spark"
