"""Exchange: connections and messages between the workers and holders of one host.

A folder of Unix sockets, messages in parts.

    <tmp>/hybridstore-<uid>/<operator>-<run>-<slot>.sock     a holder listens here
                                                   .lock     locked as long as the holder lives, from before it listens
                                                   .failed   a line for each failure of a holder: its process id
                                                   .moved    a byte for each tenth of a millisecond that workers spent
                                                             on shards that moved among them

Only processes of one user communicate: the folder is private to the user, and each side asks the system for the user of
the other side.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

# What a message is about: from a worker ...
SHARD: Final = b"S"
OPERATOR: Final = b"O"
END: Final = b"E"
# ... and from a holder: working, a request for the operator, results, an error of the program, and a refusal.
ALIVE: Final = b"A"
UNKNOWN: Final = b"U"
MADE: Final = b"M"
RAISED: Final = b"R"
REFUSED: Final = b"N"

# Sockets with the identity of the other side, and unambiguous handles of processes: Linux has both.
POSSIBLE: Final = hasattr(os, "pidfd_open") and hasattr(socket, "SO_PEERCRED")
# The counts of dead runs in the folder are removed after this time.
STALE_SECONDS: Final = 3600.0

_HEAD = struct.Struct("<cI")
_SIZE = struct.Struct("<Q")


class Message(NamedTuple):
    """One message: a kind, and parts in the order of sending."""

    kind: bytes
    parts: list[memoryview]


def send(connection: socket.socket, kind: bytes, parts: Sequence[bytes | memoryview | pa.Buffer] = ()) -> None:
    """Send a message whole.

    Raises OSError (TimeoutError when the other side reads nothing during the socket's timeout).
    """
    views = [memoryview(part).cast("B") for part in parts]
    connection.sendall(_HEAD.pack(kind, len(views)) + b"".join(_SIZE.pack(view.nbytes) for view in views))
    for view in views:
        connection.sendall(view)


def receive(connection: socket.socket) -> Message:
    """Receive a message whole. Raises EOFError when the other side has ended, TimeoutError, OSError."""
    kind, count = _HEAD.unpack(_exactly(connection, _HEAD.size))
    sizes = [_SIZE.unpack(_exactly(connection, _SIZE.size))[0] for _ in range(count)]
    return Message(kind, [_exactly(connection, size) for size in sizes])


def _exactly(connection: socket.socket, size: int) -> memoryview:
    whole = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        count = connection.recv_into(whole[filled:])
        if not count:
            raise EOFError(f"the other side ended after {filled} of {size} bytes")
        filled += count
    return whole


def pack_table(table: pa.Table) -> pa.Buffer:
    """Return a table as an Arrow stream. O(bytes)."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack_table(part: memoryview) -> pa.Table:
    """Return the table of an Arrow stream, over the same memory."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(part)).read_all()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and user id of the other side, from the system."""
    option: int = socket.SO_PEERCRED  # type: ignore[attr-defined,unused-ignore]
    credentials = connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def ended(connection: socket.socket) -> bool:
    """True when the other side has closed the connection. Does not wait."""
    poller = select.poll()
    try:
        poller.register(connection, select.POLLIN)
        return bool(poller.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


class SocketFolder:
    """The folder for the sockets of one user's workers and holders on this host.

    Raises PermissionError if other users can use the folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = folder or Path(tempfile.gettempdir(), f"hybridstore-{os.geteuid()}")
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(
                f"{self.path}: found {stat.filemode(status.st_mode)} of user {status.st_uid}, expected a folder that "
                f"only user {os.geteuid()} can enter (remove it)"
            )

    @contextmanager
    def _short(self, name: str) -> Iterator[str]:
        """A socket's address may have some hundred bytes, a path to the folder more."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{fd}/{name}.sock"
        finally:
            os.close(fd)

    def listen(self, name: str) -> socket.socket:
        """Listen as the holder of this name, in the place of a dead holder."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self.path / f"{name}.sock").unlink(missing_ok=True)
        with self._short(name) as address:
            listener.bind(address)
        listener.listen(128)
        return listener

    def connect(self, name: str, timeout: float) -> socket.socket:
        """Connect to the holder of this name.

        Raises OSError if no holder listens, PermissionError if the holder is another user's.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            with self._short(name) as address:
                connection.connect(address)
            if peer(connection)[1] != os.geteuid():
                raise PermissionError(
                    f"{self.path / name}: found a holder of user {peer(connection)[1]}, expected user {os.geteuid()}"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def lock(self, name: str) -> int | None:
        """Take the lock of a name; None when another process has the lock: a holder lives, or is being started.

        Returns a descriptor.
        """
        path = self.path / f"{name}.lock"
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # a holder that has just ended has removed the file that was opened here
                if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def inherited_lock(self, name: str) -> int | None:
        """Return the descriptor with which this process has the lock of a name; None if it has not. O(descriptors)."""
        for entry in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if self.has_lock(name, int(entry)):
                    return int(entry)
        return None

    def has_place(self, name: str, lock: int | None, socket_inode: int) -> bool:
        """True while the lock and the socket of a name are those of the holder that has this descriptor of the lock,
        and listens at this inode.
        """
        try:
            socket_status = (self.path / f"{name}.sock").stat()
        except FileNotFoundError:
            return False
        return socket_status.st_ino == socket_inode and self.has_lock(name, lock)

    def has_lock(self, name: str, lock: int | None) -> bool:
        """True while the lock of a name is the file of this descriptor."""
        try:
            return lock is not None and os.path.samestat(os.fstat(lock), (self.path / f"{name}.lock").stat())
        except FileNotFoundError:
            return False

    def note_failure(self, name: str, holder: int | None = None) -> None:
        """Note a failure of the holder of this name. That of one process counts once, whoever else notes it."""
        with (self.path / f"{name}.failed").open("a", encoding="ascii") as file:
            file.write(f"{-time.time_ns() if holder is None else holder}\n")

    def failures(self, name: str) -> tuple[int, float]:
        """Return how often holders of this name failed, and how many seconds ago the last failure was."""
        path = self.path / f"{name}.failed"
        try:
            noted, last = path.read_text(encoding="ascii"), path.stat().st_mtime
        except FileNotFoundError:
            return 0, 0.0
        return len(set(noted.split())), max(0.0, time.time() - last)

    def has_cost(self, name: str, spent_ms: float, enough_ms: float) -> bool:
        """Add processor time to what the workers of this host have spent on shards of this holder that moved among
        them; True when it is enough. Nothing is added to what is enough already. O(1).
        """
        with (self.path / f"{name}.moved").open("ab") as file:
            if file.tell() < 10 * enough_ms:
                file.write(b"." * ceil(10 * min(spent_ms, enough_ms)))
                file.flush()
            return file.tell() >= 10 * enough_ms

    def names(self) -> list[str]:
        """Return the names of all holders that live, or whose files were not removed."""
        return sorted(path.stem for path in self.path.glob("*.lock"))

    def clear(self, name: str, *, old: bool = True) -> None:
        """Remove the files of a name; unless `old`, not its counts. Only who has its lock may do that."""
        for suffix in ("sock", *(("failed", "moved") if old else ()), "lock"):
            (self.path / f"{name}.{suffix}").unlink(missing_ok=True)

    def sweep(self, run: str = "") -> None:
        """Remove what holders that were killed, or were never worth a start, have left: sockets and locks at once,
        counts of failures and costs when they are old. With the beginning of the names of a run: all of that run.
        O(files).
        """
        changed: dict[str, float] = {}
        dead: set[str] = set()
        for path in self.path.iterdir():
            with suppress(FileNotFoundError):
                changed[path.stem] = max(changed.get(path.stem, 0.0), path.stat().st_mtime)
                if path.suffix in (".sock", ".lock"):
                    dead.add(path.stem)
        for name, last in changed.items():
            with suppress(FileNotFoundError):
                old = time.time() - last >= STALE_SECONDS or bool(run and name.startswith(run))
                if not old and name not in dead:
                    continue
                fd = self.lock(name)
                if fd is not None:
                    self.clear(name, old=old)
                    os.close(fd)


def short(*parts: Any) -> str:
    """Return a short name that follows from the parts."""
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=6).hexdigest()
