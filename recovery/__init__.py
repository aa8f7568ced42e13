"""How state survives: checkpoints in LMDB, restore from a checkpoint and the changelog behind it, verify, prune.

This package knows blocks and mutations, not the kinds of stores.
"""

from __future__ import annotations

# A marker that hybridstore looks for, to tell this package from a foreign one of the same name.
HYBRIDSTORE = True
