"""hybridstore for PySpark: state in the Python worker, exactly once, under the query's checkpoint location.

    import hybridstore as hs
    from hybridstore import spark as hsp

    session = hsp.configure(SparkSession.builder).getOrCreate()
    totals = topology.apply(events, name="totals", checkpoint=location, shards=4)

Importing this needs no pyspark; calling `apply_program` and the data source do.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from .connect import foreach_batch
    from .errors import CannotCommitError, MissingVersionError, SkippedBatchError, SparkSetupError, StaleAttemptError
    from .frame_processor import transform_with_state_in_pandas
    from .group_state import apply_in_pandas_with_state
    from .heartbeat import heartbeat_keys, with_heartbeats, without_heartbeats
    from .listener import metrics_listener
    from .operator import apply_program
    from .session import configure
    from .shard.provider import ShardMetrics, StateStore, StateStoreProvider
    from .shard.shard_id import StateStoreId
    from .shard_rows import metrics
    from .stateful_processor import transform_with_state

# Imported when first asked for: a fresh worker of Spark imports what it works with, and no more. No name may be that
# of a module here, which would take its place.
_HOME = {
    "CannotCommitError": ".errors",
    "MissingVersionError": ".errors",
    "ShardMetrics": ".shard.provider",
    "SkippedBatchError": ".errors",
    "SparkSetupError": ".errors",
    "StaleAttemptError": ".errors",
    "StateStore": ".shard.provider",
    "StateStoreId": ".shard.shard_id",
    "StateStoreProvider": ".shard.provider",
    "apply_in_pandas_with_state": ".group_state",
    "apply_program": ".operator",
    "configure": ".session",
    "foreach_batch": ".connect",
    "heartbeat_keys": ".heartbeat",
    "metrics": ".shard_rows",
    "metrics_listener": ".listener",
    "transform_with_state": ".stateful_processor",
    "transform_with_state_in_pandas": ".frame_processor",
    "with_heartbeats": ".heartbeat",
    "without_heartbeats": ".heartbeat",
}


def __getattr__(name: str) -> _typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "apply_in_pandas_with_state",
    "apply_program",
    "configure",
    "foreach_batch",
    "heartbeat_keys",
    "metrics",
    "metrics_listener",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "with_heartbeats",
    "without_heartbeats",
]
