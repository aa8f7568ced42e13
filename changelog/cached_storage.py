"""Cached storage: another storage whose objects are kept, whole, in a folder on a local disk, for all processes of a
host.

    get, get_ranges, path     from the folder where the object is there, else from the storage behind it
    create                    to the storage, then to the folder
    fetch                     brings an object into the folder, in the background of whoever asks

Objects are never overwritten, so a file of the folder is never stale. Its name is a hash of the object's address; it is
created by rename, so no reader sees half of it. The folder is bounded: files that were not used for longest are removed
when a new file would exceed the limit, also while another process has them mapped, which keeps its map.

The surprise: the folder only saves time. An object that cannot be written to the folder, because the disk is full or
read-only, is read from the storage. A damaged file is noticed by the hashes of its reader, which calls `drop` and reads
again. The folder's name can be guessed, so a folder that others could have made, or can write to, is not used; and
only files with names of the cache's own form are ever removed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from .files import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from .rounds import parts, side_by_side
from .storage import Storage

LOGGER: Final = logging.getLogger("hybridstore")
# A read marks a file as used, for the order of removal, if its last mark is older than this.
_TOUCH_SECONDS: Final = 60.0
# Another process that fetches the same object is waited for so long, and asked so often; then both fetch it.
WAIT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
# Half-written files of dead processes are removed after this time.
_STALE_SECONDS: Final = 3600.0
_SUFFIX: Final = ".object"
_LOCK_SUFFIX: Final = ".lock"
# The names that the cache gives its files; a file of any other name is somebody else's.
_OBJECT: Final = re.compile(r"[0-9a-f]{40}\.object", re.ASCII)
_LEFTOVER: Final = re.compile(rf"[0-9a-f]{{40}}\.lock|\.[0-9a-f]{{32}}\{TEMPORARY_SUFFIX}", re.ASCII)
# How many parts of an object are in memory at once during a fetch.
_PARTS: Final = 8
# The default limit is at most this share of the folder's disk.
DEFAULT_BYTES: Final = 16 << 30
_SHARE_OF_DISK: Final = 0.2


def default_folder() -> Path:
    """Return where objects are kept unless told otherwise: Spark's local directory, or the user's cache directory."""
    for variable in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        folder = os.environ.get(variable, "").split(",")[0].strip()
        if folder:
            return Path(folder) / f"hybridstore-cache-{os.getuid()}"
    base = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if "HOME" in os.environ else _temporary())
    return Path(base) / "hybridstore"


def _temporary() -> str:
    import tempfile  # only here: few processes have no home

    return tempfile.gettempdir()


class _SourceError(Exception):
    """An object could not be read from the storage; the folder is not the cause."""

    def __init__(self, source: OSError) -> None:
        super().__init__(str(source))
        self.source = source


def _read(chunks: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except OSError as error:
        raise _SourceError(error) from error


def _check_private(folder: Path) -> None:
    """Raise OSError unless only this user can have made the folder and can write to it. O(1)."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"found {stat.filemode(status.st_mode)} of user {status.st_uid}, expected a folder, and no link, of user "
            f"{os.geteuid()} that nobody else can write to: remove it, take these rights away, or give another cache"
        )


def _locked(fd: int, seconds: float) -> bool:
    """Lock a file, and wait so long for another process that has the lock. True, too, in a folder without locks."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        except OSError:
            return True
        else:
            return True


class Cache:
    """A folder of whole objects, bounded in bytes. Processes share the folder and need no communication.

    folder   where; made when needed, for its user only. A folder of somebody else, one that others can write to, or a
             link is not used. Default: `default_folder()`
    limit    bytes; default: 16 GiB, or a fifth of the disk if that is less

    A failure of the folder never raises: the object is then not kept.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self._limit = limit
        self._warned = False

    @property
    def limit(self) -> int:
        """The most bytes that the folder may have; 0 for a folder that cannot be used."""
        if self._limit is None:
            if not self._usable(make=True):
                return 0
            disk = os.statvfs(self.folder)
            self._limit = min(DEFAULT_BYTES, int(disk.f_blocks * disk.f_frsize * _SHARE_OF_DISK))
        return self._limit

    def _usable(self, *, make: bool = False) -> bool:
        """True if the folder exists and is private; with `make` it is made. Looked at at each use: whoever can write
        beside the folder may put another one in its place. O(1).
        """
        try:
            if make:
                self.folder.mkdir(0o700, parents=True, exist_ok=True)
            _check_private(self.folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._warn(error)
            return False
        return True

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            LOGGER.warning(
                "%s: objects cannot be kept (%s); they are read from their storage each time", self.folder, error
            )

    def _file(self, address: str) -> Path:
        return self.folder / (blake2b(address.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest() + _SUFFIX)

    def path(self, address: str) -> Path | None:
        """Return the file of an object, or None where it is not here. The file counts as used. O(1)."""
        if not self._usable():
            return None
        path = self._file(address)
        try:
            status = path.stat()
            if time.time() - status.st_mtime > _TOUCH_SECONDS:
                os.utime(path)
        except OSError:
            return None
        return path

    def keep(self, address: str, chunks: Iterable[bytes], size: int) -> Path | None:
        """Keep an object of `size` bytes, and return its file; None if the folder cannot keep it or `chunks` are too
        short.

        Raises what `chunks` raise. O(bytes + files in the folder).
        """
        path = self._file(address)
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.urandom(16).hex()}{TEMPORARY_SUFFIX}")
        if not self._usable(make=True) or size > self.limit:
            return None
        try:
            self._make_room(size)
            try:
                # Not synced: after a power failure a file may be cut short. Checksums notice that, like any other
                # damage.
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    written = sum(map(file.write, _read(chunks)))
                if written != size:
                    return None
                os.replace(temporary, path)
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
        except _SourceError as error:
            raise error.source from None
        except OSError as error:
            self._warn(error)
            return None
        return path

    @contextmanager
    def alone(self, address: str, *, wait: bool) -> Iterator[bool]:
        """Let one process of the host at a time fetch an object. Yields False while another process fetches the object;
        with `wait`, waits for that process, up to a minute.

        After that minute, in a folder without locks, or without the right to write, every process may fetch: the same
        bytes arrive twice.
        """
        lock = self._file(address).with_suffix(_LOCK_SUFFIX)
        if not self._usable(make=True):
            yield True
            return
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True
            return
        try:
            locked = _locked(fd, WAIT_SECONDS if wait else 0.0)
            try:
                yield locked or wait
            finally:
                if locked:
                    with suppress(OSError):
                        lock.unlink()
        finally:
            os.close(fd)

    def drop(self, address: str) -> None:
        """Forget an object; an absent one is fine."""
        with suppress(OSError):
            if self._usable():
                self._file(address).unlink()

    def _make_room(self, wanted: int) -> None:
        files: list[tuple[float, int, str]] = []
        now = time.time()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if _OBJECT.fullmatch(entry.name):
                        files.append((status.st_mtime, status.st_size, entry.path))
                    elif _LEFTOVER.fullmatch(entry.name) and now - status.st_mtime > _STALE_SECONDS:
                        os.unlink(entry.path)
        excess = sum(size for _, size, _ in files) + wanted - self.limit
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size

    @property
    def bytes(self) -> int:
        """Bytes in the folder now. O(files)."""
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            return sum(entry.stat().st_size for entry in entries if _OBJECT.fullmatch(entry.name))
        return 0


def bare(storage: Storage) -> Storage:
    """Return a storage without the cache before it."""
    return storage.storage if isinstance(storage, CachedStorage) else storage


class CachedStorage:
    """The seven verbs over another storage, with a cache before it. `kept` says which names are worth keeping.

    Costs are those of local files for objects that are in the cache. Raises as the storage behind.
    """

    def __init__(self, storage: Storage, cache: Cache, kept: Callable[[str], bool] = lambda name: True) -> None:
        self.storage = storage
        self.cache = cache
        self._kept = kept

    @property
    def url(self) -> str:
        """That of the storage behind."""
        return self.storage.url

    def __repr__(self) -> str:
        return f"CachedStorage({self.storage!r}, {str(self.cache.folder)!r})"

    def _address(self, name: str) -> str:
        return f"{self.storage.url}/{name}"

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`. An object that was created is in the cache."""
        created = self.storage.create(name, data)
        if created and self._kept(name):
            self.cache.keep(self._address(name), [data], len(data))
        return created

    def get(self, name: str) -> bytes:
        """See `Storage`. An object that was read is in the cache from then on."""
        if not self._kept(name):
            return self.storage.get(name)
        path = self.cache.path(self._address(name))
        if path is not None:
            with suppress(OSError):  # removed since, to make room
                return path.read_bytes()
        data = self.storage.get(name)
        self.cache.keep(self._address(name), [data], len(data))
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """See `Storage`. Ranges of an object that is not in the cache are read from the storage and not kept; `fetch`
        keeps objects.
        """
        path = self.cache.path(self._address(name)) if self._kept(name) else None
        if path is not None:
            with suppress(OSError), path.open("rb", buffering=0) as file:
                return [os.pread(file.fileno(), length, start) for start, length in ranges]
        return self.storage.get_ranges(name, ranges)

    def fetch(self, name: str, size: int, go_on: Callable[[], bool] | None = None) -> Path | None:
        """Bring an object of `size` bytes into the cache, a few parts side by side, and return its file.

        None if the cache cannot keep the object. With `go_on`, also None when `go_on` returns False between two parts
        or another process fetches the object; without `go_on`, that process is waited for. Raises FileNotFoundError,
        OSError. O(bytes), of which up to 32 MiB are in memory.
        """
        address = self._address(name)
        path = self.path(name)
        if path is not None or not self._kept(name):
            return path
        with self.cache.alone(address, wait=go_on is None) as alone:
            path = self.path(name)
            if path is not None or not alone:
                return path
            return self.cache.keep(address, self._parts(name, size, go_on), size)

    def _parts(self, name: str, size: int, go_on: Callable[[], bool] | None) -> Iterator[bytes]:
        every = parts(size)
        for first in range(0, len(every), _PARTS):
            if go_on is not None and not go_on():
                return
            some = every[first : first + _PARTS]
            yield from side_by_side(lambda part: self.storage.get_ranges(name, [part])[0], some)

    def drop(self, name: str) -> None:
        """Remove an object's file from the cache, because its bytes are damaged."""
        self.cache.drop(self._address(name))

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        """See `Storage`. Always of the storage behind."""
        return self.storage.list(prefix, after)

    def folders(self, folder: str = "") -> Sequence[str]:
        """See `Storage`. Always of the storage behind."""
        return self.storage.folders(folder)

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage`. Also removes the objects from the cache."""
        names = list(names)
        self.storage.delete(names)
        for name in names:
            self.drop(name)

    def size(self, name: str) -> int:
        path = self.path(name)
        if path is not None:
            with suppress(OSError):
                return path.stat().st_size
        return self.storage.size(name)

    def path(self, name: str) -> Path | None:
        """Return the file of an object in the cache; None where it is not there, without a request."""
        return self.cache.path(self._address(name)) if self._kept(name) else None

    def below(self, folder: str) -> CachedStorage:
        """See `Storage`. Shares the cache."""
        return CachedStorage(self.storage.below(folder), self.cache, lambda name: self._kept(f"{folder}/{name}"))
