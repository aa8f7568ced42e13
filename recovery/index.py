"""Index: the LMDB file of a checkpoint. It names the packs and where the directory pages are; blocks are in packs.

    b"meta"         sealed map: store id, version, digest, position, settings, stores, packs
    b"t" + store    sealed columns: the store's top record (`directory`)

The file's name has the hash of its bytes, which are checked before LMDB maps them, because LMDB trusts what it maps.
LMDB maps a copy of the checked bytes, in memory, and never the file itself: the file could change between the check
and the map. The file is small (a line per 512 blocks), read once, and unmapped after that. So neither reading nor
writing an index needs a folder for temporary files.

On storage the file is compressed: most of a small one is empty room of pages, and a checkpoint of few changes would be
mostly its index.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import lmdb

from .errors import CorruptCheckpointError

META_KEY: Final = b"meta"
_PAGE: Final = 4096
# No index has more bytes, nor more than so many times those of its stream and some room for pages that are almost
# empty, so that a forged one takes no more memory.
_MOST_BYTES: Final = 1 << 30
_MOST_TIMES: Final = 256
_ROOM_BYTES: Final = 1 << 20
# Where a file without a name has one for LMDB.
_DESCRIPTORS = "/proc/self/fd"


def top_key(store: int) -> bytes:
    """Return the LMDB key of a store's top record."""
    return b"t" + store.to_bytes(4, "big")


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """Yield a file in memory that no other process sees, as a descriptor and a path."""
    if hasattr(os, "memfd_create") and os.path.isdir(_DESCRIPTORS):
        fd = os.memfd_create("hybridstore-index", os.MFD_CLOEXEC)
        try:
            yield fd, f"{_DESCRIPTORS}/{fd}"
        finally:
            os.close(fd)
    else:
        import tempfile  # only here: Linux does without, unless it has no /proc, as in a bare chroot

        with tempfile.NamedTemporaryFile(prefix="hybridstore-") as file:
            yield file.fileno(), file.name


def encode(records: dict[bytes, bytes]) -> bytes:
    """Return the compressed bytes of an LMDB file with these records. Raises lmdb.Error, OSError. O(bytes)."""
    with _scratch() as (fd, path):
        # A map that LMDB can never exhaust: separate pages for every record, twice, and room for the trees.
        map_bytes = 2 * sum((len(data) // _PAGE + 3) * _PAGE for data in records.values()) + (1 << 20)
        environment = lmdb.open(
            path, subdir=False, lock=False, sync=False, readahead=False, max_dbs=0, map_size=map_bytes, lib_version=0
        )
        try:
            with environment.begin(write=True) as transaction:
                for key, data in sorted(records.items()):
                    transaction.put(key, data)
        finally:
            environment.close()
        with open(fd, "rb", closefd=False) as file:
            whole = file.read()
        data = zlib.compress(whole)
        return data if len(whole) <= _most_bytes(data) else zlib.compress(whole, 0)


def _most_bytes(data: bytes) -> int:
    return min(_MOST_BYTES, _MOST_TIMES * len(data) + _ROOM_BYTES)


def inflate(data: bytes, where: str) -> bytes:
    """Return the LMDB file of an index. Raises CorruptCheckpointError, naming `where`. O(bytes), and at most 256 times
    the memory of `data` and 1 MiB.
    """
    stream, most = zlib.decompressobj(), _most_bytes(data)
    try:
        file = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise CorruptCheckpointError(f"{where}: zlib cannot read it: {error}") from error
    if len(file) > most:
        raise CorruptCheckpointError(
            f"{where}: found more than {most:,} bytes in a zlib stream of {len(data):,}, as no index has"
        )
    if not stream.eof or stream.unused_data:
        raise CorruptCheckpointError(f"{where}: it does not end where its zlib stream does")
    return file


def decode(data: bytes, where: str) -> dict[bytes, bytes]:
    """Return the records of an index whose bytes were checked.

    Raises CorruptCheckpointError, naming `where`, and OSError. O(bytes).
    """
    file = inflate(data, where)
    with _scratch() as (fd, path):
        view = memoryview(file)
        while view:
            view = view[os.write(fd, view) :]
        try:
            environment = lmdb.open(
                path,
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_dbs=0,
                map_size=max(len(file), _PAGE),
                lib_version=0,
            )
        except lmdb.Error as error:
            os.close(os.dup(fd))  # a process with too many open files gets its error here: the index is not damaged
            raise CorruptCheckpointError(f"{where}: LMDB cannot read it: {error}") from error
        try:
            with environment.begin() as transaction, transaction.cursor() as cursor:
                return dict(cursor)
        except lmdb.Error as error:
            raise CorruptCheckpointError(f"{where}: LMDB cannot read it: {error}") from error
        finally:
            environment.close()
