"""Storage: an object store in seven verbs. By them hybridstore writes all that it keeps but the growing log of a
directory (`writer`).

    create(name, data) -> bool       atomic and durable; never overwrites; False: the name is taken
    get(name) -> bytes
    get_ranges(name, ranges) -> list[bytes]
    list(prefix, after) -> list[str]
    delete(names)
    size(name) -> int
    url                              where the storage is, for messages

It has no verb to overwrite or rename: among competing writers, `create` decides. Names are relative, with `/`
between their parts; no part begins with a dot. `below(folder)` is the same storage seen from a folder of it,
`folders(folder)` says which folders it has, and `path(name)` is the local file of an object, for readers that map it.

The surprise: many mounted file systems (Unity Catalog volumes, blobfuse, gcsfuse, vfat) have neither `link` nor an
atomic rename. `LocalStorage` writes such a file in place, as `<name>.whole`, and the last 16 bytes say that it is
complete. See docs/format.md, "Objects on a local file system".
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path, PosixPath
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from .bucket import settings_of
from .errors import HybridStoreError
from .files import REAL_FILES, TEMPORARY_PREFIX, TEMPORARY_SUFFIX, AppendFile, Files, make_folders

STALE_SECONDS: Final = 3600
# A file written in place. The object exists only if the file ends with the mark: the magic and the length (u64) before
# it.
WHOLE_SUFFIX: Final = ".whole"
_MARK: Final = struct.Struct("<8sQ")
_MAGIC: Final = b"\x89HSEND\r\n"
# The beginning of a location that is not a path.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# The errors of file systems without hard links; vfat and FUSE without the operation return EPERM.
_NO_LINK: Final = frozenset((errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM))


class Storage(Protocol):
    """Where objects are kept. Implementations are safe to use from several threads and after a fork, unless they say
    otherwise. Every method may raise OSError: after a failed `create` or `delete`, whether it was done is unknown until
    the name is read.
    """

    @property
    def url(self) -> str:
        """Where the storage is, for messages: `<url>/<name>` is an object."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object: atomic, and durable on return. False: the name is taken, by whatever content. O(bytes)."""

    def get(self, name: str) -> bytes:
        """Return an object's content. Raises FileNotFoundError. O(bytes)."""

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Return parts of an object, given as (start, length). A range that passes the end returns the bytes before the
        end.

        Raises FileNotFoundError, except perhaps if no range asks for a byte. O(bytes of the ranges).
        """

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        """Return the names that begin with `prefix` and are greater than `after`, in order. O(names).

        `prefix` need not end at a `/`, and the names below inner folders are among the result.
        """

    def folders(self, folder: str = "") -> Sequence[str]:
        """Return the names of the folders that lie directly in `folder` (the storage itself: ""), in order.

        Their contents are not listed. O(names directly in `folder`).
        """

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; absent objects are no error. Not durable: after a power failure an object may exist again."""

    def size(self, name: str) -> int:
        """Return the bytes of an object. Raises FileNotFoundError. O(1)."""

    def path(self, name: str) -> Path | None:
        """Return the local file of an object, to be mapped: its first `size(name)` bytes are the object.

        None: not local.

        Raises FileNotFoundError when the object does not exist.
        """

    def below(self, folder: str) -> Storage:
        """Return this storage as seen from `folder`, whose names are without `<folder>/`."""


class LocalStorage:
    """Objects as files below a directory, on a file system that forked children and other hosts may share.

    `create` writes a temporary file, syncs it, links it to its name, and syncs the folder. Where the file system has no
    links, the file is written in place with an end mark; such a name stays taken when its writer dies half-way, though
    no object has it, so a writer must be able to take another name.

    `files` is what system calls go through; its `mode` is that of new files. The directory is made when needed.
    """

    def __init__(self, root: Path, *, files: Files = REAL_FILES) -> None:
        self.root = root
        self.files = files
        self._linkless = False

    @property
    def url(self) -> str:
        """The directory, as a string."""
        return str(self.root)

    def __repr__(self) -> str:
        return f"LocalStorage({self.url!r})"

    # --- writing --------------------------------------------------------------------------------------------------

    def create(self, name: str, data: bytes) -> bool:
        """See `Storage`. Two syncs: the file's and its folder's. Raises OSError."""
        path = self.root / name
        if self._linkless:
            return self._create_in_place(path, data)
        # The directory may be a copy from a file system without links.
        if _whole(path).exists():
            return False
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.urandom(16).hex()}{TEMPORARY_SUFFIX}")
        try:
            with closing(self._open_new(temporary)) as file:
                file.write(data)
                file.sync()
            try:
                self.files.link(temporary, path)
            except FileExistsError:
                # A network file system may repeat a link whose answer it has lost.
                if temporary.stat().st_nlink == 1:
                    return False
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._linkless = True
        finally:
            self.files.remove(temporary)
        if self._linkless:
            return self._create_in_place(path, data)
        self.files.sync_directory(path.parent)
        return True

    def _create_in_place(self, path: Path, data: bytes) -> bool:
        if path.exists():
            return False
        whole = _whole(path)
        try:
            file = self._open_new(whole)
        except FileExistsError:
            return False
        with closing(file):
            try:
                # One write: mounted object stores accept a file in one piece, and refuse more bytes after a sync.
                file.write(b"".join((data, _MARK.pack(_MAGIC, len(data)))))
            except BaseException:
                # Without the mark no reader has seen the object, so the name is free again.
                self.files.remove(whole)
                raise
            file.sync()
        self.files.sync_directory(path.parent)
        return True

    def _open_new(self, path: Path) -> AppendFile:
        try:
            return self.files.create(path)
        except FileNotFoundError:
            self.make_folder(path.parent)
            return self.files.create(path)

    def make_folder(self, folder: Path) -> None:
        """Make a directory at or below the root, and its name durable."""
        make_folders(self.files, folder, self.root)

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage`. In the folders of `names`, temporary files that are older than an hour are removed, too.

        O(names in those folders).
        """
        folders = set()
        for name in names:
            path = self.root / name
            folders.add(path.parent)
            self.files.remove(path)
            if _whole(path).exists():
                self.files.remove(_whole(path))
        for folder in folders:
            self._remove_stale(folder)

    def _remove_stale(self, folder: Path) -> None:
        oldest = time.time() - STALE_SECONDS
        for path in temporaries(folder):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    self.files.remove(path)

    def sync_folder(self, name: str) -> None:
        """Make the names in the folder of an object durable."""
        self.files.sync_directory((self.root / name).parent)

    # --- reading --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        with _Opened(self.root / name) as file:
            return file.read(0, file.size)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        with _Opened(self.root / name) as file:
            return [file.read(start, min(length, file.size - start)) for start, length in ranges]

    def size(self, name: str) -> int:
        with _Opened(self.root / name) as file:
            return file.size

    def path(self, name: str) -> Path | None:
        """See `Storage`. O(1)."""
        path = self.root / name
        if path.exists():
            return path
        with _Opened(path) as file:
            return file.path

    def list(self, prefix: str = "", after: str = "") -> Sequence[str]:
        """See `Storage`. Reads one directory, and those below it; and 16 bytes of each file that was written in
        place.
        """
        folder, slash, first = prefix.rpartition("/")
        return sorted(name for name in self._names(folder + slash, first) if name > after)

    def _names(self, base: str, first: str) -> Iterator[str]:
        try:
            with os.scandir(self.root / base) as entries:
                inside = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(first)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, folder in inside:
            if name.startswith(TEMPORARY_PREFIX):
                continue
            if folder:
                yield from self._names(f"{base}{name}/", "")
            elif not name.endswith(WHOLE_SUFFIX):
                yield base + name
            else:
                with suppress(FileNotFoundError), _Opened(self.root / base / name.removesuffix(WHOLE_SUFFIX)):
                    yield base + name.removesuffix(WHOLE_SUFFIX)

    def folders(self, folder: str = "") -> Sequence[str]:
        """See `Storage`. Empty directories are among them."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(TEMPORARY_PREFIX))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def below(self, folder: str) -> LocalStorage:
        inner = LocalStorage(self.root / folder, files=self.files)
        inner._linkless = self._linkless
        return inner


class _Opened:
    """An object that is open for reading: the file of its name, or the file written in place."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            self.path = _whole(path)
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise error from None
        try:
            self.size = os.fstat(self._fd).st_size
            if self.path is not path:
                self.size -= _MARK.size
                if self.size < 0 or self.read(self.size, _MARK.size) != _MARK.pack(_MAGIC, self.size):
                    raise FileNotFoundError(errno.ENOENT, "has no end mark: it was never written to its end", str(path))
        except BaseException:
            os.close(self._fd)
            raise

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on, fewer where the file ends before."""
        parts = []
        while length > 0:
            part = os.pread(self._fd, length, start)
            if not part:
                break
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def temporaries(folder: Path) -> list[Path]:
    """Return the temporary files in a folder, of live and of dead attempts; an absent folder has none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / n for n in sorted(names) if n.startswith(TEMPORARY_PREFIX) and n.endswith(TEMPORARY_SUFFIX)]


def _whole(path: Path) -> Path:
    return path.with_name(path.name + WHOLE_SUFFIX)


def exists(storage: Storage, name: str) -> bool:
    """Return whether an object is there. Raises OSError. One request."""
    try:
        storage.size(name)
    except FileNotFoundError:
        return False
    return True


def _text(location: str | os.PathLike[str]) -> str:
    """Return a location as text. Raises TypeError for what is none, ValueError for an empty one: it would be the folder
    in which the program happens to run.
    """
    text = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(text, str):
        raise TypeError(f"location: found {type(text).__name__}, expected a path or a URL, as text or a Path")
    if not text:
        raise ValueError("location: found '', expected a path or a URL ('.' for the working directory)")
    return text


def is_url(location: str | os.PathLike[str]) -> bool:
    """True for a location that is not a path: `scheme://...`, `dbfs:/...`. Raises TypeError or ValueError for what
    cannot be a location.
    """
    text = _text(location)
    return not text.startswith("file:") and _SCHEME.match(text) is not None


class _UrlPath(PosixPath):
    """A URL where a path is expected: a path of `s3://a` is shown as `s3:/a`, which is the name of nothing."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)


def named_path(where: str) -> Path:
    """Return the name of a file or an object, below the `url` of a storage, as a path that is shown as it is.

    >>> from changelog.storage import named_path
    >>> str(named_path("s3://bucket/state/a.log")), named_path("state/a.log")
    ('s3://bucket/state/a.log', PosixPath('state/a.log'))
    """
    return _UrlPath(where) if "://" in where and is_url(where) else Path(where)


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return a location that is no URL of an object store (`is_url`) as a path: a path, or `file:/...`, `file:///...`
    with `%20` and its like. Raises HybridStoreError for a `file:` URI of another machine, or without a whole path.

    >>> from changelog.storage import local_path
    >>> local_path("file:///tmp/a%20b"), local_path("state")
    (PosixPath('/tmp/a b'), PosixPath('state'))
    """
    text = _text(location)
    if not text.startswith("file:"):
        return Path(location)
    rest = text.removeprefix("file:")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        rest = slash + path if host in ("", "localhost") else ""
    if not rest.startswith("/"):
        raise HybridStoreError(f"{text}: found no path of this machine, expected file:///path")
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(rest))))  # a name of a file need not be UTF-8


def storage_at(location: str | os.PathLike[str], *, files: Files = REAL_FILES) -> Storage:
    """Return the storage of a location: a bucket for `s3://` and its like, with the settings of a `Bucket`, else a
    directory.

    Raises HybridStoreError for a scheme that is not supported.
    """
    if is_url(location):
        from .cloud_storage import CloudStorage

        return CloudStorage(os.fspath(location), settings_of(location))
    return LocalStorage(local_path(location), files=files)
