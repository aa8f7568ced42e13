"""hybridstore: fault-tolerant state for stream processing in Python, at memory speed.

    import hybridstore as hs

    with hs.open("state/") as s:
        clicks = s.window("clicks", retention="1 hour")
        clicks.put("alice", 1, ts=1_700_000_000_000)
        s.commit()

Everything public is imported from here, and for Spark from `hybridstore.spark`.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

# Looked at before it is imported: a foreign package may fail on its own imports and hide the reason.
for _name in ("changelog", "recovery"):
    _spec = _find_spec(_name)
    _origin = _spec.origin if _spec else None
    if _origin is None or (_Path(_origin).parent.parent != _Path(__file__).parent.parent):
        raise ImportError(
            f"another package named {_name!r} ({_origin}) hides hybridstore's; they cannot share an environment"
        )

if _typing.TYPE_CHECKING:
    from recovery.plan import RestorePlan
    from recovery.restore import RestoreReport

    from .aggregation import (
        Aggregator,
        Collect,
        CollectSet,
        Count,
        CountDistinct,
        First,
        FirstBy,
        HoppingWindows,
        Last,
        LastBy,
        Max,
        MaxBy,
        Mean,
        Min,
        MinBy,
        Reduce,
        SessionWindows,
        SlidingWindows,
        Sum,
        TopK,
        TumblingWindows,
        Variance,
        check_laws,
    )
    from .errors import (
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
        StateDirectoryError,
        StateDirectoryLockedError,
        StorageUnreachableError,
        StoreClosedError,
        StoreInUseError,
        StorePoisonedError,
        UnsupportedVersionError,
        UpgradeError,
    )
    from .importing.door import import_spark
    from .importing.frames import backfill, initial_state
    from .importing.report import ImportRefusedError, ImportReport
    from .inspection import inspect
    from .rescaling.door import rescale
    from .rescaling.report import RescaleError, RescaleReport
    from .serving.server import serve
    from .state.changes import Change
    from .state.directory import HybridStore
    from .state.directory import open_store as open
    from .state.metrics import Metrics
    from .state.policy import CheckpointPolicy
    from .state.restart import plan
    from .stores.key_value import KeyValueStore
    from .stores.session import SessionStore
    from .stores.sliding import SlidingStore
    from .stores.suppression import SuppressionBuffer
    from .stores.suppression_bounds import Suppression, until_time_limit, until_window_closes
    from .stores.window import WindowStore
    from .topologies.declare import Topology, stream
    from .topology.declared_stores import key_value_store, session_store, sliding_store, suppression_store, window_store
    from .topology.engine import Engine
    from .topology.run_state import last_position
    from .topology.timers import KeyTimers, Timer

# Imported when first asked for, so that a command that only looks, or a job that only opens a store, does not pay for
# the rest.
_HOME = {
    "Aggregator": (".aggregation", "Aggregator"),
    "BufferFullError": (".errors", "BufferFullError"),
    "Change": (".state.changes", "Change"),
    "ChangelogError": (".errors", "ChangelogError"),
    "ChangelogGapError": (".errors", "ChangelogGapError"),
    "CheckpointError": (".errors", "CheckpointError"),
    "CheckpointMismatchError": (".errors", "CheckpointMismatchError"),
    "CheckpointPolicy": (".state.policy", "CheckpointPolicy"),
    "Collect": (".aggregation", "Collect"),
    "CollectSet": (".aggregation", "CollectSet"),
    "CorruptCheckpointError": (".errors", "CorruptCheckpointError"),
    "CorruptFrameError": (".errors", "CorruptFrameError"),
    "Count": (".aggregation", "Count"),
    "CountDistinct": (".aggregation", "CountDistinct"),
    "DigestMismatchError": (".errors", "DigestMismatchError"),
    "Engine": (".topology.engine", "Engine"),
    "First": (".aggregation", "First"),
    "FirstBy": (".aggregation", "FirstBy"),
    "ForeignFileError": (".errors", "ForeignFileError"),
    "HoppingWindows": (".aggregation", "HoppingWindows"),
    "HybridStore": (".state.directory", "HybridStore"),
    "HybridStoreError": (".errors", "HybridStoreError"),
    "KeyValueStore": (".stores.key_value", "KeyValueStore"),
    "Last": (".aggregation", "Last"),
    "LastBy": (".aggregation", "LastBy"),
    "Max": (".aggregation", "Max"),
    "MaxBy": (".aggregation", "MaxBy"),
    "Mean": (".aggregation", "Mean"),
    "Metrics": (".state.metrics", "Metrics"),
    "Min": (".aggregation", "Min"),
    "MinBy": (".aggregation", "MinBy"),
    "MutatedValueError": (".errors", "MutatedValueError"),
    "MutationError": (".errors", "MutationError"),
    "Reduce": (".aggregation", "Reduce"),
    "RescaleError": (".rescaling.report", "RescaleError"),
    "RescaleReport": (".rescaling.report", "RescaleReport"),
    "RestoreError": (".errors", "RestoreError"),
    "RestorePlan": ("recovery.plan", "RestorePlan"),
    "RestoreReport": ("recovery.restore", "RestoreReport"),
    "SessionStore": (".stores.session", "SessionStore"),
    "SessionWindows": (".aggregation", "SessionWindows"),
    "SlidingStore": (".stores.sliding", "SlidingStore"),
    "SlidingWindows": (".aggregation", "SlidingWindows"),
    "StateDirectoryError": (".errors", "StateDirectoryError"),
    "StateDirectoryLockedError": (".errors", "StateDirectoryLockedError"),
    "StorageUnreachableError": (".errors", "StorageUnreachableError"),
    "StoreClosedError": (".errors", "StoreClosedError"),
    "StoreInUseError": (".errors", "StoreInUseError"),
    "StorePoisonedError": (".errors", "StorePoisonedError"),
    "Sum": (".aggregation", "Sum"),
    "Suppression": (".stores.suppression_bounds", "Suppression"),
    "SuppressionBuffer": (".stores.suppression", "SuppressionBuffer"),
    "Table": (".topology.joins.declared", "Table"),
    "TopK": (".aggregation", "TopK"),
    "Topology": (".topologies.declare", "Topology"),
    "TumblingWindows": (".aggregation", "TumblingWindows"),
    "UnsupportedVersionError": (".errors", "UnsupportedVersionError"),
    "UpgradeError": (".errors", "UpgradeError"),
    "Variance": (".aggregation", "Variance"),
    "VersionedStore": (".stores.versioned", "VersionedStore"),
    "WindowStore": (".stores.window", "WindowStore"),
    "backfill": (".importing.frames", "backfill"),
    "check_laws": (".aggregation", "check_laws"),
    "import_spark": (".importing.door", "import_spark"),
    "initial_state": (".importing.frames", "initial_state"),
    "inspect": (".inspection", "inspect"),
    "key_value_store": (".topology.declared_stores", "key_value_store"),
    "last_position": (".topology.run_state", "last_position"),
    "open": (".state.directory", "open_store"),
    "plan": (".state.restart", "plan"),
    "rescale": (".rescaling.door", "rescale"),
    "serve": (".serving.server", "serve"),
    "session_store": (".topology.declared_stores", "session_store"),
    "sliding_store": (".topology.declared_stores", "sliding_store"),
    "ImportRefusedError": (".importing.report", "ImportRefusedError"),
    "ImportReport": (".importing.report", "ImportReport"),
    "KeyTimers": (".topology.timers", "KeyTimers"),
    "Timer": (".topology.timers", "Timer"),
    "stream": (".topologies.declare", "stream"),
    "suppression_store": (".topology.declared_stores", "suppression_store"),
    "table": (".topology.joins.declared", "table"),
    "until_time_limit": (".stores.suppression_bounds", "until_time_limit"),
    "until_window_closes": (".stores.suppression_bounds", "until_window_closes"),
    "window_store": (".topology.declared_stores", "window_store"),
}


def __getattr__(name: str) -> _typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(home[0], __name__), home[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Aggregator",
    "BufferFullError",
    "Change",
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
    "CountDistinct",
    "DigestMismatchError",
    "Engine",
    "First",
    "FirstBy",
    "ForeignFileError",
    "HoppingWindows",
    "HybridStore",
    "HybridStoreError",
    "ImportRefusedError",
    "ImportReport",
    "KeyTimers",
    "KeyValueStore",
    "Last",
    "LastBy",
    "Max",
    "MaxBy",
    "Mean",
    "Metrics",
    "Min",
    "MinBy",
    "MutatedValueError",
    "MutationError",
    "Reduce",
    "RescaleError",
    "RescaleReport",
    "RestoreError",
    "RestorePlan",
    "RestoreReport",
    "SessionStore",
    "SessionWindows",
    "SlidingStore",
    "SlidingWindows",
    "StateDirectoryError",
    "StateDirectoryLockedError",
    "StorageUnreachableError",
    "StoreClosedError",
    "StoreInUseError",
    "StorePoisonedError",
    "Sum",
    "Suppression",
    "SuppressionBuffer",
    "Table",
    "Timer",
    "TopK",
    "Topology",
    "TumblingWindows",
    "UnsupportedVersionError",
    "UpgradeError",
    "Variance",
    "VersionedStore",
    "WindowStore",
    "backfill",
    "check_laws",
    "import_spark",
    "initial_state",
    "inspect",
    "key_value_store",
    "last_position",
    "open",
    "plan",
    "rescale",
    "serve",
    "session_store",
    "sliding_store",
    "stream",
    "suppression_store",
    "table",
    "until_time_limit",
    "until_window_closes",
    "window_store",
]
