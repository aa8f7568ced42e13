"""hybridstore: fault-tolerant state for stream processing in Python, at memory speed.

    import hybridstore as hs

    with hs.open("state/") as s:
        clicks = s.window("clicks", retention="1 hour")
        clicks.put("alice", 1, ts=1_700_000_000_000)
        s.commit()

Everything public is imported from here, and for Spark from `hybridstore.spark`.
"""

from __future__ import annotations

import changelog as _changelog
import recovery as _recovery

for _package in (_changelog, _recovery):
    if not getattr(_package, "HYBRIDSTORE", False):
        raise ImportError(
            f"another package named {_package.__name__!r} ({_package.__file__}) hides hybridstore's; they cannot share an environment"
        )

from recovery.restore import RestoreReport  # noqa: E402  (after the check above, which must come first)

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
from .policy import CheckpointPolicy  # noqa: E402
from .store import HybridStore, Metrics  # noqa: E402
from .store import open_store as open  # noqa: E402
from .stores.key_value import KeyValueStore  # noqa: E402
from .stores.window import WindowStore  # noqa: E402

__all__ = [
    "BufferFullError",
    "ChangelogError",
    "ChangelogGapError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointPolicy",
    "CorruptCheckpointError",
    "CorruptFrameError",
    "DigestMismatchError",
    "ForeignFileError",
    "HybridStore",
    "HybridStoreError",
    "KeyValueStore",
    "Metrics",
    "MutatedValueError",
    "MutationError",
    "RestoreError",
    "RestoreReport",
    "StateDirectoryLockedError",
    "StoreClosedError",
    "StorePoisonedError",
    "UnsupportedVersionError",
    "WindowStore",
    "open",
]
