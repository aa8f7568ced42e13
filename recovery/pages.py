"""Pages: reads the index of a checkpoint without mapping it, so that no damaged or forged file can end the process.

LMDB trusts the pages it maps: a bad branch page aborts the process, and a file that is cut while mapped raises SIGBUS.
Verify and inspection read untrusted files, so this code follows the few structures that a read needs and checks every
bound. Only files as LMDB 0.9 writes them are understood: two meta pages, branch, leaf and overflow pages, no
duplicates, no named databases.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from changelog.identity import ID_BYTES
from changelog.storage import Storage

from . import index
from .block import HASH_BYTES, BlockEntry
from .checkpoint import CheckpointReader
from .directory import PageEntry
from .errors import CorruptCheckpointError
from .layout import PACKS, CheckpointName, parse_checkpoint_name
from .meta import CheckpointMeta, checked_index
from .pack import OpenedPack, PackBytes, PackRecord, StoredPack, check_header, check_size

_META: Final = struct.Struct("<IIQQ")  # magic, data version, address, map size
_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_DATABASE: Final = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf, overflow pages, entries, root
_NODE: Final = struct.Struct("<HHHH")
_HEADER_BYTES: Final = 16
_BRANCH, _LEAF, _META_PAGE = 0x01, 0x02, 0x08
_BIG: Final = 0x01
_NO_PAGE: Final = 2**64 - 1
_MAX_DEPTH: Final = 32
# How many bytes are read ahead in a pack on an object store, and at how many places of the pack.
_AHEAD_BYTES: Final = 1 << 20
_PLACES: Final = 16


class PageFile:
    """The main database of the LMDB file of an index, given as the bytes of the index.

    Raises CorruptCheckpointError for any other content.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._file = index.inflate(data, where)
        self._where = where
        self.page_size, self._root = self._newest_meta()

    def _bad(self, offset: int, reason: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._where} at byte {offset}: {reason}")

    def _read(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._file):
            raise self._bad(offset, f"{size} bytes expected, the file ends at {len(self._file)}")
        return self._file[offset : offset + size]

    def _newest_meta(self) -> tuple[int, int]:
        newest: tuple[int, int, int, int] | None = None
        for offset in (0, self._page_size_hint()):
            head = self._read(offset, _HEADER_BYTES + _META.size + 2 * _DATABASE.size + 16)
            magic, version, _, _ = _META.unpack_from(head, _HEADER_BYTES)
            flags = struct.unpack_from("<H", head, 10)[0]
            if magic != _MAGIC or version != _DATA_VERSION or not flags & _META_PAGE:
                continue
            at = _HEADER_BYTES + _META.size
            page_size = _DATABASE.unpack_from(head, at)[0]
            _, _, depth, _, _, _, _, root = _DATABASE.unpack_from(head, at + _DATABASE.size)
            transaction = struct.unpack_from("<Q", head, at + 2 * _DATABASE.size + 8)[0]
            if newest is None or transaction > newest[0]:
                newest = (transaction, page_size, root, depth)
        if newest is None:
            raise self._bad(0, "not an LMDB file")
        _, page_size, root, depth = newest
        if page_size not in (4096, 8192, 16384, 32768, 65536) or depth > _MAX_DEPTH:
            raise self._bad(0, f"page size {page_size} with a tree of depth {depth} is not possible")
        return page_size, root

    def _page_size_hint(self) -> int:
        hint: int = struct.unpack_from("<I", self._read(_HEADER_BYTES + _META.size, 4))[0]
        return hint if hint in (4096, 8192, 16384, 32768, 65536) else 4096

    def _nodes(self, number: int) -> tuple[bool, bytes, list[int]]:
        """Return (is a branch, the page, the offsets of its nodes)."""
        offset = number * self.page_size
        page = self._read(offset, self.page_size)
        stored, _, flags, lower, _ = struct.unpack_from("<QHHHH", page)
        if stored != number or flags & (_BRANCH | _LEAF) not in (_BRANCH, _LEAF):
            raise self._bad(offset, f"page {number} is not a page of a tree")
        if not _HEADER_BYTES <= lower <= self.page_size or lower % 2:
            raise self._bad(offset, f"page {number} has its free space at {lower}")
        pointers = list(struct.unpack_from(f"<{(lower - _HEADER_BYTES) // 2}H", page, _HEADER_BYTES))
        if any(not lower <= pointer <= self.page_size - _NODE.size for pointer in pointers):
            raise self._bad(offset, f"page {number} has a node outside of itself")
        return bool(flags & _BRANCH), page, pointers

    def _key(self, page: bytes, node: int) -> bytes:
        size = _NODE.unpack_from(page, node)[3]
        return page[node + _NODE.size : node + _NODE.size + size]

    def _extent(self, offset: int, page: bytes, node: int) -> tuple[int, int]:
        """Return where in the file the data of a node begins, and its size; `offset` is the page's."""
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        size = low | high << 16
        start = node + _NODE.size + key_size
        if flags & ~_BIG:
            raise self._bad(offset + node, f"a record with flags {flags:#x} is not one of ours")
        if start + (8 if flags & _BIG else size) > len(page):
            raise self._bad(offset + node, "a record reaches beyond its page")
        if not flags & _BIG:
            return offset + start, size
        number = struct.unpack_from("<Q", page, start)[0]
        return number * self.page_size + _HEADER_BYTES, size

    def _data(self, offset: int, page: bytes, node: int) -> bytes:
        at, size = self._extent(offset, page, node)
        if offset <= at < offset + self.page_size:
            return page[at - offset : at - offset + size]
        return self._read(at, size)

    def _child(self, page: bytes, node: int) -> int:
        low, high, flags, _ = _NODE.unpack_from(page, node)
        return int(low | high << 16 | flags << 32)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every record, in key order. O(file)."""
        total = 0
        for offset, page, node in self._leaves():
            key, data = self._key(page, node), self._data(offset, page, node)
            total += len(data)
            if total > len(self._file):
                raise self._bad(offset, "the records are larger than the file: some bytes are in use twice")
            yield key, data

    def _leaves(self) -> Iterator[tuple[int, bytes, int]]:
        stack = [] if self._root == _NO_PAGE else [self._root]
        seen: set[int] = set()
        while stack:
            number = stack.pop()
            if number in seen:
                raise self._bad(number * self.page_size, f"page {number} is reached twice")
            seen.add(number)
            branch, page, nodes = self._nodes(number)
            if branch:
                stack += [self._child(page, node) for node in reversed(nodes)]
            else:
                for node in nodes:
                    yield number * self.page_size, page, node


class AheadPack:
    """A pack on an object store, read ahead while reads follow one another: each read ahead is as long as the sequence
    so far. Blocks of several buckets are read in turn, so several places are read ahead. Memory: 16 x 1 MiB at most,
    and the largest block.
    """

    # though reads are requests: this class reads ahead itself, so callers must not prefetch
    far: Final = False

    def __init__(self, pack: StoredPack) -> None:
        self._pack = pack
        self._parts: list[tuple[int, bytes]] = []  # (start, bytes read) of each place, the last one used at the end

    def read(self, offset: int, size: int) -> bytes:
        """Read a range; fewer bytes where the pack ends before. Raises OSError. O(size)."""
        ahead = 0
        for number, (start, data) in enumerate(self._parts):
            if start <= offset and offset + size <= start + len(data):
                self._parts.append(self._parts.pop(number))
                return data[offset - start : offset - start + size]
            if start <= offset <= start + len(data):
                # The sequence continues here: the rest of the part is read again, together with the bytes behind it.
                self._parts.pop(number)
                ahead = min(2 * len(data), _AHEAD_BYTES)
                break
        data = bytes(self._pack.read(offset, max(size, ahead)))
        self._parts.append((offset, data))
        del self._parts[:-_PLACES]
        return data[:size]


class PageCheckpoint(CheckpointReader):
    """A checkpoint read through `PageFile` and by range: the same records and checks as `CheckpointReader`, without
    LMDB and without a map.

    An index without a hash in its name is read, too (`checked` is False): every record has a checksum of its own. With
    `lenient` packs may be missing.

    On an object store the index is one request, another one lists the packs, and what is read of a pack is a request;
    blocks that are read in sequence are read ahead.
    """

    def __init__(self, storage: Storage, name: CheckpointName | str, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._opened_in = storage
        self._listed: Container[str] | None = None
        self.checked = parse_checkpoint_name(str(name)) is not None
        super().__init__(storage, name, marked=True)

    def _read(self) -> dict[bytes, bytes]:
        data = checked_index(self.storage, self.name) if self.checked else self.storage.get(self.name)
        self.index_bytes = len(data)
        return dict(PageFile(data, self.where).items())

    def _open(self, record: PackRecord) -> PackBytes:
        try:
            path = self.storage.path(record.name)
            if path is None:
                return self._open_stored(record)
            if not self._lenient:
                check_size(self.storage, record)
            opened = OpenedPack(path)
            if not self._lenient:
                check_header(opened, record.name, path)
            return opened
        except FileNotFoundError:
            if not self._lenient:
                check_size(self.storage, record)
            return StoredPack(self.storage, record.name, record.size)

    def _open_stored(self, record: PackRecord) -> PackBytes:
        if self._listed is None:
            # One request instead of one for each pack, and none where the reader has listed them already. Sizes are not
            # compared, because reading a short block raises.
            self._listed = frozenset(self._opened_in.list(f"{PACKS}/"))
        if record.name not in self._listed and not self._lenient:
            self._listed = frozenset(self.storage.list(f"{PACKS}/"))  # it may be newer than that list
        if record.name not in self._listed and not self._lenient:
            raise CorruptCheckpointError(f"{self.storage.url}/{record.name}: the pack is missing")
        return AheadPack(StoredPack(self.storage, record.name, record.size))

    def _meta(self, data: bytes) -> CheckpointMeta:
        meta = super()._meta(data)
        numbers = (meta.version, meta.wall_ms, *meta.position, meta.packed, meta.written)
        sound = (
            all(type(number) is int and number >= 0 for number in numbers)
            and all(type(name) is bytes and len(name) == ID_BYTES for name in (meta.identity.store, meta.digest))
            and all(type(number) is int and 0 <= number < 1 << 32 for number in meta.identity[1:])
            and type(meta.settings) is dict
            and all(type(name) is str for name in meta.settings)
            and all(type(number) is int and number >= 0 for pack in meta.packs for number in (pack.number, pack.size))
        )
        for record in meta.stores:
            counts = (record.next_block, record.records, record.size)
            sound = (
                sound
                and type(record.number) is int
                and 0 <= record.number < 1 << 32
                and all(type(text) is str for text in (record.name, record.kind))
                and all(type(fields) is dict for fields in (record.parameters, record.state))
                and all(type(count) is int and count >= 0 for count in counts)
            )
        if not sound:
            raise CorruptCheckpointError(f"{self.where}: meta record: a field of the wrong type")
        return meta

    def _pages(self, data: bytes, where: str) -> list[PageEntry]:
        pages = super()._pages(data, where)
        for page in pages:
            places = [field for i in range(3) for field in page.below[i::4]]
            counts = (page.blocks, page.records, page.bytes, page.pack, page.offset, page.size, *page.packs, *places)
            if (
                len(page.packs) % 2
                or len(page.below) % 4
                or not _are_hashes((page.hash, *page.below[3::4]))
                or not _are_counts(counts)
                or not _are_ints((page.bucket, page.low, page.high, page.until))
            ):
                raise CorruptCheckpointError(f"{where}: top record: a line with a field of the wrong type")
        return pages

    def page(self, store: int, page: PageEntry) -> list[BlockEntry]:
        """Return the lines of a page. Raises CorruptCheckpointError for one that no checkpoint would hold. O(lines)."""
        entries = super().page(store, page)
        # by column: a state has a line for some hundred records
        columns: list[tuple[Any, ...]] = list(zip(*entries, strict=True)) or [()] * len(BlockEntry._fields)
        block, bucket, _, _, keys, records, size, low, high, hashes, pack, offset, layers = columns
        over = list(chain.from_iterable(layers))
        counts = chain(block, keys, records, size, pack, offset, chain.from_iterable(layer[:3] for layer in over))
        if (
            not _are_counts(counts)
            or not _are_ints((*bucket, *low, *high))
            or not _are_hashes((*hashes, *(layer.hash for layer in over)))
        ):
            raise CorruptCheckpointError(
                f"{self._in_pack(page.pack, page.offset)}: page of store {store}: a line with a field of the wrong type"
            )
        return entries


def _are_counts(values: Iterable[Any]) -> bool:
    numbers = list(values)
    return _are_ints(numbers) and (not numbers or (min(numbers) >= 0 and max(numbers) < 1 << 63))


def _are_ints(values: Iterable[Any]) -> bool:
    return set(map(type, values)) <= {int}


def _are_hashes(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= {bytes} and set(map(len, values)) <= {HASH_BYTES}
