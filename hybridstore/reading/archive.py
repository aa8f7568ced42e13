"""Archives: opens the files that `pack` wrote.

An archive is unpacked into a private directory in the temporary directory, which is removed when the process ends. Only
files of a state are unpacked, each is compared with the manifest, and no file outside of that directory is ever
written. An archive on an object store is copied first.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from changelog.storage import Storage

from ..errors import ForeignFileError, HybridStoreError
from .texts import say, size_text

MAGIC: Final = b"PK\x03\x04"
SUFFIX: Final = ".zip"
MANIFEST: Final = "manifest.json"
FORMAT_VERSION: Final = 1
_MANIFEST_BYTES: Final = 64 << 20
_CHUNK: Final = 1 << 20
# The size of the pieces (bytes) in which a file is read; on an object store each piece is a request.
PART_BYTES: Final = 8 << 20
# Names of directories are the user's (an operator's), so any that is one plain name will do.
_FILE: Final = re.compile(r"LOCK|[\w.-]+\.(lmdb|log|pack|damaged|json)|\d{10}|\d{20}-[\w-]+", re.ASCII)


class DamagedArchiveError(HybridStoreError):
    """A file of an archive differs from the manifest of the archive."""


class _Packed(NamedTuple):
    """A line of the manifest."""

    name: str
    size: int
    digest: str


# Archives unpacked by this process: (path, size, time) -> the directory, which is removed when the process ends.
_unpacked: dict[tuple[Path, int, int], Path] = {}
# Archives copied from an object store: address -> the copy, which is removed, too.
_copied: dict[str, Path] = {}


def copied(storage: Storage, name: str) -> Path:
    """Return a local copy of an archive on an object store. Raises FileNotFoundError, OSError. O(bytes), once."""
    address = f"{storage.url}/{name}"
    if address not in _copied:
        folder = Path(tempfile.mkdtemp(prefix="hybridstore-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with (folder / "archive.zip").open("wb") as file:
            for part in parts_of(storage, name):
                file.write(part)
        _copied[address] = folder / "archive.zip"
    return _copied[address]


def parts_of(storage: Storage, name: str) -> Iterator[bytes]:
    """Yield an object piece by piece, with one piece in memory. Raises FileNotFoundError, OSError. O(bytes)."""
    for start in range(0, storage.size(name), PART_BYTES):
        (part,) = storage.get_ranges(name, [(start, PART_BYTES)])
        yield part


def unpacked(path: Path) -> Path:
    """Return a directory with the content of an archive, which keeps its name. O(bytes) the first time.

    Raises ForeignFileError for a zip file that `pack` did not write, DamagedArchiveError when a file is not what the
    manifest says, OSError when the disk is full.
    """
    status = path.stat()
    key = (path.absolute(), status.st_size, status.st_mtime_ns)
    folder = _unpacked.get(key)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="hybridstore-"))
        try:
            _unpack(path, folder / path.name)
        except BaseException:
            shutil.rmtree(folder)
            raise
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _unpacked[key] = folder
    return folder / path.name


def _unpack(path: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = list(_listed(path, archive))
            needed, free = sum(entry.size for entry in entries), shutil.disk_usage(target.parent).free
            if needed > free:
                raise OSError(
                    f"{path}: found {size_text(free)} free in {target.parent}, expected {size_text(needed)} to unpack "
                    "it (set TMPDIR to a folder with room)"
                )
            if needed > 1 << 26:
                say(f"{path}: unpacking {size_text(needed)} into {target.parent}, to be removed when done")
            target.mkdir()
            for entry in entries:
                _copy(path, archive, entry, target / entry.name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, KeyError, zlib.error) as error:
        raise DamagedArchiveError(f"{path}: cannot be unpacked: {error} (pack the state again)") from error


def _listed(path: Path, archive: zipfile.ZipFile) -> Iterator[_Packed]:
    if MANIFEST not in archive.namelist() or archive.getinfo(MANIFEST).file_size > _MANIFEST_BYTES:
        raise ForeignFileError(
            f"{path}: found a zip file without {MANIFEST}, expected one that `hybridstore inspect pack` wrote"
        )
    try:
        manifest: Any = json.loads(archive.read(MANIFEST))
        if manifest["hybridstore_pack"] != FORMAT_VERSION:
            raise ValueError(f"found format {manifest['hybridstore_pack']!r}, expected {FORMAT_VERSION}")
        entries = [_Packed(entry["name"], entry["bytes"], entry["sha256"]) for entry in manifest["files"]]
        for entry in entries:
            if type(entry.name) is not str or type(entry.size) is not int or entry.size < 0:
                raise ValueError(f"a file {entry.name!r} of {entry.size!r} bytes")
            parts = PurePosixPath(entry.name).parts
            plain = all(re.fullmatch(r"[^\x00/\\]+", part) and part not in (".", "..") for part in parts)
            if not parts or not plain or not _FILE.fullmatch(parts[-1]):
                raise ValueError(f"a file {entry.name!r}, which no state has")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedArchiveError(f"{path}: its manifest cannot be read: {error} (pack the state again)") from error
    yield from entries


def _copy(path: Path, archive: zipfile.ZipFile, entry: _Packed, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = sha256(), 0
    with archive.open(entry.name) as source, target.open("xb") as file:
        while size <= entry.size and (chunk := source.read(_CHUNK)):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if (size, digest.hexdigest()) != (entry.size, entry.digest):
        raise DamagedArchiveError(f"{path}: {entry.name} is not what the manifest says (pack the state again)")
