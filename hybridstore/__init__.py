"""hybridstore: fault-tolerant state for stream processing in Python, at memory speed.

    import hybridstore as hs

    with hs.open("state/") as s:
        clicks = s.window("clicks", retention="1 hour")
        clicks.put("alice", 1, ts=1_700_000_000_000)
        s.commit()

Everything public is imported from here, and for Spark from `hybridstore.spark`.
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

# Looked at before it is imported: a foreign package may fail on its own imports and hide the reason.
for _name in ("changelog", "recovery"):
    _found = _find_spec(_name)
    _origin = _found.origin if _found else None
    if _origin is None or (_Path(_origin).parent.parent != _Path(__file__).parent.parent):
        raise ImportError(
            f"another package named {_name!r} ({_origin}) hides hybridstore's; they cannot share an environment"
        )

from recovery.plan import RestorePlan  # noqa: E402  (after the check above, which must come first)
from recovery.restore import RestoreReport  # noqa: E402

from .aggregation import (  # noqa: E402
    Aggregator,
    Collect,
    CollectSet,
    Count,
    First,
    HoppingWindows,
    Last,
    Max,
    Mean,
    Min,
    Reduce,
    SessionWindows,
    SlidingWindows,
    Sum,
    TopK,
    TumblingWindows,
    Variance,
    check_laws,
)
from .errors import (  # noqa: E402
    BufferFullError,
    ChangelogError,
    ChangelogGapError,
    CheckpointError,
    CheckpointMismatchError,
    CorruptCheckpointError,
    CorruptFrameError,
    DigestMismatchError,
    ForeignFileError,
    HybridStoreError,
    MutatedValueError,
    MutationError,
    RestoreError,
    StateDirectoryLockedError,
    StoreClosedError,
    StorePoisonedError,
    UnsupportedVersionError,
)
from .policy import CheckpointPolicy, plan  # noqa: E402
from .store import HybridStore, Metrics  # noqa: E402
from .store import open_store as open  # noqa: E402
from .stores.key_value import KeyValueStore  # noqa: E402
from .stores.session import SessionStore  # noqa: E402
from .stores.sliding import SlidingStore  # noqa: E402
from .stores.suppression import SuppressionBuffer  # noqa: E402
from .stores.window import WindowStore  # noqa: E402
from .topology.declare import Topology, stream  # noqa: E402
from .topology.declared_stores import (  # noqa: E402
    key_value_store,
    session_store,
    sliding_store,
    suppression_store,
    window_store,
)
from .topology.local import Engine, last_position  # noqa: E402
from .topology.suppress import Suppression, until_time_limit, until_window_closes  # noqa: E402

__all__ = [
    "Aggregator",
    "BufferFullError",
    "ChangelogError",
    "ChangelogGapError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointPolicy",
    "Collect",
    "CollectSet",
    "CorruptCheckpointError",
    "CorruptFrameError",
    "Count",
    "DigestMismatchError",
    "Engine",
    "First",
    "ForeignFileError",
    "HoppingWindows",
    "HybridStore",
    "HybridStoreError",
    "KeyValueStore",
    "Last",
    "Max",
    "Mean",
    "Metrics",
    "Min",
    "MutatedValueError",
    "MutationError",
    "Reduce",
    "RestoreError",
    "RestorePlan",
    "RestoreReport",
    "SessionStore",
    "SessionWindows",
    "SlidingStore",
    "SlidingWindows",
    "StateDirectoryLockedError",
    "StoreClosedError",
    "StorePoisonedError",
    "Sum",
    "Suppression",
    "SuppressionBuffer",
    "TopK",
    "Topology",
    "TumblingWindows",
    "UnsupportedVersionError",
    "Variance",
    "WindowStore",
    "check_laws",
    "key_value_store",
    "last_position",
    "open",
    "plan",
    "session_store",
    "sliding_store",
    "stream",
    "suppression_store",
    "until_time_limit",
    "until_window_closes",
    "window_store",
]
