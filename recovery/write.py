"""Write: makes the checkpoint of a version from the one before it and what changed since.

The work needs no live store: changed records were captured by their owners, and older blocks are in the checkpoint
before. So a background thread can do it. What changed of a block is written into a new pack, as a layer over the block
or, when the layers have become large, as a new block; then the index into a new file. Both names are new, so that after
a crash anywhere the checkpoint before is still the newest one. Unchanged blocks are not read: the new index names the
packs that hold them. `compaction` decides which packs are rewritten.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from changelog.identity import Identity
from changelog.segment import Position
from changelog.storage import LocalStorage, Storage

from . import index
from .block import (
    BlockEntry,
    Columns,
    Extent,
    StoreCapture,
    composed,
    content_hash,
    pack_block,
)
from .checkpoint import CheckpointReader
from .compaction import (
    SIZES,
    Item,
    Rewrites,
    RoomToWrite,
    Sizes,
    bounded,
    first_cut,
    large_bytes,
    live_bytes,
    packs_to_rewrite,
    size_class,
)
from .directory import PageEntry, cut, encode_changes, encode_page, encode_top, page_entry
from .erase import Erasure
from .errors import CheckpointError
from .layout import CheckpointName
from .meta import CheckpointMeta, StoreRecord, encode_meta, index_hash
from .pack import PAGE, PackRecord, PackWriter
from .planner import PackBlock, Planner, StorePlan, pack_records
from .table import MOST_KEYS, pack_with_table


class CheckpointReport(NamedTuple):
    """The numbers of a written checkpoint. Sizes in bytes, times in seconds.

    `whole`: no block of an older checkpoint is part of this checkpoint. `bytes_packed` is the size of the blocks that
    changed, `bytes_layered` that of those among them that are layers over older blocks, `bytes_copied` that of
    unchanged blocks that were rewritten because their packs were small or sparse, `page_bytes` that of pages of
    directories, `bytes_written` that of all new files: packs and index. `packs` is how many packs the index names,
    `live_share` the share of their bytes that the index refers to.
    """

    name: str
    version: int
    whole: bool
    bytes_packed: int
    bytes_copied: int
    bytes_written: int
    index_bytes: int
    packs: int
    live_share: float
    seconds: float
    bytes_layered: int = 0
    page_bytes: int = 0

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte of blocks that changed."""
        return self.bytes_written / max(1, self.bytes_packed)


# So many layers of a block become one where the first of them is copied, unless they have so many times the bytes that
# are to be copied of them.
_FEW_LAYERS: Final = 3
_MOST_BESIDE: Final = 4


# So many changes lie over a page, and each takes about so many bytes of the index.
_MOST_CHANGES: Final = 24
_CHANGES_PRICE: Final = 64


class _Changes(NamedTuple):
    """Lines that are written as changes over the page in which their older ones are."""

    page: PageEntry
    data: bytes
    lines: list[BlockEntry]

    @property
    def below(self) -> list[Any]:
        """The places of the page and of the changes over it, flat. O(changes)."""
        return [field for place in self.page.extents for field in place]


# What a directory is written of.
_Written: TypeAlias = Item | _Changes


class _Rewriter:
    """Copies live blocks out of packs that are rewritten, and writes pages. O(pages + lines of those it opens)."""

    def __init__(
        self,
        previous: CheckpointReader | None,
        writer: PackWriter,
        old: Rewrites,
        sizes: Sizes,
        pack: PackBlock = pack_block,
    ) -> None:
        self._previous = previous
        self._pack_block = pack
        self._writer = writer
        self._old = old.packs | ({old.partly} if old.partly else set())
        self._partly, self._room, self._beside = old[1:]
        self._sizes = sizes
        self.copied = 0

    def pages(self, plan: StorePlan) -> list[PageEntry]:
        """Return the top record's lines of a store: of pages that stay, and of those that are written here."""
        number = plan.capture.number
        moved = [self._moved(plan, item) for item in plan.items]
        items = _joined(
            self._over_pages(_joined(moved, 0, None), plan.opened),
            self._sizes.few_lines,
            lambda page: self._open(number, page),
        )
        pages: list[PageEntry] = []
        for item in items:
            if isinstance(item, PageEntry):
                pages.append(item)
            elif isinstance(item, _Changes):
                pages.append(page_entry(item.lines, *self._add(number, item.data), item.below))
            else:
                cuts = cut(item, self._sizes.page_lines)
                pages += [page_entry(lines, *self._add(number, encode_page(lines))) for lines in cuts]
        return pages

    def _add(self, number: int, data: bytes) -> tuple[int, int, int, bytes]:
        hashed = content_hash(memoryview(data)[4:])
        return *self._writer.add(number, PAGE, data), len(data), hashed

    def _over_pages(self, items: list[Item], opened: list[tuple[PageEntry, list[BlockEntry]]]) -> list[_Written]:
        """Divide lines at the pages that they were in, and return changes over a page in place of as many lines as it
        has, where that is fewer bytes. O(lines).
        """
        by_bucket: dict[int, list[tuple[Any, PageEntry, list[BlockEntry]]]] = {}
        for page, before in opened:
            by_bucket.setdefault(page.bucket, []).append((page.first, page, before))
        written: list[_Written] = []
        for item in items:
            if isinstance(item, PageEntry) or item[0].bucket not in by_bucket:
                written.append(item)
                continue
            pages = sorted(by_bucket[item[0].bucket], key=itemgetter(0))
            bounds, firsts = [first for first, _, _ in pages], [line.first for line in item]
            at, start = max(0, bisect_right(bounds, firsts[0]) - 1), 0
            while start < len(item):
                end = bisect_left(firsts, bounds[at + 1]) if at + 1 < len(bounds) else len(item)
                if start < end:
                    written.append(self._over(*pages[at][1:], item[start:end]))
                at, start = at + 1, end
        return written

    def _over(self, page: PageEntry, before: list[BlockEntry], now: list[BlockEntry]) -> _Written:
        """Return lines as changes over the page of older ones; the lines where the page is written anew. O(lines)."""
        base, *changes = page.extents
        if len(before) != len(now) or not self._old.isdisjoint([place.pack for place in page.extents]):
            return now
        data = encode_changes(before, now)
        if data is None:
            return page
        size = len(data) + _CHANGES_PRICE + sum(place.size + _CHANGES_PRICE for place in changes)
        # to read changes of a far page is more requests
        if self._previous is None or self._previous.far or size > base.size or len(changes) == _MOST_CHANGES:
            return now
        return _Changes(page, data, now)

    def _open(self, number: int, page: PageEntry) -> list[BlockEntry]:
        assert self._previous is not None
        return self._previous.page(number, page)

    def _moved(self, plan: StorePlan, item: Item) -> Item:
        old, soon = self._old, self._partly
        number = plan.capture.number
        if isinstance(item, PageEntry):
            if old.isdisjoint([place.pack for place in item.extents]) and old.isdisjoint(item.packs[::2]):
                return item
            for place in item.extents:
                self._count(place.pack, place.size)
            lines = self._open(number, item)
            plan.opened.append((item, lines))
            item, soon = lines, 0
        return [
            line if old.isdisjoint([p.pack for p in line.extents]) else self._copy(number, line, soon) for line in item
        ]

    def _copy(self, number: int, line: BlockEntry, soon: int) -> BlockEntry:
        """Copy what a block has in old packs; not in the pack `soon` if it has many layers, since a block of a page
        that has changed is rewritten soon. A layer becomes one with those of its size beside it.
        """
        assert self._previous is not None
        stays = soon if 4 * line.bytes > 5 * line.size else 0
        base, *layers = line.extents
        if self._is_old(base, stays):
            base = self._copied(number, line, base)
        now: list[Extent] = []
        while layers:
            place = layers.pop(0)
            if not self._is_old(place, stays):
                now.append(place)
                continue
            alike = self._alike(place, layers)
            old = sum(each.size for each in alike if self._is_old(each, stays))
            size = sum(each.size for each in alike)
            if len(alike) >= _FEW_LAYERS and _MOST_BESIDE * old >= size and size - old <= self._beside:
                self._beside -= size - old
                del layers[: len(alike) - 1]
                now.append(self._as_one(number, line, alike))
            else:
                now.append(self._copied(number, line, place))
        return line._replace(pack=base.pack, offset=base.offset, layers=tuple(now))

    def _alike(self, place: Extent, newer: Sequence[Extent]) -> list[Extent]:
        """Return a layer and those behind it that are not larger. O(layers)."""
        assert self._previous is not None
        # layers that are far are more requests, and one in the new pack is not there yet
        known, most = {} if self._previous.far else self._previous.packs, size_class(place.size)
        return [place, *takewhile(lambda each: each.pack in known and size_class(each.size) <= most, newer)]

    def _is_old(self, place: Extent, stays: int) -> bool:
        return place.pack in self._old and place.pack != stays

    def _as_one(self, number: int, line: BlockEntry, places: Sequence[Extent]) -> Extent:
        """Write neighbouring layers of a block as one. O(their bytes)."""
        assert self._previous is not None
        layer = composed([self._previous.layer(number, line, place) for place in places])
        data, hashed = self._pack_block(layer)
        pack, offset = self._writer.add(number, line.block, data)
        self.copied += len(data)
        for place in places:
            self._count(place.pack, place.size)
        return Extent(pack, offset, len(data), hashed)

    def _copied(self, number: int, line: BlockEntry, place: Extent) -> Extent:
        assert self._previous is not None
        data = self._previous.sound_block(number, line, place)
        pack, offset = self._writer.add(number, line.block, data)
        self.copied += len(data)
        self._count(place.pack, place.size)
        return place._replace(pack=pack, offset=offset)

    def _count(self, pack: int, size: int) -> None:
        """Count bytes that were copied; the rest of a pack of which only some are to be copied stays. O(1)."""
        if pack == self._partly:
            self._room -= size
            if self._room <= 0:
                self._old.discard(pack)


def _joined(items: Sequence[_Written], few: int, open_page: Any) -> list[Any]:
    """Join neighbouring lines of a bucket, and pages of fewer than `few` lines beside them. O(items)."""
    joined: list[Any] = []
    for item in items:
        before = joined[-1] if joined else None
        if before is None or _bucket(before) != _bucket(item) or _Changes in (type(before), type(item)):
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


def _bucket(item: _Written) -> int:
    if isinstance(item, _Changes):
        return item.page.bucket
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
    tableless: int = 0,
    erased: Erasure | None = None,
) -> CheckpointReport:
    """Write the checkpoint of `version` into `storage` and return its report. `pack_bytes` bounds a pack, and so the
    memory that this takes (None: 64 MiB); in a state of many such packs they are larger (`compaction.bounded`).
    `tables`: single records of the new blocks will be read (`table`); of blocks without a table that are local, so many
    bytes (`tableless`) are written anew.
    With `erased`, what was found in the packs of `previous`, the new checkpoint has no record of its keys and names no
    pack with a trace of them; `captures` then have no changes.

    `previous` must be the checkpoint since which the captures collected their changes, or None when they hold
    everything. `launch` is part of the name of a shard's checkpoint. Raises OSError or CheckpointError; the storage
    then holds no new checkpoint, though it may hold new packs. O(changed blocks + pages), and what `compaction` has
    written again.
    """
    started = time.perf_counter()
    old_packs = [] if previous is None else previous.meta.packs
    if previous is not None:
        pack_bytes = bounded(pack_bytes, previous.meta.size)
    writer = PackWriter(storage, version, max((record.number for record in old_packs), default=0) + 1, pack_bytes)
    with writer.all_or_none():
        # a table knows no more than MOST_KEYS keys
        pack = pack_with_table if tables else pack_block
        limit = min(sizes.block_records, MOST_KEYS // 2) if tables else sizes.block_records
        plans = list[StorePlan]()
        budget = RoomToWrite(large_bytes(sizes, 0 if previous is None else previous.meta.size, pack_bytes))
        room = 0
        for capture in captures:
            planner = Planner(capture, previous, writer, limit, pack, erased=erased, tableless=tableless, budget=budget)
            plans.append(planner.plan())
            room = budget.add(plans[-1].changed_bytes, plans[-1].anew_bytes)
            tableless = planner.tableless
        items = [item for plan in plans for item in plan.items]
        if previous is not None and previous.storage.url != storage.url:
            # A copy to another place copies every block.
            old = Rewrites({record.number for record in old_packs})
        else:
            packed = sum(plan.packed_bytes for plan in plans)
            old = packs_to_rewrite(old_packs, items, packed, sizes, pack_bytes, room)
        if erased is not None:
            old = Rewrites(old.packs | erased.packs)
        rewriter = _Rewriter(previous, writer, old, sizes, pack)
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
    plans: list[StorePlan],
    tops: list[list[PageEntry]],
    named: list[PackRecord],
    writer: PackWriter,
    copied: int,
    before: tuple[int, int],
    started: float,
) -> CheckpointReport:
    """Create the index of blocks and pages whose packs are durable, and return the report. O(pages).

    `named` are the packs that the pages may refer to, `before` the bytes that older checkpoints have packed and
    written. Raises OSError or CheckpointError.
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
    try:
        data = index.encode(records)
    except lmdb.Error as error:
        raise CheckpointError(f"{storage.url}: version {version}: LMDB could not write its index: {error}") from error
    name = str(CheckpointName(version, launch, index_hash(data)))
    storage.create(name, data)
    pack_bytes = sum(record.size for record in packs)
    return CheckpointReport(
        name,
        version,
        not any(plan.kept for plan in plans),
        sum(plan.packed_bytes for plan in plans),
        copied,
        sum(record.size for record in writer.packs) + len(data),
        len(data),
        len(packs),
        sum(live.values()) / pack_bytes if pack_bytes else 1.0,
        time.perf_counter() - started,
        sum(plan.layered_bytes for plan in plans),
        writer.page_bytes,
    )


class FreshCheckpoint:
    """A checkpoint of records that are given bucket by bucket, in order, without a live store.

    `add` its records, then `finish`. A crash anywhere leaves packs and no checkpoint. Memory: the pack in progress. In
    a directory that is little more than a 64th of the state, or 4 MiB: `state` is how many bytes it has at most. Where
    that is not known (None), and on an object store, where each pack is a request, a pack has up to 64 MiB.
    """

    def __init__(self, storage: Storage, version: int, *, sizes: Sizes = SIZES, state: int | None = None) -> None:
        self._started = time.perf_counter()
        self._storage = storage
        self._version = version
        self._sizes = sizes
        cut = first_cut(sizes, state) if state is not None and isinstance(storage, LocalStorage) else None
        self._writer = PackWriter(storage, version, 1, cut)
        self._plans: dict[int, StorePlan] = {}

    def define(self, number: int, name: str, kind: str, parameters: dict[str, Any], state: dict[str, Any]) -> None:
        """Add a store without records, with what the checkpoint keeps of it beside its blocks. O(1)."""
        self._plans[number] = StorePlan(StoreCapture(number, name, kind, parameters, state, {}), [], 1)

    def add(self, number: int, bucket: int, columns: Columns) -> None:
        """Add records of a store: of a later bucket than those before, or of greater keys. Raises OSError.
        O(records).
        """
        pack_records(self._plans[number], self._writer, bucket, columns, self._sizes.block_records)

    def finish(
        self, identity: Identity, digest: bytes, settings: dict[str, Any], position: Position, launch: int = 0
    ) -> CheckpointReport:
        """Create the last pack and the index, and return the report. Raises OSError or CheckpointError. O(blocks)."""
        plans = list(self._plans.values())
        rewriter = _Rewriter(None, self._writer, Rewrites(set()), self._sizes)
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
