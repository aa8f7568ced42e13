"""Attach: stores become those of a checkpoint, cold: only directories are read, blocks when they are touched."""

from __future__ import annotations

from .apply import Host
from .block import BlockEntry
from .checkpoint import CheckpointReader


def attach(reader: CheckpointReader, host: Host) -> dict[int, list[BlockEntry]]:
    """Make the settings and stores of `host` those of a checkpoint; return each store's directory by store number.

    What `host` had before is forgotten. Raises CorruptCheckpointError for a directory that is damaged, and what
    `Host.define` raises. O(blocks).
    """
    host.reset()
    host.settings.update(reader.meta.settings)
    directories: dict[int, list[BlockEntry]] = {}
    for record in reader.meta.stores:
        entries = directories[record.number] = reader.directory(record.number)
        store = host.define(record.number, record.name, record.kind, record.parameters)
        store.attach(reader.loader(record.number), record.state, entries)
    return directories
