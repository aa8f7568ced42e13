"""Planner: decides for one store which pages and blocks of the checkpoint before stay, and packs what changed.

What changed of a block becomes a layer over it or, when its layers have become large, part of a block that is written
anew. Rows that were written over a block which was not loaded are laid over the older rows of their keys; where blocks
have tables, only these keys are read. Blocks without a table, of a state that had no limit when they were written, are
written anew when single records of them were read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise, repeat
from typing import Any, Final, NamedTuple, TypeAlias

from changelog.codec import pack as packed

from .block import (
    ADDED,
    BLOCK_BYTES,
    WHOLE,
    BlockEntry,
    BucketChange,
    Columns,
    Extent,
    StoreCapture,
    composed,
    entry_of,
    hiding,
    laid,
    layer_of,
    merge,
    pack_block,
    unpack_keys,
    with_layers,
)
from .checkpoint import CheckpointReader
from .compaction import SIZES, Item, RoomToWrite, size_class
from .directory import PageEntry
from .erase import Erasure
from .errors import CorruptCheckpointError
from .layers import Layers, Lookup
from .pack import PackWriter
from .table import MOST_KEYS, Whole

# So many layers of a block of about one size become one, of some blocks up to `_APART` less one more.
LAYERS: Final = 8
# Of layers of fewer than so many bytes so many become one, as long as a block has few layers: a few records would be
# written again and again, and be small beside what a directory and a pack say of them.
_TINY_BYTES: Final = 4096
_TINY_LAYERS: Final = 16
_MOST_LAYERS: Final = 24
# Layers of blocks that change equally much become one at so many different checkpoints.
_APART: Final = 4
# The smaller of the two blocks that one becomes has at least so many of 512 of its records.
_LEAST_PART: Final = 205
# A block that changes alone is rewritten when its layers have one of so many of the bytes of its base, or of its keys.
LAYERED_SHARE: Final = 1.5
# Beside others that change, a block may have so many times that.
MOST_LOAD: Final = 1.5
# One of so many blocks is rewritten at a checkpoint, or none: so their pack is a large one, and not merged with others.
AT_ONCE: Final = 8
# It is decided together which blocks are rewritten of so many, and of as many that one of `AT_ONCE` is a large pack; or
# of blocks with so many bytes of new layers.
TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 2 << 20
# Packs records as a block: (its bytes, the hash of its content).
PackBlock: TypeAlias = Callable[[Columns], tuple[bytes, bytes]]
# A block has at least so many times the bytes of its first and last key, where keys are large.
_BOUNDS: Final = 16
_NONE: Final = Columns([], None, (), [])


@dataclass(slots=True)
class StorePlan:
    """The plan for the blocks of a store: pages that stay, and lines to be written into pages, in order.

    `packed_bytes` were packed; of these `layered_bytes` are layers, `anew_bytes` blocks that are written anew.
    `changed_bytes` are layers before they became one with older ones, and new blocks. `opened`: the lines that pages of
    the checkpoint before have.
    """

    capture: StoreCapture
    items: list[Item]
    next_block: int
    packed_bytes: int = 0
    layered_bytes: int = 0
    changed_bytes: int = 0
    anew_bytes: int = 0
    opened: list[tuple[PageEntry, list[BlockEntry]]] = field(default_factory=list)
    kept: bool = False


class _Layer(NamedTuple):
    """A new layer of a block that is not written yet, since the block may be rewritten instead.

    `lines`: what the block becomes, in the plan's items. `whole`: the block's line but for its layers and its id.
    `kept`: the layers below. `load`: how much all layers are, 1 where the block is rewritten if it changes alone.
    """

    lines: list[BlockEntry]
    line: BlockEntry
    change: BucketChange
    whole: BlockEntry
    kept: list[Extent]
    data: bytes
    hash: bytes
    load: float


class Planner:
    """Decides for one store which pages and blocks stay, and packs the changed records. O(changed blocks + pages)."""

    def __init__(
        self,
        capture: StoreCapture,
        previous: CheckpointReader | None,
        writer: PackWriter,
        limit: int,
        pack: PackBlock,
        *,
        erased: Erasure | None = None,
        tableless: int = 0,
        budget: RoomToWrite | None = None,
    ) -> None:
        # Of blocks without a table, so many bytes may still be written anew. To read a far one is more requests.
        self.tableless = 0 if previous is None or previous.far else tableless
        self._erased = erased
        self._capture = capture
        self._previous = previous
        self._writer = writer
        self._limit = limit
        self._pack_block = pack
        self._budget = budget or RoomToWrite(SIZES.large_bytes)
        self._plan = StorePlan(capture, [], 1)
        # of blocks of which it is not decided yet whether they are rewritten
        self._waiting: list[_Layer] = []
        self._waiting_bytes = self._waiting_below = 0  # of their new layers, and of their bases

    def plan(self) -> StorePlan:
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
                    self._keep_all(items) if self._erased is None else self._erase(bucket, items, self._erased)
            elif change.fresh or not items:
                self._write_new(bucket, change)
            else:
                self._change(bucket, items, change)
        self._decide()
        plan.items = [item for item in plan.items if item]  # no block is left of some
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
        lines = self._previous.page(self._capture.number, page)
        self._plan.opened.append((page, lines))
        return lines

    def _keep(self, items: Sequence[Item]) -> None:
        self._plan.items += items
        self._plan.kept = self._plan.kept or bool(items)

    def _erase(self, bucket: int, items: list[Item], erased: Erasure) -> None:
        """Keep the blocks of a bucket, and write those anew that have a trace of an erased key."""
        assert self._previous is not None
        number = self._capture.number
        for item in items:
            lines = self._open(item) if isinstance(item, PageEntry) else item
            if not any(map(erased.touches, lines)):
                self._keep([item])
                continue
            for line in lines:
                if not erased.touches(line):
                    self._keep([[line]])
                    continue
                rest = erased.rest(number, self._previous.block(number, line))
                if rest.keys:
                    self._rewrite(bucket, rest)

    def _change(self, bucket: int, items: list[Item], change: BucketChange) -> None:
        """Write what changed of a bucket. Keys behind those of its last block get a block of their own, if the last
        block is not small: where a store only appends, few records are written again.
        """
        beyond: BucketChange | None = None
        for item, part in _shares(items, change):
            if part is None:
                self._keep_all([item])
                continue
            lines = self._open(item) if isinstance(item, PageEntry) else item
            for line, changed in _shares(lines, part):
                if changed is not None and line is lines[-1] and item is items[-1] and 2 * line.records >= self._limit:
                    changed, beyond = _divided(changed, [line.last], bisect_right)
                if changed is None:
                    self._keep_line(line)
                    continue
                self._change_block(line, changed)
        if beyond is not None:
            self._write_new(bucket, beyond)

    def _keep_all(self, items: Sequence[Item]) -> None:
        """Keep pages, but for their blocks that get a table. O(pages); O(blocks) while some may get one."""
        for item in items:
            lines = self._open(item) if self.tableless > 0 and isinstance(item, PageEntry) else item
            if type(lines) is list and self.tableless > 0:
                for line in lines:
                    self._keep_line(line)
            else:
                self._keep([item])

    def _keep_line(self, line: BlockEntry) -> None:
        """Keep a block, or write it anew if it gets a table."""
        if self._gets_table(line):
            assert self._previous is not None
            self._rewrite(line.bucket, self._live_rows(self._previous.block(self._capture.number, line)), line)
        else:
            self._keep([[line]])

    def _gets_table(self, line: BlockEntry) -> bool:
        """Return whether a block is to be written anew because it has no table, and count its bytes. O(layers)."""
        if self.tableless <= 0 or self._previous is None or self._previous.has_tables(line):
            return False
        self.tableless -= line.bytes
        return True

    def _write_new(self, bucket: int, change: BucketChange) -> None:
        """Write the records of keys of which no block has any as blocks. O(changed)."""
        whole, before = self._plain(change, _NONE.rows_by_key(), -1), self._plan.packed_bytes
        self._rewrite(bucket, merge(_NONE, whole.columns, set()))
        self._plan.changed_bytes += self._plan.packed_bytes - before

    def _change_block(self, line: BlockEntry, change: BucketChange) -> None:
        """Write what changed of a block as a layer over it, or the block anew. O(changed log keys) where single records
        can be read and a layer is written, O(keys) where no row is laid over others, else O(block).
        """
        anew = self._gets_table(line)
        try:
            self._change_looked(line, change, None if anew else self._looked(line, change), anew=anew)
        except CorruptCheckpointError:
            assert self._previous is not None
            self._previous.block(self._capture.number, line)  # a single record does not say which file is damaged
            raise

    def _change_looked(self, line: BlockEntry, change: BucketChange, look: Lookup | None, *, anew: bool) -> None:
        assert self._previous is not None
        number, merged = self._capture.number, _NONE
        if look is None:
            parts = self._previous.parts(number, line)
            merged, keys = with_layers(parts[0], parts[1:]), [hiding(part) for part in parts]
            change = self._plain(change, merged.rows_by_key(), line.high)
        else:
            keys = look.hiding
            change = self._plain(change, look.rows_of, line.high)
        if not (change.columns.keys or change.removed):
            self._keep([[line]])  # all rows over the block were deleted again
            return
        whole = None if look is None else _counted(line, change, look)
        if whole is not None and self._add_layer(line, change, whole, keys):
            return
        merged = merge(merged, change.columns, change.removed) if look is None else self._merged(line, change)
        if whole is None and merged.keys and not anew:
            whole = entry_of(line.block, line.bucket, merged, line.extents[0])
            if self._add_layer(line, change, whole, keys):
                return  # with the expired records of the block, which its line counts
        self._rewrite(line.bucket, self._live_rows(merged), line)

    def _looked(self, line: BlockEntry, change: BucketChange) -> Lookup | None:
        """Return what finds single records of a block, or only counts them where no row of the change is laid over
        others; None if the block is to be decoded instead: because its records are needed and it has no table, because
        it is rewritten anyway, or because reading it twice is more requests.
        """
        assert self._previous is not None
        if self._previous.far:
            return None
        if self._pack_block is not pack_block:
            look = self._previous.look(self._capture.number, line)
            if look.kept:
                return look
        changed = len(change.columns.keys) + len(change.removed)
        if change.over is not None or changed * LAYERED_SHARE > line.keys:
            return None
        number, layer = self._capture.number, self._previous.layer
        extents = line.extents[::-1]
        parts = [Whole(layer(number, line, each, unpack_keys)) for each in extents]
        return parts[0] if len(parts) == 1 else Layers(parts, [each.hash for each in extents])

    def _plain(self, change: BucketChange, older_of: Callable[[Any], Columns], high: int) -> BucketChange:
        """Return a change of a block, whose times are at most `high`, without rows to be laid over others, and which
        says of which keys records are only added. O(changed), and `older_of` for each key with rows to be laid over.
        """
        columns = change.columns
        if change.over is not None:
            assert self._capture.combine is not None
            over = laid(change.over, older_of, self._capture.combine, high)
            columns = composed((columns, over)) if columns.keys else over
        if columns.froms is not None:
            froms = [ADDED if time > high else time for time in columns.froms]
            columns = Columns(columns.keys, columns.counts, columns.ints, columns.values, froms)
        return BucketChange(columns, change.removed, change.fresh)

    def _live_rows(self, columns: Columns) -> Columns:
        """Return the records of a block that is written anew without those that expired. O(records)."""
        through = self._capture.expired_through
        if not columns.ints or not columns.keys or min(columns.ints[0]) > through:
            return columns
        rows = [time > through for time in columns.ints[0]]
        offsets = columns.offsets()
        counts = [sum(rows[start:end]) for start, end in pairwise(offsets)]
        return Columns(
            list(compress(columns.keys, counts)),
            list(filter(None, counts)),
            tuple(array("q", compress(column, rows)) for column in columns.ints),
            list(compress(columns.values, rows)),
        )

    def _add_layer(self, line: BlockEntry, change: BucketChange, whole: BlockEntry, keys: Sequence[int]) -> bool:
        """Plan what changed of a block as a layer over it, `whole` being the block's line but for its layers and its
        id; False if the block is to be rewritten: when it is much too long now, or its layers become large. As many
        layers of about one size become one. `keys`: how many of the base and of each layer hide older ones. O(changed).
        """
        kept, (base_keys, *kept_keys) = list(line.layers), keys
        # keys of records that were written and deleted since the checkpoint before are deleted keys, too: any number
        changed = hiding(change.columns) + len(change.removed)
        later = line.hash[0] % _APART
        longest = self._limit + self._limit // 2 + (later - 1) * self._limit // 16
        if changed * LAYERED_SHARE > min(base_keys, MOST_KEYS):
            self._plan.changed_bytes += line.size
            return False
        assert self._previous is not None
        layer = layer_of(change.columns, change.removed)
        data, hashed = self._pack_block(layer)
        self._plan.changed_bytes += len(data)
        while (start := _first_alike(kept, len(data))) <= len(kept) - (self._alike(len(data), len(kept)) - 1 + later):
            older = [self._previous.layer(self._capture.number, line, place) for place in kept[start:]]
            layer = composed([*older, layer])
            del kept[start:], kept_keys[start:]
            data, hashed = self._pack_block(layer)
        # a block that only grows is divided soon: until then its layers may have as many bytes as its base
        share = 1 if whole.records > self._limit else LAYERED_SHARE
        size = sum(place.size for place in kept) + len(data)
        # layers of few bytes (deletes, short values) may cover most of the base, whose bytes would stay for ever
        load = max(
            8 * size * share / ((7 + later) * line.size), (sum(kept_keys) + hiding(layer)) * LAYERED_SHARE / base_keys
        )
        if whole.records > longest and whole.keys > 1:  # records of one key stay together
            load = max(load, 1 + (whole.records - longest) / self._limit)
        alone = self._previous.far  # to read the block once more is more requests
        if load > (1 if alone else MOST_LOAD):
            return False
        waiting = self._waiting
        waiting.append(_Layer([], line, change, whole, kept, data, hashed, load))
        self._plan.items.append(waiting[-1].lines)
        self._waiting_bytes += len(data)
        self._waiting_below += line.size
        many = len(waiting) >= TOGETHER and self._waiting_below >= AT_ONCE * self._budget.large
        if alone or many or self._waiting_bytes > _TOGETHER_BYTES:
            self._decide()
        return True

    def _alike(self, size: int, layers: int) -> int:
        """Return how many layers of about so many bytes become one. O(1)."""
        assert self._previous is not None
        # where single records are read, or layers are far, each layer is one more to open
        tiny = size < _TINY_BYTES and layers < _MOST_LAYERS and self._pack_block is pack_block
        return _TINY_LAYERS if tiny and not self._previous.far else LAYERS

    def _decide(self) -> None:
        """Write the new layers that wait, but rewrite the longest blocks and those with most layers, once the layers of
        all blocks are more than those of blocks of which one of `AT_ONCE` is rewritten at a time. So few are rewritten
        at a checkpoint, also of blocks that change equally much: a checkpoint in which all of them are takes ten times
        as long as those before it, and commits wait for it. O(changed), and the blocks that are rewritten.
        """
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = self._waiting_below = 0
        plan, number = self._plan, self._capture.number
        sizes = [each.whole.bytes for each in waiting]
        most = most_layered(
            [each.load for each in waiting], sizes, self._budget.room(plan.changed_bytes, plan.anew_bytes)
        )
        items = plan.items
        for at, (lines, line, change, whole, kept, data, hashed, _) in enumerate(waiting):
            if at in most:
                plan.items = []
                self._rewrite(line.bucket, self._live_rows(self._merged(line, change)), line)
                lines += [entry for item in plan.items if type(item) is list for entry in item]
                continue
            pack, offset = self._writer.add(number, plan.next_block, data)
            lines.append(whole._replace(block=plan.next_block, layers=(*kept, Extent(pack, offset, len(data), hashed))))
            plan.next_block += 1
            plan.packed_bytes += len(data)
            plan.layered_bytes += len(data)
            plan.kept = True
        plan.items = items

    def _merged(self, line: BlockEntry, change: BucketChange) -> Columns:
        """Return the records of a block with its layers and a change, merged at once. O(block)."""
        assert self._previous is not None
        base, *layers = self._previous.parts(self._capture.number, line)
        return with_layers(base, [*layers, layer_of(change.columns, change.removed)])

    def _rewrite(self, bucket: int, columns: Columns, line: BlockEntry | None = None) -> None:
        """Write records as blocks; those of the block of a `line`, if they become two, as parts that its hash makes
        differ in size, so that blocks that grow together are not divided together for ever. O(records).
        """
        before = self._plan.packed_bytes
        for part in [columns] if line is None else _unequal(columns, self._limit, line.hash[1]):
            pack_records(self._plan, self._writer, bucket, part, self._limit, self._pack_block)
        if line is not None:
            self._plan.anew_bytes += self._plan.packed_bytes - before


def _counted(line: BlockEntry, change: BucketChange, look: Lookup) -> BlockEntry | None:
    """Return the line of a block with a change, by looking at the older records of the changed keys alone; None if the
    block loses its first or last key, so that it has to be decoded. Bounds of times stay bounds. O(changed log keys).
    """
    columns, removed = change.columns, change.removed
    keys, records, ends = line.keys, line.records, (line.first, line.last)
    if not removed.isdisjoint(ends):
        return None
    for older in look.counts_of(list(removed)):
        keys -= bool(older)
        records -= older
    counts = columns.counts or [1] * len(columns.keys)
    froms = columns.froms or [WHOLE] * len(columns.keys)
    whole, added = columns.froms is None, froms.count(ADDED) == len(froms)
    # where records are only added, 1 is enough for all that a key has: their number does not change
    olders = look.counts_of(columns.keys) if whole else map(int, look.present(columns.keys)) if added else froms
    for key, count, since, older in zip(columns.keys, counts, froms, olders, strict=True):
        kept = older if added else 0
        if not (whole or added):
            rows = look.rows_of(key)
            older, kept = len(rows), bisect_left(rows.ints[0], since) if rows.ints else 0
        if not kept + count and key in ends:
            return None
        keys += bool(kept + count) - bool(older)
        records += kept + count - older
    first, last, low, high = line.first, line.last, line.low, line.high
    present = list(compress(columns.keys, counts))
    if present:
        first, last = min(first, present[0]), max(last, present[-1])
    if columns.ints and columns.values:
        low, high = min(low, min(columns.ints[0])), max(high, max(columns.ints[0]))
    return line._replace(keys=keys, records=records, first=first, last=last, low=low, high=high)


def most_layered(loads: Sequence[float], sizes: Sequence[int], room: int) -> set[int]:
    """Return which of the blocks with layers of these loads to rewrite, the greatest first: none while the loads are
    few; once they are more than those of as many blocks of which one of `AT_ONCE` is rewritten at a time, at a load of
    1 (1/n, 2/n, ... 1), so many, and more until the loads of the others are few again, and at most `room` bytes.
    O(n log n).
    """
    most: set[int] = set()
    total, at_once = sum(loads), max(1, len(loads) // AT_ONCE)
    if 2 * total <= len(loads) + at_once:
        return most
    for at in sorted(range(len(loads)), key=loads.__getitem__, reverse=True):
        if len(most) >= at_once and 2 * total <= len(loads) + 1:
            break
        if sizes[at] > room:
            break
        room -= sizes[at]
        total -= loads[at]
        most.add(at)
    return most


def _unequal(columns: Columns, limit: int, by: int) -> list[Columns]:
    """Return records that become two blocks as two parts, the first with 0.4 to 0.6 of them as a byte says. O(n)."""
    records, keys = len(columns), len(columns.keys)
    if not limit + limit // 2 < records <= 2 * limit + limit // 4 or keys < 2:
        return [columns]
    first = records * (_LEAST_PART + by * (512 - 2 * _LEAST_PART) // 255) // 512
    if columns.counts is not None:
        first = bisect_right(columns.offsets(), first) - 1  # a key's records stay together
    return list(columns.pieces((0, min(max(1, first), keys - 1), keys)))


def _bounds_bytes(columns: Columns) -> int:
    """Return the bytes of the first and the last key, as a line of the directory has them. O(1)."""
    return len(packed([columns.keys[0], columns.keys[-1]]))


def _first_alike(layers: Sequence[Extent], size: int) -> int:
    """Return the index of the first of the newest layers that are of the size class of `size` bytes, or a lower one."""
    start = len(layers)
    while start and size_class(layers[start - 1].size) <= size_class(size):
        start -= 1
    return start


def pack_records(
    plan: StorePlan,
    writer: PackWriter,
    bucket: int,
    columns: Columns,
    limit: int,
    pack: PackBlock = pack_block,
) -> None:
    """Pack records of a store's bucket as blocks of about `limit` records. O(records).

    Blocks are cut below BLOCK_BYTES, but not so small that their first and last keys, which the directory has again,
    are most of what is written: a block of keys of 1 MB has 16 to 32 of them.
    """
    pieces = columns.split(limit)[::-1]
    while pieces:
        piece = pieces.pop()
        if _too_long(piece, _bytes_of_large(piece)):  # it need not be packed to be divided
            pieces += piece.halves()[::-1]
            continue
        data, hashed = pack(piece)
        if _too_long(piece, len(data)):
            pieces += piece.halves()[::-1]
            continue
        number, offset = writer.add(plan.capture.number, plan.next_block, data)
        plan.items.append([entry_of(plan.next_block, bucket, piece, Extent(number, offset, len(data), hashed))])
        plan.next_block += 1
        plan.packed_bytes += len(data)


def _too_long(piece: Columns, size: int) -> bool:
    """Return whether records of so many packed bytes become two blocks. O(1)."""
    return size > BLOCK_BYTES and len(piece.keys) > 1 and size > _BOUNDS * _bounds_bytes(piece)


def _bytes_of_large(piece: Columns) -> int:
    """Return fewer than the packed bytes of records that are large: the length of their bytes; 0 where the record in
    the middle is small. O(records), or O(1).
    """
    values = piece.values
    middle = values[len(values) // 2] if values else None
    if type(middle) is not bytes or len(middle) * len(values) < BLOCK_BYTES:
        return 0
    return sum(len(value) for value in values if type(value) is bytes)


def _shares(items: Sequence[Any], change: BucketChange) -> Iterator[tuple[Any, BucketChange | None]]:
    """Assign a bucket's changes to the pages or blocks whose key ranges hold the keys (keys before the first range: the
    first one). None for a page or block without changes. O(items log keys).
    """
    firsts = [(item[0] if type(item) is list else item).first for item in items[1:]]
    return zip(items, _divided(change, firsts, bisect_left), strict=True)


def _divided(change: BucketChange, keys: Sequence[Any], bisect: Callable[..., int]) -> Iterator[BucketChange | None]:
    """Yield the pieces of a change between these keys, cut where `bisect` says; None for one without a key. O(keys log
    changed), and a copy of the change.
    """
    removed, (columns, _, _, over) = sorted(change.removed), change

    def bounds(changed: Sequence[Any]) -> list[int]:
        return [0, *(bisect(changed, key) for key in keys), len(changed)]

    overs: Iterator[Columns | None] = repeat(None) if over is None else over.pieces(bounds(over.keys))
    for piece, (first, last), above in zip(
        columns.pieces(bounds(columns.keys)), pairwise(bounds(removed)), overs, strict=False
    ):
        above = above if above is not None and above.keys else None
        if piece.keys or first < last or above is not None:
            yield BucketChange(piece, set(removed[first:last]), False, above)
        else:
            yield None
