"""Long tail: how much memory the rows take that a restart replays, and when they are too many for a limit.

A checkpoint begins when these rows, by their number and bytes in the log, would take a quarter of the limit, of a shard
of Spark's, too, and a commit waits by half of their share as by that of memory. A restart that finds more than fits
makes checkpoints of pieces (`in_place`).
"""

from __future__ import annotations

from typing import Final

from .memory_budget import usable
from .policy import Logged

# A row of a replay takes about so many bytes, and so many for each byte of the log.
_ROW_BYTES: Final = 80
_BYTE_BYTES: Final = 2
# A checkpoint begins when the rows that a restart would have in memory take this share of the limit.
TAIL_BEGINS: Final = 1 / 4
# Commits wait by the part of so many times the limit: a restart that finds more than the limit replays it in pieces.
TAIL_MOST: Final = 2
# A restart has room for the rows that other states leave of the limit, and for so many bytes of them: a checkpoint of
# fewer is not worth its time. It replays more of them in pieces of this share of the room.
LEAST_ROOM: Final = 1 << 20
TAIL_PIECE: Final = 1 / 2


def tail_bytes(records: int, size: int) -> int:
    """Return about how many bytes the rows of a tail take, of so many records and bytes of the log, when a restart has
    them in memory. O(1).
    """
    return _ROW_BYTES * records + _BYTE_BYTES * size


def tail_over(room: float, records: int, size: int) -> bool:
    """Return whether such a tail takes more than `room` (bytes). O(1)."""
    return tail_bytes(records, size) > room


def tail_share(tail: Logged, limit: int) -> float:
    """Return the share of the records' part of a limit that such a tail takes. O(1)."""
    return tail_bytes(tail.records, tail.bytes) / max(1, usable(limit))


def is_long(tail: Logged, limit: int | None) -> bool:
    """Return whether a shard needs a checkpoint because of its tail, where a process loads one shard after the other
    under a limit. O(1).
    """
    return limit is not None and tail_over(max(TAIL_BEGINS * usable(limit), LEAST_ROOM), tail.records, tail.bytes)
