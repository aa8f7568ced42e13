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
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

from .faces import lazy as _lazy

# Looked at before it is imported: a foreign package may fail on its own imports and hide the reason.
for _name in ("changelog", "recovery"):
    _spec = _find_spec(_name)
    _origin = _spec.origin if _spec else None
    if _origin is None or (_Path(_origin).parent.parent != _Path(__file__).parent.parent):
        raise ImportError(
            f"another package named {_name!r} ({_origin}) hides hybridstore's; they cannot share an environment "
            "(install hybridstore into an environment of its own)"
        )

# Behind the look for foreign packages; what it imports is small.
from . import errors as errors  # noqa: E402

if _typing.TYPE_CHECKING:
    from changelog.bucket import Bucket as Bucket
    from recovery.plan import RestorePlan as RestorePlan
    from recovery.restore import RestoreReport as RestoreReport

    from .aggregation import Aggregator as Aggregator
    from .aggregation import Collect as Collect
    from .aggregation import CollectSet as CollectSet
    from .aggregation import Count as Count
    from .aggregation import CountDistinct as CountDistinct
    from .aggregation import First as First
    from .aggregation import FirstBy as FirstBy
    from .aggregation import HoppingWindows as HoppingWindows
    from .aggregation import KafkaSlidingWindows as KafkaSlidingWindows
    from .aggregation import Last as Last
    from .aggregation import LastBy as LastBy
    from .aggregation import Max as Max
    from .aggregation import MaxBy as MaxBy
    from .aggregation import Mean as Mean
    from .aggregation import Min as Min
    from .aggregation import MinBy as MinBy
    from .aggregation import Reduce as Reduce
    from .aggregation import SessionWindows as SessionWindows
    from .aggregation import SlidingWindows as SlidingWindows
    from .aggregation import Sum as Sum
    from .aggregation import TopK as TopK
    from .aggregation import TumblingWindows as TumblingWindows
    from .aggregation import Variance as Variance
    from .aggregation import check_laws as check_laws
    from .errors import BufferFullError as BufferFullError
    from .errors import DamageError as DamageError
    from .errors import HybridStoreError as HybridStoreError
    from .errors import ProgramMismatchError as ProgramMismatchError
    from .errors import StateClosedError as StateClosedError
    from .errors import StateLockedError as StateLockedError
    from .errors import StatePoisonedError as StatePoisonedError
    from .errors import StorageUnreachableError as StorageUnreachableError
    from .errors import UpgradeError as UpgradeError
    from .importing.api import import_spark as import_spark
    from .importing.frames import backfill as backfill
    from .importing.frames import initial_state as initial_state
    from .importing.report import ImportRefusedError as ImportRefusedError
    from .importing.report import ImportReport as ImportReport
    from .inspection import inspect as inspect
    from .reading.pins import Pin as Pin
    from .rescaling.api import rescale as rescale
    from .rescaling.report import RescaleError as RescaleError
    from .rescaling.report import RescaleReport as RescaleReport
    from .rewinding.bisect import Bisected as Bisected
    from .rewinding.bisect import bisect as bisect
    from .rewinding.erase import Erased as Erased
    from .rewinding.erase import Proof as Proof
    from .rewinding.erase import erase as erase
    from .rewinding.erase import prove as prove
    from .rewinding.fork import fork as fork
    from .rewinding.pins import pin as pin
    from .rewinding.pins import pins as pins
    from .rewinding.unpin import unpin as unpin
    from .serving.server import serve as serve
    from .state.changes import Difference as Difference
    from .state.directory import State as State
    from .state.directory import open_store as _open_store
    from .state.metrics import Metrics as Metrics
    from .state.policy import CheckpointPolicy as CheckpointPolicy
    from .stores.key_value import KeyValueStore as KeyValueStore
    from .stores.session import SessionStore as SessionStore
    from .stores.sliding import SlidingStore as SlidingStore
    from .stores.suppression import SuppressionBuffer as SuppressionBuffer
    from .stores.versioned import VersionedStore as VersionedStore
    from .stores.window import WindowStore as WindowStore
    from .topologies.declare import Topology as Topology
    from .topologies.declare import stream as stream
    from .topology.declared_stores import key_value_store as key_value_store
    from .topology.declared_stores import session_store as session_store
    from .topology.declared_stores import sliding_store as sliding_store
    from .topology.declared_stores import suppression_store as suppression_store
    from .topology.declared_stores import window_store as window_store
    from .topology.engine import Engine as Engine
    from .topology.joins.declared import Table as Table
    from .topology.joins.declared import table as table
    from .topology.timers import KeyTimers as KeyTimers
    from .topology.timers import Timer as Timer

    open = _open_store

__getattr__, __dir__, __all__ = _lazy(__name__)
