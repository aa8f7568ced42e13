"""Metrics: the numbers of an open state."""

from __future__ import annotations

from dataclasses import dataclass

from .checkpointer import Checkpointer
from .group import StoreGroup
from .memory import Memory


@dataclass(frozen=True, slots=True)
class Metrics:
    """A picture of a store's numbers: sizes in bytes, times in ms, counters since the store was opened.

    Of the last checkpoint that was written since: how many packs it names, how much of their bytes it refers to, and
    how many bytes were written for each byte of blocks that changed. None before the first. `*_writer_process` say how
    many of `checkpoints_written` and `failed_checkpoints` are of the process that makes large checkpoints.

    The fields from `memory_bytes` on say what is in memory; docs/metrics.md has them one by one. None without a
    `memory_limit`, when reads are not counted.

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
    last_checkpoint_ms: float | None
    last_checkpoint_pause_ms: float | None
    failed_checkpoints: int
    failed_clearings: int
    restore_estimate_ms: float
    packs: int | None = None
    live_share: float | None = None
    write_amplification: float | None = None
    checkpoints_by_writer_process: int = 0
    failures_of_writer_process: int = 0
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    records_in_memory: int | None = None
    dirty_keys: int | None = None
    dirty_bytes: int | None = None
    hits: int | None = None
    misses: int | None = None
    freed_records: int | None = None
    freed_bytes: int | None = None
    blocks_read: int | None = None
    tables_read: int | None = None
    bytes_read: int | None = None
    read_amplification: float | None = None


def metrics_of(group: StoreGroup, checkpoints: Checkpointer, memory: Memory, written: int, *, anew: bool) -> Metrics:
    """Return the numbers of an open state, whose changelog has `written` bytes since it was opened; `anew` as
    `Memory.numbers`. O(blocks).
    """
    stores = group.stores.values()
    behind, last = checkpoints.behind, checkpoints.last
    return Metrics(
        version=group.version,
        records={store.name: store.num_records for store in stores},
        dropped={store.name: dict(store.dropped) for store in stores},
        stream_time_ms={store.name: store.stream_time for store in stores},
        cold_blocks=sum(store.cold_blocks for store in stores),
        changelog_bytes_written=written,
        bytes_since_checkpoint=behind.bytes,
        records_since_checkpoint=behind.records,
        checkpoint_version=checkpoints.version or None,
        checkpoints_written=checkpoints.written,
        last_checkpoint_ms=None if last is None else last.seconds * 1000,
        last_checkpoint_pause_ms=checkpoints.pause_ms,
        failed_checkpoints=checkpoints.failed,
        failed_clearings=checkpoints.failed_clearings,
        restore_estimate_ms=checkpoints.estimate(behind) * 1000,
        packs=None if last is None else last.packs,
        live_share=None if last is None else last.live_share,
        write_amplification=None if last is None else last.write_amplification,
        checkpoints_by_writer_process=checkpoints.written_beside,
        failures_of_writer_process=checkpoints.failed_beside,
        **memory.numbers(anew=anew),
    )
