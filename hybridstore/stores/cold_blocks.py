"""Cold blocks: blocks of a checkpoint whose records are not in a store's maps yet.

    in the checkpoint ─▶ ColdPage ─ opened ─▶ ColdBlock ──────── touched, or warmed ────────▶ in `runs`
                                                 ├── read in (`lazy=False`) ─▶ DecodedBlock ──▶
                                                 └── touched, memory is short ─▶ TouchedBlock, TakenBlock ──▶

A list of cold blocks is in key order. An attach fills it with pages, each of which represents up to 512 blocks; a page
is opened, and its blocks take its place in the list, when one of its keys is touched.

Loading a cold block reads, checks and decodes it. A decoded block is in memory, as sorted keys and values, but its
records are not in the maps yet. Where memory is short (`SPARING`), the touch of a key takes the key's records alone out
of the block: the block stays cold, and says nothing about that key any more (`TakenBlock`). A key-value store needs no
list of such keys: what memory knows of a key counts, and a record that was freed is read again (`TouchedBlock`).
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from changelog.errors import HybridStoreError
from recovery.block import BlockEntry, Columns, Loader
from recovery.directory import Directory, DirectorySource, PageEntry
from recovery.errors import CorruptCheckpointError
from recovery.layers import Layers, Lookup
from recovery.table import Record, Whole, only_record
from recovery.table_range import Bounds, range_of, stretch_bytes


class Sparing:
    """Whether memory is short: then the touch of a key loads no whole block. `loaded` counts the records that were
    loaded since, for those who count memory, and `whole` those of them that came with a whole block. `room`: blocks of
    up to so many bytes together may be loaded whole until the next commit, because their keys are touched more often
    than others: a commit alone frees records. `full`: so much is in memory that a scan loads no block, because records
    that are used more often would go. `piece`: a scan has rows of about so many bytes of blocks at a time.
    """

    def __init__(self) -> None:
        self.on = self.full = False
        self.loaded = self.whole = 0
        self.room = self.piece = 0

    def load(self, records: int, size: int = 0) -> None:
        """Count the records of a whole block of `size` bytes, or those that nobody touched, of no size. O(1)."""
        self.loaded += records
        self.whole += records
        self.room -= size


SPARING: Final = Sparing()
# A block is loaded whole when one key of so many was taken: the others are then likely to be touched, too. A limit of a
# fifth of a state never gets there with keys at random (with 4, all values of a sliding store came in).
TAKEN_SHARE: Final = 2
# Also when keys of it are taken so many times as often as those of a block on average: the first 1 % of the keys were
# taken one by one, at 8 µs a key, where a whole block costs 0.5 µs a key. Asked when one key of so many was taken, and
# then each time that they are twice as many; but of a block of few keys no sooner than by their half.
OFTEN: Final = 8
OFTEN_SHARE: Final = 32
OFTEN_KEYS: Final = 64


class ColdBlock:
    """A block that is still only in the checkpoint."""

    __slots__ = ("_load", "_look", "decoded", "entry", "first", "lookup")
    # How many blocks this element of a list represents.
    blocks = 1

    def __init__(self, entry: BlockEntry, load: Loader, look: Callable[[BlockEntry], Lookup]) -> None:
        self.entry = entry
        self.first = entry.first
        self._load = load
        self._look = look
        # what finds single records, once one was read, where that takes no memory
        self.lookup: Lookup | None = None
        # whether all records were decoded to find one, as of a block that was written without a limit
        self.decoded = False

    def columns(self) -> Columns:
        """Read, check and decode the block. Raises CorruptCheckpointError. O(block)."""
        return self._load(self.entry)

    def rows_of(self, key: Any) -> Columns:
        """Return the records of one key, which was not taken. Raises CorruptCheckpointError. O(log keys) in a block
        with a table, but for the first key that is read; else O(block).
        """
        lookup = self.lookup
        try:
            return (self._opened() if lookup is None else lookup).rows_of(key)
        except CorruptCheckpointError:
            return self.decoded_rows_of(key)

    def decoded_rows_of(self, key: Any) -> Columns:
        """Return the records of a key, as `rows_of`, of which a single record was damaged: the whole block says which
        damage that is, or comes from elsewhere, where only a copy is damaged. O(block).
        """
        return self._load(self.entry).between(key, key)

    def range_of(self, bounds: Bounds) -> dict[Any, Any]:
        """Return the records of a range of keys, of one record each, by key and in order: values, or tuples of a value
        and its integers. Raises CorruptCheckpointError. O(records + layers) of a part of a block with a table, but for
        the first one; else O(block).
        """
        low, high = bounds((self.entry.first, self.entry.last))
        if high - low < 2:
            lookup = self.lookup or self._opened()
            if lookup.kept or type(lookup) is Whole:
                try:
                    return range_of(lookup, bounds)
                except CorruptCheckpointError:
                    pass  # see `decoded_rows_of`
        return range_of(Whole(self.columns()), bounds)

    def record_of(self, key: Any) -> Record | None:
        """Return the only record of one key, which was not taken, or None. Raises and costs as `rows_of`."""
        lookup = self.lookup
        try:
            return (self._opened() if lookup is None else lookup).record_of(key)
        except CorruptCheckpointError:
            return only_record(self.decoded_rows_of(key))

    def records_of(self, keys: Sequence[Any]) -> list[Record | None]:
        """Return what `record_of` says of each of these keys. Of a block without a table O(block) once."""
        try:
            return list(map((self.lookup or self._opened()).record_of, keys))
        except CorruptCheckpointError:
            return list(map(self.record_of, keys))

    def counts_of(self, keys: Sequence[Any]) -> list[int]:
        """Return how many records each of these keys has, which were not taken. Raises and costs as `rows_of`, for each
        key.
        """
        lookup = self.lookup
        return (self._opened() if lookup is None else lookup).counts_of(keys)

    def _opened(self) -> Lookup:
        lookup = self._look(self.entry)
        if lookup.kept:
            self.lookup = lookup
        self.decoded = lookup.decoded
        return lookup

    @property
    def tables(self) -> int:
        """How many tables of the block are open."""
        lookup = self.lookup
        return 0 if lookup is None else len(lookup) if isinstance(lookup, Layers) else 1

    @property
    def layer_bytes(self) -> int:
        """The bytes of what is in memory of its layers, and of ranges that were read."""
        lookup = self.lookup
        if lookup is None:
            return 0
        return stretch_bytes(lookup) + (lookup.bytes_in_memory if isinstance(lookup, Layers) else 0)

    @property
    def records(self) -> int:
        """How many records are only in the block."""
        return self.entry.records

    @property
    def until(self) -> int:
        """The time up to which the block does not expire as a whole."""
        return self.entry.high

    @property
    def low(self) -> int:
        """No record that is only in the block has an earlier time."""
        return self.entry.low


class DecodedBlock(ColdBlock):
    """A block that is in memory, checked and decoded, but whose records are not in the maps yet."""

    __slots__ = ()

    def __init__(self, entry: BlockEntry, columns: Columns) -> None:
        super().__init__(entry, lambda _: columns, lambda _: Whole(columns))


class PartBlock(ColdBlock):
    """A cold block of which single records were read."""

    __slots__ = ("_since", "most")

    def __init__(self, block: ColdBlock) -> None:
        super().__init__(block.entry, block._load, block._look)
        self.lookup, self.decoded = block.lookup, block.decoded
        # when so many keys were read, it is asked whether the block is to be loaded whole
        self.most = min(-(-block.entry.keys // TAKEN_SHARE), max(OFTEN_KEYS, block.entry.keys // OFTEN_SHARE))
        # the records that were taken out of all blocks when this one became one of them
        self._since = SPARING.loaded - SPARING.whole

    @property
    def keys(self) -> tuple[int, int]:
        """How many keys were taken, and how many of them touched. O(1)."""
        raise NotImplementedError

    @property
    def mostly_taken(self) -> bool:
        """Whether so many keys were taken that the block is to be loaded whole. O(1)."""
        return TAKEN_SHARE * self.keys[0] >= self.entry.keys

    def apart(self, blocks: int) -> bool:
        """Return whether single keys are to be taken, and not the block, one of so many: few were, and not more often
        than of other blocks. Of a block without a table a key costs as much as the block, which is loaded where it has
        room. O(1).
        """
        if self.decoded and self.entry.bytes <= SPARING.room:
            return False
        taken, touched = self.keys
        if taken >= self.most:
            if self.mostly_taken:
                return False
            if self.entry.bytes <= SPARING.room and touched * blocks >= OFTEN * (
                SPARING.loaded - SPARING.whole - self._since
            ):
                return False
            self.most = min(-(-self.entry.keys // TAKEN_SHARE), 2 * self.most)
        return True


class TouchedBlock(PartBlock):
    """A cold block of which a store has read single records, `touched` so far, and knows by itself which keys it has
    in memory.
    """

    __slots__ = ("touched",)

    def __init__(self, block: ColdBlock) -> None:
        super().__init__(block)
        self.touched = 0

    @property
    def keys(self) -> tuple[int, int]:
        return self.touched, self.touched

    @property
    def records(self) -> int:
        """How many records are only in the block, as long as those that were read are in memory."""
        return max(0, self.entry.records - self.touched)


class TakenBlock(PartBlock):
    """A cold block of which the records of some keys were taken into the maps: it counts for all other keys. Blocks
    beside each other may share the set of these keys (`hide`).
    """

    __slots__ = ("_count", "_low", "_records", "_untouched", "taken")

    def __init__(self, block: ColdBlock) -> None:
        super().__init__(block)
        self.taken: set[Any] = set()
        self._records = block.records
        self._low = block.low
        # how many of `taken` are keys of this block, and how many of these nobody touched
        self._count = self._untouched = 0

    @property
    def keys(self) -> tuple[int, int]:
        return self._count, self._count - self._untouched

    def columns(self) -> Columns:
        """Return the records of the keys that were not taken. Raises CorruptCheckpointError. O(block)."""
        return without(super().columns(), self.taken)

    @property
    def records(self) -> int:
        return self._records

    @property
    def low(self) -> int:
        return self._low

    def take_first(self, keys: Collection[Any], low: int) -> None:
        """Note that the records of these keys, one each, are in the maps now, and no other has an earlier time than
        `low`. O(keys).
        """
        self.take_uncounted(keys)
        self._records -= len(keys)
        self._low = low
        SPARING.load(len(keys))

    def take(self, keys: Collection[Any], records: int) -> None:
        """Note that the records of these keys are in the maps now. O(keys)."""
        self.taken.update(keys)
        self._count += len(keys)
        self._records -= records
        SPARING.loaded += records

    def take_uncounted(self, keys: Collection[Any]) -> None:
        """Note that the block says nothing about these keys any more: memory knows their records. `records` still
        counts those that the block has of them. O(keys).
        """
        before = len(self.taken)
        self.taken.update(keys)
        self._count += len(self.taken) - before
        self._untouched += len(self.taken) - before

    def share(self, keys: set[Any], count: int) -> None:
        """As `take_uncounted`, of a block of which nothing was taken: the set of keys, about `count` of which are of
        this block, is that of other blocks, too. O(1).
        """
        self.taken = keys
        self._count = self._untouched = min(count, self.entry.keys)

    def give_back(self, keys: Container[Any]) -> None:
        """Let the block count again for these keys; how many records it has of them is estimated. O(keys taken)."""
        self.taken = {key for key in self.taken if key not in keys}
        taken, all_keys = len(self.taken), self.entry.keys
        self._count, self._untouched = taken, min(self._untouched, taken)
        self._records = self.entry.records * max(0, all_keys - taken) // all_keys

    def copy(self, taken: set[Any]) -> TakenBlock:
        """Return a copy, with a copy of the set of keys. O(1)."""
        copy = TakenBlock(self)
        copy.taken = taken
        copy._low, copy.most, copy._since = self._low, self.most, self._since
        copy._count, copy._untouched = self._count, self._untouched
        return copy


class ColdPage:
    """A page of a checkpoint's directory that is not open yet: up to 512 cold blocks."""

    __slots__ = ("_directory", "entry", "first")

    def __init__(self, entry: PageEntry, directory: Directory) -> None:
        self.entry = entry
        self.first = entry.first
        self._directory = directory

    @property
    def blocks(self) -> int:
        """How many blocks the page represents."""
        return self.entry.blocks

    @property
    def records(self) -> int:
        """How many records are below the page."""
        return self.entry.records

    @property
    def until(self) -> int:
        """The time up to which no block of the page expires as a whole."""
        return self.entry.until

    @property
    def low(self) -> int:
        """No record below the page has an earlier time."""
        return self.entry.low

    def open(self) -> list[ColdBlock]:
        """Return its blocks, in key order. Raises CorruptCheckpointError. O(blocks of the page)."""
        load, look = self._directory.load, self._directory.look
        return [ColdBlock(entry, load, look) for entry in self._directory.open(self.entry)]


Cold: TypeAlias = ColdBlock | ColdPage
AnyCold = TypeVar("AnyCold", ColdBlock, Cold)
first_key: Final = attrgetter("first")


def covering(cold: list[Cold], key: Any) -> int:
    """Return the index of the block whose key range holds `key`, or -1, also when the key was taken out of the block; a
    page that may hold it is opened in its place.

    `cold` is in key order. O(log blocks), and O(blocks of a page) for a page that is opened.
    """
    while True:
        i = bisect_right(cold, key, key=first_key) - 1
        if i < 0 or key > cold[i].entry.last:
            return -1
        block = cold[i]
        if type(block) is TakenBlock and key in block.taken:
            return -1
        if type(block) is not ColdPage:
            return i
        open_page(cold, i)


def rows_apart(cold: list[Cold], i: int, key: Any) -> Columns | None:
    """Return the records of a key in the cold block at `i`, to be taken out of it; None if the block is to be loaded
    whole, since memory is not short, or much of the block was taken. Raises CorruptCheckpointError. As `rows_of`.
    """
    block = cold[i]
    assert isinstance(block, ColdBlock)
    return block.rows_of(key) if read_apart(block, len(cold)) else None


def read_apart(block: ColdBlock, blocks: int) -> bool:
    """Return whether single keys are to be taken out of one of so many blocks: memory is short, and little of it was
    taken, see `TakenBlock.apart`. O(1).
    """
    return SPARING.on and (not isinstance(block, PartBlock) or block.apart(blocks))


def taken_block(cold: list[Cold], i: int) -> TakenBlock:
    """Return the cold block at `i` as one of which records can be taken. O(1)."""
    block = cold[i]
    if not isinstance(block, TakenBlock):
        assert isinstance(block, ColdBlock)
        block = cold[i] = TakenBlock(block)
    return block


def touched_block(cold: list[Cold], i: int) -> TouchedBlock:
    """Return the cold block at `i` as one of which single records are read. O(1)."""
    block = cold[i]
    if not isinstance(block, TouchedBlock):
        assert isinstance(block, ColdBlock)
        block = cold[i] = TouchedBlock(block)
    return block


def with_keys(cold: list[Cold], keys: Collection[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the index of each block that may hold some of these keys with these keys; those that were taken out of it,
    too. Pages that may hold some are opened. O(blocks + keys log blocks): to sort thousands of keys takes longer.
    """
    groups = _grouped(cold, keys)
    closed = [i for i, (each, group) in enumerate(zip(cold, groups, strict=True)) if type(each) is ColdPage and group]
    for i in reversed(closed):
        open_page(cold, i)
    if closed:
        groups = _grouped(cold, keys)
    yield from ((i, group) for i, group in enumerate(groups) if group)


def _grouped(cold: Sequence[Cold], keys: Collection[Any]) -> list[list[Any]]:
    """Return for each block or page those of the keys that it may hold. O(blocks + keys log blocks)."""
    groups: list[list[Any]] = [[] for _ in range(len(cold) + 1)]  # the first: of keys in front of all
    for i, key in zip(map(partial(bisect_right, list(map(first_key, cold))), keys), keys, strict=True):
        groups[i].append(key)
    return [[key for key in group if key <= each.entry.last] for each, group in zip(cold, groups[1:], strict=True)]


def hide(cold: list[Cold], keys: set[Any]) -> None:
    """Let no block of a checkpoint that was just attached say anything of these keys: memory knows their records. The
    blocks share one set, because to find the block of each of thousands of keys takes longer. O(keys + blocks).
    """
    if not keys:
        return
    first, last = min(keys), max(keys)
    places = chosen(cold, lambda entry: entry.first <= last and first <= entry.last)
    blocks = [taken_block(cold, i) for i in places]
    among, shared = sum(block.entry.keys for block in blocks), keys.copy()
    for block in blocks:
        block.share(shared, len(keys) * block.entry.keys // among)


def taken_sets(cold: Sequence[Cold]) -> list[set[Any]]:
    """Return the sets of keys that were taken out of these blocks, each once. O(blocks)."""
    return list({id(block.taken): block.taken for block in cold if type(block) is TakenBlock}.values())


def copied(cold: Sequence[AnyCold]) -> list[AnyCold]:
    """Return blocks as they are now, without what is taken out of them from now on. O(blocks + keys taken)."""
    sets = {id(taken): taken.copy() for taken in taken_sets(cold)}
    return [block.copy(sets[id(block.taken)]) if isinstance(block, TakenBlock) else block for block in cold]


def without(columns: Columns, keys: set[Any]) -> Columns:
    """Return the records of all other keys. O(records)."""
    return only(columns, [key not in keys for key in columns.keys])


def only(columns: Columns, chosen_keys: list[bool]) -> Columns:
    """Return the records of the keys at which the list has True. O(records)."""
    rows = chosen_keys
    if columns.counts is not None:
        rows = [kept for kept, count in zip(chosen_keys, columns.counts, strict=True) for _ in range(count)]
    return Columns(
        list(compress(columns.keys, chosen_keys)),
        None if columns.counts is None else list(compress(columns.counts, chosen_keys)),
        tuple(array("q", compress(column, rows)) for column in columns.ints),
        list(compress(columns.values, rows)),
    )


def is_far(source: weakref.ref[DirectorySource] | None) -> bool:
    """True while reading a block is a request to another machine. O(1), and O(packs) on an object store."""
    checkpoint = None if source is None else source()
    return checkpoint is not None and checkpoint.far


def prefetch(source: weakref.ref[DirectorySource] | None, wanted: Sequence[tuple[list[Cold], Collection[Any]]]) -> None:
    """Read the far pages of the directory that may hold these keys, and then the blocks, both side by side.

    `wanted` are lists of cold blocks with the keys that will be touched there. Touching the keys later is faster, and
    otherwise the same: a damaged page or block raises then. If everything is local, nothing is done. Raises OSError.
    O(keys log blocks + bytes).
    """
    checkpoint = None if source is None else source()
    if checkpoint is not None and checkpoint.far:
        with suppress(TypeError):  # a key of another type is refused when it is touched
            _prefetch(checkpoint, wanted)


def _prefetch(source: DirectorySource, wanted: Sequence[tuple[list[Cold], Collection[Any]]]) -> None:
    pages: dict[int, PageEntry] = {}
    for cold, keys in wanted:
        for key in keys:
            i = bisect_right(cold, key, key=first_key) - 1
            if i >= 0 and key <= cold[i].entry.last and isinstance(page := cold[i], ColdPage):
                pages[id(page)] = page.entry
    source.prefetch(pages.values())
    blocks: dict[int, BlockEntry] = {}
    for cold, keys in wanted:
        for key in keys:
            with suppress(HybridStoreError):
                i = covering(cold, key)
                if i >= 0 and isinstance(block := cold[i], ColdBlock) and type(block) is not DecodedBlock:
                    blocks[id(block)] = block.entry
    source.prefetch(blocks.values())


def open_page(cold: list[Cold], i: int) -> int:
    """Replace a page by its blocks; return the index of the last block.

    Nothing happens when `cold[i]` is a block.

    Raises CorruptCheckpointError, with the page still in place. O(blocks of the page).
    """
    page = cold[i]
    if not isinstance(page, ColdPage):
        return i
    blocks = page.open()
    cold[i : i + 1] = blocks
    return i + len(blocks) - 1


def chosen(
    cold: list[Cold], wanted: Callable[[BlockEntry | PageEntry], bool], first: int = 0, end: int | None = None
) -> Iterator[int]:
    """Yield the indexes of the wanted blocks among those from `first` to before `end`, the last one first; the caller
    may delete the block of each index.

    `wanted` is called with a page first, and must be true for a page if it is true for one of its blocks; such pages
    are opened.
    """
    i = (len(cold) if end is None else end) - 1
    while i >= first:
        if wanted(cold[i].entry):
            if type(cold[i]) is ColdPage:
                i = open_page(cold, i)
                continue
            yield i
        i -= 1


def load_or_leave(
    cold: list[Cold],
    wanted: Callable[[BlockEntry | PageEntry], bool],
    load: Callable[[int], None],
    first: int = 0,
    end: int | None = None,
) -> list[ColdBlock]:
    """Load the wanted blocks from `first` to before `end`, each by `load` of its index; where memory is short, only
    those for which it has room. Return the others, by key. O(records loaded + blocks).
    """
    remaining: list[ColdBlock] = []
    for i in chosen(cold, wanted, first, end):
        block = cold[i]
        assert isinstance(block, ColdBlock)
        no_room = SPARING.full or block.entry.bytes > SPARING.room
        if SPARING.on and no_room and type(block) is not DecodedBlock:
            remaining.append(block)
        else:
            load(i)
    return remaining[::-1]


def unexpired(cold: list[Cold], through: int) -> list[Cold] | None:
    """Return the blocks without those that expired as a whole by `through`; None when no block did. O(blocks not
    expired).
    """
    if all(block.until > through for block in cold):
        return None
    kept: list[Cold] = []
    for block in cold:
        if block.until > through:
            kept.append(block)
        elif isinstance(block, ColdPage) and block.entry.high > through:
            kept += [inner for inner in block.open() if inner.entry.high > through]
    return kept
