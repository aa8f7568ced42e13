"""Attach: stores become those of a checkpoint. Only top records are read; pages and blocks stay cold until they are
touched.
"""

from __future__ import annotations

from .apply import Host
from .checkpoint import CheckpointReader
from .directory import Directory


def attach(reader: CheckpointReader, host: Host) -> dict[int, Directory]:
    """Make the settings and stores of `host` those of a checkpoint; return each store's directory by store number.

    What `host` had before is forgotten. Raises CorruptCheckpointError for a directory that is damaged, and what
    `Host.define` raises. O(pages).
    """
    host.reset()
    host.settings.update(reader.meta.settings)
    directories: dict[int, Directory] = {}
    for record in reader.meta.stores:
        directory = directories[record.number] = reader.directory(record.number)
        host.define(record.number, record.name, record.kind, record.parameters).attach(directory, record.state)
    return directories
