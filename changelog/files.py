"""Files: the one layer through which state directories are written, so that tests can crash at every step of it.

A failed write or sync is never retried here: after an error the kernel may have kept any part of the data.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing, suppress
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple, NoReturn

FILE_MODE: Final = 0o644
# A temporary file. Dead attempts leave such files, which are ignored and, once they are old, removed.
TEMPORARY_PREFIX: Final = "."
TEMPORARY_SUFFIX: Final = ".tmp"
# The errors of file systems that cannot sync a directory; PostgreSQL's `fsync_fname` ignores the same errors.
_NO_DIRECTORY_SYNC: Final = frozenset((errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))


def hold_standard() -> None:
    """Let the null device have the numbers of standard input, output and error that are closed, also for the processes
    that this one starts.

    The next file or connection would get such a number, and whatever prints would write into it. Raises OSError. O(1),
    a microsecond.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free


class FileNumber(NamedTuple):
    """Which file a descriptor is of: device and inode."""

    device: int
    inode: int

    @classmethod
    def of(cls, fd: int) -> FileNumber:
        """Return that of an open descriptor. Raises OSError for a closed one. O(1), a microsecond."""
        status = os.fstat(fd)
        return cls(status.st_dev, status.st_ino)

    def is_of(self, fd: int) -> bool:
        """Return whether a descriptor is still of this file. A program that closes all numbers, as daemons do, lets
        other files have them: what is written there then damages a file of somebody else. O(1), a microsecond.
        """
        try:
            status = os.fstat(fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self or self is ANY_FILE


# Of a descriptor that was not looked at yet, where an interrupt came in between.
ANY_FILE: Final = FileNumber(-1, -1)


class AppendFile:
    """A file that is only appended to, truncated and synced."""

    __slots__ = ("_fd", "_file", "path", "size")

    def __init__(self, path: Path, *, create: bool, mode: int = FILE_MODE) -> None:
        flags = os.O_WRONLY | os.O_CLOEXEC | ((os.O_CREAT | os.O_EXCL) if create else 0)
        self.path = path
        self._file = ANY_FILE
        hold_standard()  # the program may have closed one since the state was opened
        self._fd = os.open(path, flags, mode)
        self._file = FileNumber.of(self._fd)
        self.size = os.lseek(self._fd, 0, os.SEEK_END)

    def _check(self) -> None:
        if not self._file.is_of(self._fd):
            what = "was closed" if self._fd < 0 else "its descriptor was closed by other code of this program"
            raise OSError(errno.EBADF, what, str(self.path))

    def write(self, data: bytes) -> None:
        """Append all of `data`. Raises OSError; any part of `data` may have been written by then."""
        self._check()
        written = os.write(self._fd, data)
        self.size += written
        while written < len(data):  # a full disk, or more than the kernel takes at once
            data = data[written:]
            written = os.write(self._fd, data)
            self.size += written

    def sync(self) -> None:
        """Return when everything written is durable (fdatasync).

        Raises FileNotFoundError when the file has no name any more.
        """
        os.fdatasync(self._fd)
        if not os.fstat(self._fd).st_nlink:  # the kernel would accept further writes, which no process could ever read
            raise FileNotFoundError(errno.ENOENT, "removed while it was written", str(self.path))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and go on appending there."""
        self._check()
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, size, os.SEEK_SET)
        self.size = size

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        # The number is forgotten before the close: after an interrupt in between, a second close would close another
        # file that has the number by then.
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._file.is_of(fd):
            os.close(fd)

    def __reduce__(self) -> NoReturn:
        # a copy would close the descriptor of this file
        raise TypeError(f"{self.path}: an open file cannot be copied or pickled")

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # the owner was interrupted before it could store the file
            self.close()


class Files:
    """The real file system. Tests put a recording one in its place.

    `mode` is the mode of new files, less the umask; in directories, whoever may read may also enter.
    """

    mode: int = FILE_MODE

    def __init__(self, mode: int = FILE_MODE) -> None:
        self.mode = mode

    def create(self, path: Path) -> AppendFile:
        """Create a new file for appending; it must not exist."""
        return AppendFile(path, create=True, mode=self.mode)

    def append(self, path: Path) -> AppendFile:
        """Open an existing file for appending. A file that has a second name (in a fork) is copied first, because what
        is appended or cut must not change there: O(bytes) then.
        """
        self.part(path)
        return AppendFile(path, create=False)

    def part(self, path: Path) -> bool:
        """Replace a file that has a second name by a copy of its own, durably, and return whether it had one. A crash
        leaves the file, or its copy. O(bytes) then.
        """
        status = path.stat()
        if status.st_nlink <= 1:
            return False
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.urandom(16).hex()}{TEMPORARY_SUFFIX}")
        with closing(AppendFile(temporary, create=True, mode=S_IMODE(status.st_mode))) as copy:
            copy.write(path.read_bytes())
            copy.sync()
        temporary.replace(path)
        self.sync_directory(path.parent)
        return True

    def mkdir(self, path: Path) -> None:
        """Create a directory, whose parent exists; an existing directory is no error. Its name is not durable yet."""
        path.mkdir(self.mode | (self.mode & 0o444) >> 2, exist_ok=True)

    def link(self, temporary: Path, final: Path) -> None:
        """Give a synced file a second name. Raises FileExistsError when `final` is taken, OSError without links."""
        os.link(temporary, final)

    def sync_path(self, path: Path) -> None:
        """Make the content of a closed file durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable, where the file system can sync directories."""
        try:
            self.sync_path(path)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise

    def remove(self, path: Path) -> None:
        """Remove a file; an absent file is no error."""
        path.unlink(missing_ok=True)


REAL_FILES = Files()


def make_folders(files: Files, path: Path, root: Path | None = None) -> None:
    """Create a directory and its parents; the names of all that were made, and of those from `root` on, are durable on
    return. Raises OSError. O(levels).
    """
    folder, missing = path, []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    # The deepest that exists may be of a process that ended before its sync. Whoever may not read the directory above
    # has not made it.
    with suppress(PermissionError):
        files.sync_directory(folder.parent)
    for each in reversed(missing):
        files.mkdir(each)
        files.sync_directory(each.parent)
    while root is not None and folder.is_relative_to(root):
        files.sync_directory(folder.parent)
        folder = folder.parent
