"""Index: the LMDB file of a checkpoint. It names the packs and where the directory pages are; blocks are in packs.

    b"meta"         sealed map: store id, version, digest, position, settings, stores, packs
    b"t" + store    sealed columns: the store's top record (`directory`)

The file's name has the hash of its bytes: the whole file is checked before LMDB maps it, because LMDB trusts the bytes
that it maps. The file is small (a line per 512 blocks), read once, and unmapped after that.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from .errors import CorruptCheckpointError

META_KEY: Final = b"meta"
_PAGE: Final = 4096


def top_key(store: int) -> bytes:
    """Return the LMDB key of a store's top record."""
    return b"t" + store.to_bytes(4, "big")


def encode(records: dict[bytes, bytes]) -> bytes:
    """Return the bytes of an LMDB file with these records. Raises lmdb.Error, OSError. O(bytes)."""
    import tempfile  # only here and below: a restart needs it seldom, and it loads much

    with tempfile.TemporaryDirectory(prefix="hybridstore-") as folder:
        path = Path(folder) / "index.lmdb"
        # A map that LMDB can never exhaust: separate pages for every record, twice, and room for the trees.
        map_bytes = 2 * sum((len(data) // _PAGE + 3) * _PAGE for data in records.values()) + (1 << 20)
        environment = lmdb.open(
            str(path),
            subdir=False,
            lock=False,
            sync=False,
            readahead=False,
            max_dbs=0,
            map_size=map_bytes,
            lib_version=0,
        )
        try:
            with environment.begin(write=True) as transaction:
                for key, data in sorted(records.items()):
                    transaction.put(key, data)
        finally:
            environment.close()
        return path.read_bytes()


def decode(data: bytes, path: Path | None) -> dict[bytes, bytes]:
    """Return the records of an LMDB file whose bytes, `data`, were checked; `path` is where it is (None: not a local
    file).

    Raises CorruptCheckpointError, OSError. O(bytes).
    """
    if path is not None:
        # A mount may be unable to map its files: the bytes are sound, so LMDB opens a copy of them.
        with suppress(lmdb.Error):
            return _records(path)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hybridstore-") as folder:
        copy = Path(folder) / "index.lmdb"
        copy.write_bytes(data)
        try:
            return _records(copy)
        except lmdb.Error as error:
            raise CorruptCheckpointError(f"{path or copy}: LMDB cannot read it: {error}") from error


def _records(path: Path) -> dict[bytes, bytes]:
    with _map(path).begin() as transaction, transaction.cursor() as cursor:
        return dict(cursor)


# LMDB refuses to open a file twice in a process, so readers that open a file at the same time share its environment.
# By process, device and inode: a forked child must open its own, and a name may come to stand for another file.
_environments: weakref.WeakValueDictionary[tuple[int, int, int], lmdb.Environment] = weakref.WeakValueDictionary()
_TRIES: Final = 50
_WAIT_SECONDS: Final = 0.01


def _map(path: Path) -> lmdb.Environment:
    status = path.stat()
    file = (os.getpid(), status.st_dev, status.st_ino)
    for tries in range(_TRIES, 0, -1):
        environment = _environments.get(file)
        if environment is not None:
            return environment
        try:
            environment = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_dbs=0,
                map_size=status.st_size,
                lib_version=0,
            )
        except lmdb.Error as error:
            if tries == 1 or "already open" not in str(error):
                raise
            # Another thread, a checkpoint's or a reader's, has opened the file and will register it soon. (Not a lock:
            # an interrupt could leave it locked for ever.)
            time.sleep(_WAIT_SECONDS)
        else:
            return _environments.setdefault(file, environment)
    raise AssertionError("unreachable")  # pragma: no cover
