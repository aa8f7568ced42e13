"""Directory: which blocks a store has in a checkpoint, in two levels, so that an attach reads only the upper one.

    top record (index)    a line per page     bucket, first and last key, how much is below it, where the page is
    page (pack)           a line per block    the same of a block; at most PAGE_LINES lines, all of one bucket
    changes (pack)        a line per block that changed, over an older page: only what differs

Bytes: docs/format.md, "Directory". Both levels are stored by column, which decodes five times as fast as by line. A
page that holds no changed line is not written again: the next checkpoint's top record names it where it lies.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from changelog.codec import pack, unpack
from changelog.storage import Storage

from .block import HASH_BYTES, BlockEntry, Columns, Extent, content_hash, is_sound, seal, unseal
from .errors import CorruptCheckpointError
from .layers import Lookup
from .table import RecordTable, Whole

PAGE_LINES: Final = 512


# A field of a page has the name of the type.
_Hash: TypeAlias = bytes


class PageEntry(NamedTuple):
    """A line of a top record: one page.

    `until` is the smallest `high` below it: no block of the page has expired before.

    `packs` is flat, `[pack, bytes, pack, bytes, ...]`: how many bytes of blocks the page's lines have in which pack.
    `hash` is that of the page's content, as a block's.

    A page of which few lines changed is written as changes over an older page: `pack`, `offset`, `size` and `hash` are
    those of the newest changes, and `below` has those of the page and of the changes before, the oldest first, flat.
    """

    bucket: int
    first: Any
    last: Any
    blocks: int
    records: int
    bytes: int
    low: int
    high: int
    until: int
    pack: int
    offset: int
    size: int
    packs: list[int]
    hash: _Hash
    below: list[Any]

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Where the bytes of the page and of the changes over it are, the oldest first. O(changes)."""
        older = zip(*(self.below[i::4] for i in range(4)), strict=True)
        return *map(_EXTENT, older), Extent(self.pack, self.offset, self.size, self.hash)

    def uses(self) -> Iterator[tuple[int, int]]:
        """Yield (pack, bytes) of `packs`."""
        return zip(self.packs[::2], self.packs[1::2], strict=True)


# As `_make`, which calls Python for each line to count the fields: here, a column is a field.
_LINE: Final[Callable[[tuple[Any, ...]], BlockEntry]] = partial(tuple.__new__, BlockEntry)
_EXTENT: Final[Callable[[tuple[Any, ...]], Extent]] = partial(tuple.__new__, Extent)


def encode_page(lines: Sequence[BlockEntry]) -> bytes:
    """Return the bytes of a page: of lines of one bucket, in key order. O(lines)."""
    blocks, buckets, firsts, lasts, keys, records, sizes, lows, highs, hashes, packs, offsets, layers = zip(
        *lines, strict=True
    )
    over = [[field for layer in each for field in layer] for each in layers]
    columns = [blocks, firsts, lasts, keys, records, sizes, lows, highs, b"".join(hashes), packs, offsets, over]
    return seal(pack([buckets[0], *(column if type(column) is bytes else list(column) for column in columns)]))


def encode_changes(before: Sequence[BlockEntry], now: Sequence[BlockEntry]) -> bytes | None:
    """Return the bytes of changes over a page of as many lines `before`: of each line that differs what differs; None
    if no line does. O(lines).
    """
    places = [at for at, (old, new) in enumerate(zip(before, now, strict=True)) if old is not new and old != new]
    if not places:
        return None
    olds, news = zip(*(before[at] for at in places), strict=True), zip(*(now[at] for at in places), strict=True)
    columns: list[Any] = []
    for name, old, new in zip(BlockEntry._fields, olds, news, strict=True):
        if name == "layers":
            columns.append([_layers_over(*layers) for layers in zip(old, new, strict=True)])
        elif name != "bucket":
            columns.append(None if old == new else [b if a != b else None for a, b in zip(old, new, strict=True)])
    return seal(pack([places, *columns]))


def _layers_over(old: Sequence[Extent], new: Sequence[Extent]) -> list[Any]:
    """Return how many of the older layers stay, and the fields of those behind them."""
    kept = 0
    while kept < min(len(old), len(new)) and old[kept] == new[kept]:
        kept += 1
    return [kept, *(field for layer in new[kept:] for field in layer)]


def decode_changes(
    data: bytes | memoryview, where: str, hashed: bytes, below: Sequence[BlockEntry]
) -> list[BlockEntry]:
    """Return the lines of a page `below` with changes over it, whose content has the hash `hashed`. Raises
    CorruptCheckpointError, naming `where`. O(lines).
    """
    try:
        places, *changed, over = unpack(check_page(data, where, hashed))
        lines = list(below)
        blocks, buckets, *others, layers = zip(*(lines[at] for at in places), strict=True)
        columns: list[Any] = [
            old if new is None else [a if b is None else b for a, b in zip(old, new, strict=True)]
            for old, new in zip((blocks, *others), changed, strict=True)
        ]
        columns.insert(1, buckets)
        columns.append(
            [
                (*old[:kept], *map(_EXTENT, zip(*(fields[i::4] for i in range(4)), strict=True)))
                for old, (kept, *fields) in zip(layers, over, strict=True)
            ]
        )
        for at, line in zip(places, map(_LINE, zip(*columns, strict=True)), strict=True):
            lines[at] = line
        return lines
    except (ValueError, TypeError, IndexError) as error:
        raise _bad_page(where, error) from error


def page_keys(data: bytes | memoryview, where: str) -> list[Any]:
    """Return the first and last keys that are in a page, or in changes over one. Raises CorruptCheckpointError, naming
    `where`. O(lines).
    """
    try:
        _, _, firsts, lasts, *_ = unseal(data)
    except ValueError as error:
        raise _bad_page(where, error) from error
    return [key for column in (firsts, lasts) for key in column or () if key is not None]


def check_page(data: bytes | memoryview, where: str, hashed: bytes) -> memoryview:
    """Return the content of a page, which has the hash `hashed`. Raises CorruptCheckpointError, naming `where`.
    O(bytes).
    """
    content = memoryview(data)[4:]
    if not is_sound(data):
        raise _bad_page(where, "checksum mismatch")
    if content_hash(content) != hashed:
        raise _bad_page(where, "its content is not what the top record's hash says")
    return content


def _bad_page(where: str, what: object) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{where}: page of the directory: {what} (reopen to fall back)")


def decode_page(data: bytes | memoryview, where: str, hashed: bytes) -> list[BlockEntry]:
    """Return the lines of a page whose content has the hash `hashed`. Raises CorruptCheckpointError, naming `where`.
    O(lines).
    """
    try:
        bucket, blocks, firsts, lasts, keys, records, sizes, lows, highs, joined, packs, offsets, over = unpack(
            check_page(data, where, hashed)
        )
        hashes = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
        buckets = [bucket] * len(blocks)
        layers = [
            tuple(map(_EXTENT, zip(*(each[i::4] for i in range(4)), strict=True))) if each else () for each in over
        ]
        columns = (blocks, buckets, firsts, lasts, keys, records, sizes, lows, highs, hashes, packs, offsets, layers)
        return list(map(_LINE, zip(*columns, strict=True)))
    except (ValueError, TypeError) as error:
        raise _bad_page(where, error) from error


def page_entry(
    lines: Sequence[BlockEntry], pack_number: int, offset: int, size: int, hashed: bytes, below: Iterable[Any] = ()
) -> PageEntry:
    """Return the top record's line of a page, or of changes over what is `below`. O(lines)."""
    used: Counter[int] = Counter()
    for line in lines:
        for place in line.extents:
            used[place.pack] += place.size
    return PageEntry(
        lines[0].bucket,
        lines[0].first,
        lines[-1].last,
        len(lines),
        sum(line.records for line in lines),
        sum(line.bytes for line in lines),
        min(line.low for line in lines),
        max(line.high for line in lines),
        min(line.high for line in lines),
        pack_number,
        offset,
        size,
        [number for use in sorted(used.items()) for number in use],
        hashed,
        list(below),
    )


def encode_top(pages: Sequence[PageEntry]) -> bytes:
    """Return the bytes of a store's top record. O(pages)."""
    columns: list[list[Any]] = [list(column) for column in zip(*pages, strict=True)] or [[] for _ in PageEntry._fields]
    return seal(pack(columns))


def decode_top(data: bytes | memoryview, where: str) -> list[PageEntry]:
    """Return the lines of a top record. Raises CorruptCheckpointError, naming `where`. O(pages)."""
    try:
        return list(map(PageEntry._make, zip(*unseal(data), strict=True)))
    except (ValueError, TypeError) as error:
        raise CorruptCheckpointError(f"{where}: top record: {error}") from error


def cut(lines: Sequence[BlockEntry], page_lines: int) -> list[Sequence[BlockEntry]]:
    """Divide the lines of one bucket among as few pages as can hold them, of about equal size. O(lines)."""
    pages = -(-len(lines) // page_lines)
    return [lines[len(lines) * i // pages : len(lines) * (i + 1) // pages] for i in range(pages)]


class DirectorySource(Protocol):
    """Where the pages and blocks of a directory are: a checkpoint that is open."""

    storage: Storage

    @property
    def far(self) -> bool:
        """True while some pages or blocks are on another machine, so that a read is a request."""

    def prefetch(self, lines: Iterable[PageEntry | BlockEntry]) -> None:
        """Read pages and blocks that will be opened and loaded next, all side by side."""


class Ahead(Protocol):
    """Decodes blocks before they are needed (`recovery.ahead`)."""

    def take(self, store: int, block: int) -> Columns | None:
        """Return a block, and forget it, if it is ready."""

    def take_page(self, page: PageEntry) -> list[BlockEntry] | None:
        """Return the lines of a page, and forget them, if they are ready."""

    def has_some(self) -> bool:
        """False while no block is ready but some will be."""

    def stop(self) -> None:
        """End it."""


class Traffic:
    """What was read of the blocks of checkpoints: whole `blocks`, `tables` of blocks, and the `bytes` of both. Of the
    blocks so many were read whole for a record, because they have no table (`tableless`).
    """

    __slots__ = ("blocks", "bytes", "tableless", "tables")

    def __init__(self) -> None:
        self.blocks = self.tables = self.tableless = self.bytes = 0

    def block(self, size: int) -> None:
        """Count a block of so many bytes that is read whole. O(1)."""
        self.blocks += 1
        self.bytes += size

    def look(self, opened: RecordTable | Whole, size: int) -> None:
        """Count what was read to find single records in a block of so many bytes. O(1)."""
        if isinstance(opened, Whole):
            self.block(size)
            self.tableless += 1
        else:
            self.tables += 1
            self.bytes += opened.size


class Directory:
    """The directory of one store in one checkpoint: `pages` are decoded, the lines of a page when it is opened.

    `source` is a weak reference to the open checkpoint; the cold pages and blocks keep the checkpoint open. `open`
    reads the lines of a page, in key order, `load` the block of a line, and `look` finds single records of the block
    (`table`). Each raises CorruptCheckpointError. O(lines), O(block).
    """

    __slots__ = ("load", "look", "open", "pages", "source")

    def __init__(
        self,
        pages: list[PageEntry],
        open_page: Callable[[PageEntry], list[BlockEntry]],
        load: Callable[[BlockEntry], Columns],
        look: Callable[[BlockEntry], Lookup],
        source: weakref.ref[DirectorySource],
    ) -> None:
        self.pages = pages
        self.source = source
        self.open = open_page
        self.load = load
        self.look = look

    def __iter__(self) -> Iterator[BlockEntry]:
        """Yield every line, by bucket and then by first key. O(blocks)."""
        for page in self.pages:
            yield from self.open(page)

    def __reversed__(self) -> Iterator[BlockEntry]:
        """Yield every line, the last one first. O(blocks)."""
        for page in reversed(self.pages):
            yield from reversed(self.open(page))

    def __len__(self) -> int:
        """Blocks of the store. O(pages)."""
        return sum(page.blocks for page in self.pages)
