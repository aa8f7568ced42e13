"""hybridstore for PySpark: state in the Python worker, exactly once, under the query's checkpoint location.

    import hybridstore as hs
    from hybridstore import spark as hsp

    session = hsp.configure(SparkSession.builder).getOrCreate()
    totals = topology.apply(events, name="totals", checkpoint=location, shards=4)

Importing this needs no pyspark; calling `apply_program` and the data source do.
"""

from __future__ import annotations

from .connect import foreach_batch
from .errors import CannotCommitError, MissingVersionError, SkippedBatchError, SparkSetupError, StaleAttemptError
from .heartbeat import heartbeat_keys, with_heartbeats, without_heartbeats
from .listener import metrics_listener
from .metrics import metrics
from .operator import apply_program
from .provider import ShardMetrics, StateStore, StateStoreProvider
from .session import configure
from .shard_id import StateStoreId
from .stateful_processor import transform_with_state

__all__ = [
    "CannotCommitError",
    "MissingVersionError",
    "ShardMetrics",
    "SkippedBatchError",
    "SparkSetupError",
    "StaleAttemptError",
    "StateStore",
    "StateStoreId",
    "StateStoreProvider",
    "apply_program",
    "configure",
    "foreach_batch",
    "heartbeat_keys",
    "metrics",
    "metrics_listener",
    "transform_with_state",
    "with_heartbeats",
    "without_heartbeats",
]
