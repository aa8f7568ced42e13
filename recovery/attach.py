"""Attach: stores become those of a checkpoint. Only top records are read; pages and blocks stay cold until they are
touched. `ladder.climb` alone calls it.
"""

from __future__ import annotations

from .apply import Host
from .checkpoint import CheckpointReader


def attach(reader: CheckpointReader, host: Host) -> None:
    """Make the settings and stores of `host` those of a checkpoint. What `host` had before is forgotten.

    Raises CorruptCheckpointError for a directory that is damaged, and what `Host.define` raises. O(pages).
    """
    host.reset()
    host.settings.update(reader.meta.settings)
    for record in reader.meta.stores:
        store = host.define(record.number, record.name, record.kind, record.parameters)
        store.attach(reader.directory(record.number), record.state)
