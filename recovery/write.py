"""Write: makes the checkpoint of a version from the one before it and what changed since.

The work needs no live store: changed records were captured by their owners, and older blocks are in the checkpoint
before. So a background thread can do it. What changed of a block is written into a new pack, as a layer over the block
or, when the layers have become large, as a new block; then the index into a new file. Both names are new, so that after
a crash anywhere the checkpoint before is still the newest one. Unchanged blocks are not read: the new index names the
packs that hold them. `compaction` decides which packs are rewritten.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from changelog.codec import pack as packed
from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import Storage

from . import index
from .block import (
    BLOCK_BYTES,
    BlockEntry,
    BucketChange,
    Columns,
    Place,
    StoreCapture,
    content_hash,
    entry_of,
    halve,
    lay_over,
    layer_of,
    merge,
    pack_block,
    split,
    with_layer,
)
from .checkpoint import CheckpointMeta, CheckpointReader, StoreRecord, encode_meta, index_hash
from .compaction import SIZES, Item, Sizes, live_bytes, packs_to_rewrite
from .directory import PageEntry, cut, encode_page, encode_top, page_entry
from .errors import CheckpointError
from .layout import CheckpointName
from .pack import PAGE, PackRecord, PackWriter
from .table import MOST_KEYS, pack_with_table

# So many layers of a block of about one size become one.
LAYERS: Final = 8
# A block is rewritten when its layers have one of so many of the bytes of its base, or of its keys.
LAYERED_SHARE: Final = 2
# Packs records as a block: (its bytes, the hash of its content).
PackBlock: TypeAlias = Callable[[Columns], tuple[bytes, bytes]]
# A block has at least so many times the bytes of its first and last key, where keys are large.
_BOUNDS: Final = 16


class CheckpointReport(NamedTuple):
    """The numbers of a written checkpoint. Sizes in bytes, times in seconds.

    `whole`: no block of an older checkpoint is part of this checkpoint. `bytes_packed` is the size of the blocks that
    changed, `bytes_copied` that of unchanged blocks that were rewritten because their packs were small or sparse,
    `bytes_written` that of all new files: packs and index. `packs` is how many packs the index names, `live_share` the
    share of their bytes that the index refers to.
    """

    name: str
    version: int
    whole: bool
    blocks_packed: int
    bytes_packed: int
    bytes_copied: int
    bytes_written: int
    index_bytes: int
    packs: int
    live_share: float
    seconds: float

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte of blocks that changed."""
        return self.bytes_written / max(1, self.bytes_packed)


@dataclass(slots=True)
class _StorePlan:
    """The plan for the blocks of a store: pages that stay, and lines to be written into pages, in order."""

    capture: StoreCapture
    items: list[Item]
    next_block: int
    packed: int = 0
    packed_bytes: int = 0
    kept: bool = False


class _Planner:
    """Decides for one store which pages and blocks stay, and packs the changed records. O(changed blocks + pages)."""

    def __init__(
        self,
        capture: StoreCapture,
        previous: CheckpointReader | None,
        writer: PackWriter,
        limit: int,
        pack_records: PackBlock,
    ) -> None:
        self._capture = capture
        self._previous = previous
        self._writer = writer
        self._limit = limit
        self._pack_block = pack_records
        self._plan = _StorePlan(capture, [], 1)

    def plan(self) -> _StorePlan:
        capture, plan = self._capture, self._plan
        by_bucket: dict[int, list[Item]] = {}
        if self._previous is not None:
            for record in self._previous.meta.stores:
                if record.number == capture.number:
                    plan.next_block = record.next_block
                    for page in self._previous.directory(capture.number).pages:
                        by_bucket.setdefault(page.bucket, []).extend(self._live(page))
        for bucket in sorted(by_bucket.keys() | capture.changed.keys()):
            items = by_bucket.get(bucket, [])
            change = capture.changed.get(bucket)
            if change is None:
                if bucket not in capture.dropped:
                    self._keep(items)
            elif change.fresh or not items:
                self._rewrite(bucket, self._laid_over(change.columns, change.over))
            else:
                self._change(bucket, items, change)
        return plan

    def _live(self, page: PageEntry) -> list[Item]:
        """Return a page without its expired blocks: the page itself if none has expired."""
        through = self._capture.expired_through
        if not 0 <= page.until <= through:
            # -1 is no time: a page may hold blocks without any
            return [page]
        if 0 <= page.high <= through:
            return []
        lines: list[BlockEntry] = [line for line in self._open(page) if not 0 <= line.high <= through]
        return [lines] if lines else []

    def _open(self, page: PageEntry) -> list[BlockEntry]:
        assert self._previous is not None
        return self._previous.page(self._capture.number, page)

    def _keep(self, items: Sequence[Item]) -> None:
        self._plan.items += items
        self._plan.kept = self._plan.kept or bool(items)

    def _change(self, bucket: int, items: list[Item], change: BucketChange) -> None:
        assert self._previous is not None
        for item, part in _shares(items, change):
            if part is None:
                self._keep([item])
                continue
            lines = self._open(item) if isinstance(item, PageEntry) else item
            for line, changed in _shares(lines, part):
                if changed is None:
                    self._keep([[line]])
                    continue
                counted = self._counted(line, changed)
                if counted is not None and self._add_layer(line, changed, *counted, 0):
                    continue
                parts = self._previous.parts(self._capture.number, line)
                merged = merge(reduce(with_layer, parts), changed.columns, changed.removed)
                if changed.over is None and counted is None and merged.keys:
                    whole = entry_of(line.block, bucket, merged, line.places[0])
                    if self._add_layer(line, changed, whole, [len(part.keys) for part in parts], len(merged.ints)):
                        continue
                self._rewrite(bucket, self._laid_over(merged, changed.over))

    def _counted(self, line: BlockEntry, change: BucketChange) -> tuple[BlockEntry, list[int]] | None:
        """Return the line of a block with a change, and how many keys its base and each layer have, by looking for the
        changed keys alone; None if the block has to be decoded for that: because it has times, whose bounds may change,
        or no table, or loses its first or last key, or because reading it twice is more requests. O(changed log keys).
        """
        columns, removed = change.columns, change.removed
        if change.over is not None or columns.ints or line.low >= 0 or not removed.isdisjoint((line.first, line.last)):
            return None
        assert self._previous is not None
        if self._pack_block is pack_block or self._previous.far:
            return None
        look = self._previous.look(self._capture.number, line)
        if not look.kept:
            return None
        before = sum(bool(look.rows_of(key).keys) for key in {*columns.keys, *removed})
        keys = line.keys - before + len(columns.keys)
        first, last = (columns.keys[0], columns.keys[-1]) if columns.keys else (line.first, line.last)
        whole = line._replace(keys=keys, records=keys, first=min(line.first, first), last=max(line.last, last))
        return whole, look.keys

    def _add_layer(
        self, line: BlockEntry, change: BucketChange, whole: BlockEntry, keys: Sequence[int], width: int
    ) -> bool:
        """Write what changed of a block as a layer over it, `whole` being the block's line but for its layers and its
        id; False if the block is to be rewritten: when it is too long now, or its layers become large. As many layers
        of about one size are written as one. `keys` is how many keys the base and each layer have, `width` how many
        columns of times there are. O(changed).
        """
        kept, (base_keys, *kept_keys) = list(line.layers), keys
        changed = len(change.columns.keys) + len(change.removed)
        # keys of records that were written and deleted since the checkpoint before are deleted keys, too: any number
        if whole.records > self._limit + self._limit // 2 or changed * LAYERED_SHARE > min(base_keys, MOST_KEYS):
            return False
        assert self._previous is not None
        plan, number = self._plan, self._capture.number
        layer = layer_of(change.columns, change.removed, width)
        data, hashed = self._pack_block(layer)
        while (start := _first_alike(kept, len(data))) <= len(kept) - (LAYERS - 1):
            for place in reversed(kept[start:]):
                layer = merge(self._previous.layer(number, line, place), layer, set())
            del kept[start:], kept_keys[start:]
            data, hashed = self._pack_block(layer)
        if (sum(place.size for place in kept) + len(data)) * LAYERED_SHARE > line.size:
            return False
        # layers of few bytes (deletes, short values) may cover most of the base, whose bytes would stay for ever
        if (sum(kept_keys) + len(layer.keys)) * LAYERED_SHARE > base_keys:
            return False
        pack, offset = self._writer.add(number, plan.next_block, data, hashed)
        layers = (*kept, Place(pack, offset, len(data), hashed))
        plan.items.append([whole._replace(block=plan.next_block, layers=layers)])
        plan.next_block += 1
        plan.packed += 1
        plan.packed_bytes += len(data)
        plan.kept = True
        return True

    def _laid_over(self, columns: Columns, over: Columns | None) -> Columns:
        if not over:
            return columns
        assert self._capture.combine is not None
        return lay_over(columns, over, self._capture.combine)

    def _rewrite(self, bucket: int, columns: Columns) -> None:
        _pack_records(self._plan, self._writer, bucket, columns, self._limit, self._pack_block)


def _bounds_bytes(columns: Columns) -> int:
    """Return the bytes of the first and the last key, as a line of the directory has them. O(1)."""
    return len(packed([columns.keys[0], columns.keys[-1]]))


def _first_alike(layers: Sequence[Place], size: int) -> int:
    """Return the index of the first of the newest layers that are of the size class of `size` bytes, or a lower one."""
    start = len(layers)
    while start and _size_class(layers[start - 1].size) <= _size_class(size):
        start -= 1
    return start


def _size_class(size: int) -> int:
    """Return the size class of a layer: one more for each factor of LAYERS."""
    return (size.bit_length() - 1) // (LAYERS.bit_length() - 1)


def _pack_records(
    plan: _StorePlan,
    writer: PackWriter,
    bucket: int,
    columns: Columns,
    limit: int,
    pack_records: PackBlock = pack_block,
) -> None:
    """Pack records of a store's bucket as blocks of about `limit` records. O(records).

    Blocks are cut below BLOCK_BYTES, but not so small that their first and last keys, which the directory has again,
    are most of what is written: a block of keys of 1 MB has 16 to 32 of them.
    """
    pieces = split(columns, limit)[::-1]
    while pieces:
        piece = pieces.pop()
        data, hashed = pack_records(piece)
        if len(data) > BLOCK_BYTES and len(piece.keys) > 1 and len(data) > _BOUNDS * _bounds_bytes(piece):
            pieces += halve(piece)[::-1]
            continue
        number, offset = writer.add(plan.capture.number, plan.next_block, data, hashed)
        plan.items.append([entry_of(plan.next_block, bucket, piece, Place(number, offset, len(data), hashed))])
        plan.next_block += 1
        plan.packed += 1
        plan.packed_bytes += len(data)


def _shares(items: Sequence[Any], change: BucketChange) -> Iterator[tuple[Any, BucketChange | None]]:
    """Assign a bucket's changes to the pages or blocks whose key ranges hold the keys (keys before the first range: the
    first one). None for a page or block without changes. O(items log keys).
    """
    firsts = [(item[0] if type(item) is list else item).first for item in items[1:]]
    removed = sorted(change.removed)
    columns, over = change.columns, change.over
    cuts = [_cuts(keys, firsts) for keys in (columns.keys, removed, [] if over is None else over.keys)]
    offsets = None if columns.counts is None else list(accumulate(columns.counts, initial=0))
    over_offsets = None if over is None or over.counts is None else list(accumulate(over.counts, initial=0))
    for i, item in enumerate(items):
        (start, end), (first, last), (low, high) = ((at[i], at[i + 1]) for at in cuts)
        if start == end and first == last and low == high:
            yield item, None
        else:
            above = None if over is None or low == high else _slice(over, low, high, over_offsets)
            yield item, BucketChange(_slice(columns, start, end, offsets), set(removed[first:last]), False, above)


def _cuts(keys: Sequence[Any], firsts: Sequence[Any]) -> list[int]:
    return [0, *(bisect_left(keys, first) for first in firsts), len(keys)]


def _slice(columns: Columns, start: int, end: int, offsets: list[int] | None) -> Columns:
    first, last = (start, end) if offsets is None else (offsets[start], offsets[end])
    return Columns(
        columns.keys[start:end],
        None if columns.counts is None else columns.counts[start:end],
        tuple(column[first:last] for column in columns.ints),
        columns.values[first:last],
    )


class _Rewriter:
    """Copies live blocks out of packs that are rewritten, and writes pages. O(pages + lines of those it opens)."""

    def __init__(self, previous: CheckpointReader | None, writer: PackWriter, old: set[int], sizes: Sizes) -> None:
        self._previous = previous
        self._writer = writer
        self._old = old
        self._sizes = sizes
        self.copied = 0

    def pages(self, plan: _StorePlan) -> list[PageEntry]:
        """Return the top record's lines of a store: of pages that stay, and of those that are written here."""
        number = plan.capture.number
        moved = [self._moved(number, item) for item in plan.items]
        items = _joined(moved, self._sizes.few_lines, lambda page: self._open(number, page))
        pages: list[PageEntry] = []
        for item in items:
            if isinstance(item, PageEntry):
                pages.append(item)
                continue
            for lines in cut(item, self._sizes.page_lines):
                data = encode_page(lines)
                hashed = content_hash(memoryview(data)[4:])
                pack, offset = self._writer.add(number, PAGE, data, hashed)
                pages.append(page_entry(lines, pack, offset, len(data), hashed))
        return pages

    def _open(self, number: int, page: PageEntry) -> list[BlockEntry]:
        assert self._previous is not None
        return self._previous.page(number, page)

    def _moved(self, number: int, item: Item) -> Item:
        old = self._old
        if isinstance(item, PageEntry):
            if item.pack not in old and old.isdisjoint(item.packs[::2]):
                return item
            item = self._open(number, item)
        return [line if old.isdisjoint([p.pack for p in line.places]) else self._copy(number, line) for line in item]

    def _copy(self, number: int, line: BlockEntry) -> BlockEntry:
        base, *layers = (
            place if place.pack not in self._old else self._copied(number, line, place) for place in line.places
        )
        return line._replace(pack=base.pack, offset=base.offset, layers=tuple(layers))

    def _copied(self, number: int, line: BlockEntry, place: Place) -> Place:
        assert self._previous is not None
        data = self._previous.sound_block(number, line, place)
        pack, offset = self._writer.add(number, line.block, data, place.hash)
        self.copied += len(data)
        return place._replace(pack=pack, offset=offset)


def _joined(items: list[Item], few: int, open_page: Any) -> list[Item]:
    """Join neighbouring lines of a bucket, and pages of fewer than `few` lines beside them. O(items)."""
    joined: list[Item] = []
    for item in items:
        before = joined[-1] if joined else None
        if before is None or _bucket(before) != _bucket(item):
            joined.append(item)
        elif isinstance(item, PageEntry):
            if type(before) is list and item.blocks < few:
                before += open_page(item)
            else:
                joined.append(item)
        elif isinstance(before, PageEntry):
            joined[-1:] = [open_page(before) + item] if before.blocks < few else [before, item]
        else:
            before += item
    return joined


def _bucket(item: Item) -> int:
    return item.bucket if isinstance(item, PageEntry) else item[0].bucket


def write_checkpoint(
    storage: Storage,
    *,
    identity: Identity,
    version: int,
    digest: bytes,
    position: Position,
    settings: dict[str, Any],
    captures: list[StoreCapture],
    previous: CheckpointReader | None,
    launch: int = 0,
    sizes: Sizes = SIZES,
    pack_bytes: int | None = None,
    tables: bool = False,
) -> CheckpointReport:
    """Write the checkpoint of `version` into `storage` and return its report. `pack_bytes` bounds a pack, and so the
    memory that this takes (None: 64 MiB). `tables`: single records of the new blocks will be read (`table`).

    `previous` must be the checkpoint since which the captures collected their changes, or None when they hold
    everything. `launch` is part of the name of a shard's checkpoint. Raises OSError or CheckpointError; the storage
    then holds no new checkpoint, though it may hold new packs. O(changed blocks + pages), and what `compaction` has
    written again.
    """
    started = time.perf_counter()
    old_packs = [] if previous is None else previous.meta.packs
    writer = PackWriter(storage, version, max((record.number for record in old_packs), default=0) + 1, pack_bytes)
    try:
        # a table knows no more than MOST_KEYS keys
        pack_records = pack_with_table if tables else pack_block
        limit = min(sizes.block_records, MOST_KEYS // 2) if tables else sizes.block_records
        plans = [_Planner(capture, previous, writer, limit, pack_records).plan() for capture in captures]
        items = [item for plan in plans for item in plan.items]
        if previous is not None and previous.storage.url != storage.url:
            # A copy to another place copies every block.
            old = {record.number for record in old_packs}
        else:
            old = packs_to_rewrite(old_packs, items, writer.bytes, sizes)
        rewriter = _Rewriter(previous, writer, old, sizes)
        tops = [rewriter.pages(plan) for plan in plans]
        writer.finish()
        before = (0, 0) if previous is None else (previous.meta.packed, previous.meta.written)
        return _conclude(
            storage,
            _Version(identity, version, digest, position, launch),
            settings,
            plans,
            tops,
            [*old_packs, *writer.packs],
            writer,
            rewriter.copied,
            before,
            started,
        )
    except lmdb.Error as error:
        raise CheckpointError(f"{storage.url}: version {version}: LMDB could not write its index: {error}") from error


class _Version(NamedTuple):
    """What a checkpoint is of."""

    identity: Identity
    version: int
    digest: bytes
    position: Position
    launch: int


def _conclude(
    storage: Storage,
    what: _Version,
    settings: dict[str, Any],
    plans: list[_StorePlan],
    tops: list[list[PageEntry]],
    named: list[PackRecord],
    writer: PackWriter,
    copied: int,
    before: tuple[int, int],
    started: float,
) -> CheckpointReport:
    """Create the index of blocks and pages whose packs are durable, and return the report. O(pages).

    `named` are the packs that the pages may refer to, `before` the bytes that older checkpoints have packed and
    written. Raises OSError, lmdb.Error.
    """
    live = live_bytes([page for pages in tops for page in pages])
    packs = [record for record in named if record.number in live]
    stores = [
        StoreRecord(
            plan.capture.number,
            plan.capture.name,
            plan.capture.kind,
            plan.capture.parameters,
            plan.capture.state,
            plan.next_block,
            sum(page.records for page in pages),
            sum(page.bytes for page in pages),
        )
        for plan, pages in zip(plans, tops, strict=True)
    ]
    wall_ms = max(0, int(time.time() * 1000))
    packed = before[0] + sum(plan.packed_bytes for plan in plans)
    written = before[1] + sum(record.size for record in writer.packs)
    identity, version, digest, position, launch = what
    meta = CheckpointMeta(identity, version, digest, position, wall_ms, settings, stores, packs, packed, written)
    records = {index.META_KEY: encode_meta(meta)}
    for plan, pages in zip(plans, tops, strict=True):
        records[index.top_key(plan.capture.number)] = encode_top(pages)
    data = index.encode(records)
    name = str(CheckpointName(version, launch, index_hash(data)))
    storage.create(name, data)
    pack_bytes = sum(record.size for record in packs)
    return CheckpointReport(
        name,
        version,
        not any(plan.kept for plan in plans),
        sum(plan.packed for plan in plans),
        sum(plan.packed_bytes for plan in plans),
        copied,
        sum(record.size for record in writer.packs) + len(data),
        len(data),
        len(packs),
        sum(live.values()) / pack_bytes if pack_bytes else 1.0,
        time.perf_counter() - started,
    )


class FreshCheckpoint:
    """A checkpoint of records that are given bucket by bucket, in order, without a live store.

    `add` its records, then `finish`. Memory: the pack in progress. A crash anywhere leaves packs and no checkpoint.
    """

    def __init__(self, storage: Storage, version: int, *, sizes: Sizes = SIZES) -> None:
        self._started = time.perf_counter()
        self._storage = storage
        self._version = version
        self._sizes = sizes
        self._writer = PackWriter(storage, version, 1)
        self._plans: dict[int, _StorePlan] = {}

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any], state: dict[str, Any]) -> None:
        """Add a store without records, with what the checkpoint keeps of it beside its blocks. O(1)."""
        self._plans[number] = _StorePlan(StoreCapture(number, name, kind, parameters, state, {}), [], 1)

    def add(self, number: int, bucket: int, columns: Columns) -> None:
        """Add records of a store: of a later bucket than those before, or of greater keys. Raises OSError.
        O(records).
        """
        _pack_records(self._plans[number], self._writer, bucket, columns, self._sizes.block_records)

    def finish(
        self, identity: Identity, digest: bytes, settings: dict[str, Any], position: Position, launch: int = 0
    ) -> CheckpointReport:
        """Create the last pack and the index, and return the report. Raises OSError or CheckpointError. O(blocks)."""
        try:
            plans = list(self._plans.values())
            rewriter = _Rewriter(None, self._writer, set(), self._sizes)
            tops = [rewriter.pages(plan) for plan in plans]
            self._writer.finish()
            return _conclude(
                self._storage,
                _Version(identity, self._version, digest, position, launch),
                settings,
                plans,
                tops,
                self._writer.packs,
                self._writer,
                0,
                (0, 0),
                self._started,
            )
        except lmdb.Error as error:
            raise CheckpointError(
                f"{self._storage.url}: version {self._version}: LMDB could not write its index: {error}"
            ) from error
