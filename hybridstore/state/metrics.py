"""Metrics: the numbers of an open state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metrics:
    """A picture of a store's numbers: sizes in bytes, times in seconds unless named `_ms`, counters since the store was
    opened.

    Of the last checkpoint that was written since: how many packs it names, how much of their bytes it refers to, and
    how many bytes were written for each byte of blocks that changed. None before there is one.

    >>> numbers = hs.open("state").metrics()
    >>> numbers.version, numbers.cold_blocks, numbers.checkpoint_version
    (0, 0, None)
    """

    version: int
    records: dict[str, int]
    dropped: dict[str, dict[str, int]]
    stream_time_ms: dict[str, int]
    cold_blocks: int
    changelog_bytes_written: int
    bytes_since_checkpoint: int
    records_since_checkpoint: int
    checkpoint_version: int | None
    checkpoints_written: int
    last_checkpoint_seconds: float | None
    last_checkpoint_pause_seconds: float | None
    failed_checkpoints: int
    failed_prunes: int
    estimated_restore_seconds: float
    packs: int | None = None
    live_share: float | None = None
    write_amplification: float | None = None
