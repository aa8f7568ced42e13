"""Write: makes the checkpoint of a version from the previous one and what changed since.

The work needs no live store: changed entries were captured by their owners, unchanged blocks come from the previous file. So
it may run in a background thread. The file is written beside its final place, synced, summed and renamed: a crash anywhere leaves the
previous checkpoint in charge. When little changed the previous file is copied by the kernel and one transaction changes
it; when more than a third did, it is written whole.
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from changelog.codec import pack
from changelog.errors import HybridStoreError
from changelog.files import REAL_FILES, Files
from changelog.segment import Position

from . import page_sums
from .block import (
    BLOCK_BYTES,
    BLOCK_RECORDS,
    BlockEntry,
    BucketChange,
    Columns,
    StoreCapture,
    entry_of,
    halve,
    lay_over,
    merge,
    pack_block,
    split,
)
from .checkpoint import (
    META_KEY,
    CheckpointMeta,
    CheckpointReader,
    StoreRecord,
    block_key,
    checkpoint_name,
    damage_path,
    directory_key,
    encode_meta,
    seal,
)
from .errors import CheckpointError

_WHOLE_SHARE: Final = 3  # written whole when more than 1/3 of the blocks (by bytes) changed
_PAGE: Final = 4096


class CheckpointReport(NamedTuple):
    """What writing a checkpoint did: version, whether it was written whole, blocks packed, bytes packed, file size, seconds."""

    version: int
    whole: bool
    blocks_packed: int
    bytes_packed: int
    file_bytes: int
    seconds: float


@dataclass(slots=True)
class _StorePlan:
    capture: StoreCapture
    entries: list[BlockEntry]
    kept: set[int]
    packed: dict[int, bytes]
    gone: list[int]
    next_block: int


def _plan(capture: StoreCapture, previous: CheckpointReader | None, limit: int) -> _StorePlan:
    number = capture.number
    old: list[BlockEntry] = []
    next_block = 1
    if previous is not None:
        for record in previous.meta.stores:
            if record.number == number:
                old, next_block = previous.directory(number), record.next_block
    by_bucket: dict[int, list[BlockEntry]] = {}
    for entry in old:
        by_bucket.setdefault(entry.bucket, []).append(entry)
    plan = _StorePlan(capture, [], set(), {}, [], next_block)

    def add(bucket: int, columns: Columns) -> None:
        pieces = split(columns, limit)[::-1]
        while pieces:
            piece = pieces.pop()
            data, content_hash = pack_block(piece)
            if len(data) > BLOCK_BYTES and len(piece.keys) > 1:
                pieces += halve(piece)[::-1]
                continue
            plan.entries.append(entry_of(plan.next_block, bucket, piece, len(data), content_hash))
            plan.packed[plan.next_block] = data
            plan.next_block += 1

    for bucket in sorted(by_bucket.keys() | capture.changed.keys()):
        entries = []
        for entry in by_bucket.get(bucket, []):
            if 0 <= entry.high <= capture.expired_through:
                plan.gone.append(entry.block)
            else:
                entries.append(entry)
        change = capture.changed.get(bucket)
        if change is None:
            if bucket in capture.dropped:
                plan.gone += [entry.block for entry in entries]
            else:
                plan.entries += entries
                plan.kept.update(entry.block for entry in entries)
            continue
        if change.fresh or not entries:
            plan.gone += [entry.block for entry in entries]
            add(bucket, _laid_over(change.columns, change.over, capture))
            continue
        assert previous is not None
        for entry, part, removed, over in _by_block(entries, change):
            if not len(part) and not removed and not over:
                plan.entries.append(entry)
                plan.kept.add(entry.block)
            else:
                plan.gone.append(entry.block)
                merged = merge(previous.block(number, entry.block), part, removed)
                add(bucket, _laid_over(merged, over, capture))
    return plan


def _laid_over(columns: Columns, over: Columns | None, capture: StoreCapture) -> Columns:
    if not over:
        return columns
    assert capture.combine is not None
    return lay_over(columns, over, capture.combine)


def _by_block(
    entries: list[BlockEntry], change: BucketChange
) -> Iterator[tuple[BlockEntry, Columns, set[Any], Columns | None]]:
    """Share a bucket's changes out to the blocks whose key range they fall in (before the first: the first)."""
    firsts = [entry.first for entry in entries]
    removed: list[set[Any]] = [set() for _ in entries]
    for key in change.removed:
        removed[max(0, bisect_right(firsts, key) - 1)].add(key)
    over = [None] * len(entries) if change.over is None else _shares(firsts, change.over)
    return zip(entries, _shares(firsts, change.columns), removed, over, strict=True)


def _shares(firsts: list[Any], columns: Columns) -> list[Columns]:
    owners = [max(0, bisect_right(firsts, key) - 1) for key in columns.keys]
    result, at, record = [], 0, 0
    for i in range(len(firsts)):
        start, first_record = at, record
        while at < len(owners) and owners[at] == i:
            record += 1 if columns.counts is None else columns.counts[at]
            at += 1
        part = Columns(
            columns.keys[start:at],
            None if columns.counts is None else columns.counts[start:at],
            tuple(column[first_record:record] for column in columns.ints),
            columns.values[first_record:record],
        )
        result.append(part)
    return result


def _open(path: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(str(path), subdir=False, lock=False, readahead=False, max_dbs=0, map_size=map_bytes, lib_version=0)


def write_checkpoint(
    directory: Path,
    *,
    store_id: bytes,
    version: int,
    digest: bytes,
    position: Position,
    settings: dict[str, Any],
    captures: list[StoreCapture],
    previous: CheckpointReader | None,
    block_records: int = BLOCK_RECORDS,
    files: Files = REAL_FILES,
) -> CheckpointReport:
    """Write the checkpoint of `version` into `directory` and return what was done.

    `previous` must be the checkpoint since which the captures collected their changes, or None when they hold everything.
    Raises OSError or CheckpointError; the directory then holds no new checkpoint. O(changed blocks) packing, O(file) kernel copy.
    """
    started = time.perf_counter()
    plans = [_plan(capture, previous, block_records) for capture in captures]
    packed_bytes = sum(len(data) for plan in plans for data in plan.packed.values())
    total_bytes = sum(entry.size for plan in plans for entry in plan.entries)
    whole = previous is None or packed_bytes * _WHOLE_SHARE > total_bytes or previous.size > 4 * total_bytes + (1 << 20)
    stores = [
        StoreRecord(
            plan.capture.number,
            plan.capture.name,
            plan.capture.kind,
            plan.capture.parameters,
            plan.capture.state,
            plan.next_block,
            sum(entry.records for entry in plan.entries),
            sum(entry.size for entry in plan.entries),
        )
        for plan in plans
    ]
    meta = CheckpointMeta(store_id, version, digest, position, max(0, int(time.time() * 1000)), settings, stores)
    records = {META_KEY: encode_meta(meta)}
    for plan in plans:
        records[directory_key(plan.capture.number)] = seal(pack([list(entry) for entry in plan.entries]))
    final = directory / checkpoint_name(version)
    temporary = directory / f".{version}.{uuid.uuid4().hex}.tmp"
    files.mkdir(directory)
    files.remove(temporary)
    try:
        whole = whole or not _copy(temporary, previous, files)
        _write_file(temporary, whole, previous, plans, records, files)
        files.sync_path(temporary)
        _publish_sums(temporary, final, files)
        files.publish(temporary, final)
        if damage_path(final).exists():
            files.remove(damage_path(final))
    except (lmdb.Error, OSError, HybridStoreError) as error:
        files.remove(temporary)
        if isinstance(error, lmdb.Error):
            raise CheckpointError(f"{final}: LMDB could not write it: {error}") from error
        raise
    return CheckpointReport(
        version,
        whole,
        sum(len(plan.packed) for plan in plans),
        packed_bytes,
        final.stat().st_size,
        time.perf_counter() - started,
    )


def _copy(path: Path, previous: CheckpointReader | None, files: Files) -> bool:
    """Copy the previous file to change it; False when LMDB could not be trusted with it, though its blocks may be sound."""
    assert previous is not None
    files.copy(previous.path, path)
    # LMDB trusts what it finds: structure must be what was written, or the previous file cannot even be read.
    sums = page_sums.sums_path(previous.path)
    page_sums.verify(path, companion=sums)
    if next(page_sums.faults(path, companion=sums, heads=True), None) is None:
        return True
    files.remove(path)
    return False


def _write_file(
    path: Path,
    whole: bool,
    previous: CheckpointReader | None,
    plans: list[_StorePlan],
    records: dict[bytes, bytes],
    files: Files,
) -> None:
    base = path.stat().st_size if not whole else 0
    sizes = [len(data) for data in records.values()] + [len(data) for plan in plans for data in plan.packed.values()]
    if whole:
        sizes += [entry.size for plan in plans for entry in plan.entries]
    # Planned so that LMDB can never run out of map: every record in pages of its own, twice, and room for its trees.
    map_bytes = base + 2 * sum((size // _PAGE + 3) * _PAGE for size in sizes) + (16 << 20)
    if whole:
        files.reserve(path)
    environment = _open(path, map_bytes)
    try:
        with environment.begin(write=True) as transaction:
            if not whole:
                for plan in plans:
                    for block in plan.gone:
                        transaction.delete(block_key(plan.capture.number, block))
            for plan in plans:
                number = plan.capture.number
                if whole:
                    for block in sorted(plan.kept | plan.packed.keys()):
                        packed = plan.packed.get(block)
                        if packed is None:
                            assert previous is not None
                            transaction.put(block_key(number, block), previous.sound_block(number, block))
                        else:
                            transaction.put(block_key(number, block), packed)
                else:
                    assert previous is not None
                    # The kernel copies bytes, not their soundness: damage must not outlive the file it is found in.
                    for block in plan.kept:
                        previous.sound_block(number, block)
                    for block, data in plan.packed.items():
                        transaction.put(block_key(number, block), data)
            for key, data in records.items():
                transaction.put(key, data)
    finally:
        environment.close()


def _publish_sums(temporary: Path, final: Path, files: Files) -> None:
    """The page sums get their name before the checkpoint does: a checkpoint with no sums would not be trusted."""
    companion = page_sums.sums_path(final)
    scratch = temporary.with_suffix(".sum.tmp")
    files.remove(scratch)
    file = files.create(scratch)
    try:
        file.write(page_sums.compute(temporary))
        file.sync()
    finally:
        file.close()
    files.publish(scratch, companion)
