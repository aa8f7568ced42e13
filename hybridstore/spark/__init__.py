"""hybridstore for PySpark: state in the Python worker, exactly once, under the query's checkpoint location.

    import hybridstore as hs
    from hybridstore import spark as hsp

    session = hsp.configure(SparkSession.builder).getOrCreate()
    totals = topology.apply(events, name="totals", location=location, shards=4)

Importing this needs no pyspark; calling `apply_program` and the data source do.
"""

from __future__ import annotations

import typing as _typing

from ..faces import lazy as _lazy

if _typing.TYPE_CHECKING:
    from .connect import foreach_batch as foreach_batch
    from .errors import CannotCommitError as CannotCommitError
    from .errors import MissingVersionError as MissingVersionError
    from .errors import SkippedBatchError as SkippedBatchError
    from .errors import SparkSetupError as SparkSetupError
    from .errors import StaleAttemptError as StaleAttemptError
    from .frame_processor import transform_with_state_in_pandas as transform_with_state_in_pandas
    from .group_state import apply_in_pandas_with_state as apply_in_pandas_with_state
    from .heartbeat import heartbeat_keys as heartbeat_keys
    from .heartbeat import with_heartbeats as with_heartbeats
    from .heartbeat import without_heartbeats as without_heartbeats
    from .listener import metrics_listener as metrics_listener
    from .observing import observed as observed
    from .operator import apply_program as apply_program
    from .session import configure as configure
    from .shard_rows import metrics as metrics
    from .stateful_processor import transform_with_state as transform_with_state

__getattr__, __dir__, __all__ = _lazy(__name__)
